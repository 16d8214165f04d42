"""`Traits`: what is known of an operator whether or not it has a rule; files of `operators/` describe their own.

They are part of the operator's record (`operators.registry.Operator.traits`). They stand here because the graph is read
before operators that no rule knows, such as casts and views, are written in those that rules know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is known of one operator beside its rule.

    Attributes:
        samples: which entries of the operands can meet in one entry of the value (`graph.samples`). Without, an
            operator that torch calls pointwise works entry by entry, and all entries of any other one meet.
        keeps: which entries of its operand the value has: the `same` ones at the same places (copies and casts), all in
            the same `order` with another shape, `all` of them elsewhere, or `some` of them, perhaps repeated.
        homogeneous: whether f(c x) = c f(x) for c > 0, for a function of single entries.
        kinks: how many kinks a piecewise linear function of single entries has; 0 for all others.
        pools: whether it takes the `largest` entry or the `average` of each window or axis.
    """

    samples: Callable[..., Any] | None = None
    keeps: Literal["same", "order", "all", "some"] | None = None
    homogeneous: bool = False
    kinks: int = 0
    pools: Literal["largest", "average"] | None = None


TRAITS: dict[Any, Traits] = {}
"""What is known of operators of torch, by overload."""
NOTHING_KNOWN = Traits()


def traits_of(op: Any) -> Traits:
    """Return what is known of an operator."""
    return TRAITS.get(op, NOTHING_KNOWN)


def describe(names: str, **traits: Any) -> None:
    """Enter traits of operators, by names of overloads or of operators with all their overloads; no trait twice."""
    for op in _overloads(names):
        known = traits_of(op)
        for field in fields(Traits):
            if field.name in traits and getattr(known, field.name) != field.default:
                raise ValueError(f"{field.name} of {op} is known already")
        TRAITS[op] = replace(known, **traits)


def _overloads(names: str) -> Iterator[Any]:
    for name in names.split():
        packet, _, overload = name.partition(".")
        operators = getattr(torch.ops.aten, packet)
        yield from (getattr(operators, each) for each in ([overload] if overload else operators.overloads()))
