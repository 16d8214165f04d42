"""One trial: a network, every bound that claims to hold, two attackers, and the captured graph against the model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from normscope.bounds.attack import lower_bound
from normscope.bounds.ladder import Work
from normscope.core.errors import SoundnessError

from .attacker import as_function, double_twin, strongest
from .networks import Network


@dataclass(frozen=True)
class Outcome:
    """What a trial saw, as log10; `upper` is the best bound (`inf` with its reason)."""

    upper: float
    lower: float
    reason: str | None


def try_network(network: Network, *, seconds: float = 0.1, tries: int = 10) -> Outcome:
    """Bound a network by every method and attack it from two sides.

    Raises:
        SoundnessError: a bound that claims to hold is below what an attacker found.
        AssertionError: the captured graph does not compute the model's function, or a bound is NaN.
    """
    work = Work(network.model, network.batch)
    start = network.batch[:1] if work.graph.per_sample else network.batch
    twin = double_twin(network.model)
    function = as_function(twin, tuple(start.shape))
    _assert_same_function(work, function, start.double(), network)
    rungs = {name: rung for name, rung in work.rungs().items() if rung.holds}
    theirs, _ = strongest(function, start.double().reshape(-1), seed=network.seed, tries=tries)
    ours, _ = lower_bound(work.graph, work.double, seconds=seconds, seed=network.seed)
    lower = max(ours, math.log10(theirs) if theirs > 0 else -math.inf)
    for name, rung in rungs.items():
        assert not math.isnan(rung.log10_upper), f"{name} is NaN: {network}"
        if lower > rung.log10_upper:
            raise SoundnessError(
                f"{name}: upper 10^{rung.log10_upper} below an attack's 10^{lower} "
                f"(ours 10^{ours}, theirs {theirs:g}) on {network}"
            )
        if rung.log10_upper == math.inf:
            assert rung.reason, f"{name} is infinite without a reason: {network}"
    best = rungs["best"]
    return Outcome(best.log10_upper, lower, best.reason)


def _assert_same_function(work: Work, function, start: torch.Tensor, network: Network) -> None:
    """The float64 graph and the float64 model agree at points of several sizes."""
    generator = torch.Generator().manual_seed(network.seed)
    assert not (network.mode == "train" and work.graph.per_sample)
    for scale in (0.0, 0.1, 1.0):
        point = start + scale * torch.randn(start.shape, dtype=torch.float64, generator=generator)
        with torch.no_grad():
            want = function(point.reshape(-1))
            got = work.double.run(point).reshape(-1)
        assert torch.isfinite(got).all(), f"the graph's value is not finite: {network}"
        error = float((got - want).abs().max())
        assert error <= 1e-9 * max(float(want.abs().max()), 1.0), f"graph and model differ by {error:g}: {network}"
