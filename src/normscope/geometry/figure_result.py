"""What the results of this room share: plain data for files, and a document for readers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Self

from torch import Tensor

from ..core.errors import InputError, said
from ..core.files import read_json, write_text
from ..core.json_values import plain, rebuilt
from ..report.shown import Shown

SCHEMA_VERSION = 1
"""Of the JSON forms; a change that breaks readers raises it."""
VERBS = {"spectrum": "hessian"}
"""What returns a result where it has another name."""


class FigureResult(Shown):
    """A frozen result of figures; tensors and seconds are not stored."""

    __slots__ = ()

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return plain data, and write it to a file if a path is given.

        Args:
            path: a file to write (whole or not at all).

        Raises:
            InputError: the file cannot be written.
        """
        stored = {item.name for item in fields(self) if item.repr}  # type: ignore[arg-type]
        figures = asdict(self, dict_factory=lambda pairs: {k: v for k, v in pairs if not isinstance(v, Tensor)})  # type: ignore[call-overload]
        data = {"schema_version": SCHEMA_VERSION, "type": type(self).__name__.lower()}
        data |= plain({name: value for name, value in figures.items() if name in stored})
        if path is not None:
            write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
        return data

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Self:
        """Return the result that `to_json` wrote; vectors are not stored.

        Args:
            source: a path, or the plain data itself.

        Raises:
            InputError: the file is missing, is no JSON, or holds no result of this kind and version.
        """
        name = "the data" if isinstance(source, Mapping) else os.fspath(source)
        given = source if isinstance(source, Mapping) else read_json(source)
        kind = cls.__name__.lower()
        try:
            if given["type"] != kind or given["schema_version"] != SCHEMA_VERSION:
                raise ValueError("it is of another type or version")
            made = rebuilt(cls, given)
            made.document()  # what cannot be shown is damaged
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise InputError(
                f"{name} holds no result of normscope.{VERBS.get(kind, kind)} ({said(error)}): write one with "
                "to_json(path)"
            ) from error
        return made
