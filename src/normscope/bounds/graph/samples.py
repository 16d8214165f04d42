"""Decide from the graph whether a batch may be measured one sample at a time.

Two things must hold: no entry of a value depends on two samples, and all samples are treated in the same way. So every
entry carries the number of the sample that it depends on, 0 for none, and a label that tells what it is: two entries
have the same label only if the same operators with the same constants make them, each of its own sample. For each
operator a function (`Traits.samples`) says which entries of its operands can meet in one entry of its value. Where
two samples meet, they are mixed; where the rows of the output have different labels, samples are treated differently: a
constant differs from row to row, or rows go through other operators. An operator without such a function counts as one
in which all entries meet, so that the answer "one at a time" is always true. The answer depends neither on values nor
on random numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import ir
from .ir import Graph, Node, Ref, leaves, map_leaves
from .traits import traits_of

aten = torch.ops.aten

SMALL = 1024
"""Constants of at most this many entries are told apart by their values, larger ones by where they are in memory."""
MAX_ROUNDINGS_APART = 16
"""A constant that is computed for a batch differs by at most this many roundings from that of a sample alone."""
SIZE_TAKING = {aten.reshape.default, aten.view.default, aten.expand.default, aten.repeat.default}
"""Operators that take sizes as arguments, which the shapes of their operand and their value tell as well."""


class Mixed(Exception):
    """Two samples meet in one entry."""


@dataclass(frozen=True, slots=True)
class Entries:
    """What every entry of a value is.

    Attributes:
        owner: the number of the sample that an entry depends on, 0 for none.
        label: a 64-bit hash of what makes it.
        implied: dimensions along which places belong to the label: entries at two places there are never the same.
            Both tensors are expanded wherever nothing changes along a dimension, and so take no memory there.
    """

    owner: Tensor
    label: Tensor
    implied: frozenset[int] = frozenset()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return tuple(self.owner.shape)

    def expand(self, shape: Sequence[int], *, distinct: bool = False) -> Entries:
        """Repeat entries as broadcasting does; with `distinct`, what becomes of one is not the same at all places."""
        new = len(shape) - len(self.shape)
        implied = {dim + new for dim in self.implied}
        if distinct:
            old = (*(1,) * new, *self.shape)
            implied |= {dim for dim, size in enumerate(shape) if old[dim] == 1 < size}
        return Entries(self.owner.expand(tuple(shape)), self.label.expand(tuple(shape)), frozenset(implied))

    def reshape(self, shape: Sequence[int]) -> Entries:
        """Insert or leave out dimensions of size 1."""
        old, new = ([dim for dim, size in enumerate(sizes) if size != 1] for sizes in (self.shape, shape))
        implied = frozenset(b for a, b in zip(old, new, strict=True) if a in self.implied)
        return Entries(self.owner.reshape(tuple(shape)), self.label.reshape(tuple(shape)), implied)

    def permute(self, order: Sequence[int]) -> Entries:
        """Change the order of the dimensions."""
        label, places = self.label, [dim for dim in order if dim in self.implied]
        if places != sorted(places):  # the places of an entry are read in another order
            label = _pair(label, _number(repr([sorted(places).index(dim) for dim in places])))
        implied = frozenset(order.index(dim) for dim in places)
        return Entries(self.owner.permute(*order), label.expand(self.shape).permute(*order), implied)


Meeting = Callable[[Node, Sequence[Entries]], Entries]


def joined(graph: Graph, count: int) -> str | None:
    """Return what keeps the `count` samples of a batch from being measured one by one, in words; None if nothing does.

    The graph is that of the whole batch, before units are recognised, with all tensors of the batch as its inputs.
    """
    shapes = [graph.output_shape, *(item.shape for item in graph.inputs)]
    if any(not shape or shape[0] != count for shape in shapes):
        return "the first dimension of an input or of the output does not count samples"
    with torch.no_grad():
        try:
            output = _output(graph)
        except Mixed as error:
            return str(error)
        if bool(((output.owner != 0) & (output.owner != _numbered(output.shape, output.owner.device))).any()):
            return "the samples of the output are in another order than those of the input"
        if 0 in output.implied or _varies(output.label, 0):
            where = next((f" ({_named(node)})" for node, entries in _walk(graph) if _unlike(entries, count)), "")
            return f"a constant or an operator treats the samples of the batch differently{where}"
    return None


def what_changes(whole: Graph, alone: Graph, count: int) -> str | None:
    """Return where a sample alone goes through another function than in a batch of `count`; None if nowhere.

    A model can compute with the size of its batch. It does not if both graphs have the same operators in the same order
    and with the same arguments, but for sizes that are `count` times as large and constants that have more rows. Or if
    the labels of the first row of both outputs agree, as they do where a model goes through the rows one by one.
    """
    node = _first_difference(whole, alone, count)
    if node is None:
        return None
    with torch.no_grad():
        first, second = (_explicit(_output(graph)).label for graph in (whole, alone))
    if torch.equal(first[:1], second):
        return None
    return f"a sample alone goes through another function than in the batch ({_named(node)})"


def _output(graph: Graph) -> Entries:
    """Return what the entries of a graph's output are; raise `Mixed` where samples meet."""
    return next(entries for item, entries in _walk(graph) if item.name == graph.output)


