"""A graph as steps of the ellipsoid engine: which values are carried, what is forgotten, where the state turns.

The state follows the live values of the graph. Where a few values carry all that is needed later (the stream of a
residual network, a bottleneck), the state turns onto them, which loses nothing. Values too wide to carry start afresh
from their own constant, known from a cheaper bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...core.budget import check_time
from ...core.log10 import power10
from ...core.rounding import Upper
from ..graph.ir import Graph, Node
from ..linalg.convolution_map import Convolution
from ..linalg.dense_form import moderate, write_out
from ..linalg.folding import add, compose, slice_map
from ..linalg.linear_map import Composite, Diagonal, Identity, LinearMap, Matrix, Reindex, Repeated
from ..operators.effects import Effect, Elementwise, Gain, Linear, Unbounded
from ..segments import Form, Segments
from .ellipsoid import Uncertain

WIDEST = 1024
"""Largest state that is carried: every step costs about ten times its cube."""
APART = 100.0
"""Powers of ten that values which start afresh together may lie apart: squares of their ratio are taken."""
_ENTRIES = 6e7
"""Largest matrix that is written out on the way into a state."""


def image_cost(matrix: Tensor) -> float:
    """Return about how many multiplications F Q F^T takes."""
    rows, columns = matrix.shape[-2:]
    return float(rows) * columns * (rows + columns)


@dataclass(frozen=True, slots=True)
class StateChange:
    """The state goes over to new values g' = G g; `slack` bounds the norm of G's error, None if it is not known."""

    matrix: Tensor
    slack: float | None = None

    @property
    def cost(self) -> float:
        """About how many multiplications it takes."""
        return image_cost(self.matrix)


@dataclass(frozen=True, slots=True)
class EllipsoidStep:
    """A nonlinear node: v = F g (None for the whole state), what is kept of g, what is known of u; `slack` is F's."""

    name: str
    form: Tensor | None
    kept: Tensor
    known: Uncertain
    slack: float | None = None

    @property
    def cost(self) -> float:
        """About how many multiplications it takes."""
        return float(self.known.size + self.kept.numel()) ** 3


@dataclass(frozen=True, slots=True)
class EllipsoidPlan:
    """What the engine runs.

    Attributes:
        start: the values the state starts from, each with log10 of its constant.
        operations: turns and steps; the first (or the output) is in units of the largest constant of the start.
        output: the output as a linear map of the last state.
        output_slack: bounds the norm of its error, None if it is not known.
        leading: dimensions over which the graph acts slice by slice; the plan is that of one slice.
    """

    start: Mapping[str, float]
    operations: tuple[StateChange | EllipsoidStep, ...]
    output: Tensor
    output_slack: float | None = None
    leading: tuple[int, ...] = ()

    @property
    def steps(self) -> tuple[EllipsoidStep, ...]:
        """The nonlinear steps, in order."""
        return tuple(operation for operation in self.operations if isinstance(operation, EllipsoidStep))

    @property
    def width(self) -> int:
        """The largest state on the way."""
        turns = [operation.matrix.shape[0] for operation in self.operations if isinstance(operation, StateChange)]
        return max([*turns, *(step.known.size + step.kept.numel() for step in self.steps)], default=0)

    def to(self, dtype: torch.dtype, device: torch.device | None = None) -> EllipsoidPlan:
        """Return the same plan in another precision, or elsewhere."""

        def move_operation(operation: StateChange | EllipsoidStep) -> StateChange | EllipsoidStep:
            if isinstance(operation, StateChange):
                return replace(operation, matrix=operation.matrix.to(device, dtype))
            uncertain = operation.known
            centre = None if uncertain.centre is None else uncertain.centre.to(device, dtype)
            form = None if operation.form is None else operation.form.to(device, dtype)
            uncertain = replace(uncertain, centre=centre, radius=uncertain.radius.to(device, dtype))
            return replace(operation, form=form, kept=operation.kept.to(device), known=uncertain)

        return replace(
            self, operations=tuple(map(move_operation, self.operations)), output=self.output.to(device, dtype)
        )


