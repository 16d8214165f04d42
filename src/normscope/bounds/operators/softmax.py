"""Softmax, its logarithm, and gated linear units."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn import functional as F

from ...core.rounding import Upper
from ...theory.activations import turning
from ...theory.softmax_norms import glu_norm, log_softmax_norm, softmax_norm
from ..graph import samples
from ..graph.ir import Node
from ..graph.traits import describe
from .effects import Effect, Gain, Range, Unbounded, as_sets
from .local.entry_sets import LogSoftmax, Softmax
from .local.local import Builder, Primitive
from .local.products import Multiply
from .local.scalar import Scalar
from .registry import GatedWord, SoftmaxWord, rule

aten = torch.ops.aten


def _axis(node: Node) -> int:
    """Return the dimension that a softmax goes over, counted from the first."""
    return int(node.args[1]) % max(len(node.shape), 1)


def _softmax_steps(node: Node, build: Builder) -> str | None:
    """Softmax or its logarithm over one dimension."""
    there, back, size = as_sets(node.shape, [_axis(node)])
    primitive: Primitive = LogSoftmax() if node.operator == "log_softmax" else Softmax()
    return build.move_entries(build.apply(primitive, build.move_entries(node.refs[0], there), shape=size), back)


def _softmax_word(node: Node) -> SoftmaxWord:
    return SoftmaxWord(node.operator, _axis(node))


@rule(
    aten.softmax.int,
    examples=[(lambda x: x.softmax(-1), (2, 4)), (lambda x: F.softmin(x, 0), (2, 4))],
    local=_softmax_steps,
    word=_softmax_word,
)
def softmax(node: Node, operands: Sequence[Range]) -> Effect:
    """Softmax over one dimension: norm of the Jacobian at most 1/2."""
    if not node.shape:
        return Gain(gains=(softmax_norm(1),), range=Range.of(1.0, 1, 1.0))
    axis = _axis(node)
    row = 1.0 if axis == len(node.shape) - 1 else math.inf
    return Gain(gains=(softmax_norm(node.shape[axis]),), range=Range.of(1.0, node.shape[-1], row))


@rule(
    aten.log_softmax.int,
    examples=[(lambda x: x.log_softmax(-1), (2, 4))],
    local=_softmax_steps,
    word=_softmax_word,
)
def log_softmax(node: Node, operands: Sequence[Range]) -> Effect:
    """Log-softmax over one dimension: sqrt(n), approached where one class has all the mass."""
    return Gain(gains=(log_softmax_norm(node.shape[_axis(node)] if node.shape else 1),))


def _glu_steps(node: Node, build: Builder) -> str | None:
    """A gated linear unit: the first half times the sigmoid of the second."""
    dim = int(node.bound()["dim"])
    first = build.move_entries(node.refs[0], lambda x: x.chunk(2, dim)[0].clone())
    second = build.move_entries(node.refs[0], lambda x: x.chunk(2, dim)[1].clone())
    gate = Scalar(torch.sigmoid, turning(0.0), bounded=(0.0, 1.0))
    return build.apply(Multiply(), first, build.apply(gate, second, shape=node.shape), shape=node.shape)


@rule(
    aten.glu.default,
    examples=[(lambda x: F.glu(x.tanh() * 3), (2, 4)), (lambda x: F.glu(F.layer_norm(x, (4,))), (2, 4))],
    local=_glu_steps,
    word=lambda node: GatedWord(int(node.bound()["dim"]) % len(node.shape)),
)
def glu(node: Node, operands: Sequence[Range]) -> Effect:
    """A gated linear unit: finite only on bounded operands."""
    entry = operands[0].entry
    gain: Upper = glu_norm(entry)
    if gain.reason:
        return Unbounded(reason=f"{gain.reason}, in {node.where}")
    return Gain(gains=(gain,), range=Range.of(entry, node.shape[-1]))


describe("softmax.int _softmax.default log_softmax.int _log_softmax.default glu.default", samples=samples.along_dim)
