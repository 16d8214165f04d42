"""The derivative of a network over a domain, as a graph whose effects hold at every input inside.

At every input of the domain the Jacobian of the network is a product and sum of the derivatives of its operators. An
operator becomes one or several *pieces* with the effects that global bounds are made of, each true of the derivative at
every input inside: a fixed linear map, entries with slopes in an interval, a gain per operand. They are read off what
its steps do between the limits that were recorded (`rules/local/`), as over a ball.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import torch
from torch import Tensor

from ...core.bracket import Evidence
from ...core.errors import NormscopeError
from ...core.rounding import ONE, Upper, numerical
from ..graph.ir import Node, Ref, Unit
from ..linalg.linear_map import Diagonal, Identity
from ..operators.effects import UNKNOWN, Effect, Elementwise, Gain, Linear, Range, Unbounded
from ..operators.local.entry_sets import Normalize, Softmax
from ..operators.local.local import Affine, Enclosure, OperandShare, Shape, UnrolledStep
from ..operators.local.products import MatrixProduct, Multiply
from ..operators.local.scalar import Scalar
from ..operators.registry import effect_of, sets_of
from ..segments import GraphSteps, Segments, evaluate, fold_segments
from .conditions import DomainCondition, Interval, LeastMeanSquare, Sizes, StepGains
from .gains import LocalGain

aten = torch.ops.aten
Limits = Mapping[str, Tensor]
ATTENTION_LANCZOS_STEPS = 24
SLOPE_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class DerivativeValue:
    """A value of the unrolled derivative: its name, what it reads, its shape and its effect."""

    name: str
    refs: tuple[str, ...]
    shape: tuple[int, ...]
    effect: Effect


def derivative(steps: GraphSteps, limits: Limits) -> Segments:
    """Return the segments of a network's derivative: linear operators as they are, the others as their pieces."""
    graph, effects = steps.graph, dict[str, Effect]()
    treated, read = treatments(steps)
    shapes = {item.name: item.shape for item in graph.inputs}
    nodes: list[Node] = []
    for node in graph:
        shapes[node.name] = node.shape
        if node.name not in read:
            continue
        if node.name not in treated:
            nodes.append(node)
            effects[node.name] = steps.effects[node.name]
            continue
        for piece in treated[node.name].pieces(limits):
            shapes[piece.name], effects[piece.name] = piece.shape, piece.effect
            refs = tuple(Ref(name, shapes[name]) for name in piece.refs)
            nodes.append(replace(node, name=piece.name, op=_PIECE, args=refs, kwargs={}, index=None, shape=piece.shape))
    return fold_segments(replace(graph, nodes=tuple(nodes)), effects)


def _no_value(*_: Tensor) -> NoReturn:
    raise NormscopeError("a piece of a derivative has no value")


_PIECE = Unit("derivative", _no_value)


class Treatment(ABC):
    """One operator: what is recorded of it, and its pieces once the limits of that are known."""

    def __init__(self, node: Node, refs: tuple[str, ...], conditions: Sequence[DomainCondition]) -> None:
        self.node, self.refs, self.conditions = node, refs, tuple(conditions)

    @abstractmethod
    def pieces(self, limits: Limits) -> list[DerivativeValue]:
        """Return the pieces; the last one bears the node's name."""

    def whole(self, effect: Effect) -> list[DerivativeValue]:
        """Return the node as one piece."""
        return [DerivativeValue(self.node.name, self.refs, self.node.shape, effect)]


class GivenRule(Treatment):
    """The operator as its rule knows it, with how large its operands get where the rule needs that."""

    def __init__(self, node: Node) -> None:
        self.effect = effect_of(node, [UNKNOWN] * len(node.refs))
        read = node.refs if isinstance(self.effect, Unbounded) else ()
        sizes = [Sizes(f"{node.name}:size{i}", node, node.name, (name,)) for i, name in enumerate(read)]
        super().__init__(node, node.refs, sizes)

    def pieces(self, limits: Limits) -> list[DerivativeValue]:
        """Ask the rule again, where something was recorded for it."""
        sizes = [Range(*map(float, limits[condition.key])) for condition in self.conditions]
        return self.whole(effect_of(self.node, sizes) if sizes else self.effect)


