"""Shape operators: they move, copy or drop entries; their matrix is read off by moving the entries' numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from ..graph import samples
from ..graph.ir import Node, places_vary
from ..graph.traits import describe
from ..linalg.linear_map import Identity, LinearMap, Reindex
from .effects import Effect, Linear, Range, Unbounded, in_operand
from .registry import rule

aten = torch.ops.aten


def map_per_operand(node: Node) -> tuple[LinearMap, ...]:
    """Return one map per operand, read off by running the operator on entry numbers with the other operands zero."""
    return tuple(
        Reindex.of(in_operand(node, position), ref.shape, node.device) for position, ref in enumerate(node.operands)
    )


@rule(
    aten.alias.default, aten.clone.default, aten._to_copy.default, aten.reshape.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default,
    examples=[
        (lambda x: x.flatten(1).relu(), (2, 3, 4)), (lambda x: x.view(2, 12), (2, 3, 4)),
        (lambda x: x.double().unsqueeze(1), (2, 3)), (lambda x: x.detach() + x.reshape(2, 3), (2, 3)),
        (lambda x: x[:, :1].squeeze(), (2, 3)), (lambda x: x[:, :1].squeeze(1), (2, 3)),
        (lambda x: torch.squeeze(x[:, :1, None], (1, 2)), (2, 3)), (lambda x: x.clone(), (2, 3)),
        (lambda x: aten.alias(x) + x.long(), (2, 3)),
    ],
    summary="Same entries, same order (casts between floats are taken as exact): the identity",
    linear=True,
)  # fmt: skip
def same(node: Node, operands: Sequence[Range]) -> Effect:
    """Return the identity; a cast to integers or booleans is a jump."""
    if not node.dtype.is_floating_point:
        return Unbounded(reason=f"a cast to {node.dtype} in {node.where}: not continuous")
    return Linear(maps=(Identity(node.operands[0].shape, node.shape),))


@rule(
    aten.permute.default, aten.transpose.int, aten.t.default, aten.slice.Tensor, aten.select.int,
    aten.index_select.default, aten.index.Tensor, aten.gather.default, aten.expand.default, aten.repeat.default,
    aten.tile.default, aten.repeat_interleave.self_int, aten.flip.default, aten.roll.default, aten.rot90.default,
    aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, aten.cat.default, aten.stack.default,
    aten.hstack.default, aten.vstack.default, aten.constant_pad_nd.default, aten.pad.default,
    aten.pixel_shuffle.default, aten.pixel_unshuffle.default, aten.channel_shuffle.default,
    aten.slice_scatter.default, aten.select_scatter.default, aten.tril.default, aten.triu.default,
    aten.diagonal.default, aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec,
    aten._upsample_nearest_exact1d.vec, aten._upsample_nearest_exact2d.vec, aten._upsample_nearest_exact3d.vec,
    aten.broadcast_tensors.default, aten.unfold.default, aten.im2col.default, aten.take.default, aten.copy.default,
    aten.diagonal_scatter.default,
    examples=[
        (lambda x: x.permute(0, 2, 1)[:, 1:], (2, 3, 4)), (lambda x: torch.cat([x, x.flip(1)], 1), (2, 3)),
        (lambda x: x.transpose(0, 1) + x.t(), (3, 3)), (lambda x: torch.cat([x.relu(), x.tanh(), x], 1), (2, 3)),
        (lambda x: F.pad(x, (1, 2), mode="reflect"), (2, 3, 4)), (lambda x: F.pad(x, (1, 1), value=3.0), (2, 3)),
        (lambda x: F.pad(x, (1, 2), mode="circular"), (2, 3, 4)),
        (lambda x: aten.constant_pad_nd(x, [1, 1], 2.0), (2, 3)),
        (lambda x: F.pad(x, (1, 2), mode="replicate"), (2, 3, 4)), (lambda x: x.rot90() + x.rot90(3), (3, 3)),
        (lambda x: x.unsqueeze(1).expand(2, 5, 3), (2, 3)),
        (lambda x: sum(torch.broadcast_tensors(x, x[:1], torch.ones(4, 1, 3))), (2, 3)),
        (lambda x: x.repeat(1, 3), (2, 3)),
        (lambda x: x.tile(2), (2, 3)),
        (lambda x: x.repeat_interleave(2, 1), (2, 3)), (lambda x: F.pixel_shuffle(x, 2), (1, 4, 2, 2)),
        (lambda x: F.pixel_unshuffle(x, 2), (1, 1, 4, 4)), (nn.ChannelShuffle(2), (1, 4, 2, 2)),
        (lambda x: torch.stack([x, 2 * x]), (2, 3)),
        (lambda x: torch.hstack([x, x]).sum() + torch.vstack([x, x]), (2, 2)),
        (lambda x: sum(x.chunk(2, 1)), (2, 4)), (lambda x: x.split([1, 2], 1)[1], (2, 3)),
        (lambda x: x.unbind(1)[1], (2, 3)),
        (lambda x: x[:, 1] + x[:, [0, 0, 1]].sum(1), (2, 3)), (lambda x: x.index_select(1, torch.tensor([0, 0, 1])),
        (2, 3)),
        (lambda x: x.gather(1, torch.tensor([[0, 0], [1, 2]])), (2, 3)), (lambda x: x.tril() + 2 * x.triu(), (3, 3)),
        (lambda x: x.diagonal(), (3, 3)), (lambda x: x.unfold(1, 2, 1), (2, 4)), (nn.Unfold(2), (1, 1, 3, 3)),
        (lambda x: x.as_strided((2, 2), (1, 1)) + x.take(torch.tensor([[5, 0], [0, 2]])), (2, 3)),
        (lambda x: aten.copy(x, x.relu()), (2, 3)), (lambda x: x.diagonal_scatter(2 * x[0]), (3, 3)),
        (lambda x: x.gather(0, x.argsort(0)) + x[x[:, 0].argsort()], (2, 3)),
        (lambda x: torch.select_scatter(x, 2 * x[:, 0], 1, 1), (2, 3)), (lambda x: torch.roll(x, 1, 1) + x, (2, 3)),
        (lambda x: torch.slice_scatter(x, 2 * x[:, :1], 1, 0, 1), (2, 3)),
        (lambda x: F.interpolate(x, scale_factor=2), (1, 1, 3)),
        (lambda x: F.interpolate(x, scale_factor=2), (1, 2, 3, 3)),
        (lambda x: F.interpolate(x, scale_factor=2), (1, 1, 2, 2, 2)),
        (lambda x: F.interpolate(x, size=5, mode="nearest-exact"), (1, 1, 3)),
        (lambda x: F.interpolate(x, size=5, mode="nearest-exact"), (1, 1, 3, 3)),
        (lambda x: F.interpolate(x, size=3, mode="nearest-exact"), (1, 1, 2, 2, 2)),
    ],
    summary="Moves, copies, drops or zero-fills entries: sqrt of the largest number of copies",
    linear=True,
)  # fmt: skip
def moves(node: Node, operands: Sequence[Range]) -> Effect:
    """Read the entries' new places off the operator itself."""
    if places_vary(node):
        reason = f"the places that {node.op} reads from depend on the input in {node.where}: not continuous"
        return Unbounded(reason=reason)
    return Linear(maps=map_per_operand(node), disjoint=len(node.operands) > 1)  # every entry comes from one operand