def _first_difference(whole: Graph, alone: Graph, count: int) -> Node | None:
    """Return the first node of a batch's graph that is not that of a sample alone; None if all are."""
    places = [{item.name: place for place, item in enumerate([*graph.inputs, *graph])} for graph in (whole, alone)]
    for node, of_one in itertools.zip_longest(whole, alone):
        if node is None or of_one is None:
            return node or of_one
        arguments = [list(leaves((each.args, sorted(each.kwargs.items())))) for each in (node, of_one)]
        forms = [
            (each.op, each.index, each.dtype, len(given)) for each, given in zip((node, of_one), arguments, strict=True)
        ]
        if forms[0] != forms[1] or not _is_shape_in_batch(node.shape, of_one.shape, count):
            return node
        for first, second in zip(*arguments, strict=True):
            if isinstance(first, Ref) and isinstance(second, Ref):
                same = places[0][first.name] == places[1][second.name]
            elif isinstance(first, Tensor) and isinstance(second, Tensor):
                same = _same_first_rows(first, second, count)
            else:
                same = type(first) is type(second) and (bool(first == second) or node.op in SIZE_TAKING)
            if not same:
                return node
    return None if places[0][whole.output] == places[1][alone.output] else whole.nodes[-1]


def _is_shape_in_batch(shape: Sequence[int], alone: Sequence[int], count: int) -> bool:
    """Whether two shapes agree, but for one dimension at most that is `count` times as large in the first."""
    if len(shape) != len(alone):
        return False
    differing = [sizes for sizes in zip(shape, alone, strict=True) if sizes[0] != sizes[1]]
    return not differing or (len(differing) == 1 and differing[0][0] == count * differing[0][1])


def _same_first_rows(constant: Tensor, alone: Tensor, count: int) -> bool:
    """Whether the first of `count` parts of a constant is that of a sample alone, up to the rounding of a batch."""
    if constant.dtype != alone.dtype or not _is_shape_in_batch(constant.shape, alone.shape, count):
        return False
    part = constant[tuple(slice(size) for size in alone.shape)]
    if not (part.is_floating_point() or part.is_complex()):
        return torch.equal(part, alone)
    finite = alone.abs().nan_to_num(posinf=0.0)
    step = MAX_ROUNDINGS_APART * torch.finfo(part.dtype).eps
    largest = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(part, alone, rtol=step, atol=step * largest, equal_nan=True)


def _walk(graph: Graph) -> Iterator[tuple[Any, Entries]]:
    """Yield the inputs and the nodes of a graph with what their entries are; raise `Mixed` where samples meet."""
    values = {}
    for number, item in enumerate(graph.inputs):
        owner = _numbered(item.shape, item.value.device)
        label = torch.full((), _number(f"input {number}"), device=owner.device).expand(item.shape)
        values[item.name] = Entries(owner, label, frozenset(d for d in range(1, owner.ndim) if item.shape[d] > 1))
        yield item, values[item.name]
    last = {ref: position for position, node in enumerate(graph) for ref in node.refs}
    for position, node in enumerate(graph):
        try:
            values[node.name] = met(node, [values[ref] for ref in node.refs])
        except Mixed:
            raise Mixed(_describe_meeting(node)) from None
        yield node, values[node.name]
        for ref in set(node.refs):
            if last[ref] == position:
                del values[ref]


