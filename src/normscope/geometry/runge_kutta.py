"""Integrate an ordinary differential equation with steps that adapt to an error estimate (Dormand and Prince 1980)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

STAGES = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
"""The coefficients of the stages of the pair of orders 5 and 4; the last stage is the step itself."""
ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
"""The coefficients of the difference of the two orders, which estimates the error of a step."""
SAFETY, LEAST, MOST = 0.9, 0.2, 5.0
"""The safety factor on the next step's length, and the least and largest factor by which the length may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolutionPoint:
    """A point of the solution: the time, the values, and the slope there."""

    time: float
    value: Tensor
    slope: Tensor


def integrate(
    slope: Callable[[Tensor], Tensor], start: Tensor, *, end: float, first: float, rtol: float
) -> Iterator[SolutionPoint]:
    """Yield the solution of dw/dt = slope(w) after each accepted step, the start first, until the end time.

    Args:
        slope: the right side of the equation, which does not depend on time.
        start: the values at time 0.
        end: the last time.
        first: the length of the first step that is tried.
        rtol: the largest error of a step, relative to the norm of the values.
    """
    time, value, step = 0.0, start, min(first, end)
    known = slope(value)
    yield SolutionPoint(time=0.0, value=value, slope=known)
    while time < end * (1 - 1e-12):
        step = min(step, end - time)
        stages = [known]
        for row in STAGES[1:]:
            moved = value
            for weight, stage in zip(row, stages):
                if weight:
                    moved = moved + step * weight * stage
            stages.append(slope(moved))
        difference = sum(weight * stage for weight, stage in zip(ERROR, stages) if weight)
        assert isinstance(difference, Tensor)
        tolerance = rtol * float(value.double().norm())
        error = step * float(difference.double().norm()) / max(tolerance, 1e-300)
        if not error < float("inf"):
            step *= LEAST
        elif error <= 1.0:
            time, value, known = time + step, moved, stages[-1]
            yield SolutionPoint(time=time, value=value, slope=known)
            step *= MOST if error == 0 else min(MOST, max(LEAST, SAFETY * error**-0.2))
        else:
            step *= max(LEAST, SAFETY * error**-0.2)
        if step < 1e-12 * end:
            return
