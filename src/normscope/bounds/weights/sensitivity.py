"""`WeightSensitivity`: how far the output, and a loss of it, move with each weight, as one frozen object."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from ...core.bracket import Bracket
from ...core.codec import JsonForm, Part, Saved
from ...core.errors import InputError
from ...report.document import Block, Cell, Column, Document, Kind, Table, Text
from ...report.shown import Shown
from ...report.words import counted, shape

if TYPE_CHECKING:
    import pandas

BRACKETS = ("bracket_h", "bracket_f", "printed_h", "printed_f")
READING = (
    "Every figure is an exponent of ten (log10). norm(h, W) bounds how far the output moves per unit (Frobenius) of "
    "change of one weight, all others and the data fixed: the upper side, norm(H) times the constant of the network "
    "behind the layer, for every value of the weight; the lower side for a change that was found. Relative is the "
    "lower side times norm(W): rescaling a weight in front of a normalizer moves the lower side, not that. Biases are "
    "held fixed."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRow(Part):
    """One weight, at the given data.

    Attributes:
        path, kind, operator: the module that applies it, its class and what it runs.
        parameter: the parameter's qualified name; `None` for a weight that is made from others.
        weight_shape, input_shape, output_shape: of the weight, of what it is applied to and of what comes out.
        uses: how many times it is applied.
        log10_read: log10 norm(H), the spectral norm of the matrix of what the layer reads at all its positions.
        log10_behind: log10 of the bound on the network behind the layer, everything else held at the data.
        log10_weight: log10 of the Frobenius norm of the weight.
        scale_invariant: whether a normalizer undoes any rescaling of the weight (and bias).
        bracket_h: norm(h, W), with one bracket per sample in `per_sample`; its `witness` is a change d of the weight
            such that W - d and W + d attain the lower side.
        bracket_f: norm(f, W) of the loss; `None` without one.
        printed_h, printed_f: the same as printed (Theorem 12, Corollary 14); `holds` says whether they are bounds.
        notes: what the reader must know of this weight.
    """

    JSON: ClassVar[JsonForm] = JsonForm(keys=(..., "log10_relative"))

    path: str
    kind: str
    operator: str
    parameter: str | None
    weight_shape: tuple[int, ...]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    uses: int
    log10_read: float
    log10_behind: float
    log10_weight: float
    scale_invariant: bool
    bracket_h: Bracket
    bracket_f: Bracket | None = None
    printed_h: Bracket
    printed_f: Bracket | None = None
    notes: tuple[str, ...] = ()

    @property
    def log10_relative(self) -> float:
        """log10 of the lower side times norm(W): the move of the output per relative change of the weight."""
        return self.bracket_h.log10_lower + self.log10_weight if math.isfinite(self.log10_weight) else -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSensitivity(Saved, Shown):
    """What `normscope.weight_sensitivity` found. Prints as a table; in a notebook it shows itself as HTML.

    Attributes:
        rows: one per weight, in the order they are applied.
        loss: the name of the loss; `None` without one.
        log10_loss: log10 of its constant in the outputs.
        mode: `"train"` or `"eval"`: which of the model's two functions was measured.
        samples: how many samples were measured; in train mode the batch is one.
        input_shape, output_shape: of the measured function.
        skipped: weights that were not measured, and why.
        notes: what the reader must know.
    """

    JSON: ClassVar[JsonForm] = JsonForm(
        kind="weight_sensitivity",
        noun="weight sensitivity",
        write="write one with to_json(path)",
        keys=(..., "schema_version", "type"),
    )

    rows: tuple[WeightRow, ...]
    loss: str | None
    log10_loss: float | None
    mode: str
    samples: int
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[WeightRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, path: str) -> WeightRow:
        """Return the row of a module by its path (the first, if it applies several weights)."""
        for row in self.rows:
            if row.path == path:
                return row
        raise KeyError(path)

    def to_pandas(self) -> pandas.DataFrame:
        """Return one line per weight, both sides of every bracket in columns of their own.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_pandas needs pandas: pip install pandas") from error
        lines = []
        for row in self.rows:
            line = {item.name: getattr(row, item.name) for item in fields(row) if item.name not in BRACKETS}
            line["log10_relative"] = row.log10_relative
            for name, found in (("h", row.bracket_h), ("f", row.bracket_f)):
                line[f"log10_{name}_lower"] = None if found is None else found.log10_lower
                line[f"log10_{name}_upper"] = None if found is None else found.log10_upper
            for name, found in (("h", row.printed_h), ("f", row.printed_f)):
                line[f"log10_printed_{name}"] = None if found is None else found.log10_upper
                line[f"printed_{name}_holds"] = None if found is None else found.holds
            lines.append(line)
        return pandas.DataFrame(lines)

    def document(self, *, brief: bool = False) -> Document:
        """Return the report: a sentence, the table, and what was not measured; the same for a terminal."""
        where = f"at {counted(self.samples, 'sample')}" if self.mode == "eval" else "at the batch, as one input"
        of = "" if self.loss is None else f" and of the loss ({self.loss})"
        blocks: list[Block] = [
            Text(
                body=f"Sensitivity of the output{of} to {counted(len(self.rows), 'weight')}, {self.mode} mode, {where}."
            )
        ]
        if self.rows:
            blocks.append(self._table())
        if self.skipped:
            columns = (Column(title="not measured"), Column(title="why"))
            blocks.append(Table(columns=columns, rows=self.skipped))
        blocks += [Text(body=f"Note: {note}") for note in self.notes]
        return Document(title="Sensitivity to the weights", blocks=tuple(blocks))

    def _table(self) -> Table:
        columns: list[tuple[str, Kind, Callable[[WeightRow], Cell]]] = [
            ("layer", "name", lambda row: row.path or "(model)"),
            ("operator", "name", lambda row: row.operator),
            ("weight", "name", lambda row: shape(row.weight_shape)),
            ("norm(H)", "log10", lambda row: row.log10_read),
            ("behind", "log10", lambda row: row.log10_behind),
            ("norm(h, W), lower", "log10", lambda row: row.bracket_h.log10_lower),
            ("upper", "log10", lambda row: row.bracket_h.log10_upper),
            ("relative", "log10", lambda row: row.log10_relative),
            ("norm(f, W), lower", "log10", lambda row: None if row.bracket_f is None else row.bracket_f.log10_lower),
            ("upper", "log10", lambda row: None if row.bracket_f is None else row.bracket_f.log10_upper),
            ("printed", "log10", lambda row: row.printed_h.log10_upper),
            ("is a bound", "name", lambda row: "yes" if row.printed_h.holds else "no"),
            ("remarks", "text", _remarks),
        ]
        kept = [c for c in columns if self.loss is not None or not c[0].startswith("norm(f")]
        if self.loss is None:
            kept.remove(columns[9])
        return Table(
            title="norm(h, W) by weight (log10)",
            caption=READING,
            columns=tuple(Column(title=title, kind=kind) for title, kind, _ in kept),
            rows=tuple(tuple(read(row) for *_, read in kept) for row in self.rows),
        )


def _remarks(row: WeightRow) -> str | None:
    parts = [row.bracket_h.reason or "", "scale invariant" if row.scale_invariant else ""]
    if row.bracket_f is not None and row.bracket_f.reason != row.bracket_h.reason:
        parts.append(row.bracket_f.reason or "")
    return "; ".join(part for part in (*parts, *row.notes) if part) or None
