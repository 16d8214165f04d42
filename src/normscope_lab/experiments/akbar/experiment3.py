"""Akbar, section 7.2 and experiment 3: margins, noise and test errors of networks 50-20-1 (figure 8.2)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope import flatness, margins
from normscope.report import Block, Chart, Column, Curve, Curves, Series, Table

from ..base import Claim, Figures, Job, Judgement, Measured, Settings, experiment_of
from ..ensembles import Ensemble, Normalizer, chain
from ..judging import by_count, judged, near, read, readings, spread, with_seeds
from .shared import KINDS, logistic

QUICK: Settings = {
    "seeds": 3,
    "measured": 1,
    "steps": 300,
    "rate": 0.1,
    "samples": 300,
    "tests": 2000,
    "draws": 4,
    "batches": (60, 300),
}
FULL: Settings = {**QUICK, "seeds": 20, "measured": 8, "steps": 1200, "draws": 10}
INPUTS, WIDTHS = 50, (50, 20, 1)
LEVELS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""The levels of noise: standard deviations, and sizes relative to each group of weights."""
KEPT = 0.9
"""Networks are compared by the level of noise at which their accuracy falls below this."""
LOSS = 0.1
"""Both kinds of network are compared at this training loss."""
SIZES = ("small", "whole")
"""The names of the batch sizes: small batches, and the whole data."""
MOMENTS = ("zero error", "equal loss", "the end")
"""The moments of a run at which it is measured: first without training error, first below `LOSS`, after all steps."""
Seeds = Mapping[str, Mapping[str, float]]
"""The figures of each seed that reached a moment of its training."""


class TwoOutputs(nn.Module):
    """A network with one logit f, as a classifier with the logits -f/2 and f/2, whose margin is f y."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Return two logits per sample."""
        logit = self.network(x) / 2.0
        return torch.cat((-logit, logit), dim=1)


def jobs(settings: Settings) -> Sequence[Job]:
    """Return one job for each kind of network and size of batches."""
    return tuple(_job(kind, size) for size in settings["batches"] for kind in KINDS)


