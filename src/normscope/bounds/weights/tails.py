"""The network behind some of its nodes, everything else held at the data: what a change there can do to the output.

The values of the chosen nodes range over everything; whatever does not depend on them is a constant. Rules are asked
again with what is known of the ranges in this setting (a bound on a value in front of a changing weight is none behind
it), but maps that were folded for the whole network are taken over, so that each norm is computed once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...core.log10 import norm as l2
from ...core.rounding import numerical
from ..graph.ir import Input, Node, Ref
from ..graph_weights import held
from ..linalg.patches import Read
from ..operators import ranges
from ..operators.effects import UNKNOWN, Effect, Gain, Linear, Range, Unbounded
from ..operators.registry import effect_of
from ..segments import Folder, Segments, fold_segments

aten = torch.ops.aten

PRODUCTS = {aten.matmul.default, aten.mm.default, aten.bmm.default}
WRITTEN = 256
"""Matrices at the data with a side up to this have their norm computed; of larger ones a cheap bound is taken."""
ATTENTION = aten.scaled_dot_product_attention.default


@dataclass(slots=True)
class _Setting:
    """What is known while the network behind some nodes is read.

    Attributes:
        values: every node's value at the data.
        sizes: the ranges of what moves, as far as they were asked for.
        read: the nodes behind, as they stand there, with their effects.
        measured: values whose range was read off the data.
        particular: whether the data decided anything.
    """

    values: Mapping[str, Tensor]
    sizes: dict[str, Range]
    read: dict[str, tuple[Node, Effect]] = field(default_factory=dict)
    measured: set[str] = field(default_factory=set)
    particular: bool = False

    def operands(self, node: Node) -> tuple[Range, ...]:
        """Return the ranges of a node's operands; those of fixed values only where all others are bounded."""
        bounded = all(math.isfinite(self.sizes[name].entry) for name in node.refs if name in self.sizes)
        fixed = {name: self.values[name] for name in node.refs if name not in self.sizes}
        rest = {name: _range(value) if bounded else UNKNOWN for name, value in fixed.items()}
        return tuple(self.sizes[name] if name in self.sizes else rest[name] for name in node.refs)


class Tails:
    """Segments of the network behind any of its nodes, sharing maps with those of the whole network."""

    def __init__(self, segments: Segments) -> None:
        self.segments, self.graph = segments, segments.graph
        self._nodes = {node.name: node for node in self.graph}
        self._effects: dict[tuple[str, tuple[Range, ...]], Effect] = {}
        self._ranges: dict[tuple[str, tuple[Range, ...]], Range] = {}

    def behind(self, names: Sequence[str], values: Mapping[str, Tensor]) -> tuple[Segments, bool]:
        """Return the segments behind nodes that take any value, and whether they depend on the data."""
        setting = _Setting(values, dict.fromkeys(names, UNKNOWN))
        moving, fixed = set(names), set[str]()
        for node in self.graph:
            if node.name in moving or not moving.intersection(node.refs):
                continue
            node, effect = self._effect(node, moving, setting)
            fixed.update(name for name in node.refs if name not in moving)
            setting.read[node.name] = (node, effect)
            moving.add(node.name)
        inputs = tuple(Input(name=name, value=values[name]) for name in (*names, *sorted(fixed)))
        nodes = tuple(node for node, _ in setting.read.values())
        graph = dataclasses.replace(self.graph, inputs=inputs, nodes=nodes, samples=None)
        folder = self.segments.folder
        if setting.particular:  # what is folded for these data serves nobody else
            folder = Folder(folder.done)
        effects = {name: effect for name, (_, effect) in setting.read.items()}
        return fold_segments(graph, effects, folder, fixed), setting.particular

    def _effect(self, node: Node, moving: set[str], setting: _Setting) -> tuple[Node, Effect]:
        """Return a node as it stands behind the moving ones, and its effect there.

        Ranges are asked for only where nothing finite can be said without them: they are costly, and those of the
        whole network do not hold behind a weight that takes every value.
        """
        base = self.segments.effects[node.name]
        if isinstance(base, Linear):  # affine, whatever the ranges are
            return node, base
        still = {name: setting.values[name] for name in node.refs if name not in moving}
        if not still:
            effect = self._asked(node, (UNKNOWN,) * len(node.refs), base)
            if isinstance(effect, Unbounded):
                effect = self._asked(node, self._operands(node, setting), base)
                setting.particular |= bool(setting.measured.intersection(node.refs))
            return node, effect
        setting.particular = True
        constant = held(node, still)
        effect = _fixed_factor(node, constant) or effect_of(constant, self._operands(constant, setting))
        if isinstance(effect, Unbounded):  # a rule that expects a value in that place: tell it how large it is
            other = effect_of(node, self._operands(node, setting))
            if not isinstance(other, Unbounded):
                return node, other
        return constant, effect

    def _operands(self, node: Node, setting: _Setting) -> tuple[Range, ...]:
        """Return the ranges of a node's operands, working out what is missing in front of them first."""
        wanted = list(node.refs)
        while wanted:  # a stack, not a recursion: networks are deeper than Python's
            name = wanted[-1]
            if name in setting.sizes or name not in setting.read:
                wanted.pop()
                continue
            inner, effect = setting.read[name]
            own = _own_range(effect)
            missing = [] if own is not None else [r for r in inner.refs if r in setting.read and r not in setting.sizes]
            if missing:
                wanted += missing
            else:
                setting.sizes[name] = own if own is not None else self._size(inner, effect, setting)
        return setting.operands(node)

    def _size(self, node: Node, effect: Effect, setting: _Setting) -> Range:
        """Return the range of a node's value, from those of its operands."""
        operands = setting.operands(node)
        constant = node is not self._nodes[node.name]
        if constant or setting.measured.intersection(node.refs) or any(name not in setting.sizes for name in node.refs):
            setting.measured.add(node.name)
        if constant:
            return ranges.after(effect, node, operands)
        key = (node.name, operands)
        if key not in self._ranges:
            closer = effect if isinstance(effect, Linear) else self._asked(node, operands, effect)
            self._ranges[key] = ranges.after(closer, node, operands)
        return self._ranges[key]

    def _asked(self, node: Node, operands: tuple[Range, ...], base: Effect) -> Effect:
        """Ask the rule of a node, once for the same ranges; keep the known effect where it says the same."""
        key = (node.name, operands)
        if key not in self._effects:
            effect = effect_of(node, operands)
            self._effects[key] = base if _same(effect, base) else effect
        return self._effects[key]


