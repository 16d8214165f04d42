"""`twin_document`: what was changed in a twin, as the report a person reads."""

from __future__ import annotations

from ..networks.twin import Twin
from ..report.document import Column, Document, Table, Text
from ..report.words import counted


def twin_document(twin: Twin, *, brief: bool = False) -> Document:
    """Return the report: every module that was changed, before and after."""
    what = "no normalizer" if twin.normalizer is None else f"{twin.normalizer} normalization"
    ran = "It ran on the batch." if twin.checked else "It was not run: pass a batch to have it checked."
    body = f"The twin has {what}: {counted(len(twin.changes), 'place')} changed. {ran}"
    columns = (Column(title="module", kind="name"), Column(title="was"), Column(title="now"), Column(title="note"))
    rows = tuple((change.path, change.was, change.now, change.note) for change in twin.changes)
    table = (Table(columns=columns, rows=rows),) if rows else ()
    notes = tuple(Text(body=f"Note: {note}.") for note in twin.notes)
    return Document(title=f"Twin of {type(twin.model).__name__}", blocks=(Text(body=body, lead=True), *table, *notes))
