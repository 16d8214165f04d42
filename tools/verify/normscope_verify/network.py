"""The network that claims speak of: one class per kind of node, which knows its value, its constants and its range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from flint import arb

from . import arithmetic as ar
from .arithmetic import INF, Array, Unproven, require
from .composition import parse_map
from .functions import FUNCTIONS
from .maps import Shape, broadcasts
from .reading import MOST_ENTRIES, Reader

MOST_NODES, MOST_BALLS, MOST_PRODUCTS = 20_000, 2 * 10**6, 3e9
"""Nodes, and balls and multiplications of balls for one evaluation."""


class Node:
    """One value: an input, or an operation on earlier values.

    Attributes:
        count: how many values it reads; None for any number.
        joint: the squares of the constants in its operands add up, not the constants.
    """

    count: ClassVar[int | None] = 1
    joint = False

    def __init__(self, name: str, shape: Shape, read: Sequence[Node]) -> None:
        self.name, self.shape, self.read, self.size = name, shape, tuple(read), math.prod(shape)
        self.operands = tuple(node.name for node in read)
        self.fits(self.count is None or len(read) == self.count)

    def parse(self, item: dict[str, Any], reader: Reader) -> None:
        """Read what else the node needs; shapes must fit."""
        self.fits(all(node.shape == self.shape for node in self.read))

    def fits(self, condition: Any) -> None:
        """Refuse the file unless the node's parts fit one another."""
        require(condition, f"the parts of {self.name} do not fit")

    def value(self, *operands: Array) -> Array:
        """Compute the value in balls."""
        raise NotImplementedError

    def gains(self) -> list[arb]:
        """Return the constant in each operand."""
        raise NotImplementedError


class Input(Node):
    """An input."""

    count = 0


class Linear(Node):
    """A sum of linear maps of the operands, and a constant."""

    count = None

    def parse(self, item: dict[str, Any], reader: Reader) -> None:
        listed = reader.listed(item.get("maps"), "maps")
        self.fits(len(listed) == len(self.read))
        self.maps = [parse_map(data, node.shape, reader) for data, node in zip(listed, self.read)]
        self.constant = np.zeros(()) if item.get("constant") is None else reader.array(item["constant"])
        self.fits(all(m.outside == self.shape for m in self.maps) and broadcasts(self.constant.shape, self.shape))

    def value(self, *operands: Array) -> Array:
        start = np.broadcast_to(ar.balls(self.constant), self.shape)
        return sum((linear.apply(x[None])[0] for linear, x in zip(self.maps, operands)), start)

    @property
    def apart(self) -> bool:
        """Whether the operands land on different entries."""
        taken = np.full(self.shape, False)
        for linear in self.maps:
            if (taken & linear.touched()).any():
                return False
            taken |= linear.touched()
        return True


class Entrywise(Node):
    """An activation."""

    def parse(self, item: dict[str, Any], reader: Reader) -> None:
        super().parse(item, reader)
        self.function, given = str(item.get("function")), item.get("parameters")
        require(self.function in FUNCTIONS, f"unknown function {self.function!r}")
        ranges = FUNCTIONS[self.function].parameters
        require(isinstance(given, dict) and set(given) == set(ranges), f"{self.function} has other parameters")
        self.parameters = [reader.numbers(given[key]) for key in ranges]
        for value, (low, high) in zip(self.parameters, ranges.values()):
            self.fits(broadcasts(value.shape, self.shape) and ((low <= value) & (value <= high)).all())
            self.fits(value.ndim == 0 or self.function in ("leaky_relu", "clamp"))
        self.fits(self.function != "clamp" or (self.parameters[0] <= self.parameters[1]).all())

    def value(self, *operands: Array) -> Array:
        return ar.each(FUNCTIONS[self.function].value, operands[0], *self.parameters)

    def slopes(self) -> tuple[Array, Array]:
        """Return the least and the largest slope of every entry."""
        known = FUNCTIONS[self.function].slopes
        given = [value if value.ndim else float(value) for value in self.parameters]
        low, high = known(*given) if callable(known) else known
        return np.broadcast_to(low, self.shape), np.broadcast_to(high, self.shape)

    def gains(self) -> list[arb]:
        return [arb(float(np.abs(self.slopes()).max()))]


