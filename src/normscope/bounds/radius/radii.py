"""`Radii`: certified and attacked radii of samples, as one frozen object that saves, loads and shows itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ...core.bracket import Evidence
from ...core.codec import JsonForm, Saved
from ...core.errors import InputError, SoundnessError, visible
from ...core.shown import Shown, data_frame
from ...report.svg import ticks

if TYPE_CHECKING:
    import pandas


COLUMNS = ("label", "predicted", "margin", "radius", "attacked", "method", "evidence")
"""The fields that hold one value per sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Accuracy at one radius: what is certified, and what the attack left (None without an attack)."""

    radius: float
    certified: float
    attacked: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Radii(Saved, Shown):
    """What `normscope.certified_radius` found, one entry per sample. Prints as a table; in a notebook as HTML.

    Radii are l2 distances in the units of the model's input: of what the loader yields, behind any preprocessing that
    is no part of the model.

    Attributes:
        name: of the model.
        label: the class that shall not change; the predicted one where `labelled` is False.
        labelled: whether labels were given. Without them nothing is known about right and wrong.
        predicted: the class the model gives.
        margin: the label's output above the largest other one; the sample counts as right where it is positive.
        radius: within it the label provably wins; 0 for a sample that is not right.
        attacked: the length of the smallest change found that makes another class win: 0 for a sample that is not
            right, `inf` where none was found, None without an attack.
        method: what certified the radius: `"linear"` (affine functions below the margins over the ball), `"ball"`
            (limits and constants over the ball), `"global"` (margin over the constant of the difference of two outputs
            over all inputs), `"none"`.
        evidence: how the radius is known.
        classes: how many the model tells apart.
        effort: `"fast"` or `"tight"`.
        rtol: the tolerance of the search: a radius larger by this share was seen to fail, if `converged`.
        converged, advice: whether every search ended within its budget, and what to raise if not.
        input_shape: of one sample.
        notes: what the reader must know.
        provenance: versions and device.
        seconds: how long it took; None where it was read from a file. Not stored in JSON, of which the same search
            gives the same bytes every time.
        witness: the changed samples behind `attacked`, in float64; None where none was found. Not stored in JSON.
    """

    page = "normscope.bounds.pages.radii:radii_document"
    JSON: ClassVar[JsonForm] = JsonForm(
        kind="radii",
        noun="radii",
        plural=True,
        write="write them with radii.to_json(path) or normscope bound radius --json",
        left_out=("seconds", "witness"),
        unsound="a certified radius lies above an attacked one",
    )

    name: str
    label: tuple[int, ...]
    predicted: tuple[int, ...]
    margin: tuple[float, ...]
    radius: tuple[float, ...]
    attacked: tuple[float | None, ...]
    method: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    classes: int
    labelled: bool = True
    effort: str = "fast"
    rtol: float = 1e-2
    converged: bool = True
    advice: str | None = None
    input_shape: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = field(default=None, compare=False)
    witness: tuple[Tensor | None, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in COLUMNS}
        if len(lengths) != 1 or not self.label:
            raise ValueError(f"every sample has one entry in each of {', '.join(COLUMNS)}")
        for row, (radius, attacked) in enumerate(zip(self.radius, self.attacked, strict=True)):
            if not radius >= 0 or (attacked is not None and not attacked >= 0):
                raise ValueError(f"sample {row}: a radius is a number >= 0")
            if attacked is not None and radius > 0 and attacked <= radius and attacked < math.inf:
                raise SoundnessError(
                    f"sample {row}: another class wins at a distance of {attacked:.6g}, inside the certified radius "
                    f"{radius:.6g} ({self.method[row]}). This is a bug: please report the model that shows it."
                )

    def __len__(self) -> int:
        return len(self.label)

    @property
    def right(self) -> tuple[bool, ...]:
        """Whether each sample is put into its class, with a margin."""
        return tuple(margin > 0 for margin in self.margin)

    @property
    def clean_accuracy(self) -> float:
        """The share of samples that are put into their class."""
        return sum(self.right) / len(self)

    def certified_accuracy(self, radius: float) -> float:
        """Return the share of samples that are right and provably stay so within a radius."""
        _check_radius(radius)
        kept = sum(right and own >= radius for right, own in zip(self.right, self.radius, strict=True))
        return kept / len(self)

    def attacked_accuracy(self, radius: float) -> float | None:
        """Return the share of samples that the attack left right within a radius; None without an attack."""
        _check_radius(radius)
        if any(own is None for own in self.attacked):
            return None
        kept = sum(right and (own or 0.0) > radius for right, own in zip(self.right, self.attacked, strict=True))
        return kept / len(self)

    def curve(self, radii: Iterable[float] | None = None) -> tuple[Point, ...]:
        """Return the accuracy by radius: certified, and under attack.

        Args:
            radii: where; round numbers from 0 to beyond the largest radius of the samples if not given.

        Raises:
            InputError: a radius is negative or no number.
        """
        return tuple(
            Point(radius=at, certified=self.certified_accuracy(at), attacked=self.attacked_accuracy(at))
            for at in (self.reach() if radii is None else map(float, radii))
        )

    def reach(self, about: int = 10) -> tuple[float, ...]:
        """Return round radii from 0 to the first at which no sample is left, or as far as figures go."""
        top = max((value for value in (*self.radius, *self.attacked) if value and math.isfinite(value)), default=1.0)
        return tuple(at for at in ticks(0.0, 1.2 * top, about=about) if at <= 1.2 * top)

    def to_pandas(self) -> pandas.DataFrame:
        """Return one line per sample.

        Raises:
            InputError: pandas is not installed.
        """
        columns = {name: getattr(self, name) for name in COLUMNS}
        columns |= {"evidence": [evidence.name for evidence in self.evidence]}
        return data_frame(zip(*columns.values()), list(columns))

    def __repr__(self) -> str:
        middle = sorted(self.radius)[len(self) // 2]
        return visible(f"<Radii of {self.name}: {len(self)} samples, median certified radius {middle:.3g}>")


def _check_radius(radius: float) -> None:
    if not radius >= 0:
        raise InputError(f"a radius is a number >= 0, not {radius}")
