"""Results as JSON and back: the types of a dataclass's fields say what is written and what can be read.

Where the file of a result differs from its fields, its `JSON` says so; it also holds the words for errors. A part of
other results derives from `Part`; a result with a file of its own derives from `Saved`.
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

from .errors import InputError, SoundnessError, describe_error
from .files import read_json, write_text

INFINITIES = {"inf": math.inf, "-inf": -math.inf}


def from_plain(value: Any) -> Any:
    """Return what `encode` was given, as far as numbers go: the strings of infinities become numbers again."""
    if isinstance(value, dict):
        return {key: from_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    return INFINITIES.get(value, value) if isinstance(value, str) else value


LARGEST = 2**63
"""A number above every count: Python also reads larger integers, which no float can hold."""
UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""The errors that a result may raise when it is made from values of the right types that do not fit together."""

CLAIMS = ("converged", "holds", "scope", "findings", "skipped")
"""Fields that claim something: a success, all inputs, nothing found, nothing left out; never assumed of a file."""
Names = tuple[str | EllipsisType, ...]
"""Names of fields; `...` stands for every other field (in `sparse`: every other field with a default)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonForm:
    """Where the JSON of a result differs from its fields, and the words for errors.

    Attributes:
        kind: the `type` of its file; empty for a part of other results, which has no header.
        noun: the word for it in errors, as `audit`; with `plural` they say `damaged radii`.
        write: the advice in errors, as `write one with audit.to_json(path)`.
        version: the `schema_version` that is written and read; a change that breaks readers raises it.
        keys: the keys in the order of the file. A name that is no field is a property: it is written and not read.
        left_out: fields that are neither written nor read.
        unread: fields that are written and not read: they are computed again.
        sparse: fields that are written only where they differ from their default.
        always: fields that are written whatever `sparse` says of every other one.
        inlined: fields that are parts, whose own keys stand beside the keys of the result.
        choices: the only values that a field may have, by field.
        nan: whether a figure may be NaN, which is written as null; otherwise null is refused there.
        unsound: the reason in the error where making the result raises a `SoundnessError`.
    """

    kind: str = ""
    noun: str = ""
    plural: bool = False
    write: str = ""
    version: int = 1
    keys: Names = (...,)
    left_out: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    sparse: Names = ()
    always: tuple[str, ...] = ()
    inlined: tuple[str, ...] = ()
    choices: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    nan: bool = False
    unsound: str = "its figures contradict each other"


class Part:
    """A dataclass that other results hold: `to_json` and `from_json` by the types of its fields."""

    __slots__ = ()
    JSON: ClassVar[JsonForm] = JsonForm()

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return plain data, and write it to a file if a path is given.

        Args:
            path: a file to write (whole or not at all).

        Returns:
            Data that JSON can hold: `null` means not measured, and infinities are strings.

        Raises:
            InputError: the file cannot be written.
        """
        return save_json(dict(encode(self)), path)

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Self:
        """Return what `to_json` wrote.

        Args:
            source: a path, or the plain data itself.

        Raises:
            InputError: the file is missing, or holds no such result.
            ValueError: a field of the plain data is missing, or has no valid value.
        """
        data = source if isinstance(source, Mapping) else read_json(source)
        try:
            result: Self = decode(cls, data)
        except ValueError as error:
            if isinstance(source, Mapping):
                raise
            name = os.fspath(source)
            raise InputError(f"{name} holds no {cls.__name__} ({error}): write one with to_json(path)") from error
        return result

    @classmethod
    def of_fields(cls, **values: Any) -> Self:
        """Return the result with the fields that were read; a subclass computes here the fields that are not stored."""
        return cls(**values)


class Saved(Part):
    """A result with a file of its own, which says in its `type` and `schema_version` what it holds."""

    __slots__ = ()

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Self:
        """Return the result that `to_json` wrote; fields that the file leaves out have their default.

        Args:
            source: a path, or the plain data itself.

        Raises:
            InputError: the file is missing, is no JSON, holds no such result of this version, or is damaged.
        """
        with open_json(cls.JSON, source) as data:
            return super().from_json(data)


