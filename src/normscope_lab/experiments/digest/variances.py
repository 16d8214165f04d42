"""The digest's first experiment and first check: input variances over networks, data and ways to train."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from normscope.report import Block, Cell, Chart, Column, Series, Table, factor

from ..base import Claim, Experiment, Figures, Job, Judgement, Measured, Settings, Verdict
from ..judging import by_count
from .short_training import JPEG, begin_with, build, load, train_watched

BASE = {"network": "mlp", "data": "digits", "batch": 64, "rate": 1e-3, "init": "he", "decay": "none"}
LONG = 10_000
"""Runs of fewer steps say nothing about the end of training."""
HALF = math.log10(2.0)
"""The product counts as exponentially small if layers reduce it by this many decades on average."""


def configurations(settings: Settings) -> list[dict[str, Any]]:
    """Return every network on every data set, then the base configuration with one setting changed at a time."""
    crossed = [BASE | {"network": n, "data": d} for d in settings["data"] for n in settings["networks"]]
    axes = {"batch": "batches", "rate": "rates", "init": "inits", "decay": "decays"}
    changed = [BASE | {axis: value} for axis, name in axes.items() for value in settings[name]]
    return list({_kind(one): one for one in (*crossed, *changed)}.values())


def _kind(one: Mapping[str, Any]) -> str:
    decay = "" if one["decay"] == "none" else f" {one['decay']} decay"
    return f"{one['network']} {one['data']} batch {one['batch']} rate {one['rate']:g} {one['init']}{decay}"


def jobs(settings: Settings) -> list[Job]:
    """Return every configuration with every seed."""
    return [Job(_kind(one), seed) for one in configurations(settings) for seed in range(settings["seeds"])]


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train one configuration and return the variances in front of its normalizers, at first and in the end."""
    [held] = [one for one in configurations(settings) if _kind(one) == job.kind]
    split = load(settings, held["data"], job.seed)
    generator = torch.Generator().manual_seed(job.seed)
    model = build(held["network"], tuple(split.train_images.shape[1:]), generator)
    begin_with(model, held["init"], generator)
    decay = settings["weight_decay"] if held["decay"] == "coupled" else 0.0
    optimizer = torch.optim.Adam(model.parameters(), lr=held["rate"], weight_decay=decay)
    records = train_watched(
        model, split, size=held["batch"], steps=settings["steps"], optimizer=optimizer, generator=generator
    )
    first, last = records[0], records[-1]
    return {
        "first": list(first.of("normalizer", "log10_variance")),
        "last": list(last.of("normalizer", "log10_variance")),
        "constants": last.total["log10_constants"],
        "norms": [first.total["log10_printed"], last.total["log10_printed"]],
        "loss": [first.loss, last.loss],
    }


def by_configuration(measured: Mapping[Job, Measured]) -> dict[str, dict[str, float]]:
    """Return, by configuration, means over the seeds."""
    groups: dict[str, list[Measured]] = {}
    for job, one in measured.items():
        groups.setdefault(job.kind, []).append(one)
    return {kind: {name: fmean(_figures(one)[name] for one in ones) for name in NAMES} for kind, ones in groups.items()}


NAMES = ("layers", "first", "last", "grown", "above_one", "typical", "exact", "loss")


