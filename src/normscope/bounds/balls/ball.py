"""BALL figures: certified l2 constants, output limits and margins over all inputs within a radius of each centre."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...core.budget import Budget, affordable
from ...core.effort import SEARCHING, Effort
from ...core.errors import InputError
from ..evaluation import CARRIED
from ..graph_weights import multiplications
from ..linalg.dense_form import moderate
from ..operators.local.local import Affine, flat
from ..traced_network import BoundSettings, TracedNetwork
from .ball_ellipsoid import EllipsoidState, search
from .enclosure import Enclosures, Tightener, enclose
from .expansion import Expansion, expand
from .sweep import ROWS, Below, Relaxation, below

SHORT = 1e-3
"""By this share a radius stays short of where an affine bound ends: at the end itself a margin may be zero, and float32
would see either class there."""


@dataclass(frozen=True, slots=True)
class RadiusOutcome:
    """What a test of radii says.

    Attributes:
        left: lower bounds of the margins over the balls, `[B, K]`; +inf at the label.
        safe: radii within which no margin vanishes, `[B]`, at most those tested and as large where the test passed:
            an affine function below a margin over the whole ball is positive up to there.
    """

    left: Tensor
    safe: Tensor


def affine_outcome(gaps: Tensor, offset: Tensor, rates: Tensor, radius: Tensor) -> RadiusOutcome:
    """Return what affine bounds say: a margin is at least gap + offset - rate norm(x - centre) within the radius.

    `gaps` are the margins at the centres, `[B, K]`, less their rounding errors, +inf at the label; offsets are at most
    0.
    """
    start = gaps + torch.where(gaps == math.inf, 0.0, offset)
    fall = torch.where(radius[:, None] == 0, 0.0, rates * radius[:, None])
    left = torch.where(gaps == math.inf, math.inf, start - fall)
    ends = torch.where(start > 0, torch.where(rates > 0, start / rates, math.inf), 0.0) * (1 - SHORT)
    safe = torch.where(left.amin(1) > 0, radius, torch.minimum(ends.amin(1), radius))
    return RadiusOutcome(left, safe.nan_to_num(nan=0.0))


OUTPUTS = 1024
"""Up to this many outputs are carried backwards; beyond, the forward pass alone bounds the constant."""
AT_ONCE, AT_MOST = 2e7, 1.2e8
"""Entries of the largest tensor carried backwards for several centres together, and for a single one."""
WIDEST, NARROW = 1024, 256
"""Largest state of the ellipsoid engine with `effort="tight"`, and without."""
SEARCH_STEPS, SEARCH_FEWEST, SEARCH_WORK = 24, 2, 1e10
"""Steps of the search for multipliers, in small states and in the largest, and multiplications of all of them."""
VANISHING = 1e-150
"""Where a constant is below this, squares and products of the values may leave the range of floats."""


class Balls:
    """A captured model over balls around centres `[B, n]` (the captured batch if absent), all of them at once.

    Example:
        >>> import torch
        >>> balls = Balls(TracedNetwork.of(torch.nn.Linear(2, 2).eval(), torch.zeros(3, 2)))
        >>> balls.over(0.1).constant.shape
        torch.Size([3])
    """

    def __init__(
        self, captured: TracedNetwork, centres: Tensor | None = None, bounding: BoundSettings | None = None
    ) -> None:
        graph = captured.graph
        centres = captured.points if centres is None else centres
        size = sum(item.value.numel() for item in graph.inputs)
        if centres.ndim != 2 or centres.shape[1] != size or not len(centres):
            raise InputError(f"centres are [B, {size}] with B >= 1, these have shape {tuple(centres.shape)}")
        self.captured, self.bounding = captured, bounding or BoundSettings()
        self.centres = centres.detach().to(graph.inputs[0].value.device, torch.float64)
        with torch.no_grad():
            self.unrolled = captured.unrolled
            largest = self.unrolled.largest
            self.outputs = math.prod(graph.output_shape)
            self.carried = self.outputs <= OUTPUTS and self.outputs * largest <= AT_MOST
            weight = max(largest * (self.outputs if self.carried else 1), min(largest, WIDEST) ** 2)
            self.step = max(1, int(AT_ONCE / weight))
            self.chunks = [self.unrolled.values(chunk) for chunk in self.centres.split(self.step)]

    def select(self, numbers: Tensor) -> Balls:
        """Return the balls with these numbers, with what was computed at their centres."""
        part = copy(self)
        part.centres, part.values, part.errors = self.centres[numbers], self.values[numbers], self.errors[numbers]
        whole = {name: torch.cat([chunk[name] for chunk in self.chunks]) for name in self.chunks[0]}
        part.chunks = [{name: value[rows] for name, value in whole.items()} for rows in numbers.split(self.step)]
        part.__dict__.pop("cost", None)  # a cached property, of all balls
        return part

    @cached_property
    def cost(self) -> float:
        """About how many multiplications it takes to bound margins over the balls with `effort="fast"`."""
        there_and_back = multiplications(self.captured.graph) * (2 + (self.outputs if self.carried else 0))
        sizes = [math.prod(s.shape) for s in self.unrolled.steps.values() if not isinstance(s.operation, Affine)]
        states = sum(float(size) ** 3 for size in sizes if size <= NARROW)  # wider ones are not carried
        return len(self.centres) * (there_and_back + states)

    @cached_property
    def values(self) -> Tensor:
        """The outputs at the centres, `[B, K]`."""
        return torch.cat([flat(chunk[self.unrolled.output]) for chunk in self.chunks])

    @cached_property
    def errors(self) -> Tensor:
        """How far rounding can have moved the outputs at the centres, `[B, K]` (`evaluation.py`)."""
        values = self.captured.certain
        parts = self.centres.split(max(1, self.step // 4))
        return torch.cat([flat(values.at(part, how=CARRIED[-1]).error) for part in parts])

    @property
    def ceilings(self) -> dict[str, float]:
        """The constants of all values over all inputs."""
        return self.captured.ceilings

    @cached_property
    def vanishing(self) -> bool:
        """Whether values may fall below all floats on the way: nothing is bounded over balls then."""
        forms = [linear for form in self.unrolled.forms.values() for linear in form.values()]
        return any(0.0 < size < VANISHING for size in self.ceilings.values()) or not all(map(moderate, forms))

    def over(self, radius: float | Tensor, *, effort: Effort = Effort.FAST, steps: int = SEARCH_STEPS) -> Over:
        """Return what holds over balls of a finite radius >= 0, one for all centres or `[B]`.

        At FAST by intervals and one pass back; TIGHT relaxes every open unit, too, and searches for multipliers
        in `steps` steps.
        """
        radii = torch.as_tensor(radius, dtype=torch.float64, device=self.centres.device).expand(len(self.centres))
        if not bool((radii >= 0).all() and radii.isfinite().all()):
            raise InputError(f"a radius is a finite number >= 0, not {radius}")
        return Over(self, radii, Effort.of(effort, *SEARCHING), steps)


class Over:
    """What holds over the balls of one radius; computed when first asked for."""

    def __init__(self, balls: Balls, radius: Tensor, effort: Effort, steps: int) -> None:
        self.balls, self.radius, self.effort, self.steps = balls, radius, effort, steps
        self.reaches: list[EllipsoidState] = []
        self._differences: tuple[Tensor, Tensor] | None = None

    @cached_property
    def seen(self) -> list[Enclosures]:
        """Every value over the balls, a few centres at a time."""
        balls = self.balls
        result = []
        with torch.no_grad():
            for values, radius in zip(balls.chunks, self.radius.split(balls.step), strict=True):
                tight = self.effort == Effort.TIGHT
                budget = balls.bounding.budget.search("the relaxation over balls")
                widest, limit = (WIDEST, budget) if tight else (NARROW, None)
                self.reaches.append(
                    EllipsoidState(balls.unrolled, len(radius), radius.device, widest=widest, budget=limit)
                )
                helpers: list[Tightener] = [self.reaches[-1]]
                if tight:
                    helpers.append(Relaxation(budget))
                norm, ceilings = balls.bounding.norm, balls.ceilings
                result.append(enclose(balls.unrolled, values, radius, norm, ceilings=ceilings, helpers=helpers))
                if tight:
                    self._search(result[-1], len(balls.chunks))
        return result

    def _search(self, enclosures: Enclosures, chunks: int) -> None:
        """Look for better multipliers of the ellipsoid, within a share of the work."""
        work, device = SEARCH_WORK / chunks, self.radius.device
        steps = affordable(self.steps, self.reaches[-1].cost, work=work, least=SEARCH_FEWEST, device=device)
        budget = self.balls.bounding.budget.share(0.5 / chunks)
        search(self.reaches[-1], budget.search("the search for multipliers over balls", steps))
        enclosure = self.reaches[-1].tighten_enclosure(enclosures, self.balls.unrolled.output)
        if enclosure is not None:
            enclosures.known[self.balls.unrolled.output] = enclosure

    @cached_property
    def composed(self) -> Tensor:
        """The constant by composition from the input to the output, ellipsoids included, `[B]`."""
        return torch.cat([enclosures.output.constant for enclosures in self.seen])

    @cached_property
    def ellipsoid(self) -> Tensor:
        """The constant by reachable ellipsoids, `[B]`; infinite where the network is too wide for them."""
        constants = []
        for enclosures, reach in zip(self.seen, self.reaches, strict=True):
            bounds = reach.constants(self.balls.unrolled.output)
            constants.append(torch.full_like(enclosures.radius, torch.inf) if bounds is None else bounds[0])
        return torch.cat(constants)

    @cached_property
    def expanded(self) -> Expansion | None:
        """Centre and radius for all outputs together; None where there are too many, or values vanish."""
        if not self.balls.carried or self.balls.vanishing:
            return None
        eye = torch.eye(self.balls.outputs, dtype=torch.float64, device=self.radius.device)
        return self._expand(eye.expand(len(self.radius), -1, -1))

    @cached_property
    def constant(self) -> Tensor:
        """An upper bound on the l2 constant over each ball, `[B]`."""
        if self.balls.vanishing:
            return torch.full_like(self.radius, torch.inf)
        if self.expanded is None:
            return self.composed
        return torch.minimum(self.composed, self.expanded.constant)

    @cached_property
    def low(self) -> Tensor:
        """The least each output can be, `[B, K]`."""
        return torch.cat([flat(enclosures.output.low) for enclosures in self.seen])

    @cached_property
    def high(self) -> Tensor:
        """The most each output can be, `[B, K]`."""
        return torch.cat([flat(enclosures.output.high) for enclosures in self.seen])

    @property
    def reason(self) -> str | None:
        """Why a constant is infinite, if one is."""
        if self.balls.vanishing:
            return "values on the way may fall below all floats"
        reasons = dict.fromkeys(reason for enclosures in self.seen for reason in enclosures.reasons.values())
        return "; ".join(list(reasons)[:3]) or None

    @property
    def advice(self) -> str | None:
        """Why the constants are by composition alone, if they are."""
        return None if self.expanded is not None else f"more than {OUTPUTS} outputs: composition alone"

    def differences(self, top: Tensor) -> Tensor:
        """Bound over each ball the l2 constant of `out[top] - out[k]` for every k, `[B, K]`, 0 at k = top."""
        if self._differences is not None and self._differences[0] is top:
            return self._differences[1]
        if self.balls.vanishing:
            return torch.full_like(self.balls.values, torch.inf).scatter(1, top[:, None], 0.0)
        entries = torch.cat([flat(enclosures.output.entries) for enclosures in self.seen])
        # not `constant`: the expansion of the differences below is at least as tight as that of the outputs
        bound = torch.minimum(entries + entries.gather(1, top[:, None]), math.sqrt(2) * self.composed[:, None])
        if self.balls.carried:
            apart = self._apart(top)
            bound = torch.minimum(bound, self._expand(apart).rows)
            for reach, rows, part in zip(self.reaches, apart.split(self.balls.step), bound.split(self.balls.step)):
                constants = reach.rows(rows)
                if constants is not None:
                    part.copy_(torch.minimum(part, constants))
        self._differences = top, bound.scatter(1, top[:, None], 0.0)
        return self._differences[1]

    def margins(self, top: Tensor) -> Tensor:
        """Bound `out[top] - out[k]` over each ball from below, `[B, K]`, 0 at k = top."""
        values = self.balls.values
        if self.balls.vanishing:
            return torch.full_like(values, -torch.inf).scatter(1, top[:, None], 0.0)
        chosen = values.gather(1, top[:, None])
        errors = self.balls.errors
        pad = 1e-12 * (values.abs() + chosen.abs()) + errors + errors.gather(1, top[:, None])
        moved = torch.where(self.radius[:, None] == 0, 0.0, self.differences(top) * self.radius[:, None])
        margins = torch.maximum(chosen - values - moved, self.low.gather(1, top[:, None]) - self.high) - pad
        if self.effort == Effort.TIGHT and self.balls.carried:
            margins = torch.maximum(margins, chosen - values + self._relaxed(self._apart(top)) - pad)
        return margins.scatter(1, top[:, None], 0.0)

    def tested(self, top: Tensor, gaps: Tensor) -> RadiusOutcome:
        """Test whether `out[top]` stays above all others over each ball, and how far it does; see `affine_outcome`."""
        margins = self.margins(top).scatter(1, top[:, None], math.inf)
        rates = self.differences(top)
        outcome = affine_outcome(gaps, torch.zeros_like(gaps), rates, self.radius)
        passed = margins.amin(1) > 0
        return RadiusOutcome(torch.maximum(margins, outcome.left), torch.where(passed, self.radius, outcome.safe))

    def _apart(self, top: Tensor) -> Tensor:
        eye = torch.eye(self.balls.outputs, dtype=torch.float64, device=self.radius.device)
        return eye[top][:, None] - eye[None]

    def _relaxed(self, rows: Tensor) -> Tensor:
        """Bound combinations of outputs `[B, rows, K]` from below, relative to the centre."""
        shape = self.balls.captured.graph.output_shape
        with torch.no_grad():
            return torch.cat(
                [
                    below(enclosures, self.balls.unrolled.output, some.reshape(*some.shape[:2], *shape)).least(
                        enclosures.radius
                    )
                    for enclosures, some in zip(self.seen, rows.split(self.balls.step), strict=True)
                ]
            )

    def _expand(self, rows: Tensor) -> Expansion:
        """Carry combinations of outputs `[B, rows, K]` back to the input, a few centres at a time."""
        shape = self.balls.captured.graph.output_shape
        with torch.no_grad():
            expansions = [
                expand(enclosures, some.reshape(*some.shape[:2], *shape))
                for enclosures, some in zip(self.seen, rows.split(self.balls.step), strict=True)
            ]
        return Expansion(
            torch.cat([item.constant for item in expansions]),
            torch.cat([item.rows for item in expansions]),
            torch.cat([item.least for item in expansions]),
        )


MOST_WORK = 2e10
"""Multiplications that one test may take: larger networks are left to the constants."""


class LinearMargins:
    """Bounds margins over balls from below by affine functions of the input."""

    def __init__(self, balls: Balls) -> None:
        self.balls = balls

    @property
    def cost(self) -> float:
        """About how many multiplications one test takes."""
        unrolled = self.balls.unrolled
        sizes = [
            math.prod(unrolled.shapes[operand])
            for step in unrolled.steps.values()
            if not isinstance(step.operation, Affine)
            for operand in step.operands
        ]
        rows = self.balls.outputs + sum(min(size, ROWS) for size in sizes)  # each goes half of the way, twice
        return len(self.balls.centres) * rows * multiplications(self.balls.captured.graph)

    @property
    def usable(self) -> bool:
        """Whether there are linear bounds: of few outputs, at an acceptable cost, where no value vanishes."""
        device = self.balls.centres.device
        cheap = affordable(1, self.cost / len(self.balls.centres), work=MOST_WORK, least=0, device=device) == 1
        return self.balls.carried and cheap and not self.balls.vanishing

    def over(self, radius: Tensor, top: Tensor, gaps: Tensor, budget: Budget) -> RadiusOutcome:
        """Test radii `[B]`; nothing is tightened any more once the clock has run out. See `affine_outcome`."""
        lines = self._below(radius, top, budget)
        offset, rates = torch.cat([item.offset for item in lines]), torch.cat([item.rates for item in lines])
        return affine_outcome(gaps, offset, rates, radius)

    def rates(self, radius: Tensor, top: Tensor, budget: Budget) -> Tensor:
        """Return how fast the affine functions below the margins fall, `[B, K]`; at radius 0 the margins themselves."""
        return torch.cat([item.rates for item in self._below(radius, top, budget)])

    def _below(self, radius: Tensor, top: Tensor, budget: Budget) -> list[Below]:
        balls, shape = self.balls, self.balls.captured.graph.output_shape
        eye = torch.eye(balls.outputs, dtype=torch.float64, device=radius.device)
        lines = []
        with torch.no_grad():
            for values, some, label in zip(balls.chunks, radius.split(balls.step), top.split(balls.step), strict=True):
                helpers = [Relaxation(budget)]
                enclosures = enclose(
                    balls.unrolled, values, some, balls.bounding.norm, ceilings=balls.ceilings, helpers=helpers
                )
                rows = (eye[label][:, None] - eye[None]).reshape(len(some), balls.outputs, *shape)
                lines.append(below(enclosures, balls.unrolled.output, rows))
        return lines
