"""Shape operators: they move, copy or drop entries; their matrix is read off by moving the entries' numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from ..graph.ir import Node
from ..linalg.linear_map import Identity, LinearMap, Reindex
from .effects import Effect, Linear, Range, Unbounded
from .registry import rule

aten = torch.ops.aten


def moved(node: Node) -> tuple[LinearMap, ...]:
    """Return one map per operand, read off by running the operator on entry numbers with the other operands zero."""
    shapes = [ref.shape for ref in node.operands]
    device = node.device

    def part(position: int) -> LinearMap:
        zeros = [torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes]
        offset = node.evaluate(zeros)

        def place(ids: torch.Tensor) -> torch.Tensor:
            values = list(zeros)
            values[position] = ids
            return node.evaluate(values) - offset

        return Reindex.of(place, shapes[position], device)

    return tuple(part(position) for position in range(len(shapes)))


@rule(
    aten.alias.default, aten.clone.default, aten.contiguous.default, aten.detach.default, aten._to_copy.default,
    aten.to.dtype, aten.reshape.default, aten._reshape_alias.default,
    aten.flatten.using_ints, aten.unflatten.int, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims,
    aten.unsqueeze.default, aten.lift_fresh_copy.default,
    examples=[
        (lambda x: x.flatten(1).relu(), (2, 3, 4)), (lambda x: x.view(2, 12), (2, 3, 4)),
        (lambda x: x.double().unsqueeze(1), (2, 3)), (lambda x: x.detach() + x.reshape(2, 3), (2, 3)),
    ],
    summary="Same entries, same order (casts are taken as exact): the identity",
)  # fmt: skip
def same(node: Node, operands: Sequence[Range]) -> Effect:
    """Return the identity; a cast to integers or booleans is a jump."""
    if not node.dtype.is_floating_point:
        return Unbounded(reason=f"a cast to {node.dtype} in {node.where}: not continuous")
    return Linear(maps=(Identity(node.operands[0].shape, node.shape),))


@rule(
    aten.permute.default, aten.transpose.int, aten.t.default, aten.numpy_T.default, aten.movedim.int,
    aten.slice.Tensor, aten.select.int, aten.narrow.default, aten.index_select.default, aten.index.Tensor,
    aten.gather.default, aten.expand.default, aten.repeat.default, aten.tile.default, aten.repeat_interleave.self_int,
    aten.broadcast_to.default, aten.expand_as.default,
    aten.flip.default, aten.roll.default, aten.rot90.default,
    aten.split.Tensor, aten.split.sizes, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int,
    aten.cat.default, aten.stack.default, aten.concat.default, aten.hstack.default, aten.vstack.default,
    aten.constant_pad_nd.default, aten.reflection_pad1d.default, aten.reflection_pad2d.default,
    aten.reflection_pad3d.default, aten.replication_pad1d.default, aten.replication_pad2d.default,
    aten.replication_pad3d.default, aten.pad.default, aten._pad_circular.default,
    aten.pixel_shuffle.default, aten.pixel_unshuffle.default, aten.channel_shuffle.default,
    aten.slice_scatter.default, aten.select_scatter.default, aten.tril.default, aten.triu.default,
    aten.diagonal.default, aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec,
    aten.unfold.default, aten.im2col.default, aten.as_strided.default, aten.copy.default,
    examples=[
        (lambda x: x.permute(0, 2, 1)[:, 1:], (2, 3, 4)), (lambda x: torch.cat([x, x.flip(1)], 1), (2, 3)),
        (lambda x: F.pad(x, (1, 2), mode="reflect"), (2, 3, 4)), (lambda x: F.pad(x, (1, 1), value=3.0), (2, 3)),
        (lambda x: F.pad(x, (1, 2), mode="circular"), (2, 3, 4)),
        (lambda x: F.pad(x, (1, 2), mode="replicate"), (2, 3, 4)),
        (lambda x: x.unsqueeze(1).expand(2, 5, 3), (2, 3)), (lambda x: x.repeat(1, 3), (2, 3)),
        (lambda x: F.pixel_shuffle(x, 2), (1, 4, 2, 2)), (lambda x: torch.stack([x, 2 * x]), (2, 3)),
        (lambda x: sum(x.chunk(2, 1)), (2, 4)), (lambda x: x[:, [0, 0, 1]], (2, 3)),
        (lambda x: F.interpolate(x, scale_factor=2), (1, 2, 3, 3)), (lambda x: torch.roll(x, 1, 1) + x, (2, 3)),
        (lambda x: x.tril(), (3, 3)), (lambda x: x.unfold(1, 2, 1), (2, 4)),
    ],
    summary="Moves, copies, drops or zero-fills entries: sqrt of the largest number of copies",
)  # fmt: skip
def moves(node: Node, operands: Sequence[Range]) -> Effect:
    """Read the entries' new places off the operator itself."""
    return Linear(maps=moved(node), disjoint=len(node.operands) > 1)  # every entry comes from one operand
