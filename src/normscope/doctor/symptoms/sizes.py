"""Every size that a rule of a check compares with a threshold, as one number for a model: that of its worst layer.

A size is measured by the functions that the rules use, so that both mean the same. What a rule asks besides (whether a
model is fresh, what lies before a layer) decides whether the number counts, and is not part of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ..facts.examined import Examined
from ..facts.layers_over_data import NormalizerOverData
from ..facts.loss import LossFacts
from ..facts.loss_call import BINARY, CLASSES
from ..facts.pass_facts import PassFacts
from ..facts.steps import StepFacts
from .check_readings import every_loss, loss_facts_of, step_facts_of
from .dead_layers import A_FEW_SAMPLES, largest_scale, passing_share
from .exploding_run import measure_run_growth
from .gradient_depth import (
    decades_grown,
    decades_lost,
    decades_through_batch_norms,
    deep_signal,
    find_falls,
    find_jump,
    shares_that_differ,
    sort_gradients,
)
from .loss_function import find_last_factor
from .no_better import first_loss_share, growths_of_layers
from .normalizer_gain import written_normalizers
from .units import GATED, inner_rows
from .weights import branch_ratios, leading_shares, recurrent_gains, scale_factors

Numbers = Iterable[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size.

    Attributes:
        codes: the codes of the findings that rest on it, each with the name of a number that these findings alone have:
            a code may have other findings, which rest on something else.
        measure: the numbers of the layers of a model, none where it has no such layer.
        worst: which of them is the worst.
        read_from_finding: whether that number of a finding is the size itself, of the layer that the finding names.
    """

    codes: Mapping[str, str]
    measure: Callable[[Examined], Numbers]
    worst: Literal["largest", "smallest"] = "largest"
    read_from_finding: bool = False


def measure_sizes(examined: Examined) -> dict[str, float]:
    """Return the sizes that a model has, by name."""
    sizes = {name: measure_size(name, examined) for name in SIZES}
    return {name: size for name, size in sizes.items() if size is not None}


def measure_size(name: str, examined: Examined) -> float | None:
    """Return a size of a model, that of its worst layer; None where it has no such layer."""
    size = SIZES[name]
    numbers = [number for number in size.measure(examined) if number is not None and not math.isnan(number)]
    return (max(numbers) if size.worst == "largest" else min(numbers)) if numbers else None


def _deep(read: Callable[[PassFacts], float]) -> Callable[[Examined], Numbers]:
    """A number of a network that is deep enough to have a trend."""

    def measure(examined: Examined) -> Numbers:
        signal = deep_signal(examined)
        return () if signal is None else (read(signal),)

    return measure


def _normalizers(read: Callable[[NormalizerOverData], float | None]) -> Callable[[Examined], Numbers]:
    """A number of each normalizer."""
    return lambda examined: (read(seen) for _, seen in examined.normalizers())


def _steps(read: Callable[[StepFacts], float | None]) -> Callable[[Examined], Numbers]:
    """A number of the next step of the optimizer."""

    def measure(examined: Examined) -> Numbers:
        steps = step_facts_of(examined)
        return () if steps is None else (read(steps),)

    return measure


def _loss(read: Callable[[LossFacts], float | None]) -> Callable[[Examined], Numbers]:
    """A number of the loss."""

    def measure(examined: Examined) -> Numbers:
        facts = loss_facts_of(examined)
        return () if facts is None else (read(facts),)

    return measure


def _saturated(*kinds: str) -> Callable[[Examined], Numbers]:
    """The saturated share of activations of these kinds inside of the network."""

    def measure(examined: Examined) -> Numbers:
        layers = () if examined.signal is None else examined.signal.layers
        return (row.saturated for row in inner_rows(layers) if row.kind in kinds)

    return measure


def _relus(passing: bool) -> Callable[[Examined], Iterator[float | None]]:
    """Of each ReLU the share of units that were on for no sample, or the size of what it hands on."""

    def measure(examined: Examined) -> Iterator[float | None]:
        signal = examined.signal
        if signal is not None and examined.data.samples >= A_FEW_SAMPLES:
            for (path, _, call), units in examined.data.units.items():
                yield signal.passing(path, "relu", call) if passing else float(units.dead.double().mean())

    return measure


