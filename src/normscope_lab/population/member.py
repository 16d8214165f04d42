"""`Member`: the outcome of one network of a population, which is kept as a line of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from normscope.toolkit import Part

from .recipes import Recipe
from .stacked_training import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Part):
    """The outcome of one network. `None` stands for a figure that was not measured.

    Attributes:
        recipe: how the network was built and trained.
        status: `reached` (the training loss that was asked for), `not reached` (within the steps), `diverged` (a loss
            that is not finite) or `failed` (it raised). Only those that reached it are measured and compared.
        reason: why it failed.
        steps: the number of training steps.
        train_loss: the cross entropy on the training samples, in eval mode.
        train_error: the share of the training samples that are classified otherwise than their label.
        test_error: the same on test samples, averaged over label noise like that of the training labels.
        measures: the measures by name; None where one could not be taken.
        notes: what was not measured, and why.
    """

    recipe: Recipe
    status: Status
    reason: str = ""
    steps: int = 0
    train_loss: float | None = None
    train_error: float | None = None
    test_error: float | None = None
    measures: Mapping[str, float | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of the network, in files too."""
        return self.recipe.key

    @property
    def gap(self) -> float | None:
        """The test error less the training error."""
        if self.test_error is None or self.train_error is None:
            return None
        return self.test_error - self.train_error

    @classmethod
    def of_fields(cls, **fields: Any) -> Self:
        """Return a member from the fields that were read."""
        member = cls(**fields)
        if not all(error is None or 0.0 <= error <= 1.0 for error in (member.train_error, member.test_error)):
            raise ValueError("an error is no share of the samples")
        return member
