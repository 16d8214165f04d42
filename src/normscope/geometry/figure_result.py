"""What the results of this room share: plain data for files, and a document for readers."""

from __future__ import annotations

from typing import Any, Self

from ..core.codec import JsonForm, Saved
from ..report.shown import Shown


class FigureResult(Saved, Shown):
    """A frozen result of figures, any of which may be NaN."""

    __slots__ = ()

    @classmethod
    def of_fields(cls, **given: Any) -> Self:
        """Make the result from the fields that were read; what cannot be shown is damaged."""
        made = cls(**given)
        made.document()
        return made


def figures_form(kind: str, function: str, left_out: tuple[str, ...] = ()) -> JsonForm:
    """Return the form of the file of a result of figures.

    Args:
        kind: its `type`.
        function: of `normscope`, that returns it.
        left_out: fields that are not stored.
    """
    noun, write = f"result of normscope.{function}", "write one with to_json(path)"
    return JsonForm(kind=kind, noun=noun, write=write, left_out=left_out, nan=True)
