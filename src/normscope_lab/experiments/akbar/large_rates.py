"""Akbar, sections 5.1, 6 and 7: whether large learning rates lead to flat minima, and these to generalization."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope import hessian
from normscope.data import digits
from normscope.report import Block, Cell, Column, Curve, Curves, Table

from ...statistics import kendall
from ..base import Claim, Figures, Job, Judgement, Measured, Settings, experiment_of
from ..ensembles import Ensemble, Normalizer, chain
from ..judging import read, readings, spread
from .shared import KINDS

QUICK: Settings = {"seeds": 2, "rates": (0.1, 0.5), "steps": 200, "loss": 0.5, "samples": 100, "batch": 50, "draws": 2}
FULL: Settings = {
    **QUICK,
    "seeds": 6,
    "rates": (0.02, 0.06, 0.2, 0.6, 2.0),
    "steps": 6000,
    "loss": 0.1,
    "samples": 400,
    "draws": 20,
}
TASKS = {"digits": "digits", "product": "the sign of a product of two coordinates"}
WIDTHS, TESTS = (32, 32), 1000
NOISE = 0.1
"""The size of noise in each row of a weight, relative to the row."""
SHARP = {
    "eigenvalue": "the largest eigenvalue of the Hessian",
    "noise": f"the loss added by noise of {NOISE:g} of each row of the weights",
}
"""The readings of "sharp"; the second does not change where weights in front of a normalizer are rescaled."""


def jobs(settings: Settings) -> Sequence[Job]:
    """Return one job for each task, kind of network and rate."""
    return tuple(_job(task, kind, rate) for task in TASKS for kind in KINDS for rate in settings["rates"])


def _job(task: str, kind: str, rate: float) -> Job:
    return Job(f"{task} {kind} {rate:g}")


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train all seeds side by side at one rate, and measure each when the loss over all samples is first reached."""
    task, kind, rate = job.kind.split()
    x, y, fresh, labels = _data(task, settings)
    normalizer: Normalizer = "batch" if kind == "batch" else "none"
    networks = Ensemble.drawn(chain((x.shape[-1], *WIDTHS, int(y.max()) + 1), normalizer), range(settings["seeds"]))
    held = {name: value.clone() for name, value in networks.parameters.items()}
    reached = torch.full((settings["seeds"],), math.nan, dtype=torch.float64)
    order = torch.Generator().manual_seed(13)
    for step in range(1, settings["steps"] + 1):
        rows = torch.randperm(settings["samples"], generator=order)[: settings["batch"]]
        _, gradients = networks.gradients(F.cross_entropy, x[:, rows], y[:, rows])
        networks.step(gradients, float(rate))
        if step % 2:
            continue
        with torch.no_grad():
            losses = torch.func.vmap(F.cross_entropy)(networks(x), y)
        new = (losses <= settings["loss"]) & reached.isnan()
        reached[new] = step
        for name, value in networks.parameters.items():
            held[name][new] = value[new]
        if not reached.isnan().any() or not losses.isfinite().any():
            break
    networks.parameters = held
    summary = _sharpness(settings, networks, x, y, reached) | {"step": reached.tolist()}
    networks.calibrate(x)
    networks.template.eval()
    with torch.no_grad():
        summary["error"] = (networks(fresh).argmax(-1) != labels).double().mean(1).tolist()
    return {name: [value if math.isfinite(value) else None for value in row] for name, row in summary.items()}


