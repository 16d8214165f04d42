"""Values of a network in float64, each with a bound on what rounding has done to it: running error analysis.

The steps of a network (`segments.py`) are run one after the other. An affine step A h + c moves an error e of its
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

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from ..core.budget import attempt
from ..core.log10 import ceiling10, log10
from ..core.log10 import norm as l2
from ..core.rounding import UNIT, gamma, inward
from .graph.ir import Graph, Node, Unit
from .linalg.convolution_map import Convolution
from .linalg.linear_map import Centering, Composite, Diagonal, Identity, LinearMap, Matrix, Reindex, Repeated, Sum
from .linalg.operator_norms import absolute, applied, upper
from .operators.effects import UNKNOWN, Norm
from .operators.local.entry_sets import LogSoftmax, LogSumExp, Normalize, Softmax, WindowMaximum
from .operators.local.entry_sets import Norm as RowNorm
from .operators.local.local import Affine, Enclosure, Primitive, UnrolledStep, flat, times, wide
from .operators.local.products import MatrixProduct, Multiply
from .operators.local.scalar import Scalar
from .operators.ranges import Opaque
from .operators.registry import effect_of, family_of, multiplied
from .operators.units import COMPLEX
from .segments import GraphSteps, evaluate

ULPS = 8.0
"""Units in the last place by which one operator of torch (erf, tanh, exp, a root) may be off."""
SAFETY = 2.0**14
"""Errors that are estimated and not bounded are multiplied by this margin."""
MIN_NORMAL_FLOAT = 2.0**-1022
"""A number that is flushed to zero is off by at most this much."""
UP = 1 + 2.0**-40
"""Room for the rounding of the error bounds themselves."""
WIDE = 2**18
"""Factors of a matrix product with more entries than this are bounded by their Frobenius norm."""


@dataclass(frozen=True, slots=True)
class Certain:
    """Values `[B, *shape]`, and how far the exact ones can be: entry by entry, and in the l2 norm `[B]`."""

    value: Tensor
    error: Tensor
    distance: Tensor

    def enclosure(self) -> Enclosure:
        """Return the box of the exact value, as local rules read it: the error as a constant over a radius of 1."""
        reach = torch.where(self.error > 0, self.error * UP + 2 * UNIT * self.value.abs() + MIN_NORMAL_FLOAT, 0.0)
        reach = torch.where(self.value.isinf() & (self.error == 0), 0.0, reach)
        low, high = self.value - reach, self.value + reach
        return Enclosure(self.value, low, high, self.distance, self.error, torch.ones_like(self.distance))


def behind(
    primitive: Primitive, operands: Sequence[Certain], value: Tensor, norms: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a primitive makes of the error of its operands, its own rounding, and the l2 norm of the first."""
    if isinstance(primitive, MatrixProduct):
        return _product(operands[0], operands[1], norms)
    if isinstance(primitive, Opaque) and _is_bilinear(primitive.node) and len(operands) <= 2:
        return _bilinear(primitive.node, operands)
    own = _own(primitive, [operand.value for operand in operands], value)
    if all(not bool(operand.error.any()) for operand in operands):
        return torch.zeros_like(value), own, torch.zeros_like(operands[0].distance)
    boxes = [operand.enclosure() for operand in operands]
    local = primitive.local(boxes)
    moved = sum((part.entries for part in local.parts[1:]), local.parts[0].entries)
    distance = sum(
        (times(part.gain, x.distance) for part, x in zip(local.parts, operands, strict=True)),
        torch.zeros_like(operands[0].distance),
    )
    if isinstance(primitive, Scalar) and primitive.wobble:  # a jump small enough to be tolerated, within the box
        jump = (primitive.function(boxes[0].high) - primitive.function(boxes[0].low)).abs()
        own = own + torch.where(operands[0].error > 0, jump, 0.0)
    return moved, own, distance


