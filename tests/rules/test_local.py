"""Local rules by themselves: functions of one entry against dense grids, primitives of sets against their Jacobians."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.bounds.graph.ir import Node, Ref
from normscope.bounds.operators.local.entry_sets import LogSoftmax, LogSumExp, Norm, Normalize, Softmax, WindowMaximum
from normscope.bounds.operators.local.local import Builder, Enclosure, LocalForm, Primitive
from normscope.bounds.operators.local.products import MatrixProduct, Multiply
from normscope.bounds.operators.local.scalar import Scalar
from normscope.bounds.operators.registry import lookup

aten = torch.ops.aten

SCALARS: dict[str, tuple[Any, tuple[Any, ...], tuple[float, float]]] = {
    "relu": (aten.relu.default, (), (-3, 3)),
    "leaky": (aten.leaky_relu.default, (-0.6,), (-3, 3)),
    "elu": (aten.elu.default, (2.0,), (-4, 3)),
    "silu": (aten.silu.default, (), (-9, 9)),
    "mish": (aten.mish.default, (), (-9, 9)),
    "gelu": (aten.gelu.default, (), (-5, 5)),
    "hardswish": (aten.hardswish.default, (), (-5, 5)),
    "sigmoid": (aten.sigmoid.default, (), (-6, 6)),
    "tanh": (aten.tanh.default, (), (-4, 4)),
    "abs": (aten.abs.default, (), (-3, 3)),
    "sin": (aten.sin.default, (), (-20, 20)),
    "softplus": (aten.softplus.default, (2.0,), (-4, 4)),
    "threshold": (aten.threshold.default, (0.1, 0.1), (-3, 3)),
    "hardtanh": (aten.hardtanh.default, (-0.7, 1.2), (-3, 3)),
    "clamp": (aten.clamp.default, (-0.5, 0.8), (-3, 3)),
    "exp": (aten.exp.default, (), (-4, 4)),
    "log": (aten.log.default, (), (0.01, 4)),
    "sqrt": (aten.sqrt.default, (), (0.01, 4)),
    "asin": (aten.asin.default, (), (-0.95, 0.95)),
    "atanh": (aten.atanh.default, (), (-0.95, 0.95)),
    "sinh": (aten.sinh.default, (), (-3, 3)),
    "tan": (aten.tan.default, (), (-1.4, 1.4)),
    "reciprocal": (aten.reciprocal.default, (), (0.1, 4)),
    "square": (aten.pow.Tensor_Scalar, (2,), (-3, 3)),
    "power 1.5": (aten.pow.Tensor_Scalar, (1.5,), (0.1, 3)),
}


def scalar_of(op: Any, arguments: tuple[Any, ...], size: int) -> Scalar:
    node = Node(name="u", op=op, args=(Ref("x", (1, size)), *arguments), shape=(1, size), dtype=torch.float64)
    build = Builder(node, {"x": (1, size)})
    known = lookup(node)
    assert known is not None
    assert known.local is not None
    known.local(node, build)
    found = build.steps[-1].operation
    assert isinstance(found, Scalar)
    return found


def enclosure(centre: Tensor, low: Tensor, high: Tensor) -> Enclosure:
    radius = torch.ones(len(centre), dtype=torch.float64)
    ones = torch.ones_like(centre)
    constant = torch.full_like(radius, math.sqrt(centre[0].numel()))
    return Enclosure(centre, low, high, constant, ones, radius)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SCALARS)
def test_slopes_limits_and_lines_of_a_function(name: str) -> None:
    """No secant is steeper, no value outside, no line crossed; and slopes are those that the interval really has."""
    op, arguments, (first, last) = SCALARS[name]
    generator = torch.Generator().manual_seed(0)
    ends = first + (last - first) * torch.rand(2, 1, 1, 150, dtype=torch.float64, generator=generator)
    middle = ends[0] + (ends[1] - ends[0]) * 10.0 ** -torch.randint(0, 4, (1, 1, 150), generator=generator)
    low, high = torch.minimum(ends[0], middle), torch.maximum(ends[0], middle)
    function = scalar_of(op, arguments, 150)
    centre = low + 0.3 * (high - low)
    a, b = function.slopes(low, high)
    found = function.local([enclosure(centre, low, high)])
    grid = low + (high - low) * torch.linspace(0, 1, 301, dtype=torch.float64)[:, None, None, None]
    values = torch.stack([function.evaluate([x]) for x in grid])
    secants = (values[1:] - values[:-1]) / (grid[1:] - grid[:-1])
    noise = 1e-12 * values.abs().amax(0) / (high - low) * 301 + 1e-9
    assert bool((secants.amax(0) <= b + noise).all())
    assert bool((secants.amin(0) >= a - noise).all())
    wider = (
        torch.maximum(b - secants.amax(0), secants.amin(0) - a) > 0.02 * (1 + torch.maximum(a.abs(), b.abs())) + noise
    )
    assert float(wider.double().mean()) < 0.05, "slopes are wider than they need be (but for turns next to an end)"
    slack = 1e-11 * (1 + values.abs().amax(0))
    assert bool((values >= found.low - slack).all() and (values <= found.high + slack).all())
    assert found.lines is not None
    lines = found.lines()
    assert bool((values >= lines.low_slopes[0] * grid + lines.low_offset - slack).all())
    assert bool((values <= lines.high_slopes[0] * grid + lines.high_offset + slack).all())
    assert bool((lines.low_offset.isfinite() & lines.high_offset.isfinite()).all())


@pytest.mark.parametrize(
    ("op", "arguments", "low", "high"),
    [
        (aten.log.default, (), -0.1, 1.0),
        (aten.reciprocal.default, (), -0.1, 0.1),
        (aten.tan.default, (), 1.5, 1.7),
        (aten.threshold.default, (0.1, 0.0), 0.0, 0.2),
        (aten.pow.Tensor_Scalar, (-1,), -1.0, 1.0),
        (aten.pow.Tensor_Scalar, (0.5,), -1.0, 1.0),
        (aten.softplus.default, (1.0, 1.0), 0.9, 1.1),
        (aten.floor.default, (), 0.5, 1.5),
        (aten.sign.default, (), -0.5, 0.5),
    ],
    ids=["log", "reciprocal", "tan", "threshold", "inverse", "root", "softplus", "floor", "sign"],
)
def test_poles_and_jumps_have_no_slope(op: Any, arguments: tuple[Any, ...], low: float, high: float) -> None:
    function = scalar_of(op, arguments, 1)
    limits = [torch.full((1, 1, 1), value, dtype=torch.float64) for value in (low, high)]
    found = function.local([enclosure(limits[0] + 0.01, *limits)])
    assert found.reason
    assert math.isinf(float(found.parts[0].gain))


WINDOWS = torch.tensor([[0, 1, 2], [2, 3, -1], [4, 5, 6], [6, 7, 8]])
PRIMITIVES: dict[str, tuple[Primitive, list[tuple[int, ...]]]] = {
    "normalize": (Normalize(1e-3), [(2, 5)]),
    "normalize without eps": (Normalize(0.0), [(2, 5)]),
    "softmax": (Softmax(), [(2, 5)]),
    "log_softmax": (LogSoftmax(), [(2, 5)]),
    "logsumexp": (LogSumExp(), [(2, 5)]),
    "norm": (Norm(), [(2, 5)]),
    "largest": (WindowMaximum(WINDOWS, (4,)), [(9,)]),
    "multiply": (Multiply(), [(6,), (6,)]),
    "matrix product": (MatrixProduct(), [(2, 3, 4), (2, 4, 2)]),
}


def drawn(name: str, width: float, seed: int) -> tuple[Primitive, list[Enclosure], list[Tensor], list[Tensor]]:
    """A primitive, boxes around random centres, and two points of the boxes."""
    primitive, shapes = PRIMITIVES[name]
    generator = torch.Generator().manual_seed(seed)
    boxes, points = [], []
    for shape in shapes:
        centre, *noise = torch.randn(4, 200, *shape, dtype=torch.float64, generator=generator)
        low, high = centre - width * noise[0].abs(), centre + width * noise[1].abs()
        boxes.append(enclosure(centre, low, high))
        ends = torch.rand(2, 200, *shape, dtype=torch.float64, generator=generator).pow(0.2)
        ends = torch.where(torch.rand(ends.shape, generator=generator) < 0.5, ends, 1 - ends)
        points.append(low + (high - low) * ends)
    far = torch.tensor(math.inf, dtype=torch.float64)
    boxes = [Enclosure(x.centre, x.low, x.high, x.constant * 0 + far, x.entries, x.radius) for x in boxes]
    return primitive, boxes, [p[0] for p in points], [p[1] for p in points]


def remainder(found: LocalForm, move: Tensor, changes: list[Tensor]) -> Tensor:
    """The change of a value less that of the centre maps."""
    size = move.shape[1:].numel()
    eye = torch.eye(size, dtype=torch.float64).reshape(1, size, *move.shape[1:]).expand(len(move), -1, *move.shape[1:])
    rest = move.reshape(len(move), -1)
    for part, change in zip(found.parts, changes, strict=True):
        rest = rest - (part.pull(eye).reshape(len(move), size, -1) @ change.reshape(len(move), -1, 1))[..., 0]
    return rest


@pytest.mark.parametrize("width", [1e-4, 0.1, 2.0])
@pytest.mark.parametrize("name", PRIMITIVES)
def test_a_primitive_stays_within_its_centre_map(name: str, width: float) -> None:
    primitive, boxes, first, second = drawn(name, width, 1)
    found = primitive.local(boxes)
    values = primitive.evaluate(first), primitive.evaluate(second)
    for value in values:
        assert bool((value >= found.low - 1e-12).all() and (value <= found.high + 1e-12).all())
    changes = [a - b for a, b in zip(first, second, strict=True)]
    rest = remainder(found, values[0] - values[1], changes)
    sizes = [change.reshape(len(change), -1).norm(dim=1) for change in changes]
    if len(found.parts) == 1 and bool(found.parts[0].weight.isfinite().all()):
        weight = found.parts[0].weight.reshape(len(rest), -1)
        assert bool((rest[weight == 0].abs() < 1e-11).all())
        scaled = torch.where(weight > 0, (rest.abs() - 1e-13).clamp(min=0) / weight.clamp(min=1e-300), 0.0)
        assert bool((scaled.norm(dim=1) <= sizes[0] * (1 + 1e-9)).all())
    weights = [part.weight.reshape(len(rest), -1) for part in found.parts]
    reach = sum(w * size[:, None] for w, size in zip(weights, sizes, strict=True))
    assert bool((rest.abs() <= reach + 1e-12).all())
    gains = sum(part.gain * size for part, size in zip(found.parts, sizes, strict=True))
    assert bool(((values[0] - values[1]).reshape(len(rest), -1).norm(dim=1) <= gains + 1e-12).all())


@pytest.mark.parametrize("name", PRIMITIVES)
def test_a_small_ball_leaves_the_derivative(name: str) -> None:
    """The centre map is the Jacobian, and the uncertainty goes to zero with the ball."""
    primitive, boxes, _, _ = drawn(name, 1e-7, 2)
    found = primitive.local(boxes)
    for part in found.parts:
        assert float(part.weight.amax()) < 1e-4 * (1 + float(part.gain.amax()))
    centres = [x.centre for x in boxes]
    direction = [torch.randn(c.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) for c in centres]
    step = 1e-6
    ahead = primitive.evaluate([c + step * d for c, d in zip(centres, direction, strict=True)])
    behind = primitive.evaluate([c - step * d for c, d in zip(centres, direction, strict=True)])
    rest = remainder(found, (ahead - behind) / (2 * step), direction)
    assert float(rest.abs().amax()) < 1e-4


def test_large_boxes_of_normalizers_and_softmax_take_half_the_largest_jacobian() -> None:
    """Beyond some radius the centre's Jacobian says nothing: half the largest one is within half of every other."""
    for name in ("normalize", "softmax"):
        primitive, boxes, _, _ = drawn(name, 10.0, 4)
        part = primitive.local(boxes).parts[0]
        assert bool((part.weight.flatten(1).amax(1) <= 0.5 * part.gain * (1 + 1e-9)).all())


def test_steps_between_jumps_are_constant() -> None:
    function = scalar_of(aten.floor.default, (), 1)
    limits = [torch.full((1, 1, 1), value, dtype=torch.float64) for value in (1.2, 1.4)]
    found = function.local([enclosure(limits[0], *limits)])
    assert float(found.parts[0].gain) == 0.0
    assert float(found.low) == pytest.approx(1.0, abs=1e-12)
    assert float(found.high) == pytest.approx(1.0, abs=1e-12)
