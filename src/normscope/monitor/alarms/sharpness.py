"""The alarm about a curvature that the learning rate is too large for."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.finding import Finding, Severity
from ...diagnosis.findings.finding_words import figures
from ..history import History
from .medians import step

EDGE = 2.0
"""The learning rate times the largest curvature, beyond which gradient descent leaves a bowl."""
FAR = 4.0
"""Twice the edge: so far beyond it, training is no longer near the edge."""
LOOKS = 3
"""The latest looks that must all be beyond the edge."""


def edge_of_stability(history: History) -> Iterator[Finding]:
    """A largest curvature that stays above 2 over the learning rate."""
    looks = [r.metrics["effective_sharpness"] for r in history.records if "effective_sharpness" in r.metrics][-LOOKS:]
    if len(looks) < LOOKS or not min(looks) > EDGE:
        return
    least = min(looks)
    sharpness = history.total("sharpness").now
    yield Finding(
        code="edge-of-stability",
        severity=Severity.WARNING if least > FAR else Severity.INFO,
        where="",
        seen=f"At the last {LOOKS} looks the learning rate times the largest curvature of the loss was at least "
        f"{least:.3g}; at 2 plain gradient descent no longer settles in a bowl of that curvature.",
        why="Steps overshoot along the sharpest direction. Near 2 this is usual: full-batch training often drives the "
        "curvature up to this edge and stays there, with a loss that falls over many steps but not at every one. "
        "Momentum m moves the edge to 2 (1 + m); Adam and its like have an edge of their own, for the curvature in "
        "their scaled coordinates.",
        advice="If the loss still falls, nothing has to be done. If it rises or oscillates, lower the learning rate, "
        "lengthen the warm-up, or normalize the layer before the sharpest direction.",
        numbers=figures(effective_sharpness=least, **({} if sharpness is None else {"sharpness": sharpness})),
        step=step(history),
    )
