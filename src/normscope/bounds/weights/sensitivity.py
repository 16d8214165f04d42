"""`WeightSensitivity`: how far the output, and a loss of it, move with each weight, as one frozen object."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from ...core.bracket import Bracket
from ...core.codec import JsonForm, Part, Saved
from ...core.shown import Shown, data_frame

if TYPE_CHECKING:
    import pandas

BRACKETS = ("bracket_h", "bracket_f", "printed_h", "printed_f")


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

    page = "normscope.bounds.pages.weights:weight_sensitivity_document"
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
        lines = []
        for row in self.rows:
            line = {item.name: getattr(row, item.name) for item in fields(row) if item.name not in BRACKETS}
            line["log10_relative"] = row.log10_relative
            for name, bracket in (("h", row.bracket_h), ("f", row.bracket_f)):
                line[f"log10_{name}_lower"] = None if bracket is None else bracket.log10_lower
                line[f"log10_{name}_upper"] = None if bracket is None else bracket.log10_upper
            for name, bracket in (("h", row.printed_h), ("f", row.printed_f)):
                line[f"log10_printed_{name}"] = None if bracket is None else bracket.log10_upper
                line[f"printed_{name}_holds"] = None if bracket is None else bracket.holds
            lines.append(line)
        return data_frame(lines)
