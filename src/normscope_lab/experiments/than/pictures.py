"""Than's figures drawn from the curves of training runs, in the style of the paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normscope.report import Block, Column, Curve, Curves, Table, Text, thinned

from ..base import Figures, Job, Measured, Settings
from .curve_figures import NORMS, PRODUCTS, figures, reduction, total
from .watched_training import NETWORKS, TITLES

POINTS = 34
"""The largest number of points of a curve: enough for 100 epochs, and pages stay small."""
FIRST = 11
"""How many layers of ResNet18 and EfficientNet-B3 are drawn, as in the paper, for clarity."""


def title(curves: Measured) -> str:
    """Return the title of a run: its network and its kind of decay."""
    return f"{NETWORKS[curves['network']]}, {TITLES[curves['decay']]}"


def by_layer(
    curves: Measured, rows: Sequence[tuple[float, Sequence[float | None]]], names: Sequence[str]
) -> list[Curve]:
    """Return one curve per layer, coloured by depth."""
    shown = range(len(names) if len(names) <= FIRST else FIRST)
    return [
        Curve(
            name=names[index],
            points=thinned([(float(x), value) for x, row in rows if (value := row[index]) is not None], POINTS),
            depth=index / max(1, len(shown) - 1),
        )
        for index in shown
    ]


def weight_norms(settings: Settings, measured: Mapping[Job, Measured]) -> list[Block]:
    """Return figure 1: norms of the weights by layer, their products, the training accuracy."""
    blocks: list[Block] = [summary(settings, measured)]
    for curves in measured.values():
        rows = [(epoch, values) for epoch, values in curves["operator"]]
        drawn = tuple(by_layer(curves, rows, curves["layers"]))
        blocks.append(_curves(drawn, f"Weight norms: {title(curves)}", "log10 of the operator norm"))
    blocks.append(_compared(measured, "Product of all weight norms (operator norms)", "log10 of the product", _printed))
    blocks.append(_compared(measured, "Training accuracy", "share that is right", _accuracy))
    return blocks


def variances(settings: Settings, measured: Mapping[Job, Measured]) -> list[Block]:
    """Return figure 2: input variances by layer, their product, and the readings of the product of 1/sigma."""
    blocks: list[Block] = []
    for curves in measured.values():
        rows = list(zip(curves["epochs"], curves["variance"]))
        drawn = tuple(by_layer(curves, rows, curves["sites"]))
        where = "normalizer" if curves["network"] != "relu" else "activation"
        name = f"Variances in front of each {where}: {title(curves)}"
        blocks.append(_curves(drawn, name, "log10 of the variance", rules=(("1", 0.0),)))
    blocks.append(_compared(measured, "Product of all input variances", "log10 of the product", _variances))
    blocks.append(readings(settings, measured))
    return blocks


def both(settings: Settings, measured: Mapping[Job, Measured]) -> list[Block]:
    """Return figure 3: weight norms and input variances of EfficientNet-B3."""
    return [*weight_norms(settings, measured), *variances(settings, measured)]


def summary(settings: Settings, measured: Mapping[Job, Measured]) -> Table | Text:
    """Return one line per run: how far it came, and its products."""
    summary = figures(settings, measured)
    columns = (
        Column(title="network", kind="name"),
        Column(title="weight decay", kind="name"),
        Column(title="epochs", kind="count"),
        Column(title="precision"),
        Column(title="training", kind="percent"),
        Column(title="test", kind="percent"),
        *(Column(title=f"product, {norm}", kind="log10") for norm in NORMS),
        Column(title="operator norms of epoch"),
        Column(title="test and reshaped norms of epoch"),
        Column(title="variances below eps", kind="count"),
        Column(title="alarms of `ns.watch`"),
    )
    rows = []
    for curves in measured.values():
        run = f"{curves['network']}.{curves['decay']}"
        alarms = sorted({code for code, _ in curves["findings"]})
        rows.append(
            (
                NETWORKS[curves["network"]],
                TITLES[curves["decay"]],
                int(curves["done"]),
                curves["precision"],
                summary.get(f"{run}.train_accuracy"),
                summary.get(f"{run}.test_accuracy"),
                *(summary.get(f"{run}.log10_product_{norm}") for norm in NORMS),
                _epochs(summary, f"{run}.operator"),
                _epochs(summary, f"{run}.reshaped"),
                int(summary[f"{run}.sites_below_eps"]),
                ", ".join(alarms),
            )
        )
    data = " and ".join(sorted({curves["data"] for curves in measured.values()}))
    caption = (
        f"Data: {data}. Products are log10. A cell without a figure was not measured of a trained network: the run "
        "ended first. What has no epoch of its own is of the last epoch."
    )
    return Table(title="Runs", columns=columns, rows=tuple(rows), caption=caption)


def _epochs(summary: Figures, norm: str) -> str:
    """Return the epochs at which the norms of all layers were last taken, in words; nothing where they were not."""
    ends = [summary[f"{norm}_epoch_{end}"] for end in ("from", "to") if f"{norm}_epoch_{end}" in summary]
    return " to ".join(dict.fromkeys(f"{epoch:g}" for epoch in ends))


def readings(settings: Settings, measured: Mapping[Job, Measured]) -> Table:
    """Return the product of 1/sigma in each reading, as a table."""
    summary = figures(settings, measured)
    runs = [(curves, f"{curves['network']}.{curves['decay']}") for curves in measured.values()]
    columns = (
        Column(title="network", kind="name"),
        Column(title="weight decay", kind="name"),
        Column(title="epochs", kind="count"),
        *(Column(title=name, kind="log10", help=meant) for name, meant in PRODUCTS.items()),
    )
    rows = tuple(
        (
            NETWORKS[c["network"]],
            TITLES[c["decay"]],
            int(c["done"]),
            *(_number(summary[f"{run}.log10_reduction_{n}"]) for n in PRODUCTS),
        )
        for c, run in runs
    )
    caption = "Each column, as log10: " + "; ".join(f"{name}: {meant}" for name, meant in PRODUCTS.items()) + "."
    return Table(
        title="The product of 1/sigma after each run's last epoch, in six readings",
        columns=columns,
        rows=rows,
        caption=caption,
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _compared(
    measured: Mapping[Job, Measured], name: str, axis: str, points: Callable[[Measured], list[tuple[float, Any]]]
) -> Curves:
    drawn = tuple(
        Curve(
            name=title(curves),
            points=thinned([(float(x), float(y)) for x, y in points(curves) if y is not None], POINTS),
        )
        for curves in measured.values()
    )
    return _curves(drawn, name, axis)


def _curves(curves: tuple[Curve, ...], name: str, axis: str, rules: tuple[tuple[str, float], ...] = ()) -> Curves:
    return Curves(curves=curves, title=name, axis=axis, along="epoch", rules=rules)


def _printed(curves: Measured) -> list[tuple[float, Any]]:
    return [(epoch, value) for epoch, value in curves["printed"]]


def _accuracy(curves: Measured) -> list[tuple[float, Any]]:
    return [(epoch, value) for epoch, value in enumerate(curves["train_accuracy"], 1)]


def _variances(curves: Measured) -> list[tuple[float, Any]]:
    return [(epoch, -2 * total(reduction(curves, "sigma", k))) for k, epoch in enumerate(curves["epochs"])]