class Normalize(Node):
    """x / sqrt(mean(x^2) + eps), the mean over sets of entries."""

    def parse(self, item: dict[str, Any], reader: Reader) -> None:
        super().parse(item, reader)
        self.view, self.eps = reader.shape(item.get("view")), reader.number(item.get("eps"))
        self.axes = reader.axes(item.get("axes"), self.view)
        self.fits(math.prod(self.view) == self.size and self.eps > 0.0)
        self.entries = math.prod(self.view[axis] for axis in self.axes)

    def value(self, *operands: Array) -> Array:
        seen = operands[0].reshape(self.view)
        mean = (seen * seen).sum(self.axes, keepdims=True) / self.entries
        return (seen * ar.each(lambda m: (m + self.eps).rsqrt(), mean)).reshape(self.shape)

    def gains(self) -> list[arb]:
        return [arb(self.eps).rsqrt().upper()]


class Extreme(Node):
    """The largest (or lowest) entry of each of several windows."""

    def parse(self, item: dict[str, Any], reader: Reader) -> None:
        first = self.read[0].shape
        self.index, lead = reader.array(item.get("index"), "i"), reader.whole(item.get("leading"), 0, len(self.shape))
        self.fits(self.index.ndim == 2 and self.index.size and first[:lead] == self.shape[:lead])
        self.fits(self.index.min() >= -1 and self.index.max() < math.prod(first[lead:]))
        self.fits(len(self.index) == math.prod(self.shape[lead:]) and (self.index >= 0).any(1).all())
        self.fits(type(item.get("lowest")) is bool and self.size * self.index.shape[1] <= MOST_ENTRIES)
        reader.spend(self.index.size)
        self.lead, self.lowest = lead, item["lowest"]

    def _windows(self, x: Array) -> Array:
        """Return the entries of every window, along the last axis; missing ones repeat the first that is there."""
        first = self.index[np.arange(len(self.index)), (self.index >= 0).argmax(1)]
        places = np.where(self.index >= 0, self.index, first[:, None])
        return x.reshape(*self.shape[: self.lead], -1)[..., places].reshape(*self.shape, -1)

    def value(self, *operands: Array) -> Array:
        pick = np.frompyfunc((lambda a, b: a.min(b)) if self.lowest else (lambda a, b: a.max(b)), 2, 1)
        return np.asarray(pick.reduce(self._windows(operands[0]), axis=-1), object).reshape(self.shape)

    def gains(self) -> list[arb]:
        rows = np.sort(self.index, axis=1)
        fresh = np.concatenate([np.full((len(rows), 1), True), rows[:, 1:] != rows[:, :-1]], axis=1) & (rows >= 0)
        return [arb(int(np.bincount(rows[fresh]).max())).sqrt().upper()]


class Pairwise(Node):
    """The larger (or the lower) of two values, entry by entry."""

    count, joint = 2, True

    def parse(self, item: dict[str, Any], reader: Reader) -> None:
        super().parse(item, reader)
        self.fits(type(item.get("lowest")) is bool)
        self.lowest = item["lowest"]

    def value(self, *operands: Array) -> Array:
        return ar.each((lambda a, b: a.min(b)) if self.lowest else (lambda a, b: a.max(b)), *operands)

    def gains(self) -> list[arb]:
        return [arb(1), arb(1)]


class Softmax(Node):
    """Softmax along an axis, or its logarithm."""

    def parse(self, item: dict[str, Any], reader: Reader) -> None:
        super().parse(item, reader)
        self.axis, self.log = reader.whole(item.get("axis"), 0, len(self.shape) - 1), item["kind"] == "log_softmax"

    def value(self, *operands: Array) -> Array:
        found = softmax(operands[0], self.axis)
        return ar.each(lambda p: p.log(), found) if self.log else found

    def gains(self) -> list[arb]:
        entries = self.shape[self.axis]
        return [arb(0) if entries == 1 else arb(entries).sqrt().upper() if self.log else arb(1) / 2]