def _figures(one: Measured) -> dict[str, float]:
    pairs = list(zip(one["first"], one["last"]))
    return {
        "layers": float(len(pairs)),
        "first": fmean(a for a, _ in pairs),
        "last": fmean(b for _, b in pairs),
        "grown": fmean(float(b > a) for a, b in pairs),
        "above_one": fmean(float(b > 0) for _, b in pairs),
        "typical": -0.5 * math.fsum(b for _, b in pairs),
        "exact": one["constants"],
        "loss": one["loss"][1],
    }


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return for how many configurations each claim is true, and how far its figures range."""
    rows = by_configuration(measured).values()
    growth = [row["last"] - row["first"] for row in rows]
    return {
        "configurations": float(len(growth)),
        "growing": float(sum(value > 0 for value in growth)),
        "growing_tenfold": float(sum(value > 1 for value in growth)),
        "least_growth": min(growth),
        "largest_growth": max(growth),
        "exponentially_small": float(sum(row["typical"] <= -HALF * row["layers"] for row in rows)),
        "exact_below_one": float(sum(row["exact"] < 0 for row in rows)),
        "steps": float(settings["steps"]),
        "least_typical": min(row["typical"] for row in rows),
        "largest_typical": max(row["typical"] for row in rows),
        "least_exact": min(row["exact"] for row in rows),
        "largest_exact": max(row["exact"] for row in rows),
    }


def _counted(f: Figures, name: str, evidence: str) -> Judgement:
    """Return the verdict on a claim about all configurations."""
    count, every = f[name], f["configurations"]
    return by_count(count, every, f"{count:g} of {every:g} configurations: {evidence}")


def _in_the_end(f: Figures, judgement: Judgement) -> Judgement:
    """Return a judgement on the end of training; shorter runs than `LONG` decide nothing."""
    if f["steps"] >= LONG:
        return judgement
    short = f"{f['steps']:g} steps decide nothing about the end of training: the paper's runs have 39 100."
    return Judgement(Verdict.NOT_TESTABLE, f"{judgement.evidence} {short}")


def _grow(f: Figures) -> Judgement:
    span = f"{f['least_growth']:+.2f} to {f['largest_growth']:+.2f} decades"
    return _counted(f, "growing", f"the mean log10 variance is larger in the end; its change is {span}.")


def _small(f: Figures) -> Judgement:
    spans = (
        f"with the typical sigma of each layer {factor(f['least_typical'])} to {factor(f['largest_typical'])}, with "
        f"the exact norms {factor(f['least_exact'])} to {factor(f['largest_exact'])} ({f['exact_below_one']:g} below 1)"
    )
    return _in_the_end(
        f, _counted(f, "exponentially_small", f"the product of 1/sigma is below 2^-K for K layers; it is {spans}.")
    )


def _persists(f: Figures) -> Judgement:
    return _in_the_end(f, _counted(f, "growing_tenfold", "the variances grow by a decade or more, a large margin."))


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return a chart of the variances before and after training, and a table."""
    by_kind = by_configuration(measured)
    columns = (
        Column(title="configuration", kind="name"),
        Column(title="layers", kind="count"),
        Column(title="variance at first", kind="log10"),
        Column(title="in the end", kind="log10"),
        Column(title="layers that grew", kind="percent"),
        Column(title="above 1", kind="percent"),
        Column(title="product of 1/sigma, typical", kind="log10"),
        Column(title="product, exact norms", kind="log10"),
        Column(title="loss", kind="number"),
    )
    rows: list[tuple[Cell, ...]] = [
        (kind, int(row["layers"]), *(row[name] for name in NAMES[1:])) for kind, row in by_kind.items()
    ]
    series = (
        Series(name="at first", style="marks", values=tuple(row["first"] for row in by_kind.values())),
        Series(name="in the end", style="marks", values=tuple(row["last"] for row in by_kind.values())),
    )
    chart = Chart(
        labels=tuple(by_kind), series=series, title="Input variances before and after training", sideways=True,
        axis="log10 of the variance, mean over layers and channels", rules=(("1", 0.0),),
    )  # fmt: skip
    caption = "Variances and products are log10, means over layers, channels and seeds."
    return [chart, Table(columns=columns, rows=tuple(rows), caption=caption)]


AXES: dict[str, Any] = {
    "batches": (8, 256),
    "rates": (1e-4, 1e-2),
    "inits": ("xavier", "orthogonal", "small", "large"),
    "decays": ("coupled",),
    "weight_decay": 1e-3,
    "optimizer": "Adam",
}
EXPERIMENT = Experiment(
    name="digest.variances",
    title="Digest: input variances over architectures, data, batch sizes, learning rates and initialisations",
    about="Small networks with BatchNorm (an MLP, a CNN, a ResNet) are trained with Adam and watched with `ns.watch`: "
    "every network on every data set, then the MLP on digits with one thing changed at a time. `small` and `large` "
    "rescale He's weights, which a normalized network does not notice: only its variances do. " + JPEG,
    quick={"data": ("digits",), "networks": ("mlp", "cnn"), "steps": 60, "seeds": 1, "images": 0, **AXES},
    full={
        "data": ("digits", "mnist", "cifar10"),
        "networks": ("mlp", "cnn", "resnet"),
        "steps": 600,
        "seeds": 3,
        "images": 10_000,
        **AXES,
    },
    jobs=jobs,
    measure=measure,
    figures=figures,
    claims=(
        Claim(
            id="digest.variances.growth",
            where="Next checks 1 (a)",
            text="Variances in front of normalizers grow in training.",
            quotation="Verify that (a) variances grow significantly during training",
            corrected="They grew in most of the configurations, by less than a decade.",
            judge=_grow,
        ),
        Claim(
            id="digest.variances.product",
            where="First experiment 1, next checks 1 (b)",
            text="The product of 1/sigma over the normalizers becomes exponentially small.",
            quotation=r"verify the product $\prod 1/\sigma_k$ is exponentially small (paper shows ~$10^{-25}$ for "
            r"ResNet18)",
            judge=_small,
        ),
        Claim(
            id="digest.variances.persistence",
            where="Next checks 1 (c)",
            text="Significant growth persists across batch sizes, learning rates and initialisations.",
            quotation="this effect persists across different batch sizes, learning rates, and initialization schemes",
            judge=_persists,
        ),
    ),
    draw=draw,
    stored=True,
    task="short runs on digits, MNIST and CIFAR-10",
)
