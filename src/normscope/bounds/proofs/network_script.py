"""A graph as a script in a neutral vocabulary: what a proof says the network is.

All inputs are one vector, and every node is lowered to the few kinds that the checker knows (for the linear ones
`linalg/proof_format.py`). A normalizer becomes a centring, the division by the root mean square, and the scale and
shift; an attention becomes two products and a softmax. What the vocabulary has no word for is `opaque`: the checker
does not follow it, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.errors import InputError
from ...core.npz import Archive
from ..graph.ir import Graph, Node, Ref
from ..linalg.linear_map import Diagonal, Identity, LinearMap, Reindex
from ..linalg.proof_format import Nodes, TooLargeError, pattern
from ..operators.effects import Effect, Linear
from ..operators.registry import (
    AttentionWord,
    EntrywiseWord,
    GatedWord,
    LargerWord,
    MatmulWord,
    NormalizedSets,
    ProductWord,
    SoftmaxWord,
    WindowsWord,
    Word,
    lookup,
)

aten = torch.ops.aten
Made = tuple[str, tuple[str, ...]]


class Script:
    """The nodes of a float64 graph, one after the other, in the checker's words; `archive` takes the arrays.

    Attributes:
        nodes: what the file holds.
        input: the name of the vector of all inputs.
        cores: by name of a nonlinear node of the graph, the script's node that holds its core.
        read: by the same name, the script's nodes that the core reads.
        folded: by name of a linear value of the graph, the values it is a linear map of, perhaps over several nodes.
        given: what bounds may rest on that the script does not show, in words.
    """

    def __init__(self, graph: Graph, effects: Mapping[str, Effect], archive: Archive) -> None:
        self.graph, self.archive, self.nodes = graph, archive, Nodes(archive)
        self.cores: dict[str, str] = {}
        self.read: dict[str, tuple[str, ...]] = {}
        self.folded: dict[str, tuple[str, ...]] = {}
        self.given: list[str] = []
        self._inputs()
        for node in graph:
            effect = effects[node.name]
            if not isinstance(effect, Linear):
                self._nonlinear(node)
            elif not self._linear(node, effect):
                self._opaque(node)

    def to_json(self) -> dict[str, Any]:
        """Return the network as plain data."""
        entry = {"name": self.input, "size": self.nodes.sizes[self.input]}
        return {"input": entry, "nodes": self.nodes.items, "output": self.graph.output}

    def _inputs(self) -> None:
        """Name the vector of all inputs, and each of several inputs as a part of it."""
        inputs, start = self.graph.inputs, 0
        self.input = inputs[0].name if len(inputs) == 1 else "/inputs"
        self.nodes.sizes[self.input] = sum(math.prod(item.shape) for item in inputs)
        for item in inputs if len(inputs) > 1 else ():
            size = math.prod(item.shape)
            self.nodes.gather(item.name, torch.arange(start, start + size), self.input)
            start += size

    def _add(self, node: Node, name: str, kind: str, read: Sequence[str], **data: Any) -> str:
        return self.nodes.add(name, kind, read, math.prod(node.shape), **data)

    def _linear(self, node: Node, effect: Linear) -> bool:
        zeros = [torch.zeros(ref.shape, dtype=torch.float64, device=node.device) for ref in node.operands]
        constant = compact(node.evaluate(zeros))
        if not bool(torch.isfinite(constant).all()):
            return False
        before = len(self.nodes.items)
        shifted, moved = bool(constant.any()) or not effect.maps, [isinstance(m, Reindex) for m in effect.maps]
        try:
            if effect.disjoint and len(effect.maps) > 1 and all(moved) and not shifted:
                places = [linear.index.cpu() for linear in effect.maps if isinstance(linear, Reindex)]
                self.nodes.concat(node.name, node.refs, places)
            elif len(effect.maps) == 1 and not shifted:
                self.nodes.map(node.name, effect.maps[0], node.refs[0])
            else:
                pairs = enumerate(zip(effect.maps, node.refs, strict=True), start=1)
                terms = [self.nodes.map(f"{node.name}/{k}", linear, ref) for k, (linear, ref) in pairs]
                if shifted:
                    terms.append(self.nodes.constant(f"{node.name}/constant", constant, node.shape))
                self._add(node, node.name, "add", terms)
                if effect.disjoint and len(effect.maps) > 1:
                    self.given.append(f"that the operands of {node.op} in {node.path or '(top level)'} do not overlap")
        except TooLargeError:
            del self.nodes.items[before:]
            return False
        self.folded[node.name] = tuple(dict.fromkeys(node.refs))
        return True

    def _opaque(self, node: Node) -> None:
        """A node that the checker has no words for."""
        what = f"{node.op} in {node.path or '(top level)'}"
        self._add(node, node.name, "opaque", node.refs, size=math.prod(node.shape), what=what)

    def _nonlinear(self, node: Node) -> None:
        record = lookup(node)
        word = None
        if record is not None and record.word is not None and node.dtype.is_floating_point and node.index in (None, 0):
            word = record.word(node)
        made = None if word is None else self._said(node, word)
        if made is None:
            self._opaque(node)
        else:
            self.cores[node.name], self.read[node.name] = made

    def _said(self, node: Node, word: Word) -> Made | None:
        """Add a node that the vocabulary has a word for; return its core and what that reads."""
        match word:
            case EntrywiseWord():
                return self._entrywise(node, word)
            case NormalizedSets():
                return self._normalizer(node, word)
            case SoftmaxWord(kind, axis):
                return self._along(node, kind, node.shape, (axis,))
            case GatedWord(axis):
                return self._glu(node, axis)
            case WindowsWord(index, leading, lowest):
                data = {"of": math.prod(node.operands[0].shape[leading:]), "index": self.archive.put(index)}
                return self._add(node, node.name, "extreme", node.refs, **data, lowest=lowest), node.refs
            case LargerWord(lowest):
                return self._larger(node, lowest=lowest)
            case ProductWord():
                operands = self._pair(node)
                return None if operands is None else (self._add(node, node.name, "product", operands), operands)
            case MatmulWord():
                left, right = (tuple(ref.shape) for ref in node.operands)
                return self._matmul(node.name, left, right, node.refs), node.refs
            case AttentionWord():
                return self._attention(node, word)

    def _entrywise(self, node: Node, word: EntrywiseWord) -> Made | None:
        if len(node.operands) != 1 or node.operands[0].shape != node.shape:
            return None
        entry_parameters = word.parameters
        shapes = [torch.as_tensor(value).shape for value in entry_parameters.values()]
        wide = torch.broadcast_shapes(*shapes) if shapes else torch.Size()  # all parameters repeat alike
        parameters = {
            key: pattern(torch.as_tensor(value, dtype=torch.float64).expand(wide), node.shape, self.archive)
            for key, value in entry_parameters.items()
        }
        about = {"function": word.function, "parameters": parameters}
        return self._add(node, node.name, "entrywise", node.refs, **about), node.refs

    def _turned(self, name: str, view: Sequence[int], axes: Sequence[int], operand: str) -> tuple[str, Tensor | None]:
        """Bring some axes of a value to its end; return it, and the way back where anything moved."""
        order = [*(d for d in range(len(view)) if d not in axes), *axes]
        ids = torch.arange(math.prod(view)).reshape(tuple(view)).permute(*order).reshape(-1)
        if bool((ids == torch.arange(len(ids))).all()):
            return operand, None
        return self.nodes.gather(f"{name}/turned", ids, operand), ids.argsort()

    def _along(
        self, node: Node, kind: str, view: Sequence[int], axes: Sequence[int], operand: str = "", **data: Any
    ) -> Made:
        """Add a node that acts on every set of entries along some axes of a view."""
        of = math.prod(view[axis] for axis in axes)
        operand, back = self._turned(node.name, view, axes, operand or node.refs[0])
        last = node.name if back is None else f"{node.name}/core"
        core = self._add(node, last, kind, [operand], of=of, **data)
        if back is not None:
            self.nodes.gather(node.name, back, core)
        return core, (operand,)

    def _normalizer(self, node: Node, what: NormalizedSets) -> Made:
        """Centre, divide, and scale; what is centred before the division is centred behind it too."""
        shape, of = node.shape, math.prod(what.view[axis] for axis in what.axes)
        operand, back = self._turned(node.name, what.view, what.axes, node.refs[0])
        if what.centred:
            operand = self._add(node, f"{node.name}/centred", "center", [operand], of=of)
        core = last = self._add(node, f"{node.name}/core", "normalize", [operand], of=of, eps=what.eps)
        if what.centred:
            last = self._add(node, f"{node.name}/again", "center", [core], of=of)
        if back is not None:
            last = self.nodes.gather(f"{node.name}/back", back, last)
        if what.scale is not None:
            last = self.nodes.map(f"{node.name}/scaled", Diagonal(what.scale, shape), last)
        terms = [last]
        if what.shift is not None and bool(what.shift.any()):
            terms.append(self.nodes.constant(f"{node.name}/constant", what.shift, shape))
        self._add(node, node.name, "add", terms)
        self.folded[node.name] = (core,)
        return core, (operand,)

    def _glu(self, node: Node, axis: int) -> Made:
        """The first half along an axis times the sigmoid of the second."""
        operand = node.operands[0]
        sides = []
        chunks: list[Callable[[Tensor], Tensor]] = [lambda x: x.chunk(2, axis)[0], lambda x: x.chunk(2, axis)[1]]
        for chunk, side in zip(chunks, ("first", "second"), strict=True):
            half = Reindex.of(chunk, operand.shape, node.device)
            sides.append(self.nodes.map(f"{node.name}/{side}", half, node.refs[0]))
        about = {"function": "sigmoid", "parameters": {}}
        gate = self._add(node, f"{node.name}/gate", "entrywise", sides[1:], **about)
        return self._add(node, node.name, "product", [sides[0], gate]), node.refs

    def _value(self, name: str, value: Any, shape: tuple[int, ...], device: torch.device) -> str | None:
        """Return the name of an operand in the given shape: a value, spread out if need be, or a constant."""
        if not isinstance(value, Ref):
            constant = compact(torch.as_tensor(value, dtype=torch.float64, device=device).expand(shape).contiguous())
            return self.nodes.constant(name, constant, shape) if bool(torch.isfinite(constant).all()) else None
        if value.shape == shape:
            return value.name
        spread: LinearMap = Reindex.of(lambda x: x.expand(shape), value.shape, device)
        return value.name if isinstance(spread, Identity) else self.nodes.map(name, spread, value.name)

    def _pair(self, node: Node) -> tuple[str, ...] | None:
        named = [
            self._value(f"{node.name}/{side}", value, node.shape, node.device)
            for side, value in zip(("left", "right"), node.args[:2], strict=True)
        ]
        operands = tuple(name for name in named if name is not None)
        return operands if len(operands) == 2 else None

    def _larger(self, node: Node, *, lowest: bool) -> Made | None:
        """The larger (or the lower) of two values: both side by side, entry by entry, and the extreme of each pair."""
        operands = self._pair(node)
        if operands is None:
            return None
        size = 2 * math.prod(node.shape)
        both = self.nodes.add(f"{node.name}/both", "concat", operands, size, of=[1, 1])
        index = self.archive.put(torch.tensor([[0, 1]]))
        self._add(node, node.name, "extreme", [both], of=2, index=index, lowest=lowest)
        return node.name, (both,)

    def _matmul(self, name: str, left: tuple[int, ...], right: tuple[int, ...], read: Sequence[str]) -> str:
        """Add the product of two stacks of matrices."""
        sizes = {"rows": left[-2], "terms": left[-1], "columns": right[-1]}
        chunk = sizes["rows"] * sizes["columns"]
        return self.nodes.add(name, "matmul", read, math.prod(left[:-2]) * chunk, **sizes)

    def _attention(self, node: Node, word: AttentionWord) -> Made | None:
        shapes = [tuple(item.shape) for item in (word.query, word.key, word.value)]
        name, nodes = node.name, self.nodes
        sides = zip(("query", "key", "value"), (word.query, word.key, word.value), shapes, strict=True)
        named = [self._value(f"{name}/{side}", item, shape, node.device) for side, item, shape in sides]
        operands = tuple(item for item in named if item is not None)
        if len(operands) < 3:
            return None
        wide = (*shapes[0][:-1], shapes[1][-2])
        turned = nodes.map(
            f"{name}/turned", Reindex.of(lambda x: x.transpose(-2, -1), shapes[1], node.device), operands[1]
        )
        across = (*shapes[1][:-2], shapes[1][-1], shapes[1][-2])
        last = self._matmul(f"{name}/products", shapes[0], across, [operands[0], turned])
        last = nodes.map(f"{name}/scaled", Diagonal(torch.tensor(word.scale, dtype=torch.float64), wide), last)
        if word.bias is not None and bool(word.bias.any()):
            shift = nodes.constant(f"{name}/mask", compact(word.bias), wide)
            last = nodes.add(f"{name}/scores", "add", [last, shift], math.prod(wide))
        last = nodes.add(f"{name}/weights", "softmax", [last], math.prod(wide), of=wide[-1])
        return self._matmul(name, wide, shapes[2], [last, operands[2]]), operands


def compact(value: Tensor) -> Tensor:
    """Return a tensor with every dimension along which it is constant shrunk to 1."""
    for dim in range(value.ndim):
        first = value.narrow(dim, 0, 1)
        if value.shape[dim] > 1 and bool((value == first).all()):
            value = first
    return value.contiguous()


def scripted(graph: Graph, effects: Mapping[str, Effect], archive: Archive) -> Script:
    """Return the script of a graph; InputError where a value has no entries, or a parameter is NaN or infinite."""
    shapes = [item.shape for item in graph.inputs] + [node.shape for node in graph]
    if any(0 in shape for shape in shapes):
        raise InputError("a proof cannot hold a value without entries")
    with torch.no_grad():
        return Script(graph, effects, archive)