def _job(kind: str, size: int) -> Job:
    return Job(f"{kind}, batches of {size}")


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train all seeds side by side, and measure each at three moments."""
    kind: Normalizer = "batch" if job.kind.startswith("batch,") else "none"
    size = int(job.kind.rsplit(" ", 1)[1])
    networks = Ensemble.drawn(chain(WIDTHS, kind), range(settings["seeds"]))
    x, y = _task(settings, settings["samples"], 0)
    fresh, labels = _task(settings, settings["tests"], 1)
    order = torch.Generator().manual_seed(5)
    reached: dict[str, dict[int, dict[str, float]]] = {moment: {} for moment in MOMENTS}
    for step in range(settings["steps"] + 1):
        last = step == settings["steps"]
        if step % 10 == 0 or last:
            state = _state(networks, x, y, fresh, labels)
            for seed in range(len(networks)):
                one = {name: values[seed] for name, values in state.items()} | {"step": float(step)}
                if one["error"] == 0.0:
                    reached["zero error"].setdefault(seed, one)
                if one["loss"] < LOSS:
                    reached["equal loss"].setdefault(seed, one)
                if last:
                    reached["the end"][seed] = one
        rows = torch.randperm(settings["samples"], generator=order)[:size]
        _, gradients = networks.gradients(logistic, x[:, rows], y[:, rows])
        networks.step(gradients, settings["rate"])
    networks.calibrate(x)
    return {
        "moments": {moment: {str(seed): one for seed, one in by_seed.items()} for moment, by_seed in reached.items()},
        "noise": _noise(settings, networks, x, y),
        "details": [_details(settings, networks, seed, x, y) for seed in range(settings["measured"])],
    }


def _task(settings: Settings, samples: int, part: int) -> tuple[Tensor, Tensor]:
    """Return inputs of all seeds, and the sign of a product of two of their coordinates, which no line separates."""
    made = []
    for seed in range(settings["seeds"]):
        generator = torch.Generator().manual_seed(20_000 + 2 * seed + part)
        x = torch.randn(samples, INPUTS, generator=generator, dtype=torch.float64)
        x[:, :2] *= 3.0
        made.append((x, (x[:, 0] * x[:, 1]).sign()))
    return torch.stack([x for x, _ in made]), torch.stack([y for _, y in made])


def _state(networks: Ensemble, x: Tensor, y: Tensor, fresh: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """Return figures of every network as it would be used: in eval mode, with the statistics of all its data."""
    networks.calibrate(x)
    networks.template.eval()
    with torch.no_grad():
        margin, tested = networks(x)[..., 0] * y, networks(fresh)[..., 0] * labels
    networks.template.train()
    return {
        "loss": F.softplus(-margin).mean(1).tolist(),
        "error": (margin <= 0).double().mean(1).tolist(),
        "margin": margin.mean(1).tolist(),
        "narrow": (margin.std(1) / margin.mean(1)).tolist(),
        "accuracy": (tested > 0).double().mean(1).tolist(),
    }


def _noise(settings: Settings, networks: Ensemble, x: Tensor, y: Tensor) -> list[list[float]]:
    """Return the accuracy on the data under noise of one standard deviation for all weights, by level and seed."""
    networks.template.eval()
    generator = torch.Generator().manual_seed(7)
    entries = []
    for level in LEVELS:
        scores = []
        for _ in range(settings["draws"]):
            moved = {
                name: value + level * torch.randn(value.shape, generator=generator, dtype=value.dtype)
                for name, value in networks.parameters.items()
            }
            with torch.no_grad():
                scores.append((networks.outputs(moved, x)[..., 0] * y > 0).double().mean(1))
        entries.append(torch.stack(scores).mean(0).tolist())
    networks.template.train()
    return entries


def _details(settings: Settings, networks: Ensemble, seed: int, x: Tensor, y: Tensor) -> dict[str, object]:
    """Return margins over the Lipschitz constant, and accuracy under noise scaled by group, of one network."""
    network = TwoOutputs(networks.member(seed)).eval()
    classes = (y[seed] > 0).long()
    measured_margins = margins(network, (x[seed], classes))
    flat = flatness(
        network,
        (x[seed], classes),
        loss="cross_entropy",
        levels=LEVELS,
        draws=settings["draws"],
        sharpness=False,
        mode="eval",
    )
    over = measured_margins.normalised("global") if "global" in measured_margins.log10_constants else ()
    return {
        "margins": sorted(measured_margins.margin)[:: max(1, len(measured_margins) // 40)],
        "over constant": sum(over) / len(over) if over else math.nan,
        "scaled noise": [one.accuracy.value if one.accuracy else math.nan for one in flat.noise],
    }


def _level(scores: Sequence[float]) -> float:
    """Return the level of noise at which the accuracy falls below `KEPT`, interpolated."""
    points = [(0.0, 1.0), *zip(LEVELS, scores)]
    for (low, above), (high, below) in itertools.pairwise(points):
        if below < KEPT:
            return low + (high - low) * (above - KEPT) / max(above - below, 1e-12)
    return LEVELS[-1]


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return both kinds of network and their comparison, seed by seed, for each size of batches."""
    summary: dict[str, float] = {}
    for label, size in zip(SIZES, settings["batches"]):
        pair = (measured[_job("batch", size)], measured[_job("none", size)])
        summary |= {f"{label}.{name}": value for name, value in _compared(settings, *pair).items()}
    return summary


def _compared(settings: Settings, batch: Measured, none: Measured) -> dict[str, float]:
    """Return both kinds of network at each moment, and what noise and the Lipschitz constant say of them at the end."""
    summary: dict[str, float] = {}
    for moment in MOMENTS:
        summary |= _at_moment(settings, moment, batch["moments"][moment], none["moments"][moment])
    summary |= _ratios("ratio.noise", *([_level(scores) for scores in zip(*run["noise"])] for run in (batch, none)))
    details = [run["details"] for run in (batch, none)]
    scaled = [[_level(one["scaled noise"]) for one in networks] for networks in details]
    summary |= _ratios("ratio.noise scaled by group", *scaled)
    over = [[one["over constant"] for one in networks] for networks in details]
    return summary | _ratios("ratio.margin over the constant", *over)


