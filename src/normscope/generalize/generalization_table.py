"""`Generalization`: what the bounds say of a model, as a table; saved, loaded, as HTML and for pandas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..core.codec import JsonForm
from ..core.errors import InputError
from ..geometry.figure_result import FigureResult, figures_form
from ..theory.complexity import sample_size
from .bound import CERTIFIED, BoundRow
from .families import ALONE
from .slides import ErrorPart

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCourse:
    """How a row of Theorem 20 depends on the partition, and what its terms are at the best one.

    Attributes:
        name: of the row.
        sizes: N of every declared partition, labels counted.
        gaps: how far above the loss on D the bound is at each.
        local, cells, size: the part that does not shrink with more samples, |T| and N at the best.
        delta: the probability of failure that is left for it.
    """

    name: str
    sizes: tuple[int, ...]
    gaps: tuple[float, ...]
    local: float
    cells: int
    size: int
    delta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Generalization(FigureResult):
    """What generalization bounds say of a model. Prints as a table; in a notebook as HTML.

    Attributes:
        name: of the model, which is measured in eval mode.
        loss: the bounded loss; most: C, its largest value.
        classes: outputs.
        samples, held_out, tested: how many samples each part has; `tested` is None without test samples.
        delta: the probability with which each row may fail; each row for itself.
        partition: how the cells were fixed.
        train_loss, train_error, test_loss, test_error: measured.
        rows: the bounds.
        courses: rows of Theorem 20 over the declared partitions.
        parts: optimization, generalization and approximation error.
        notes: what the reader must know.
    """

    page = "generalization:generalization_document"
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
        """The loss on the test samples less that on D."""
        return None if self.test_loss is None else self.test_loss - self.train_loss

    @property
    def certified(self) -> int:
        """How many rows are certified."""
        return sum(one.evidence == CERTIFIED for one in self.rows)

    @property
    def confidence(self) -> float:
        """The probability, at least, with which all certified rows hold together, and so the best of them."""
        return max(0.0, 1.0 - self.certified * self.delta)

    @property
    def best(self) -> BoundRow | None:
        """The smallest certified bound that says something, in units of what it bounds can be at most.

        It is chosen after the fact, so that it holds with probability `confidence`.
        """
        return self._least(self.rows)

    @property
    def best_from_train(self) -> BoundRow | None:
        """The same without what fresh samples alone say."""
        return self._least([one for one in self.rows if not one.name.endswith(ALONE)])

    @staticmethod
    def _least(rows: Sequence[BoundRow]) -> BoundRow | None:
        known = [one for one in rows if one.evidence == CERTIFIED and not one.vacuous]
        return min(known, key=lambda one: one.value / one.most, default=None)

    def samples_for(self, gap: float, name: str) -> float:
        """Return how many samples a row of Theorem 20 asks for to promise a gap, its cells taken as they are.

        Args:
            gap: that is wanted between the losses on D and on fresh data.
            name: of the row.

        Raises:
            InputError: there is no such row, or the gap is none.
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
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_pandas needs pandas: pip install pandas") from error
        return pandas.DataFrame(
            [
                {
                    "name": one.name,
                    "value": one.value,
                    "log10_value": one.log10_value,
                    "most": one.most,
                    "vacuous": one.vacuous,
                    "evidence": one.evidence,
                    "missing": "; ".join(condition.what for condition in one.missing),
                    "speaks_of": one.speaks_of,
                    "log10_as_printed": one.log10_as_printed,
                    "source": one.source,
                }
                for one in self.rows
            ]
        )
