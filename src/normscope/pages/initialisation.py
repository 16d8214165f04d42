"""`initialisation_document`: rescaled weights as the report a person reads."""

from __future__ import annotations

from ..networks.initialise import Initialisation
from ..report.document import Block, Column, Document, Table, Text
from ..report.words import counted


def initialisation_document(done: Initialisation, *, brief: bool = False) -> Document:
    """Return the report: how many layers were rescaled, and each layer before and after."""
    changed = len(done.factors)
    deviations = [layer.before for layer in done.layers]
    head = (
        f"{counted(changed, 'weight layer')} of {len(done.layers)} rescaled ({done.mode} mode). Before, what "
        f"layers hand on had deviations from {min(deviations):.3g} to {max(deviations):.3g}."
    )
    columns = (
        Column(title="layer", kind="name"),
        Column(title="deviation before", kind="number"),
        Column(title="after", kind="number"),
        Column(title="factor", kind="number", help="by which weight and bias were multiplied"),
        Column(title="gradient before", kind="log10", help="as a multiple of that at the output"),
        Column(title="after", kind="log10"),
        Column(title="left alone because"),
    )
    rows = tuple(
        (
            layer.path,
            layer.before,
            layer.after,
            layer.factor,
            layer.log10_gradient_before,
            layer.log10_gradient_after,
            layer.reason,
        )
        for layer in done.layers
    )
    notes = tuple(Text(body=f"Note: {note}.") for note in done.notes)
    blocks: tuple[Block, ...] = (Text(body=head, lead=True), Table(columns=columns, rows=rows), *notes)
    return Document(title=f"Initialisation of {type(done.model).__name__}", blocks=blocks)
