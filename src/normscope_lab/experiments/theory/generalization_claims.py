"""Theorem 20 with Corollaries 21 and 22, and the Slides' Theorem 1, tested on many draws of a data set."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from normscope.report import factor
from normscope.theory import generalization_slack

from ...rates import log10_data_ratio
from ..base import Claim, Figures, Job, Judgement, Measured, Settings
from ..judging import Judge, judged
from ..single import single

Loss = Callable[[Tensor, Tensor], Tensor]
"""The loss at inputs of a model that was trained on data: `loss(inputs, data)`."""
SETTINGS: Settings = {
    "samples": 2000,
    "draws": 300,
    "cells": 4,
    "delta": 0.2,
    "fresh": 20_000,
    "memorised": 4000,
    "memorised delta": 0.01,
    "gap": 0.2,
    "factor": 0.5,
    "seed": 0,
}
DIMENSIONS = (1, 4, 8, 16)
SAVED = 0.01
"""More normalizers save samples if these become fewer by this many decades."""
STEEP = 3.0
"""The slope of the simulated loss."""


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Draw data sets of the uniform distribution on [0, 1], and count how often the bounds fail."""
    generator = torch.Generator().manual_seed(settings["seed"])
    fresh = torch.rand(settings["fresh"], generator=generator, dtype=torch.float64)
    sets = torch.rand(settings["draws"], settings["samples"], generator=generator, dtype=torch.float64)
    smooth, broken = _coverage(settings, _wave, STEEP, sets, fresh), _coverage(settings, _jump, 0.0, sets, fresh)
    network, layered = (_coverage(settings, _memorised(one), STEEP, sets, fresh) for one in (_network, _layered))
    return {
        "delta": settings["delta"],
        **{f"theorem20.{name}": value for name, value in smooth.items()},
        **{f"corollary22.{name}": value for name, value in network.items()},
        **{f"corollary22.layer norm.{name}": value for name, value in layered.items()},
        **_tilted(settings, generator),
        **{f"corollary21.fixed set.{name}": value for name, value in broken.items()},
        **_memoriser(settings, fresh, generator),
        **_less_data(settings),
        **_by_dimension(settings, generator),
    }


def _wave(x: Tensor, data: Tensor) -> Tensor:
    """Return a loss with values in [0, 1] and slopes of at most `STEEP`: a triangle wave."""
    return (torch.remainder(STEEP * x, 2.0) - 1.0).abs()


def _jump(x: Tensor, data: Tensor) -> Tensor:
    """Return a loss that jumps at an edge of the cells, fixed beforehand, and is level elsewhere."""
    return (x >= 0.5).double()


def _network(x: Tensor) -> Tensor:
    """Return the outputs of a network of two layers with BatchNorm: the product of its bounds is `STEEP`.

    The weights are 2 and 3, the deviations 0.5 and 4, and the product is 2/0.5 times 3/4.
    """
    hidden = ((2.0 * x - 1.0) / 0.5).relu()
    return ((3.0 * hidden - 2.0) / 4.0)[:, None]


