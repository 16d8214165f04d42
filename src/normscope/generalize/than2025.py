"""Than 2025, section 5.2: Theorem 20, Corollaries 21 and 22, and the bounds that it quotes (HKK, LLA).

Theorem 20: for a partition fixed before D is seen, with probability 1 - delta over D, for every model,
`F(P) <= F(D) + sum over T of (m_i/m) lambda_i L_i + g`. One improvement costs nothing: two losses in [0, C] differ by
at most C, so that no cell contributes more than `(m_i/m) C`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.log10 import log10, log10_sum
from ..theory.sample_sizes import generalization_slack
from .stream import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Theorem20:
    """The terms of Theorem 20 for one partition.

    `size` is N, the number of its cells with labels counted; `cells` is |T|; `local` is the mean over the samples of
    `min(lambda_i L_i, C)`, and `log10_local_as_printed` is without the minimum; `slack` is g, the confidence term.
    """

    size: int
    cells: int
    local: float
    log10_local_as_printed: float
    slack: float

    @property
    def gap(self) -> float:
        """How far the loss on fresh data can be above the loss on D."""
        return self.local + self.slack


def theorem20(
    counts: Tensor, distances: Tensor, log10_constants: Tensor | float, *, delta: float, most: float
) -> Theorem20:
    """Return the terms of Theorem 20 that are added to the loss on D.

    Reference: Than 2025, Theorem 20, equation 13.
    """
    counts, distances = counts.double(), distances.double()
    held = counts > 0
    m = float(counts.sum())
    if m < 1 or bool((distances[held] < 0).any()) or bool(distances[held].isnan().any()):
        raise InputError("Theorem 20 needs samples, and distances that are numbers from 0 on")
    exponents = torch.as_tensor(log10_constants, dtype=torch.float64).expand(len(counts))[held]
    spread = distances[held].log10() + exponents
    spread = torch.where((distances[held] == 0) | (exponents == -math.inf), -math.inf, spread)
    share = counts[held] / m
    capped = torch.where(spread >= math.log10(most), most, 10.0**spread)
    cells = int(held.sum())
    return Theorem20(
        size=len(counts),
        cells=cells,
        local=float((share * capped).sum()),
        log10_local_as_printed=log10_sum((spread + share.log10()).tolist()),
        slack=generalization_slack(m, cells=cells, partition=len(counts), delta=delta, most=most),
    )


def mean_distances(train: Tally, held: Tally) -> Tensor:
    """Estimate an upper bound on lambda_i of every cell from held-out samples; infinite where a cell has none.

    The mean distance between a sample s of D and a held-out sample x is at most the root of the mean square, which sums
    of vectors give without all pairs: `E|s-c|^2 + E|x-c|^2 - 2 <E s - c, E x - c>`. Without these vectors, the sum of
    the mean distances of both from the centre c bounds it.
    """
    s, x = train.counts.clamp(min=1.0), held.counts.clamp(min=1.0)
    if train.vectors is None or held.vectors is None:
        distances = train.distances / s + held.distances / x
    else:
        inner = ((train.vectors / s[:, None]) * (held.vectors / x[:, None])).sum(1)
        distances = (train.squares / s + held.squares / x - 2.0 * inner).clamp(min=0.0).sqrt()
    return torch.where(held.counts > 0, distances, torch.where(train.counts > 0, math.inf, 0.0))


def limited_distances(train: Tally, held: Tally, reach: Tensor, delta: float) -> Tensor:
    """Bound lambda_i of every cell, with probability 1 - delta over the held-out samples.

    `lambda_i <= mean |s - c| + E|x - c|`. The second term is the mean of a variable in [0, R_i]: it is at most R_i, and
    at most the average over H_i held-out samples plus `R_i sqrt(ln(|T|/delta)/(2 H_i))` (Hoeffding, with a union bound
    over the cells that hold samples of D).
    """
    reaches = reach.repeat(len(train.counts) // len(reach))
    cells = max(1, int((train.counts > 0).sum()))
    samples = held.counts.clamp(min=1.0)
    mean = held.distances / samples + reaches * torch.sqrt(math.log(cells / delta) / (2.0 * samples))
    fresh = torch.where(held.counts > 0, torch.minimum(mean, reaches), reaches)
    return train.distances / train.counts.clamp(min=1.0) + fresh


def corollary22(
    log10_product: float, log10_loss: float, mean_distance: float, slack: float, log10_normalizers: float = 0.0
) -> tuple[float, float]:
    """Return log10 of `omega` times the normalizers' constants, and log10 of the bound on the gap.

    `omega = L_f P_w sum of (m_i/m) lambda_i`; the normalizers' part is `sigma^-K` for BN, with
    `1/sigma = max_k norm(1/sigma_k)`, and the product of `1/sigma_k` for LN, over all inputs `1/sqrt(eps)` each.
    """
    omega = log10_product + log10_loss + log10(mean_distance) + log10_normalizers
    return omega, log10_sum((omega, log10(slack)))


def hkk(
    counts: Tensor, distances: Tensor, log10_constants: Tensor | float, *, delta: float
) -> tuple[float, float, float]:
    """Return log10 of the three terms that Than quotes from Hou, Kassraie, Kratsios, Krause and Rothfuss 2023.

    They are `sum (m_i/m) lambda_i max(1, L_i)`, `max_i lambda_i L_i sqrt(ln(4/delta)/m)` and `sqrt(N/m)`; the paper
    leaves out a constant. Cells without held-out samples are left out.
    """
    known = (counts > 0) & distances.isfinite()
    m, spread = float(counts.sum()), distances[known].double()
    if not bool(known.any()):
        return math.inf, math.inf, 0.5 * math.log10(len(counts) / m)
    exponents = torch.as_tensor(log10_constants, dtype=torch.float64).expand(len(counts))[known]
    mean = log10_sum((exponents.clamp(min=0.0) + spread.log10() + (counts[known] / m).log10()).tolist())
    worst = float((exponents + spread.log10()).max()) + 0.5 * math.log10(math.log(4.0 / delta) / m)
    return mean, worst, 0.5 * math.log10(len(counts) / m)


def lla(sharpness: float, samples: int) -> tuple[float, float, float]:
    """Return the two terms that Than quotes from Lyu, Li and Arora 2022, at the mu that makes their sum smallest.

    They are `tau mu^2/2` and `ln(m)/(mu sqrt(m))`: the orders are taken with constants of 1, and one more constant is
    missing.
    """
    if not sharpness > 0.0 or samples < 2:
        return 0.0, 0.0, math.inf
    order = math.log(samples) / math.sqrt(samples)
    mu = (order / sharpness) ** (1.0 / 3.0)
    return sharpness * mu**2 / 2.0, order / mu, mu
