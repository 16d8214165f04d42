"""The network behind some of its nodes, everything else held at the data: what a change there can do to the output.

The values of the chosen nodes range over everything; whatever does not depend on them is a constant. Rules are asked
again with what is known of the ranges in this setting (a bound on a value in front of a changing weight is none behind
it), but maps that were folded for the whole network are taken over, so that each norm is computed once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.rounding import numerical
from ..graph.ir import Input, Node, Ref
from ..linalg.folding import add, compose
from ..linalg.linear_map import Identity, LinearMap
from ..linalg.patches import Read
from ..rules import ranges
from ..rules.effects import UNKNOWN, Effect, Gain, Linear, Range, Unbounded
from ..rules.registry import effect_of
from .applied import held
from .segments import Atom, Form, Segments

aten = torch.ops.aten

PRODUCTS = {aten.matmul.default, aten.mm.default, aten.bmm.default}
WRITTEN = 256
"""Matrices at the data with a side up to this have their norm computed; of larger ones a cheap bound is taken."""
ATTENTION = aten.scaled_dot_product_attention.default


class Tails:
    """Segments of the network behind any of its nodes, sharing maps with those of the whole network."""

    def __init__(self, segments: Segments) -> None:
        self.segments, self.graph = segments, segments.graph
        self._shapes = {item.name: item.shape for item in self.graph.inputs} | {n.name: n.shape for n in self.graph}
        self._effects: dict[tuple[str, tuple[Range, ...]], Effect] = {}
        self._ranges: dict[tuple[str, tuple[Range, ...]], Range] = {}
        self._starts: dict[str, Form] = {}
        self._composed: dict[tuple[int, int], tuple[LinearMap, LinearMap, LinearMap]] = {}
        self._added: dict[tuple[int, ...], tuple[tuple[LinearMap, ...], LinearMap]] = {}
        self._remember()

    def behind(self, names: Sequence[str], values: Mapping[str, Tensor]) -> tuple[Segments, bool]:
        """Return the segments behind nodes, with those as inputs, and whether they depend on the values at the data.

        Args:
            names: the nodes whose values range over everything.
            values: every node's value at the data.
        """
        composed, added = len(self._composed), len(self._added)
        moving, fixed = set(names), set()
        sizes = dict.fromkeys(names, UNKNOWN)
        forms = {name: self._start(name) for name in names}
        effects: dict[str, Effect] = {}
        atoms: dict[str, Atom] = {}
        nodes: list[Node] = []
        measured: set[str] = set()  # values whose range was read off the data
        particular = False
        for node in self.graph:
            if node.name in moving or not moving.intersection(node.refs):
                continue
            node, effect, size, decided = self._effect(node, sizes, values, measured)
            particular = particular or decided
            for name in node.refs:
                if name not in moving:
                    fixed.add(name)
                    forms[name] = {}
            effects[node.name], sizes[node.name] = effect, size
            if isinstance(effect, Linear):
                forms[node.name] = self._linear(node, effect, forms)
            else:
                atoms[node.name] = self._atom(node, effect, forms)
                forms[node.name] = self._own(node, effect)
            moving.add(node.name)
            nodes.append(node)
        if particular:  # what was folded for these data serves nobody else
            _forget(self._composed, composed)
            _forget(self._added, added)
        inputs = tuple(Input(name=name, value=values[name]) for name in (*names, *sorted(fixed)))
        graph = dataclasses.replace(self.graph, inputs=inputs, nodes=tuple(nodes), samples=None)
        return Segments(graph, effects, forms, atoms), particular

    def _effect(
        self, node: Node, sizes: Mapping[str, Range], values: Mapping[str, Tensor], measured: set[str]
    ) -> tuple[Node, Effect, Range, bool]:
        """Return a node as it stands behind the moving ones, its effect, its range, and whether the data decided it."""
        known = self.segments.effects[node.name]
        still = [name for name in node.refs if name not in sizes]
        operands, read = _operands(node, sizes, values)
        if read or measured.intersection(node.refs):
            measured.add(node.name)
        if isinstance(known, Linear):  # affine, whatever the ranges are
            return node, known, self._after(known, node, operands), False
        if not still:
            effect = self._asked(node, tuple(UNKNOWN if n in measured else sizes[n] for n in node.refs), known)
            closer = self._asked(node, operands, known)
            decided = not _same(effect, closer)
            effect = closer if decided else effect
            return node, effect, self._after(effect, node, operands), decided
        fixed = held(node, {name: values[name] for name in still})
        moved = [sizes[name] for name in fixed.refs]
        effect = _fixed_factor(node, fixed) or effect_of(fixed, moved)
        if isinstance(effect, Unbounded):  # a rule that expects a value in that place: tell it how large it is
            measures = [sizes[name] if name in sizes else _range(values[name]) for name in node.refs]
            other = effect_of(node, measures)
            if not isinstance(other, Unbounded):
                return node, other, ranges.after(other, node, measures), True
        return fixed, effect, ranges.after(effect, fixed, moved), True

    def _asked(self, node: Node, operands: tuple[Range, ...], known: Effect) -> Effect:
        """Ask the rule of a node, once for the same ranges; keep the known effect where it says the same."""
        key = (node.name, operands)
        if key not in self._effects:
            effect = effect_of(node, operands)
            self._effects[key] = known if _same(effect, known) else effect
        return self._effects[key]

    def _after(self, effect: Effect, node: Node, operands: tuple[Range, ...]) -> Range:
        """Return the range of a node's value, worked out once for the same ranges."""
        key = (node.name, operands)
        if key not in self._ranges:
            self._ranges[key] = ranges.after(effect, node, operands)
        return self._ranges[key]

    def _start(self, name: str) -> Form:
        if name not in self._starts:
            self._starts[name] = {name: Identity(self._shapes[name])}
        return self._starts[name]

    def _linear(self, node: Node, effect: Linear, forms: Mapping[str, Form]) -> Form:
        paths: dict[str, list[LinearMap]] = {}
        for linear, name in zip(effect.maps, node.refs, strict=True):
            for source, earlier in forms[name].items():
                paths.setdefault(source, []).append(self._compose(linear, earlier))
        return {source: self._sum(tuple(found)) for source, found in paths.items()}

    def _atom(self, node: Node, effect: Effect, forms: Mapping[str, Form]) -> Atom:
        before = effect.before if isinstance(effect, Gain) else None
        if before is None:
            return Atom(node, effect, tuple(forms[name] for name in node.refs))
        read = tuple({s: self._compose(before, m) for s, m in forms[name].items()} for name in node.refs)
        return Atom(node, effect, read)

    def _own(self, node: Node, effect: Effect) -> Form:
        """Return the form of a nonlinear node's own value."""
        if effect is self.segments.effects[node.name]:
            return self.segments.forms[node.name]
        scale = effect.after if isinstance(effect, Gain) else None
        return self._start(node.name) if scale is None else {node.name: scale}

    def _compose(self, second: LinearMap, first: LinearMap) -> LinearMap:
        key = (id(second), id(first))
        if key not in self._composed:
            self._composed[key] = (second, first, compose(second, first))
        return self._composed[key][2]

    def _sum(self, terms: tuple[LinearMap, ...]) -> LinearMap:
        key = tuple(map(id, terms))
        if len(terms) > 1 and key not in self._added:
            total = terms[0]
            for term in terms[1:]:
                total = add(total, term)
            self._added[key] = (terms, total)
        return terms[0] if len(terms) == 1 else self._added[key][1]

    def _remember(self) -> None:
        """Take over the maps that were folded for the whole network."""
        forms = self.segments.forms
        for node in self.graph:
            effect = self.segments.effects[node.name]
            if isinstance(effect, Linear):
                paths: dict[str, list[tuple[LinearMap, LinearMap]]] = {}
                for linear, name in zip(effect.maps, node.refs, strict=True):
                    for source, earlier in forms[name].items():
                        paths.setdefault(source, []).append((linear, earlier))
                for source, found in paths.items():
                    if len(found) == 1:
                        [(second, first)] = found
                        self._composed[id(second), id(first)] = (second, first, forms[node.name][source])
                    else:
                        terms = tuple(self._compose(second, first) for second, first in found)
                        self._added[tuple(map(id, terms))] = (terms, forms[node.name][source])
            elif isinstance(effect, Gain) and effect.before is not None:
                for name, read in zip(node.refs, self.segments.atoms[node.name].operands, strict=True):
                    for source, first in forms[name].items():
                        self._composed[id(effect.before), id(first)] = (effect.before, first, read[source])


