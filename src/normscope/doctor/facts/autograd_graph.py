"""Which layer's output feeds which, and what gradients can reach, read from the graph that autograd keeps of a forward.

Autograd's graph costs nothing: it is there once the forward has run. It knows each operator by the name of its
derivative (`AddmmBackward0`), which tells whether anything but a linear map lies between two layers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import IntEnum
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

REARRANGING = frozenset({
    "View", "UnsafeView", "ReshapeAlias", "T", "Transpose", "Permute", "Expand", "Unsqueeze", "Squeeze", "Clone",
    "Slice", "Select", "Alias", "ToCopy", "Unbind",
})  # fmt: skip
"""Derivatives of operators that move entries: between two weight layers they are no activation."""
ADDING = REARRANGING | {"Add", "Sub", "Neg", "NativeDropout", "MaxPool2DWithIndices", "AvgPool2D"}
"""Derivatives of operators that hand entries on, or add others to them: they multiply no two layers' outputs."""
NOT_BENDING = REARRANGING | {
    "Addmm", "Mm", "Linear", "Convolution", "Mkldnnconvolution", "Embedding", "NativeBatchNorm",
    "NativeLayerNorm", "NativeGroupNorm", "FusedRmsNorm", "CudnnBatchNorm", "Add", "Sub", "Neg", "Cat", "Stack", "Mean",
    "Sum", "AvgPool2D", "AvgPool3D", "AdaptiveAvgPool2D", "AdaptiveAvgPool3D", "MaxPool2DWithIndices",
    "MaxPool3DWithIndices", "AdaptiveMaxPool2D", "ConstantPadNd", "UnsafeSplit", "Split", "Index", "Max", "Amax",
    "CopySlices", "Repeat", "UpsampleNearest1D", "UpsampleNearest2D", "UpsampleBilinear2D", "UpsampleLinear1D",
}  # fmt: skip
"""Derivatives of operators that a network has without a single activation; a maximum over neighbours is none."""
ELEMENTWISE = {
    "View", "UnsafeView", "ReshapeAlias", "Clone", "Alias", "ToCopy", "Add", "Sub", "Neg", "Mul", "Div", "Pow",
    "Softplus",
}  # fmt: skip
"""Derivatives of operators of which, with a sigmoid, tanh or error function, activations are written out."""
RANGES = {
    "Softmax": (0.0, 1.0), "Sigmoid": (0.0, 1.0), "Hardsigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0),
    "Relu": (0.0, math.inf), "Softplus": (0.0, math.inf), "Exp": (0.0, math.inf), "Abs": (0.0, math.inf),
}  # fmt: skip
"""What comes out of an activation."""


class Effect(IntEnum):
    """What operators do to a layer's output before another layer reads it; where there are several ways, the most."""

    REARRANGED = 0
    """Its entries are moved at most."""
    ADDED = 1
    """It is scaled by constants, or added to others, at most."""
    ANY = 2
    """Anything else."""


class Feed(NamedTuple):
    """A layer whose output another one reads: its number, and what operators between do to it."""

    layer: int
    effect: Effect


class Reached(NamedTuple):
    """What gradients can flow to, by the id of a leaf: those of the objective, and those of any output.

    `outputs` are the tensors that the model returned.
    """

    by_objective: dict[int, Tensor]
    by_outputs: Set[int]
    outputs: Sequence[Tensor]


def operator_name(function: Any) -> str:
    """Return the operator that a node of autograd's graph differentiates: `Addmm` for `AddmmBackward0`."""
    return str(function.name()).rpartition("::")[2].split("Backward")[0]


def find_feeds(functions: Sequence[Any]) -> list[tuple[Feed, ...]]:
    """Return, for each layer, the layers before it that it reads with no other layer between.

    Args:
        functions: the `grad_fn` of each layer's output, in the order the layers ran; None where there is none.
    """
    numbers: dict[Any, int] = {}  # grows with the rows: a module may return what layers before its end have read
    feeds: list[tuple[Feed, ...]] = []
    for number, function in enumerate(functions):
        feeds.append(() if function is None else _feeds_of(function, numbers))
        if function is not None:
            numbers[function] = number
    return feeds


