"""A record as named numbers."""

from __future__ import annotations

from collections.abc import Sequence

from ..record import LayerRecord, Record

ROOT = "normscope"


def flat(record: Record, layers: Sequence[LayerRecord] = ()) -> dict[str, float]:
    """Return everything that was measured by name: `normscope/<kind>/<layer>/<quantity>`.

    Args:
        record: the record of one step.
        layers: the layers of the run; a layer that is not among them has its place for a name.

    Example:
        >>> record = Record(
        ...     step=3, seconds=0.1, tier="economy", loss=0.5, lr=(0.1,), total={"log10_folded": 2.0},
        ...     values={"normalizer": {"log10_variance": (-1.0, None)}},
        ... )
        >>> layers = [LayerRecord(name=name, kind="normalizer", family="batch_norm") for name in ("bn1", "bn2")]
        >>> for name, value in flat(record, layers).items():
        ...     print(name, value)
        normscope/loss 0.5
        normscope/lr/0 0.1
        normscope/total/log10_folded 2.0
        normscope/normalizer/bn1/log10_variance -1.0
    """
    found: dict[str, float | None] = {f"{ROOT}/loss": record.loss}
    found |= {f"{ROOT}/lr/{index}": rate for index, rate in enumerate(record.lr)}
    found |= {f"{ROOT}/total/{quantity}": value for quantity, value in record.total.items()}
    found |= {f"{ROOT}/metrics/{name}": value for name, value in record.metrics.items()}
    for kind, table in record.values.items():
        names = [layer.name for layer in layers if layer.kind == kind]
        for quantity, numbers in table.items():
            for place, value in enumerate(numbers):
                name = names[place] if place < len(names) else str(place)
                found[f"{ROOT}/{kind}/{name}/{quantity}"] = value
    return {name: value for name, value in found.items() if value is not None}
