"""Trials of domains: the Jacobian at points inside, by hand, against every bound over the domain."""

from __future__ import annotations

import math
from functools import partial
from unittest import mock

import torch
from torch import Tensor

import normscope as ns
from normscope.bounds import rungs as engine
from normscope.bounds.captured import Captured
from normscope.bounds.domain import recording
from normscope.bounds.domain.domain_bounds import domain_sides, steepest
from normscope.bounds.ellipsoids.optimised import optimise
from normscope.core.budget import Budget
from normscope.core.errors import SoundnessError

from .attacker import Flat, as_function, double_twin
from .networks import Network

STEPS = 6
SLACK = 1e-9
"""Rounding of the Jacobian that is written out by hand."""


def try_domain(
    network: Network, *, record: str = "ranges", proposals: int = 12, samples: int = 10, effort: str = "tight"
) -> float:
    """Record a domain over data, bound it by every method, and search it for steep points.

    Returns log10 of the best bound over the steepest point.

    Raises:
        SoundnessError: a bound over the domain is below the Jacobian norm at a point inside, or above the one over all
            inputs.
        AssertionError: data that was recorded lies outside.
    """
    generator = torch.Generator().manual_seed(network.seed + 1)
    batches = [network.batch, *(_like(network.batch, generator) for _ in range(samples // len(network.batch)))]
    work = Captured.of(network.model, network.batch)
    with mock.patch.object(recording, "trace_model", return_value=work.graph):  # once is enough
        domain = ns.domain(network.model, batches, record=record)
    for batch in batches:
        assert bool(domain.contains(batch).all()), f"recorded data outside: {network}"
    with mock.patch.object(engine, "optimise", partial(optimise, steps=STEPS)):
        rungs = domain_sides(work, domain, effort=effort)
    shape = tuple(network.batch.shape) if not work.graph.per_sample else (1, *network.batch.shape[1:])
    function = as_function(double_twin(network.model), shape)
    rows = torch.cat([batch.double().reshape(-1, math.prod(shape)) for batch in batches])
    points = list(rows[:4])
    found = steepest(domain, work.double, rows[:6], budget=Budget(20), seed=network.seed)[1]
    points += [] if found is None else [found[0]]
    seen = -math.inf
    for point in points:
        size = norm_at(function, point)
        for _ in range(proposals):
            other = _proposal(point, rows, generator)
            if not bool(domain.inside(other[None])[0]):
                continue
            reached = norm_at(function, other)
            if reached > size:
                size, point = reached, other
        seen = max(seen, math.log10(size) if size > 0 else -math.inf)
    for name, rung in rungs.items():
        if seen + math.log1p(-SLACK) > rung.log10_upper and seen > -12:
            raise SoundnessError(f"{name}: 10^{rung.log10_upper} below a Jacobian of 10^{seen} inside: {network}")
        if rung.log10_upper == math.inf:
            assert rung.reason, f"{name} is infinite without a reason: {network}"
    everywhere, best = rungs["global"], rungs["best"]
    if best.log10_upper > everywhere.log10_upper:
        raise SoundnessError(f"10^{best.log10_upper} inside above 10^{everywhere.log10_upper} everywhere: {network}")
    return best.log10_upper - seen


def norm_at(function: Flat, point: Tensor) -> float:
    """The norm of the Jacobian of the model itself, written out."""
    jacobian = torch.autograd.functional.jacobian(function, point.detach())
    return float(torch.linalg.matrix_norm(jacobian.double(), ord=2))


def _like(batch: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a batch like another one, of several sizes and with offsets."""
    size = float(10.0 ** (torch.rand((), generator=generator) - 0.5))
    noise = torch.randn(batch.shape, generator=generator, dtype=torch.float64)
    return (size * (noise + torch.randn((), generator=generator)) * batch.std().clamp(min=0.1).double()).to(batch)


def _proposal(point: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
    """A step from a point: towards or beyond another one, at random, or to another size."""
    kind = int(torch.randint(0, 3, (), generator=generator))
    scale = float(10.0 ** (-2.5 * torch.rand((), generator=generator)))
    if kind == 0:
        other = rows[int(torch.randint(0, len(rows), (), generator=generator))]
        return point + (1.5 * torch.rand((), generator=generator, dtype=torch.float64) - 0.25) * (other - point)
    if kind == 1:
        noise = torch.randn(point.shape, generator=generator, dtype=torch.float64)
        return point + scale * float(point.std().clamp(min=1e-3)) * noise
    return point * (1 - scale)
