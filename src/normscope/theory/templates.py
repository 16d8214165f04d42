"""Recognise activations: expressions in exact arithmetic are matched with the formulas of the known activations.

A function that a model writes out in smaller operators is a polynomial, with fractions for coefficients, in x and in
functions of such polynomials (*atoms*). Two expressions that are equal as polynomials are the same function. Known
activations are recognised by their atoms and coefficients: an additional 1e-20 x^3, or a constant that is off, makes
another function. Constants that only stretch an activation, like beta in x sigmoid(beta x), are its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from torch import Tensor

from ..core.bracket import Evidence
from .activations import ACTIVATIONS, QUICK_GELU, Activation, elu, outward
from .piecewise import Unreadable

Atom = tuple[Any, ...]
"""The name of a function, the polynomial that is its argument, and its limits; `("x",)` is the variable."""
Monomial = frozenset[tuple[Atom, int]]
X: Atom = ("x",)
UNIT: Monomial = frozenset()
LINEAR: Monomial = frozenset({(X, 1)})
CUBIC: Monomial = frozenset({(X, 3)})
MOST_TERMS = 32
"""The largest number of terms: more than any activation has, and few enough for fast arithmetic."""
LOST = 1024
"""An expression whose terms cancel to less than 1/1024 of their size is refused: floats lose the remaining digits."""
GELU_CUBIC = 0.044715 * math.pi / 2.0
"""b/a^3 in the tanh form of GELU, x/2 (1 + tanh(a x + b x^3)): this figure stays the same when x is scaled."""
GELU_OFF = 1e-6
"""The largest relative error of that figure: constants rounded to float32 are off by 3e-7."""
GELU_WIDENING = 2.5
"""Slopes move by at most this factor times the relative error of b. With u = a x + b x^3, t = tanh u, s = 1 - t^2 the
size of b df'/db is abs(b x^3 s (4 - 2 x u' t))/2; b x^3 <= u and x u' <= 3 u make it at most 2 u s + 3 u^2 s, which is
at most 0.90 + 1.32."""


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A polynomial in atoms, as pairs of a product of atoms and its coefficient (never zero)."""

    terms: frozenset[tuple[Monomial, Fraction]]

    @classmethod
    def identity(cls) -> Polynomial:
        """Return x."""
        return cls(frozenset({(LINEAR, Fraction(1))}))

    @classmethod
    def constant(cls, value: Fraction) -> Polynomial:
        """Return a constant."""
        return cls(frozenset({(UNIT, value)} if value else ()))

    @property
    def coefficients(self) -> dict[Monomial, Fraction]:
        """The coefficients by product of atoms."""
        return dict(self.terms)

    def __add__(self, other: Polynomial) -> Polynomial:
        return _summed([*self.terms, *other.terms])

    def __mul__(self, other: Polynomial) -> Polynomial:
        return _summed([(_together(m, n), a * b) for m, a in self.terms for n, b in other.terms])

    def divided(self, other: Polynomial) -> Polynomial:
        """Return the quotient; a divisor that depends on x becomes an atom."""
        value = other.coefficients
        if set(value) == {UNIT}:
            return self * Polynomial.constant(1 / value[UNIT])
        exponent = _one_plus_exp(other)
        if exponent is not None:
            return self * (exponent * Polynomial.constant(Fraction(-1))).called("sigmoid")
        return self * _atom("reciprocal", other)

    def powered(self, exponent: int) -> Polynomial:
        """Return a small integer power."""
        if not 1 <= exponent <= 4:
            raise Unreadable("a high power")
        return self if exponent == 1 else self * self.powered(exponent - 1)

    def called(self, name: str, *limits: Fraction | None) -> Polynomial:
        """Return a function of the polynomial."""
        one = Polynomial.constant(Fraction(1))
        if name == "expm1":
            return self.called("exp") + Polynomial.constant(Fraction(-1))
        if name in ("log", "log1p"):
            exponent = _one_plus_exp(self + one if name == "log1p" else self)
            if exponent is None:
                raise Unreadable("a logarithm of something else than 1 + exp")
            return _atom("softplus", exponent)
        if name == "abs":
            size = _stretch(self)
            if size is None:
                raise Unreadable("abs of something else than a multiple of x")
            return _atom("abs", Polynomial.identity()) * Polynomial.constant(abs(size))
        if name == "sign":
            raise Unreadable("sign stands in no formula")
        return _atom(name, self, *limits)

    def compared(self, kind: str, other: Polynomial) -> Comparison:
        """Return a comparison with another polynomial."""
        return Comparison(kind, self + other * Polynomial.constant(Fraction(-1)))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether a polynomial is positive (`gt`, `ge`) or negative (`lt`, `le`)."""

    kind: str
    difference: Polynomial

    def chosen(self, first: Polynomial, second: Polynomial) -> SignChoice:
        """Return the choice between two polynomials, by the sign of x: (where x > 0, where x < 0)."""
        size = _stretch(self.difference)
        if size is None or self.kind not in ("gt", "ge", "lt", "le"):
            raise Unreadable("a choice by something else than the sign of x")
        upright = (size > 0) == (self.kind in ("gt", "ge"))
        return SignChoice(*((first, second) if upright else (second, first)))


@dataclass(frozen=True, slots=True)
class SignChoice:
    """One polynomial for x > 0 and another for x < 0; at 0 either of them."""

    right: Polynomial
    left: Polynomial


def activation_of(expression: Polynomial | SignChoice) -> Activation | None:
    """Return the known activation that an expression equals, stretched and scaled; None if there is none."""
    if isinstance(expression, SignChoice):
        return _elu(expression)
    terms = expression.coefficients
    for match in (_silu, _gelu, _mish, _tanhshrink, _softsign, _hardswish, _softplus):
        activation = match(terms)
        if activation is not None:
            return activation
    return None


Terms = dict[Monomial, Fraction]


def _silu(terms: Terms) -> Activation | None:
    """Recognise SiLU: x sigmoid(beta x)."""
    atom, (gain,) = _form(terms, "sigmoid", (1, 1))
    beta = None if atom is None else _stretch(atom[1])
    return None if beta is None or gain is None else _stretched("silu", float(beta), gain)


def _gelu(terms: Terms) -> Activation | None:
    """Recognise GELU: x/2 (1 + erf(x/sqrt 2)), x/2 (1 + tanh(a x + b x^3)), and SiLU as x/2 (1 + tanh(x/2))."""
    for name in ("erf", "tanh"):
        atom, (half, same) = _form(terms, name, (1, 0), (1, 1))
        if atom is None or half is None or half != same:
            continue
        size = _stretch(atom[1])
        if size is not None and name == "erf":
            return _stretched("gelu", math.sqrt(2.0) * float(size), 2 * half)
        if size is not None:
            return _stretched("silu", 2.0 * float(size), 2 * half)
        inside = atom[1].coefficients
        if name == "tanh" and set(inside) == {LINEAR, CUBIC}:
            a = inside[LINEAR]
            off = abs(float(inside[CUBIC] / a**3) / GELU_CUBIC - 1.0)
            if off <= GELU_OFF:
                margin = GELU_WIDENING * off + 1e-14
                return _stretched("gelu_tanh", float(a) / math.sqrt(2.0 / math.pi), 2 * half, margin)
    return None


def _mish(terms: Terms) -> Activation | None:
    """Recognise Mish: x tanh(softplus(x))."""
    atom, (gain,) = _form(terms, "tanh", (1, 1))
    if atom is None or gain is None:
        return None
    inside, (one,) = _form(atom[1].coefficients, "softplus", (0, 1))
    size = None if inside is None or one != 1 else _stretch(inside[1])
    return None if size is None else _stretched("mish", float(size), gain)


def _tanhshrink(terms: Terms) -> Activation | None:
    """Recognise Tanhshrink: x - tanh(k x)/k."""
    atom, (gain, inner) = _form(terms, "tanh", (1, 0), (0, 1))
    size = None if atom is None else _stretch(atom[1])
    if size is None or gain is None or inner is None or inner * size != -gain:
        return None
    return _stretched("tanhshrink", float(size), gain)


def _softsign(terms: Terms) -> Activation | None:
    """Recognise Softsign: x/(1 + abs(x))."""
    atom, (gain,) = _form(terms, "reciprocal", (1, 1))
    if atom is None or gain is None:
        return None
    inside, (floor, slope) = _form(atom[1].coefficients, "abs", (0, 0), (0, 1))
    if inside is None or floor is None or slope is None or not (floor > 0 and slope > 0):
        return None
    return _stretched("softsign", float(slope / floor), gain / floor)


def _hardswish(terms: Terms) -> Activation | None:
    """Recognise Hardswish: x clamp(x + 3, 0, 6)/6."""
    atom, (gain,) = _form(terms, "clamp", (1, 1))
    if atom is None or gain is None:
        return None
    _, inside, low, high = atom
    line = inside.coefficients
    if low != 0 or high is None or not high > 0 or set(line) != {LINEAR, UNIT} or 2 * line[UNIT] != high:
        return None
    return _stretched("hardswish", float(6 * line[LINEAR] / high), gain * high)


def _softplus(terms: Terms) -> Activation | None:
    """Recognise Softplus: log(1 + exp(x))."""
    atom, (gain,) = _form(terms, "softplus", (0, 1))
    size = None if atom is None else _stretch(atom[1])
    return None if size is None or gain is None else _stretched("softplus", float(size), gain * size)


def _elu(choice: SignChoice) -> Activation | None:
    """Recognise ELU: s x on the right, s alpha (exp(i x) - 1) on the left."""
    scale = _stretch(choice.right)
    atom, (size, offset) = _form(choice.left.coefficients, "exp", (0, 1), (0, 0))
    rate = None if atom is None else _stretch(atom[1])
    if scale is None or size is None or rate is None or offset != -size or rate < 0:
        return None
    activation = elu(_sized(size / scale), _sized(scale), _sized(rate))
    return replace(
        activation, slope=_wider(activation.slope), bounded=_wider(activation.bounded), evidence=Evidence.NUMERICAL
    )


def _form(terms: Terms, name: str, *powers: tuple[int, int]) -> tuple[Atom | None, list[Fraction | None]]:
    """Read terms as a sum of products of x and one atom of that name, each to given powers.

    The result is the atom with one coefficient per pair of powers, or no atom where a term is missing or left over.
    """
    nothing: list[Fraction | None] = [None] * len(powers)
    atoms = {atom for monomial in terms for atom, _ in monomial if atom[0] == name}
    if len(atoms) != 1 or len(terms) != len(powers):
        return None, nothing
    (atom,) = atoms
    wanted = [frozenset((a, p) for a, p in ((X, x), (atom, power)) if p) for x, power in powers]
    if set(wanted) != set(terms):
        return None, nothing
    return atom, [terms[monomial] for monomial in wanted]


def _stretched(name: str, inner: float, gain: Fraction, margin: float = 1e-14) -> Activation:
    """Return gain/inner f(inner x) for the activation f of a name, with slopes and range widened by a margin."""
    activation, factor, inner = ACTIVATIONS[name], _sized(gain), _sized(inner)
    if name == "silu" and gain == 1 and abs(inner / QUICK_GELU - 1.0) < 1e-7:
        activation = ACTIVATIONS["quick_gelu"]
        inner /= QUICK_GELU
    slope = _wider(sorted(factor * end for end in activation.slope), margin)
    scale = _sized(factor / inner)
    bounded = _wider(sorted(scale * end for end in activation.bounded), margin)
    if abs(inner - 1.0) <= 1e-12 and gain == 1:  # only a constant such as sqrt(2) was rounded
        inner = 1.0
    return replace(
        activation,
        function=_scaled(activation.function, inner, factor),
        slope=slope,
        bounded=bounded,
        evidence=Evidence.NUMERICAL,
        inner=inner,
        factor=factor,
    )


def _sized(value: Fraction | float) -> float:
    """Return a factor as a float; refuse one that would be infinite, or too small to keep all its digits."""
    factor = float(value)
    if not 1e-300 < abs(factor) < math.inf:
        raise Unreadable("a factor out of the range of floats")
    return factor


def _scaled(function: Callable[[Tensor], Tensor], inner: float, factor: float) -> Callable[[Tensor], Tensor]:
    if inner == factor == 1.0:
        return function
    return lambda x: factor / inner * function(inner * x)


def _wider(ends: Any, margin: float = 1e-14) -> tuple[float, float]:
    """Move both ends of an interval outward by a margin, relative to 1 or to their size if that is larger."""
    low, high = ends
    low = low - margin * max(1.0, abs(low)) if math.isfinite(low) else low
    high = high + margin * max(1.0, abs(high)) if math.isfinite(high) else high
    return outward(low, high)


def _stretch(polynomial: Polynomial) -> Fraction | None:
    """Return c if the polynomial is c x."""
    terms = polynomial.coefficients
    return terms[LINEAR] if set(terms) == {LINEAR} else None


def _one_plus_exp(polynomial: Polynomial) -> Polynomial | None:
    """Return q if the polynomial is 1 + exp(q)."""
    atom, sizes = _form(polynomial.coefficients, "exp", (0, 0), (0, 1))
    return atom[1] if atom is not None and sizes == [1, 1] else None


def _atom(name: str, polynomial: Polynomial, *limits: Fraction | None) -> Polynomial:
    return Polynomial(frozenset({(frozenset({((name, polynomial, *limits), 1)}), Fraction(1))}))


def _together(first: Monomial, second: Monomial) -> Monomial:
    powers: dict[Atom, int] = dict(first)
    for atom, power in second:
        powers[atom] = powers.get(atom, 0) + power
    return frozenset(powers.items())


def _summed(terms: list[tuple[Monomial, Fraction]]) -> Polynomial:
    if len(terms) > MOST_TERMS:
        raise Unreadable("too many terms")
    total: Terms = {}
    for monomial, value in terms:
        before = total.get(monomial, Fraction(0))
        if before and LOST * abs(before + value) < max(abs(before), abs(value)):
            raise Unreadable("terms that cancel")
        total[monomial] = before + value
    return Polynomial(frozenset((monomial, value) for monomial, value in total.items() if value))
