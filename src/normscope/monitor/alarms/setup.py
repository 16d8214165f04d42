"""Alarms about how a loop is put together: data, gradients and parameters that do not meet as they should."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ...core.finding import Finding, Severity
from ...diagnosis.findings.finding_words import figure, figures
from ...report.words import counted
from ..courses import RECORDS, STEPS
from ..history import History
from ..parameter_follower import Since
from .medians import step, told

CONSECUTIVE = 3
"""Records in a row: what is plain at one step and the same at three is no chance."""


def constant_input(history: History) -> Iterator[Finding]:
    """Batches whose samples are all the same."""
    found = [record.total.get("input_spread") for record in history.records[-CONSECUTIVE:]]
    if len(found) < CONSECUTIVE or any(value != 0.0 for value in found):
        return
    yield Finding(
        code="constant-input",
        severity=Severity.WARNING,
        where="",
        seen=f"In {CONSECUTIVE} measured batches in a row all samples are the same to the last bit (zeros, perhaps).",
        why="From inputs that do not differ nothing can be learned but the frequencies of the targets.",
        advice="Look at what the loader returns: a wrong index, a scaling that divides by zero or rounds to integers, "
        "a buffer that is not filled.",
        numbers=figures(spread=0.0),
        step=step(history),
    )


def no_gradient(history: History) -> Iterator[Finding]:
    """Parameters that the optimizer has and that no gradient reaches, while others have one."""
    names = _lasting(history, history.standing.ungraded)
    if not names or told(history, "no-gradient"):
        return
    place = names[-1].rpartition(".")[0]
    yield Finding(
        code="no-gradient",
        severity=Severity.WARNING,
        where=place,
        seen=f"For {STEPS} steps and more {_named(names)} got no gradient at all (`grad` is None), though the "
        "optimizer is to train it.",
        why="The loss does not depend on these parameters: they keep the values they were initialised with.",
        advice=f"Look behind `{place}` for a detach(), a torch.no_grad(), an argmax or a conversion to NumPy, or for a "
        "branch that the forward does not take. Freeze what is not to be trained with requires_grad_(False).",
        numbers=figures(parameters=len(names)),
        step=step(history),
    )


def not_trained(history: History) -> Iterator[Finding]:
    """Parameters that get gradients but that no optimizer changes."""
    names = _lasting(history, history.standing.unmoved)
    if not names or told(history, "not-trained"):
        return
    yield Finding(
        code="not-trained",
        severity=Severity.WARNING,
        where=names[0].rpartition(".")[0],
        seen=f"For {STEPS} steps and more {_named(names)} got gradients, but did not change: the optimizer does not "
        "have it.",
        why="These layers keep the values they were initialised with, and their gradients are taken for nothing.",
        advice="Pass the optimizer model.parameters(), also of layers that were added after it was made. Freeze what "
        "is not to be trained with requires_grad_(False).",
        numbers=figures(parameters=len(names)),
        step=step(history),
    )


def no_zero_grad(history: History) -> Iterator[Finding]:
    """Gradients that are added to those of the steps before."""
    found = [record.total.get("left_over") for record in history.records[-CONSECUTIVE:]]
    left = [value for value in found if value is not None and value > 0.0]
    if len(left) < CONSECUTIVE:
        return
    gradient = history.total("log10_gradient").now
    yield Finding(
        code="no-zero-grad",
        severity=Severity.WARNING,
        where="",
        seen=f"In {CONSECUTIVE} records in a row gradients of the step before were still there when those of the next "
        f"were added (up to {figure(max(left))} in one entry).",
        why="Gradients are summed over all steps so far: steps grow and point where old batches pointed.",
        advice="Call optimizer.zero_grad() once for every optimizer.step(), before the backward.",
        numbers=figures(left=max(left), log10_gradient=gradient if gradient is not None else math.nan),
        step=step(history),
    )


def _lasting(history: History, found: Mapping[str, Since]) -> list[str]:
    now = step(history)
    return [name for name, since in found.items() if since.records > RECORDS and now - since.step >= STEPS]


def _named(names: list[str]) -> str:
    return f"`{names[-1]}`" + (f" (and {counted(len(names) - 1, 'other parameter')})" if len(names) > 1 else "")
