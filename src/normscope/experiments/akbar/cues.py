"""Akbar, section 7.2: whether normalization removes cues of scale that are no part of the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...report.document import Block, Cell, Column, Table
from ..base import Claim, Experiment, Figures, Job, Judgement, Measured, Settings
from ..ensembles import Ensemble, Normalizer, chain
from ..judging import Judge, decided, read, spread

QUICK: Settings = {"seeds": 3, "steps": 120, "rate": 0.1, "samples": 300, "batch": 60, "tests": 2000}
FULL: Settings = {**QUICK, "seeds": 20, "steps": 400}
INPUTS, WIDTH = 10, 20
KINDS = {
    "none": "without",
    "batch": "BatchNorm in hidden layers",
    "input": "BatchNorm of the input too",
    "layer": "LayerNorm in hidden layers",
    "layer input": "LayerNorm of the input too",
}
UNUSED = 0.02
"""Accuracy that a network may lose when a cue turns round and count as not using it."""
CUES = {"feature": "one feature larger in one class", "sample": "whole samples larger in one class"}


def jobs(settings: Settings) -> Sequence[Job]:
    """Return one job for each kind of network and cue."""
    return tuple(Job(f"{kind}, {cue}") for kind in KINDS for cue in CUES)


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train with the cue, and test with it, without it and with the cue turned round."""
    kind, cue = job.kind.split(", ")
    normalizer: Normalizer = "none" if kind == "none" else "layer" if kind.startswith("layer") else "batch"
    layers = chain((INPUTS, WIDTH, WIDTH, 1), normalizer)
    if kind == "input":
        layers = nn.Sequential(nn.BatchNorm1d(INPUTS), *layers).double()
    elif kind == "layer input":
        layers = nn.Sequential(nn.LayerNorm(INPUTS), *layers).double()
    networks = Ensemble.drawn(layers, range(settings["seeds"]))
    x, y = _task(settings, settings["samples"], 0)
    order = torch.Generator().manual_seed(3)
    trained = _cued(x, y, cue, 1.0)
    for _ in range(settings["steps"]):
        rows = torch.randperm(settings["samples"], generator=order)[: settings["batch"]]
        _, gradients = networks.gradients(_logistic, trained[:, rows], y[:, rows])
        networks.step(gradients, settings["rate"])
    networks.calibrate(trained)
    networks.template.eval()
    fresh, labels = _task(settings, settings["tests"], 1)
    found: dict[str, list[float]] = {}
    with torch.no_grad():
        for name, size in (("with", 1.0), ("without", 0.0), ("reversed", -1.0)):
            outputs = networks(_cued(fresh, labels, cue, size))[..., 0]
            found[name] = (outputs * labels > 0).double().mean(1).tolist()
    return found


def _task(settings: Settings, samples: int, part: int) -> tuple[Tensor, Tensor]:
    """Return samples whose class is a noisy line in their first two coordinates, shifted away from zero."""
    made = []
    for seed in range(settings["seeds"]):
        generator = torch.Generator().manual_seed(60_000 + 2 * seed + part)
        x = torch.randn(samples, INPUTS, generator=generator, dtype=torch.float64)
        noise = torch.randn(samples, generator=generator, dtype=torch.float64)
        made.append((x + 1.0, (x[:, 0] + x[:, 1] + noise).sign()))
    return torch.stack([x for x, _ in made]), torch.stack([y for _, y in made])


def _cued(x: Tensor, y: Tensor, cue: str, size: float) -> Tensor:
    """Return samples with the cue: the last feature, or all of them, three times as large in one class."""
    factor = torch.where(y * size > 0, 3.0, 1.0) if size else torch.full_like(y, 2.0)
    if cue == "sample":
        return x * factor[..., None]
    return torch.cat((x[..., :-1], x[..., -1:].abs() * factor[..., None]), dim=-1)


def _logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.softplus(-targets * outputs[:, 0]).mean()


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return how much accuracy each network loses when the cue turns round."""
    found: dict[str, float] = {}
    for cue in CUES:
        for kind in KINDS:
            told = measured[Job(f"{kind}, {cue}")]
            found |= spread(f"{kind}.{cue}.lost", [one - other for one, other in zip(told["with"], told["reversed"])])
            found |= spread(f"{kind}.{cue}.without the cue", told["without"])
    return found


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return the accuracies."""
    columns = [Column(title="cue", kind="name"), Column(title="network", kind="name")]
    columns += [Column(title=title, kind="percent") for title in ("cue as trained", "no cue", "cue reversed")]
    rows: list[tuple[Cell, ...]] = []
    for cue, label in CUES.items():
        for kind, name in KINDS.items():
            told = measured[Job(f"{kind}, {cue}")]
            rows.append((label, name, *(spread("x", told[key])["x.median"] for key in ("with", "without", "reversed"))))
    return (Table(title="Test accuracy, medians over seeds", columns=tuple(columns), rows=tuple(rows)),)


def _removed(cue: str, kinds: Sequence[str]) -> Judge:
    def judge(figures: Figures) -> Judgement:
        found = {kind: read(figures, f"{kind}.{cue}.lost") for kind in ("none", *kinds)}
        told = ", ".join(f"{100 * one.median:.3g} points {KINDS[kind]}" for kind, one in found.items())
        return decided(
            found[kinds[0]],
            below=UNUSED,
            evidence=f"When the cue turns round, accuracy falls by {told}; less than {100 * UNUSED:g} points count as "
            "none.",
        )

    return judge


AKBAR = "Akbar"
CUES_OF_SCALE = Experiment(
    name="akbar.cues",
    title="Cues of scale",
    about="A class that depends on two coordinates, and beside it a cue that is none of the task: one feature, or "
    "whole samples, three times as large in one class. Networks are tested with the cue turned round. The task is "
    "ours.",
    quick=QUICK,
    full=FULL,
    jobs=jobs,
    measure=measure,
    figures=figures,
    draw=draw,
    stored=True,
    claims=(
        Claim(
            id="akbar.7.2.cues",
            source=AKBAR,
            where="Section 7.2, implicit bias away from memorization",
            text="BatchNorm removes the cue of a feature that is larger in one class, so that networks do not use it.",
            judge=_removed("feature", ("input", "batch")),
        ),
        Claim(
            id="akbar.7.2.samples",
            source=AKBAR,
            where="Section 7.2, shifts of scale",
            text="BatchNorm makes networks robust to changes of the scale of samples.",
            judge=_removed("sample", ("input", "batch", "layer input")),
        ),
    ),
)
