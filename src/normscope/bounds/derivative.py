"""What is differentiated for POINT figures, and products with its Jacobians: the captured graph, or the model itself.

What autograd gives of a model may be something else than its derivative (custom backward passes, hooks, `detach`); the
operators of a graph have torch's own derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.cost import count
from ..core.errors import CaptureError, InputError, JacobianError, RandomOperatorError
from ..core.log10 import norm
from ..core.untouched import untouched
from ..graph.call import Call, drawn, fresh, prepare, quantized, settle
from ..graph.capturing import Traces, capture
from ..graph.ir import Graph, Node, Unit
from ..rules.comparison import jumps
from .autograd_check import differentiable, located, substituted

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
        return fresh(model, substituted(call, _split_rows(rows, tensors))).reshape(samples, -1)

    def blame() -> str:
        places = (f"`{fault.path}`" if fault.path else "the model's own code" for fault in located(model, call))
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


def _gives(model: nn.Module, call: Call, local: BatchFunction) -> bool:
    """Whether a graph gives what the model gives, up to rounding: at the batch, and at random inputs if it can."""
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
            value = local.function(rows.to(local.point))
        rtol = 1e-1 if expected.dtype in HALVES else 1e-3
        atol = rtol * max(float(expected.abs().nan_to_num().max()), 1e-30)
        alike = value.shape == expected.shape
        if not (alike and torch.allclose(value, expected.to(value), rtol=rtol, atol=atol, equal_nan=True)):
            return False
    return True


def _foreign(node: Node) -> bool:
    """Whether an operator's backward need not be its derivative: not torch's own, or a hidden quantisation."""
    own = getattr(node.op, "namespace", "aten") in ("aten", "prims")
    return not own or "fake_quant" in node.operator or "_fq_helper" in node.operator


def _jumps(node: Node) -> bool:
    """Whether an operator is not continuous: a comparison, a rounding, a cast to integers."""
    dtype = None if isinstance(node.op, Unit) else node.bound().get("dtype")
    casts = isinstance(dtype, torch.dtype) and not (dtype.is_floating_point or dtype.is_complex)
    return casts or jumps(node)


class Tangents:
    """Products of a Jacobian with rows of inputs, by two backward passes.

    The gradient along a dual is linear in the dual, and its own gradient is the product: operators need no rule for
    forward derivatives, but they must be differentiable twice.
    Otherwise autograd raises RuntimeError or NotImplementedError. `reaches` is whether the value depends on the point.
    """

    def __init__(self, value: Tensor, point: Tensor) -> None:
        self._dual = torch.zeros_like(value, requires_grad=True)
        (pulled,) = torch.autograd.grad(value, point, self._dual, create_graph=True, allow_unused=True)
        self._pulled: Tensor | None = pulled
        self.reaches = pulled is not None and pulled.requires_grad

    def __call__(self, rows: Tensor, *, again: bool = False) -> Tensor:
        """Return the Jacobian times one row of inputs; `again` makes it differentiable in its turn."""
        assert self._pulled is not None, "the value does not depend on the point"
        (product,) = torch.autograd.grad(self._pulled, self._dual, rows, retain_graph=True, create_graph=again)
        return product


class Products:
    """Products with the Jacobians at the rows of a batch, and with their transposes.

    Independent samples make the Jacobian of the batch block diagonal: one product of the whole batch is one product of
    every sample with a vector of its own. Nothing is read back from the device.
    `taken` counts them: backward passes of the whole batch.
    """

    def __init__(self, local: BatchFunction) -> None:
        self.taken = 0
        self.point = local.point.detach().requires_grad_(True)
        self.value = local.function(self.point)
        self.dtype = self.point.dtype
        self._tangents: Tangents | None = None
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

    def push(self, rows: Tensor) -> Tensor:
        """Return the Jacobian of each sample times one row of inputs, in float64."""
        if self._tangents is None:
            self._took()
            self._tangents = Tangents(self.value, self.point)
        if not self._tangents.reaches:
            raise JacobianError("the output does not depend on the input through differentiable operators")
        self._took()
        return self._tangents(rows.to(self.point)).detach().double()

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
