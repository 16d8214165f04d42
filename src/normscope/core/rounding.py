"""Upper bounds rounded outward: the only way to PROVEN.

Every figure here errs upward. `UNIT` is the unit roundoff u of float64. Standard model of floating-point arithmetic:
a sum of n products is off by at most `gamma(n)` times the sum of the absolute products (Higham 2002, section 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from .bracket import Evidence
from .log10 import log10, log10_root_sum_squares, log10_sum

UNIT = 2.0**-53


def gamma(operations: float) -> float:
    """Return n u / (1 - n u), the relative rounding allowance of n chained operations in float64."""
    product = operations * UNIT
    if product >= 0.5:
        raise ValueError(f"{operations:g} operations in float64: the rounding allowance is meaningless")
    return product / (1.0 - product)


def gram_allowance(inner: int, taps: int, axes: int) -> float:
    """Return a bound on the rounding error of a Gram matrix of a convolution's symbol, per squared tap sum.

    Let S be the sum over taps of the Frobenius norm of the tap's matrix (one tap: the matrix itself). A product sum
    over `inner * taps` terms is off by `gamma(inner * taps)` times the sum of absolute products, whose norm is at
    most S^2 (complex arithmetic counts four times, Higham 2002, lemma 3.5); a phase, reduced to a fraction of a turn
    in integers, is off by at most `16 (axes + 1) u` and enters twice. So the norm of the error is at most this
    number times S^2.
    """
    return 2.0 * gamma(4.0 * (inner * taps + 2.0 * taps + 8.0) + 32.0 * (axes + 1.0))


def cholesky_allowance(size: int, trace: float, *, is_complex: bool) -> float:
    """Return c such that a Cholesky factorization of A that ran to completion proves lambda_min(A) > -c.

    Rump 2006 ("Verification of positive definiteness", theorem 2.3): the backward error of a completed
    factorization is at most `gamma(n+1) / (1 - gamma(n+1)) * trace(A)`, in any order of summation; twice that is
    taken (blocked solvers multiply by reciprocals), and four times the operations in complex arithmetic.
    """
    step = gamma((4.0 if is_complex else 1.0) * (size + 4.0))
    return 2.0 * step / (1.0 - step) * trace


def residual_allowance(size: int, *, is_complex: bool) -> float:
    """Return a bound on the rounding error of A - L L^H, per squared Frobenius norm of L (which is about trace(A))."""
    return 2.0 * gamma((4.0 if is_complex else 1.0) * (size + 4.0))


@dataclass(frozen=True, slots=True)
class Upper:
    """An upper bound on a norm: its log10, how it is known, by which method, and why if it is infinite.

    Products, sums and root-sum-squares are rounded outward and keep the weakest evidence.
    """

    log10: float
    evidence: Evidence
    method: str = ""
    reason: str | None = None

    def __post_init__(self) -> None:
        """Refuse NaN: comparisons with it would keep whatever stands beside it."""
        if math.isnan(self.log10):
            raise ValueError("an upper bound of NaN: a norm is a number >= 0")

    @classmethod
    def of(cls, value: float, evidence: Evidence, method: str = "", *, allowance: float = 0.0) -> Upper:
        """Return the bound `value * (1 + allowance)`, rounded outward on the way to log10."""
        if value == 1.0 and allowance == 0.0:
            return cls(0.0, evidence, method)
        return cls(_outward(log10(value) + math.log1p(allowance) / math.log(10.0)), evidence, method)

    @classmethod
    def infinite(cls, reason: str) -> Upper:
        """Return +inf with its reason."""
        return cls(math.inf, Evidence.PROVEN, "no finite bound", reason)

    def times(self, *others: Upper) -> Upper:
        """Return the product of bounds; an infinite factor wins over a zero one."""
        result = self
        for other in others:
            reason = result.reason or other.reason
            evidence = min(result.evidence, other.evidence)
            if math.inf in (result.log10, other.log10):
                result = Upper(math.inf, evidence, "product", reason)
            elif 0.0 in (result.log10, other.log10):
                result = Upper(result.log10 + other.log10, evidence, "product", reason)
            else:
                result = Upper(_outward(result.log10 + other.log10), evidence, "product", reason)
        return result

    def named(self, method: str) -> Upper:
        """Return the same bound under another method name."""
        return Upper(self.log10, self.evidence, method, self.reason)


ONE = Upper(0.0, Evidence.PROVEN, "isometry")
ZERO = Upper(-math.inf, Evidence.PROVEN, "zero map")


def numerical(value: float, method: str = "") -> Upper:
    """Return a bound from a short float64 computation: NUMERICAL, with room for rounding; exactly 1 stays PROVEN."""
    return Upper.of(value, Evidence.NUMERICAL, method, allowance=1e-12) if value != 1.0 else ONE


def total(bounds: Sequence[Upper]) -> Upper:
    """Return the sum of bounds (the triangle inequality)."""
    return _combine(bounds, log10_sum, "sum")


def root_sum_squares(bounds: Sequence[Upper]) -> Upper:
    """Return sqrt(sum of squares): outputs side by side, or independent inputs."""
    return _combine(bounds, log10_root_sum_squares, "root sum of squares")


def largest(bounds: Sequence[Upper]) -> Upper:
    """Return the largest of several bounds (block-diagonal maps)."""
    evidence = min(bound.evidence for bound in bounds)
    top = max(bounds, key=lambda bound: bound.log10)
    return Upper(top.log10, evidence, top.method, top.reason)


def smallest(bounds: Sequence[Upper]) -> Upper:
    """Return the smallest of several bounds on the same quantity; ties go to the stronger evidence."""
    return min(bounds, key=lambda bound: (bound.log10, -bound.evidence))


def _combine(bounds: Sequence[Upper], rule: Callable[[Iterable[float]], float], method: str) -> Upper:
    evidence = min((bound.evidence for bound in bounds), default=Evidence.PROVEN)  # zeros count: they may be rounded
    bounds = [bound for bound in bounds if bound.log10 > -math.inf] or [ZERO]
    if len(bounds) == 1:
        return bounds[0] if bounds[0].evidence is evidence else replace(bounds[0], evidence=evidence)
    reason = next((bound.reason for bound in bounds if bound.reason), None)
    value = rule(bound.log10 for bound in bounds)
    if math.isfinite(value):
        value = _outward(value, steps=4 + len(bounds))
    return Upper(value, evidence, method, reason)


def inward(value: float, allowance: float = 0.0) -> float:
    """Return log10 of a computed lower bound, less its relative rounding allowance, rounded inward (0 is -inf)."""
    if value <= 0.0 or allowance >= 1.0:
        return -math.inf
    exponent = log10(value) + math.log1p(-allowance) / math.log(10.0)
    return exponent - 4 * max(abs(exponent), 1.0) * 2.0 * UNIT


def _outward(value: float, steps: int = 4) -> float:
    """Move a log10 up by a few units in the last place (and past the rounding of log10 itself near 0)."""
    if math.isinf(value):
        return value
    return value + steps * max(abs(value), 1.0) * 2.0 * UNIT
