"""Decide from the graph whether the samples of a batch are independent: no entry may depend on two samples.

Every entry carries the number of the sample it depends on, 0 for none. For each operator a function in a table says
which entries of its operands can meet in one entry of its value; where two samples meet, they are mixed. An operator
that is not in the table counts as one in which all entries meet, so that the answer "independent" is always true. The
answer depends neither on values nor on random numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .ir import Graph, Node, Ref, map_leaves
from .places import PLACES, entries_written, places_vary, source_of_writing, values_written

aten = torch.ops.aten

Meeting = Callable[[Node, Sequence[Tensor]], Tensor]
MOST_SAMPLES = 2**24
"""Sample numbers are kept as float32, which holds integers exactly up to this one."""


class Mixed(Exception):
    """Two samples meet in one entry."""


def independent(graph: Graph, count: int) -> bool:
    """Whether every output of a sample depends on that sample alone.

    Args:
        graph: the graph of the whole batch, before units are recognised.
        count: the number of samples, along the first dimension of every input and of the output.
    """
    shapes = [graph.output_shape, *(item.shape for item in graph.inputs)]
    if count >= MOST_SAMPLES or any(not shape or shape[0] != count for shape in shapes):
        return False
    owners = {item.name: _numbered(item.shape, item.value.device) for item in graph.inputs}
    last = {ref: position for position, node in enumerate(graph) for ref in node.refs}
    try:
        with torch.no_grad():
            for position, node in enumerate(graph):
                owners[node.name] = met(node, [owners[ref] for ref in node.refs])
                for ref in set(node.refs):
                    if last[ref] == position and ref != graph.output:
                        del owners[ref]
    except Mixed:
        return False
    found = owners[graph.output]
    return bool(((found == 0) | (found == _numbered(graph.output_shape, found.device))).all())


def met(node: Node, values: Sequence[Tensor]) -> Tensor:
    """Return the sample that each entry of a node's value depends on; raise `Mixed` where there are two."""
    meeting = TABLE.get(node.op)
    if meeting is None:
        known = getattr(node.op, "namespace", None) == "aten" and torch.Tag.pointwise in node.op.tags
        meeting = entrywise if known else everything
    try:
        found = meeting(node, values)
    except Mixed:
        raise
    except Exception:  # the functions of the table do not expect such arguments
        return everything(node, values)
    return found if found.shape == node.shape else everything(node, values)


def _numbered(shape: Sequence[int], device: torch.device) -> Tensor:
    numbers = torch.arange(1, shape[0] + 1, dtype=torch.float32, device=device)
    return numbers.reshape(-1, *(1,) * (len(shape) - 1)).expand(tuple(shape))


def _along(owner: Tensor, dims: Iterable[int]) -> Tensor:
    """Return the samples of a value whose entries along some dimensions meet; these dimensions stay, with size 1."""
    dims = sorted({dim % owner.ndim for dim in dims}) if owner.ndim else []
    if not dims:
        return owner
    if owner.numel() == 0:  # a value without entries depends on no sample
        return owner.new_zeros([1 if dim in dims else size for dim, size in enumerate(owner.shape)])
    thin = _thin(owner)
    highest = thin.amax(dims, keepdim=True)
    if bool(((thin != highest) & (thin != 0)).any()):
        raise Mixed
    return highest.expand([1 if dim in dims else size for dim, size in enumerate(owner.shape)])


def _thin(owner: Tensor) -> Tensor:
    """Return an expanded tensor without its repetitions; the expanded dimensions stay, with size 1."""
    for dim, stride in enumerate(owner.stride()):
        if stride == 0 and owner.shape[dim] > 1:
            owner = owner.narrow(dim, 0, 1)
    return owner


def _both(first: Tensor, second: Tensor) -> Tensor:
    """Return the samples of a value in which two values of its shape meet entry by entry."""
    shape, first, second = first.shape, _thin(first), _thin(second)
    if bool(((first != second) & (first != 0) & (second != 0)).any()):
        raise Mixed
    return torch.maximum(first, second).expand(shape)


def _together(node: Node, parts: Sequence[Tensor]) -> Tensor:
    """Return the samples of a value in which parts meet that broadcast to its shape."""
    result = parts[0].expand(node.shape)
    for part in parts[1:]:
        result = _both(result, part.expand(node.shape))
    return result


