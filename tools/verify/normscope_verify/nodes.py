"""The kinds of nodes that a network is made of: one small function each, which reads a node and says what it does.

Every value is a vector of equal chunks, and every chunk of a node is computed alike from the same chunk of each of its
operands. A layer that acts on tokens one by one has a chunk per token, one that mixes everything has a single chunk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb

from . import arithmetic as ar
from .arithmetic import Array, Enclosure, Unproven, require
from .functions import FUNCTIONS
from .reading import MOST_SIZE, Reader

MOST_BALLS, AT_ONCE = 4 * 10**6, 10**6  # in one evaluation; numbers that are mapped at once


@dataclass
class Node:
    """One value: the input, or an operation on earlier values.

    Attributes:
        inside, outside: entries of a chunk of each operand, and of the value.
        value: takes operands `[chunks, inside]`, in balls, to `[chunks, outside]`; of linear nodes also floats, and
            with `absolute=True` by the absolute values of all factors.
        bound: takes Lipschitz constants of the operands to one of the value.
        fan: of linear nodes, how many products an entry is the sum of, at most (0: entries are copied); else None.
        slopes: returns a, b with du = s dv, a <= s <= b, entry by entry, for activations; else None.
        whole: norm(du) <= b norm(dv) in every chunk is all that is known, and a = -b.
        name, read, count, size: its name, its operands, how many chunks and entries it has.
    """

    inside: Sequence[int]
    outside: int
    value: Callable[..., Array]
    bound: Callable[..., arb]
    fan: int | None = None
    slopes: Callable[[], tuple[Array, Array]] | None = None
    whole: bool = False
    name: str = ""
    read: Sequence[Node] = ()
    count: int = 0
    size: int = 0

    def carry(self, forms: Sequence[Enclosure]) -> Enclosure:
        """Map the rows of enclosures of the operands, each of them one or several chunks, by a linear node."""
        assert self.fan is not None
        rows, chunks = len(forms[0].mid), forms[0].mid.shape[1] // self.inside[0]
        shape = (rows, chunks * self.outside)
        ar.reserve(*shape)
        found = np.empty(shape), np.empty(shape)
        step = max(1, AT_ONCE // (chunks * max(*self.inside, self.outside)))
        for part in (slice(start, start + step) for start in range(0, rows, step)):
            x, r = ([getattr(form, side)[part].reshape(-1, n) for form, n in zip(forms, self.inside)]
                    for side in ("mid", "rad"))  # fmt: skip
            if self.fan:
                r = [ar.raised(radius + ar.gamma(self.fan) * np.abs(given)) for given, radius in zip(x, r)]
            found[0][part] = self.value(*x).reshape(-1, shape[1])
            found[1][part] = ar.raised(self.value(*r, absolute=True).reshape(-1, shape[1]), self.fan)
        return Enclosure(*found)


Item, Read = dict[str, Any], Sequence[Node]


def linear(inside: int, outside: int, value: Callable[..., Array], norm: Callable[[], arb], fan: int = 0) -> Node:
    """Return a linear node of one operand, whose norm is taken when it is first asked for."""
    known = functools.cache(norm)
    return Node([inside], outside, value, lambda bound: known() * bound, fan)


def source(item: Item, reader: Reader, read: Read) -> Node:
    """Read the input: all inputs of the network as one vector."""
    return Node([], reader.whole(item.get("size")), lambda: None, lambda: arb(1))


def constant(item: Item, reader: Reader, read: Read) -> Node:
    """Read a constant: numbers that repeat."""
    size, given = reader.whole(item.get("size")), reader.pattern(item.get("value"))
    require(size % len(given) == 0, "a constant does not fit its size")
    return Node([], size, lambda: np.tile(ar.balls(given), size // len(given))[None], lambda: arb(0), fan=0)


def add(item: Item, reader: Reader, read: Read) -> Node:
    """Read a sum of values."""

    def value(*chunks: Array, absolute: bool = False) -> Array:
        return functools.reduce(lambda a, b: a + b, chunks)

    require(read, "a sum of nothing")
    return Node([1] * len(read), 1, value, lambda *bounds: sum(bounds, arb(0)), fan=len(read) - 1)


def concat(item: Item, reader: Reader, read: Read) -> Node:
    """Read values whose chunks stand one behind the other."""
    sizes = [reader.whole(entries) for entries in reader.listed(item.get("of"), "sizes", 1000)]

    def value(*chunks: Array, absolute: bool = False) -> Array:
        return np.concatenate(chunks, axis=1)

    require(sizes, "a concatenation of nothing")
    return Node(sizes, sum(sizes), value, lambda *bounds: ar.norm_of(bounds), fan=0)


def scale(item: Item, reader: Reader, read: Read) -> Node:
    """Read entries times factors."""
    factors = reader.pattern(item.get("factors"))
    size, sizes = len(factors), np.abs(factors)

    def value(x: Array, absolute: bool = False) -> Array:
        return x * (sizes if absolute else factors)

    return linear(size, size, value, lambda: arb(float(sizes.max())), fan=1)


def gather(item: Item, reader: Reader, read: Read) -> Node:
    """Read a node whose entries copy one of the operand's, or are zero: a permutation, a slice, a padding."""
    entries = reader.whole(item.get("of"))
    index = reader.indices(item.get("index"), 1, entries)

    def value(x: Array, absolute: bool = False) -> Array:
        zero = np.zeros((len(x), 1))
        return np.concatenate([x, zero if x.dtype.kind == "f" else ar.balls(zero)], axis=1)[:, index]  # the last is -1

    return linear(entries, len(index), value, lambda: arb(int(np.bincount(index + 1)[1:].max(initial=0))).sqrt())


