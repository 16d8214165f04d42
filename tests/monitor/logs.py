"""Logs of runs that never were: what a long training of many layers would have written."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from normscope.core.finding import Finding, Severity
from normscope.doctor.monitor.layer_record import LayerRecord
from normscope.doctor.monitor.log import SCHEMA_VERSION, LogWriter
from normscope.doctor.monitor.record import Record

ALARM = Finding(
    code="effective-lr-collapse",
    severity=Severity.WARNING,
    where="blocks.1.conv",
    seen="log10 of the effective learning rate fell from -1.00 to -4.00.",
    why="The layer hardly turns any more.",
    advice="Lower the weight decay's opposite.",
    step=40,
)


def layers(count: int, name: str = "blocks.{}") -> tuple[LayerRecord, ...]:
    """Weights, each in front of a normalizer, then blocks."""
    places = [name.format(index) for index in range(count)]
    weights = [
        LayerRecord(
            name=f"{place}.conv", kind="weight", family="convolution", parameters=(f"{place}.conv.weight",),
            normalizer=f"{place}.bn", invariant="channel", groups=8, weight_decay=5e-4,
        )
        for place in places
    ]  # fmt: skip
    norms = [LayerRecord(name=f"{place}.bn", kind="normalizer", family="batch_norm", eps=1e-5) for place in places]
    units = [LayerRecord(name=f"{place}.relu", kind="units", family="relu") for place in places]
    return (*weights, *norms, *units, *(LayerRecord(name=place, kind="block", family="Block") for place in places))


def record(step: int, count: int, *, loss: float | None = None, rate: float = 1.0, standard: bool = False) -> Record:
    """What a step of a run whose variances grow and whose rotations settle would have been."""
    depth = [index / max(count - 1, 1) for index in range(count)]
    time = rate * math.log10(1 + step)
    wave = 0.1 * math.sin(step / 7)
    norm = tuple(0.2 + 0.2 * time + 0.5 * d + wave for d in depth)
    variance = tuple(-1.0 + 0.8 * time * (0.3 + d) + wave for d in depth)
    values: dict[str, dict[str, tuple[float | None, ...]]] = {
        "weight": {
            "log10_norm": norm,
            "log10_folded": tuple(0.4 + 0.05 * wave + 0.2 * d for d in depth),
            "log10_gradient": tuple(-1.0 - 0.5 * time + d for d in depth),
            "rotation": tuple(0.1 / (1 + 0.02 * step) * (0.5 + d) for d in depth),
            "log10_effective_lr": tuple(-1.0 - 0.4 * time - d for d in depth),
        },
        "normalizer": {
            "log10_variance": variance,
            "log10_constant": tuple(-0.5 * v for v in variance),
            "dominated": (0.0,) * count,
        },
    }
    if standard:
        values["block"] = {"log10_activation": tuple(0.1 * d + wave for d in depth)}
        values["units"] = {"dead": tuple(0.2 * d for d in depth)}
    return Record(
        step=step,
        seconds=0.1 * step,
        tier="standard" if standard else "economy",
        loss=2.3 * 0.99 ** (step / 10) + 0.05 * wave if loss is None else loss,
        lr=(0.1,),
        values=values,
        total={
            "log10_printed": sum(norm),
            "log10_constants": -0.5 * sum(variance),
            "log10_folded": 0.5 * count + wave,
            "log10_gradient": -0.5 * time,
        },
    )


def begin(writer: LogWriter, count: int, *, step: int = 0, name: str = "blocks.{}", **more: object) -> None:
    """Write the line with which a run begins, or is gone on with."""
    writer.write(
        "run",
        {
            "schema_version": SCHEMA_VERSION,
            "step": step,
            "began": "2026-01-02T03:04:05Z",
            "model": "Net",
            "parameters": 1234567,
            "optimizer": "SGD",
            "every": {"economy": 10, "standard": 50},
            "layers": [layer.to_json() for layer in layers(count, name)],
            "notes": [],
            "provenance": {"normscope": "0", "torch": "2", "device": "cpu"},
            **more,
        },
    )


def write(
    folder: str | os.PathLike[str],
    *,
    steps: int = 100,
    count: int = 3,
    findings: Sequence[Finding] = (ALARM,),
    ended: bool = True,
    rate: float = 1.0,
    name: str = "blocks.{}",
    **more: object,
) -> None:
    """Write the log of a whole run; without `ended` it goes on."""
    writer = LogWriter(folder)
    begin(writer, count, name=name, **more)
    for step in range(0, steps, 10):
        writer.write("step", record(step, count, rate=rate, standard=step % 50 == 0).to_json())
        for finding in findings:
            if finding.step == step:
                writer.write("finding", finding.to_json())
    if ended:
        writer.write("end", {"step": steps, "how": "finished", "seconds": 0.1 * steps, "overhead": 0.0123})
    writer.close()
