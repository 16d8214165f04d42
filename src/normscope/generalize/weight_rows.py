"""Rows by the architecture and its weights: VC, norms and margins, weight normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..core.log10 import log10, log10_sum
from . import bartlett2017, cisneros2025, golowich2020, neyshabur2018, vc
from .bound import BoundRow, BoundTerm, Condition, condition, row, term
from .families import IID, THAN
from .stratum import quantiles
from .stream import SamplesSeen
from .weight_layers import NetworkNorms

ARCHITECTURE = condition(
    "the architecture was fixed before D was seen", True, "declared; a bound over all its weights asks for nothing else"
)
ERROR = "the error of the model on fresh data"


def growth_row(network: NetworkNorms, seen: SamplesSeen, delta: float) -> BoundRow:
    """Return the bound by the number of ways in which the architecture can classify m samples."""
    conditions = (IID, ARCHITECTURE, network.alone, network.piecewise)
    if not network.units:
        return _without_figure("VC", "Bartlett et al. 2019, Theorem 7", conditions)
    count = vc.log_growth(network.units, seen.samples)
    first, second = vc.growth_bound(count, seen.samples, delta)
    dimension = vc.vc_dimension(network.units)
    printed = seen.error + vc.slides_bound(dimension, seen.samples, delta)
    return row(
        "VC",
        source="Bartlett et al. 2019, Theorem 7, and Massart's lemma",
        speaks_of=ERROR,
        most=1.0,
        terms=[term("error on D", seen.error), term("growth", first), term("confidence", second)],
        conditions=conditions,
        log10_as_printed=log10(printed) if printed < math.inf else math.inf,
        note=f"VC dimension at most {dimension:.4g} for {network.parameters:,} weights; the Slides' formula as printed",
    )


def margin_rows(network: NetworkNorms, seen: SamplesSeen, delta: float, input_radius: float | None) -> list[BoundRow]:
    """Return the bounds by norms and margins: Bartlett 2017, Neyshabur 2018, Golowich 2020."""
    asked = (IID, ARCHITECTURE, network.alone, network.chain, network.homogeneous, network.matrices)
    names = {
        "Bartlett 2017": "Bartlett, Foster and Telgarsky 2017, Theorem 1.1 with constants",
        "Neyshabur 2018": "Neyshabur, Bhojanapalli and Srebro 2018, Theorem 1 with the constants of its proof",
        "Golowich 2020": "Golowich, Rakhlin and Shamir 2020, Theorem 1",
    }
    within = condition(
        "no input is longer than B",
        True if input_radius is not None else None,
        "from the declared input range"
        if input_radius is not None
        else "B is the longest sample of D: declare input_range",
    )
    conditions = {"Neyshabur 2018": (*asked, within), "Golowich 2020": (*asked, network.entrywise)}
    if not network.layers:
        return [_without_figure(name, source, conditions.get(name, asked)) for name, source in names.items()]
    spectral = [layer.log10_spectral for layer in network.layers]
    frobenius = [layer.log10_frobenius for layer in network.layers]
    m, extra = seen.samples, float(network.biased)
    squares = seen.square_norms + extra * m
    radius = math.hypot(input_radius if input_radius is not None else seen.largest_norm, extra)
    margins = seen.margins.tolist()

    def terms(name: str, margin: float) -> list[BoundTerm]:
        if name == "Neyshabur 2018":
            _, main = neyshabur2018.margin_bound(
                spectral, frobenius, radius=radius, width=network.width, samples=m, margin=margin, delta=delta
            )
            return [BoundTerm(name="complexity", log10=main)]
        if name == "Bartlett 2017":
            rows = [layer.log10_rows for layer in network.layers]
            main, sure = bartlett2017.margin_bound(
                spectral, rows, square_norms=squares, width=network.width, samples=m, margin=margin, delta=delta
            )
        else:
            main, sure = golowich2020.margin_bound(
                network.log10_frobenius,
                depth=len(frobenius),
                classes=seen.classes,
                square_norms=squares,
                samples=m,
                margin=margin,
                delta=delta,
            )
        return [BoundTerm(name="complexity", log10=main), term("confidence", sure)]

    found = []
    for name, source in names.items():
        tried = []
        for margin in quantiles(margins) or [1.0]:
            below = int(torch.searchsorted(seen.margins, margin, right=True)) / m
            parts = [term("margin loss on D", below), *terms(name, margin)]
            tried.append((log10_sum(part.log10 for part in parts), margin, parts))
        _, margin, parts = min(tried, key=lambda one: one[:2])
        found.append(
            row(
                name,
                source=source,
                speaks_of=ERROR,
                most=1.0,
                terms=parts,
                conditions=conditions.get(name, asked),
                note=f"at a margin of {margin:.4g}, which may be chosen after the fact",
            )
        )
    return found


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
