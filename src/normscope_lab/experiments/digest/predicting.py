"""The digest's third check as written: does the bound of Theorem 20 predict the gap, over populations of networks?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from normscope.data import Split, cifar10, digits, mnist
from normscope.report import Block, Chart, Column, Series, Table
from normscope.toolkit import InputError

from ...population.conditional import information
from ...population.kendall import Tau, advantage, power
from ...population.member import Member
from ...population.predict import predictive_power
from ...population.prediction import Prediction, compared
from ...population.recipes import AXES, RecipeGrid
from ..base import Claim, Figures, Job, Judgement, Measured, Settings, Verdict, experiment_of
from ..judging import of_all, of_readings
from .short_training import JPEG

GRID: dict[str, Any] = {
    "depths": (3, 5),
    "widths": (32, 96),
    "normalizers": ("none", "batch", "layer"),
    "batch_sizes": (16, 64),
    "weight_decays": (0.0,),
    "seeds": 6,
}
CONVOLUTIONS: dict[str, Any] = {
    **GRID, "depths": (4, 6), "widths": (16, 32), "learning_rates": (0.05,), "samples": 300, "loss": 0.05,
}  # fmt: skip
QUICK: Settings = {
    "digits, linear layers": {
        **GRID, "widths": (24,), "depths": (2, 3), "normalizers": ("none", "layer"), "learning_rates": (0.05,),
        "batch_sizes": (16, 32), "samples": 60, "loss": 0.5, "seeds": 1,
    },
}  # fmt: skip
FULL: Settings = {
    "digits, linear layers": {**GRID, "learning_rates": (0.02,), "samples": 300, "loss": 0.05},
    "MNIST, linear layers": {**GRID, "learning_rates": (0.03,), "samples": 300, "loss": 0.05},
    "digits, convolutions": CONVOLUTIONS,
    "MNIST, convolutions": CONVOLUTIONS,
    "CIFAR-10, convolutions": CONVOLUTIONS,
    "data": ("digits", "mnist", "cifar10"),
}  # fmt: skip
GLOBAL, LOCAL = "global", "theorem-20-slopes-printed"
PRINTED = {LOCAL: "as printed, slopes at the samples", GLOBAL: "as printed, one constant over all inputs"}
"""The two ways to compute Theorem 20's bound, by the measure whose order of networks is that of the bound.

With one constant L over all inputs the bound is the loss on D, plus c L, plus g. All networks of a population have the
same samples, and so the same c and g, and their losses on D differ by at most the one that ends their training: the
bound orders them as L does.
"""
CAPPED = {
    "theorem-20-slopes": "capped, slopes at the samples",
    "theorem-20": "capped, one constant over all inputs",
}
"""A reading of ours, which no verdict rests on: no cell counts for more than the largest loss, C."""
OBSERVED = {"observed-mean": "mean Jacobian norm at the samples"}
"""What stands beside it in the evidence."""
ENDS = ("value", "low", "high")
SHOWN = (
    "observed-mean/margin", "observed-mean", "observed-largest", "hkk", "noise", "sharpness", "inverse-margin",
    "data", *CAPPED, LOCAL, GLOBAL, "spectral-product", "printed", "corollary-22", "bartlett", "neyshabur",
    "parameters",
)  # fmt: skip
"""The measures that are taken."""


def jobs(settings: Settings) -> Sequence[Job]:
    """Return one job per population."""
    return tuple(Job(kind) for kind in settings if ", " in kind)


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train and measure one population; with a folder it is kept there network by network."""
    prediction = train_population(settings, job, folder)
    members = [member.to_json() for member in prediction.members]
    return {"settings": prediction.settings, "members": members, "statistics": statistics(prediction.reached)}


def train_population(settings: Settings, job: Job, folder: Path | None, workers: int = 0) -> Prediction:
    """Train and measure one population, in this process or in `workers` others."""
    options = dict(settings[job.kind])
    data, kind = job.kind.split(", ")
    samples, loss = options.pop("samples"), options.pop("loss")
    return predictive_power(
        _split(data, samples, settings),
        RecipeGrid(**options),
        network="cnn" if kind == "convolutions" else "mlp",
        samples=samples,
        target_loss=loss,
        measures=SHOWN,
        workers=workers,
        folder=folder,
        name=data,
    )


