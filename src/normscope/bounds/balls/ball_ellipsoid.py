"""Reachable ellipsoids over a ball: the engine of `ellipsoid.py` for what primitives do there, for all centres at once.

The state is a matrix Q over the stacked *sources* still needed (inputs and primitives) with dg dg^T <= norm(dx)^2 Q for
any two inputs of the ball. A primitive u with du = sum of M dv + dw, norm(dw/o) <= norm(dv) on every block, carries it
on as one step of that engine: v are the stacked operands, the multipliers are one number per block, and dw adds the sum
of o^2/sigma.

The state (`EllipsoidState`) is fed primitive by primitive beside the enclosures, and tightens every value that is read.
Moves are kept: in the end a search runs them again with better multipliers, by Adam on shares and weights, every
iterate of which is feasible as it stands.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...core.budget import Budget
from ...core.rounding import gamma
from ..ellipsoids.ellipsoid import SHRUNK, advance, image_above, join_blocks, largest, raised, reach
from ..linalg.dense_form import moderate, writable
from ..linalg.linear_map import Identity, LinearMap
from ..linalg.operator_norms import WRITTEN
from ..minimise import minimise
from ..operators.local.local import Affine, Enclosure, LocalForm, OperandShare, UnrolledStep, flat, wide
from ..segments import Form, UnrolledNetwork
from .enclosure import Enclosures, tidy


@dataclass(frozen=True, slots=True)
class EllipsoidOperand:
    """One operand of a primitive.

    Attributes:
        centre: the centre map, `[B, m]` if it is diagonal, `[B, m, n]` otherwise.
        weight: o, `[B, m]`.
        inner, outer: the block of every entry of the operand `[n]` and of the value `[m]`.
        ratio: `[B, blocks]`, o/(o + size of the centre map): what the best multiplier of a single block is made of.
    """

    centre: Tensor
    weight: Tensor
    inner: Tensor
    outer: Tensor
    ratio: Tensor

    @classmethod
    def of(cls, part: OperandShare, operand: tuple[int, ...], value: tuple[int, ...]) -> EllipsoidOperand:
        """Return the piece of a primitive's part; `operand` and `value` are the shapes."""
        batch, size = len(part.weight), math.prod(value)
        device = part.weight.device
        blocks = math.prod(operand[: part.blocks])
        inner = torch.arange(blocks, device=device).repeat_interleave(math.prod(operand[part.blocks :]))
        outer = torch.arange(blocks, device=device).repeat_interleave(math.prod(value[part.blocks :]))
        weight = flat(part.weight)
        if part.slopes is not None:
            centre = flat(part.slopes[0] + part.slopes[1]) / 2
            steep = centre.abs()
        else:
            eye = torch.eye(size, dtype=torch.float64, device=device).reshape(1, size, *value)
            centre = flat(part.pull(eye.expand(batch, size, *value)), 2)
            steep = wide(part.gain, weight).expand_as(weight)
        ratio = (weight / (weight + steep).clamp(min=1e-300)).reshape(batch, blocks, -1).amax(-1)
        return cls(centre, weight, inner, outer, ratio)


@dataclass(frozen=True, slots=True)
class Propagate:
    """A primitive: its stacked operands as a matrix over the state, what is kept of the state, and its pieces."""

    form: Tensor
    kept: Tensor
    pieces: tuple[EllipsoidOperand, ...]

    @property
    def centre(self) -> Tensor:
        """The centre maps of all operands, side by side; one slope per entry if a single one is diagonal."""
        if len(self.pieces) == 1:
            return self.pieces[0].centre
        maps = [torch.diag_embed(p.centre) if p.centre.ndim == 2 else p.centre for p in self.pieces]
        return torch.cat(maps, -1)


@dataclass(frozen=True, slots=True)
class Restart:
    """A value known by its constant `[B]` alone, of `size` entries, beside what is kept of the state."""

    constant: Tensor
    size: int
    kept: Tensor


@dataclass(frozen=True, slots=True)
class Drop:
    """Nothing is added; some of the state is kept."""

    kept: Tensor


Move = Propagate | Restart | Drop


Choose = Callable[[Tensor, Propagate], Sequence[Tensor]]
"""Multipliers `[B, blocks]` for every piece of a primitive, from the ellipsoid of its operands."""


