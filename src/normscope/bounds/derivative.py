"""What is differentiated for POINT figures: the captured graph, or the model itself where there is none.

What autograd gives of a model may be something else than its derivative: custom `autograd.Function`s, tensor hooks,
`detach` and gradient reversal change what autograd gives, not the function. The operators of a graph have torch's own
derivatives. Without a graph, differences of values tell; on a bend of the function, and where an operator's backward is
not its derivative, they tell the same of a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ..calls.agreement import agree
from ..calls.call import Call, drawn, fresh, prepare, quantized, run, settle
from ..core.budget import check_time, count
from ..core.errors import CaptureError, InputError, JacobianError, RandomOperatorError
from ..core.log10 import norm
from ..core.threads import full_precision, math_attention
from ..core.untouched import dropping_nothing, untouched
from .graph.capturing import Traces, trace_model
from .graph.ir import Graph, Node, Ref, Unit
from .operators.comparison import jump
from .operators.registry import lookup

Function = Callable[[Tensor], Tensor]
TRUNCATION = 4.0
"""Differences with steps h and h/4 differ by 3/4 of the error of the first or more, so four times their distance covers
the error of both, and of a step across a few bends."""
ROUNDING = 16.0
"""A difference of outputs may hold this many roundings of the output, each relative to its size."""
SHARE = 0.02
"""What a disagreement must exceed, relative to the larger: bends between the two points make differences off by 1 %."""
BEND_ROOT = 0.45
"""The power of the precision that is the step, relative to the input, of the differences that show bends."""
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
    """Return a graph whose operators autograd can differentiate, those that are linear as cheaply as they can be.

    A copy into another value, of which autograd knows no derivative, becomes what is copied.
    """

    def copied(into: Tensor, source: Tensor, *_: Any) -> Tensor:
        return source.to(into.dtype).expand(into.shape)

    def replaced(node: Node) -> Node:
        if node.op is torch.ops.aten.copy.default:
            return replace(node, op=Unit("copy", copied))
        maps = LINEAR.get(node.op)
        # a batch without its first dimension, and weights that depend on the input, are left to torch
        alone = len(node.refs) == 1 and isinstance(node.args[0], Ref) and not node.kwargs
        if maps is None or not alone or len(node.operands[0].shape) != maps.rank:
            return node
        return replace(node, op=Unit(node.overload, maps.applied), index=None)

    return replace(graph, nodes=tuple(map(replaced, graph)))


@dataclass(frozen=True, slots=True)
class LinearMaps:
    """A linear operator, whose derivative along a direction costs torch more than the operator.

    The derivative of its transpose is asked for as often as the transpose (`Products.push`), and torch then computes
    that of the weights, too, whether anybody wants it or not.

    Attributes:
        operator: of a value and further arguments.
        rank: the dimensions of the value.
        transposed: the transpose at a gradient, from the value and the arguments.
        again: the operator without the constant that it adds, in the same way.
    """

    operator: Callable[..., Any]
    rank: int
    transposed: Callable[..., Tensor]
    again: Callable[..., Tensor]

    def applied(self, value: Tensor, *arguments: Any) -> Tensor:
        """Return the operator at a value, with derivatives of any order."""
        held = value.detach()

        def transposed(gradient: Tensor) -> Tensor:
            return self.transposed(gradient, held, *arguments)

        def again(direction: Tensor) -> Tensor:
            return self.again(direction, *arguments)

        def forward(value: Tensor) -> Tensor:
            made = self.operator(value, *arguments)
            return made if isinstance(made, Tensor) else made[0]

        applied: Tensor = _LinearStep.apply(value, forward, transposed, again)
        return applied


class _LinearStep(torch.autograd.Function):
    """A linear map, whose backward is its transpose, and the other way round."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, now: Function, transposed: Function, again: Function) -> Tensor:
        """Run the map."""
        ctx.transposed, ctx.again = transposed, again
        return now(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Run the transpose."""
        return _LinearStep.apply(gradient, ctx.transposed, ctx.again, ctx.transposed), None, None, None


def _convolution(operator: Callable[..., Tensor], axes: int) -> LinearMaps:
    """Return a convolution of torch's as a linear operator."""

    def filled(
        weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> tuple[Tensor, list[list[int]], int]:
        sizes = [list(size) if isinstance(size, list | tuple) else [size] for size in (stride, padding, dilation)]
        return weight, [size * (axes // len(size)) for size in sizes], groups

    def transposed(gradient: Tensor, value: Tensor, *arguments: Any) -> Tensor:
        weight, (stride, padding, dilation), groups = filled(*arguments)
        wanted = [True, False, False]
        made: Tensor = torch.ops.aten.convolution_backward(
            gradient, value, weight, None, stride, padding, dilation, False, [0] * axes, groups, wanted
        )[0]
        return made

    def again(direction: Tensor, *arguments: Any) -> Tensor:
        return operator(direction, arguments[0], None, *arguments[2:])

    return LinearMaps(operator, axes + 2, transposed, again)


def _normalizer() -> LinearMaps:
    """Return a BatchNorm with stored statistics of images, which scales every channel, as a linear operator."""

    def scaled(gradient: Tensor, value: Tensor, *arguments: Any) -> Tensor:
        weight, _, mean, variance, _, eps = arguments
        wanted = [True, False, False]
        made: Tensor = torch.ops.aten.native_batch_norm_backward(
            gradient, value, weight, mean, variance, None, None, False, eps, wanted
        )[0]
        return made

    def again(direction: Tensor, *arguments: Any) -> Tensor:
        return scaled(direction, direction, *arguments)

    return LinearMaps(torch.ops.aten._native_batch_norm_legit_no_training.default, 4, scaled, again)


LINEAR = {
    torch.ops.aten.conv1d.default: _convolution(torch.ops.aten.conv1d.default, 1),
    torch.ops.aten.conv2d.default: _convolution(torch.ops.aten.conv2d.default, 2),
    torch.ops.aten.conv3d.default: _convolution(torch.ops.aten.conv3d.default, 3),
    torch.ops.aten._native_batch_norm_legit_no_training.default: _normalizer(),
}
"""Operators that are replaced where they read one value."""


def reach_of(point: Tensor) -> Tensor:
    """Return the norm of every row; of rows much smaller than others a share of the largest, of zeros that of ones."""
    norms = point.norm(dim=1, keepdim=True).double()
    largest = float(norms.max()) or point.shape[1] ** 0.5
    return norms.clamp(min=0.1 * largest)


def compare(
    function: Function, point: Tensor, *, along: Tensor | None = None, roots: Sequence[float] = (1 / 3,), seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Compare autograd's products of independent rows with central differences, along random directions and `along`.

    Returns a product as a multiple of the difference for every row, NaN where the two agree, and the rows where a
    difference tells nothing. A disagreement on a bend of the function is none: rows are moved before it counts.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        rows = torch.randn(point.shape, dtype=torch.float64, generator=generator).to(point)
        return rows / rows.norm(dim=1, keepdim=True)

    def differ(at: Tensor, jacobian: tuple[Tensor, Tensor], direction: Tensor, root: float) -> tuple[Tensor, Tensor]:
        product = torch.einsum("smn,sn->sm", jacobian[1], direction.double())
        return _disagreement(function, at, direction, product, (1.0, -1.0), root, sums=jacobian[0])

    moved = point + MOVED * reach_of(point).to(point) * draw()
    directions = [draw() if along is None else along, *(draw() for _ in range(DIRECTIONS - 1))]
    jacobian = _sketch_jacobian(function, point)
    shares = torch.full((len(point),), math.nan, dtype=torch.float64, device=point.device)
    hidden = torch.zeros(len(point), dtype=torch.bool, device=point.device)
    for direction in directions:
        for root in roots:
            share, blurred = differ(point, jacobian, direction, root)
            hidden = hidden | blurred
            if not bool(share.isnan().all()):
                beside, _ = differ(moved, _sketch_jacobian(function, moved), direction, root)
                shares = torch.where(shares.isnan() & ~beside.isnan(), share, shares)
    return shares, hidden


def find_bends(function: Function, point: Tensor, value: Tensor, direction: Tensor, product: Tensor) -> Tensor:
    """Return at which rows the product along a direction is not what the function changes by, ahead or back.

    Of a smooth function the disagreement shrinks with the step, and is none. Without float64 nothing is said.
    """
    bends = torch.zeros(len(value), dtype=torch.bool, device=value.device)
    for ends in ((1.0, 0.0), (0.0, -1.0)) if point.dtype == torch.float64 else ():
        share, _ = _disagreement(function, point.detach(), direction, product, ends, BEND_ROOT, value=value.detach())
        bends = bends | ~share.isnan()
    return bends


def _disagreement(
    function: Function,
    point: Tensor,
    direction: Tensor,
    product: Tensor,
    ends: tuple[float, float],
    root: float,
    *,
    sums: Tensor | None = None,
    value: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compare products with differences of two lengths, between two ends in units of a step along the direction.

    The step is, relative to the input, that power of the precision: at 1/3 the errors of rounding and of truncation
    meet, at 1/2 fewer bends and jumps are crossed. `sums` says which sums of outputs the product is of, and `value` is
    the function at the end 0. Returns the product as a multiple of the difference, NaN where the two agree, and the
    rows where a difference tells nothing.
    """
    unit, changes = torch.finfo(point.dtype).eps, []
    slack = torch.zeros(len(point), dtype=torch.float64, device=point.device)
    for scale in (1.0, 0.25):
        step = (scale * unit**root * reach_of(point)).to(point.dtype)
        places = [point + end * step * direction for end in ends]
        # the step that was made, after rounding, along the direction that was asked for
        length = ((places[0] - places[1]).double() * direction.double()).sum(dim=1, keepdim=True)
        with torch.no_grad():
            values = [
                value.double() if value is not None and end == 0 else function(place).double()
                for end, place in zip(ends, places, strict=True)
            ]
        changes.append((values[0] - values[1]) / length)
        noise = ROUNDING * unit * (norm(values[0], 1) + norm(values[1], 1)) / length[:, 0]
        slack = noise if scale == 1.0 else TRUNCATION * norm(changes[0] - changes[1], 1) + noise
        change = changes[-1] if sums is None else changes[-1] @ sums.mT
        larger = torch.maximum(norm(changes[-1], 1), norm(product, 1))
        off = norm(product - change, 1) > slack + SHARE * larger
        if not bool(off.any()):
            break
    share = ((product * change).sum(dim=1) / change.square().sum(dim=1)).nan_to_num(nan=math.inf)
    return torch.where(off, share, math.nan), ~(slack <= 0.5 * larger)


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
        return () if share is None else locate_faults(model, call) or (Mismatch("", share),)


def _share_of_graph(model: nn.Module, call: Call, graph: Graph) -> float | None:
    """Return the model's gradient as a multiple of the graph's, where the two disagree; None where they agree."""
    inputs = [item.value.detach().requires_grad_(True) for item in graph.inputs]
    value = differentiable(graph).run(*inputs)
    along = torch.randn(value.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(value)
    wanted = _pull(value, inputs, along)
    leaves = [tensor.detach().requires_grad_(True) for _, tensor in call.variables]
    own = _pull(run(model, substitute(call, leaves)), leaves, along)
    own = [g for g, leaf in zip(own, leaves, strict=True) if any(torch.equal(leaf, x) for x in inputs)]
    if [g.shape for g in own] != [g.shape for g in wanted]:
        return None
    first, second = (torch.cat([g.reshape(-1).double() for g in grads]) for grads in (own, wanted))
    if not bool(torch.isfinite(first).all() and torch.isfinite(second).all()):
        return None  # there is no derivative here, and nothing to compare
    allowed = max(SHARE, 64 * torch.finfo(inputs[0].dtype).eps) * max(float(first.norm()), float(second.norm()))
    if float((first - second).norm()) <= allowed:
        return None
    return float(first @ second / (second @ second)) if bool(second.any()) else math.inf


def locate_faults(model: nn.Module, call: Call) -> tuple[Mismatch, ...]:
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


def substitute(call: Call, parts: Sequence[Tensor]) -> Call:
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


HALVES = (torch.float16, torch.bfloat16)
SATURATING = ("softmax", "_softmax", "tanh", "sigmoid")
"""Operators whose derivative subtracts their value from 1."""
FLAT = 2.0**-26
"""How close to 1 such a value may be before half of the digits of its derivative are lost."""
LIFT = 300
"""Powers of two by which a product is lifted, at most, to see what vanishes in it."""


@dataclass(frozen=True, slots=True)
class BatchFunction:
    """A differentiable function of a batch: `samples` independent blocks of inputs, as rows."""

    function: Callable[[Tensor], Tensor]
    point: Tensor
    outputs: int  # the entries of the function at each row
    notes: tuple[str, ...]
    wide: Callable[[], BatchFunction] | None = None  # makes the same in float64; None where there is none
    doubted: str | None = None  # why the derivative may not be the function's, and must be compared
    blame: Callable[[], str] = lambda: ""  # names the modules at fault
    saturates: Callable[[], bool] = lambda: False  # whether float64 may lose the derivative of a flat unit (softmax)

    @property
    def samples(self) -> int:
        """How many rows there are."""
        return self.point.shape[0]


def captured(model: nn.Module, batch: Any, mode: str | None, output: str | int | None) -> Graph | None:
    """Return the graph, or None for a model that cannot be traced."""
    try:
        return trace_model(model, batch, mode=mode, output=output)
    except RandomOperatorError:
        raise
    except CaptureError:
        return None


def candidates(
    model: nn.Module,
    batch: Any,
    mode: str,
    forced: str | None,
    output: str | int | None,
    graph: Graph | None,
    traces: Traces | None = None,
) -> Iterator[BatchFunction]:
    """Yield what to differentiate, the best first: the graph of the whole batch, then the model itself.

    The samples of a batch go through one graph together: a graph of one sample holds the masks and other constant
    inputs of the first, and must be run once for each. A graph counts if it gives what the model gives, at the batch
    and at random inputs. Models of token ids start at the embeddings, which the graph of the whole batch holds.
    `traces` are those taken of other batches: they serve this one, too, where its shapes are the same.
    """
    call = prepare(model, batch, output)
    if graph is not None:
        samples = call.count if graph.per_sample else 1
        for whole in _wholes(batch, graph, call, traces or Traces(model, mode=forced, output=output)):
            local = _replayed(whole, graph, samples, call.notes)
            with full_precision(), untouched(model, forced), dropping_nothing(model):  # as in the graph
                gives = _gives(model, call, local, whole.eps)
            if gives:
                yield local
                break
    why = "the model cannot be traced" if graph is None else "the traced model cannot be differentiated in its stead"
    # without a graph nobody knows whether samples are independent
    alone = graph is not None and graph.per_sample
    with untouched(model, forced):
        settled = settle(model, call, mode)
        if graph is None and settled.draws:
            raise RandomOperatorError(
                "the model draws random numbers, and without a trace nobody knows whether the output depends on them: "
                "switch the randomness off"
            )
        local = _untraced(model, replace(settled, per_sample=alone), why)
    yield local if graph is None else replace(local, notes=(*local.notes, *graph.notes))


def _wholes(batch: Any, graph: Graph, call: Call, traces: Traces) -> Iterator[Graph]:
    """Yield graphs of all samples of a batch: one that is there, and one captured for it."""
    if not graph.per_sample:
        yield graph
        return
    tensors = [tensor for _, tensor in call.variables]
    for held in graph.batched:
        if held.output_shape[0] != call.count:
            continue
        at_inputs = not tensors or all(any(torch.equal(item.value, t) for t in tensors) for item in held.inputs)
        if at_inputs and all(torch.equal(one.value, call.leaves[one.place]) for one in held.held):  # masks and ids
            yield held
    with suppress(CaptureError):  # the graph may be that of more samples, or of others
        whole = traces.at(batch)
        why = traces.what_joins(batch, whole) if traces.fresh else None
        if why is not None:
            raise InputError(f"{why}, which those of the first batch were not. Pass batches of one size")
        yield whole


def _untraced(model: nn.Module, call: Call, why: str) -> BatchFunction:
    """The model itself, differentiated by autograd."""
    if (why_not := quantized(model)) is not None:
        raise JacobianError(why_not)
    if not call.variables:
        raise InputError("a model of token ids is measured from its embeddings, which needs a traceable model")
    tensors = [tensor for _, tensor in call.variables]
    samples = tensors[0].shape[0] if call.per_sample else 1

    def function(rows: Tensor) -> Tensor:
        return fresh(model, substitute(call, _split_rows(rows, tensors))).reshape(samples, -1)

    def blame() -> str:
        places = (f"`{fault.path}`" if fault.path else "the model's own code" for fault in locate_faults(model, call))
        return ", ".join(places) or "the model"

    point = _join_rows(tensors, samples)
    with torch.no_grad():
        outputs = function(point).shape[1]
    return BatchFunction(function, point, outputs, call.notes, doubted=why, blame=blame)


def _replayed(whole: Graph, graph: Graph, samples: int, notes: tuple[str, ...]) -> BatchFunction:
    """The graph of all samples as a function of rows, and what the operators of a graph say about its derivative."""
    notes = (*notes, *whole.notes)
    jumping = dict.fromkeys(f"{node.operator} in `{node.path or 'the model'}`" for node in graph if _jumps(node))
    if jumping:
        warning = f"the function can jump ({', '.join(list(jumping)[:4])})"
        notes = (*notes, f"{warning}: its derivative says nothing about inputs beside a jump")
    foreign = dict.fromkeys(  # whose backward need not be their derivative: not torch's own, or a hidden quantisation
        f"{node.op} in `{node.path or 'the model'}`"
        for node in graph
        if getattr(node.op, "namespace", "aten") not in ("aten", "prims")
        or any(part in node.operator for part in ("fake_quant", "_fq_helper"))
    )
    blame = ", ".join(foreign)
    if any(item.value.dtype in HALVES for item in whole.inputs):  # its own precision would drown the derivatives
        whole, notes = whole.double(), (*notes, "half precision, measured in float64")
    local = _as_rows(differentiable(whole), samples, notes)
    if foreign:  # nobody knows whether it takes float64
        return replace(local, wide=None, doubted=f"{blame} has a backward of its own", blame=lambda: blame)
    return local


def _as_rows(graph: Graph, samples: int, notes: tuple[str, ...]) -> BatchFunction:
    inputs = [item.value for item in graph.inputs]

    def function(rows: Tensor) -> Tensor:
        return graph.run(*_split_rows(rows, inputs)).reshape(samples, -1)

    @torch.no_grad()
    def saturates() -> bool:
        values = graph.values(*inputs)
        flat = [values[node.name].abs() for node in graph if node.operator in SATURATING]
        return any("attention" in node.operator for node in graph) or any(bool((v > 1 - FLAT).any()) for v in flat)

    outputs = math.prod(graph.output_shape) // samples
    narrow = any(value.dtype != torch.float64 for value in inputs) or any(
        node.dtype in (torch.float32, torch.complex64, *HALVES) for node in graph
    )
    wide = (lambda: _as_rows(graph.double(), samples, notes)) if narrow else None
    return BatchFunction(function, _join_rows(inputs, samples), outputs, notes, wide, saturates=saturates)


def _join_rows(tensors: Sequence[Tensor], samples: int) -> Tensor:
    """Return tensors side by side, one row a sample."""
    return torch.cat([tensor.detach().reshape(samples, -1) for tensor in tensors], dim=1)


def _split_rows(rows: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return rows as tensors of the shapes that they were joined from."""
    parts = rows.split([tensor.numel() // len(rows) for tensor in tensors], dim=1)
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _gives(model: nn.Module, call: Call, local: BatchFunction, eps: float) -> bool:
    """Whether a graph gives what the model gives, up to rounding: at the batch, and at random inputs if it can.

    `eps` is the unit of the narrowest precision that the model computes in.
    """
    trials = [(call, local.point)]
    if sum(tensor.numel() for _, tensor in call.variables) == local.point.numel():
        trial = drawn(call, 1.0)  # else the output does not read some of them, or the graph starts at tokens
        trials.append((trial, _join_rows([tensor for _, tensor in trial.variables], local.samples)))
    for trial, rows in trials:
        with torch.no_grad():
            try:
                expected = fresh(model, trial).reshape(local.samples, -1)
            except InputError:
                if trial is call:
                    raise
                continue  # the model takes no random input
            rows = rows.to(local.point)
            if not agree(local.function(rows), expected, partial(local.function, rows), eps=eps):
                return False
    return True


def _jumps(node: Node) -> bool:
    """Whether an operator is not continuous: a comparison, a rounding, a cast to integers."""
    dtype = None if isinstance(node.op, Unit) else node.bound().get("dtype")
    casts = isinstance(dtype, torch.dtype) and not (dtype.is_floating_point or dtype.is_complex)
    record = lookup(node)
    return casts or (record is not None and record.effect is jump)


class Products:
    """Products with the Jacobians at the rows of a batch, and with their transposes.

    Independent samples make the Jacobian of the batch block diagonal: one product of the whole batch is one product of
    every sample with a vector of its own. Nothing is read back from the device.
    `taken` counts them: backward passes of the whole batch.
    """

    def __init__(self, function: Function, point: Tensor) -> None:
        self.taken = 0
        self.point = point.detach().requires_grad_(True)
        self.value = function(self.point)
        self.dtype = self.point.dtype
        if not self.value.requires_grad:
            raise JacobianError("the output is not differentiable in the input")

    def _took(self) -> None:
        """Count one product."""
        self.taken += 1
        count("backwards", len(self.point))

    def pull(self, rows: Tensor) -> Tensor:
        """Return one row of outputs times the Jacobian of each sample, in float64."""
        self._took()
        (product,) = torch.autograd.grad(
            self.value, self.point, rows.to(self.value), retain_graph=True, allow_unused=True
        )
        if product is None:
            raise JacobianError("no gradient reaches the input: the path leads through operators without a derivative")
        return product.detach().double()

    @cached_property
    def tangents(self) -> tuple[Tensor, Tensor]:
        """A dual of the value, and the gradient along it: it is linear in the dual, and its own gradient is J v.

        So operators need no rule for forward derivatives, but they must be differentiable twice: otherwise autograd
        raises RuntimeError or NotImplementedError.
        """
        self._took()
        dual = torch.zeros_like(self.value, requires_grad=True)
        (pulled,) = torch.autograd.grad(self.value, self.point, dual, create_graph=True, allow_unused=True)
        if pulled is None or not pulled.requires_grad:
            raise JacobianError("the output does not depend on the input through differentiable operators")
        return dual, pulled

    def push(self, rows: Tensor) -> Tensor:
        """Return the Jacobian of each sample times one row of inputs, in float64."""
        dual, pulled = self.tangents
        self._took()
        (product,) = torch.autograd.grad(pulled, dual, rows.to(self.point), retain_graph=True)
        return product.double()

    def normal(self, rows: Tensor, scale: Tensor, lift: Tensor | float = 1.0) -> Tensor:
        """Return J^T J v / scale^2 for one row v of each sample, where no square leaves the range of floats."""
        image = self.push(rows * lift) / lift
        size = norm(image, 1, keepdim=True)
        size = torch.where(size > 0, size, 1.0)
        return self.pull(image / size * lift) / lift / scale * (size / scale)

    def rows(self) -> Tensor:
        """Return the whole Jacobian of each sample by its rows, in float64: one product for each output."""
        return torch.stack([self.pull(unit.expand(self.value.shape)) for unit in torch.eye(self.value.shape[1])], dim=1)

    def columns(self) -> Tensor:
        """Return the whole Jacobian of each sample by its columns, in float64: one product for each input."""
        return torch.stack([self.push(unit.expand(self.point.shape)) for unit in torch.eye(self.point.shape[1])], dim=2)

    def lift(self, sizes: Tensor) -> Tensor:
        """Return factors `[samples, 1]` by which products of some sizes can be lifted and stay floats.

        Products are linear. What a lifted product shows beyond the plain one had vanished on the way; and as the factor
        is no power of two, roundings fall otherwise, so that terms that cancel show how much of them is rounding.
        """
        half = int(math.log2(torch.finfo(self.dtype).max)) // 2
        room = (half - torch.frexp(sizes.reshape(-1, 1)).exponent).clamp(0, min(LIFT, half))
        return torch.ldexp(torch.full_like(room, 4 / 3, dtype=torch.float64), room)