def _split(data: str, samples: int, settings: Settings) -> Split:
    if data == "digits":
        return digits(generator=torch.Generator().manual_seed(0), test_share=1.0 - samples / 1797)
    if "data_folder" not in settings:
        raise InputError("this experiment needs MNIST and CIFAR-10: give the folder that holds both with --data")
    return {"MNIST": mnist, "CIFAR-10": cifar10}[data](settings["data_folder"])


def statistics(members: Sequence[Member]) -> dict[str, float]:
    """Return how each measure orders the gaps of networks, and what local bounds have over the global constant.

    This takes 20 seconds for 80 networks, so that it is measured and not computed whenever the result is read.
    """
    gaps, axes = sorted(member.gap for member in members if member.gap is not None), list(AXES)
    summary = {"networks": float(len(members))}
    if gaps:
        summary |= {"gap.low": gaps[0], "gap.median": median(gaps), "gap.high": gaps[-1]}
    for measure in SHOWN:
        (values,), sample = compared(members, measure)
        one = power(values, sample, axes, generator=np.random.default_rng(0))
        told = information(values, sample, axes, generator=np.random.default_rng(0))
        summary |= _ends(measure, one.mean) | _ends(f"{measure}.information", told.share)
        summary |= {f"{measure}.{axis}": _number(tau.value) for axis, tau in one.axes.items()}
        summary |= {f"{measure}.chance": _number(told.chance), f"{measure}.overall": _number(one.overall.value)}
    for bound in (LOCAL, *CAPPED):
        (local, constant), sample = compared(members, bound, GLOBAL)
        difference = advantage(local, constant, sample, axes, generator=np.random.default_rng(0))
        summary |= _ends(f"{bound}.over", difference)
    return {name: value for name, value in summary.items() if not math.isnan(value)}


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return the statistics of every population under its name."""
    summary = {"populations": float(len(measured))}
    for job, held in measured.items():
        summary |= {f"{job.kind}.{name}": value for name, value in held["statistics"].items()}
        summary[f"{job.kind}.trained"] = float(len(held["members"]))
    return summary


def _ends(name: str, tau: Tau) -> dict[str, float]:
    """Return a figure with the ends of its interval."""
    return {f"{name}.{key}": _number(value) for key, value in zip(ENDS, (tau.value, tau.low, tau.high))}


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return of every population a picture of tau by measure, and a table with the conditional independence test."""
    summary, blocks = figures(settings, measured), list[Block]()
    for job in measured:
        tau = {one: read(summary, f"{job.kind}.{one}") for one in SHOWN if f"{job.kind}.{one}.low" in summary}
        names = tuple(sorted(tau, key=lambda one: -tau[one][0]))
        lows, highs = (tuple(tau[one][end] for one in names) for end in (1, 2))
        series = (
            Series(name="95 % interval", style="spans", values=lows, until=highs),
            Series(name="mean over axes", style="marks", values=tuple(tau[one][0] for one in names)),
        )
        blocks.append(
            Chart(
                labels=names,
                series=series,
                title=f"How well each measure orders the gaps: {job.kind}",
                axis="Kendall's tau",
                sideways=True,
                rules=(("no relation", 0.0),),
            )
        )
        titles = ("mean over axes", *AXES.values(), "information given two axes or fewer", "by chance")
        columns = (Column(title="measure", kind="name"), *(Column(title=one, kind="name") for one in titles))
        rows = tuple(
            (
                one,
                _spread(tau[one]),
                *(
                    f"{value:.2f}" if (value := summary.get(f"{job.kind}.{one}.{axis}")) is not None else ""
                    for axis in AXES
                ),
                _percents(read(summary, f"{job.kind}.{one}.information")),
                f"{100 * summary[f'{job.kind}.{one}.chance']:.1f} %",
            )
            for one in names
        )
        gaps = " to ".join(f"{100 * summary[f'{job.kind}.gap.{end}']:.1f} %" for end in ("low", "high"))
        caption = (
            f"{summary[f'{job.kind}.networks']:g} of {summary[f'{job.kind}.trained']:g} networks reached the training "
            f"loss; their gaps go from {gaps}. Intervals at 95 %."
        )
        blocks.append(Table(title=f"What orders the gaps: {job.kind}", columns=columns, rows=rows, caption=caption))
    return blocks


def read(summary: Figures, name: str) -> tuple[float, float, float]:
    """Return a figure with the ends of its interval."""
    value, low, high = (summary[f"{name}.{end}"] for end in ENDS)
    return value, low, high


