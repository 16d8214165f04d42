"""Reachable ellipsoids: the LipSDP-Neuron family in covariance form, for every slope interval and every graph.

A state is a positive semidefinite matrix Q over stacked values g with dg dg^T <= norm(dx)^2 Q for every change dx of
the input; the input itself has Q = I. A linear value v = F g has F Q F^T, forgetting a value takes a sub-block. For a
nonlinear u with du = M dv + dw, where abs(dw_i) <= e_i abs(dv_i) for every entry (slopes in [a, b]: M = (a+b)/2,
e = (b-a)/2) or norm(dw) <= e norm(dv) as a whole, and for any sigma >= 0 (one number as a whole), zero only where e is,
that leaves I - S Q_vv S positive definite, S = diag(sigma)^(1/2):

    T = S (I - S Q_vv S)^-1 S,   Qhat = Q + Q_gv T Q_vg,   Q_uu = M Qhat_vv M^T + diag(e^2/sigma),   Q_gu = Qhat_gv M^T.

It is the S-procedure: adding sum_i (sigma_i/e_i^2) (e_i^2 dv_i^2 - dw_i^2) >= 0 to the quadratic form of the state and
inverting. With a state of one layer and Lambda = sigma/e^2 it is the recursion of X_i in the literature. All functions
take leading batch dimensions; positive definiteness is checked by a Cholesky factorization in the dtype given.

Reference: Fazlyab et al. 2019 (LipSDP-Neuron); for a = 0 and sigma a multiple of the identity, Xu and Sivaranjani 2024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.rounding import UNIT, gamma

SHRUNK = 1e-9
"""How far below the edge of feasibility the default sigma stays, relatively."""


@dataclass(frozen=True, slots=True)
class Uncertain:
    """What is known of a nonlinear step: du = M dv + dw with dw bounded by `radius`.

    Attributes:
        centre: M as one slope per entry `[*, n]`, or as a matrix `[*, m, n]` if `whole`; None for zero.
        radius: e, per entry `[*, n]`, or one number `[*, 1]` if `whole`.
        size: m, the entries of u.
        whole: the bound is norm(dw) <= e norm(dv).
        everywhere: no radius is zero, which saves two products of matrices.
    """

    centre: Tensor | None
    radius: Tensor
    size: int
    whole: bool = False
    everywhere: bool = False


class _Inverse(torch.autograd.Function):
    """The inverse of I - R for symmetric R with eigenvalues below 1; NaN where the Cholesky factorization fails."""

    @staticmethod
    def forward(ctx: Any, reduced: Tensor) -> Tensor:
        """Factorize and invert."""
        rest = -reduced
        rest.diagonal(dim1=-2, dim2=-1).add_(1.0)
        factor, info = torch.linalg.cholesky_ex(rest)
        inverse = torch.where((info == 0)[..., None, None], torch.cholesky_inverse(factor), math.nan)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return the gradient in R: d(I - R)^-1 = (I - R)^-1 dR (I - R)^-1."""
        (inverse,) = ctx.saved_tensors
        result: Tensor = inverse @ grad @ inverse
        return result


def image(q: Tensor, form: Tensor) -> Tensor:
    """Return F Q F^T, symmetric to the last bit."""
    moved = form @ q @ form.mT
    return (moved + moved.mT) / 2


def image_above(q: Tensor, form: Tensor) -> Tensor:
    """Return F Q F^T with its diagonal raised over the rounding of the two products."""
    return raised(image(q, form), form.shape[-2] * _rounded(q) * reach(form, q).square())


def _rounded(q: Tensor) -> float:
    """Return the share that two products with a state may lose of every entry."""
    return gamma(2.0 * q.shape[-1] + 16.0)


def raised(matrix: Tensor, allowance: Tensor) -> Tensor:
    """Add to the diagonal."""
    return matrix + torch.diag_embed(allowance.detach() + 4.0 * UNIT * roots(matrix).square())


def roots(q: Tensor) -> Tensor:
    """Return how far each entry reaches."""
    return q.detach().diagonal(dim1=-2, dim2=-1).clamp(min=0.0).sqrt()


def reach(form: Tensor, q: Tensor) -> Tensor:
    """Return abs(F) times how far each entry reaches: what F g could be if nothing cancelled."""
    return (form.detach().abs() @ roots(q)[..., None])[..., 0]


