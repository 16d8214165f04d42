"""`RunOutcome`: the result of one run, as a line of JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..core.codec import JsonForm, Part
from .task import TrainingRun

Status = Literal["trained", "not trained", "diverged", "refused", "failed"]
WENT = ("trained", "not trained", "diverged")
"""The statuses of runs that took place; the others have a reason instead of figures."""


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
        log10_domain: log10 of the bound over all inputs whose inner values stay in the ranges of the samples.
        noise: how much BatchNorm's variances change from batch to batch: the relative standard deviation, the median
            over channels, of the layer where it is largest.
        noise_law: the smallest possible noise, `sqrt(2/(m-1))` for m independent Gaussian values.
        findings: codes of the warnings and errors that `watch` raised, and of a `check` at the end (first seed).
        seconds_per_step: how long a step of the training loop took, without watching.
        notes: which figures were not measured, and why.
    """

    JSON: ClassVar[JsonForm] = JsonForm(added=(...,))

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
    log10_domain: float | None = None
    noise: float | None = None
    noise_law: float | None = None
    findings: tuple[str, ...] = ()
    seconds_per_step: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of the run in files."""
        return self.run.key
