"""A convolutional graph as steps of the ellipsoid engine on tori: which fields are carried, and on which torus.

Every field lies on a torus of N >= n + padding entries per axis, where a zero-padded convolution is a circular one as
long as the field it reads is zero outside its n entries (it is *clean*). Activations make it so: they are followed by
a mask, which has slopes 0 and 1. Linear values hold anything outside their grid, which only maps that look no further
than the grid may read; where another one does, a mask is put in between. Behind a stride the torus has N/stride
entries, and a state of block circulant matrices stays one. The fields carried together lie on one torus; linear maps
wait until their outputs do.

A node that bounds its operand as a whole (max pooling) closes a stage, whose constant multiplies those of the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from ...core.rounding import Upper
from ...graph.ir import Graph, Input, Node
from ...linalg.convolution_map import Convolution
from ...linalg.linear_map import Repeated
from ...linalg.operator_norms import upper
from ...linalg.writing import cancels, span
from ...rules.effects import Effect, Elementwise, Gain, Linear, Unbounded
from ..ellipsoids.ellipsoid_plan import APART, WIDEST, EllipsoidPlan, plan
from ..segments import Segments
from .stage import Bend, Close, GridField, Move, Tail, TorusStage
from .stencil import Grid, Stencil, grid_of, stencil_of, sum_of

_LARGEST = 30.0
"""Powers of ten that the weights of one map may span from 1: their squares are multiplied along several maps."""
SMALL = 512
"""Outputs up to this size are written out; the constant of larger fields is the largest over all frequencies."""


def stages(segments: Segments, values: Mapping[str, Upper], *, widest: int = WIDEST) -> tuple[TorusStage, ...] | None:
    """Return the stages of a graph, or None where it is not a convolutional one of the kind described above.

    Args:
        segments: the float64 graph with its effects.
        values: a bound on the map from the input to every node, for fields that start afresh.
        widest: largest state of the dense plan behind the fields.
    """
    effects = list(segments.effects.values())
    maps = [linear for effect in effects if isinstance(effect, Linear) for linear in effect.maps]
    inner = [linear.inner if isinstance(linear, Repeated) else linear for linear in maps]
    axes = {len(linear.axes) for linear in inner if isinstance(linear, Convolution)}
    if len(axes) != 1 or not all(map(_usable, effects)) or max(span(linear).tops for linear in maps) > _LARGEST:
        return None
    if any(cancels(linear) for form in segments.forms.values() for linear in form.values()):
        return None
    try:
        return _StagePlanner(segments, values, axes.pop(), widest).run()
    except _Refused:
        return None


def _usable(effect: Effect) -> bool:
    """Whether an effect has a bound, and slopes that are neither tiny nor huge."""
    return not isinstance(effect, Unbounded) and (not isinstance(effect, Elementwise) or effect.moderate)


class _Refused(Exception):
    """The graph, or what is left of it, is not of this kind."""


class _StagePlanner:
    """Walks the graph once, linear nodes as early as they can be taken."""

    def __init__(self, segments: Segments, values: Mapping[str, Upper], axes: int, widest: int) -> None:
        self.graph, self.effects, self.values, self.axes = segments.graph, segments.effects, values, axes
        self.widest = widest
        shape = self.graph.inputs[0].shape
        front = shape[: max(0, len(shape) - axes - 1)]
        self.leading = front if math.prod(front) > 1 else ()
        self.shapes = {item.name: item.shape for item in self.graph.inputs} | {n.name: n.shape for n in self.graph}
        self.nodes = {node.name: node for node in self.graph}
        self.order = _early(self.graph, self.effects)
        self.stages: list[TorusStage] = []
        self._begin(dict.fromkeys((item.name for item in self.graph.inputs), 0.0))

    def run(self) -> tuple[TorusStage, ...]:
        """Walk the graph."""
        for index, node in enumerate(self.order):
            effect = self.effects[node.name]
            if isinstance(effect, Linear):
                self._linear(node)
                continue
            if node.refs[0] not in self.fields:
                tail = self._tail()
                if tail is not None:
                    return self._ended(tail)
                self._mask(node.refs[0], index)
            needed = self._needed(node.refs[0], index, index + 1) if len(set(node.refs)) == 1 else None
            if isinstance(effect, Elementwise) and needed is not None:
                self._bend(node.name, node.refs[0], effect.slope, needed)
            elif isinstance(effect, Gain) and needed == [] and len(effect.gains) == 1:
                self._close(node.refs[0], effect.constant(upper).log10)
                self._begin({node.name: 0.0})
            else:
                self._afresh(index)
        output = self.graph.output
        small = math.prod(self.shapes[output][len(self.leading) :]) <= SMALL
        tail = self._tail() if small or output not in self.fields else None
        if tail is not None:
            return self._ended(tail)
        if output not in self.fields:
            raise _Refused
        self._close(output, 0.0)
        return tuple(self.stages)

    def _begin(self, start: dict[str, float]) -> None:
        """Start a stage from fields with these constants."""
        self.start = start
        self.fields: dict[str, GridField] = {}
        self.readings: dict[str, tuple[tuple[Stencil, str], ...]] = {}
        self.operations: list[Move | Bend] = []
        self.unclean: dict[str, list[str]] = {}
        self.least: list[tuple[Grid, Grid, bool]] = []
        for name in start:
            grid = grid_of(self.shapes[name], self.axes, self.leading)
            if grid is None or (self.fields and grid[1:] != next(iter(self.fields.values())).grid):
                raise _Refused
            self.fields[name] = GridField(grid[0], grid[1:], (1,) * self.axes, clean=True)
        self.bases = tuple(start)

    def _linear(self, node: Node) -> None:
        """Find out whether a linear node is a field, or would be if what it reads were clean."""
        effect = self.effects[node.name]
        assert isinstance(effect, Linear)
        found: list[tuple[Stencil, str]] = []
        unclean: list[str] = []
        results: list[GridField] = []
        for linear, ref in zip(effect.maps, node.refs, strict=True):
            field = self.fields.get(ref)
            stencil = None if field is None else stencil_of(linear, node, self.axes, self.leading)
            if field is None or stencil is None or stencil.size != field.grid:
                return
            if any(stencil.reach) and not stencil.wraps and not field.clean:
                unclean.append(ref)
            level = tuple(step * s for step, s in zip(field.level, stencil.stride, strict=True))
            results.append(GridField(stencil.channels[0], stencil.outputs, level, field.clean and stencil.covers))
            found.append((stencil, ref))
        if len({(result.grid, result.level) for result in results}) != 1:
            return
        self.unclean[node.name] = unclean
        if not unclean:
            clean = all(result.clean for result in results)
            self.fields[node.name], self.readings[node.name] = replace(results[0], clean=clean), tuple(found)

    def _mask(self, name: str, index: int) -> None:
        """Make a linear value a field: what must be clean on the way goes through a mask, slopes 0 and 1."""
        if name in self.fields or name not in self.nodes or not isinstance(self.effects[name], Linear):
            return
        for ref in self.nodes[name].refs:
            self._mask(ref, index)
        self._linear(self.nodes[name])
        for ref in dict.fromkeys(self.unclean.get(name, ())):
            needed = self._needed(ref, index, index)
            if needed is None:
                return
            self._bend(ref, ref, (0.0, 1.0), [other for other in needed if other != ref])
        self._linear(self.nodes[name])

    def _bend(self, name: str, operand: str, slope: tuple[float, float], needed: Sequence[str]) -> None:
        """Carry the state over an activation."""
        field = self.fields[operand]
        self._gather([*needed, operand])
        kept = {base for other in needed for base in self._cone(other)}
        keeping = tuple(base for base in self.bases if base in kept)
        self.operations.append(Bend(name, operand, self.bases, keeping, slope))
        self.bases = (*keeping, name)
        self.fields[name] = replace(field, clean=True)

    def _gather(self, names: Sequence[str]) -> None:
        """Turn the state onto fields all else is a linear map of, if they lie on a coarser torus or are fewer."""
        level = self.fields[names[0]].level
        wanted = [node.name for node in self.order if node.name in names]
        wanted = [item.name for item in self.graph.inputs if item.name in names] + wanted
        chosen: list[str] = []
        for name in wanted:  # what comes earlier cannot be a map of what comes later
            if not self._spanned(name, chosen):
                chosen.append(name)
        for name in names:
            self._read(name, self.bases)
        width = sum(self.fields[base].channels for base in self.bases)
        if level != self.fields[self.bases[0]].level or sum(self.fields[n].channels for n in chosen) < width:
            self.operations.append(Move(self.bases, tuple(chosen)))
            self.bases = tuple(chosen)

    def _spanned(self, name: str, given: Sequence[str]) -> bool:
        """Say whether a field is a linear map of the given ones."""
        if name in given:
            return True
        refs = self.readings.get(name, ())
        return name not in self.bases and bool(refs) and all(self._spanned(ref, given) for _, ref in refs)

    def _cone(self, name: str) -> set[str]:
        """Return the bases that a field is a linear map of."""
        if name in self.bases:
            return {name}
        if name not in self.readings:
            raise _Refused
        return set().union(*(self._cone(ref) for _, ref in self.readings[name]))

    def _read(self, name: str, bases: Iterable[str]) -> None:
        """Note what sizes of torus it takes to compute a field from the bases."""
        field = self.fields[name]
        self.least.append((field.level, field.grid, False))
        if name in bases:
            return
        for stencil, ref in self.readings[name]:
            if stencil.wraps:
                self.least.append((self.fields[ref].level, stencil.size, True))
            else:
                size = tuple(n + reach for n, reach in zip(stencil.size, stencil.reach, strict=True))
                self.least.append((self.fields[ref].level, size, False))
            self._read(ref, bases)

    def _needed(self, operand: str, done: int, reading: int) -> list[str] | None:
        """Fields on the torus of `operand` that carry all that is left to read; None if there are none.

        Args:
            operand: a field.
            done: the nodes before this place are taken.
            reading: the nodes from this place on read.
        """
        if operand not in self.fields:
            return None
        level = self.fields[operand].level
        found: list[str] = []
        waiting = self._roots(done, reading)
        while waiting:
            name = waiting.pop()
            if name in self.fields and self.fields[name].level == level:
                found += [] if name in found else [name]
            elif name in self.nodes and isinstance(self.effects[name], Linear):
                waiting += self.nodes[name].refs
            else:
                return None
        return found

    def _roots(self, done: int, reading: int) -> list[str]:
        """Inputs and values of the nodes before `done` that nodes from `reading` on read."""
        there = {item.name for item in self.graph.inputs} | {node.name for node in self.order[:done]}
        refs = [ref for node in self.order[reading:] for ref in node.refs] + [self.graph.output]
        return [ref for ref in dict.fromkeys(refs) if ref in there]

    def _close(self, operand: str, log10_gain: float) -> None:
        """End the stage with the constant of a field."""
        if self.fields[operand].level != self.fields[self.bases[0]].level:
            self._gather([operand])
        self._read(operand, self.bases)
        self._seal(Close(operand, self.bases, log10_gain))

    def _ended(self, tail: Tail) -> tuple[TorusStage, ...]:
        for name in tail.summed or tail.bases:
            self._read(name, self.bases)
        self._seal(tail)
        return tuple(self.stages)

    def _seal(self, end: Close | Tail) -> None:
        """Choose the torus and finish the stage: where it is larger than the grid, activations act with a mask."""
        sizes = _sizes(self.least, self.axes)
        operations: list[Move | Bend] = []
        for operation in self.operations:
            if isinstance(operation, Bend):
                field = self.fields[operation.name]
                whole = all(n * s == size for n, s, size in zip(field.grid, field.level, sizes, strict=True))
                low, high = operation.slope
                operation = operation if whole else replace(operation, slope=(min(low, 0.0), max(high, 0.0)))
            operations.append(operation)
        self.stages.append(TorusStage(self.start, tuple(operations), end, sizes, self.fields, self.readings))

    def _afresh(self, index: int) -> None:
        """Forget everything: start from the constants of the fields that are read after a node, jointly."""
        names = self._roots(index + 1, index + 1)
        share = math.log10(len(names)) / 2
        start = {name: self.values[name].log10 + share for name in names}
        if not all(map(math.isfinite, start.values())) or max(start.values()) - min(start.values()) > APART:
            raise _Refused
        self.stages = []
        self._begin(start)

    def _tail(self) -> Tail | None:
        """Return the dense plan of what is left, over the fields of the state or sums of fields; None without one."""
        left = self._left(set(self.bases))
        found = None if left is None else self._dense(self.bases, left)
        return self._summed() if found is None else Tail(found, self.bases)

    def _summed(self) -> Tail | None:
        """The dense plan behind sums over grids, which may have more channels than it could write out."""
        sums: dict[str, tuple[str, float]] = {}
        for name, node in self.nodes.items():
            effect = self.effects[name]
            if isinstance(effect, Linear) and len(node.refs) == 1 and node.refs[0] in self.fields:
                factor = sum_of(effect.maps[0], self.axes, self.leading)
                if factor is not None:
                    sums[name] = node.refs[0], factor
        left = self._left(set(sums))
        if left is None:
            return None
        read = {ref for name in left for ref in self.nodes[name].refs}
        names = [name for name in sums if name in read]
        kinds = {(self.fields[sums[name][0]].level, self.fields[sums[name][0]].grid, sums[name][1]) for name in names}
        found = self._dense(names, left) if len(kinds) == 1 else None
        if found is None:
            return None
        summed = tuple(sums[name][0] for name in names)
        self._gather(summed)
        return Tail(found, self.bases, summed, sums[names[0]][1])

    def _left(self, stops: set[str]) -> set[str] | None:
        """Nodes between these values and the output, or None if it depends on others."""
        left: set[str] = set()
        waiting = [self.graph.output]
        while waiting:
            name = waiting.pop()
            if name in stops:
                continue
            if name not in self.nodes or (name in self.fields and name not in self.readings):
                return None
            if name not in left:
                left.add(name)
                waiting += self.nodes[name].refs
        return left

    def _dense(self, names: Sequence[str], left: set[str]) -> EllipsoidPlan | None:
        """Return the dense plan of the nodes `left`, from these values."""
        device = self.graph.inputs[0].value.device
        inputs = tuple(
            Input(name=name, value=torch.zeros(self.shapes[name], dtype=torch.float64, device=device)) for name in names
        )
        graph = replace(self.graph, inputs=inputs, nodes=tuple(node for node in self.order if node.name in left))
        found = plan(Segments(graph, self.effects, {}, {}), self.values, widest=self.widest)
        return found if found is not None and found.leading == self.leading and set(found.start) == set(names) else None


def _early(graph: Graph, effects: Mapping[str, Effect]) -> tuple[Node, ...]:
    """Return the nodes in an order that takes linear ones as soon as their operands are there."""
    done = {item.name for item in graph.inputs}
    order: list[Node] = []
    left = list(graph)
    while left:
        ready = [n for n in left if isinstance(effects[n.name], Linear) and done.issuperset(n.refs)] or left[:1]
        order += ready
        done |= {node.name for node in ready}
        left = [node for node in left if node.name not in done]
    return tuple(order)


def _sizes(least: Iterable[tuple[Grid, Grid, bool]], axes: int) -> Grid:
    """Return the smallest torus whose every level is as large as asked, or of the very size that wrapping asks for."""
    least = list(least)
    result = []
    for axis in range(axes):
        unit = math.lcm(*(level[axis] for level, _, _ in least))
        wrapped = {level[axis] * size[axis] for level, size, exact in least if exact}
        bound = max(level[axis] * size[axis] for level, size, _ in least)
        bound += -bound % unit
        if wrapped and wrapped != {bound}:
            raise _Refused
        result.append(bound)
    return tuple(result)
