"""Akbar, sections 5 to 7 and experiment 2: losses, learning rates and Hessians of networks of three layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope import hessian
from normscope.report import Block, Column, Curve, Curves, Table

from ..base import Claim, Figures, Job, Judgement, Measured, Settings, Verdict, experiment_of
from ..ensembles import Ensemble, Normalizer, chain, norms
from ..judging import decided, judged, near, read, readings, spread, with_seeds
from .shared import KINDS, every, first, log10_points, regression, spectrum, zeros

QUICK: Settings = {"seeds": 3, "spectra": 2, "steps": 200, "rates": tuple(2.0**k for k in range(-9, 4)), "samples": 128}
FULL: Settings = {**QUICK, "seeds": 20, "spectra": 20, "steps": 500}
INPUTS, WIDTHS = 5, (5, 10, 10, 1)
CONVERGED = 0.1
"""A run counts as converged once its loss is below this share of the first loss."""
SHRUNK = 1.0 / 3.0
"""A factor on weights in front of normalizers, which changes nothing but the Hessian."""
BROKEN = 100.0
"""A loss above this is drawn as infinite; the first losses are about 2."""


def jobs(settings: Settings) -> Sequence[Job]:
    """Return one job for each kind of network: all its seeds and learning rates are trained side by side."""
    return tuple(map(Job, KINDS))


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train at every learning rate, and compute the Hessian at the end of training with the best rate."""
    kind: Normalizer = "batch" if job.kind == "batch" else "none"
    rates, seeds = list(settings["rates"]), list(range(settings["seeds"]))
    x, y = _task(settings)
    networks = Ensemble.drawn(chain(WIDTHS, kind), seeds * len(rates))
    steps = torch.tensor(rates, dtype=torch.float64).repeat_interleave(len(seeds))
    inputs, targets = x.repeat(len(rates), 1, 1), y.repeat(len(rates), 1, 1)
    losses, sizes = [], []
    for _ in range(settings["steps"] + 1):
        loss, gradients = networks.gradients(F.mse_loss, inputs, targets)
        losses.append(loss.nan_to_num(math.inf, math.inf))
        sizes.append(norms(gradients).nan_to_num(math.inf, math.inf))
        networks.step(gradients, steps)
    courses = torch.stack(losses).reshape(len(losses), len(rates), len(seeds))
    lengths = torch.stack(sizes).reshape(courses.shape)
    best = int(courses[-1].median(dim=1).values.argmin())
    below = courses < CONVERGED * courses[0]
    reached = first(below, settings["steps"] + 1)
    apart = every(settings["steps"])
    at_best = [best * len(seeds) + seed for seed in seeds[: settings["spectra"]]]
    return {
        "best": best,
        "first": courses[0, 0].tolist(),
        "last": courses[-1].tolist(),
        "reached": reached.tolist(),
        "spike": (lengths.amax(0) / lengths[0]).tolist(),
        "bumps": _bumps(courses).tolist(),
        "losses": courses[::apart].median(dim=2).values.T.tolist(),
        "gradients": lengths[::apart].median(dim=2).values.T.tolist(),
        "every": apart,
        "spectra": [_spectrum(networks.member(index), inputs[index], targets[index]) for index in at_best],
    }


