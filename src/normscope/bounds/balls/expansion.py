"""Centre and radius: the Jacobian of the centre maps, plus how far every primitive can differ from its own.

Let R_s be the derivative of the output (or of given combinations of its entries) in the value of step s with every
later primitive replaced by its centre map, carried backwards. For two inputs of one ball, dx apart, the outputs differ
by R_input dx + sum over primitives and operands of R_s dw with norm(dw/weight) <= norm(dv) <= L(operand) norm(dx). So

    L <= norm(R_input) + sum of norm(R_s diag(weight)) L(operand),

and R_s dw is also at most abs(R_s) (what every entry of dw can be), row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.budget import check_time
from ...core.log10 import SMALLEST
from ...core.log10 import norm as l2
from ...core.rounding import gamma
from ..ellipsoids.ellipsoid import largest
from ..linalg.operator_norms import absolute_norm
from ..operators.local.local import Affine, OperandShare, flat, times
from .enclosure import Enclosures

Gradients = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Expansion:
    """Bounds over the balls on combinations of the output's entries.

    Attributes:
        constant: `[B]`, the l2 constant of all combinations together.
        rows: `[B, K]`, the constant of each.
        least: `[B]`, what the norm of the Jacobian cannot fall below anywhere in the ball.
    """

    constant: Tensor
    rows: Tensor
    least: Tensor


def expand(enclosures: Enclosures, rows: Tensor) -> Expansion:
    """Bound the map from the input to `rows` `[B, K, *output]` of the output over the balls."""
    unrolled = enclosures.unrolled
    gradients: Gradients = {unrolled.output: rows}
    batch, count = rows.shape[:2]
    spectral = torch.zeros(batch, dtype=rows.dtype, device=rows.device)
    each = torch.zeros(batch, count, dtype=rows.dtype, device=rows.device)
    loose = torch.zeros_like(each)
    noise = torch.zeros_like(spectral)
    for step in reversed(unrolled.steps.values()):
        check_time()
        gradient = gradients.pop(step.name, None)
        if gradient is None:
            continue
        if isinstance(step.operation, Affine):
            for linear, name in zip(step.operation.maps, step.operands, strict=True):
                accumulate(gradients, name, adjoint(linear.adjoint, gradient))
                noise = noise + _rounded(
                    gradient, absolute_norm(linear), enclosures.known[name].constant, linear.in_size
                )
            continue
        for part, name in zip(enclosures.locals[step.name].parts, step.operands, strict=True):
            accumulate(gradients, name, part.pull(gradient))
            operand = enclosures.known[name]
            noise = noise + _rounded(gradient, part.gain, operand.constant, flat(operand.centre).shape[1])
            whole, by_row, entrywise = _uncertain(flat(gradient, 2), part, enclosures, name)
            each = each + torch.minimum(by_row, entrywise)
            narrow = whole <= l2(entrywise, 1)
            spectral = spectral + torch.where(narrow, whole, 0.0)
            loose = loose + torch.where(narrow[:, None], 0.0, entrywise)
    names = [item.name for item in unrolled.graph.inputs]
    first = [flat(gradients[name], 2) for name in names if name in gradients]
    apart = spectral + l2(loose, 1) * (1 + 1e-12)
    centre = torch.zeros_like(apart)
    if first:
        joined = torch.cat(first, dim=2)
        centre, each = largest_singular(joined), each + l2(joined, 2) * (1 + 1e-12)
    least = (centre * (1 - 1e-9) - apart - noise).nan_to_num(nan=0.0, neginf=0.0).clamp(min=0.0)
    return Expansion(_known(centre + apart + noise), _known(each + noise[:, None]), least)


def _rounded(gradient: Tensor, size: float | Tensor, constant: Tensor, entries: int) -> Tensor:
    """Bound what rounding, and products that vanish, do to rows `[B, K, *out]` behind a map of a norm, `[B]`.

    An error of the rows reaches the input through the rest of the network, whose constant is that of the operand.
    """
    rows, count = l2(flat(gradient), 1), float(flat(gradient, 2).shape[2])
    moved = gamma(8.0 * count + 64.0) * times(rows, torch.as_tensor(size, dtype=rows.dtype, device=rows.device))
    lost = SMALLEST * count * math.sqrt(gradient.shape[1] * entries)
    return times(torch.where(rows > 0, moved + lost, 0.0), constant)


def _known(bound: Tensor) -> Tensor:
    return bound.nan_to_num(nan=torch.inf, posinf=torch.inf)


def _uncertain(
    gradient: Tensor, part: OperandShare, enclosures: Enclosures, name: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Bound R dw: all rows together `[B]`, each row by its l2 norm `[B, K]`, each row entry by entry `[B, K]`."""
    operand = enclosures.known[name]
    weight = flat(part.weight)
    if not bool((weight > 0).any()):
        zero = torch.zeros(gradient.shape[:2], dtype=gradient.dtype, device=gradient.device)
        return zero[:, 0] if zero.shape[1] else zero.new_zeros(len(zero)), zero, zero
    constant = operand.constant
    if part.slopes is not None:  # only the entries whose slope is open move dw
        moving = torch.where(weight > 0, flat(operand.entries), 0.0)
        constant = torch.minimum(constant, l2(moving, 1) * (1 + 1e-12))
        entries = times(weight, flat(operand.entries))
    else:
        entries = times(weight, flat(part.operand) if part.operand is not None else constant[:, None])
    scaled = times(gradient, weight[:, None])
    whole = times(largest_singular(scaled), constant)
    by_row = times(l2(scaled, 2) * (1 + 1e-12), constant[:, None])
    entrywise = times(gradient.abs(), entries[:, None]).sum(2) * (1 + 1e-12)
    return whole, by_row, entrywise


def largest_singular(rows: Tensor) -> Tensor:
    """Return the largest singular value of each matrix `[B, K, n]`, rounded up; infinite where it is not finite."""
    batch, count, size = rows.shape
    if count == 0 or size == 0:
        return rows.new_zeros(batch)
    finite = flat(rows).isfinite().all(1)
    safe = torch.where(finite[:, None, None], rows, 0.0)
    scale = flat(safe).abs().amax(1)  # squares neither underflow nor overflow
    scale = torch.where(scale > 0, scale, 1.0)
    unit = safe / scale[:, None, None]
    if count == 1:
        top = unit.norm(dim=2)[:, 0]
    else:
        gram = unit @ unit.mT if count <= size else unit.mT @ unit
        top = largest(gram).clamp(min=0.0).sqrt()
    pad = 1e-12 + 2.0**-50 * (count + size)
    return torch.where(finite, top * scale * (1 + pad), torch.inf)


def adjoint(transpose: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Apply the transpose of a map to `[B, K, *out]`."""
    batch, count = rows.shape[:2]
    pulled = transpose(rows.flatten(0, 1))
    return pulled.reshape(batch, count, *pulled.shape[1:])


def accumulate(gradients: Gradients, name: str, rows: Tensor) -> None:
    """Add rows to what a value's gradient is so far."""
    gradients[name] = gradients[name] + rows if name in gradients else rows
