"""How many samples the Slides' Theorem 1 asks for."""

from __future__ import annotations

import math

from ..core.errors import InputError


def generalization_slack(samples: float, *, cells: int, partition: int, delta: float, most: float = 1.0) -> float:
    """Return the part of the Slides' Theorem 1 that shrinks with the number of samples m.

    `g = C (sqrt(2) + 1) q + 2 C q^2`, `q = sqrt(|T| ln(2 N/delta)/m)`.

    Args:
        samples: the number of samples m.
        cells: the number of cells |T| that hold samples.
        partition: the number of cells N of the partition.
        delta: the probability of failure.
        most: the largest loss C.

    Raises:
        InputError: one of them is outside its range.
    """
    if samples <= 0 or not 1 <= cells <= partition or not 0.0 < delta < 1.0 or not most > 0.0:
        raise InputError(
            "samples and the largest loss are above 0, cells between 1 and the size of the partition, delta between 0 "
            f"and 1, not {samples!r}, {most!r}, {cells!r} of {partition!r} and {delta!r}"
        )
    root = math.sqrt(cells * math.log(2 * partition / delta) / samples)
    return most * ((math.sqrt(2.0) + 1.0) * root + 2.0 * root**2)


def sample_size(
    gap: float, *, sensitivity: float, cells: int, partition: int, delta: float, most: float = 1.0
) -> float:
    """Return the number of samples at which the Slides' Theorem 1 promises a gap, solved from its right side.

    The right side is `sensitivity + g(m)`. The first part, cell diameters times local constants, does not shrink with
    m: a network whose sensitivity is above the gap needs infinitely many samples, whatever its normalizers save
    elsewhere. This is what "exponentially less data" can mean.

    Args:
        gap: the wanted gap between the losses on the data and on the distribution.
        sensitivity: the mean over the samples of the cell diameter times the loss's constant in the cell.
        cells: the number of cells |T| that hold samples, taken as given although it grows with m.
        partition: the number of cells N of the partition.
        delta: the probability of failure.
        most: the largest loss C.

    Returns:
        The number of samples; infinity where none suffices.

    Example:
        >>> m = sample_size(0.2, sensitivity=0.05, cells=10, partition=100, delta=0.05)
        >>> round(m), round(generalization_slack(m, cells=10, partition=100, delta=0.05), 6)
        (23645, 0.15)
        >>> sample_size(0.2, sensitivity=0.3, cells=10, partition=100, delta=0.05)
        inf

    Reference: Slides, Theorem 1 and "may require exponentially less training data".
    """
    generalization_slack(1.0, cells=cells, partition=partition, delta=delta, most=most)  # this checks the arguments
    if not gap > 0.0 or sensitivity < 0.0 or math.isnan(sensitivity):
        raise InputError(f"gap is a number above 0 and sensitivity one from 0 on, not {gap!r} and {sensitivity!r}")
    left = (gap - sensitivity) / most
    if left <= 0.0:
        return math.inf
    linear = math.sqrt(2.0) + 1.0
    root = (
        2.0 * left / (linear + math.sqrt(linear**2 + 8.0 * left))
    )  # the root q of linear q + 2 q^2 = left, in a form that does not cancel
    return cells * math.log(2 * partition / delta) / root**2
