"""The measures, each a function of a trained network and its training data. To add a measure, add a row to `MEASURES`.

A larger figure should mean a larger gap, so that a perfect measure has tau = 1; margins enter as their inverse. Only
the order counts, and products are given as log10. No measure reads a test label. Only `data` reads test inputs, because
it speaks of fresh samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from normscope import (
    Flatness,
    Ladder,
    Measures,
    NormscopeError,
    flatness,
    hessian,
    ladder,
    lipschitz,
    measures,
)
from normscope.toolkit import InputError, describe_error, log10_sum

from ..generalize import Generalization, generalization
from .noisy import NoisyData
from .stacked_training import TrainedMember

POINTS = 64
"""The number of samples at which Jacobian norms are taken."""
MAX_SAMPLES = 1000
"""The largest number of training samples whose margins and curvature are taken."""
BATCH = 250
"""The number of samples in a batch."""
SHARE, CONFIDENCE = 0.95, 0.95
"""The share and the confidence of DATA, for which 59 samples suffice."""
INSTRUMENT = (
    "parameters", "frobenius-sum", "frobenius-product", "spectral-product", "distance", "distance-over-spectral",
    "inverse-margin", "frobenius-product/margin", "spectral-product/margin", "spectral-complexity/margin",
    "pac-bayes-complexity/margin",
)  # fmt: skip
"""The measures that `normscope.measures` takes."""
NOISE, DRAWS = 0.1, 8
"""The size of the noise on the weights, relative to them, and how often it is drawn."""
RTOL = 0.05
"""The tolerance of Jacobian norms and eigenvalues; networks differ by more."""
DIGITS = 6
"""How many digits of a figure are kept."""

Group = Literal["size", "norms", "margin", "capacity", "capacity over margin", "bounds", "sharpness", "training"]


class MemberFigures:
    """A trained network and its data, with the figures that several measures share, each computed once.

    Args:
        trained: the network.
        data: the data that it was trained on.
    """

    def __init__(self, trained: TrainedMember, data: NoisyData) -> None:
        self.trained, self.data = trained, data
        self.model = trained.model
        self.images, self.labels = data.train_images[:MAX_SAMPLES], data.train_labels[:MAX_SAMPLES]

    @cached_property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """The first training samples, up to `MAX_SAMPLES`, in batches."""
        return list(zip(self.images.split(BATCH), self.labels.split(BATCH)))

    @cached_property
    def everywhere(self) -> Ladder:
        """The bounds over all inputs by method, and the constant of every layer."""
        return ladder(self.model, self.images[:2], sides="upper", mode="eval")

    @cached_property
    def observed(self) -> list[float]:
        """Log10 of the Jacobian norms at training samples."""
        bracket = lipschitz(self.model, self.images[:POINTS], scope="point", mode="eval", rtol=RTOL)
        return [one.log10_upper for one in bracket.per_sample or (bracket,)]

    @cached_property
    def fresh(self) -> float:
        """Log10 of the Jacobian norm that most of the distribution does not exceed, from test inputs."""
        inputs = self.data.test_images[:POINTS]
        options = {"share": SHARE, "confidence": CONFIDENCE, "samples": len(inputs), "rtol": RTOL}
        return lipschitz(self.model, [inputs], scope="data", mode="eval", **options).log10_upper  # type: ignore[arg-type]

    @cached_property
    def instrument(self) -> Measures:
        """The measures that `normscope measures` takes of any model."""
        return measures(self.model, self.batches, start=self.trained.start, only=INSTRUMENT)

    def taken(self, name: str) -> float:
        """Return one of these measures."""
        value = self.instrument[name]
        if value is None:
            raise InputError(next(row.reason for row in self.instrument.rows if row.name == name))
        return value

    @property
    def log10_margin(self) -> float:
        """Log10 of the margin; `-inf` where it is not above 0."""
        return -self.taken("inverse-margin")

    @cached_property
    def bounds(self) -> Generalization:
        """Every bound on the risk; PAC-Bayes, which searches a posterior, is left out."""
        return generalization(self.model, self.batches, steps=0)

    def bound(self, name: str, *, printed: bool = False) -> float:
        """Return log10 of the bound whose name begins with the given one, or of its formula as its paper prints it."""
        rows = [row for row in self.bounds.rows if row.name.startswith(name)]
        if not rows:
            raise InputError(f"there is no bound {name} for this network")
        return _or_nan(rows[0].log10_as_printed) if printed else rows[0].log10_value

    def _flatness(self, **options: Any) -> Flatness:
        options |= {"loss": "cross_entropy", "levels": (NOISE,), "draws": DRAWS, "mode": "eval"}
        return flatness(self.model, self.batches, **options)

    @cached_property
    def flatness(self) -> Flatness:
        """The loss after ascent, and the sharpness on the quotient."""
        return self._flatness()

    @cached_property
    def noise(self) -> tuple[float, float]:
        """The loss under noise by group of weights, and under raw noise; neither needs the ascent."""
        level = self._flatness(ascent_steps=1, ascent_starts=1, sharpness=False).noise[0]
        return level.loss.value, level.raw_loss.value

    @cached_property
    def largest_eigenvalue(self) -> float:
        """The largest eigenvalue of the Hessian of the training loss."""
        spectrum = hessian(self.model, self.batches, loss="cross_entropy", k=1, deflate=False, mode="eval", rtol=RTOL)
        return spectrum.eigenvalues[0]


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure: what it is, its group, and the function that computes it."""

    about: str
    group: Group
    of: Callable[[MemberFigures], float]


