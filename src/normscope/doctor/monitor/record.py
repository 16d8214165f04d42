"""`Record`: what a run writes down of one measured step."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.codec import from_plain
from .layer_record import LayerKind, LayerRecord, Numbers
from .quantities import check_declared

NOT_FINITE = re.compile(r"-?inf|nan")
FIGURE_ROOT = "normscope"
"""What the names of all figures begin with where others keep them too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One measured step.

    Attributes:
        step: how many steps the optimizer had taken before it.
        seconds: since the run began.
        tier: how much was measured.
        loss: what `observe` was given in this step, or, in a loop that observes none, what its backward began with;
            None if nothing.
        lr: the learning rate of every parameter group.
        values: by kind of layer and quantity one number per layer of that kind, in the order of the layers;
            None is not measured.
        histograms: in the full tier, by what they are of one row for each weight layer: the root mean square, then the
            share in each bin; None for a layer without.
        total: numbers of the whole network, by quantity.
        metrics: what `observe` was given since the record before, by name: of the losses those of `OF_LOSSES`, of other
            figures the mean.

    What the quantities are, each file of `quantities/` says of its own.
    """

    step: int
    seconds: float
    tier: str
    loss: float | None = None
    lr: tuple[float, ...] = ()
    values: Mapping[str, Mapping[str, Numbers]] = field(default_factory=dict)
    histograms: Mapping[str, tuple[Numbers | None, ...]] = field(default_factory=dict)
    total: Mapping[str, float | None] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    def of(self, kind: LayerKind, quantity: str) -> Numbers:
        """Return one quantity of all layers of a kind; empty if it was not measured."""
        numbers = self.values.get(kind, {}).get(quantity)
        if numbers is None:
            check_declared(quantity, kind)
        return numbers or ()

    def total_of(self, quantity: str) -> float | None:
        """Return a number of the whole network; None if it was not measured."""
        number = self.total.get(quantity)
        if number is None and quantity not in self.total:
            check_declared(quantity, "network")
        return number

    def number(self, kind: LayerKind, quantity: str, index: int) -> float | None:
        """Return one figure of one layer, by its place among those of its kind; None if it was not measured."""
        column = self.of(kind, quantity)
        return column[index] if index < len(column) else None

    def flatten(self, layers: Sequence[LayerRecord] = ()) -> dict[str, float]:
        """Return everything that was measured by name: `normscope/<kind>/<layer>/<quantity>`.

        Args:
            layers: the layers of the run; a layer that is not among them has its place for a name.

        Example:
            >>> record = Record(
            ...     step=3, seconds=0.1, tier="economy", loss=0.5, lr=(0.1,), total={"log10_folded": 2.0},
            ...     values={"normalizer": {"log10_variance": (-1.0, None)}},
            ... )
            >>> layers = [LayerRecord(name=name, kind="normalizer", family="batch_norm") for name in ("bn1", "bn2")]
            >>> for name, value in record.flatten(layers).items():
            ...     print(name, value)
            normscope/loss 0.5
            normscope/lr/0 0.1
            normscope/total/log10_folded 2.0
            normscope/normalizer/bn1/log10_variance -1.0
        """
        figures: dict[str, float | None] = {"loss": self.loss}
        figures |= {f"lr/{index}": rate for index, rate in enumerate(self.lr)}
        figures |= {f"total/{quantity}": value for quantity, value in self.total.items()}
        figures |= {f"metrics/{name}": value for name, value in self.metrics.items()}
        for kind, table in self.values.items():
            names = [layer.name for layer in layers if layer.kind == kind]
            for quantity, numbers in table.items():
                for place, value in enumerate(numbers):
                    name = names[place] if place < len(names) else str(place)
                    figures[f"{kind}/{name}/{quantity}"] = value
        return {f"{FIGURE_ROOT}/{name}": value for name, value in figures.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """Return plain data with six digits of every figure."""
        data: dict[str, Any] = json.loads(self.text())
        return data

    def text(self) -> str:
        """Return `to_json` as text: written by hand, for this is most of what a log costs."""
        values = ",".join(
            f'"{kind}":{{' + ",".join(f'"{name}":[{_texts(column)}]' for name, column in table.items()) + "}"
            for kind, table in self.values.items()
        )
        spread = ",".join(
            f'"{what}":[' + ",".join("null" if row is None else f"[{_texts(row)}]" for row in rows) + "]"
            for what, rows in self.histograms.items()
        )
        spread = f'"histograms":{{{spread}}},' if spread else ""
        total = ",".join(f'"{name}":{_texts((value,))}' for name, value in self.total.items())
        named = ",".join(f"{json.dumps(name)}:{_texts((value,))}" for name, value in self.metrics.items())
        metrics = f',"metrics":{{{named}}}' if named else ""
        return (
            f'{{"step":{self.step},"seconds":{round(self.seconds, 3)},"tier":"{self.tier}",'
            f'"loss":{_texts((self.loss,))},"lr":[{_texts(self.lr)}],"values":{{{values}}},{spread}'
            f'"total":{{{total}}}{metrics}}}'
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Return the record that `to_json` wrote."""
        plain = from_plain(dict(data))
        values = {k: {q: tuple(_revive_nan(v) for v in n) for q, n in t.items()} for k, t in plain["values"].items()}
        return cls(
            step=int(plain["step"]),
            seconds=float(plain["seconds"]),
            tier=plain["tier"],
            loss=_revive_nan(plain["loss"]),
            lr=tuple(_revive_nan(value) for value in plain["lr"]),
            values=values,
            histograms={
                what: tuple(None if row is None else tuple(map(_revive_nan, row)) for row in rows)
                for what, rows in plain.get("histograms", {}).items()
            },
            total={key: _revive_nan(value) for key, value in plain["total"].items()},
            metrics={key: _revive_nan(value) for key, value in plain.get("metrics", {}).items()},
        )


def _texts(numbers: Numbers) -> str:
    """Return numbers as JSON, with six digits each; infinities and NaN as strings."""
    text = ",".join(["null" if value is None else f"{value:.6g}" for value in numbers])
    return NOT_FINITE.sub(r'"\g<0>"', text) if "n" in text else text


def _revive_nan(value: Any) -> Any:
    return math.nan if value == "nan" else value