def entrywise(node: Node, values: Sequence[Tensor]) -> Tensor:
    """Operators that work entry by entry, with broadcasting: also comparisons, choices, casts, and pointwise ones."""
    return _together(node, values)


def everything(node: Node, values: Sequence[Tensor]) -> Tensor:
    """Operators of which nothing is known: all entries of all operands meet."""
    tops = [_along(value, range(value.ndim)).reshape(()) for value in values]
    result = tops[0]
    for top in tops[1:]:
        result = _both(result, top)
    return result.expand(node.shape)


def moves(node: Node, values: Sequence[Tensor]) -> Tensor:
    """Operators that move entries unchanged; constants among the entries depend on no sample."""
    arguments = node.bound()
    if places_vary(node):  # the positions depend on the input
        return everything(node, values)
    blank = {name: map_leaves(value, _nothing) for name, value in arguments.items() if name not in PLACES}
    indices = {name: arguments[name] for name in PLACES if name in arguments}
    bare = dataclasses.replace(node, args=(), kwargs={name: (blank | indices)[name] for name in arguments})
    # Constants that the operator fills in cancel in the difference of two runs; infinite ones leave NaN.
    return (bare.evaluate(values) - bare.evaluate([torch.zeros_like(value) for value in values])).nan_to_num(0.0)


def _nothing(leaf: Any) -> Any:
    """Return a constant tensor as entries that depend on no sample."""
    return torch.zeros_like(leaf, dtype=torch.float32) if isinstance(leaf, Tensor) else leaf


def written(node: Node, values: Sequence[Tensor]) -> Tensor:
    """Operators that write: values that are written or added to one entry meet each other and the old value."""
    if places_vary(node):
        return everything(node, values)
    owners, entries = iter(values), entries_written(node)
    base = next(owners).reshape(-1) if _first(node) else torch.zeros(math.prod(node.shape), device=node.device)
    source = torch.zeros(entries.shape, device=node.device)
    if isinstance(source_of_writing(node), Ref):
        source = values_written(node, next(owners), entries)
    owner = base.scatter_reduce(0, entries.reshape(-1), source.reshape(-1), "amax")
    if bool(((base != owner) & (base != 0)).any()) or bool(((source != owner[entries]) & (source != 0)).any()):
        raise Mixed
    return owner.reshape(node.shape)


def overwrite(node: Node, values: Sequence[Tensor]) -> Tensor:
    """`copy` and `fill`: nothing of the first operand is left, and the value depends on the last one alone."""
    return _together(node, values[-1:])


def along(node: Node, values: Sequence[Tensor]) -> Tensor:
    """Reductions, softmax, sorting, running sums: the entries along `dim` meet, or all of them without `dim`."""
    dims = node.bound().get("dim")
    if len(values) != 1 or dims is None or dims == []:
        return everything(node, values)
    left = _along(values[0], [dims] if isinstance(dims, int) else dims)
    return left.reshape(node.shape) if left.numel() == math.prod(node.shape) else left.expand(node.shape)


def pairs(node: Node, values: Sequence[Tensor]) -> Tensor:
    """`view_as_complex` joins the last dimension, and `view_as_real` adds one for the two parts of a number."""
    (value,) = values
    return (_along(value, [-1])[..., 0] if value.ndim > len(node.shape) else value[..., None]).expand(node.shape)


def trailing(count: Callable[[dict[str, Any]], int]) -> Meeting:
    """Linear layers, LayerNorm, RMSNorm, pooling: with constant parameters, the last dimensions meet."""

    def meeting(node: Node, values: Sequence[Tensor]) -> Tensor:
        if len(values) != 1 or not _first(node):
            return everything(node, values)
        (value,) = values
        left = _along(value, range(value.ndim - count(node.bound()), value.ndim))
        return left.expand(node.shape)

    return meeting


def items(size: int | None = None) -> Meeting:
    """Convolutions, GroupNorm: with constant parameters, all but the first of `size` dimensions meet."""

    def meeting(node: Node, values: Sequence[Tensor]) -> Tensor:
        if len(values) != 1 or not _first(node) or (size is not None and values[0].ndim != size):
            return everything(node, values)
        (value,) = values
        left = _along(value, range(1, value.ndim))
        return left.reshape(-1, *(1,) * (len(node.shape) - 1)).expand(node.shape)

    return meeting


