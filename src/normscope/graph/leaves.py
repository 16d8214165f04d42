"""Recognise units: several operators that together are one known function are replaced by one node.

Units are RMSNorm, activations (`written.py`) and softmax attention written out in operators, rotary embeddings, and
convolutions behind a circular, reflecting or replicating pad. Operators and constants must be those of the unit's
formula. As a further test, which proves nothing, the unit and its operators must give the same numbers. A unit replaces
its last operator; operators whose values are no longer read are dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor

from ..linalg.linear_map import Bounded
from .ir import Graph, Node, Ref, Unit
from .regions import SAME, Reader, constants, evaluated, merged, pruned, regions, runner, scalars
from .written import activation

aten = torch.ops.aten

ROW_LOCAL = SAME | {
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
            found = recogniser(reader, node)
            found = found if isinstance(found, tuple) else (found,) if found is not None else ()
            nodes.extend(found if found and _agrees(reader, node, found) else (node,))
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
        given = {
            name: (scale * torch.randn(ref.shape, dtype=torch.float64, generator=generator)).to(node.device)
            for name, ref in operands.items()
        }
        before, after = evaluated(region, given)[node.name], evaluated(list(unit), given)[node.name]
        if before.shape != after.shape or not torch.allclose(
            before, after, rtol=1e-5, atol=1e-7 * scale, equal_nan=True
        ):
            return False
    return True


def _between(reader: Reader, node: Node, operands: Container[str]) -> list[Node]:
    """Return the operators that lead from the operands of a unit to its last node, in the order of the graph."""
    found: set[str] = set()
    stack = [node.name]
    while stack:
        name = stack.pop()
        if name not in operands and name in reader.nodes and name not in found:
            found.add(name)
            stack.extend(reader.nodes[name].refs)
    return [member for name, member in reader.nodes.items() if name in found]


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
        found = _mean_square(reader, root.args[0], source)
        if found is None:
            continue
        dims, eps = found

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
