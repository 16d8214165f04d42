"""The rows that follow from the architecture and its weights: VC, norms and margins, weight normalization."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..core.log10 import log10, log10_sum
from . import bartlett2017, cisneros2025, golowich2020, neyshabur2018, vc
from .bound import BoundRow, BoundTerm, Condition, condition, row, term
from .families import IID, THAN
from .stratum import quantiles
from .stream import SamplesSeen
from .weight_layers import NetworkNorms

ARCHITECTURE = condition(
    "the architecture was fixed before D was seen", True, "declared: its operators and how they are connected"
)
ERROR = "the error of the model on fresh data"


def growth_row(network: NetworkNorms, seen: SamplesSeen, delta: float) -> BoundRow:
    """Return the bound that counts the ways in which the architecture can classify m samples."""
    beside = network.beside_parameters
    conditions = (IID, ARCHITECTURE, network.alone, seen.traced, network.piecewise, beside.condition)
    if not network.units:
        return _without_figure("VC", "Bartlett et al. 2019, Theorem 7", conditions)
    count = vc.log_growth(network.units, seen.samples)
    first, second = vc.growth_bound(count, seen.samples, delta, beside.nats)
    dimension = vc.vc_dimension(network.units)
    printed = seen.worst_error + vc.slides_bound(dimension, seen.samples, delta)
    return row(
        "VC",
        source="Bartlett et al. 2019, Theorem 7, and Massart's lemma",
        speaks_of=ERROR,
        most=1.0,
        terms=[term("error on D", seen.worst_error), term("growth", first), term("confidence", second)],
        conditions=conditions,
        log10_as_printed=log10(printed) if printed < math.inf else math.inf,
        note=f"VC dimension at most {dimension:.4g} for {network.parameters:,} weights; the Slides' formula as printed",
    )


def margin_rows(network: NetworkNorms, seen: SamplesSeen, delta: float, input_radius: float | None) -> list[BoundRow]:
    """Return the bounds by norms and margins: Bartlett 2017, Neyshabur 2018, Golowich 2020.

    `input_radius` is the largest norm that an input can have; None where it is not declared.
    """
    beside = network.beside_layers.condition
    asked = (
        IID,
        ARCHITECTURE,
        network.alone,
        seen.traced,
        network.chain,
        network.homogeneous,
        network.matrices,
        beside,
    )
    within = condition(
        "no input is longer than B",
        True if input_radius is not None else None,
        "from the declared input range"
        if input_radius is not None
        else "B is the longest sample of D: declare input_range",
    )
    bounds = (
        _MarginBound(
            "Bartlett 2017", "Bartlett, Foster and Telgarsky 2017, Theorem 1.1 with constants", asked, _bartlett
        ),
        _MarginBound(
            "Neyshabur 2018",
            "Neyshabur, Bhojanapalli and Srebro 2018, Theorem 1 with the constants of its proof",
            (*asked, within),
            _neyshabur,
        ),
        _MarginBound(
            "Golowich 2020",
            "Golowich, Rakhlin and Shamir 2020, Theorem 1",
            (*asked, network.entrywise),
            _golowich,
        ),
    )
    if not network.layers:
        return [_without_figure(bound.name, bound.source, bound.conditions) for bound in bounds]
    constant = float(network.biased)  # With biases, every input has one more entry, which is 1.
    sizes = _DataSizes(
        samples=seen.samples,
        classes=seen.classes,
        square_norms=seen.square_norms + constant * seen.samples,
        radius=math.hypot(input_radius if input_radius is not None else seen.largest_norm, constant),
        delta=delta,
        nats=network.beside_layers.nats,
    )
    return [_margin_row(bound, network, seen, sizes) for bound in bounds]


@dataclass(frozen=True, slots=True, kw_only=True)
class _DataSizes:
    """The figures of D that margin bounds take, with the constant entry of inputs counted.

    Attributes:
        samples, classes: m and K.
        square_norms: the squared Frobenius norm of all inputs together.
        radius: B, the largest norm of an input.
        delta: the probability of failure.
        nats: what constants besides the layers cost.
    """

    samples: int
    classes: int
    square_norms: float
    radius: float
    delta: float
    nats: float


@dataclass(frozen=True, slots=True)
class _MarginBound:
    """A bound by norms and margins; `terms` returns what is added to the margin loss on D, for one margin."""

    name: str
    source: str
    conditions: tuple[Condition, ...]
    terms: Callable[[NetworkNorms, _DataSizes, float], list[BoundTerm]]


def _margin_row(bound: _MarginBound, network: NetworkNorms, seen: SamplesSeen, sizes: _DataSizes) -> BoundRow:
    """Return the row of a margin bound, at the margin that makes it smallest."""
    tried = []
    for margin in quantiles(seen.margins.tolist()) or [1.0]:
        below = int(torch.searchsorted(seen.margins, margin, right=True)) / seen.samples
        terms = [term("margin loss on D", below), *bound.terms(network, sizes, margin)]
        tried.append((log10_sum(one.log10 for one in terms), margin, terms))
    _, margin, terms = min(tried, key=lambda one: one[:2])
    return row(
        bound.name,
        source=bound.source,
        speaks_of=ERROR,
        most=1.0,
        terms=terms,
        conditions=bound.conditions,
        note=f"at a margin of {margin:.4g}, which may be chosen after the fact",
    )


def _bartlett(network: NetworkNorms, sizes: _DataSizes, margin: float) -> list[BoundTerm]:
    complexity, confidence = bartlett2017.margin_bound(
        [layer.log10_spectral for layer in network.layers],
        [layer.log10_rows for layer in network.layers],
        square_norms=sizes.square_norms,
        width=network.width,
        samples=sizes.samples,
        margin=margin,
        delta=sizes.delta,
        nats=sizes.nats,
    )
    return [BoundTerm(name="complexity", log10=complexity), term("confidence", confidence)]


def _neyshabur(network: NetworkNorms, sizes: _DataSizes, margin: float) -> list[BoundTerm]:
    _, complexity = neyshabur2018.margin_bound(
        [layer.log10_spectral for layer in network.layers],
        [layer.log10_frobenius for layer in network.layers],
        radius=sizes.radius,
        width=network.width,
        samples=sizes.samples,
        margin=margin,
        delta=sizes.delta,
        nats=sizes.nats,
    )
    return [BoundTerm(name="complexity", log10=complexity)]


def _golowich(network: NetworkNorms, sizes: _DataSizes, margin: float) -> list[BoundTerm]:
    complexity, confidence = golowich2020.margin_bound(
        network.log10_frobenius,
        depth=len(network.layers),
        classes=sizes.classes,
        square_norms=sizes.square_norms,
        samples=sizes.samples,
        margin=margin,
        delta=sizes.delta,
        nats=sizes.nats,
    )
    return [BoundTerm(name="complexity", log10=complexity), term("confidence", confidence)]


def weight_norm_row(network: NetworkNorms, seen: SamplesSeen) -> BoundRow:
    """Return the rate of Cisneros-Velarde et al. for weight normalization."""
    source = f"Cisneros-Velarde et al. 2025, as {THAN} quotes it"
    norms = network.weight_frobenius
    unit = condition(
        "every layer but the last has weights of Frobenius norm 1",
        cisneros2025.is_normalized(norms),
        "read off the weights, BatchNorms folded",
    )
    if not norms:
        return _without_figure("Weight normalization", source, (IID, unit), rate=True)
    return row(
        "Weight normalization",
        source=source,
        speaks_of="the gap between the losses on D and on fresh data",
        most=1.0,
        terms=[BoundTerm(name="rho^2/sqrt(m)", log10=cisneros2025.rate(norms[-1], seen.samples))],
        conditions=(IID, unit),
        rate=True,
    )


def _without_figure(name: str, source: str, conditions: Sequence[Condition], *, rate: bool = False) -> BoundRow:
    """Return the row of a bound that cannot be computed for this network: its value is infinite."""
    return row(
        name,
        source=source,
        speaks_of=ERROR,
        most=1.0,
        terms=(),
        conditions=conditions,
        rate=rate,
        log10_value=math.inf,
        note="it has no figure for this network",
    )
