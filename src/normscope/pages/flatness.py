"""`flatness_document`: the flatness of a loss as the report a person reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..diagnosis.verdict import sentence
from ..geometry.flatness import Flatness
from ..geometry.spectrum import Estimate
from ..report.document import Block, Column, Curve, Curves, Document, Figure, Figures, Table, Text


def flatness_document(found: Flatness, *, brief: bool = False) -> Document:
    """Return the report, in a short form for a terminal if `brief`."""
    worst = next((one for one in found.noise if one.loss.value > 2 * found.loss), None)
    head = (
        f"Noise of {100 * worst.level:g} % of every group of weights more than doubles the loss of {found.loss:.4g}"
        if worst is not None
        else f"No level of noise that was tried doubles the loss of {found.loss:.4g}"
    )
    blocks: list[Block] = [Text(body=f"{head} ({found.mode} mode).", lead=True)]
    if not brief:
        items = [
            Figure(label="Spherical sharpness", value=found.spherical_sharpness, kind="number", term="sharpness"),
            Figure(
                label="Increase by ascent, at least", value=found.ascent, kind="number", note=f"within {found.rho:g}"
            ),
            Figure(label="The same, raw", value=found.raw_ascent, kind="number", note="depends on the scale"),
        ]
        blocks += [Figures(items=tuple(items)), *_charts(found)]
    columns = [
        Column(title="noise", kind="percent", help="relative to the weights"),
        Column(title="loss", kind="number", help="noise scaled by group"),
        Column(title="±", kind="number", help="standard error"),
        Column(title="raw loss", kind="number", help="depends on the scale of the weights"),
    ]
    rows: list[tuple[Any, ...]] = [(n.level, n.loss.value, n.loss.error, n.raw_loss.value) for n in found.noise]
    if found.accuracy is not None:
        columns += [Column(title="accuracy", kind="percent"), Column(title="raw accuracy", kind="percent")]
        rows = [
            (*row, n.accuracy and n.accuracy.value, n.raw_accuracy and n.raw_accuracy.value)
            for row, n in zip(rows, found.noise)
        ]
    blocks.append(Table(title="Under noise", columns=tuple(columns), rows=tuple(rows)))
    if brief:
        sharp = "not measured" if found.spherical_sharpness is None else f"{found.spherical_sharpness:.4g}"
        text = (
            f"Spherical sharpness {sharp}; ascent within {found.rho:g} adds at least {found.ascent:.3g} to the loss "
            f"(raw {found.raw_ascent:.3g})."
        )
        blocks.append(Text(body=text))
    blocks += [Text(body=sentence(f"{name}: {what}")) for name, what in found.definitions]
    blocks += [Text(body=sentence(note)) for note in found.notes]
    return Document(title=f"Flatness of {found.name}", blocks=tuple(blocks))


def _charts(found: Flatness) -> list[Block]:
    def line(name: str, start: float, values: Sequence[Estimate | None]) -> Curve:
        known = [(n.level, v.value) for n, v in zip(found.noise, values) if v is not None and math.isfinite(v.value)]
        return Curve(name=name, points=((0.0, start), *known))

    curves = (
        line("scaled by group", found.loss, [n.loss for n in found.noise]),
        line("raw", found.loss, [n.raw_loss for n in found.noise]),
    )
    blocks: list[Block] = [Curves(title="Loss under noise", curves=curves, axis="loss", along="noise")]
    if found.accuracy is not None:
        curves = (
            line("scaled by group", found.accuracy, [n.accuracy for n in found.noise]),
            line("raw", found.accuracy, [n.raw_accuracy for n in found.noise]),
        )
        blocks.append(Curves(title="Accuracy under noise", curves=curves, axis="accuracy", along="noise"))
    return blocks
