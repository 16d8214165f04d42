"""Brackets of operator norms: certified from above, witnessed from below, for every kind of linear map.

Below them, entry by entry: the map with absolute entries (for intervals), and the l2 norm of every row (for single
outputs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...core.bracket import Bracket, Evidence
from ...core.budget import Budget, check_time, count
from ...core.effort import Effort
from ...core.errors import InputError
from ...core.log10 import SMALLEST, ceiling10, power10, product_above
from ...core.log10 import norm as l2
from ...core.rounding import ONE, UNIT, ZERO, Upper, gamma, inward, smallest, total
from .conv_norm import ConvolutionNorm, bounding_cost, matrix_bound
from .convolution_map import Convolution
from .dense_form import absolute_entries, cost, in_range, lost, of_each, writable, write_out
from .folding import slice_map
from .linear_map import (
    Averaging,
    Bounded,
    Centering,
    Composite,
    Diagonal,
    Identity,
    LinearMap,
    Matrix,
    Reindex,
    Repeated,
    Sum,
    cached_per_map,
)
from .singular_vector import largest_singular_vector


@dataclass(frozen=True, slots=True)
class NormBound:
    """An upper bound, a vector near to attaining it, and a function that tightens the bound, where there is one.

    The function takes log10 of a lower side, and whether seconds may be spent on one map.
    """

    upper: Upper
    start: Tensor | None = None
    tighten: Callable[[float, Effort], tuple[Upper, Tensor | None]] | None = None


ZERO_BOUND = NormBound(ZERO)


@cached_per_map
def isometric(linear: LinearMap) -> bool:
    """Whether a map is an isometry onto its outputs, because it permutes the entries."""
    if isinstance(linear, Repeated):
        return isometric(linear.inner)
    if isinstance(linear, Reindex):
        return linear.in_size == linear.out_size and bool((linear.counts() == 1).all())
    return isinstance(linear, Identity)


def unit_vector(linear: LinearMap, index: int) -> Tensor:
    """Return the input of a map that is 1 at one entry and 0 at all others."""
    vector = torch.zeros(linear.in_size, dtype=torch.float64, device=linear.device)
    vector[index] = 1.0
    return vector.reshape(linear.in_shape)


def diagonal_bound(linear: Diagonal) -> NormBound:
    """Return the norm of a map that scales entries: the largest absolute factor."""
    size = linear.scale.detach().double().abs().expand(linear.in_shape).reshape(-1)
    _check_finite(size)
    best = int(size.argmax())
    return NormBound(Upper.of(float(size[best]), Evidence.PROVEN, "largest entry"), unit_vector(linear, best))


def reindex_bound(linear: Reindex) -> NormBound:
    """Return the norm of a map that moves and copies entries: the root of the largest number of copies."""
    counts = linear.counts()
    best = int(counts.argmax())
    most = int(counts[best])
    if most <= 1:
        return NormBound(Upper.of(float(most), Evidence.PROVEN, "moves entries"), unit_vector(linear, best))
    value = Upper.of(math.sqrt(most), Evidence.PROVEN, "most copies of an entry", allowance=2.0 * UNIT)
    return NormBound(value, unit_vector(linear, best))


def centering_bound(linear: Centering) -> NormBound:
    """Return 1, the norm of an orthogonal projection, or 0 where each mean is over a single entry."""
    count = math.prod(linear.in_shape[len(linear.in_shape) - linear.dims :])
    if count < 2:
        return ZERO_BOUND
    start = unit_vector(linear, 0).reshape(-1)
    start[1] = -1.0
    return NormBound(ONE.named("orthogonal projection"), start.reshape(linear.in_shape))


def averaging_bound(linear: Averaging) -> NormBound:
    """Return sqrt(largest row sum * largest column sum), a bound for a matrix without negative entries."""
    rows = linear.apply(torch.ones(1, *linear.in_shape, dtype=torch.float64, device=linear.device))
    columns = linear.adjoint(torch.ones(1, *linear.out_shape, dtype=torch.float64, device=linear.device))
    _check_finite(rows)
    value = math.sqrt(float(rows.max().clamp(min=0.0))) * math.sqrt(float(columns.max().clamp(min=0.0)))
    allowance = gamma(2.0 * (linear.in_size + linear.out_size) + 8.0)
    start = columns[0] / columns.norm().clamp(min=1e-300)
    return NormBound(Upper.of(value, Evidence.NUMERICAL, "Schur test", allowance=allowance), start)


def _check_finite(values: Tensor) -> None:
    if not bool(torch.isfinite(values).all()):
        raise InputError("a weight is NaN or infinite: the map has no norm")


@dataclass(slots=True)
class NormCache:
    """The bounds of one map that were taken so far.

    Attributes:
        found: the last bound that no clock cut short.
        rtol: the tolerance that it was asked for; infinite where there is none.
        tightened: whether it was tightened against a lower side.
        cheap: what stands in for a bound where the clock leaves no time for one; None where that was not needed yet.
    """

    found: NormBound | None = None
    rtol: float = math.inf
    tightened: bool = False
    cheap: Upper | None = None

    def keep(self, linear: LinearMap, rtol: float, tightened: bool, taken: NormBound) -> None:
        """Keep a bound of the map; large vectors and what tightening needs are let go."""
        start = taken.start if linear.in_size <= 1_000_000 else None
        self.found, self.rtol, self.tightened = NormBound(taken.upper, start), rtol, tightened

    def within(self, rtol: float) -> NormBound | None:
        """Return the bound where it is as tight as asked for."""
        return self.found if self.rtol <= rtol else None


@cached_per_map
def norm_cache(linear: LinearMap) -> NormCache:
    """Return the bounds of a map that were taken so far, which the map keeps."""
    return NormCache()


def upper(linear: LinearMap, *, rtol: float = 1e-3, budget: Budget | None = None) -> Upper:
    """Return a certified upper bound on the spectral norm of a linear map, which keeps it.

    It is PROVEN for matrices, convolutions and diagonal, reindexing and centering maps, and NUMERICAL where code had to
    be run in floating point to write the map out. Once the budget is over only cheap bounds are taken, and not kept.
    """
    return bound(linear, rtol=rtol, budget=budget).upper


@torch.no_grad()
def bound(linear: LinearMap, *, rtol: float = 1e-3, budget: Budget | None = None) -> NormBound:
    """Return the upper bound together with a start vector for the search from below."""
    remembered_bound = norm_cache(linear).within(rtol)
    if remembered_bound is not None:
        return remembered_bound
    own = Budget() if budget is None else budget.share(1.0)
    fresh = _within(linear, rtol, own)
    if not own.ended:
        norm_cache(linear).keep(linear, rtol, False, fresh)
    return fresh


def _within(linear: LinearMap, rtol: float, budget: Budget) -> NormBound:
    """Return a bound that was not taken before, a cheap one where the clock does not leave the time for another."""

    def closely() -> NormBound:
        check_time()
        return _fresh(linear, rtol, budget)

    def cheaply() -> NormBound:
        """Take row and column sums, and products and sums of such."""
        own = norm_cache(linear)
        own.cheap = own.cheap or _fresh(linear, 1.0, Budget(max_seconds=0.0, what=BOUNDING)).upper
        return NormBound(own.cheap)

    return budget.attempt(closely, cheaply)


def remembered(linear: LinearMap, rtol: float) -> bool:
    """Say whether a bound as tight as asked for is known already."""
    return norm_cache(linear).within(rtol) is not None


def _fresh(linear: LinearMap, rtol: float, budget: Budget) -> NormBound:
    if linear.in_size == 0 or linear.out_size == 0:
        return ZERO_BOUND
    if not isinstance(linear, Identity | Centering) and not budget.late:  # known without any work, or hardly any
        count("norms")
    unslackened = _bound(linear, rtol, budget)
    return NormBound(_loosened(unslackened.upper, linear), unslackened.start, unslackened.tighten)


def _loosened(bound: Upper, linear: LinearMap) -> Upper:
    """Add what folding may have rounded away."""
    if linear.slack == 0.0:
        return bound
    return total([bound, Upper.of(linear.slack, Evidence.PROVEN)]).named(bound.method)


_POWER_STEPS = 30
"""Applications of a map and its transpose that a search without a start takes, about."""
_SETTLED, _ESTIMATED = 20.0, 4.0
"""A search from below stops once it gains less than the tolerance over this: beside an upper side, and alone."""
_COARSE_RTOL = 5e-3
"""From this tolerance on a vector within half of it is close enough, and no search follows."""
WRITTEN_AT_ONCE_SIDE = 600
"""Up to this side a map is written out at once: that takes as many applications, and a search takes about sixty."""
_TIGHTENED = 3
"""How often an upper side is tightened: each time the lower side has risen on the way."""
BOUNDING = "the search for the norm of a layer"
"""How messages name this search."""


def _bound(linear: LinearMap, rtol: float, budget: Budget) -> NormBound:
    if isinstance(linear, Composite | Sum) and linear.in_shape[:1] not in ((), (1,)):
        inner = slice_map(linear, linear.in_shape[:1])
        if inner is not None:
            return _repeated(Repeated(inner, linear.in_shape[:1]), bound(inner, rtol=rtol, budget=budget))
    match linear:
        case Identity():
            return NormBound(ONE, unit_vector(linear, 0))
        case Diagonal():
            return diagonal_bound(linear)
        case Matrix():
            check_time(bounding_cost(linear), linear.device)
            return NormBound(*matrix_bound(linear, budget))
        case Convolution():
            check_time(bounding_cost(linear), linear.device)
            norm = ConvolutionNorm(linear, rtol=rtol, budget=budget)
            return NormBound(norm.upper, norm.start, norm.tighten)
        case Reindex():
            return reindex_bound(linear)
        case Centering():
            return centering_bound(linear)
        case Averaging():
            return averaging_bound(linear)
        case Composite(parts=parts):
            factors = [bound(part, rtol=rtol, budget=budget) for part in parts]
            product = ONE.times(*(factor.upper for factor in factors)).named("product of parts")
            others = [place for place, part in enumerate(parts) if not isometric(part)]
            if len(others) <= 1:  # the product is the norm: nothing can be gained but by the one map itself
                return _carried(parts, factors, others[0], product) if others else NormBound(product)
            return _written_out(linear, product, rtol, budget)
        case Sum(terms=terms):
            summands = [bound(term, rtol=rtol, budget=budget).upper for term in terms]
            return _written_out(linear, total(summands).named("sum of terms"), rtol, budget)
        case Bounded():
            return NormBound(Upper.of(linear.norm, Evidence.NUMERICAL, linear.why, allowance=1e-12))
        case Repeated(inner=inner):
            return _repeated(linear, bound(inner, rtol=rtol, budget=budget))
    unknown = Upper.infinite(f"no certified bound for a {type(linear).__name__} of this size")
    return _written_out(linear, unknown, rtol, budget)


def _carried(parts: Sequence[LinearMap], factors: Sequence[NormBound], place: int, product: Upper) -> NormBound:
    """Return the bound of a row of maps that all but one keep lengths: that of the one, its vector led back."""
    start = factors[place].start
    if start is not None:
        device = next((part.device for part in parts if part.device.type != "cpu"), start.device)
        start = start[None].to(device)
        for part in reversed(parts[:place]):
            start = part.adjoint(start)
        start = start[0]
    return NormBound(product, start, factors[place].tighten)


def _repeated(linear: Repeated, block: NormBound) -> NormBound:
    """Return the bound of one block, and its vector in the first of them."""
    if block.start is None:
        return block
    start = torch.zeros(linear.in_size // linear.inner.in_size, *linear.inner.in_shape, dtype=torch.float64)
    start = start.to(block.start.device)
    start[0] = block.start
    return NormBound(block.upper, start.reshape(linear.in_shape), block.tighten)


def _written_out(linear: LinearMap, other: Upper, rtol: float, budget: Budget) -> NormBound:
    """Return the smaller of a bound and, where the map is small, the certificate of its matrix.

    The matrix of a map over a whole batch (a linear layer and the mean of a BatchNorm) is large, and often gains
    nothing: a vector that attains the other bound shows that, for far less work.
    """
    if other.log10 == -math.inf or not writable(linear) or budget.over:
        return NormBound(other)
    if min(linear.in_size, linear.out_size) > WRITTEN_AT_ONCE_SIDE and other.log10 < math.inf:
        gain, witness, _ = _lower(linear, NormBound(other), rtol, budget, seed=0, steps=_POWER_STEPS)
        if gain >= other.log10 - math.log10(1.0 + 0.5 * rtol):
            return NormBound(other, witness)
    matrix = Matrix(write_out(linear))
    exact, start = matrix_bound(matrix, budget)
    cancelled = lost(linear, lambda part: bound(part, rtol=rtol, budget=budget).upper)
    dense = total([exact, cancelled]).named(f"{exact.method}, written out")
    dense = replace(dense, evidence=min(Evidence.NUMERICAL, exact.evidence))
    return NormBound(smallest([other, dense]), None if start is None else start.reshape(linear.in_shape))


@torch.no_grad()
def bracket(
    linear: LinearMap,
    *,
    rtol: float = 1e-3,
    budget: Budget | None = None,
    seed: int = 0,
    steps: int = 400,
    effort: Effort = Effort.TIGHT,
) -> Bracket:
    """Return the spectral norm of a linear map between a witnessed lower side and a certified upper side.

    An upper side that lies farther from the lower one than asked for is tightened: with TIGHT where that takes little
    time, with THOROUGH also where a single convolution takes seconds, with FAST not at all.
    The budget is that of the searches, behind the closed forms. The witness is a unit vector of `in_shape` in float64.
    """
    before, tightened = norm_cache(linear).within(rtol), norm_cache(linear).tightened
    inner = _one_slice(linear)
    if inner is not None and before is None:
        norm_of_slice = bracket(inner, rtol=rtol, budget=budget, seed=seed, steps=steps, effort=effort)
        return _lifted(linear, inner, norm_of_slice)
    budget = Budget(what=BOUNDING) if budget is None else budget.share(1.0)
    closed = budget.closed_forms(budget.what)
    side = before if before is not None else _within(linear, rtol, closed)
    log10_lower, witness, settled = budget.attempt(
        lambda: _lower(linear, side, rtol, budget, seed, steps), lambda: (-math.inf, None, False)
    )
    patient, tightens = effort == Effort.THOROUGH, effort != Effort.FAST
    loose = tightens and side.upper.log10 > log10_lower + math.log10(1.0 + rtol)
    if loose and before is not None and (patient or not tightened):  # what tightening needs was let go
        again = _within(linear, rtol, closed)
        side = NormBound(smallest([before.upper, again.upper]), before.start, again.tighten)
    for _ in range(_TIGHTENED if tightens and side.tighten is not None else 0):
        if side.upper.log10 <= log10_lower + math.log10(1.0 + rtol):
            break
        before_tightening = log10_lower
        side, (log10_lower, witness) = _tighten(linear, side, (log10_lower, witness), rtol, budget, seed, steps, effort)
        if log10_lower <= before_tightening + math.log10(1.0 + rtol / _SETTLED):
            break
    if not budget.ended:
        norm_cache(linear).keep(linear, rtol, tightens, side)
    result = Bracket(
        log10_lower=log10_lower,
        log10_upper=side.upper.log10,
        evidence=side.upper.evidence,
        method=side.upper.method,
        reason=side.upper.reason,
        witness=witness,
        input_shape=linear.in_shape,
    )
    if result.gap <= rtol:
        return result
    if (why := budget.advice()) is None:
        why = "the lower side was still growing: raise steps"
        if settled:
            why = f"the lower side has settled, the upper side ({result.method}) is loose"
            if not patient and side.tighten is not None:
                why += ": call normscope.spectral_norm on this layer for a tighter one"
    return replace(result, converged=False, advice=f"the gap is {result.gap:.3g}: {why}")


def _tighten(
    linear: LinearMap,
    side: NormBound,
    lower: tuple[float, Tensor | None],
    rtol: float,
    budget: Budget,
    seed: int,
    steps: int,
    effort: Effort,
) -> tuple[NormBound, tuple[float, Tensor | None]]:
    """Return a tighter upper side, and a lower side from a search that starts where tightening points to."""
    tighten = side.tighten
    assert tighten is not None
    tighter, start = budget.attempt(lambda: tighten(lower[0], effort), lambda: (side.upper, None))
    side = NormBound(smallest([side.upper, _loosened(tighter, linear)]), side.start, tighten)
    if start is None or start.shape != linear.in_shape:
        return side, lower
    gain: tuple[float, Tensor | None] = attained(linear, start)
    if gain[0] > lower[0] and side.upper.log10 > gain[0] + math.log10(1.0 + rtol):
        value, witness, _ = budget.attempt(
            lambda: _lower(linear, NormBound(side.upper, start), rtol, budget, seed, steps), lambda: (*gain, False)
        )
        gain = max(gain, (value, witness), key=lambda pair: pair[0])
    return side, max(lower, gain, key=lambda pair: pair[0])


def _one_slice(linear: LinearMap) -> LinearMap | None:
    """Return the map of one slice of the leading dimensions if all slices have the same; None if there is only one."""
    if linear.in_size == 0 or linear.out_size == 0:
        return None
    if isinstance(linear, Matrix) and len(linear.in_shape) > 1:
        return slice_map(linear, linear.in_shape[:-1])
    return linear.inner if isinstance(linear, Repeated) else None


def _lifted(linear: LinearMap, inner: LinearMap, slice_bracket: Bracket) -> Bracket:
    """Return the bracket of one slice as that of the whole map, whose witness is zero in the other slices."""
    witness = slice_bracket.witness
    if witness is not None:
        whole = witness.new_zeros(linear.in_size // inner.in_size, inner.in_size)
        whole[0] = witness.reshape(-1)
        witness = whole.reshape(linear.in_shape)
    own, inner_taken = norm_cache(linear), norm_cache(inner)
    if inner_taken.found is not None:
        own.keep(linear, inner_taken.rtol, inner_taken.tightened, NormBound(inner_taken.found.upper, witness))
    return replace(slice_bracket, witness=witness, input_shape=linear.in_shape)


@torch.no_grad()
def estimate(linear: LinearMap, *, rtol: float = 1e-2, seed: int = 0, steps: int = 100) -> float:
    """Return log10 of the spectral norm, from below: the gain of the best vector a short search finds.

    Where it takes less than a Lanczos search, the vector comes from the certificate of the map. The gain usually comes
    within `rtol` of the norm, which nothing certifies (see `bracket`).
    """
    if linear.in_size == 0 or linear.out_size == 0:
        return -math.inf
    inner = _one_slice(linear)
    if inner is not None:
        return estimate(inner, rtol=rtol, seed=seed, steps=steps)
    before = norm_cache(linear).found
    side = before if before is not None else NormBound(Upper.infinite("not asked for"))
    if (
        before is None
        and isinstance(linear, Matrix | Convolution)
        and bounding_cost(linear) <= _POWER_STEPS * cost(linear)
    ):
        side = bound(linear, rtol=rtol)  # its vector spares the search
    return _lower(linear, side, rtol, Budget(), seed, steps, _ESTIMATED)[0]


def _lower(
    linear: LinearMap,
    side: NormBound,
    rtol: float,
    budget: Budget,
    seed: int,
    steps: int,
    settled: float = _SETTLED,
) -> tuple[float, Tensor | None, bool]:
    """Return log10 of a gain that a vector attains, the vector, and whether the search had settled."""
    if side.upper.log10 == -math.inf:
        return -math.inf, None, True
    start = side.start if side.start is not None and bool(side.start.norm() > 0.0) else None
    if start is not None:
        value, witness = attained(linear, start)
        if value >= side.upper.log10 - math.log10(1.0 + (0.5 * rtol if rtol >= _COARSE_RTOL else min(rtol, 1e-6))):
            return value, witness, True
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(linear.in_shape, dtype=torch.float64, generator=generator).to(linear.device)
    noise /= noise.norm()
    start = noise if start is None else start / start.norm() + 0.02 * noise
    size = power10(side.upper.log10)
    scale = size if 0.0 < size < math.inf else 1.0
    # float32 is fast on a CPU; on a GPU it may silently mean TF32
    precise = rtol < 1e-5 or linear.in_size < 4096 or linear.device.type != "cpu" or not 1e-20 < scale < 1e20
    search = largest_singular_vector(
        linear,
        start if precise else start.float(),
        rtol=rtol / settled,
        steps=steps,
        enough=size / (1.0 + 0.5 * rtol),
        budget=budget,
        scale=scale,
    )
    value, witness = attained(linear, search.vector.double())
    return value, witness, search.settled


SPACING = 2.0**-1074
"""The spacing of the smallest floats: the error of a product or a sum that underflows."""


def attained(linear: LinearMap, vector: Tensor) -> tuple[float, Tensor]:
    """Return log10 of the gain of a vector, rounded inward, and the vector scaled to norm 1 (float64)."""
    vector = vector.double()
    norm = vector.norm()
    if not bool(norm > 0.0):
        return -math.inf, vector
    vector = vector / norm
    image, error = _image(linear, vector[None])
    largest = float(image.abs().max())
    if largest == 0.0 or not math.isfinite(largest) or not math.isfinite(error):
        return -math.inf, vector
    gain = float((image / largest).norm()) / float(vector.norm())
    value = inward(gain, (error + linear.slack) / largest / gain) + math.log10(largest)
    return value - 4.0 * UNIT * max(abs(value), abs(math.log10(largest)), 1.0), vector


def _image(linear: LinearMap, vector: Tensor) -> tuple[Tensor, float]:
    """Return the image of a unit vector, and a bound on its rounding error (an estimate for maps given as code)."""
    if isinstance(linear, Convolution | Matrix):
        return linear.apply(vector), _apply_error(linear)
    carried = _carry_error(linear, vector, torch.zeros_like(vector))
    if carried is not None:
        image, error = carried
        return image, float(l2(error)) * (1.0 + gamma(error.numel() + 8.0))
    image = linear.apply(vector)
    return image, gamma(4.0 * (linear.in_size + linear.out_size) + 64.0) * float(l2(image))


def _carry_error(linear: LinearMap, value: Tensor, error: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the image of a batch of vectors and a bound on its error, entry by entry.

    The vectors are known to within `error`. The bound covers parts that cancel each other, weights that are known to
    within a slack, and values that underflow on the way. The result is None where a part is given as code.
    """
    image = _through(linear, value, error)
    if image is None or linear.slack == 0.0:
        return image
    sizes = l2((value.abs() + error).flatten(1), 1).reshape(-1, *[1] * len(linear.out_shape))
    return image[0], image[1] + (1.0 + 1e-9) * linear.slack * sizes


