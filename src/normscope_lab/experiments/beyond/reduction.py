"""A reduction factor that no rescaling moves: bounds of trained twins with and without normalizers, at equal loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from normscope import lipschitz
from normscope.networks import mlp
from normscope.report import Block, Column, Curve, Curves, Table

from ..base import Claim, Figures, Job, Judgement, Measured, Settings, Verdict, experiment_of
from ..judging import SeedSpread, read, readings, spread
from .digits import ONE_RATE, log10_factors, trained_to_loss

QUICK: Settings = {"seeds": 1, "width": 16, "depths": (2, 3), "loss": 1.0, "steps": 200}
FULL: Settings = {**QUICK, "seeds": 8, "width": 32, "depths": (3, 5, 9), "loss": 0.1, "steps": 2000}
NORMALIZERS = {"batch": "BatchNorm", "layer": "LayerNorm", "group": "GroupNorm", "rms": "RMSNorm"}
BOUNDS = {
    "global": "bound over all inputs (GLOBAL)",
    "point": "largest Jacobian at test images (POINT)",
}
TESTED = 64
"""The number of test images at which Jacobians are taken."""


def jobs(settings: Settings) -> Sequence[Job]:
    """Return one job per normalizer and none, by depth and seed."""
    kinds = [f"{kind} {depth}" for depth in settings["depths"] for kind in ("none", *NORMALIZERS)]
    return tuple(Job(kind, seed) for kind in kinds for seed in range(settings["seeds"]))


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train one network to the loss, and bound it: over all inputs, at test images."""
    kind, depth = job.kind.split()
    generator = torch.Generator().manual_seed(120_000 + job.seed)  # twins begin from the same weights
    network = mlp(generator=generator, normalizer=kind, width=settings["width"], depth=int(depth))  # type: ignore[arg-type]
    made, loss = trained_to_loss(network, job.seed, loss=settings["loss"], steps=settings["steps"])
    images = made.split.train_images
    norms = [layer for layer in made.network.modules() if isinstance(layer, nn.BatchNorm1d)]
    variances = [layer.running_var.double().log10().mean() for layer in norms if layer.running_var is not None]
    return {
        "loss": loss,
        "gap": made.gap,
        "tested": made.tested,
        "global": lipschitz(made.network, images[:8], sides="upper").log10_upper,
        "point": lipschitz(made.network, made.split.test_images[:TESTED], scope="point").log10_upper,
        "printed": log10_factors(made.network)[1],
        "variance": float(sum(variances)) / len(variances) if variances else math.nan,
    }


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return by how many decades each normalizer changes each bound, by depth, and for each further normalizer."""
    depths, seeds = settings["depths"], range(settings["seeds"])
    first, last = depths[0], depths[-1]
    summary: dict[str, float] = {}

    def changes(kind: str, depth: int, name: str) -> dict[int, float]:
        """Return the change by seed, of those twins that both came to the loss."""
        pairs = {seed: [measured[Job(f"{one} {depth}", seed)] for one in (kind, "none")] for seed in seeds}
        equal = {seed: pair for seed, pair in pairs.items() if max(one["loss"] for one in pair) <= settings["loss"]}
        return {seed: twin[name] - plain[name] for seed, (twin, plain) in equal.items()}

    for kind in NORMALIZERS:
        for name in (*BOUNDS, "gap", "tested"):
            by_depth = {depth: changes(kind, depth, name) for depth in depths}
            for depth, values in by_depth.items():
                summary |= spread(f"{kind}.{depth}.{name}", list(values.values()))
            start, end = by_depth[first], by_depth[last]
            slopes = [(end[seed] - start[seed]) / (last - first) for seed in start if seed in end]
            summary |= spread(f"{kind}.each.{name}", slopes)
            summary |= spread(f"{kind}.deepest.{name}", list(end.values()))
    for name in ("printed", "variance"):
        summary |= spread(f"batch.{name}", [measured[Job(f"batch {last}", seed)][name] for seed in seeds])
    return summary


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return the changes by depth as pictures, with the ends of their intervals, and as one table."""
    summary = figures(settings, measured)
    pictures, depths = [], settings["depths"]
    for name, title in BOUNDS.items():
        curves = tuple(
            Curve(
                name=f"{words}{ending}",
                points=tuple((depth - 1.0, summary[f"{kind}.{depth}.{name}.{key}"]) for depth in depths),
            )
            for kind, words in NORMALIZERS.items()
            for key, ending in (("median", ""), ("low", ", low end"), ("high", ", high end"))
        )
        pictures.append(
            Curves(
                title=f"Change of the {title}",
                curves=curves,
                axis="decades, twin with normalizers less twin without",
                along="normalizers in the network",
                rules=(("no change", 0.0),),
                caption=f"Medians of {settings['seeds']} pairs of twins at a training loss of {settings['loss']:g}, "
                "with the ends of their 95 % intervals.",
            )
        )
    keys = (*BOUNDS, "gap", "tested")
    titles = ("GLOBAL, decades", "POINT, decades", "gap", "test accuracy")
    columns = (
        Column(title="normalizer", kind="name"),
        Column(title="how many", kind="count"),
        *(Column(title=f"change of {title}", kind="name") for title in titles),
    )
    rows = tuple(
        (words, depth - 1, *(_interval(read(summary, f"{kind}.{depth}.{key}")) for key in keys))
        for kind, words in NORMALIZERS.items()
        for depth in depths
    )
    caption = f"Medians over {settings['seeds']} pairs of twins with 95 % intervals."
    return (
        *pictures,
        Table(title="What normalizers change, at equal loss", columns=columns, rows=rows, caption=caption),
    )