def _own(primitive: Primitive, values: Sequence[Tensor], value: Tensor) -> Tensor:
    """Return a bound on the rounding of a primitive itself at given operands, `[B, *shape]`."""
    x, few = values[0], ULPS * UNIT * 2
    count = float(x.shape[-1]) if x.ndim > 1 else 1.0
    match primitive:
        case WindowMaximum():
            return torch.zeros_like(value)
        case Multiply():
            return UNIT * 2 * value.abs() + MIN_NORMAL_FLOAT
        case Scalar() if primitive.margin == 0.0:  # straight pieces: a product at most
            return UNIT * 2 * value.abs() + MIN_NORMAL_FLOAT
        case Scalar():  # formulas like x - tanh(x) and x (1 + erf(x)) add up terms of the size of x
            limit = 64.0 * max(abs(end) for end in primitive.bounded)
            return few * (value.abs() + 2 * x.abs().clamp(max=limit)) + MIN_NORMAL_FLOAT
        case Normalize() | RowNorm():
            return torch.where(value.isfinite(), gamma(count + 64.0) * value.abs() + MIN_NORMAL_FLOAT, torch.inf)
        case Softmax():
            apart = _apart(x, value)
            return value * (gamma(count + 16.0) + few * (apart[0] + apart[1])) + MIN_NORMAL_FLOAT
        case LogSoftmax():
            apart = _apart(x, value.exp())
            terms = value.abs() + x.amax(-1, keepdim=True).abs() + apart[0]
            own = gamma(count + 16.0) + few * (torch.where(terms.isfinite(), terms, 0.0) + apart[1])
            return torch.where(value.isinf() & x.isinf(), 0.0, own)
        case LogSumExp():
            apart = _apart(x, x.softmax(-1))
            return gamma(count + 16.0) + few * (value.abs() + x.amax(-1).abs() + apart[1][..., 0])
    if isinstance(primitive, Opaque) and primitive.node.operator == COMPLEX:
        return torch.full_like(value, torch.inf)
    # known by its gains alone: as if all its operands were added up in every entry
    size = sum((flat(operand).abs().sum(1) for operand in values), torch.zeros_like(flat(value)[:, 0]))
    entries = float(sum(flat(operand).shape[1] for operand in values))
    # The roundings of a recurrent layer travel through its later steps: it is given the margin too.
    many = SAFETY if isinstance(primitive, Opaque) and family_of(primitive.node) == "recurrent" else 1.0
    return many * gamma(64.0 * (entries + 64.0)) * (value.abs() + wide(size, value)) + MIN_NORMAL_FLOAT


def _apart(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far logits are below the largest one (0 where masked), and the mean of that over the weights."""
    below = x.amax(-1, keepdim=True) - x
    below = torch.where(below.isfinite(), below, 0.0)
    return below, (weights * below).sum(-1, keepdim=True)


def _product(a: Certain, b: Certain, norms: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the error of a matrix product: |A| e_B + e_A (|B| + e_B), and its own rounding."""
    count = float(a.value.shape[-1])
    left, right = a.value.abs(), b.value.abs()
    own = gamma(count + 8.0) * (left @ right) + count * MIN_NORMAL_FLOAT
    moved = left @ b.error + a.error @ (right + b.error)
    sizes = [l2(flat(x.value), 1) for x in (a, b)]
    if norms and max(a.value[0].numel(), b.value[0].numel()) <= WIDE:
        sizes = [torch.linalg.matrix_norm(_scaled(x.value)[0], ord=2) * _scaled(x.value)[1] * UP for x in (a, b)]
        sizes = [size.flatten(1).amax(1) if size.ndim > 1 else size for size in sizes]
    distance = times(sizes[0], b.distance) + times(sizes[1] + b.distance, a.distance)
    return moved, own, distance


def _scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return matrices divided by their largest entry, and that entry."""
    top = x.abs().amax((-2, -1), keepdim=True)
    top = torch.where((top > 0) & top.isfinite(), top, 1.0)
    return (x / top).nan_to_num(0.0), top[..., 0, 0]


def _is_bilinear(node: Node) -> bool:
    """Whether a node is an operator of torch whose first two arguments are the factors of its products."""
    factors = None if isinstance(node.op, Unit) else multiplied(node)
    return factors is not None and factors.left is node.args[0] and factors.right is node.args[1]


def _bilinear(node: Node, operands: Sequence[Certain]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the error of a sum of products of factors (one of them may be a constant), entry by entry."""
    absolute = (a.double().abs() if isinstance(a, Tensor) and a.is_floating_point() else a for a in node.args)
    bare = dataclasses.replace(
        node,
        args=tuple(a if i < 2 or not isinstance(a, Tensor) else None for i, a in enumerate(absolute)),
        kwargs={key: None if key == "bias" else value for key, value in node.kwargs.items()},
    )

    def run(*factors: Tensor) -> Tensor:
        return torch.stack([bare.evaluate([x[i] for x in factors]) for i in range(len(factors[0]))])

    sizes = [operand.value.abs() for operand in operands]
    reached = [size + operand.error for size, operand in zip(sizes, operands, strict=True)]
    if len(operands) == 1:
        moved = run(operands[0].error)
    else:
        moved = run(operands[0].error, reached[1]) + run(sizes[0], operands[1].error)
    bias = next((a for a in (*node.args[2:], node.kwargs.get("bias")) if isinstance(a, Tensor)), None)
    count = float(max(operand.value[0].numel() for operand in operands))
    own = gamma(count + 16.0) * run(*reached) + count * MIN_NORMAL_FLOAT
    if bias is not None:
        behind_channels = len(node.shape) - 2 if family_of(node) == "convolution" else 0
        own = own + 4 * UNIT * bias.double().abs().reshape(-1, *(1,) * behind_channels)
    return moved, own, l2(flat(moved), 1)


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
        values: dict[str, Certain] = {}
        for name, part in self.steps.split(points).items():
            values[name] = Certain(part, torch.zeros_like(part), zero)
        last = {name: i for i, step in enumerate(self.steps.steps.values()) for name in step.operands}
        for i, step in enumerate(self.steps.steps.values()):
            operands = [values[name] for name in step.operands]
            values[step.name] = self._step(step, operands, len(points), how != CARRIED[0], shaken)
            for name in dict.fromkeys(step.operands):
                if last[name] == i and name != self.steps.output:
                    del values[name]
                    if shaken is not None:
                        del shaken.values[name]
        return values[self.steps.output]

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
            error = torch.minimum(error, SAFETY * (own + shaken.shake_step(step, value, own)))
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
            arguments = {} if node is None else node.bound()
            if node is not None and isinstance(arguments.get("running_var"), Tensor):  # bias - mean weight/deviation
                shape = (-1, *(1,) * (len(node.shape) - 2))
                weight, bias, mean = (arguments.get(name) for name in ("weight", "bias", "running_mean"))
                scale = (arguments["running_var"].double() + float(arguments["eps"])).rsqrt()
                scale = scale if weight is None else scale * weight.double().abs()
                size = size if mean is None else size + (scale * mean.double().abs()).reshape(shape)
                size = size if bias is None else size + bias.double().abs().reshape(shape)
            self._constants[step.name] = size
        return self._constants[step.name]

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.steps.graph}


