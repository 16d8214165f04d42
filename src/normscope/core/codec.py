"""Results as JSON and back: the types of a dataclass's fields say what is written and what can be read.

A result says in one place, its `JSON`, where its file differs from its fields, and what errors call it. A part of other
results derives from `Part`; what has a file of its own from `Saved`.
"""

from __future__ import annotations

import enum
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from types import EllipsisType, NoneType, UnionType
from typing import Any, ClassVar, Literal, NoReturn, Self, Union, get_args, get_origin, get_type_hints

from .errors import InputError, SoundnessError, said
from .files import read_json, write_text
from .json_values import INFINITIES, plain, revived

LARGEST = 2**63
"""Above every count; Python reads larger integers, that no float can hold."""
UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What comes of making a result from values that are of the right types and still do not fit together."""

Names = tuple[str | EllipsisType, ...]
"""Names of fields; `...` stands for every other field, where defaults matter for every other field that has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonForm:
    """Where the JSON of a result differs from its fields, and what errors call it.

    Attributes:
        kind: the `type` of its file; empty for a part of other results, which has no header.
        noun: what errors call it, `audit`; with `plural` they say `damaged radii`.
        write: what an error advises, `write one with audit.to_json(path)`.
        version: the `schema_version` that is written and read; a change that breaks readers raises it.
        keys: the keys in the order of the file. A name that is no field is a property: it is written and not read.
        left_out: fields that are neither written nor read.
        unread: fields that are written and not read: they are computed again.
        older: fields that are read where an older file has them, and not written.
        added: fields that older files do not have; they get their default.
        sparse: fields that are written only where they differ from their default.
        choices: by field the only values that mean something.
        nan: whether a figure may be NaN, which is written as null; otherwise null is refused there.
        unsound: what contradicts what where the result cannot be made for a `SoundnessError`.
    """

    kind: str = ""
    noun: str = ""
    plural: bool = False
    write: str = ""
    version: int = 1
    keys: Names = (...,)
    left_out: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    older: tuple[str, ...] = ()
    added: Names = ()
    sparse: Names = ()
    choices: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    nan: bool = False
    unsound: str = "its figures contradict each other"


