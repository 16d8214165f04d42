"""Compute the figures that judge the claims from the curves of training runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import numpy as np

from ...statistics import line
from ..base import Figures, Job, Measured, Settings

NORMS = ("operator", "reshaped", "frobenius")
PRODUCTS = {
    "sigma": "the root of each layer's mean variance",
    "variance": "each layer's mean variance itself, which the paper calls sigma",
    "inverse": "the largest 1/sigma of each layer, the exact norm",
    "inverse_l2": "the l2 norm of 1/sigma, as Lemma 1 has it",
    "gain": "the largest gamma/sigma of each layer",
    "gain_l2": "the l2 norm of gamma/sigma, as the Slides have it",
}
"""The readings of the product of 1/sigma over the layers."""
PUBLISHED = {"paper": -25.0, "slides": math.log10(1.35e-8)}
"""The product of 1/sigma (the paper) and of gamma/sigma (the Slides) in ResNet18 as published, as log10."""
SEVERAL = 3
"""This many layers count as "several"."""


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return the figures of every run, under `NETWORK.DECAY.NAME`; exponents are named `log10_*`."""
    summary: dict[str, float] = {}
    for curves in measured.values():
        for name, value in (_of_run(curves) | {"epochs_planned": float(settings["epochs"])}).items():
            summary[f"{curves['network']}.{curves['decay']}.{name}"] = value
    return summary


def _of_run(curves: Measured) -> dict[str, float]:
    """Return the figures of one run: how far it came, and how variances, norms and their products went.

    Figures "after training" are of the last epoch at which they were taken, which stands beside them; a run that ended
    before they were taken of a trained network has none, whatever was taken of the untrained one.
    """
    summary = {
        "epochs": float(curves["done"]),
        "train_accuracy": curves["train_accuracy"][-1] if curves["train_accuracy"] else math.nan,
    }
    if tested := [row for row in curves["test_accuracy"] if row[0] > 0]:
        summary["test_accuracy_epoch"], summary["test_accuracy"] = map(float, tested[-1])
    summary |= _variance_figures(curves)
    summary["findings"] = float(len({code for code, _ in curves["findings"]}))
    for norm in NORMS:
        summary |= _norm_figures(curves, norm)
    for name in PRODUCTS:
        summary |= _product_figures(curves, name)
    products = [-2 * total(reduction(curves, "sigma", at)) for at in range(len(curves["epochs"]))]
    trained = [(epoch, product) for epoch, product in zip(curves["epochs"], products) if epoch > 0]
    slope, fit = line(*zip(*trained)) if trained else (math.nan, math.nan)
    power = line([math.log10(epoch) for epoch, _ in trained], [product for _, product in trained])
    return summary | {
        "log10_variances_per_epoch": slope,
        "variances_straightness": fit,
        "variances_power": power[0],
        "variances_power_straightness": power[1],
    }


def _variance_figures(curves: Measured) -> dict[str, float]:
    """Return how many normalizers have small, large and growing variances; the curves hold their log10."""
    first, last = (np.array(curves["variance"][at], dtype=float) for at in (0, -1))
    return {
        "sites": float(len(first)),
        "sites_small_at_first": float(np.sum(first < 0)),
        "sites_above_one": float(np.sum(last > 0)),
        "sites_grown": float(np.sum(last > first)),
        "sites_grown_tenfold_above_one": float(np.sum((last > first + 1) & (last > 0))),
        "sites_below_eps": float(np.sum(last < -5)),
        "log10_variance_first": _median(first),
        "log10_variance_largest_first": float(first.max()) if len(first) else math.nan,
        "log10_variance_last": _median(last),
    }


def _norm_figures(curves: Measured, norm: str) -> dict[str, float]:
    """Return how many layers have a large or growing norm of one kind, and the product over the layers.

    There are none unless the norm of every layer was taken both before training and after an epoch or more.
    """
    rows = list(zip(curves["epochs"], curves[norm])) if norm == "frobenius" else curves[norm]
    start = last_by_layer([row for row in rows if row[0] == 0])
    end = last_by_layer([row for row in rows if row[0] > 0])
    layers = len(curves["layers"])
    if not len(start) == len(end) == layers:
        return {}
    epochs = [epoch for epoch, _ in end.values()]
    return {
        f"{norm}_layers": float(layers),
        f"{norm}_above_one": float(sum(value > 0 for _, value in end.values())),
        f"{norm}_grown": float(sum(end[layer][1] > value for layer, (_, value) in start.items())),
        f"{norm}_epoch_from": float(min(epochs)),
        f"{norm}_epoch_to": float(max(epochs)),
        f"log10_product_{norm}_first": total(value for _, value in start.values()),
        f"log10_product_{norm}": total(value for _, value in end.values()),
    }


def _product_figures(curves: Measured, name: str) -> dict[str, float]:
    """Return one reading of the product of 1/sigma at the end, and the epochs in which it passes published values."""
    summary = {f"log10_reduction_{name}": total(reduction(curves, name, -1))}
    course = [total(reduction(curves, name, at)) for at in range(len(curves["epochs"]))]
    for source, value in PUBLISHED.items():
        passed = (epoch for epoch, product in zip(curves["epochs"], course) if epoch and product <= value)
        summary[f"epoch_{source}_{name}"] = float(next(passed, math.nan))
    return summary


def last_by_layer(rows: Iterable[tuple[float, Sequence[float | None]]]) -> dict[int, tuple[float, float]]:
    """Return the last epoch at which each layer was measured, with its value then, by the layer's place."""
    return {layer: (epoch, one) for epoch, values in rows for layer, one in enumerate(values) if one is not None}


def reduction(curves: Measured, name: str, at: int) -> list[float | None]:
    """Return log10 of each layer's factor in the product of 1/sigma, in one reading of it."""
    if name in ("sigma", "variance"):
        power = -0.5 if name == "sigma" else -1.0
        return [None if value is None else power * value for value in curves["variance"][at]]
    return list(curves[name][at])


def total(exponents: Iterable[float | None]) -> float:
    """Return log10 of a product; NaN where a factor was not measured."""
    every = list(exponents)
    return math.nan if any(one is None for one in every) else math.fsum(one for one in every if one is not None)


def _median(values: np.ndarray) -> float:
    return float(median(values.tolist())) if len(values) else math.nan
