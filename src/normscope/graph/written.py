"""Recognise activations written out in several operators: read exactly, then matched with known formulas."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from ..theory import piecewise, templates
from ..theory.activations import SOFTPLUS_THRESHOLD, Activation
from ..theory.piecewise import PiecewiseLinear, Unreadable
from ..theory.templates import Polynomial
from .ir import Node, Ref, Unit
from .regions import SAME, Reader, regions, runner

aten = torch.ops.aten
CHOICES = {
    aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.masked_fill.Scalar, aten.masked_fill.Tensor,
}  # fmt: skip
LOGARITHMS = {aten.log.default, aten.log1p.default}
ROOTS = {aten.mul.Tensor, aten.sub.Tensor, aten.add.Tensor, aten.div.Tensor, aten.rsub.Tensor} | LOGARITHMS
"""The last operator of a written-out activation, if it is not a choice; the logarithms end a softplus."""
COMPARISONS = {getattr(getattr(aten, kind), kin): kind for kind in piecewise.COMPARED for kin in ("Scalar", "Tensor")}
CALLED = {
    getattr(aten, name).default: name
    for name in ("tanh", "sigmoid", "erf", "exp", "expm1", "log", "log1p", "abs", "sign")
}


def activation(reader: Reader, node: Node) -> Node | None:
    """Recognise a function of one entry that is written out in several operators and has a known formula."""
    least = 1 if node.op in LOGARITHMS else 2
    if node.op not in CHOICES | ROOTS or len(node.refs) < least or not node.dtype.is_floating_point:
        return None
    allowed = READ | COMPARISONS.keys() | CHOICES if node.op in CHOICES else READ
    for region, source in regions(reader, node, allowed | SAME):
        behind = reader.nodes.get(source.name)
        if behind is not None and not behind.dtype.is_floating_point:
            continue
        found = _recognised(region, source, node)
        if found is not None:
            unit = Unit("activation", runner(region, source, node.name), {"activation": found})
            return dataclasses.replace(node, op=unit, args=(source,), kwargs={})
    return None


def _recognised(region: list[Node], source: Ref, node: Node) -> Activation | None:
    """Return the activation that a region of operators computes, or None if it is not a known one."""
    if any(member.shape != source.shape for member in region):
        return None
    kinds: list[tuple[Any, Callable[[Any], Activation | None]]] = [(Polynomial, templates.activation_of)]
    if node.op in CHOICES:
        kinds.insert(0, (PiecewiseLinear, piecewise.activation_of))
    for kind, match in kinds:
        try:
            found = match(_read(region, source, kind)[node.name])
        except (Unreadable, OverflowError):
            continue
        if found is not None:
            return found
    return None


def _read(region: list[Node], source: Ref, kind: Any) -> dict[str, Any]:
    """Compute every value of a region as an expression of its source; copies and casts change nothing."""
    values: dict[str, Any] = {source.name: kind.identity()}
    for node in region:
        if node.op in SAME:
            values[node.name] = values[node.refs[0]]
            continue
        given = {name: values[value.name] if isinstance(value, Ref) else value for name, value in node.bound().items()}
        values[node.name] = _applied(node, given, kind)
    return values


def _applied(node: Node, given: dict[str, Any], kind: Any) -> Any:
    """Apply one operator to expressions; `given` holds its arguments by name."""

    def operand(name: str) -> Any:
        value = given[name]
        return kind.constant(number(value)) if isinstance(value, int | float | Tensor) else value

    if node.op in COMPARISONS:
        return _polynomial(operand("self")).compared(COMPARISONS[node.op], _polynomial(operand("other")))
    if node.op in CHOICES:
        filling = node.operator == "masked_fill"
        condition = given["mask" if filling else "condition"]
        if not hasattr(condition, "chosen"):
            raise Unreadable("a choice by something that is no comparison")
        return condition.chosen(operand("value"), operand("self")) if filling else condition.chosen(
            operand("self"), operand("other")
        )  # fmt: skip
    x = _polynomial(operand("self"))
    if node.op in CALLED:
        return x.called(CALLED[node.op])
    if node.op in LIMITS:
        return x.called("clamp", *LIMITS[node.op](given))
    if node.op in TWO:
        return TWO[node.op](x, _polynomial(operand("other")), kind.constant(number(given.get("alpha", 1))))
    return ONE[node.op](x, given, kind)


def _polynomial(value: Any) -> Any:
    """Return an expression if further operators can be applied to it; refuse a choice, which must end a formula."""
    if not hasattr(value, "called"):
        raise Unreadable("something is computed from a choice")
    return value


def number(value: Any) -> Fraction:
    """Return a constant as an exact fraction; a tensor is accepted if all its entries are the same."""
    if isinstance(value, Tensor):
        if value.numel() == 0 or value.dtype == torch.bool or not bool((value == value.reshape(-1)[0]).all()):
            raise Unreadable("a constant that differs from entry to entry")
        value = value.reshape(-1)[0].item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Unreadable("a constant that is no finite number")
    return Fraction(value)


def _limit(value: Any) -> Fraction | None:
    return None if value is None or (isinstance(value, float) and math.isinf(value)) else number(value)


def _power(x: Any, given: dict[str, Any], kind: Any) -> Any:
    exponent = number(given["exponent"])
    if exponent.denominator != 1:
        raise Unreadable("a power that is no integer")
    return x.powered(int(exponent))


def _softplus(x: Any, given: dict[str, Any], kind: Any) -> Any:
    beta, threshold = number(given["beta"]), number(given["threshold"])
    if threshold < SOFTPLUS_THRESHOLD or beta == 0:
        raise Unreadable("a softplus that jumps")
    return (x * kind.constant(beta)).called("softplus").divided(kind.constant(beta))


def _hardsigmoid(x: Any, given: dict[str, Any], kind: Any) -> Any:
    shifted = (x + kind.constant(Fraction(3))).called("clamp", Fraction(0), Fraction(6))
    return shifted.divided(kind.constant(Fraction(6)))


def _minus(x: Any, y: Any, factor: Any) -> Any:
    return x + y * factor * type(x).constant(Fraction(-1))


TWO: dict[Any, Callable[[Any, Any, Any], Any]] = {
    aten.mul.Tensor: lambda x, y, alpha: x * y,
    aten.mul.Scalar: lambda x, y, alpha: x * y,
    aten.div.Tensor: lambda x, y, alpha: x.divided(y),
    aten.div.Scalar: lambda x, y, alpha: x.divided(y),
    aten.add.Tensor: lambda x, y, alpha: x + y * alpha,
    aten.add.Scalar: lambda x, y, alpha: x + y * alpha,
    aten.sub.Tensor: _minus,
    aten.sub.Scalar: _minus,
    aten.rsub.Tensor: lambda x, y, alpha: _minus(y, x, alpha),
    aten.rsub.Scalar: lambda x, y, alpha: _minus(y, x, alpha),
}
ONE: dict[Any, Callable[[Any, dict[str, Any], Any], Any]] = {
    aten.neg.default: lambda x, given, kind: x * kind.constant(Fraction(-1)),
    aten.square.default: lambda x, given, kind: x * x,
    aten.reciprocal.default: lambda x, given, kind: kind.constant(Fraction(1)).divided(x),
    aten.pow.Tensor_Scalar: _power,
    aten.softplus.default: _softplus,
    aten.hardsigmoid.default: _hardsigmoid,
}
LIMITS: dict[Any, Callable[[dict[str, Any]], tuple[Fraction | None, Fraction | None]]] = {
    aten.relu.default: lambda given: (Fraction(0), None),
    aten.relu6.default: lambda given: (Fraction(0), Fraction(6)),
    aten.hardtanh.default: lambda given: (_limit(given["min_val"]), _limit(given["max_val"])),
    aten.clamp.default: lambda given: (_limit(given.get("min")), _limit(given.get("max"))),
    aten.clamp_min.default: lambda given: (_limit(given["min"]), None),
    aten.clamp_max.default: lambda given: (None, _limit(given["max"])),
}
READ = TWO.keys() | ONE.keys() | LIMITS.keys() | CALLED.keys()
