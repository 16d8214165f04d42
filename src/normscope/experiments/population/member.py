"""`Member`: what became of one network of a population, as a line of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from ...core.codec import JsonForm, Part
from .recipes import Recipe
from .stacked_training import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Part):
    """What became of a network. `None` is not measured.

    Attributes:
        recipe: of the network.
        status: `reached` (the training loss that was asked for), `not reached` (within the steps), `diverged` (a loss
            that is not finite) or `failed` (it raised). Only those that reached it are measured and compared.
        reason: why it failed.
        steps: of its training.
        train_loss: cross entropy on the training samples, in eval mode.
        train_error: share of the training samples that are put into another class than their label.
        test_error: the same on test samples, in the mean over label noise like that of the training labels.
        measures: by name; None where one could not be taken.
        notes: what was not measured, and why.
    """

    JSON: ClassVar[JsonForm] = JsonForm(added=(...,))

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
        """What the network is known by."""
        return self.recipe.key

    @property
    def gap(self) -> float | None:
        """The test error less the training error."""
        if self.test_error is None or self.train_error is None:
            return None
        return self.test_error - self.train_error

    @classmethod
    def of_fields(cls, **given: Any) -> Self:
        """Return the member that was read.

        Raises:
            ValueError: an error is no share of the samples.
        """
        found = cls(**given)
        if not all(error is None or 0.0 <= error <= 1.0 for error in (found.train_error, found.test_error)):
            raise ValueError("an error is no share of the samples")
        return found
