"""Trials: networks and convolutions against attackers and dense operators, captured graphs against their models."""

from __future__ import annotations

import math
from functools import partial
from unittest import mock

import torch
from torch import Tensor, nn

from normscope.bounds import bounds_by_method as engine
from normscope.bounds.bounds_by_method import upper_sides
from normscope.bounds.ellipsoids.optimised import optimise
from normscope.bounds.lower import lower_bound
from normscope.bounds.operators import ranges
from normscope.bounds.operators.effects import UNKNOWN
from normscope.bounds.traced_network import TracedNetwork
from normscope.core.budget import Budget
from normscope.core.errors import SoundnessError

from .attacker import Flat, as_function, double_twin, strongest
from .networks import Network

STEPS = 6
"""Steps of the optimised certificate: every iterate is a bound, the best of a few is as good a suspect as any."""


def try_network(network: Network, *, steps: int = 50, tries: int = 10) -> float:
    """Bound a network by every method and attack it from two sides; return log10 of the best bound over the attack.

    Raises:
        SoundnessError: a bound that claims to hold is below what an attacker found.
        AssertionError: the graph does not compute the model's function, a value leaves its range, a bound is NaN.
    """
    work = TracedNetwork.of(network.model, network.batch)
    start = network.batch[:1] if work.graph.per_sample else network.batch
    twin = double_twin(network.model)
    function = as_function(twin, tuple(start.shape))
    _assert_same_function(work, function, start.double(), network)
    _assert_ranges(work, start.double(), network)
    with mock.patch.object(engine, "optimise", partial(optimise, steps=STEPS)):
        rungs = {name: rung for name, rung in upper_sides(work, effort="tight").items() if rung.holds}
    theirs, _ = strongest(function, start.double().reshape(-1), seed=network.seed, tries=tries)
    ours = lower_bound(work.graph, work.double, budget=Budget(steps), seed=network.seed).log10
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
    return rungs["best"].log10_upper - lower


def _assert_same_function(work: TracedNetwork, function: Flat, start: Tensor, network: Network) -> None:
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


def _assert_ranges(work: TracedNetwork, start: Tensor, network: Network) -> None:
    """No value leaves the range that products and attention rely on, at points of many sizes and shapes."""
    graph = work.double
    sizes = {item.name: UNKNOWN for item in graph.inputs}
    for node in graph:
        sizes[node.name] = ranges.after(work.segments.effects[node.name], node, [sizes[name] for name in node.refs])
    bounded = [node for node in graph if math.isfinite(sizes[node.name].entry)]
    if not bounded:
        return
    generator = torch.Generator().manual_seed(network.seed)
    for scale in (0.01, 1.0, 100.0):
        noise = torch.randn(start.shape, dtype=torch.float64, generator=generator)
        spike = torch.where(torch.arange(start.numel()).reshape(start.shape) % 7 == 3, 30.0, 0.01)
        for point in (start + scale * noise, scale * spike * noise, scale * noise.sign()):
            with torch.no_grad():
                values = graph.values(point)
            for node in bounded:
                value, size = values[node.name].double(), sizes[node.name]
                rows = value.reshape(-1, value.shape[-1] if value.ndim else 1).norm(dim=1)
                slack = 1 + 1e-9
                assert float(value.abs().max()) <= size.entry * slack + 1e-12, f"{node.op} leaves its range: {network}"
                assert float(rows.max()) <= size.row * slack + 1e-12, f"rows of {node.op} leave their range: {network}"


def try_exactness(network: Network) -> None:
    """A network that is one linear map is bounded within one percent of its dense SVD."""
    sigma = float(torch.linalg.matrix_norm(matrix_of(network.model, tuple(network.batch[:1].shape)), 2))
    upper = upper_sides(TracedNetwork.of(network.model, network.batch))["best"].upper
    assert sigma * (1 - 1e-9) <= upper <= 1.01 * sigma + 1e-12, f"{upper} for {sigma}: {network}"


def matrix_of(model: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """An affine model's matrix, column by column, without the package."""
    function = as_function(double_twin(model), shape)
    size = math.prod(shape)
    with torch.no_grad():
        offset = function(torch.zeros(size, dtype=torch.float64))
        return torch.stack([function(row) - offset for row in torch.eye(size, dtype=torch.float64)], dim=1)
