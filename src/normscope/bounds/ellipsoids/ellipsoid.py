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

A state may be enlarged at will, so each operation is done in float64 and its diagonal raised by a bound on what
rounding can have hidden. Entrywise, the error of F Q F^T is at most gamma abs(F) abs(Q) abs(F)^T, and abs(Q_ij) <=
sqrt(Q_ii Q_jj); an error matrix with entries below c a_i a_j is at most c n diag(a)^2 in the order of matrices. With
`prove_inverse`, which judges an inverse by its residual and positive definiteness by a Cholesky factorization with
Rump's allowance (`core.rounding`), every rounding is counted: how `effort="tight"` becomes PROVEN.

Reference: Fazlyab et al. 2019 (LipSDP-Neuron); for a = 0 and sigma a multiple of the identity, Xu and Sivaranjani 2024.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...core.rounding import UNIT, cholesky_allowance, gamma

SHRUNK = 1e-9
"""How far below the edge of feasibility the default sigma stays, relatively."""
ROUNDING_FACTOR = 1.0 + 1e-6
"""Room for the rounding of the allowances themselves."""


@dataclass(frozen=True, slots=True)
class Uncertain:
    """What is known of a nonlinear step: du = M dv + dw with dw bounded by `radius`.

    Attributes:
        centre: M as one slope per entry `[*, n]`, or as a matrix `[*, m, n]` if `whole`; None for zero.
        radius: e, per entry `[*, n]`, or one number `[*, 1]` if `whole`.
        size: m, the entries of u.
        whole: the bound is norm(dw) <= e norm(dv).
    """

    centre: Tensor | None
    radius: Tensor
    size: int
    whole: bool = False

    def spread(self, sigma: Tensor) -> Tensor:
        """Return e^2/sigma by entry of u, e raised over the rounding of the slopes; infinite without a multiplier."""
        around = 0.0 if self.centre is None or self.whole else self.centre.abs()
        radius = torch.where(self.radius > 0, self.radius + 4.0 * UNIT * (self.radius + around), 0.0)
        missing = torch.where(radius > 0, math.inf, 0.0)
        spread = (1.0 + 16.0 * UNIT) * radius.square() / sigma.clamp(min=torch.finfo(sigma.dtype).tiny)
        spread = torch.where(sigma > 0, spread, missing)
        return spread.expand(*spread.shape[:-1], self.size)


