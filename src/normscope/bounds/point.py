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
from ..core.errors import JacobianError, said
from ..core.log10 import log10
from ..core.sizes import norm
from ..core.torch_settings import math_attention
from ..core.untouched import mode_of, outside_inference_mode, untouched
from ..graph.capturing import Traces
from ..graph.ir import Graph
from ..linalg.lanczos import Ritz, lanczos
from .autograd_check import MOVED, disagrees, reach_of
from .derivative import BatchFunction, candidates, captured
from .jacobian_products import Products
from .passes import multiplications

FEW = 32
"""With up to this many outputs (or inputs) a sample the whole Jacobian is taken, and its norm is exact up to rounding.
Lanczos would take about as many products."""
SEARCHED = 0.6
"""Of the time that is left, where it is limited: what Lanczos may take; then its direction is confirmed."""
LANCZOS = "the search for the largest gain of a Jacobian"
"""How messages name this search."""
STEPS = 60
"""Lanczos takes at most this many steps, each of two products."""
STEP_PASSES = 5
"""How many passes one step takes: forward, and backward twice."""
DIRECTIONS = 2
"""Random directions along which an unproven derivative is compared, beside the one with the largest gain."""
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
NOISES = 8.0
"""By how much of the difference of two products, rounded in different ways, a norm is widened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JacobianNorms:
    """Jacobian norms at the samples of a batch.

    Attributes:
        lower, upper: both sides for each sample, `[samples]` in float64 on the CPU.
        settled: which of them closed to the asked tolerance.
        directions: the unit rows of inputs that attain the lower sides.
        evidence, method: of the upper sides.
        products: how many products with the Jacobians of the whole batch were taken.
        notes: what the reader must know.
        values: the norm of the output at each sample.
    """

    lower: Tensor
    upper: Tensor
    settled: Tensor
    directions: Tensor
    evidence: Evidence
    method: str
    products: int
    notes: tuple[str, ...]
    values: Tensor


@outside_inference_mode
def jacobian_norms(
    model: nn.Module,
    batch: Any,
    *,
    mode: str | None = None,
    output: str | int | None = None,
    rtol: float = 1e-3,
    steps: int = STEPS,
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
    found = batch_norms(
        model, batch, mode=mode, output=output, rtol=rtol, steps=steps, seed=seed, graph=graph, budget=budget
    )
    brackets = [
        Bracket(
            log10_lower=log10(low),
            log10_upper=log10(high),
            evidence=found.evidence,
            method=found.method,
            scope=Scope.POINT,
            mode=mode_of(model, mode),
            witness=direction,
            converged=settled,
            advice=None if settled else "raise rtol, or pass fewer samples",
            input_shape=(found.directions.shape[1],),
        )
        for low, high, settled, direction in zip(
            found.lower.tolist(), found.upper.tolist(), found.settled.tolist(), found.directions, strict=True
        )
    ]
    top = max(brackets, key=lambda b: b.log10_lower)
    return replace(
        top,
        log10_upper=max(b.log10_upper for b in brackets),
        converged=all(b.converged for b in brackets),
        advice=next((b.advice for b in brackets if b.advice), None),
        per_sample=tuple(brackets),
        notes=found.notes,
        products=found.products,
    )


def batch_norms(
    model: nn.Module,
    batch: Any,
    *,
    mode: str | None,
    output: str | int | None,
    rtol: float,
    steps: int = STEPS,
    seed: int = 0,
    graph: Graph | None = None,
    traces: Traces | None = None,
    budget: Budget | None = None,
) -> JacobianNorms:
    """Return the Jacobian norms at the samples of a batch as tensors: what `jacobian_norms` makes brackets of."""
    forced, mode = mode, mode_of(model, mode)
    graph = graph or captured(model, batch, forced, output)
    search = (budget or Budget()).share(SEARCHED).search(LANCZOS)
    one_step = math.inf if graph is None else STEP_PASSES * multiplications(graph)
    with math_attention(), torch.enable_grad():
        for local in candidates(model, batch, mode, forced, output, graph, traces):
            search.free(steps * local.samples * one_step, local.point.device, begun=True)
            try:
                with nullcontext() if local.doubted is None else untouched(model, forced):  # a graph writes nothing
                    return _norms_at(local, rtol, steps, seed, search)
            except (RuntimeError, NotImplementedError) as error:  # an operator that autograd cannot differentiate
                unfit = error
    raise JacobianError(f"this model cannot be differentiated: {said(unfit)}") from unfit


def first_samples(batch: Any, samples: int) -> Any:
    """Return the first samples of a batch whose tensors agree on how many there are; the batch itself otherwise."""
    sizes = {v.shape[0] if v.ndim else 0 for v in tree_leaves(batch) if isinstance(v, Tensor)}
    if len(sizes) != 1 or max(sizes) <= samples:
        return batch
    return tree_map(lambda v: v[:samples] if isinstance(v, Tensor) else v, batch)


def _norms_at(local: BatchFunction, rtol: float, steps: int, seed: int, search: Budget) -> JacobianNorms:
    """Return the Jacobian norms at the rows of a function, all at once."""
    inputs = local.point.shape[1]
    few = min(local.outputs, inputs) <= FEW
    steps = min(steps, inputs, local.outputs + 1)
    found = _whole(local) if few else _iterated(local, rtol, steps, seed, search)
    _refuse_lost(local, found)
    if local.doubted is None:
        return found
    blurred = _compare(local, found.directions, seed)
    note = f"{local.doubted}: autograd's derivative, compared with differences along {DIRECTIONS + 1} directions"
    if blurred:
        note += f" (at {blurred} of {local.samples} samples rounding or bends hide what a difference would tell)"
    return replace(found, evidence=Evidence.SAMPLED, notes=(*found.notes, note))


def _refuse_lost(local: BatchFunction, found: JacobianNorms) -> None:
    """Refuse a norm so small that what rounding leaves of a saturated unit's derivative could be most of it."""
    reach = norm(reach_of(local.point).double().reshape(local.samples, -1), 1).cpu()
    tiny = (found.upper > 0) & (found.upper * reach < LOST * found.values)
    if bool(tiny.any()) and local.saturates():
        raise JacobianError(VANISHED)


