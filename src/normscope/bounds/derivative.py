"""What is differentiated for POINT figures: the captured graph, or the model itself where there is none.

What autograd gives of a model may be something else than its derivative (custom backward passes, hooks, `detach`); the
operators of a graph have torch's own derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import CaptureError, InputError, JacobianError, RandomOperatorError
from ..core.untouched import untouched
from ..graph.call import Call, drawn, fresh, prepare, quantized, settle
from ..graph.capturing import Traces, capture
from ..graph.ir import Graph, Node, Unit
from ..rules.comparison import jumps
from .autograd_check import differentiable, located, paths, substituted

HALVES = (torch.float16, torch.bfloat16)


SATURATING = ("softmax", "_softmax", "tanh", "sigmoid")
"""Operators whose derivative subtracts their value from 1."""
FLAT = 2.0**-26
"""How close to 1 such a value may be before half of the digits of its derivative are lost."""


@dataclass(frozen=True, slots=True)
class BatchFunction:
    """A differentiable function of a batch: `samples` independent blocks of inputs, as rows.

    Attributes:
        function: of the rows.
        point: the rows.
        outputs: the entries of the function at each row.
        notes: what the reader must know.
        wide: makes the same in float64; None where there is none.
        doubted: why the derivative may not be the function's, and must be compared; None if it is.
        blame: names the modules at fault, when asked.
        saturates: says whether a unit is so flat there that float64 loses its derivative (softmax, tanh, sigmoid).
    """

    function: Callable[[Tensor], Tensor]
    point: Tensor
    outputs: int
    notes: tuple[str, ...]
    wide: Callable[[], BatchFunction] | None = None
    doubted: str | None = None
    blame: Callable[[], str] = lambda: ""
    saturates: Callable[[], bool] = lambda: False

    @property
    def samples(self) -> int:
        """How many rows there are."""
        return self.point.shape[0]


def captured(model: nn.Module, batch: Any, mode: str | None, output: str | int | None) -> Graph | None:
    """Return the graph, or None for a model that cannot be traced."""
    try:
        return capture(model, batch, mode=mode, output=output)
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
            with untouched(model, forced):
                gives = _gives(model, call, local)
            if gives:
                yield local
                break
    why = "the model cannot be traced" if graph is None else "the traced model cannot be differentiated in its stead"
    # without a graph nobody knows whether samples are independent
    alone = graph is not None and graph.per_sample
    with untouched(model, forced):
        local = _untraced(model, replace(settle(model, call, mode), per_sample=alone), why)
    yield local if graph is None else replace(local, notes=(*local.notes, *graph.notes))


def _wholes(batch: Any, graph: Graph, call: Call, traces: Traces) -> Iterator[Graph]:
    """Yield graphs of all samples of a batch: one that is there, and one captured for it."""
    if not graph.per_sample:
        yield graph
        return
    for held in graph.batched:
        if held.output_shape[0] == call.count and _of(held, call):
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
    sizes = [tensor.numel() // samples for tensor in tensors]

    def function(rows: Tensor) -> Tensor:
        parts = [part.reshape(t.shape) for part, t in zip(rows.split(sizes, dim=1), tensors, strict=True)]
        return fresh(model, substituted(call, parts)).reshape(samples, -1)

    def blame() -> str:
        return ", ".join(paths(located(model, call))) or "the model"

    point = torch.cat([tensor.detach().reshape(samples, -1) for tensor in tensors], dim=1)
    with torch.no_grad():
        outputs = function(point).shape[1]
    return BatchFunction(function, point, outputs, call.notes, None, why, blame)


def _replayed(whole: Graph, graph: Graph, samples: int, notes: tuple[str, ...]) -> BatchFunction:
    """The graph of all samples as a function of rows, and what the operators of a graph say about its derivative."""
    notes = (*notes, *whole.notes)
    jumping = dict.fromkeys(f"{node.operator} in `{node.path or 'the model'}`" for node in graph if _jumps(node))
    if jumping:
        seen = f"the function can jump ({', '.join(list(jumping)[:4])})"
        notes = (*notes, f"{seen}: its derivative says nothing about inputs beside a jump")
    foreign = dict.fromkeys(f"{node.op} in `{node.path or 'the model'}`" for node in graph if _foreign(node))
    blame = ", ".join(foreign)
    if any(item.value.dtype in HALVES for item in whole.inputs):  # its own precision would drown the derivatives
        whole, notes = whole.double(), (*notes, "half precision, measured in float64")
    local = _as_rows(differentiable(whole), samples, notes)
    if foreign:  # nobody knows whether it takes float64
        return replace(local, wide=None, doubted=f"{blame} has a backward of its own", blame=lambda: blame)
    return local


def _as_rows(graph: Graph, samples: int, notes: tuple[str, ...]) -> BatchFunction:
    sizes = [item.value.numel() // samples for item in graph.inputs]
    rows = torch.cat([item.value.detach().reshape(samples, -1) for item in graph.inputs], dim=1)

    def function(points: Tensor) -> Tensor:
        parts = points.split(sizes, dim=1)
        given = [part.reshape(item.shape) for part, item in zip(parts, graph.inputs, strict=True)]
        return graph.run(*given).reshape(samples, -1)

    outputs = math.prod(graph.output_shape) // samples
    narrow = any(item.value.dtype != torch.float64 for item in graph.inputs) or any(
        node.dtype in (torch.float32, torch.complex64, *HALVES) for node in graph
    )
    wide = (lambda: _as_rows(graph.double(), samples, notes)) if narrow else None
    return BatchFunction(function, rows, outputs, notes, wide, saturates=lambda: _saturates(graph))


@torch.no_grad()
def _saturates(graph: Graph) -> bool:
    """Whether a unit lies so close to its limit that what its derivative subtracts from 1 is lost; attention may."""
    values = graph.values(*(item.value for item in graph.inputs))
    flat = [values[node.name].abs() for node in graph if node.operator in SATURATING]
    return any("attention" in node.operator for node in graph) or any(bool((v > 1 - FLAT).any()) for v in flat)


def _of(graph: Graph, call: Call) -> bool:
    """Whether a graph was captured at the tensors of a call: its float inputs, masks and ids."""
    tensors = [tensor for _, tensor in call.variables]
    inputs = not tensors or all(any(torch.equal(item.value, tensor) for tensor in tensors) for item in graph.inputs)
    return inputs and all(torch.equal(argument.value, call.leaves[argument.place]) for argument in graph.held)


def _gives(model: nn.Module, call: Call, local: BatchFunction) -> bool:
    """Whether a graph gives what the model gives, up to rounding: at the batch, and at random inputs if it can."""
    tensors = [tensor for _, tensor in call.variables]
    trials = [(call, local.point)]
    width = sum(tensor.numel() for tensor in tensors)
    if width == local.point.numel():  # else the output does not read some of them, or the graph starts at tokens
        trial = drawn(call, 1.0)
        parts = [tensor.detach().reshape(local.samples, -1) for _, tensor in trial.variables]
        trials.append((trial, torch.cat(parts, dim=1)))
    for trial, rows in trials:
        with torch.no_grad():
            try:
                expected = fresh(model, trial).reshape(local.samples, -1)
            except InputError:
                if trial is call:
                    raise
                continue  # the model takes no random input
            if not _agree(local.function(rows.to(local.point)), expected):
                return False
    return True


def _agree(value: Tensor, expected: Tensor) -> bool:
    if value.shape != expected.shape:
        return False
    wide = 1e-1 if expected.dtype in HALVES else 1e-3
    scale = max(float(expected.abs().nan_to_num().max()), 1e-30)
    return torch.allclose(value, expected.to(value), rtol=wide, atol=wide * scale, equal_nan=True)


def _jumps(node: Node) -> bool:
    """Whether an operator is not continuous: a comparison, a rounding, a cast to integers."""
    dtype = None if isinstance(node.op, Unit) else node.bound().get("dtype")
    casts = isinstance(dtype, torch.dtype) and not (dtype.is_floating_point or dtype.is_complex)
    return casts or jumps(node)


def _foreign(node: Node) -> bool:
    """Whether an operator's backward need not be its derivative: not torch's own, or a hidden quantisation."""
    own = getattr(node.op, "namespace", "aten") in ("aten", "prims")
    return not own or "fake_quant" in node.operator or "_fq_helper" in node.operator
