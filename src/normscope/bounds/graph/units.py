"""Recognise units: several operators that together are one known function are replaced by one node.

Units are RMSNorm, activations and softmax attention written out in operators, rotary embeddings, and convolutions
behind a circular, reflecting or replicating pad. Operators and constants must be those of the unit's formula. As a
further test, which proves nothing, the unit and its operators must give the same numbers. A unit replaces its last
operator; operators whose values are no longer read are dropped. First comes how a graph is read for units: past copies,
in regions of operators that grow, and each region run by itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Container, Iterable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from ...theory import piecewise, templates
from ...theory.activations import SOFTPLUS_THRESHOLD, Activation
from ...theory.piecewise import PiecewiseLinear, Unreadable
from ...theory.templates import Polynomial
from ..linalg.linear_map import Bounded
from .ir import Graph, Node, Ref, Unit, map_leaves
from .traits import traits_of

aten = torch.ops.aten

LARGEST_REGION = 16
"""The largest number of operators in a region."""


def is_copy(node: Node) -> bool:
    """Whether a node is a copy or a cast."""
    return traits_of(node.op).keeps == "same"


class Reader:
    """Looks up nodes by name, and past operators that change nothing."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = {node.name: node for node in graph}

    def same(self, node: Node) -> bool:
        """Whether a node changes nothing: a copy, or a cast between floats (not one from or to integers)."""
        source = self.nodes.get(node.refs[0]) if node.refs else None
        return is_copy(node) and node.dtype.is_floating_point and (source is None or source.dtype.is_floating_point)

    def find(self, argument: Any, *ops: Any) -> Node | None:
        """Return the node an argument refers to, past copies and casts, if it is one of `ops`."""
        node = self.nodes.get(argument.name) if isinstance(argument, Ref) else None
        while node is not None and self.same(node) and node.op not in ops:
            node = self.nodes.get(node.refs[0])
        return node if node is not None and node.op in ops else None

    def origin(self, argument: Any) -> Ref | None:
        """Return the value behind copies and casts."""
        if not isinstance(argument, Ref):
            return None
        node = self.nodes.get(argument.name)
        while node is not None and self.same(node):
            argument = node.operands[0]
            node = self.nodes.get(argument.name)
        return argument


def merged(graph: Graph) -> Graph:
    """Merge operators that compute the same thing from the same values."""
    first: dict[Any, str] = {}
    renamed: dict[str, str] = {}
    nodes = []

    def key(leaf: Any) -> Any:
        if isinstance(leaf, list | tuple):
            return tuple(key(item) for item in leaf)
        if isinstance(leaf, float):
            return float, repr(leaf)  # 0.0 must differ from -0.0
        return (id(leaf),) if isinstance(leaf, Tensor) else (type(leaf), leaf)

    for node in graph:
        current = dataclasses.replace(
            node, args=with_names(node.args, renamed), kwargs=with_names(node.kwargs, renamed)
        )
        identity = (node.op, node.index, key(current.args), key(tuple(current.kwargs.items())))
        if identity in first:
            renamed[node.name] = first[identity]
        else:
            first[identity] = node.name
            nodes.append(current)
    reads = tuple(dataclasses.replace(read, node=renamed.get(read.node, read.node)) for read in graph.reads)
    return dataclasses.replace(graph, nodes=tuple(nodes), output=renamed.get(graph.output, graph.output), reads=reads)


def with_names(tree: Any, names: dict[str, str]) -> Any:
    """Return arguments with their references renamed."""
    return map_leaves(
        tree, lambda leaf: Ref(names.get(leaf.name, leaf.name), leaf.shape) if isinstance(leaf, Ref) else leaf
    )


def regions(reader: Reader, node: Node, allowed: Iterable[Any]) -> Iterable[tuple[list[Node], Ref]]:
    """Yield growing regions of allowed operators that end at `node` and read a single value."""
    order = {name: position for position, name in enumerate(reader.nodes)}
    region = [node]
    while len(region) <= LARGEST_REGION:
        names = {member.name for member in region}
        frontier = {ref.name: ref for member in region for ref in member.operands if ref.name not in names}
        if len(frontier) == 1:
            yield sorted(region, key=lambda member: order[member.name]), next(iter(frontier.values()))
        last = max(frontier, key=lambda name: order.get(name, -1))
        before = reader.nodes.get(last)
        if before is None or before.index is not None:
            return
        if not (reader.same(before) if is_copy(before) else before.op in allowed):
            return
        region.append(before)