def _describe_meeting(node: Node) -> str:
    if _meeting(node) is None:
        remedy = "" if getattr(node.op, "namespace", "aten") == "aten" else " (`samples=` of its `ns.rule` can say)"
        return f"nothing is known of how {node.op} in {node.where} treats samples{remedy}"
    return f"samples of the batch meet in {_named(node)}"


def _named(node: Node) -> str:
    return f"{node.operator} in {node.where}"


def _unlike(entries: Entries, count: int) -> bool:
    """Whether some sample has other entries than another one that has any."""
    told = _explicit(entries)
    sums = torch.zeros(2, count + 1, dtype=torch.int64, device=told.owner.device)
    ones = torch.ones_like(told.owner)
    sums.index_add_(1, told.owner.reshape(-1), torch.stack([ones, _hash(told.label)]).reshape(2, -1))
    sums = sums[:, 1:][:, sums[0, 1:] > 0]
    return bool((sums != sums[:, :1]).any())


def met(node: Node, values: Sequence[Entries]) -> Entries:
    """Return what the entries of a node's value are; raise `Mixed` where two samples meet."""
    meeting = _meeting(node) or everything
    try:
        entries = meeting(node, values)
    except Mixed:
        raise
    except Exception:  # these functions do not expect such arguments
        return everything(node, values)
    return entries if entries.shape == node.shape else everything(node, values)


def _meeting(node: Node) -> Meeting | None:
    """Return which entries meet in a node; None where nothing is known of its operator."""
    pointwise = getattr(node.op, "namespace", None) == "aten" and torch.Tag.pointwise in node.op.tags
    return traits_of(node.op).samples or (entrywise if pointwise else None)


def _numbered(shape: Sequence[int], device: torch.device) -> Tensor:
    numbers = torch.arange(1, shape[0] + 1, device=device)
    return numbers.reshape(-1, *(1,) * (len(shape) - 1)).expand(tuple(shape))


def _hash(number: Tensor) -> Tensor:
    """Return a hash of every 64-bit number (splitmix64)."""
    number = number + -7046029254386353131
    number = (number ^ ((number >> 30) & (2**34 - 1))) * -4658895280553007687
    number = (number ^ ((number >> 27) & (2**37 - 1))) * -7723592293110705685
    return number ^ ((number >> 31) & (2**33 - 1))


def _pair(first: Tensor, second: Tensor | int) -> Tensor:
    """Return a hash of two labels in this order; expanded dimensions have size 1 in it."""
    second = _thin(second) if isinstance(second, Tensor) else second
    return _hash(_thin(first) * -7046029254386353131 + second)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _digest(label: Tensor, dims: Iterable[int]) -> Tensor:
    """Return one label for all entries along some dimensions, in their order; these dimensions stay, with size 1."""
    thin, shape = _thin(label), list(label.shape)
    for dim in dims:
        if thin.shape[dim] > 1:
            thin = _hash(thin + _hash(_places(thin, dim))).sum(dim, keepdim=True)
        thin, shape[dim] = _pair(thin, shape[dim]), 1
    return thin.expand(shape)


def _places(tensor: Tensor, dim: int) -> Tensor:
    """Return the places along a dimension, in a shape that broadcasts to that of a tensor."""
    places = torch.arange(tensor.shape[dim], device=tensor.device)
    return places.reshape([-1 if d == dim else 1 for d in range(tensor.ndim)])


def _along(entries: Entries, dims: Iterable[int]) -> Entries:
    """Return the entries of a value that meet along some dimensions; these dimensions stay, with size 1."""
    size = len(entries.shape)
    dims = sorted({dim % size for dim in dims}) if size else []
    if not dims:
        return entries
    shape = [1 if dim in dims else size for dim, size in enumerate(entries.shape)]
    if entries.owner.numel() == 0:  # a value without entries depends on no sample
        return Entries(entries.owner.new_zeros(shape), entries.owner.new_zeros(shape))
    thin = _thin(entries.owner)
    highest = thin.amax(dims, keepdim=True)
    if bool(((thin != highest) & (thin != 0)).any()):
        raise Mixed
    return Entries(highest.expand(shape), _digest(entries.label, dims), entries.implied.difference(dims))


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