def _at_moment(settings: Settings, moment: str, batch: Seeds, none: Seeds) -> dict[str, float]:
    """Return the margins and accuracies of both kinds of network at one moment, and their comparison."""
    summary: dict[str, float] = {}
    for kind, runs in (("batch", batch), ("none", none)):
        summary[f"{kind}.{moment}.reached"] = len(runs) / settings["seeds"]
        for name in ("margin", "accuracy"):
            summary |= spread(f"{kind}.{moment}.{name}", [one[name] for one in runs.values()])
    both = [(batch[seed], none[seed]) for seed in batch if seed in none]
    both = [({**b, "width": b["narrow"] * b["margin"]}, {**n, "width": n["narrow"] * n["margin"]}) for b, n in both]
    for name in ("margin", "width", "narrow"):
        summary |= _ratios(f"ratio.{moment}.{name}", [b[name] for b, _ in both], [n[name] for _, n in both])
    return summary | spread(f"gain.{moment}.accuracy", [b["accuracy"] - n["accuracy"] for b, n in both])


def _ratios(name: str, batch: Iterable[float], none: Iterable[float]) -> dict[str, float]:
    """Return the spread over seeds of a figure with BatchNorm over the same figure without it."""
    return spread(name, [b / n for b, n in zip(batch, none)])


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return figure 8.2: margins of one seed, accuracy under noise; and a table of the three moments."""
    rows = []
    for size in settings["batches"]:
        for kind, label in KINDS.items():
            for moment in MOMENTS:
                runs = measured[_job(kind, size)]["moments"][moment].values()
                medians = [
                    spread("x", [one[name] for one in runs])["x.median"] for name in ("step", "margin", "accuracy")
                ]
                rows.append((label, size, moment, len(runs) / settings["seeds"], *medians))
    columns = (
        Column(title="network", kind="name"),
        Column(title="batches", kind="count"),
        Column(title="moment", kind="name"),
        Column(title="seeds that reach it", kind="percent"),
        *(Column(title=title, kind="number") for title in ("step", "mean margin")),
        Column(title="test accuracy", kind="percent"),
    )
    small = settings["batches"][0]
    shares = measured[_job("batch", small)]["details"][0]["margins"]
    quantiles = Chart(
        title="Figure 8.2 (left): margins on the training data",
        labels=tuple(f"{100 * index / (len(shares) - 1):.0f} %" for index in range(len(shares))),
        series=tuple(
            Series(name=label, style="line", values=tuple(measured[_job(kind, small)]["details"][0]["margins"]))
            for kind, label in KINDS.items()
        ),
        axis="margin",
        caption=f"Quantiles of one seed at the end of training with batches of {small}.",
    )
    curves = tuple(
        Curve(
            name=f"{label}, batches of {size}",
            points=tuple(
                (level, spread("x", row)["x.median"]) for level, row in zip(LEVELS, measured[_job(kind, size)]["noise"])
            ),
        )
        for size in settings["batches"]
        for kind, label in KINDS.items()
    )
    noise = Curves(
        title="Figure 8.2 (right): accuracy under noise",
        curves=curves,
        axis="accuracy on the training data",
        along="standard deviation of the noise",
        caption="Medians over seeds; raw noise, which rescaling weights in front of a normalizer changes.",
    )
    return (quantiles, noise, Table(title="Three moments", columns=columns, rows=tuple(rows)))


def _larger_margin(figures: Figures) -> Judgement:
    names = {moment: f"ratio.{moment}.margin" for moment in MOMENTS}
    names["over the Lipschitz constant"] = "ratio.margin over the constant"
    medians = [[read(figures, f"{size}.{name}") for size in SIZES] for name in names.values()]
    listed = "; ".join(
        f"{size} batches, {moment}: {one.median:.3g} ({one.low:.3g} to {one.high:.3g})"
        for moment, same in zip(names, medians)
        for size, one in zip(SIZES, same)
    )
    return readings(medians, above=1.0, evidence=f"The mean margin with BatchNorm over that without: {listed}.")


def _published_margins(figures: Figures) -> Judgement:
    ours, theirs = (figures[f"small.{kind}.zero error.margin.median"] for kind in KINDS)
    whole = [figures[f"whole.{kind}.zero error.margin.median"] for kind in KINDS]
    ratio = read(figures, "small.ratio.zero error.margin")
    judgement = judged(
        near(math.log10(ours), math.log10(1.8)) and near(math.log10(theirs), math.log10(1.2)),
        f"When no training sample is wrong any more, the median margin is {ours:.3g} with BatchNorm and {theirs:.3g} "
        f"without, in small batches; {whole[0]:.3g} and {whole[1]:.3g} with the whole data. The paper has 1.8 and 1.2.",
        corrected=ratio.low > 1.0,
    )
    return with_seeds(ratio.seeds, judgement)


def _narrower(figures: Figures) -> Judgement:
    readings_by_word, listed = [], []
    for name, words in (("width", "Deviation of the margins"), ("narrow", "The same over their mean")):
        medians = {moment: [read(figures, f"{size}.ratio.{moment}.{name}") for size in SIZES] for moment in MOMENTS}
        readings_by_word += [[one.negated() for one in same] for same in medians.values()]
        ratios = "; ".join(f"{moment} {one.median:.3g} and {two.median:.3g}" for moment, (one, two) in medians.items())
        listed.append(f"{words}, with over without, in small batches and with the whole data: {ratios}.")
    return readings(readings_by_word, above=-1.0, evidence=" ".join(listed))


def _flatter(figures: Figures) -> Judgement:
    raw, scaled = (
        [read(figures, f"{size}.ratio.{name}") for size in SIZES] for name in ("noise", "noise scaled by group")
    )
    return readings(
        [raw, scaled],
        above=1.0,
        evidence=f"The noise at which accuracy falls below {KEPT:g} is with BatchNorm {raw[0]} times that without "
        f"in small batches and {raw[1]} times with the whole data; scaled to each group of weights, {scaled[0]} and "
        f"{scaled[1]} times.",
    )


def _better(figures: Figures) -> Judgement:
    equal, last = ([read(figures, f"{size}.gain.{moment}.accuracy") for size in SIZES] for moment in MOMENTS[1:])
    return readings(
        [equal, last],
        above=0.0,
        evidence=f"Test accuracy gained by BatchNorm: {equal[0]} at equal training loss and {last[0].median:.3g} at "
        f"the end with small batches, {equal[1].median:.3g} and {last[1].median:.3g} with the whole data.",
    )


def _equal(figures: Figures) -> Judgement:
    gains = [read(figures, f"{size}.gain.equal loss.accuracy") for size in SIZES]
    judgement = by_count(
        sum(max(abs(gain.low), abs(gain.high)) < 0.02 for gain in gains),
        len(gains),
        f"At a training loss of {LOSS:g} BatchNorm gains {gains[0]} in test accuracy with small batches and "
        f"{gains[1].median:.3g} with the whole data; 0.02 counts as similar.",
    )
    return with_seeds(min(gain.seeds for gain in gains), judgement)


MARGINS = experiment_of(
    __name__,
    name="akbar.experiment3",
    title="Experiment 3: margins and noise",
    about="Networks 50-20-1 learn the sign of a product of two coordinates by gradient descent, in small batches "
    "and over all samples, with and without BatchNorm. The paper names no task and no end of training, on which "
    "margins depend: three moments are "
    "compared. Networks are looked at in eval mode, with statistics of all their data.",
    stored=True,
    task="the sign of a product of two coordinates",
    claims=(
        Claim(
            id="akbar.experiment3.margins",
            where="Experiment 3",
            text="The mean margin is 1.8 with BatchNorm and 1.2 without.",
            quotation="The average margin on training points is 1.8 for the BN model vs 1.2 for the non-BN model.",
            judge=_published_margins,
        ),
        Claim(
            id="akbar.experiment3.larger",
            where="Experiment 3, section 7.2",
            text="BatchNorm increases margins.",
            quotation="shows the BN model has consistently higher margins",
            judge=_larger_margin,
        ),
        Claim(
            id="akbar.experiment3.narrower",
            where="Experiment 3, Figure 8.2 (left)",
            text="The distribution of margins is narrower with BatchNorm.",
            quotation="the histogram is shifted right and narrower, indicating more uniform confidence",
            judge=_narrower,
        ),
        Claim(
            id="akbar.experiment3.noise",
            where="Experiment 3, Figure 8.2 (right)",
            text="With BatchNorm accuracy survives more noise in the weights.",
            quotation="the BN model retains training accuracy for a broader range of noise levels than the non-BN "
            "model",
            judge=_flatter,
        ),
        Claim(
            id="akbar.7.2.better",
            where="Section 7.2",
            text="BatchNorm improves test accuracy at the same training loss.",
            quotation="Empirically, BN almost always improves test accuracy if training to same low training loss",
            judge=_better,
        ),
        Claim(
            id="akbar.7.2.equal",
            where="Section 7.2, after Bjorck et al.",
            text="At the same training loss networks with and without BatchNorm have similar test errors.",
            quotation="they found if you train extremely carefully without BN to the same training loss, the final "
            "test performance was similar",
            judge=_equal,
        ),
    ),
)
