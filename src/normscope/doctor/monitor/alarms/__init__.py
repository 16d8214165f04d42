"""What goes wrong while a model trains: one function per alarm, from a `History` to `Finding`s, causes first.

The words of an alarm are an `Alarm` beside its function. A function looks at a bounded number of records, the run's
first and its latest, so that its cost does not grow with the run. It says what it sees now, every time; `add_record`
raises it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ....core.finding import Finding
from ..history import History
from ..record import Record
from .data import data_changed, labels_alike, large_column, loss_oddities, same_batch
from .dead_units import attention_saturated, dead_channels, dead_layer, dead_relu, saturated_units
from .learning import (
    half_precision,
    no_better_than_constant,
    output_constant,
    rate_decayed,
    rate_zero,
    steps_too_large,
    strong_dropout,
    weights_put_back,
    weights_still,
)
from .loss import edge_of_stability, is_broken, loss_not_finite, loss_rising, loss_spike, rate_rose
from .normalizers import expanding_normalizer, small_batch, stale_statistics, variance_collapse
from .setup import (
    constant_input,
    frozen_layer,
    gradient_missing,
    no_gradient,
    no_zero_grad,
    not_trained,
    part_in_eval_mode,
    slow_groups,
    units_alike,
)
from .weights import (
    decay_too_strong,
    effective_lr,
    gradient_explosion,
    gradient_vanishing,
    norm_growth,
    penalty_outweighs,
)

Rule = Callable[[History], Iterator[Finding]]
ALARMS: tuple[Rule, ...] = (
    loss_not_finite,
    constant_input,
    same_batch,
    labels_alike,
    loss_oddities,
    data_changed,
    large_column,
    gradient_missing,
    no_gradient,
    not_trained,
    slow_groups,
    frozen_layer,
    part_in_eval_mode,
    units_alike,
    no_zero_grad,
    rate_zero,
    rate_decayed,
    rate_rose,
    strong_dropout,
    decay_too_strong,
    penalty_outweighs,
    weights_put_back,
    weights_still,
    steps_too_large,
    edge_of_stability,
    small_batch,
    variance_collapse,
    dead_layer,
    norm_growth,
    gradient_explosion,
    gradient_vanishing,
    effective_lr,
    dead_channels,
    dead_relu,
    saturated_units,
    attention_saturated,
    stale_statistics,
    expanding_normalizer,
    loss_rising,
    loss_spike,
    output_constant,
    half_precision,
    no_better_than_constant,
)
"""Every alarm; what stands earlier is more likely the cause of what stands later."""


URGENT = (
    loss_not_finite, constant_input, labels_alike, loss_oddities, data_changed, gradient_missing, no_gradient,
    not_trained, frozen_layer, part_in_eval_mode, units_alike,
    no_zero_grad, rate_zero, rate_rose, weights_put_back, loss_rising, loss_spike,
)  # fmt: skip
"""Alarms that are cheap, for they read no layer by layer figures, and looked for at every record."""
THROWN = frozenset({
    "dead-layer", "dead-relu", "dead-channels", "saturated-units", "attention-saturated", "output-constant",
    "gradient-explosion", "gradient-vanishing", "norm-growth", "variance-collapse",
    "stale-statistics", "effective-lr", "expanding-normalizer", "loss-rising", "loss-spike",
    "no-better-than-constant",
})  # fmt: skip
"""What steps that are far too large do to a network, or a loss that is minimised without a bound."""
FOLLOWS: dict[str, frozenset[str]] = {
    "no-zero-grad": THROWN | {"lr-too-high"},
    "negated-loss": THROWN | {"lr-too-high"},
    "lr-too-high": THROWN,
    "gradient-cut": frozenset({"output-constant"}),
}
"""Alarms that follow from one that was raised: they are part of its story, and are not told again."""
EARLY_RECORDS = 5
"""The first records, at each of which all alarms are looked for: most faults are there from the start."""


def add_record(history: History, record: Record, *, thorough: bool = True) -> list[Finding]:
    """Add a record to a history; return the alarms that it raises.

    An alarm of a code at a place is raised once in a run, and once more if it becomes more severe.

    Args:
        history: the history of the run.
        record: the next one.
        thorough: whether to look for all alarms, or only for those that cannot wait.

    Example:
        >>> broken = Record(step=0, seconds=0.0, tier="economy", loss=float("nan"))
        >>> [finding.code for finding in add_record(History(), broken)]
        ['loss-not-finite']
    """
    history.keep(record)
    return look_for_alarms(history, thorough=thorough)


def look_for_alarms(history: History, *, thorough: bool = True) -> list[Finding]:
    """Return the alarms that the records so far raise, and that were not raised yet.

    While numbers are not finite nothing else is said: all of it would follow from that. Nor is what follows from an
    alarm that was raised (`FOLLOWS`).
    """
    if not history.records:
        return []
    looks = ALARMS if thorough or len(history.records) <= EARLY_RECORDS else URGENT
    if is_broken(history.records[-1]):
        looks = (loss_not_finite,)
    raised: list[Finding] = []
    told = {finding.code for finding in history.findings}
    for look in looks:
        for finding in look(history):
            follows = any(finding.code in FOLLOWS[code] for code in told & FOLLOWS.keys())
            if not follows and history.raised(finding):
                raised.append(finding)
                told.add(finding.code)
    return raised
