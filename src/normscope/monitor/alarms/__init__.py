"""What goes wrong while a model trains: one function per alarm, from a `History` to `Finding`s, causes first.

An alarm looks at a bounded number of records, the run's first and its latest, so that its cost does not grow with the
run. It says what it sees now, every time; `History.add` raises it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ...core.finding import Finding
from .dead import dead_channels, dead_layer, dead_relu
from .gradients import gradient_explosion, gradient_vanishing
from .loss import loss_not_finite, loss_rising
from .sets import small_batch, stale_statistics
from .variance import expanding_normalizer, variance_collapse, variance_growth
from .weights import effective_lr, norm_growth

if TYPE_CHECKING:
    from ..history import History

ALARMS: tuple[Callable[[History], Iterator[Finding]], ...] = (
    loss_not_finite,
    small_batch,
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
)
"""Every alarm; what stands earlier is more likely the cause of what stands later."""


def looked_for(history: History) -> Iterator[Finding]:
    """Yield what the last record, with those before it, gives reason to say.

    After numbers are no longer finite nothing else is said: all of it would follow from that.

    Args:
        history: of the run, with at least one record.
    """
    for alarm in ALARMS:
        yield from alarm(history)
        if any(finding.code == "loss-not-finite" for finding in history.findings):
            return
