"""Numbers of no known type as JSON holds them, and back; results go through `core/codec.py`."""

from __future__ import annotations

import math
from typing import Any

INFINITIES = {"inf": math.inf, "-inf": -math.inf}


def plain(value: Any) -> Any:
    """Return nested dicts, lists and tuples with infinities as strings, NaN as `None`, tuples as lists."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def revived(value: Any) -> Any:
    """Return what `plain` was given, as far as numbers go: the strings of infinities become numbers again."""
    if isinstance(value, dict):
        return {key: revived(item) for key, item in value.items()}
    if isinstance(value, list):
        return [revived(item) for item in value]
    return INFINITIES.get(value, value) if isinstance(value, str) else value