def save_json(data: dict[str, Any], path: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return plain data, and write it to a file if a path is given."""
    if path is not None:
        write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
    return data


@contextmanager
def open_json(form: JsonForm, source: str | os.PathLike[str] | Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Read a file of some form; errors inside the block are raised again as an `InputError` that names the file."""
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
        why = str(error) if type(error) is ValueError else describe_error(error)
        raise InputError(f"{name} {damaged} ({why}): {form.write}") from error


def encode(value: Any) -> Any:
    """Return results, enums, mappings and tuples, however they are nested, as plain data.

    Infinities become strings, NaN `None`, and tuples lists.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {key: encode(item) for key, item in _items(value)}
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value, str) else value.name
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def decode(hint: Any, value: Any, where: str = "", *, nan: bool = False) -> Any:
    """Return the value that `encode` turned into plain data; numbers stay as they are written.

    Args:
        hint: its type: a dataclass, an enum, `tuple[int, ...]`, `Mapping[str, float]`, `str | None`, a `Literal`, ...
        value: the plain data.
        where: the name of the value in errors, e.g. `layers[0].path`.
        nan: whether null stands for NaN where a float is expected.

    Raises:
        ValueError: a value is of another type, is no number, or is missing.

    Example:
        >>> decode(Mapping[str, tuple[float, ...]], {"a": [1, "inf"]})
        {'a': (1, inf)}
        >>> decode(Mapping[str, tuple[int, ...]], {"a": [1, "2"]})
        Traceback (most recent call last):
        ValueError: a[1] is '2'
    """
    kind, inner, has_fields = _hint_parts(hint)
    if kind is Any:
        return from_plain(value)
    if kind in (Union, UnionType):
        return _either(inner, value, where, nan)
    if has_fields:
        return _dataclass(kind, value, where, nan)
    if kind is Literal:
        return value if isinstance(value, str) and value in inner else _refuse(value, where)
    if kind is tuple:
        parts = value if isinstance(value, list | tuple) else _refuse(value, where)
        each = inner[:1] * len(parts) if inner[-1] is ... else inner
        if len(each) != len(parts):
            _refuse(value, where)
        return tuple(decode(one, part, f"{where}[{at}]", nan=nan) for at, (one, part) in enumerate(zip(each, parts)))
    if kind in (dict, Mapping):
        items = value if isinstance(value, Mapping) else _refuse(value, where)
        return {
            decode(inner[0], key, f"a key of {where}"): decode(inner[1], item, _inside(where, key), nan=nan)
            for key, item in items.items()
        }
    return _single(kind, value, where, nan)


@cache
def _hint_parts(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Return the class of a type, its parameters, and whether it is a dataclass: asked for every value of a file."""
    kind = get_origin(hint) or hint
    return kind, get_args(hint), is_dataclass(kind)


@cache
def _stored(kind: type) -> dict[str, tuple[Field[Any], Any]]:
    """Return the fields that a file may have, by name, each with its type."""
    form, hints = _form(kind), get_type_hints(kind)
    declared = {item.name: item for item in fields(kind)}
    named = {*form.left_out, *form.unread, *form.sparse, *form.always, *form.inlined, *form.choices} - {...}
    if not named <= declared.keys():
        raise TypeError(f"{kind.__name__} has no {', '.join(map(str, named - declared.keys()))}")
    return {name: (item, hints[name]) for name, item in declared.items() if name not in form.left_out}


@cache
def _keys(kind: type) -> tuple[str, ...]:
    """Return the keys of a file in order."""
    form, stored = _form(kind), _stored(kind)
    keys = (*(key for key in _header(form) if key not in form.keys), *form.keys)
    rest = [name for name in stored if name not in keys]
    return tuple(name for key in keys for name in (rest if isinstance(key, EllipsisType) else [key]))


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a result's file, with their values."""
    kind: Any = type(value)
    form, stored = _form(kind), _stored(kind)
    header = _header(form)
    for key in _keys(kind):
        item = header[key] if key in header else getattr(value, key)
        own = stored[key][0] if key in stored else None
        if own is not None and _is_sparse(form, own):
            default = own.default if own.default_factory is MISSING else own.default_factory()
            if item == default:
                continue
        yield from _items(item) if key in form.inlined else [(key, item)]


def _dataclass(kind: Any, value: Any, where: str, nan: bool) -> Any:
    """Return a result from the plain data of its fields."""
    form = _form(kind)
    data = value if isinstance(value, Mapping) else _refuse(value, where)
    for key, expected in _header(form).items():
        if key not in data:
            raise ValueError(f"{_inside(where, key)} is missing")
        if data[key] != expected or isinstance(data[key], bool):
            _refuse(data[key], _inside(where, key))
    read = _fields(kind, data, where, nan or form.nan)
    try:
        return kind.of_fields(**read) if issubclass(kind, Part) else kind(**read)
    except (SoundnessError, *UNREADABLE) as error:
        why = form.unsound if isinstance(error, SoundnessError) else str(error) or describe_error(error)
        raise ValueError(f"{where}: {why}" if where else why) from error


def _fields(kind: Any, data: Mapping[str, Any], where: str, nan: bool) -> dict[str, Any]:
    """Return the fields of a result that are read from plain data; those with a default may be missing, claims not."""
    form, read = _form(kind), {}
    for name, (item, hint) in _stored(kind).items():
        inside = _inside(where, name)
        if name in form.inlined:
            read[name] = decode(hint, data, where, nan=nan)
        elif name in data and name not in form.unread:
            read[name] = decode(hint, data[name], inside, nan=nan)
            if name in form.choices and read[name] not in form.choices[name]:
                _refuse(data[name], inside)
            if name == "notes" and not all(read[name]):  # pages make sentences of them
                _refuse(data[name], inside)
        elif not _may_miss(item, form):
            raise ValueError(f"{inside} is missing")
    return read


def _either(hints: tuple[Any, ...], value: Any, where: str, nan: bool) -> Any:
    """Return a value of the first type of a union that fits."""
    if value is None and NoneType in hints:
        return None
    *others, last = (hint for hint in hints if hint is not NoneType)
    for hint in others:
        try:
            return decode(hint, value, where, nan=nan)
        except ValueError:
            continue
    return decode(last, value, where, nan=nan)


def _single(kind: Any, value: Any, where: str, nan: bool) -> Any:
    """Return a value without parts: members of enums and infinities are strings in JSON, and NaN may be null."""
    if kind is float:
        if value is None and nan:
            return math.nan
        if isinstance(value, str) and value in INFINITIES:
            return INFINITIES[value]
        return value if is_number(value) or (nan and isinstance(value, float)) else _refuse(value, where)
    if issubclass(kind, enum.Enum):
        members = {member.value if issubclass(kind, str) else member.name: member for member in kind}
        return members[value] if isinstance(value, str) and value in members else _refuse(value, where)
    fits = isinstance(value, kind) and (kind is not int or is_number(value))
    return value if fits else _refuse(value, where)


def _form(kind: type) -> JsonForm:
    return getattr(kind, "JSON", Part.JSON)


def _header(form: JsonForm) -> dict[str, object]:
    return {"schema_version": form.version, "type": form.kind} if form.kind else {}


def _is_sparse(form: JsonForm, item: Field[Any]) -> bool:
    """Whether a field is left out of a file where it has its default."""
    every = ... in form.sparse and item.name not in form.always
    return item.name in form.sparse or (every and _has_default(item))


def _may_miss(item: Field[Any], form: JsonForm) -> bool:
    """Whether a file may lack a field: one that is not read, or that has a default which claims nothing."""
    claims = item.name in CLAIMS and not _is_sparse(form, item)
    return not claims and (item.name in form.unread or _has_default(item))


def _has_default(item: Field[Any]) -> bool:
    return (item.default, item.default_factory) != (MISSING, MISSING)


def is_number(value: Any) -> bool:
    """Return whether a value is a number that is not NaN, and no integer beyond every count."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not math.isnan(value) if isinstance(value, float) else abs(value) < LARGEST


def _inside(where: str, name: object) -> str:
    return f"{where}.{name!s:.80}" if where else f"{name!s:.80}"


def _refuse(value: Any, where: str) -> NoReturn:
    """Raise an error that shows a value and its name."""
    shown = "null" if value is None else f"{value!r:.40}"
    raise ValueError(f"{where or 'it'} is {shown}")
