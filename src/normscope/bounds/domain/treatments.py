"""How operators are treated over a domain: what is recorded of each, and what that says of its derivative.

At every input of the domain the Jacobian of the network is a product and sum of the derivatives of its operators. An
operator becomes one or several *pieces* with the effects that global bounds are made of, each true of the derivative at
every input inside: a fixed linear map, entries with slopes in an interval, a gain per operand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from ...core.bracket import Evidence
from ...core.rounding import ONE, Upper, numerical
from ...graph.ir import Node, Ref
from ...linalg.linear_map import Diagonal
from ...rules.effects import UNKNOWN, Effect, Gain, Linear, Range, Unbounded
from ...rules.local.entry_sets import Normalize, Softmax
from ...rules.local.local import Affine, UnrolledStep
from ...rules.local.products import MatrixProduct, Multiply
from ...rules.local.scalar import Scalar
from ...rules.registry import effect_of, sets_of
from ..unrolled import GraphSteps
from .attention_treatment import AttentionGains
from .conditions import LeastMeanSquare, Sizes, SoftmaxGain
from .entrywise import UnrolledOperator, channel_axis
from .part_gains import LocalGain
from .pieces import DerivativeValue, Limits, Treatment, inverse_deviations

aten = torch.ops.aten
ITERATIONS = 24
"""Lanczos steps for the gain of an attention."""


class GivenRule(Treatment):
    """The operator as its rule knows it, with how large its operands get where the rule needs that."""

    def __init__(self, node: Node, effect: Effect, steps: Sequence[UnrolledStep]) -> None:
        super().__init__(node, effect, steps)
        if isinstance(effect, Unbounded):
            self.conditions = tuple(
                Sizes(f"{node.name}:size{i}", node, node.name, (name,)) for i, name in enumerate(node.refs)
            )

    def pieces(self, limits: Limits) -> list[DerivativeValue]:
        """Ask the rule again."""
        if not self.conditions:
            return self.whole(self.effect)
        sizes = [Range(*map(float, limits[condition.key])) for condition in self.conditions]
        return self.whole(effect_of(self.node, sizes))


class NormalizerTreatment(Treatment):
    """A normalizer with a positive eps: its gain at the least variance of every group or channel."""

    def __init__(self, node: Node, effect: Effect, steps: Sequence[UnrolledStep]) -> None:
        super().__init__(node, effect, steps)
        step = next(step for step in steps if isinstance(step.operation, Normalize))
        assert isinstance(step.operation, Normalize)
        self.eps = step.operation.eps
        self.condition = LeastMeanSquare(f"{node.name}:spread", node, step.name, step.operands, classes(node))
        self.conditions = (self.condition,)

    def pieces(self, limits: Limits) -> list[DerivativeValue]:
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
            return self.whole(replace(effect, gains=(gain,), whole=around))
        channels = inverse.repeat_interleave(self.node.shape[1] // len(inverse))
        factors = channels.reshape(-1, *(1,) * (len(self.node.shape) - 2))
        scale = effect.after.scale.to(factors) * factors if isinstance(effect.after, Diagonal) else factors
        return self.whole(replace(effect, gains=(ONE,), after=Diagonal(scale, self.node.shape), whole=None))


class SoftmaxWeights(Treatment):
    """Softmax over one dimension."""

    def __init__(self, node: Node, effect: Effect, steps: Sequence[UnrolledStep]) -> None:
        super().__init__(node, effect, steps)
        step = next(step for step in steps if isinstance(step.operation, Softmax))
        self.condition = SoftmaxGain(f"{node.name}:softmax", node, step.name, (step.name,))
        self.conditions = (self.condition,)

    def pieces(self, limits: Limits) -> list[DerivativeValue]:
        """Take the largest gain."""
        assert isinstance(self.effect, Gain)
        gain = numerical(float(limits[self.condition.key][0]))
        return self.whole(replace(self.effect, gains=(gain,)))


class Attention(Treatment):
    """Softmax attention: its gains at a point."""

    def __init__(self, node: Node, effect: Effect, steps: Sequence[UnrolledStep]) -> None:
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

    def pieces(self, limits: Limits) -> list[DerivativeValue]:
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

    The normalizer before it and the linear maps behind it are part of it: `steps` are all theirs, `node` is the last.
    """

    def __init__(self, node: Node, effect: Effect, steps: Sequence[UnrolledStep], source: str) -> None:
        super().__init__(node, effect, steps)
        self.refs = (source,)
        self.condition = LocalGain(
            f"{node.name}:attention", node, node.name, self.refs, tuple(steps), node.name, "its gain", ITERATIONS
        )
        self.conditions = (self.condition,)

    def pieces(self, limits: Limits) -> list[DerivativeValue]:
        """One gain, in the common value."""
        gain = float(limits[self.condition.key][0])
        if not math.isfinite(gain):
            return self.whole(Unbounded(reason=f"attention without finite weights in {self.node.where}"))
        return self.whole(Gain(gains=(numerical(gain),)))