def _jump(examined: Examined) -> Numbers:
    _, ordered = sort_gradients(examined)
    return (abs(find_jump(ordered)[0]),) if len(ordered) > 1 else ()


def _eps_over_variance(seen: NormalizerOverData) -> float | None:
    return math.log10(seen.eps) - seen.log10_median if seen.eps > 0.0 else None


def _recurrent(examined: Examined) -> Numbers:
    return () if examined.signal is None else (gain for _, gain in recurrent_gains(examined.signal))


def _ratio(over: float | None, under: float | None) -> float | None:
    """Return a quotient; None where a part of it is missing, or the divisor is not positive."""
    return None if over is None or under is None or under <= 0.0 else over / under


def _embeddings(examined: Examined) -> Numbers:
    rows = () if examined.signal is None else examined.signal.rows
    return (row.root_mean_square for row in rows if row.kind == "embedding")


SIZES: Mapping[str, Size] = {
    "gradient decades lost": Size(codes={"gradient-vanishing": "log10_gradient"}, measure=_deep(decades_lost)),
    "gradient decades gained": Size(
        codes={"gradient-explosion": "log10_gradient"}, measure=_deep(lambda signal: -decades_lost(signal))
    ),
    "value decades gained": Size(codes={"gradient-explosion": "log10_growth"}, measure=_deep(decades_grown)),
    "gradient and value decades gained": Size(
        codes={"gradient-explosion": "log10_growth"},
        measure=_deep(lambda signal: min(-decades_lost(signal), decades_grown(signal))),
    ),
    "batch norm decades": Size(
        codes={"batch-norm-depth": "log10_gradient"}, measure=lambda e: decades_through_batch_norms(e)[:1]
    ),
    "gradient decades of a jump": Size(codes={"gradient-jump": "log10_gradient"}, measure=_jump),
    "share that differs at the end": Size(
        codes={"gradient-vanishing": "share_left"},
        measure=lambda e: (max(shares_that_differ(e)[1][-2:], default=0.0) or None,),  # nothing at all is no fading
        worst="smallest",
    ),
    "fall between layers": Size(
        codes={"gradient-vanishing": "factor"},
        measure=lambda e: (factor for factor, *_ in find_falls(e)),
        worst="smallest",
    ),
    "run growth log10": Size(codes={"exploding-run": "log10_growth"}, measure=lambda e: measure_run_growth(e)[:1]),
    "run growth per layer": Size(
        codes={"exploding-run": "growth_per_layer"}, measure=lambda e: measure_run_growth(e)[1:]
    ),
    "eps over variance log10": Size(
        codes={"dead-layer": "passing", "eps-dominated": "share"}, measure=_normalizers(_eps_over_variance)
    ),
    "share of sets near eps": Size(codes={"eps-dominated": "share"}, measure=_normalizers(lambda seen: seen.share_eps)),
    "written eps over square": Size(
        codes={"eps-dominated": "size"},
        measure=lambda e: (_ratio(eps, read**2) for _, eps, read, _, _ in written_normalizers(e)),
    ),
    "normalized variance passed": Size(
        codes={"dead-layer": "passing"}, measure=_normalizers(passing_share), worst="smallest"
    ),
    "largest scale of a normalizer": Size(
        codes={"dead-layer": "log10_scale"},
        measure=_normalizers(lambda seen: largest_scale(seen) or None),
        worst="smallest",
    ),
    "share of negligible scales": Size(
        codes={"dead-channels": "share"},
        measure=_normalizers(
            lambda seen: None if (dead := seen.dead_scales) is None or bool(dead.all()) else float(dead.double().mean())
        ),
    ),
    "share of constant channels": Size(
        codes={"dead-channels": "share"},
        measure=_normalizers(
            lambda seen: None if (dead := seen.constant_inputs) is None else float(dead.double().mean())
        ),
    ),
    "values of a set": Size(
        codes={"tiny-sets": "entries"}, measure=_normalizers(lambda seen: seen.entries), worst="smallest"
    ),
    "dead share of a ReLU": Size(codes={"dead-relu": "share"}, measure=_relus(passing=False), read_from_finding=True),
    "size passed by a ReLU": Size(codes={"dead-relu": "share"}, measure=_relus(passing=True), worst="smallest"),
    "saturated share": Size(
        codes={"saturated-units": "share"},
        measure=_saturated("sigmoid", "tanh", "hardsigmoid", "hardtanh"),
        read_from_finding=True,
    ),
    "saturated share of gates": Size(
        codes={"saturated-units": "gates"}, measure=_saturated(*GATED), read_from_finding=True
    ),
    "one-hot share of rows": Size(
        codes={"attention-saturated": "share"}, measure=_saturated("softmax", "attention"), read_from_finding=True
    ),
    "leading share of a matrix": Size(
        codes={"rank-one-weights": "share"},
        measure=lambda e: (share for _, share in leading_shares(e)),
        read_from_finding=True,
    ),
    "large scale of a layer": Size(
        codes={"layer-scale": "factor"},
        measure=lambda e: (factor for _, factor, _ in scale_factors(e)),
        read_from_finding=True,
    ),
    "small scale of a layer": Size(
        codes={"layer-scale": "factor"},
        measure=lambda e: (factor for _, factor, undone in scale_factors(e) if factor and not undone),
        worst="smallest",
        read_from_finding=True,
    ),
    "size of an embedding": Size(codes={"layer-scale": "entry_size"}, measure=_embeddings, read_from_finding=True),
    "branch over stream": Size(
        codes={"branch-dominates": "ratio"}, measure=lambda e: (ratio for ratio, _ in branch_ratios(e))
    ),
    "large recurrent gain": Size(codes={"recurrent-scale": "gain"}, measure=_recurrent, read_from_finding=True),
    "small recurrent gain": Size(
        codes={"recurrent-scale": "gain"}, measure=_recurrent, worst="smallest", read_from_finding=True
    ),
    "output that differs": Size(
        codes={"output-constant": "samples"},
        measure=lambda e: (
            (_ratio(e.signal.layers[-1].sample_deviation, e.signal.layers[-1].root_mean_square),)
            if e.signal is not None and e.signal.layers
            else ()
        ),
        worst="smallest",
    ),
    "growth of a layer": Size(
        codes={"first-loss": "blind"}, measure=lambda e: (growth for growth, _ in growths_of_layers(e))
    ),
    "class loss over blind": Size(
        codes={"first-loss": "blind"},
        measure=_loss(lambda facts: first_loss_share(facts) if facts.name in (*CLASSES, *BINARY) else None),
    ),
    "squared loss over blind": Size(
        codes={"first-loss": "blind"},
        measure=_loss(lambda facts: None if facts.name in (*CLASSES, *BINARY) else facts.share_of_blind),
    ),
    "factor of the scores": Size(
        codes={"activation-before-loss": "factor"},
        measure=lambda e: (find_last_factor(e, facts) for facts in every_loss(e)),
        worst="smallest",
    ),
    "step for a hundredth": Size(
        codes={"no-loss-gradient": "step_share"}, measure=_steps(lambda steps: steps.step_share)
    ),
    "fall over promise": Size(
        codes={"gradient-does-not-descend": "fall"}, measure=_steps(lambda steps: steps.fall), worst="smallest"
    ),
    "next loss over loss": Size(
        codes={"step-too-long": "next_loss"},
        measure=_steps(
            lambda steps: math.inf if math.isnan(steps.next_loss or 0.0) else _ratio(steps.next_loss, steps.loss)
        ),
    ),
    "step over weights": Size(codes={"step-too-long": "next_loss"}, measure=_steps(lambda steps: steps.moved_share)),
    "steps to zero loss": Size(
        codes={"step-too-short": "promised_fall"}, measure=_steps(lambda steps: _ratio(steps.loss, steps.promised_fall))
    ),
    "share of weights left as they were": Size(
        codes={"step-too-short": "unmoved"}, measure=_steps(lambda steps: steps.unmoved)
    ),
    "pace of a step": Size(
        codes={"step-too-short": "promised_fall"}, measure=_steps(lambda steps: steps.pace), worst="smallest"
    ),
}
"""Every size by name."""
