"""What given multipliers prove, in sixty digits: the recursion of the ellipsoids without rounding."""

from __future__ import annotations

import mpmath
from mpmath import mp
from torch import Tensor

from normscope.bounds.ellipsoids.ellipsoid_plan import EllipsoidPlan, EllipsoidStep, StateChange
from normscope.bounds.ellipsoids.optimised import Certified

DIGITS = 60


def proves(plan: EllipsoidPlan, found: Certified, row: Tensor | None = None) -> float:
    """Return log10 of what the multipliers prove of a plan, its maps taken as written: of one row, or of all."""
    with mp.workdps(DIGITS):
        top = max(plan.start.values())
        q = mp.mpf(10) ** (2 * mp.mpf(top)) * mp.eye(_inputs(plan))
        for operation in plan.operations:
            if isinstance(operation, StateChange):
                q = _image(q, matrix_of(operation.matrix))
            else:
                q = _through(q, operation, _vector(found.sigma[operation.name]))
        output = matrix_of(plan.output) if row is None else matrix_of(row[None]) * matrix_of(plan.output)
        values = mp.eigsy(_image(q, output), eigvals_only=True)
        largest = max(values)
        return float(mpmath.log10(largest) / 2) if largest > 0 else -float("inf")


def _inputs(plan: EllipsoidPlan) -> int:
    first = plan.operations[0] if plan.operations else None
    return int((first.matrix if isinstance(first, StateChange) else plan.output).shape[1])


def matrix_of(tensor: Tensor) -> mpmath.matrix:
    """Return a matrix of floats as it is."""
    return mp.matrix([[mp.mpf(float(entry)) for entry in row] for row in tensor.cpu()])


def _vector(tensor: Tensor) -> list[mpmath.mpf]:
    return [mp.mpf(float(entry)) for entry in tensor.cpu().reshape(-1)]


def _image(q: mpmath.matrix, form: mpmath.matrix) -> mpmath.matrix:
    return form * q * form.T


def _through(q: mpmath.matrix, step: EllipsoidStep, sigma: list[mpmath.mpf]) -> mpmath.matrix:
    """(Q^-1 - F^T S F)^-1 for what is kept and v, by the matrix inversion lemma, then u = M v + w."""
    known, kept = step.known, [int(index) for index in step.kept]
    form = mp.eye(q.rows) if step.form is None else matrix_of(step.form)
    n, k, m = form.rows, len(kept), known.size
    sigma = sigma * n if len(sigma) == 1 else sigma
    read = mp.matrix(k + n, q.rows)
    for row, index in enumerate(kept):
        read[row, index] = 1
    read[k:, :] = form
    joint = _image(q, read)
    root = mp.diag([mp.sqrt(value) for value in sigma])
    middle = root * mp.inverse(mp.eye(n) - root * joint[k:, k:] * root) * root
    wide = joint + joint[:, k:] * middle * joint[k:, :]
    move = mp.matrix(k + m, k + n)
    for row in range(k):
        move[row, row] = 1
    if known.centre is not None:
        centre = known.centre
        move[k:, k:] = matrix_of(centre) if known.whole else mp.diag(_vector(centre))
    after = _image(wide, move)
    radii = _vector(known.radius)
    for row in range(m):
        radius, weight = (radii[0], sigma[0]) if known.whole else (radii[row], sigma[row])
        after[k + row, k + row] += radius**2 / weight if radius else 0
    return after
