"""`symmetries_document`: the symmetries of a model as the report a person reads."""

from __future__ import annotations

from ..geometry.candidate import KINDS
from ..geometry.symmetries import Symmetries, Symmetry
from ..report.document import Block, Cell, Column, Document, Notice, ReadColumn, Table, Text, tabulate
from ..report.words import pluralise

MEANING = {
    "channel scale": "A BatchNorm or InstanceNorm divides each channel by its size: the length of its filter is lost.",
    "group scale": "A GroupNorm (or a norm over heads) divides each group by its size: a common factor is lost.",
    "layer scale": "A LayerNorm or RMSNorm divides by the size of the whole output: one factor per layer is lost.",
    "row shift": "A LayerNorm subtracts the mean over channels: a vector added to every row of the weight is lost.",
    "redundant bias": "What the normalizer (or softmax) behind it subtracts: the bias need not be there.",
    "weight norm": "w = g v/norm(v): the length of v is lost.",
    "spectral norm": "W/sigma(W): the size of W is lost.",
    "relu pair": "relu(a x) = a relu(x) for a > 0: what one layer gains the next can lose.",
    "linear pair": "Two linear maps in a row: what one gains the next can lose.",
    "query-key pair": "Scores are products of queries and keys: what the keys gain the queries can lose.",
    "value-output pair": "The attention is linear in its values: what they gain the output projection can lose.",
}
READING = (
    "Change: of the output under a random element of the group, over its largest entry, at the weights as found and "
    "where eps plays no part; beside it a change of the same weights by chance. Gradient: its part along the symmetry, "
    "over norm(w) norm(grad), and how far that is from eps/(var + eps) sum (dL/dzhat) zhat. Hessian: H X w + X^T grad, "
    "over the same by chance. Fisher: the information along the symmetry over that by chance, without eps."
)


def symmetries_document(found: Symmetries, *, brief: bool = False) -> Document:
    """Return the report: a verdict, the table by kind, every symmetry with its evidence, and what does not hold."""
    blocks: list[Block] = [Text(body=verdict(found), lead=True)]
    if found.rows:
        blocks.append(_kinds(found))
    if found.verified and not brief:
        title = "Every symmetry and its evidence"
        blocks.append(tabulate(found.verified, EVIDENCE_COLUMNS, title=title, caption=READING))
    unverified = [row for row in found.rows if row.status != "verified"]
    blocks += [
        Notice(
            level="warning" if row.status == "failed" else "info",
            heading=f"Not claimed: {row.kind}",
            where=row.path,
            lines=(("seen", row.fault),),
        )
        for row in unverified
    ]
    if found.withheld:
        blocks.append(
            Table(
                title="In front of a normalizer, and yet no symmetry",
                columns=(Column(title="layer", kind="name"), Column(title="why")),
                rows=tuple(found.withheld),
            )
        )
    blocks += [Text(body=f"Note: {note}") for note in found.notes]
    return Document(title="Symmetries of the parameters", blocks=tuple(blocks))


def verdict(found: Symmetries) -> str:
    """Return what was found in a few sentences."""
    if not found.rows:
        return f"No symmetry was found among the {found.num_parameters:,} parameters, in {found.mode} mode."
    share = found.dof / max(found.num_parameters, 1)
    text = (
        f"{pluralise(len(found.verified), 'symmetry', 'symmetries')} in {found.mode} mode: "
        f"{found.dof:,} of {found.num_parameters:,} degrees of freedom ({100 * share:.2g} %) change nothing. "
    )
    text += (
        "Each was verified in float64."
        if len(found.verified) == len(found.rows)
        else f"{len(found.rows) - len(found.verified)} more did not stand the check and are not claimed."
    )
    if found.canonical_change is not None:
        text += (
            f" With scale-invariant weights of norm 1 (`canonicalize`) the output changes by "
            f"{found.canonical_change:.2g} of its size"
        )
        if found.canonical_change_eval is not None and found.mode == "train":
            text += f", and by {found.canonical_change_eval:.2g} in eval mode"
        text += "."
    return text


def _kinds(found: Symmetries) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for kind in KINDS:
        mine = [row for row in found.rows if row.kind == kind]
        good = [row for row in mine if row.status == "verified"]
        if mine:
            worst = max((row.evidence.output_change_no_eps for row in good), default=None)
            defect = max((row.evidence.output_change for row in good), default=None)
            rows.append(
                (kind, len(good), len(mine) - len(good), sum(r.dof for r in good), defect, worst, MEANING[kind])
            )
    return Table(
        title="By kind",
        columns=(
            Column(title="kind", kind="name"),
            Column(title="verified", kind="count", help="layers or pairs of layers"),
            Column(title="not claimed", kind="count", help="suggested by the graph, not confirmed by the numbers"),
            Column(title="degrees of freedom", kind="count", help="that change nothing"),
            Column(title="change", kind="number", help="largest relative change of the output, eps as it is"),
            Column(title="without eps", kind="number", help="the same where eps plays no part: rounding"),
            Column(title="why", help="what undoes the change"),
        ),
        rows=tuple(rows),
        caption="Akbar's table 1 for this model, corrected and completed.",
    )


EVIDENCE_COLUMNS: tuple[ReadColumn[Symmetry], ...] = (
    ReadColumn("kind", "name", lambda row: row.kind),
    ReadColumn("layer", "name", lambda row: row.path),
    ReadColumn("undone by", "name", lambda row: row.normalizer or None),
    ReadColumn("action", "text", lambda row: row.form),
    ReadColumn("units", "count", lambda row: row.units),
    ReadColumn("degrees of freedom", "count", lambda row: row.dof),
    ReadColumn("change", "number", lambda row: row.evidence.output_change),
    ReadColumn("without eps", "number", lambda row: row.evidence.output_change_no_eps),
    ReadColumn("by chance", "number", lambda row: row.evidence.output_change_chance),
    ReadColumn("gradient", "number", lambda row: row.evidence.radial),
    ReadColumn("off the formula", "number", lambda row: row.evidence.radial_error),
    ReadColumn("Hessian", "number", lambda row: row.evidence.hessian),
    ReadColumn("Fisher", "number", lambda row: row.evidence.fisher_no_eps),
)