def _data(task: str, settings: Settings) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return samples with labels to train and to test on, `[seeds, samples, ...]`."""
    parts: list[list[Tensor]] = [[], [], [], []]
    for seed in range(settings["seeds"]):
        generator = torch.Generator().manual_seed(70_000 + seed)
        if task == "digits":
            split = digits(generator=generator)
            images = torch.cat((split.train_images, split.test_images)).flatten(1).double()
            classes = torch.cat((split.train_labels, split.test_labels))
        else:
            images = torch.randn(settings["samples"] + TESTS, 20, generator=generator, dtype=torch.float64)
            images[:, :2] *= 3.0
            classes = (images[:, 0] * images[:, 1] > 0).long()
        end = settings["samples"] + TESTS
        for part, rows in zip((parts[:2], parts[2:]), (slice(settings["samples"]), slice(settings["samples"], end))):
            part[0].append(images[rows])
            part[1].append(classes[rows])
    x, y, fresh, labels = (torch.stack(part) for part in parts)
    return x, y, fresh, labels


def _sharpness(settings: Settings, networks: Ensemble, x: Tensor, y: Tensor, reached: Tensor) -> dict[str, list[float]]:
    """Return both readings of "sharp" for each network with the statistics of all samples; NaN where not reached."""
    networks.template.train()
    generator = torch.Generator().manual_seed(17)
    with torch.no_grad():
        losses = torch.func.vmap(F.cross_entropy)
        start, added = losses(networks(x), y), torch.zeros(len(networks), dtype=torch.float64)
        for _ in range(settings["draws"]):
            moved = {
                name: value + NOISE * _size(value) * torch.randn(value.shape, generator=generator, dtype=value.dtype)
                for name, value in networks.parameters.items()
            }
            added += (losses(networks.outputs(moved, x), y) - start) / settings["draws"]
    eigenvalues = [
        hessian(
            networks.member(seed), (x[seed], y[seed]), loss="cross_entropy", k=1, mode="train", rtol=1e-2
        ).eigenvalues[0]
        if math.isfinite(step)
        else math.nan
        for seed, step in enumerate(reached.tolist())
    ]
    return {"eigenvalue": eigenvalues, "noise": added.where(reached.isfinite(), math.nan).tolist()}


def _size(value: Tensor) -> Tensor:
    """Return the root mean square of each row of a weight, and of a whole bias or scale."""
    return value.square().mean(-1, keepdim=True).sqrt()


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return how sharpness and test error change with the rate, and with each other, seed by seed."""
    rates, seeds = settings["rates"], range(settings["seeds"])
    summary: dict[str, float] = {}
    for task in TASKS:
        ends: dict[str, list[tuple[int, dict[str, float], dict[str, float]]]] = {}
        for kind in KINDS:
            runs = {rate: measured[_job(task, kind, rate)] for rate in rates}
            of_seed = {
                seed: {rate: _one(run, seed) for rate, run in runs.items() if run["step"][seed] is not None}
                for seed in seeds
            }
            ends[kind] = [(seed, one[min(one)], one[max(one)]) for seed, one in of_seed.items() if len(one) > 1]
            summary |= spread(f"{task}.{kind}.largest rate", [max(one) for one in of_seed.values() if one])
            for name in (*SHARP, "error"):
                summary |= spread(f"{task}.{kind}.change.{name}", [b[name] - a[name] for _, a, b in ends[kind]])
            for name in SHARP:
                taus = [
                    kendall([a[name] for a in one.values()], [a["error"] for a in one.values()])
                    for one in of_seed.values()
                    if len(one) > 2
                ]
                summary |= spread(f"{task}.{kind}.tau.{name}", [tau for tau in taus if math.isfinite(tau)])
        other = {seed: last for seed, _, last in ends["none"]}
        for name in (*SHARP, "error"):
            pairs = [last[name] - other[seed][name] for seed, _, last in ends["batch"] if seed in other]
            summary |= spread(f"{task}.batch less none.{name}", pairs)
    return summary


