"""The rows that follow from the architecture and its weights: VC, norms and margins, weight normalization.

Norms and margins depend on the data. With homogeneous activations, factors can be moved between layers without effect,
and scaling the last layer scales the margins: so only the product of the norms over the margin, and ratios of norms,
matter. They are rounded up to members of a fixed list, and delta is shared over the list. In all formulas `nats` is
what constants cost that may have been taken from D (`description.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from normscope.toolkit import log10, log10_sum

from .bound import BoundRow, BoundTerm, Condition, condition, row, term
from .description import ARCHITECTURE
from .stream import SamplesSeen
from .than2025 import THAN
from .weight_layers import NetworkNorms, growth_bound, log_growth, slides_bound, vc_dimension

error_row = partial(row, speaks_of="the error of the model on fresh data", most=1.0)
MARGIN_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
"""The margins that are tried are those that these shares of the samples do not exceed."""
UNIT_NORM_TOLERANCE = 1e-4
"""A Frobenius norm counts as 1 if it is closer to 1 than this."""


def power_of_two(log10_value: float) -> tuple[float, float]:
    """Return log10 of the next power of two 2^k above a value, and the inverse of its share of delta.

    The shares `1/(1.5 (|k|+1)(|k|+2))` add up to 1 over all integers k.
    """
    if math.isinf(log10_value):
        return log10_value, 1.0
    k = math.ceil(log10_value / math.log10(2.0) - 1e-12)
    return k * math.log10(2.0), 1.5 * (abs(k) + 1) * (abs(k) + 2)


def quantiles(margins: list[float]) -> list[float]:
    """Return positive margins to try, from all margins in ascending order; the bounds hold for any margin."""
    indices = {min(len(margins) - 1, int(share * len(margins))) for share in MARGIN_SHARES} if margins else set()
    return sorted({margins[index] for index in indices if margins[index] > 0})


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginFacts:
    """What the bounds by norms and margins read of a network and of D."""

    # log10_spectral, log10_frobenius, log10_rows: log10 of the norms of every layer, as in `MatrixNorms`
    log10_spectral: tuple[float, ...]
    log10_frobenius: tuple[float, ...]
    log10_rows: tuple[float, ...]
    width: int  # W or h, the largest dimension
    classes: int  # K
    samples: int  # samples, square_norms: m, and norm(X)_F^2 over all samples
    square_norms: float
    radius: float  # B, the largest norm of an input
    delta: float  # the probability of failure
    nats: float = 0.0  # what constants cost that may have been taken from D


def bartlett2017(facts: MarginFacts, margin: float) -> list[BoundTerm]:
    """Return the complexity and the confidence term; the bound adds both to the margin loss on D.

    Theorem 3.3 bounds the covering numbers of the networks with `norm(A_i) <= s_i` and `norm(A_i^T)_(2,1) <= b_i` on a
    sample X: `ln N(eps) <= R/eps^2` with
    `sqrt(R) = norm(X)_F sqrt(ln(2 W^2)) prod s_i (sum (b_i/s_i)^(2/3))^(3/2)`, W the largest dimension. The margin loss
    is 2/gamma-Lipschitz, Dudley's integral from 1/n on gives a Rademacher complexity of
    `4/n^(3/2) + 36 sqrt(R) ln(n)/(gamma n)`, and the error is at most the margin loss on D plus twice that plus
    `3 sqrt(ln(2/delta)/(2 n))`. The ratios `b_i/s_i`, from 1 to W, are rounded up to powers of 2^(1/L).

    Reference: Bartlett, Foster and Telgarsky 2017, Theorem 3.3, Lemmas A.5 and A.8.
    """
    samples, layers = facts.samples, len(facts.log10_spectral)
    scale, factor = power_of_two(math.fsum(facts.log10_spectral) - math.log10(margin))
    if math.isinf(scale):
        return [BoundTerm(name="complexity", log10=scale), term("confidence", 0.0)]
    ratios = [rows - spectral for rows, spectral in zip(facts.log10_rows, facts.log10_spectral, strict=True)]
    step = math.log10(2.0) / layers
    rounded = [max(0, math.ceil(ratio / step - 1e-12)) * step for ratio in ratios]
    choices = math.ceil(2.0 * math.log10(facts.width) / step) + 2  # The list of each layer: ratios from 1 to beyond W.
    cost = math.log(factor) + layers * math.log(choices) + facts.nats
    together = 1.5 * log10_sum(ratio * 2.0 / 3.0 for ratio in rounded)
    root = 0.5 * math.log10(facts.square_norms * math.log(2.0 * facts.width**2)) + scale + together
    main = math.log10(72.0 * math.log(samples) / samples) + root
    complexity = log10_sum((main, math.log10(8.0) - 1.5 * math.log10(samples)))
    confidence = 3.0 * math.sqrt((math.log(2.0 / facts.delta) + cost) / (2.0 * samples))
    return [BoundTerm(name="complexity", log10=complexity), term("confidence", confidence)]


def neyshabur2018(facts: MarginFacts, margin: float) -> list[BoundTerm]:
    """Return the complexity term, which the bound adds to the margin loss on D.

    With the layers scaled to one norm beta and noise of deviation
    `sigma = gamma/(42 d B b^(d-1) sqrt(h ln(4 d h)))` on all weights, where b is the member of a list nearest to beta,
    B the largest norm of an input and h the width, outputs move by less than gamma/4 with probability 1/2, and Lemma 1
    gives `error <= margin loss on D + 4 sqrt((KL + ln(6 m/delta'))/(m-1))`, `KL = sum norm(W_i)_F^2/(2 sigma^2)`, at
    most `42^2 d^2 B^2 h ln(4 d h) e^2 prod norm(W_i)^2 sum (norm(W_i)_F/norm(W_i))^2/(2 gamma^2)`. The list has at most
    `d m^(1/(2d))` members, by which delta is divided; for other values of beta the statement is trivial. Only
    beta^d/gamma matters, so that the margin may be chosen after the data are samples.

    Reference: Neyshabur, Bhojanapalli and Srebro 2018, Theorem 1 and its proof, Lemmas 1 and 2.
    """
    depth, width, samples = len(facts.log10_spectral), facts.width, facts.samples
    ratios = [2.0 * (f - s) for f, s in zip(facts.log10_frobenius, facts.log10_spectral, strict=True)]
    product = 2.0 * (math.fsum(facts.log10_spectral) - math.log10(margin))
    if not all(map(math.isfinite, (product, *ratios))):
        return [BoundTerm(name="complexity", log10=math.inf)]
    fixed = 42.0**2 * depth**2 * facts.radius**2 * width * math.log(4.0 * depth * width) * math.e**2 / 2.0
    kl = math.log10(fixed) + product + log10_sum(ratios)
    listed = facts.nats + math.log(6.0 * samples / facts.delta) + math.log(depth) + math.log(samples) / (2.0 * depth)
    root = 0.5 * (log10_sum((kl, math.log10(listed))) - math.log10(samples - 1))
    return [BoundTerm(name="complexity", log10=math.log10(4.0) + root)]


def golowich2020(facts: MarginFacts, margin: float) -> list[BoundTerm]:
    """Return the complexity and the confidence term; the bound adds both to the margin loss on D.

    Theorem 1: networks of depth d with scalar output and homogeneous 1-Lipschitz activations of single entries have
    `Rad <= prod norm(W_j)_F (sqrt(2 ln(2) d) + 1) norm(X)_F/m`. For K classes the ramp loss of the margin is
    sqrt(2)/gamma-Lipschitz in the outputs, and Maurer's vector contraction gives `sqrt(2) sqrt(2)/gamma K Rad`; the
    error is at most the margin loss on D plus twice that plus `3 sqrt(ln(2/delta)/(2 m))`.

    Reference: Golowich, Rakhlin and Shamir 2020, Theorem 1; Maurer 2016, Corollary 4.
    """
    scale, factor = power_of_two(math.fsum(facts.log10_frobenius) - math.log10(margin))
    root = 0.5 * math.log10(facts.square_norms) - math.log10(facts.samples)
    depth = len(facts.log10_frobenius)
    complexity = scale + root + math.log10(4.0 * facts.classes * (math.sqrt(2.0 * math.log(2.0) * depth) + 1.0))
    confidence = 3.0 * math.sqrt((math.log(2.0 * factor / facts.delta) + facts.nats) / (2.0 * facts.samples))
    return [BoundTerm(name="complexity", log10=complexity), term("confidence", confidence)]


def growth_row(network: NetworkNorms, samples: SamplesSeen, delta: float) -> BoundRow:
    """Return the bound that counts the ways in which the architecture can classify m samples."""
    beside = network.beside_parameters
    conditions = (samples.independent, ARCHITECTURE, network.alone, samples.traced, network.piecewise, beside.condition)
    if not network.units:
        return _without_figure("VC", "Bartlett et al. 2019, Theorem 7", conditions)
    count = log_growth(network.units, samples.samples)
    first, second = growth_bound(count, samples.samples, delta, beside.nats)
    dimension = vc_dimension(network.units)
    printed = samples.worst_error + slides_bound(dimension, samples.samples, delta)
    return error_row(
        "VC",
        source="Bartlett et al. 2019, Theorem 7, and Massart's lemma",
        terms=[term("error on D", samples.worst_error), term("growth", first), term("confidence", second)],
        conditions=conditions,
        log10_as_printed=log10(printed) if printed < math.inf else math.inf,
        note=f"VC dimension at most {dimension:.4g} for {network.parameters:,} weights; the Slides' formula as printed",
    )


def margin_rows(
    network: NetworkNorms, samples: SamplesSeen, delta: float, input_radius: float | None
) -> list[BoundRow]:
    """Return the bounds by norms and margins: Bartlett 2017, Neyshabur 2018, Golowich 2020.

    `input_radius` is the largest norm that an input can have; None where it is not declared.
    """
    constant = float(network.biased)  # With biases, every input has one more entry, which is 1.
    layers, longest = network.layers, samples.largest_norm if input_radius is None else input_radius
    facts = MarginFacts(
        log10_spectral=tuple(layer.log10_spectral for layer in layers),
        log10_frobenius=tuple(layer.log10_frobenius for layer in layers),
        log10_rows=tuple(layer.log10_rows for layer in layers),
        width=network.width if layers else 0,
        classes=samples.classes,
        samples=samples.samples,
        square_norms=samples.square_norms + constant * samples.samples,
        radius=math.hypot(longest, constant),
        delta=delta,
        nats=network.beside_layers.nats,
    )
    within = condition(
        "no input is longer than B",
        None if input_radius is None else True,
        "B is the longest sample of D: declare input_range"
        if input_radius is None
        else "from the declared input range",
    )
    neyshabur = "Neyshabur, Bhojanapalli and Srebro 2018, Theorem 1 with the constants of its proof"
    bounds: tuple[tuple[str, str, tuple[Condition, ...], Callable[[MarginFacts, float], list[BoundTerm]]], ...] = (
        ("Bartlett 2017", "Bartlett, Foster and Telgarsky 2017, Theorem 1.1 with constants", (), bartlett2017),
        ("Neyshabur 2018", neyshabur, (within,), neyshabur2018),
        ("Golowich 2020", "Golowich, Rakhlin and Shamir 2020, Theorem 1", (network.entrywise,), golowich2020),
    )
    asked = (
        samples.independent,
        ARCHITECTURE,
        network.alone,
        samples.traced,
        network.chain,
        network.homogeneous,
        network.matrices,
    )
    rows = []
    for name, source, further, terms_at in bounds:
        conditions = (*asked, network.beside_layers.condition, *further)
        if not network.layers:
            rows.append(_without_figure(name, source, conditions))
            continue
        tried = []
        for margin in quantiles(samples.margins.tolist()) or [1.0]:
            below = int(torch.searchsorted(samples.margins, margin, right=True)) / samples.samples
            terms = [term("margin loss on D", below), *terms_at(facts, margin)]
            tried.append((log10_sum(one.log10 for one in terms), margin, terms))
        _, margin, terms = min(tried, key=lambda one: one[:2])
        note = f"at a margin of {margin:.4g}, which may be chosen after the fact"
        rows.append(error_row(name, source=source, terms=terms, conditions=conditions, note=note))
    return rows


def weight_norm_row(network: NetworkNorms, samples: SamplesSeen) -> BoundRow:
    """Return the rate of Cisneros-Velarde et al. for weight normalization: rho^2/sqrt(m), rho the last layer's norm."""
    source = f"Cisneros-Velarde et al. 2025, as {THAN} quotes it"
    norms = network.weight_frobenius
    hidden = norms[:-1]
    unit = condition(
        "every layer but the last has weights of Frobenius norm 1",
        bool(hidden) and all(abs(10.0 ** min(one, 10.0) - 1.0) < UNIT_NORM_TOLERANCE for one in hidden),
        "read off the weights, BatchNorms folded",
    )
    if not norms:
        return _without_figure("Weight normalization", source, (samples.independent, unit), rate=True)
    return row(
        "Weight normalization",
        source=source,
        speaks_of="the gap between the losses on D and on fresh data",
        most=1.0,
        terms=[BoundTerm(name="rho^2/sqrt(m)", log10=2.0 * norms[-1] - 0.5 * math.log10(samples.samples))],
        conditions=(samples.independent, unit),
        rate=True,
    )


def _without_figure(name: str, source: str, conditions: Sequence[Condition], *, rate: bool = False) -> BoundRow:
    """Return the row of a bound that cannot be computed for this network: its value is infinite."""
    note = "it has no figure for this network"
    return error_row(name, source=source, terms=(), conditions=conditions, rate=rate, log10_value=math.inf, note=note)