describe(
    "alias clone detach _to_copy to.dtype to.dtype_layout to.device to.other type_as contiguous lift_fresh "
    "lift_fresh_copy",
    samples=samples.entrywise,
    keeps="same",
)
describe(
    "reshape.default view.default _unsafe_view squeeze.default squeeze.dim squeeze.dims unsqueeze flatten.using_ints "
    "unflatten.int view_as.default reshape_as.default atleast_1d.default",
    samples=samples.reshaped,
    keeps="order",
)
describe(
    "permute transpose.int t.default numpy_T mT.default movedim.intlist movedim.int swapaxes.default",
    samples=samples.reordered,
    keeps="all",
)
describe("expand.default expand_as", samples=samples.repeated, keeps="some")
ALONG_DIM = samples.moves(lambda arguments: arguments["dim"])
describe(
    "slice.Tensor select.int narrow.default split.Tensor split_with_sizes.default split.sizes chunk.default unbind.int "
    "tensor_split.sections",
    samples=ALONG_DIM,
    keeps="some",
)
describe(
    "index_select.default repeat_interleave.self_int cat.default concat.default stack.default slice_scatter.default",
    samples=ALONG_DIM,
)
describe("flip.default roll.default rot90.default", samples=samples.moves(lambda arguments: arguments["dims"]))
describe(
    "constant_pad_nd.default pad.default",
    samples=samples.moves(lambda arguments: range(-(len(arguments["pad"]) // 2), 0)),
)
describe("pixel_shuffle.default pixel_unshuffle.default", samples=samples.moves_along_last(3))
describe("tril.default triu.default", samples=samples.moves_along_last(2))
for axes in (1, 2, 3):
    describe(
        f"upsample_nearest{axes}d.vec _upsample_nearest_exact{axes}d.vec",
        samples=samples.moves_along_last(axes),
        keeps="some",
    )
describe(
    "index.Tensor gather.default take.default repeat.default tile.default hstack.default vstack.default "
    "channel_shuffle.default diagonal.default unfold.default im2col.default diagonal_scatter.default",
    samples=samples.moves(),
)
describe("select_scatter.default", samples=samples.put_back)
describe("copy.default fill.Tensor", samples=samples.overwrite)
describe("embedding.default one_hot.default", samples=samples.looked_up)