def _one(run: Measured, seed: int) -> dict[str, float]:
    """Return the figures of one network: logarithms of its sharpness, and its test error."""
    sharp = {name: math.log10(max(run[name][seed], 1e-12)) for name in SHARP}
    return {**sharp, "error": run["error"][seed]}


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return sharpness by rate, and a table of all rates."""
    curves, rows = [], []
    for task, words in TASKS.items():
        for kind, name in KINDS.items():
            points = []
            for rate in settings["rates"]:
                run = measured[_job(task, kind, rate)]
                kept = [seed for seed, step in enumerate(run["step"]) if step is not None]
                medians = [
                    spread("x", [run[key][seed] for seed in kept])["x.median"] for key in ("step", *SHARP, "error")
                ]
                row: tuple[Cell, ...] = (words, name, rate, len(kept) / settings["seeds"], *medians)
                rows.append(row)
                if kept:
                    points.append((math.log10(rate), math.log10(max(medians[1], 1e-12))))
            curves.append(Curve(name=f"{words}, {name}", points=tuple(points)))
    columns = [Column(title=title, kind="name") for title in ("task", "network")]
    columns += [Column(title="rate", kind="number"), Column(title="seeds that reach the loss", kind="percent")]
    columns += [Column(title=title, kind="number") for title in ("steps", "largest eigenvalue", "added by noise")]
    columns += [Column(title="test error", kind="percent")]
    return (
        Curves(
            title="Sharpness at equal training loss",
            curves=tuple(curves),
            axis="log10 of the largest eigenvalue, median over seeds",
            along="log10 of the learning rate",
        ),
        Table(title="Medians over seeds, at equal training loss", columns=tuple(columns), rows=tuple(rows)),
    )


def _judged(figures: Figures, key: str, names: Sequence[str], lead: str, *, rises: bool = False) -> Judgement:
    """Judge whether figures of both tasks are below 0 (or above), in every reading of their names."""
    spreads = [[read(figures, f"{task}.{key}.{name}") for task in TASKS] for name in names]
    listed = "; ".join(
        f"{SHARP.get(name, 'the test error')}: {', '.join(f'{one} on {TASKS[task]}' for task, one in zip(TASKS, same))}"
        for name, same in zip(names, spreads)
    )
    turned = spreads if rises else [[one.negated() for one in same] for same in spreads]
    return readings(turned, above=0.0, evidence=f"{lead}: {listed}.")


def _broad(figures: Figures) -> Judgement:
    lead = "Decades from the smallest to the largest rate that reaches the loss, with BatchNorm"
    return _judged(figures, "batch.change", tuple(SHARP), lead)


def _flatter(figures: Figures) -> Judgement:
    lead = "Decades between the networks with BatchNorm and without, each at its largest rate"
    return _judged(figures, "batch less none", tuple(SHARP), lead)


def _generalizes(figures: Figures) -> Judgement:
    lead = "Kendall's tau with the test error over the rates of one network with BatchNorm"
    return _judged(figures, "batch.tau", tuple(SHARP), lead, rises=True)


def _skips(figures: Figures) -> Judgement:
    return _judged(figures, "batch.change", ("error",), "From the smallest to the largest rate, with BatchNorm")


def _better(figures: Figures) -> Judgement:
    return _judged(figures, "batch less none", ("error",), "With BatchNorm less without, each at its largest rate")


LARGE_RATES = experiment_of(
    __name__,
    name="akbar.rates",
    title="Large rates, flat minima, generalization",
    about="Networks with two hidden layers learn digits and the sign of a product of two coordinates by gradient "
    "descent in small batches at several rates, with BatchNorm and without, until the loss over all samples is at most "
    "0.1; there their sharpness and test errors are compared, seed by seed. The paper names no experiment.",
    stored=True,
    task="; ".join(TASKS.values()),
    claims=(
        Claim(
            id="akbar.5.1.broad",
            where="Section 5.1, large learning rates",
            text="With BatchNorm large rates end in broader minima than small ones.",
            quotation="So BN encourages an outcome where final solution is in a broad region since we train with "
            "aggressive steps that cannot settle in anything narrower than step size.",
            judge=_broad,
        ),
        Claim(
            id="akbar.5.1.flat",
            where="Section 5.1, large learning rates",
            text="With BatchNorm training converges to flatter minima than without.",
            quotation="Hence BN fosters converging to flat minima (which often correlates with better generalization",
            judge=_flatter,
        ),
        Claim(
            id="akbar.6.flat",
            where="Section 6, conclusion",
            text="Among networks with BatchNorm the flatter ones generalize better.",
            quotation="Solutions found with normalization often lie in flatter regions (small Hessian eigenvalues), "
            "which is believed to correlate with better generalization.",
            judge=_generalizes,
        ),
        Claim(
            id="akbar.7.1.large-steps",
            where="Section 7.1",
            text="With BatchNorm large rates avoid poor minima: the test error is smaller than with small ones.",
            quotation="avoiding poor local minima (because large steps skip them)",
            judge=_skips,
        ),
        Claim(
            id="akbar.10.chain",
            where="Section 10",
            text="By large steps and flat minima networks with BatchNorm generalize better than those without.",
            quotation="By guiding the optimization towards flatter minima and enabling the use of large gradient "
            "steps, normalization contributes to finding solutions that often generalize better.",
            judge=_better,
        ),
    ),
)