def _feeds_of(function: Any, numbers: Mapping[Any, int]) -> tuple[Feed, ...]:
    """Walk back from one layer's output to the outputs of the layers before it."""
    feeds: dict[int, Effect] = {}
    visited: dict[Any, Effect] = {}
    waiting = [(before, Effect.REARRANGED) for before, _ in function.next_functions]
    while waiting:
        node, effect = waiting.pop()
        if node is None or visited.get(node, -1) >= effect:
            continue
        visited[node] = effect
        if node in numbers:
            feeds[numbers[node]] = effect
            continue
        effect = max(effect, effect_of(node))
        waiting.extend((before, effect) for before, _ in node.next_functions)
    return tuple(Feed(number, effect) for number, effect in sorted(feeds.items()))


def effect_of(node: Any) -> Effect:
    """Return what the operator of a node does to what it reads."""
    name = operator_name(node)
    if name in REARRANGING:
        return Effect.REARRANGED
    return Effect.ADDED if name in ADDING or _scales(name, node) else Effect.ANY


def _scales(name: str, node: Any) -> bool:
    """Whether a node multiplies what it reads by constants."""
    return name in ("Mul", "Div") and sum(before is not None for before, _ in node.next_functions) < 2


def nodes_before(outputs: Iterable[Tensor]) -> Iterator[Any]:
    """Yield each node of autograd's graph of some tensors once."""
    visited: set[Any] = {None}
    waiting: list[Any] = [output.grad_fn for output in outputs]
    while waiting:
        node = waiting.pop()
        if node not in visited:
            visited.add(node)
            yield node
            waiting.extend(before for before, _ in node.next_functions)


def find_kinds(outputs: Iterable[Tensor], layers: Iterable[Any]) -> tuple[bool, bool]:
    """Return what lies before some tensors: an activation (anything that bends), and a derivative.

    Weights, normalizers, poolings and rearrangements do not bend. Equations are learned by outputs that hold
    derivatives of the model itself. Where the graph does not reach the nodes of all layers, what cuts it off (a detach)
    may hide an activation: it counts as one.
    """
    nodes = list(nodes_before(outputs))
    bends, derives = not set(layers) <= set(nodes), False
    for node in nodes:
        name = operator_name(node)
        reads = any(before is not None for before, _ in node.next_functions)
        bends = bends or (name not in NOT_BENDING and reads and not _scales(name, node))
        derives = derives or "BackwardBackward" in node.name()
    return bends, derives


def find_makers(made: Tensor, functions: Sequence[Any]) -> tuple[int, ...]:
    """Return the numbers of the layers whose outputs a tensor is computed from with no other layer between."""
    numbers = {function: number for number, function in enumerate(functions) if function is not None}
    if made.grad_fn is None:
        return ()
    own = numbers.get(made.grad_fn)
    return tuple(feed.layer for feed in _feeds_of(made.grad_fn, numbers)) if own is None else (own,)


def find_gates(nodes: Iterable[Any], layers: Mapping[Any, int]) -> frozenset[int]:
    """Return which sigmoids and tanhs are multiplied with just what they were computed from.

    Such a one is part of an activation that is written out, as `x * sigmoid(x)` (SiLU), `0.5 * x * (1 + tanh(x + ...))`
    (GELU) and `x * tanh(softplus(x))` (Mish) are: where it is flat, the product is not.

    Args:
        nodes: those of autograd's graph among which products are looked for.
        layers: by autograd's node of their output the numbers of the sigmoids and tanhs.
    """
    gates: set[int] = set()
    for node in nodes if layers else ():
        if operator_name(node) == "Mul" and len(node.next_functions) == 2:
            for gate, factor in itertools.permutations(map(_skip_constants, node.next_functions)):
                if gate[0] in layers and _is_made_of(gate[0], factor):
                    gates.add(layers[gate[0]])
    return frozenset(gates)


Edge = tuple[Any, int]
"""A node of autograd's graph, and which of its results is meant."""


