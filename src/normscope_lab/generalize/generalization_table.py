"""`Generalization`: the bounds on a model's loss on fresh data as a table, which can be saved and shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from normscope.theory import sample_size
from normscope.toolkit import FigureResult, InputError, JsonForm, data_frame, figures_form

from .bound import CERTIFIED, BoundRow
from .than2025 import ALONE, LocalRow

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPart:
    """One part of the error of a trained model: its name, the range it is known to lie in, and why."""

    name: str
    low: float
    high: float
    why: str


def decomposition(
    train_loss: float, test_loss: float | None, bound: float | None, most: float
) -> tuple[ErrorPart, ...]:
    """Return what is known of the optimization, generalization and approximation errors.

    `F(P, h) - F(P, y*) = [F(D, h) - F(D, h_D)] + [F(P, h) - F(D, h)] + rest`, for a loss from 0 to `most`; h_D is the
    best member of the family on D. No data show the family's best member, so that only ranges are known of the first
    and the last term.
    """
    gap = None if test_loss is None else round(test_loss - train_loss, 12)
    limit = most if bound is None else min(most, bound)
    how = "measured on the test samples" if gap is not None else "between what the smallest certified bound allows"
    return (
        ErrorPart(
            name="optimization error",
            low=0.0,
            high=train_loss,
            why="the loss on D less the smallest of the family there, which is not known and not below 0",
        ),
        ErrorPart(
            name="generalization error",
            low=-train_loss if gap is None else gap,
            high=limit - train_loss if gap is None else gap,
            why=f"the loss on fresh data less the loss on D: {how}",
        ),
        ErrorPart(
            name="approximation error",
            low=0.0,
            high=limit if test_loss is None else test_loss,
            why="the smallest loss of the family on the distribution less that of the best function: no sample shows "
            "it, and it is at most the loss of this model",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCourse:
    """How a row of Theorem 20 depends on the partition, and its terms for the partition with the smallest gap."""

    name: str  # the name of the row
    sizes: tuple[int, ...]  # N of every declared partition, with labels counted
    gaps: tuple[float, ...]  # how far the bound of each partition is above the loss on D
    # local, cells, size: for the best partition: the term that does not shrink with more samples, |T| and N
    local: float
    cells: int
    size: int
    delta: float  # the probability of failure for each partition

    @classmethod
    def of(cls, local: LocalRow) -> PartitionCourse:
        """Return how a row of Theorem 20 depends on the partition."""
        best = local.over[local.chosen]
        return cls(
            name=local.bound.name,
            sizes=tuple(terms.size for terms in local.over),
            gaps=tuple(terms.gap for terms in local.over),
            local=best.local,
            cells=best.cells,
            size=best.size,
            delta=local.delta,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Generalization(FigureResult):
    """The generalization bounds of a model. Prints as a table; in a notebook as HTML.

    Attributes:
        name: the model's class; it is measured in eval mode.
        loss: the name of the bounded loss.
        most: C, the largest value of the loss.
        classes: how many outputs the model has.
        samples, held_out, tested: how many samples each part has; `tested` is None without test samples.
        delta: the probability with which each single row may fail.
        partition: how the cells were fixed.
        train_loss, train_error, test_loss, test_error: the measured losses and errors.
        rows: the bounds.
        courses: for each row of Theorem 20, how it depends on the partition.
        parts: optimization, generalization and approximation error.
        notes: what the reader must know.
    """

    page = "normscope_lab.generalize.page:generalization_document"
    JSON: ClassVar[JsonForm] = figures_form("generalization", "generalization")

    name: str
    loss: str
    most: float
    classes: int
    samples: int
    held_out: int
    tested: int | None
    delta: float
    partition: str
    train_loss: float
    train_error: float
    test_loss: float | None
    test_error: float | None
    rows: tuple[BoundRow, ...]
    courses: tuple[PartitionCourse, ...]
    parts: tuple[ErrorPart, ...]
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> BoundRow:
        for one in self.rows:
            if one.name == name:
                return one
        raise InputError(f"there is no row {name!r}: there are {', '.join(one.name for one in self.rows)}")

    @property
    def gap(self) -> float | None:
        """The loss on the test samples minus the loss on D; None without test samples."""
        return None if self.test_loss is None else self.test_loss - self.train_loss

    @property
    def certified(self) -> int:
        """How many rows are certified."""
        return sum(one.evidence == CERTIFIED for one in self.rows)

    @property
    def confidence(self) -> float:
        """A lower bound on the probability that all certified rows hold together, and so the best of them."""
        return max(0.0, 1.0 - self.certified * self.delta)

    @property
    def best(self) -> BoundRow | None:
        """The certified bound that is smallest relative to the largest possible value; None if all are vacuous.

        It is chosen after all rows are known, so that it holds with probability `confidence`.
        """
        return self._least(self.rows)

    @property
    def best_from_train(self) -> BoundRow | None:
        """The best row among those that use D, without the rows from fresh samples alone."""
        return self._least([one for one in self.rows if not one.name.endswith(ALONE)])

    @staticmethod
    def _least(rows: Sequence[BoundRow]) -> BoundRow | None:
        candidates = [one for one in rows if one.evidence == CERTIFIED and not one.vacuous]
        return min(candidates, key=lambda one: one.value / one.most, default=None)

    def samples_for(self, gap: float, name: str) -> float:
        """Return how many samples D would need for a row of Theorem 20 to guarantee a gap, with the same cells.

        Args:
            gap: the wanted difference between the losses on fresh data and on D.
            name: the name of the row.

        Raises:
            InputError: there is no such row, or the gap is not above 0.
        """
        for course in self.courses:
            if course.name == name:
                return sample_size(
                    gap,
                    sensitivity=course.local,
                    cells=course.cells,
                    partition=course.size,
                    delta=course.delta,
                    most=self.most,
                )
        raise InputError(f"{name!r} is no row of Theorem 20: there are {', '.join(c.name for c in self.courses)}")

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a table for pandas.

        Raises:
            InputError: pandas is not installed.
        """
        names = ("name", "value", "log10_value", "most", "vacuous", "evidence", "missing", "speaks_of")
        columns = (*names, "log10_as_printed", "source")
        frame = data_frame({name: getattr(one, name) for name in columns} for one in self.rows)
        frame["missing"] = ["; ".join(condition.what for condition in one.missing) for one in self.rows]
        return frame
