"""`Measures`: measures of generalization of one model, each with what it rests on and whether it is invariant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ...core.codec import JsonForm
from ...core.errors import InputError
from ...core.shown import data_frame
from ...report.document import FigureResult, figures_form

if TYPE_CHECKING:
    import pandas

Invariance = Literal["yes", "no", "with the start", "up to eps"]
"""Whether a measure stays when two layers of a ReLU network are multiplied by c and 1/c: `with the start` if the start
is rescaled alike, `up to eps` but for a constant of its definition that does not follow the scale of the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRow:
    """One measure of a model.

    Attributes:
        name: the name of the measure.
        group: what kind of measure it is.
        value: its value, or log10 of it; larger should mean a larger gap. None where it was not measured.
        is_log10: whether `value` is an exponent of ten.
        formula: how it is computed.
        rests_on: what it needs beside the weights: `data`, `loss`, `margin`, `start`, `search`, `losses`.
        invariant: whether it stays when layers are rescaled without effect on the function.
        source: where it comes from.
        reason: why there is no value.
    """

    name: str
    group: str
    value: float | None
    is_log10: bool
    formula: str
    rests_on: tuple[str, ...]
    invariant: Invariance
    source: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures(FigureResult):
    """The measures of generalization of a model. Prints as a table; in a notebook as HTML.

    Attributes:
        name, mode: the model's class and the mode that was measured.
        samples: how many samples were read.
        layers: how many weight layers count.
        rows: the measures.
        notes: what the reader must know.
    """

    page = "normscope.bounds.pages.measures:measures_document"
    JSON: ClassVar[JsonForm] = figures_form("measures", "measures")

    name: str
    mode: str
    samples: int
    layers: int
    rows: tuple[MeasureRow, ...]
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> float | None:
        for row in self.rows:
            if row.name == name:
                return row.value
        raise InputError(f"there is no measure {name!r}: there are {', '.join(row.name for row in self.rows)}")

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per measure as a table for pandas.

        Raises:
            InputError: pandas is not installed.
        """
        columns = ("name", "group", "value", "is_log10", "rests_on", "invariant", "reason", "formula", "source")
        return data_frame({column: getattr(row, column) for column in columns} for row in self.rows)
