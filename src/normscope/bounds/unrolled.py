"""The graph unrolled for balls: affine steps and primitives, with linear segments folded between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..core.budget import check_time, count
from ..graph.ir import Graph, Node
from ..linalg.linear_map import Identity, LinearMap
from ..linalg.writing import write_out
from ..rules.effects import Effect, Linear
from ..rules.local.local import Affine, Builder, Primitive, UnrolledStep
from ..rules.ranges import Opaque
from ..rules.registry import FAILED, lookup
from .segments import Folder, Form, Segments

CLOSE = 1e-9
"""How far the steps of a node may be from the node itself, relative to its largest value."""


class GraphSteps:
    """A float64 graph as steps: affine maps and primitives.

    Attributes:
        graph: the float64 graph.
        steps: by name, in order; the value of a node bears the node's name.
        output: name of the value returned.
        opaque: the nodes that are known by their gain alone, for want of steps that apply.
        failures: why the steps of some of them could not be made, where their rule raised an error.

    `base` holds the steps of nodes of another graph, at the same captured input, that need not be read again.
    """

    def __init__(self, graph: Graph, effects: Mapping[str, Effect], base: GraphSteps | None = None) -> None:
        self.graph, self.output, self.effects = graph, graph.output, effects
        self.steps: dict[str, UnrolledStep] = {}
        self.shapes = {item.name: item.shape for item in self.graph.inputs}
        self.opaque: list[Node] = []
        self.failures: list[str] = []
        self._dtypes = {node.name: node.dtype for node in self.graph}
        self._owners: dict[str, Node] = {}
        self._sample = sample = {item.name: item.value[None] for item in self.graph.inputs}
        held = {} if base is None else base.by_node()
        with torch.no_grad():
            for node in self.graph:
                for step in held.get(id(node)) or self._steps(node, sample):
                    self.steps[step.name] = step
                    self.shapes[step.name] = step.shape
                    self._owners[step.name] = node
                    kept = None if base is None or id(node) not in held else base._sample[step.name]
                    operands = [sample[name] for name in step.operands]
                    sample[step.name] = evaluate(step, operands, 1) if kept is None else kept

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: which operators are known by their gain alone, the first three by name."""
        operators = list(dict.fromkeys(f"{node.operator} in `{node.path or 'the model'}`" for node in self.opaque))
        if not operators:
            return ()
        rest = f" and {len(operators) - 3} more" if len(operators) > 3 else ""
        note = f"near a point these are known by their gain alone, which is looser: {', '.join(operators[:3])}{rest}"
        return (note, *self.failures[:3])

    def by_node(self) -> dict[int, list[UnrolledStep]]:
        """Return the steps of every node, by the node's identity."""
        steps: dict[int, list[UnrolledStep]] = {}
        for name, node in self._owners.items():
            steps.setdefault(id(node), []).append(self.steps[name])
        return steps

    def _steps(self, node: Node, sample: dict[str, Tensor]) -> list[UnrolledStep]:
        """Return the steps of a node, checked against the node itself at the captured input."""
        check_time()
        effect = self.effects[node.name]
        if isinstance(effect, Linear):
            zeros = [torch.zeros(ref.shape, dtype=torch.float64, device=node.device) for ref in node.operands]
            constant = node.evaluate(zeros).double()
            return [UnrolledStep(node.name, node.shape, Affine(effect.maps, constant, effect.disjoint), node.refs)]
        record = lookup(node)
        build = Builder(node, dict(self.shapes))
        try:
            name = record.local(node, build) if record is not None and record.local is not None else None
        except Exception as error:  # a rule that meets what it was not written for must not pass for a bound
            self.failures.append(f"{FAILED} {node.op} failed near a point, in {node.where}: {error!r}")
            name = None
        if name is not None and self._agree(node, build.steps, name, sample):
            if build.steps:
                return [_renamed(step, name, node.name) for step in build.steps]
            return [UnrolledStep(node.name, node.shape, Affine((Identity(self.shapes[name], node.shape),)), (name,))]
        self.opaque.append(node)
        return [UnrolledStep(node.name, node.shape, Opaque(node, self._typed(node)), node.refs)]

    def _agree(self, node: Node, steps: Sequence[UnrolledStep], name: str, sample: dict[str, Tensor]) -> bool:
        """Say whether the steps compute what the node does."""
        values = dict(sample)
        for step in steps:
            values[step.name] = evaluate(step, [values[operand] for operand in step.operands], 1)
        if name not in values:
            return False
        typed = [sample[ref][0].to(dtype) for ref, dtype in zip(node.refs, self._typed(node), strict=True)]
        want, got = node.evaluate(typed).double(), values[name][0]
        if want.shape != got.shape:
            return False
        scale = float(want.abs().nan_to_num(0.0, 0.0, 0.0).amax()) if want.numel() else 0.0
        return torch.allclose(want, got, rtol=0.0, atol=CLOSE * max(scale, 1.0), equal_nan=True)

    def _typed(self, node: Node) -> tuple[torch.dtype, ...]:
        """Return the types of a node's operands; truth values travel as 0 and 1."""
        return tuple(self._dtypes.get(name, torch.float64) for name in node.refs)

    def split(self, centres: Tensor) -> dict[str, Tensor]:
        """Cut flat centres `[B, n]` into the graph's inputs, by name."""
        sizes = [item.value.numel() for item in self.graph.inputs]
        parts = zip(centres.split(sizes, dim=1), self.graph.inputs, strict=True)
        return {item.name: part.reshape(-1, *item.shape) for part, item in parts}

    def values(self, centres: Tensor) -> dict[str, Tensor]:
        """Return every value at flat centres `[B, n]`, as `[B, *shape]`."""
        values = self.split(centres)
        count("passes", len(centres))
        for step in self.steps.values():
            values[step.name] = evaluate(step, [values[name] for name in step.operands], len(centres))
        return values


