"""Which layer's output feeds which, and what gradients can reach, read from the graph that autograd keeps of a forward.

Autograd's graph costs nothing: it is there once the forward has run. It knows each operator by the name of its
derivative (`AddmmBackward0`), which tells whether anything but a linear map lies between two layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

REARRANGING = frozenset({
    "View", "UnsafeView", "ReshapeAlias", "T", "Transpose", "Permute", "Expand", "Unsqueeze", "Squeeze", "Clone",
    "Slice", "Select", "Alias", "ToCopy", "Unbind",
})  # fmt: skip
"""Derivatives of operators that move entries: between two weight layers they are no activation."""


class Feed(NamedTuple):
    """A layer whose output another one reads: its number, and whether it is only rearranged on the way."""

    layer: int
    rearranged: bool


def operator_name(function: Any) -> str:
    """Return the operator that a node of autograd's graph differentiates: `Addmm` for `AddmmBackward0`."""
    return str(function.name()).rpartition("::")[2].split("Backward")[0]


def find_feeds(functions: Sequence[Any]) -> list[tuple[Feed, ...]]:
    """Return, for each layer, the layers that it reads with no other layer between.

    Args:
        functions: the `grad_fn` of each layer's output, in the order the layers ran; None where there is none.
    """
    numbers = {function: number for number, function in enumerate(functions) if function is not None}
    return [() if function is None else _feeds_of(function, numbers) for function in functions]


def _feeds_of(function: Any, numbers: Mapping[Any, int]) -> tuple[Feed, ...]:
    """Walk back from one layer's output to the outputs of the layers before it."""
    feeds: dict[int, bool] = {}
    visited: set[tuple[Any, bool]] = set()
    waiting = [(before, True) for before, _ in function.next_functions]
    while waiting:
        node, rearranged = waiting.pop()
        if node is None or (node, rearranged) in visited:
            continue
        visited.add((node, rearranged))
        if node in numbers:
            number = numbers[node]
            feeds[number] = feeds.get(number, True) and rearranged
            continue
        rearranged = rearranged and operator_name(node) in REARRANGING
        waiting.extend((before, rearranged) for before, _ in node.next_functions)
    return tuple(Feed(number, rearranged) for number, rearranged in sorted(feeds.items()))


def last_operator(made: Tensor) -> str:
    """Return the operator that made a tensor, apart from those that only rearrange it; empty where nobody knows."""
    function = _skip_rearranging(made.grad_fn)
    return "" if function is None else operator_name(function)


def are_cosines(made: Tensor) -> bool:
    """Whether a tensor is the product of two that were both divided by something last, as normalized vectors are."""
    function = _skip_rearranging(made.grad_fn)
    if function is None or operator_name(function) not in ("Mm", "Bmm"):
        return False
    before = [_skip_rearranging(node) for node, _ in function.next_functions]
    return len(before) == 2 and all(node is not None and operator_name(node) == "Div" for node in before)


def clamp_limits(made: Tensor) -> tuple[float, float] | None:
    """Return the limits of the clamp or hardtanh that made a tensor; None where another operator made it."""
    function = _skip_rearranging(made.grad_fn)
    if function is None or operator_name(function) not in ("Clamp", "ClampMin", "ClampMax", "Hardtanh"):
        return None
    low, high = (
        getattr(function, f"_saved_{end}", getattr(function, f"_saved_{end}_val", None)) for end in ("min", "max")
    )
    return (-math.inf if low is None else float(low)), (math.inf if high is None else float(high))


def _skip_rearranging(function: Any) -> Any:
    """Return the first node before a tensor that does more than move its entries."""
    while function is not None and operator_name(function) in REARRANGING:
        function = function.next_functions[0][0]
    return function


def reached_parameters(outputs: Iterable[Tensor]) -> set[int]:
    """Return the ids of the parameters to which gradients of these outputs can flow."""
    reached: set[int] = set()
    visited: set[Any] = set()
    waiting: list[Any] = [output.grad_fn for output in outputs]
    reached.update(id(output) for output in outputs if isinstance(output, nn.Parameter))
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            reached.add(id(variable))
        waiting.extend(before for before, _ in node.next_functions)
    return reached