def _over_margin(of: Callable[[MemberFigures], float]) -> Callable[[MemberFigures], float]:
    return lambda figures: of(figures) - figures.log10_margin


def _mean_observed(figures: MemberFigures) -> float:
    return log10_sum(figures.observed) - math.log10(len(figures.observed))


def _taken(name: str, about: str, group: Group) -> Measure:
    return Measure(about, group, lambda figures: figures.taken(name))


def _bound(name: str, about: str) -> Measure:
    return Measure(about, "bounds", lambda figures: figures.bound(name))


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


MEASURES: dict[str, Measure] = {
    "parameters": _taken(
        "parameters", "number of parameters", "size"
    ),
    "frobenius-sum": _taken(
        "frobenius-sum", "sum of the squared Frobenius norms of the weights", "norms"
    ),
    "frobenius-product": _taken(
        "frobenius-product", "product of the Frobenius norms", "norms"
    ),
    "spectral-product": _taken(
        "spectral-product", "product of the operator norms of the weight layers", "norms"
    ),
    "distance": _taken(
        "distance", "squared distance of the weights from where they started", "norms"
    ),
    "distance-over-spectral": _taken(
        "distance-over-spectral", "the same, layer by layer over the squared operator norm", "norms"
    ),
    "inverse-margin": _taken(
        "inverse-margin", "one over the margin that a tenth of the training samples does not exceed", "margin"
    ),
    "printed": Measure(
        "product of the operator norms and the printed constants of the normalizers (Than et al.)", "capacity",
        lambda s: s.everywhere["printed"].log10_upper,
    ),
    "global": Measure("the best bound over all inputs", "capacity", lambda s: s.everywhere["best"].log10_upper),
    "data": Measure("what 95 % of fresh inputs do not exceed (DATA)", "capacity", lambda s: s.fresh),
    "observed-largest": Measure("largest Jacobian norm at training samples", "capacity", lambda s: max(s.observed)),
    "observed-mean": Measure("mean Jacobian norm at training samples", "capacity", _mean_observed),
    "frobenius-product/margin": _taken(
        "frobenius-product/margin", "product of the Frobenius norms over the margin", "capacity over margin"
    ),
    "spectral-product/margin": _taken(
        "spectral-product/margin", "product of the operator norms over the margin", "capacity over margin"
    ),
    "spectral-complexity/margin": _taken(
        "spectral-complexity/margin", "spectral complexity over the margin (the leading term of Bartlett et al. 2017)",
        "capacity over margin",
    ),
    "pac-bayes-complexity/margin": _taken(
        "pac-bayes-complexity/margin", "the leading term of Neyshabur et al. 2018", "capacity over margin"
    ),
    "printed/margin": Measure(
        "the printed product over the margin", "capacity over margin",
        _over_margin(lambda s: s.everywhere["printed"].log10_upper),
    ),
    "global/margin": Measure(
        "the best bound over all inputs over the margin", "capacity over margin",
        _over_margin(lambda s: s.everywhere["best"].log10_upper),
    ),
    "data/margin": Measure("DATA over the margin", "capacity over margin", _over_margin(lambda s: s.fresh)),
    "observed-mean/margin": Measure(
        "mean Jacobian norm over the margin", "capacity over margin", _over_margin(_mean_observed)
    ),
    "theorem-20": _bound(
        "Theorem 20, all inputs", "Theorem 20 (Than 2025), constant over all inputs, no cell above the largest loss"
    ),
    "theorem-20-slopes": _bound(
        "Theorem 20, slopes at D", "the same with the slopes at the samples, an estimate"
    ),
    "theorem-20-slopes-printed": Measure(
        "Theorem 20 with the slopes at the samples as printed, without that cap",
        "bounds", lambda s: s.bound("Theorem 20, slopes at D", printed=True),
    ),
    "corollary-22": _bound("Corollary 22 (", "Corollary 22 for the network's normalizer (Than 2025)"),
    "hkk": _bound("HKK", "the rate of Hou et al. 2023 as Than quotes it, without constants"),
    "vc": _bound("VC", "the growth function of piecewise linear networks (VC)"),
    "bartlett": _bound("Bartlett 2017", "Bartlett et al. 2017 with constants; its conditions may not hold"),
    "neyshabur": _bound("Neyshabur 2018", "Neyshabur et al. 2018 with constants; its conditions may not hold"),
    "golowich": _bound("Golowich 2020", "Golowich et al. 2020 with constants; its conditions may not hold"),
    "weight-normalization": _bound("Weight normalization", "the rate of Cisneros-Velarde et al., without constants"),
    "sharpness": Measure(
        "largest eigenvalue of the Hessian of the training loss", "sharpness", lambda s: s.largest_eigenvalue
    ),
    "spherical-sharpness": Measure(
        "the same on the spheres of scale-invariant weights, in units of their norms", "sharpness",
        lambda s: _or_nan(s.flatness.spherical_sharpness),
    ),
    "noise": Measure(
        "training loss under noise of 10 % of every group of weights", "sharpness",
        lambda s: s.noise[0],
    ),
    "raw-noise": Measure(
        "training loss under noise of one deviation for all weights, 10 % of their norm", "sharpness",
        lambda s: s.noise[1],
    ),
    "ascent": Measure(
        "increase of the training loss by ascent, in units of the weights (ASAM)", "sharpness",
        lambda s: s.flatness.ascent,
    ),
    "raw-ascent": Measure("the same by a length (SAM)", "sharpness", lambda s: s.flatness.raw_ascent),
    "steps": Measure("steps until the training loss was reached", "training", lambda s: float(s.trained.steps)),
    "train-loss": Measure("training loss at the end, at most the one asked for", "training", lambda s: s.trained.loss),
}  # fmt: skip
"""The measures by name."""


def measured(
    figures: MemberFigures, names: Sequence[str] = tuple(MEASURES)
) -> tuple[dict[str, float | None], tuple[str, ...]]:
    """Return measures of a network, None where one cannot be taken, and notes that say why."""
    summary: dict[str, float | None] = {}
    notes: list[str] = []
    for name in names:
        try:
            value = float(MEASURES[name].of(figures))
        except (NormscopeError, RuntimeError, ArithmeticError, ValueError) as error:
            summary[name] = None
            notes.append(f"`{name}` was not measured ({describe_error(error)})")
            continue
        summary[name] = None if math.isnan(value) else float(f"{value:.{DIGITS}g}")
        if math.isnan(value):
            notes.append(f"`{name}` is not a number")
    return summary, tuple(notes)
