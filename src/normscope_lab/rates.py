"""Counts of iterations and samples that follow from a Lipschitz constant, as the papers print them, also of a model.

Every count is an order (Omega or O without its constant), kept as log10: it can compare two networks, but it is not a
number of steps. The constants of single factors depend on the gauge: scaling the weights in front of a normalizer by c
leaves the network as it is, multiplies the product of weight norms by c and divides the constant of the normalizer by
c. Only the product of both has a meaning of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from normscope import Audit, WeightSensitivity
from normscope.report import Shown
from normscope.theory import sample_size
from normscope.toolkit import InputError, JsonForm, Row, Saved, log10

GAUGE = (
    "multiplying the weights in front of a normalizer by c leaves the network as it is, multiplies the product of "
    "weight norms by c and divides the normalizer's constant by c: the ratio can be made anything without changing the "
    "network"
)
"""The warning that belongs to every ratio of the two corollaries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The number of iterations to reach an accuracy alpha with a constant L: `L^constant / alpha^accuracy`.

    Attributes:
        name: the name of the rate.
        side: `"lower"` (every method needs at least so many, Omega) or `"upper"` (some method needs no more, O).
        constant, accuracy: the exponents.
        source: the paper and section that print it.
        remark: what is wrong with the rate, if anything.
    """

    name: str
    side: Literal["lower", "upper"]
    constant: float
    accuracy: float
    source: str
    remark: str = ""

    def log10_iterations(self, log10_constant: float, alpha: float) -> float:
        """Return log10 of the order of the count.

        Example:
            >>> RATES["nonconvex, Slides"].log10_iterations(2.0, 0.1)  # (100)^2 / 0.1^3
            7.0
        """
        if not 0.0 < alpha < math.inf:
            raise InputError(f"alpha is a number above 0, not {alpha!r}")
        return self.constant * log10_constant - self.accuracy * math.log10(alpha)


RATES = {
    rate.name: rate
    for rate in (
        Rate(
            name="nonconvex, at least",
            side="lower",
            constant=1.0,
            accuracy=1.0,
            source="Than, section 5.1 and Corollary 18, from Zhang et al. 2020",
        ),
        Rate(
            name="nonconvex, Than",
            side="upper",
            constant=1.0,
            accuracy=2.0,
            source="Than, section 5.1 and Corollary 19, from Davis et al. and Tian et al. 2022",
            remark="that of their cutting planes, at a fixed distance, without its factor: the number of weights",
        ),
        Rate(
            name="nonconvex, Slides",
            side="upper",
            constant=2.0,
            accuracy=3.0,
            source="Slides, Optimization: error (L^2/T)^(1/3), from Davis et al. 2022",
            remark="that of their sampling of gradients, at a fixed distance, in any dimension",
        ),
        Rate(
            name="convex, at least",
            side="lower",
            constant=2.0,
            accuracy=2.0,
            source="Than, section 5.1, from Bubeck 2015 (distance to the optimum 1)",
        ),
        Rate(
            name="convex, Slides",
            side="upper",
            constant=2.0,
            accuracy=2.0,
            source="Slides, Optimization: error L/sqrt(T)",
        ),
        Rate(
            name="strongly convex, as printed",
            side="lower",
            constant=1.0,
            accuracy=1.0,
            source="Than, section 5.1",
            remark="Bubeck 2015, Theorem 3.13, has L^2/(mu alpha) with the strength mu of convexity",
        ),
        Rate(
            name="strongly convex, corrected",
            side="lower",
            constant=2.0,
            accuracy=1.0,
            source="Bubeck 2015, Theorem 3.13, for a strength of convexity mu = 1",
        ),
    )
}
"""The printed rates by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """The counts of Corollaries 18 and 19 for the weights of one layer; all figures are log10 of an order.

    Attributes:
        layer: the number of the layer, from 1.
        log10_behind: log10 of the product of the weight norms behind it, `s_{i+1} ... s_K`.
        log10_normalizers: log10 of the product of the constants of its own and all later normalizers.
        log10_at_least: Corollary 18 for the unnormalized network.
        log10_unnormalized, log10_normalized: Corollary 19 for the unnormalized and the normalized network.
    """

    layer: int
    log10_behind: float
    log10_normalizers: float
    log10_at_least: float
    log10_unnormalized: float
    log10_normalized: float

    @property
    def log10_ratio(self) -> float:
        """log10 of the evaluations of the normalized network over those of its unnormalized twin (see `GAUGE`)."""
        return self.log10_normalizers


def corollaries(log10_norms: Sequence[float], log10_constants: Sequence[float], alpha: float) -> tuple[LayerCost, ...]:
    """Return the counts of Corollaries 18 and 19 for every layer but the last.

    Corollary 18: at least `s_{i+1} ... s_K / alpha` iterations for the weights of layer i of an unnormalized network;
    Corollary 19: `s_{i+1} ... s_K / alpha^2` evaluations suffice, and with normalizers that times the product of their
    constants from layer i on (`sigma^(-K+i-1)` where all are `1/sigma`).

    Assumes: a chain of layers `h_k = g_k(NO_k(W_k h_{k-1}))` with slopes of at most 1.

    Args:
        log10_norms: log10 of the weights' operator norms `s_1, ..., s_K`.
        log10_constants: log10 of the normalizers' constants, one per layer; 0 for a layer without normalizer.
        alpha: the accuracy.

    Raises:
        InputError: there are fewer than two layers, or not one constant each.

    Example:
        >>> first, _ = corollaries([1.0, 1.0, 1.0], [-0.5, -0.5, -0.5], alpha=0.1)
        >>> first.log10_at_least, first.log10_unnormalized, first.log10_normalized, first.log10_ratio
        (3.0, 4.0, 2.5, -1.5)

    Reference: Than, Corollaries 18 and 19.
    """
    if len(log10_norms) < 2 or len(log10_norms) != len(log10_constants):
        raise InputError(
            f"the corollaries speak of two or more layers with a constant each, not of {len(log10_norms)} norms and "
            f"{len(log10_constants)} constants"
        )
    lower, upper = RATES["nonconvex, at least"], RATES["nonconvex, Than"]
    entries = []
    for layer in range(1, len(log10_norms)):
        behind, reduced = math.fsum(log10_norms[layer:]), math.fsum(log10_constants[layer - 1 :])
        entries.append(
            LayerCost(
                layer=layer,
                log10_behind=behind,
                log10_normalizers=reduced,
                log10_at_least=lower.log10_iterations(behind, alpha),
                log10_unnormalized=upper.log10_iterations(behind, alpha),
                log10_normalized=upper.log10_iterations(behind + reduced, alpha),
            )
        )
    return tuple(entries)


def log10_data_ratio(
    gap: float, normalized: float, unnormalized: float, *, cells: int, partition: int, delta: float
) -> float:
    """Return log10 of the samples of a normalized network over those of its twin; -inf if the twin never suffices."""
    ours, theirs = (
        sample_size(gap, sensitivity=value, cells=cells, partition=partition, delta=delta)
        for value in (normalized, unnormalized)
    )
    if math.inf in (ours, theirs):
        if ours == theirs:
            raise InputError("neither network reaches the gap with any number of samples")
        return -math.inf if theirs == math.inf else math.inf
    return log10(ours) - log10(theirs)


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

    page = "normscope_lab.pages.training_cost:training_cost_document"
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
        alpha: the accuracy that training is to reach, above 0.

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
