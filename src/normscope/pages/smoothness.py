"""`smoothness_document`: the smoothness of a loss as the report a person reads."""

from __future__ import annotations

import math

from ..diagnosis.verdict import sentence
from ..geometry.smoothness import Smoothness
from ..report.document import Block, Column, Curve, Curves, Document, Figure, Figures, Table, Text


def smoothness_document(found: Smoothness, *, brief: bool = False) -> Document:
    """Return the report, in a short form for a terminal if `brief`."""
    end = (
        f"and no longer at {found.unstable:.3g}"
        if found.unstable < math.inf
        else "and no larger one was found that is not"
    )
    head = f"Gradient descent is stable at a learning rate of {found.stable:.3g} {end} ({found.mode} mode)."
    if found.stable == 0.0:
        head = f"No stable learning rate was found down to {found.unstable:.3g} ({found.mode} mode)."
    blocks: list[Block] = [Text(body=head, lead=True)]
    if not brief:
        items = (
            Figure(label="Largest stable learning rate", value=found.stable, kind="number"),
            Figure(label="Largest curvature met by a step", value=found.effective_beta, kind="number"),
        )
        blocks += [Figures(items=items), _chart(found)]
    columns = (
        Column(title="step", kind="count"),
        *(
            Column(title=title, kind="number")
            for title in ("loss", "gradient", "least loss", "most loss", "predictiveness", "effective beta")
        ),
    )
    rows = tuple(
        (s.step, s.loss, s.gradient_norm, s.least_loss, s.most_loss, s.predictiveness, s.effective_beta)
        for s in found.steps
    )
    title = f"Along gradient descent with learning rate {found.learning_rate:.3g}"
    blocks.append(Table(title=title, columns=columns, rows=rows))
    blocks += [Text(body=sentence(f"{name}: {what}")) for name, what in found.definitions]
    blocks += [Text(body=sentence(note)) for note in found.notes]
    return Document(title=f"Smoothness of {found.name}", blocks=tuple(blocks))


def _chart(found: Smoothness) -> Curves:
    def line(name: str, values: list[float]) -> Curve:
        return Curve(name=name, points=tuple((float(s.step), v) for s, v in zip(found.steps, values)))

    curves = (
        line("loss", [s.loss for s in found.steps]),
        line("least along the step", [s.least_loss for s in found.steps]),
        line("most along the step", [s.most_loss for s in found.steps]),
    )
    return Curves(title="The loss, and its range along each gradient step", curves=curves, axis="loss")