def _through(linear: LinearMap, x: Tensor, error: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return what becomes of an error behind a map, and the rounding of the map itself; None if no entry is known.

    Maps are those of single operators. Of these only BatchNorm's factors are rounded themselves, by at most eight
    roundings each, for which the 16 have room; so their slack, the same for all entries, need not be added.
    """
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
    return applied(spread, error), gamma(2.0 * count + 16.0) * size + count * MIN_NORMAL_FLOAT


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

    def shake_step(self, step: UnrolledStep, value: Tensor, own: Tensor) -> Tensor:
        """Run a step on all copies; return the largest distance of a copy's value, per unit of shaking."""
        copies = COPIES * len(value)
        copied = evaluate(step, [self.values[name] for name in step.operands], copies)
        signs = torch.randint(0, 2, copied.shape, generator=self.generator).to(copied) * 2 - 1
        size = torch.where(value.isinf(), 0.0, own.masked_fill(~own.isfinite(), torch.nan))  # infinite masks are exact
        copied = copied + SHAKE * signs * size.repeat(COPIES, *(1,) * (own.ndim - 1))
        self.values[step.name] = copied
        each = copied.reshape(COPIES, *value.shape)
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


Change = Callable[[Certain], tuple[float, float]]
"""A function that returns how far two outputs are apart: as computed, and at least, less the rounding errors."""


@dataclass(frozen=True, slots=True)
class Secant:
    """A slope between two inputs that is no larger than the true one.

    Attributes:
        log10: of the slope; `-inf` where nothing is proved.
        pair: the two flat float64 inputs; None without a slope.
        estimated: whether rounding errors were estimated, with a large margin, where no bound was small enough.
    """

    log10: float = -math.inf
    pair: tuple[Tensor, Tensor] | None = None
    estimated: bool = False


class Confirmer:
    """Confirms pairs of one search: what was not enough for the errors of one pair is skipped for the others."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._first = 0

    def secant(self, u: Tensor, v: Tensor, *, above: float = -math.inf, change: Change = apart) -> Secant:
        """Return the slope that a pair of flat inputs proves; one that seems not to be above `above` is left out.

        `change` says how far two outputs are apart as computed, and at least.
        """
        pair = torch.stack([u, v])
        length = float(l2(u - v)) * (1 + 1e-12)
        if not (math.isfinite(length) and length > 0):
            return Secant()
        if above > -math.inf:
            far, _ = change(self.values.plain(pair))
            if not (math.isfinite(far) and far > 0 and log10(far) - log10(length) > above):
                return Secant()
        distance, estimated = self._least(pair, change)
        return Secant(inward(distance) - log10(length), (u, v), estimated) if distance > 0 else Secant()

    def _least(self, pair: Tensor, change: Change) -> tuple[float, bool]:
        """Return how far the outputs of a pair are apart at least, and whether errors were estimated for it."""
        largest, estimated = 0.0, False
        for place, how in list(enumerate(CARRIED))[self._first :]:
            certain = attempt(partial(self.values.at, pair, how=how), lambda: None)
            if certain is None:
                break
            far, least = change(certain)
            if least > largest and math.isfinite(far):
                largest, estimated = least, how == CARRIED[-1]
            if largest >= 0.99 * far:
                break
            self._first = min(place + 1, len(CARRIED) - 1)
        return largest, estimated
