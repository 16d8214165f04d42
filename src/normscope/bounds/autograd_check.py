"""Is what autograd gives the derivative? Products with a Jacobian, compared with differences of values.

Custom `autograd.Function`s, tensor hooks, `detach` and gradient reversal change what autograd gives, not the function.
Where there is a captured graph its derivative is the function's; where there is none, central differences tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ..core.budget import check_time
from ..core.torch_settings import math_attention
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
"""The backward of each module is compared with differences along this many directions."""
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


def differences(function: Function, point: Tensor, direction: Tensor, root: float = 1 / 3) -> tuple[Tensor, Tensor]:
    """Return central differences of independent rows along unit rows, and how far each may be off (its norm).

    Steps are, relative to the input, that power of the precision and a quarter of it: at 1/3 the errors of rounding and
    of truncation meet, at 1/2 fewer bends and jumps are crossed.
    """
    unit = torch.finfo(point.dtype).eps
    size = reach_of(point)
    found, noise = [], torch.zeros(len(point), dtype=torch.float64, device=point.device)
    with torch.no_grad():
        for scale in (1.0, 0.25):
            step = (scale * unit**root * size).to(point.dtype)
            ahead, back = point + step * direction, point - step * direction
            # the step that was made, after rounding, along the direction that was asked for
            length = ((ahead - back).double() * direction.double()).sum(dim=1, keepdim=True)
            values = function(ahead).double(), function(back).double()
            found.append((values[0] - values[1]) / length)
            noise = ROUNDING * unit * (values[0].norm(dim=1) + values[1].norm(dim=1)) / length[:, 0]
    return found[1], TRUNCATION * (found[0] - found[1]).norm(dim=1) + noise


def reach_of(point: Tensor) -> Tensor:
    """Return the norm of every row; of rows much smaller than others a share of the largest, of zeros that of ones."""
    norms = point.norm(dim=1, keepdim=True).double()
    largest = float(norms.max()) or point.shape[1] ** 0.5
    return norms.clamp(min=0.1 * largest)


def disagrees(function: Function, point: Tensor, direction: Tensor, product: Tensor) -> tuple[Tensor, Tensor]:
    """Say for which rows a product with the Jacobian is not the change that is seen, and for which none can be told.

    A difference tells nothing where what it may be off by is half of it.
    """
    seen, slack = differences(function, point, direction)
    product = product.double()
    larger = torch.maximum(seen.norm(dim=1), product.norm(dim=1))
    off = ((product - seen).norm(dim=1) > slack + SHARE * larger) | ~seen.isfinite().all(dim=1)
    return off, slack > 0.5 * larger


def mismatches(
    model: nn.Module, batch: Any, graph: Graph | None, *, mode: str | None = None, output: str | int | None = None
) -> tuple[Mismatch, ...]:
    """Return the modules whose backward is not the derivative of their forward, seen from the output at a batch.

    The model's own gradient, along a random direction of the output, is compared with that of its captured graph, or
    without one with differences; if the two differ, modules are compared with differences one by one.

    Args:
        model: the user's model; left as found.
        batch: what it takes.
        graph: what was captured of it, of one sample or of the batch; None if it cannot be traced.
        mode: as for the capture.
        output: as for the capture.

    Returns:
        The innermost modules at fault, `""` standing for code outside of all others; nothing for a model of token ids.
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
    wanted = _pulled(value, inputs, along)
    leaves = [tensor.detach().requires_grad_(True) for _, tensor in call.variables]
    own = _pulled(run(model, substituted(call, leaves)), leaves, along)
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
    found: list[Mismatch] = []
    seen = list(_calls(model, call).items())
    for path, (module, args, kwargs) in seen[:LARGEST_MODULES]:  # children come before their parents
        if any(inner.path == path or inner.path.startswith(f"{path}.") or not path for inner in found):
            continue
        check_time()
        share = _share(module, args, kwargs)
        if share is not None:
            found.append(Mismatch(path, share))
    return tuple(found)


def substituted(call: Call, parts: Sequence[Tensor]) -> Call:
    """Return a call with its variables replaced, in their order."""
    tensors = [tensor for _, tensor in call.variables]
    replaced = {id(old): new for old, new in zip(tensors, parts, strict=True)}
    args, kwargs = tree_map(lambda leaf: replaced.get(id(leaf), leaf), (call.args, call.kwargs))
    return Call(args=args, kwargs=kwargs, output=call.output)