def _together(node: Node, parts: Sequence[Entries], constants: Iterable[tuple[Tensor, int]] = ()) -> Entries:
    """Return the entries of a value in which parts and constants meet that broadcast to its shape.

    With each constant stands how many of its last dimensions do not lie along the value: all they hold counts as one.
    """
    parts = [part.expand(node.shape) for part in parts]
    owner = parts[0].owner
    for part in parts[1:]:
        owner = _both(owner, part.owner)
    implied = frozenset[int]().union(*(part.implied for part in parts))
    label = torch.full((), _signature(node), device=owner.device)
    for part in parts:
        label = _pair(label, part.label)
    for constant, inside in constants:
        constant = _thin(constant)
        outside = constant.ndim - inside
        new = len(node.shape) - outside
        dims = [dim for dim in range(outside) if constant.shape[dim] > 1 and dim + new not in implied]
        if dims:  # else it is the same for all entries, or for all that are not told apart anyway
            held = _digest(_content(constant), [dim for dim in range(constant.ndim) if dim not in dims])
            label = _pair(label, held.reshape(held.shape[:outside]))
    return Entries(owner, label.expand(node.shape), implied)


def _content(constant: Tensor) -> Tensor:
    """Return a label of every entry of a constant, which tells its value."""
    if constant.is_complex():
        return _digest(_content(torch.view_as_real(constant)), [constant.ndim])[..., 0]
    wide = constant.double().view(torch.int64) if constant.is_floating_point() else constant.long()
    return _hash(wide)


def _signature(node: Node) -> int:
    """Return a number for an operator with all its arguments but the values that it reads."""
    named = dict(sorted(node.kwargs.items()))
    return _number(repr((str(node.op), node.index, map_leaves((node.args, named), _identity))))


def _identity(leaf: Any) -> Any:
    """Return what tells an argument from others."""
    if isinstance(leaf, Ref):
        return "value"
    if not isinstance(leaf, Tensor):
        return leaf
    form = (leaf.dtype, tuple(leaf.shape))
    if leaf.numel() <= SMALL:
        return form, leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return form, leaf.stride(), leaf.data_ptr()


def _constants(node: Node) -> list[tuple[Tensor, int]]:
    """Return the constants of an operator that broadcast to its value."""
    return [(leaf, 0) for leaf in leaves((node.args, node.kwargs)) if isinstance(leaf, Tensor)]


def entrywise(node: Node, values: Sequence[Entries]) -> Entries:
    """Operators that work entry by entry, with broadcasting: also comparisons, choices, casts, and pointwise ones."""
    return _together(node, values, _constants(node))


def everything(node: Node, values: Sequence[Entries]) -> Entries:
    """Operators of which nothing is known: all entries of all operands meet."""
    tops = [_along(value, range(len(value.shape))).reshape(()) for value in values]
    return _together(node, [top.expand(node.shape, distinct=True) for top in tops])


def reshaped(node: Node, values: Sequence[Entries]) -> Entries:
    """Operators that keep the order of all entries, and give them another shape."""
    if not _first(node):
        return everything(node, values)
    old, new, passing = values[0].shape, node.shape, []
    before = {math.prod(old[:dim]): dim for dim in range(len(old)) if old[dim] > 1}
    for dim, size in enumerate(new):
        same = before.get(math.prod(new[:dim]))
        if size > 1 and same is not None and old[same] == size:
            passing.append((same, dim))
    return _moved(node, values[:1], passing, lambda parts, shape: parts[0].reshape(shape))


def reordered(node: Node, values: Sequence[Entries]) -> Entries:
    """Operators that change the order of the dimensions."""
    sizes = range(2, 2 + len(values[0].shape))  # of a tensor whose dimensions can be told apart
    order = [size - 2 for size in node.evaluate([torch.empty(()).expand(tuple(sizes))]).shape]
    return values[0].permute(order)


