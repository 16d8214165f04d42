"""Results as plain data: what JSON can hold, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

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


def rebuilt(hint: Any, value: Any) -> Any:
    """Return the value of a type hint that `plain` turned into plain data; NaN, which became `None`, is a float again.

    Args:
        hint: a number, a string, a tuple, a mapping, a frozen dataclass, or one of these or None.
        value: what was read; a dataclass is given as a mapping that has all of its fields but those without a `repr`.

    Raises:
        TypeError: the value is of another type, or a mapping lacks a field.
    """
    inner = get_args(hint)
    if NoneType in inner:
        [other] = (one for one in inner if one is not NoneType)
        return None if value is None else rebuilt(other, value)
    kind = get_origin(hint) or hint
    if is_dataclass(kind):
        names = [item.name for item in fields(kind) if item.repr]
        if not isinstance(value, Mapping) or not value.keys() >= set(names):
            raise TypeError(f"{kind.__name__} has {', '.join(names)}")  # type: ignore[union-attr]
        hints = get_type_hints(kind)
        return kind(**{name: rebuilt(hints[name], value[name]) for name in names})  # type: ignore[operator]
    if kind is tuple and isinstance(value, list | tuple):
        each = (inner[0],) * len(value) if inner[1:] == (...,) else inner
        return tuple(rebuilt(one, item) for one, item in zip(each, value, strict=True))
    if kind in (dict, Mapping) and isinstance(value, Mapping):
        return {rebuilt(inner[0], key): rebuilt(inner[1], item) for key, item in value.items()}
    if kind is float and not isinstance(value, bool):
        value = math.nan if value is None else INFINITIES.get(value, value) if isinstance(value, str) else value
        value = float(value) if isinstance(value, int) else value
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise TypeError(f"{value!r:.40} is no {getattr(kind, '__name__', kind)}")
    return value
