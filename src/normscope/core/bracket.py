"""`Bracket`: a quantity between a witnessed lower side and an upper side with named evidence."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import SoundnessError
from .log10 import power10
from .plain import plain, revived


class Evidence(enum.IntEnum):
    """How the upper side of a bracket is known; a composition keeps the weakest."""

    SAMPLED = 0
    """A maximum over the points tried: promises nothing about the others."""
    NUMERICAL = 1
    """True in exact arithmetic; rounding is not accounted for."""
    PROVEN = 2
    """True including rounding: computed in float64 with an explicit rounding allowance."""


class Scope(enum.StrEnum):
    """Over which inputs a Lipschitz constant speaks."""

    GLOBAL = "global"
    POINT = "point"
    BALL = "ball"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """A number known to lie in `[lower, upper]`, with the evidence for both sides.

    `log10_lower` and `log10_upper` are authoritative; `lower` and `upper` are floats that may overflow to `inf`.

    Attributes:
        log10_lower: log10 of the witnessed lower side (`-inf` is zero).
        log10_upper: log10 of the upper side (`+inf` comes with a `reason`).
        evidence: how the upper side is known.
        scope: over which inputs the figure speaks.
        method: how the upper side was found.
        mode: `"train"` or `"eval"`: which of the model's two functions was measured; `None` for a bare linear map.
        witness: what attains the lower side: a unit vector, or a pair of inputs.
        reason: why the upper side is `+inf`, or why the figure `holds` not.
        converged: whether the bracket closed to the asked tolerance.
        advice: what to raise if it did not, or what would help.
        holds: False for a printed formula that is no bound for this model (`reason` says why).
        input_shape: the input size the figure speaks of.
        per_sample: one bracket per sample, for POINT and BALL over a batch.
        notes: what the reader must know (dropout counted as off, ...).
    """

    log10_lower: float
    log10_upper: float
    evidence: Evidence
    method: str
    scope: Scope = Scope.GLOBAL
    mode: str | None = None
    witness: Any = field(default=None, repr=False, compare=False)
    reason: str | None = None
    converged: bool = True
    advice: str | None = None
    holds: bool = True
    input_shape: tuple[int, ...] | None = None
    per_sample: tuple[Bracket, ...] | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if math.isnan(self.log10_lower) or math.isnan(self.log10_upper):
            raise ValueError(f"a bracket side is NaN (method {self.method!r})")
        if self.holds and self.log10_lower > self.log10_upper:
            raise SoundnessError(
                f"lower side 10^{self.log10_lower!r} above upper side 10^{self.log10_upper!r} "
                f"(method {self.method!r}). This is a bug: please report the model that shows it."
            )
        if self.log10_upper == math.inf and not self.reason:
            raise ValueError("an infinite upper side needs a reason")

    @property
    def lower(self) -> float:
        """The lower side as a float (0.0 and inf when out of range)."""
        return power10(self.log10_lower)

    @property
    def upper(self) -> float:
        """The upper side as a float (0.0 and inf when out of range)."""
        return power10(self.log10_upper)

    @property
    def gap(self) -> float:
        """Return upper/lower - 1: 0.001 is a bracket closed to 0.1 %."""
        if self.log10_lower == self.log10_upper:
            return 0.0
        return power10(self.log10_upper - self.log10_lower) - 1.0

    def to_json(self) -> dict[str, Any]:
        """Return plain data (witnesses are left out; infinities become strings)."""
        return {
            "log10_lower": plain(self.log10_lower),
            "log10_upper": plain(self.log10_upper),
            "evidence": self.evidence.name,
            "scope": self.scope.value,
            "mode": self.mode,
            "method": self.method,
            "reason": self.reason,
            "converged": self.converged,
            "advice": self.advice,
            "holds": self.holds,
            "input_shape": list(self.input_shape) if self.input_shape is not None else None,
            "per_sample": [b.to_json() for b in self.per_sample] if self.per_sample is not None else None,
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Bracket:
        """Return the bracket that `to_json` wrote, without its witness."""
        shape, samples = data["input_shape"], data["per_sample"]
        return cls(
            log10_lower=revived(data["log10_lower"]),
            log10_upper=revived(data["log10_upper"]),
            evidence=Evidence[data["evidence"]],
            scope=Scope(data["scope"]),
            mode=data["mode"],
            method=data["method"],
            reason=data["reason"],
            converged=data["converged"],
            advice=data["advice"],
            holds=data["holds"],
            input_shape=None if shape is None else tuple(shape),
            per_sample=None if samples is None else tuple(map(cls.from_json, samples)),
            notes=tuple(data["notes"]),
        )

    def __str__(self) -> str:
        span = f"[{_decimal(self.log10_lower)}, {_decimal(self.log10_upper)}]"
        words = [span, self.scope.value, *([self.mode] if self.mode else []), self.evidence.name, self.method]
        if not self.holds:
            words.append(f"not a bound: {self.reason}")
        elif self.reason:
            words.append(f"infinite: {self.reason}")
        if not self.converged:
            words.append(f"not converged: {self.advice}")
        return " | ".join(words)


def _decimal(exponent: float) -> str:
    if math.isinf(exponent):
        return "0" if exponent < 0 else "inf"
    return f"{power10(exponent):.6g}" if -4 <= exponent < 6 else f"10^{exponent:.3f}"
