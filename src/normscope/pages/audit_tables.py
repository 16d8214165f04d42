"""The rows of an audit as tables: the columns, their meanings and their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..core.cost import Cost
from ..diagnosis.audit_result import Row, Variance
from ..report.document import Cell, Column, Kind, Table
from ..report.words import shape


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumn:
    """A column over rows: its heading, its kind, its meaning, and the function that reads its cell from a row."""

    title: str
    value: Callable[[Row], Cell]
    kind: Kind = "log10"
    help: str = ""


def row_table(rows: Sequence[Row], columns: Sequence[RowColumn], *, title: str = "", caption: str = "") -> Table | None:
    """Return a table over rows, without the columns in which nothing was measured."""
    if not rows:
        return None
    read = [(column, [column.value(row) for row in rows]) for column in columns]
    kept = [
        (column, cells) for column, cells in read if column is columns[0] or any(c not in (None, "") for c in cells)
    ]
    return Table(
        title=title,
        caption=caption,
        columns=tuple(Column(title=column.title, kind=column.kind, help=column.help) for column, _ in kept),
        rows=tuple(zip(*(cells for _, cells in kept))),
    )


def cost_table(cost: Cost | None) -> Table | None:
    """Return the cost of an audit by part, with the sum; None where it was not counted."""
    if cost is None:
        return None
    kinds: list[tuple[str, Kind, Mapping[str, float], str]] = [
        ("forward", "count", cost.passes, "Samples that went forward through the model or its graph."),
        ("backward", "count", cost.backwards, "Samples that went backward."),
        ("norms", "count", cost.norms, "Norms of linear maps that were bounded; one that is known is not taken again."),
        ("products", "count", cost.products, "Products of a vector with a linear map or its transpose."),
        ("time", "seconds", cost.seconds, "On the clock; audits read from a file have none."),
    ]
    kept = [kind for kind in kinds if kind[2]]
    parts = list(dict.fromkeys(part for _, _, taken, _ in kinds for part in taken))
    if not parts:
        return None
    rows = [(part, *(taken.get(part) for _, _, taken, _ in kept)) for part in parts]
    return Table(
        title="What this audit cost",
        columns=(
            Column(title="part", kind="name"),
            *(Column(title=title, kind=kind, help=text) for title, kind, _, text in kept),
        ),
        rows=(*rows, ("together", *(sum(taken.values()) for _, _, taken, _ in kept))),
    )


def norm_lower(row: Row) -> float | None:
    """Return log10 of the lower side of a weight layer's norm."""
    return None if row.norm is None else row.norm.log10_lower


def norm_upper(row: Row) -> float | None:
    """Return log10 of the upper side of a weight layer's norm."""
    return None if row.norm is None else row.norm.log10_upper


def own_gain(row: Row) -> float | None:
    """Return log10 of a row's own constant: a weight layer's norm, a normalizer's constant over all inputs."""
    return row.log10_exact if row.norm is None else row.norm.log10_upper


def sensitivity_lower(row: Row) -> float | None:
    """Return log10 of the attained side of a weight's sensitivity; None where no search was made."""
    found = row.sensitivity
    if found is None or (found.log10_lower == -math.inf < found.log10_upper):
        return None
    return found.log10_lower


def sensitivity_upper(row: Row) -> float | None:
    """Return log10 of the upper side of a weight's sensitivity."""
    return None if row.sensitivity is None else row.sensitivity.log10_upper


def log10_eps(row: Row) -> float | None:
    """Return log10 of a normalizer's stabiliser, if it saw data and has one."""
    return math.log10(row.variance.eps) if row.variance is not None and row.variance.eps > 0 else None


def of_variance(read: Callable[[Variance], Cell]) -> Callable[[Row], Cell]:
    """Return a function that reads a figure of a row's variance, and gives None where the row has no variance."""
    return lambda row: None if row.variance is None else read(row.variance)


