"""The operator norms of all weight layers: measured with warm vectors in turns, carried on in between.

`NormTracker` measures on the device. `WeightNorms` says on the host where the norms of a layer stand, how old they are,
and how far they may be off. `OperatorNorms` is the probe of both.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ....core.whole_weights import gather_whole
from ....listening.calls import LayerGeometry, NormalizerSeen, Site
from ....products.followed_norms import (
    MAX_SEARCH_STEPS,
    MAX_STACKED_BYTES,
    SEARCH_STEPS,
    LayerStack,
    NormEstimates,
    NormSearch,
    follow_norms,
    read_norms,
)
from ..schedule import MAX_LEFT_OUT, Tier, TimeBudget, Turns
from ..transfer import Arriving
from ..watched_layers import UNCHAINED
from .normalizers import GAIN, VARIANCE, Normalizers, group_scales, jacobian_norm
from .quantity import Probe, Quantity, RecordDraft, sum_measured
from .sizes import SIZE, Sizes

NORM = Quantity("weight", "log10_norm", "the operator norm of the layer, where it is known well enough to be shown")
FOLDED = Quantity("weight", "log10_folded", "that of the layer with the normalizer behind it")
NORM_ERROR = Quantity("weight", "norm_error", "decades by which the norm may be off")
FOLDED_ERROR = Quantity("weight", "folded_error", "decades by which the folded norm may be off")
NORM_AGE = Quantity("weight", "norm_age", "steps since the norms were measured")
PRINTED = Quantity("network", "log10_printed", "the product of the norms of all layers")
FOLDED_PRODUCT = Quantity("network", "log10_folded", "the product of the folded norms, and of the other normalizers")
Stack = tuple[Site, ...]
AFRESH_TURNS = 4
"""Turns of layers after which their norms are searched for from the start, where there is time for it: another
direction may be the largest now, and steps from those that were known are slow to meet it."""
EARLY_TURNS = 6
"""Turns of every layer that are taken as soon as there is time for them, to see how fast norms move at the start."""
PART_STEPS = 6
"""Steps of a search that are taken at once where time is limited."""
CAUTIOUS_TIMES = 20
"""Behind a part of unknown cost another one is taken if there is time for this many of its kind: the first ones on a
device load what they need, and never all at once."""
READABLE_DECADES = 0.02
"""A norm is shown only if it is off by no more than this, in decades."""
DRIFT_CAUTION = 3.0
"""A norm that is not measured anew is taken to move at most this many times as fast as it last did."""
DRIFT_MEMORY = 0.4
"""What is kept of the drift that was known before: a layer that was calm for a turn may move again."""


@dataclass(slots=True)
class _Search:
    """A search that goes on, over several records perhaps, and the step whose weights it is of."""

    search: NormSearch
    step: int


class NormTracker:
    """Keeps the warm vectors of all weight layers; those of one shape are measured together.

    Where time is limited a search is taken in parts, one measured step after the other, on copies of the weights that
    it began with: what it finds is of that step. Once it is known how fast norms move, layers of one shape have their
    turn in a record: ages of some records are no harm, and most of the time is left to the run.
    """

    def __init__(self) -> None:
        self._warm: dict[Stack, Tensor] = {}
        self._since: dict[Stack, int] = {}  # turns since the last search
        self._steps: dict[Stack, int] = {}  # of the next search
        self._searches: dict[Stack, _Search] = {}  # one at most where time is limited
        self._turns: Turns[Stack] = Turns()
        self._generators: dict[torch.device, torch.Generator] = {}
        self._idle_records = 0

    def doubt(self, reading: NormReading) -> None:
        """Search for norms from the start the next time, with more steps than a search that was not enough."""
        self._since.pop(reading.sites, None)
        if reading.steps:
            self._steps[reading.sites] = min(2 * reading.steps, MAX_SEARCH_STEPS)

    def measure(
        self,
        layers: Mapping[Site, tuple[LayerGeometry, Tensor]],
        normalizer: Callable[[Site], NormalizerSeen | None],
        *,
        step: int,
        tier: Tier,
        budget: TimeBudget,
        due: AbstractSet[Site] = frozenset(),
    ) -> list[tuple[NormReading, Tensor]]:
        """Measure the norms of layers in turn, alone and folded with the normalizer behind if there is one.

        Args:
            layers: how each layer was called, and its weight.
            normalizer: says what the normalizer behind a layer normalized on this batch.
            step: the present step.
            tier: the full one searches from the start every time.
            budget: layers it does not reach have to wait.
            due: layers whose last norm says little by now.

        Returns:
            What says how the norms of some layers are read, and the numbers that they are read from.
        """
        stacks = _stack_sites(layers)
        urgent = {stack for stack in stacks if not due.isdisjoint(stack)}
        limited = budget.share is not None
        self._searches = {stack: search for stack, search in self._searches.items() if stack in stacks}
        # without a limit all have their turn, in the same order in every process
        order = self._order(stacks, urgent) if limited else stacks
        if limited and all(self._turns.of(stack) >= EARLY_TURNS for stack in stacks):
            order = order[:1]
        measured: list[tuple[NormReading, Tensor]] = []
        waited, self._idle_records = self._idle_records >= MAX_LEFT_OUT - 1, self._idle_records + 1
        for stack in order:
            finished = False
            while not finished:
                task = self._choose_task(stack, tier, budget, stack in urgent)
                is_new = not budget.knows(task)
                if limited and not budget.affords(task):
                    if not waited:
                        return measured
                    if not self._turns.of(stack) and stack not in self._searches:
                        break  # the first time loads what it needs and takes long: the turn of another one
                waited, self._idle_records = False, 0
                finished = True
                with budget.watching(task), contextlib.suppress(RuntimeError):  # one odd layer is left out
                    norms = self._take_part(stack, layers, normalizer, task, step, limited)
                    finished = norms is not None
                    measured += [] if norms is None else [norms]
                budget.end_task(task)
                if finished:
                    self._searches.pop(stack, None)
                    self._turns.serve(stack)
                if is_new and not budget.affords(task, CAUTIOUS_TIMES):
                    return measured
        return measured

    def _order(self, stacks: list[Stack], urgent: AbstractSet[Stack]) -> list[Stack]:
        """Return whose turn it is: searches that go on, who was never measured, cannot wait, or has waited longest."""
        turns = self._turns.order(stacks, urgent)
        return sorted(turns, key=lambda stack: (stack not in self._searches, self._turns.of(stack) > 0))

    def _choose_task(self, stack: Stack, tier: Tier, budget: TimeBudget, urgent: bool) -> tuple[str, Stack]:
        """Return whether layers are searched for or followed: those that move fast are soon lost by a few steps."""
        search, since = ("search", stack), self._since.get(stack)
        if since is None or tier is Tier.FULL or stack in self._searches:
            return search
        # norms that move fast are of little use if they are those of a while ago
        parts = -(-self._steps.get(stack, SEARCH_STEPS) // PART_STEPS)
        if (urgent and budget.affords(search, parts)) or (since >= AFRESH_TURNS and budget.affords(search)):
            return search
        return "follow", stack

    def _take_part(
        self,
        stack: Stack,
        layers: Mapping[Site, tuple[LayerGeometry, Tensor]],
        normalizer: Callable[[Site], NormalizerSeen | None],
        task: tuple[str, Stack],
        step: int,
        limited: bool,
    ) -> tuple[NormReading, Tensor] | None:
        """Take a part of a search, or follow norms; return them once they are there."""
        current = self._searches.get(stack)
        if current is None:
            together = _stack_layers(layers, stack, [normalizer(site) for site in stack])
            draw, warm = self._generator(together.like.device), self._warm.get(stack)
            if task[0] == "follow" and warm is not None and warm.shape == together.followed_shape:
                self._since[stack] += 1
                return self._read(stack, together, follow_norms(together, warm.to(together.like), draw), step)
            current = _Search(NormSearch(together, draw, self._steps.get(stack, SEARCH_STEPS)), step)
        search = current.search
        if limited:
            search.advance(PART_STEPS)
        if limited and search.steps_left:
            if stack not in self._searches:
                search.layers.keep_weights()
                self._searches[stack] = current
            return None
        self._since[stack] = 1
        return self._read(stack, search.layers, search.finish(), current.step)

    def _read(
        self, stack: Stack, layers: LayerStack, estimates: NormEstimates, step: int
    ) -> tuple[NormReading, Tensor]:
        self._warm[stack] = estimates.vectors.to(torch.bfloat16)  # they only say where the next step starts
        reading = NormReading(sites=stack, norms=layers.norms, steps=estimates.steps, size=layers.size, step=step)
        return reading, estimates.numbers

    @property
    def begun(self) -> dict[Site, int]:
        """The layers that are searched for, and the step at which that began."""
        return {site: search.step for stack, search in self._searches.items() for site in stack}

    def _generator(self, device: torch.device) -> torch.Generator:
        """Return random numbers of our own: those of the user are left alone."""
        place = device if device.type in ("cpu", "cuda") else torch.device("cpu")
        if place not in self._generators:
            self._generators[place] = torch.Generator(place).manual_seed(0)
        return self._generators[place]


def _stack_sites(layers: Mapping[Site, tuple[LayerGeometry, Tensor]]) -> list[Stack]:
    """Return which layers are measured together: those of one shape, as far as copies of their weights are small."""
    alike: dict[Hashable, list[list[Site]]] = {}
    for site, (geometry, weight) in layers.items():
        single = site if geometry.kind == "other" else None
        key = (
            single,
            geometry.kind,
            geometry.shape,
            repr(geometry.settings),
            weight.shape,
            weight.dtype,
            weight.device,
        )
        stacks = alike.setdefault(key, [[]])
        most = MAX_STACKED_BYTES.get(weight.device.type, 0) // max(weight.numel() * weight.element_size(), 1)
        if len(stacks[-1]) >= max(most, 1):
            stacks.append([])
        stacks[-1].append(site)
    return [tuple(sites) for stacks in alike.values() for sites in stacks]


def _stack_layers(
    layers: Mapping[Site, tuple[LayerGeometry, Tensor]], stack: Stack, behind: list[NormalizerSeen | None]
) -> LayerStack:
    """Return layers of one shape, with the normalizers behind them if each has one."""
    geometry = layers[stack[0]][0]
    weights = [_widen(gather_whole(layers[site][1])) for site in stack]
    seen = [one for one in behind if one is not None]
    scales = [_channel_scales(one, geometry.channels) for one in seen] if len(seen) == len(stack) else None
    return LayerStack(geometry, weights, None if scales is None else torch.stack(scales))


def _widen(weight: Tensor) -> Tensor:
    return weight if weight.dtype in (torch.float32, torch.float64) else weight.float()


def _channel_scales(behind: NormalizerSeen, channels: int) -> Tensor:
    """Return by how much a normalizer stretches each of the channels that enter it, at most."""
    gains = jacobian_norm(behind.divisor, behind.free, behind.eps).amax(0)
    largest = group_scales(behind)
    gains = gains if largest is None else gains * largest
    return gains.reshape(-1) if gains.numel() == channels else gains.amax().expand(channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class NormReading:
    """How the norms of some layers are read from the numbers that arrive.

    Attributes:
        sites: the layers.
        norms: 2 where they are folded with normalizers.
        steps: the steps of the search; 0 where they were followed.
        size: entries of their vectors.
        step: the step whose weights were measured.
    """

    sites: tuple[Site, ...]
    norms: int
    steps: int
    size: int
    step: int

    def read(self, numbers: np.ndarray) -> dict[Site, tuple[list[float], list[float]]]:
        """Return log10 of the norms of every layer, alone and folded, and their errors in decades."""
        norms, errors = read_norms(numbers, layers=len(self.sites), norms=self.norms, steps=self.steps, size=self.size)
        return dict(zip(self.sites, zip(norms.tolist(), errors.tolist(), strict=True), strict=True))


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


# ---- the probe


@dataclass(slots=True)
class NormMemory:
    """What earlier steps found of the norms.

    Attributes:
        tracker: the vectors that the next measurement of each norm starts from.
        last: the norms when they were last measured.
        begun: log10 of the size of a weight, and the level of the normalizer behind it, when a search for its norm
            began that goes on.
    """

    tracker: NormTracker = field(default_factory=NormTracker)
    last: dict[Site, WeightNorms] = field(default_factory=dict)
    begun: dict[Site, tuple[float | None, float | None]] = field(default_factory=dict)


class OperatorNorms(Probe):
    """Measures the norms whose turn it is, and carries on the others."""

    quantities = (NORM, FOLDED, NORM_ERROR, FOLDED_ERROR, NORM_AGE, PRINTED, FOLDED_PRODUCT)
    Memory = NormMemory
    _readings: Sequence[tuple[NormReading, Arriving]] = ()
    _begun: AbstractSet[Site] = frozenset()  # layers that a search began for that goes on
    _ran: AbstractSet[Site] = frozenset()  # weight layers that the forward was seen to run

    def before_step(self) -> None:
        step, forward = self.step, self.step.forward
        self._readings, self._begun, self._ran = (), frozenset(), frozenset()
        if forward is None:
            return

        def normalizer(site: Site) -> NormalizerSeen | None:
            behind = step.subject.feeds.get(site)
            return None if behind is None else forward.normalizer(behind)

        memory, layers = self.memory, {}
        for site in step.subject.places["weight"]:
            weight = forward.weights.get(site)  # None for layers that did not run this time
            if weight is not None and (weight.made is not None or weight.parameters[0] in step.parameters):
                tensor = weight.made if weight.made is not None else step.parameters[weight.parameters[0]]
                layers[site] = weight.geometry, tensor
        due = {site for site in layers if site in memory.last and memory.last[site].is_due(step.number)}
        norms = memory.tracker.measure(
            layers, normalizer, step=step.number, tier=step.tier, budget=step.budget, due=due
        )
        self._readings = [(reading, step.send(numbers)) for reading, numbers in norms]
        self._begun = {site for site, number in memory.tracker.begun.items() if number == step.number}
        self._ran = set(forward.weights)
        forward.weights = {}  # some weights were made for this forward alone

    def fill(self, record: RecordDraft) -> None:
        norms, subject = self._carry_on(), self.step.subject
        folded = [None if norm is None else norm.folded for norm in norms]
        record.column(NORM, [None if norm is None else norm.bare.shown for norm in norms])
        record.column(FOLDED, [None if figure is None else figure.shown for figure in folded])
        record.column(NORM_ERROR, [None if norm is None else norm.bare.error for norm in norms])
        record.column(FOLDED_ERROR, [None if figure is None else figure.error for figure in folded])
        record.column(NORM_AGE, [None if norm is None else float(self.step.number - norm.step) for norm in norms])
        layers = zip(subject.of("weight"), norms, strict=True)
        chain = [norm for layer, norm in layers if layer.family not in UNCHAINED and norm is not None]
        fed = {layer.normalizer for layer in subject.of("weight")}
        gains = zip(subject.of("normalizer"), self.step.probe(Normalizers).column(GAIN), strict=True)
        free = [gain for layer, gain in gains if layer.name not in fed]
        record.network(PRINTED, sum_measured([norm.bare.log10 for norm in chain]))
        record.network(FOLDED_PRODUCT, sum_measured([*((norm.folded or norm.bare).log10 for norm in chain), *free]))

    def _carry_on(self) -> list[WeightNorms | None]:
        """Return the norms of every weight layer, with those that were measured in their memory."""
        subject, sizes = self.step.subject, self.step.probe(Sizes)
        variances = zip(subject.places["normalizer"], self.step.probe(Normalizers).column(VARIANCE), strict=True)
        levels = {site: level for site, level in variances if level is not None}
        measured: dict[Site, tuple[int, list[float], list[float]]] = {}
        for reading, sent in self._readings:
            read = reading.read(sent.numbers)
            measured |= {site: (reading.step, *norms) for site, norms in read.items()}
            if not all(error <= READABLE_DECADES for _, errors in read.values() for error in errors):
                self.memory.tracker.doubt(reading)
        norms = []
        for site, names in zip(subject.places["weight"], self.step.followed(), strict=True):
            # without the bias, which is no part of the map; and the size of a weight made of others says little
            size = sizes.log10_joined(SIZE, () if site in subject.made else names[:1])
            norms.append(
                self._carry_on_layer(site, measured.get(site), size, levels.get(subject.feeds.get(site, site)))
            )
        return norms

    def _carry_on_layer(
        self, site: Site, measured: tuple[int, list[float], list[float]] | None, size: float | None, level: float | None
    ) -> WeightNorms | None:
        """Return the norms of a layer with a weight of a given size: those of the last time, carried on to this step.

        Args:
            site: the layer.
            measured: the step that norms are of, log10 of them alone and folded, and their errors.
            size: log10 of the size of the weight.
            level: that of the normalizer behind it.
        """
        memory, step = self.memory, self.step.number
        if site in self._begun:
            memory.begun[site] = (size, level)
        last = memory.last.get(site)
        then = (size, level) if measured is None or measured[0] == step else memory.begun.pop(site, None)
        if measured is not None and then is not None:  # else the record of the step that it is of was lost
            (at, norms, errors), (size_then, level_then) = measured, then
            bare, *folded = (NormFigure(log10=n, error=e) for n, e in zip(norms, errors, strict=True))
            fold = folded[0] if folded and level_then is not None else None
            now = WeightNorms(bare=bare, folded=fold, step=at, size=size_then, level=level_then)
            last = now if last is None else now.corrected(last.carried(at, size_then, level_then))
            memory.last[site] = last
            if at == step:
                return last
        return None if last is None or site not in self._ran else last.carried(step, size, level)