def plan(segments: Segments, values: Mapping[str, Upper], *, widest: int = WIDEST) -> EllipsoidPlan | None:
    """Return the plan of a graph, or None where some step has no finite constant or the output is too wide.

    Values that start afresh do so from `values`, bounds on the maps from the input to every node.
    """
    if any(isinstance(effect, Unbounded) for effect in segments.effects.values()):
        return None
    if any(0 in node.shape for node in segments.graph) or any(0 in item.shape for item in segments.graph.inputs):
        return None
    for leading in _leadings(segments.graph):
        written = _EllipsoidPlanner(segments, values, widest, leading).run()
        if written is not None:
            return written
    return None


def _leadings(graph: Graph) -> list[tuple[int, ...]]:
    """Leading dimensions over which the graph may act slice by slice: the longest shared ones first."""
    shapes = [item.shape for item in graph.inputs] + [node.shape for node in graph]
    shared = 0
    while all(len(s) > shared + 1 and s[: shared + 1] == shapes[0][: shared + 1] for s in shapes):
        shared += 1
    lengths = [n for n in range(shared, 0, -1) if math.prod(shapes[0][:n]) > 1]
    return [*(shapes[0][:n] for n in lengths), ()]


class _EllipsoidPlanner:
    """Walks the graph once; see the module."""

    def __init__(self, segments: Segments, values: Mapping[str, Upper], widest: int, leading: tuple[int, ...]) -> None:
        self.graph, self.effects, self.values, self.widest = segments.graph, segments.effects, values, widest
        self.leading = leading
        self.device = self.graph.inputs[0].value.device
        inputs = [item.name for item in self.graph.inputs]
        self.forms: dict[str, Form] = {i.name: {i.name: Identity(self._inner(i.shape))} for i in self.graph.inputs}
        self.start = dict.fromkeys(inputs, 0.0)
        self.bases = {item.name: math.prod(self._inner(item.shape)) for item in self.graph.inputs}
        self.operations: list[StateChange | EllipsoidStep] = []
        self.last = {ref: i for i, node in enumerate(self.graph) for ref in node.refs}
        self.last[self.graph.output] = len(self.graph)
        self.readers: dict[str, int] = {}
        for node in self.graph:
            for ref in set(node.refs):
                self.readers[ref] = self.readers.get(ref, 0) + 1

    def _inner(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(shape[len(self.leading) :])

    def run(self) -> EllipsoidPlan | None:
        """Walk the graph; None where it does not act slice by slice, or the output is too wide."""
        for index, node in enumerate(self.graph):
            check_time()
            effect = self.effects[node.name]
            if isinstance(effect, Linear):
                form = self._linear(effect, node.refs)
                if form is None:
                    return None
                self.forms[node.name] = form
                if self.readers.get(node.name, 0) > 1 and len(form) > 1:
                    self._narrow(index)
            elif not self._atom(index, node, effect):
                return None
        name = self.graph.output
        size = math.prod(self._inner(self.graph.output_shape))
        form = self.forms[name]
        if size > self.widest or not self._writable([form]):
            return None
        return EllipsoidPlan(self.start, tuple(self.operations), self._stack([form]), self._slack([form]), self.leading)

    def _linear(self, effect: Linear, refs: Sequence[str]) -> Form | None:
        form: Form = {}
        for linear, ref in zip(effect.maps, refs, strict=True):
            inner = slice_map(linear, self.leading)
            if inner is None:
                return None
            for base, earlier in self.forms[ref].items():
                path = compose(inner, earlier)
                form[base] = add(form[base], path) if base in form else path
        return form

    def _live(self, index: int) -> list[str]:
        """Names of the values computed so far that are read after the node at `index`."""
        return [name for name in self.forms if self.last.get(name, -1) > index]

    def _narrow(self, index: int) -> None:
        """Turn the state onto the live values where they are fewer than what it carries."""
        live = self._live(index)
        forms = [self.forms[name] for name in live]
        size = self._width(forms)
        if size < sum(self.bases.values()) and size <= self.widest and self._writable(forms):
            self._turn(live, self._stack(forms), self._slack(forms))

    def _turn(self, names: Sequence[str], matrix: Tensor, slack: float | None) -> None:
        """Carry these values and nothing else."""
        self.operations.append(StateChange(matrix, slack))
        sizes = [self._size(self.forms[name]) for name in names]
        self.bases = dict(zip(names, sizes, strict=True))
        shapes = {name: next(iter(self.forms[name].values())).out_shape for name in names}
        self.forms = {name: {name: Identity(shapes[name])} for name in names}

    def _atom(self, index: int, node: Node, effect: Effect) -> bool:
        """Take one step through a nonlinear node; say whether there is one."""
        opened = self._opened(node, effect)
        if opened is None:
            return False
        read, tail = opened
        live = [other for other in self._live(index) if other != node.name]
        held = [self.forms[other] for other in live]
        size, operand, kept = math.prod(self._inner(node.shape)), self._width(read), self._width(held)
        if max(operand + kept, kept + size) > self.widest or not self._writable([*read, *held]):
            return self._afresh([*live, node.name])
        uncertain, scales = self._known(effect, node.refs, size, operand)
        form, slack = self._stack(read) * scales, self._slack(read) if isinstance(scales, float) else None
        if not self.operations or operand + kept < sum(self.bases.values()):
            both = None if slack is None else self._slack([*held, *read])
            self._turn(live, torch.cat([self._stack(held), form]), both)
            self.bases[f"{node.name}:in"] = operand
            form, slack = self._last(operand, kept), 0.0
        self._step(node.name, live, form, uncertain, slack)
        self.bases[node.name], self.forms[node.name] = size, {node.name: tail}
        return True

    def _opened(self, node: Node, effect: Effect) -> tuple[list[Form], LinearMap] | None:
        """Return what a nonlinear node reads, and the map behind its core; None where no step goes through it."""
        if isinstance(effect, Gain) and (self.leading or not self._moderate(effect, node.refs)):
            return None  # a constant over all slices together says nothing of one
        if isinstance(effect, Elementwise) and not effect.moderate:
            return None
        read = [self.forms[ref] for ref in node.refs]
        before, after = (effect.before, effect.after) if isinstance(effect, Gain) else (None, None)
        if before is not None:
            inner = slice_map(before, self.leading)
            if inner is None:
                return None
            read = [{base: compose(inner, m) for base, m in form.items()} for form in read]
        tail = Identity(self._inner(node.shape)) if after is None else slice_map(after, self.leading)
        return None if tail is None else (read, tail)

    def _last(self, operand: int, kept: int) -> Tensor:
        """Return the map that reads the last entries of the state, behind those that are kept."""
        form = torch.zeros(operand, operand + kept, dtype=torch.float64, device=self.device)
        form[:, kept:] = torch.eye(operand, dtype=torch.float64, device=self.device)
        return form

    def _step(self, name: str, live: Sequence[str], form: Tensor, uncertain: Uncertain, slack: float | None) -> None:
        """Append a step, behind which the state carries what the live values need, and then the step's own value."""
        needed = {base for other in live for base in self.forms[other]}
        flags = [torch.full((width,), base in needed) for base, width in self.bases.items()]
        kept = torch.cat(flags).nonzero()[:, 0].to(self.device)
        square = form.shape[0] == form.shape[1] and kept.numel() == 0
        whole = square and bool((form == torch.eye(len(form), device=self.device)).all())
        self.operations.append(EllipsoidStep(name, None if whole else form, kept, uncertain, slack))
        self.bases = {base: width for base, width in self.bases.items() if base in needed}
        self.forms = {other: self.forms[other] for other in live}

    def _known(self, effect: Effect, refs: Sequence[str], size: int, operand: int) -> tuple[Uncertain, float | Tensor]:
        """What the step does, and the factors that its stacked operands take."""
        if isinstance(effect, Elementwise):
            a, b = effect.slope
            centre = torch.full((size,), (a + b) / 2, dtype=torch.float64, device=self.device)
            radius = torch.full((size,), (b - a) / 2, dtype=torch.float64, device=self.device)
            return Uncertain(centre, radius, size), 1.0
        assert isinstance(effect, Gain)
        gains = [power10(gain.log10) for gain in effect.gains]
        if len(gains) == 1:
            return Uncertain(None, self._one(gains[0]), size, whole=True), 1.0
        # norm(du)^2 <= sum of (c_j^2/p_j) norm(dv_j)^2 for any p that sum to 1; changes apart (joint) need no p
        reach = [power10(g.log10 + self.values[r].log10) for g, r in zip(effect.gains, refs, strict=True)]
        shares = [1.0 if effect.joint else r / sum(reach) if sum(reach) > 0 else 1.0 / len(reach) for r in reach]
        factors = [gain / math.sqrt(share) if share > 0 else 0.0 for gain, share in zip(gains, shares, strict=True)]
        sizes = [self._size(self.forms[ref]) for ref in refs]
        scales = torch.cat([torch.full((n, 1), f, dtype=torch.float64) for n, f in zip(sizes, factors, strict=True)])
        return Uncertain(None, self._one(1.0), size, whole=True), scales.to(self.device)

    def _moderate(self, effect: Gain, refs: Sequence[str]) -> bool:
        """Say whether the gains, alone and with what reaches them, are within the range of floats."""
        logs = [
            g.log10 + extra for g, r in zip(effect.gains, refs, strict=True) for extra in (0.0, self.values[r].log10)
        ]
        return all(log == -math.inf or abs(log) < 140.0 for log in logs)

    def _one(self, value: float) -> Tensor:
        return torch.full((1,), value, dtype=torch.float64, device=self.device)

    def _afresh(self, names: Sequence[str]) -> bool:
        """Forget the state: start from the constants of the live values, jointly."""
        share = math.log10(len(names)) / 2
        self.start = {name: self.values[name].log10 + share for name in names}
        values = self.start.values()
        if self.leading or not all(map(math.isfinite, values)) or max(values) - min(values) > APART:
            return False
        shapes = {item.name: item.shape for item in self.graph.inputs} | {n.name: n.shape for n in self.graph}
        self.forms = {name: {name: Identity(shapes[name])} for name in names}
        self.bases = {name: math.prod(shapes[name]) for name in names}
        self.operations = []
        return True

    @staticmethod
    def _size(form: Form) -> int:
        return next(iter(form.values())).out_size

    def _width(self, forms: Sequence[Form]) -> int:
        return sum(self._size(form) for form in forms)

    def _writable(self, forms: Sequence[Form]) -> bool:
        """Say whether forms are small and moderate enough to be written out over the state."""
        width = sum(self.bases.values())
        return self._width(forms) * width <= _ENTRIES and all(moderate(m) for form in forms for m in form.values())

    @staticmethod
    def _slack(forms: Sequence[Form]) -> float | None:
        """Bound the norm of the error of forms written out side by side; None where writing them out may round."""
        errors = [_error(linear) for form in forms for linear in form.values()]
        bounded = [error for error in errors if error is not None]
        return math.hypot(*bounded) * (1 + 1e-9) if len(bounded) == len(errors) else None

    def _stack(self, forms: Sequence[Form]) -> Tensor:
        """Write forms out as one matrix over the state's values, those of the start with their relative constants."""
        top = max(self.start.values())
        relative = {base: 1.0 if self.operations else 10.0 ** (self.start[base] - top) for base in self.bases}
        rows = []
        for form in forms:
            size = self._size(form)
            blocks = [
                write_out(form[base]).to(self.device) * relative[base]
                if base in form
                else torch.zeros(size, width, dtype=torch.float64, device=self.device)
                for base, width in self.bases.items()
            ]
            rows.append(torch.cat(blocks, dim=1))
        width = sum(self.bases.values())
        return torch.cat(rows) if rows else torch.zeros(0, width, dtype=torch.float64, device=self.device)


def _error(linear: LinearMap) -> float | None:
    """Bound a map's error where writing it out is one multiplication of a unit vector by stored numbers; else None."""
    match linear:
        case Composite():
            factors = [part for part in linear.parts if not isinstance(part, Identity)]
            return _error(factors[0]) if len(factors) == 1 else 0.0 if not factors else None
        case Repeated():
            inner = _error(linear.inner)
            return None if inner is None else max(inner, linear.slack)
        case Convolution():
            # padding by copies adds numbers up, and a GPU may choose an algorithm that does
            return linear.slack if linear.padding_mode == "zeros" and linear.device.type == "cpu" else None
        case Identity() | Reindex() | Matrix() | Diagonal():
            return linear.slack
    return None
