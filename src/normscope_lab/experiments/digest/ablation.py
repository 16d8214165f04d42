"""The digest's second experiment and second check: the gap against the number of normalizers."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from normscope.data import digits
from normscope.networks import draw_weights, train
from normscope.report import Block, Column, Curve, Curves, Table

from ...statistics import line, mean_interval
from ..base import Claim, Experiment, Figures, Job, Judgement, Measured, Settings, Verdict
from ..judging import FEWEST, TOO_FEW, of_readings
from .short_training import scores

GAPS = {"error": "the error", "loss": "the cross entropy"}
"""The two readings of the gap."""
OPEN = " An interval contains zero: more seeds are needed to tell."


def network(depth: int, width: int, count: int, generator: torch.Generator) -> nn.Module:
    """Return a ReLU network with BatchNorm behind `count` of its hidden layers, evenly spaced."""
    hidden = depth - 1
    normalized = {math.ceil((k + 1) * hidden / count) for k in range(count)}
    with torch.device("meta"):
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for index in range(1, depth):
            layers[f"linear{index}"] = nn.Linear(width if index > 1 else 64, width)
            if index in normalized:
                layers[f"norm{index}"] = nn.BatchNorm1d(width)
            layers[f"relu{index}"] = nn.ReLU()
        layers[f"linear{depth}"] = nn.Linear(width, 10)
        built = nn.Sequential(layers)
    return draw_weights(built, generator=generator)


def jobs(settings: Settings) -> list[Job]:
    """Return every number of normalizers with every seed."""
    return [Job(str(count), seed) for count in settings["counts"] for seed in range(settings["seeds"])]


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train one network on few samples and return both gaps."""
    generator = torch.Generator().manual_seed(job.seed)
    split = digits(generator=generator)
    images, labels = split.train_images[: settings["samples"]], split.train_labels[: settings["samples"]]
    model = network(settings["depth"], settings["width"], int(job.kind), generator)
    train(
        model, images, labels, generator=generator, epochs=settings["epochs"], batch_size=settings["batch_size"],
        learning_rate=settings["learning_rate"],
    )  # fmt: skip
    train_loss, train_right = scores(model, images, labels)
    test_loss, test_right = scores(model, split.test_images, split.test_labels)
    return {
        "train_loss": train_loss,
        "test_loss": test_loss,
        "train_accuracy": train_right,
        "test_accuracy": test_right,
        "loss": test_loss - train_loss,
        "error": train_right - test_right,
    }


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return, for each gap, the mean over seeds of its slope against the number of normalizers, with its interval."""
    summary: dict[str, float] = {"seeds": float(settings["seeds"])}
    for gap in GAPS:
        slopes = []
        for seed in range(settings["seeds"]):
            points = [(float(job.kind), one[gap]) for job, one in measured.items() if job.seed == seed]
            slopes.append(line([x for x, _ in points], [y for _, y in points])[0])
        summary[f"{gap}_slope"], summary[f"{gap}_half"] = mean_interval([one for one in slopes if not math.isnan(one)])
        for count in settings["counts"]:
            values = [one[gap] for job, one in measured.items() if job.kind == str(count)]
            summary[f"{gap}_{count}"], summary[f"{gap}_{count}_half"] = mean_interval(values)
    return summary


def _fewer(f: Figures) -> Judgement:
    """Judge whether both gaps fall with more normalizers, by the intervals of their slopes over seeds."""
    falls = {gap: f[f"{gap}_slope"] + f[f"{gap}_half"] < 0 for gap in GAPS}
    rises = {gap: f[f"{gap}_slope"] - f[f"{gap}_half"] > 0 for gap in GAPS}
    changes = "; ".join(
        f"the gap in {name} changes by {f[f'{gap}_slope']:+.2g} ± {f[f'{gap}_half']:.2g} per normalizer"
        for gap, name in GAPS.items()
    )
    evidence = f"{changes} ({f['seeds']:g} seeds, 95 % intervals)."
    evidence = evidence[0].upper() + evidence[1:]
    if f["seeds"] < FEWEST:
        return Judgement(Verdict.NOT_TESTABLE, f"{evidence} {TOO_FEW}")
    verdict = of_readings(
        [Verdict.HOLDS if falls[gap] else Verdict.FAILS if rises[gap] else Verdict.NOT_TESTABLE for gap in GAPS]
    )
    return Judgement(verdict, evidence + (OPEN if verdict is Verdict.NOT_TESTABLE else ""))


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return the gaps against the number of normalizers, with intervals."""
    summary = figures(settings, measured)
    columns = (
        Column(title="normalizers", kind="count"),
        *(Column(title=f"gap in {name}", kind="number") for name in GAPS.values()),
        *(Column(title=f"± ({name})", kind="number") for name in GAPS.values()),
        Column(title="training", kind="percent"),
        Column(title="test", kind="percent"),
    )
    rows = []
    for count in settings["counts"]:
        of = [one for job, one in measured.items() if job.kind == str(count)]
        rates = (mean_interval([one[f"{part}_accuracy"] for one in of])[0] for part in ("train", "test"))
        gaps = (summary[f"{gap}_{count}"] for gap in GAPS)
        rows.append((count, *gaps, *(_finite(summary[f"{gap}_{count}_half"]) for gap in GAPS), *rates))
    curves = tuple(
        Curve(name=f"gap in {name}", points=tuple((float(c), summary[f"{gap}_{c}"]) for c in settings["counts"]))
        for gap, name in GAPS.items()
    )
    return [
        Curves(curves=curves, title="Generalization gap by number of normalizers", axis="gap", along="normalizers"),
        Table(columns=columns, rows=tuple(rows), caption="Means over the seeds; ± is half of the 95 % interval."),
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


COMMON = {"depth": 8, "samples": 200, "batch_size": 50, "learning_rate": 2e-3}
EXPERIMENT = Experiment(
    name="digest.ablation",
    title="Digest: the generalization gap against the number of normalizers",
    about="A ReLU network of 8 layers is trained on 200 digits; depth and width stay, and BatchNorm stands behind "
    "0 to 7 of its hidden layers. The gap is what test samples lose against training samples, in error and in "
    "cross entropy.",
    quick={"counts": (0, 3, 7), "width": 32, "epochs": 20, "seeds": 3, **COMMON},
    full={"counts": (0, 1, 2, 4, 7), "width": 64, "epochs": 100, "seeds": 20, **COMMON},
    jobs=jobs,
    measure=measure,
    figures=figures,
    claims=(
        Claim(
            id="digest.ablation.gap",
            where="First experiment 2, next checks 2",
            text="At fixed depth and width, more normalization layers give a smaller generalization gap.",
            quotation="Measure the correlation between normalization density and generalization gap across multiple "
            "random seeds. This would empirically validate the capacity control hypothesis.",
            judge=_fewer,
        ),
    ),
    draw=draw,
    stored=True,
    task="digits",
)
