"""Stages on tori of a chosen size: the frequencies, and every step's matrices at each of them.

On the stage's own torus (or any larger one of fit sizes) a run gives a bound. On a smaller torus the same steps see a
sample of the frequencies: no bound, but a cheap guide to good multipliers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..ellipsoids.ellipsoid import Uncertain
from ..ellipsoids.ellipsoid_plan import EllipsoidPlan, EllipsoidStep, StateChange
from .stage import Bend, Close, Move, Tail, TorusStage
from .stencil import Grid

_CACHED = {"cpu": 1e9, "cuda": 2e10}
"""Bytes of linear maps that are kept between runs; beyond, they are computed anew."""


class Torus:
    """Frequencies of a torus, one of each conjugate pair, and where to find all of them.

    Attributes:
        sizes: entries per axis.
        frequencies: `[F, axes]`, integers.
        weights: `[F]`, 2 where a frequency stands for a pair.
        place, flip: for all frequencies in row-major order, the index of the one kept, and whether it is the conjugate.
    """

    def __init__(self, sizes: Grid, device: torch.device) -> None:
        self.sizes = sizes
        lines = [torch.arange(size, device=device) for size in sizes]
        points = torch.cartesian_prod(*lines).reshape(-1, len(sizes))
        code, mirrored = self.code(points), self.code(-points)
        kept = code <= mirrored
        self.frequencies = points[kept]
        self.weights = 2.0 - (code == mirrored)[kept].double()
        self.flip = ~kept
        rank = kept.cumsum(0) - 1
        self.place = rank[torch.minimum(code, mirrored)]

    def code(self, points: Tensor) -> Tensor:
        """Return the row-major place of integer frequencies `[*, axes]`."""
        result = torch.zeros_like(points[..., 0])
        for axis, size in enumerate(self.sizes):
            result = result * size + points[..., axis] % size
        return result


class FieldMaps:
    """Fields as linear maps of a state, at the frequencies of a torus: `[F, aliases, rows, columns]`.

    Args:
        stage: where the fields are.
        names: the fields.
        bases: the fields of the state.
        turns: `[F, aliases, axes]`, per entry of the stage's finest torus.
        cached: whether to keep the result.
    """

    def __init__(
        self, stage: TorusStage, names: Sequence[str], bases: Sequence[str], turns: Tensor, *, cached: bool
    ) -> None:
        self.stage, self.names, self.bases, self.turns, self.cached = stage, tuple(names), tuple(bases), turns, cached
        self._kept: Tensor | None = None
        self.height = sum(stage.fields[name].channels for name in names)
        self.width = sum(stage.fields[name].channels for name in bases)

    @property
    def same(self) -> bool:
        """Whether this is the state itself."""
        return self.names == self.bases

    def __call__(self, part: slice) -> Tensor:
        """Return the matrices of some frequencies."""
        if not self.cached:
            return self._compute(self.turns[part])
        if self._kept is None:
            self._kept = self._compute(self.turns)
        return self._kept[part]

    def _compute(self, turns: Tensor) -> Tensor:
        with torch.no_grad():
            return self.stage.rows(self.names, self.bases, turns.flatten(0, 1)).unflatten(0, turns.shape[:2])


@dataclass(frozen=True, slots=True)
class StateShift:
    """The state goes over to other fields; every frequency reads its aliases `[F, aliases]`, some as conjugates."""

    rows: FieldMaps
    index: Tensor
    flip: Tensor


@dataclass(frozen=True, slots=True)
class Wave:
    """A nonlinear step at every frequency (its own form is `rows`)."""

    step: EllipsoidStep
    rows: FieldMaps


@dataclass(frozen=True, slots=True)
class Peak:
    """The stage ends with the largest eigenvalue of a field."""

    name: str
    rows: FieldMaps
    log10_gain: float


@dataclass(frozen=True, slots=True)
class Sink:
    """The stage ends in a dense plan.

    Attributes:
        plan: the plan, without its first matrix.
        rows: that matrix at the frequencies of the last torus, `[F, K, n]`.
        weights: `[F]`, how many frequencies each stands for.
        index, flip: the frequencies of the state that are read, and which as conjugates.
        ends: whether the first matrix gives the output itself.
    """

    plan: EllipsoidPlan
    rows: Tensor
    weights: Tensor
    index: Tensor
    flip: Tensor
    ends: bool


@dataclass(frozen=True, slots=True)
class Pool:
    """The stage ends in a dense plan over sums of fields: their ellipsoid is a weighted sum over frequencies."""

    plan: EllipsoidPlan
    rows: FieldMaps
    weights: Tensor


@dataclass(frozen=True, slots=True)
class Ready:
    """A stage on tori of a chosen size."""

    frequencies: int
    start: Tensor
    log10_start: float
    operations: tuple[StateShift | Wave, ...]
    end: Peak | Sink | Pool

    @property
    def steps(self) -> tuple[EllipsoidStep, ...]:
        """The nonlinear steps, those of the dense plan included."""
        own = tuple(operation.step for operation in self.operations if isinstance(operation, Wave))
        return own if isinstance(self.end, Peak) else own + self.end.plan.steps

    @property
    def cost(self) -> float:
        """About how many multiplications of real numbers one run takes."""
        total = 0.0
        for operation in self.operations:
            rows = operation.rows
            if isinstance(operation, StateShift):
                total += operation.index.numel() * rows.height * rows.width * (rows.height + rows.width)
            else:
                n, kept = rows.height, operation.step.kept.numel()
                total += rows.turns.shape[0] * (2.0 * n**3 + n * rows.width**2 + 3.0 * n * n * kept + 2.0 * n * kept**2)
        last = self.end.rows
        if isinstance(last, FieldMaps):
            return 4.0 * (total + last.turns.shape[0] * last.height * (last.width**2 + last.height**2))
        return 4.0 * (total + last.numel() * (last.shape[-1] + last.shape[-2]))

    def memory(self, *, gradient: bool) -> float:
        """About how many bytes a run holds, the linear maps not counted."""
        held = []
        for operation in self.operations:
            rows = operation.rows
            kept = operation.step.kept.numel() if isinstance(operation, Wave) else 0
            held.append(16.0 * operation.rows.turns.shape[0] * max(rows.width, rows.height + kept) ** 2)
        return 4.0 * sum(held) if gradient else 4.0 * max(held, default=0.0)


def ready(stage: TorusStage, sizes: Grid, device: torch.device) -> Ready:
    """Put a stage on a torus of the given sizes, multiples of the stage's unit."""
    tori: dict[Grid, Torus] = {}

    def torus(level: Grid) -> Torus:
        if level not in tori:
            tori[level] = Torus(tuple(n // step for n, step in zip(sizes, level, strict=True)), device)
        return tori[level]

    finest = torch.tensor(sizes, dtype=torch.float64, device=device)
    memory = sum(torus(stage.fields[name].level).frequencies.shape[0] * 16.0 * w for name, w in _widths(stage))
    cached = memory <= _CACHED[device.type]
    operations: list[StateShift | Wave] = []
    for operation in stage.operations:
        here = torus(stage.fields[operation.bases[0]].level)
        if isinstance(operation, Move):
            there = torus(stage.fields[operation.names[0]].level)
            aliases = _aliases(there, here)
            code = here.code(aliases)
            rows = FieldMaps(stage, operation.names, operation.bases, aliases / finest, cached=cached)
            operations.append(StateShift(rows, here.place[code], here.flip[code]))
        else:
            turns = here.frequencies[:, None] / finest
            rows = FieldMaps(stage, (operation.operand,), operation.bases, turns, cached=cached)
            operations.append(Wave(_step(stage, operation, device), rows))
    last = torus(stage.fields[stage.end.bases[0]].level)
    end: Peak | Sink | Pool
    if isinstance(stage.end, Tail) and not stage.end.summed:
        end = _sink(stage, stage.end, last, device)
    else:
        names = (stage.end.operand,) if isinstance(stage.end, Close) else stage.end.summed
        rows = FieldMaps(stage, names, stage.end.bases, last.frequencies[:, None] / finest, cached=cached)
        if isinstance(stage.end, Close):
            end = Peak(stage.end.operand, rows, stage.end.log10_gain)
        else:
            end = Pool(stage.end.plan, rows, _sums(stage, stage.end, last, device))
    top = max(stage.start.values())
    start = torch.cat(
        [
            torch.full((stage.fields[name].channels,), 10.0 ** (2.0 * (log - top)), dtype=torch.float64, device=device)
            for name, log in stage.start.items()
        ]
    )
    return Ready(torus((1,) * len(sizes)).frequencies.shape[0], start.to(torch.complex128), top, tuple(operations), end)


def _widths(stage: TorusStage) -> Iterator[tuple[str, float]]:
    """Entries of the linear maps of a stage at one frequency, with a field on its torus."""
    for operation in stage.operations:
        names = operation.names if isinstance(operation, Move) else (operation.operand,)
        width = sum(stage.fields[base].channels for base in operation.bases)
        yield operation.bases[0], float(width * sum(stage.fields[name].channels for name in names))


def _aliases(there: Torus, here: Torus) -> Tensor:
    """Return the frequencies `[F, aliases, axes]` of the finer torus `here` that fold onto each one of `there`."""
    device = there.frequencies.device
    ratios = [fine // coarse for fine, coarse in zip(here.sizes, there.sizes, strict=True)]
    turns = torch.cartesian_prod(*(torch.arange(ratio, device=device) for ratio in ratios)).reshape(-1, len(ratios))
    return there.frequencies[:, None] + turns * torch.tensor(there.sizes, device=device)


def _step(stage: TorusStage, bend: Bend, device: torch.device) -> EllipsoidStep:
    """Return what is known of an activation per channel."""
    low, high = bend.slope
    size = stage.fields[bend.name].channels
    centre = torch.full((size,), (low + high) / 2, dtype=torch.float64, device=device)
    radius = torch.full((size,), (high - low) / 2, dtype=torch.float64, device=device)
    flags = [torch.full((stage.fields[base].channels,), base in bend.kept, device=device) for base in bend.bases]
    kept = torch.cat(flags).nonzero()[:, 0]
    known = Uncertain(centre, radius, size, everywhere=(high - low) > 0.1 * abs(high + low))
    return EllipsoidStep(bend.name, None, kept, known)


def _own(stage: TorusStage, tail: Tail, last: Torus, device: torch.device) -> tuple[Torus, Tensor]:
    """Return the torus of a stage's last fields at its own size, and the nearest frequency of `last` to each there."""
    level = stage.fields[tail.bases[0]].level
    own = Torus(tuple(n // step for n, step in zip(stage.sizes, level, strict=True)), device)
    ratio = torch.tensor(last.sizes, device=device) / torch.tensor(own.sizes, device=device)
    return own, last.code((own.frequencies * ratio).round().long())


def _sums(stage: TorusStage, tail: Tail, last: Torus, device: torch.device) -> Tensor:
    """Return the weight of every frequency of `last` in the ellipsoid of sums over a grid."""
    own, code = _own(stage, tail, last, device)
    grid = stage.fields[tail.summed[0]].grid
    ones = torch.full(grid, tail.factor, dtype=torch.float64, device=device)
    waves = torch.fft.fftn(ones, s=own.sizes, norm="ortho").flatten()[own.code(own.frequencies)]
    weights = torch.zeros(last.frequencies.shape[0], dtype=torch.float64, device=device)
    return weights.index_add_(0, last.place[code], waves.abs().square() * own.weights)


def _sink(stage: TorusStage, tail: Tail, last: Torus, device: torch.device) -> Sink:
    """Transform the first matrix of a dense plan on the stage's own torus, its frequencies read at the nearest."""
    first = tail.plan.operations[0] if tail.plan.operations else None
    matrix = first.matrix if isinstance(first, StateChange) else tail.plan.output
    own, code = _own(stage, tail, last, device)
    blocks, column = [], 0
    for base in tail.bases:
        field = stage.fields[base]
        size = field.channels * math.prod(field.grid)
        values = matrix[:, column : column + size].reshape(-1, field.channels, *field.grid)
        column += size
        axes = tuple(range(2, values.ndim))
        waves = torch.fft.fftn(values, s=own.sizes, dim=axes, norm="ortho").flatten(2).conj()
        blocks.append(waves[:, :, own.code(own.frequencies)])
    rows = torch.cat(blocks, dim=1).movedim(2, 0).contiguous()
    return Sink(tail.plan, rows, own.weights, last.place[code], last.flip[code], ends=first is None)
