"""Confidence limits of a quantile from the order statistics of independent draws (Wilks 1941, Clopper and Pearson)."""

from __future__ import annotations

import math

import numpy as np


def rank_above(draws: int, share: float, confidence: float) -> int | None:
    """Return which of the sorted draws, from 1, has at least a share of the distribution at or below it.

    The least k with BinomialCDF(k - 1; draws, share) >= confidence: the draws below the quantile are at most as many as
    a binomial number, and where they are fewer than k the k-th draw is no smaller than the quantile. Nothing is assumed
    of the distribution.

    Args:
        draws: independent draws of the distribution.
        share: of the distribution, between 0 and 1.
        confidence: how often, over draws, the statement holds at least.

    Returns:
        The rank; None where there are too few draws for any.

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