def repeated(node: Node, values: Sequence[Entries]) -> Entries:
    """Operators that repeat entries as broadcasting does."""
    return values[0].expand(node.shape) if _first(node) else moves()(node, values)


def moves(touched: Callable[[dict[str, Any]], Any] = lambda arguments: None) -> Meeting:
    """Operators that move entries unchanged, and may repeat them, leave some out or fill in constants.

    `touched` gives the dimensions that entries move along: one, some, or None if it may be all of them.
    """

    def meeting(node: Node, values: Sequence[Entries]) -> Entries:
        if ir.places_vary(node):
            return picked(node, values)
        entries = dict(zip(node.refs, values, strict=True))
        arguments = {name: value for name, value in node.bound().items() if name not in ir.PLACES}
        operands = [leaf for leaf in leaves(arguments) if isinstance(leaf, Ref | Tensor)]
        parts = [_constant(leaf) if isinstance(leaf, Tensor) else entries[leaf.name] for leaf in operands]
        bare = map_leaves(arguments, lambda leaf: Ref("") if isinstance(leaf, Tensor) else leaf)
        whole = dataclasses.replace(node, args=(), kwargs={**node.bound(), **bare})

        def move(numbers: list[Tensor], shape: Sequence[int]) -> Tensor:
            # Constants that the operator fills in cancel in the difference of two runs; infinite ones leave NaN.
            return (whole.evaluate(numbers) - whole.evaluate([torch.zeros_like(n) for n in numbers])).nan_to_num(0.0)

        return _moved(node, parts, _passing(node, parts, touched(node.bound())), move)

    return meeting


def moves_along_last(count: int) -> Meeting:
    """Operators that move entries along the last dimensions alone."""
    return moves(lambda arguments: range(-count, 0))


def put_back(node: Node, values: Sequence[Entries]) -> Entries:
    """`select_scatter`: a slice of width 1 is written over."""
    base, source, dim, index = (node.bound()[name] for name in ("self", "src", "dim", "index"))
    dim, index = dim % len(node.shape), index % node.shape[dim]
    shape = (*source.shape[:dim], 1, *source.shape[dim:])
    if isinstance(source, Ref):
        values, source = [*values[:-1], values[-1].reshape(shape)], Ref(source.name, shape)
    else:
        source = source.reshape(shape)
    scatter = aten.slice_scatter.default
    slices = dataclasses.replace(node, op=scatter, args=(base, source, dim, index, index + 1), kwargs={})
    return met(slices, values)


def _passing(node: Node, parts: Sequence[Entries], touched: Any) -> list[tuple[int, int]]:
    """Return the dimensions that no entry moves along, as pairs: one of all operands, and that of the value."""
    size, new = len(parts[0].shape), len(node.shape)
    if touched is None or any(len(part.shape) != size for part in parts):
        return []
    along = {dim % max(size, new) for dim in ([touched] if isinstance(touched, int) else touched)}
    if not along or (size != new and len(along) != 1):
        return []
    before = [dim for dim in range(size) if dim not in along or size < new]
    after = [dim for dim in range(new) if dim not in along or size > new]
    return list(zip(before, after, strict=True))


def _constant(constant: Tensor) -> Entries:
    """Return the entries of a constant."""
    thin = _thin(constant)
    owner = torch.zeros((), dtype=torch.int64, device=constant.device)
    return Entries(owner.expand(constant.shape), _content(thin).expand(constant.shape))


