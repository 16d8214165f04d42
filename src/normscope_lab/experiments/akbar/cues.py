"""Akbar, section 7.2: whether normalization removes cues of scale, and withstands changes of scale and brightness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from normscope.report import Block, Cell, Column, Table

from ..base import Claim, Figures, Job, Judgement, Measured, Settings, experiment_of
from ..ensembles import Ensemble, Normalizer, chain
from ..judging import SeedSpread, decided, judged, of_all, of_readings, read, spread, with_seeds
from .shared import logistic

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
"""A loss of accuracy up to this, when a cue is reversed or the inputs change, counts as none."""
CHANGES = {"as trained": (1.0, 0.0), "a third": (1 / 3, 0.0), "three times": (3.0, 0.0), "brighter": (1.0, 2.0)}
"""Changes of all inputs alike: a factor, and a number that is added."""
MODES = {"data": "statistics of the changed data", "stored": "statistics of the training data"}
"""The statistics by which BatchNorm normalizes the changed inputs, in train mode and in eval mode."""


def jobs(settings: Settings) -> Sequence[Job]:
    """Return one job for each kind of network, with the cue and for changes of all inputs."""
    return tuple(Job(f"{kind}, {part}") for kind in KINDS for part in ("cue", "change"))


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train with the cue and test with it, without it and reversed; or train without it and test on changed inputs.

    The cue is one feature that is three times as large in one class. A change applies to all test inputs alike.
    """
    kind, part = job.kind.split(", ")
    x, y = _task(settings, settings["samples"], 0)
    fresh, labels = _task(settings, settings["tests"], 1)
    networks = _trained(settings, kind, _cued(x, y, 1.0) if part == "cue" else x, y)
    if part == "cue":
        sizes = {"with": 1.0, "without": 0.0, "reversed": -1.0}
        return {name: _right(networks, _cued(fresh, labels, size), labels) for name, size in sizes.items()}
    changed = {name: times * fresh + more for name, (times, more) in CHANGES.items()}
    summary = {f"stored, {name}": _right(networks, inputs, labels) for name, inputs in changed.items()}
    networks.template.train()
    return summary | {f"data, {name}": _right(networks, inputs, labels) for name, inputs in changed.items()}


def _trained(settings: Settings, kind: str, x: Tensor, y: Tensor) -> Ensemble:
    """Return trained networks of all seeds, in eval mode with the statistics of all their data."""
    normalizer: Normalizer = "none" if kind == "none" else "layer" if kind.startswith("layer") else "batch"
    layers = chain((INPUTS, WIDTH, WIDTH, 1), normalizer)
    if kind == "input":
        layers = nn.Sequential(nn.BatchNorm1d(INPUTS), *layers).double()
    elif kind == "layer input":
        layers = nn.Sequential(nn.LayerNorm(INPUTS), *layers).double()
    networks = Ensemble.drawn(layers, range(settings["seeds"]))
    order = torch.Generator().manual_seed(3)
    for _ in range(settings["steps"]):
        rows = torch.randperm(settings["samples"], generator=order)[: settings["batch"]]
        _, gradients = networks.gradients(logistic, x[:, rows], y[:, rows])
        networks.step(gradients, settings["rate"])
    networks.calibrate(x)
    networks.template.eval()
    return networks


def _right(networks: Ensemble, inputs: Tensor, labels: Tensor) -> list[float]:
    """Return the accuracy of each network, in its present mode."""
    with torch.no_grad():
        return (networks(inputs)[..., 0] * labels > 0).double().mean(1).tolist()


def _task(settings: Settings, samples: int, part: int) -> tuple[Tensor, Tensor]:
    """Return samples whose class is a noisy line in their first two coordinates, shifted away from zero."""
    made = []
    for seed in range(settings["seeds"]):
        generator = torch.Generator().manual_seed(60_000 + 2 * seed + part)
        x = torch.randn(samples, INPUTS, generator=generator, dtype=torch.float64)
        noise = torch.randn(samples, generator=generator, dtype=torch.float64)
        made.append((x + 1.0, (x[:, 0] + x[:, 1] + noise).sign()))
    return torch.stack([x for x, _ in made]), torch.stack([y for _, y in made])