def product(node: Node, values: Sequence[Tensor]) -> Tensor:
    """Matrix products: rows of the first factor meet columns of the second, and an added term meets both."""
    owners = iter(values)
    factors = [argument for argument in node.bound().values() if isinstance(argument, Ref | Tensor)]
    *added, left, right = [next(owners) if isinstance(factor, Ref) else None for factor in factors]
    vector = len(factors[-1].shape) == 1
    if len(factors[-2].shape) == 1 or (vector and right is not None):
        return everything(node, values)
    parts = [value for value in added if value is not None]
    if left is not None:
        rows = _along(left, [-1])
        parts.append(rows[..., 0] if vector else rows)
    if right is not None:
        parts.append(_along(right, [-2]))
    return _together(node, parts)


def attention(node: Node, values: Sequence[Tensor]) -> Tensor:
    """Attention: all heads, tokens and channels of a sample meet, with those of the mask."""
    wanted = len(node.shape)
    if any(value.ndim != wanted for value in values) or wanted not in (3, 4):
        return everything(node, values)
    return _together(node, [_along(value, range(1, wanted)) for value in values])


def contraction(node: Node, values: Sequence[Tensor]) -> Tensor:
    """`einsum`: the dimensions whose letters the result does not have meet."""
    terms, arrow, result = node.args[0].replace(" ", "").partition("->")
    letters = terms.split(",")
    if not arrow or "." in terms or any(len(set(term)) < len(term) for term in (*letters, result)):
        return everything(node, values)
    parts = []
    moving = [term for term, operand in zip(letters, node.args[1], strict=True) if isinstance(operand, Ref)]
    for term, value in zip(moving, values, strict=True):
        left = _along(value, [dim for dim, letter in enumerate(term) if letter not in result])
        sizes = dict(zip(term, left.shape, strict=True))
        kept = [letter for letter in term if letter in result]
        left = left.reshape([sizes[letter] for letter in kept])
        left = left.permute([kept.index(letter) for letter in result if letter in kept])
        parts.append(left.reshape([sizes.get(letter, 1) for letter in result]))
    return _together(node, parts)


def batch_norm(node: Node, values: Sequence[Tensor]) -> Tensor:
    """BatchNorm: entry by entry with running statistics; with those of the batch, a channel of all samples meets."""
    if len(values) != 1 or not _first(node) or node.index not in (None, 0):
        return everything(node, values)
    if node.uses_batch_statistics:
        return _along(values[0], [dim for dim in range(values[0].ndim) if dim != 1]).expand(node.shape)
    return _together(node, values)


def recurrent(node: Node, values: Sequence[Tensor]) -> Tensor:
    """Recurrent layers: a sequence meets its own first state; samples lie along the states' second dimension."""
    given = node.bound()
    if not _first(node) or _refers(given["params"]) or any(value.ndim != 3 for value in values):
        return everything(node, values)
    batch = 0 if given["batch_first"] else 1
    sequence, *states = values
    parts = [_along(sequence, {0, 1, 2} - {batch}).reshape(1, -1, 1), *(_along(state, (0, 2)) for state in states)]
    whole = torch.stack([part.reshape(-1) for part in parts])
    samples = _along(whole, [0])[0]
    out = batch if node.index == 0 else 1
    return samples.reshape([-1 if dim == out else 1 for dim in range(3)]).expand(node.shape)


def _first(node: Node) -> bool:
    """Whether the first argument depends on the input."""
    return isinstance(node.args[0], Ref)


def _refers(argument: Any) -> bool:
    if isinstance(argument, list | tuple):
        return any(map(_refers, argument))
    return isinstance(argument, Ref)


def _table(kinds: dict[Meeting, str]) -> dict[Any, Meeting]:
    """Return the table by operator, from names of overloads or of operators with all their overloads."""
    found: dict[Any, Meeting] = {}
    for meeting, names in kinds.items():
        for name in names.split():
            packet, _, overload = name.partition(".")
            operators = getattr(aten, packet)
            for each in [overload] if overload else operators.overloads():
                found[getattr(operators, each)] = meeting
    return found


