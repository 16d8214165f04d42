"""Akbar, experiment 4: deep networks from weights that are far too large or too small."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch.nn import functional as F

from normscope.report import Block, Column, Curve, Curves, Table

from ..base import Claim, Figures, Job, Judgement, Measured, Settings, experiment_of
from ..ensembles import Ensemble, Normalizer, chain
from ..judging import judged, read, spread, with_seeds
from .shared import every, first, log10_points, regression

QUICK: Settings = {"seeds": 3, "steps": 150, "rates": (1e-2, 1e-1), "scales": (0.03, 1.0, 30.0), "samples": 128}
FULL: Settings = {**QUICK, "seeds": 20, "steps": 500, "rates": (1e-3, 1e-2, 1e-1, 1.0)}
WIDTHS = (5, 16, 16, 16, 16, 1)
LEARNT = 0.5
"""A run has learnt once its loss is below this share of the targets' variance."""
USUAL = 1e-1
"""A learning rate that suits the usual weights."""
KINDS = {"batch": "with BatchNorm", "last": "with BatchNorm, usual last layer", "none": "without"}
"""The last layer has no normalizer behind it: all weights are scaled, or all but those of the last layer."""


def jobs(settings: Settings) -> Sequence[Job]:
    """Return one job for each kind of network: all seeds, scales and rates are trained side by side."""
    return tuple(map(Job, KINDS))


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train from each scale at each rate, and count the runs that learn."""
    kind: Normalizer = "none" if job.kind == "none" else "batch"
    seeds, by_scale = range(settings["seeds"]), {}
    drawn = [torch.Generator().manual_seed(30_000 + seed) for seed in seeds]
    inputs = [torch.randn(settings["samples"], WIDTHS[0], generator=one, dtype=torch.float64) for one in drawn]
    x = torch.stack(inputs)
    y = regression(x)
    variance = y.var(dim=(1, 2), correction=0)
    rates = settings["rates"]
    many = len(rates)
    steps = torch.tensor(rates, dtype=torch.float64).repeat_interleave(len(seeds))
    for scale in settings["scales"]:
        networks = Ensemble.drawn(chain(WIDTHS, kind), list(seeds) * many, scale=scale)
        if job.kind == "last":
            end = list(networks.parameters)[-2]  # the weight of the last layer, whose bias is zero
            networks.parameters[end] = networks.parameters[end] / scale
        courses = []
        for _ in range(settings["steps"] + 1):
            loss, gradients = networks.gradients(F.mse_loss, x.repeat(many, 1, 1), y.repeat(many, 1, 1))
            courses.append(loss.nan_to_num(math.inf, math.inf))
            networks.step(gradients, steps)
        course = torch.stack(courses).reshape(-1, many, len(seeds)) / variance
        below = course < LEARNT
        apart = every(settings["steps"])
        by_scale[f"{scale:g}"] = {
            "last": course[-1].tolist(),
            "learnt after": first(below, settings["steps"] + 1).tolist(),
            "course": course[::apart].median(dim=2).values.T.tolist(),
            "every": apart,
        }
    return by_scale


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return the shares of runs that learn, at the usual and at the best rate, and after how many steps."""
    summary: dict[str, float] = {"seeds": float(settings["seeds"]), "steps": float(settings["steps"])}
    usual = [abs(rate - USUAL) < 1e-12 for rate in settings["rates"]].index(True)
    for kind in KINDS:
        for label, scale in zip(("small", "usual", "large"), settings["scales"]):
            run = measured[Job(kind)][f"{scale:g}"]
            shares = [sum(last < LEARNT for last in row) / settings["seeds"] for row in run["last"]]
            best = _best_rate(shares, run["learnt after"])
            summary[f"{kind}.{label}.share at the usual rate"] = shares[usual]
            summary[f"{kind}.{label}.share at the best rate"] = shares[best]
            summary[f"{kind}.{label}.best rate"] = settings["rates"][best]
            summary[f"{kind}.{label}.exploded at the usual rate"] = (
                sum(last == math.inf for last in run["last"][usual]) / settings["seeds"]
            )
            summary |= spread(f"{kind}.{label}.learnt after, best rate", run["learnt after"][best])
    return summary