def _cued(x: Tensor, y: Tensor, size: float) -> Tensor:
    """Return samples with the cue: the last feature is three times as large in one class."""
    factor = torch.where(y * size > 0, 3.0, 1.0) if size else torch.full_like(y, 2.0)
    return torch.cat((x[..., :-1], x[..., -1:].abs() * factor[..., None]), dim=-1)


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return how much accuracy each network loses when the cue is reversed, and when all inputs change."""
    summary: dict[str, float] = {}
    for kind in KINDS:
        cue, change = (measured[Job(f"{kind}, {part}")] for part in ("cue", "change"))
        summary |= spread(f"{kind}.cue.lost", [one - other for one, other in zip(cue["with"], cue["reversed"])])
        summary |= spread(f"{kind}.cue.without", cue["without"])
        for mode in MODES:
            usual, *others = (change[f"{mode}, {name}"] for name in CHANGES)
            summary |= spread(f"{kind}.change.{mode}", [one - min(worse) for one, *worse in zip(usual, *others)])
    return summary


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return tables of the accuracies with a cue and on changed inputs."""
    cue = {"with": "cue as trained", "without": "no cue", "reversed": "cue reversed"}
    change = {f"{mode}, {name}": f"{name}, {words}" for mode, words in MODES.items() for name in CHANGES}
    return (
        _table(measured, "cue", cue, "Test accuracy with a cue, medians over seeds"),
        _table(measured, "change", change, "Test accuracy on changed inputs, medians over seeds"),
    )


def _table(measured: Mapping[Job, Measured], part: str, titles: Mapping[str, str], title: str) -> Table:
    columns = (Column(title="network", kind="name"), *(Column(title=one, kind="percent") for one in titles.values()))
    rows: list[tuple[Cell, ...]] = []
    for kind, name in KINDS.items():
        run = measured[Job(f"{kind}, {part}")]
        rows.append((name, *(spread("x", run[key])["x.median"] for key in titles)))
    return Table(title=title, columns=columns, rows=tuple(rows))


def _removed(figures: Figures) -> Judgement:
    medians = {kind: read(figures, f"{kind}.cue.lost") for kind in ("none", "input", "batch")}
    return decided(
        medians["input"], below=UNUSED, evidence=f"When the cue turns round, accuracy falls by {_losses(medians)}."
    )


def _robust(figures: Figures) -> Judgement:
    medians = {
        mode: {kind: read(figures, f"{kind}.change.{mode}") for kind in ("none", "input", "batch", "layer input")}
        for mode in MODES
    }
    losses = "; ".join(f"with {MODES[mode]} by {_losses(kinds)}" for mode, kinds in medians.items())
    each = [
        of_all([decided(kinds[kind], below=UNUSED, evidence="").verdict for kind in ("input", "batch")])
        for kinds in medians.values()
    ]
    more = CHANGES["brighter"][1]
    evidence = f"Where all inputs are a third, three times or {more:g} more, at worst, accuracy falls {losses}."
    seeds = min(one.seeds for kinds in medians.values() for one in kinds.values())
    return with_seeds(seeds, Judgement(of_readings(each), evidence))


def _losses(spreads: Mapping[str, SeedSpread]) -> str:
    losses = ", ".join(f"{100 * one.median:.3g} points {KINDS[kind]}" for kind, one in spreads.items())
    return f"{losses} ({100 * UNUSED:g} points count as none)"


def _shifted(figures: Figures) -> Judgement:
    stored, renewed = (read(figures, f"batch.change.{mode}") for mode in ("stored", "data"))
    evidence = (
        f"On changed inputs accuracy falls at worst by {stored} with the statistics of training and by {renewed} with "
        "those of the new data."
    )
    judgement = judged(stored.low > max(renewed.high, UNUSED), evidence)
    return with_seeds(min(stored.seeds, renewed.seeds), judgement)


CUES_OF_SCALE = experiment_of(
    __name__,
    name="akbar.cues",
    title="Cues and changes of scale",
    about="A class that depends on two coordinates. First with a cue beside it that is none of the task, one feature "
    "three times as large in one class: networks are tested with the cue turned round. Then without a cue: networks "
    "are tested on inputs that are all larger, smaller or brighter, in eval mode and with statistics of these inputs. "
    "The task is ours.",
    stored=True,
    task="classes of two coordinates",
    claims=(
        Claim(
            id="akbar.7.2.cues",
            where="Section 7.2, implicit bias away from memorization",
            text="BatchNorm removes the cue of a feature that is larger in one class, so that networks do not use it.",
            quotation="BN can prevent the model from using some trivial scale-based cue",
            judge=_removed,
        ),
        Claim(
            id="akbar.7.2.changes",
            where="Section 7.2, changes in input distribution",
            text="BatchNorm makes networks robust to changes of the scale or brightness of all inputs.",
            quotation="This hints at improved robustness to changes in input distribution (like brightness of images "
            "etc., if BN applied to pixel intensities across batch).",
            corrected="It is robust with statistics of the changed data, and not with those of the training data, "
            "which eval mode uses.",
            judge=_robust,
        ),
        Claim(
            id="akbar.9.4.shift",
            where="Section 9.4, BatchNorm at inference",
            text="Where the data shift the statistics of training cost accuracy, and those of the new data less.",
            quotation="If training and testing distributions differ (covariate shift), BN could introduce error by "
            "using training stats. This is less an issue if one updates BN stats on new data",
            judge=_shifted,
        ),
    ),
)
