"""The lower side of a GLOBAL bracket: pairs of inputs that the network drives far apart.

Search in the model's own precision, then confirm: a pair (u, v) in float64 proves norm(f(u) - f(v))/norm(u - v) from
below, less a bound on the rounding errors of both ends (`evaluation.py`). A Jacobian at a kink proves nothing:
x - (relu(x) - relu(-x)) has Jacobian 1 at 0 and constant 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..core.budget import Budget, attempt
from ..core.log10 import norm as l2
from ..graph.ir import Graph
from .evaluation import Values, apart
from .secants import Confirmer, Secant

Function = Callable[[Tensor], Tensor]
STEPS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""Half the distance between the two points of a pair, relative to the size of the input."""
MET = 4e-7
"""A pair whose log10 is this close to the upper side meets it."""


def lower_bound(
    graph: Graph,
    double: Graph,
    *,
    budget: Budget,
    seed: int = 0,
    restarts: int = 8,
    promising: Sequence[tuple[Tensor, Tensor | None]] = (),
    enough: float = math.inf,
    values: Values | None = None,
    climb: bool = True,
    leave: bool = True,
) -> Secant:
    """Return the largest secant slope found, with its pair, confirmed in float64 (`double`).

    A step of the budget is one gradient or one pair in float64; pairs are confirmed under the clock of the work that
    this is a part of. `promising` points have a direction to try first or None (the captured input if empty). Nothing
    can be gained once a pair meets `enough`, log10 of the upper side. Without `leave` one start is tried whatever the
    clock says; without `climb` only the pairs along the promising directions.
    """
    values = Values.of(double) if values is None else values
    if not values.can_prove:
        return Secant()
    generator = torch.Generator(device="cpu").manual_seed(seed)
    start = graph.flat().detach()
    searched = graph if start.dtype is torch.float32 else double
    candidates = Candidates(values)
    dtype = searched.flat().dtype
    starts = _starts(promising or [(start, None)], generator, restarts if climb else 0)

    def search() -> None:
        for index, (point, direction) in enumerate(starts):
            if index > 0 and (budget.over or candidates.meet(enough - MET)):
                break
            for u, v in _climb(_flat(searched), point.to(start.device, dtype), direction, generator, budget, climb):
                budget.spend()
                candidates.add(u.double(), v.double())

    (budget if leave else Budget()).attempt(search, lambda: None)
    return candidates.confirmed()


@dataclass(slots=True)
class InputPair:
    """Two flat float64 inputs, log10 of the slope between them as computed, and what they prove once it was asked."""

    slope: float
    u: Tensor
    v: Tensor
    proved: Secant | None = None


class Candidates:
    """Pairs by their slope as computed; only the best are confirmed, which takes several times as long.

    The steepest pairs of every order of distance are kept: rounding fakes the slopes of the closest ones.
    """

    kept = 2

    def __init__(self, values: Values) -> None:
        self.values, self.confirmer = values, Confirmer(values)
        self.pairs: dict[int, list[InputPair]] = {}

    def add(self, u: Tensor, v: Tensor) -> None:
        """Remember a pair of flat float64 inputs where it is steep."""
        length, (far, _) = float(l2(u - v)), apart(self.values.plain(torch.stack([u, v])))
        if not (math.isfinite(length) and math.isfinite(far) and length > 0 and far > 0):
            return
        near = self.pairs.setdefault(round(math.log10(length)), [])
        near.append(InputPair(math.log10(far) - math.log10(length), u, v))
        near.sort(key=lambda pair: -pair.slope)
        del near[self.kept :]

    def meet(self, enough: float) -> bool:
        """Say whether a pair proves a slope of at least so much; nothing is confirmed that could not."""
        steepest = max((pair.slope for near in self.pairs.values() for pair in near), default=-math.inf)
        return steepest >= enough and self.confirmed().log10 >= enough

    def confirmed(self) -> Secant:
        """Return the largest slope that a pair proves."""
        best = Secant()
        for pair in sorted((pair for near in self.pairs.values() for pair in near), key=lambda pair: -pair.slope):
            if pair.slope <= best.log10:
                break
            if pair.proved is None:
                pair.proved = attempt(partial(self.confirmer.secant, pair.u, pair.v), lambda: None)
            if pair.proved is not None and pair.proved.log10 > best.log10:
                best = pair.proved
        return best


def _flat(graph: Graph) -> Function:
    return lambda flat: graph.run(*graph.split(flat)).reshape(-1)


