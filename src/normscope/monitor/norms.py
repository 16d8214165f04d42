"""The operator norms of all weight layers, with warm vectors; where time is short the layers take turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from ..diagnosis.examined import Site
from .budget import Budget
from .probes import normalizers
from .probes.normalizers import Sets
from .probes.weights import LATER, Geometry, power_norms

PATIENCE = 50
"""Measured steps after which a place has its turn whatever it costs."""


class Turns:
    """Goes round a list of places as far as the budget reaches, and goes on from there next time.

    Args:
        task: what is done at each.
    """

    def __init__(self, task: str) -> None:
        self._task, self._next = task, 0
        self._waited: dict[Site, int] = {}

    def affordable(self, places: Iterable[Site], budget: Budget) -> Iterator[Site]:
        """Return places one by one while there is time for the next, or it has waited for long; each at most once."""
        order = list(places)
        start = self._next % len(order) if order else 0
        for site in order[start:] + order[:start]:
            self._waited[site] = self._waited.get(site, 0) + 1
        for site in order[start:] + order[:start]:
            if self._waited[site] < PATIENCE and not budget.affords((self._task, site)):
                return
            self._next, self._waited[site] = order.index(site) + 1, 0
            yield site


class Norms:
    """Keeps the warm vectors of every weight layer."""

    def __init__(self) -> None:
        self._warm: dict[Site, Tensor] = {}
        self._turns = Turns("norm")

    def measure(
        self,
        sites: Iterable[Site],
        layer: Callable[[Site], tuple[Geometry, Tensor, Sets | None]],
        *,
        tier: str,
        budget: Budget,
    ) -> dict[Site, Tensor]:
        """Return log10 of the norm of the layers in turn, and folded with the normalizer behind if there is one.

        Args:
            sites: of all layers.
            layer: says how one was called, its weight, and what the normalizer behind it normalized on this batch.
            tier: decides how many power steps are taken.
            budget: layers it does not reach have to wait.
        """
        found = {}
        for site in self._turns.affordable(sites, budget):
            with budget.spending(("norm", site)), contextlib.suppress(RuntimeError):  # one odd layer is left out
                found[site] = self._measure(site, *layer(site), LATER[tier])
        return found

    def _measure(self, site: Site, geometry: Geometry, weight: Tensor, sets: Sets | None, steps: int) -> Tensor:
        wide = weight if weight.dtype in (torch.float32, torch.float64) else weight.float()
        scale = None
        if sets is not None:
            gains = normalizers.constant(sets.divisor, sets.free, sets.eps).amax(0)
            largest = normalizers.scales(sets)
            gains = gains if largest is None else gains * largest
            scale = gains if gains.numel() == geometry.channels else gains.amax()
        found, self._warm[site] = power_norms(geometry, wide, self._warm.get(site), steps=steps, scale=scale)
        return found.log10()
