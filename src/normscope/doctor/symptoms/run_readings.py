"""What several symptoms of a run read of its history: how far the loss has come, rises of the rate, lasting states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import NamedTuple

from ...core.finding import Finding
from ...report.words import pluralise
from ..monitor.history import History, losses_beside_constant
from ..monitor.parameter_state import Since
from ..monitor.record import Record
from ..monitor.series import LASTING_STEPS, PLAIN_STEPS
from .symptom import Symptom

INPUTS_USED_SHARE = 0.03
"""The deviation of outputs over samples, over their size: below it the inputs hardly matter yet, as on the plateaus on
which deep networks begin, which last for hundreds of steps and end of themselves."""
STAYS_STEPS = 100
"""Steps without any progress before that is said of outputs that were compared with a constant."""
FITTED_SHARE = 0.1
"""A share of the first loss: below it little is left to learn."""
STILL_FLAT_STEPS, FLAT_SHARE = 60, 0.98
"""Steps after which the loss must have left its start, and the share of the first loss that it must be below."""
TARGETS_PER_CLASS = 3
"""Targets for each class of a batch from which the loss of a constant is estimated."""
MIN_CONSTANTS, MANY_CONSTANTS = 4, 30
"""Batches of which the loss of a constant is the mean, at least and at most."""


def bound_loss_of_constant(history: History) -> float | None:
    """Return an upper estimate of the loss of the best constant output, in the units of the loss that is observed.

    None where it says nothing: the loss has other terms, outputs hardly depend on the inputs yet, or there are too few
    targets to estimate how often each comes.
    """
    rows = [
        (r.loss / loss, constant, r.total_of("outputs_differ") or 0.0)
        for r, loss, constant in losses_beside_constant(history.records[-MANY_CONSTANTS:])
        if loss and r.loss
        if (r.total_of("outputs_samples") or 0.0) >= TARGETS_PER_CLASS * (r.total_of("outputs_classes") or 4.0)
    ]
    if len(rows) < MIN_CONSTANTS or min(differ for *_, differ in rows[len(rows) // 2 :]) < INPUTS_USED_SHARE:
        return None
    factors, constants = [factor for factor, _, _ in rows], [constant for _, constant, _ in rows]
    if min(constants) <= 1e-6 or max(factors) - min(factors) > 1e-3 * abs(median(factors)):
        return None
    return median(factors) * _bound_constant(constants, history.records[-1].total_of("outputs_kinds"))


def _bound_constant(constants: Sequence[float], kinds: float | None) -> float:
    """Return an upper estimate of the loss of the best constant output, from its losses on some batches.

    With `kinds` classes it is at most the logarithm of their number, the loss where all are equally likely.
    """
    error = stdev(constants) / math.sqrt(len(constants)) if len(constants) > 1 else math.inf
    return min(fmean(constants) + 2.0 * error, math.inf if kinds is None else math.log(kinds))


def measure_progress(records: Sequence[Record], begin: int) -> tuple[float, float, float]:
    """Return the mean loss of the last half of the steps since one, how far it fell there, and the error of that.

    The half is taken in two parts. The deviation of single losses follows from the range of those of a record, which
    has 2 sqrt(log n) deviations, or more, for n losses; where a record has one loss, from one record to the next.
    """
    quarter = (records[-1].step - begin) / 4
    parts: list[list[tuple[float, float, float]]] = [[], []]
    chosen = [r for r in records if r.step > begin + 2 * quarter and mean_loss(r) is not None]
    singles = [mean for r in chosen if r.metrics.get("loss_count", 1.0) == 1.0 and (mean := mean_loss(r)) is not None]
    jumps = [(two - one) ** 2 / 2 for one, two in pairwise(singles)]
    scatter = math.sqrt(fmean(jumps)) if len(jumps) >= MIN_CONSTANTS else math.inf
    for record in chosen:
        mean, count = mean_loss(record), record.metrics.get("loss_count", 1.0)
        low, high = (record.metrics.get(f"loss_{name}", mean) for name in ("least", "largest"))
        if mean is not None and low is not None and high is not None:
            deviation = scatter if count == 1.0 else (high - low) / (2 * math.sqrt(math.log(count)))
            parts[record.step > begin + 3 * quarter].append((count, mean, deviation))
    if not all(parts):
        return math.nan, math.nan, math.nan
    counts = [sum(count for count, *_ in part) for part in parts]
    means = [sum(c * mean for c, mean, _ in part) / total for part, total in zip(parts, counts, strict=True)]
    errors = [
        math.sqrt(sum(c * deviation**2 for c, _, deviation in part)) / total
        for part, total in zip(parts, counts, strict=True)
    ]
    return (means[0] + means[1]) / 2, means[0] - means[1], math.hypot(*errors)


def steps_at_rate(history: History) -> int:
    """Return for how many steps the learning rate was at least a third of the present one: not those of a warm-up."""
    rates = [(r.step, max(r.lr)) for r in history.records if r.lr]
    if not rates or not rates[-1][1] > 0.0:
        return 0
    first = next(step for step, rate in rates if rate >= rates[-1][1] / 3)
    return history.step - first


def first_step_sizes(history: History) -> list[float]:
    """Return log10 of the first steps that were measured, over the weights."""
    sizes = (r.total_of("log10_step") for r in history.records[:8])
    return [size for size in sizes if size is not None and math.isfinite(size)]


def had_learned(history: History) -> bool:
    """Whether the loss was clearly below its start at some time."""
    start = history.first_loss
    return start is not None and history.least_loss is not None and history.least_loss[0] < 0.9 * start


def is_flat(history: History) -> bool:
    """Whether the mean loss of late is that of the start."""
    start, now = history.first_loss, recent_loss(history)
    return start is not None and now is not None and start > 0.0 and now >= FLAT_SHARE * start


RECENT_STEPS = 30
"""Steps over which a recent loss is averaged, so that single batches hardly show in it."""


def recent_loss(history: History) -> float | None:
    """Return the mean loss over the latest records, as many as it takes for thirty steps, or over all but the first."""
    total = count = 0.0
    for record in reversed(history.records[1:]):
        mean = mean_loss(record)
        if mean is None or not math.isfinite(mean):
            return None
        weight = record.metrics.get("loss_count", 1.0)
        total, count = total + weight * mean, count + weight
        if count >= RECENT_STEPS:
            break
    return total / count if count else None


def mean_loss(record: Record) -> float | None:
    """Return the mean loss since the record before, or that of the record."""
    return record.metrics.get("loss_mean", record.loss)


LARGE_INPUT_IN_RUN = 30.0
"""The root mean square of inputs that were not scaled: 0 to 255, amounts of money. Above that of a check, for it is
named beside another fault alone."""


def describe_large_inputs(history: History) -> str:
    """Say that inputs are large, where that may be the cause; empty where they are not."""
    size = history.total("input_size").start
    large = size is not None and size > LARGE_INPUT_IN_RUN
    return f" The inputs are not scaled: their size is {size:.3g}, and about 1 is usual." if large else ""


LOST_AT_HIGHER_RATE_SHARE, HIGHER_RATE_RATIO = 0.25, 1.15
"""The mean loss over the first that is enough where the learning rate has grown since, and by what factor."""
ROSE_RATIO = 2.0
"""The learning rate over the largest one before, at which it has risen at once: schedules come back to that at most."""
ROSE_RECORDS = 3
"""Records with a rate that did not grow, before a rise that is not the end of a warm-up."""


class RateRise(NamedTuple):
    """A learning rate that rose at once beyond all that it had been.

    Attributes:
        after: the step of the last record before it rose.
        since: the step of the first record with the higher rate.
        before: the rate at `after`.
        rate: the rate at `since`.
    """

    after: int
    since: int
    before: float
    rate: float

    def explains(self, step: float) -> bool:
        """Return whether what happened at a step followed on it."""
        return self.after <= step <= self.since + LASTING_STEPS


def find_rate_rise(history: History) -> RateRise | None:
    """Return the last rise of the learning rate in mid-run; None where there was none, or only a warm-up."""
    rates = [(r.step, max(r.lr)) for r in history.records if r.lr]
    last, largest = None, 0.0
    for index, (step, rate) in enumerate(rates):
        if index >= ROSE_RECORDS and step >= LASTING_STEPS and rate >= ROSE_RATIO * largest > 0.0:
            (_, earlier), (after, before) = rates[index - 2 : index]
            last = RateRise(after, step, before, rate) if before <= HIGHER_RATE_RATIO * earlier else last
        largest = max(largest, rate)
    return last


PLAIN_RECORDS = 2
"""Records after the first that are enough for what no batch can cause by chance."""
CONSECUTIVE_RECORDS = 3
"""Records in a row that are enough for what one batch might show by chance."""


def find_lasting(history: History, standing: Mapping[str, Since]) -> list[str]:
    """Return the parameters of which something was so for a lasting state."""
    return [
        name
        for name, since in standing.items()
        if (since.records > PLAIN_RECORDS and history.step - since.step >= PLAIN_STEPS)
        or (since.records >= PLAIN_RECORDS and history.step - since.step >= LASTING_STEPS)
    ]


def name_parameters(alarm: Symptom, history: History, names: list[str], at: str, since: int) -> Finding:
    """Return an alarm about parameters, at the module of one of them."""
    others = f" (and {pluralise(len(names) - 1, 'other parameter')})" if len(names) > 1 else ""
    named, at = (name.replace(" (new)", "") for name in (names[-1], at))  # as the user's model has it now
    words = {"steps": history.step - since, "names": f"`{named}`{others}"}
    return alarm.at(at.rpartition(".")[0], words, parameters=len(names))
