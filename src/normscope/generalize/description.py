"""What constants cost that may have been taken from D: the length of a code for their values.

Every bound here holds for a function whose constants, besides the weights that the bound is about, are fixed before D
is seen. For values c with a code of l(c) bits, no code being the beginning of another, the shares `delta 2^-l(c)` of
all values add up to at most delta (Kraft). So the bound holds at `delta 2^-l(c)` for all values together, also for
those that were chosen by looking at D: they cost `l(c) ln 2` nats beside `ln(1/delta)`.

The operators and how they are connected are the architecture, which is declared as fixed. With it the shapes and dtypes
of all tensors, and the number of all arguments, are known; the codes give their values.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..graph.ir import Graph
from ..graph.origins import Constant
from ..report.words import counted
from .bound import Condition, condition

ALL, NUMBERS = "all", "numbers"
"""What `fixed` may say besides names: everything but the parameters, and all numbers in the code."""
MOST_COMPRESSED = 2**24
"""Tensors with more bytes than this are not compressed."""
MOST_NAMED = 3
"""How many constants a condition names."""
LARGEST_INT = 2**63 - 1
"""What torch writes for the end of an axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The constants that a bound must pay for.

    `charged` are tensors and objects with their costs in nats, the largest first; `sources` are the lines of the code
    with the `numbers`; `declared` names those that were declared as fixed before D was seen.
    """

    charged: tuple[tuple[str, float], ...] = ()
    numbers: int = 0
    sources: tuple[str, ...] = ()
    numbers_nats: float = 0.0
    declared: tuple[str, ...] = ()

    @property
    def nats(self) -> float:
        """What all of them cost beside ln(1/delta)."""
        return math.fsum([self.numbers_nats, *(cost for _, cost in self.charged)])

    @property
    def condition(self) -> Condition:
        """The condition that nothing was taken from D that is not counted; it fails for what cannot be counted."""
        declared = f"; declared as fixed: {_listed(self.declared)}" if self.declared else ""
        what = "all that may have been taken from D is counted"
        if not self.charged and not self.numbers:
            return condition(what, True, f"there is nothing but the weights{declared}")
        parts = [_listed([name for name, _ in self.charged])] if self.charged else []
        if self.numbers:
            where = f" (at {_listed(self.sources)})" if self.sources else ""
            parts.append(f"{counted(self.numbers, 'number')} in the code{where}")
        if not math.isfinite(self.nats):
            why = f"{' and '.join(parts)}: some of this is neither a tensor nor a number, and cannot be counted"
            return condition(what, False, why + declared)
        why = f"{' and '.join(parts)}: {self.nats:,.4g} nats beside ln(1/delta)"
        return condition(what, True, f"{why}; declare with fixed= what was fixed before D was seen{declared}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """What is declared as fixed before D was seen: buffers and other tensors by name, and all numbers in the code."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: bool = False

    @classmethod
    def of(cls, declared: str | Iterable[str], graph: Graph, names: Collection[str] = ()) -> Fixed:
        """Return what a user declares of a model."""
        entries = (declared,) if isinstance(declared, str) else tuple(declared)
        tensors = {one.name: one.value for one in graph.constants if one.kind in ("buffer", "tensor")}
        for one in entries:
            if not isinstance(one, str):
                raise InputError(f"fixed holds the names of buffers and other constants, not {one!r}")
            if one not in (ALL, NUMBERS) and not any(fnmatchcase(name, one) for name in (*tensors, *names)):
                listed = _listed([f"`{name}`" for name in sorted({*tensors, *names})], most=20) or "none"
                raise InputError(
                    f"fixed names {one!r}, and the model has no such buffer or constant besides its parameters. Those "
                    f"that it has: {listed}; {NUMBERS!r} stands for the numbers in its code, {ALL!r} for all"
                )
        fits = {name for name in tensors for one in entries if one == ALL or fnmatchcase(name, one)}
        return cls(tensors={name: tensors[name] for name in fits}, numbers=not {ALL, NUMBERS}.isdisjoint(entries))

    def __contains__(self, constant: Constant) -> bool:
        """Whether a constant is the one that was declared: folding may have made another of the same name."""
        if constant.kind == "number":
            return self.numbers
        declared, value = self.tensors.get(constant.name), constant.value
        if declared is None or constant.kind == "parameter" or declared.dtype != value.dtype:
            return False
        return declared is value or torch.equal(declared, value)


