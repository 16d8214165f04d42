"""The errors of Normscope: each says what was met, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from .markup import visible

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