def _pulled(value: Tensor, leaves: Sequence[Tensor], along: Tensor) -> list[Tensor]:
    """Return gradients, zeros where autograd has none."""
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    grads = torch.autograd.grad(value, leaves, along.to(value).reshape(value.shape), allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g.detach() for g, leaf in zip(grads, leaves, strict=True)]


Recorded = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def _calls(model: nn.Module, call: Call) -> dict[str, Recorded]:
    """Return the first call of every module, inner ones first; parametrizations, which see weights, are left out."""
    found: dict[str, Recorded] = {}
    names: dict[int, str] = {}
    for path, module in model.named_modules():
        if "parametrizations" not in path.split("."):
            names.setdefault(id(module), path)
    taken: dict[str, Recorded] = {}

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        copies = tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, (args, kwargs))
        taken.setdefault(names[id(module)], (module, *copies))

    def after(module: nn.Module, args: Any, output: Any) -> None:
        path = names[id(module)]
        found.setdefault(path, taken[path])

    hooks = []
    try:
        for module in model.modules():
            if id(module) in names:
                hooks.append(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
                hooks.append(module.register_forward_hook(after))
        with torch.no_grad():
            run(model, call)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _share(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """Return autograd's product as a multiple of the difference, where the two disagree; None where they agree."""
    leaves, spec = tree_flatten((args, kwargs))
    floats = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if not floats:
        return None
    sizes = [leaves[i].numel() for i in floats]
    shapes = [leaves[i].shape for i in floats]

    def function(rows: Tensor) -> Tensor:
        parts = dict(zip(floats, rows[0].split(sizes), strict=True))
        filled = [
            parts[i].reshape(shapes[floats.index(i)]).to(leaf.dtype).clone() if i in parts else leaf
            for i, leaf in enumerate(leaves)
        ]
        positional, named = tree_unflatten(filled, spec)
        result = module(*positional, **named)
        outputs = [v.reshape(-1) for v in tree_flatten(result)[0] if isinstance(v, Tensor) and v.is_floating_point()]
        return torch.cat(outputs)[None] if outputs else rows[:, :0]

    start = torch.cat([leaves[i].reshape(-1) for i in floats])[None]
    generator = torch.Generator().manual_seed(0)

    def drawn() -> Tensor:
        row = torch.randn(start.shape, generator=generator, dtype=torch.float64).to(start)
        return row / row.norm()

    moved = start + MOVED * reach_of(start).to(start) * drawn()
    try:
        for direction in (drawn() for _ in range(DIRECTIONS)):
            for root in (1 / 2, 1 / 3):
                share = _share_at(function, start, direction, root)
                if share is not None and _share_at(function, moved, direction, root) is not None:
                    return share
    except (RuntimeError, NotImplementedError, TypeError, ValueError):  # a module that cannot be run by itself
        return None
    return None


def _share_at(function: Function, point: Tensor, direction: Tensor, root: float) -> float | None:
    """Compare one product with a difference, by backward passes alone: <J^T u, v> is <u, J v>.

    The output's directions u are the change that was seen, whose product is the norm of J v, and one at random.
    """
    seen, slack = differences(function, point, direction, root)
    size = float(seen.norm())
    other = torch.cos(torch.arange(seen.numel(), dtype=torch.float64) ** 2).to(seen).reshape(seen.shape)
    found = None
    for u in (seen, other) if size > 0.0 else (other,):
        leaf = point.detach().requires_grad_(True)
        with torch.enable_grad():
            (pulled,) = _pulled(function(leaf), [leaf], u / u.norm())
        given, wanted = float((pulled.double() * direction.double()).sum()), float((u * seen).sum() / u.norm())
        if abs(given - wanted) > float(slack) + SHARE * max(size, abs(given)):
            found = given / wanted if wanted != 0.0 else math.inf
            break
    return found


def paths(found: Sequence[Mismatch]) -> Iterator[str]:
    """Yield the places of mismatches in words."""
    for one in found:
        yield f"`{one.path}`" if one.path else "the model's own code"