def _through(linear: LinearMap, value: Tensor, error: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return what `_carry_error` returns, for a map whose weights are exact."""
    match linear:
        case Composite(parts=parts):
            carried: tuple[Tensor, Tensor] | None = (value, error)
            for part in parts:
                carried = None if carried is None else _carry_error(part, *carried)
            return carried
        case Repeated(inner=inner):
            slices = _carry_error(inner, value.reshape(-1, *inner.in_shape), error.reshape(-1, *inner.in_shape))
            return slices and (slices[0].reshape(-1, *linear.out_shape), slices[1].reshape(-1, *linear.out_shape))
        case Sum(terms=terms):
            images_and_errors = [
                carried for carried in (_carry_error(term, value, error) for term in terms) if carried is not None
            ]
            if len(images_and_errors) < len(terms):
                return None
            images, errors = (torch.stack(items) for items in zip(*images_and_errors, strict=True))
            return images.sum(0), (errors.sum(0) + gamma(len(images_and_errors)) * images.abs().sum(0)) * (1.0 + 1e-12)
    spread = absolute_entries(linear)
    if spread is None:
        return None
    count = 2.0 * linear.in_size + 64.0
    moved = spread.apply(error + gamma(count) * value.abs()) * (1.0 + 2.0 * gamma(count))
    return linear.apply(value), moved + 4.0 * count * SPACING


def _apply_error(linear: Convolution | Matrix) -> float:
    """Return a bound on the norm of the rounding error of one float64 application to a unit vector."""
    weight = linear.weight.double().flatten(2) if linear.weight.ndim > 2 else linear.weight.double()[:, :, None]
    largest = float(weight.abs().max())
    if largest == 0.0:
        return 0.0
    copies = linear.copies() if isinstance(linear, Convolution) else 1.0
    taps = float((weight / largest).norm(dim=(0, 1)).sum()) * copies
    vanished = SPACING * weight.shape[2] * max(weight.shape[:2]) * math.sqrt(linear.out_size)
    return gamma(2.0 * weight.shape[2] * max(weight.shape[:2]) + 64.0) * taps * largest + vanished


WRITTEN = 4_000_000
"""Folded maps with at most this many matrix entries are written out, so that entries that cancel do so."""
_SLACK = 1 + 1e-12


@cached_per_map
@torch.no_grad()
def absolute(linear: LinearMap) -> LinearMap | None:
    """Return the map whose matrix has the absolute values of the entries, or one with larger entries.

    If every input entry moves by at most d_j, every output entry moves by at most `absolute(linear)` applied to d. The
    result is None for code that is too large to be written out.
    """
    entries = absolute_entries(linear)
    if entries is not None:
        return entries
    if isinstance(linear, Repeated):
        inner = absolute(linear.inner)
        return None if inner is None else Repeated(inner, linear.leading)
    if small(linear):
        there, back = Identity(linear.in_shape, (linear.in_size,)), Identity((linear.out_size,), linear.out_shape)
        return Composite((there, Matrix(_written_entries(linear)), back))
    return of_each(linear, absolute) if isinstance(linear, Composite | Sum) and in_range(linear) else None


@cached_per_map
@torch.no_grad()
def row_norms(linear: LinearMap) -> Tensor | None:
    """Return an upper bound on the l2 norm of every row of the map's matrix, in the shape of the output (float64).

    Exact up to rounding for single maps with zero padding and for whatever is small enough to be written out; None for
    code that is too large for that.
    """
    norms = _row_norms(linear)
    return None if norms is None else _positive(norms, norms * _SLACK + linear.slack)


@cached_per_map
@torch.no_grad()
def absolute_norm(linear: LinearMap) -> float:
    """Return a bound on the norm of the map with absolute entries, by the Schur test; rounding adds a share of it."""
    if isinstance(linear, Composite):  # what cancels in the product is rounded all the same
        return product_above(*(absolute_norm(part) for part in linear.parts))
    if isinstance(linear, Sum):
        return sum(absolute_norm(term) for term in linear.terms)
    if isinstance(linear, Identity):
        return 1.0
    spread = absolute(linear)
    if spread is None:
        return ceiling10(upper(linear).log10) * math.sqrt(min(linear.in_size, linear.out_size))
    rows = spread.apply(torch.ones(1, *linear.in_shape, dtype=torch.float64, device=linear.device))
    columns = spread.adjoint(torch.ones(1, *linear.out_shape, dtype=torch.float64, device=linear.device))
    return math.sqrt(float(rows.max())) * math.sqrt(float(columns.max())) * _SLACK


def applied(spread: LinearMap, x: Tensor) -> Tensor:
    """Apply a map without negative entries to what may be infinite."""
    if bool(x.isfinite().all()):
        result = spread.apply(x)
        if result.numel() and bool((x > 0).any()) and float(result.amin()) < 1e-280:
            # products may vanish: each loses less than that
            return torch.where(spread.apply((x > 0).to(x)) > 0, result + SMALLEST * spread.in_size, result)
        return result
    result = spread.apply(torch.where(x.isfinite(), x, 0.0))
    return torch.where(spread.apply(torch.where(x.isfinite(), 0.0, 1.0)) > 0, torch.inf, result)


def small(linear: LinearMap) -> bool:
    """Say whether a map is written out here without being asked; one that lives on no device is not."""
    parts = linear.parts if isinstance(linear, Composite) else linear.terms if isinstance(linear, Sum) else (linear,)
    placed = any(not isinstance(part, Identity | Centering) for part in parts)
    return placed and linear.in_size * linear.out_size <= WRITTEN and writable(linear)


def _written_entries(linear: LinearMap) -> Tensor:
    """Return the absolute entries of a map that is written out, and what they may lack where parts cancel."""
    return write_out(linear).abs() + ceiling10(lost(linear, upper).log10)


def _row_norms(linear: LinearMap) -> Tensor | None:
    ones = torch.ones(1, *linear.in_shape, dtype=torch.float64, device=linear.device)
    match linear:
        case Identity():
            return ones[0].reshape(linear.out_shape)
        case Reindex():
            return linear.apply(ones)[0]
        case Diagonal():
            return linear.scale.double().abs().expand(linear.in_shape)
        case Matrix():
            return l2(linear.weight.double(), 1).expand(linear.out_shape)
        case Convolution():
            # an input that the padding copies meets several taps: their sum is at most the padding's norm times theirs
            sizes = linear.weight.double().abs()
            top = float(sizes.amax()) if sizes.numel() else 0.0
            scale = top if 0.0 < top < math.inf else 1.0
            squares = linear._with_weight((sizes / scale).square(), 0.0).apply(ones)[0]
            plain = linear._with_weight(sizes, 0.0).apply(ones)[0]  # where squares may vanish: the sum is no smaller
            return torch.where(squares > 1e-200, squares.sqrt() * scale, plain) * linear.copies()
        case Centering():
            entries = math.prod(linear.in_shape[-linear.dims :])
            return ones[0] * math.sqrt(max(0.0, 1.0 - 1.0 / entries))
        case Repeated():
            inner = row_norms(linear.inner)
            return None if inner is None else inner.expand(linear.out_shape)
    if small(linear):
        return l2(_written_entries(linear), 1).reshape(linear.out_shape)
    if isinstance(linear, Averaging):
        return linear.apply(ones)[0]  # no negative entry: the l2 norm of a row is at most its sum
    if isinstance(linear, Composite):
        return _composite_rows(linear)
    if isinstance(linear, Sum):
        terms = [row_norms(term) for term in linear.terms]
        return None if any(term is None for term in terms) else torch.stack([t for t in terms if t is not None]).sum(0)
    return None


def _composite_rows(linear: Composite) -> Tensor | None:
    """Row norms of the last part that mixes entries, times the norms before it, moved by the parts that do not mix."""
    first, last = linear.parts[:-1], linear.parts[-1]
    if isinstance(last, Identity | Reindex | Diagonal):
        before = row_norms(Composite(first) if len(first) > 1 else first[0])
        moved = absolute(last)
        if before is None or moved is None:
            return None
        result = moved.apply(before[None])[0]
        if not isinstance(last, Diagonal):
            return result
        met = last.scale.expand(last.in_shape) != 0
        return _positive(met & (before > 0), torch.where(met, result, 0.0))  # zero times an overflow is zero
    rows = row_norms(last)
    if rows is None:
        return None
    size = product_above(*(ceiling10(upper(part).log10) for part in first))
    scaled = torch.where(rows > 0, rows * size, 0.0)
    return _positive(rows, scaled) if size > 0.0 else scaled


def _positive(reached: Tensor, values: Tensor) -> Tensor:
    """Return bounds on entries; one that is reached is never below the smallest normal number."""
    return torch.where(reached > 0, values.clamp(min=SMALLEST), values)
