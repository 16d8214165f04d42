"""How each operator of a network is treated over a domain: what is recorded of it, and what that says of its derivative.

At every input of the domain the Jacobian of the network is a product and sum of the derivatives of its operators. An
operator becomes one or several *pieces* with the effects that global bounds are made of, each true of the derivative at
every input inside: a fixed linear map, entries with slopes in an interval, a gain per operand.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...core.bracket import Evidence
from ...core.rounding import ONE, Upper, numerical
from ...graph.ir import Node, Ref
from ...linalg.linear_map import Diagonal, Identity
from ...rules.effects import UNKNOWN, Effect, Elementwise, Gain, Linear, Range, Unbounded
from ...rules.local.local import Affine, Step
from ...rules.local.products import MatrixProduct, Multiply
from ...rules.local.scalar import Scalar
from ...rules.local.sets import Normalize, Softmax
from ...rules.registry import effect_of
from ..balls.unrolled import Steps
from .attention import AttentionGains
from .conditions import Condition, Interval, MatrixNorm, Sizes, SoftmaxGain, Spread
from .gains import LocalGain
from .slopes import sloped

aten = torch.ops.aten
Limits = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Piece:
    """A value of the unrolled derivative: its name, what it reads, its shape and its effect."""

    name: str
    refs: tuple[str, ...]
    shape: tuple[int, ...]
    effect: Effect


class Treatment(ABC):
    """One operator: its conditions, and its pieces once their limits are known."""

    def __init__(self, node: Node, effect: Effect, steps: Sequence[Step]) -> None:
        self.node, self.effect, self.steps = node, effect, steps
        self.conditions: tuple[Condition, ...] = ()

    @abstractmethod
    def pieces(self, limits: Limits) -> list[Piece]:
        """Return the pieces; the last one bears the node's name."""

    def whole(self, effect: Effect, refs: tuple[str, ...] | None = None) -> list[Piece]:
        """Return the node as one piece."""
        return [Piece(self.node.name, self.node.refs if refs is None else refs, self.node.shape, effect)]


class Given(Treatment):
    """The operator as its rule knows it, with how large its operands get where the rule needs that."""

    def __init__(self, node: Node, effect: Effect, steps: Sequence[Step]) -> None:
        super().__init__(node, effect, steps)
        if isinstance(effect, Unbounded):
            self.conditions = tuple(
                Sizes(f"{node.name}:size{i}", node, node.name, (name,)) for i, name in enumerate(node.refs)
            )

    def pieces(self, limits: Limits) -> list[Piece]:
        """Ask the rule again."""
        if not self.conditions:
            return self.whole(self.effect)
        sizes = [Range(*map(float, limits[condition.key])) for condition in self.conditions]
        return self.whole(effect_of(self.node, sizes))


