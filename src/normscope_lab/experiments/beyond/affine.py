"""The digest's first and third open questions: scales and shifts of BatchNorm, and small variances."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from normscope.networks import mlp
from normscope.report import Block, Cell, Column, Table, factor

from ..base import Claim, Figures, Job, Judgement, Measured, Settings, Verdict, experiment_of
from ..judging import decided, read, spread
from .digits import LEARNING_RATE, ONE_RATE, log10_factors, trained_to_loss

QUICK: Settings = {"seeds": 2, "loss": 1.0, "steps": 100, "width": 32, "depth": 4, "scales": (0.1, 10.0)}
FULL: Settings = {**QUICK, "seeds": 12, "loss": 0.1, "steps": 4000}
KINDS = {"none": "no normalizer", "bare": "BatchNorm without gamma and beta", "affine": "BatchNorm"}
SIZES = ("small", "large")
"""The sizes of the first weights in front of BatchNorm, and so of the variances."""


def jobs(settings: Settings) -> Sequence[Job]:
    """Return one job for each kind of network and each size of weights, by seed."""
    kinds = (*KINDS, *SIZES)
    return tuple(Job(kind, seed) for kind in kinds for seed in range(settings["seeds"]))


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train one network on digits to the loss, and measure its Jacobians, its gap and the printed factors."""
    normalizer = "none" if job.kind == "none" else "batch"
    generator = torch.Generator().manual_seed(100_000 + job.seed)
    network = mlp(generator=generator, normalizer=normalizer, width=settings["width"], depth=settings["depth"])  # type: ignore[arg-type]
    layers = list(network.children())
    with torch.no_grad():
        for layer, behind in itertools.pairwise(layers):
            if job.kind in SIZES and isinstance(layer, nn.Linear) and isinstance(behind, nn.BatchNorm1d):
                layer.weight.mul_(settings["scales"][SIZES.index(job.kind)])
    if job.kind == "bare":
        for norm in (layer for layer in layers if isinstance(layer, nn.BatchNorm1d)):
            norm.requires_grad_(False)  # gamma and beta stay at 1 and 0
    made, loss = trained_to_loss(network, job.seed, loss=settings["loss"], steps=settings["steps"])
    weights, constants = log10_factors(made.network)
    return {
        "loss": loss,
        "steepest": made.steepest,
        "gap": made.gap,
        "tested": made.tested,
        "weights": weights,
        "constants": constants,
    }


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return medians of each kind, and differences seed by seed, of networks that came to the loss."""
    seeds = range(settings["seeds"])
    summary = {"scale_ratio": settings["scales"][1] / settings["scales"][0]}
    for kind in (*KINDS, *SIZES):
        for name in ("steepest", "gap", "tested", "constants"):
            summary |= spread(f"{kind}.{name}", [measured[Job(kind, seed)][name] for seed in seeds])
    for one, other in (("affine", "bare"), ("affine", "none"), ("small", "large")):
        for name in ("steepest", "gap", "tested", "constants"):
            pairs = [(measured[Job(one, seed)], measured[Job(other, seed)]) for seed in seeds]
            equal = [(a, b) for a, b in pairs if max(a["loss"], b["loss"]) <= settings["loss"]]
            summary |= spread(f"{one} less {other}.{name}", [a[name] - b[name] for a, b in equal])
    return summary


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return medians over seeds."""
    summary = figures(settings, measured)
    names = KINDS | {"small": "BatchNorm, first weights times 0.1", "large": "BatchNorm, first weights times 10"}
    columns = (
        Column(title="network", kind="name"),
        Column(title="largest Jacobian", kind="log10"),
        Column(title="product of norms of 1/sigma", kind="log10"),
        Column(title="test accuracy", kind="percent"),
        Column(title="gap", kind="percent"),
    )
    keys = ("steepest", "constants", "tested", "gap")
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *(summary[f"{kind}.{key}.median"] for key in keys)) for kind, name in names.items()
    )
    return (Table(title="Medians over seeds", columns=columns, rows=rows),)


def _affine(figures: Figures) -> Judgement:
    steep, gap = read(figures, "affine less bare.steepest"), read(figures, "affine less bare.gap")
    evidence = (
        f"With trained gamma and beta the largest Jacobian at test images is {steep} decades larger than without, and "
        f"the gap {gap} larger, at equal training loss. {ONE_RATE}"
    )
    return Judgement(Verdict.MEASURED, evidence)


def _reduces(figures: Figures) -> Judgement:
    median = read(figures, "affine less none.steepest")
    constants = figures["affine.constants.median"]
    return decided(
        median,
        below=0.0,
        evidence=f"At equal training loss the largest Jacobian with BatchNorm is {median} decades above that without; "
        f"the printed reduction factor is {factor(constants)}. {ONE_RATE}",
    )


def _small(figures: Figures) -> Judgement:
    higher = read(figures, "small less large.constants")
    steep, gap = read(figures, "small less large.steepest"), read(figures, "small less large.gap")
    return Judgement(
        Verdict.MEASURED,
        f"From small first weights the printed factor ends {higher.median:.3g} decades higher than from large ones; "
        f"the largest Jacobian ends {steep} decades higher and the gap {gap}, at equal training loss. Not controlled: "
        f"the learning rate. A step of Adam, at {LEARNING_RATE:g} for all, turns a weight w by an angle that is "
        f"proportional to 1/norm(w), so that the small first weights turn {figures['scale_ratio']:g} times as fast as "
        "the large ones at first: the differences may be those of this rate, and not of the variances.",
    )


AFFINE = experiment_of(
    __name__,
    name="beyond.questions",
    title="Open questions: gamma and beta, small variances",
    about="Networks trained on 400 digits: without normalizers, with BatchNorm, with BatchNorm whose gamma and beta "
    "stay at 1 and 0, and with first weights that make the variances small or large, until the loss over all of "
    "them, in eval mode, is at most 0.1.",
    stored=True,
    task="digits",
    claims=(
        Claim(
            id="digest.question1",
            where="Open Question 1",
            text="How much trained gamma and beta change the largest Jacobian at test images and the gap.",
            quotation=r"How do the learnable scale ($\gamma$) and shift ($\beta$) parameters in normalization layers "
            r"specifically influence the Lipschitz constant and the resulting generalization bounds?",
            judge=_affine,
        ),
        Claim(
            id="digest.question1.reduction",
            where="Key Results",
            text="BatchNorm makes a trained network less steep at its data than its twin without.",
            quotation="Normalization methods reduce the Lipschitz constant exponentially, with each normalization "
            "operation reducing it by a factor inversely proportional to input variance",
            judge=_reduces,
        ),
        Claim(
            id="digest.question3",
            where="Open Question 3",
            text="How networks with small variances differ in steepness and gap from networks with large ones.",
            quotation='How does the capacity control mechanism behave theoretically when the "large input variance" '
            "assumption is violated, such as in the final layers of a converged network?",
            judge=_small,
        ),
    ),
)
