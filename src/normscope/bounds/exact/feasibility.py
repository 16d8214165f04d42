"""Which activation patterns can occur: linear programs over the input and the values of the units."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from ...linalg.slices import slice_map
from ...linalg.writing import write_out
from ...rules.effects import Linear
from ..ellipsoids.plan import Plan
from ..segments import Segments

RELAXED = 1e-6
"""How far the inequalities of a pattern are relaxed, relative to their rows, before it may be ruled out."""


class Feasibility:
    """Linear programs over the input and the units' values: can an input have a given pattern?"""

    def __init__(self, segments: Segments, plan: Plan, slopes: dict[str, tuple[Tensor, Tensor]]) -> None:
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
        rows, constants = [], []
        for name in names:
            block = np.zeros((len(slopes[name][0]), width))
            for source, linear in segments.atoms[name].operands[0].items():
                one = slice_map(linear, plan.leading)
                assert one is not None, "the plan would not have been made"
                matrix = write_out(one).cpu().numpy()
                block[:, columns[source] : columns[source] + matrix.shape[1]] += matrix
            rows.append(block)
            constants.append(constant[graph.node(name).refs[0]].reshape(copies, -1)[0].cpu().numpy())
        self.steps = [len(slopes[name][0]) for name in names]
        self.rows, self.constants = np.concatenate(rows), np.concatenate(constants)
        self.low = np.concatenate([slopes[name][0].cpu().numpy() for name in names])
        self.high = np.concatenate([slopes[name][1].cpu().numpy() for name in names])
        self._equilibrate()
        self.own = np.zeros((len(self.rows), width))
        self.own[np.arange(len(self.rows)), self.inputs + np.arange(len(self.rows))] = 1.0
        self.sizes = np.linalg.norm(self.rows, axis=1) + np.abs(self.constants)
        # the solver takes coefficients below 1e-9 for zero: a cell may lie that far away, so nothing is ruled out then
        used = np.concatenate([self.rows, self.low[:, None] * self.rows, self.high[:, None] * self.rows])
        self.unsure = bool(((used != 0) & (np.abs(used) < 1e-8)).any())

    def _equilibrate(self) -> None:
        """Measure inputs and units so that all coefficients are near 1: the solver's tolerances are absolute."""
        scale = np.ones(self.rows.shape[1])
        norms = np.linalg.norm(self.rows[:, : self.inputs], axis=1)
        shifted = (norms > 0) & (self.constants != 0)
        if shifted.any():
            scale[: self.inputs] = np.median(np.abs(self.constants[shifted]) / norms[shifted])
        elif (norms > 0).any():
            scale[: self.inputs] = 1.0 / np.median(norms[norms > 0])
        for unit in range(len(self.rows)):  # a unit reads inputs and units before it
            size = float(np.linalg.norm(self.rows[unit] * scale) + abs(self.constants[unit])) or 1.0
            scale[self.inputs + unit] = size
            self.rows[unit] *= scale / size
            self.constants[unit] /= size
        self.unit = float(scale[0]) if self.inputs else 1.0

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
        return not self.unsure and sum(int((part != 0).sum()) for part in signs) > self.inputs

    def possible(self, signs: Sequence[Tensor]) -> bool:
        """Say whether an input may have the pattern: False only if not even the relaxed inequalities can be met."""
        return self._solve(torch.cat(list(signs)).cpu().numpy(), margin=False) is not False

    def interior(self, signs: Sequence[Tensor]) -> Tensor | None:
        """Return an input well inside the cell of a decided pattern, or None if there is none to be found."""
        found = self._solve(torch.cat(list(signs)).cpu().numpy(), margin=True)
        return None if isinstance(found, bool) else torch.from_numpy(found)

    def _solve(self, signs: np.ndarray, *, margin: bool) -> np.ndarray | bool:
        """Solve for (input, values of the units, margin): the input, or False if infeasible, or True if unsettled."""
        decided, free = signs != 0, signs == 0
        slope = np.where(signs < 0, self.low, self.high)
        extra = np.zeros((len(self.rows), 1))
        # u - slope v = slope c for decided units; convex units lie above both of their lines, concave ones below
        equal = np.hstack([self.own - slope[:, None] * self.rows, extra])[decided]
        equal_to = (slope * self.constants)[decided]
        side = np.where(signs < 0, -1.0, 1.0)
        # side v >= margin * size (or -relaxed)
        inside = np.hstack([-side[:, None] * self.rows, self.sizes[:, None] if margin else extra])[decided]
        inside_to = (side * self.constants + (0.0 if margin else RELAXED * self.sizes))[decided]
        turn = np.where(self.high >= self.low, 1.0, -1.0)
        above = [
            np.hstack([turn[:, None] * (line[:, None] * self.rows - self.own), extra])[free]
            for line in (self.low, self.high)
        ]
        above_to = [(-turn * line * self.constants + RELAXED * self.sizes)[free] for line in (self.low, self.high)]
        cost = np.zeros(self.rows.shape[1] + 1)
        cost[-1] = -1.0
        bounds = [(None, None)] * self.rows.shape[1] + [(0.0, 1.0) if margin else (0.0, 0.0)]
        solved = linprog(
            cost if margin else np.zeros_like(cost),
            A_ub=np.vstack([inside, *above]),
            b_ub=np.concatenate([inside_to, *above_to]),
            A_eq=equal if len(equal) else None,
            b_eq=equal_to if len(equal) else None,
            bounds=bounds,
            method="highs",
            options={"presolve": False},  # it makes new coefficients, and drops small ones
        )
        if solved.status == 2:
            return False
        if solved.status != 0 or (margin and solved.x[-1] <= 1e-9):
            return True
        result: np.ndarray = solved.x[: self.inputs] * self.unit
        return result


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
