"""`Choice`: all runs in one table, and the recommendation that follows, with how certain it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, ClassVar, Literal

from ..core.codec import JsonForm, Part, Saved
from ..core.errors import InputError
from ..core.shown import Shown
from ..report.words import pluralise
from .task import TrainingRun

Status = Literal["trained", "not trained", "diverged", "refused", "failed"]
WENT = ("trained", "not trained", "diverged")
"""The statuses of runs that took place; the others have a reason instead of figures."""
LEVEL = 0.95
"""The confidence level of intervals."""
NAMES = {
    "none": "plain",
    "batch": "BatchNorm",
    "layer": "LayerNorm",
    "group": "GroupNorm",
    "instance": "InstanceNorm",
    "rms": "RMSNorm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome(Part):
    """The result of a run. A figure that was not measured is `None`.

    Attributes:
        run: the run.
        status: `trained` (the held-out loss, in eval mode, fell to half of its first value or less), `not trained`,
            `diverged` (a loss that is not finite), `refused` (no such twin) or `failed` (it raised).
        reason: why it was refused or failed.
        steps: how many steps it took.
        first_loss: the held-out loss before training, in eval mode.
        train_loss: the mean loss over the last tenth of the steps, in train mode.
        loss, accuracy: both on held-out samples after training, in eval mode; accuracy where targets are classes.
        stable_lr: the largest learning rate at which gradient descent on one batch of this size was stable, from the
            first weights (measured in the run with the smallest learning rate); infinite if every learning rate that
            was tried was stable, as happens with a batch of two.
        log10_observed: log10 of the largest Jacobian norm at held-out samples.
        log10_data: log10 of the Jacobian norm that 95 % of the data's distribution does not exceed, at 95 % confidence.
        noise: how much BatchNorm's variances change from batch to batch: the relative standard deviation, the median
            over channels, of the layer where it is largest.
        noise_law: the smallest possible noise, `sqrt(2/(m-1))` for m independent Gaussian values.
        findings: codes of the warnings and errors that `watch` raised, and of a `check` at the end (first seed).
        seconds_per_step: how long a step of the training loop took, without watching.
        notes: which figures were not measured, and why.
    """

    run: TrainingRun
    status: Status
    reason: str = ""
    steps: int = 0
    first_loss: float | None = None
    train_loss: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    stable_lr: float | None = None
    log10_observed: float | None = None
    log10_data: float | None = None
    noise: float | None = None
    noise_law: float | None = None
    findings: tuple[str, ...] = ()
    seconds_per_step: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of the run in files."""
        return self.run.key


