"""`effort="exact"` against brute force: every cell of a tiny piecewise linear network, by linear programs.

The enumeration knows layers of numbers only. Each unit has pieces; a piece is a set of half spaces and a slope. A cell
counts if a ball fits into it, so its linear map is a slope that the network has.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

import normscope as ns

from .outcome import EPS, Outcome, drawing

INTERIOR = 1e-6
"""A cell counts if a ball of this radius fits into it, in units of the distance of its planes from the origin."""
CLOSED = 1e-6
"""How far apart the sides of a bracket that has converged may be."""
OPEN = ("hardtanh", "pool")
"""What branch and bound does not take: there the bracket must hold, but need not close."""
Affine = tuple[np.ndarray, np.ndarray]


class Absolute(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.abs()


class Pool(nn.Module):
    """The largest of every two neighbours."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.max_pool1d(x[:, None], 2)[:, 0]


ACTIVATIONS = {
    "relu": nn.ReLU, "leaky": lambda: nn.LeakyReLU(0.2), "steep leaky": lambda: nn.LeakyReLU(-1.5), "abs": Absolute,
    "hardtanh": nn.Hardtanh, "pool": Pool,
}  # fmt: skip


def network(draw: random.Random) -> tuple[nn.Sequential, tuple[str, ...]]:
    """Draw one or two hidden layers of up to 8 units, with units that are dead, doubled or nearly so."""
    layers, parts = [], []
    size = draw.randint(1, 3)
    for depth in range(draw.choice([1, 1, 2])):
        width = 2 * draw.randint(1, 4 if depth == 0 or size < 6 else 3)
        linear = nn.Linear(size, width)
        parts += _shaped(draw, linear)
        name = draw.choice([*ACTIVATIONS, "relu", "relu"])
        layers += [linear, ACTIVATIONS[name]()]
        parts.append(name)
        size = width // 2 if name == "pool" else width
    layers.append(nn.Linear(size, draw.randint(1, 3), bias=draw.random() < 0.5))
    model = nn.Sequential(*layers)
    dtype = draw.choice([torch.float32, torch.float64])
    return model.to(dtype).eval(), (*parts, f"{len(layers) // 2} hidden", str(dtype).removeprefix("torch."))


@torch.no_grad()
def _shaped(draw: random.Random, linear: nn.Linear) -> list[str]:
    parts = []
    linear.weight.normal_().mul_(draw.choice([0.3, 1.0, 3.0]))
    size = draw.choice([0.0, 0.0, 0.5, 1.0, 100.0])
    linear.bias.normal_().mul_(size)
    parts.append({0.0: "zero biases", 100.0: "large biases"}.get(size, "biases"))
    width = linear.out_features
    if draw.random() < 0.3:
        row = draw.randrange(width)
        linear.weight[row] = 0.0
        linear.bias[row] = draw.choice([-1.0, 0.0, 1.0])
        parts.append("unit without weights")
    if draw.random() < 0.3 and width > 1:
        linear.weight[0], linear.bias[0] = linear.weight[-1], linear.bias[-1]
        parts.append("doubled unit")
    if draw.random() < 0.2 and width > 1:
        linear.weight[0], linear.bias[0] = -2.0 * linear.weight[-1], -2.0 * linear.bias[-1]
        parts.append("opposite unit")
    if draw.random() < 0.2:
        linear.weight.mul_(torch.rand_like(linear.weight) > 0.4)
        parts.append("zero weights")
    if draw.random() < 0.15:
        linear.bias.fill_(-1e3).sub_(linear.weight.abs().sum(1))
        parts.append("all far")
    return parts


def pieces(layer: nn.Module, value: Affine) -> Iterator[list[tuple[np.ndarray, np.ndarray, np.ndarray, float]]]:
    """Yield, for every unit, its pieces: half spaces `rows x + sides >= 0`, and the row and offset that it gives."""
    matrix, offset = value
    if isinstance(layer, Pool):
        for low in range(0, len(matrix) - 1, 2):
            pair = [(matrix[low], offset[low]), (matrix[low + 1], offset[low + 1])]
            yield [
                ((first[0] - second[0])[None], np.array([first[1] - second[1]]), first[0], first[1])
                for first, second in (pair, pair[::-1])
            ]
        return
    for row, shift in zip(matrix, offset):
        if isinstance(layer, nn.Hardtanh):
            yield [
                (np.stack([row, -row]), np.array([1.0 + shift, 1.0 - shift]), row, shift),
                (row[None], np.array([shift - 1.0]), 0 * row, 1.0),
                (-row[None], np.array([-1.0 - shift]), 0 * row, -1.0),
            ]
            continue
        below = {nn.ReLU: 0.0, Absolute: -1.0}.get(type(layer))
        below = float(layer.negative_slope) if below is None else below
        yield [
            (row[None], np.array([shift]), row, shift), (-row[None], np.array([-shift]), below * row, below * shift)
        ]  # fmt: skip