class Opaque(Node):
    """A node that is not followed: it has no bound here, and no value unless its kind has."""

    count = None

    def parse(self, item: dict[str, Any], reader: Reader) -> None:
        self.what = str(item.get("what", item["kind"]))[:200]

    def value(self, *operands: Array) -> Array:
        raise Unproven(f"{self.name} ({self.what}) cannot be evaluated here")

    def gains(self) -> list[arb]:
        return [INF] * len(self.read)


class Product(Opaque):
    """The product of two values, entry by entry."""

    count = 2

    def parse(self, item: dict[str, Any], reader: Reader) -> None:
        super().parse(item, reader)
        self.fits(all(node.shape == self.shape for node in self.read))

    def value(self, *operands: Array) -> Array:
        return operands[0] * operands[1]


class Matmul(Opaque):
    """The product of two (stacks of) matrices."""

    count = 2

    def parse(self, item: dict[str, Any], reader: Reader) -> None:
        super().parse(item, reader)
        first, second = (node.shape for node in self.read)
        self.fits(len(first) == len(second) >= 2 and first[:-2] == second[:-2] and first[-1] == second[-2])
        self.fits(self.shape == (*first[:-1], second[-1]))

    def value(self, *operands: Array) -> Array:
        return ar.dot(*operands)


KINDS: dict[str, type[Node]] = {
    "linear": Linear, "entrywise": Entrywise, "normalize": Normalize, "extreme": Extreme, "pairwise": Pairwise,
    "softmax": Softmax, "log_softmax": Softmax, "product": Product, "matmul": Matmul, "opaque": Opaque,
}  # fmt: skip


def softmax(x: Array, axis: int) -> Array:
    """Return softmax along an axis, in balls."""
    top = np.frompyfunc(lambda a, b: a if b < a else b, 2, 1).reduce(x, axis=axis, keepdims=True)
    powers = ar.each(lambda value: value.exp(), x - top)
    return powers / powers.sum(axis, keepdims=True)


class Network:
    """Nodes in order, inputs first."""

    def __init__(self, data: Any, reader: Reader) -> None:
        require(isinstance(data, dict), "no network")
        self.memory = ar.MOST_BYTES + 8 * sum(value.nbytes for value in reader.arrays.values())  # for a certificate
        inputs, nodes = (reader.listed(data.get(key), key, MOST_NODES) for key in ("inputs", "nodes"))
        self.nodes: dict[str, Node] = {}
        for item in (*inputs, *nodes):
            require(isinstance(item, dict), "a node is no object")
            name, shape = item.get("name"), reader.shape(item.get("shape"))
            require(isinstance(name, str) and 0 < len(name) <= 1000 and name[0] != "~", f"{name!r} is no name")
            require(name not in self.nodes, f"two nodes are called {name!r}")
            if len(self.nodes) < len(inputs):
                self.nodes[name] = Input(name, shape, ())
                continue
            kind = str(item.get("kind"))
            require(kind in KINDS, f"{name} is of unknown kind {kind!r}")
            read = [self.node(operand) for operand in reader.listed(item.get("from"), "operands")]
            self.nodes[name] = KINDS[kind](name, shape, read)
            self.nodes[name].parse(item, reader)
        self.inputs = [node for node in self.nodes.values() if isinstance(node, Input)]
        require(self.inputs, "a network without inputs")
        self.output, self.input_size = self.node(data.get("output")), sum(node.size for node in self.inputs)
        maps = [m for node in self.nodes.values() if isinstance(node, Linear) for m in node.maps]
        self.work = sum(m.work for m in maps)
        self.balls = sum(node.size for node in self.nodes.values()) + max((m.wide for m in maps), default=0)

    def node(self, name: Any) -> Node:
        """Return the node of that name."""
        require(isinstance(name, str) and name in self.nodes, f"{name!r} is no node")
        return self.nodes[name]

    def values(self, point: Array) -> dict[str, Array]:
        """Run the network on one flat input, in balls; return every value by name."""
        if self.work > MOST_PRODUCTS or self.balls > MOST_BALLS:
            raise Unproven("the network is too large to be evaluated in balls")
        found, start = {}, 0
        for node in self.nodes.values():
            if isinstance(node, Input):
                found[node.name] = ar.balls(point[start : start + node.size].reshape(node.shape))
                start += node.size
            else:
                found[node.name] = node.value(*(found[name] for name in node.operands))
        return found