def _compare(local: BatchFunction, largest: Tensor, seed: int) -> int:
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


def _product(local: BatchFunction, point: Tensor, direction: Tensor) -> Tensor:
    """Return the Jacobian times one direction per sample."""
    products = Products(replace(local, point=point))
    if local.outputs <= FEW:  # by backward passes alone
        return torch.einsum("smn,sn->sm", products.rows(), direction.double())
    return products.push(direction)


def _whole(local: BatchFunction) -> JacobianNorms:
    """Take the whole Jacobian of each sample, by its rows or its columns; the norm of a few is exact up to rounding."""
    local = local if local.wide is None else local.wide()
    products = Products(local)
    by_rows = local.outputs <= local.point.shape[1]
    jacobian = products.rows() if by_rows else products.columns().mT
    _refuse_infinite(jacobian)
    top = jacobian.abs().amax((1, 2), keepdim=True)
    signs, lift = _signs(jacobian[:, :, 0]), products.lift(top)
    again, other = (products.pull, products.push) if by_rows else (products.push, products.pull)
    off = norm((jacobian * signs[:, :, None]).sum(dim=1) - again(signs * lift) / lift, 1)
    _refuse_vanished(off, norm(jacobian, (1, 2)), products)
    _refuse_false_zeros(top[:, 0, 0] == 0, lambda: other(_signs(jacobian[:, 0])))
    jacobian = jacobian / torch.where(top > 0, top, 1.0)
    values, vectors = torch.linalg.eigh((jacobian @ jacobian.mT).cpu())  # small: not worth a GPU solver's start
    size = values[:, -1].clamp(min=0.0).sqrt() * top[:, 0, 0].cpu()
    directions = vectors[:, :, -1].to(jacobian)
    if by_rows:
        directions = (jacobian.mT @ directions[:, :, None])[:, :, 0]
        directions = directions / directions.norm(dim=1, keepdim=True).clamp(min=1e-300)
    room, noise = _room(products.dtype), NOISES * off.cpu()
    return JacobianNorms(
        lower=_checked((size - noise).clamp(min=0.0) / (1 + room)),
        upper=_checked((size + noise) * (1 + room)),
        settled=torch.ones(local.samples, dtype=torch.bool),
        directions=directions,
        evidence=Evidence.NUMERICAL,
        method="Jacobian, all rows" if by_rows else "Jacobian, all columns",
        products=products.taken,
        notes=_notes(local, products),
        values=norm(products.value.detach().double(), 1).cpu(),
    )


