"""Which activation is this? Numerical recognition of a function that a model writes out in smaller operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..core.bracket import Evidence
from .activations import ACTIVATIONS, Activation, clamp, elu, leaky_relu, softplus

_CLOSE = ((1e-12, 1e-9), (5e-6, 1e-5))
"""(how far a function may be from a known one, by how much the known slopes are then widened)."""


def recognise(function: Callable[[Tensor], Tensor]) -> Activation | None:
    """Say which known activation an elementwise float64 function is, by value and derivative on a dense grid.

    A model may write GELU, SiLU or Mish out in smaller operators, with constants rounded to float32. The grid has
    4,800 points in [-12, 12] and magnitudes from 1e-12 to 1e6 on both sides. Leaky ReLU, ELU, softplus and clamp are
    found with any parameter. Beyond abs(x) = 80 points where the function overflows are skipped, as a naive
    log(1 + exp(x)) does.

    Assumes:
        The function is as smooth between grid points as the one it is compared with: derivatives within 5e-6 on a grid
        of spacing h = 0.005 then stay within 5e-6 + M h^2/8 in between, M a bound on the third derivative of their
        difference, and widening the slopes by 1e-5 covers M <= 1.6 (by 1e-9 if they agree to 1e-12). A grid proves
        nothing: the evidence is NUMERICAL.

    Args:
        function: maps a float64 vector to one of the same shape, entry by entry, and is differentiable by autograd.

    Returns:
        The known activation with its slope and range widened, or None.

    Example:
        >>> found = recognise(lambda x: x * torch.sigmoid(x))
        >>> found.name, found.evidence.name
        ('silu', 'NUMERICAL')
        >>> recognise(torch.square) is None
        True
    """
    x = _grid()
    got = _sample(function, x)
    if got is None:
        return None
    for known in _candidates(x, got[0]):
        want = _sample(known.function, x)
        for tolerance, margin in _CLOSE:
            if want is not None and _agree(x, got, want, tolerance):
                (a, b), (low, high) = known.slope, known.bounded
                return replace(
                    known,
                    slope=(a - margin, b + margin),
                    bounded=(low - margin * max(1.0, abs(low)), high + margin * max(1.0, abs(high))),
                    evidence=Evidence.NUMERICAL,
                )
    return None


def _grid() -> Tensor:
    """Return points that miss the usual kinks (0, 1/2, integers), where autograd's choice is arbitrary."""
    near = torch.linspace(-12.0, 12.0, 4801, dtype=torch.float64) + 0.00123456789
    far = torch.cat(
        [torch.logspace(-12, -2, 60, dtype=torch.float64), torch.logspace(1.1, 6, 160, dtype=torch.float64)]
    )
    return torch.cat([-far.flip(0), near, far])


def _sample(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return values and derivatives; None if the function changes the shape or has no derivative."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = x.clone().requires_grad_()
        value = function(leaf.clone())  # not a leaf: the function may work in place
        if value.shape != x.shape or not value.requires_grad:
            return None
        (slope,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach().double(), slope


def _candidates(x: Tensor, values: Tensor) -> Iterator[Activation]:
    """Yield the known activations, then members of the families with parameters read off the values."""
    yield from ACTIVATIONS.values()
    middle, at = float(values[x.abs().argmin()]), int((x + 1.0).abs().argmin())
    probe, value, first, last = float(x[at]), float(values[at]), float(values[0]), float(values[-1])
    if math.isfinite(value):
        yield leaky_relu(value / probe)
        yield elu(value / math.expm1(probe))
    if math.isfinite(middle) and middle != 0.0:
        yield softplus(math.log(2.0) / middle)
    if math.isfinite(first) and math.isfinite(last) and first < last:
        yield clamp(None if first == float(x[0]) else first, None if last == float(x[-1]) else last)


def _agree(x: Tensor, got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor], tolerance: float) -> bool:
    """Say whether values agree relative to abs(x) + abs(f), and derivatives relative to max(1, abs(f'))."""
    scales = (x.abs() + want[0].abs(), want[1].abs().clamp(min=1.0))
    for mine, theirs, scale in zip(got, want, scales):
        finite = mine.isfinite() & theirs.isfinite()
        if bool(((mine - theirs).abs() > tolerance * scale + 1e-14)[finite].any()):  # 1e-14: cancellation near 0
            return False
        if bool((~finite & (mine != theirs) & (x.abs() <= 80.0)).any()):
            return False
    return True
