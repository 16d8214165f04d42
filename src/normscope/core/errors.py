"""The errors of Normscope, which say what was met, where, and what to do; the text in them; and checks of options.

Text from models and files is escaped, so that a page or a terminal shows it and never acts on it.
"""

from __future__ import annotations

import html
import math
import operator
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

NAME = re.compile(r"`([^`]+)`")
"""A name in a sentence."""
UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of characters that are invisible, or that reverse or break the text beside them."""


def card(title: str, lines: Mapping[str, str | None]) -> str:
    """Return a few labelled lines as HTML for a notebook, with inline styles that no other style sheet changes.

    Words between backticks are shown as code.
    """
    cell = "padding:1px 12px 1px 0;text-align:left;vertical-align:top;border:0;background:none;white-space:normal"
    rows = "".join(
        f'<tr style="background:none;border:0"><td style="{cell};opacity:.7;white-space:nowrap">{escaped(label)}</td>'
        f'<td style="{cell}">{with_code(text)}</td></tr>'
        for label, text in lines.items()
        if text
    )
    table = f'<table style="border:0;margin:0;border-collapse:collapse;table-layout:auto">{rows}</table>'
    return f'<div style="max-width:52rem;text-align:left"><strong>{escaped(title)}</strong>{table}</div>'


def with_code(text: str) -> str:
    """Return a sentence as HTML, with the words between backticks as code and everything else as text."""
    return NAME.sub(r"<code>\1</code>", escaped(text))


def escaped(text: str) -> str:
    """Return text in the form in which HTML shows it as it is."""
    return html.escape(visible(text))


def visible(text: str) -> str:
    """Return `text` with characters that would act on their surroundings written out.

    Names come from models and files: an escape sequence in one must not reach a terminal, a direction mark must not
    turn a sentence around, and half a surrogate pair cannot be written to a file. Line breaks and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in UNSEEN:
        return character
    return (
        character.encode("ascii", "backslashreplace").decode() if ord(character) > 127 else f"\\x{ord(character):02x}"
    )


LONGEST = 1000
"""How many letters of another error are quoted: a file may hold a name of megabytes."""


class NormscopeError(Exception):
    """Root of every error raised on purpose by Normscope; names in its message cannot control a terminal."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(visible(arg) if isinstance(arg, str) else arg for arg in args))


class InputError(NormscopeError):
    """The model or the data cannot be used as given (shape, dtype, non-finite weights, ...)."""


class NotFiniteError(InputError):
    """The model, or what it returns, holds NaN or infinite values."""


class CaptureError(NormscopeError):
    """The model could not be turned into a graph; the message says why."""


class RandomOperatorError(CaptureError):
    """The model draws random numbers on the path from input to output."""


class JacobianError(NormscopeError):
    """There is no derivative at the input, or what autograd gives of an untraceable model is not its derivative."""


class SoundnessError(NormscopeError):
    """A lower bound was found above an upper bound: a bug in Normscope or in a user's rule."""


class MissingRuleError(NormscopeError):
    """One or more operators of the model have no rule.

    Attributes:
        missing: one line per operator: its name, how often it occurs, where, and the source line.
    """

    def __init__(self, missing: Sequence[str]) -> None:
        self.missing = tuple(missing)
        lines = "\n".join(f"  - {line}" for line in self.missing)
        super().__init__(
            f"no rule for {len(self.missing)} operator(s) of this model:\n{lines}\n"
            "Add one with @normscope.rule(operator, examples=[...]) (see CONTRIBUTING.md), give a constant for the "
            'module that holds it with known={"module.path": constant}, or pass on_missing="inf" to go on with '
            "an infinite bound."
        )


def describe_error(error: BaseException) -> str:
    """Return an error's class and the first line of what it says, or the beginning of a line that is endless."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # an error of the user's that cannot even say what it is
        lines = []
    return f"{type(error).__name__}: {lines[0].rstrip('.'):.{LONGEST}}" if lines else type(error).__name__


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