def _moved(
    node: Node,
    parts: Sequence[Entries],
    passing: Sequence[tuple[int, int]],
    move: Callable[[list[Tensor], Sequence[int]], Tensor],
) -> Entries:
    """Return the entries of a value to which those of its operands were moved.

    Nothing moves along the pairs of dimensions `passing`, of all operands and of the value; `move` brings numbers from
    the operands to a value of a given shape. Entries that come from no operand are known by the operator.
    """
    shape, implied = list(node.shape), set()
    for dim, there in passing:
        if any(part.shape[dim] > 1 and part.owner.stride(dim) for part in parts):
            continue
        if any(dim in part.implied or _varies(part.label, dim) for part in parts):
            implied.add(there)
        parts = [_without(part, dim) for part in parts]
        shape[there] = 1
    parts = [_explicit(part) for part in parts]
    sizes = [part.owner.numel() for part in parts]
    numbers = torch.arange(1, sum(sizes) + 1, dtype=torch.float64, device=node.device).split(sizes)
    sources = move([n.reshape(part.shape) for n, part in zip(numbers, parts, strict=True)], shape).long()
    nowhere = torch.tensor([0, _signature(node)], device=node.device)
    owner = torch.cat([nowhere[:1], *(part.owner.reshape(-1) for part in parts)])[sources]
    label = torch.cat([nowhere[1:], *(part.label.reshape(-1) for part in parts)])[sources]
    for dim in range(owner.ndim):
        if owner.shape[dim] > 1 and not _varies(owner, dim):
            owner = owner.narrow(dim, 0, 1)
            if _varies(label, dim):
                implied.add(dim)
                label = _digest(label, [dim])
            else:
                label = label.narrow(dim, 0, 1)
    return Entries(owner.expand(node.shape), label.expand(node.shape), frozenset(implied))


def _varies(tensor: Tensor, dim: int) -> bool:
    """Whether a tensor changes along a dimension."""
    thin = _thin(tensor)
    return thin.shape[dim] > 1 and bool((thin != thin.narrow(dim, 0, 1)).any())


def _without(entries: Entries, dim: int) -> Entries:
    """Return entries without a dimension along which no owner changes: it stays, with size 1."""
    label = _digest(entries.label, [dim]) if _varies(entries.label, dim) else entries.label.narrow(dim, 0, 1)
    return Entries(entries.owner.narrow(dim, 0, 1), label, entries.implied - {dim})


def _explicit(entries: Entries) -> Entries:
    """Return entries whose labels tell all places."""
    label = entries.label
    for dim in sorted(entries.implied):
        label = _pair(label, _places(entries.owner, dim))
    return Entries(entries.owner, label.expand(entries.shape))


def picked(node: Node, values: Sequence[Entries]) -> Entries:
    """Operators that read at places that depend on the batch: all that they may read meets the places themselves."""
    operands, arguments = dict(zip(node.refs, values, strict=True)), node.bound()
    base = arguments["self"]
    base = _constant(base) if isinstance(base, Tensor) else operands[base.name]
    if node.op in (aten.gather.default, aten.index_select.default):
        dim = arguments["dim"] % len(node.shape)
        base, place = _along(base, [dim]), operands[arguments["index"].name]
        if node.op is aten.index_select.default:
            place = place.reshape((*place.shape, *(1,) * (len(node.shape) - dim - 1)))
        sizes = tuple(slice(size) for size in node.shape)  # `gather` reads the first ones along the other dimensions
        return _together(node, [Entries(base.owner[sizes], base.label[sizes], base.implied), place])
    if node.op is not aten.index.Tensor:
        return everything(node, values)
    indices = arguments["indices"]
    base = _along(base, [dim for dim, index in enumerate(indices) if isinstance(index, Ref)])
    still = [torch.zeros(i.shape, dtype=torch.int64, device=node.device) if isinstance(i, Ref) else i for i in indices]
    read = _moved(node, [base], [], lambda parts, shape: aten.index.Tensor(parts[0], still))
    used = [dim for dim, index in enumerate(indices) if index is not None]
    adjacent = used == list(range(used[0], used[-1] + 1))
    wide = torch.broadcast_shapes(*(index.shape for index in indices if index is not None))
    behind = len(node.shape) - len(wide) - (used[0] if adjacent else 0)
    places = [operands[index.name].expand(wide) for index in indices if isinstance(index, Ref)]
    return _together(node, [read, *(place.reshape((*wide, *(1,) * behind)) for place in places)])


