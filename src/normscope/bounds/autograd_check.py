"""Is what autograd gives the derivative? Products with a Jacobian, compared with differences of values.

Custom `autograd.Function`s, tensor hooks, `detach` and gradient reversal change what autograd gives, not the function.
Where there is a captured graph its derivative is the function's; where there is none, central differences tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ..core.budget import check_time
from ..core.threads import math_attention
from ..core.untouched import untouched
from ..graph.call import Call, prepare, run
from ..graph.ir import Graph, Unit

Function = Callable[[Tensor], Tensor]
TRUNCATION = 4.0
"""Two central differences with steps h and h/4 differ by 15/16 of the error of the first, so four times their distance
covers the error of both, and of a step across a few bends."""
ROUNDING = 16.0
"""A difference of outputs may hold this many roundings of the output, each relative to its size."""
SHARE = 0.02
"""What a disagreement must exceed, relative to the larger: bends between the two points make differences off by 1 %."""
MOVED = 1e-2
"""How far, relative to its size, an input is moved off a bend before a disagreement counts."""
DIRECTIONS = 3
"""Products with a Jacobian are compared with differences along this many directions."""
SKETCHED_OUTPUTS = 8
"""Outputs are added up into at most this many sums that are compared: each costs a backward pass."""
LARGEST_MODULES = 400
"""At most this many modules are tried, one by one, to find the one whose backward is wrong."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A module whose backward is not the derivative of its forward.

    Attributes:
        path: the module, `""` for the model itself.
        share: what autograd gives along a direction, as a multiple of the derivative there.
    """

    path: str
    share: float


def differentiable(graph: Graph) -> Graph:
    """Return a graph with each copy into another value, which autograd cannot differentiate, as what is copied."""

    def copied(into: Tensor, source: Tensor, *_: Any) -> Tensor:
        return source.to(into.dtype).expand(into.shape)

    into = torch.ops.aten.copy.default
    return replace(graph, nodes=tuple(replace(n, op=Unit("copy", copied)) if n.op is into else n for n in graph))


def reach_of(point: Tensor) -> Tensor:
    """Return the norm of every row; of rows much smaller than others a share of the largest, of zeros that of ones."""
    norms = point.norm(dim=1, keepdim=True).double()
    largest = float(norms.max()) or point.shape[1] ** 0.5
    return norms.clamp(min=0.1 * largest)


def compare(
    function: Function, point: Tensor, *, along: Tensor | None = None, roots: Sequence[float] = (1 / 3,), seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Compare autograd's products of independent rows with differences, along random directions and `along`.

    Returns a product as a multiple of the difference for every row, NaN where the two agree, and the rows where a
    difference tells nothing. A disagreement on a bend of the function is none: rows are moved before it counts.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        rows = torch.randn(point.shape, dtype=torch.float64, generator=generator).to(point)
        return rows / rows.norm(dim=1, keepdim=True)

    moved = point + MOVED * reach_of(point).to(point) * draw()
    directions = [draw() if along is None else along, *(draw() for _ in range(DIRECTIONS - 1))]
    jacobian = _sketch_jacobian(function, point)
    shares = torch.full((len(point),), math.nan, dtype=torch.float64, device=point.device)
    hidden = torch.zeros(len(point), dtype=torch.bool, device=point.device)
    for direction in directions:
        for root in roots:
            share, blurred = _compare_along(function, point, jacobian, direction, root)
            hidden = hidden | blurred
            if not bool(share.isnan().all()):
                beside, _ = _compare_along(function, moved, _sketch_jacobian(function, moved), direction, root)
                shares = torch.where(shares.isnan() & ~beside.isnan(), share, shares)
    return shares, hidden


def _sketch_jacobian(function: Function, point: Tensor) -> tuple[Tensor, Tensor]:
    """Return signs that add outputs up into few sums of about the same norm, and the Jacobians of these sums.

    Backward passes are all that takes: many a custom backward cannot be differentiated again.
    """
    leaf = point.detach().requires_grad_(True)
    with torch.enable_grad():
        value = function(leaf)
        places = torch.arange(value.shape[1], device=value.device)
        sums = torch.arange(min(SKETCHED_OUTPUTS, len(places)), device=value.device)[:, None]
        signs = torch.where(places % len(sums) == sums, torch.cos(places.double() ** 2).sign(), 0.0)
        rows = [_pull(value, [leaf], row.expand(value.shape))[0].double() for row in signs]
    return signs, torch.stack(rows, dim=1)


def _compare_along(
    function: Function, point: Tensor, jacobian: tuple[Tensor, Tensor], direction: Tensor, root: float
) -> tuple[Tensor, Tensor]:
    """Compare as `compare` does, at one place along one direction, with central differences of two lengths.

    Steps are, relative to the input, that power of the precision and a quarter of it: at 1/3 the errors of rounding and
    of truncation meet, at 1/2 fewer bends and jumps are crossed.
    """
    unit, size = torch.finfo(point.dtype).eps, reach_of(point)
    changes, noise = [], torch.zeros(len(point), dtype=torch.float64, device=point.device)
    with torch.no_grad():
        for scale in (1.0, 0.25):
            step = (scale * unit**root * size).to(point.dtype)
            ahead, back = point + step * direction, point - step * direction
            # the step that was made, after rounding, along the direction that was asked for
            length = ((ahead - back).double() * direction.double()).sum(dim=1, keepdim=True)
            values = function(ahead).double(), function(back).double()
            changes.append((values[0] - values[1]) / length)
            noise = ROUNDING * unit * (values[0].norm(dim=1) + values[1].norm(dim=1)) / length[:, 0]
    slack = TRUNCATION * (changes[0] - changes[1]).norm(dim=1) + noise
    signs, rows = jacobian
    change, product = changes[1] @ signs.mT, torch.einsum("smn,sn->sm", rows, direction.double())
    larger = torch.maximum(changes[1].norm(dim=1), product.norm(dim=1))
    off = (product - change).norm(dim=1) > slack + SHARE * larger
    share = ((product * change).sum(dim=1) / change.square().sum(dim=1)).nan_to_num(nan=math.inf)
    return torch.where(off, share, math.nan), ~(slack <= 0.5 * larger)


def mismatches(
    model: nn.Module, batch: Any, graph: Graph | None, *, mode: str | None = None, output: str | int | None = None
) -> tuple[Mismatch, ...]:
    """Return the innermost modules whose backward is not the derivative of their forward, seen from the output.

    The model's own gradient, along a random direction of the output, is compared with that of its captured graph (of
    one sample or of the batch), or without one with differences; if the two differ, modules are compared one by one.
    The path `""` stands for code outside of all others. A model of token ids has none.
    """
    with untouched(model, mode), math_attention(), torch.enable_grad():
        call = prepare(model, batch, output)
        if not call.variables:
            return ()
        if graph is None:
            share = _share(model, call.args, call.kwargs)
        else:
            call = call.sample() if graph.per_sample else call
            share = _share_of_graph(model, call, graph)
        return () if share is None else located(model, call) or (Mismatch("", share),)


def _share_of_graph(model: nn.Module, call: Call, graph: Graph) -> float | None:
    """Return the model's gradient as a multiple of the graph's, where the two disagree; None where they agree."""
    inputs = [item.value.detach().requires_grad_(True) for item in graph.inputs]
    value = differentiable(graph).run(*inputs)
    along = torch.randn(value.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(value)
    wanted = _pull(value, inputs, along)
    leaves = [tensor.detach().requires_grad_(True) for _, tensor in call.variables]
    own = _pull(run(model, substituted(call, leaves)), leaves, along)
    own = [g for g, leaf in zip(own, leaves, strict=True) if any(torch.equal(leaf, x) for x in inputs)]
    if [g.shape for g in own] != [g.shape for g in wanted]:
        return None
    first, second = (torch.cat([g.reshape(-1).double() for g in grads]) for grads in (own, wanted))
    allowed = max(SHARE, 64 * torch.finfo(inputs[0].dtype).eps) * max(float(first.norm()), float(second.norm()))
    if float((first - second).norm()) <= allowed:
        return None
    return float(first @ second / (second @ second)) if bool(second.any()) else math.inf


def located(model: nn.Module, call: Call) -> tuple[Mismatch, ...]:
    """Return the innermost modules whose backward disagrees with differences of their forward, at a call."""
    names: dict[int, str] = {}
    for path, module in model.named_modules():
        if "parametrizations" not in path.split("."):  # these see weights
            names.setdefault(id(module), path)
    begun: dict[str, tuple[nn.Module, Any, Any]] = {}
    ended: dict[str, None] = {}  # children before their parents

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        copies = tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, (args, kwargs))
        begun.setdefault(names[id(module)], (module, *copies))

    hooks = []
    try:
        for module in model.modules():
            if id(module) in names:
                hooks.append(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
                hooks.append(module.register_forward_hook(lambda m, *_: ended.setdefault(names[id(m)])))
        with torch.no_grad():
            run(model, call)
    finally:
        for hook in hooks:
            hook.remove()
    faults: list[Mismatch] = []
    for path in list(ended)[:LARGEST_MODULES]:
        if any(inner.path == path or inner.path.startswith(f"{path}.") or not path for inner in faults):
            continue
        check_time()
        share = _share(*begun[path])
        if share is not None:
            faults.append(Mismatch(path, share))
    return tuple(faults)


def substituted(call: Call, parts: Sequence[Tensor]) -> Call:
    """Return a call with its variables replaced, in their order."""
    tensors = [tensor for _, tensor in call.variables]
    replaced = {id(old): new for old, new in zip(tensors, parts, strict=True)}
    args, kwargs = tree_map(lambda leaf: replaced.get(id(leaf), leaf), (call.args, call.kwargs))
    return Call(args=args, kwargs=kwargs, output=call.output)


def _pull(value: Tensor, leaves: Sequence[Tensor], along: Tensor) -> list[Tensor]:
    """Return gradients, zeros where autograd has none."""
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    along = along.to(value).reshape(value.shape)
    grads = torch.autograd.grad(value, leaves, along, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(leaf) if g is None else g.detach() for g, leaf in zip(grads, leaves, strict=True)]


def _share(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """Return autograd's product as a multiple of the difference, where the two disagree; None where they agree."""
    leaves, spec = tree_flatten((args, kwargs))
    floats = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if not floats:
        return None

    def function(rows: Tensor) -> Tensor:
        filled = list(leaves)
        for i, part in zip(floats, rows[0].split([leaves[i].numel() for i in floats]), strict=True):
            filled[i] = part.reshape(leaves[i].shape).to(leaves[i].dtype).clone()
        positional, named = tree_unflatten(filled, spec)
        result = module(*positional, **named)
        outputs = [v.reshape(-1) for v in tree_flatten(result)[0] if isinstance(v, Tensor) and v.is_floating_point()]
        return torch.cat(outputs)[None] if outputs else rows[:, :0]

    start = torch.cat([leaves[i].reshape(-1) for i in floats])[None]
    try:
        share = float(compare(function, start, roots=(1 / 2, 1 / 3))[0])
    except (RuntimeError, NotImplementedError, TypeError, ValueError):  # a module that cannot be run by itself
        return None
    return None if math.isnan(share) else share
