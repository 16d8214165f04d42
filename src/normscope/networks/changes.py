"""`Twin`: a model's twin, and what was changed to make it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from ..core.codec import JsonForm, encoded
from ..report.document import Column, Document, Table, Text
from ..report.shown import Shown
from ..report.words import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One place of a model that its twin has otherwise.

    Attributes:
        path: the module.
        was, now: what stood and what stands there.
        note: what was done to weights, scales, shifts or statistics.
    """

    path: str
    was: str
    now: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin(Shown):
    """A copy of a model with other normalizers. Prints as a table of what was changed.

    Attributes:
        model: the twin, a `torch.nn.Module` of its own.
        normalizer: what it was asked to have.
        changes: one per place, in the order of the model.
        checked: whether it was run on a batch.
        notes: what the reader must know.
    """

    JSON: ClassVar[JsonForm] = JsonForm(left_out=("model",))

    model: nn.Module = field(repr=False)
    normalizer: str | None
    changes: tuple[Change, ...]
    checked: bool
    notes: tuple[str, ...] = ()

    def document(self, *, brief: bool = False) -> Document:
        """Return what was changed as plain blocks."""
        what = "no normalizer" if self.normalizer is None else f"{self.normalizer} normalization"
        ran = "It ran on the batch." if self.checked else "It was not run: pass a batch to have it checked."
        body = f"The twin has {what}: {counted(len(self.changes), 'place')} changed. {ran}"
        columns = (Column(title="module", kind="name"), Column(title="was"), Column(title="now"), Column(title="note"))
        rows = tuple((change.path, change.was, change.now, change.note) for change in self.changes)
        table = (Table(columns=columns, rows=rows),) if rows else ()
        notes = tuple(Text(body=f"Note: {note}.") for note in self.notes)
        return Document(
            title=f"Twin of {type(self.model).__name__}", blocks=(Text(body=body, lead=True), *table, *notes)
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data: what was changed, without the weights."""
        return dict(encoded(self))
