"""The digest's third experiment: the product of weight norms in training, without and with normalizers, by depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch

from normscope.report import Block, Column, Curve, Curves, Table, factor

from ...statistics import line
from ..base import Claim, Experiment, Figures, Job, Judgement, Measured, Settings, Verdict
from ..judging import by_count
from ..vision import relu_network
from .short_training import load, scores, train_watched

KINDS = {"plain": "without normalizers", "batch": "with BatchNorm"}
STRAIGHT = 0.9
"""Growth with depth counts as exponential from this R squared on."""


def jobs(settings: Settings) -> list[Job]:
    """Return every depth, without and with BatchNorm, with every seed."""
    every = [f"{kind} {depth}" for depth in settings["depths"] for kind in KINDS]
    return [Job(kind, seed) for kind in every for seed in range(settings["seeds"])]


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train one network and return the product of its weights' operator norms, at first and in the end."""
    kind, depth = job.kind.split()
    split = load(settings, "digits", job.seed)
    generator = torch.Generator().manual_seed(job.seed)
    model = relu_network(
        (1, 8, 8), generator=generator, depth=int(depth), width=settings["width"], batch_norm=kind == "batch"
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["learning_rate"])
    records = train_watched(model, split, size=64, steps=settings["steps"], optimizer=optimizer, generator=generator)
    first, last = (record.total["log10_printed"] for record in (records[0], records[-1]))
    right = scores(model, split.test_images, split.test_labels)[1]
    return {"first": first, "last": last, "test_accuracy": right}


def by_depth(settings: Settings, measured: Mapping[Job, Measured], kind: str, name: str) -> list[float]:
    """Return means over the seeds, one per depth."""
    every = [f"{kind} {depth}" for depth in settings["depths"]]
    return [fmean(one[name] for job, one in measured.items() if job.kind == which) for which in every]


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return how the products grow in training and with depth."""
    summary: dict[str, float] = {"depths": float(len(settings["depths"]))}
    for kind in KINDS:
        first, last = (by_depth(settings, measured, kind, name) for name in ("first", "last"))
        summary[f"{kind}_grown"] = float(sum(b > a for a, b in zip(first, last)))
        summary[f"{kind}_growth"] = fmean(b - a for a, b in zip(first, last))
        summary[f"{kind}_per_layer"], summary[f"{kind}_straightness"] = line(settings["depths"], last)
        summary[f"{kind}_deepest"] = last[-1]
    return summary


def _grows(f: Figures) -> Judgement:
    count, every = f["plain_grown"], f["depths"]
    evidence = (
        f"Without normalizers the product grows in training at {count:g} of {every:g} depths, by "
        f"{f['plain_growth']:+.2f} decades on average; with BatchNorm at {f['batch_grown']:g}, by "
        f"{f['batch_growth']:+.2f}."
    )
    return by_count(count, every, evidence)


def _by_depth(f: Figures) -> Judgement:
    slope, fit = f["plain_per_layer"], f["plain_straightness"]
    evidence = (
        f"The trained product without normalizers grows {10**slope:.2f}-fold with each layer (R2 {fit:.2f}), to "
        f"{factor(f['plain_deepest'])} at the largest depth; with BatchNorm {10 ** f['batch_per_layer']:.2f}-fold, to "
        f"{factor(f['batch_deepest'])}."
    )
    if slope <= 0:
        return Judgement(Verdict.FAILS, evidence)
    return Judgement(Verdict.HOLDS if fit >= STRAIGHT else Verdict.CORRECTED, evidence)


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return the products against depth, before and after training."""
    curves, rows = [], []
    for kind, title in KINDS.items():
        for name, when in (("first", "at first"), ("last", "after training")):
            values = by_depth(settings, measured, kind, name)
            points = tuple((float(depth), value) for depth, value in zip(settings["depths"], values))
            curves.append(Curve(name=f"{title}, {when}", points=points))
        held = [by_depth(settings, measured, kind, name) for name in ("first", "last", "test_accuracy")]
        rows += [(title, depth, *values) for depth, *values in zip(settings["depths"], *held)]
    columns = (
        Column(title="network", kind="name"),
        Column(title="layers", kind="count"),
        Column(title="product at first", kind="log10"),
        Column(title="after training", kind="log10"),
        Column(title="test", kind="percent"),
    )
    heading = "Product of the weights' operator norms by depth"
    return [
        Curves(curves=tuple(curves), title=heading, axis="log10 of the product", along="layers"),
        Table(columns=columns, rows=tuple(rows), caption="Products are log10, means over the seeds."),
    ]


EXPERIMENT = Experiment(
    name="digest.weights",
    title="Digest: the product of weight norms in training, by depth",
    about="ReLU networks of several depths, without normalizers and with BatchNorm, are trained on digits with Adam "
    "and watched with `ns.watch`.",
    quick={"depths": (3, 5, 8), "width": 32, "steps": 60, "seeds": 1, "learning_rate": 1e-3},
    full={"depths": (3, 5, 8, 11, 14), "width": 64, "steps": 600, "seeds": 5, "learning_rate": 1e-3},
    jobs=jobs,
    measure=measure,
    figures=figures,
    claims=(
        Claim(
            id="digest.weights.growth",
            where="First experiment 3",
            text="Without normalization the product of the weights' norms grows in training.",
            quotation="verify that without normalization this product grows exponentially",
            judge=_grows,
        ),
        Claim(
            id="digest.weights.depth",
            where="Executive Summary and first experiment 3",
            text="The product of the weights' norms of trained unnormalized networks is exponential in the depth.",
            quotation="unnormalized deep networks can have exponentially large Lipschitz constants due to the product "
            "of weight norms growing with depth",
            judge=_by_depth,
        ),
    ),
    draw=draw,
    stored=True,
    task="digits",
)