class _Inverse(torch.autograd.Function):
    """The inverse of I - R for symmetric R with eigenvalues below 1; NaN where the Cholesky factorization fails."""

    @staticmethod
    def forward(ctx: Any, reduced: Tensor) -> Tensor:
        """Factorize and invert."""
        rest = -reduced
        rest.diagonal(dim1=-2, dim2=-1).add_(1.0)
        factor, info = torch.linalg.cholesky_ex(rest)
        proper = (info == 0)[..., None, None]
        factor = torch.where(proper, factor, torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device))
        inverse = torch.where(proper, torch.cholesky_inverse(factor), math.nan)  # which raises at a zero diagonal
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return the gradient in R: d(I - R)^-1 = (I - R)^-1 dR (I - R)^-1."""
        (inverse,) = ctx.saved_tensors
        result: Tensor = inverse @ grad @ inverse
        return result


def invert(reduced: Tensor) -> Tensor:
    """Return (I - R)^-1, NaN where I - R is not positive definite."""
    inverse: Tensor = _Inverse.apply(reduced)
    return inverse


def prove_inverse(reduced: Tensor) -> Tensor:
    """Return a matrix that is at least (I - R)^-1; NaN unless I - R is proven positive definite."""
    n = len(reduced)
    eye = torch.eye(n, dtype=torch.float64)
    rest = eye - reduced
    allowance = cholesky_allowance(n, float(rest.diagonal().sum()), is_complex=False) + 8.0 * UNIT
    factor, info = torch.linalg.cholesky_ex(rest)
    _, safe = torch.linalg.cholesky_ex(rest - allowance * eye)
    if int(info) or int(safe):
        return torch.full_like(reduced, math.nan)
    inverse = _even(torch.cholesky_inverse(factor))
    size = float(inverse.norm())
    residual = float((eye - rest @ inverse).norm()) + (gamma(n + 8.0) * float(rest.norm()) + 4.0 * UNIT) * size
    if not residual < 0.5:
        return torch.full_like(reduced, math.nan)
    inverse.diagonal().add_(ROUNDING_FACTOR * size * residual / (1.0 - residual))
    return raised(inverse)


def image(q: Tensor | None, form: Tensor, kept: Tensor | None = None) -> Tensor:
    """Return Q over (kept values, F g), symmetric to the last bit; Q is the identity if absent."""
    moved = form if q is None else form @ q
    own = _even(moved @ form.mT)
    if q is None or kept is None or not kept.numel():
        return own
    return join_blocks(q[..., kept, :][..., :, kept], moved[..., kept].mT, own)


def image_above(q: Tensor | None, form: Tensor, kept: Tensor | None = None, slack: float | None = None) -> Tensor:
    """Return `image` raised over its rounding; with `slack` also over underflow, and an error of F of that norm."""
    far = form.norm(dim=-1) if q is None else reach(form, q)
    before = 0
    if q is not None and kept is not None and kept.numel():
        before, far = kept.numel(), torch.cat([roots(q)[..., kept], far], -1)
    result = raised(image(q, form, kept), gamma(2.0 * form.shape[-1] + 16.0) * far.square())
    if slack is None:
        return result
    result = result + torch.diag(_underflow(pad(form.abs().amax(-1), (before, 0), value=1.0)))
    if slack:
        top = 1.0 if q is None else float(q.diagonal().sum())
        size = math.hypot(math.sqrt(before), float(form.norm()))
        result.diagonal().add_((2.0 * size + slack) * slack * top * ROUNDING_FACTOR)
    return raised(result)


def _underflow(sizes: Tensor) -> Tensor:
    """Bound what underflow can take from the diagonal of F Q F^T, where the entries of Q are near 1."""
    return torch.where(sizes > 0, 1e-290 * sizes.amax().square() + 1e-305, 0.0)


def raised(matrix: Tensor, squared: Tensor | None = None) -> Tensor:
    """Raise the diagonal over errors of a few units of each entry, and of `squared`_i^(1/2) `squared`_j^(1/2)."""
    sizes = matrix.detach().diagonal(dim1=-2, dim2=-1).abs()
    added = 4.0 * UNIT * sizes if squared is None else 4.0 * UNIT * sizes + squared.detach()
    result = matrix.clone()
    result.diagonal(dim1=-2, dim2=-1).add_(matrix.shape[-1] * ROUNDING_FACTOR * added + 4.0 * UNIT * sizes)
    return result


def roots(q: Tensor) -> Tensor:
    """Return how far each entry reaches."""
    return q.detach().diagonal(dim1=-2, dim2=-1).clamp(min=0.0).sqrt()


def reach(form: Tensor, q: Tensor) -> Tensor:
    """Return abs(F) times how far each entry reaches: what F g could be if nothing cancelled."""
    return (form.detach().abs() @ roots(q)[..., None])[..., 0]


def advance(
    joint: Tensor,
    kept: int,
    centre: Tensor | None,
    sigma: Tensor,
    spread: Tensor,
    *,
    invert: Callable[[Tensor], Tensor] = invert,
) -> Tensor:
    """Return the state over (K kept values, u) behind one nonlinear step; NaN where the multipliers are not feasible.

    `joint` is the state over (kept values, v), `centre` M with one slope per entry `[*, n]` or a matrix `[*, m, n]`,
    `sigma` are the multipliers `[*, n]` or `[*, 1]`, and `spread` is what dw adds to the diagonal of Q_uu. `invert`
    gives (I - S Q_vv S)^-1 or a larger matrix. The result is raised over its rounding.
    """
    root = torch.where(sigma > 0, sigma.clamp(min=torch.finfo(sigma.dtype).tiny).sqrt(), 0.0)
    root = root.expand(*root.shape[:-1], joint.shape[-1] - kept)
    pairs = root[..., :, None] * root[..., None, :]
    inverse = invert(raised(joint[..., kept:, kept:] * pairs))
    if centre is None and not kept:  # nothing of the inverse is needed, but that it exists: NaN where it does not
        return torch.diag_embed(spread) + 0.0 * inverse.sum((-2, -1))[..., None, None]
    middle = raised(inverse * pairs)
    side = joint[..., kept:] if centre is not None else joint[..., :kept, kept:]
    before = joint if centre is not None else joint[..., :kept, :kept]
    terms = gamma(2.0 * side.shape[-1] + 16.0)
    wide = raised(before + _even(side @ middle @ side.mT), terms * reach(side, middle).square())
    if centre is None:
        return join_blocks(wide, None, torch.diag_embed(spread))
    if centre.ndim > spread.ndim:
        first = torch.arange(kept, device=joint.device)
        after = image_above(wide, pad(centre, (kept, 0)), first)
    else:
        scale = pad(centre, (kept, 0), value=1.0)
        after = raised(wide * (scale[..., :, None] * scale[..., None, :]))
    return raised(after + torch.diag_embed(pad(spread, (kept, 0))))


def _even(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


def join_blocks(first: Tensor, across: Tensor | None, second: Tensor) -> Tensor:
    """Return a symmetric matrix from its blocks; absent ones are zero."""
    if across is None:
        across = first.new_zeros(*first.shape[:-1], second.shape[-1])
    second = second.expand(*first.shape[:-2], *second.shape[-2:])
    return torch.cat([torch.cat([first, across], -1), torch.cat([across.mT, second], -1)], -2)


def balanced(uncertain: Uncertain, *, alone: bool) -> tuple[Tensor, float]:
    """Return weights d and a factor such that sigma = factor d/lambda_max(Q_vv) is feasible and a good start.

    With all slopes alike, sigma = e/((e + abs(m)) lambda_max(Q_vv)) gives lambda_max(Q_uu) <= (e + abs(m))^2
    lambda_max(Q_vv): the bound by a product of norms. `alone`: nothing but u is needed afterwards.
    """
    if uncertain.centre is None:
        return torch.ones_like(uncertain.radius), (1.0 - SHRUNK) if alone else 0.5
    size = uncertain.centre.abs()
    if uncertain.whole:
        size = torch.linalg.matrix_norm(uncertain.centre, ord=2)[..., None]
    weights = uncertain.radius / (uncertain.radius + size).clamp(min=1e-300)
    # near the edge of feasibility what is kept would be blown up
    room = 1.0 if alone else min(1.0, 0.5 / max(float(weights.detach().amax()), 0.5))
    return weights, room * (1.0 - SHRUNK)


def largest(matrix: Tensor) -> Tensor:
    """Return the largest eigenvalue of symmetric matrices `[*, n, n]`, NaN where a matrix is not finite."""
    finite = matrix.isfinite().all(-1).all(-1)
    safe = torch.where(finite[..., None, None], matrix, 0.0)
    try:
        top = torch.linalg.eigvalsh(safe)[..., -1]
    except torch.linalg.LinAlgError:  # no convergence: a norm is never below
        top = torch.linalg.matrix_norm(safe)
    return torch.where(finite, top, math.nan)
