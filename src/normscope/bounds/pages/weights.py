"""Weights and changed networks as reports: symmetries, sensitivities, a twin, and rescaled weights."""

from __future__ import annotations

from ...report.document import Block, Cell, Chart, Column, Document, Notice, ReadColumn, Series, Table, Text, tabulate
from ...report.words import pluralise, shape
from ..geometry.candidate import SYMMETRY_KINDS
from ..geometry.symmetries import Symmetries, Symmetry
from ..networks.initialise import Initialisation, Scaled
from ..networks.twin import Twin
from ..weights.sensitivity import WeightRow, WeightSensitivity
from .bounds import span_chart

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
READING_SYMMETRIES = (
    "Change: of the output under a random element of the group, over its largest entry, at the weights as found and "
    "where eps plays no part; beside it a change of the same weights by chance. Gradient: its part along the symmetry, "
    "over norm(w) norm(grad), and how far that is from eps/(var + eps) sum (dL/dzhat) zhat. Hessian: H X w + X^T grad, "
    "over the same by chance. Fisher: the information along the symmetry over that by chance, without eps."
)


def symmetries_document(symmetries: Symmetries, *, brief: bool = False) -> Document:
    """Return the report: a verdict, the table by kind, every symmetry with its evidence, and what does not hold."""
    blocks: list[Block] = [Text(body=_symmetries_verdict(symmetries), lead=True)]
    if symmetries.rows:
        kinds = _kinds(symmetries)
        freedom = Series(
            name="degrees of freedom",
            style="spans",
            values=(0.0,) * len(kinds.rows),
            until=tuple(float(str(row[3])) for row in kinds.rows),
        )
        chart = Chart(
            title="Degrees of freedom that change nothing",
            labels=tuple(str(row[0]) for row in kinds.rows),
            series=(freedom,),
            axis="degrees of freedom",
            sideways=True,
        )
        blocks += [kinds] if brief else [chart, kinds]
    if symmetries.verified and not brief:
        title = "Every symmetry and its evidence"
        blocks.append(tabulate(symmetries.verified, EVIDENCE_COLUMNS, title=title, caption=READING_SYMMETRIES))
    unverified = [row for row in symmetries.rows if row.status != "verified"]
    blocks += [
        Notice(
            level="warning" if row.status == "failed" else "info",
            heading=f"Not claimed: {row.kind}",
            where=row.path,
            lines=(("seen", row.fault),),
        )
        for row in unverified
    ]
    if symmetries.withheld:
        blocks.append(
            Table(
                title="In front of a normalizer, and yet no symmetry",
                columns=(Column("layer", "name"), Column("why")),
                rows=tuple(symmetries.withheld),
            )
        )
    blocks += [Text(body=f"Note: {note}") for note in symmetries.notes]
    return Document(title="Symmetries of the parameters", blocks=tuple(blocks))


def _symmetries_verdict(symmetries: Symmetries) -> str:
    """Return what was found in a few sentences."""
    if not symmetries.rows:
        return f"No symmetry was found among the {symmetries.num_parameters:,} parameters, in {symmetries.mode} mode."
    share = symmetries.dof / max(symmetries.num_parameters, 1)
    text = (
        f"{pluralise(len(symmetries.verified), 'symmetry', 'symmetries')} in {symmetries.mode} mode: "
        f"{symmetries.dof:,} of {symmetries.num_parameters:,} degrees of freedom ({100 * share:.2g} %) change nothing. "
    )
    text += (
        "Each was verified in float64."
        if len(symmetries.verified) == len(symmetries.rows)
        else f"{len(symmetries.rows) - len(symmetries.verified)} more did not stand the check and are not claimed."
    )
    if symmetries.canonical_change is not None:
        text += (
            f" With scale-invariant weights of norm 1 (`canonicalize`) the output changes by "
            f"{symmetries.canonical_change:.2g} of its size"
        )
        if symmetries.canonical_change_eval is not None and symmetries.mode == "train":
            text += f", and by {symmetries.canonical_change_eval:.2g} in eval mode"
        text += "."
    return text