class MeasuredPart(Treatment):
    """A part of the network by the norms of its Jacobian at points, one for every value that it reads.

    This is for attention, whose steps one by one say far less than their product.
    """

    def __init__(self, node: Node, refs: tuple[str, ...], steps: Sequence[UnrolledStep]) -> None:
        names = [f"its gain in operand {i + 1}" if len(refs) > 1 else "its gain" for i in range(len(refs))]
        conditions = [
            LocalGain(
                f"{node.name}:attention{i}", node, node.name, refs, tuple(steps), name, ref, ATTENTION_LANCZOS_STEPS
            )
            for i, (ref, name) in enumerate(zip(refs, names, strict=True))
        ]
        super().__init__(node, refs, conditions)

    def pieces(self, limits: Limits) -> list[DerivativeValue]:
        """Return one gain for every value that is read."""
        gains = [float(limits[condition.key][0]) for condition in self.conditions]
        if not all(map(math.isfinite, gains)):
            return self.whole(Unbounded(reason=f"attention without finite weights in {self.node.where}"))
        return self.whole(Gain(gains=tuple(map(numerical, gains))))


class StepByStep(Treatment):
    """An operator as its steps, each of which is asked what it does between the limits of its operands."""

    def __init__(
        self, node: Node, steps: Sequence[UnrolledStep], shapes: Mapping[str, Shape], axis: int | None
    ) -> None:
        self.constants: dict[str, Tensor] = {}
        self.steps: list[UnrolledStep] = []
        self.by_operand: dict[tuple[str, int], Interval | LeastMeanSquare] = {}
        self.by_step: dict[str, StepGains] = {}
        for step in steps:
            if step.name != node.name and all(name in self.constants for name in step.operands):
                self.constants[step.name] = evaluate(step, [self.constants[name] for name in step.operands], 1)
                continue
            self.steps.append(step)
            if isinstance(step.operation, MatrixProduct | Softmax):
                key = f"{step.name}:gains"
                self.by_step[step.name] = StepGains(key, node, step.name, step.operands, step.operation)
            elif not isinstance(step.operation, Affine):
                for i, name in enumerate(step.operands):
                    if name in self.constants:
                        continue
                    place, shape = (f"{step.name}:{i}", node, step.name, (name,)), shapes[name]
                    if isinstance(step.operation, Normalize):
                        sets = sets_of(node)
                        classes = 1 if sets is None or sets.groups is None else sets.groups
                        self.by_operand[step.name, i] = LeastMeanSquare(*place, shape, classes)
                    else:
                        own_axis = axis if len(shape) == len(node.shape) else None
                        self.by_operand[step.name, i] = Interval(*place, shape, own_axis)
        super().__init__(node, node.refs, [*self.by_operand.values(), *self.by_step.values()])

    def pieces(self, limits: Limits) -> list[DerivativeValue]:
        """Turn every step into pieces."""
        pieces: list[DerivativeValue] = []
        for step in self.steps:
            operands = [(i, name) for i, name in enumerate(step.operands) if name not in self.constants]
            refs = tuple(name for _, name in operands)
            if isinstance(step.operation, Affine):
                maps = tuple(step.operation.maps[i] for i, _ in operands)
                effect: Effect = Linear(maps=maps, disjoint=step.operation.disjoint)
            elif step.name in self.by_step:
                gains = [float(limits[self.by_step[step.name].key][i]) for i, _ in operands]
                effect = Unbounded(reason=f"no finite gain over the domain in {self.node.where}")
                if all(map(math.isfinite, gains)):
                    effect = Gain(gains=tuple(map(numerical, gains)))
            else:
                boxes = [self._enclosure(step, i, limits) for i in range(len(step.operands))]
                local = step.operation.local(boxes)
                reason = (local.reason or f"an unbounded factor in {self.node.where}").replace("the ball", "the domain")
                names = [step.name] if len(operands) == 1 else [f"{step.name}~{i}" for i, _ in operands]
                for (i, operand), name in zip(operands, names, strict=True):
                    pieces += _share(name, operand, step, local.parts[i], reason)
                if len(operands) == 1:
                    continue
                refs, effect = tuple(names), Linear(maps=tuple(Identity(step.shape) for _ in names))
            pieces.append(DerivativeValue(step.name, refs, step.shape, effect))
        return pieces

    def _enclosure(self, step: UnrolledStep, i: int, limits: Limits) -> Enclosure:
        """Return where an operand of a step lies inside the domain."""
        if (step.name, i) in self.by_operand:
            condition = self.by_operand[step.name, i]
            return condition.enclosure(limits[condition.key])
        constant = self.constants[step.operands[i]]
        return Enclosure.box(constant, constant)