class UnrolledNetwork(GraphSteps):
    """The steps of a network, with linear segments folded between the primitives.

    Attributes:
        forms: every value as linear maps of *sources*: the inputs and the primitives.
        ends: the affine steps where a linear segment ends.
    """

    def __init__(self, segments: Segments) -> None:
        super().__init__(segments.graph, segments.effects)
        self.forms: dict[str, Form] = {i.name: {i.name: Identity(i.shape)} for i in self.graph.inputs}
        self._matrices: dict[LinearMap, Tensor] = {}
        with torch.no_grad():
            for step in self.steps.values():
                self.forms[step.name] = self._form(step, segments.folder)
        self.order = list(self.steps.values())
        self._index = {step.name: i for i, step in enumerate(self.order)}
        self.largest = max(math.prod(shape) for shape in [*self.shapes.values(), ()])
        self.ends = {self.output}
        for step in self.steps.values():
            if not isinstance(step.operation, Affine) or step.operation.disjoint:
                self.ends.update(step.operands)

    def _form(self, step: UnrolledStep, folder: Folder) -> Form:
        if not isinstance(step.operation, Affine):
            return {step.name: Identity(step.shape)}
        form: Form = {}
        for linear, name in zip(step.operation.maps, step.operands, strict=True):
            for source, earlier in self.forms[name].items():
                path = folder.compose(linear, earlier)  # one object, whose norm may be known already
                form[source] = folder.add(form[source], path) if source in form else path
        return form

    def before(self, name: str) -> list[UnrolledStep]:
        """Return the steps up to a value, itself included."""
        return self.order[: self._index.get(name, -1) + 1]

    def written(self, linear: LinearMap) -> Tensor:
        """Return a map of a form as a matrix, written out once."""
        if linear not in self._matrices:
            self._matrices[linear] = write_out(linear)
        return self._matrices[linear]


def evaluate(step: UnrolledStep, operands: Sequence[Tensor], batch: int) -> Tensor:
    """Return the value of a step at a batch of centres."""
    check_time()
    if isinstance(step.operation, Primitive):
        return step.operation.evaluate(operands)
    affine = step.operation
    parts = [linear.apply(value) for linear, value in zip(affine.maps, operands, strict=True)]
    if affine.constant is not None:
        parts.append(affine.constant.expand(batch, *step.shape))
    return sum(parts[1:], parts[0])


def _renamed(step: UnrolledStep, old: str, new: str) -> UnrolledStep:
    operands = tuple(new if name == old else name for name in step.operands)
    return UnrolledStep(new if step.name == old else step.name, step.shape, step.operation, operands)