def describe(graph: Graph, charged: Collection[int], fixed: Fixed) -> Description:
    """Return what some constants of a graph cost; `charged` has their positions among those of the graph."""
    constants = [graph.constants[place] for place in sorted(charged)]
    free = [one for one in constants if one in fixed]
    paid = [one for one in constants if one not in fixed]
    numbers = [one for one in paid if one.kind == "number"]
    lines = [one.source for one in numbers if one.source and not one.source.startswith("torch/")]
    tensors = {id(one.value): one for one in paid if one.kind != "number"}
    costs = [(_quoted(one), math.log(2.0) * _tensor_bits(one.value)) for one in tensors.values()]
    return Description(
        charged=tuple(sorted(costs, key=lambda one: -one[1])),
        numbers=len(numbers),
        sources=tuple(dict.fromkeys(lines)),
        numbers_nats=math.log(2.0) * number_bits([(one.name, one.value) for one in numbers]),
        declared=tuple(dict.fromkeys("all numbers" if one.kind == "number" else _quoted(one) for one in free)),
    )


def _listed(names: Sequence[str], *, most: int = MOST_NAMED) -> str:
    """Return some names in one line."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _quoted(constant: Constant) -> str:
    """Return the name of a constant; with the line that reads it if it is held outside of the model's buffers."""
    where = f" (read at {constant.source})" if constant.kind == "tensor" and constant.source else ""
    return f"`{constant.name}`{where}"


def number_bits(numbers: Sequence[tuple[str, Any]]) -> float:
    """Return the length of a code for numbers, each with the name of its place.

    At each name a number is either one that stood there before, which costs `log2((n+1)/k)` bits for the k-th
    repetition among n, or a new one, which costs `log2(n+1)` bits and its own code.
    """
    bits = 0.0
    read: defaultdict[str, Counter[tuple[type, str]]] = defaultdict(Counter)
    for name, value in numbers:
        before, key = read[name], (type(value), repr(value))
        total = before.total() + 1
        bits += math.log2(total / before[key]) if before[key] else math.log2(total) + _own_bits(value)
        before[key] += 1
    return bits


def _own_bits(value: bool | int | float | complex | str) -> int:
    """Return the length of the code of one number: two bits for its type, or four, then its value."""
    if isinstance(value, bool):
        return 3
    if isinstance(value, int) and value != LARGEST_INT:
        return 2 + 2 * (abs(value) + 1).bit_length()  # Elias gamma, and a sign
    if isinstance(value, float):
        return 2 + _float_bits(value)
    if isinstance(value, complex):
        return 4 + _float_bits(value.real) + _float_bits(value.imag)
    return 4 + 8 * (len(value.encode()) + 1) if isinstance(value, str) else 4


def _float_bits(value: float) -> int:
    """Return the length of the code of a float: its shortest decimal form in 16 symbols, or all 64 bits."""
    return 1 + min(4 * (len(repr(value)) + 1), 64)


def _tensor_bits(value: Any) -> float:
    """Return the length of the code of a tensor of known shape: its bits, or their compressed form with its length.

    What is no plain tensor has no code: infinity.
    """
    plain = value.detach() if isinstance(value, Tensor) else None
    if plain is None or type(plain) is not Tensor or plain.layout is not torch.strided or plain.is_quantized:
        return math.inf
    plain = plain.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if plain.dtype is torch.bool:
        bits, data = plain.numel(), np.packbits(plain.numpy()).tobytes()
    else:
        data = plain.view(torch.uint8).numpy().tobytes()
        bits = 8 * len(data)
    if len(data) <= MOST_COMPRESSED:
        length = len(zlib.compress(data, wbits=-15))
        bits = min(bits, 8 * length + 2 * length.bit_length())
    return 1.0 + bits