PATH = RowColumn(title="layer", kind="name", value=lambda row: row.path or "(model)")
KIND = RowColumn(title="kind", kind="name", value=lambda row: row.kind, help="The module's class.")
GAIN = RowColumn(
    title="gain",
    value=own_gain,
    help="log10 of the layer's own constant: the operator norm of a weight layer (upper side), the constant of a "
    "normalizer over all inputs.",
)
LOWER = RowColumn(
    title="norm, lower", value=norm_lower, help="log10 of a weight layer's operator norm: the side that is attained."
)
UPPER = RowColumn(
    title="norm, upper", value=norm_upper, help="log10 of a weight layer's operator norm: the side that bounds it."
)
EVIDENCE = RowColumn(
    title="evidence",
    kind="name",
    value=lambda row: None if row.norm is None else row.norm.evidence.name,
    help="How the upper side of the norm is known: PROVEN includes rounding, NUMERICAL does not, SAMPLED is no bound.",
)
PRINTED = RowColumn(
    title="printed", value=lambda row: row.log10_printed, help="log10 of the normalizer's constant as papers print it."
)
EXACT = RowColumn(
    title="exact", value=lambda row: row.log10_exact, help="log10 of the normalizer's exact constant over all inputs."
)
AT_DATA = RowColumn(
    title="at data",
    value=lambda row: row.log10_at_data,
    help="log10 of the normalizer's largest constant at the data seen.",
)
FOLDED = RowColumn(
    title="folded",
    value=lambda row: row.log10_folded,
    help="log10 of the gain of the normalizer and the linear map before it as one map, with the variance seen in the "
    "data: an estimate from below. Rescaling those weights does not move it.",
)
FOLDED_WITH = RowColumn(
    title="folded with", kind="name", value=lambda row: row.folded_with, help="The linear map before the normalizer."
)
CUMULATIVE = RowColumn(
    title="from input",
    value=lambda row: row.log10_cumulative,
    help="log10 of the bound on the map from the input to here.",
)
OBSERVED = RowColumn(
    title="observed",
    value=lambda row: row.log10_observed,
    help="log10 of the gain from the input to here at the data, along the direction the network stretches most.",
)
SENSITIVITY = RowColumn(
    title="sensitivity",
    value=lambda row: sensitivity_lower(row),
    help="log10 of how far the output moves per unit of change of the layer's weight, at the batch: the side that is "
    "attained.",
)
SENSITIVITY_LOWER = RowColumn(
    title="sensitivity, lower",
    value=lambda row: sensitivity_lower(row),
    help="log10 of how far the output moves per unit (Frobenius) of change of the layer's weight, at the first samples "
    "of the batch: the side that is attained.",
)
SENSITIVITY_UPPER = RowColumn(
    title="sensitivity, upper",
    value=lambda row: sensitivity_upper(row),
    help="log10 of the same for every value of the weight, all others as they are: norm(H) of what the layer reads "
    "times the constant of the network behind it.",
)
MINIMUM = RowColumn(
    title="var, min",
    value=of_variance(lambda variance: variance.log10_min),
    help="log10 of the smallest variance among the sets the normalizer saw; -inf is a variance of zero.",
)
MEDIAN = RowColumn(
    title="var, median",
    value=of_variance(lambda variance: variance.log10_median),
    help="log10 of the median variance (RMSNorm: mean square) among the sets the normalizer saw.",
)
MAXIMUM = RowColumn(
    title="var, max",
    value=of_variance(lambda variance: variance.log10_max),
    help="log10 of the largest variance among the sets the normalizer saw.",
)
BELOW_ONE = RowColumn(
    title="below 1",
    kind="percent",
    value=of_variance(lambda variance: variance.share_below_one),
    help="Share of the sets with a variance below 1, where a normalizer that divides by it expands.",
)
NEAR_EPS = RowColumn(
    title="near eps",
    kind="percent",
    value=of_variance(lambda variance: variance.share_eps),
    help="Share of the sets with a variance below 10 eps, where eps decides the result.",
)
EPS = RowColumn(title="eps", value=log10_eps, help="log10 of the stabiliser.")
SETS = RowColumn(
    title="sets", kind="count", value=of_variance(lambda variance: variance.sets), help="How many sets were normalized."
)
ENTRIES = RowColumn(
    title="entries",
    kind="count",
    value=of_variance(lambda variance: variance.entries),
    help="How many values one set holds.",
)
DEAD = RowColumn(
    title="dead",
    kind="count",
    value=lambda row: row.dead_channels,
    help="Output channels that carry nothing: their scale or filter is zero, or their input constant.",
)
CHANNELS = RowColumn(title="channels", kind="count", value=lambda row: row.channels, help="Output channels.")
PARAMETERS = RowColumn(
    title="parameters", kind="count", value=lambda row: row.parameters, help="How many the layer holds."
)
INPUT = RowColumn(title="input", kind="name", value=lambda row: shape(row.input_shape), help="Shape of the input.")
OUTPUT = RowColumn(title="output", kind="name", value=lambda row: shape(row.output_shape), help="Shape of the output.")
OPERATOR = RowColumn(title="operator", kind="name", value=lambda row: row.operator, help="What the layer runs.")
NOTES = RowColumn(
    title="notes",
    kind="text",
    value=lambda row: "; ".join(row.notes) or None,
    help="What was not measured here, and why.",
)

LAYERS = (
    *(PATH, KIND, UPPER, LOWER, EXACT, AT_DATA, FOLDED, CUMULATIVE, OBSERVED, SENSITIVITY_UPPER, SENSITIVITY_LOWER),
    *(MEDIAN, DEAD, CHANNELS, EVIDENCE, PARAMETERS, INPUT, OUTPUT, OPERATOR, NOTES),
)
"""Every weight layer and normalizer, in the order they run."""

NORMALIZERS = (
    *(PATH, KIND, MINIMUM, MEDIAN, MAXIMUM, BELOW_ONE, NEAR_EPS, PRINTED, EXACT, AT_DATA, FOLDED, FOLDED_WITH),
    *(EPS, SETS, ENTRIES),
)
"""The variances that the normalizers saw, and their constants."""

BRIEF = (PATH, KIND, GAIN, AT_DATA, FOLDED, CUMULATIVE, OBSERVED, SENSITIVITY, MEDIAN, BELOW_ONE, DEAD)
"""One table for a terminal."""