def _kinds(symmetries: Symmetries) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for kind in SYMMETRY_KINDS:
        mine = [row for row in symmetries.rows if row.kind == kind]
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
            Column("kind", "name"),
            Column("verified", "count", "layers or pairs of layers"),
            Column("not claimed", "count", "suggested by the graph, not confirmed by the numbers"),
            Column("degrees of freedom", "count", "that change nothing"),
            Column("change", "number", "largest relative change of the output, eps as it is"),
            Column("without eps", "number", "the same where eps plays no part: rounding"),
            Column("why", help="what undoes the change"),
        ),
        rows=tuple(rows),
        caption="Akbar's table 1 for this model, corrected and completed.",
    )


EVIDENCE_COLUMNS: tuple[ReadColumn[Symmetry], ...] = (
    ReadColumn("kind", "name", "kind"),
    ReadColumn("layer", "name", "path"),
    ReadColumn("undone by", "name", lambda row: row.normalizer or None),
    ReadColumn("action", "text", "form"),
    ReadColumn("units", "count", "units"),
    ReadColumn("degrees of freedom", "count", "dof"),
    ReadColumn("change", "number", "evidence.output_change"),
    ReadColumn("without eps", "number", "evidence.output_change_no_eps"),
    ReadColumn("by chance", "number", "evidence.output_change_chance"),
    ReadColumn("gradient", "number", "evidence.radial"),
    ReadColumn("off the formula", "number", "evidence.radial_error"),
    ReadColumn("Hessian", "number", "evidence.hessian"),
    ReadColumn("Fisher", "number", "evidence.fisher_no_eps"),
)


READING_SENSITIVITIES = (
    "Every figure is an exponent of ten (log10). norm(h, W) bounds how far the output moves per unit (Frobenius) of "
    "change of one weight, all others and the data fixed: the upper side, norm(H) times the constant of the network "
    "behind the layer, for every value of the weight; the lower side for a change that was found. Relative is the "
    "lower side times norm(W): rescaling a weight in front of a normalizer moves the lower side, not that. Biases are "
    "held fixed."
)


def weight_sensitivity_document(sensitivity: WeightSensitivity, *, brief: bool = False) -> Document:
    """Return the report: a sentence, the table, and what was not measured; the same for a terminal."""
    where = (
        f"at {pluralise(sensitivity.samples, 'sample')}" if sensitivity.mode == "eval" else "at the batch, as one input"
    )
    of = "" if sensitivity.loss is None else f" and of the loss ({sensitivity.loss})"
    which = f"{pluralise(len(sensitivity.rows), 'weight')}, {sensitivity.mode} mode, {where}"
    blocks: list[Block] = [Text(body=f"Sensitivity of the output{of} to {which}.")]
    if sensitivity.rows:
        brackets = {f"{row.path or '(model)'} {row.operator}": row.bracket_h for row in sensitivity.rows}
        blocks += [] if brief else [span_chart(brackets, "How far the output can move per unit of change of a weight")]
        blocks.append(_sensitivity_table(sensitivity))
    if sensitivity.skipped:
        columns = (Column("not measured"), Column("why"))
        blocks.append(Table(columns=columns, rows=sensitivity.skipped))
    blocks += [Text(body=f"Note: {note}") for note in sensitivity.notes]
    return Document(title="Sensitivity to the weights", blocks=tuple(blocks))


