"""Compute the figures that judge the claims from the curves of training runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

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
    """Return the figures of one run: how far it came, and how variances, norms and their products went."""
    summary = {
        "epochs": float(curves["done"]),
        "train_accuracy": curves["train_accuracy"][-1] if curves["train_accuracy"] else math.nan,
        "test_accuracy": curves["test_accuracy"][-1][1],
    }
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
    """Return how many layers have a large or growing norm of one kind, and the product over the layers."""
    start, end = norms(curves, norm, first=True), norms(curves, norm)
    if not start or not end:
        return {}
    pairs = [(a, b) for a, b in zip(start, end) if a is not None and b is not None]
    return {
        f"{norm}_layers": float(len(pairs)),
        f"{norm}_above_one": float(sum(b > 0 for _, b in pairs)),
        f"{norm}_grown": float(sum(b > a for a, b in pairs)),
        f"log10_product_{norm}_first": total(start),
        f"log10_product_{norm}": total(end),
    }


def _product_figures(curves: Measured, name: str) -> dict[str, float]:
    """Return one reading of the product of 1/sigma at the end, and the epochs in which it passes published values."""
    summary = {f"log10_reduction_{name}": total(reduction(curves, name, -1))}
    course = [total(reduction(curves, name, at)) for at in range(len(curves["epochs"]))]
    for source, value in PUBLISHED.items():
        passed = (epoch for epoch, product in zip(curves["epochs"], course) if epoch and product <= value)
        summary[f"epoch_{source}_{name}"] = float(next(passed, math.nan))
    return summary


def norms(curves: Measured, norm: str, *, first: bool = False) -> list[float | None]:
    """Return log10 of the norms of all layers at the first or the last time that they were measured."""
    rows: Sequence[Any] = curves[norm]
    if norm == "frobenius":
        rows = [[epoch, values] for epoch, values in zip(curves["epochs"], rows)]
    if norm != "operator":
        return list(rows[0 if first else -1][1]) if rows else []
    layers: list[float | None] = [None] * len(curves["layers"])
    for _, values in reversed(rows) if first else rows:  # each layer keeps the value of its first or last measurement
        layers = [old if new is None else new for old, new in zip(layers, values)]
    return layers


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