def _task(settings: Settings) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of all seeds: a smooth function of five numbers, with a little noise."""
    made = []
    for seed in range(settings["seeds"]):
        generator = torch.Generator().manual_seed(10_000 + seed)
        x = torch.randn(settings["samples"], INPUTS, generator=generator, dtype=torch.float64)
        y = regression(x)
        made.append((x, y + 0.05 * torch.randn(y.shape, generator=generator, dtype=torch.float64)))
    return torch.stack([x for x, _ in made]), torch.stack([y for _, y in made])


def _bumps(courses: Tensor) -> Tensor:
    """Return the share of steps in which the loss rises."""
    return (courses[1:] > courses[:-1]).double().mean(0)


def _spectrum(network: nn.Module, x: Tensor, y: Tensor) -> dict[str, float | None]:
    """Return the largest eigenvalue, the condition number and the zeros of the Hessian, in two gauges."""
    curvature = spectrum(network, (x, y))
    with torch.no_grad():
        layers = list(network.children())
        for layer, behind in itertools.pairwise(layers):
            if isinstance(behind, nn.BatchNorm1d) and isinstance(layer, nn.Linear):
                layer.weight.mul_(SHRUNK)
    shrunk = hessian(network, (x, y), loss=F.mse_loss, k=1, mode="train", rtol=1e-2)
    return {
        "sharpness": curvature.sharpness,
        "sharpness of smaller weights": shrunk.sharpness,
        "condition": curvature.condition_number,
        "zeros": zeros(curvature),
        "parameters": float(curvature.parameters),
        "gradient": curvature.gradient_norm,
    }


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return figures of both kinds of network and their comparison, seed by seed."""
    runs = {kind: measured[Job(kind)] for kind in ("batch", "none")}
    ranges = {kind: _rate_ranges(settings, run) for kind, run in runs.items()}
    summary = {"step of the rates": max(b / a for a, b in itertools.pairwise(settings["rates"]))}
    for kind, run in runs.items():
        best = int(run["best"])
        summary[f"{kind}.best rate"] = settings["rates"][best]
        summary |= spread(f"{kind}.steps at its best rate", run["reached"][best])
    for kind, counts in ranges.items():
        for name, values in counts.items():
            summary |= spread(f"{kind}.{name}", values)
    summary |= _speed_figures(runs["batch"], runs["none"])
    summary |= _range_figures(settings, ranges["batch"], ranges["none"])
    summary |= _hessian_figures(settings, runs["batch"], runs["none"])
    for kind, run in runs.items():
        for name in ("sharpness", "condition", "zeros"):
            summary |= spread(f"{kind}.{name}", [one[name] for one in run["spectra"] if one[name] is not None])
        summary[f"{kind}.sharpness times rate"] = summary[f"{kind}.sharpness.median"] * summary[f"{kind}.best rate"]
    return summary


def _rate_ranges(settings: Settings, run: Measured) -> dict[str, list[float]]:
    """Return, for each seed, at how many learning rates a run is stable and converges, and the largest stable rate."""
    rates, seeds = settings["rates"], range(settings["seeds"])
    stable = [[last[seed] < run["first"][seed] for last in run["last"]] for seed in seeds]
    converged = [[steps[seed] <= settings["steps"] for steps in run["reached"]] for seed in seeds]
    return {
        "stable octaves": [float(sum(one)) for one in stable],
        "useful octaves": [float(sum(one)) for one in converged],
        "largest stable rate": [max(itertools.compress(rates, one), default=0.0) for one in stable],
    }


def _speed_figures(batch: Measured, none: Measured) -> dict[str, float]:
    """Return how many more steps, and how much larger gradients, a network without BatchNorm has."""
    same, own = int(batch["best"]), int(none["best"])
    medians = spread("none.steps at BatchNorm's best rate", none["reached"][same])
    for name, key in (("steps", "reached"), ("gradient", "spike")):
        for where, rate in (("one rate", same), ("best rates", own)):
            pairs = zip(batch[key][same], none[key][rate])
            medians |= spread(f"ratio of {name} at {where}", [n / max(b, 1.0) for b, n in pairs])
    return medians


def _range_figures(
    settings: Settings, batch: Mapping[str, list[float]], none: Mapping[str, list[float]]
) -> dict[str, float]:
    """Return how many more learning rates work with BatchNorm, and how much larger the largest is."""
    summary: dict[str, float] = {}
    for name in ("stable octaves", "useful octaves"):
        summary |= spread(f"gain of {name}", [b - n for b, n in zip(batch[name], none[name])])
    least = settings["rates"][0] / 2.0  # it stands for the largest stable rate where no rate was stable
    pairs = zip(batch["largest stable rate"], none["largest stable rate"])
    return summary | spread("ratio of largest stable rates", [max(b, least) / max(n, least) for b, n in pairs])


