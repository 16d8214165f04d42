"""The operator norms of all weight layers: measured with warm vectors in turns, carried on in between.

`NormTracker` measures on the device. `WeightNorms` says on the host where the norms of a layer stand, how old they are,
and how far they may be off.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..listening.calls import LayerGeometry, NormalizerSeen, Site
from .probes import normalizer_probe
from .probes.weight_probe import MIN_DIVISOR, follow_norms, search_norms
from .schedule import Tier, TimeShare, Turns

AFRESH_TURNS, LATEST_TURNS = 4, 20
"""Turns of a layer after which its norm is searched for from the start, where there is time for it, and at the latest:
another direction may be the largest now, and steps from those that were known are slow to meet it."""
READABLE_DECADES = 0.02
"""A norm is shown only if it is off by no more than this, in decades."""
DRIFT_CAUTION = 3.0
"""A norm that is not measured anew is taken to move at most this many times as fast as it last did."""
DRIFT_MEMORY = 0.4
"""What is kept of the drift that was known before: a layer that was calm for a turn may move again."""


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
        norms = {}
        allowed = TimeShare(None) if due is None else budget
        for site in self._turns.affordable(sites, allowed, due or ()):
            warm = self._is_warm(site, allowed) and tier != Tier.FULL
            task = ("norm" if warm else "search", site)
            with (
                budget.spending(task, free=due is None),
                contextlib.suppress(RuntimeError),
            ):  # one odd layer is left out
                norms[site] = self._measure(site, *layer(site), warm)
        return norms

    def _is_warm(self, site: Site, budget: TimeShare) -> bool:
        """Whether a layer is followed: it was searched for a few turns ago, or there is no time to do it again."""
        since = self._since.get(site, LATEST_TURNS)
        return since < AFRESH_TURNS or (since < LATEST_TURNS and not budget.affords(("search", site)))

    def _measure(
        self, site: Site, geometry: LayerGeometry, weight: Tensor, behind: NormalizerSeen | None, warm: bool
    ) -> Tensor:
        wide = weight if weight.dtype in (torch.float32, torch.float64) else weight.float()
        scale = None
        if behind is not None:
            gains = normalizer_probe.jacobian_norm(behind.divisor, behind.free, behind.eps).amax(0)
            largest = normalizer_probe.group_scales(behind)
            gains = gains if largest is None else gains * largest
            scale = gains if gains.numel() == geometry.channels else gains.amax()
        sizes = (
            wide.abs().amax().clamp(min=MIN_DIVISOR)[None]
        )  # squares of extreme weights would leave the range of float32
        wide = wide / sizes
        if scale is not None:
            most = scale.amax().clamp(min=MIN_DIVISOR)
            scale, sizes = scale / most, torch.stack([sizes[0], most.to(sizes)])
        norms = len(sizes)
        vectors = None if site not in self._warm else self._warm[site].to(wide)
        draw = self._generator(wide.device)
        try:
            if warm and vectors is not None and self._shapes[site] == (norms, geometry.shape):
                estimate = follow_norms(geometry, wide, vectors, scale, draw)
                self._since[site] += 1
            else:
                estimate = search_norms(geometry, wide, vectors, scale, draw)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NormFigure:
    """One norm of a layer: alone, or with the normalizer behind it.

    Attributes:
        log10: of the norm.
        error: decades by which it may be off.
        drift: decades a step by which it was off where it was carried on; infinite if that is not known.
        over: steps over which that was seen.
    """

    log10: float
    error: float
    drift: float = math.inf
    over: int = 1

    @property
    def shown(self) -> float | None:
        """The figure, if it can be read."""
        return None if self.error > READABLE_DECADES else self.log10

    def error_after(self, age: int) -> float:
        """Return by how many decades it may be off some steps later.

        Over more steps than the drift was seen over, it may have gone on to grow with every step.
        """
        return self.error if age == 0 else self.error + DRIFT_CAUTION * self.drift * age * max(1.0, age / self.over)

    def carried(self, grown: float, age: int) -> NormFigure:
        """Return what it is some steps later, if all that has happened is a known growth."""
        return replace(self, log10=self.log10 + grown, error=self.error_after(age))

    def corrected(self, carried: NormFigure, age: int) -> NormFigure:
        """Return the norm as measured, with how far the one that was carried on to here was off."""
        past = 0.0 if math.isinf(carried.drift) else DRIFT_MEMORY * carried.drift
        over = max(age, 1)
        return replace(self, drift=max(abs(_growth(carried.log10, self.log10)) / over, past), over=over)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNorms:
    """The norms of a weight layer.

    Attributes:
        bare: alone.
        folded: with the normalizer behind it, if it feeds one.
        step: when they were measured.
        size: log10 of the l2 norm of the weight at that time.
        level: the mean of log10 of the variances into the normalizer behind it, at that time.
    """

    bare: NormFigure
    folded: NormFigure | None
    step: int
    size: float | None = None
    level: float | None = None

    def carried(self, step: int, size: float | None, level: float | None) -> WeightNorms:
        """Return what they are at a later step, if the layer has only grown as its size has.

        Folded with a normalizer it has also shrunk as the typical deviation there has grown.
        """
        grown, age = _growth(self.size, size), step - self.step
        grown = math.nan if size is not None and math.isnan(size) else grown
        folded = self.folded and self.folded.carried(grown - _growth(self.level, level) / 2.0, age)
        return replace(self, bare=self.bare.carried(grown, age), folded=folded)

    def is_due(self, step: int) -> bool:
        """Return whether one of them could not be shown at a later step unless it is measured again."""
        figures = (self.bare,) if self.folded is None else (self.bare, self.folded)
        return any(figure.error_after(step - self.step) > READABLE_DECADES for figure in figures)

    def corrected(self, carried: WeightNorms) -> WeightNorms:
        """Return the norms as measured, with how far those that were carried on to here were off."""
        age = self.step - carried.step
        folded = self.folded and carried.folded and self.folded.corrected(carried.folded, age)
        return replace(self, bare=self.bare.corrected(carried.bare, age), folded=folded or self.folded)


def _growth(then: float | None, now: float | None) -> float:
    """Return by how much a logarithm has grown; 0 where either is not known."""
    return 0.0 if then is None or now is None or not math.isfinite(now - then) else now - then
