"""The ellipsoid certificate with every rounding accounted for: how `effort="tight"` becomes PROVEN.

A state may be enlarged at will, so each operation is done in float64 and its diagonal raised by a bound on what
rounding can have hidden. Entrywise, the error of F Q F^T is at most gamma abs(F) abs(Q) abs(F)^T, and abs(Q_ij) <=
sqrt(Q_ii Q_jj); an error matrix with entries below c a_i a_j is at most c n diag(a)^2 in the order of matrices. The
multipliers are whatever floats the search found: any are valid. The inverse is judged by its residual, positive
definiteness by a Cholesky factorization with Rump's allowance (`core.rounding`).
"""

from __future__ import annotations

import math
from collections.abc import Container

import torch
from torch import Tensor

from ...core.budget import check_time
from ...core.log10 import power10
from ...core.rounding import UNIT, cholesky_allowance, gamma
from ...linalg.certify import certify as largest_eigenvalue
from .ellipsoid_plan import EllipsoidPlan, EllipsoidStep, StateChange, image_cost
from .optimised import Certified, lost

COUNTED = 3.0
"""How many times the multiplications of a step it takes to count its rounding, too."""
ROOM = 1.0 + 1e-6
"""Room for the rounding of the allowances themselves."""


def is_exact(plan: EllipsoidPlan, inputs: Container[str]) -> bool:
    """Say whether every map of a plan was written out with a known error, from the inputs on.

    Args:
        plan: of the certificate.
        inputs: of the graph; a plan that starts elsewhere rests on what is known of the values there.
    """
    known = plan.output_slack is not None and all(operation.slack is not None for operation in plan.operations)
    return known and all(name in inputs and value == 0.0 for name, value in plan.start.items())


def accounted(plan: EllipsoidPlan, found: Certified) -> Certified | None:
    """Return the certificate with the rounding of the recursion counted; None where it cannot be shown to hold.

    For a plan that `is_exact` it holds with all rounding; otherwise up to that of writing the maps out.

    Args:
        plan: what was run.
        found: the multipliers; they are taken as they are.
    """
    unit = power10(2.0 * max(plan.start.values()))  # the multipliers are in units of the input's change
    if not 0.0 < unit < math.inf:
        return None
    state = _State(unit)
    for operation in plan.operations:
        check_time(COUNTED * operation.cost)
        if isinstance(operation, StateChange):
            state.turn(operation.matrix.cpu().double(), operation.slack or 0.0)
        elif not state.step(operation, found.sigma[operation.name].cpu().double()):
            return None
    check_time(COUNTED * image_cost(plan.output))
    state.turn(plan.output.cpu().double(), plan.output_slack or 0.0)
    assert state.q is not None
    top = largest_eigenvalue([state.q[None]], delta=1e-12).bound
    if not math.isfinite(top) or top <= 0:
        return None
    scale = 0.5 * state.exponent * math.log10(2.0) + max(plan.start.values())
    log = 0.5 * math.log10(top) + scale
    room = 16.0 * UNIT * max(1.0, abs(log), abs(state.exponent))
    return Certified(log + room, scale + room, state.q.to(found.q.device), found.sigma)