def dense(item: Item, reader: Reader, read: Read) -> Node:
    """Read matrices, one for each of several groups, times all columns of a chunk `[groups, terms, columns]`."""
    matrix, columns = reader.array(item.get("matrix"), 3), reader.whole(item.get("columns"))
    groups, rows, terms = matrix.shape

    def value(x: Array, absolute: bool = False) -> Array:
        factors = np.abs(matrix) if absolute else matrix
        if groups == columns == 1:
            return ar.dot(factors[0], x.T).T
        return ar.dot(factors, x.reshape(-1, groups, terms, columns)).reshape(len(x), -1)

    inside, outside = groups * terms * columns, groups * rows * columns
    return linear(inside, outside, value, lambda: ar.matrix_norm(Enclosure.exact(matrix)), fan=terms)


def center(item: Item, reader: Reader, read: Read) -> Node:
    """Read a chunk without its mean."""
    entries = reader.whole(item.get("of"))

    def value(x: Array, absolute: bool = False) -> Array:
        mean = x.sum(1, keepdims=True) / entries
        return x + mean if absolute else x - mean

    return linear(entries, entries, value, lambda: arb(1 if entries > 1 else 0), fan=entries + 4)


def bent(inside: int, outside: int, value: Callable[..., Array], slopes: Callable[[], Any], whole: bool = True) -> Node:
    """Return a nonlinear node of one operand, by its slopes or, as a whole, by its constant."""

    def known() -> tuple[Array, Array]:
        found = slopes()
        high = found[1] if not whole else ar.above(found) if found > 0 else 0.0
        sides = np.atleast_1d(-high if whole else found[0]), np.atleast_1d(high)
        if not np.isfinite(sides).all():
            raise Unproven("an activation has slopes without limit")
        return sides

    def bound(given: arb) -> arb:
        return arb(float(np.abs(known()).max())) * given

    return Node([inside], outside, value, bound, slopes=known, whole=whole)


def entrywise(item: Item, reader: Reader, read: Read) -> Node:
    """Read an activation."""
    name, given = str(item.get("function")), item.get("parameters")
    if name not in FUNCTIONS:  # a word that this checker was not taught: nothing that rests on it is verified
        require(read, "an operation on nothing")
        return opaque({**item, "what": f"the function {name[:80]!r}", "size": read[0].size}, reader, read)
    function, ranges = FUNCTIONS[name], FUNCTIONS[name].parameters
    require(isinstance(given, dict) and set(given) == set(ranges), f"{name} has other parameters")
    parameters = [reader.pattern(given[key]) for key in ranges]
    period = max((len(value) for value in parameters), default=1)
    for value, (low, high) in zip(parameters, ranges.values()):
        fits = len(value) == 1 or (len(value) == period and name in ("leaky_relu", "clamp"))
        require(fits and ((low <= value) & (value <= high)).all(), f"{name} does not take such parameters")
    require(name != "clamp" or (parameters[0] <= parameters[1]).all(), "a clamp without room")
    slopes = function.slopes if callable(function.slopes) else lambda *_: function.slopes
    return bent(period, period, lambda x: ar.each(function.value, x, *parameters), lambda: slopes(*parameters), False)


def normalize(item: Item, reader: Reader, read: Read) -> Node:
    """Read x / sqrt(mean(x^2) + eps), the mean over a chunk."""
    entries, eps = reader.whole(item.get("of")), reader.number(item.get("eps"))
    require(eps > 0.0, "a normalizer without eps")

    def value(x: Array) -> Array:
        mean = (x * x).sum(1, keepdims=True) / entries
        return x * ar.each(lambda m: (m + eps).rsqrt(), mean)

    return bent(entries, entries, value, lambda: arb(eps).rsqrt())


def extreme(item: Item, reader: Reader, read: Read) -> Node:
    """Read the largest (or lowest) entry of each of several windows of a chunk."""
    entries, lowest = reader.whole(item.get("of")), item.get("lowest")
    index = np.sort(reader.indices(item.get("index"), 2, entries), axis=1)
    require((index[:, -1] >= 0).all() and type(lowest) is bool, "a window of nothing")
    fresh = (np.diff(index, axis=1, prepend=-2) > 0) & (index >= 0)  # an entry counts once in every window

    def value(x: Array) -> Array:
        ar.reserve(len(x), index.size)
        windows = x[:, np.where(index >= 0, index, index[:, -1:])]
        pick = np.frompyfunc((lambda a, b: a.min(b)) if lowest else (lambda a, b: a.max(b)), 2, 1)
        ar.WORK.spend(10.0 * ar.BALL * windows.size)
        return pick.reduce(windows, axis=2)

    return bent(entries, len(index), value, lambda: arb(int(np.bincount(index[fresh]).max())).sqrt())


