"""Losses of a difference: absolute, Huber, squared, entry by entry, averaged or added up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.log10 import product_above as above
from ..core.rounding import numerical
from ..graph.ir import Node, Ref
from ..linalg.linear_map import Averaging
from ..theory.activations import turning
from .effects import Effect, Elementwise, Gain, Range, Unbounded, spread
from .local.local import Builder
from .local.scalar import Scalar
from .registry import rule

aten = torch.ops.aten
NONE, MEAN = 0, 1
"""torch's numbers of reductions; 2 is the sum."""


def _edge(node: Node) -> float:
    """Return where a Huber loss turns into a straight line; 0 for the absolute difference."""
    arguments = node.bound()
    return float(arguments.get("beta", arguments.get("delta", 0.0)))


def _shape(node: Node) -> tuple[int, ...]:
    """Return the shape of the difference."""
    return tuple(torch.broadcast_shapes(*(value.shape for value in node.args[:2])))


def _loss_steps(node: Node, build: Builder) -> str | None:
    """The difference, the loss of every entry of it, and their mean or sum."""
    shape, reduction = _shape(node), node.bound()["reduction"]
    run: Callable[[Tensor], Tensor] = lambda x: node.op(x, torch.zeros_like(x), *_options(node))  # noqa: E731
    names = [build.operand(value) for value in node.args[:2]]
    terms = [
        (name, spread(Ref(name, build.shapes[name]), shape, sign, node.device))
        for name, sign in zip(names, (1, -1), strict=True)
    ]
    edge = _edge(node)
    loss = Scalar(run, turning(0.0, -edge, edge), bounded=(0.0, math.inf))
    name = build.apply(loss, build.affine(terms), shape=shape)
    if reduction == NONE:
        return name
    factor = 1.0 / math.prod(shape) if reduction == MEAN else 1.0
    return build.affine([(name, Averaging(lambda x: factor * x.flatten(1).sum(1), shape, (), node.device))])


def _options(node: Node) -> tuple[float, ...]:
    """Return what stands behind the two operands, without a reduction."""
    arguments = node.bound()
    return (NONE, *(float(arguments[name]) for name in ("beta", "delta") if name in arguments))


@rule(
    aten.l1_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default, aten.mse_loss.default,
    examples=[
        (lambda x: F.l1_loss(x, torch.ones(2, 3)), (2, 3)),
        (lambda x: F.l1_loss(x, 2 * x.tanh(), reduction="none"), (2, 3)),
        (lambda x: aten.l1_loss(torch.ones(4, 3), x, 2), (3,)),
        (lambda x: F.smooth_l1_loss(3 * x, torch.ones(2, 3), beta=0.5), (2, 3)),
        (lambda x: F.smooth_l1_loss(x, x.sin(), reduction="sum"), (2, 3)),
        (lambda x: F.smooth_l1_loss(x, torch.ones(2, 3), beta=0.0, reduction="none"), (2, 3)),
        (lambda x: F.huber_loss(3 * x, torch.ones(2, 3), delta=0.5), (2, 3)),
        (lambda x: F.huber_loss(x, torch.ones(2, 3), delta=2.0, reduction="none"), (2, 3)),
        (lambda x: F.huber_loss(x, x.relu(), reduction="sum"), (2, 3)),
        (lambda x: F.mse_loss(x, torch.ones(2, 3)), (2, 3)),
        (lambda x: F.mse_loss(x.tanh(), x.sigmoid(), reduction="none"), (2, 3)),
        (lambda x: F.mse_loss(x.tanh(), torch.linspace(-1, 2, 6).reshape(2, 3), reduction="sum"), (2, 3)),
    ],
    local=_loss_steps,
)  # fmt: skip
def loss(node: Node, operands: Sequence[Range]) -> Effect:
    """The steepest slope of one entry, times sqrt(n) for a sum of n of them and 1/sqrt(n) for a mean."""
    slope, shape = {"l1_loss": 1.0, "smooth_l1_loss": 1.0, "huber_loss": _edge(node)}.get(node.operator), _shape(node)
    if slope is None:
        constants = [float(value.double().abs().max()) for value in node.args[:2] if not isinstance(value, Ref)]
        slope = 2.0 * sum((*constants, *(r.entry for r in operands))) * (1 + 1e-12)
    if not math.isfinite(slope):
        return Unbounded(reason=f"a squared error of a value that is not bounded, in {node.where}")
    reduction, size = node.bound()["reduction"], math.prod(shape)
    if reduction == NONE and [ref.shape for ref in node.operands] == [shape]:
        return Elementwise(slope=(-slope, slope))
    joined = 1.0 if reduction == NONE else size ** (-0.5 if reduction == MEAN else 0.5)
    copies = [math.sqrt(size / max(math.prod(ref.shape), 1)) for ref in node.operands]
    return Gain(gains=tuple(numerical(above(slope, joined, many)) for many in copies))
