"""`DataBracket`: a quantile of the Jacobian norm over a distribution, with confidence.

The limits are order statistics of independent draws (Wilks 1941, Clopper and Pearson).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from ...core.bracket import Bracket, Evidence, Scope
from ...core.codec import JsonForm, Saved
from ...core.errors import InputError
from ...core.shown import Shown


def rank_above(draws: int, share: float, confidence: float) -> int | None:
    """Return which of the sorted draws, from 1, has at least a share of the distribution at or below it.

    The least k with BinomialCDF(k - 1; draws, share) >= confidence: the draws below the quantile are at most as many as
    a binomial number, and where they are fewer than k the k-th draw is no smaller than the quantile. Nothing is assumed
    of the distribution. None where there are too few draws.

    Example:
        >>> rank_above(299, 0.99, 0.95), rank_above(298, 0.99, 0.95), rank_above(1000, 0.99, 0.95)
        (299, None, 996)
    """
    held = np.flatnonzero(_chances(draws, share) >= confidence)
    return int(held[0]) + 1 if held.size else None


def rank_below(draws: int, share: float, confidence: float) -> int | None:
    """Return which of the sorted draws, from 1, is at or below the quantile of a share, with that confidence.

    The largest k with BinomialCDF(k - 1; draws, share) <= 1 - confidence; None where there are too few draws.
    """
    held = np.flatnonzero(_chances(draws, share) <= 1.0 - confidence)
    return int(held[-1]) + 1 if held.size else None


def draws_needed(share: float, confidence: float) -> int:
    """Return the fewest draws of which the largest has at least a share of the distribution at or below it.

    The least n with share^n <= 1 - confidence.

    Example:
        >>> draws_needed(0.99, 0.95), draws_needed(0.5, 0.9)
        (299, 4)
    """
    about = max(1, math.floor(math.log1p(-confidence) / math.log(share)) - 1)
    return next(n for n in range(about, about + 4) if rank_above(n, share, confidence) is not None)


def _chances(draws: int, share: float) -> np.ndarray:
    """Return the binomial distribution function at 0 to draws - 1."""
    from scipy.special import bdtr  # loads when first needed

    return np.asarray(bdtr(np.arange(draws), draws, share))


SHARES = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999)
"""Of which tables and charts show limits, as far as the samples go."""
LARGEST = 10
"""How many samples `largest` names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataBracket(Saved, Bracket, Shown):
    """The Jacobian norm that a share of the distribution does not exceed, with confidence.

    Over draws of the samples, with probability `confidence` at least, a share of at least `share` of the distribution
    has a Jacobian norm of at most `upper`; and with the same probability the quantile is at least `lower`. It speaks of
    fresh independent draws from the distribution that the samples come from. It says nothing about shifted or
    adversarial inputs, nor about two inputs far apart: the evidence is SAMPLED.

    Prints as a table; in a notebook as HTML. The fields of `Bracket` are there, too.

    Attributes:
        share: of the distribution.
        confidence: of each of the two sides.
        log10_norms: log10 of the upper side of the Jacobian norm at each sample, in the order of the data.
        log10_norms_lower: the same of the lower sides.
        indices: where each sample stands in the data, if they were drawn in another order; None if they were not.
        per_class: the same of the samples of each class, by label, where asked for.
    """

    page = "normscope.auditing.data_share:quantile_document"
    _rendered = Shown._rendered  # several tables, and not the line of a bracket
    _repr_html_ = Shown._repr_html_
    JSON: ClassVar[JsonForm] = replace(
        Bracket.JSON,
        kind="data_bracket",
        noun="bracket over data",
        write="write one with bracket.to_json(path)",
    )

    share: float
    confidence: float
    log10_norms: tuple[float, ...] = field(repr=False)
    log10_norms_lower: tuple[float, ...] = field(repr=False)
    indices: tuple[int, ...] | None = field(default=None, repr=False)
    per_class: Mapping[str, DataBracket] = field(default_factory=dict, repr=False)

    @classmethod
    def of_fields(cls, **fields: Any) -> DataBracket:
        """Return the bracket that was read.

        Raises:
            ValueError: it has no samples, or other numbers of norms and indices.
        """
        uppers, lowers, indices = (fields[name] for name in ("log10_norms", "log10_norms_lower", "indices"))
        if not len(uppers) == len(lowers) == len(uppers if indices is None else indices) > 0:
            raise ValueError("log10_norms, log10_norms_lower and indices do not have one entry for each sample")
        return cls(**fields)

    @property
    def samples(self) -> int:
        """How many samples were measured."""
        return len(self.log10_norms)

    @property
    def largest(self) -> tuple[tuple[int, float], ...]:
        """The samples with the largest norms, each as its index in the data and log10 of its norm, largest first."""
        places = range(self.samples) if self.indices is None else self.indices
        ranked = sorted(zip(places, self.log10_norms, strict=True), key=lambda pair: -pair[1])
        return tuple(ranked[:LARGEST])

    def renumbered(self, order: Sequence[int]) -> DataBracket:
        """Return the same, of samples that were drawn from the data in some order."""
        own = range(self.samples) if self.indices is None else self.indices
        classes = {label: part.renumbered(order) for label, part in self.per_class.items()}
        return replace(self, indices=tuple(order[i] for i in own), per_class=classes)

    def limits(self, share: float, confidence: float | None = None) -> tuple[float, float]:
        """Return log10 of the limits of another quantile, each with its own confidence.

        The limits of several shares hold one by one with that confidence, not all at once.

        Args:
            share: of the distribution, between 0 and 1.
            confidence: that of the bracket if not given.

        Returns:
            The lower limit (`-inf` where there are too few samples for one) and the upper one (`inf`).
        """
        confidence = self.confidence if confidence is None else confidence
        check_shares(share, confidence)
        return limits(self.log10_norms_lower, self.log10_norms, share, confidence)

    def reach(self, share: float) -> float | None:
        """Return the largest share, up to some, that there are enough samples to speak of; None for none."""
        shares = [s for s in sorted({*SHARES, share}) if s <= share and self.limits(s)[1] < math.inf]
        return shares[-1] if shares else None