def inside(rows: np.ndarray, sides: np.ndarray) -> np.ndarray | None:
    """Return a point with a ball around it in an intersection of half spaces; None where there is none."""
    length = np.linalg.norm(rows, axis=1)
    flat = length <= 1e-13 * max(1e-300, float(np.abs(sides).max(initial=0.0)), float(length.max(initial=0.0)))
    if bool((sides[flat] < 0).any()):  # a constant on the wrong side
        return None
    rows, sides, length = rows[~flat], sides[~flat], length[~flat]
    if not len(rows):
        return np.zeros(rows.shape[1])
    rows, sides = rows / length[:, None], sides / length
    unit = float(np.abs(sides).max()) or 1.0
    solved = linprog(
        np.append(np.zeros(rows.shape[1]), -1.0),
        A_ub=np.hstack([-rows, np.ones((len(rows), 1))]), b_ub=sides / unit,
        bounds=[(None, None)] * rows.shape[1] + [(0.0, 1.0)], method="highs",
    )  # fmt: skip
    return solved.x[:-1] * unit if solved.status == 0 and solved.x[-1] > INTERIOR else None


def cells(model: nn.Sequential) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield a point and the linear map of every cell."""
    layers = [*copy.deepcopy(model).double()]
    size = layers[0].in_features
    yield from _cells(layers, (np.eye(size), np.zeros(size)), np.zeros((0, size)), np.zeros(0), np.zeros(size))


def _cells(
    layers: list[nn.Module], value: Affine, rows: np.ndarray, sides: np.ndarray, point: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    if not layers:
        yield point, value[0]
        return
    first, *rest = layers
    if isinstance(first, nn.Linear):
        weight = first.weight.detach().numpy()
        bias = 0.0 if first.bias is None else first.bias.detach().numpy()
        yield from _cells(rest, (weight @ value[0], weight @ value[1] + bias), rows, sides, point)
        return
    found = [(rows, sides, point, np.zeros((0, rows.shape[1])), np.zeros(0))]
    for unit in pieces(first, value):
        grown = []
        for above, far, _, matrix, offset in found:
            for more, shift, row, constant in unit:
                new_rows, new_sides = np.vstack([above, more]), np.append(far, shift)
                at = inside(new_rows, new_sides)
                if at is not None:
                    grown.append((new_rows, new_sides, at, np.vstack([matrix, row]), np.append(offset, constant)))
        found = grown
    for above, far, where, matrix, offset in found:
        yield from _cells(rest, (matrix, offset), above, far, where)


def attack(seed: int) -> Outcome:
    """Draw a network, close its bracket, and compare it with the largest slope of any cell."""
    with drawing(f"exact {seed}") as draw:
        model, parts = network(draw)
        batch = torch.randn(2, model[0].in_features).to(model[0].weight.dtype)
    outcome = Outcome("exact", parts)
    bracket = ns.lipschitz(model, batch, effort="exact")
    truth = max(float(np.linalg.norm(matrix, 2)) for _, matrix in cells(model))
    product = math.prod(
        float(torch.linalg.matrix_norm(l.weight.detach().double(), 2)) for l in model if hasattr(l, "weight")
    )
    room = 64 * len(model) * EPS * 1.5 ** len(model) * product
    outcome.check(truth <= bracket.upper * (1 + 4 * EPS) + room, f"seed {seed}: {truth!r} above {bracket.upper!r}")
    outcome.check(bracket.lower <= truth + room, f"seed {seed}: witness {bracket.lower!r} above the truth {truth!r}")
    if truth > room:
        outcome.gaps.append(bracket.log10_upper - math.log10(truth))
    if not set(parts) & set(OPEN):
        closed = truth <= room or bracket.gap <= 1.01 * CLOSED
        outcome.check(closed or not bracket.converged, f"seed {seed}: said to be closed, and is not: {bracket}")
        outcome.remarks += ["closed" if closed else "not closed"]
    return outcome
