"""Secant slopes that pairs of inputs prove, all rounding of both their ends taken off."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..core.budget import attempt
from ..core.log10 import log10
from ..core.log10 import norm as l2
from ..core.rounding import inward
from .certain import Certain
from .evaluation import CARRIED, Values, apart

Change = Callable[[Certain], tuple[float, float]]
"""A function that returns how far two outputs are apart: as computed, and at least, less the rounding errors."""


@dataclass(frozen=True, slots=True)
class Secant:
    """A slope between two inputs that is no larger than the true one.

    Attributes:
        log10: of the slope; `-inf` where nothing is proved.
        pair: the two flat float64 inputs; None without a slope.
        estimated: whether rounding errors were estimated, with a large margin, where no bound was small enough.
    """

    log10: float = -math.inf
    pair: tuple[Tensor, Tensor] | None = None
    estimated: bool = False


class Confirmer:
    """Confirms pairs of one search: what was not enough for the errors of one pair is skipped for the others."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._first = 0

    def secant(self, u: Tensor, v: Tensor, *, above: float = -math.inf, change: Change = apart) -> Secant:
        """Return the slope that a pair of flat inputs proves; one that seems not to be above `above` is left out.

        `change` says how far two outputs are apart as computed, and at least.
        """
        pair = torch.stack([u, v])
        length = float(l2(u - v)) * (1 + 1e-12)
        if not (math.isfinite(length) and length > 0):
            return Secant()
        if above > -math.inf:
            far, _ = change(self.values.plain(pair))
            if not (math.isfinite(far) and far > 0 and log10(far) - log10(length) > above):
                return Secant()
        found, estimated = self._least(pair, change)
        return Secant(inward(found) - log10(length), (u, v), estimated) if found > 0 else Secant()

    def _least(self, pair: Tensor, change: Change) -> tuple[float, bool]:
        """Return how far the outputs of a pair are apart at least, and whether errors were estimated for it."""
        found, estimated = 0.0, False
        for place, how in list(enumerate(CARRIED))[self._first :]:
            certain = attempt(partial(self.values.at, pair, how=how), lambda: None)
            if certain is None:
                break
            far, least = change(certain)
            if least > found and math.isfinite(far):
                found, estimated = least, how == CARRIED[-1]
            if found >= 0.99 * far:
                break
            self._first = min(place + 1, len(CARRIED) - 1)
        return found, estimated
