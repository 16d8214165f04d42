"""`compare`: models, audits, measures or runs side by side, and what changed most between them, layer by layer."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar

from torch import nn

from ..auditing.audit_result import Audit, Row
from ..auditing.auditing import audit as audit_model
from ..bounds.geometry.measure_table import Measures
from ..bounds.graph.ir import Graph
from ..calls.batches import LossFunction
from ..core.codec import JsonForm, decode, encode, open_json, save_json
from ..core.errors import InputError
from ..core.untouched import Mode
from ..doctor.monitor.run import Run
from ..report.document import FigureResult, Read, figures_form, read_from

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
    """Audits, measures or runs side by side. Prints as tables; in a notebook as HTML.

    Of the three attributes one is filled, by the names to show; the first entry is what others are compared with.

    Attributes:
        audits: audits, also of models that were given.
        measures: results of `normscope.measures`.
        runs: training runs.
    """

    page = "normscope.choosing.comparison_page:comparison_document"
    JSON: ClassVar[JsonForm] = figures_form("comparison", "compare", left_out=("runs",))

    audits: Mapping[str, Audit] = field(default_factory=dict)
    measures: Mapping[str, Measures] = field(default_factory=dict)
    runs: Mapping[str, Run] = field(default_factory=dict)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return plain data, and write it to a file if a path is given.

        Args:
            path: a file to write (whole or not at all).

        Raises:
            InputError: the file cannot be written.
        """
        runs = {name: run.to_json() for name, run in self.runs.items()}
        return save_json(encode(self) | {"runs": runs}, path)

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Self:
        """Return the comparison that `to_json` wrote.

        Args:
            source: a path, or the plain data itself.

        Raises:
            InputError: the file is missing, holds no comparison of this version, or is damaged.
        """
        with open_json(cls.JSON, source) as data:
            runs = {name: Run.from_json(run) for name, run in data["runs"].items()}
            result: Self = cls(runs=runs) if runs else decode(cls, data)
            return result

    @property
    def changes(self) -> tuple[LayerChange, ...]:
        """What differs between the audits, layer by layer, the largest difference first."""
        return find_changes(self.audits)


def compare(
    *subjects: nn.Module | Graph | Audit | Measures | Run,
    data: Any = None,
    names: Sequence[str] | None = None,
    labels: Any = None,
    loss: LossFunction | str | None = None,
    mode: Mode | None = None,
    output: str | int | None = None,
    max_seconds: float | None = None,
    seed: int = 0,
) -> Comparison:
    """Set models, audits, measures or runs side by side, and show what changed most, layer by layer.

    Args:
        subjects: two or more models (or their captured graphs) and audits, results of `normscope.measures`, or runs.
            Models are audited on `data`, one after the other.
        data: what models are audited on, as in `normscope.audit`; None for the batches of captured graphs.
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
        raise InputError("a comparison needs two or more models, audits, measures or runs")
    if any(isinstance(one, nn.Module) for one in subjects) and data is None:
        raise InputError("a model is audited to be compared: pass data=")
    data = list(data) if isinstance(data, Iterator) else data  # every model reads it anew
    options: dict[str, Any] = {"labels": labels, "loss": loss, "max_seconds": max_seconds, "seed": seed}
    options |= {name: value for name, value in (("mode", mode), ("output", output)) if value is not None}
    results = [audit_model(one, data, **options) if isinstance(one, nn.Module | Graph) else one for one in subjects]
    kinds = {Audit: "audits", Measures: "measures", Run: "runs"}
    if type(results[0]) not in kinds or len({type(one) for one in results}) > 1:
        mixed = ", ".join(sorted({type(one).__name__ for one in results}))
        raise InputError(f"models and audits, measures, or runs are compared with their like; these are {mixed}")
    own = [one.name for one in results]
    chosen = unique_names(own, [f"{name} {at + 1}" for at, name in enumerate(own)]) if names is None else list(names)
    if len(set(chosen)) != len(results):
        raise InputError(f"names are {len(results)} different ones, not {chosen!r}")
    by_kind: dict[str, Any] = {kinds[type(results[0])]: dict(zip(chosen, results))}
    return Comparison(**by_kind)


def unique_names(names: Sequence[str], longer: Sequence[str]) -> list[str]:
    """Return names that all differ: a longer one where several share a name, and with a prime where even that is so."""
    chosen: list[str] = []
    for name, other in zip(names, longer, strict=True):
        name = name if names.count(name) == 1 else other
        while name in chosen:
            name += "'"
        chosen.append(name)
    return chosen


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
