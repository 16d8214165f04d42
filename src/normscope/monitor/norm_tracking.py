"""The operator norms of all weight layers, with warm vectors; where time is short the layers take turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator

import torch
from torch import Tensor

from ..listening.calls import Site
from ..listening.layer_geometry import LayerGeometry
from ..listening.normalizer_seen import NormalizerSeen
from .probes import normalizer_probe
from .probes.weight_probe import TINY, followed, settled
from .schedule import Tier
from .time_share import TimeShare

PATIENCE = 20
"""After this many measured steps a layer is measured again, whatever it costs."""
AFRESH, LATEST = 4, 20
"""Turns of a layer after which its norm is searched for from the start, where there is time for it, and at the latest:
another direction may be the largest now, and steps from those that were known are slow to meet it."""


class Turns:
    """Goes round a list of places as far as the budget reaches: those that are due first, then who has waited longest.

    Args:
        task: what is done at each.
    """

    def __init__(self, task: str) -> None:
        self._task = task
        self._waited: dict[Site, int] = {}
        self._served: dict[Site, int] = {}

    def affordable(self, places: Iterable[Site], budget: TimeShare, due: Collection[Site] = ()) -> Iterator[Site]:
        """Return places one by one while there is time for the next, or it has waited for long; each at most once.

        Args:
            places: all there are.
            budget: the budget of the task.
            due: those that cannot wait as long as others.
        """
        order = list(places)
        self._waited = {site: self._waited.get(site, 0) + 1 for site in order}
        if budget.share is not None:  # otherwise all have their turn, in the same order in every process
            order.sort(key=lambda site: (self._waited[site] < PATIENCE, site not in due, self._served.get(site, 0)))
        for site in order:
            if self._waited[site] < PATIENCE and not budget.affords((self._task, site)):
                return
            self._waited[site], self._served[site] = 0, max(self._served.values(), default=0) + 1
            yield site


class NormTracker:
    """Keeps the warm vectors of every weight layer."""

    def __init__(self) -> None:
        self._warm: dict[Site, Tensor] = {}
        self._shapes: dict[Site, tuple[int, tuple[int, ...]]] = {}
        self._since: dict[Site, int] = {}
        self._turns = Turns("norm")
        self._generators: dict[torch.device, torch.Generator] = {}

    def doubt(self, site: Site) -> None:
        """Search for the norm of a layer from the start the next time: what was found says that it is not good."""
        self._since.pop(site, None)

    def measure(
        self,
        sites: Iterable[Site],
        layer: Callable[[Site], tuple[LayerGeometry, Tensor, NormalizerSeen | None]],
        *,
        tier: str,
        budget: TimeShare,
        due: Collection[Site] | None = (),
    ) -> dict[Site, Tensor]:
        """Return log10 of the norm of the layers in turn, and folded with the normalizer behind if there is one.

        Behind the norms stand their errors, in decades.

        Args:
            sites: the sites of all layers.
            layer: says how one was called, its weight, and what the normalizer behind it normalized on this batch.
            tier: the full one searches from the start every time.
            budget: layers it does not reach have to wait.
            due: layers whose last norm says little by now; None for all layers, whatever they cost.
        """
        found = {}
        allowed = TimeShare(None) if due is None else budget
        for site in self._turns.affordable(sites, allowed, due or ()):
            warm = self._is_warm(site, allowed) and tier != Tier.FULL
            task = ("norm" if warm else "search", site)
            with (
                budget.spending(task, free=due is None),
                contextlib.suppress(RuntimeError),
            ):  # one odd layer is left out
                found[site] = self._measure(site, *layer(site), warm)
        return found

    def _is_warm(self, site: Site, budget: TimeShare) -> bool:
        """Say whether a layer is followed: it was searched for a few turns ago, or there is no time to do it again."""
        since = self._since.get(site, LATEST)
        return since < AFRESH or (since < LATEST and not budget.affords(("search", site)))

    def _measure(
        self, site: Site, geometry: LayerGeometry, weight: Tensor, behind: NormalizerSeen | None, warm: bool
    ) -> Tensor:
        wide = weight if weight.dtype in (torch.float32, torch.float64) else weight.float()
        scale = None
        if behind is not None:
            gains = normalizer_probe.constant(behind.divisor, behind.free, behind.eps).amax(0)
            largest = normalizer_probe.scales(behind)
            gains = gains if largest is None else gains * largest
            scale = gains if gains.numel() == geometry.channels else gains.amax()
        sizes = _least(wide.abs().amax())[None]  # squares of extreme weights would leave the range of float32
        wide = wide / sizes
        if scale is not None:
            most = _least(scale.amax())
            scale, sizes = scale / most, torch.stack([sizes[0], most.to(sizes)])
        norms = len(sizes)
        known = None if site not in self._warm else self._warm[site].to(wide)
        draw = self._generator(wide.device)
        try:
            if warm and known is not None and self._shapes[site] == (norms, geometry.shape):
                estimate = followed(geometry, wide, known, scale, draw)
                self._since[site] += 1
            else:
                estimate = settled(geometry, wide, known, scale, draw)
                self._since[site] = 1
        except torch.linalg.LinAlgError:  # values that are not finite
            nothing = sizes.new_full((1,), float("nan"))
            if behind is None:
                return torch.cat([nothing, nothing])
            bare, error = self._measure(site, geometry, weight, None, warm).split(1)  # the weight itself may be
            return torch.cat([bare, nothing, error, nothing])
        self._warm[site] = estimate.vectors.to(torch.bfloat16)  # they only say where the next search starts
        self._shapes[site] = (norms, geometry.shape)
        return torch.cat([estimate.norms.log10() + sizes.log10().cumsum(0), estimate.errors])

    def _generator(self, device: torch.device) -> torch.Generator:
        """Return random numbers of our own: those of the user are left alone."""
        place = device if device.type in ("cpu", "cuda") else torch.device("cpu")
        if place not in self._generators:
            self._generators[place] = torch.Generator(place).manual_seed(0)
        return self._generators[place]


def _least(size: Tensor) -> Tensor:
    """Return a size that can be divided by."""
    return size.clamp(min=TINY)
