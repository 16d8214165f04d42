"""The digest's third check: local Lipschitz constants (POINT, DATA) against the global one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch

from normscope import lipschitz
from normscope.data import digits
from normscope.networks import mlp, train
from normscope.report import Block, Column, Table

from ...statistics import kendall, resampled
from ..base import Claim, Experiment, Figures, Job, Judgement, Measured, Settings, Verdict
from ..judging import FEWEST
from .short_training import scores

SCOPES = ("point", "data", "global")
RANGES = "domain"
"""A constant over all inputs whose inner values stay in the ranges of the training images: the stored results have it,
and Normscope no longer does."""
SLACK = 1e-6
"""Figures of one model may differ by this many decades through rounding."""
NOTABLY = 0.1
"""A constant is notably smaller if it is smaller by this many decades, which is about a fifth."""
FEW = f"Fewer than {FEWEST} models decide nothing: the full version has more."


def jobs(settings: Settings) -> list[Job]:
    """Return one job per model of the population."""
    axes = (settings["normalizers"], settings["widths"], settings["samples"], settings["epochs"])
    kinds = [f"{kind} {width} {samples} {epochs}" for kind, width, samples, epochs in itertools.product(*axes)]
    return [Job(kind, seed) for kind in kinds for seed in range(settings["seeds"])]


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train one model and return its gaps and its constants, as log10."""
    kind, *numbers = job.kind.split()
    width, samples, epochs = map(int, numbers)
    generator = torch.Generator().manual_seed(job.seed)
    split = digits(generator=generator)
    images, labels = split.train_images[:samples], split.train_labels[:samples]
    model = mlp(generator=generator, normalizer=kind, width=width, depth=settings["depth"])  # type: ignore[arg-type]
    train(model, images, labels, generator=generator, epochs=epochs, batch_size=50)
    train_loss, train_right = scores(model, images, labels)
    test_loss, test_right = scores(model, split.test_images, split.test_labels)
    at = split.test_images[: settings["points"]]
    return {
        "error_gap": train_right - test_right,
        "loss_gap": test_loss - train_loss,
        "test_accuracy": test_right,
        "point": lipschitz(model, images[: settings["points"]], scope="point").log10_upper,
        "data": lipschitz(model, [at], scope="data", share=0.95, confidence=0.95, samples=len(at)).log10_upper,
        "global": lipschitz(model, at).log10_upper,
    }


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return how far the scopes lie apart, and the rank correlation of each with the gap."""
    ones = list(measured.values())
    ordered = [one["point"] <= one["global"] + SLACK for one in ones]
    summary = {
        "models": float(len(ones)),
        "ordered": float(sum(ordered)),
        "decades_point": median(one["global"] - one["point"] for one in ones),
    }
    if all(RANGES in one for one in ones):
        summary["decades_ranges"] = median(one["global"] - one[RANGES] for one in ones)
    gaps = np.array([one["loss_gap"] for one in ones])
    columns = {scope: np.array([one[scope] for one in ones]) for scope in SCOPES}
    for scope, values in columns.items():
        summary[f"tau_{scope}"] = kendall(values, gaps)

    def better(rows: np.ndarray) -> float:
        return kendall(columns["data"][rows], gaps[rows]) - kendall(columns["global"][rows], gaps[rows])

    summary["tau_more"] = summary["tau_data"] - summary["tau_global"]
    summary["tau_more_low"], summary["tau_more_high"] = resampled(better, len(ones), times=300)
    return summary


def _tighter(f: Figures) -> Judgement:
    count, every = f["ordered"], f["models"]
    evidence = (
        f"In {count:g} of {every:g} models the largest at the training points is at most GLOBAL, in the median one "
        f"{f['decades_point']:.1f} decades below."
    )
    if count < every:
        return Judgement(Verdict.FAILS, evidence)
    if every < FEWEST:
        return Judgement(Verdict.NOT_TESTABLE, f"{evidence} {FEW}")
    if "decades_ranges" not in f:
        return Judgement(
            Verdict.NOT_TESTABLE, f"{evidence} A constant over a region where the data lie is not measured."
        )
    evidence += (
        f" The constant over the ranges of inner values at the training images, which Normscope no longer has, was "
        f"{f['decades_ranges']:.1f} decades below."
    )
    if f["decades_ranges"] >= NOTABLY:
        return Judgement(Verdict.HOLDS, evidence)
    if f["decades_point"] >= NOTABLY:
        return Judgement(
            Verdict.CORRECTED, f"{evidence} In that model it is notably smaller only at the points themselves."
        )
    return Judgement(Verdict.FAILS, evidence)


def _predicts(f: Figures) -> Judgement:
    taus = ", ".join(f"{scope.upper()} {f[f'tau_{scope}']:+.2f}" for scope in SCOPES)
    evidence = (
        f"Kendall's tau with the gap in cross entropy over {f['models']:g} models: {taus}; DATA less GLOBAL "
        f"{f['tau_more']:+.2f} (95 % interval {f['tau_more_low']:+.2f} to {f['tau_more_high']:+.2f})."
    )
    if f["models"] < FEWEST:
        return Judgement(Verdict.NOT_TESTABLE, f"{evidence} {FEW}")
    if f["tau_more_low"] > 0:
        return Judgement(Verdict.HOLDS, evidence)
    if f["tau_more_high"] < 0:
        return Judgement(Verdict.FAILS, evidence)
    return Judgement(Verdict.NOT_TESTABLE, f"{evidence} The interval contains zero: more models are needed to tell.")


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return a table of medians by kind of model."""
    names = ("error_gap", "loss_gap", *SCOPES)
    groups: dict[str, list[Measured]] = {}
    for job, one in measured.items():
        groups.setdefault(job.kind, []).append(one)
    columns = (
        Column(title="normalizer", kind="name"),
        Column(title="width", kind="count"),
        Column(title="samples", kind="count"),
        Column(title="epochs", kind="count"),
        Column(title="gap in error", kind="percent"),
        Column(title="gap in loss", kind="number"),
        *(Column(title=scope.upper(), kind="log10") for scope in SCOPES),
    )
    rows = []
    for kind, ones in groups.items():
        name, *numbers = kind.split()
        rows.append((name, *map(int, numbers), *(median(one[column] for one in ones) for column in names)))
    return [Table(columns=columns, rows=tuple(rows), caption="Medians over the seeds; constants are log10.")]