def written(node: Node, values: Sequence[Entries]) -> Entries:
    """Operators that write: values that are written or added to one entry meet each other and the old value."""
    if ir.places_vary(node):
        return everything(node, values)
    operands, source, entries = iter(values), ir.source_of_writing(node), ir.entries_written(node)
    base = _explicit(next(operands) if _first(node) else _constant(node.args[0]))
    if isinstance(source, Ref | Tensor):
        held = _explicit(_constant(source) if isinstance(source, Tensor) else next(operands))
        owner, label = (ir.values_written(node, tensor, entries).reshape(-1) for tensor in (held.owner, held.label))
    else:
        owner = torch.zeros(entries.numel(), dtype=torch.int64, device=node.device)
        label = torch.full_like(owner, _number(repr(source)))
    old, places = base.owner.reshape(-1), entries.reshape(-1)
    highest = old.scatter_reduce(0, places, owner, "amax")
    if bool(((old != highest) & (old != 0)).any()) or bool(((owner != highest[places]) & (owner != 0)).any()):
        raise Mixed
    form = {name: value for name, value in node.bound().items() if not isinstance(value, Ref | Tensor | list)}
    new = torch.zeros_like(highest).scatter_add(0, places, _hash(label))
    new = _pair(_pair(base.label.reshape(-1), new), _number(repr((str(node.op), form))))
    old_label = base.label.reshape(-1)
    label = torch.where(torch.zeros_like(highest, dtype=torch.bool).scatter(0, places, True), new, old_label)
    return Entries(highest.reshape(node.shape), label.reshape(node.shape))


def overwrite(node: Node, values: Sequence[Entries]) -> Entries:
    """`copy` and `fill`: nothing of the first operand is left, and the value depends on the last one alone."""
    source = values[-1].expand(node.shape)
    return Entries(source.owner, _pair(source.label, _number(f"{node.dtype}")).expand(node.shape), source.implied)


def meets(dims: Callable[[dict[str, Any], int], Any]) -> Meeting:
    """Reductions, norms, linear layers, pooling, convolutions: with constant parameters, entries along dimensions meet.

    `dims` gives these dimensions from the arguments and the rank of the operand; None where they are not known.
    """

    def meeting(node: Node, values: Sequence[Entries]) -> Entries:
        along = dims(node.bound(), len(values[0].shape))
        if len(values) != 1 or not _first(node) or along is None or along == []:
            return everything(node, values)
        left = _along(values[0], [along] if isinstance(along, int) else along)
        if left.owner.numel() == math.prod(node.shape):
            return _together(node, [left.reshape(node.shape)])
        return _together(node, [left.expand(node.shape, distinct=True)])

    return meeting


along_dim = meets(lambda arguments, rank: arguments.get("dim"))
"""Operators in which entries along their argument `dim` meet."""


def trailing(count: int) -> Meeting:
    """Operators in which the last dimensions meet."""
    return meets(lambda arguments, rank: range(rank - count, rank))


def convolved(axes: int) -> Meeting:
    """Convolutions over some axes: all entries of a sample meet."""
    return meets(lambda arguments, rank: range(1, rank) if rank == axes + 2 else None)


def product(node: Node, values: Sequence[Entries]) -> Entries:
    """Matrix products: rows of the first factor meet columns of the second, and an added term meets both."""
    operands = iter(values)
    factors = [argument for argument in node.bound().values() if isinstance(argument, Ref | Tensor)]
    *added, left, right = [next(operands) if isinstance(factor, Ref) else factor for factor in factors]
    vector = len(right.shape) == 1
    if len(left.shape) == 1 or (vector and isinstance(right, Entries)):
        return everything(node, values)
    parts = [term for term in added if isinstance(term, Entries)]
    constants = [(term, 0) for term in added if isinstance(term, Tensor)]
    for factor, dim, other in ((left, -1, right), (right, -2, left)):
        if isinstance(factor, Tensor):
            if not (vector and factor is right):  # all but the last two dimensions lie along the value
                ends = (1,) if vector else (1, 1)
                constants.append((factor.reshape((*factor.shape[:-2], *ends, -1)), 1))
            continue
        rest = _along(factor, [dim])
        if vector:
            rest = rest.reshape(rest.shape[:-1])
        elif isinstance(other, Tensor):  # places along its dimension are told apart
            shape = list(rest.shape)
            shape[dim] = node.shape[dim]
            rest = rest.expand(shape, distinct=True)
        parts.append(rest)
    return _together(node, parts, constants)