def _iterated(local: BatchFunction, rtol: float, steps: int, seed: int, budget: Budget) -> JacobianNorms:
    """Lanczos on J^T J of all samples at once, in the model's own precision if that is enough.

    A product along the random start, in float64 and lifted, says how far other products are off:
    rounding, cancellation, and what vanishes on the way. With probability `HIDDEN` at most an error that stretches some
    direction by more than `slack` hides from a random direction.
    """
    own = Products(local)
    exact = own if local.wide is None else Products(local.wide())
    start = torch.randn(local.point.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    start = (start / start.norm(dim=1, keepdim=True)).to(local.point.device)
    size = norm(exact.push(start), 1)
    _refuse_infinite(size)
    _refuse_false_zeros(size == 0, lambda: exact.pull(_signs(exact.value)))
    scale = torch.where(size > 0, size, 1.0)[:, None]
    lifted = exact.normal(start, scale, exact.lift(size))
    _refuse_infinite(lifted)
    found, slack = None, torch.zeros_like(size)
    for products in dict.fromkeys((own, exact)):
        first = products.normal(start, scale)
        off = norm(first - lifted, 1)
        if products is exact:
            _refuse_vanished(off, norm(lifted, 1), exact)
        slack = off / (HIDDEN * math.sqrt(math.pi / (2 * start.shape[1])))
        found = _searched(products, start, first, scale, steps, rtol, budget)
        if found is not None and bool((slack <= rtol * found.values).all()):
            break
    if found is None:
        raise JacobianError(INFINITE)
    image = exact.push(found.vectors)
    noise = NOISES * norm(image - exact.push(found.vectors * (4 / 3)) * (3 / 4), 1)
    lower = (norm(image, 1) - noise).clamp(min=0.0)
    upper = torch.maximum((found.above + slack).sqrt() * scale[:, 0], norm(image, 1) + noise)
    room = _room(exact.dtype)
    settled = upper <= lower * (1 + rtol)
    method = "Lanczos on the Jacobian"
    taken = own.taken if exact is own else own.taken + exact.taken
    return JacobianNorms(
        lower=_checked(lower / (1 + room)),
        upper=_checked(upper * (1 + room)),
        settled=settled.cpu(),
        directions=found.vectors,
        evidence=Evidence.SAMPLED,
        method=method,
        products=taken,
        notes=_notes(local, exact),
        values=norm(exact.value.detach().double(), 1).cpu(),
    )


def _searched(
    products: Products, start: Tensor, first: Tensor, scale: Tensor, steps: int, rtol: float, budget: Budget
) -> Ritz | None:
    """Return the top of J^T J / scale^2, whose product with the start is known; None where products overflow."""
    pending = [first]

    def normal(rows: Tensor) -> Tensor:
        return pending.pop() if pending else products.normal(rows, scale)

    try:
        return lanczos(normal, start, steps=steps, rtol=rtol, sure=True, budget=budget)
    except torch.linalg.LinAlgError:  # of NaN and infinite values
        return None


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
        found = product()
    except (JacobianError, RuntimeError, NotImplementedError):  # there is no product in the other direction (`floor`)
        return
    if bool(found[zero].ne(0).any()):  # NaN is not zero either
        raise JacobianError(VANISHED)


def _signs(like: Tensor) -> Tensor:
    """Return rows of 1 and -1 in turn, in float64."""
    rows = torch.ones_like(like, dtype=torch.float64)
    rows[:, 1::2] = -1.0
    return rows


def _room(dtype: torch.dtype) -> float:
    """Return what rounding is allowed for, relative to a norm."""
    return max(ROUNDED, ROUNDINGS * torch.finfo(dtype).eps)


def _checked(sides: Tensor) -> Tensor:
    _refuse_infinite(sides)
    return sides.cpu()


def _notes(local: BatchFunction, exact: Products) -> tuple[str, ...]:
    """Return what the reader must know, without repetitions."""
    name = str(exact.dtype).removeprefix("torch.")
    rounded = f"measured in {name}: both sides are widened by {_room(exact.dtype):.1g} of them for its rounding"
    return tuple(dict.fromkeys([*local.notes, *([] if exact.dtype == torch.float64 else [rounded])]))