def advance(
    q: Tensor,
    form: Tensor,
    qvv: Tensor,
    kept: Tensor,
    known: Uncertain,
    sigma: Tensor,
    inverse: Tensor | None = None,
) -> Tensor:
    """Return the state over (kept values, u) behind one nonlinear step.

    Args:
        q: the state `[*, N, N]`.
        form: v as a linear map of the state's values, `[n, N]`.
        qvv: its ellipsoid, `image(q, form)`.
        kept: indices of the state's entries that are needed later.
        known: what the step does.
        sigma: the multipliers, `[*, n]`, or `[*, 1]` where the step is known as a whole.
        inverse: of I - S Q_vv S, if it is known.

    Returns:
        `[*, K + m, K + m]`, or NaN where I - S Q_vv S is not positive definite.
    """
    root = sigma.clamp(min=0.0).sqrt()
    pairs = root[..., :, None] * root[..., None, :]
    if inverse is None:
        inverse = _Inverse.apply(pairs * qvv)
        assert inverse is not None
    middle = inverse * pairs
    missing = torch.where(known.radius > 0, math.inf, 0.0)  # no multiplier: nothing is known of dw
    spread = torch.where(sigma > 0, known.radius.square() / sigma.clamp(min=1e-300), missing)
    spread = spread.expand(*spread.shape[:-1], known.size)
    if known.centre is None:
        # nothing of the inverse is needed, but that it exists: NaN where it does not
        own = torch.diag_embed(spread) + 0.0 * inverse.sum((-2, -1))[..., None, None]
    elif known.whole:
        own = image_above(_carried(qvv, middle), known.centre) + torch.diag_embed(spread)
    else:
        slopes = known.centre[..., :, None] * known.centre[..., None, :]
        if known.everywhere:  # Qhat_vv = diag(1/sigma) T diag(1/sigma) - diag(1/sigma)
            own = slopes * inverse / pairs + torch.diag_embed(spread - known.centre.square() / sigma)
        else:
            own = slopes * _carried(qvv, middle) + torch.diag_embed(spread)
    if kept.numel() == 0:
        return own
    size, far = kept.numel() + known.size, roots(q)[..., kept]
    crossed = q[..., kept, :] @ form.mT
    rest = raised(
        q[..., kept, :][..., :, kept] + crossed @ middle @ crossed.mT,
        size * (_rounded(q) * far.square() + _rounded(qvv) * reach(crossed, middle).square()),
    )
    if known.centre is None:
        cross = own.new_zeros(*rest.shape[:-1], known.size)
    else:
        moved = crossed + crossed @ middle @ qvv
        cross = moved @ known.centre.mT if known.whole else moved * known.centre[..., None, :]
        rest = raised(rest, size * _rounded(qvv) * roots(rest).square())
        own = raised(own, size * (_rounded(q) + _rounded(qvv)) * roots(own).square())
    return torch.cat([torch.cat([rest, cross], -1), torch.cat([cross.mT, own], -1)], -2)


def _carried(qvv: Tensor, middle: Tensor) -> Tensor:
    """Return Qhat_vv with its diagonal raised over the rounding of the products."""
    return raised(qvv + qvv @ middle @ qvv, qvv.shape[-1] * _rounded(qvv) * reach(qvv, middle).square())


def balanced(known: Uncertain, *, alone: bool) -> tuple[Tensor, float]:
    """Return weights d and a factor such that sigma = factor d/lambda_max(Q_vv) is feasible and a good start.

    With all slopes alike, sigma = e/((e + abs(m)) lambda_max(Q_vv)) gives lambda_max(Q_uu) <= (e + abs(m))^2
    lambda_max(Q_vv): the bound by a product of norms.

    Args:
        known: the step.
        alone: nothing but u is needed afterwards.
    """
    if known.centre is None:
        return torch.ones_like(known.radius), (1.0 - SHRUNK) if alone else 0.5
    size = known.centre.abs()
    if known.whole:
        size = torch.linalg.matrix_norm(known.centre, ord=2)[..., None]
    weights = known.radius / (known.radius + size).clamp(min=1e-300)
    # near the edge of feasibility what is kept would be blown up
    room = 1.0 if alone else min(1.0, 0.5 / max(float(weights.detach().amax()), 0.5))
    return weights, room * (1.0 - SHRUNK)


def largest(matrix: Tensor) -> Tensor:
    """Return the largest eigenvalue of symmetric matrices `[*, n, n]`."""
    return torch.linalg.eigvalsh(matrix)[..., -1]