def attention(node: Node, values: Sequence[Entries]) -> Entries:
    """Attention: all heads, tokens and channels of a sample meet, with those of the mask."""
    wanted = len(node.shape)
    if any(len(value.shape) != wanted for value in values) or wanted not in (3, 4):
        return everything(node, values)
    parts = [_along(value, range(1, wanted)) for value in values]
    parts = [part.expand((part.shape[0], *node.shape[1:]), distinct=True) for part in parts]
    held = [tensor for tensor, _ in _constants(node) if tensor.ndim == wanted]
    constants = [(tensor.reshape((len(tensor), *(1,) * (wanted - 1), -1)), 1) for tensor in held]
    return _together(node, parts, constants)


def contraction(node: Node, values: Sequence[Entries]) -> Entries:
    """`einsum`: the dimensions whose letters the result does not have meet."""
    terms, arrow, result = node.args[0].replace(" ", "").partition("->")
    letters = terms.split(",")
    if not arrow or "." in terms or any(len(set(term)) < len(term) for term in (*letters, result)):
        return everything(node, values)
    parts, constants, operands = [], [], iter(values)
    moving = {letter for term, operand in zip(letters, node.args[1]) if isinstance(operand, Ref) for letter in term}
    for term, operand in zip(letters, node.args[1], strict=True):
        kept = [letter for letter in result if letter in term]
        order = [term.index(letter) for letter in (*kept, *(letter for letter in term if letter not in kept))]
        sizes = dict(zip(term, operand.shape, strict=True))
        shape = [sizes.get(letter, 1) for letter in result]
        if isinstance(operand, Tensor):
            constants.append((operand.permute(order).reshape((*shape, -1)), 1))
            continue
        left = _along(next(operands), [dim for dim, letter in enumerate(term) if letter not in result])
        left = left.permute(order).reshape(shape)
        wide = [node.shape[i] if letter not in moving else shape[i] for i, letter in enumerate(result)]
        parts.append(left.expand(wide, distinct=True))
    return _together(node, parts, constants)


def by_channel(node: Node, values: Sequence[Entries]) -> Entries:
    """BatchNorm, PReLU: constants of a channel meet its entries; with statistics of the batch all of these meet."""
    if len(values) != 1 or not _first(node) or node.index not in (None, 0):
        return everything(node, values)
    (value,) = values
    size = len(value.shape)
    if node.is_batch_norm and node.uses_batch_statistics:
        value = _along(value, [dim for dim in range(size) if dim != 1]).expand(node.shape, distinct=True)
    constants = [(tensor.reshape((-1, *(1,) * (size - 2))), 0) for tensor, _ in _constants(node)]
    return _together(node, [value], constants)


def recurrent(node: Node, values: Sequence[Entries]) -> Entries:
    """Recurrent layers: a sequence meets its own first state; samples lie along the states' second dimension."""
    arguments = node.bound()
    varying = any(isinstance(leaf, Ref) for leaf in leaves(arguments["params"]))
    if varying or not _first(node) or any(len(value.shape) != 3 for value in values):
        return everything(node, values)
    batch = 0 if arguments["batch_first"] else 1
    sequence, *states = values
    lying = batch if node.index == 0 else 1
    shape = [sequence.shape[batch] if dim == lying else 1 for dim in range(3)]
    parts = [_along(sequence, {0, 1, 2} - {batch}), *(_along(state, (0, 2)) for state in states)]
    parts = [part.reshape(shape).expand(node.shape, distinct=True) for part in parts]
    held = [state for state in leaves(arguments["hx"]) if isinstance(state, Tensor)]
    constants = [(state.transpose(0, 1).reshape((*shape, -1)), 1) for state in held]
    return _together(node, parts, constants)


def looked_up(node: Node, values: Sequence[Entries]) -> Entries:
    """`embedding` in a constant table, `one_hot`, `view_as_real`: every entry becomes a row."""
    if len(values) != 1 or isinstance(node.bound().get("weight"), Ref):
        return everything(node, values)
    (value,) = values
    return _together(node, [value.reshape((*value.shape, 1)).expand(node.shape, distinct=True)])


def _first(node: Node) -> bool:
    """Whether the first argument depends on the input."""
    return isinstance(node.args[0], Ref)