class Normalizer(StepByStep):
    """A normalizer with a positive eps, in the shape of its operator: its centring and scale fold with what is around.

    Its steps in the shape of its sets would hide from other methods that all tokens are treated alike.
    """

    def __init__(self, node: Node, effect: Gain, steps: Sequence[UnrolledStep], shapes: Mapping[str, Shape]) -> None:
        super().__init__(node, steps, shapes, None)
        self.effect = effect

    def pieces(self, limits: Limits) -> list[DerivativeValue]:
        """Fold one factor per group or channel into the scale behind the core; a single one into the gain."""
        ((place, condition),) = self.by_operand.items()
        (step,) = [step for step in self.steps if step.name == place[0]]
        assert isinstance(condition, LeastMeanSquare)
        assert isinstance(step.operation, Normalize)
        share = step.operation.local([condition.enclosure(limits[condition.key])]).parts[0]
        assert share.set_gains is not None
        gains = share.set_gains[0, : condition.classes]
        if len(gains) == 1:
            gain = Upper.of(float(gains[0]), Evidence.PROVEN, "least variance", allowance=1e-15)
            around = self.effect.whole
            if around is not None and math.isfinite(around.log10):  # it speaks of zero variance
                root = Upper.of(math.sqrt(step.operation.eps), Evidence.PROVEN, allowance=1e-15)
                around = around.times(root, gain).named("least variance")
            return self.whole(replace(self.effect, gains=(gain,), whole=around))
        factors = gains.repeat_interleave(self.node.shape[1] // len(gains))
        scale = factors.reshape(-1, *(1,) * (len(self.node.shape) - 2))
        if isinstance(self.effect.after, Diagonal):
            scale = self.effect.after.scale.to(scale) * scale
        return self.whole(replace(self.effect, gains=(ONE,), after=Diagonal(scale, self.node.shape), whole=None))


def _share(name: str, operand: str, step: UnrolledStep, share: OperandShare, reason: str) -> list[DerivativeValue]:
    """Return one operand's share in the change of a step: entries with slopes and a scale behind, or a gain.

    `reason` is said where there is no finite one.
    """
    core: Effect | None
    if share.slopes is not None:
        # over an interval the slopes of products and of piecewise linear functions are exact
        straight = isinstance(step.operation, Scalar) and step.operation.margin == 0.0 == step.operation.wobble
        exact = straight or isinstance(step.operation, Multiply)
        low, high = (side[0] for side in share.slopes)
        finite = bool((low.isfinite() & high.isfinite()).all())
        core, scale = slopes_as_scale(low, high, exact=exact) if finite else (None, None)
    else:
        gain, scale = float(share.gain[0]), None
        finite = math.isfinite(gain)
        core = Gain(gains=(numerical(gain),)) if finite else None
    core = core if finite else Unbounded(reason=reason)
    if scale is None:
        effect = Linear(maps=(Identity(step.shape),)) if core is None else core
        return [DerivativeValue(name, (operand,), step.shape, effect)]
    behind = Linear(maps=(Diagonal(scale, step.shape),))
    if core is None:
        return [DerivativeValue(name, (operand,), step.shape, behind)]
    inner = f"{name}~core"
    return [DerivativeValue(inner, (operand,), step.shape, core), DerivativeValue(name, (inner,), step.shape, behind)]


def slopes_as_scale(a: Tensor, b: Tensor, *, exact: bool) -> tuple[Elementwise | None, Tensor | None]:
    """Split a diagonal matrix with entries in [a_i, b_i], all finite, into s_i t_i, t in one interval.

    With A the least a_i and B the largest b_i, s_i is the smallest scale with [a_i, b_i] inside s_i [A, B], at most 1:
    entries that never move have the scale 0, and the interval is not wider than [A, B]. Returns the effect with the
    interval of t, None where every t is 1; and the scales, as small a tensor as broadcasts to the shape, None where all
    are 1. The evidence is NUMERICAL unless the slopes are exact and need not be divided.
    """
    if bool((a == b).all()):
        return None, None if bool((a == 1).all()) else _narrowed(a)
    low, high = float(a.amin()), float(b.amax())
    up = b / high if high > 0 else torch.zeros_like(b)
    down = a / low if low < 0 else torch.zeros_like(a)
    scale = torch.maximum(up, down)
    whole = bool(((scale == 0) | (scale == 1)).all())
    if not whole:
        scale = torch.where(scale > 0, scale * (1 + SLOPE_ROUNDING), 0.0)
    if low > 0 or high < 0:  # the end nearer to 0 is not scaled with the other one
        kept = scale > 0
        near = a if low > 0 else b
        ratio = (near[kept] / scale[kept]).abs().amin() * (1 - SLOPE_ROUNDING)
        low, high = (float(ratio), high) if low > 0 else (low, -float(ratio))
    evidence = Evidence.PROVEN if exact and whole else Evidence.NUMERICAL
    core = Elementwise(slope=(low, high), evidence=evidence)
    return core, None if bool((scale == 1).all()) else _narrowed(scale)


def _narrowed(scale: Tensor) -> Tensor:
    """Return a tensor that broadcasts to the same entries, one entry wide where they do not differ."""
    for dim in range(scale.ndim):
        first = scale.narrow(dim, 0, 1)
        if scale.shape[dim] > 1 and bool((scale == first).all()):
            scale = first
    return scale.contiguous()


def treatments(steps: GraphSteps) -> tuple[dict[str, Treatment], set[str]]:
    """Return the treatment of every nonlinear node of an unrolled graph, by name, and the names of all that is read.

    What is a part of another node's treatment is not read, and has none of its own.
    """
    by_node = steps.by_node()
    producers = {node.name: node for node in steps.graph}
    kinds = {
        node.name: [type(step.operation) for step in by_node[id(node)] if not isinstance(step.operation, Affine)]
        for node in steps.graph
    }
    by_name: dict[str, Treatment] = {}
    for node in steps.graph:
        own, effect = kinds[node.name], steps.effects[node.name]
        if isinstance(effect, Linear) or node.name in by_name:
            continue
        treated: Treatment
        if node.op is aten.scaled_dot_product_attention.default and own == [MatrixProduct, Softmax, MatrixProduct]:
            refs, part = _attention(node, steps, producers, kinds)
            treated = MeasuredPart(part[-1], refs, [step for other in part for step in by_node[id(other)]])
        elif own == [Normalize] and isinstance(effect, Gain) and len(effect.gains) == 1:
            treated = Normalizer(node, effect, by_node[id(node)], steps.shapes)
        elif own and all(issubclass(kind, Scalar | Multiply | MatrixProduct | Normalize | Softmax) for kind in own):
            treated = StepByStep(node, by_node[id(node)], steps.shapes, channel_axis(node, producers))
        else:
            treated = GivenRule(node)
        by_name[treated.node.name] = treated
    read, waiting = {steps.output}, [steps.output]
    while waiting:
        name = waiting.pop()
        refs = by_name[name].refs if name in by_name else producers[name].refs if name in producers else ()
        waiting += [ref for ref in refs if ref not in read]
        read.update(refs)
    return {name: treatment for name, treatment in by_name.items() if name in read}, read


def _attention(
    node: Node, steps: GraphSteps, producers: Mapping[str, Node], kinds: Mapping[str, Sequence[type]]
) -> tuple[tuple[str, ...], list[Node]]:
    """Return what an attention is measured against, and the nodes that are measured with it, in order.

    Where all that it reads are linear maps of one value, that is the value: the maps, a normalizer before them and the
    linear maps behind the attention are part of it.
    """
    source, part = common_source(node, steps, producers)
    if source is None:
        return tuple(dict.fromkeys(node.refs)), [node]
    if kinds.get(source) == [Normalize] and len(producers[source].refs) == 1:
        source, part = producers[source].refs[0], [producers[source], *part]
    part.append(node)
    while part[-1].name != steps.output:
        readers = [other for other in steps.graph if part[-1].name in other.refs]
        if len(readers) != 1 or not isinstance(steps.effects[readers[0].name], Linear) or len(readers[0].refs) != 1:
            break
        part += readers
    return (source,), part


def common_source(node: Node, steps: GraphSteps, producers: Mapping[str, Node]) -> tuple[str | None, list[Node]]:
    """Return the value that all operands of a node are linear maps of, the earliest there is, and the maps' nodes."""

    def is_map(name: str) -> bool:
        return name in producers and isinstance(steps.effects[name], Linear) and len(producers[name].refs) == 1

    chains = []
    for name in dict.fromkeys(node.refs):
        chain = [name]
        while is_map(chain[-1]):
            chain.append(producers[chain[-1]].refs[0])
        chains.append(chain)
    shared = [name for name in chains[0] if all(name in chain for chain in chains)]
    if not shared:
        return None, []
    passed = {name for chain in chains for name in chain[: chain.index(shared[-1])]}
    return shared[-1], [other for other in steps.graph if other.name in passed]


_FIRST = ("conv", "padded_convolution", "batch_norm", "_native_batch_norm", "group_norm", "instance_norm", "max_pool")
_LAST = ("linear", "layer_norm", "rms", "matmul", "mm", "bmm", "addmm", "scaled_dot_product")
_SHAPING = ("view", "reshape", "permute", "transpose", "flatten", "squeeze", "unsqueeze", "t", "movedim")


def channel_axis(node: Node, producers: Mapping[str, Node]) -> int | None:
    """Return the dimension of channels of an entrywise node: behind convolutions the second, behind `linear` the last.

    It decides how finely ranges are recorded, and nothing else.
    """
    rank, here = len(node.shape), node
    if rank < 3:
        return rank - 1 if rank else None
    while here.refs and here.refs[0] in producers:
        here = producers[here.refs[0]]
        if here.operator in _SHAPING or len(here.shape) != rank:
            break
        if here.operator.startswith(_LAST):
            return rank - 1
        if here.operator.startswith(_FIRST):
            return 1
    return rank - 1 if rank == 3 else 1
