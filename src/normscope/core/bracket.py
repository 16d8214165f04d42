"""`Bracket`: a quantity between a witnessed lower side and an upper side with named evidence."""

from __future__ import annotations

import enum
import math
import os
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from .codec import JsonForm, Part
from .errors import InputError, SoundnessError, card, visible
from .log10 import power10
from .shown import Shown


class Evidence(enum.IntEnum):
    """How the upper side of a bracket is known; a composition keeps the weakest."""

    SAMPLED = 0
    """A maximum over the points tried: promises nothing about the others."""
    NUMERICAL = 1
    """True in exact arithmetic; rounding is not accounted for."""
    PROVEN = 2
    """True including rounding: computed in float64 with an explicit rounding allowance."""

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)


class Scope(enum.StrEnum):
    """The inputs that a Lipschitz constant speaks of."""

    GLOBAL = "global"
    """All inputs of the captured shape."""
    DATA = "data"
    """Fresh, independent draws from the same data, with a stated confidence."""
    POINT = "point"
    """The given samples alone."""
    BALL = "ball"
    """All inputs within a radius of a sample."""


HELD_CONSTANT = "held constant"
"""The words of notes on inputs that a bound does not let change; every form of a bracket shows these notes."""


class ProofWriter(Protocol):
    """The proof of a bracket, which can be written with the bracket's two sides to a file that others can check."""

    def write(self, path: str | os.PathLike[str], bracket: Bracket) -> None:
        """Write the file."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket(Part, Shown):
    """A number known to lie in `[lower, upper]`, with the evidence for both sides.

    `log10_lower` and `log10_upper` are authoritative; `lower` and `upper` are floats that may overflow to `inf`.

    Attributes:
        log10_lower: log10 of the witnessed lower side (`-inf` is zero).
        log10_upper: log10 of the upper side (`+inf` comes with a `reason`).
        evidence: how the upper side is known.
        scope: the inputs that the figure speaks of.
        method: how the upper side was found.
        mode: `"train"` or `"eval"`: which of the model's two functions was measured; `None` for a bare linear map.
        witness: what attains the lower side: a unit vector, or a pair of inputs.
        reason: why the upper side is `+inf`, or why `holds` is False.
        converged: whether the bracket closed to the asked tolerance.
        advice: what to raise if it did not, or what would help.
        holds: False for a printed formula that is no bound for this model (`reason` says why).
        input_shape: the shape of the inputs that the figure speaks of.
        per_sample: one bracket per sample, for POINT and BALL over a batch.
        per_output: one bracket per output, or per difference of two outputs, where asked for.
        notes: what the reader must know (dropout counted as off, ...).
        products: how many products with Jacobians, each of the whole batch, a POINT figure took.
        proof: what `save` writes beside the two sides; None where there is nothing to check.
    """

    page = "normscope.bounds.pages.bounds:bracket_document"
    JSON: ClassVar[JsonForm] = JsonForm(
        keys=("log10_lower", "log10_upper", "evidence", "scope", "mode", ...),
        left_out=("witness", "proof"),
        choices={"mode": ("train", "eval", None)},
        unsound="a lower side lies above its upper side",
    )

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
    per_output: tuple[Bracket, ...] | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    products: int | None = None
    proof: ProofWriter | None = field(default=None, repr=False, compare=False)

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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write both sides to one file, with the network, the certificate and the witness that prove them.

        `normscope bound verify FILE` checks such a file with a script that uses nothing of Normscope (`tools/verify`):
        it evaluates the network and proves the upper side anew.

        The file holds the weights as they were measured. The bracket keeps a copy of a network that is not in float64,
        and later changes of the model do not reach that copy. A network in float64 shares its weights with the bracket:
        sums over them are compared with the sums at the time of the measurement, and changed weights are refused.

        Args:
            path: the file to write, by convention `*.npz`.

        Raises:
            InputError: the bracket carries no proof, the weights it shares with the model have changed since they
                were measured, or the file cannot be written.

        Example:
            >>> import tempfile, torch, normscope as ns
            >>> norm = ns.spectral_norm(torch.eye(3))
            >>> norm.save(tempfile.mkdtemp() + "/identity.npz")
        """
        if not isinstance(path, str | os.PathLike):
            raise InputError(f"save takes the path of a file, such as 'proof.npz', not {path!r}")
        if self.proof is None:
            raise InputError(
                f"this {self.scope.value} bracket ({self.method}) carries no proof to save: brackets that "
                "normscope.spectral_norm, normscope.ladder and normscope.lipschitz(scope='global' or 'ball') return "
                "do; one read back from JSON, a POINT bracket and a formula that is no bound do not, nor does one over "
                "balls around samples with masks of their own, each of which (`per_sample`) does"
            )
        self.proof.write(path, self)

    def _remarks(self) -> dict[str, str | None]:
        """Return what must be said of the bracket, by what it is about."""
        remarks = {"infinite" if self.holds else "not a bound": self.reason} if self.reason or not self.holds else {}
        if fixed := [note for note in self.notes if HELD_CONSTANT in note]:
            remarks["inputs"] = "; ".join(fixed)
        return remarks if self.converged else {**remarks, "not converged": self.advice}

    def _rendered(self, width: int, color: bool = False) -> str:
        """Return the bracket as one line."""
        span = f"[{_decimal(self.log10_lower)}, {_decimal(self.log10_upper)}]"
        words = [span, self.scope.value, *([self.mode] if self.mode else []), self.evidence.name, self.method]
        return visible(" | ".join((*words, *(f"{what}: {why}" for what, why in self._remarks().items()))))

    def _repr_html_(self) -> str:
        lines = {"scope": self.scope.value, "mode": self.mode, "evidence": f"{self.evidence}", "method": self.method}
        remarks = {what: why or "the budget ran out" for what, why in self._remarks().items()}
        rows = {**lines, **remarks, "notes": "; ".join(self.notes)}
        return card(f"{_decimal(self.log10_lower)} to {_decimal(self.log10_upper)}", rows)


def _decimal(exponent: float) -> str:
    if math.isinf(exponent):
        return "0" if exponent < 0 else "inf"
    return f"{power10(exponent):.6g}" if -4 <= exponent < 6 else f"10^{exponent:.3f}"