def runner(region: list[Node], source: Ref, output: str) -> Callable[[Tensor], Tensor]:
    """Return the region as a function of its source, in the dtype of its argument."""
    return lambda x: evaluated(region, {source.name: x}, x.dtype)[output]


def evaluated(nodes: list[Node], values: dict[str, Tensor], dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Run nodes on given values with float constants in one dtype; casts are taken as exact."""
    values = dict(values)
    for node in nodes:
        operands = [values[name] for name in node.refs]
        values[node.name] = operands[0] if is_copy(node) else in_dtype(node, dtype).evaluate(operands)
    return values


def in_dtype(node: Node, dtype: torch.dtype) -> Node:
    """Return a node with its float constants in one dtype."""
    args = tuple(a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in node.args)
    return dataclasses.replace(node, args=args)


def constants(node: Node) -> list[Any]:
    """Return a node's arguments that are not other nodes' values."""
    return [leaf for leaf in (*node.args, *node.kwargs.values()) if not isinstance(leaf, Ref | list)]


def scalars(node: Node) -> list[Any]:
    """Return a node's numbers."""
    return [c for c in constants(node) if isinstance(c, float | int) and not isinstance(c, bool)]


def pruned(graph: Graph) -> Graph:
    """Drop operators that nothing reads any more."""
    needed, kept = {graph.output}, []
    for node in reversed(graph.nodes):
        if node.name in needed:
            needed.update(node.refs)
            kept.append(node)
    return dataclasses.replace(graph, nodes=tuple(reversed(kept)))


ROW_LOCAL = {
    aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.neg.default, aten.slice.Tensor, aten.cat.default,
}  # fmt: skip
CONVOLUTIONS = {aten.conv1d.default, aten.conv2d.default, aten.conv3d.default}
PAD_MODES = ("circular", "reflect", "replicate")
PRODUCTS = {aten.matmul.default, aten.bmm.default}


def recognise(graph: Graph) -> Graph:
    """Return the graph with repeated operators merged and written-out units replaced."""
    graph = merged(graph)
    for recogniser in (rms_norm, attention, rotary, activation, padded_convolution):
        reader = Reader(graph)
        nodes: list[Node] = []
        for node in graph:
            unit = recogniser(reader, node)
            unit = unit if isinstance(unit, tuple) else (unit,) if unit is not None else ()
            nodes.extend(unit if unit and _agrees(reader, node, unit) else (node,))
        graph = pruned(dataclasses.replace(graph, nodes=tuple(nodes)))
    return graph


def _agrees(reader: Reader, node: Node, unit: tuple[Node, ...]) -> bool:
    """Whether a unit computes what the operators it replaces do: both run on random values, large and small."""
    made = {member.name for member in unit}
    operands = {ref.name: ref for member in unit for ref in member.operands if ref.name not in made}
    region = _between(reader, node, operands)
    if not all(name in operands or name in reader.nodes for member in region for name in member.refs):
        return False
    generator = torch.Generator().manual_seed(0)
    for scale in (1.0, 1e-2):
        inputs = {
            name: (scale * torch.randn(ref.shape, dtype=torch.float64, generator=generator)).to(node.device)
            for name, ref in operands.items()
        }
        before, after = evaluated(region, inputs)[node.name], evaluated(list(unit), inputs)[node.name]
        if before.shape != after.shape or not torch.allclose(
            before, after, rtol=1e-5, atol=1e-7 * scale, equal_nan=True
        ):
            return False
    return True


def _between(reader: Reader, node: Node, operands: Container[str]) -> list[Node]:
    """Return the operators that lead from the operands of a unit to its last node, in the order of the graph."""
    between: set[str] = set()
    stack = [node.name]
    while stack:
        name = stack.pop()
        if name not in operands and name in reader.nodes and name not in between:
            between.add(name)
            stack.extend(reader.nodes[name].refs)
    return [member for name, member in reader.nodes.items() if name in between]


def rms_norm(reader: Reader, node: Node) -> Node | None:
    """Recognise `y / sqrt(mean(y^2) + eps)`, as `y * rsqrt(...)` or `y / sqrt(...)`, over any dimensions."""
    if node.op is aten.mul.Tensor:
        pairs = [(node.args[0], node.args[1]), (node.args[1], node.args[0])]
        roots = [(value, reader.find(root, aten.rsqrt.default)) for value, root in pairs]
    elif node.op is aten.div.Tensor:
        roots = [(node.args[0], reader.find(node.args[1], aten.sqrt.default))]
    else:
        return None
    for value, root in roots:
        source = reader.origin(value)
        if root is None or source is None or node.shape != source.shape:
            continue
        sets = _mean_square(reader, root.args[0], source)
        if sets is None:
            continue
        dims, eps = sets

        def function(y: Tensor, dims: tuple[int, ...] = dims, eps: float = eps) -> Tensor:
            return y * torch.rsqrt(y.pow(2).mean(dims, keepdim=True) + eps)

        return dataclasses.replace(
            node, op=Unit("rms", function, {"dims": dims, "eps": eps}), args=(source,), kwargs={}
        )
    return None


def _mean_square(reader: Reader, argument: Any, source: Ref) -> tuple[tuple[int, ...], float] | None:
    """Return the dimensions and the eps if the argument is `mean(y^2, dims, keepdim=True) + eps` of this source y."""
    shifted = reader.find(argument, aten.add.Tensor, aten.add.Scalar)
    if shifted is None or shifted.kwargs or len(shifted.args) != 2 or not isinstance(shifted.args[1], float | int):
        return None
    mean, eps = reader.find(shifted.args[0], aten.mean.dim), float(shifted.args[1])
    if mean is None or len(mean.args) <= 2 or mean.args[2] is not True or not eps > 0:
        return None
    if _squared(reader, mean.args[0]) != source:
        return None
    return tuple(sorted(d % len(source.shape) for d in mean.args[1])), eps


def _squared(reader: Reader, argument: Any) -> Ref | None:
    """Return y if the argument is y^2 or y*y."""
    power = reader.find(argument, aten.pow.Tensor_Scalar, aten.mul.Tensor, aten.square.default)
    if power is None:
        return None
    base = reader.origin(power.args[0])
    if power.op is aten.pow.Tensor_Scalar:
        return base if power.args[1] == 2 else None
    if power.op is aten.mul.Tensor:
        return base if base == reader.origin(power.args[1]) else None
    return base


def attention(reader: Reader, node: Node) -> tuple[Node, ...] | None:
    """Recognise `softmax(scale q k^T + mask) v`, and return it as one attention operator."""
    if node.op not in PRODUCTS or len(node.refs) != 2:
        return None
    weights = reader.find(node.args[0], aten.softmax.int, aten._softmax.default)
    if weights is None or weights.args[1] % len(weights.shape) != len(weights.shape) - 1:
        return None
    unmasked = _without_mask(reader, weights.args[0])
    if unmasked is None:
        return None
    scores, scale = _without_scale(reader, unmasked[0])
    product = reader.find(scores, *PRODUCTS)
    if product is None or len(product.refs) != 2 or len(product.shape) < 3 or product.shape != weights.shape:
        return None
    query, key, value = product.args[0], product.args[1], node.args[1]
    if query.shape[:-2] != key.shape[:-2] or query.shape[:-2] != value.shape[:-2]:
        return None
    shape = (*key.shape[:-2], key.shape[-1], key.shape[-2])
    turned = dataclasses.replace(
        product, name=f"{node.name}_key", op=aten.transpose.int, args=(key, -2, -1), kwargs={}, shape=shape
    )
    whole = dataclasses.replace(
        node,
        op=aten.scaled_dot_product_attention.default,
        args=(query, Ref(turned.name, shape), value, unmasked[1], 0.0, False),
        kwargs={"scale": scale},
    )
    return turned, whole


def _without_mask(reader: Reader, scores: Any) -> tuple[Any, Tensor | None] | None:
    """Return the scores in front of an added mask, and the mask; None where something else is added to them."""
    added = reader.find(scores, aten.add.Tensor)
    if added is None or len(added.refs) != 1 or len(added.args) != 2 or added.kwargs:
        return scores, None
    first, second = added.args
    scores, mask = (first, second) if isinstance(first, Ref) else (second, first)
    if not isinstance(mask, Tensor) or not mask.is_floating_point():  # a mask of booleans is not added
        return None
    return scores, mask


def _without_scale(reader: Reader, scores: Any) -> tuple[Any, float]:
    """Return the scores in front of a constant factor, and the factor."""
    scaled = reader.find(scores, aten.mul.Tensor, aten.div.Tensor)
    if scaled is None or len(scaled.refs) != 1 or not isinstance(scaled.args[1], float | int):
        return scores, 1.0
    factor = float(scaled.args[1])
    return scaled.args[0], factor if scaled.op is aten.mul.Tensor else 1.0 / factor


def rotary(reader: Reader, node: Node) -> Node | None:
    """Recognise `x cos + rotate(x) sin`: a small matrix acts on every row, and its norm is computed."""
    if node.op is not aten.add.Tensor or len(node.refs) != 2 or len(node.shape) < 2:
        return None
    if any(reader.find(argument, aten.mul.Tensor) is None for argument in node.args[:2]):
        return None
    for region, source in regions(reader, node, ROW_LOCAL):
        if not any(member.op is aten.cat.default for member in region):
            continue
        if source.shape != node.shape or not all(_row_local(member) for member in region):
            return None
        function = runner(region, source, node.name)
        norm = _largest_block(function, region, source)
        if norm is None:
            return None

        def batched(x: Tensor, function: Callable[[Tensor], Tensor] = function) -> Tensor:
            return torch.stack([function(item) for item in x])

        linear = Bounded(batched, source.shape, node.shape, norm, "rotation of pairs", node.device)
        return dataclasses.replace(node, op=Unit("rotary", function, {"map": linear}), args=(source,), kwargs={})
    return None


def padded_convolution(reader: Reader, node: Node) -> Node | None:
    """Recognise a convolution with a `padding_mode` other than zeros: torch runs a pad, then a plain convolution."""
    if node.op not in CONVOLUTIONS or not isinstance(node.args[0], Ref):
        return None
    arguments = node.bound()
    pad = reader.find(node.args[0], aten.pad.default)
    sides = arguments["padding"]
    if pad is None or len(pad.args) < 3 or pad.args[2] not in PAD_MODES or isinstance(sides, str) or any(sides):
        return None
    if len(pad.args[1]) != 2 * (len(node.shape) - 2) or len(node.refs) != 1 or min(pad.args[1]) < 0:
        return None
    pairs = tuple(zip(pad.args[1][::2], pad.args[1][1::2], strict=True))[::-1]  # torch lists the last axis first
    data = {"padding": pairs, "mode": pad.args[2], **{k: arguments[k] for k in ("stride", "dilation", "groups")}}
    widths, kind, op = list(pad.args[1]), pad.args[2], node.op

    def function(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return op(
            torch.nn.functional.pad(x, widths, kind),
            weight,
            bias,
            data["stride"],
            [0],
            data["dilation"],
            data["groups"],
        )

    unit = Unit("padded_convolution", function, data)
    return dataclasses.replace(
        node, op=unit, args=(pad.operands[0], arguments["weight"], arguments.get("bias")), kwargs={}
    )


def _row_local(node: Node) -> bool:
    """Whether an operator acts on every row (the last dimension) by itself."""
    last = len(node.shape) - 1
    if node.op is aten.slice.Tensor:
        return int(node.args[1]) % (last + 1) == last if len(node.args) > 1 else False
    if node.op is aten.cat.default:
        return len(node.args) > 1 and int(node.args[1]) % (last + 1) == last
    if node.op is aten.mul.Tensor:
        return len(node.refs) == 1
    return all(ref.shape == node.shape for ref in node.operands) and all(
        c is None or c in (1, 1.0) for c in scalars(node)
    )


def _largest_block(function: Callable[[Tensor], Tensor], region: list[Node], source: Ref) -> float | None:
    """Return the largest spectral norm of the matrices that act on single rows."""
    width = source.shape[-1]
    tensors = [c for member in region for c in constants(member) if isinstance(c, Tensor)]
    leading = torch.broadcast_shapes(*(c.shape[:-1] if c.ndim else () for c in tensors))
    leading = (1,) * (len(source.shape) - 1 - len(leading)) + tuple(leading)
    device = tensors[0].device if tensors else torch.device("cpu")
    columns = []
    for index in range(width):
        basis = torch.zeros(*leading, width, dtype=torch.float64, device=device)
        basis[..., index] = 1.0
        columns.append(function(basis).double())
    if bool(function(torch.zeros_like(basis)).any()):
        return None  # the function is affine, not linear
    blocks = torch.stack(columns, dim=-1).reshape(-1, columns[0].shape[-1], width)
    if blocks.numel() > 5e7:
        return None
    return float(torch.linalg.matrix_norm(blocks, ord=2).amax())


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
    for region, source in regions(reader, node, allowed):
        behind = reader.nodes.get(source.name)
        if behind is not None and not behind.dtype.is_floating_point:
            continue
        activation_read = _recognised(region, source, node)
        if activation_read is not None:
            unit = Unit("activation", runner(region, source, node.name), {"activation": activation_read})
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
            activation_read = match(_read(region, source, kind)[node.name])
        except (Unreadable, OverflowError):
            continue
        if activation_read is not None:
            return activation_read
    return None


def _read(region: list[Node], source: Ref, kind: Any) -> dict[str, Any]:
    """Compute every value of a region as an expression of its source; copies and casts change nothing."""
    values: dict[str, Any] = {source.name: kind.identity()}
    for node in region:
        if is_copy(node):
            values[node.name] = values[node.refs[0]]
            continue
        arguments = {
            name: values[value.name] if isinstance(value, Ref) else value for name, value in node.bound().items()
        }
        values[node.name] = _applied(node, arguments, kind)
    return values


def _applied(node: Node, arguments: dict[str, Any], kind: Any) -> Any:
    """Apply one operator to expressions; its arguments come by name."""

    def operand(name: str) -> Any:
        value = arguments[name]
        return kind.constant(number(value)) if isinstance(value, int | float | Tensor) else value

    if node.op in COMPARISONS:
        return _polynomial(operand("self")).compared(COMPARISONS[node.op], _polynomial(operand("other")))
    if node.op in CHOICES:
        filling = node.operator == "masked_fill"
        condition = arguments["mask" if filling else "condition"]
        if not hasattr(condition, "chosen"):
            raise Unreadable("a choice by something that is no comparison")
        return condition.chosen(operand("value"), operand("self")) if filling else condition.chosen(
            operand("self"), operand("other")
        )  # fmt: skip
    x = _polynomial(operand("self"))
    if node.op in CALLED:
        return x.called(CALLED[node.op])
    if node.op in LIMITS:
        return x.called("clamp", *LIMITS[node.op](arguments))
    if node.op in TWO:
        return TWO[node.op](x, _polynomial(operand("other")), kind.constant(number(arguments.get("alpha", 1))))
    return ONE[node.op](x, arguments, kind)


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


def _power(x: Any, arguments: dict[str, Any], kind: Any) -> Any:
    exponent = number(arguments["exponent"])
    if exponent.denominator != 1:
        raise Unreadable("a power that is no integer")
    return x.powered(int(exponent))


def _softplus(x: Any, arguments: dict[str, Any], kind: Any) -> Any:
    beta, threshold = number(arguments["beta"]), number(arguments["threshold"])
    if threshold < SOFTPLUS_THRESHOLD or beta == 0:
        raise Unreadable("a softplus that jumps")
    return (x * kind.constant(beta)).called("softplus").divided(kind.constant(beta))


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
    aten.hardsigmoid.default: lambda x, given, kind: (
        (x + kind.constant(Fraction(3))).called("clamp", Fraction(0), Fraction(6)).divided(kind.constant(Fraction(6)))
    ),
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
