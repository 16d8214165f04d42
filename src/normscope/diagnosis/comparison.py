"""`compare`: models, audits or measures side by side, and what changed most between them, layer by layer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from torch import nn

from ..core.codec import JsonForm
from ..core.errors import InputError
from ..core.untouched import Mode
from ..generalize.measure_table import Measures
from ..report.document import FigureResult, Read, figures_form, read_from
from .audit_result import Audit, Row
from .auditing import audit as audit_model

Key = tuple[str, str, int]
"""A row among those of an audit: its path, its role, and which of its runs."""
Name = TypeVar("Name", bound=Hashable)
QUANTITIES: dict[str, Read[Row]] = {
    "operator norm": "norm.log10_upper",
    "gain of the normalizer at the data": "log10_at_data",
    "gain with the layer before it": "log10_folded",
    "growth from the input, observed": "log10_observed",
}
"""What is compared of every layer, as log10."""
LEAST_CHANGE = 0.005
"""Norms are known within 0.1 %: a change by less than this many powers of ten, about 1 %, is not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """How much one quantity of a layer differs between audits.

    Attributes:
        path: the layer.
        quantity: what was measured of it.
        values: log10 of it in each audit; None where an audit does not have it.
        spread: the largest less the smallest value: 1 is ten times.
    """

    path: str
    quantity: str
    values: tuple[float | None, ...]
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(FigureResult):
    """Audits, or measures, side by side. Prints as tables; in a notebook as HTML.

    Attributes:
        audits: the audits by name; the first is what others are compared with. Empty where measures are compared.
        measures: measures by name. Empty where audits are compared.
    """

    page = "audit_comparison:comparison_document"
    JSON: ClassVar[JsonForm] = figures_form("comparison", "compare")

    audits: Mapping[str, Audit] = field(default_factory=dict)
    measures: Mapping[str, Measures] = field(default_factory=dict)

    @property
    def changes(self) -> tuple[LayerChange, ...]:
        """What differs between the audits, layer by layer, the largest difference first."""
        return find_changes(self.audits)


def compare(
    *subjects: nn.Module | Audit | Measures,
    data: Any = None,
    names: Sequence[str] | None = None,
    labels: Any = None,
    loss: str | None = None,
    mode: Mode | None = None,
    output: str | int | None = None,
    max_seconds: float | None = None,
    seed: int = 0,
) -> Comparison:
    """Set models, audits or measures side by side, and show what changed most, layer by layer.

    Args:
        subjects: two or more models and audits, or two or more results of `normscope.measures`. Models are audited on
            `data`, one after the other.
        data: what models are audited on, as in `normscope.audit`.
        names: the names to show; None for those that the subjects have.
        labels: as in `normscope.audit`.
        loss: as in `normscope.audit`.
        mode: as in `normscope.audit`.
        output: as in `normscope.audit`.
        max_seconds: as in `normscope.audit`, for each model.
        seed: as in `normscope.audit`.

    Returns:
        The comparison: `.changes`, `.audits`, `.plot()`, `.to_html(path)`, `.to_json(path)`.

    Raises:
        InputError: there are fewer than two subjects, or of different kinds; a model without data; names that do not
            fit.

    Example:
        >>> import copy, torch, normscope as ns
        >>> before = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
        >>> after = copy.deepcopy(before)
        >>> after[2].weight.data *= 100.0
        >>> result = ns.compare(before, after, data=torch.eye(2), names=["before", "after"])
        >>> change = next(one for one in result.changes if one.quantity == "operator norm")
        >>> change.path, round(change.spread, 2)
        ('2', 2.0)
    """
    if len(subjects) < 2:
        raise InputError("a comparison needs two or more models, audits or measures")
    kinds = {Measures if isinstance(one, Measures) else Audit for one in subjects}
    if len(kinds) > 1:
        raise InputError("measures are compared with measures, and audits or models with audits or models")
    if any(isinstance(one, nn.Module) for one in subjects) and data is None:
        raise InputError("a model is audited to be compared: pass data=")
    options: dict[str, Any] = {"labels": labels, "loss": loss, "mode": mode, "output": output, "seed": seed}
    results = [
        audit_model(one, data, max_seconds=max_seconds, **options) if isinstance(one, nn.Module) else one
        for one in subjects
    ]
    wrong = [type(one).__name__ for one in results if not isinstance(one, Audit | Measures)]
    if wrong:
        raise InputError(f"models, audits and measures are compared, and no {wrong[0]}")
    chosen = _number_names([one.name for one in results]) if names is None else list(names)
    if len(set(chosen)) != len(results):
        raise InputError(f"names are {len(results)} different ones, not {chosen!r}")
    by_name = dict(zip(chosen, results))
    return Comparison(
        audits={name: one for name, one in by_name.items() if isinstance(one, Audit)},
        measures={name: one for name, one in by_name.items() if isinstance(one, Measures)},
    )


def _number_names(names: Sequence[str]) -> list[str]:
    """Return names that all differ: those that several share get a number."""
    return [f"{name} {at + 1}" if names.count(name) > 1 else name for at, name in enumerate(names)]


def find_changes(audits: Mapping[str, Audit]) -> tuple[LayerChange, ...]:
    """Return what differs between audits, layer by layer, the largest difference first."""
    changes = []
    for (path, *_), by_audit in match_rows(audits).items():
        for quantity, read in QUANTITIES.items():
            values = tuple(read_from(by_audit[name], read) if name in by_audit else None for name in audits)
            finite = [value for value in values if value is not None and math.isfinite(value)]
            if len(finite) > 1 and max(finite) - min(finite) > LEAST_CHANGE:
                spread = max(finite) - min(finite)
                changes.append(LayerChange(path=path, quantity=quantity, values=values, spread=spread))
    return tuple(sorted(changes, key=lambda change: -change.spread))


def match_rows(audits: Mapping[str, Audit]) -> dict[Key, dict[str, Row]]:
    """Return every row of any audit by its path, in the order of each audit as far as these agree."""
    keyed: dict[str, dict[Key, Row]] = {}
    for name, audit in audits.items():
        runs: Counter[tuple[str, str]] = Counter()
        keyed[name] = {}
        for row in audit.layers:
            keyed[name][row.path, row.role, runs[row.path, row.role]] = row
            runs[row.path, row.role] += 1
    order = merged_order(keyed.values())
    return {key: {name: rows[key] for name, rows in keyed.items() if key in rows} for key in order}


def merged_order(lists: Iterable[Iterable[Name]]) -> list[Name]:
    """Return every name once, in an order that keeps the order of each list as far as the lists agree.

    Example:
        >>> merged_order([["a", "b", "d"], ["a", "c", "d", "e"]])
        ['a', 'c', 'b', 'd', 'e']
    """
    following: dict[Name | None, Name | None] = {None: None}  # of each name the next; of None the first
    for names in lists:
        before = None
        for name in names:
            if name not in following:
                following[name], following[before] = following[before], name
            before = name
    order, last = [], following[None]
    while last is not None:
        order.append(last)
        last = following[last]
    return order


def difference(value: float | None, base: float | None) -> float | None:
    """Return how much larger an exponent is, or None where one is not measured or both are the same infinity."""
    if value is None or base is None:
        return None
    return None if value == base and value in (float("inf"), float("-inf")) else value - base