def _starts(
    promising: Sequence[tuple[Tensor, Tensor | None]], generator: torch.Generator, restarts: int
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The data, then random points around it and around zero at several scales."""
    yield from promising
    point = promising[0][0]
    size = float(point.double().pow(2).mean().sqrt()) or 1.0
    for number in range(restarts):
        noise = torch.randn(point.shape, generator=generator, dtype=torch.float64).to(point)
        scale, centre = ((1e-3, 0.0), (1.0, 0.0), (0.1, 1.0), (10.0, 0.0))[number % 4]
        yield centre * point + scale * size * noise, None  # near zero first: there normalizers are steepest


def _climb(
    function: Function,
    point: Tensor,
    direction: Tensor | None,
    generator: torch.Generator,
    budget: Budget,
    climb: bool,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs: along a direction that is known or from power iteration, then from ascent on the secant slope."""
    direction = _top_direction(function, point, generator, budget) if direction is None else direction.to(point)
    size = float(point.double().norm()) or 1.0
    for step in STEPS:
        yield point + step * size * direction, point - step * size * direction
    if not climb:
        return
    centre, along = point.clone(), direction.clone()
    ascents = AdamStep(point), AdamStep(point)
    width = 0.02 * size
    for count in range(1, 31):
        if not budget.spend():
            break
        centre.requires_grad_(True)
        along.requires_grad_(True)
        with torch.enable_grad():
            unit = along / along.norm()
            change = function(centre + width * unit) - function(centre - width * unit)
            score = change.pow(2).sum().clamp(min=1e-60).log()
            grads = gradients(score, (centre, along))
        centre, along = centre.detach(), along.detach()
        usable = [grad for grad in grads if grad is not None and bool(torch.isfinite(grad).all())]
        if len(usable) < 2:
            break
        rates = (0.02 * size / math.sqrt(point.numel()), 0.1 / math.sqrt(point.numel()))
        moves = [ascent.of(grad, rate) for ascent, grad, rate in zip(ascents, usable, rates, strict=True)]
        centre, along = centre + moves[0], along + moves[1]
        along = along / along.norm()
        if count % 10 == 0:
            yield centre + width * along, centre - width * along
    for step in STEPS[1:]:
        yield centre + step * size * along, centre - step * size * along


class AdamStep:
    """The steps of Adam for one tensor.

    `torch.optim.Adam` takes no rate per row, as balls of several radii need, and rounds in another order: in float32
    the pairs it ends at are other ones.
    """

    def __init__(self, like: Tensor) -> None:
        self.first, self.second, self.count = torch.zeros_like(like), torch.zeros_like(like), 0

    def of(self, grad: Tensor, rate: float | Tensor) -> Tensor:
        """Return the next step upwards; the rate is a number, or one for every row."""
        self.count += 1
        self.first = 0.9 * self.first + 0.1 * grad
        self.second = 0.99 * self.second + 0.01 * grad * grad
        first, second = self.first / (1 - 0.9**self.count), self.second / (1 - 0.99**self.count)
        return rate * first / (second.sqrt() + 1e-30)


def gradients(value: Tensor, inputs: tuple[Tensor, ...], along: Tensor | None = None) -> tuple[Tensor | None, ...]:
    """Return gradients, or None where autograd has none to give (cut paths, operators without a derivative)."""
    if not value.requires_grad:
        return (None,) * len(inputs)
    try:
        return torch.autograd.grad(value, inputs, along, allow_unused=True)
    except (RuntimeError, NotImplementedError):
        return (None,) * len(inputs)


def _top_direction(function: Function, point: Tensor, generator: torch.Generator, budget: Budget) -> Tensor:
    """A few power steps on J^T J with finite-difference products: only a search direction, nothing is claimed of it."""
    direction = torch.randn(point.shape, generator=generator, dtype=torch.float64).to(point)
    direction = direction / direction.norm()
    size = float(point.double().norm()) or 1.0
    step = 1e-3 * size if point.dtype != torch.float64 else 1e-5 * size
    for _ in range(12):
        x = point.detach().requires_grad_(True)
        with torch.enable_grad():
            value = function(x)
            with torch.no_grad():
                change = (function(point + step * direction) - value) / step
            (pulled,) = gradients(value, (x,), change)
        length = math.nan if pulled is None else float(pulled.norm())
        if pulled is None or not math.isfinite(length) or length == 0:
            return direction
        direction = pulled.detach() / length
        if not budget.spend():
            break
    return direction
