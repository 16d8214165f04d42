"""`RunOutcome`: what one run came to, as a line of JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..core.codec import JsonForm, Part
from .task import TrainingRun

Status = Literal["trained", "not trained", "diverged", "refused", "failed"]
WENT = ("trained", "not trained", "diverged")
"""Runs that took place; others have a reason instead of figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome(Part):
    """What a run came to. `None` is not measured.

    Attributes:
        run: which one.
        status: `trained` (the held-out loss, in eval mode, fell to half of what it was before or less),
            `not trained`, `diverged` (a loss that is not finite), `refused` (no such twin) or `failed` (it raised).
        reason: why it was refused or failed.
        steps: that it took.
        first_loss: the held-out loss before, in eval mode.
        train_loss: the mean over the last tenth of the steps, in train mode.
        loss, accuracy: held out, after, in eval mode; accuracy where targets are classes.
        stable_lr: the largest learning rate at which gradient descent on one batch of this size was stable, from the
            first weights (measured in the run with the smallest learning rate); infinite if none was found that is
            not, as happens with a batch of two.
        log10_observed: of the largest Jacobian norm at held-out samples.
        log10_data: of what 95 % of the data's distribution does not exceed, at 95 % confidence.
        log10_domain: of the bound over all inputs whose inner values stay in the ranges of the samples.
        noise: of BatchNorm's variances from batch to batch: relative standard deviation, median over channels and
            layers, largest layer.
        noise_law: the least it can be, `sqrt(2/(m-1))` for m independent Gaussian values.
        findings: codes of the warnings and errors that `watch` raised, and of a `check` at the end (first seed).
        seconds_per_step: of the training loop, watching left out.
        notes: what was not measured, and why.
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
        """What the run is known by."""
        return self.run.key
