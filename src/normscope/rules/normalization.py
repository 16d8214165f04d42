"""Normalizers: BatchNorm, LayerNorm, GroupNorm, InstanceNorm, RMSNorm, in eval and train mode.

In eval mode BatchNorm is a diagonal map and folds into its neighbours. The others divide a centred set y of n entries
by s = sqrt(norm(y)^2/n + eps): centring is linear (and folds with what comes before), the scale gamma is linear (and
folds with what comes after), and the division in between has the constant 1/sqrt(eps), attained at zero variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.rounding import gamma
from ..graph.ir import Node, Ref
from ..linalg.folding import compose
from ..linalg.linear_map import Centering, Diagonal, Identity, LinearMap, Reindex
from ..theory.normalizers import batch_norm_eval, layer_norm_global, rms_norm_global
from .effects import Effect, Gain, Linear, Range, Unbounded
from .registry import rule

aten = torch.ops.aten


@cache
def centering(shape: tuple[int, ...]) -> Centering:
    """Return the centring of the last dimension; one object per shape, so that norms of folded maps are shared."""
    return Centering(shape)


def normalized(
    node: Node,
    eps: float,
    sets: tuple[int, int],
    scale: Tensor | None,
    shift: Tensor | None,
    before: LinearMap,
    rows: bool,
) -> Effect:
    """Assemble the effect of a normalizer over `sets = (number, entries)`; `rows`: every row lies inside one set."""
    gain = rms_norm_global(None, sets[1], eps)
    if gain.reason:
        return Unbounded(reason=f"{gain.reason}, in {node.where}")
    after = None if scale is None else Diagonal(scale.to(torch.float64), node.shape)
    top = 1.0 if scale is None else float(scale.abs().amax())
    offset = 0.0 if shift is None else float(shift.abs().amax())
    reach = math.sqrt(sets[1]) * top * (1 + 1e-12)
    row = reach + offset * math.sqrt(node.shape[-1]) if rows else math.inf
    return Gain(gains=(gain,), before=before, after=after, range=Range.of(reach + offset, node.shape[-1], row))


@rule(
    aten._native_batch_norm_legit_no_training.default, aten._native_batch_norm_legit.no_stats,
    examples=[
        (nn.BatchNorm1d(3).eval(), (4, 3)), (nn.BatchNorm2d(2).eval(), (2, 2, 3, 3)),
        (nn.BatchNorm1d(3).train(), (4, 3)), (nn.BatchNorm2d(2, affine=False).train(), (2, 2, 2, 2)),
        (nn.BatchNorm1d(2, track_running_stats=False).eval(), (3, 2)), (nn.BatchNorm1d(2).train(), (2, 2)),
    ],
)  # fmt: skip
def batch_norm(node: Node, operands: Sequence[Range]) -> Effect:
    """BatchNorm: a diagonal map in eval mode; in train mode every channel is normalized over the batch."""
    arguments = node.bound()
    image = arguments["input"]
    if not isinstance(image, Ref) or len(node.operands) != 1:
        return Unbounded(reason=f"a parameter of the normalizer {node.where} depends on the input")
    if node.index not in (None, 0):
        return Unbounded(reason=f"the statistics of the normalizer {node.where} are read: no bound is known for them")
    weight, bias, eps = arguments.get("weight"), arguments.get("bias"), float(arguments["eps"])
    if not node.uses_batch_statistics:
        return _statistics(node, weight, arguments["running_var"], eps)
    batch, channels = node.shape[:2]
    entries = math.prod(node.shape) // channels
    turn = Reindex.of(lambda x: x.transpose(0, 1).reshape(channels, entries), node.shape, node.device)
    inner = math.prod(node.shape[2:])
    back = Reindex.of(
        lambda x: x.reshape(channels, batch, inner).transpose(0, 1).reshape(node.shape),
        (channels, entries),
        node.device,
    )
    before = compose(back, compose(centering((channels, entries)), turn))
    return normalized(
        node, eps, (channels, entries), _channels(weight, node), _channels(bias, node), before, rows=len(node.shape) > 2
    )


@rule(
    aten.instance_norm.default,
    examples=[
        (nn.InstanceNorm1d(3, affine=True), (2, 3, 4)), (nn.InstanceNorm2d(2), (1, 2, 3, 3)),
        (nn.InstanceNorm1d(2, track_running_stats=True).eval(), (1, 2, 4)),
    ],
)  # fmt: skip
def instance_norm(node: Node, operands: Sequence[Range]) -> Effect:
    """InstanceNorm: every channel of every sample over its positions (or running statistics, if it keeps them)."""
    arguments = node.bound()
    weight, bias, eps = arguments.get("weight"), arguments.get("bias"), float(arguments["eps"])
    if len(node.operands) != 1:
        return Unbounded(reason=f"a parameter of the normalizer {node.where} depends on the input")
    if not arguments["use_input_stats"]:
        return _statistics(node, weight, arguments["running_var"], eps)
    sets = math.prod(node.shape[:2])
    return _grouped(node, sets, weight, bias, eps)


@rule(
    aten.group_norm.default,
    examples=[(nn.GroupNorm(2, 4), (2, 4, 3)), (nn.GroupNorm(1, 4), (1, 4, 2, 2)), (nn.GroupNorm(2, 4), (3, 4))],
)  # fmt: skip
def group_norm(node: Node, operands: Sequence[Range]) -> Effect:
    """GroupNorm: groups of channels with their positions, one set per group and sample."""
    arguments = node.bound()
    if len(node.operands) != 1:
        return Unbounded(reason=f"a parameter of the normalizer {node.where} depends on the input")
    sets = node.shape[0] * int(arguments["num_groups"])
    return _grouped(node, sets, arguments.get("weight"), arguments.get("bias"), float(arguments["eps"]))


@rule(
    aten.layer_norm.default,
    examples=[
        (nn.LayerNorm(5), (2, 5)), (nn.LayerNorm((2, 3)), (2, 2, 3)), (nn.LayerNorm(2), (3, 2)),
        (nn.LayerNorm(1), (3, 1)),
        (lambda x: F.layer_norm(x, (4,), torch.tensor([3.0, 0.0, -1.0, 0.5])), (2, 4)),
    ],
)  # fmt: skip
def layer_norm(node: Node, operands: Sequence[Range]) -> Effect:
    """LayerNorm: the trailing dimensions of every position."""
    arguments = node.bound()
    if len(node.operands) != 1 or node.index not in (None, 0):
        return Unbounded(reason=f"a parameter or statistic of the normalizer {node.where} depends on the input")
    dims = len(arguments["normalized_shape"])
    entries = math.prod(node.shape[-dims:])
    sets = math.prod(node.shape) // entries
    weight, bias = arguments.get("weight"), arguments.get("bias")
    before = _within(node, sets, entries) if dims > 1 else centering(node.shape)
    effect = normalized(node, float(arguments["eps"]), (sets, entries), weight, bias, before, rows=True)
    if not isinstance(effect, Gain):
        return effect
    return replace(
        effect,
        whole=layer_norm_global(None if weight is None else weight.reshape(-1), entries, float(arguments["eps"])),
    )


@rule(
    aten.rms_norm.default,
    examples=[
        (nn.RMSNorm(5), (2, 5)), (nn.RMSNorm(4, eps=1e-2), (2, 3, 4)), (nn.RMSNorm(1, eps=0.1), (3, 1)),
    ],
)  # fmt: skip
def rms_norm(node: Node, operands: Sequence[Range]) -> Effect:
    """RMSNorm: the trailing dimensions divided by their root mean square; no centring."""
    arguments = node.bound()
    if len(node.operands) != 1:
        return Unbounded(reason=f"a parameter of the normalizer {node.where} depends on the input")
    entries = math.prod(node.shape[-len(arguments["normalized_shape"]) :])
    sets = math.prod(node.shape) // entries
    return normalized(
        node, float(arguments["eps"]), (sets, entries), arguments.get("weight"), None, Identity(node.shape), rows=True
    )


@rule(
    "rms",
    examples=[
        (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3) * torch.linspace(1, 2, 4), (2, 4)),
        (lambda x: (x - x.mean(1, True)) / torch.sqrt((x - x.mean(1, True)).pow(2).mean(1, True) + 0.1), (2, 3, 2)),
    ],
)
def written_rms(node: Node, operands: Sequence[Range]) -> Effect:
    """RMSNorm (or the second half of a LayerNorm) written out in several operators."""
    dims = node.op.data["dims"]
    entries = math.prod(node.shape[dim] for dim in dims)
    sets = math.prod(node.shape) // entries
    rows = len(node.shape) - 1 in dims
    return normalized(node, node.op.data["eps"], (sets, entries), None, None, Identity(node.shape), rows)


def _statistics(node: Node, weight: Tensor | None, variance: Tensor, eps: float) -> Effect:
    """A normalizer with running statistics: the diagonal map gamma/sqrt(var + eps)."""
    scale = batch_norm_eval(weight, variance, eps)
    channels = _channels(scale, node)
    assert channels is not None
    linear = Diagonal(channels, node.shape)
    linear.slack = gamma(8) * float(channels.abs().max())  # the rounding of gamma/sqrt(var + eps) itself
    return Linear(maps=(linear,))


def _grouped(node: Node, sets: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Effect:
    """A normalizer over consecutive entries of every sample."""
    entries = math.prod(node.shape) // sets
    rows = len(node.shape) > 2
    return normalized(
        node, eps, (sets, entries), _channels(weight, node), _channels(bias, node), _within(node, sets, entries), rows
    )


def _within(node: Node, sets: int, entries: int) -> LinearMap:
    """Centre consecutive runs of entries."""
    view = (sets, entries)
    return compose(Identity(view, node.shape), compose(centering(view), Identity(node.shape, view)))


def _channels(values: Tensor | None, node: Node) -> Tensor | None:
    """Shape a per-channel vector so that it broadcasts along dimension 1."""
    return None if values is None else values.double().reshape(-1, *(1,) * (len(node.shape) - 2))