def _layered(x: Tensor) -> Tensor:
    """Return the outputs of a network of two layers with LayerNorm: the product of its bounds is `STEEP`.

    It reads (x, 1). The weights have norms `STEEP` and 1, and eps is 1, so that no deviation is below 1.
    """
    first = torch.tensor([[STEEP, 0.0], [-STEEP / 2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    first = STEEP * first / torch.linalg.matrix_norm(first, ord=2)
    values = torch.stack((x, torch.ones_like(x)), dim=1)
    for weight in (first, torch.eye(3, dtype=torch.float64)):
        values = torch.nn.functional.layer_norm(values @ weight.T, (3,), eps=1.0).relu()
    return values


def _memorised(network: Callable[[Tensor], Tensor]) -> Loss:
    """Return the worst loss of a network's outputs: how far an output is from those of the nearest samples, at most 1.

    It is 1-Lipschitz in the output and 0 on the data.
    """

    def loss(x: Tensor, data: Tensor) -> Tensor:
        ordered, outputs = data.sort().values, network(x)
        above = torch.searchsorted(ordered, x).clamp(max=len(ordered) - 1)
        beside = (network(ordered[place]) for place in (above, (above - 1).clamp(min=0)))
        below, over = ((outputs - one).norm(dim=1) for one in beside)
        return torch.minimum(below, over).clamp(max=1.0)

    return loss


def _tilted(settings: Settings, generator: torch.Generator) -> dict[str, float]:
    """Return how often g is too small where the loss does its worst: 1 in cells with less than their share of the data.

    The loss is level in each cell. With 1 in cells with more than their share the gap is the same on the other side.
    """
    count, size = settings["cells"], settings["samples"]
    cells = torch.randint(count, (settings["draws"], size), generator=generator)
    counts = torch.nn.functional.one_hot(cells, count).sum(dim=1).double()
    gaps = (1.0 / count - counts / size).clamp(min=0.0).sum(dim=1)
    slacks = [
        generalization_slack(size, cells=int(one), partition=count, delta=settings["delta"], most=1.0)
        for one in (counts > 0).sum(dim=1)
    ]
    shares = gaps / torch.tensor(slacks, dtype=torch.float64)
    return {"tilted.failed": float((shares > 1.0).double().mean()), "tilted.largest share": float(shares.max())}


def _coverage(settings: Settings, loss: Loss, slope: float, sets: Tensor, fresh: Tensor) -> dict[str, float]:
    """Return the share of the draws in which the bound fails, on one side and on both, and how loose it is."""
    count, size = settings["cells"], settings["samples"]
    failed, both, bare, excess = 0, 0, 0, 0.0
    inside = [fresh[(fresh * count).long() == cell] for cell in range(count)]
    for data in sets:
        cells = (data * count).long()
        spread, diameters = 0.0, 0.0
        for cell in cells.unique().tolist():
            mine = data[cells == cell]
            share = len(mine) / size
            spread += share * float((inside[cell][:200, None] - mine).abs().mean()) * slope
            diameters += share * slope / count
        slack = generalization_slack(
            size, cells=len(cells.unique()), partition=count, delta=settings["delta"], most=1.0
        )
        mean, risk = float(loss(data, data).mean()), float(loss(fresh, data).mean())
        failed += risk > mean + spread + slack
        bare += risk > mean + spread
        both += abs(risk - mean) > diameters + slack
        excess += (mean + spread + slack - risk) / len(sets)
    return {
        "failed": failed / len(sets),
        "failed on both sides": both / len(sets),
        "failed without g": bare / len(sets),
        "mean excess": excess,
    }


def _memoriser(settings: Settings, fresh: Tensor, generator: torch.Generator) -> dict[str, float]:
    """Return both sides of Corollary 21 for a model that is right at its data and wrong everywhere else."""
    data = torch.rand(settings["memorised"], generator=generator, dtype=torch.float64)
    memorised = set(data.tolist())
    error = sum(x not in memorised for x in data.tolist()) / len(data)
    risk = sum(x not in memorised for x in fresh.tolist()) / len(fresh)
    slack = generalization_slack(len(data), cells=1, partition=1, delta=settings["memorised delta"])
    return {"corollary21.risk": risk, "corollary21.right side": error + slack}


def _less_data(settings: Settings) -> dict[str, float]:
    """Return log10 of the samples a normalized network needs over its twin's, by the number of normalizers."""
    options = {"cells": settings["cells"], "partition": settings["cells"], "delta": settings["delta"]}
    gap, factor = settings["gap"], settings["factor"]
    start = 0.75 * gap  # the sensitivity of the twin, which can reach the gap
    ratios = {count: log10_data_ratio(gap, start * factor**count, start, **options) for count in (10, 20, 40)}
    beyond = log10_data_ratio(gap, start, 2.0 * gap, **options)
    return {f"data.log10 ratio with {count} normalizers": ratio for count, ratio in ratios.items()} | {
        "data.log10 ratio where the twin never reaches the gap": beyond
    }


def _by_dimension(settings: Settings, generator: torch.Generator) -> dict[str, float]:
    """Return g of uniform samples of cubes of more and more dimensions, whose cells have sides of one half."""
    slacks = {}
    for size in DIMENSIONS:
        corners = torch.rand(settings["samples"], size, generator=generator, dtype=torch.float64) < 0.5
        slacks[f"dimension.g in {size}"] = generalization_slack(
            settings["samples"],
            cells=len(corners.unique(dim=0)),
            partition=2**size,
            delta=settings["delta"],
            most=1.0,
        )
    return slacks


def _cursed(figures: Figures) -> Judgement:
    slacks = [figures[f"dimension.g in {size}"] for size in DIMENSIONS]
    listed = ", ".join(f"{slack:.3g} in {size}" for size, slack in zip(DIMENSIONS, slacks))
    return judged(
        max(slacks) < 1.0,
        f"With cells of side 1/2 and losses of at most 1, g is by the number of dimensions {listed}: it contains |T|, "
        "the number of cells with samples, which approaches the number of samples.",
    )


def _deeper(figures: Figures) -> Judgement:
    ratios = {count: figures[f"data.log10 ratio with {count} normalizers"] for count in (10, 20, 40)}
    saved = ", ".join(f"{factor(-ratio)} with {count}" for count, ratio in ratios.items())
    return judged(
        ratios[20] < ratios[10] - SAVED and ratios[40] < ratios[20] - SAVED,
        f"Where the unnormalized twin reaches the gap too, it needs this many times the samples: {saved} normalizers.",
    )


def _theorem20(figures: Figures) -> Judgement:
    failed, level, tilted = (figures[f"{name}.failed"] for name in ("theorem20", "corollary21.fixed set", "tilted"))
    return judged(
        max(failed, level, tilted) <= figures["delta"],
        f"It failed in {100 * max(failed, level, tilted):.3g} % of the draws, {100 * figures['delta']:g} % are "
        f"allowed. Where the loss is level in each cell and does its worst, 1 in those with too few data, the gap "
        f"reaches {figures['tilted.largest share']:.2g} of g at most.",
    )


def _corollary22(name: str) -> Judge:
    """Return a function that judges Corollary 22 for a network of two layers with a loss that is 0 on the data."""

    def judge(figures: Figures) -> Judgement:
        failed, excess = figures[f"{name}.failed"], figures[f"{name}.mean excess"]
        return judged(
            failed <= figures["delta"],
            f"For a network of two layers, and a loss that is 0 on the data and as steep as may be beside them, it "
            f"failed in {100 * failed:.3g} % of the draws, {100 * figures['delta']:g} % are allowed; the right side "
            f"exceeds the risk by {excess:.3g} on average.",
        )

    return judge


def _corollary21(figures: Figures) -> Judgement:
    risk, right, fixed = (figures[f"corollary21.{name}"] for name in ("risk", "right side", "fixed set.failed"))
    return judged(
        risk <= right,
        f"A model that memorises its data has risk {risk:.3g} and a right side of {right:.3g}; with a set of "
        f"discontinuities that is fixed beforehand the bound failed in {100 * fixed:.3g} % of the draws.",
        corrected=fixed <= figures["delta"],
    )


def _two_sided(figures: Figures) -> Judgement:
    failed = max(figures["theorem20.failed on both sides"], figures["tilted.failed"])
    return judged(
        failed <= figures["delta"],
        f"Both sides together failed in {100 * failed:.3g} % of the draws; the loss that does its worst reaches "
        f"{figures['tilted.largest share']:.2g} of g at most on either side.",
    )


def _less(figures: Figures) -> Judgement:
    ratios = [figures[f"data.log10 ratio with {count} normalizers"] for count in (10, 20, 40)]
    beyond = figures["data.log10 ratio where the twin never reaches the gap"]
    saved = [factor(-ratio) for ratio in ratios]
    return judged(
        ratios[2] < 1.5 * ratios[0],
        f"Where the unnormalized twin reaches the gap too, it needs {saved[0]}, {saved[1]} and {saved[2]} times the "
        f"samples of networks with 10, 20 and 40 normalizers; where it never reaches it, {factor(-beyond)} times.",
        corrected=beyond == -math.inf,
    )


GENERALIZATION = single(
    name="than.generalization",
    title="Generalization bounds against many draws",
    about="A loss of known slope on the uniform distribution over [0, 1] and cells that are fixed beforehand: the "
    "bounds are evaluated on many data sets, and how often they fail is counted.",
    measure=measure,
    settings=SETTINGS,
    claims=(
        Claim(
            id="than.theorem20",
            where="Theorem 20",
            text="With probability 1 - delta the risk is at most the mean loss on the data, local constants times mean "
            "distances, and g.",
            quotation=r"the following holds with probability at least $1 - \delta$: $F(P, \mathbf{h}) \leq "
            r"F(\mathbf{D}, \mathbf{h}) + \sum_{i \in \mathbf{T}} \frac{m_i}{m} \lambda_i L_i + g(\mathbf{D}, \delta)$",
            judge=_theorem20,
        ),
        Claim(
            id="than.corollary21",
            where="Corollary 21",
            text="Points of discontinuity can be left out if they have probability 0.",
            quotation=r"If $P(\mathcal{X}_0) = 0$ and f is L_i -Lipschitz continuous w.r.t. $\mathbf{x} \in "
            r"\mathcal{X}_i$ for any $i \in \mathbf{T}, i > 0$, then with probability at least $1 - \delta$: $F(P, "
            r"\mathbf{h}) \leq F(\mathbf{D}, \mathbf{h}) + \sum_{i \in \mathbf{T}} \frac{m_i}{m} \lambda_i L_i + "
            r"g(\mathbf{D}, \delta)$.",
            corrected="So it is where the set of discontinuities is fixed before the data are drawn.",
            judge=_corollary21,
        ),
        Claim(
            id="than.corollary22",
            where="Corollary 22, (BN)",
            text="With BatchNorm the gap is at most g and the product of bounds of the network times mean distances.",
            quotation=r"$F(P, \mathbf{h}_{no}) - F(\mathbf{D}, \mathbf{h}_{no}) \leq g(\mathbf{D}, \delta) + "
            r"\omega(\mathbf{h}_{no})\sigma^{-K}$",
            judge=_corollary22("corollary22"),
        ),
        Claim(
            id="than.corollary22.layer-norm",
            where="Corollary 22, (LN)",
            text="With LayerNorm the gap is at most g and the product of weight norms and 1/sigma times mean "
            "distances, sigma the least over all inputs.",
            quotation=r"$F(P, \mathbf{h}_{no}) - F(\mathbf{D}, \mathbf{h}_{no}) \leq g(\mathbf{D}, \delta) + "
            r"\omega(\mathbf{h}_{no}) \prod_{k=1}^K 1/\sigma_k$",
            judge=_corollary22("corollary22.layer norm"),
        ),
        Claim(
            id="slides.theorem1",
            where="Theorem 1, equation (6)",
            text="Risk and mean loss differ by at most local constants times diameters of cells, and g, on both sides.",
            quotation=r"$|F(P, h) - F(\mathbf{D}, h)| \leq \sum_{i \in \mathbf{T}_D} \frac{m_i}{m} \lambda_i L_i + "
            r"g(\Gamma, \mathbf{D}, \delta)$",
            judge=_two_sided,
        ),
        Claim(
            id="than.5.2.dimension",
            where="Section 5.2.1, related bounds",
            text="Theorem 20's bound does not suffer from the curse of dimensionality.",
            quotation=r"causes their bound to suffer from the curse of dimensionality, since $N = \lambda^{-O(n)}$ in "
            r"the worst case, where n is the input dimensionality, meanwhile our bound does not",
            corrected="g contains |T| in place of N, which is at most the number of samples; where samples have cells "
            "of their own, g is above the largest loss.",
            judge=_cursed,
        ),
        Claim(
            id="slides.deeper",
            where="slide Exponential benefits: Generalization",
            text="The more normalizers, the fewer samples a network needs beside its unnormalized twin.",
            quotation='"Deeper" can save more samples',
            corrected="The saving has a limit, reached by 10 normalizers, where the twin's bound reaches the gap too.",
            judge=_deeper,
        ),
        Claim(
            id="slides.less-data",
            where="slide Exponential benefits: Generalization",
            text="A normalized network may need exponentially less training data.",
            quotation="A normalized DNN may require exponentially less training data",
            corrected="Where the bound of the unnormalized twin reaches the gap too, more normalizers save no more "
            "than a fixed factor; where it never does, the saving is without limit.",
            judge=_less,
        ),
    ),
)
