"""Which activation patterns can occur: linear programs over the input and the values of the units.

A pattern is ruled out only with a proof (`farkas.py`): what the solver says of a cell that lies far away, or is thin,
cannot be relied upon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...core.budget import Budget
from ...core.log10 import ceiling10
from ...linalg.convolution_map import Convolution
from ...linalg.linear_map import Diagonal, Identity, LinearMap, Matrix, Reindex
from ...linalg.operator_norms import upper
from ...linalg.slices import slice_map
from ...linalg.writing import lost, write_out
from ...rules.effects import Linear
from ..ellipsoids.ellipsoid_plan import EllipsoidPlan
from ..segments import Segments
from .farkas import ROUNDING, System, contradictory

MARGIN = 1e-9
"""How far inside its cell, relative to the rows, an input must be to count."""
PROGRAM = 20
"""A linear program counts as this many steps of the search."""
EXTREME = 1e100
"""Coefficients beyond this, or its inverse, might over- or underflow in products: nothing is ruled out then."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a pattern is proven not to occur, and an input that has it, where one was found."""

    impossible: bool = False
    point: np.ndarray | None = None


class Feasibility:
    """Linear programs over the input and the units' values: can an input have a given pattern?"""

    def __init__(self, segments: Segments, plan: EllipsoidPlan, slopes: dict[str, tuple[Tensor, Tensor]]) -> None:
        graph, names, copies = segments.graph, [step.name for step in plan.steps], math.prod(plan.leading)
        constant = offsets(segments)
        columns: dict[str, int] = {}
        width = 0
        for item in graph.inputs:
            columns[item.name] = width
            width += item.value.numel() // copies
        self.inputs = width
        for name in names:
            columns[name] = width
            width += len(slopes[name][0])
        rows, constants, doubts = [], [], []
        for name in names:
            block, doubt = np.zeros((2, len(slopes[name][0]), width))
            for source, linear in segments.atoms[name].operands[0].items():
                one = slice_map(linear, plan.leading)
                assert one is not None, "the plan would not have been made"
                matrix = write_out(one).cpu().numpy()
                read = slice(columns[source], columns[source] + matrix.shape[1])
                block[:, read] += matrix
                doubt[:, read] += _doubt(one, matrix)
            rows.append(block)
            doubts.append(doubt)
            constants.append(constant[graph.node(name).refs[0]].reshape(copies, -1)[0].cpu().numpy())
        self.steps = [len(slopes[name][0]) for name in names]
        self.rows, self.constants, self.doubt = map(np.concatenate, (rows, constants, doubts))
        self.low = np.concatenate([slopes[name][0].cpu().numpy() for name in names])
        self.high = np.concatenate([slopes[name][1].cpu().numpy() for name in names])
        self._equilibrate()
        self.own = np.zeros((len(self.rows), width))
        self.own[np.arange(len(self.rows)), self.inputs + np.arange(len(self.rows))] = 1.0
        self.sizes = np.linalg.norm(self.rows, axis=1) + np.abs(self.constants)
        self.used = self._used(segments, plan, names)
        self.read = (self.rows[self.used] != 0.0).any(axis=0)[self.inputs :]
        self.start, self.twins = self._start(), self._twins()
        held = np.concatenate([self.rows.reshape(-1), self.constants, self.low, self.high])
        held = np.abs(held[held != 0.0])
        self.usable = bool(((held < EXTREME) & (held > 1.0 / EXTREME)).all())

    def _equilibrate(self) -> None:
        """Measure inputs and units so that all coefficients are near 1: the solver's tolerances are absolute.

        All factors are powers of two, so that nothing is rounded.
        """
        scale = np.ones(self.rows.shape[1])
        norms = np.linalg.norm(self.rows[:, : self.inputs], axis=1)
        shifted = (norms > 0) & (self.constants != 0)
        if shifted.any():
            scale[: self.inputs] = _power(float(np.median(np.abs(self.constants[shifted]) / norms[shifted])))
        elif (norms > 0).any():
            scale[: self.inputs] = _power(1.0 / float(np.median(norms[norms > 0])))
        for unit in range(len(self.rows)):  # a unit reads inputs and units before it
            size = _power(float(np.linalg.norm(self.rows[unit] * scale) + abs(self.constants[unit])))
            scale[self.inputs + unit] = size
            self.rows[unit] *= scale / size
            self.doubt[unit] *= scale / size
            self.constants[unit] /= size
        self.unit = float(scale[0]) if self.inputs else 1.0

    def _used(self, segments: Segments, plan: EllipsoidPlan, names: Sequence[str]) -> np.ndarray:
        """Return which units the output depends on: the signs of others are of no interest."""
        parts = []
        for name, size in zip(names, self.steps, strict=True):
            one = slice_map(segments.output[name], plan.leading) if name in segments.output else None
            parts.append(np.full(size, name in segments.output) if one is None
                         else (write_out(one).cpu().numpy() != 0.0).any(axis=0))  # fmt: skip
        used = np.concatenate(parts)
        for unit in reversed(range(len(used))):  # a unit reads units before it
            if used[unit]:
                used |= self.rows[unit, self.inputs :] != 0.0
        return used

    def _start(self) -> np.ndarray:
        """Return the signs `[units]` that are known: of units that read nothing, and any for those nothing reads."""
        silent = ~self.rows.any(axis=1) & ~self.doubt.any(axis=1)
        return np.where(silent, np.where(self.constants < 0.0, -1.0, 1.0), np.where(self.used, 0.0, 1.0))

    def _twins(self) -> np.ndarray:
        """Return `[units, units]`: 1 where two units read one value, so that they turn together, -1 its negative."""
        values = np.hstack([self.rows, self.constants[:, None]])
        known = values.any(axis=1) & ~self.doubt.any(axis=1)
        same = (values[:, None] == values).all(axis=-1) & known
        other = (values[:, None] == -values).all(axis=-1) & known
        return np.where(np.eye(len(values), dtype=bool), 1.0, same * 1.0 - other * 1.0)

    def patterns(self, count: int) -> Tensor:
        """Return the distinct patterns `[P, units]` of random inputs at several scales, with no unit at its kink."""
        generator = np.random.default_rng(0)
        scales = 10.0 ** generator.uniform(-2.0, 3.0, (count, 1))
        values = np.zeros((count, self.rows.shape[1]))
        values[:, : self.inputs] = scales * generator.standard_normal((count, self.inputs))
        signs = np.zeros((count, len(self.rows)))
        first = 0
        for size in self.steps:  # units of a step read the input and earlier steps
            block = slice(first, first + size)
            before = values @ self.rows[block].T + self.constants[block]
            signs[:, block] = np.where(before < 0, -1.0, 1.0)
            values[:, self.inputs + first : self.inputs + first + size] = (
                np.where(before < 0, self.low[block], self.high[block]) * before
            )
            first += size
        return torch.from_numpy(np.unique(signs, axis=0))

    def worth_asking(self, signs: Sequence[Tensor]) -> bool:
        """Say whether a pattern may be impossible: rows in general position allow as many as there are inputs."""
        decided = torch.cat(list(signs)).cpu().numpy() != 0.0
        return self.usable and int((decided & self.used).sum()) > self.inputs

    def ask(self, signs: Sequence[Tensor], budget: Budget | None = None) -> Answer:
        """Look for an input that has a pattern, or for a proof that none has; for neither once the budget is over."""
        return self._solve(torch.cat(list(signs)).cpu().numpy(), budget or Budget())

    def interior(self, signs: Sequence[Tensor], budget: Budget | None = None) -> Tensor | None:
        """Return an input well inside the cell of a decided pattern, or None if there is none to be found."""
        found = self.ask(signs, budget).point
        return None if found is None else torch.from_numpy(found)

    def system(self, signs: np.ndarray) -> System:
        """Return the (in)equalities of a pattern over the input and the units.

        A unit that is open stands for its value u: a convex one lies above both of its lines, a concave one below. A
        decided one stands for what it reads, v, so that u = slope v; it has a variable of its own only where others
        read it and the slope is not zero. Where v is zero throughout, either slope is right: no distance is asked for.
        """
        decided, free = (signs != 0) & self.used, (signs == 0) & self.used
        slope, side = np.where(signs < 0, self.low, self.high), np.where(signs < 0, -1.0, 1.0)
        turn = np.where(self.high >= self.low, 1.0, -1.0)
        named = decided & (slope != 0.0) & self.read
        plain = decided & ~named
        right = np.ones(self.rows.shape[1])
        right[self.inputs :][decided] = slope[decided]
        sizes = np.where(self._still(decided, right), 0.0, self.sizes)
        empty = np.zeros_like(self.rows)
        # side v >= 0, turn u >= turn (low v) and (high v), v - rows = constant
        blocks = [
            (-side, self.rows, empty, plain),
            (0.0 * side, empty, -side[:, None] * self.own, named),
            *((turn * line, self.rows, -turn[:, None] * self.own, free) for line in (self.low, self.high)),
            (np.full(len(side), -1.0), self.rows, self.own, named),
        ]
        return System(
            left=np.concatenate([left[rows] for left, _, _, rows in blocks]),
            rows=np.concatenate([matrix[rows] for _, matrix, _, rows in blocks]),
            right=right,
            own=np.concatenate([own[rows] for _, _, own, rows in blocks]),
            last=np.concatenate([-self.constants[rows] for _, _, _, rows in blocks]),
            doubt=np.concatenate([self.doubt[rows] for _, _, _, rows in blocks]),
            equal=int(named.sum()),
            inputs=self.inputs,
            sizes=np.concatenate([sizes[rows] for _, _, _, rows in blocks]),
        )

    def _still(self, decided: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return which decided units read zero throughout: no bias, and nothing but units that are off or still."""
        reads, still = (self.rows * right != 0.0) | (self.doubt != 0.0), np.zeros(len(decided), dtype=bool)
        for unit in np.flatnonzero(decided & (self.constants == 0.0)):  # a unit reads units before it
            still[unit] = not reads[unit].any()
            reads[:, self.inputs + unit] &= not still[unit]
        return still

    def _solve(self, signs: np.ndarray, budget: Budget) -> Answer:
        """Find the input that is furthest inside all inequalities, or furthest from them if there is none."""
        from scipy.optimize import linprog  # most of the time that importing this package would take
        from scipy.sparse import csr_array

        if not budget.spend(PROGRAM):
            return Answer()
        system = self.system(signs)
        matrix, sides, bent = system.matrix, system.sides, len(system.left) - system.equal
        width = matrix.shape[1]
        solved = linprog(
            np.concatenate([np.zeros(width), [-1.0]]),
            A_ub=csr_array(np.hstack([matrix[:bent], system.sizes[:bent, None]])),
            b_ub=sides[:bent],
            A_eq=csr_array(np.hstack([matrix[bent:], np.zeros((system.equal, 1))])) if system.equal else None,
            b_eq=sides[bent:] if system.equal else None,
            bounds=[(None, None)] * width + [(None, 1.0)],
            method="highs",
            options={"time_limit": budget.seconds} if budget.limited else {},
        )
        if solved.status != 0 or budget.late:
            return Answer()
        if solved.x[-1] > MARGIN:
            return Answer(point=solved.x[: self.inputs] * self.unit)
        if not self.usable:
            return Answer()
        multipliers = -solved.ineqlin.marginals
        if system.equal:
            multipliers = np.concatenate([multipliers, -solved.eqlin.marginals])
        return Answer(impossible=contradictory(system, multipliers))


def _doubt(linear: LinearMap, matrix: np.ndarray) -> float:
    """Return how far every entry of a map may be off that was written out; 0 for numbers as they are stored."""
    stored = isinstance(linear, Identity | Reindex | Matrix | Diagonal)
    stored |= isinstance(linear, Convolution) and linear.padding_mode == "zeros"
    if stored:
        return linear.slack
    rounded = linear.slack + ROUNDING * float(np.abs(matrix).max(initial=0.0))
    return max(rounded, ceiling10(lost(linear, upper).log10))  # what cancels is rounded all the same


def _power(value: float) -> float:
    """Return the power of two next to a positive number, 1 for zero."""
    return math.ldexp(1.0, math.frexp(value)[1]) if value > 0.0 else 1.0


def offsets(segments: Segments) -> dict[str, Tensor]:
    """Return every node's constant: its value where all sources are zero."""
    graph = segments.graph
    values = {item.name: torch.zeros_like(item.value) for item in graph.inputs}
    for node in graph:
        if isinstance(segments.effects[node.name], Linear):
            values[node.name] = node.evaluate([values[ref] for ref in node.refs])
        else:
            values[node.name] = torch.zeros(node.shape, dtype=torch.float64, device=node.device)
    return values