def apply_move(q: Tensor, move: Move, choose: Choose | None = None) -> Tensor:
    """Return the state behind a move: `[B, N, N]`, NaN where the multipliers (`multipliers` if absent) do not fit."""
    kept = move.kept
    if isinstance(move, Drop):
        return q[:, kept][:, :, kept]
    if isinstance(move, Restart):
        eye = torch.eye(move.size, dtype=q.dtype, device=q.device) * move.constant.square()[:, None, None]
        # two ellipsoids side by side hold together with shares that sum to 1
        return join_blocks(2 * q[:, kept][:, :, kept], None, 2 * eye) if kept.numel() else eye
    joint = image_above(q, move.form, kept)
    own = joint[:, kept.numel() :, kept.numel() :]
    pairs = list(zip((choose or multipliers)(own, move), move.pieces, strict=True))
    sigma = torch.cat([chosen[:, piece.inner] for chosen, piece in pairs], 1)
    spreads = [
        torch.where(piece.weight > 0, piece.weight.square() / chosen[:, piece.outer].clamp(min=1e-300), 0.0)
        for chosen, piece in pairs
    ]
    return advance(joint, kept.numel(), move.centre, sigma, torch.stack(spreads).sum(0))


def multipliers(
    own: Tensor, move: Propagate, shares: Sequence[Tensor] | None = None, tilts: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Choose feasible multipliers, `[B, blocks]` for every piece.

    With one open block of variance q, sigma = ratio/q is the best there is; several blocks share the largest eigenvalue
    of their correlations. Any `shares` in (0, 1) and any `tilts` (logarithms of weights) are feasible.
    """
    variance = own.diagonal(dim1=-2, dim2=-1).clamp(min=0.0)
    variance = torch.maximum(variance, 1e-12 * variance.amax(-1, keepdim=True)).clamp(min=1e-300)
    start, scales, opened = 0, [], []
    for k, piece in enumerate(move.pieces):
        part = variance[:, start : start + len(piece.inner)]
        start += len(piece.inner)
        mean = part.new_zeros(piece.ratio.shape).index_add(1, piece.inner, part)
        mean = mean / torch.bincount(piece.inner, minlength=mean.shape[1]).clamp(min=1)
        scales.append(mean.detach() if tilts is None else mean.detach() * torch.exp(-tilts[k]))
        opened.append(piece.ratio > 0)
    roots = [torch.where(o, s.rsqrt(), 0.0)[:, p.inner] for o, s, p in zip(opened, scales, move.pieces, strict=True)]
    root = torch.cat(roots, 1)
    top = largest(root[:, :, None] * own * root[:, None, :]).clamp(min=1e-300)[:, None]
    taken = shares_of(move) if shares is None else shares
    return [
        torch.where(o, (1 - SHRUNK) * share / (scale * top), 0.0)
        for o, share, scale in zip(opened, taken, scales, strict=True)
    ]


def shares_of(move: Propagate) -> list[Tensor]:
    """Return a good share in (0, 1] for every block; at its edge what is kept beside the value blows up."""
    return [piece.ratio.clamp(max=0.5 if move.kept.numel() else 1.0) for piece in move.pieces]


_PAD = 1 + 1e-9
"""Room for the rounding of eigenvalues and Cholesky factorizations, which is not bounded: evidence is NUMERICAL."""

RATE = 0.2
"""The first step of Adam on the multipliers' logarithms and logits."""
LEAST = 1e-140
"""Constants and coefficients from here to its inverse have squares that neither vanish nor overflow."""


@dataclass(frozen=True, slots=True)
class StatePlace:
    """Where a value stands in the state, and the index of the last step that reads it."""

    start: int
    size: int
    last: int


class EllipsoidState:
    """The state of the engine over the balls of B centres, fed while values are enclosed.

    What is wider than `widest` starts afresh from its constant as soon as values get narrow. Once the clock of the
    budget has run out the state is given up: it says nothing any more.
    """

    def __init__(
        self, unrolled: UnrolledNetwork, batch: int, device: torch.device, *, widest: int, budget: Budget | None = None
    ) -> None:
        self.unrolled, self.batch, self.device, self.widest = unrolled, batch, device, widest
        self.budget, self.lost = budget, False
        self.reads: dict[str, int] = {}  # the values that primitives read, and the output, with the last reader
        for index, step in enumerate(unrolled.steps.values()):
            if not isinstance(step.operation, Affine):
                self.reads |= dict.fromkeys(step.operands, index)
        self.reads[unrolled.output] = len(unrolled.steps)
        self.moves: list[Move] = []
        self.places: dict[str, StatePlace] = {}
        self.stands: dict[str, str] = {}
        self.inputs = {item.name: math.prod(item.shape) for item in unrolled.graph.inputs}
        if self._late():
            start = torch.zeros(0, 0, dtype=torch.float64, device=device)
        elif sum(self.inputs.values()) <= widest:
            for name, size in self.inputs.items():
                self._place(name, size, _last(self.reads, unrolled, name))
            start = torch.eye(self._width(), dtype=torch.float64, device=device)
        else:
            start = self._ahead()
        self.start = self.q = start.expand(batch, -1, -1)

    def _late(self) -> bool:
        """Say whether the state is given up, or time is up before its next operation: then it is given up."""
        if self.budget is not None and not self.lost and self.budget.late:
            self.lost, self.moves, self.places, self.stands = True, [], {}, {}
        return self.lost

    @property
    def cost(self) -> float:
        """About how many multiplications it takes to run all moves again."""
        return self.batch * sum(float(max(move.form.shape)) ** 3 for move in self.moves if isinstance(move, Propagate))

    def _check(self, *sizes: Tensor) -> None:
        """Give the state up where squares of what it is made of leave the range of floats."""
        for size in sizes:
            positive = size[(size > 0) & size.isfinite()]
            if positive.numel() and not (float(positive.amin()) > LEAST and float(positive.amax()) < 1 / LEAST):
                self.lost, self.moves, self.places, self.stands = True, [], {}, {}

    def _place(self, name: str, size: int, last: int) -> None:
        self.places[name] = StatePlace(self._width(), size, last)

    def _width(self) -> int:
        return sum(place.size for place in self.places.values())

    def _ahead(self) -> Tensor:
        """Return the state of an input that is too wide to carry: only the linear values of it that are read later."""
        matrices: dict[str, Tensor] = {}
        place_names: dict[tuple[tuple[str, int], ...], str] = {}
        for name, last in self.reads.items():
            form = {source: m for source, m in self.unrolled.forms[name].items() if source in self.inputs}
            if not form:
                continue
            key = tuple((source, id(linear)) for source, linear in form.items())
            size = math.prod(self.unrolled.shapes[name])
            if key in place_names:
                old = self.places[place_names[key]]
                self.places[place_names[key]] = StatePlace(old.start, old.size, max(old.last, last))
            elif self._width() + size > self.widest or not all(_writable(linear) for linear in form.values()):
                self.places, self.stands = {}, {}
                return torch.zeros(0, 0, dtype=torch.float64, device=self.device)
            else:
                place_names[key] = f"{name} of the input"
                self._place(place_names[key], size, last)
                matrices[place_names[key]] = torch.cat(
                    [self._block(form.get(s), size, n) for s, n in self.inputs.items()], 1
                )
            self.stands[name] = place_names[key]
        stacked = torch.cat(list(matrices.values()))
        rounded = gamma(4.0 * math.sqrt(stacked.shape[1]) + 16.0)
        return raised(stacked @ stacked.mT, rounded * stacked.square().sum(-1))

    def _block(self, linear: LinearMap | None, rows: int, columns: int) -> Tensor:
        if linear is None:
            return torch.zeros(rows, columns, dtype=torch.float64, device=self.device)
        if isinstance(linear, Identity):
            return torch.eye(rows, dtype=torch.float64, device=self.device)
        return self.unrolled.written(linear).to(self.device)

    def form(self, name: str) -> Tensor | None:
        """Return a value that is read as a matrix over the state, or None where it cannot be written out."""
        if self.lost:
            return None
        form: Form = self.unrolled.forms[name]
        ahead = self.stands.get(name)
        sources = {source: linear for source, linear in form.items() if ahead is None or source not in self.inputs}
        if not all(source in self.places and _writable(linear) for source, linear in sources.items()):
            return None
        rows = math.prod(self.unrolled.shapes[name])
        matrix = torch.zeros(rows, self.q.shape[-1], dtype=torch.float64, device=self.device)
        if ahead is not None:
            place = self.places[ahead]
            matrix[:, place.start : place.start + place.size] = torch.eye(rows, dtype=torch.float64)
        for source, linear in sources.items():
            place = self.places[source]
            matrix[:, place.start : place.start + place.size] = self._block(linear, rows, place.size)
        self._check(matrix.abs())
        return None if self.lost else matrix

    def constants(self, name: str) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Return the constant of a value that is read, `[B]`, of its entries `[B, *shape]` and of its sets, if any."""
        form = None if self._late() else self.form(name)
        if form is None or form.shape[0] > self.widest:
            return None
        own, shape = image_above(self.q, form), self.unrolled.shapes[name]
        entries = _root(own.diagonal(dim1=-2, dim2=-1)).reshape(self.batch, *shape)
        sets = None
        if len(shape) == 2 and shape[0] > 1:
            blocks = own.reshape(self.batch, *shape, *shape).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
            sets = _root(largest(blocks.reshape(-1, shape[1], shape[1]))).reshape(self.batch, shape[0])
        return _root(largest(own)), entries, sets

    def rows(self, directions: Tensor) -> Tensor | None:
        """Return the constants of combinations `[B, rows, K]` of the output's entries, `[B, rows]`."""
        form = self.form(self.unrolled.output)
        if form is None:
            return None
        along = directions @ form
        # the rows cancel, and so do their squares: what rounding can have taken of both is a share of the whole
        whole = reach(directions.abs() @ form.abs(), self.q)
        rounded = gamma(4.0 * self.q.shape[-1] + 4.0 * len(form) + 16.0)
        return _root(((along @ self.q) * along).sum(-1) + rounded * whole.square())

    def advance(self, index: int, step: UnrolledStep, local: LocalForm, constant: Tensor) -> None:
        """Carry the state over one primitive; where that is too much, its value starts afresh from its constant."""
        if self._late():
            return
        forms = [self.form(name) for name in step.operands]
        if self.lost:
            return
        kept = {name: place for name, place in self.places.items() if place.last > index}
        entries = [torch.arange(place.start, place.start + place.size, device=self.device) for place in kept.values()]
        chosen = torch.cat(entries) if entries else torch.zeros(0, dtype=torch.int64, device=self.device)
        size, last = math.prod(step.shape), _last(self.reads, self.unrolled, step.name)
        operands = sum(math.prod(self.unrolled.shapes[name]) for name in step.operands)
        self.places = {}
        for name, place in kept.items():
            self._place(name, place.size, place.last)
        if last <= index or len(chosen) + size > self.widest or not bool(constant.isfinite().all()):
            self._move(Drop(chosen))
            return
        self._place(step.name, size, last)
        finite = all(bool(part.weight.isfinite().all() and part.gain.isfinite().all()) for part in local.parts)
        if any(form is None for form in forms) or operands > self.widest or not finite:
            self._move(Restart(constant, size, chosen))
            return
        shapes = [self.unrolled.shapes[name] for name in step.operands]
        pieces = tuple(
            EllipsoidOperand.of(part, shape, step.shape) for part, shape in zip(local.parts, shapes, strict=True)
        )
        self._move(Propagate(torch.cat([form for form in forms if form is not None]), chosen, pieces))

    def _move(self, move: Move) -> None:
        self.moves.append(move)
        self.q = apply_move(self.q, move)

    def tighten_enclosure(
        self, enclosures: Enclosures, name: str, step: UnrolledStep | None = None
    ) -> Enclosure | None:
        """Return the enclosure of a value within the engine's constants."""
        x = enclosures.known[name]
        self._check(x.constant, x.entries)
        bounds = self.constants(name)
        if bounds is None:
            return None
        constant, entries = torch.minimum(x.constant, bounds[0]), torch.minimum(x.entries, bounds[1])
        return replace(tidy(x.centre, x.low, x.high, constant, entries, x.radius), sets=bounds[2])

    def learn(self, enclosures: Enclosures, index: int, step: UnrolledStep) -> None:
        """Carry the state over a primitive."""
        self._check(*(part.gain for part in enclosures.locals[step.name].parts), enclosures.known[step.name].constant)
        self.advance(index, step, enclosures.locals[step.name], enclosures.known[step.name].constant)


def _last(reads: dict[str, int], unrolled: UnrolledNetwork, source: str) -> int:
    """Return the index of the last step that reads a value made of a source."""
    return max((last for name, last in reads.items() if source in unrolled.forms[name]), default=-1)


def _writable(linear: LinearMap) -> bool:
    if isinstance(linear, Identity):
        return True
    return linear.in_size * linear.out_size <= WRITTEN and writable(linear) and moderate(linear)


def _root(value: Tensor) -> Tensor:
    return (value.clamp(min=0.0).sqrt() * _PAD).nan_to_num(nan=torch.inf, posinf=torch.inf)


def search(reach: EllipsoidState, budget: Budget) -> None:
    """Run the moves of a state again with better multipliers, and leave in it the best state for every centre."""
    form = reach.form(reach.unrolled.output)
    carried = [move for move in reach.moves if isinstance(move, Propagate)]
    settled = not any(bool((piece.ratio > 0).any()) for move in carried for piece in move.pieces)
    if form is None or settled or form.shape[0] > reach.widest:
        return
    starts = [torch.logit(share.clamp(1e-6, 1 - 1e-6)) for move in carried for share in shares_of(move)]
    free = [start.clone().requires_grad_(True) for start in (*starts, *map(torch.zeros_like, starts))]

    def evaluate() -> tuple[Tensor, Tensor]:
        pairs = zip(free[: len(starts)], free[len(starts) :], strict=True)

        def choose(own: Tensor, move: Propagate) -> list[Tensor]:
            shares, tilts = zip(*itertools.islice(pairs, len(move.pieces)), strict=True)
            return multipliers(own, move, [torch.sigmoid(value) for value in shares], tilts)

        q = reach.start
        for move in reach.moves:
            q = apply_move(q, move, choose)
        return largest(image_above(q, form)).log(), q

    best = largest(image_above(reach.q, form)).nan_to_num(nan=torch.inf).log(), reach.q
    _, reach.q = minimise(free, evaluate, best, turns=iter(budget.spend, False), rate=RATE, betas=(0.9, 0.99))