class _State:
    """The ellipsoid 2^exponent q; q is None for the identity of the start."""

    def __init__(self, unit: float) -> None:
        self.q: Tensor | None = None
        self.exponent, self.unit = 0, unit

    def turn(self, matrix: Tensor, slack: float) -> None:
        """Go over to F g."""
        self._set(_image(self.q, matrix, slack))

    def step(self, step: EllipsoidStep, sigma: Tensor) -> bool:
        """Go through a nonlinear step; False where it cannot be proven."""
        assert self.q is not None
        kept, known = step.kept.cpu(), step.known
        joint, k = self.q, 0
        if step.form is not None:
            k = len(kept)
            chosen = torch.zeros(k, len(self.q), dtype=torch.float64)
            chosen[torch.arange(k), kept] = 1.0
            joint = _image(self.q, torch.cat([chosen, step.form.cpu().double()]), step.slack or 0.0)
        n = len(joint) - k
        if abs(self.exponent) > 900:
            return False
        root = (sigma * 2.0**self.exponent * self.unit).sqrt().expand(n)
        pairs = root[:, None] * root[None, :]
        reduced = _raised(joint[k:, k:] * pairs, 4.0 * UNIT)
        inverse = _inverse(reduced)
        if inverse is None:
            return False
        middle = _raised(inverse * pairs, 4.0 * UNIT)
        side = joint[:, k:]
        reach = side.abs() @ middle.diagonal().sqrt()
        wide = joint + _symmetric(side @ middle @ side.mT)
        wide = _raised(wide, 4.0 * UNIT, gamma(2.0 * n + 16.0) * reach.square())
        radius = known.radius.cpu().double().abs()
        slack = 4.0 * UNIT
        if known.centre is not None:
            slack = 4.0 * UNIT * (1.0 + float(known.centre.abs().amax() / radius.amin().clamp(min=1e-300)))
        noise = (radius * (1.0 + slack) / root[: len(radius)]).square() * (1.0 + 16.0 * UNIT)
        if not bool(noise.isfinite().all()):
            return False
        noise = noise.expand(known.size) if known.whole else noise
        if known.centre is None:
            self._set(torch.block_diag(wide[:k, :k], torch.diag(noise)))
            return True
        if known.whole:
            return False  # a centre map of a whole step is itself a computed matrix
        scale = torch.cat([torch.ones(k, dtype=torch.float64), known.centre.cpu().double()])
        moved = _raised(wide * scale[:, None] * scale[None, :], 4.0 * UNIT)
        moved.diagonal()[k:] += noise
        self._set(_raised(moved, 4.0 * UNIT))
        return True

    def _set(self, q: Tensor) -> None:
        """Keep entries near 1, by powers of two: without rounding."""
        top = float(q.diagonal().max())
        shift = math.frexp(top)[1] if 0.0 < top < math.inf else 0
        shift -= shift % 2
        self.q, self.exponent = q * 2.0**-shift, self.exponent + shift


def _image(q: Tensor | None, form: Tensor, slack: float) -> Tensor:
    """Return a matrix that is at least F* Q F*^T for every F* within `slack` of F."""
    size = form.shape[1]
    if q is None:
        raw, reach, top = form @ form.mT, form.norm(dim=1), 1.0
    else:
        raw, reach, top = form @ q @ form.mT, form.abs() @ q.diagonal().sqrt(), float(q.diagonal().sum())
    result = _raised(_symmetric(raw), 4.0 * UNIT, gamma(2.0 * size + 16.0) * reach.square())
    result.diagonal().add_(lost(form))
    if slack:
        norm = float(form.norm())
        result.diagonal().add_((2.0 * norm + slack) * slack * top * ROOM)
        result = _raised(result, 4.0 * UNIT)
    return result


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


def _raised(matrix: Tensor, relative: float, absolute: Tensor | None = None) -> Tensor:
    """Raise the diagonal over entrywise errors of `relative` of each entry plus `absolute`_i^(1/2) absolute_j^(1/2)."""
    diagonal = matrix.diagonal()
    added = relative * diagonal.abs() if absolute is None else relative * diagonal.abs() + absolute
    result = matrix.clone()
    result.diagonal().add_(len(matrix) * ROOM * added + 4.0 * UNIT * diagonal.abs())
    return result


def _inverse(reduced: Tensor) -> Tensor | None:
    """Return a matrix that is at least (I - R)^-1, or None unless I - R is proven positive definite."""
    n = len(reduced)
    rest = torch.eye(n, dtype=torch.float64) - reduced
    allowance = cholesky_allowance(n, float(rest.diagonal().sum()), is_complex=False) + 8.0 * UNIT
    factor, info = torch.linalg.cholesky_ex(rest)
    _, safe = torch.linalg.cholesky_ex(rest - allowance * torch.eye(n, dtype=torch.float64))
    if int(info) or int(safe):
        return None
    inverse = _symmetric(torch.cholesky_inverse(factor))
    left = torch.eye(n, dtype=torch.float64) - rest @ inverse
    size = float(inverse.norm())
    residual = float(left.norm()) + (gamma(n + 8.0) * float(rest.norm()) + 4.0 * UNIT) * size
    if not residual < 0.5:
        return None
    inverse.diagonal().add_(ROOM * size * residual / (1.0 - residual))
    return _raised(inverse, 2.0 * UNIT)