def _same(effect: Effect, base: Effect) -> bool:
    """Whether an effect claims what a known one does, so that the maps around it may be taken over."""
    if not (isinstance(effect, Gain) and isinstance(base, Gain)):
        return effect == base
    kept = ("gains", "joint", "whole", "range")
    return all(getattr(effect, name) == getattr(base, name) for name in kept)


def _own_range(effect: Effect) -> Range | None:
    """Return the range of a value that its operator bounds by itself (a normalizer, a sigmoid), if it does."""
    if isinstance(effect, Gain | Unbounded) and effect.range is not None and math.isfinite(effect.range.entry):
        return effect.range
    return None


def _range(value: Tensor) -> Range:
    """How large a value at the data is."""
    if not value.numel():
        return Range(0.0, 0.0)
    rows = value.double().reshape(-1, value.shape[-1] if value.ndim else 1)
    entry, row = float(rows.abs().amax()), float(l2(rows, -1).amax())
    return Range(entry * ranges.SLACK, row * ranges.SLACK) if math.isfinite(entry) else UNKNOWN


def _fixed_factor(node: Node, fixed: Node) -> Effect | None:
    """Return the effect of a product or an attention of which all but one factor are constants, if it is one."""
    if len(fixed.refs) != 1:
        return None
    [ref] = fixed.operands
    if node.op in PRODUCTS:  # stacks of matrices times a constant stack (the rules know single matrices)
        constant = next(item for item in fixed.args[:2] if isinstance(item, Tensor))
        return _stacked(fixed, constant) if constant.ndim >= 3 and len(ref.shape) >= 2 else None
    if node.op is ATTENTION and isinstance(fixed.bound()["value"], Ref):  # linear in the values, the weights are fixed
        keys = ref.shape[-2]
        unit = torch.eye(keys, dtype=torch.float64, device=fixed.device).expand(*ref.shape[:-2], keys, keys)
        weights = fixed.evaluate([unit])
        return _stacked(fixed, weights) if bool(torch.isfinite(weights).all()) else None
    return None


def _stacked(node: Node, matrices: Tensor) -> Effect:
    """A value multiplied by stacked matrices; one that is broadcast enters several times."""
    [ref] = node.operands
    copies = math.prod(node.shape[:-2]) / max(math.prod(ref.shape[:-2]), 1)
    whole = matrices.double().flatten(0, -3)
    if min(whole.shape[-2:]) <= WRITTEN:
        norm = Read.of(whole).norm()
    else:  # the Schur test: rows of attention weights sum to one
        sums = whole.abs().sum(-1).amax(-1) * whole.abs().sum(-2).amax(-1)
        norm = numerical(math.sqrt(float(sums.amax())) * (1.0 + 1e-10))
    return Gain(gains=(norm.times(numerical(math.sqrt(copies))).named("matrices at the data"),))
