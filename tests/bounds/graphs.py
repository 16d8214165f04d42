"""Graphs written down by hand, without a capture: any shape of graph in a millisecond, and random ones from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.bounds.ellipsoids.ellipsoid_plan import WIDEST, EllipsoidPlan, plan
from normscope.bounds.ellipsoids.optimised import Certified, optimise
from normscope.bounds.graph.ir import Graph, Input, Node, Ref
from normscope.bounds.linalg.operator_norms import upper
from normscope.bounds.segments import Segments, propagate, segment
from normscope.core.rounding import Upper

aten = torch.ops.aten
DOUBLE = torch.float64


class Sheet:
    """Nodes one after the other; every call returns the reference of a new value."""

    def __init__(self, *shapes: Sequence[int], seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.inputs = [Input(name=f"x{i}", value=self.normal(*shape)) for i, shape in enumerate(shapes)]
        self.refs = [Ref(item.name, item.shape) for item in self.inputs]
        self.values: dict[str, Tensor] = {item.name: item.value for item in self.inputs}
        self.nodes: list[Node] = []

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=DOUBLE, generator=self.generator)

    def call(self, op: Any, *args: Any) -> Ref:
        """Write one operator down."""
        draft = Node(name=f"n{len(self.nodes)}", op=op, args=args, shape=(), dtype=DOUBLE)
        value = draft.evaluate([self.values[name] for name in draft.refs])
        node = Node(name=draft.name, op=op, args=args, shape=tuple(value.shape), dtype=DOUBLE)
        self.nodes.append(node)
        self.values[node.name] = value
        return Ref(node.name, node.shape)

    def linear(self, x: Ref, weight: Tensor | int, bias: Tensor | None = None, *, scale: float = 1.0) -> Ref:
        """A matrix, or random rows in that number."""
        if isinstance(weight, int):
            weight = scale * self.normal(weight, x.shape[-1]) / math.sqrt(x.shape[-1])
        return self.call(aten.linear.default, x, weight.to(DOUBLE), *([] if bias is None else [bias.to(DOUBLE)]))

    def relu(self, x: Ref) -> Ref:
        return self.call(aten.relu.default, x)

    def leaky(self, x: Ref, slope: float) -> Ref:
        return self.call(aten.leaky_relu.default, x, slope)

    def add(self, x: Ref, y: Ref) -> Ref:
        return self.call(aten.add.Tensor, x, y)

    def graph(self, output: Ref) -> Graph:
        """The nodes on the way to the output."""
        needed = {output.name}
        for node in reversed(self.nodes):
            if node.name in needed:
                needed.update(node.refs)
        nodes = tuple(node for node in self.nodes if node.name in needed)
        inputs = tuple(item for item in self.inputs if item.name in needed)
        return Graph(inputs=inputs, nodes=nodes, output=output.name, mode="eval")


ACTIVATIONS: dict[str, Callable[[Sheet, Ref], Ref]] = {
    "relu": Sheet.relu,
    "leaky": lambda sheet, x: sheet.leaky(x, 0.2),
    "bent leaky": lambda sheet, x: sheet.leaky(x, -0.6),
    "steep leaky": lambda sheet, x: sheet.leaky(x, 1.7),
    "no leaky": lambda sheet, x: sheet.leaky(x, 1.0),
    "abs": lambda sheet, x: sheet.call(aten.abs.default, x),
    "gelu": lambda sheet, x: sheet.call(aten.gelu.default, x),
    "silu": lambda sheet, x: sheet.call(aten.silu.default, x),
    "tanh": lambda sheet, x: sheet.call(aten.tanh.default, x),
    "hardswish": lambda sheet, x: sheet.call(aten.hardswish.default, x),
    "softmax": lambda sheet, x: sheet.call(aten.softmax.int, x, -1),
}


def activated(sheet: Sheet, x: Ref, name: str) -> Ref:
    """An activation by name, or a leaky ReLU of any slope: `leaky 0.9`."""
    if name.startswith("leaky "):
        return sheet.leaky(x, float(name.removeprefix("leaky ")))
    return ACTIVATIONS[name](sheet, x)


def chain(
    seed: int, widths: Sequence[int], activations: Sequence[str], *, scale: float = 1.0, biases: bool = True
) -> Graph:
    """Matrices with activations between them, taken in turn."""
    sheet = Sheet((1, widths[0]), seed=seed)
    x = sheet.refs[0]
    for index, width in enumerate(widths[1:]):
        if index:
            x = activated(sheet, x, activations[(index - 1) % len(activations)])
        weight = scale * sheet.normal(width, x.shape[-1]) / math.sqrt(x.shape[-1])
        x = sheet.linear(x, weight, sheet.normal(width) if biases else None)
    return sheet.graph(x)


PIECEWISE = ("relu", "leaky", "bent leaky", "steep leaky", "abs")
KINDS = ("linear", "linear", "linear", "act", "act", "act", "act", "add", "add", "cat", "mul", "norm")


def random_graph(
    seed: int,
    *,
    steps: int = 10,
    widest: int = 7,
    activations: Sequence[str] = (*ACTIVATIONS,),
    kinds: Sequence[str] = KINDS,
) -> Graph:
    """Draw a graph: values are read again later, added, laid side by side, multiplied where bounded, normalized."""
    draw = random.Random(seed)
    widths = [draw.randint(1, widest) for _ in range(draw.choice([1, 1, 1, 2]))]
    sheet = Sheet(*((1, width) for width in widths), seed=seed)
    values = list(sheet.refs)
    for _ in range(steps):
        x = draw.choice(values[-3:] if draw.random() < 0.7 else values)
        y = draw.choice(values)
        same = [value for value in values if value.shape == x.shape]
        kind = draw.choice(kinds)
        if kind == "linear":
            scale, size = draw.choice([1e-3, 0.3, 1.0, 1.0, 3.0, 1e3]), draw.randint(1, widest)
            weight = scale * sheet.normal(size, x.shape[-1]) / math.sqrt(x.shape[-1])
            values.append(sheet.linear(x, weight, 0.5 * sheet.normal(size)))
        elif kind == "act":
            values.append(ACTIVATIONS[draw.choice(activations)](sheet, x))
        elif kind == "add":
            values.append(sheet.add(x, draw.choice(same)))
        elif kind == "cat" and x.shape[-1] + y.shape[-1] <= 2 * widest:
            values.append(sheet.call(aten.cat.default, [x, y], -1))
        elif kind == "mul":
            gate = sheet.call(aten.sigmoid.default, draw.choice(same))
            values.append(sheet.call(aten.mul.Tensor, sheet.call(aten.tanh.default, x), gate))
        elif kind == "norm" and x.shape[-1] > 1:
            size = x.shape[-1]
            weight, bias, eps = sheet.normal(size), sheet.normal(size), draw.choice([1e-3, 0.1, 1.0])
            values.append(sheet.call(aten.layer_norm.default, x, [size], weight, bias, eps))
    return sheet.graph(values[-1])


def norm(linear: Any) -> Upper:
    return upper(linear, rtol=1e-6)


def planned(graph: Graph, *, widest: int = WIDEST) -> tuple[Segments, EllipsoidPlan | None, dict[str, Upper]]:
    """A graph's segments, its plan, and the bounds by folded segments that a fresh start rests on."""
    with torch.no_grad():
        segments = segment(graph)
        values = propagate(segments, norm, fold=True)
        return segments, plan(segments, values, widest=widest), values


def tightened(graph: Graph, *, steps: int = 12, widest: int = WIDEST) -> Certified:
    """The certificate after a few steps."""
    _, found, _ = planned(graph, widest=widest)
    assert found is not None, f"no plan for\n{graph}"
    certificate = optimise(found, steps=steps)
    assert certificate is not None, f"no certificate for\n{graph}"
    return certificate