def quantile(
    lowers: list[float],
    uppers: list[float],
    *,
    share: float,
    confidence: float,
    method: str,
    input_shape: tuple[int, ...],
    notes: tuple[str, ...] = (),
    products: int = 0,
    advice: str | None = None,
) -> DataBracket:
    """Make the bracket of a quantile from both sides of the norms at independent samples."""
    low, high = limits(lowers, uppers, share, confidence)
    reason = None
    if high == math.inf:
        needed = draws_needed(share, confidence)
        reason = f"{len(uppers)} samples are too few to speak of a share of {share:g} with confidence {confidence:g}"
        advice = "; ".join(filter(None, [advice, f"pass {needed} samples or more, or lower the share"]))
    rank = rank_above(len(uppers), share, confidence)
    return DataBracket(
        log10_lower=low,
        log10_upper=high,
        evidence=Evidence.SAMPLED,
        method=f"order statistic {rank or '-'} of {len(uppers)}: {method}",
        scope=Scope.DATA,
        mode="eval",
        reason=reason,
        converged=advice is None,
        advice=advice,
        input_shape=input_shape,
        notes=notes,
        products=products,
        share=share,
        confidence=confidence,
        log10_norms=tuple(uppers),
        log10_norms_lower=tuple(lowers),
    )


def limits(
    lowers: tuple[float, ...] | list[float], uppers: tuple[float, ...] | list[float], share: float, confidence: float
) -> tuple[float, float]:
    """Return the order statistics between which the quantile of a share lies, each with that confidence."""
    below, above = rank_below(len(lowers), share, confidence), rank_above(len(uppers), share, confidence)
    low = -math.inf if below is None else sorted(lowers)[below - 1]
    return low, math.inf if above is None else sorted(uppers)[above - 1]


def check_shares(share: Any, confidence: Any) -> None:
    """Refuse a share or a confidence that is no number between 0 and 1."""
    for name, value in (("share", share), ("confidence", confidence)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < 1.0:
            raise InputError(f"{name} is a number between 0 and 1, such as 0.99, not {value!r}")
