"""A graph as segments and as steps: between two nonlinearities it is one linear map per source, folded as it grows.

Every node's value is a sum of linear maps applied to *sources*: the graph's inputs and the outputs of nonlinear nodes.
Two paths from the same source are added before any norm is taken (x + A x is the map I + A).

The bounds over the whole graph follow (`propagate`). Operator by operator: L(node) <= sum over operands of
norm(operator in that operand) * L(operand), a root sum of squares where the operands land on different entries
(concatenation). Folded: a value that is a sum of linear maps A_j of sources u_j has L <= sum of norm(A_j) L(u_j), and
L <= norm([A_j/t_j]) (sum of t_j^2 L(u_j)^2)^(1/2) for any t_j > 0.

For balls and rounding errors the graph is unrolled into steps (`GraphSteps`): affine maps and primitives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..core.bracket import Evidence
from ..core.budget import check_time, count, in_time
from ..core.errors import NormscopeError
from ..core.log10 import log10
from ..core.rounding import ONE, Upper, root_sum_squares, smallest, total
from .graph.ir import Graph, Node
from .linalg.dense_form import moderate, write_out, written
from .linalg.folding import add, compose
from .linalg.linear_map import Centering, Identity, LinearMap
from .linalg.operator_norms import upper
from .operators import ranges
from .operators.effects import UNKNOWN, Effect, Elementwise, Gain, Linear, Norm, Unbounded
from .operators.local.local import Affine, Builder, Primitive, UnrolledStep
from .operators.ranges import Opaque
from .operators.registry import FAILED, effect_of, lookup

Form = dict[str, LinearMap]
SMALL = 4096
"""Entries of values whose range is taken whatever the clock says."""


@dataclass(frozen=True, slots=True)
class Atom:
    """A nonlinear node: its effect and the forms of its operands (with the effect's `before` map applied)."""

    node: Node
    effect: Effect
    operands: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Segments:
    """The graph as sources and the linear forms between them.

    Attributes:
        graph: the float64 graph.
        effects: every node's effect by name.
        forms: every node's value as linear maps of sources.
        atoms: the nonlinear nodes, in order.
        folder: what was folded so far, for other graphs with the same maps.
    """

    graph: Graph
    effects: dict[str, Effect]
    forms: dict[str, Form]
    atoms: dict[str, Atom]
    folder: Folder

    @property
    def output(self) -> Form:
        """The form of the graph's output."""
        return self.forms[self.graph.output]


def segment(graph: Graph, *, norm: Norm = upper) -> Segments:
    """Read the rules and fold the linear segments of a float64 graph."""
    effects: dict[str, Effect] = {}
    sizes = {item.name: UNKNOWN for item in graph.inputs}
    for node in graph:
        operands = [sizes[name] for name in node.refs]
        effect = effects[node.name] = effect_of(node, operands)
        small = max(math.prod(shape) for shape in (node.shape, *(ref.shape for ref in node.operands))) <= SMALL
        sizes[node.name] = ranges.after(effect, node, operands, norm) if small or in_time() else UNKNOWN
    return fold_segments(graph, effects)


def fold_segments(
    graph: Graph, effects: dict[str, Effect], folder: Folder | None = None, fixed: Container[str] = ()
) -> Segments:
    """Fold the linear segments of a float64 graph whose effects are known; inputs that are `fixed` never move."""
    forms: dict[str, Form] = {
        item.name: {} if item.name in fixed else {item.name: Identity(item.shape)} for item in graph.inputs
    }
    atoms: dict[str, Atom] = {}
    folder = folder or Folder()
    for node in graph:
        effect = effects[node.name]
        if isinstance(effect, Linear):
            form: Form = {}
            for linear, name in zip(effect.maps, node.refs, strict=True):
                for source, earlier in forms[name].items():
                    path = folder.compose(linear, earlier)
                    form[source] = folder.add(form[source], path) if source in form else path
            forms[node.name] = form
            continue
        before = effect.before if isinstance(effect, Gain) else None
        read = tuple(
            {s: folder.compose(before, m) for s, m in forms[name].items()} if before is not None else forms[name]
            for name in node.refs
        )
        atoms[node.name] = Atom(node, effect, read)
        scale = effect.after if isinstance(effect, Gain) else None
        forms[node.name] = {node.name: scale if scale is not None else Identity(node.shape)}
    return Segments(graph, effects, forms, atoms, folder)


class Folder:
    """Composes and adds each pair of maps once, so that equal segments share one object and its norm."""

    def __init__(self, done: Mapping[tuple[Hashable, ...], LinearMap] | None = None) -> None:
        self.done = dict(done or {})

    def compose(self, second: LinearMap, first: LinearMap) -> LinearMap:
        """Return the map that is one after another."""
        return self._once(compose, second, first)

    def add(self, first: LinearMap, second: LinearMap) -> LinearMap:
        """Return the sum of two maps."""
        return self._once(add, first, second)

    def _once(self, join: Callable[[LinearMap, LinearMap], LinearMap], one: LinearMap, other: LinearMap) -> LinearMap:
        key = (join, _key(one), _key(other))
        if key not in self.done:
            self.done[key] = join(one, other)
        return self.done[key]


def _key(linear: LinearMap) -> Hashable:
    """Tell maps apart: those without weights by what they do, so that every LayerNorm shares one centering."""
    if isinstance(linear, Identity):
        return Identity, linear.in_shape, linear.out_shape
    return (Centering, linear.in_shape, linear.dims) if isinstance(linear, Centering) else linear


Bounds = dict[str, Upper]
"""Bounds by name."""
Joints = dict[tuple[tuple[LinearMap, float], ...], Upper]
"""Norms of maps side by side, by the maps and by log10 of how far each carries its source."""
FAR = 250.0
"""Where log10 of a norm is beyond this, on either side, norms that are combined may vanish or overflow."""
JOINT_SIDE = 1024
"""Segments of several sources up to this size are written out side by side."""


class Chain(Protocol):
    """A certificate that follows chains of activations and may know a tighter bound."""

    def carry(self, form: Form, name: str, slope: tuple[float, float] | None, cores: dict[str, Upper]) -> Upper | None:
        """Return a bound on a form from its chain, and remember the chain behind activation `name`."""
        ...


def propagate(
    segments: Segments,
    norm: Norm,
    *,
    fold: bool,
    chain: Chain | None = None,
    start: Mapping[str, Upper] | None = None,
    side: int = JOINT_SIDE,
    joints: Joints | None = None,
) -> dict[str, Upper]:
    """Bound the map from the input to every node of the graph, by name.

    With `fold` also by folded segments, whichever is smaller at each node; `chain` is a certificate consulted at the
    end of every segment. `start` is how far each input can move relative to the change that is measured: ONE if absent,
    ZERO holds it fixed. Segments of several sources up to the size `side` are written out side by side; `joints` holds
    what an earlier pass found of those.
    """
    inputs = {item.name: ONE if start is None else start[item.name] for item in segments.graph.inputs}
    walk = _Propagation(
        segments, norm, inputs, fold=fold, chain=chain, side=side, joints={} if joints is None else joints
    )
    for node in segments.graph:
        effect = segments.effects[node.name]
        if isinstance(effect, Linear):
            walk.linear(node, effect)
        else:
            walk.atom(node, effect)
    walk.finish()
    return walk.values


class _Propagation:
    """The bounds of all values so far, and of the sources of forms: inputs, and nonlinear nodes before `after`."""

    def __init__(
        self,
        segments: Segments,
        norm: Norm,
        inputs: dict[str, Upper],
        *,
        fold: bool,
        chain: Chain | None,
        side: int,
        joints: Joints,
    ) -> None:
        self.segments, self.norm, self.fold, self.chain = segments, norm, fold, chain
        self.side, self.joints = side, joints
        self.inputs = set(inputs)
        self.values, self.cores = dict(inputs), dict(inputs)
        self.ends = _ends(segments) if fold else set()

    def linear(self, node: Node, effect: Linear) -> None:
        """Bound a linear node by its operands and, where a segment ends, by the whole segment."""
        moved = [self.norm(m).times(self.values[name]) for m, name in zip(effect.maps, node.refs, strict=True)]
        inputs = len(set(node.refs)) == len(node.refs) and self.inputs.issuperset(node.refs)
        value = root_sum_squares(moved) if effect.disjoint or inputs else total(moved)
        if node.name in self.ends:
            value = smallest([value, self.form(self.segments.forms[node.name])])
        self.values[node.name] = value

    def atom(self, node: Node, effect: Effect) -> None:
        """Bound a nonlinear node: its core, and its value behind the `after` map."""
        forms = self.segments.atoms[node.name].operands
        inner = [self._operand(node, effect, name, form) for name, form in zip(node.refs, forms, strict=True)]
        value = self.cores[node.name] = atom_bound(effect, inner)
        if isinstance(effect, Gain) and effect.after is not None:
            value = self.norm(effect.after).times(value)
        if isinstance(effect, Gain) and effect.whole is not None:
            value = smallest([value, effect.whole.times(self.values[node.refs[0]])])
        self.values[node.name] = value

    def _operand(self, node: Node, effect: Effect, name: str, form: Form) -> Upper:
        """Bound what a nonlinear node reads, behind its `before` map."""
        bounds = [self.values[name]]
        if isinstance(effect, Gain) and effect.before is not None:
            bounds = [self.norm(effect.before).times(self.values[name])]
            bounds += [self.form(form)] if self.fold else []
        slope = effect.slope if isinstance(effect, Elementwise) else None
        return self._with_chain(bounds, form, node.name, slope)

    def finish(self) -> None:
        """Let the chain that ends at the output count."""
        output = self.segments.graph.output
        self.values[output] = self._with_chain([self.values[output]], self.segments.output, output, None)

    def _with_chain(self, bounds: list[Upper], form: Form, name: str, slope: tuple[float, float] | None) -> Upper:
        """Return the smallest of some bounds on a form and, where a chain knows one, of that."""
        tighter = None if self.chain is None else self.chain.carry(form, name, slope, self.cores)
        return smallest(bounds if tighter is None else [*bounds, tighter])

    def form(self, form: Form) -> Upper:
        """Bound a value that is a sum of linear maps of sources; independent inputs are a root sum of squares."""
        norms = {source: self.norm(linear) for source, linear in form.items()}
        direct = [norms[source].times(self.cores[source]) for source in form if source in self.inputs]
        others = [norms[source].times(self.cores[source]) for source in form if source not in self.inputs]
        plain = total([*([root_sum_squares(direct)] if direct else []), *others])
        joint = _joint(form, self.cores, norms, self.side, self.joints)
        return plain if joint is None else smallest([plain, joint])


def _joint(form: Form, cores: Bounds, norms: Bounds, side: int, joints: Joints) -> Upper | None:
    """Bound several maps side by side, scaled by t_j = sqrt(norm(A_j)/L(u_j)): never above their sum."""
    linears = list(form.values())
    size = sum(linear.in_size for linear in linears)
    if len(form) < 2 or max(size, linears[0].out_size) > side or not all(map(moderate, linears)):
        return None
    terms = {source: norms[source].times(cores[source]).log10 for source in form}
    top = max(terms.values())
    if not math.isfinite(top) or any(abs(norms[s].log10) > FAR or top - terms[s] > FAR for s in form):
        return None
    key = tuple(zip(linears, terms.values(), strict=True))
    if key not in joints:
        if not in_time(sum(written(linear) for linear in linears) + float(size) ** 3, linears[0].device):
            return None
        joints[key] = _side_by_side(form, terms, norms)
    return joints[key]


def _side_by_side(form: Form, terms: Mapping[str, float], norms: Bounds) -> Upper:
    """Write maps out side by side, each relative to the largest term, and bound the whole."""
    top = max(terms.values())
    # A_j/t_j = A_j/norm(A_j) * sqrt(norm(A_j) L_j)
    scales = {source: 10.0 ** (terms[source] / 2 - top / 2 - norms[source].log10) for source in form}
    parts = [write_out(linear) * scales[source] for source, linear in form.items()]
    device = next((p.device for p in parts if p.device.type != "cpu"), parts[0].device)
    matrix = torch.cat([p.to(device) for p in parts], dim=1)
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    joint = math.sqrt(max(float(torch.linalg.eigvalsh(gram)[-1]), 0.0))
    spread = math.fsum(10.0 ** (term - top) for term in terms.values())
    return Upper(top + log10(joint * math.sqrt(spread)) + 1e-10, Evidence.NUMERICAL, "joint norm")


def atom_bound(effect: Effect, operands: list[Upper]) -> Upper:
    """Bound the core of a nonlinear node (its `after` map is part of the next segment)."""
    match effect:
        case Elementwise():
            return effect.gain.times(operands[0])
        case Gain():
            moved = [gain.times(operand) for gain, operand in zip(effect.gains, operands, strict=True)]
            return root_sum_squares(moved) if effect.joint else total(moved)
        case Unbounded():
            return Upper.infinite(effect.reason)
    raise NormscopeError(f"unknown effect {effect!r}")


def _ends(segments: Segments) -> set[str]:
    """Names of the linear nodes where a segment ends: read by a nonlinear node or a concatenation, or the output."""
    ends = {segments.graph.output}
    for node in segments.graph:
        effect = segments.effects[node.name]
        if not isinstance(effect, Linear) or effect.disjoint:
            ends.update(node.refs)
    return ends


STEPS_RTOL = 1e-9
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
        return torch.allclose(want, got, rtol=0.0, atol=STEPS_RTOL * max(scale, 1.0), equal_nan=True)

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
