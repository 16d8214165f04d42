"""POINT figures: the norm of the Jacobian at each given input, for every differentiable model, rule or no rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map

from ..core.bracket import Bracket, Evidence, Scope
from ..core.errors import CaptureError, InputError, JacobianError, RandomOperatorError
from ..core.log10 import log10
from ..core.untouched import mode_of, outside_inference_mode, untouched
from ..graph.call import Call, fresh, prepare, settle
from ..graph.export import capture
from ..graph.ir import Graph
from ..linalg.lanczos import lanczos

FEW_OUTPUTS = 32
"""Up to this many outputs per sample the whole Jacobian is taken, row by row, and its norm is exact."""


@dataclass(frozen=True, slots=True)
class Local:
    """A differentiable function of a batch: `samples` independent blocks of inputs, as rows."""

    function: Callable[[Tensor], Tensor]
    point: Tensor
    samples: int
    notes: tuple[str, ...]


@outside_inference_mode
def jacobian_norms(
    model: nn.Module,
    batch: Any,
    *,
    mode: str | None = None,
    output: str | int | None = None,
    rtol: float = 1e-3,
    steps: int = 60,
    seed: int = 0,
    graph: Graph | None = None,
) -> Bracket:
    """Return the Jacobian norm at each sample of a batch, by Lanczos on products with the Jacobian and its transpose.

    In eval mode with independent samples there is one figure per sample (`per_sample`), and the bracket spans the
    largest; otherwise the batch is one input. With few outputs the Jacobian is exact and the evidence NUMERICAL;
    otherwise the upper side is the Lanczos value plus its residual, SAMPLED. `graph` is the captured graph if there is
    one already.

    Raises:
        JacobianError: a `detach` or `no_grad` block lies on the path: autograd does not see the whole function there.
    """
    forced, mode = mode, mode_of(model, mode)
    graph = graph or _captured(model, batch, forced, output)
    if graph is not None and graph.detached:
        raise JacobianError(
            f"gradients are cut on the path ({'; '.join(graph.detached)}): the Jacobian that autograd sees is not the "
            "function's. Remove the detach or no_grad for the measurement; GLOBAL bounds still work."
        )
    with untouched(model, forced), sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
        local = _local(model, batch, mode, output, graph)
        value = local.function(local.point)
        outputs = value.numel() // local.samples
        try:
            if outputs <= FEW_OUTPUTS:
                brackets = _exact(local, outputs, mode)
            else:
                brackets = _iterated(local, mode, rtol, min(steps, outputs, local.point.shape[1]), seed)
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            raise JacobianError(
                "autograd cannot differentiate the model: it writes over values that it read"
            ) from error
    top = max(brackets, key=lambda b: b.log10_upper)
    return Bracket(
        log10_lower=max(b.log10_lower for b in brackets),
        log10_upper=top.log10_upper,
        evidence=min(b.evidence for b in brackets),
        method=top.method,
        scope=Scope.POINT,
        mode=mode,
        witness=max(brackets, key=lambda b: b.log10_lower).witness,
        converged=all(b.converged for b in brackets),
        advice=next((b.advice for b in brackets if b.advice), None),
        input_shape=brackets[0].input_shape,
        per_sample=tuple(brackets),
        notes=tuple(dict.fromkeys((*local.notes, *(() if graph is None else graph.notes)))),
    )


def first_samples(batch: Any, samples: int) -> Any:
    """Return the first samples of a batch whose tensors agree on how many there are; the batch itself otherwise."""
    sizes = {v.shape[0] if v.ndim else 0 for v in tree_leaves(batch) if isinstance(v, Tensor)}
    if len(sizes) != 1 or max(sizes) <= samples:
        return batch
    return tree_map(lambda v: v[:samples] if isinstance(v, Tensor) else v, batch)


def _captured(model: nn.Module, batch: Any, mode: str | None, output: str | int | None) -> Graph | None:
    """Return the graph, or None for a model that cannot be traced."""
    try:
        return capture(model, batch, mode=mode, output=output)
    except RandomOperatorError:
        raise
    except CaptureError:
        return None


def _local(model: nn.Module, batch: Any, mode: str, output: str | int | None, graph: Graph | None) -> Local:
    """The model as a function of its float inputs; token models start at their embeddings, through the graph."""
    call = prepare(model, batch, output)
    if graph is None:
        settle(model, call, mode)
    if not call.variables:
        if graph is not None and graph.inputs[0].value.dtype in (torch.float16, torch.bfloat16):
            return _widened(graph)
        if graph is None:
            raise InputError("a model of token ids is measured from its embeddings, which needs a traceable model")
        notes = ("measured at the first sample, from the token embeddings",) if graph.per_sample else ()

        def replay(rows: Tensor) -> Tensor:
            return graph.run(*graph.split(rows[0])).reshape(1, -1)

        return Local(replay, graph.flat()[None], 1, notes)
    if graph is not None and call.variables[0][1].dtype in (torch.float16, torch.bfloat16):
        return _widened(graph)
    tensors = [tensor for _, tensor in call.variables]
    samples = call.count if graph is not None and graph.per_sample else 1  # without a graph nobody knows
    sizes = [tensor.numel() // samples for tensor in tensors]

    def function(rows: Tensor) -> Tensor:
        parts = [part.reshape(t.shape) for part, t in zip(rows.split(sizes, dim=1), tensors, strict=True)]
        return fresh(model, _substitute(call, tensors, parts)).reshape(samples, -1)

    point = torch.cat([tensor.detach().reshape(samples, -1) for tensor in tensors], dim=1)
    return Local(function, point, samples, call.notes)


def _widened(graph: Graph) -> Local:
    """A half-precision model as the same function in float64: its own precision would drown the derivatives."""
    double = graph.double()
    rows = graph.samples if graph.samples is not None else graph.flat()[None]

    def replay(points: Tensor) -> Tensor:
        return torch.stack([double.run(*double.split(point)).reshape(-1) for point in points])

    return Local(replay, rows.double(), rows.shape[0], ("half precision, measured in float64",))


def _substitute(call: Call, tensors: list[Tensor], parts: list[Tensor]) -> Call:
    replaced = {id(old): new for old, new in zip(tensors, parts, strict=True)}
    args, kwargs = tree_map(lambda leaf: replaced.get(id(leaf), leaf), (call.args, call.kwargs))
    return Call(args=args, kwargs=kwargs, output=call.output)


def _exact(local: Local, outputs: int, mode: str) -> list[Bracket]:
    """Take every row of the Jacobian; the norm of a few rows is exact up to rounding."""
    x = local.point.detach().requires_grad_(True)
    value = local.function(x)
    if not value.requires_grad:
        raise JacobianError("the output is not differentiable in the input")
    rows, reached = [], False
    for index in range(outputs):
        (grad,) = torch.autograd.grad(value[:, index].sum(), x, retain_graph=index + 1 < outputs, allow_unused=True)
        reached = reached or grad is not None
        rows.append(torch.zeros_like(x) if grad is None else grad.detach())
    if not reached:
        raise JacobianError("no gradient reaches the input: the path leads through operators without a derivative")
    jacobian = torch.stack(rows, dim=1).double()
    if not bool(torch.isfinite(jacobian).all()):
        raise JacobianError("the Jacobian holds NaN or infinite values at this input")
    _, values, right = torch.linalg.svd(jacobian, full_matrices=False)
    return [
        _sample(
            float(values[i, 0]),
            float(values[i, 0]),
            right[i, 0],
            Evidence.NUMERICAL,
            "Jacobian, all rows",
            mode,
            local,
            True,
        )
        for i in range(local.samples)
    ]


def _iterated(local: Local, mode: str, rtol: float, steps: int, seed: int) -> list[Bracket]:
    """Lanczos on J^T J, all samples at once: independent samples make the Jacobian block diagonal."""
    x = local.point.detach().requires_grad_(True)
    value = local.function(x)
    if not value.requires_grad:
        raise JacobianError("the output is not differentiable in the input")
    dual = torch.zeros_like(value, requires_grad=True)
    (pulled,) = torch.autograd.grad(value, x, dual, create_graph=True)

    def normal(vectors: Tensor) -> Tensor:
        v = vectors.to(x.dtype)
        if not pulled.requires_grad:
            raise JacobianError("the output does not depend on the input through differentiable operators")
        (pushed,) = torch.autograd.grad(pulled, dual, v, retain_graph=True)
        (back,) = torch.autograd.grad(value, x, pushed, retain_graph=True)
        return back.double()

    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(local.point.shape, dtype=torch.float64, generator=generator).to(x.device)
    if not bool(torch.isfinite(normal(start)).all()):
        raise JacobianError("the Jacobian holds NaN or infinite values at this input")
    values, vectors, errors = lanczos(normal, start, steps=steps, rtol=rtol)
    brackets = []
    for i in range(local.samples):
        with_v = float(values[i].clamp(min=0).sqrt())
        margin = math.sqrt(1 + float(errors[i]))
        settled = float(errors[i]) <= 2 * rtol
        brackets.append(
            _sample(
                with_v, with_v * margin, vectors[i], Evidence.SAMPLED, "Lanczos on the Jacobian", mode, local, settled
            )
        )
    return brackets


def _sample(
    low: float, high: float, vector: Tensor, evidence: Evidence, method: str, mode: str, local: Local, settled: bool
) -> Bracket:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise JacobianError("the Jacobian holds NaN or infinite values at this input")
    return Bracket(
        log10_lower=log10(low),
        log10_upper=log10(high),
        evidence=evidence,
        method=method,
        scope=Scope.POINT,
        mode=mode,
        witness=vector,
        converged=settled,
        advice=None if settled else "raise rtol, or pass fewer samples",
        input_shape=(local.point.shape[1],),
    )