def softmax(item: Item, reader: Reader, read: Read) -> Node:
    """Read softmax over a chunk, or its logarithm."""
    entries, log = reader.whole(item.get("of")), item["kind"] == "log_softmax"

    def value(x: Array) -> Array:
        top = np.frompyfunc(lambda a, b: a if b < a else b, 2, 1).reduce(x, axis=1, keepdims=True)
        powers = ar.each(lambda value: value.exp(), x - top)
        found = powers / powers.sum(1, keepdims=True)
        return ar.each(lambda p: p.log(), found) if log else found

    gain = arb(0) if entries == 1 else arb(entries).sqrt() if log else arb(1) / 2
    return bent(entries, entries, value, lambda: gain)


def opaque(item: Item, reader: Reader, read: Read) -> Node:
    """Read a node that is not followed: it has no value and no bound here."""
    what = f"{str(item.get('name'))[:200]} ({str(item.get('what', item['kind']))[:200]})"

    def value(*chunks: Array) -> Array:
        raise Unproven(f"{what} cannot be evaluated here")

    def bound(*bounds: arb) -> arb:
        raise Unproven(f"it rests on {what}, which is not followed here")

    require(read, "an operation on nothing")
    return Node([node.size for node in read], reader.whole(item.get("size", 1)), value, bound)


def product(item: Item, reader: Reader, read: Read) -> Node:
    """Read the product of two values, entry by entry, which has a value alone."""
    return Node([1, 1], 1, lambda x, y: x * y, opaque(item, reader, read).bound)


def matmul(item: Item, reader: Reader, read: Read) -> Node:
    """Read the product of two matrices in every chunk, which has a value alone."""
    rows, terms, columns = (reader.whole(item.get(key)) for key in ("rows", "terms", "columns"))

    def value(x: Array, y: Array) -> Array:
        return ar.dot(x.reshape(-1, rows, terms), y.reshape(-1, terms, columns)).reshape(len(x), -1)

    return Node([rows * terms, terms * columns], rows * columns, value, opaque(item, reader, read).bound)


KINDS: dict[str, Callable[[Item, Reader, Read], Node]] = {
    "constant": constant, "add": add, "concat": concat, "scale": scale, "gather": gather, "dense": dense,
    "center": center, "entrywise": entrywise, "normalize": normalize, "extreme": extreme, "softmax": softmax,
    "log_softmax": softmax, "product": product, "matmul": matmul, "opaque": opaque,
}  # fmt: skip


class Network:
    """Nodes by name, in an order in which they can be computed: the input first.

    Attributes:
        input, output: two of the nodes.
        memory: numbers that one proof may hold, more for a file that holds more.
    """

    def __init__(self, data: Any, reader: Reader) -> None:
        require(isinstance(data, dict) and isinstance(data.get("input"), dict), "no network")
        self.memory = ar.MOST_ENTRIES + sum(value.nbytes for value in reader.arrays.values())
        self.nodes: dict[str, Node] = {}
        for item in (data["input"], *reader.listed(data.get("nodes"), "nodes")):
            require(isinstance(item, dict) and (not self.nodes or str(item.get("kind")) in KINDS), "an unknown kind")
            name, kind = item.get("name"), KINDS[str(item["kind"])] if self.nodes else source
            require(isinstance(name, str) and 0 < len(name) <= 1000, f"{name!r} is no name")
            require(name not in self.nodes, f"two nodes are called {name!r}")
            read = [self.node(operand) for operand in reader.listed(item.get("from", []), "operands")]
            node = kind(item, reader, read)
            node.name, node.read = name, read
            node.count = read[0].size // node.inside[0] if read and node.inside else 1
            node.size = node.count * node.outside
            fits = [operand.size for operand in read] == [node.count * entries for entries in node.inside]
            require(fits and 0 < node.size <= MOST_SIZE, f"the parts of {name} do not fit")
            self.nodes[name] = node
        self.input, self.output = next(iter(self.nodes.values())), self.node(data.get("output"))

    def node(self, name: Any) -> Node:
        """Return the node of that name."""
        require(isinstance(name, str) and name in self.nodes, f"{name!r} is no node")
        return self.nodes[name]

    def values(self, point: Array) -> dict[str, Array]:
        """Run the network on one input, in balls; return every value by name."""
        if sum(node.size for node in self.nodes.values()) > MOST_BALLS:
            raise Unproven("the network is too large to be evaluated in balls")
        found = {self.input.name: ar.balls(point)}
        for node in self.nodes.values():
            if node is not self.input:
                ar.WORK.spend(10.0 * ar.BALL * (node.size + sum(node.inside) * node.count))
                operands = (found[operand.name].reshape(-1, n) for operand, n in zip(node.read, node.inside))
                found[node.name] = np.asarray(node.value(*operands), object).reshape(-1)
        return found
