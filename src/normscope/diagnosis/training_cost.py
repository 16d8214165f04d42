"""`training_cost`: what the papers' rates say about training a model, from its audit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..bounds.weights.sensitivity import WeightSensitivity
from ..core.codec import JsonForm, Saved
from ..core.errors import InputError
from ..report.shown import Shown
from ..theory.complexity import RATES, LayerCost, corollaries
from .audit_result import Audit, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost(Saved, Shown):
    """What Corollaries 18 and 19 of Than and the rates beside them say of a model. Prints as tables.

    Attributes:
        name, mode: the name and the mode of the audited model.
        alpha: the accuracy.
        paths: the paths of the weight layers, the last one left out.
        printed: one entry per path, with the constants of the normalizers as the papers print them.
        at_data: the same with the normalizers' largest constants at the data.
        normalizers: how many there are that can be rescaled against the weights before them.
        log10_constant: log10 of how far the output moves per relative change of a weight, the largest over the
            weights, which no rescaling moves; None if it was not measured.
        rates: name, log10 of the order of iterations at `log10_constant`, source and remark.
        notes: why the corollaries do not apply as they stand, if so.
    """

    page = "training_cost:training_cost_document"
    JSON: ClassVar[JsonForm] = JsonForm(
        kind="training_cost", noun="training cost", write="write one with to_json(path)"
    )

    name: str
    mode: str
    alpha: float
    paths: tuple[str, ...]
    printed: tuple[LayerCost, ...]
    at_data: tuple[LayerCost, ...]
    normalizers: int
    log10_constant: float | None
    rates: tuple[tuple[str, float, str, str], ...]
    notes: tuple[str, ...] = ()


def training_cost(audit: Audit, *, sensitivity: WeightSensitivity | None = None, alpha: float = 0.01) -> TrainingCost:
    """Return what the papers' rates say about training a model, from its audit.

    Args:
        audit: the audit of the model, in the mode that counts: train mode for BatchNorm with the statistics of batches.
        sensitivity: what `normscope.weight_sensitivity` found of it, for the rates at a measured constant.
        alpha: the accuracy that training shall reach.

    Returns:
        One entry per weight layer but the last, with constants as printed and at the data, and all rates at the
        measured constant.

    Raises:
        InputError: the audit has fewer than two weight layers with a norm, or alpha is not a number above 0.

    Example:
        >>> import torch, normscope as ns
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
        >>> cost = training_cost(ns.audit(model, torch.randn(16, 4)), alpha=0.1)
        >>> cost.paths, cost.normalizers
        (('0',), 1)

    Reference: Than, Corollaries 18 and 19; Slides, Optimization.
    """
    weights = [row for row in audit.layers if row.role == "weight" and row.norm is not None]
    if len(weights) < 2:
        raise InputError("the corollaries speak of two or more weight layers, and the audit has the norms of fewer")
    norms = [0.0 if row.norm is None else row.norm.log10_upper for row in weights]
    constant = _constant(sensitivity)
    return TrainingCost(
        name=audit.name,
        mode=audit.mode or "eval",
        alpha=alpha,
        paths=tuple(row.path for row in weights[:-1]),
        printed=corollaries(norms, _by_layer(audit.layers, weights, "log10_printed"), alpha),
        at_data=corollaries(norms, _by_layer(audit.layers, weights, "log10_at_data"), alpha),
        normalizers=sum(row.folded_with is not None for row in audit.layers if row.role == "normalizer"),
        log10_constant=constant,
        rates=() if constant is None else _rates(constant, alpha),
        notes=_notes(audit),
    )


def _constant(sensitivity: WeightSensitivity | None) -> float | None:
    """Return log10 of how far the output moves per relative change of a weight; None where that is not known."""
    moves = [] if sensitivity is None else [row.log10_relative for row in sensitivity.rows]
    return max(moves) if moves and math.isfinite(max(moves)) else None


def _rates(constant: float, alpha: float) -> tuple[tuple[str, float, str, str], ...]:
    """Return all rates at a constant: name, log10 of the order of iterations, source and remark."""
    return tuple(
        (rate.name, rate.log10_iterations(constant, alpha), rate.source, rate.remark) for rate in RATES.values()
    )


def _notes(audit: Audit) -> tuple[str, ...]:
    """Say why the corollaries do not apply as they stand."""
    notes = []
    if any(row.bypassed for row in audit.layers):
        notes.append("the model has skips or branches, for which the corollaries are not stated: read ratios only")
    unknown = [row.path for row in audit.layers if row.role == "normalizer" and row.log10_at_data is None]
    if unknown:
        notes.append(f"the constants of {', '.join(f'`{path}`' for path in unknown)} were not measured and count as 1")
    return tuple(notes)


def _by_layer(rows: tuple[Row, ...], weights: list[Row], figure: str) -> list[float]:
    """Return per weight layer the sum of a logarithm over the normalizers behind it and before the next."""
    sums, at = [0.0] * len(weights), 0
    order = {id(row): number for number, row in enumerate(weights)}
    for row in rows:
        if id(row) in order:
            at = order[id(row)]
        elif row.role == "normalizer":
            sums[at] += getattr(row, figure) or 0.0
    return sums
