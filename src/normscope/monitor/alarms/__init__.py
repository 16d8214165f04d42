"""What goes wrong while a model trains: one function per alarm, from a `History` to `Finding`s, causes first.

An alarm looks at a bounded number of records, the run's first and its latest, so that its cost does not grow with the
run. It says what it sees now, every time; `History.add` raises it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...core.finding import Finding
from .dead_units import dead_channels, dead_layer, dead_relu
from .gradients import gradient_explosion, gradient_vanishing
from .left_domain import left_domain
from .loss import is_broken, loss_not_finite, loss_rising, loss_spike, lr_too_high
from .setup import constant_input, no_gradient, no_zero_grad, not_trained
from .sharpness import edge_of_stability
from .statistics_alarms import small_batch, stale_statistics
from .variance import expanding_normalizer, variance_collapse, variance_growth
from .weight_alarms import effective_lr, norm_growth

if TYPE_CHECKING:
    from ..history import History

Alarm = Callable[["History"], Iterator[Finding]]
ALARMS: tuple[Alarm, ...] = (
    loss_not_finite,
    constant_input,
    no_gradient,
    not_trained,
    no_zero_grad,
    lr_too_high,
    edge_of_stability,
    small_batch,
    left_domain,
    variance_collapse,
    dead_layer,
    norm_growth,
    variance_growth,
    gradient_explosion,
    gradient_vanishing,
    effective_lr,
    dead_channels,
    dead_relu,
    stale_statistics,
    expanding_normalizer,
    loss_rising,
    loss_spike,
)
"""Every alarm; what stands earlier is more likely the cause of what stands later."""


URGENT = (loss_not_finite, constant_input, no_zero_grad, loss_spike)
"""Alarms that are cheap, and looked for at every record."""


def looked_for(history: History, alarms: Sequence[Alarm] = ALARMS) -> Iterator[Finding]:
    """Yield what the last record, with those before it, gives reason to say.

    While numbers are not finite nothing else is said: all of it would follow from that.

    Args:
        history: of the run, with at least one record.
        alarms: to look for.
    """
    for alarm in alarms:
        yield from alarm(history)
        if is_broken(history, history.records[-1]):
            return