EXPERIMENT = Experiment(
    name="digest.local",
    title="Digest: local Lipschitz constants against global ones",
    about="A population of small networks on digits (normalizer, width, number of training samples, epochs, seeds): "
    "POINT is the largest Jacobian norm at training images, DATA the norm that 95 % of fresh images stay below, GLOBAL "
    "the bound over all inputs. The bound of Theorem 20 itself is what `normscope generalization` computes.",
    quick={
        "normalizers": ("none", "batch", "layer"), "widths": (16,), "samples": (200,), "epochs": (20,), "depth": 4,
        "points": 64, "seeds": 1,
    },
    full={
        "normalizers": ("none", "batch", "layer"), "widths": (16, 64), "samples": (200, 800),
        "epochs": (20, 80), "depth": 4, "points": 64, "seeds": 3,
    },
    jobs=jobs,
    measure=measure,
    figures=figures,
    claims=(
        Claim(
            id="digest.local.tighter",
            where="Next checks 3",
            text="Local Lipschitz constants are smaller than the global one, so that a bound made of them is tighter.",
            quotation="Compare against traditional global Lipschitz bounds to quantify the practical benefit of the "
            "local approach.",
            corrected="A constant over the region where the data lie is barely below the global one; only the "
            "constants at the points themselves are notably smaller.",
            judge=_tighter,
        ),
        Claim(
            id="digest.local.prediction",
            where="Next checks 3",
            text="Local Lipschitz constants tell the generalization gap of a model better than the global one.",
            quotation="Implement the local Lipschitz generalization bound from Theorem 20 and evaluate its predictive "
            "power on held-out test data.",
            judge=_predicts,
        ),
    ),
    draw=draw,
    stored=True,
    task="digits",
)  # fmt: skip
