"""POINT figures: the norm of the Jacobian at each given input, for every differentiable model, rule or no rule.

What is differentiated is the captured graph: what autograd gives of the model itself may be something else (custom
backward passes, hooks, `detach`). Without a graph it is autograd's, compared with differences of the model's values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..core.bracket import Bracket, Evidence, Scope
from ..core.budget import Budget
from ..core.errors import JacobianError, describe_error
from ..core.log10 import log10, norm
from ..core.threads import math_attention
from ..core.untouched import mode_of, outside_inference_mode, untouched
from ..products.lanczos import lanczos
from .derivative import DIRECTIONS, BatchFunction, Products, candidates, captured, compare, find_bends, reach_of
from .graph.capturing import Traces
from .graph.ir import Graph

FEW = 32
"""With up to this many outputs (or inputs) a sample the whole Jacobian is taken, and its norm is exact up to rounding.
Lanczos would take about as many products."""
SEARCHED = 0.6
"""Of the time that is left, where it is limited: what Lanczos may take; then its direction is confirmed."""
LANCZOS = "the search for the largest gain of a Jacobian"
"""How messages name this search."""
MAX_LANCZOS_STEPS = 60
"""Lanczos takes at most this many steps, each of two products."""
STEP_PASSES = 5
"""How many passes one step takes: forward, and backward twice."""
ROUNDED = 2.0**-40
"""What rounding in float64 is allowed for in a Jacobian norm, relative to it."""
ROUNDINGS = 256.0
"""The same in units of the precision, for models that have no float64 copy."""
INFINITE = "the Jacobian holds NaN or infinite values at this input"
VANISHED = (
    "slopes vanish, overflow or cancel between the input and the output at this input, beyond what floats can tell: "
    "the Jacobian that is left is not the model's. Scale the weights so that no layer is that small or that large."
)
HIDDEN = 1e-2
"""How likely an error of products in the model's own precision is to hide from the one product that is compared."""
LOST = 2.0**-36
"""How small a change of the output by the whole input may be, relative to it, where a unit saturates."""
BESIDE = 1e-5
"""How far, relative to the size of the input, a sample that stands on a bend is moved beside it."""
NOISES = 8.0
"""By how much of the difference of two products, rounded in different ways, a norm is widened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JacobianNorms:
    """Jacobian norms at the samples of a batch, as tensors `[samples]` in float64 on the CPU."""

    lower: Tensor
    upper: Tensor
    settled: Tensor  # which of them closed to the asked tolerance
    directions: Tensor  # the unit rows of inputs that attain the lower sides
    evidence: Evidence  # of the upper sides, as the method
    method: str
    products: int  # with the Jacobians of the whole batch
    notes: tuple[str, ...]
    values: Tensor  # the norm of the output at each sample
    bends: Tensor  # at which samples differences of values disagree with the derivative, on one side or both


@outside_inference_mode
def jacobian_norms(
    model: nn.Module,
    batch: Any,
    *,
    mode: str | None = None,
    output: str | int | None = None,
    rtol: float = 1e-3,
    steps: int = MAX_LANCZOS_STEPS,
    seed: int = 0,
    graph: Graph | None = None,
    budget: Budget | None = None,
) -> Bracket:
    """Return the Jacobian norm at each sample of a batch, from products with the Jacobians of all samples at once.

    In eval mode with independent samples there is one figure per sample (`per_sample`), and the bracket spans the
    largest; otherwise the batch is one input. The derivative is that of the captured graph. `products` counts the
    passes of the whole batch that were taken. `graph` is the captured graph if there is one already. Lanczos stops once
    the budget is over; in small networks it comes before the clock if the budget is one of closed forms.

    With few outputs or inputs a sample the Jacobian is taken whole, in float64, and the evidence is NUMERICAL.
    Otherwise Lanczos runs in the model's own precision. The lower side is the gain along the direction it found, in
    float64. The upper side holds unless the random start has very little of the direction wanted, which happens with
    probability `MISSED` (0.001): SAMPLED. Where the products disagree with float64, all is done again in float64.

    A model that cannot be traced is differentiated by autograd, and its products with the Jacobian are compared with
    central differences: the evidence is SAMPLED at best.

    Raises:
        JacobianError: there is no derivative, or what autograd gives is not the derivative of the model, or values on
            the way vanish or overflow in float64.
    """
    norms = batch_norms(
        model, batch, mode=mode, output=output, rtol=rtol, steps=steps, seed=seed, graph=graph, budget=budget
    )
    brackets = [
        Bracket(
            log10_lower=log10(low),
            log10_upper=log10(high),
            evidence=norms.evidence,
            method=norms.method,
            scope=Scope.POINT,
            mode=mode_of(model, mode),
            witness=direction,
            converged=settled,
            advice=None if settled else "raise rtol, or pass fewer samples",
            input_shape=(norms.directions.shape[1],),
        )
        for low, high, settled, direction in zip(
            norms.lower.tolist(), norms.upper.tolist(), norms.settled.tolist(), norms.directions, strict=True
        )
    ]
    top = max(brackets, key=lambda b: b.log10_lower)
    return replace(
        top,
        log10_upper=max(b.log10_upper for b in brackets),
        converged=all(b.converged for b in brackets),
        advice=next((b.advice for b in brackets if b.advice), None),
        per_sample=tuple(brackets),
        notes=norms.notes,
        products=norms.products,
    )


def batch_norms(
    model: nn.Module,
    batch: Any,
    *,
    mode: str | None,
    output: str | int | None,
    rtol: float,
    steps: int = MAX_LANCZOS_STEPS,
    seed: int = 0,
    graph: Graph | None = None,
    traces: Traces | None = None,
    budget: Budget | None = None,
) -> JacobianNorms:
    """Return the Jacobian norms at the samples of a batch as tensors: what `jacobian_norms` makes brackets of."""
    forced, mode = mode, mode_of(model, mode)
    graph = graph or captured(model, batch, forced, output)
    search = (budget or Budget()).share(SEARCHED).search(LANCZOS)
    with math_attention(), torch.enable_grad():
        for local in candidates(model, batch, mode, forced, output, graph, traces):
            try:
                with nullcontext() if local.doubted is None else untouched(model, forced):  # a graph writes nothing
                    return _norms_at(local, rtol, steps, seed, search)
            except (RuntimeError, NotImplementedError) as error:  # an operator that autograd cannot differentiate
                unfit = error
    raise JacobianError(f"this model cannot be differentiated: {describe_error(unfit)}") from unfit


def first_samples(batch: Any, samples: int) -> Any:
    """Return the first samples of a batch whose tensors agree on how many there are; the batch itself otherwise."""
    sizes = {v.shape[0] if v.ndim else 0 for v in tree_leaves(batch) if isinstance(v, Tensor)}
    if len(sizes) != 1 or max(sizes) <= samples:
        return batch
    return tree_map(lambda v: v[:samples] if isinstance(v, Tensor) else v, batch)


def _norms_at(local: BatchFunction, rtol: float, steps: int, seed: int, search: Budget) -> JacobianNorms:
    """Return the Jacobian norms at the rows of a function, all at once."""
    inputs = local.point.shape[1]

    def measure(at: BatchFunction) -> JacobianNorms:
        if min(at.outputs, inputs) <= FEW:
            return _take_whole(at, seed)
        return _iterate(at, rtol, min(steps, inputs, at.outputs + 1), seed, search)

    norms = measure(local)
    if local.doubted is None and bool(norms.bends.any()):
        count, local = int(norms.bends.sum()), _beside(local, norms.bends, seed)
        moved = measure(local)
        if bool((norms.bends & moved.bends).any()):
            _refuse_false_derivative(local, norms.directions, seed)
        places = f"{count} of {local.samples} samples" if local.samples > 1 else "the sample"
        note = (
            f"the function bends right at {places} (a ReLU at 0, a tie of a maximum), where it has no derivative or "
            f"torch gives another: measured beside, {BESIDE:g} of the size of the input away"
        )
        norms = replace(moved, products=norms.products + moved.products, notes=(*moved.notes, note))
    reach = norm(reach_of(local.point).double().reshape(local.samples, -1), 1).cpu()
    tiny = (norms.upper > 0) & (norms.upper * reach < LOST * norms.values)
    if bool(tiny.any()) and local.saturates():  # what rounding leaves of its derivative could be most of the norm
        raise JacobianError(VANISHED)
    if local.doubted is None:
        return norms
    blurred = _refuse_false_derivative(local, norms.directions, seed)
    note = f"{local.doubted}: autograd's derivative, compared with differences along {DIRECTIONS} directions"
    if bool(blurred.any()):
        samples = f"{int(blurred.sum())} of {local.samples} samples"
        note += f" (at {samples} rounding or bends hide what a difference would tell)"
    return replace(norms, evidence=Evidence.SAMPLED, notes=(*norms.notes, note))


def _beside(local: BatchFunction, rows: Tensor, seed: int) -> BatchFunction:
    """Return the function at samples of which some rows are moved a little, at random."""
    shift = torch.randn(local.point.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    shift = (shift / shift.norm(dim=1, keepdim=True)).to(local.point) * BESIDE * reach_of(local.point).to(local.point)
    moved = local.point + shift * rows.to(local.point)[:, None]
    wide = local.wide
    return replace(
        local, point=moved, wide=None if wide is None else lambda: replace(wide(), point=moved.detach().double())
    )


def _refuse_false_derivative(local: BatchFunction, directions: Tensor, seed: int) -> Tensor:
    """Refuse a derivative that differences of values contradict; return the rows where they tell nothing."""
    wide = local if local.wide is None else local.wide()
    shares, hidden = compare(wide.function, wide.point.detach(), along=directions.to(wide.point), seed=seed)
    if bool(shares.isnan().all()):
        return hidden
    if local.doubted is None:
        raise JacobianError(
            "what torch gives as the derivative is not that of the function: along a direction in which it was "
            "compared with a difference of values the two disagree. An operator that writes two values to one entry "
            "(`scatter`, `index_put`, `index_copy` with repeated indices, a write through `as_strided`) can do this."
        )
    raise JacobianError(
        f"what autograd gives is not the derivative: along a direction in which it was compared with a "
        f"difference of values the two disagree, because of {local.blame()}. A custom backward, a hook or a "
        "value taken out of the tensors (.item(), .numpy()) can do this. Mend it, or make the model one that "
        "torch.export can trace: then the traced operators are differentiated."
    )


def _take_whole(local: BatchFunction, seed: int) -> JacobianNorms:
    """Take the whole Jacobian of each sample, by its rows or its columns; the norm of a few is exact up to rounding."""
    wide = local if local.wide is None else local.wide()
    products = Products(wide.function, wide.point)
    by_rows = local.outputs <= local.point.shape[1]
    jacobian = products.rows() if by_rows else products.columns().mT
    _refuse_infinite(jacobian)
    top = jacobian.abs().amax((1, 2), keepdim=True)
    signs, lift = _signs(jacobian[:, :, 0]), products.lift(top)
    again, other = (products.pull, products.push) if by_rows else (products.push, products.pull)
    off = norm((jacobian * signs[:, :, None]).sum(dim=1) - again(signs * lift) / lift, 1)
    _refuse_vanished(off, norm(jacobian, (1, 2)), products)
    _refuse_false_zeros(top[:, 0, 0] == 0, lambda: other(_signs(jacobian[:, 0])))
    start = _random_rows(local.point, seed)
    along = ((jacobian if by_rows else jacobian.mT) @ start[:, :, None])[:, :, 0]
    bends = find_bends(wide.function, wide.point, products.value, start, along)
    jacobian = jacobian / torch.where(top > 0, top, 1.0)
    values, vectors = torch.linalg.eigh((jacobian @ jacobian.mT).cpu())  # small: not worth a GPU solver's start
    size = values[:, -1].clamp(min=0.0).sqrt() * top[:, 0, 0].cpu()
    directions = vectors[:, :, -1].to(jacobian)
    if by_rows:
        directions = (jacobian.mT @ directions[:, :, None])[:, :, 0]
        directions = directions / directions.norm(dim=1, keepdim=True).clamp(min=1e-300)
    method, noise = "Jacobian, all rows" if by_rows else "Jacobian, all columns", NOISES * off.cpu()
    norms = _widen(local, products, (size - noise).clamp(min=0.0), size + noise, directions, method, bends)
    return replace(norms, evidence=Evidence.NUMERICAL, settled=torch.ones(local.samples, dtype=torch.bool))


def _iterate(local: BatchFunction, rtol: float, steps: int, seed: int, budget: Budget) -> JacobianNorms:
    """Lanczos on J^T J of all samples at once, in the model's own precision if that is enough.

    A product along the random start, in float64 and lifted, says how far other products are off:
    rounding, cancellation, and what vanishes on the way. With probability `HIDDEN` at most an error that stretches some
    direction by more than `slack` hides from a random direction.
    """
    own = Products(local.function, local.point)
    wide = local if local.wide is None else local.wide()
    exact = own if local.wide is None else Products(wide.function, wide.point)
    start = _random_rows(local.point, seed)
    along = exact.push(start)
    size = norm(along, 1)
    _refuse_infinite(size)
    _refuse_false_zeros(size == 0, lambda: exact.pull(_signs(exact.value)))
    scale = torch.where(size > 0, size, 1.0)[:, None]
    lifted = exact.normal(start, scale, exact.lift(size))
    _refuse_infinite(lifted)
    ritz, slack = None, torch.zeros_like(size)
    for products in dict.fromkeys((own, exact)):
        first = products.normal(start, scale)
        off = norm(first - lifted, 1)
        if products is exact:
            _refuse_vanished(off, norm(lifted, 1), exact)
        slack = off / (HIDDEN * math.sqrt(math.pi / (2 * start.shape[1])))
        pending = [first]  # Lanczos begins with the product that is there

        def normal(rows: Tensor, products: Products = products, pending: list[Tensor] = pending) -> Tensor:
            return pending.pop() if pending else products.normal(rows, scale)

        try:
            ritz = lanczos(normal, start, steps=steps, rtol=rtol, sure=True, budget=budget)
        except torch.linalg.LinAlgError:  # products overflow
            ritz = None
        if ritz is not None and bool((slack <= rtol * ritz.values).all()):
            break
    if ritz is None:
        raise JacobianError(INFINITE)
    bends = find_bends(wide.function, wide.point, exact.value, start, along)
    image = exact.push(ritz.vectors)
    noise = NOISES * norm(image - exact.push(ritz.vectors * (4 / 3)) * (3 / 4), 1)
    lower = (norm(image, 1) - noise).clamp(min=0.0)
    upper = torch.maximum((ritz.above + slack).sqrt() * scale[:, 0], norm(image, 1) + noise)
    norms = _widen(local, exact, lower, upper, ritz.vectors, "Lanczos on the Jacobian", bends)
    taken = sum(products.taken for products in dict.fromkeys((own, exact)))
    return replace(norms, products=taken, settled=(upper <= lower * (1 + rtol)).cpu())


def _widen(
    local: BatchFunction,
    products: Products,
    lower: Tensor,
    upper: Tensor,
    directions: Tensor,
    method: str,
    bends: Tensor,
) -> JacobianNorms:
    """Return norms with both sides widened by what rounding is allowed for, not yet settled."""
    room, notes = max(ROUNDED, ROUNDINGS * torch.finfo(products.dtype).eps), local.notes
    if products.dtype != torch.float64:
        name = str(products.dtype).removeprefix("torch.")
        notes = (*notes, f"measured in {name}: both sides are widened by {room:.1g} of them for its rounding")
    sides = torch.stack([lower / (1 + room), upper * (1 + room)]).cpu()
    _refuse_infinite(sides)
    return JacobianNorms(
        lower=sides[0],
        upper=sides[1],
        settled=torch.zeros(local.samples, dtype=torch.bool),
        directions=directions,
        evidence=Evidence.SAMPLED,
        method=method,
        products=products.taken,
        notes=tuple(dict.fromkeys(notes)),
        values=norm(products.value.detach().double(), 1).cpu(),
        bends=bends,
    )


def _refuse_infinite(values: Tensor) -> None:
    if not bool(torch.isfinite(values).all()):
        raise JacobianError(INFINITE)


def _refuse_vanished(off: Tensor, whole: Tensor, products: Products) -> None:
    """Refuse products that are others once they are lifted, by more than what can be allowed for."""
    if not bool((off <= torch.finfo(products.dtype).eps ** 0.5 * whole).all()):
        raise JacobianError(VANISHED)


def _refuse_false_zeros(zero: Tensor, product: Callable[[], Tensor]) -> None:
    """Refuse Jacobians that are zero in one direction of the chain rule and not in the other."""
    if not bool(zero.any()):
        return
    try:
        image = product()
    except (JacobianError, RuntimeError, NotImplementedError):  # there is no product in the other direction (`floor`)
        return
    if bool(image[zero].ne(0).any()):  # NaN is not zero either
        raise JacobianError(VANISHED)


def _random_rows(like: Tensor, seed: int) -> Tensor:
    """Return random directions, one a row, in float64."""
    rows = torch.randn(like.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (rows / rows.norm(dim=1, keepdim=True)).to(like.device)


def _signs(like: Tensor) -> Tensor:
    """Return rows of 1 and -1 in turn, in float64."""
    rows = torch.ones_like(like, dtype=torch.float64)
    rows[:, 1::2] = -1.0
    return rows