def treatments(steps: GraphSteps) -> tuple[dict[str, Treatment], set[str]]:
    """Return the treatment of every nonlinear node of an unrolled graph, by name, and the names of all that is read.

    What is a part of another node's treatment is not read, and has none of its own.
    """
    by_node = steps.by_node()
    producers = {node.name: node for node in steps.graph}
    found: dict[str, Treatment] = {}
    for node in steps.graph:
        if not isinstance(steps.effects[node.name], Linear) and node.name not in found:
            treated = _treated(node, steps, by_node, producers, found)
            found[treated.node.name] = treated
    read = _read(steps.output, producers, found)
    return {name: treatment for name, treatment in found.items() if name in read}, read


def _treated(
    node: Node,
    steps: GraphSteps,
    by_node: Mapping[int, Sequence[UnrolledStep]],
    producers: Mapping[str, Node],
    found: Mapping[str, Treatment],
) -> Treatment:
    """Return the treatment of one nonlinear node, or of one behind it that it is a part of."""
    effect, own = steps.effects[node.name], by_node.get(id(node), [])
    kinds = [type(step.operation) for step in own if not isinstance(step.operation, Affine)]
    if kinds == [Normalize] and isinstance(effect, Gain) and len(effect.gains) == 1:
        return NormalizerTreatment(node, effect, own)
    if node.op is aten.scaled_dot_product_attention.default and kinds == [MatrixProduct, Softmax, MatrixProduct]:
        return _attention(node, steps, by_node, found)
    if kinds == [Softmax] and isinstance(effect, Gain):
        return SoftmaxWeights(node, effect, own)
    if kinds and all(issubclass(kind, Scalar | Multiply | MatrixProduct | Normalize) for kind in kinds):
        return UnrolledOperator(node, effect, own, steps.shapes, channel_axis(node, producers))
    return GivenRule(node, effect_of(node, [UNKNOWN] * len(node.refs)), own)


def _read(output: str, producers: Mapping[str, Node], found: Mapping[str, Treatment]) -> set[str]:
    """Return the names of all values that the output is made of, each as its treatment reads them."""
    read, waiting = {output}, [output]
    while waiting:
        name = waiting.pop()
        refs = found[name].refs if name in found else producers[name].refs if name in producers else ()
        waiting += [ref for ref in refs if ref not in read]
        read.update(refs)
    return read


def _attention(
    node: Node, steps: GraphSteps, by_node: Mapping[int, Sequence[UnrolledStep]], found: Mapping[str, Treatment]
) -> Treatment:
    """Treat an attention by its gain in one value, where everything it reads is a linear map of it."""
    effect = steps.effects[node.name]
    source, path = common_source(node, steps)
    if source is None:
        return Attention(node, effect, by_node[id(node)])
    normalizer = found.get(source)
    if isinstance(normalizer, NormalizerTreatment):
        source, path = normalizer.node.refs[0], [normalizer.node, *path]
    readers: dict[str, list[Node]] = {}
    for other in steps.graph:
        for ref in other.refs:
            readers.setdefault(ref, []).append(other)
    path.append(node)
    while path[-1].name != steps.output and len(readers.get(path[-1].name, ())) == 1:
        behind = readers[path[-1].name][0]
        if not isinstance(steps.effects[behind.name], Linear) or len(behind.refs) != 1:
            break
        path.append(behind)
    return SelfAttention(path[-1], effect, [step for other in path for step in by_node[id(other)]], source)


def common_source(node: Node, steps: GraphSteps) -> tuple[str | None, list[Node]]:
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


def classes(node: Node) -> int:
    """Return how many classes the sets of a normalizer fall into: groups, or channels."""
    found = sets_of(node)
    return 1 if found is None or found.groups is None else found.groups
