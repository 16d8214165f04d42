"""Values of a network in float64, each with a bound on what rounding has done to it: running error analysis.

The steps of a network (`unrolled.py`) are run one after the other. An affine step A h + c moves an error e of its
operand to |A| e at most and adds gamma(n) (|A| |h| + |c|); a primitive moves it by the steepest slopes over the box
h - e to h + e (its local rule, the one that bounds balls) and adds a few units in the last place of everything it
adds up. Terms that cancel inside a step are counted before they cancel. Errors are kept entry by entry and as one l2
norm, which grows by operator norms only: in deep networks it is the smaller by far.

In deeper networks even the product of norms is too large by many orders of magnitude (attention: 10^3 a block). There
errors are *estimated*: copies of the network are run with every step moved by `SHAKE` times its own rounding bound
with random signs, and no error is taken to be above `SAFETY` times what these copies show plus the step's own bound.
This is stochastic arithmetic, with a margin; it sees every cancellation that the bound sees, but it is no proof.

Sums are taken to be plain sums of products in any order; every operator of torch to be within `ULPS` units in the
last place; numbers below 2^-1022 may be flushed to zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ..core.log10 import ceiling10
from ..core.rounding import UNIT, gamma
from ..core.sizes import norm as l2
from ..graph.ir import Graph, Node
from ..linalg.absolute import absolute, applied
from ..linalg.convolution_map import Convolution
from ..linalg.linear_map import Centering, Composite, Diagonal, Identity, LinearMap, Matrix, Reindex, Repeated, Sum
from ..linalg.operator_norms import upper
from ..rules.effects import UNKNOWN, Norm
from ..rules.local.local import Affine, UnrolledStep, flat, times, wide
from ..rules.registry import effect_of
from ..rules.units import COMPLEX
from .certain import SAFETY, TINY, UP, Certain, behind
from .unrolled import GraphSteps, evaluate

SHAKE, COPIES = 16.0, 3
"""Errors are estimated from `COPIES` runs in which every step is moved by `SHAKE` times its rounding bound."""
ESTIMATED = "the rounding errors of the lower side are estimated, with a large margin, and not bounded"
"""What a bracket says of a lower side whose errors no bound was small enough for."""
CARRIED = ("entries", "norms", "estimate")
"""How errors are carried: entry by entry; by operator norms too; limited by what shaken copies show."""


class Values:
    """A network whose values are computed together with their rounding errors; each map's `norm` is asked for once."""

    def __init__(self, steps: GraphSteps, norm: Norm = upper) -> None:
        self.steps, self._norm = steps, norm
        self._norms: dict[LinearMap, float] = {}
        self._constants: dict[str, Tensor] = {}

    @classmethod
    def of(cls, graph: Graph, norm: Norm = upper, base: GraphSteps | None = None) -> Values:
        """Read the steps off a float64 graph; those of nodes that `base` holds, too, are taken over."""
        held = {} if base is None else {node.name: node for node in base.graph}
        effects = {
            node.name: base.effects[node.name]
            if base is not None and held.get(node.name) is node
            else effect_of(node, [UNKNOWN] * len(node.refs))
            for node in graph
        }
        with torch.no_grad():
            return cls(GraphSteps(graph, effects, base), norm)

    def opened(self, graph: Graph) -> Values:
        """Return the same for a graph that shares most of its nodes, with the norms taken so far."""
        other = Values.of(graph, self._norm, self.steps)
        other._norms = self._norms
        return other

    @property
    def can_prove(self) -> bool:
        """Whether pairs of inputs can prove a slope: nobody knows what rounding does to complex values."""
        return all(node.operator != COMPLEX for node in self.steps.graph)

    @torch.no_grad()
    def plain(self, points: Tensor) -> Certain:
        """Return the output at flat points `[B, n]` as if nothing were rounded: cheap, and no proof."""
        value = self.steps.values(points)[self.steps.output]
        zero = torch.zeros(len(points), dtype=torch.float64, device=points.device)
        return Certain(value, torch.zeros_like(value), zero)

    @torch.no_grad()
    def at(self, points: Tensor, *, how: str = CARRIED[0]) -> Certain:
        """Return the output at flat, exact float64 points `[B, n]` with its error, by one of `CARRIED`."""
        shaken = _Shaken(self.steps.split(points)) if how == CARRIED[2] else None
        zero = torch.zeros(len(points), dtype=torch.float64, device=points.device)
        known: dict[str, Certain] = {}
        for name, part in self.steps.split(points).items():
            known[name] = Certain(part, torch.zeros_like(part), zero)
        last = {name: i for i, step in enumerate(self.steps.steps.values()) for name in step.operands}
        for i, step in enumerate(self.steps.steps.values()):
            operands = [known[name] for name in step.operands]
            known[step.name] = self._step(step, operands, len(points), how != CARRIED[0], shaken)
            for name in dict.fromkeys(step.operands):
                if last[name] == i and name != self.steps.output:
                    del known[name]
                    if shaken is not None:
                        del shaken.values[name]
        return known[self.steps.output]

    def _step(
        self, step: UnrolledStep, operands: Sequence[Certain], batch: int, norms: bool, shaken: _Shaken | None
    ) -> Certain:
        value = evaluate(step, [operand.value for operand in operands], batch)
        if isinstance(step.operation, Affine):
            moved, own, distance = self._affine(step, step.operation, operands, value, norms)
        else:
            moved, own, distance = behind(step.operation, operands, value, norms)
        error, distance = moved + own, distance + l2(flat(own), 1)
        if shaken is not None:
            error = torch.minimum(error, SAFETY * (own + shaken.moved(step, value, own)))
        error = torch.where(value.isnan(), torch.inf, error * UP).nan_to_num(nan=torch.inf, posinf=torch.inf)
        distance = (distance * UP).nan_to_num(nan=torch.inf, posinf=torch.inf)
        distance = torch.minimum(distance, l2(flat(error), 1) * UP)
        return Certain(value, torch.minimum(error, wide(distance, error)), distance)

    def _affine(
        self, step: UnrolledStep, affine: Affine, operands: Sequence[Certain], value: Tensor, norms: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the error of the operands behind the maps, the rounding of the maps, and the l2 norm of the first."""
        own, moved = torch.zeros_like(value), torch.zeros_like(value)
        distance = torch.zeros(len(value), dtype=value.dtype, device=value.device)
        terms = len(affine.maps) + (affine.constant is not None)
        for linear, x in zip(affine.maps, operands, strict=True):
            error, added = _through(linear, x.value, x.error)
            if error is None:  # no entries to go by: the norm of the map alone
                size = self._size(linear)
                far = size * (x.distance + gamma(4.0 * linear.in_size + 64.0) * l2(flat(x.value), 1))
                error = wide(far, value).expand_as(value)
            else:
                far = l2(flat(error), 1)
                if norms:
                    far = torch.minimum(far, times(torch.full_like(far, self._size(linear)), x.distance))
            moved, own, distance = moved + error, own + added, distance + far
            if terms > 1:
                part = linear.apply(x.value)
                own = own + gamma(terms) * torch.where(part.isinf() & (error == 0), 0.0, part.abs())
        if affine.constant is not None:
            own = own + gamma(16.0) * self._constant(step, affine.constant)
        return moved, own, distance

    def _size(self, linear: LinearMap) -> float:
        if linear not in self._norms:
            self._norms[linear] = ceiling10(self._norm(linear).log10) * UP
        return self._norms[linear]

    def _constant(self, step: UnrolledStep, constant: Tensor) -> Tensor:
        """Return how large the terms of a constant are; infinite masks are exact."""
        if step.name not in self._constants:
            size = torch.where(constant.isfinite(), constant.abs(), 0.0)
            node = self._nodes.get(step.name)
            given = {} if node is None else node.bound()
            if node is not None and isinstance(given.get("running_var"), Tensor):  # bias - mean weight/deviation
                shape = (-1, *(1,) * (len(node.shape) - 2))
                weight, bias, mean = (given.get(name) for name in ("weight", "bias", "running_mean"))
                scale = (given["running_var"].double() + float(given["eps"])).rsqrt()
                scale = scale if weight is None else scale * weight.double().abs()
                size = size if mean is None else size + (scale * mean.double().abs()).reshape(shape)
                size = size if bias is None else size + bias.double().abs().reshape(shape)
            self._constants[step.name] = size
        return self._constants[step.name]

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.steps.graph}


def _through(linear: LinearMap, x: Tensor, error: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return what becomes of an error behind a map, and the rounding of the map itself; None if no entry is known."""
    zero = torch.zeros(len(x), *linear.out_shape, dtype=x.dtype, device=x.device)
    match linear:
        case Identity() | Reindex():
            return linear.apply(error), zero
        case Composite():
            own = torch.zeros_like(error)
            for part in linear.parts:
                moved, added = _through(part, x, own)
                error_after, _ = _through(part, x, error)
                if moved is None or error_after is None:
                    return None, zero
                x, error, own = part.apply(x), error_after, moved + added
            return error, own
        case Sum():
            parts = [_through(term, x, error) for term in linear.terms]
            if any(moved is None for moved, _ in parts):
                return None, zero
            sizes = sum((term.apply(x).abs() for term in linear.terms), zero)
            own = sum((added for _, added in parts), gamma(len(parts)) * sizes)
            return sum((moved for moved, _ in parts if moved is not None), zero), own
        case Repeated():
            inner = linear.inner
            moved, added = _through(inner, *(y.reshape(-1, *inner.in_shape) for y in (x, error)))
            shaped = added.reshape(-1, *linear.out_shape)
            return None if moved is None else moved.reshape(-1, *linear.out_shape), shaped
    spread = absolute(linear)
    if spread is None:
        return None, zero
    count = float(_terms(linear))
    size = applied(spread, x.abs() + error)
    return applied(spread, error), gamma(2.0 * count + 16.0) * size + count * TINY


def _terms(linear: LinearMap) -> int:
    """Return how many products one entry of the image sums up."""
    match linear:
        case Diagonal():
            return 1
        case Matrix():
            return linear.weight.shape[1]
        case Convolution():
            return linear.weight.numel() // max(linear.weight.shape[1 if linear.transposed else 0], 1)
        case Centering():
            return math.prod(linear.in_shape[len(linear.in_shape) - linear.dims :])
    return linear.in_size


class _Shaken:
    """Copies of a network whose steps are moved by their rounding bounds with random signs."""

    def __init__(self, inputs: dict[str, Tensor]) -> None:
        self.values = {name: value.repeat(COPIES, *(1,) * (value.ndim - 1)) for name, value in inputs.items()}
        self.generator = torch.Generator().manual_seed(0)

    def moved(self, step: UnrolledStep, value: Tensor, own: Tensor) -> Tensor:
        """Run a step on all copies; return the largest distance of a copy's value, per unit of shaking."""
        copies = COPIES * len(value)
        found = evaluate(step, [self.values[name] for name in step.operands], copies)
        signs = torch.randint(0, 2, found.shape, generator=self.generator).to(found) * 2 - 1
        size = torch.where(value.isinf(), 0.0, own.masked_fill(~own.isfinite(), torch.nan))  # infinite masks are exact
        found = found + SHAKE * signs * size.repeat(COPIES, *(1,) * (own.ndim - 1))
        self.values[step.name] = found
        each = found.reshape(COPIES, *value.shape)
        apart = torch.where(each == value, 0.0, each - value).abs()  # masks are infinite in all of them
        return apart.nan_to_num(nan=torch.inf).amax(0) / SHAKE


def apart(certain: Certain) -> tuple[float, float]:
    """Return how far the two outputs of a pair are apart as computed, and how far they are at least (l2)."""
    change = flat(certain.value)[0] - flat(certain.value)[1]
    computed = float(l2(change))
    if not math.isfinite(computed):
        return computed, 0.0
    noise = flat(certain.error).sum(0) + 2 * UNIT * change.abs()
    entries, whole = (
        float(l2((change.abs() - noise).clamp(min=0.0))),
        computed * (1 - 1e-12) - float(certain.distance.sum()) * UP,
    )
    least = entries if entries > whole else whole
    return computed, least * (1 - gamma(float(change.numel()) + 8.0))
