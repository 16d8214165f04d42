"""Whether plain data have the form of a result, which the types of its fields say."""

from __future__ import annotations

import enum
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from ..core.json_values import INFINITIES

CHOICES: dict[str, tuple[str | None, ...]] = {"role": ("weight", "normalizer"), "mode": ("train", "eval", None)}
"""Fields of which only these values mean something."""
NOT_STORED = ("witness", "proof", "radii", "curve", "cost")
"""Fields that JSON does not hold, or that check themselves."""
ADDED = (
    *("sensitivity", "per_output", "products", "signal", "step", "seconds"),
    *("follows", "bypassed", "log10_trunk_cumulative", "log10_trunk_observed"),
)
"""Fields that audits saved by some versions do not have: not measured, or not stored."""
LARGEST = 2**63
"""Above every count; Python reads larger integers, that no float can hold."""


def check_form(value: Any, form: Any, where: str = "") -> None:
    """Compare plain data with the type of what they shall become.

    Args:
        value: what JSON held.
        form: a type: a dataclass, an enum, `tuple[int, ...]`, `Mapping[str, float]`, `str | None`, ...
        where: how the error calls the value, e.g. `layers[0].path`.

    Raises:
        ValueError: a value is of another type, is no number, or is missing.

    Example:
        >>> check_form({"a": [1, 2]}, Mapping[str, tuple[int, ...]])
        >>> check_form({"a": [1, "2"]}, Mapping[str, tuple[int, ...]])
        Traceback (most recent call last):
        ValueError: a[1] is '2'
    """
    origin, of = typing.get_origin(form), typing.get_args(form)
    if origin in (typing.Union, types.UnionType):
        _check_either(value, of, where)
    elif is_dataclass(form):
        _check_fields(value, form, where)
    elif origin is tuple:
        parts = value if isinstance(value, list | tuple) else _refuse(value, where)
        forms = [of[0]] * len(parts) if of[-1] is Ellipsis else of
        if len(forms) != len(parts):
            _refuse(value, where)
        for index, part in enumerate(parts):
            check_form(part, forms[index], f"{where}[{index}]")
    elif origin is not None:
        items = value if isinstance(value, Mapping) else _refuse(value, where)
        for key, item in items.items():
            check_form(key, of[0], f"a key of {where}")
            check_form(item, of[1], _inside(where, key))
    elif not _fits(value, form):
        _refuse(value, where)


def _check_either(value: Any, forms: tuple[Any, ...], where: str) -> None:
    left = [form for form in forms if form is not types.NoneType]
    if value is None and len(left) < len(forms):
        return
    for form in left[:-1]:
        try:
            return check_form(value, form, where)
        except ValueError:
            continue
    check_form(value, left[-1], where)


def _check_fields(value: Any, form: Any, where: str) -> None:
    if not isinstance(value, Mapping):
        _refuse(value, where)
    for name, kind in _hints(form).items():
        inside = _inside(where, name)
        if name not in value:
            if name in ADDED:
                continue
            raise ValueError(f"{inside} is missing")
        check_form(value[name], kind, inside)
        if name in CHOICES and value[name] not in CHOICES[name]:
            _refuse(value[name], inside)


@cache
def _hints(form: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(form)
    return {item.name: hints[item.name] for item in fields(form) if item.name not in NOT_STORED}


def _fits(value: Any, form: Any) -> bool:
    """Whether a value without parts is of a type, as JSON holds it: infinities and members of enums are strings."""
    if form is float:
        return _is_number(value) or (isinstance(value, str) and value in INFINITIES)
    if form is int:
        return _is_number(value) and isinstance(value, int)
    if issubclass(form, enum.Enum):
        return isinstance(value, str) and any(value in (member.name, member.value) for member in form)
    return isinstance(value, form)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not math.isnan(value) if isinstance(value, float) else abs(value) < LARGEST


def _inside(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _refuse(value: Any, where: str) -> typing.NoReturn:
    shown = "null" if value is None else f"{value!r:.40}"
    raise ValueError(f"{where or 'it'} is {shown}")
