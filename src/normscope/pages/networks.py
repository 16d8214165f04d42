"""Changed networks as reports: a twin, and rescaled weights."""

from __future__ import annotations

from ..networks.initialise import Initialisation, Scaled
from ..networks.twin import Twin
from ..report.document import Block, Column, Document, ReadColumn, Table, Text, tabulate
from ..report.words import pluralise


def twin_document(twin: Twin, *, brief: bool = False) -> Document:
    """Return the report: every module that was changed, before and after."""
    what = "no normalizer" if twin.normalizer is None else f"{twin.normalizer} normalization"
    ran = "It ran on the batch." if twin.checked else "It was not run: pass a batch to have it checked."
    body = f"The twin has {what}: {pluralise(len(twin.changes), 'place')} changed. {ran}"
    columns = (Column(title="module", kind="name"), Column(title="was"), Column(title="now"), Column(title="note"))
    rows = tuple((change.path, change.was, change.now, change.note) for change in twin.changes)
    table = (Table(columns=columns, rows=rows),) if rows else ()
    notes = tuple(Text(body=f"Note: {note}.") for note in twin.notes)
    return Document(title=f"Twin of {type(twin.model).__name__}", blocks=(Text(body=body, lead=True), *table, *notes))


def initialisation_document(done: Initialisation, *, brief: bool = False) -> Document:
    """Return the report: how many layers were rescaled, and each layer before and after."""
    changed = len(done.factors)
    deviations = [layer.before for layer in done.layers]
    head = (
        f"{pluralise(changed, 'weight layer')} of {len(done.layers)} rescaled ({done.mode} mode). Before, what "
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
