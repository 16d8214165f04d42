"""Akbar, section 5.1: whether the noise of BatchNorm's mini-batches helps out of saddles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.report import Block, Column, Curve, Curves, Table

from ..base import Claim, Figures, Job, Judgement, Measured, Settings, Verdict, experiment_of
from ..ensembles import Ensemble, Normalizer, chain
from ..judging import SeedSpread, decided, judged, read, spread
from .shared import KINDS, every, first

QUICK: Settings = {"seeds": 3, "steps": 300, "rate": 0.1, "samples": 128, "batch": 16, "apart": 1e-2}
FULL: Settings = {**QUICK, "seeds": 20, "steps": 2000}
WIDTHS = (2, 8, 1)
BATCHES = {"whole": "whole data", "small": "small batches"}
ESCAPED = 0.8
"""A run has left the saddle once its loss is below this share of the loss of units that stay alike."""
EVERY = 5
"""The number of steps between two measurements of the loss."""


def jobs(settings: Settings) -> Sequence[Job]:
    """Return one job for each kind of network and of batches."""
    return tuple(Job(f"{kind}, {size}") for kind in KINDS for size in BATCHES)


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train units that start almost alike, and units that start exactly alike."""
    name, size = job.kind.split(", ")
    kind: Normalizer = "batch" if name == "batch" else "none"
    x, y = _task(settings)
    runs = {
        label: _course(settings, kind, size, x, y, apart) for label, apart in (("near", settings["apart"]), ("on", 0.0))
    }
    near, (on, spread_on) = runs["near"][0], runs["on"]
    level = on[-1]  # this is the loss of a network whose units stay alike
    below = near < ESCAPED * level
    left = torch.where(below.any(0), EVERY * first(below, 0), settings["steps"] + 1.0)
    apart = every(len(near))
    return {
        "escaped after": left.tolist(),
        "level": level.tolist(),
        "last": near[-1].tolist(),
        "apart from exactly alike": spread_on.tolist(),
        "course": near[::apart].median(dim=1).values.tolist(),
        "every": EVERY * apart,
    }


def _course(
    settings: Settings, kind: Normalizer, size: str, x: Tensor, y: Tensor, apart: float
) -> tuple[Tensor, Tensor]:
    """Return the loss on the whole data along a run, and how far its units are apart at the end."""
    seeds = range(settings["seeds"])
    networks = Ensemble.drawn(chain(WIDTHS, kind, activation=nn.Tanh), seeds)
    for name, value in networks.parameters.items():
        if value.ndim == 3:  # all units get the weights of the first, and a little of their own
            alike = value[:, :1].expand_as(value) if value.shape[1] > 1 else value[:, :, :1].expand_as(value)
            networks.parameters[name] = alike + apart * value
    order = torch.Generator().manual_seed(11)
    courses = []
    for step in range(settings["steps"] + 1):
        if step % EVERY == 0:
            with torch.no_grad():
                courses.append(torch.func.vmap(F.mse_loss)(networks(x), y).nan_to_num(math.inf, math.inf))
        rows = torch.randperm(settings["samples"], generator=order)[: settings["batch"]]
        if size == "whole":
            rows = torch.arange(settings["samples"])
        _, gradients = networks.gradients(F.mse_loss, x[:, rows], y[:, rows])
        networks.step(gradients, settings["rate"])
    weight = networks.parameters["0.weight"]
    return torch.stack(courses), (weight - weight[:, :1]).abs().amax((1, 2)) / weight.abs().amax((1, 2))


def _task(settings: Settings) -> tuple[Tensor, Tensor]:
    """Return points of the plane and the product of the signs of their coordinates: one unit cannot fit it."""
    drawn = [
        torch.randn(settings["samples"], 2, generator=torch.Generator().manual_seed(50_000 + seed), dtype=torch.float64)
        for seed in range(settings["seeds"])
    ]
    x = torch.stack(drawn)
    return x, (2.0 * x[..., :1]).tanh() * (2.0 * x[..., 1:]).tanh()


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return the steps to leave the saddle, and how many of them small batches save, seed by seed."""
    summary: dict[str, float] = {"steps": float(settings["steps"])}
    saved: dict[str, list[float]] = {}
    for kind in KINDS:
        whole, small = (measured[Job(f"{kind}, {size}")] for size in ("whole", "small"))
        for size, run in (("whole", whole), ("small", small)):
            summary |= spread(f"{kind}.{size}.escaped after", run["escaped after"])
            summary[f"{kind}.{size}.share"] = sum(s <= settings["steps"] for s in run["escaped after"]) / len(
                run["level"]
            )
            summary[f"{kind}.{size}.apart from exactly alike"] = max(run["apart from exactly alike"])
        saved[kind] = [w / max(s, 1.0) for w, s in zip(whole["escaped after"], small["escaped after"])]
        summary |= spread(f"{kind}.saved by small batches", saved[kind])
    summary |= spread("saved with BatchNorm over without", [b / n for b, n in zip(saved["batch"], saved["none"])])
    pairs = (measured[Job(f"{kind}, small")]["escaped after"] for kind in ("none", "batch"))
    summary |= spread("ratio of steps with small batches", [n / max(b, 1.0) for n, b in zip(*pairs)])
    return summary


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return the losses on the way out of the saddle, and a table."""
    curves, rows = [], []
    for kind, name in KINDS.items():
        for size, label in BATCHES.items():
            run = measured[Job(f"{kind}, {size}")]
            points = tuple((float(step * run["every"]), value) for step, value in enumerate(run["course"]))
            curves.append(Curve(name=f"{name}, {label}", points=points))
            medians = [spread("x", run[key])["x.median"] for key in ("escaped after", "level", "last")]
            rows.append((name, label, *medians, max(run["apart from exactly alike"])))
    columns = [Column(title="network", kind="name"), Column(title="batches", kind="name")]
    titles = ("escaped after", "loss of units alike", "last loss", "units apart from exactly alike")
    columns += [Column(title=title, kind="number") for title in titles]
    return (
        Curves(title="Out of the saddle", curves=tuple(curves), axis="median of the loss over seeds"),
        Table(title="Medians over seeds", columns=tuple(columns), rows=tuple(rows)),
    )


