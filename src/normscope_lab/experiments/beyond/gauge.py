"""The gauge: multiplying weights in front of BatchNorm by 10 changes both printed factors and nothing else."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from normscope import ladder
from normscope.networks import mlp
from normscope.report import Block, Column, Table

from ..base import Claim, Figures, Job, Judgement, Measured, Settings, Verdict, experiment_of
from ..judging import by_convention
from ..single import ONLY
from .digits import log10_factors, trained

QUICK: Settings = {"epochs": 2, "width": 16, "depth": 3, "factor": 10.0}
FULL: Settings = {**QUICK, "epochs": 15, "width": 64, "depth": 6}
RUNGS = ("printed", "folded", "best")


def jobs(settings: Settings) -> Sequence[Job]:
    """Return the one job."""
    return (ONLY,)


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Measure a trained network, and its copy with larger weights and the statistics that belong to these."""
    generator = torch.Generator().manual_seed(0)
    network = mlp(generator=generator, normalizer="batch", width=settings["width"], depth=settings["depth"])
    made = trained(network, 0, settings["epochs"])
    other = _rescaled(made.network, settings["factor"])
    images = made.split.test_images[:4]
    outputs = [one.double()(made.split.test_images.double()) for one in (made.network, other)]
    summary: dict[str, object] = {"outputs": float((outputs[1] - outputs[0]).norm() / outputs[0].norm())}
    for name, one in (("before", made.network), ("after", other)):
        weights, constants = log10_factors(one)
        rungs = ladder(one.float(), images)
        summary[name] = {
            "weights": weights,
            "constants": constants,
            **{rung: rungs[rung].log10_upper for rung in RUNGS},
            "observed": rungs["observed"].log10_upper,
        }
    return summary


def _rescaled(network: nn.Module, factor: float) -> nn.Module:
    """Return a copy with all weights and biases in front of a BatchNorm times a factor, and the same function."""
    made = copy.deepcopy(network)
    layers = list(made.children())
    with torch.no_grad():
        for layer, norm in itertools.pairwise(layers):
            if isinstance(layer, nn.Linear) and isinstance(norm, nn.BatchNorm1d):
                assert norm.running_mean is not None
                assert norm.running_var is not None
                layer.weight.mul_(factor)
                layer.bias.mul_(factor)
                norm.running_mean.mul_(factor)
                norm.running_var.copy_(factor**2 * (norm.running_var + norm.eps) - norm.eps)
    return made


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return by how many decades each figure moves."""
    run = measured[ONLY]
    moved = {f"moved.{name}": run["after"][name] - run["before"][name] for name in run["before"]}
    before = {f"before.{name}": value for name, value in run["before"].items()}
    return {**moved, **before, "outputs": run["outputs"]}


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return all figures before and after."""
    run = measured[ONLY]
    columns = (
        Column(title="log10 of", kind="name"),
        *(Column(title=t, kind="number") for t in ("before", "after", "moved")),
    )
    rows = tuple(
        (name, run["before"][name], value, value - run["before"][name]) for name, value in run["after"].items()
    )
    caption = (
        f"All weights in front of BatchNorm times {settings['factor']:g}; the outputs move by {run['outputs']:.1g}."
    )
    return (Table(title="The same network twice", columns=columns, rows=rows, caption=caption),)


def _factor(figures: Figures) -> Judgement:
    weights, constants, outputs = figures["moved.weights"], figures["moved.constants"], figures["outputs"]
    bounds = figures["before.weights"] + figures["before.constants"] >= figures["before.observed"]
    return by_convention(
        (bounds, max(abs(weights), abs(constants)) < 1e-3 or outputs > 1e-3),
        f"With weights in front of BatchNorm times 10 the outputs move by {outputs:.1g} of themselves, the product of "
        f"weight norms by {weights:+.3g} decades and the reduction factor by {constants:+.3g}.",
    )


def _products(figures: Figures) -> Judgement:
    moved = {name: figures[f"moved.{name}"] for name in (*RUNGS, "observed")}
    listed = ", ".join(f"{name} {value:+.1g}" for name, value in moved.items())
    factors = {name: figures[f"moved.{name}"] for name in ("weights", "constants")}
    return Judgement(
        Verdict.MEASURED,
        f"The product of weight norms moves by {factors['weights']:+.3g} decades, that of the normalizers' constants "
        f"by {factors['constants']:+.3g}. Bounds of the whole network and the largest Jacobian at images move, in "
        f"decades, by: {listed}.",
    )


GAUGE = experiment_of(
    __name__,
    name="beyond.gauge",
    title="The gauge experiment",
    about="A BatchNorm network trained on digits, and its copy with weights in front of BatchNorm times 10 and the "
    "running statistics that belong to these: one function, two sets of printed factors.",
    claims=(
        Claim(
            id="than.reduction-factor",
            where="Section 4.2, Figure 2",
            text="The product of 1/sigma says by how much normalization reduces a network's Lipschitz constant.",
            quotation=r"BN yields a reduction factor of order $O\left(\prod_{k=1}^K \|1/\sigma_k\|\right)$",
            corrected="The product of both printed factors bounds the constant; either alone can be made anything "
            "without changing the function.",
            judge=_factor,
        ),
        Claim(
            id="beyond.gauge",
            where="gauge experiment",
            text="How far scaling weights in front of BatchNorm moves printed factors and bounds of the network.",
            judge=_products,
        ),
    ),
)
