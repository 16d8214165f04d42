"""`flatness`: how much loss and accuracy suffer when the weights are moved, by noise and by gradient ascent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...calls.batches import LossFunction, loss_of
from ...calls.call import select
from ...calls.stand_ins import accepts_graph
from ...core.budget import Budget, Progress
from ...core.codec import JsonForm
from ...core.errors import InputError, NotFiniteError, check_counts, check_numbers, check_positive
from ...core.untouched import Mode, outside_inference_mode, unwrapped
from ...products.objective import Objective
from ...report.document import FigureResult, figures_form
from ...theory.losses import Loss
from .directions import find_directions
from .hessian import Wanted, spectrum_of
from .spectrum import Estimate, Spectrum

LEVELS = (0.01, 0.03, 0.1, 0.3, 1.0)
"""The sizes of the noise, relative to the weights."""
DEFINITIONS = {
    "scaled noise": "Gaussian, for every group of weights as long on average as the level times the group's norm; a "
    "group is what a normalizer lets be scaled on its own, else the weights of one output, else a whole parameter",
    "raw noise": "Gaussian with one deviation for all weights, as long on average as the level times the norm of all: "
    "rescaling a weight whose scale has no effect changes this figure and not the network",
    "spherical sharpness": "the largest eigenvalue of the Hessian on the spheres of scale-invariant weights, times "
    "their squared norms: it does not change when they are rescaled",
    "ascent": "the largest increase of the loss that gradient ascent found within rho of the weights: raw (SAM), and "
    "with every group in units of its norm (ASAM). It is found from below: the true maximum may be larger, also where "
    "the ascent has converged",
}
"""What each figure of the result means, by its name."""
SHARPNESSES = {
    "elementwise adaptive": "the largest increase of the loss where the moves, each in units of the size of its own "
    "weight, have a norm of at most rho (Kwon et al. 2021)",
    "l-infinity adaptive": "the largest increase where no weight moves by more than rho times its size (Kwon et al. "
    "2021)",
    "Keskar's box": "100 times the largest increase over 1 + loss, where no weight moves by more than 0.001 times its "
    "size plus 1 (Keskar et al. 2017)",
    "m-sharpness": "the mean over the batches, as they are given, of the largest increase of each batch's own loss "
    "within rho (Foret et al. 2021)",
}
"""What the other definitions of sharpness mean; ascent finds each of them from below."""
KESKAR_RADIUS = 1e-3
"""The size of Keskar's box relative to the weights plus 1."""
AFAR = 4.0
"""One start of ascent comes from so many times rho away, where small rises of the loss do not stop it."""
AT_REST = 5e-3
"""An ascent is at rest if the gradient promises at most this share of the increase anywhere within rho."""
SHORTEST_STEP = 1e-4
"""An ascent is at rest once its steps have shrunk to this share of rho."""
MIN_LENGTH = 1e-300
"""The smallest length that something is divided by."""
AGREEMENT = 0.02
"""Two starts of ascent found the same increase if they differ by at most this share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseLevel:
    """Loss and accuracy under noise of one level, as means over draws; the accuracies are None without classes."""

    level: float
    loss: Estimate
    accuracy: Estimate | None
    raw_loss: Estimate
    raw_accuracy: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharpness:
    """Another definition of sharpness: its value, and whether the search for it came to rest."""

    name: str
    value: float
    converged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Flatness(FigureResult):
    """How flat a loss is around the weights. Prints as a table; in a notebook as HTML.

    Attributes:
        name, mode: the model's class and the mode that was measured.
        loss, accuracy: both at the weights as found; the accuracy is None without classes.
        noise: one entry per level.
        draws: how many random vectors each level has.
        spherical_sharpness: the largest eigenvalue on the quotient; None where it was not asked for.
        spherical_converged: whether that eigenvalue is within its tolerance.
        rho: how far ascent goes: as a length for `raw_ascent`, in norms of the groups for `ascent`.
        ascent, raw_ascent: the largest increase of the loss that was found within rho; the true maximum may be larger.
        ascent_converged, raw_ascent_converged: whether the best start of the ascent came to rest, and more than half of
            all starts ended within 2 % of it. `notes` say what to raise otherwise.
        others: other definitions of sharpness, where asked for.
        definitions: what the figures mean.
        notes: what the reader must know.
    """

    page = "normscope.bounds.pages.curvature:flatness_document"
    JSON: ClassVar[JsonForm] = figures_form(
        "flatness", "flatness", sparse=("ascent_converged", "raw_ascent_converged", "others")
    )

    name: str
    mode: str
    loss: float
    accuracy: float | None
    noise: tuple[NoiseLevel, ...]
    draws: int
    spherical_sharpness: float | None
    spherical_converged: bool
    rho: float
    ascent: float
    raw_ascent: float
    ascent_converged: bool = False
    raw_ascent_converged: bool = False
    others: tuple[Sharpness, ...] = ()
    definitions: tuple[tuple[str, str], ...] = tuple(DEFINITIONS.items())
    notes: tuple[str, ...] = ()


@accepts_graph
@outside_inference_mode
def flatness(
    model: nn.Module,
    data: Any = None,
    *,
    labels: Any = None,
    loss: LossFunction | str | Loss | None = None,
    levels: Sequence[float] = LEVELS,
    draws: int = 8,
    rho: float = 0.05,
    ascent_steps: int = 20,
    ascent_starts: int = 5,
    sharpness: bool = True,
    adaptive: bool = False,
    mode: Mode | None = None,
    batches: int | None = None,
    max_seconds: float | None = None,
    seed: int = 0,
) -> Flatness:
    """Measure how loss and accuracy change when the weights are moved, in figures that do not depend on their scale.

    The weights are put back afterwards. The figures of raw noise are returned beside those of scaled noise: rescaling a
    weight in front of a normalizer changes the former, though not the network.

    Args:
        model: any `torch.nn.Module` (or its captured graph).
        data: as in `normscope.hessian`.
        labels: as in `normscope.hessian`.
        loss: as in `normscope.hessian`.
        levels: the sizes of the noise, relative to the weights.
        draws: how many random vectors to take per level; each costs two forward passes.
        rho: how far ascent goes.
        ascent_steps: how many gradient steps each start of ascent may take; most come to rest before.
        ascent_starts: from how many places ascent starts: the weights as found, the end of an ascent within 4 rho, the
            way down, and random ones. A trained network has many local maxima within rho.
        sharpness: whether to find the largest eigenvalue on the quotient too.
        adaptive: whether to search for the sharpness of Kwon et al. with every weight in units of its own size (in the
            l2 norm and in the largest entry), of Keskar et al. and of single batches (m-sharpness) too; each takes as
            long as the ascent.
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        batches: read at most this many batches of the data; None for all.
        max_seconds: cuts short what takes longer, and `notes` say so.
        seed: the seed of the noise.

    Returns:
        The figures: `.noise`, `.spherical_sharpness`, `.ascent`, `.raw_ascent`, `.others`.

    Raises:
        InputError: as in `normscope.hessian`, or a level, rho or a number of draws, steps or starts is not above 0.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Linear(2, 2)
        >>> found = ns.flatness(model, (torch.eye(2), torch.tensor([0, 1])), loss="cross_entropy", levels=(0.1, 1.0))
        >>> [one.level for one in found.noise], found.ascent > 0
        ([0.1, 1.0], True)

    Reference: Foret et al. 2021 (SAM); Kwon et al. 2021 (ASAM); Keskar et al. 2017.
    """
    check_numbers(max_seconds=max_seconds, seed=seed)
    several = isinstance(levels, Sequence) and not isinstance(levels, str)
    if not several or not levels or not all(isinstance(v, int | float) and 0 < v < math.inf for v in levels):
        raise InputError(f"levels are numbers above 0, not {levels!r}")
    check_counts(least=1, draws=draws, ascent_steps=ascent_steps, ascent_starts=ascent_starts)
    check_positive(rho=rho)
    objective = Objective(unwrapped(model), data, labels=labels, loss=loss, mode=mode, batches=batches)
    budget = Budget(max_seconds=max_seconds, what="the noise")
    without_effect = find_directions(objective)
    with objective.measuring(), Progress("flatness", total=len(levels) * draws) as progress:
        mean_loss, accuracy = mean_scores(objective)
        perturbation = Perturbation(objective, grouped(objective, without_effect.group), seed, progress)
        noise = perturbation.noise(sorted(map(float, levels)), draws, budget)
        climbing = budget.search("the ascent")
        ball = Ball(rho)
        ascent = perturbation.ascent(mean_loss, ball, ascent_steps, ascent_starts, climbing, perturbation.norms)
        raw_ascent = perturbation.ascent(mean_loss, ball, ascent_steps, ascent_starts, climbing)
        others = perturbation.sharpnesses(mean_loss, rho, ascent_steps, ascent_starts, budget) if adaptive else ()
    spectrum: Spectrum | None = None
    if sharpness and not budget.late:
        wanted = Wanted(k=1, metric="quotient", max_seconds=max_seconds, seed=seed)
        spectrum = spectrum_of(objective, without_effect, wanted)
    return Flatness(
        name=type(objective.model).__name__,
        mode=objective.mode,
        loss=mean_loss,
        accuracy=accuracy,
        noise=noise,
        draws=draws,
        spherical_sharpness=None if spectrum is None else spectrum.sharpness,
        spherical_converged=spectrum is not None and spectrum.converged,
        rho=float(rho),
        ascent=ascent.increase,
        raw_ascent=raw_ascent.increase,
        ascent_converged=ascent.converged,
        raw_ascent_converged=raw_ascent.converged,
        others=others,
        definitions=tuple((DEFINITIONS | (SHARPNESSES if adaptive else {})).items()),
        notes=(*without_effect.notes, *budget.cuts, *_unsettled({"ascent": ascent, "raw ascent": raw_ascent})),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ascent:
    """The increase of the loss by ascent from one start or from several, and how well it is known."""

    increase: float  # of the loss, at the best point on the way
    at_rest: bool  # whether it ended where no small step goes up, not because its steps were used up
    agreed: bool = False  # whether more than half of several starts found the same increase
    move: Tensor  # where it ended, in units of the scale

    @property
    def converged(self) -> bool:
        return self.at_rest and self.agreed


def _unsettled(ascents: dict[str, _Ascent]) -> list[str]:
    """Return a note for each ascent that did not converge."""
    return [
        f"the {name} has not converged, and the loss may well increase more within rho: "
        + (
            "not more than half of its starts ended at the same height, raise ascent_starts"
            if ascent.at_rest
            else "its steps did not come to rest, raise ascent_steps"
        )
        for name, ascent in ascents.items()
        if not ascent.converged
    ]


def grouped(objective: Objective, group: Tensor) -> Tensor:
    """Return the number of a group for every weight.

    A group is what a normalizer lets be scaled on its own, else the weights of one output, else a whole parameter.
    """
    full = group.clone()
    number = int(group.max()) + 1 if len(group) else 0
    start = 0
    for parameter in objective.parameters.values():
        own = full[start : start + parameter.numel()]
        rows = parameter.shape[0] if parameter.ndim > 1 else 1
        row = torch.arange(parameter.numel(), device=full.device) // max(parameter.numel() // max(rows, 1), 1)
        own[own < 0] = (number + row)[own < 0]
        number += rows
        start += parameter.numel()
    return full.unique(return_inverse=True)[1]


def mean_scores(objective: Objective) -> tuple[float, float | None]:
    """Return the mean loss and the accuracy; the accuracy is None where there are no classes."""
    loss, right, counted = 0.0, 0, 0
    for output, batch in objective.outputs():
        loss += objective.share(batch) * float(loss_of(objective.function, output, batch).double())
        targets = batch.targets
        logits = None if objective.function is None else select(output, None)
        classes = isinstance(targets, Tensor) and not targets.is_floating_point()
        if logits is not None and classes and targets.shape == logits.shape[:-1]:
            right += int((logits.argmax(-1) == targets).sum())
            counted += targets.numel()
    return loss, right / counted if counted else None


@dataclass(frozen=True, slots=True)
class Ball:
    """The moves of length rho at most, in the l2 norm, or with `box` in the largest entry."""

    rho: float
    box: bool = False

    def dual_norm(self, slope: Tensor) -> float:
        """Return the largest <slope, u> over moves u of length 1."""
        return float(slope.double().norm(p=1 if self.box else 2))

    def along(self, slope: Tensor, length: float) -> Tensor:
        """Return the move of some length along which a slope rises most."""
        return length * slope.sign() if self.box else length * slope / max(self.dual_norm(slope), MIN_LENGTH)

    def within(self, move: Tensor) -> Tensor:
        """Return the nearest move that is in the ball."""
        if self.box:
            return move.clamp(-self.rho, self.rho)
        return move * min(1.0, self.rho / max(self.dual_norm(move), MIN_LENGTH))


class Perturbation:
    """Moves the weights away from where they were found, and measures loss and accuracy there.

    Attributes:
        start: the weights as found.
        norms: for every weight, the norm of its group.
        deviations: for every weight, the root mean square of its group.
    """

    def __init__(self, objective: Objective, group: Tensor, seed: int, progress: Progress) -> None:
        self.objective, self.progress = objective, progress
        self.generator = torch.Generator().manual_seed(seed)
        self.start = start = objective.vector()
        squares = torch.zeros(int(group.max()) + 1, dtype=torch.float64, device=start.device)
        entries = torch.zeros_like(squares).index_add(0, group, torch.ones_like(start, dtype=torch.float64))
        norms = squares.index_add(0, group, start.double().square()).sqrt().to(start.dtype)
        self.norms = norms[group]
        self.deviations = (norms / entries.to(start.dtype).sqrt())[group]

    def noise(self, levels: list[float], draws: int, budget: Budget) -> tuple[NoiseLevel, ...]:
        """Measure one level after the other until the time is up, and put the weights back."""
        measured = []
        for level in levels:
            if budget.late:
                break
            measured.append(self._level(level, draws))
        self.objective.place(self.start)
        return tuple(measured)

    def _level(self, level: float, draws: int) -> NoiseLevel:
        """Measure loss and accuracy under noise of one level, scaled by group and raw."""
        deviation_of_all = float(self.start.double().norm()) / math.sqrt(len(self.start))
        scores: dict[str, list[tuple[float, float | None]]] = {"": [], "raw_": []}
        for _ in range(draws):
            self.progress.step(f"noise {level:g}")
            noise = torch.randn(len(self.start), generator=self.generator).to(self.start)
            for kind, scale in (("", self.deviations), ("raw_", deviation_of_all)):
                self.objective.place(self.start + level * scale * noise)
                scores[kind].append(mean_scores(self.objective))
        figures: dict[str, Any] = {}
        for kind, drawn in scores.items():
            accuracies = [accuracy for _, accuracy in drawn if accuracy is not None]
            figures[f"{kind}loss"] = Estimate.of([loss for loss, _ in drawn])
            figures[f"{kind}accuracy"] = Estimate.of(accuracies) if accuracies else None
        return NoiseLevel(level=level, **figures)

    def ascent(
        self, loss: float, ball: Ball, steps: int, starts: int, budget: Budget, scale: Tensor | None = None
    ) -> _Ascent:
        """Return the largest increase of the loss that ascent finds in a ball, in units of a scale or else raw."""
        scale = torch.ones_like(self.start) if scale is None else scale
        ends: list[_Ascent] = []
        for move in self._starts(loss, ball, steps, scale, budget):
            ends.append(self._climb(move, loss, ball, steps, scale, budget))
            if len(ends) == starts or budget.late:
                break
        best = max(ends, key=lambda end: end.increase)
        alike = sum(end.increase >= (1 - AGREEMENT) * best.increase for end in ends)
        return replace(best, agreed=1 < starts < 2 * alike)

    def _starts(self, loss: float, ball: Ball, steps: int, scale: Tensor, budget: Budget) -> Iterator[Tensor]:
        """Yield where ascent starts, in units of the scale; infinitely many."""
        here = torch.zeros_like(self.start)
        yield here
        afar = replace(ball, rho=AFAR * ball.rho)
        yield ball.within(self._climb(here, loss, afar, -(-steps // 2), scale, budget).move)
        slope = self._slope(here, scale)[1]
        yield ball.along(-slope, ball.rho)
        while True:
            yield ball.along(torch.randn(len(here), generator=self.generator).to(here), ball.rho)

    def _climb(self, move: Tensor, loss: float, ball: Ball, steps: int, scale: Tensor, budget: Budget) -> _Ascent:
        """Ascend from one start: steps that raise the loss by too little shrink, others grow, none leaves the ball.

        The gradient g promises at most the largest <g, u> of the ball less <g, move> anywhere in it: where that is next
        to nothing, the ascent is at rest.
        """
        value, slope = self._slope(move, scale)
        highest, step = value, ball.rho
        for taken in range(steps + 1):
            if not math.isfinite(highest):
                return _Ascent(increase=math.inf, at_rest=True, move=move)
            promised = ball.rho * ball.dual_norm(slope) - float(slope.double() @ move.double())
            at_rest = promised <= AT_REST * max(highest - loss, 0.0) or step <= SHORTEST_STEP * ball.rho
            if at_rest or taken == steps or (taken and budget.late):
                break
            trial = ball.within(move + ball.along(slope, step))
            trial_value, trial_slope = self._slope(trial, scale)
            highest = max(highest, trial_value)
            if trial_value > value + 0.1 * float(slope.double() @ (trial - move).double()):
                move, value, slope, step = trial, trial_value, trial_slope, min(2 * step, 4 * ball.rho)
            else:
                step /= 3
        return _Ascent(increase=max(highest - loss, 0.0), at_rest=at_rest, move=move)

    def sharpnesses(self, loss: float, rho: float, steps: int, starts: int, budget: Budget) -> tuple[Sharpness, ...]:
        """Return the other definitions of sharpness; those that the clock leaves no time for are left out."""
        sizes = self.start.abs()
        entrywise: dict[str, tuple[Ball, Tensor, Callable[[float], float]]] = {
            "elementwise adaptive": (Ball(rho), sizes, lambda increase: increase),
            "l-infinity adaptive": (Ball(rho, box=True), sizes, lambda increase: increase),
            "Keskar's box": (Ball(KESKAR_RADIUS, box=True), sizes + 1, lambda increase: 100 * increase / (1 + loss)),
        }
        values: list[Sharpness] = []
        for name, (ball, scale, of_increase) in entrywise.items():
            search = budget.search(f"the ascent of {name}")
            if search.late:
                return tuple(values)
            climbed = self.ascent(loss, ball, steps, starts, search, scale)
            values.append(Sharpness(name=name, value=of_increase(climbed.increase), converged=climbed.converged))
        search = budget.search("the ascents of m-sharpness")
        if not search.late:
            values.append(self._m_sharpness(rho, steps, starts, search))
        self.objective.place(self.start)
        return tuple(values)

    def _m_sharpness(self, rho: float, steps: int, starts: int, budget: Budget) -> Sharpness:
        """Return the mean over the batches of the increase of each batch's own loss within rho."""
        objective, batches, samples = self.objective, self.objective.batches, self.objective.samples
        increases, converged = [], True
        try:
            for batch in batches:
                objective.batches, objective.samples = [batch], batch.samples
                objective.place(self.start)
                climbed = self.ascent(objective.loss(), Ball(rho), steps, starts, budget)
                increases.append(batch.samples * climbed.increase)
                converged &= climbed.converged
        finally:
            objective.batches, objective.samples = batches, samples
        return Sharpness(name="m-sharpness", value=math.fsum(increases) / samples, converged=converged)

    def _slope(self, move: Tensor, scale: Tensor) -> tuple[float, Tensor]:
        """Return the loss at moved weights, infinite if it is not finite, and its gradient in units of the scale."""
        self.objective.place(self.start + scale * move)
        try:
            value, gradient = self.objective.gradient()
        except NotFiniteError:
            return math.inf, torch.zeros_like(move)
        return value, scale * gradient
