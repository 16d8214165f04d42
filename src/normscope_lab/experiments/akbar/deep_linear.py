"""Akbar, sections 6.1 and 7.1: deep linear networks with and without BatchNorm, and saddles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.report import Block, Column, Curve, Curves, Table

from ..base import Claim, Figures, Job, Judgement, Measured, Settings, experiment_of
from ..ensembles import Ensemble, Normalizer, chain
from ..judging import decided, read, readings, spread
from .shared import KINDS, every, first, log10_points, spectrum, zeros

QUICK: Settings = {"seeds": 3, "spectra": 1, "steps": 200, "rates": (0.01, 0.1), "samples": 64, "far": 0.3}
FULL: Settings = {**QUICK, "seeds": 20, "spectra": 10, "steps": 1500, "rates": (0.003, 0.01, 0.03, 0.1)}
CRITICAL = 1e-6
"""A gradient of a norm below this is that of a critical point."""
WIDTHS = (6, 6, 6, 6, 6, 1)
REACHED = 0.01
"""The optimum counts as reached once the loss exceeds the least squares by this share of the variance."""


def jobs(settings: Settings) -> Sequence[Job]:
    """Return one job for each kind of network."""
    return tuple(map(Job, KINDS))


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train deep linear networks at several rates from usual and from small weights, and take Hessians at the end."""
    kind: Normalizer = "batch" if job.kind == "batch" else "none"
    seeds, rates = list(range(settings["seeds"])), list(settings["rates"])
    x, y, least = _task(settings)
    variance, many = y.var(dim=(1, 2), correction=0), len(rates)
    steps = torch.tensor(rates, dtype=torch.float64).repeat_interleave(len(seeds))
    summary: dict[str, object] = {}
    for label, scale in (("usual", 0.5**0.5), ("small", settings["far"] * 0.5**0.5)):
        networks = Ensemble.drawn(chain(WIDTHS, kind, activation=nn.Identity), seeds * many, scale=scale)
        courses = []
        for _ in range(settings["steps"] + 1):
            loss, gradients = networks.gradients(F.mse_loss, x.repeat(many, 1, 1), y.repeat(many, 1, 1))
            courses.append(loss.nan_to_num(math.inf, math.inf))
            networks.step(gradients, steps)
        excess = (torch.stack(courses).reshape(-1, many, len(seeds)) - least) / variance
        below = excess < REACHED
        reached = first(below, settings["steps"] + 1)
        best = int(reached.median(dim=1).values.argmin())
        apart = every(settings["steps"])
        summary[label] = {
            "best": best,
            "reached after": reached[best].tolist(),
            "last": excess[-1, best].tolist(),
            "course": excess[::apart, best].median(dim=1).values.tolist(),
            "every": apart,
        }
        if label == "usual":
            chosen = [best * len(seeds) + seed for seed in seeds[: settings["spectra"]]]
            batches = [(x[seed], y[seed]) for seed in seeds]
            summary["spectra"] = [_spectrum(networks.member(one), batches[one % len(seeds)]) for one in chosen]
    return summary


