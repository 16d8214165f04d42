"""What is differentiated for POINT figures: the captured graph, or the model itself where there is none.

What autograd gives of a model may be something else than its derivative (custom backward passes, hooks, `detach`); the
operators of a graph have torch's own derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..core.errors import CaptureError, InputError, RandomOperatorError
from ..graph.call import Call, fresh, prepare, settle
from ..graph.export import capture, capture_whole
from ..graph.ir import Graph, Node
from ..rules.arithmetic import JUMPING
from .backward import differentiable, located, paths, substituted

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
ONE_BY_ONE = 16
"""Up to this many samples a graph of one is run on each; for more the whole batch is captured, which takes a while.
Not `torch.vmap`: it gives wrong gradients of some operators (`select_scatter` in torch 2.13)."""


@dataclass(frozen=True, slots=True)
class Local:
    """A differentiable function of a batch: `samples` independent blocks of inputs, as rows.

    Attributes:
        function: of the rows.
        point: the rows.
        samples: how many.
        notes: what the reader must know.
        doubted: why the derivative may not be the function's, and must be compared; None if it is.
        blame: names the modules at fault, when asked.
    """

    function: Callable[[Tensor], Tensor]
    point: Tensor
    samples: int
    notes: tuple[str, ...]
    doubted: str | None = None
    blame: Callable[[], str] = lambda: ""


def captured(model: nn.Module, batch: Any, mode: str | None, output: str | int | None) -> Graph | None:
    """Return the graph, or None for a model that cannot be traced."""
    try:
        return capture(model, batch, mode=mode, output=output)
    except RandomOperatorError:
        raise
    except CaptureError:
        return None


def candidates(
    model: nn.Module, batch: Any, mode: str, forced: str | None, output: str | int | None, graph: Graph | None
) -> Iterator[Local]:
    """Yield what to differentiate, the best first: the captured graph, the graph of the whole batch, the model itself.

    A graph counts if it gives at the batch what the model gives. A graph of one sample holds the masks and other
    constant inputs of the first: where there are any, and for many samples, the whole batch is captured.
    """
    call = prepare(model, batch, output)
    if graph is not None and not call.variables:
        notes = ("measured at the first sample, from the token embeddings",) if graph.per_sample else ()
        yield _replayed(graph, 1, notes)
        return
    if graph is not None:
        samples = call.variables[0][1].shape[0] if graph.per_sample else 1
        with torch.no_grad():
            expected = fresh(model, call).reshape(samples, -1)
        tensors = [leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, Tensor)]
        if samples == 1 or (samples <= ONE_BY_ONE and len(tensors) == len(call.variables)):
            local = _replayed(graph, samples, call.notes)
            if _gives(local, expected):
                yield local
        if samples > 1:
            with suppress(CaptureError):
                local = _replayed(capture_whole(model, batch, mode=forced, output=output), samples, call.notes)
                if _gives(local, expected):
                    yield local
    why = "the model cannot be traced" if graph is None else "the traced model cannot be differentiated in its stead"
    # without a graph nobody knows whether samples are independent
    alone = graph is not None and graph.per_sample
    yield _untraced(model, replace(settle(model, call, mode), per_sample=alone), why)


def _untraced(model: nn.Module, call: Call, why: str) -> Local:
    """The model itself, differentiated by autograd."""
    if not call.variables:
        raise InputError("a model of token ids is measured from its embeddings, which needs a traceable model")
    tensors = [tensor for _, tensor in call.variables]
    samples = tensors[0].shape[0] if call.per_sample else 1
    sizes = [tensor.numel() // samples for tensor in tensors]

    def function(rows: Tensor) -> Tensor:
        parts = [part.reshape(t.shape) for part, t in zip(rows.split(sizes, dim=1), tensors, strict=True)]
        return fresh(model, substituted(call, parts)).reshape(samples, -1)

    def blame() -> str:
        return ", ".join(paths(located(model, call))) or "the model"

    point = torch.cat([tensor.detach().reshape(samples, -1) for tensor in tensors], dim=1)
    return Local(function, point, samples, call.notes, why, blame)


def _replayed(graph: Graph, samples: int, notes: tuple[str, ...]) -> Local:
    """A graph, of one sample or of all, as a function of rows, and what its operators say about its derivative."""
    jumping = dict.fromkeys(f"{node.operator} in `{node.path or 'the model'}`" for node in graph if _jumps(node))
    if jumping:
        seen = f"the function can jump ({', '.join(list(jumping)[:4])})"
        notes = (*notes, f"{seen}: its derivative says nothing about inputs beside a jump")
    foreign = dict.fromkeys(f"{node.op} in `{node.path or 'the model'}`" for node in graph if _foreign(node))
    blame = ", ".join(foreign)
    if any(item.value.dtype in HALVES for item in graph.inputs):  # its own precision would drown the derivatives
        graph, notes = graph.double(), (*notes, "half precision, measured in float64")
    graph = differentiable(graph)
    if graph.per_sample and samples > 1 and graph.samples is not None:
        rows = graph.samples[:samples].to(graph.inputs[0].value.dtype)

        def function(points: Tensor) -> Tensor:
            return torch.stack([graph.run(*graph.split(point)).reshape(-1) for point in points])
    else:
        sizes = [item.value.numel() // samples for item in graph.inputs]
        rows = torch.cat([item.value.detach().reshape(samples, -1) for item in graph.inputs], dim=1)

        def function(points: Tensor) -> Tensor:
            parts = points.split(sizes, dim=1)
            given = [part.reshape(item.shape) for part, item in zip(parts, graph.inputs, strict=True)]
            return graph.run(*given).reshape(samples, -1)

    return Local(
        function, rows, samples, notes, f"{blame} has a backward of its own" if foreign else None, lambda: blame
    )


def _gives(local: Local, expected: Tensor) -> bool:
    """Whether a graph gives at the batch what the model gives, up to rounding."""
    with torch.no_grad():
        value = local.function(local.point)
    if value.shape != expected.shape:
        return False
    wide = 1e-1 if expected.dtype in HALVES else 1e-3
    return torch.allclose(value, expected.to(value), rtol=wide, atol=wide * max(float(expected.abs().max()), 1e-30))


def _jumps(node: Node) -> bool:
    """Whether an operator is not continuous: a comparison, a rounding, a cast to integers."""
    cast = node.op in (aten._to_copy.default, aten.to.dtype) and not node.dtype.is_floating_point
    return cast or node.op in JUMPING


def _foreign(node: Node) -> bool:
    """Whether an operator's backward need not be its derivative: not torch's own, or a hidden quantisation."""
    own = getattr(node.op, "namespace", "aten") in ("aten", "prims")
    return not own or "fake_quant" in str(node.op)
