"""Checks of the numbers that callers pass as options: each is refused in one sentence."""

from __future__ import annotations

import math
import operator
from typing import Any

from .errors import InputError


def check_numbers(*, radius: Any = None, rtol: Any = 1e-3, max_seconds: Any = None, seed: Any = 0) -> None:
    """Refuse a radius, a tolerance, a budget or a seed that is no such number; None stands for a default.

    Args:
        radius: a finite number >= 0.
        rtol: a finite number >= 0.
        max_seconds: a number >= 0.
        seed: an integer from 0 to 2^63 - 1.

    Raises:
        InputError: one of them is something else.

    Example:
        >>> check_numbers(radius=0.1, max_seconds=2)
    """
    if radius is not None and not (0.0 <= _number(radius) < math.inf):
        raise InputError(f"a ball needs a radius, a finite number >= 0, not {radius!r}")
    if not 0.0 <= _number(rtol) < math.inf:
        raise InputError(f"rtol is a finite number >= 0, not {rtol!r}")
    if max_seconds is not None and not _number(max_seconds) >= 0.0:
        raise InputError(f"max_seconds is a number of seconds >= 0, or None, not {max_seconds!r}")
    try:
        whole = -1 if isinstance(seed, bool) else operator.index(seed)
    except TypeError:
        whole = -1
    if not 0 <= whole < 2**63:
        raise InputError(f"seed is an integer from 0 to 2^63 - 1, not {seed!r}")


def check_counts(*, least: int = 0, **counts: Any) -> None:
    """Refuse a count that is no whole number, or that is below the least one.

    Example:
        >>> check_counts(least=1, draws=8, steps=20)
    """
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name} is a whole number from {least} on, not {value!r}")


def check_positive(**numbers: Any) -> None:
    """Refuse a number that is not finite and above 0.

    Raises:
        InputError: one of them is something else; the message names it.

    Example:
        >>> check_positive(lr=0.1)
    """
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InputError(f"{name} is a number above 0, not {value!r}")


def _number(value: Any) -> float:
    """Return a number as a float, NaN for anything else."""
    if isinstance(value, str | bytes | bool):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan
