"""POINT figures: the norm of the Jacobian at each given input, for every differentiable model, rule or no rule.

What is differentiated is the captured graph: what autograd gives of the model itself may be something else (custom
backward passes, hooks, `detach`). Without a graph it is autograd's, compared with differences of the model's values.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map

from ..core.bracket import Bracket, Evidence, Scope
from ..core.budget import Budget
from ..core.errors import JacobianError, said
from ..core.log10 import log10
from ..core.untouched import mode_of, outside_inference_mode, untouched
from ..graph.ir import Graph
from ..linalg.lanczos import lanczos
from .backward import MOVED, disagrees, reach_of
from .derivative import Local, candidates, captured

FEW_OUTPUTS = 32
"""Up to this many outputs per sample the whole Jacobian is taken, row by row, and its norm is exact."""
DIRECTIONS = 2
"""Random directions along which an unproven derivative is compared, beside the one with the largest gain."""


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
    budget: Budget | None = None,
) -> Bracket:
    """Return the Jacobian norm at each sample of a batch, by Lanczos on products with the Jacobian and its transpose.

    In eval mode with independent samples there is one figure per sample (`per_sample`), and the bracket spans the
    largest; otherwise the batch is one input. The derivative is that of the captured graph. With few outputs the
    Jacobian is exact and the evidence NUMERICAL; otherwise the upper side is the Lanczos value plus its residual,
    SAMPLED. `graph` is the captured graph if there is one already.

    A model that cannot be traced is differentiated by autograd, and its products with the Jacobian are compared with
    central differences: the evidence is SAMPLED at best.

    Raises:
        JacobianError: there is no derivative, or what autograd gives is not the derivative of the model.
    """
    forced, mode = mode, mode_of(model, mode)
    graph = graph or captured(model, batch, forced, output)
    with untouched(model, forced), sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
        for local in candidates(model, batch, mode, forced, output, graph):
            try:
                brackets, notes = _measured(local, mode, rtol, steps, seed)
            except (RuntimeError, NotImplementedError) as error:  # an operator that autograd cannot differentiate
                unfit = error
                continue
            break
        else:
            raise JacobianError(f"this model cannot be differentiated: {said(unfit)}") from unfit
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
        notes=tuple(dict.fromkeys((*notes, *(() if graph is None else graph.notes)))),
    )


def first_samples(batch: Any, samples: int) -> Any:
    """Return the first samples of a batch whose tensors agree on how many there are; the batch itself otherwise."""
    sizes = {v.shape[0] if v.ndim else 0 for v in tree_leaves(batch) if isinstance(v, Tensor)}
    if len(sizes) != 1 or max(sizes) <= samples:
        return batch
    return tree_map(lambda v: v[:samples] if isinstance(v, Tensor) else v, batch)


def _measured(local: Local, mode: str, rtol: float, steps: int, seed: int) -> tuple[list[Bracket], tuple[str, ...]]:
    """Return one bracket per sample, and what the reader must know."""
    value = local.function(local.point)
    outputs = value.numel() // local.samples
    if outputs <= FEW_OUTPUTS:
        brackets = _exact(local, outputs, mode)
    else:
        brackets = _iterated(local, mode, rtol, min(steps, outputs, local.point.shape[1]), seed)
    if local.doubted is None:
        return brackets, local.notes
    blurred = _compare(local, torch.stack([bracket.witness.reshape(-1) for bracket in brackets]), seed)
    note = f"{local.doubted}: autograd's derivative, compared with differences along {DIRECTIONS + 1} directions"
    if blurred:
        note += f" (at {blurred} of {local.samples} samples rounding or bends hide what a difference would tell)"
    return [replace(bracket, evidence=Evidence.SAMPLED) for bracket in brackets], (*local.notes, note)


def _compare(local: Local, largest: Tensor, seed: int) -> int:
    """Compare products with the Jacobian, along the directions of the largest gains and others, with differences.

    A disagreement on a bend of the function is none: the input is moved a little before it counts. Returns the number
    of samples where a difference tells nothing.

    Raises:
        JacobianError: the two disagree.
    """
    generator = torch.Generator().manual_seed(seed)
    point = local.point.detach()

    def drawn() -> Tensor:
        rows = torch.randn(point.shape, dtype=torch.float64, generator=generator).to(point)
        return rows / rows.norm(dim=1, keepdim=True)

    moved = point + MOVED * reach_of(point).to(point) * drawn()
    blurred = torch.zeros(local.samples, dtype=torch.bool, device=point.device)
    for direction in (largest.to(point), *(drawn() for _ in range(DIRECTIONS))):
        off, hidden = disagrees(local.function, point, direction, _product(local, point, direction))
        blurred = blurred | hidden
        if bool(off.any()):
            off = off & disagrees(local.function, moved, direction, _product(local, moved, direction))[0]
        if bool(off.any()):
            raise JacobianError(
                f"what autograd gives is not the derivative: along a direction in which it was compared with a "
                f"difference of values the two disagree, because of {local.blame()}. A custom backward, a hook or a "
                "value taken out of the tensors (.item(), .numpy()) can do this. Mend it, or make the model one that "
                "torch.export can trace: then the traced operators are differentiated."
            )
    return int(blurred.sum())


def _product(local: Local, point: Tensor, direction: Tensor) -> Tensor:
    """Return the Jacobian times one direction per sample."""
    x = point.detach().requires_grad_(True)
    value = local.function(x)
    outputs = value.shape[1]
    if outputs <= FEW_OUTPUTS:
        return torch.einsum("smn,sn->sm", _jacobian(value, x, outputs)[0], direction.double())
    dual = torch.zeros_like(value, requires_grad=True)
    (pulled,) = torch.autograd.grad(value, x, dual, create_graph=True)
    return torch.autograd.grad(pulled, dual, direction)[0] if pulled.requires_grad else torch.zeros_like(value)


def _jacobian(value: Tensor, x: Tensor, outputs: int) -> tuple[Tensor, bool]:
    """Return every row of the Jacobian in float64, and whether any gradient reached the input."""
    rows, reached = [], False
    for index in range(outputs):
        (grad,) = torch.autograd.grad(value[:, index].sum(), x, retain_graph=index + 1 < outputs, allow_unused=True)
        reached = reached or grad is not None
        rows.append(torch.zeros_like(x) if grad is None else grad.detach())
    return torch.stack(rows, dim=1).double(), reached


def _exact(local: Local, outputs: int, mode: str) -> list[Bracket]:
    """Take every row of the Jacobian; the norm of a few rows is exact up to rounding."""
    x = local.point.detach().requires_grad_(True)
    value = local.function(x)
    if not value.requires_grad:
        raise JacobianError("the output is not differentiable in the input")
    jacobian, reached = _jacobian(value, x, outputs)
    if not reached:
        raise JacobianError("no gradient reaches the input: the path leads through operators without a derivative")
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