class Part:
    """A dataclass that other results hold: `to_json` and `from_json` by the types of its fields."""

    __slots__ = ()
    JSON: ClassVar[JsonForm] = JsonForm()

    def to_json(self) -> dict[str, Any]:
        """Return plain data: infinities are strings, `None` is not measured."""
        return dict(encoded(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return what `to_json` wrote.

        Raises:
            ValueError: a field is missing, or is not what it can be.
        """
        made: Self = decoded(cls, data)
        return made

    @classmethod
    def of_fields(cls, **given: Any) -> Self:
        """Make the result from the fields that were read; one whose fields depend on each other makes them here."""
        return cls(**given)


class Saved(Part):
    """A result with a file of its own."""

    __slots__ = ()

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return plain data, and write it to a file if a path is given.

        Args:
            path: a file to write (whole or not at all).

        Returns:
            What JSON can hold: `null` is not measured, infinities are strings, one `schema_version`.

        Raises:
            InputError: the file cannot be written.
        """
        return save_json(super().to_json(), path)

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Self:
        """Return the result that `to_json` wrote; what its file leaves out is at its default.

        Args:
            source: a path, or the plain data itself.

        Raises:
            InputError: the file is missing, is no JSON, or holds no such result of this version, or a damaged one.
        """
        with opened(cls.JSON, source) as data:
            return super().from_json(data)


def save_json(data: dict[str, Any], path: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return plain data, and write it to a file if a path is given."""
    if path is not None:
        write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
    return data


@contextmanager
def opened(form: JsonForm, source: str | os.PathLike[str] | Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Read a file of some form; what goes wrong inside the block is said of the file.

    Raises:
        InputError: the file is missing, is no JSON, is of another kind or version, or is damaged.
    """
    name = "the data" if isinstance(source, Mapping) else os.fspath(source)
    data = source if isinstance(source, Mapping) else read_json(source)
    if not isinstance(data, Mapping) or data.get("type") != form.kind:
        raise InputError(f"{name} holds no {form.noun}: {form.write}")
    schema = data.get("schema_version")
    if schema != form.version or isinstance(schema, bool):
        todo = "update Normscope" if isinstance(schema, int) and schema > form.version else form.write
        raise InputError(f"{name} has schema_version {schema!s:.40}, this version reads {form.version}: {todo}")
    try:
        yield data
    except InputError:
        raise
    except (SoundnessError, RecursionError, *UNREADABLE) as error:
        damaged = f"holds damaged {form.noun}" if form.plural else f"is a damaged {form.noun}"
        why = str(error) if type(error) is ValueError else said(error)
        raise InputError(f"{name} {damaged} ({why}): {form.write}") from error


def encoded(value: Any) -> Any:
    """Return plain data of results, enums, mappings, tuples and numbers, nested as they come."""
    if is_dataclass(value) and not isinstance(value, type):
        return {key: encoded(item) for key, item in _items(value)}
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value, str) else value.name
    if isinstance(value, Mapping):
        return {key: encoded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(item) for item in value]
    return plain(value)


def decoded(hint: Any, value: Any, where: str = "", *, nan: bool = False) -> Any:
    """Return the value of a type that `encoded` turned into plain data; numbers stay as they are written.

    Args:
        hint: a type: a dataclass, an enum, `tuple[int, ...]`, `Mapping[str, float]`, `str | None`, a `Literal`, ...
        value: what JSON held.
        where: how the error calls the value, e.g. `layers[0].path`.
        nan: whether null stands for NaN where a float is asked for.

    Raises:
        ValueError: a value is of another type, is no number, or is missing.

    Example:
        >>> decoded(Mapping[str, tuple[float, ...]], {"a": [1, "inf"]})
        {'a': (1, inf)}
        >>> decoded(Mapping[str, tuple[int, ...]], {"a": [1, "2"]})
        Traceback (most recent call last):
        ValueError: a[1] is '2'
    """
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Any:
        return revived(value)
    if kind in (Union, UnionType):
        return _either(inner, value, where, nan)
    if is_dataclass(kind):
        return _dataclass(kind, value, where, nan)
    if kind is Literal:
        return value if isinstance(value, str) and value in inner else _refuse(value, where)
    if kind is tuple:
        parts = value if isinstance(value, list | tuple) else _refuse(value, where)
        each = inner[:1] * len(parts) if inner[-1] is ... else inner
        if len(each) != len(parts):
            _refuse(value, where)
        return tuple(decoded(one, part, f"{where}[{at}]", nan=nan) for at, (one, part) in enumerate(zip(each, parts)))
    if kind in (dict, Mapping):
        items = value if isinstance(value, Mapping) else _refuse(value, where)
        return {
            decoded(inner[0], key, f"a key of {where}"): decoded(inner[1], item, _inside(where, key), nan=nan)
            for key, item in items.items()
        }
    return _single(kind, value, where, nan)


@cache
def _stored(kind: type) -> dict[str, tuple[Field[Any], Any]]:
    """Return the fields that a file may have, by name, each with its type."""
    form, hints = _form(kind), get_type_hints(kind)
    known = {item.name: item for item in fields(kind)}
    named = {*form.left_out, *form.unread, *form.older, *form.added, *form.sparse, *form.choices} - {...}
    if not named <= known.keys():
        raise TypeError(f"{kind.__name__} has no {', '.join(map(str, named - known.keys()))}")
    return {name: (item, hints[name]) for name, item in known.items() if name not in form.left_out}


@cache
def _keys(kind: type) -> tuple[str, ...]:
    """Return the keys of a file in order."""
    form, stored = _form(kind), _stored(kind)
    keys = (*(key for key in _header(form) if key not in form.keys), *form.keys)
    rest = [name for name in stored if name not in keys and name not in form.older]
    return tuple(name for key in keys for name in (rest if isinstance(key, EllipsisType) else [key]))


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a result and what stands there."""
    kind: Any = type(value)
    form, stored = _form(kind), _stored(kind)
    header = _header(form)
    for key in _keys(kind):
        item = header[key] if key in header else getattr(value, key)
        if key not in stored or not _names(form.sparse, stored[key][0]) or item != _default(stored[key][0]):
            yield key, item


def _dataclass(kind: Any, value: Any, where: str, nan: bool) -> Any:
    form = _form(kind)
    if not isinstance(value, Mapping):
        _refuse(value, where)
    for key, wanted in _header(form).items():
        if key not in value:
            raise ValueError(f"{_inside(where, key)} is missing")
        if value[key] != wanted or isinstance(value[key], bool):
            _refuse(value[key], _inside(where, key))
    given = {}
    for name, (item, hint) in _stored(kind).items():
        inside = _inside(where, name)
        if name in form.unread:
            continue
        if name in value:
            given[name] = decoded(hint, value[name], inside, nan=nan or form.nan)
            if name in form.choices and given[name] not in form.choices[name]:
                _refuse(value[name], inside)
        elif not _names((*form.older, *form.added, *form.sparse), item):
            raise ValueError(f"{inside} is missing")
    try:
        return kind.of_fields(**given) if issubclass(kind, Part) else kind(**given)
    except (SoundnessError, *UNREADABLE) as error:
        why = form.unsound if isinstance(error, SoundnessError) else str(error) or said(error)
        raise ValueError(f"{where}: {why}" if where else why) from error


def _either(hints: tuple[Any, ...], value: Any, where: str, nan: bool) -> Any:
    if value is None and NoneType in hints:
        return None
    *others, last = (hint for hint in hints if hint is not NoneType)
    for hint in others:
        try:
            return decoded(hint, value, where, nan=nan)
        except ValueError:
            continue
    return decoded(last, value, where, nan=nan)


def _single(kind: Any, value: Any, where: str, nan: bool) -> Any:
    """Return a value without parts; infinities and members of enums are strings in JSON."""
    if kind is float:
        if value is None and nan:
            return math.nan
        if isinstance(value, str) and value in INFINITIES:
            return INFINITIES[value]
        return value if _is_number(value) or (nan and isinstance(value, float)) else _refuse(value, where)
    if kind is int:
        return value if _is_number(value) and isinstance(value, int) else _refuse(value, where)
    if issubclass(kind, enum.Enum):
        found = {member.value if issubclass(kind, str) else member.name: member for member in kind}
        return found[value] if isinstance(value, str) and value in found else _refuse(value, where)
    return value if isinstance(value, kind) else _refuse(value, where)


def _form(kind: type) -> JsonForm:
    return getattr(kind, "JSON", Part.JSON)


def _header(form: JsonForm) -> dict[str, object]:
    return {"schema_version": form.version, "type": form.kind} if form.kind else {}


def _names(names: Names, item: Field[Any]) -> bool:
    """Whether a field is among some names."""
    return item.name in names or (... in names and (item.default, item.default_factory) != (MISSING, MISSING))


def _default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not math.isnan(value) if isinstance(value, float) else abs(value) < LARGEST


def _inside(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _refuse(value: Any, where: str) -> NoReturn:
    shown = "null" if value is None else f"{value!r:.40}"
    raise ValueError(f"{where or 'it'} is {shown}")
