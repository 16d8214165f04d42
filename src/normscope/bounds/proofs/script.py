"""A graph as a script in a neutral vocabulary: what a proof says the network is.

Linear nodes are maps and a constant, whatever operator they were. A normalizer becomes a centring, the division by the
root mean square, and the scale and shift; an attention becomes two products and a softmax. What the vocabulary has no
word for is `opaque`: the checker does not follow it, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.archive import Archive
from ...core.errors import InputError
from ...graph.ir import Graph, Node, Ref, Unit
from ...linalg.linear_map import Diagonal, Identity, LinearMap, Reindex
from ...linalg.script import TooLargeError, centering, describe
from ...rules.effects import Effect, Elementwise, Linear
from . import words as script_words
from .words import compact

aten = torch.ops.aten


class Script:
    """The nodes of a graph, one after the other, in the checker's words.

    Args:
        graph: in float64.
        effects: of its nodes, by name.
        archive: takes the arrays.

    Attributes:
        nodes: plain data.
        cores: by name of a nonlinear node of the graph, the script's node that holds its core.
        read: by the same name, the script's nodes that the core reads.
        apart: linear nodes whose operands land on different entries (a concatenation).
    """

    def __init__(self, graph: Graph, effects: Mapping[str, Effect], archive: Archive) -> None:
        self.graph, self.archive = graph, archive
        self.nodes: list[dict[str, Any]] = []
        self.cores: dict[str, str] = {}
        self.read: dict[str, tuple[str, ...]] = {}
        self.apart: set[str] = set()
        for node in graph:
            effect = effects[node.name]
            if not isinstance(effect, Linear):
                self._nonlinear(node, effect)
            elif not self._linear(node, effect):
                self._opaque(node)

    def to_json(self) -> dict[str, Any]:
        """Return the network as plain data."""
        inputs = [{"name": item.name, "shape": list(item.shape)} for item in self.graph.inputs]
        return {"inputs": inputs, "nodes": self.nodes, "output": self.graph.output}

    def _add(self, name: str, kind: str, shape: Sequence[int], operands: Sequence[str], **data: Any) -> str:
        self.nodes.append({"name": name, "kind": kind, "shape": list(shape), "from": list(operands), **data})
        return name

    def _linear(self, node: Node, effect: Linear) -> bool:
        zeros = [torch.zeros(ref.shape, dtype=torch.float64, device=node.device) for ref in node.operands]
        constant = node.evaluate(zeros)
        if not bool(torch.isfinite(constant).all()):
            return False
        try:
            maps = [describe(linear, self.archive) for linear in effect.maps]
        except TooLargeError:
            return False
        self._add(node.name, "linear", node.shape, node.refs, maps=maps, **self._constant(constant))
        if effect.disjoint and len(effect.maps) > 1:
            self.apart.add(node.name)
        return True

    def _constant(self, value: Tensor | None) -> dict[str, str]:
        return {} if value is None or not bool(value.any()) else {"constant": self.archive.put(compact(value))}

    def _opaque(self, node: Node) -> None:
        """A node that the checker has no words for."""
        what = f"{node.op} in {node.path or '(top level)'}"
        self._add(node.name, "opaque", node.shape, node.refs, what=what)

    def _nonlinear(self, node: Node, effect: Effect) -> None:
        made = self._known(node, effect) if node.dtype.is_floating_point and node.index in (None, 0) else None
        if made is None:
            self._opaque(node)
        else:
            self.cores[node.name], self.read[node.name] = made

    def _known(self, node: Node, effect: Effect) -> tuple[str, tuple[str, ...]] | None:
        """Add a node the vocabulary has words for; return its core and what that reads."""
        name = node.op.name if isinstance(node.op, Unit) else str(node.op).removeprefix("aten.")
        if isinstance(effect, Elementwise):
            said = script_words.activation(node)
            if said is None or len(node.operands) != 1 or node.operands[0].shape != node.shape:
                return None
            function, given = said
            parameters = {k: self.archive.put(v) if isinstance(v, Tensor) else v for k, v in given.items()}
            self._add(node.name, "entrywise", node.shape, node.refs, function=function, parameters=parameters)
            return node.name, node.refs
        if len(node.operands) == 1:
            normalizer = script_words.normalizer(node)
            if normalizer is not None:
                return self._normalizer(node, normalizer)
            if name in ("softmax.int", "log_softmax.int"):
                axis = int(node.args[1]) % len(node.shape)
                self._add(node.name, name.removesuffix(".int"), node.shape, node.refs, axis=axis)
                return node.name, node.refs
            if name == "glu.default":
                return self._glu(node, int(node.bound()["dim"]) % len(node.shape))
            windows = script_words.windows(node)
            if windows is not None:
                index, leading, lowest = windows
                data = {"index": self.archive.put(index), "leading": leading, "lowest": lowest}
                self._add(node.name, "extreme", node.shape, node.refs, **data)
                return node.name, node.refs
        if name in ("maximum.default", "max.other", "minimum.default", "min.other"):
            return self._pair(node, "pairwise", {"lowest": name.startswith("min")})
        if name in ("mul.Tensor", "mul.Scalar") and len(node.operands) == 2:
            return self._pair(node, "product", {})
        if name in ("mm.default", "matmul.default", "bmm.default") and len(node.operands) == 2:
            left, right = node.operands
            if min(len(left.shape), len(right.shape)) < 2 or left.shape[:-2] != right.shape[:-2]:
                return None
            self._add(node.name, "matmul", node.shape, node.refs)
            return node.name, node.refs
        return self._attention(node) if name == "scaled_dot_product_attention.default" else None

    def _normalizer(self, node: Node, what: script_words.Normalizer) -> tuple[str, tuple[str, ...]]:
        """Centre, divide, and scale; what is centred before the division is centred behind it too."""
        shape, operand = node.shape, node.refs[0]
        maps: list[dict[str, Any]] = []
        if what.centred:
            maps.append(centering(what.view, what.axes))
            if what.view != shape:
                sides = [{"map": "identity", "shape": list(side)} for side in (what.view, shape)]
                maps = [{"map": "chain", "parts": [sides[0], *maps, sides[1]]}]
            operand = self._add(f"{node.name}/centred", "linear", shape, [operand], maps=maps[:1])
        sets = {"view": list(what.view), "axes": list(what.axes)}
        core = self._add(f"{node.name}/core", "normalize", shape, [operand], **sets, eps=what.eps)
        if what.scale is not None:
            maps.append(describe(Diagonal(what.scale, shape), self.archive))
        whole = {"map": "chain", "parts": maps} if maps else {"map": "identity", "shape": list(shape)}
        self._add(node.name, "linear", shape, [core], maps=[whole], **self._constant(what.shift))
        return core, (operand,)

    def _glu(self, node: Node, axis: int) -> tuple[str, tuple[str, ...]]:
        """The first half along an axis times the sigmoid of the second."""
        operand = node.operands[0]
        sides = []
        chunks: list[Callable[[Tensor], Tensor]] = [lambda x: x.chunk(2, axis)[0], lambda x: x.chunk(2, axis)[1]]
        for chunk, side in zip(chunks, ("first", "second"), strict=True):
            half = Reindex.of(chunk, operand.shape, node.device)
            name = f"{node.name}/{side}"
            sides.append(self._add(name, "linear", node.shape, node.refs, maps=[describe(half, self.archive)]))
        gate = self._add(f"{node.name}/gate", "entrywise", node.shape, sides[1:], function="sigmoid", parameters={})
        return self._add(node.name, "product", node.shape, [sides[0], gate]), node.refs

    def _value(self, name: str, value: Any, shape: tuple[int, ...], device: torch.device) -> str | None:
        """Return the name of an operand in the given shape: a value, spread out if need be, or a constant."""
        if not isinstance(value, Ref):
            constant = torch.as_tensor(value, dtype=torch.float64, device=device).expand(shape).contiguous()
            if not bool(torch.isfinite(constant).all()):
                return None
            return self._add(name, "linear", shape, [], maps=[], constant=self.archive.put(compact(constant)))
        if value.shape == shape:
            return value.name
        spread: LinearMap = Reindex.of(lambda x: x.expand(shape), value.shape, device)
        if isinstance(spread, Identity):
            spread = Identity(value.shape, shape)
        return self._add(name, "linear", shape, [value.name], maps=[describe(spread, self.archive)])

    def _pair(self, node: Node, kind: str, data: dict[str, Any]) -> tuple[str, tuple[str, ...]] | None:
        named = [
            self._value(f"{node.name}/{side}", value, node.shape, node.device)
            for side, value in zip(("left", "right"), node.args[:2], strict=True)
        ]
        operands = tuple(name for name in named if name is not None)
        if len(operands) < 2:
            return None
        self._add(node.name, kind, node.shape, operands, **data)
        return node.name, operands

    def _attention(self, node: Node) -> tuple[str, tuple[str, ...]] | None:
        arguments = node.bound()
        query, key, value = (arguments[name] for name in ("query", "key", "value"))
        shapes = [tuple(item.shape) for item in (query, key, value)]
        mask = arguments.get("attn_mask")
        if len({shape[:-2] for shape in shapes}) > 1 or isinstance(mask, Ref) or min(map(len, shapes)) < 2:
            return None
        bias = script_words.mask(mask, bool(arguments.get("is_causal")), shapes[0][-2], shapes[1][-2])
        if isinstance(bias, str):
            return None
        sides = zip(("query", "key", "value"), (query, key, value), shapes, strict=True)
        named = [self._value(f"{node.name}/{side}", item, shape, node.device) for side, item, shape in sides]
        operands = tuple(name for name in named if name is not None)
        if len(operands) < 3:
            return None
        given = arguments.get("scale")
        scale = 1.0 / math.sqrt(shapes[0][-1]) if given is None else float(given)
        wide = (*shapes[0][:-1], shapes[1][-2])
        turned = describe(Reindex.of(lambda x: x.transpose(-2, -1), shapes[1], node.device), self.archive)
        add, name = self._add, node.name
        add(f"{name}/turned", "linear", (*shapes[1][:-2], shapes[1][-1], shapes[1][-2]), operands[1:2], maps=[turned])
        add(f"{name}/products", "matmul", wide, [operands[0], f"{name}/turned"])
        scaled = describe(Diagonal(torch.tensor(scale, dtype=torch.float64), wide), self.archive)
        add(f"{name}/scores", "linear", wide, [f"{name}/products"], maps=[scaled], **self._constant(bias))
        add(f"{name}/weights", "softmax", wide, [f"{name}/scores"], axis=len(wide) - 1)
        return add(name, "matmul", node.shape, [f"{name}/weights", operands[2]]), operands


def scripted(graph: Graph, effects: Mapping[str, Effect], archive: Archive) -> Script:
    """Return the script of a graph.

    Raises:
        InputError: a value has no entries, or a parameter is NaN or infinite.
    """
    shapes = [item.shape for item in graph.inputs] + [node.shape for node in graph]
    if any(0 in shape for shape in shapes):
        raise InputError("a proof cannot hold a value without entries")
    with torch.no_grad():
        return Script(graph, effects, archive)