def _if_left(figures: Figures, spread_over_seeds: SeedSpread, evidence: str) -> Judgement:
    """Judge whether a ratio is above 1, if most runs of every kind left the saddle."""
    if min(figures[f"{kind}.{size}.share"] for kind in KINDS for size in BATCHES) >= 0.5:
        return decided(spread_over_seeds, above=1.0, evidence=evidence)
    return Judgement(Verdict.NOT_TESTABLE, f"{evidence} Too few runs left the saddle in {figures['steps']:.0f} steps.")


def _noise(figures: Figures) -> Judgement:
    ours, theirs = (read(figures, f"{kind}.saved by small batches") for kind in ("batch", "none"))
    more = read(figures, "saved with BatchNorm over without")
    return _if_left(
        figures,
        more,
        f"Small batches shorten the way out {ours} times with BatchNorm and {theirs} times without: a ratio of {more}.",
    )


def _sooner(figures: Figures) -> Judgement:
    median = read(figures, "ratio of steps with small batches")
    shares = [figures[f"{kind}.small.share"] for kind in KINDS]
    return _if_left(
        figures,
        median,
        f"With small batches the way out takes without BatchNorm {median} times as many steps as with it; "
        f"{100 * shares[0]:.0f} % of the runs leave with BatchNorm and {100 * shares[1]:.0f} % without.",
    )


def _stuck(figures: Figures) -> Judgement:
    apart = figures["batch.small.apart from exactly alike"]
    return judged(
        apart > 1e-6,
        f"Units that start exactly alike are {apart:.1g} apart after {figures['steps']:.0f} steps with small batches "
        "and BatchNorm: all of them get the same gradient, whatever the batch.",
    )


def _still_alike(figures: Figures) -> Judgement:
    apart = figures["batch.small.apart from exactly alike"]
    return judged(
        apart <= 1e-6, f"With BatchNorm and small batches units that start exactly alike end {apart:.1g} apart."
    )


SADDLES = experiment_of(
    __name__,
    name="akbar.saddles",
    title="Out of a saddle",
    about="Eight tanh units start almost alike, near the saddle where they act as one, and learn a function that one "
    "unit cannot fit: with and without BatchNorm, over all samples and in small batches. The saddle is ours.",
    stored=True,
    task="a function that one unit cannot fit",
    claims=(
        Claim(
            id="akbar.5.1.saddles",
            where="Section 5.1, saddle-point escape",
            text="The noise of BatchNorm's statistics amplifies what small batches do to leave saddles.",
            quotation="BN might amplify it because BN's noise can be multiplicative or dependent on activations",
            judge=_noise,
        ),
        Claim(
            id="akbar.5.1.sooner",
            where="Section 5.1, saddle-point escape",
            text="With BatchNorm saddles are left sooner.",
            quotation="BN's stochastic normalization acts similarly to injecting noise, which, combined with "
            "invariances that avoid saturating states, helps the optimizer keep moving and not stagnate at poor "
            "saddles or flat regions.",
            judge=_sooner,
        ),
        Claim(
            id="akbar.5.1.symmetry",
            where="Section 5.1, saddle-point escape",
            text="BatchNorm's noise breaks symmetry, as dropout does.",
            quotation="This is similar to dropout providing noise to break symmetry.",
            corrected="Units that are exactly alike stay alike with BatchNorm, whatever the batches: each gets the "
            "same gradient.",
            judge=_stuck,
            identity=True,
        ),
        Claim(
            id="akbar.9.1.symmetry",
            where="Section 9.1",
            text="BatchNorm by itself breaks no symmetry of the first weights.",
            quotation="as BN cannot break symmetry by itself (initial diversity in directions is still needed)",
            judge=_still_alike,
            identity=True,
        ),
    ),
)