class Normalizer(Treatment):
    """A normalizer with a positive eps: its gain at the least variance of every group or channel."""

    def __init__(self, node: Node, effect: Effect, steps: Sequence[Step]) -> None:
        super().__init__(node, effect, steps)
        step = next(step for step in steps if isinstance(step.operation, Normalize))
        assert isinstance(step.operation, Normalize)
        self.eps = step.operation.eps
        self.condition = Spread(f"{node.name}:spread", node, step.name, step.operands, classes(node))
        self.conditions = (self.condition,)
        self.read_inside = False

    @property
    def scale(self) -> Tensor | None:
        """The scale behind the core, of every entry; None where there is none."""
        after = self.effect.after if isinstance(self.effect, Gain) else None
        return after.scale.double().expand(self.node.shape) if isinstance(after, Diagonal) else None

    def pieces(self, limits: Limits) -> list[Piece]:
        """Fold one factor per class into the scale behind the core; a single class into the gain."""
        effect = self.effect
        assert isinstance(effect, Gain)
        inverse = inverse_deviations(limits[self.condition.key], self.eps)
        if len(inverse) == 1:
            gain = Upper.of(float(inverse[0]), Evidence.PROVEN, "least variance", allowance=1e-15)
            around = None
            if effect.whole is not None and math.isfinite(effect.whole.log10):
                root = Upper.of(math.sqrt(self.eps), Evidence.PROVEN, allowance=1e-15)
                around = effect.whole.times(root, gain).named("least variance")
            return self._split(replace(effect, gains=(gain,), whole=around))
        channels = inverse.repeat_interleave(self.node.shape[1] // len(inverse))
        factors = channels.reshape(-1, *(1,) * (len(self.node.shape) - 2))
        scale = effect.after.scale.to(factors) * factors if isinstance(effect.after, Diagonal) else factors
        return self._split(replace(effect, gains=(ONE,), after=Diagonal(scale, self.node.shape), whole=None))

    def _split(self, effect: Gain) -> list[Piece]:
        """Return the core and the scale behind it as two pieces, where somebody reads the core alone."""
        if not self.read_inside or effect.after is None:
            return self.whole(effect)
        core, behind = replace(effect, after=None, whole=None), Linear(maps=(effect.after,))
        inner = core_of(self.node.name)
        return [Piece(inner, self.node.refs, self.node.shape, core), *self.whole(behind, (inner,))]


class SoftmaxWeights(Treatment):
    """Softmax over one dimension."""

    def __init__(self, node: Node, effect: Effect, steps: Sequence[Step]) -> None:
        super().__init__(node, effect, steps)
        step = next(step for step in steps if isinstance(step.operation, Softmax))
        self.condition = SoftmaxGain(f"{node.name}:softmax", node, step.name, (step.name,))
        self.conditions = (self.condition,)

    def pieces(self, limits: Limits) -> list[Piece]:
        """Take the largest gain."""
        assert isinstance(self.effect, Gain)
        gain = numerical(float(limits[self.condition.key][0]))
        return self.whole(replace(self.effect, gains=(gain,)))


class Attention(Treatment):
    """Softmax attention: its gains at a point."""

    def __init__(self, node: Node, effect: Effect, steps: Sequence[Step]) -> None:
        super().__init__(node, effect, steps)
        products = [step for step in steps if isinstance(step.operation, MatrixProduct)]
        scores, last = products[0], products[-1]
        arguments = node.bound()
        given = arguments.get("scale")
        factor = 1.0 / math.sqrt(arguments["query"].shape[-1]) if given is None else abs(float(given))
        reads = (*scores.operands, *last.operands)
        self.condition = AttentionGains(f"{node.name}:attention", node, last.name, reads, factor)
        self.conditions = (self.condition,)
        self.spread = {  # heads or samples that share an operand see the same change
            name: math.prod(node.shape[:-2]) / max(math.prod(arguments[name].shape[:-2]), 1)
            for name in ("query", "key", "value")
        }

    def pieces(self, limits: Limits) -> list[Piece]:
        """One gain per operand that varies."""
        arguments = self.node.bound()
        found = dict(zip(("query", "key", "value", "mask"), map(float, limits[self.condition.key]), strict=True))
        gains = [
            found[name] * math.sqrt(self.spread[name])
            for name in ("query", "key", "value")
            if isinstance(arguments[name], Ref)
        ]
        mask = arguments.get("attn_mask")
        if isinstance(mask, Ref):
            scores = math.prod(self.node.shape[:-1]) * arguments["key"].shape[-2]
            gains.append(found["mask"] * math.sqrt(scores / max(math.prod(mask.shape), 1)))
        if not all(map(math.isfinite, gains)):
            return self.whole(Unbounded(reason=f"attention without finite weights in {self.node.where}"))
        return self.whole(Gain(gains=tuple(numerical(gain) for gain in gains)))


class SelfAttention(Treatment):
    """Softmax attention whose queries, keys and values are linear maps of one value: its gain in that value.

    Behind a normalizer the value is its core: the scale is part of the maps.
    """

    def __init__(
        self, node: Node, effect: Effect, steps: Sequence[Step], source: str, normalizer: Normalizer | None
    ) -> None:
        super().__init__(node, effect, steps)
        scale = None
        self.source = source
        if normalizer is not None and normalizer.condition.classes == 1 and normalizer.scale is not None:
            normalizer.read_inside, scale = True, normalizer.scale
            self.source = core_of(source)
        self.condition = LocalGain(
            f"{node.name}:attention", node, node.name, (source,), tuple(steps), node.name, "its gain", 24, scale
        )
        self.conditions = (self.condition,)

    def pieces(self, limits: Limits) -> list[Piece]:
        """One gain, in the common value."""
        gain = float(limits[self.condition.key][0])
        if not math.isfinite(gain):
            return self.whole(Unbounded(reason=f"attention without finite weights in {self.node.where}"))
        return self.whole(Gain(gains=(numerical(gain),)), (self.source,))


class Unrolled(Treatment):
    """An operator as its steps: entrywise functions, products, matrix products, normalizers without eps."""

    def __init__(
        self,
        node: Node,
        effect: Effect,
        steps: Sequence[Step],
        shapes: Mapping[str, tuple[int, ...]],
        axis: int | None,
    ) -> None:
        super().__init__(node, effect, steps)
        constant = [step for step in steps if isinstance(step.operation, Affine) and not step.operands]
        self.constants = {step.name: getattr(step.operation, "constant", None) for step in constant}
        self.at: dict[tuple[str, int], Condition] = {}
        for step in steps:
            for i, name in enumerate(step.operands):
                if name in self.constants or isinstance(step.operation, Affine):
                    continue
                key, shape = f"{step.name}:{i}", shapes[name]
                if isinstance(step.operation, Scalar | Multiply):
                    place = axis if len(shape) == len(node.shape) else None
                    found: Condition = Interval(key, node, step.name, (name,), shape, place)
                elif isinstance(step.operation, MatrixProduct):
                    found = MatrixNorm(key, node, step.name, (name,))
                else:
                    found = Spread(key, node, step.name, (name,), 1)
                self.at[step.name, i] = found
        self.conditions = tuple(self.at.values())

    def pieces(self, limits: Limits) -> list[Piece]:
        """Turn every step into pieces."""
        found: list[Piece] = []
        for step in self.steps:
            if step.name in self.constants:
                continue
            match step.operation:
                case Affine():
                    found.append(self._affine(step, step.operation))
                case Scalar():
                    found += self._scalar(step, step.operation, limits)
                case Multiply():
                    found += self._multiply(step, limits)
                case MatrixProduct():
                    found.append(self._matrix_product(step, limits))
                case Normalize():
                    inverse = inverse_deviations(limits[self.at[step.name, 0].key], step.operation.eps)
                    effect = self._gain(step, [float(inverse[0])])
                    found.append(Piece(step.name, step.operands, step.shape, effect))
        return found

    def _affine(self, step: Step, affine: Affine) -> Piece:
        pairs = [(m, name) for m, name in zip(affine.maps, step.operands, strict=True) if name not in self.constants]
        effect = Linear(maps=tuple(m for m, _ in pairs), disjoint=affine.disjoint)
        return Piece(step.name, tuple(name for _, name in pairs), step.shape, effect)

    def _scalar(self, step: Step, scalar: Scalar, limits: Limits) -> list[Piece]:
        condition = self.at[step.name, 0]
        assert isinstance(condition, Interval)
        low, high = condition.bounds(limits[condition.key])
        a, b = (x[0] for x in scalar.slopes(low[None].contiguous(), high[None].contiguous()))
        exact = scalar.margin == 0.0 and scalar.wobble == 0.0
        return self._entrywise(step.name, step.operands[0], a, b, step.shape, exact, scalar.reason)

    def _entrywise(
        self, name: str, operand: str, a: Tensor, b: Tensor, shape: tuple[int, ...], exact: bool, reason: str
    ) -> list[Piece]:
        if not bool((a.isfinite() & b.isfinite()).all()):
            reason = reason.replace("within the ball", "within the domain").replace("over the ball", "over the domain")
            return [Piece(name, (operand,), shape, Unbounded(reason=reason))]
        core, scale = sloped(a, b, exact=exact)
        if scale is None:
            return [Piece(name, (operand,), shape, core if core is not None else Linear(maps=(Identity(shape),)))]
        behind = Linear(maps=(Diagonal(scale, shape),))
        if core is None:
            return [Piece(name, (operand,), shape, behind)]
        inner = f"{name}~core"
        return [Piece(inner, (operand,), shape, core), Piece(name, (inner,), shape, behind)]

    def _multiply(self, step: Step, limits: Limits) -> list[Piece]:
        left, right = step.operands
        for one, other in ((left, right), (right, left)):
            if one in self.constants:
                constant = self.constants[one]
                assert constant is not None
                effect = Linear(maps=(Diagonal(constant.double().expand(step.shape), step.shape),))
                return [Piece(step.name, (other,), step.shape, effect)]
        found: list[Piece] = []
        for i, side in enumerate(("left", "right")):
            condition = self.at[step.name, 1 - i]
            assert isinstance(condition, Interval)
            a, b = condition.bounds(limits[condition.key])
            found += self._entrywise(
                f"{step.name}~{side}", step.operands[i], a, b, step.shape, True, f"an unbounded factor in {self.node.where}"
            )
        both = Linear(maps=(Identity(step.shape), Identity(step.shape)))
        return [*found, Piece(step.name, (f"{step.name}~left", f"{step.name}~right"), step.shape, both)]

    def _matrix_product(self, step: Step, limits: Limits) -> Piece:
        gains, refs = [], []
        for i, name in enumerate(step.operands):
            if name in self.constants:
                continue
            other = step.operands[1 - i]
            if other in self.constants:
                constant = self.constants[other]
                assert constant is not None
                size = float(torch.linalg.matrix_norm(constant.double(), ord=2).amax()) * (1 + 1e-9)
            else:
                size = float(limits[self.at[step.name, 1 - i].key][0])
            gains.append(size)
            refs.append(name)
        return Piece(step.name, tuple(refs), step.shape, self._gain(step, gains))

    def _gain(self, step: Step, gains: Sequence[float]) -> Effect:
        if not all(map(math.isfinite, gains)):
            return Unbounded(reason=f"no finite gain over the domain in {self.node.where}")
        return Gain(gains=tuple(numerical(gain) for gain in gains))


def treatments(steps: Steps) -> dict[str, Treatment]:
    """Return the treatment of every nonlinear node of an unrolled graph, by name."""
    producers, by_node = {node.name: node for node in steps.graph}, steps.by_node()
    found: dict[str, Treatment] = {}
    for node in steps.graph:
        effect, own = steps.effects[node.name], by_node.get(id(node), [])
        if isinstance(effect, Linear):
            continue
        primitives = [step.operation for step in own if not isinstance(step.operation, Affine)]
        kinds = [type(primitive) for primitive in primitives]
        if kinds.count(Normalize) == 1 and len(kinds) == 1 and isinstance(effect, Gain) and len(effect.gains) == 1:
            found[node.name] = Normalizer(node, effect, own)
        elif node.op is aten.scaled_dot_product_attention.default and kinds == [MatrixProduct, Softmax, MatrixProduct]:
            found[node.name] = _attention(node, steps, by_node, found)
        elif kinds == [Softmax] and isinstance(effect, Gain):
            found[node.name] = SoftmaxWeights(node, effect, own)
        elif kinds and all(issubclass(kind, Scalar | Multiply | MatrixProduct | Normalize) for kind in kinds):
            found[node.name] = Unrolled(node, effect, own, steps.shapes, channel_axis(node, producers))
        else:
            unknown = effect_of(node, [UNKNOWN] * len(node.refs))
            found[node.name] = Given(node, unknown, own)
    return found


def _attention(
    node: Node, steps: Steps, by_node: Mapping[int, Sequence[Step]], found: Mapping[str, Treatment]
) -> Treatment:
    """Treat an attention by its gain in one value, where everything it reads is a linear map of it."""
    effect, own = steps.effects[node.name], by_node[id(node)]
    source, path = common_source(node, steps)
    if source is None:
        return Attention(node, effect, own)
    between = [step for other in path for step in by_node[id(other)]]
    normalizer = found.get(source)
    return SelfAttention(
        node, effect, [*between, *own], source, normalizer if isinstance(normalizer, Normalizer) else None
    )


def common_source(node: Node, steps: Steps) -> tuple[str | None, list[Node]]:
    """Return the value that all operands of a node are linear maps of, the earliest there is, and the maps' nodes."""
    nodes = {other.name: other for other in steps.graph}
    chains = []
    for name in dict.fromkeys(node.refs):
        chain = [name]
        while chain[-1] in nodes and isinstance(steps.effects[chain[-1]], Linear) and len(nodes[chain[-1]].refs) == 1:
            chain.append(nodes[chain[-1]].refs[0])
        chains.append(chain)
    shared = [name for name in chains[0] if all(name in chain for chain in chains)]
    if not shared:
        return None, []
    passed = {name for chain in chains for name in chain[: chain.index(shared[-1])]}
    return shared[-1], [other for other in steps.graph if other.name in passed]


def core_of(name: str) -> str:
    """Return the name of a normalizer's core, before its scale."""
    return f"{name}~core"


def inverse_deviations(limits: Tensor, eps: float) -> Tensor:
    """Return 1/sqrt(v + eps) for the least variances v = -limits, rounded up."""
    return ((-limits).clamp(min=0.0) + eps).rsqrt() * (1 + 1e-12)


def classes(node: Node) -> int:
    """Return how many classes the sets of a normalizer fall into: groups, or channels."""
    name = node.operator
    if "group_norm" in name:
        return int(node.bound()["num_groups"])
    if "instance_norm" in name or "batch_norm" in name:
        return int(node.shape[1])
    return 1


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
