"""Every size that a rule of a check compares with a threshold, as one number for a model: that of its worst layer."""

from __future__ import annotations

from ..facts.examined import Examined


def measure_sizes(examined: Examined) -> dict[str, float]:
    """Return the sizes that a model has, by name."""
    return {}
