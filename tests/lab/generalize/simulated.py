"""Distributions on which the true risk is known, and models that do their worst on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope_lab.generalize.than2025 import Theorem20, theorem20


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


def atoms(*, weights: Tensor, m: int, delta: float, draws: int, seed: int, tilted: bool) -> Iterator[Trial]:
    """A distribution of atoms, each a cell; the loss is 1 on those that D has not, or has too few of, and else 0."""
    generator = torch.Generator().manual_seed(seed)
    weights = weights.double() / weights.sum()
    for _ in range(draws):
        seen = torch.multinomial(weights, m, replacement=True, generator=generator)
        counts = torch.bincount(seen, minlength=len(weights)).double()
        loss = (counts / m < weights).double() if tilted else (counts == 0).double()
        terms = theorem20(counts, torch.zeros_like(counts), 0.0, delta=delta, most=1.0)
        yield Trial(float((weights * loss).sum()), float((counts / m * loss).sum()), terms)
