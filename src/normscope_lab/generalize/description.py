"""What constants cost that may have been taken from D: the length of a code for their values.

Every bound here holds for a function whose constants, besides the weights that the bound is about, are fixed before D
is seen. For values c with a code of l(c) bits, no code being the beginning of another, the shares `delta 2^-l(c)` of
all values add up to at most delta (Kraft). So the bound holds at `delta 2^-l(c)` for all values together, also for
those that were chosen by looking at D: they cost `l(c) ln 2` nats beside `ln(1/delta)`.

The operators and which tensors each of them reads are the architecture, which is declared as fixed, with the shapes of
the weights. All other arguments of operators, and the dtypes, shapes and entries of all other tensors, have codes.
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

from normscope import Graph
from normscope.report import pluralise
from normscope.toolkit import Argument, Constant, InputError

from .bound import Condition, condition

ARCHITECTURE = condition(
    "the architecture was fixed before D was seen",
    True,
    "declared: its operators, which tensors each of them reads, and the shapes of its weights",
)
WRITTEN = {"number": "all numbers", "choice": "all other arguments"}
"""The kinds of constants that stand in the code."""
FREES = {"numbers": ("number",), "code": ("number", "choice"), "all": ("number", "choice", "tensor")}
"""What `fixed` may say besides names, and the kinds of constants that it declares; tensors are all but parameters."""
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
    with the `numbers` and `choices`; `declared` names those that were declared as fixed before D was seen.
    """

    charged: tuple[tuple[str, float], ...] = ()
    numbers: int = 0
    choices: int = 0
    sources: tuple[str, ...] = ()
    code_nats: float = 0.0
    declared: tuple[str, ...] = ()

    @property
    def nats(self) -> float:
        """What all of them cost beside ln(1/delta)."""
        return math.fsum([self.code_nats, *(cost for _, cost in self.charged)])

    @property
    def condition(self) -> Condition:
        """The condition that nothing was taken from D that is not counted; it fails for what cannot be counted."""
        declared = f"; declared as fixed: {_listed(self.declared)}" if self.declared else ""
        what = "all that may have been taken from D is counted"
        if not self.charged and not self.numbers and not self.choices:
            return condition(what, True, f"there is nothing but the weights{declared}")
        parts = [_listed([name for name, _ in self.charged])] if self.charged else []
        code = [pluralise(self.numbers, "number")] if self.numbers else []
        code += [f"the other arguments of {pluralise(self.choices, 'operator')}"] if self.choices else []
        if code:
            where = f" (at {_listed(self.sources)})" if self.sources else ""
            parts.append(f"{' and '.join(code)} in the code{where}")
        if not math.isfinite(self.nats):
            why = f"{' and '.join(parts)}: some of this is no plain tensor, number, flag or text, and cannot be counted"
            return condition(what, False, why + declared)
        why = f"{' and '.join(parts)}: {self.nats:,.4g} nats beside ln(1/delta)"
        return condition(what, True, f"{why}; declare with fixed= what was fixed before D was seen{declared}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """What is declared as fixed before D was seen: buffers and other tensors by name, and kinds of constants."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    kinds: Collection[str] = ()

    @classmethod
    def of(cls, declared: str | Iterable[str] | None, graph: Graph, names: Collection[str] = ()) -> Fixed:
        """Return what a user declares of a model: names of its tensors before words, and words before patterns."""
        several = isinstance(declared, Iterable) and not isinstance(declared, str)
        tensors = {one.name: one.value for one in graph.constants if one.kind in ("buffer", "tensor")}
        every, fits, kinds = {*tensors, *names}, set[str](), set[str]()
        for one in () if declared is None else declared if several else (declared,):
            if not isinstance(one, str):
                raise InputError(f"fixed holds the names of buffers and other constants, not {one!r}")
            frees = () if one in every else FREES.get(one, ())
            pattern = "*" if "tensor" in frees else one.replace("[", "[[]")
            named = {one} & every or {name for name in every if fnmatchcase(name, pattern)}
            if not named and not frees:
                listed = _listed([f"`{name}`" for name in sorted(every)], most=20) or "none"
                raise InputError(
                    f"fixed names {one!r}, and the model has no such buffer or constant besides its parameters. Those "
                    f"that it has: {listed}; 'numbers' stands for the numbers in its code, 'code' for all arguments of "
                    "operators there, 'all' for everything"
                )
            kinds.update(frees)
            fits |= named
        return cls(tensors={name: tensors[name] for name in fits if name in tensors}, kinds=kinds)

    def __contains__(self, constant: Constant) -> bool:
        """Whether a constant is the one that was declared: folding may have made another of the same name."""
        if constant.kind in WRITTEN:
            return constant.kind in self.kinds
        declared, value = self.tensors.get(constant.name), constant.value
        if declared is None or constant.kind == "parameter" or declared.dtype != value.dtype:
            return False
        return declared is value or torch.equal(declared, value)


def describe(graph: Graph, charged: Collection[int], fixed: Fixed) -> Description:
    """Return what some constants of a graph cost; `charged` has their positions among those of the graph."""
    constants = [graph.constants[place] for place in sorted(charged)]
    free = [one for one in constants if one in fixed]
    paid = [one for one in constants if one not in fixed]
    written = [one for one in paid if one.kind in WRITTEN]
    lines = [one.source for one in written if one.source and not one.source.startswith("torch/")]
    tensors = {id(one.value): one for one in paid if one.kind not in WRITTEN}
    costs = [(_quoted(one), math.log(2.0) * _tensor_bits(one.value)) for one in tensors.values()]
    return Description(
        charged=tuple(sorted(costs, key=lambda one: -one[1])),
        numbers=sum(one.kind == "number" for one in written),
        choices=sum(one.kind == "choice" for one in written),
        sources=tuple(dict.fromkeys(lines)),
        code_nats=math.log(2.0) * written_bits([(one.name, one.value) for one in written]),
        declared=tuple(dict.fromkeys(WRITTEN.get(one.kind) or _quoted(one) for one in free)),
    )


def _listed(names: Sequence[str], *, most: int = MOST_NAMED) -> str:
    """Return some names in one line."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _quoted(constant: Constant) -> str:
    """Return the name of a constant; with the line that reads it if it is held outside of the model's buffers."""
    where = f" (read at {constant.source})" if constant.kind == "tensor" and constant.source else ""
    return f"`{constant.name}`{where}"


def written_bits(written: Sequence[tuple[str, Any]]) -> float:
    """Return the length of a code for numbers and other arguments, each with the name of its place.

    At each name a value is either one that stood there before, which costs `log2((n+1)/k)` bits for the k-th
    repetition among n, or a new one, which costs `log2(n+1)` bits and its own code.
    """
    bits = 0.0
    read: defaultdict[str, Counter[tuple[type, str]]] = defaultdict(Counter)
    for name, value in written:
        before, key = read[name], (type(value), repr(value))
        total = before.total() + 1
        bits += math.log2(total / before[key]) if before[key] else math.log2(total) + _own_bits(value)
        before[key] += 1
    return bits


def _own_bits(value: Any) -> float:
    """Return the length of the code of one value: two, three, four or seven bits for its type, then the value itself.

    What is none of these types has no code: infinity.
    """
    if isinstance(value, bool):
        return 3 + 1
    if value is Argument.NUMBER:
        return 3
    if isinstance(value, int):
        return 7 if value == LARGEST_INT else 2 + 2 * (abs(value) + 1).bit_length()  # Elias gamma, and a sign
    if isinstance(value, float):
        return 2 + _float_bits(value)
    if isinstance(value, complex):
        return 4 + _float_bits(value.real) + _float_bits(value.imag)
    if isinstance(value, str):
        return 4 + 8 * (len(value.encode()) + 1)
    if isinstance(value, tuple):
        return 4 + 2 * (len(value) + 1).bit_length() - 1 + sum(map(_own_bits, value))  # Elias gamma for its length
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return 7 + 8  # There are fewer than 256 of them.
    return 7 if value is None or isinstance(value, Argument) else math.inf


def _float_bits(value: float) -> int:
    """Return the length of the code of a float: its shortest decimal form in 16 symbols, or all 64 bits."""
    return 1 + min(4 * (len(repr(value)) + 1), 64)


def _tensor_bits(value: Any) -> float:
    """Return the length of the code of a tensor: its dtype, its shape, and its bits or their compressed form.

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
    return 1.0 + bits + _own_bits((value.dtype, *value.shape))
