"""Normalizers: BatchNorm, LayerNorm, GroupNorm, InstanceNorm, RMSNorm, in eval and train mode.

In eval mode BatchNorm is a diagonal map and folds into its neighbours. The others divide a centred set y of n entries
by s = sqrt(norm(y)^2/n + eps): centring is linear (and folds with what comes before), the scale gamma is linear (and
folds with what comes after), and the division in between has the constant 1/sqrt(eps), attained at zero variance.

Each normalizer says which entries are its sets (`NormalizedSets`); effects, steps near a point and words in proofs are
all made of that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.rounding import gamma
from ...theory.normalizers import batch_norm_eval, layer_norm_global, rms_norm_global
from ..graph import samples
from ..graph.ir import Node, Ref
from ..graph.traits import describe
from ..linalg.folding import compose
from ..linalg.linear_map import Centering, Diagonal, Identity, LinearMap, Reindex
from .effects import Effect, Gain, Linear, Range, Unbounded, as_sets
from .local.entry_sets import Normalize
from .local.local import Builder
from .registry import NormalizedSets, rule, sets_of

aten = torch.ops.aten


@cache
def centering(shape: tuple[int, ...]) -> Centering:
    """Return the centring of the last dimension; one object per shape, so that norms of folded maps are shared."""
    return Centering(shape)


def _constant(node: Node) -> dict[str, Any] | None:
    """Return the arguments of a normalizer of one value; None where a parameter varies or statistics are meant."""
    arguments = node.bound()
    single = isinstance(arguments.get("input"), Ref) and len(node.operands) == 1 and node.index in (None, 0)
    return arguments if single and arguments["eps"] is not None else None


def _channel_sets(node: Node) -> NormalizedSets | None:
    """Every channel on its own: over the whole batch (BatchNorm), or over one sample (InstanceNorm)."""
    arguments = _constant(node)
    if arguments is None:
        return None
    positions = tuple(range(2, len(node.shape)))
    return NormalizedSets(
        view=node.shape,
        axes=(0, *positions) if node.is_batch_norm else positions,
        eps=float(arguments["eps"]),
        scale=_channels(arguments.get("weight"), node),
        shift=_channels(arguments.get("bias"), node),
        groups=node.shape[1],
        running=not (node.uses_batch_statistics if node.is_batch_norm else arguments["use_input_stats"]),
    )


def _group_sets(node: Node) -> NormalizedSets | None:
    """Groups of channels with their positions, one set per group and sample."""
    arguments = _constant(node)
    if arguments is None:
        return None
    groups = int(arguments["num_groups"])
    sets = node.shape[0] * groups
    scale, shift = (_channels(arguments.get(name), node) for name in ("weight", "bias"))
    return NormalizedSets(
        (sets, math.prod(node.shape) // sets), (1,), float(arguments["eps"]), scale, shift, groups=groups
    )


def _trailing_sets(node: Node) -> NormalizedSets | None:
    """The trailing dimensions of every position (LayerNorm, RMSNorm)."""
    arguments = _constant(node)
    if arguments is None:
        return None
    rank = len(node.shape)
    axes = tuple(range(rank - len(arguments["normalized_shape"]), rank))
    scale, shift = (None if v is None else v.double() for v in (arguments.get("weight"), arguments.get("bias")))
    centred = node.operator == "layer_norm"
    return NormalizedSets(node.shape, axes, float(arguments["eps"]), scale, shift, centred)


def _written_sets(node: Node) -> NormalizedSets:
    """What an RMSNorm that is written out in several operators divides."""
    axes = tuple(dim % len(node.shape) for dim in node.op.data["dims"])
    return NormalizedSets(node.shape, axes, float(node.op.data["eps"]), None, None, centred=False)


def _steps(node: Node, build: Builder) -> str | None:
    """Turn into `[sets, n]`, centre, normalize, turn back, scale and shift."""
    sets = sets_of(node)
    if sets is None or sets.running:
        return None
    there, back, size = as_sets(sets.view, sets.axes)
    name = build.move_entries(node.refs[0], lambda x: there(x.reshape(sets.view)))
    if sets.centred:
        name = build.affine([(name, centering(size))])
    name = build.apply(Normalize(sets.eps), name, shape=size)
    name = build.move_entries(name, lambda x: back(x).reshape(node.shape))
    if sets.scale is None and sets.shift is None:
        return name
    linear: LinearMap = Identity(node.shape) if sets.scale is None else Diagonal(sets.scale, node.shape)
    return build.affine([(name, linear)], None if sets.shift is None else sets.shift.expand(node.shape))


def _word(node: Node) -> NormalizedSets | None:
    """What is normalized, where the statistics are those of the input and eps keeps the division finite."""
    sets = sets_of(node)
    return sets if sets is not None and not sets.running and sets.eps > 0 else None


@rule(
    aten._native_batch_norm_legit_no_training.default,
    examples=[(nn.BatchNorm1d(3).eval(), (4, 3)), (nn.BatchNorm2d(2).eval(), (2, 2, 3, 3))],
    summary="BatchNorm in eval mode: a diagonal map.",
    linear=True, sets=_channel_sets,
)  # fmt: skip
@rule(
    aten._native_batch_norm_legit.no_stats,
    examples=[
        (nn.BatchNorm1d(3).train(), (4, 3)), (nn.BatchNorm2d(2, affine=False).train(), (2, 2, 2, 2)),
        (nn.BatchNorm1d(2, track_running_stats=False).eval(), (3, 2)), (nn.BatchNorm1d(2).train(), (2, 2)),
    ],
    summary="BatchNorm in train mode: every channel is normalized over the batch.",
    local=_steps, word=_word, sets=_channel_sets,
)  # fmt: skip
@rule(
    aten.instance_norm.default,
    examples=[
        (nn.InstanceNorm1d(3, affine=True), (2, 3, 4)), (nn.InstanceNorm2d(2), (1, 2, 3, 3)),
        (nn.InstanceNorm1d(2, track_running_stats=True).eval(), (1, 2, 4)),
    ],
    summary="InstanceNorm: every channel of every sample over its positions (or running statistics, if it keeps them).",
    linear=True, local=_steps, word=_word, sets=_channel_sets,
)  # fmt: skip
@rule(
    aten.group_norm.default,
    examples=[(nn.GroupNorm(2, 4), (2, 4, 3)), (nn.GroupNorm(1, 4), (1, 4, 2, 2)), (nn.GroupNorm(2, 4), (3, 4))],
    summary="GroupNorm: groups of channels with their positions, one set per group and sample.",
    local=_steps, word=_word, sets=_group_sets,
)  # fmt: skip
@rule(
    aten.layer_norm.default,
    examples=[
        (nn.LayerNorm(5), (2, 5)), (nn.LayerNorm((2, 3)), (2, 2, 3)), (nn.LayerNorm(2), (3, 2)),
        (nn.LayerNorm(1), (3, 1)),
        (lambda x: F.layer_norm(x, (4,), torch.tensor([3.0, 0.0, -1.0, 0.5])), (2, 4)),
    ],
    summary="LayerNorm: the trailing dimensions of every position.",
    local=_steps, word=_word, sets=_trailing_sets,
)  # fmt: skip
@rule(
    aten.rms_norm.default,
    examples=[
        (nn.RMSNorm(5), (2, 5)), (nn.RMSNorm(4, eps=1e-2), (2, 3, 4)), (nn.RMSNorm(1, eps=0.1), (3, 1)),
    ],
    summary="RMSNorm: the trailing dimensions divided by their root mean square; no centring.",
    local=_steps, word=_word, sets=_trailing_sets,
)  # fmt: skip
@rule(
    "rms",
    examples=[
        (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3) * torch.linspace(1, 2, 4), (2, 4)),
        (lambda x: (x - x.mean(1, True)) / torch.sqrt((x - x.mean(1, True)).pow(2).mean(1, True) + 0.1), (2, 3, 2)),
    ],
    summary="RMSNorm (or the second half of a LayerNorm) written out in several operators.",
    local=_steps, word=_word, sets=_written_sets,
)  # fmt: skip
def normalizer(node: Node, operands: Sequence[Range]) -> Effect:
    """Return the effect of a normalizer: its division, between the centring and the scale."""
    if node.index not in (None, 0):
        return Unbounded(reason=f"the statistics of the normalizer {node.where} are read: no bound is known for them")
    sets = sets_of(node)
    if sets is None:
        return Unbounded(reason=f"a parameter of the normalizer {node.where} depends on the input")
    if sets.running:
        return _statistics(node)
    entries = math.prod(sets.view[axis] for axis in sets.axes)
    gain = rms_norm_global(None, entries, sets.eps)
    if gain.reason:
        return Unbounded(reason=f"{gain.reason}, in {node.where}")
    after = None if sets.scale is None else Diagonal(sets.scale, node.shape)
    effect = Gain(gains=(gain,), before=_centred(node, sets), after=after, range=_range(node, sets, entries))
    if node.operator != "layer_norm":
        return effect
    scale = None if sets.scale is None else sets.scale.reshape(-1)
    return replace(effect, whole=layer_norm_global(scale, entries, sets.eps))


def _centred(node: Node, sets: NormalizedSets) -> LinearMap:
    """Return the centring of every set, as a map of the whole value."""
    if not sets.centred:
        return Identity(node.shape)
    if sets.groups is None and len(sets.axes) == 1:
        return centering(node.shape)
    there, back, size = as_sets(sets.view, sets.axes)
    turn = Reindex.of(lambda x: there(x.reshape(sets.view)), node.shape, node.device)
    again = Reindex.of(lambda x: back(x).reshape(node.shape), size, node.device)
    return compose(again, compose(centering(size), turn))


def _range(node: Node, sets: NormalizedSets, entries: int) -> Range:
    """Return how large the value can get: no entry of a set of n exceeds sqrt(n), and no row within one set does."""
    top = 1.0 if sets.scale is None else float(sets.scale.abs().amax())
    offset = 0.0 if sets.shift is None else float(sets.shift.abs().amax())
    rank = len(node.shape)
    within = rank > 2 if sets.groups is not None else rank - 1 in sets.axes  # whether every row lies in one set
    reach = math.sqrt(entries) * top * (1 + 1e-12)
    row = reach + offset * math.sqrt(node.shape[-1]) if within else math.inf
    return Range.of(reach + offset, node.shape[-1], row)


def _statistics(node: Node) -> Effect:
    """A normalizer with running statistics: the diagonal map gamma/sqrt(var + eps)."""
    arguments = node.bound()
    channels = _channels(
        batch_norm_eval(arguments.get("weight"), arguments["running_var"], float(arguments["eps"])), node
    )
    assert channels is not None
    linear = Diagonal(channels, node.shape)
    linear.slack = gamma(8) * float(channels.abs().max())  # the rounding of gamma/sqrt(var + eps) itself
    return Linear(maps=(linear,))


def _channels(values: Tensor | None, node: Node) -> Tensor | None:
    """Shape a per-channel vector so that it broadcasts along dimension 1."""
    return None if values is None else values.double().reshape(-1, *(1,) * (len(node.shape) - 2))


describe(
    "layer_norm.default rms_norm.default",
    samples=samples.meets(lambda arguments, rank: range(-len(arguments["normalized_shape"]), 0)),
)
describe("group_norm.default instance_norm.default", samples=samples.meets(lambda arguments, rank: range(1, rank)))
describe(
    "batch_norm.default _native_batch_norm_legit_no_training.default _native_batch_norm_legit.no_stats",
    samples=samples.by_channel,
)