def half_width(values: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of a mean, by Student's t; None for fewer than two values.

    Example:
        >>> round(half_width([1.0, 2.0, 3.0]), 3)
        2.484
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One normalizer at one batch size: its best learning rate, over the seeds.

    Attributes:
        normalizer, batch_size: the normalizer and the batch size.
        lr: the learning rate with the smallest mean held-out loss; None if no run took place.
        outcomes: the outcomes at that learning rate, one per seed; if no run took place, the refusals or failures.
        others: the outcomes at other learning rates.
    """

    normalizer: str
    batch_size: int
    lr: float | None
    outcomes: tuple[RunOutcome, ...]
    others: tuple[RunOutcome, ...] = ()

    @property
    def losses(self) -> tuple[float, ...]:
        """Held-out losses by seed; a run without one counts as infinite."""
        return tuple(math.inf if one.loss is None or math.isnan(one.loss) else one.loss for one in self.outcomes)

    @property
    def mean(self) -> float:
        """The mean of the held-out losses; infinite if no run took place."""
        return fmean(self.losses) if self.lr is not None else math.inf

    @property
    def half_width(self) -> float | None:
        """Half the width of the 95 % interval of the mean; None with one seed."""
        return half_width(self.losses) if self.lr is not None else None

    @property
    def trained(self) -> int:
        """How many of the seeds trained."""
        return sum(one.status == "trained" for one in self.outcomes)

    @property
    def status(self) -> str:
        """Whether the runs trained, in words."""
        if self.lr is None:
            return self.outcomes[0].status
        if 0 < self.trained < len(self.outcomes):
            return f"{self.trained} of {len(self.outcomes)} seeds"
        return "trains" if self.trained else "does not train"

    def first(self, name: str) -> Any:
        """Return a figure of the first outcome that has it, at any learning rate."""
        every = (*self.outcomes, *self.others)
        return next((value for one in every if (value := getattr(one, name)) is not None), None)

    def mean_of(self, name: str) -> float | None:
        """Return the mean of a figure over the seeds that have it."""
        values = [value for one in self.outcomes if (value := getattr(one, name)) is not None]
        return fmean(values) if values else None


def best_rate(normalizer: str, size: int, outcomes: Sequence[RunOutcome]) -> Cell:
    """Return the cell of a normalizer at a batch size, at the learning rate with the smallest mean loss."""
    rates: dict[float, list[RunOutcome]] = {}
    for outcome in outcomes:
        if outcome.status in WENT:
            rates.setdefault(outcome.run.lr, []).append(outcome)
    if not rates:
        return Cell(normalizer=normalizer, batch_size=size, lr=None, outcomes=tuple(outcomes))
    cells = [
        Cell(
            normalizer=normalizer,
            batch_size=size,
            lr=lr,
            outcomes=tuple(sorted(at_rate, key=lambda one: one.run.seed)),
            others=tuple(one for one in outcomes if one.run.lr != lr),
        )
        for lr, at_rate in rates.items()
    ]
    return min(cells, key=lambda cell: (cell.mean, cell.lr or 0.0))


def format_loss(cell: Cell) -> str:
    """Return a cell's loss with its interval, in words."""
    width = cell.half_width
    return f"{cell.mean:.3g}" + ("" if width is None else f" ± {width:.2g}")


def describe_recommendation(cells: Sequence[Cell], best: Cell | None) -> str:
    """Return the recommendation, and how certain it is."""
    if best is None:
        return (
            "Nothing can be recommended: no twin trained with every seed, at any of the batch sizes and learning "
            "rates. Try other learning rates or more steps."
        )
    seeds = pluralise(len(best.outcomes), "seed")
    accuracy = best.mean_of("accuracy")
    right = "" if accuracy is None else f" and {100 * accuracy:.1f} % of the samples right"
    what = "no normalizer" if best.normalizer == "none" else NAMES[best.normalizer]
    text = (
        f"Use {what} with batches of {best.batch_size} and a learning rate of {best.lr:g}: its held-out loss after "
        f"{best.outcomes[0].steps} steps is {format_loss(best)}{right} ({seeds})."
    )
    return f"{text} {_compared(cells, best)}"


def _compared(cells: Sequence[Cell], best: Cell) -> str:
    """Return how the best cell compares with the next normalizer at the same batch size, seed by seed."""
    rivals = [
        cell
        for cell in cells
        if cell.batch_size == best.batch_size and cell.normalizer != best.normalizer and math.isfinite(cell.mean)
    ]
    if not rivals:
        return "No other normalizer gave a finite loss at this batch size."
    rival = min(rivals, key=lambda cell: cell.mean)
    against = f"{NAMES[rival.normalizer]}, the next, has {format_loss(rival)}"
    rival_losses = {one.run.seed: one.loss for one in rival.outcomes if one.loss is not None}
    differences = [
        rival_losses[one.run.seed] - one.loss
        for one in best.outcomes
        if one.loss is not None and one.run.seed in rival_losses
    ]
    width = half_width(differences)
    if width is None:
        return f"{against}. One seed says nothing about chance: how sure this is is not known; give more seeds."
    mean = sum(differences) / len(differences)
    difference = f"by {mean:.2g} ± {width:.2g} over the same {pluralise(len(differences), 'seed')}"
    if mean - width > 0.0:
        return f"{against}. It is better {difference}, which is more than chance (95 % interval)."
    return f"{against}. It is better {difference}: these runs cannot tell the two apart; give more seeds or steps."


def by_batch_size(cells: Sequence[Cell]) -> list[str]:
    """Return one sentence per batch size: which normalizers train, in order, and which do not."""
    sentences = []
    for size in sorted({cell.batch_size for cell in cells}):
        same = [cell for cell in cells if cell.batch_size == size]
        trained = [
            f"{NAMES[cell.normalizer]} ({format_loss(cell)})" for cell in same if cell.trained == len(cell.outcomes)
        ]
        parts = [NAMES[c.normalizer] for c in same if c.lr is not None and 0 < c.trained < len(c.outcomes)]
        fails = [NAMES[cell.normalizer] for cell in same if cell.lr is not None and not cell.trained]
        sentence = f"Batches of {size}: " + (
            f"{', '.join(trained)} train" if trained else "nothing trains with every seed"
        )
        sentence += f"; {', '.join(parts)} with some seeds only" if parts else ""
        sentence += f"; {', '.join(fails)} at no learning rate that was tried" if fails else ""
        sentences.append(f"{sentence}.")
    return sentences


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Saved, Shown):
    """What `normscope.choose` found. Prints as a table; `to_html` writes a page.

    Attributes:
        name: the model's name.
        outcomes: one per run.
        settings: the settings that all runs share.
        notes: what the reader must know.
    """

    page = "normscope.choosing.page:choice_document"
    JSON: ClassVar[JsonForm] = JsonForm(
        kind="choice",
        noun="choice",
        write="write one with choice.to_json(path)",
        keys=("name", "recommendation", "settings", ...),
    )

    name: str
    outcomes: tuple[RunOutcome, ...]
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[Cell, ...]:
        """One cell per batch size and normalizer, for each batch size those with the smallest loss first."""
        groups: dict[tuple[int, str], list[RunOutcome]] = {}
        for outcome in self.outcomes:
            groups.setdefault((outcome.run.batch_size, outcome.run.normalizer), []).append(outcome)
        cells = [best_rate(normalizer, size, outcomes) for (size, normalizer), outcomes in groups.items()]
        return tuple(sorted(cells, key=lambda cell: (cell.batch_size, cell.mean)))

    def cell(self, normalizer: str, batch_size: int) -> Cell:
        """Return the cell of a normalizer at a batch size.

        Raises:
            InputError: there is no such cell.
        """
        for cell in self.cells:
            if (cell.normalizer, cell.batch_size) == (normalizer, batch_size):
                return cell
        raise InputError(f"there is no run of {normalizer!r} at batch size {batch_size}")

    @property
    def best(self) -> Cell | None:
        """The cell with the smallest held-out loss of those whose seeds all trained; None if there is none."""
        trained = [cell for cell in self.cells if cell.lr is not None and cell.trained == len(cell.outcomes)]
        return min(trained, key=lambda cell: cell.mean, default=None)

    @property
    def recommendation(self) -> str:
        """What to use, with its figures and how certain that is."""
        return describe_recommendation(self.cells, self.best)