def _skip_constants(edge: Edge) -> Edge:
    """Return the first result before another one that something else than constants enters."""
    while edge[0] is not None and operator_name(edge[0]) in ELEMENTWISE:
        before = [other for other in edge[0].next_functions if other[0] is not None]
        if len(before) != 1:
            break
        edge = before[0]
    return edge


def _is_made_of(node: Any, source: Edge) -> bool:
    """Whether what a node was given is computed from one result alone, entry by entry; parameters do not count."""
    waiting, visited, reads = list(node.next_functions), set[Edge](), False
    while waiting:
        edge = waiting.pop()
        if edge[0] is None or edge in visited:
            continue
        visited.add(edge)
        if edge == source:
            reads = True
        elif hasattr(edge[0], "variable"):
            continue
        elif operator_name(edge[0]) in ELEMENTWISE:
            waiting.extend(edge[0].next_functions)
        else:
            return False
    return reads


def last_operator(made: Tensor) -> str:
    """Return the operator that made a tensor, apart from those that only rearrange it; empty where nobody knows."""
    function = skip_rearranging(made.grad_fn)
    return "" if function is None else operator_name(function)


def has_features_last(made: Tensor) -> bool:
    """Whether a linear layer made a tensor whose last axis holds the layer's units: nothing was transposed since."""
    function = made.grad_fn
    while function is not None and (
        operator_name(function) in ("View", "UnsafeView", "ReshapeAlias")
        or (operator_name(function) == "Add" and hasattr(function.next_functions[-1][0], "variable"))  # the bias
    ):
        function = function.next_functions[0][0]
    return function is not None and operator_name(function) in ("Addmm", "Mm", "Linear")


def cosine_factor(made: Tensor) -> float | None:
    """Return what cosines (products of two tensors that were both divided by something last) were multiplied by.

    A bias may have been added to them. None for a tensor that is made in another way.
    """
    function, factor = _skip_factors(made.grad_fn)
    if function is not None and operator_name(function) == "Add":
        summands = [node for node, _ in function.next_functions if node is not None and node.next_functions]
        function, inner = _skip_factors(summands[0]) if len(summands) == 1 else (None, 1.0)
        factor *= inner
    if function is not None and operator_name(function) == "Sum":  # cosine_similarity
        function = function.next_functions[0][0]
    if function is None or operator_name(function) not in ("Mm", "Bmm", "Mul"):
        return None
    before = [_skip_factors(node, beyond="Div") for node, _ in function.next_functions]
    divided = len(before) == 2 and all(node is not None and operator_name(node) == "Div" for node, _ in before)
    return factor * math.prod(inner for _, inner in before) if divided else None


def output_limits(made: Tensor) -> tuple[float, float] | None:
    """Return the limits between which a last activation or clamp, times constant factors, holds a tensor."""
    function, factor = _skip_factors(made.grad_fn)
    name = "" if function is None else operator_name(function)
    if name in ("Clamp", "ClampMin", "ClampMax", "Hardtanh"):
        low, high = (
            getattr(function, f"_saved_{end}", getattr(function, f"_saved_{end}_val", None)) for end in ("min", "max")
        )
        ends = (-math.inf if low is None else float(low)), (math.inf if high is None else float(high))
    elif name in RANGES:
        ends = RANGES[name]
    else:
        return None
    low, high = sorted(end * factor for end in ends)
    return low, high


def _skip_factors(function: Any, beyond: str = "") -> tuple[Any, float]:
    """Return the first node before a tensor that does more than move its entries and multiply them by one number.

    The product of these numbers comes with it. Nodes of one kind (`beyond`) may be told not to count as factors.
    """
    factor = 1.0
    function = skip_rearranging(function)
    while function is not None and operator_name(function) in {"Mul", "Div"} - {beyond}:
        number = _constant_factor(function)
        if number is None:
            break
        factor *= number
        function = skip_rearranging(function.next_functions[0][0])
    return function, factor


