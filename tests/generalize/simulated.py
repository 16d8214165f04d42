"""Distributions on which the true risk is known, and models that do their worst on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.generalize.than2025 import Theorem20, theorem20


@dataclass(frozen=True)
class Trial:
    """One draw of D: the true risk, the loss on D, and the terms of Theorem 20."""

    risk: float
    loss: float
    terms: Theorem20

    @property
    def violated(self) -> bool:
        return self.risk > self.loss + self.terms.gap + 1e-12


def memorised_line(*, steepness: float, m: int, cells: int, delta: float, draws: int, seed: int) -> Iterator[Trial]:
    """Uniform on [0, 1]; the loss is `min(1, L dist(x, D))`: zero on D, steep around it, L-Lipschitz.

    The mean distance in a cell is known in closed form, and the risk is a sum over the gaps of D.
    """
    generator = torch.Generator().manual_seed(seed)
    width = 1.0 / cells
    for _ in range(draws):
        x = torch.rand(m, generator=generator, dtype=torch.float64).sort().values
        place = (x / width).floor().clamp(max=cells - 1)
        counts = torch.zeros(cells, dtype=torch.float64).index_add(0, place.long(), torch.ones_like(x))
        inside = x - place * width  # E|x - s| for x uniform in the cell of s
        mean = (inside**2 + (width - inside) ** 2) / (2 * width)
        spread = torch.zeros(cells, dtype=torch.float64).index_add(0, place.long(), mean) / counts.clamp(min=1)
        yield Trial(_risk(x, steepness), 0.0, theorem20(counts, spread, _log(steepness), delta=delta, most=1.0))


def _risk(x: Tensor, steepness: float) -> float:
    """The integral of min(1, L dist) over [0, 1]: every half gap is a ramp up to 1 and flat behind it."""
    halves = torch.cat([(x[1:] - x[:-1]).repeat(2) / 2, x[:1], 1 - x[-1:]])
    ramp = halves.clamp(max=1 / steepness)
    return float((steepness * ramp**2 / 2 + (halves - ramp)).sum())


def _log(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).log10())


def unseen_atoms(*, weights: Tensor, m: int, delta: float, draws: int, seed: int) -> Iterator[Trial]:
    """A distribution of atoms, each a cell; the loss is 0 on atoms of D and 1 on all others: the missing mass."""
    generator = torch.Generator().manual_seed(seed)
    weights = weights.double() / weights.sum()
    for _ in range(draws):
        seen = torch.multinomial(weights, m, replacement=True, generator=generator)
        counts = torch.bincount(seen, minlength=len(weights)).double()
        risk = float(weights[counts == 0].sum())
        yield Trial(risk, 0.0, theorem20(counts, torch.zeros_like(counts), 0.0, delta=delta, most=1.0))


def tilted_atoms(*, weights: Tensor, m: int, delta: float, draws: int, seed: int) -> Iterator[Trial]:
    """Atoms as cells, and the loss 1 on those that D has too few of, 0 on the others."""
    generator = torch.Generator().manual_seed(seed)
    weights = weights.double() / weights.sum()
    for _ in range(draws):
        seen = torch.multinomial(weights, m, replacement=True, generator=generator)
        counts = torch.bincount(seen, minlength=len(weights)).double()
        loss = (counts / m < weights).double()
        terms = theorem20(counts, torch.zeros_like(counts), 0.0, delta=delta, most=1.0)
        yield Trial(float((weights * loss).sum()), float((counts / m * loss).sum()), terms)


def squares(*, steepness: float, m: int, side: int, delta: float, draws: int, seed: int) -> Iterator[Trial]:
    """Uniform on the unit square with two labels by x; `min(1, L dist)` from the samples of the same label, on a grid.

    The risk is taken over 40,000 further samples; distances in a cell over 200 for each.
    """
    generator = torch.Generator().manual_seed(seed)
    fresh = torch.rand(4000, 2, generator=generator, dtype=torch.float64)
    inner = torch.rand(200, 2, generator=generator, dtype=torch.float64) / side

    def cells(points: Tensor) -> Tensor:
        places = (points * side).floor().clamp(max=side - 1).long()
        return places[:, 0] * side + places[:, 1]

    corners = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double() / side
    for _ in range(draws):
        x = torch.rand(m, 2, generator=generator, dtype=torch.float64)
        place = cells(x)
        counts = torch.bincount(place, minlength=side**2).double()
        mean = torch.stack([torch.cdist(x[i : i + 1], corners[c] + inner).mean() for i, c in enumerate(place)])
        spread = torch.zeros(side**2, dtype=torch.float64).index_add(0, place, mean) / counts.clamp(min=1)
        nearest = torch.cdist(fresh, x).amin(1)
        risk = float((steepness * nearest).clamp(max=1).mean())
        yield Trial(risk, 0.0, theorem20(counts, spread, _log(steepness), delta=delta, most=1.0))