def _hessian_figures(settings: Settings, batch: Measured, none: Measured) -> dict[str, float]:
    """Return how the Hessians without BatchNorm compare with those with it, seed by seed."""
    summary: dict[str, float] = {}
    spectra = list(zip(batch["spectra"], none["spectra"]))
    for name in ("sharpness", "sharpness of smaller weights", "condition"):
        summary |= spread(f"ratio of {name}", [n[name] / b[name] for b, n in spectra if b[name] and n[name]])
    times = settings["rates"][int(none["best"])] / settings["rates"][int(batch["best"])]
    summary |= spread("ratio of sharpness times rate", [times * n["sharpness"] / b["sharpness"] for b, n in spectra])
    return summary | spread("gain of zeros", [b["zeros"] - n["zeros"] for b, n in spectra])


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return figure 8.1 (right): losses and gradients; the last losses by rate; and a table of Hessians."""
    blocks: list[Block] = []
    same = int(measured[Job("batch")]["best"])
    for name, title in (("losses", "Figure 8.1 (right): the loss"), ("gradients", "The norm of the gradient")):
        curves = []
        for kind, run in ((kind, measured[Job(kind)]) for kind in KINDS):
            for rate, label in dict.fromkeys(((same, ""), (int(run["best"]), ", its own best rate"))):
                points = log10_points(run[name][rate], run["every"])
                if kind == "none" or (rate == same and not label):
                    curves.append(Curve(name=KINDS[kind] + label, points=points))
        blocks.append(
            Curves(
                title=title,
                curves=tuple(curves),
                axis="log10 of the median over seeds",
                caption=f"At the learning rate {settings['rates'][same]:g}, the best with BatchNorm.",
            )
        )
    lasts = tuple(
        Curve(
            name=label,
            points=tuple(
                (math.log2(rate), _shown(spread("x", last)["x.median"]))
                for rate, last in zip(settings["rates"], measured[Job(kind)]["last"])
            ),
        )
        for kind, label in KINDS.items()
    )
    blocks.append(
        Curves(
            title="The last loss by learning rate", curves=lasts, axis="log10 of the median", along="log2 of the rate"
        )
    )
    columns = [Column(title="network", kind="name")]
    columns += [Column(title=t, kind="number") for t in ("largest eigenvalue", "condition number", "zeros", "gradient")]
    rows = tuple(
        (label, *(one[name] for name in ("sharpness", "condition", "zeros", "gradient")))
        for kind, label in KINDS.items()
        for one in measured[Job(kind)]["spectra"]
    )
    return (*blocks, Table(title="Hessians at the end, by seed", columns=tuple(columns), rows=rows))


def _shown(loss: float) -> float:
    """Return log10 of a loss, or infinity for a loss above `BROKEN`, so that the others stay distinguishable."""
    return math.inf if not loss < BROKEN else math.log10(max(loss, 1e-300))


def _speed(figures: Figures) -> Judgement:
    steps = read(figures, "batch.steps at its best rate")
    return decided(steps, below=100.0, evidence=f"At its best rate it takes {steps} iterations to a tenth of the loss.")


def _slower(figures: Figures) -> Judgement:
    ours = read(figures, "batch.steps at its best rate")
    same, own = (read(figures, f"ratio of steps at {name}") for name in ("one rate", "best rates"))
    return readings(
        [(same,), (own,)],
        above=1.0,
        evidence=f"To a tenth of the loss BatchNorm takes {ours.median:.3g} iterations; without it takes {same} times "
        f"as many at the same rate and {own} times at its own best rate.",
    )


def _edge(figures: Figures) -> str:
    """Return a sentence on the products of learning rates and largest eigenvalues."""
    rates = [figures[f"{kind}.best rate"] for kind in KINDS]
    products = [figures[f"{kind}.sharpness times rate"] for kind in KINDS]
    return (
        f"Times the learning rate, {rates[0]:g} and {rates[1]:g}, the eigenvalues are {products[0]:.3g} and "
        f"{products[1]:.3g}; descent settles where that is about 2."
    )


def _sharpness(figures: Figures) -> Judgement:
    ratio = read(figures, "ratio of sharpness")
    judgement = judged(
        near(math.log10(ratio.median), math.log10(5.0)) and ratio.low > 1.0,
        f"The largest eigenvalue without BatchNorm is {ratio} times that with it; the paper has 5. {_edge(figures)}",
        corrected=ratio.low > 1.0,
    )
    return with_seeds(ratio.seeds, judgement)


def _condition(figures: Figures) -> Judgement:
    ratio, conditions = read(figures, "ratio of condition"), [figures[f"{kind}.condition.median"] for kind in KINDS]
    judgement = judged(
        all(near(math.log10(one), math.log10(printed)) for one, printed in zip(conditions, (20.0, 200.0)))
        and ratio.low > 1.0,
        f"The condition number is {conditions[0]:.2g} with BatchNorm and {conditions[1]:.2g} without; the paper has 20 "
        f"and 200. The second is {ratio} times the first.",
        corrected=ratio.low > 1.0,
    )
    return with_seeds(ratio.seeds, judgement)


def _gauge(figures: Figures) -> Judgement:
    plain, shrunk = read(figures, "ratio of sharpness"), read(figures, "ratio of sharpness of smaller weights")
    stable = read(figures, "ratio of sharpness times rate")
    return readings(
        [(plain,), (shrunk,), (stable,)],
        above=1.0,
        evidence=f"Without BatchNorm it is {plain} times as large; after dividing the weights in front of BatchNorm by "
        f"3, which changes no output, {shrunk}. {_edge(figures)}",
    )


def _zeros(figures: Figures) -> Judgement:
    gain = read(figures, "gain of zeros")
    ours, theirs = (figures[f"{kind}.zeros.median"] for kind in ("batch", "none"))
    return decided(
        gain,
        above=0.0,
        evidence=f"With BatchNorm {ours:.3g} eigenvalues are zero or lie along symmetries, without {theirs:.3g}, dead "
        "units among them.",
    )


def _spikes(figures: Figures) -> Judgement:
    same, own = (read(figures, f"ratio of gradient at {name}") for name in ("one rate", "best rates"))
    return readings(
        [(same,), (own,)],
        above=1.0,
        evidence=f"The largest gradient over the first is without BatchNorm {same} times that with it at the same "
        f"rate, and {own} times at its own best rate.",
    )


def _wider(figures: Figures) -> Judgement:
    stable, useful = read(figures, "gain of stable octaves"), read(figures, "gain of useful octaves")
    return readings(
        [(stable,), (useful,)],
        above=0.0,
        evidence=f"Of the rates tried, {_steps(figures)}, runs end below their start at {stable} more with BatchNorm; "
        f"they converge at {useful} more.",
    )


def _larger(figures: Figures) -> Judgement:
    ratio, step = read(figures, "ratio of largest stable rates"), figures["step of the rates"]
    evidence = (
        f"The largest stable rate with BatchNorm is {ratio} times that without; rates were tried {_steps(figures)}, so "
        f"that a difference of less than that is not seen."
    )
    if ratio.low / step < 1.0 < ratio.high * step:
        return Judgement(Verdict.NOT_TESTABLE, f"{evidence} It does not decide which is larger.")
    return decided(ratio, above=1.0, evidence=evidence)


def _steps(figures: Figures) -> str:
    """Return how far the learning rates that were tried lie apart."""
    return f"each {figures['step of the rates']:g} times the one before"


def _standardized(figures: Figures) -> Judgement:
    ratio = read(figures, "ratio of condition")
    return decided(ratio, above=1.0, evidence=f"The condition number without BatchNorm is {ratio} times that with it.")


CURVATURE = experiment_of(
    __name__,
    name="akbar.experiment2",
    title="Experiment 2: networks of three layers",
    about="Regression with networks 5-10-10-1, with and without BatchNorm, by gradient descent over all samples at "
    "many learning rates, and the Hessian at the end of the best. The paper shows no figure and names neither task "
    "nor rate: both are ours, and the best rate is that with the smallest median loss at the end.",
    stored=True,
    task="one regression",
    claims=(
        Claim(
            id="akbar.experiment2.speed",
            where="Experiment 2",
            text="With BatchNorm the loss converges in under 100 iterations.",
            quotation="The BN-equipped network's loss plummets rapidly and converges in under 100 iterations.",
            judge=_speed,
        ),
        Claim(
            id="akbar.experiment2.slower",
            where="Experiment 2",
            text="Without BatchNorm convergence is slower.",
            quotation="its final convergence is slower (we had to lower LR eventually to make it converge)",
            judge=_slower,
        ),
        Claim(
            id="akbar.experiment2.sharpness",
            where="Experiment 2",
            text="The largest eigenvalue of the Hessian is 5 times smaller with BatchNorm.",
            quotation="The largest eigenvalue in the BN case is 5x smaller than that in the non-BN case.",
            corrected="It is smaller with BatchNorm, by another factor than the printed one.",
            judge=_sharpness,
        ),
        Claim(
            id="akbar.experiment2.condition",
            where="Experiment 2",
            text="The condition number without zero modes is 20 with BatchNorm and 200 without.",
            quotation="The condition number for BN network (ignoring zero modes) is also better (roughly 20 vs 200 "
            "for no-BN).",
            corrected="It is smaller with BatchNorm; both numbers are larger than the printed ones by decades.",
            judge=_condition,
        ),
        Claim(
            id="akbar.experiment2.zeros",
            where="Experiment 2, section 6",
            text="With BatchNorm the Hessian has many more zero eigenvalues.",
            quotation="The BN network's Hessian has a spectrum with a few small positive eigenvalues and many zeros "
            "(due to invariances).",
            judge=_zeros,
        ),
        Claim(
            id="akbar.experiment2.gradients",
            where="Experiment 2",
            text="The gradient's norm has no spikes with BatchNorm and spikes without.",
            quotation="The BN network maintains a relatively stable gradient norm throughout (no dramatic spikes), "
            "whereas the non-BN one shows a spike when weights grow",
            judge=_spikes,
        ),
        Claim(
            id="akbar.6.sharpness",
            where="Section 6",
            text="Normalization reduces the largest eigenvalue of the Hessian.",
            quotation="Normalization tends to reduce the largest eigenvalues of the Hessian (smoothing sharp "
            "curvature)",
            corrected="The eigenvalue depends on the scale of the weights in front of BatchNorm, which changes no "
            "output; times the learning rate it is about 2 with and without.",
            judge=_gauge,
        ),
        Claim(
            id="akbar.7.1.range",
            where="Sections 5.1 and 7.1",
            text="The range of stable learning rates is significantly wider with BatchNorm.",
            quotation="there is a significantly wider stable range of learning rates with BN than without",
            judge=_wider,
        ),
        Claim(
            id="akbar.5.1.rates",
            where="Section 5.1; section 8, summary",
            text="BatchNorm allows larger learning rates without divergence.",
            quotation="BN improves optimization speed and allows higher learning rates without divergence.",
            judge=_larger,
        ),
        Claim(
            id="akbar.9.3.conditioning",
            where="Section 9.3",
            text="With BatchNorm, which standardizes activations, the loss is better conditioned.",
            quotation="keeping activations standardized does help with conditioning",
            judge=_standardized,
        ),
    ),
)