TABLE = _table({
    pairs: "view_as_complex.default view_as_real.default",
    entrywise: """alias clone detach _to_copy to.dtype to.dtype_layout to.device to.other type_as contiguous lift_fresh
        lift_fresh_copy hardswish log_sigmoid where.ScalarOther where.ScalarSelf where.Scalar masked_fill.Tensor
        rsub.Tensor __and__ __or__ prelu.default dropout.default feature_dropout.default alpha_dropout.default
        feature_alpha_dropout.default real.default imag.default complex.default polar.default _conj.default
        conj.default resolve_conj.default""",
    moves: """reshape.default view.default _unsafe_view squeeze.default squeeze.dim squeeze.dims unsqueeze
        flatten.using_ints unflatten.int permute transpose.int t.default numpy_T mT.default movedim.intlist
        movedim.int swapaxes.default slice.Tensor select.int narrow.default index_select.default index.Tensor
        gather.default take.default expand.default expand_as repeat.default tile.default repeat_interleave.self_int
        flip.default roll.default rot90.default split.Tensor split_with_sizes.default split.sizes chunk.default
        unbind.int tensor_split.sections cat.default concat.default stack.default hstack.default vstack.default
        constant_pad_nd.default pad.default pixel_shuffle.default pixel_unshuffle.default channel_shuffle.default
        slice_scatter.default select_scatter.default tril.default triu.default diagonal.default
        upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec _upsample_nearest_exact1d.vec
        _upsample_nearest_exact2d.vec _upsample_nearest_exact3d.vec unfold.default im2col.default view_as.default
        reshape_as.default atleast_1d.default diagonal_scatter.default""",
    written: """index_add.default scatter_add.default scatter_reduce.two scatter.src scatter.value index_copy.default
        index_fill.int_Scalar index_fill.int_Tensor index_put.default""",
    overwrite: "copy.default fill.Tensor",
    along: """softmax.int _softmax.default log_softmax.int _log_softmax.default glu.default sum.default sum.dim_IntList
        mean.default mean.dim amax.default amin.default max.dim min.dim max.default min.default prod.default
        prod.dim_int var.correction var.dim var.default std.correction std.dim std.default logsumexp.default
        linalg_vector_norm.default norm.ScalarOpt_dim norm.Scalar sort.default topk.default argmax.default
        argmin.default argsort.default any.default any.dim all.default all.dim cumsum.default cumprod.default
        cummax.default cummin.default logcumsumexp.default median.dim median.default kthvalue.default fft_fft.default
        fft_ifft.default fft_rfft.default fft_irfft.default fft_hfft.default fft_ihfft.default fft_fft2.default
        fft_ifft2.default fft_rfft2.default fft_irfft2.default _fft_r2c.default _fft_c2c.default _fft_c2r.default""",
    trailing(lambda given: 1): "linear.default",
    trailing(lambda given: len(given["normalized_shape"])): "layer_norm.default rms_norm.default",
    trailing(lambda given: 1): """max_pool1d.default avg_pool1d.default adaptive_avg_pool1d.default
        adaptive_max_pool1d.default max_pool1d_with_indices.default upsample_linear1d.vec""",
    trailing(lambda given: 2): """max_pool2d.default avg_pool2d.default adaptive_avg_pool2d.default
        adaptive_max_pool2d.default max_pool2d_with_indices.default upsample_bilinear2d.vec upsample_bicubic2d.vec
        _upsample_bilinear2d_aa.vec""",
    trailing(lambda given: 3): """max_pool3d.default avg_pool3d.default adaptive_avg_pool3d.default
        adaptive_max_pool3d.default max_pool3d_with_indices.default upsample_trilinear3d.vec""",
    items(3): "conv1d.default conv1d.padding conv_transpose1d.default",
    items(4): "conv2d.default conv2d.padding conv_transpose2d.input",
    items(5): "conv3d.default conv3d.padding conv_transpose3d.input",
    items(): "group_norm.default instance_norm.default",
    product: "mm.default bmm.default matmul.default mv.default addmm.default baddbmm.default",
    attention: "scaled_dot_product_attention.default",
    contraction: "einsum.default",
    batch_norm: """batch_norm.default _native_batch_norm_legit_no_training.default
        _native_batch_norm_legit.no_stats""",
    recurrent: "lstm.input gru.input rnn_tanh.input rnn_relu.input",
})  # fmt: skip
