"""`initialisation_document`: rescaled weights as the report a person reads."""

from __future__ import annotations

from ..networks.initialise import Initialisation, Scaled
from ..report.document import Block, Document, ReadColumn, Text, tabulate
from ..report.words import counted


def initialisation_document(done: Initialisation, *, brief: bool = False) -> Document:
    """Return the report: how many layers were rescaled, and each layer before and after."""
    changed = len(done.factors)
    deviations = [layer.before for layer in done.layers]
    head = (
        f"{counted(changed, 'weight layer')} of {len(done.layers)} rescaled ({done.mode} mode). Before, what "
        f"layers hand on had deviations from {min(deviations):.3g} to {max(deviations):.3g}."
    )
    columns: tuple[ReadColumn[Scaled], ...] = (
        ReadColumn("layer", "name", lambda layer: layer.path),
        ReadColumn("deviation before", "number", lambda layer: layer.before),
        ReadColumn("after", "number", lambda layer: layer.after),
        ReadColumn("factor", "number", lambda layer: layer.factor, "by which weight and bias were multiplied"),
        ReadColumn(
            "gradient before",
            "log10",
            lambda layer: layer.log10_gradient_before,
            "as a multiple of that at the output",
        ),
        ReadColumn("after", "log10", lambda layer: layer.log10_gradient_after),
        ReadColumn("left alone because", "text", lambda layer: layer.reason),
    )
    notes = tuple(Text(body=f"Note: {note}.") for note in done.notes)
    blocks: tuple[Block, ...] = (Text(body=head, lead=True), tabulate(done.layers, columns), *notes)
    return Document(title=f"Initialisation of {type(done.model).__name__}", blocks=blocks)
