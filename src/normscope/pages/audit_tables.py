"""The rows of an audit as tables: the columns, their meanings and their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ..core.cost import Cost
from ..diagnosis.audit_result import Row, Variance
from ..report.document import Cell, Column, Kind, ReadColumn, Table, tabulate
from ..report.words import shape


def row_table(rows: Sequence[Row], titles: Sequence[str], *, title: str = "", caption: str = "") -> Table | None:
    """Return a table over rows, without the columns in which nothing was measured; None without rows."""
    columns = [COLUMNS[name] for name in titles]
    return tabulate(rows, columns, title=title, caption=caption, drop_empty=True) if rows else None


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


_COLUMNS: tuple[ReadColumn[Row], ...] = (
    ReadColumn("layer", "name", lambda row: row.path or "(model)"),
    ReadColumn("kind", "name", lambda row: row.kind, "The module's class."),
    ReadColumn(
        "gain",
        "log10",
        own_gain,
        "log10 of the layer's own constant: the operator norm of a weight layer (upper side), the constant of a "
        "normalizer over all inputs.",
    ),
    ReadColumn(
        "norm, lower", "log10", norm_lower, "log10 of a weight layer's operator norm: the side that is attained."
    ),
    ReadColumn("norm, upper", "log10", norm_upper, "log10 of a weight layer's operator norm: the side that bounds it."),
    ReadColumn(
        "evidence",
        "name",
        lambda row: None if row.norm is None else row.norm.evidence.name,
        "How the upper side of the norm is known: PROVEN includes rounding, NUMERICAL does not, SAMPLED is no bound.",
    ),
    ReadColumn(
        "printed", "log10", lambda row: row.log10_printed, "log10 of the normalizer's constant as papers print it."
    ),
    ReadColumn(
        "exact", "log10", lambda row: row.log10_exact, "log10 of the normalizer's exact constant over all inputs."
    ),
    ReadColumn(
        "at data",
        "log10",
        lambda row: row.log10_at_data,
        "log10 of the normalizer's largest constant at the data seen.",
    ),
    ReadColumn(
        "folded",
        "log10",
        lambda row: row.log10_folded,
        "log10 of the gain of the normalizer and the linear map before it as one map, with the variance seen in the "
        "data: an estimate from below. Rescaling those weights does not move it.",
    ),
    ReadColumn("folded with", "name", lambda row: row.folded_with, "The linear map before the normalizer."),
    ReadColumn(
        "from input", "log10", lambda row: row.log10_cumulative, "log10 of the bound on the map from the input to here."
    ),
    ReadColumn(
        "observed",
        "log10",
        lambda row: row.log10_observed,
        "log10 of the gain from the input to here at the data, along the direction the network stretches most.",
    ),
    ReadColumn(
        "sensitivity",
        "log10",
        sensitivity_lower,
        "log10 of how far the output moves per unit of change of the layer's weight, at the batch: the side that is "
        "attained.",
    ),
    ReadColumn(
        "sensitivity, lower",
        "log10",
        sensitivity_lower,
        "log10 of how far the output moves per unit (Frobenius) of change of the layer's weight, at the first "
        "samples of the batch: the side that is attained.",
    ),
    ReadColumn(
        "sensitivity, upper",
        "log10",
        sensitivity_upper,
        "log10 of the same for every value of the weight, all others as they are: norm(H) of what the layer reads "
        "times the constant of the network behind it.",
    ),
    ReadColumn(
        "var, min",
        "log10",
        of_variance(lambda variance: variance.log10_min),
        "log10 of the smallest variance among the sets the normalizer saw; -inf is a variance of zero.",
    ),
    ReadColumn(
        "var, median",
        "log10",
        of_variance(lambda variance: variance.log10_median),
        "log10 of the median variance (RMSNorm: mean square) among the sets the normalizer saw.",
    ),
    ReadColumn(
        "var, max",
        "log10",
        of_variance(lambda variance: variance.log10_max),
        "log10 of the largest variance among the sets the normalizer saw.",
    ),
    ReadColumn(
        "below 1",
        "percent",
        of_variance(lambda variance: variance.share_below_one),
        "Share of the sets with a variance below 1, where a normalizer that divides by it expands.",
    ),
    ReadColumn(
        "near eps",
        "percent",
        of_variance(lambda variance: variance.share_eps),
        "Share of the sets with a variance below 10 eps, where eps decides the result.",
    ),
    ReadColumn("eps", "log10", log10_eps, "log10 of the stabiliser."),
    ReadColumn("sets", "count", of_variance(lambda variance: variance.sets), "How many sets were normalized."),
    ReadColumn("entries", "count", of_variance(lambda variance: variance.entries), "How many values one set holds."),
    ReadColumn(
        "dead",
        "count",
        lambda row: row.dead_channels,
        "Output channels that carry nothing: their scale or filter is zero, or their input constant.",
    ),
    ReadColumn("channels", "count", lambda row: row.channels, "Output channels."),
    ReadColumn("parameters", "count", lambda row: row.parameters, "How many the layer holds."),
    ReadColumn("input", "name", lambda row: shape(row.input_shape), "Shape of the input."),
    ReadColumn("output", "name", lambda row: shape(row.output_shape), "Shape of the output."),
    ReadColumn("operator", "name", lambda row: row.operator, "What the layer runs."),
    ReadColumn("notes", "text", lambda row: "; ".join(row.notes) or None, "What was not measured here, and why."),
)
COLUMNS = {column.title: column for column in _COLUMNS}

LAYERS = (
    "layer", "kind", "norm, upper", "norm, lower", "exact", "at data", "folded", "from input", "observed",
    "sensitivity, upper", "sensitivity, lower", "var, median", "dead", "channels", "evidence", "parameters",
    "input", "output", "operator", "notes",
)  # fmt: skip
"""Every weight layer and normalizer, in the order they run."""

NORMALIZERS = (
    "layer", "kind", "var, min", "var, median", "var, max", "below 1", "near eps", "printed", "exact", "at data",
    "folded", "folded with", "eps", "sets", "entries",
)  # fmt: skip
"""The variances that the normalizers saw, and their constants."""

BRIEF = (
    "layer", "kind", "gain", "at data", "folded", "from input", "observed", "sensitivity", "var, median", "below 1",
    "dead",
)  # fmt: skip
"""One table for a terminal."""