def _forget(cache: dict[Any, Any], size: int) -> None:
    """Drop the latest entries of a cache."""
    while len(cache) > size:
        cache.popitem()


def _same(effect: Effect, known: Effect) -> bool:
    """Whether an effect claims what a known one does, so that the maps around it may be taken over."""
    if not (isinstance(effect, Gain) and isinstance(known, Gain)):
        return effect == known
    kept = ("gains", "joint", "whole", "range")
    return all(getattr(effect, name) == getattr(known, name) for name in kept)


def _operands(node: Node, sizes: Mapping[str, Range], values: Mapping[str, Tensor]) -> tuple[tuple[Range, ...], bool]:
    """Return the ranges of a node's operands, and whether values at the data were measured for it."""
    still = [name for name in node.refs if name not in sizes]
    if not still or any(math.isinf(sizes[name].entry) for name in node.refs if name in sizes):
        return tuple(sizes.get(name, UNKNOWN) for name in node.refs), False  # nothing bounds the value anyway
    return tuple(sizes[name] if name in sizes else _range(values[name]) for name in node.refs), True


def _range(value: Tensor) -> Range:
    """How large a value at the data is."""
    if not value.numel():
        return Range(0.0, 0.0)
    rows = value.double().reshape(-1, value.shape[-1] if value.ndim else 1)
    entry, row = float(rows.abs().amax()), float(rows.norm(dim=-1).amax())
    return Range(entry * ranges.SLACK, row * ranges.SLACK) if math.isfinite(entry) else UNKNOWN


def _fixed_factor(node: Node, fixed: Node) -> Effect | None:
    """Return the effect of a product or an attention of which all but one factor are constants, if it is one."""
    if node.op in PRODUCTS and len(fixed.refs) == 1:
        return _product(fixed)
    if node.op is ATTENTION and len(fixed.refs) == 1 and isinstance(fixed.bound()["value"], Ref):
        return _mixing(fixed)
    return None


def _product(node: Node) -> Effect | None:
    """Stacks of matrices times a constant stack: the largest of their norms (the rules know single matrices)."""
    [ref] = node.operands
    constant = next(item for item in node.args[:2] if isinstance(item, Tensor))
    if constant.ndim < 3 or len(ref.shape) < 2:
        return None
    return _stacked(node, constant)


def _mixing(node: Node) -> Effect | None:
    """Attention with fixed weights: linear in the values, with the norm of a head's weights."""
    [ref] = node.operands
    keys = ref.shape[-2]
    unit = torch.eye(keys, dtype=torch.float64, device=node.device).expand(*ref.shape[:-2], keys, keys)
    weights = node.evaluate([unit])
    return _stacked(node, weights) if bool(torch.isfinite(weights).all()) else None


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
