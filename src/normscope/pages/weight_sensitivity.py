"""`weight_sensitivity_document`: sensitivities to the weights as the report a person reads."""

from __future__ import annotations

from ..bounds.weights.sensitivity import WeightRow, WeightSensitivity
from ..report.document import Block, Column, Document, ReadColumn, Table, Text, tabulate
from ..report.words import pluralise, shape

READING = (
    "Every figure is an exponent of ten (log10). norm(h, W) bounds how far the output moves per unit (Frobenius) of "
    "change of one weight, all others and the data fixed: the upper side, norm(H) times the constant of the network "
    "behind the layer, for every value of the weight; the lower side for a change that was found. Relative is the "
    "lower side times norm(W): rescaling a weight in front of a normalizer moves the lower side, not that. Biases are "
    "held fixed."
)


def weight_sensitivity_document(found: WeightSensitivity, *, brief: bool = False) -> Document:
    """Return the report: a sentence, the table, and what was not measured; the same for a terminal."""
    where = f"at {pluralise(found.samples, 'sample')}" if found.mode == "eval" else "at the batch, as one input"
    of = "" if found.loss is None else f" and of the loss ({found.loss})"
    blocks: list[Block] = [
        Text(
            body=f"Sensitivity of the output{of} to {pluralise(len(found.rows), 'weight')}, {found.mode} mode, {where}."
        )
    ]
    if found.rows:
        blocks.append(_table(found))
    if found.skipped:
        columns = (Column(title="not measured"), Column(title="why"))
        blocks.append(Table(columns=columns, rows=found.skipped))
    blocks += [Text(body=f"Note: {note}") for note in found.notes]
    return Document(title="Sensitivity to the weights", blocks=tuple(blocks))


def _table(found: WeightSensitivity) -> Table:
    columns: list[ReadColumn[WeightRow]] = [
        ReadColumn("layer", "name", lambda row: row.path or "(model)"),
        ReadColumn("operator", "name", lambda row: row.operator),
        ReadColumn("weight", "name", lambda row: shape(row.weight_shape)),
        ReadColumn("norm(H)", "log10", lambda row: row.log10_read),
        ReadColumn("behind", "log10", lambda row: row.log10_behind),
        ReadColumn("norm(h, W), lower", "log10", lambda row: row.bracket_h.log10_lower),
        ReadColumn("upper", "log10", lambda row: row.bracket_h.log10_upper),
        ReadColumn("relative", "log10", lambda row: row.log10_relative),
    ]
    if found.loss is not None:
        columns += [
            ReadColumn(
                "norm(f, W), lower", "log10", lambda row: None if row.bracket_f is None else row.bracket_f.log10_lower
            ),
            ReadColumn("upper", "log10", lambda row: None if row.bracket_f is None else row.bracket_f.log10_upper),
        ]
    columns += [
        ReadColumn("printed", "log10", lambda row: row.printed_h.log10_upper),
        ReadColumn("is a bound", "name", lambda row: "yes" if row.printed_h.holds else "no"),
        ReadColumn("remarks", "text", _remarks),
    ]
    return tabulate(found.rows, columns, title="norm(h, W) by weight (log10)", caption=READING)


def _remarks(row: WeightRow) -> str | None:
    parts = [row.bracket_h.reason or "", "scale invariant" if row.scale_invariant else ""]
    if row.bracket_f is not None and row.bracket_f.reason != row.bracket_h.reason:
        parts.append(row.bracket_f.reason or "")
    return "; ".join(part for part in (*parts, *row.notes) if part) or None