def _interval(one: SeedSpread) -> str:
    return f"{one.median:+.3g} ({one.low:+.3g} to {one.high:+.3g})"


def _listed(figures: Figures, key: str, name: str, kinds: Sequence[str] = tuple(NORMALIZERS)) -> str:
    return ", ".join(f"{NORMALIZERS[kind]} {_interval(read(figures, f'{kind}.{key}.{name}'))}" for kind in kinds)


def _measured(figures: Figures) -> Judgement:
    changes = "; ".join(f"{title}: {_listed(figures, 'deepest', name)}" for name, title in BOUNDS.items())
    return Judgement(
        Verdict.MEASURED,
        f"Decades by which normalizers change the deepest network, medians with intervals. {changes}. The printed "
        f"factor of its BatchNorms is {_interval(read(figures, 'batch.printed'))} decades. {ONE_RATE}",
    )


def _exponential(figures: Figures) -> Judgement:
    kinds = ("batch", "layer", "group")  # those that the paper is about
    spreads = [[read(figures, f"{kind}.each.{name}") for kind in kinds] for name in BOUNDS]
    turned = [[one.negated() for one in same] for same in spreads]
    changes = "; ".join(f"{title}: {_listed(figures, 'each', name, kinds)}" for name, title in BOUNDS.items())
    variance = read(figures, "batch.variance")
    return readings(
        turned,
        above=0.0,
        evidence=f"Decades by which each further normalizer changes the twin, at equal training loss. {changes}. The "
        f"mean log10 variance in front of the BatchNorms is {_interval(variance)}: the paper's remark is about large "
        f"ones. {ONE_RATE}",
    )


REDUCTION = experiment_of(
    __name__,
    name="beyond.reduction",
    title="A reduction factor that no rescaling moves",
    about="Than's printed factor can be made anything by rescaling weights in front of normalizers. What no rescaling "
    "moves is the change of a bound of the whole network, and of the Jacobian at the data, between twins: networks of "
    "one depth that begin from the same weights, with normalizers and without, trained by Adam on 400 digits until the "
    "loss over all of them, in eval mode, is at most 0.1. A bound over the ranges of inner values at the training "
    "images was measured too, and is no longer part of Normscope: on the deepest twins it grew by 0.8 decades with "
    "BatchNorm, 2.57 with LayerNorm, 7.41 with GroupNorm and 2.89 with RMSNorm.",
    stored=True,
    task="digits",
    claims=(
        Claim(
            id="than.6.reduction",
            where="Section 6, conclusion",
            text="Each further normalizer reduces the Lipschitz constant by a factor, at equal training loss.",
            quotation="normalization operations introduce an explicit and exponential reduction in the network's "
            "Lipschitz constant",
            corrected="The printed factor bounds nothing by itself; how far a normalizer changes the bound of a "
            "trained network depends on the normalizer, and has to be measured.",
            judge=_exponential,
        ),
        Claim(
            id="beyond.reduction",
            where="trained twins",
            text="How much normalizers change bounds of the network, and its Jacobian at the data, at equal loss.",
            judge=_measured,
        ),
    ),
)
