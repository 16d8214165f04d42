"""What the results of this room share: plain data for files, and a document for readers."""

from __future__ import annotations

from typing import Any, Self

from ..core.codec import JsonForm, Saved
from ..report.document import Shown


class FigureResult(Saved, Shown):
    """A frozen result made of figures, any of which may be NaN."""

    __slots__ = ()

    @classmethod
    def of_fields(cls, **fields: Any) -> Self:
        """Return the result that has the fields of a file; a result that cannot be shown counts as damaged."""
        result = cls(**fields)
        result.document()
        return result


def figures_form(kind: str, function: str, left_out: tuple[str, ...] = (), sparse: tuple[str, ...] = ()) -> JsonForm:
    """Return the form of a result's JSON file."""
    noun, write = f"result of normscope.{function}", "write one with to_json(path)"
    return JsonForm(kind=kind, noun=noun, write=write, left_out=left_out, sparse=sparse, nan=True)
