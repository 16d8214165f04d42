"""Sums, products and averages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.log10 import product_above as above
from ...core.rounding import Upper, numerical
from ...theory.activations import turning
from ..graph import samples
from ..graph.ir import Node, Ref
from ..graph.traits import describe
from ..linalg.linear_map import Averaging, LinearMap
from .effects import Effect, Gain, Linear, Range, Unbounded, coded, spread
from .local.local import Builder
from .local.products import Multiply, product_of
from .local.scalar import Scalar, reciprocal, scalar_step
from .registry import LargerWord, ProductWord, rule

aten = torch.ops.aten


@rule(
    aten.add.Tensor, aten.sub.Tensor, aten.add.Scalar, aten.sub.Scalar, aten.rsub.Scalar, aten.rsub.Tensor,
    examples=[
        (lambda x: x + x.relu(), (2, 3)), (lambda x: x - 0.5 * x.tanh(), (2, 3)), (lambda x: 1 - x, (2, 3)),
        (lambda x: torch.add(x, x.mean(1, keepdim=True), alpha=2), (2, 3)), (lambda x: x + 0.1 * x, (2, 3)),
        (lambda x: torch.rsub(x, x.relu(), alpha=3), (2, 3)), (lambda x: aten.add.Scalar(x, 1.0), (2, 3)),
        (lambda x: aten.sub.Scalar(x, 1.0), (2, 3)),
    ],
    linear=True,
)  # fmt: skip
def add(node: Node, operands: Sequence[Range]) -> Effect:
    """A sum: every operand enters linearly."""
    alpha = node.bound().get("alpha", 1)
    first, second = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[node.operator]
    return _sum_of(node, *zip(node.args[:2], (first, second), strict=False))


def _sum_of(node: Node, *terms: tuple[Any, Any]) -> Linear:
    """Return the sum of values times constant factors; terms that are constants do not count."""
    return Linear(maps=tuple(spread(r, node.shape, f, node.device) for r, f in terms if isinstance(r, Ref)))


@rule(aten.neg.default, examples=[(lambda x: (-x).softmax(1), (2, 3))], linear=True)
def negative(node: Node, operands: Sequence[Range]) -> Effect:
    """The change of sign."""
    return Linear(maps=(spread(node.operands[0], node.shape, -1, node.device),))


def _product_steps(node: Node, build: Builder) -> str | None:
    """A product of two variable values."""
    left, right = node.args[:2]
    if not (isinstance(left, Ref) and isinstance(right, Ref)):
        return None
    if left.name == right.name:
        return scalar_step(node, build, Scalar(torch.square, turning(0.0), bounded=(0.0, torch.inf)))
    return _spread_product(node, build, left.name, right.name)


def _spread_product(node: Node, build: Builder, left: str, right: str) -> str:
    wide_left = build.move_entries(left, lambda x: x.expand(node.shape))
    wide_right = build.move_entries(right, lambda x: x.expand(node.shape))
    return build.apply(Multiply(), wide_left, wide_right, shape=node.shape)


@rule(
    aten.mul.Tensor,
    examples=[
        (lambda x: 3 * x, (2, 3)), (lambda x: x * torch.linspace(-2, 1, 3), (2, 3)),
        (lambda x: x.tanh() * x.sigmoid(), (2, 3)), (lambda x: x.sigmoid().mean(1, keepdim=True) * x.tanh(), (2, 3)),
        (lambda x: torch.nn.functional.layer_norm(x, (4,)) * x.tanh(), (2, 4)),
    ],
    linear=True, local=_product_steps, word=lambda node: ProductWord() if len(node.operands) == 2 else None,
)  # fmt: skip
@rule(aten.mul.Scalar, examples=[(lambda x: aten.mul.Scalar(x, 2.0), (2, 3))], linear=True)
def multiply(node: Node, operands: Sequence[Range]) -> Effect:
    """A constant factor (diagonal map), or a product of two bounded values."""
    left, right = node.args[:2]
    if not (isinstance(left, Ref) and isinstance(right, Ref)):
        constant = right if isinstance(left, Ref) else left
        return Linear(maps=(spread(node.operands[0], node.shape, constant, node.device),))
    a, b = operands
    if not (math.isfinite(a.entry) and math.isfinite(b.entry)):
        return Unbounded(reason=f"a product of two values, one of them unbounded (gating), in {node.where}")
    rows = [r.row if ref.shape and ref.shape[-1] == node.shape[-1] else math.inf for r, ref in ((a, left), (b, right))]
    row = min(above(rows[0], b.entry) if b.entry else 0.0, above(rows[1], a.entry) if a.entry else 0.0)
    top = Range.of(above(a.entry, b.entry), node.shape[-1] if node.shape else 1, row)
    return Gain(gains=_spread_gains(node, (b.entry, a.entry)), range=top)


def _quotient_steps(node: Node, build: Builder) -> str | None:
    """Division by a variable value: its reciprocal, multiplied."""
    left, right = node.args[:2]
    if not isinstance(right, Ref):
        return None
    inverse = build.apply(reciprocal(node), right.name, shape=right.shape)
    if isinstance(left, Ref):
        return _spread_product(node, build, left.name, inverse)
    return build.affine([(inverse, spread(Ref(inverse, right.shape), node.shape, left, node.device))])


@rule(
    aten.div.Tensor,
    examples=[
        (lambda x: x / 3, (2, 3)), (lambda x: x.relu() / torch.linspace(1, 2, 3), (2, 3)),
        (lambda x: x / (2 + x.tanh()), (2, 3)),
    ],
    linear=True, local=_quotient_steps,
)  # fmt: skip
@rule(aten.div.Scalar, examples=[(lambda x: aten.div.Scalar(x, 2.0), (2, 3))], linear=True)
def divide(node: Node, operands: Sequence[Range]) -> Effect:
    """Division by a constant; division by a variable has no finite constant here."""
    right = node.args[1]
    if isinstance(right, Ref):
        return Unbounded(reason=f"division by a value that depends on the input in {node.where}")
    constant = torch.as_tensor(right, dtype=torch.float64, device=node.device).reciprocal()
    if not bool(constant.isfinite().all()):
        return Unbounded(reason=f"division by a number so small that its reciprocal is infinite in {node.where}")
    return Linear(maps=(spread(node.operands[0], node.shape, constant, node.device),))


def _interpolation_steps(node: Node, build: Builder) -> str | None:
    """`a + w (b - a)` with a weight that depends on the input: a product of two values."""
    start, end, weight = node.args[:3]
    if not isinstance(weight, Ref):
        return None
    first, last = build.operand(start), build.operand(end)
    apart = build.affine([_scaled(build, last, 1.0), _scaled(build, first, -1.0)])
    product = _spread_product(node, build, weight.name, apart)
    return build.affine([_scaled(build, first, 1.0), _scaled(build, product, 1.0)])


def _scaled(build: Builder, name: str, factor: Any) -> tuple[str, LinearMap]:
    """Return a value and the map that spreads it to the shape of the node, times a factor."""
    return name, spread(Ref(name, build.shapes[name]), build.node.shape, factor, build.node.device)


@rule(
    aten.lerp.Scalar,
    examples=[
        (lambda x: torch.lerp(x, x.tanh(), 0.3), (2, 3)), (lambda x: torch.lerp(x, torch.ones(3), -0.5), (2, 3)),
    ],
    linear=True,
)  # fmt: skip
@rule(
    aten.lerp.Tensor,
    examples=[
        (lambda x: torch.lerp(torch.ones(2, 3), x, torch.linspace(-1, 2, 3)), (3,)),
        (lambda x: torch.lerp(x.tanh(), x.sigmoid(), torch.linspace(-1, 2, 3)), (2, 3)),
        (lambda x: torch.lerp(torch.zeros(3), torch.linspace(-1, 2, 3), x), (2, 3)),
        (lambda x: torch.lerp(x.tanh(), x[:1].sigmoid(), 2 * x.sin()), (2, 3)),
        (lambda x: torch.lerp(x, torch.ones(3), x.sigmoid()), (2, 3)),
    ],
    linear=True, local=_interpolation_steps,
)  # fmt: skip
def interpolate(node: Node, operands: Sequence[Range]) -> Effect:
    """`a + w (b - a)`: linear in a and b where w is a constant, and in w where a and b are."""
    start, end, weight = node.args[:3]
    if not isinstance(weight, Ref):
        weight = weight.double() if isinstance(weight, Tensor) else float(weight)
        return _sum_of(node, (start, 1.0 - weight), (end, weight))
    if len(node.operands) == 1:
        return Linear(maps=(coded(node, 0),))
    entries = [r.entry for r in _all_ranges((start, end, weight), operands)]
    a, b, w = entries
    if not all(map(math.isfinite, entries)):
        return Unbounded(reason=f"a product of two values, one of them unbounded (a varying weight), in {node.where}")
    slopes = [s for value, s in ((start, 1.0 + w), (end, w), (weight, a + b)) if isinstance(value, Ref)]
    return Gain(gains=_spread_gains(node, slopes))


def _all_ranges(values: Sequence[Any], operands: Sequence[Range]) -> list[Range]:
    """Return how large arguments can get, those of constants included."""
    given = iter(operands)
    return [
        next(given) if isinstance(value, Ref) else Range(float(torch.as_tensor(value).double().abs().max()))
        for value in values
    ]


def _spread_gains(node: Node, slopes: Sequence[float]) -> tuple[Upper, ...]:
    """Return one gain per operand: the bound on its slopes times the root of how often each entry is copied."""
    size = math.prod(node.shape)
    copies = [size / max(math.prod(ref.shape), 1) for ref in node.operands]
    return tuple(numerical(above(slope, math.sqrt(many))) for slope, many in zip(slopes, copies, strict=True))


def _added_product_steps(node: Node, build: Builder) -> str | None:
    """`a + v b c` with two factors that depend on the input, or `a + v b / c` with such a divisor."""
    added, left, right = node.args[:3]
    if not isinstance(right, Ref) or (node.operator == "addcmul" and not isinstance(left, Ref)):
        return None
    name, value = right.name, float(node.bound()["value"])
    if node.operator == "addcdiv":
        name = build.apply(reciprocal(node), name, shape=right.shape)
    product = _spread_product(node, build, build.operand(left), name)
    return build.affine([_scaled(build, build.operand(added), 1.0), _scaled(build, product, value)])


@rule(
    aten.addcmul.default, aten.addcdiv.default,
    examples=[
        (lambda x: torch.addcmul(x, x.tanh(), torch.linspace(-1, 2, 3), value=-2), (2, 3)),
        (lambda x: torch.addcmul(torch.ones(2, 3), torch.linspace(-1, 2, 3), x, value=0.5), (3,)),
        (lambda x: torch.addcmul(x, x.tanh(), x[:1].sigmoid(), value=3), (2, 3)),
        (lambda x: torch.addcmul(torch.ones(3), x, x.tanh()), (2, 3)),
        (lambda x: torch.addcmul(x, torch.ones(3), torch.linspace(-1, 2, 3)), (2, 3)),
        (lambda x: torch.addcdiv(x, x.tanh(), torch.linspace(1, 2, 3), value=-2), (2, 3)),
        (lambda x: torch.addcdiv(x, torch.ones(3), torch.linspace(1, 2, 3)), (2, 3)),
        (lambda x: torch.addcdiv(x, torch.linspace(-1, 2, 3), 2 + x.tanh(), value=2), (2, 3)),
        (lambda x: torch.addcdiv(torch.ones(3), x.sin(), 2 + x.tanh(), value=2), (2, 3)),
    ],
    linear=True, local=_added_product_steps,
)  # fmt: skip
def add_product(node: Node, operands: Sequence[Range]) -> Effect:
    """A value plus a product or a quotient of two others: linear where one of these is a constant."""
    added, left, right = node.args[:3]
    value, divides = float(node.bound()["value"]), node.operator == "addcdiv"
    if divides and isinstance(right, Ref):
        return Unbounded(reason=f"division by a value that depends on the input in {node.where}")
    if isinstance(left, Ref) and isinstance(right, Ref):
        ranges = [r.entry for r in _all_ranges((left, right), operands[-2:])]
        if not all(map(math.isfinite, ranges)):
            return Unbounded(reason=f"a product of two values, one of them unbounded (gating), in {node.where}")
        slopes = [above(abs(value), ranges[1]), above(abs(value), ranges[0])]
        return Gain(gains=_spread_gains(node, [1.0, *slopes] if isinstance(added, Ref) else slopes))
    constant = (left if isinstance(right, Ref) else right).double()
    constant = value * (constant.reciprocal() if divides else constant)
    if not bool(constant.isfinite().all()):
        return Unbounded(reason=f"{node.op} by a factor that is infinite in {node.where}")
    return _sum_of(node, (added, 1.0), (left, constant), (right, constant))


def _cross_axis(node: Node) -> int:
    """Return the dimension of three along which a cross product is taken, counted from the end."""
    axis, shape = node.bound().get("dim"), node.args[0].shape
    axis = list(shape).index(3) if axis is None else int(axis) % len(shape)
    return axis - len(shape)


def _cross_steps(node: Node, build: Builder) -> str | None:
    """Two products of turned values: `a1 b2 - a2 b1`, and the same of the other pairs of coordinates."""
    left, right = node.args[:2]
    if not (isinstance(left, Ref) and isinstance(right, Ref)):
        return None
    axis = _cross_axis(node)

    def roll(ref: Ref, places: int) -> str:
        return build.move_entries(ref.name, lambda x: x.expand(node.shape).roll(places, axis))

    terms = [build.apply(Multiply(), roll(left, places), roll(right, -places), shape=node.shape) for places in (-1, 1)]
    return build.affine([_scaled(build, terms[0], 1.0), _scaled(build, terms[1], -1.0)])


@rule(
    aten.cross.default, aten.linalg_cross.default,
    examples=[
        (lambda x: torch.cross(x, torch.linspace(-1, 2, 6).reshape(2, 3), dim=1), (2, 3)),
        (lambda x: torch.linalg.cross(torch.tensor([[1.0, 2.0, -3.0]]), x), (2, 3)),
        (lambda x: torch.linalg.cross(x.tanh(), x[:1].sigmoid()), (2, 3)),
        (lambda x: torch.cross(x.tanh(), x.sin(), dim=1), (2, 3)),
        (lambda x: torch.linalg.cross(x.tanh(), x.sin(), dim=0), (3, 2)),
        (lambda x: torch.linalg.cross(x, x.sin()), (2, 3)),
    ],
    linear=True, local=_cross_steps,
)  # fmt: skip
def cross(node: Node, operands: Sequence[Range]) -> Effect:
    """A cross product: linear beside a constant; norm(a x b) <= norm(a) norm(b) for two bounded values."""
    if len(node.operands) == 1:
        return Linear(maps=(coded(node, 0),))
    lengths = [above(r.entry, math.sqrt(3)) for r in operands]
    if not all(map(math.isfinite, lengths)):
        return Unbounded(reason=f"a product of two values, one of them unbounded, in {node.where}")
    return Gain(gains=_spread_gains(node, lengths[::-1]))


def _larger_steps(node: Node, build: Builder) -> str | None:
    """max(a, b) = b + relu(a - b) and min(a, b) = b - relu(b - a), so that shared sources cancel."""
    sign = -1.0 if node.takes_smallest else 1.0
    values = [build.operand(argument) for argument in node.args[:2]]
    a, b = [build.move_entries(value, lambda x: x.expand(node.shape)) for value in values]

    apart = build.affine([_scaled(build, a, sign), _scaled(build, b, -sign)])
    kept = build.apply(Scalar(torch.relu, turning(0.0), bounded=(0.0, math.inf), margin=0.0), apart, shape=node.shape)
    return build.affine([_scaled(build, b, 1.0), _scaled(build, kept, sign)])


@rule(
    aten.maximum.default, aten.minimum.default, aten.max.other, aten.min.other,
    examples=[
        (lambda x: torch.maximum(x, -0.5 * x), (2, 3)), (lambda x: torch.minimum(x, torch.ones(3)), (2, 3)),
        (lambda x: torch.max(x, -x), (2, 3)), (lambda x: torch.min(x, 2 * x), (2, 3)),
    ],
    local=_larger_steps, word=lambda node: LargerWord(lowest=node.takes_smallest),
)  # fmt: skip
def extreme(node: Node, operands: Sequence[Range]) -> Effect:
    """The larger or smaller of two values: each entry follows one of them."""
    gains = _spread_gains(node, [1.0] * len(node.operands))
    entry = max((r.entry for r in operands), default=math.inf) if len(operands) == 2 else math.inf
    return Gain(gains=gains, joint=True, range=Range.of(entry, node.shape[-1] if node.shape else 1))


@rule(
    aten.mean.dim, aten.mean.default, aten.sum.dim_IntList, aten.sum.default,
    examples=[
        (lambda x: x.mean(1), (2, 3)), (lambda x: x.sum((0, 1), keepdim=True), (2, 3)), (lambda x: x.mean(), (2, 3)),
        (lambda x: x.sum(), (2, 3)),
    ],
    linear=True,
)  # fmt: skip
def average(node: Node, operands: Sequence[Range]) -> Effect:
    """A mean or a sum: no negative weight, so the Schur test is exact."""
    return Linear(maps=(coded(node, 0, Averaging),))


def _letters(node: Node) -> tuple[str, str, str] | None:
    """Return the indices of both operands of an einsum and of its output, where these are two values and plain."""
    equation = str(node.args[0]).replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    names = inputs.split(",")
    if len(names) != 2 or not arrow or "." in equation or not all(isinstance(x, Ref) for x in node.args[1]):
        return None
    left, right = names
    if any(len(set(part)) != len(part) for part in (left, right, output)) or set(output) - set(left + right):
        return None
    return left, right, output


def _contraction_steps(node: Node, build: Builder) -> str | None:
    """A contraction of two variable values, as a matrix product between two rearrangements."""
    letters, operands = _letters(node), node.args[1]
    if letters is None:
        return None
    left, right, output = letters
    shared = [i for i in left if i in right and i in output]
    summed = [i for i in left if i in right and i not in output]
    rows, columns = [i for i in left if i not in right], [i for i in right if i not in left]
    if any(i not in output for i in (*rows, *columns)):  # summed within one operand: no matrix product
        return None
    sizes = dict(zip(left, operands[0].shape, strict=True)) | dict(zip(right, operands[1].shape, strict=True))

    def arrange(name: str, have: str, *groups: list[str]) -> str:
        order = [have.index(i) for group in groups for i in group]
        shape = [math.prod(sizes[i] for i in group) for group in groups]
        return build.move_entries(name, lambda x: x.permute(order).reshape(shape))

    product = product_of(
        build,
        arrange(operands[0].name, left, shared, rows, summed),
        arrange(operands[1].name, right, shared, summed, columns),
    )
    made = [*shared, *rows, *columns]
    back = [made.index(i) for i in output]
    return build.move_entries(product, lambda x: x.reshape([sizes[i] for i in made]).permute(back))


_CONTRACTION = "Linear in its only variable operand: written out as a matrix where small"


@rule(
    aten.einsum.default,
    examples=[
        (lambda x: torch.einsum("ij,kj->ik", x, torch.linspace(-1, 1, 20).reshape(5, 4)), (3, 4)),
        (lambda x: torch.einsum("ij,kj->ik", x, x.tanh()), (3, 4)),
    ],
    summary=_CONTRACTION, linear=True, local=_contraction_steps,
)  # fmt: skip
@rule(
    aten.upsample_bicubic2d.vec, aten.cumsum.default, aten.trace.default, aten.diff.default,
    aten.tensordot.default, aten.inner.default, aten.outer.default, aten.kron.default,
    examples=[
        (lambda x: x.cumsum(1), (2, 4)), (lambda x: torch.diff(x), (2, 4)), (lambda x: torch.trace(x), (3, 3)),
        (lambda x: torch.tensordot(x, torch.linspace(-1, 1, 6).reshape(3, 2), 1), (2, 3)),
        (lambda x: torch.inner(x, torch.linspace(1, 2, 3)), (2, 3)), (lambda x: torch.outer(x, torch.ones(3)), (3,)),
        (lambda x: torch.kron(x, torch.linspace(-1, 1, 4).reshape(2, 2)), (2, 3)),
        (lambda x: torch.nn.functional.interpolate(x, scale_factor=2, mode="bicubic"), (1, 1, 3, 3)),
    ],
    summary=_CONTRACTION, linear=True,
)  # fmt: skip
def contraction(node: Node, operands: Sequence[Range]) -> Effect:
    """Use the operator's own code as the map."""
    if len(node.operands) != 1:
        return Unbounded(reason=f"{node.op} of several variable operands in {node.where}")
    return Linear(maps=(coded(node, 0),))


describe("rsub.Tensor", samples=samples.entrywise)
describe("mean.default mean.dim", samples=samples.along_dim, pools="average")
describe("sum.default sum.dim_IntList cumsum.default", samples=samples.along_dim)
describe("einsum.default", samples=samples.contraction)
describe("upsample_bicubic2d.vec", samples=samples.trailing(2))
