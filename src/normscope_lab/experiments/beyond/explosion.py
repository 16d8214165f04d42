"""Yang et al. 2019: gradients explode with depth in untrained BatchNorm networks, at a known rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from normscope.report import Block, Chart, Column, Series, Table
from normscope.theory import batch_norm_growth

from ..base import Claim, Figures, Job, Judgement, Measured, Settings, experiment_of
from ..judging import Judge, decided, judged, read, spread, with_seeds

Activation = Literal["relu", "linear"]
BATCHES = (8, 16, 64)
QUICK: Settings = {"seeds": 4, "width": 400, "depth": 24, "batches": BATCHES}
FULL: Settings = {**QUICK, "seeds": 20, "width": 600, "depth": 32}
ENDS = 6
"""This many layers at either end are left out, because the law holds far from both ends."""
MAX_RELATIVE_ERROR = 0.05
"""A measured growth agrees with the law if it is within this relative distance."""


def jobs(settings: Settings) -> Sequence[Job]:
    """Return one job for each activation."""
    return (Job("relu"), Job("linear"))


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Measure by how much the squared gradient grows per layer, towards the input."""
    activation: Activation = "relu" if job.kind == "relu" else "linear"
    return {
        str(batch): [_growth(settings, activation, batch, seed) for seed in range(settings["seeds"])]
        for batch in settings["batches"]
    }


def _growth(settings: Settings, activation: Activation, batch: int, seed: int) -> float:
    """Return the growth of the squared gradient per layer in one random network, over its middle layers."""
    generator = torch.Generator().manual_seed(70_000 + seed)
    width, values = settings["width"], []
    x = torch.randn(batch, width, generator=generator, dtype=torch.float64).requires_grad_(True)
    for _ in range(settings["depth"]):
        weight = torch.randn(width, width, generator=generator, dtype=torch.float64) / width**0.5
        total = x @ weight.T
        values.append(total)
        x = (total - total.mean(0)) / (total.var(0, correction=0) + 1e-12).sqrt()
        x = x.relu() if activation == "relu" else x
    loss = (x * torch.randn(x.shape, generator=generator, dtype=torch.float64)).sum()
    slopes: Sequence[Tensor] = torch.autograd.grad(loss, values)
    squares = [math.log(float(slope.square().sum())) for slope in slopes][ENDS:-ENDS]
    return math.exp((squares[0] - squares[-1]) / (len(squares) - 1))


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return the measured growth beside the law, by activation and batch."""
    summary: dict[str, float] = {}
    for job in jobs(settings):
        activation: Activation = "relu" if job.kind == "relu" else "linear"
        errors = []
        for batch in settings["batches"]:
            values = measured[job][str(batch)]
            summary |= spread(f"{job.kind}.{batch}", values)
            summary[f"{job.kind}.{batch}.law"] = batch_norm_growth(batch, activation)
            errors.append(abs(summary[f"{job.kind}.{batch}.median"] / summary[f"{job.kind}.{batch}.law"] - 1.0))
        summary[f"{job.kind}.error"] = max(errors)
        summary[f"{job.kind}.least growth"] = min(summary[f"{job.kind}.{batch}.low"] for batch in settings["batches"])
    return summary


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return growth by batch, measured and by the law."""
    summary = figures(settings, measured)
    labels = tuple(f"{job.kind}, batch {batch}" for job in jobs(settings) for batch in settings["batches"])
    cases = [(job.kind, batch) for job in jobs(settings) for batch in settings["batches"]]
    chart = Chart(
        title="Growth of the squared gradient per layer",
        labels=labels,
        series=(
            Series(name="the law", style="marks", values=tuple(summary[f"{k}.{b}.law"] for k, b in cases)),
            Series(name="measured", style="marks", values=tuple(summary[f"{k}.{b}.median"] for k, b in cases)),
        ),
        axis="factor per layer",
        sideways=True,
    )
    columns = (Column(title="network", kind="name"), *(Column(title=t, kind="number") for t in ("law", "measured")))
    rows = tuple((label, summary[f"{k}.{b}.law"], summary[f"{k}.{b}.median"]) for label, (k, b) in zip(labels, cases))
    return (chart, Table(title="Medians over seeds", columns=columns, rows=rows))


def _law(kind: str) -> Judge:
    def judge(figures: Figures) -> Judgement:
        error, seeds = figures[f"{kind}.error"], min(read(figures, f"{kind}.{batch}").seeds for batch in BATCHES)
        listed = "; ".join(
            f"batch {batch}: {figures[f'{kind}.{batch}.median']:.4g} of {figures[f'{kind}.{batch}.law']:.4g}"
            for batch in BATCHES
        )
        evidence = f"Measured growth beside the law: {listed}; the largest difference is {100 * error:.2g} %."
        return with_seeds(seeds, judged(error < MAX_RELATIVE_ERROR, evidence))

    return judge


def _explodes(figures: Figures) -> Judgement:
    least, growth = figures["relu.least growth"], read(figures, f"relu.{BATCHES[-1]}")
    return with_seeds(
        growth.seeds,
        judged(
            least > 1.0,
            f"At initialisation the squared gradient grows by {growth} per layer towards the input, in batches of "
            f"{BATCHES[-1]}; the least of all intervals' lower ends is {least:.4g}.",
        ),
    )


def _prevents(figures: Figures) -> Judgement:
    growth = read(figures, "relu.64")
    evidence = f"In batches of 64 the squared gradient of fresh ReLU networks grows by {growth} per layer."
    return decided(growth, below=1.0, evidence=evidence)


EXPLOSION = experiment_of(
    __name__,
    name="beyond.explosion",
    title="Exploding gradients of fresh BatchNorm networks",
    about="Deep and wide networks with BatchNorm and Gaussian weights: by how much the squared norm of the gradient "
    "grows per layer towards the input, beside the law of Yang et al. It is the other side of the capacity story.",
    stored=True,
    claims=(
        Claim(
            id="yang.relu",
            where="ReLU networks",
            text="With BatchNorm and ReLU squared gradients grow per layer by a factor between pi/(pi - 1) and 1.79 "
            "for batches of 8 and more, given by a formula.",
            judge=_law("relu"),
        ),
        Claim(
            id="yang.linear",
            where="linear networks",
            text="With BatchNorm alone they grow by (B - 2)/(B - 3).",
            judge=_law("linear"),
        ),
        Claim(
            id="yang.explosion",
            where="abstract",
            text="BatchNorm networks without skips have exploding gradients at initialisation.",
            quotation="gradient signals grow exponentially in depth and that these exploding gradients cannot be "
            "eliminated by tuning the initial weight variances or by adjusting the nonlinear activation function",
            judge=_explodes,
        ),
        Claim(
            id="akbar.9.5.depth",
            where="Section 9.5, extremely deep networks",
            text="BatchNorm keeps gradients from growing exponentially with depth.",
            quotation="Intuitively, BN can prevent the notorious exponential explosion/decay of gradients by each "
            "layer's normalization.",
            judge=_prevents,
            corrected="Values keep their size; the gradients of fresh BatchNorm networks without skips grow "
            "exponentially.",
        ),
    ),
)