def _best_rate(shares: Sequence[float], steps: Sequence[Sequence[float]]) -> int:
    """Return the rate at which the most runs learn, and of several the one with the fewest steps."""
    return max(range(len(shares)), key=lambda rate: (shares[rate], -sum(steps[rate])))


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return the losses at the usual rate, and a table of who learns."""
    usual = [abs(rate - USUAL) < 1e-12 for rate in settings["rates"]].index(True)
    curves = []
    rows = []
    for kind, label in KINDS.items():
        for scale, run in measured[Job(kind)].items():
            points = log10_points(run["course"][usual], run["every"])
            curves.append(Curve(name=f"{label}, weights times {scale}", points=points))
            for rate, last in zip(settings["rates"], run["last"]):
                rows.append(
                    (label, scale, rate, sum(one < LEARNT for one in last) / len(last), spread("x", last)["x.median"])
                )
    columns = (
        Column(title="network", kind="name"),
        Column(title="weights times", kind="name"),
        Column(title="rate", kind="number"),
        Column(title="learnt", kind="percent"),
        Column(title="median of the last loss", kind="number", help="over the variance of the targets"),
    )
    return (
        Curves(title=f"The loss at rate {USUAL:g}", curves=tuple(curves), axis="log10 of the median over seeds"),
        Table(title="Who learns", columns=columns, rows=tuple(rows)),
    )


def _without(figures: Figures) -> Judgement:
    usual = [figures[f"none.{label}.share at the usual rate"] for label in ("small", "large")]
    best = [figures[f"none.{label}.share at the best rate"] for label in ("small", "large")]
    evidence = (
        f"Without BatchNorm {100 * usual[0]:.0f} % of the runs learn from small and {100 * usual[1]:.0f} % from large "
        f"weights at the usual rate, {100 * best[0]:.0f} % and {100 * best[1]:.0f} % at the best of all rates."
    )
    return with_seeds(figures["seeds"], judged(max(best) < 0.5, evidence, corrected=max(usual) < 0.5))


def _with(figures: Figures) -> Judgement:
    shares = {
        (kind, rate): [figures[f"{kind}.{label}.share at the {rate} rate"] for label in ("small", "large")]
        for kind in ("batch", "last")
        for rate in ("usual", "best")
    }
    listed = "; ".join(
        f"{100 * small:.0f} % and {100 * large:.0f} % ({KINDS[kind]}, {rate} rate)"
        for (kind, rate), (small, large) in shares.items()
    )
    learnt = {case: min(both) > 0.5 for case, both in shares.items()}
    judgement = judged(
        learnt["batch", "usual"] and learnt["batch", "best"],
        f"Runs that learn from small and from large weights: {listed}.",
        corrected=learnt["last", "usual"] and learnt["last", "best"],
    )
    return with_seeds(figures["seeds"], judgement)


def _careless(figures: Figures) -> Judgement:
    steps = {label: read(figures, f"batch.{label}.learnt after, best rate") for label in ("small", "usual", "large")}
    worst = max(steps["small"].median, steps["large"].median)
    judgement = judged(
        worst <= 2.0 * steps["usual"].median,
        f"With BatchNorm, each at its best rate, half the variance is learnt after {steps['small'].median:.3g} steps "
        f"from small, {steps['usual'].median:.3g} from usual and {steps['large'].median:.3g} from large weights.",
    )
    return with_seeds(min(one.seeds for one in steps.values()), judgement)


def _less_sensitive(figures: Figures) -> Judgement:
    more = {
        kind: [
            figures[f"{kind}.{label}.share at the best rate"] - figures[f"none.{label}.share at the best rate"]
            for label in ("small", "large")
        ]
        for kind in ("batch", "last")
    }
    listed = "; ".join(
        f"{100 * small:+.0f} and {100 * large:+.0f} points ({KINDS[kind]})" for kind, (small, large) in more.items()
    )
    evidence = f"More runs learn than without, from small and from large weights, at the best rate: {listed}."
    judgement = judged(min(min(one) for one in more.values()) > 0.0, evidence, corrected=min(more["last"]) > 0.0)
    return with_seeds(figures["seeds"], judgement)


INITIALISATION = experiment_of(
    __name__,
    name="akbar.experiment4",
    title="Experiment 4: bad initialisations",
    about="Regression with networks of five layers from He's weights times 0.03, 1 and 30, with and without "
    "BatchNorm, by gradient descent over all samples at several learning rates. Task, widths and rates are ours.",
    stored=True,
    task="one regression",
    claims=(
        Claim(
            id="akbar.experiment4.without",
            where="Experiment 4",
            text="Without BatchNorm networks fail to train from very large or very small weights.",
            quotation="Without BN, the network either fails to train (gradients explode to NaN if weights too large, "
            "or gradients vanish if weights too small)",
            judge=_without,
        ),
        Claim(
            id="akbar.experiment4.with",
            where="Experiment 4",
            text="With BatchNorm training proceeds smoothly from either, all weights being very large or very small.",
            quotation="With BN, training proceeds smoothly from either initialization.",
            corrected="It does where the last layer, which no BatchNorm follows, has usual weights.",
            judge=_with,
        ),
        Claim(
            id="akbar.experiment4.careless",
            where="Section 5.1, example trajectory",
            text="With BatchNorm the scale of the first weights need not be chosen with care.",
            quotation="networks with BN don't suffer from needing to carefully choose initial scale to avoid "
            "vanish/explode",
            judge=_careless,
        ),
        Claim(
            id="akbar.9.1.scale",
            where="Section 9.1",
            text="With BatchNorm the scale of all first weights matters less than without.",
            quotation="This means we can worry less about weight initialization scale if we use BN/LN",
            judge=_less_sensitive,
            corrected="So it is of weights in front of BatchNorm; those of the last layer, which none follows, need a "
            "usual scale.",
        ),
    ),
)
