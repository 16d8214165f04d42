"""Brackets of operator norms: certified from above, witnessed from below, for every kind of linear map."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core.bracket import Bracket, Evidence
from ..core.errors import InputError
from ..core.log10 import power10
from ..core.rounding import ONE, UNIT, ZERO, Upper, gamma, inward, smallest, total
from .conv_norm import convolution_bound, matrix_bound
from .convolution import Convolution
from .layers import linear_map
from .lanczos import largest_singular_vector
from .linear_map import (
    Averaging,
    Centering,
    Composite,
    Diagonal,
    Identity,
    LinearMap,
    Matrix,
    Reindex,
    Repeated,
    Sum,
)

DENSE_SIDE = 2048
"""Composites and sums up to this size on the short side (and `DENSE_ENTRIES` in all) are written out."""
DENSE_ENTRIES = 30_000_000


@dataclass(frozen=True, slots=True)
class Bound:
    """An upper bound, and a vector that comes close to attaining it (None when there is no idea)."""

    upper: Upper
    start: Tensor | None = None


_known: weakref.WeakKeyDictionary[LinearMap, tuple[float, Bound]] = weakref.WeakKeyDictionary()


def upper(linear: LinearMap, *, rtol: float = 1e-3, deadline: float | None = None) -> Upper:
    """Return a certified upper bound on the spectral norm of a linear map.

    Args:
        linear: any linear map; the result is remembered with the map.
        rtol: how tight a bound to aim for.
        deadline: a `time.monotonic()` after which only cheap bounds are taken.

    Returns:
        The bound, with evidence PROVEN for matrices, convolutions and diagonal, reindexing and centering maps, and
        NUMERICAL where code had to be run in floating point to write the map out.

    Raises:
        InputError: when a weight is NaN or infinite.

    Example:
        >>> upper(Matrix(torch.diag(torch.tensor([3.0, 4.0])))).evidence.name
        'PROVEN'
    """
    return bound(linear, rtol=rtol, deadline=deadline).upper


@torch.no_grad()
def bound(linear: LinearMap, *, rtol: float = 1e-3, deadline: float | None = None) -> Bound:
    """Return the upper bound together with a start vector for the search from below."""
    known = _known.get(linear)
    if known is not None and known[0] <= rtol:
        return known[1]
    found = ZERO_BOUND if linear.in_size == 0 or linear.out_size == 0 else _bound(linear, rtol, deadline)
    if linear.slack > 0.0:
        slack = Upper.of(linear.slack, Evidence.PROVEN)
        found = Bound(total([found.upper, slack]).named(found.upper.method), found.start)
    if deadline is None or time.monotonic() < deadline:
        _known[linear] = (rtol, found)
    return found


ZERO_BOUND = Bound(ZERO)


def _bound(linear: LinearMap, rtol: float, deadline: float | None) -> Bound:
    match linear:
        case Identity():
            return Bound(ONE, _unit(linear, 0))
        case Diagonal():
            return _diagonal(linear)
        case Matrix():
            return Bound(*matrix_bound(linear, rtol=rtol, deadline=deadline))
        case Convolution():
            return Bound(*convolution_bound(linear, rtol=rtol, deadline=deadline))
        case Reindex():
            return _reindex(linear)
        case Centering():
            return _centering(linear)
        case Averaging():
            return _schur(linear)
        case Repeated(inner=inner):
            return Bound(bound(inner, rtol=rtol, deadline=deadline).upper)
        case Composite(parts=parts):
            factors = [bound(part, rtol=rtol, deadline=deadline).upper for part in parts]
            return _written_out(linear, ONE.times(*factors).named("product of parts"), rtol, deadline)
        case Sum(terms=terms):
            parts = [bound(term, rtol=rtol, deadline=deadline).upper for term in terms]
            return _written_out(linear, total(parts).named("sum of terms"), rtol, deadline)
    unknown = Upper.infinite(f"no certified bound for a {type(linear).__name__} of this size")
    return _written_out(linear, unknown, rtol, deadline)


def _unit(linear: LinearMap, index: int) -> Tensor:
    vector = torch.zeros(linear.in_size, dtype=torch.float64, device=linear.device)
    vector[index] = 1.0
    return vector.reshape(linear.in_shape)


def _diagonal(linear: Diagonal) -> Bound:
    size = linear.scale.detach().double().abs().expand(linear.in_shape).reshape(-1)
    _check_finite(size)
    best = int(size.argmax())
    return Bound(Upper.of(float(size[best]), Evidence.PROVEN, "largest entry"), _unit(linear, best))


def _reindex(linear: Reindex) -> Bound:
    counts = linear.counts()
    best = int(counts.argmax())
    most = int(counts[best])
    if most <= 1:
        return Bound(Upper.of(float(most), Evidence.PROVEN, "moves entries"), _unit(linear, best))
    value = Upper.of(math.sqrt(most), Evidence.PROVEN, "most copies of an entry", allowance=2.0 * UNIT)
    return Bound(value, _unit(linear, best))


def _centering(linear: Centering) -> Bound:
    count = math.prod(linear.in_shape[len(linear.in_shape) - linear.dims :])
    if count < 2:
        return ZERO_BOUND
    start = _unit(linear, 0).reshape(-1)
    start[1] = -1.0
    return Bound(ONE.named("orthogonal projection"), start.reshape(linear.in_shape))


def _schur(linear: Averaging) -> Bound:
    """Return sqrt(largest row sum * largest column sum), a bound for a matrix without negative entries."""
    rows = linear.apply(torch.ones(1, *linear.in_shape, dtype=torch.float64, device=linear.device))
    columns = linear.adjoint(torch.ones(1, *linear.out_shape, dtype=torch.float64, device=linear.device))
    _check_finite(rows)
    value = math.sqrt(float(rows.max().clamp(min=0.0))) * math.sqrt(float(columns.max().clamp(min=0.0)))
    allowance = gamma(2.0 * (linear.in_size + linear.out_size) + 8.0)
    start = columns[0] / columns.norm().clamp(min=1e-300)
    return Bound(Upper.of(value, Evidence.NUMERICAL, "Schur test", allowance=allowance), start)


def _written_out(linear: LinearMap, other: Upper, rtol: float, deadline: float | None) -> Bound:
    """Return the smaller of a bound and, where the map is small, the certificate of its matrix."""
    late = deadline is not None and time.monotonic() > deadline
    if late or other.log10 == -math.inf or not writable(linear):
        return Bound(other)
    matrix = Matrix(linear.dense())
    exact, start = matrix_bound(matrix, rtol=rtol, deadline=deadline)
    evidence = min(Evidence.NUMERICAL, exact.evidence)
    dense = Upper(exact.log10, evidence, f"{exact.method}, written out", exact.reason)
    return Bound(smallest([other, dense]), None if start is None else start.reshape(linear.in_shape))


def writable(linear: LinearMap, side: int = DENSE_SIDE, entries: int = DENSE_ENTRIES) -> bool:
    """Say whether a map is small enough to be written out as a matrix."""
    return min(linear.in_size, linear.out_size) <= side and linear.in_size * linear.out_size <= entries


def _check_finite(values: Tensor) -> None:
    if not bool(torch.isfinite(values).all()):
        raise InputError("a weight is NaN or infinite: the map has no norm")


@torch.no_grad()
def bracket(
    linear: LinearMap, *, rtol: float = 1e-3, max_seconds: float | None = None, seed: int = 0, steps: int = 400
) -> Bracket:
    """Return the spectral norm of a linear map between a witnessed lower side and a certified upper side.

    Args:
        linear: any linear map.
        rtol: close the bracket to `upper/lower - 1 <= rtol`.
        max_seconds: stop refining after this long (the result is still sound).
        seed: for the start of the search from below.
        steps: at most this many Lanczos steps.

    Returns:
        A bracket whose witness is a unit vector of `in_shape` in float64; `gap`, `converged` and `advice` say how
        far it closed.
    """
    deadline = None if max_seconds is None else time.monotonic() + max_seconds
    found = bound(linear, rtol=rtol, deadline=deadline)
    log10_lower, witness, settled = _lower(linear, found, rtol, deadline, seed, steps)
    result = Bracket(
        log10_lower=log10_lower,
        log10_upper=found.upper.log10,
        evidence=found.upper.evidence,
        method=found.upper.method,
        reason=found.upper.reason,
        witness=witness,
        input_shape=linear.in_shape,
    )
    if result.gap <= rtol:
        return result
    late = deadline is not None and time.monotonic() > deadline
    return _not_converged(result, late, settled)


def _not_converged(result: Bracket, late: bool, settled: bool) -> Bracket:
    if late:
        advice = f"the gap is {result.gap:.3g}: raise max_seconds"
    elif not settled:
        advice = f"the gap is {result.gap:.3g} and the lower side was still growing: raise steps"
    else:
        advice = f"the gap is {result.gap:.3g}: the lower side has settled, the upper side ({result.method}) is loose"
    fields = {name: getattr(result, name) for name in Bracket.__dataclass_fields__}
    return Bracket(**{**fields, "converged": False, "advice": advice})


def _lower(
    linear: LinearMap, found: Bound, rtol: float, deadline: float | None, seed: int, steps: int
) -> tuple[float, Tensor | None, bool]:
    """Return log10 of a gain that a vector attains, the vector, and whether the search had settled."""
    if found.upper.log10 == -math.inf:
        return -math.inf, None, True
    start = found.start
    if start is not None:
        value, witness = attained(linear, start)
        if value >= found.upper.log10 - math.log10(1.0 + min(rtol, 1e-6)):
            return value, witness, True
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(linear.in_shape, dtype=torch.float64, generator=generator).to(linear.device)
    noise /= noise.norm()
    start = noise if start is None else start / start.norm() + 0.02 * noise
    precise = rtol < 1e-5 or linear.in_size < 4096
    search = largest_singular_vector(
        linear,
        start if precise else start.float(),
        rtol=rtol / 20.0,
        steps=steps,
        enough=power10(found.upper.log10) / (1.0 + 0.5 * rtol),
        deadline=deadline,
    )
    value, witness = attained(linear, search.vector.double())
    return value, witness, search.settled


def attained(linear: LinearMap, vector: Tensor) -> tuple[float, Tensor]:
    """Return log10 of the gain of a vector, rounded inward, and the vector scaled to norm 1 (float64)."""
    vector = vector.double()
    norm = vector.norm()
    if not bool(norm > 0.0):
        return -math.inf, vector
    vector = vector / norm
    image = linear.apply(vector[None])
    if not isinstance(linear, Convolution | Matrix):
        image = image * (1.0 - gamma(4.0 * (linear.in_size + linear.out_size) + 64.0))
    largest = float(image.abs().max())
    if largest == 0.0 or not math.isfinite(largest):
        return -math.inf, vector
    gain = float((image / largest).norm()) / float(vector.norm())
    value = inward(gain, (_apply_error(linear) + linear.slack) / (gain * largest)) + math.log10(largest)
    return value - 4.0 * UNIT * max(abs(value), abs(math.log10(largest)), 1.0), vector


def _apply_error(linear: LinearMap) -> float:
    """Return a bound on the rounding error of one float64 application to a unit vector (a guess for other kinds)."""
    if isinstance(linear, Convolution | Matrix):
        weight = linear.weight.double().flatten(2) if linear.weight.ndim > 2 else linear.weight.double()[:, :, None]
        largest = float(weight.abs().max())
        if largest == 0.0:
            return 0.0
        copies = linear.copies() if isinstance(linear, Convolution) else 1.0
        taps = float((weight / largest).norm(dim=(0, 1)).sum()) * copies
        return gamma(2.0 * weight.shape[2] * max(weight.shape[:2]) + 64.0) * taps * largest
    return 0.0


def spectral_norm(
    x: Tensor | nn.Module | LinearMap,
    input_shape: Sequence[int] | None = None,
    *,
    rtol: float = 1e-3,
    max_seconds: float | None = None,
    seed: int = 0,
) -> Bracket:
    """Return the spectral norm of a matrix, a linear layer or a convolution as a bracket.

    The norm of a convolution is that of the map it applies at `input_shape`, with its stride, padding, dilation and
    groups, not that of its reshaped kernel.

    Args:
        x: a matrix, `nn.Linear`, `nn.Conv1d/2d/3d`, `nn.ConvTranspose1d/2d/3d` or a `LinearMap`; left untouched.
        input_shape: `(C, *spatial)` for convolutions.
        rtol: close the bracket to `upper/lower - 1 <= rtol`.
        max_seconds: stop refining after this long; the result is still sound.
        seed: for the search from below.

    Returns:
        A bracket: `.lower` with its `.witness` (a unit vector), `.upper` with its `.evidence`, `.gap`, `.converged`.

    Raises:
        InputError: when the input cannot be used as given.

    Example:
        >>> bracket = spectral_norm(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        >>> round(bracket.lower, 6), round(bracket.upper, 6)
        (4.0, 4.0)
    """
    if not rtol > 0.0:
        raise InputError(f"rtol must be positive, got {rtol}")
    return bracket(linear_map(x, input_shape), rtol=rtol, max_seconds=max_seconds, seed=seed)