def _constant_factor(node: Any) -> float | None:
    """Return the number by which a product or quotient multiplies what it reads; None where it is not one number."""
    other = getattr(node, "_saved_other", None)
    if not isinstance(other, Tensor) or other.numel() != 1 or other.requires_grad or other.is_complex():
        return None
    number = float(torch.ones((), dtype=torch.float64) * other)  # a plain number is no tensor to read from
    return number if operator_name(node) == "Mul" else 1.0 / number if number else math.inf


def find_skip(made: Edge, given: Edge) -> float | None:
    """Return the factor of a skip: a result that is an earlier one times this factor, plus something computed from it.

    Only additions and products with numbers lead along the skip. None where the result is nothing of this form.
    """
    factors, others, begin = {made: 1.0}, list[Any](), given[0]._sequence_nr()
    while any(edge != given for edge in factors):
        edge = max((edge for edge in factors if edge != given), key=lambda edge: edge[0]._sequence_nr())
        factor, summands = factors.pop(edge), _summands(edge[0])
        if not summands:
            others.append(edge[0])
        for before, times in summands:
            if before[0] is not None and not hasattr(before[0], "variable") and before[0]._sequence_nr() >= begin:
                factors[before] = factors.get(before, 0.0) + factor * times
    if given not in factors:
        return None
    seen = {None, *others}
    while others:
        before = others.pop().next_functions
        if given in before:
            return factors[given]
        new = {node for node, _ in before} - seen
        seen |= new
        others += [node for node in new if not hasattr(node, "variable") and node._sequence_nr() >= begin]
    return None


def _summands(node: Any) -> list[tuple[Edge, float]]:
    """Return what a node adds up, and how many times each; nothing where it does something else."""
    name, before = operator_name(node), node.next_functions
    if name in ("View", "UnsafeView", "ReshapeAlias", "Clone", "Alias", "ToCopy"):
        return [(before[0], 1.0)]
    if name in ("Add", "Sub"):
        alpha = float(getattr(node, "_saved_alpha", 1.0))
        return list(zip(before, (1.0, alpha if name == "Add" else -alpha)))
    factor = -1.0 if name == "Neg" else _constant_factor(node) if name in ("Mul", "Div") else None
    return [] if factor is None else [(before[0], factor)]


def skip_rearranging(function: Any) -> Any:
    """Return the first node before a tensor that does more than move its entries."""
    while function is not None and operator_name(function) in REARRANGING:
        function = function.next_functions[0][0]
    return function


def find_readers(leaf: Tensor, functions: Sequence[Any]) -> list[int]:
    """Return the numbers of the layers that read a leaf with no other layer between."""
    numbers = {function: number for number, function in enumerate(functions) if function is not None}
    numbers[leaf.view_as(leaf).grad_fn.next_functions[0][0]] = -1  # type: ignore[union-attr]
    feeds = ((number, _feeds_of(function, numbers)) for function, number in numbers.items() if number >= 0)
    return [number for number, layers in feeds if any(feed.layer == -1 for feed in layers)]


def reached_leaves(outputs: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return the parameters and other leaves to which gradients of these outputs can flow, by their ids."""
    reached: dict[int, Tensor] = {id(output): output for output in outputs if isinstance(output, nn.Parameter)}
    variables = (getattr(node, "variable", None) for node in nodes_before(outputs))
    return reached | {id(variable): variable for variable in variables if variable is not None}


def find_attributes(model: nn.Module, tensors: Set[int]) -> tuple[str, ...]:
    """Return the attributes of modules that hold some of these tensors, by their ids, beside parameters and buffers."""
    return tuple(
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        for name, value in (vars(module).items() if tensors else ())
        if name not in ("_parameters", "_buffers", "_modules") and any(id(t) in tensors for t in _weights_in(value))
    )


def _weights_in(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """Yield the tensors that an attribute holds: itself, in a module, a list or dict, or in a plain object."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    elif depth and not isinstance(value, type | ModuleType):
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
        for item in inside or (vars(value).values() if hasattr(value, "__dict__") else ()):
            yield from _weights_in(item, depth - 1)