def _spread(ends: tuple[float, float, float]) -> str:
    return f"{ends[0]:.2f} ({ends[1]:.2f} to {ends[2]:.2f})"


def _percents(ends: tuple[float, float, float]) -> str:
    return f"{100 * ends[0]:.1f} % ({100 * ends[1]:.1f} to {100 * ends[2]:.1f})"


def _decided(figures: Figures, name: str) -> Verdict:
    """Return whether a figure is above 0: open where its interval covers 0, or where it was not measured."""
    if f"{name}.low" not in figures:
        return Verdict.NOT_TESTABLE
    _, low, high = read(figures, name)
    return Verdict.HOLDS if low > 0.0 else Verdict.FAILS if high <= 0.0 else Verdict.NOT_TESTABLE


def _judge(figures: Figures, kinds: Sequence[str], ending: str) -> Judgement:
    """Judge over the populations whether a figure of Theorem 20's bound as printed is above 0.

    Its two constants are readings of the claim that it predicts the gap (no `ending`); the claim that it does so better
    than the global constant (`.over`) is about the local ones alone, as the other reading orders networks alike.
    """
    judged = [measure for measure in PRINTED if not (ending and measure == GLOBAL)]
    differences = {**{measure: PRINTED[measure] for measure in judged}, **CAPPED}
    others = {**({GLOBAL: PRINTED[GLOBAL]} if ending else {}), **OBSERVED}
    rows = [("", *differences.values(), *others.values())]
    for kind in kinds:
        cells = [_cell(figures, f"{kind}.{measure}", ending) for measure in differences]
        cells += [_cell(figures, f"{kind}.{measure}", "") for measure in others]
        rows.append((f"{kind}, {figures[f'{kind}.networks']:g} networks", *cells))
    verdicts = [of_all([_decided(figures, f"{kind}.{measure}{ending}") for kind in kinds]) for measure in judged]
    what = "that of the bound as printed less that of the global constant" if ending else "tau of the bound as printed"
    return Judgement(
        of_readings(verdicts),
        "Kendall's tau with the gap, mean over single axes, with 95 % intervals over configurations; judged is "
        f"{what}. With one constant over all inputs the bound orders the networks of a population as that constant "
        "does. Capped is a reading of ours that the paper does not print: no cell counts for more than the largest "
        "loss. In percent, the information on the order of gaps that is left given any two hyperparameters, and what "
        "chance reaches.",
        tuple(rows),
    )


def _cell(figures: Figures, name: str, ending: str) -> str:
    if f"{name}{ending}.low" not in figures:
        return "not measured"
    tau = _spread(read(figures, name + ending))
    if ending:
        return tau
    information = _percents(read(figures, f"{name}.information"))
    return f"{tau}; {information}, by chance {100 * figures[f'{name}.chance']:.1f} %"


KINDS = tuple(job.kind for job in jobs(FULL))

PREDICTING = experiment_of(
    __name__,
    name="digest.predicting",
    title="Digest: the bound of Theorem 20 as a predictor of the gap",
    about="Populations of linear layers and of convolutions that differ in depth, width, normalizer and batch size, "
    "with six seeds each, trained by SGD on 300 samples, of which a tenth has a wrong label, to the same training loss "
    f"of 0.05 (as `normscope lab predict` does). {JPEG} Kendall's tau of every measure with the gap along single axes, "
    "and the conditional independence test of Jiang et al. (2020): the information of a measure on which of two "
    "networks has the larger gap, given any two hyperparameters of both, the least over such pairs. A larger bound "
    "should mean a larger gap.",
    claims=(
        Claim(
            id="digest.check3.bound",
            where="Next checks 3",
            text="The bound of Theorem 20 predicts which network has the larger generalization gap.",
            quotation="Implement the local Lipschitz generalization bound from Theorem 20 and evaluate its predictive "
            "power on held-out test data.",
            judge=lambda figures: _judge(figures, KINDS, ""),
        ),
        Claim(
            id="digest.check3.global",
            where="Next checks 3",
            text="The local bound of Theorem 20 predicts the gap better than the global Lipschitz constant.",
            quotation="Compare against traditional global Lipschitz bounds to quantify the practical benefit of the "
            "local approach.",
            judge=lambda figures: _judge(figures, KINDS, ".over"),
        ),
    ),
    stored=True,
    task="digits; MNIST; CIFAR-10",
)
"""The experiment."""