def _task(settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs of unequal variance, a linear target with noise, and the least loss of each seed."""
    inputs, targets, least = [], [], []
    for seed in range(settings["seeds"]):
        generator = torch.Generator().manual_seed(40_000 + seed)
        x = torch.randn(settings["samples"], WIDTHS[0], generator=generator, dtype=torch.float64)
        x = x * torch.logspace(-0.5, 0.5, WIDTHS[0], dtype=torch.float64)
        weight = torch.randn(WIDTHS[0], 1, generator=generator, dtype=torch.float64)
        y = x @ weight + 0.1 * torch.randn(len(x), 1, generator=generator, dtype=torch.float64)
        wide = torch.cat((x, torch.ones(len(x), 1, dtype=torch.float64)), dim=1)
        least.append(F.mse_loss(wide @ torch.linalg.lstsq(wide, y).solution, y))
        inputs.append(x)
        targets.append(y)
    return torch.stack(inputs), torch.stack(targets), torch.stack(least)


def _spectrum(network: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, float | None]:
    curvature = spectrum(network, batch)
    return {
        "sharpness": curvature.sharpness,
        "condition": curvature.condition_number,
        "zeros": zeros(curvature) / curvature.parameters,
        "gradient": curvature.gradient_norm,
    }


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return steps to the optimum, and the Hessians, with their comparison seed by seed."""
    summary: dict[str, float] = {"steps": float(settings["steps"])}
    batch, none = measured[Job("batch")], measured[Job("none")]
    for label in ("usual", "small"):
        for kind, run in (("batch", batch), ("none", none)):
            summary |= spread(f"{kind}.{label}.reached after", run[label]["reached after"])
            reached = [one <= settings["steps"] for one in run[label]["reached after"]]
            summary[f"{kind}.{label}.share"] = sum(reached) / len(reached)
        reached_both = zip(none[label]["reached after"], batch[label]["reached after"])
        summary |= spread(f"ratio.{label}.steps", [theirs / max(ours, 1.0) for theirs, ours in reached_both])
    for name in ("condition", "sharpness", "zeros"):
        spectra = [pair for pair in zip(batch["spectra"], none["spectra"]) if _converged(*pair)]
        pairs = [(b[name], n[name]) for b, n in spectra]
        summary |= spread(f"ratio.{name}", [n / b for b, n in pairs if b and n is not None])
        for kind, values in (("batch", [b for b, _ in pairs]), ("none", [n for _, n in pairs])):
            summary |= spread(f"{kind}.{name}", [one for one in values if one is not None])
    return summary


def _converged(*spectra: Mapping[str, float]) -> bool:
    """Return whether runs came to a critical point; elsewhere a Hessian says nothing about minima."""
    return all(one["gradient"] < CRITICAL for one in spectra)


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return the excess over the optimum, and the Hessians."""
    curves = tuple(
        Curve(
            name=f"{name}, {label} weights",
            points=log10_points(measured[Job(kind)][label]["course"], measured[Job(kind)][label]["every"], 1e-16),
        )
        for kind, name in KINDS.items()
        for label in ("usual", "small")
    )
    columns = [Column(title="network", kind="name")]
    columns += [Column(title=t, kind="number") for t in ("largest eigenvalue", "condition number")]
    columns += [Column(title="zeros", kind="percent"), Column(title="gradient", kind="number")]
    rows = tuple(
        (name, *(one[key] for key in ("sharpness", "condition", "zeros", "gradient")))
        for kind, name in KINDS.items()
        for one in measured[Job(kind)]["spectra"]
    )
    return (
        Curves(title="Excess over the least squares", curves=curves, axis="log10 of the median, over the variance"),
        Table(title="Hessians at the end, by seed", columns=tuple(columns), rows=rows),
    )


def _zeros(figures: Figures) -> Judgement:
    ratio = read(figures, "ratio.zeros")
    ours, theirs = (figures[f"{kind}.zeros.median"] for kind in ("batch", "none"))
    return decided(
        ratio,
        above=1.0,
        evidence=f"With BatchNorm {100 * ours:.0f} % of the eigenvalues are zero or lie along symmetries, without "
        f"{100 * theirs:.0f} %, in the {ratio.seeds} pairs of runs that both came to a critical point.",
    )


def _sooner(figures: Figures) -> Judgement:
    medians = [read(figures, f"ratio.{label}.steps") for label in ("usual", "small")]
    shares = [[figures[f"{kind}.{label}.share"] for kind in KINDS] for label in ("usual", "small")]
    return readings(
        [medians],
        above=1.0,
        evidence=f"Without BatchNorm the optimum takes {medians[0]} times as many steps from usual weights and "
        f"{medians[1]} times from small ones; it is reached in {100 * shares[0][0]:.0f} % and {100 * shares[1][0]:.0f} "
        f"% of the runs with BatchNorm, in {100 * shares[0][1]:.0f} % and {100 * shares[1][1]:.0f} % without.",
    )


def _convex(figures: Figures) -> Judgement:
    ratio = read(figures, "ratio.condition")
    ours, theirs = (figures[f"{kind}.condition.median"] for kind in ("batch", "none"))
    return decided(
        ratio,
        above=1.0,
        evidence=f"The condition number without zeros is {ours:.3g} with BatchNorm and {theirs:.3g} without, in the "
        f"{ratio.seeds} pairs of runs that both came to a critical point.",
    )


DEEP_LINEAR = experiment_of(
    __name__,
    name="akbar.deep-linear",
    title="Deep linear networks",
    about="Linear regression with chains of five linear layers, with and without BatchNorm behind each but the last, "
    "by gradient descent over all samples, each at its best of several rates.",
    stored=True,
    task="linear regression",
    claims=(
        Claim(
            id="akbar.6.1.zeros",
            where="Section 6.1, deep linear networks",
            text="BatchNorm removes the zero modes of deep linear networks.",
            quotation="BN should dramatically alter the Hessian by removing those zero modes",
            corrected="With BatchNorm there are more zero eigenvalues, not fewer.",
            judge=_zeros,
        ),
        Claim(
            id="akbar.6.1.convex",
            where="Section 6.1, deep linear networks",
            text="With BatchNorm a deep linear network is better conditioned, more like a convex quadratic.",
            quotation="a deep linear net with BN might behave more like a convex quadratic in terms of optimization",
            judge=_convex,
        ),
        Claim(
            id="akbar.7.1.sooner",
            where="Section 7.1",
            text="With BatchNorm deep linear networks reach the optimum sooner.",
            quotation="It does so in fewer iterations / epochs, and is less sensitive to learning rate tuning.",
            judge=_sooner,
        ),
    ),
)