def _sensitivity_table(sensitivity: WeightSensitivity) -> Table:
    columns: list[ReadColumn[WeightRow]] = [
        ReadColumn("layer", "name", lambda row: row.path or "(model)"),
        ReadColumn("operator", "name", "operator"),
        ReadColumn("weight", "name", lambda row: shape(row.weight_shape)),
        ReadColumn("norm(H)", "log10", "log10_read"),
        ReadColumn("behind", "log10", "log10_behind"),
        ReadColumn("norm(h, W), lower", "log10", "bracket_h.log10_lower"),
        ReadColumn("upper", "log10", "bracket_h.log10_upper"),
        ReadColumn("relative", "log10", "log10_relative"),
    ]
    if sensitivity.loss is not None:
        columns += [
            ReadColumn("norm(f, W), lower", "log10", "bracket_f.log10_lower"),
            ReadColumn("upper", "log10", "bracket_f.log10_upper"),
        ]
    columns += [
        ReadColumn("printed", "log10", "printed_h.log10_upper"),
        ReadColumn("is a bound", "name", lambda row: "yes" if row.printed_h.holds else "no"),
        ReadColumn("remarks", "text", _remarks),
    ]
    return tabulate(sensitivity.rows, columns, title="norm(h, W) by weight (log10)", caption=READING_SENSITIVITIES)


def _remarks(row: WeightRow) -> str | None:
    parts = [row.bracket_h.reason or "", "scale invariant" if row.scale_invariant else ""]
    if row.bracket_f is not None and row.bracket_f.reason != row.bracket_h.reason:
        parts.append(row.bracket_f.reason or "")
    return "; ".join(part for part in (*parts, *row.notes) if part) or None


def twin_document(twin: Twin, *, brief: bool = False) -> Document:
    """Return the report: every module that was changed, before and after."""
    what = "no normalizer" if twin.normalizer is None else f"{twin.normalizer} normalization"
    ran = "It ran on the batch." if twin.checked else "It was not run: pass a batch to have it checked."
    body = f"The twin has {what}: {pluralise(len(twin.changes), 'place')} changed. {ran}"
    columns = (Column("module", "name"), Column("was"), Column("now"), Column("note"))
    rows = tuple((change.path, change.was, change.now, change.note) for change in twin.changes)
    table = (Table(columns=columns, rows=rows),) if rows else ()
    notes = tuple(Text(body=f"Note: {note}.") for note in twin.notes)
    title = "Twin" if twin.model is None else f"Twin of {type(twin.model).__name__}"
    return Document(title=title, blocks=(Text(body=body, lead=True), *table, *notes))


def initialisation_document(done: Initialisation, *, brief: bool = False) -> Document:
    """Return the report: how many layers were rescaled, and each layer before and after."""
    changed = len(done.factors)
    deviations = [layer.before for layer in done.layers]
    head = (
        f"{pluralise(changed, 'weight layer')} of {len(done.layers)} rescaled ({done.mode} mode). Before, what "
        f"layers hand on had deviations from {min(deviations):.3g} to {max(deviations):.3g}."
    )
    columns: tuple[ReadColumn[Scaled], ...] = (
        ReadColumn("layer", "name", "path"),
        ReadColumn("deviation before", "number", "before"),
        ReadColumn("after", "number", "after"),
        ReadColumn("factor", "number", "factor", "by which weight and bias were multiplied"),
        ReadColumn("gradient before", "log10", "log10_gradient_before", "as a multiple of that at the output"),
        ReadColumn("after", "log10", "log10_gradient_after"),
        ReadColumn("left alone because", "text", "reason"),
    )
    notes = tuple(Text(body=f"Note: {note}.") for note in done.notes)
    series = (
        Series(name="before", style="marks", values=tuple(layer.before for layer in done.layers)),
        Series(name="after", style="line", values=tuple(layer.after for layer in done.layers)),
    )
    chart = Chart(
        title="Deviation of what each layer hands on",
        labels=tuple(layer.path for layer in done.layers),
        series=series,
        axis="standard deviation",
    )
    charts = () if brief else (chart,)
    blocks: tuple[Block, ...] = (Text(body=head, lead=True), *charts, tabulate(done.layers, columns), *notes)
    title = "Initialisation" if done.model is None else f"Initialisation of {type(done.model).__name__}"
    return Document(title=title, blocks=blocks)
