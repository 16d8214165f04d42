"""`Curvature`: a spectrum and what was measured beside it, as one file and one page."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError
from ..core.files import read_json, write_text
from ..report.shown import Shown
from .figure_result import SCHEMA_VERSION, FigureResult
from .flatness import Flatness
from .flow import Flow
from .margins import Margins
from .smoothness import Smoothness
from .spectrum import Spectrum

KINDS: dict[str, type[FigureResult]] = {
    kind.__name__.lower(): kind for kind in (Spectrum, Smoothness, Flow, Flatness, Margins)
}
"""What can be measured of a model and a loss, by the `type` of its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curvature(Shown):
    """What `normscope curvature` measures: a spectrum, and others beside it."""

    page = "curvature:curvature_document"

    results: tuple[FigureResult, ...]

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return plain data, one entry per result, and write it to a file if a path is given.

        Raises:
            InputError: the file cannot be written.
        """
        data: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "type": "curvature"}
        data |= {type(one).__name__.lower(): one.to_json() for one in self.results}
        if path is not None:
            write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
        return data

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Curvature:
        """Return what `to_json` wrote.

        Raises:
            InputError: the file is missing, is no JSON, or holds no curvature of this version.
        """
        name = "the data" if isinstance(source, Mapping) else os.fspath(source)
        given = source if isinstance(source, Mapping) else read_json(source)
        whole = isinstance(given, Mapping) and given.get("type") == "curvature"
        if not whole or given.get("schema_version") != SCHEMA_VERSION or "spectrum" not in given:
            raise InputError(f"{name} holds no curvature of this version: write it with normscope curvature --json")
        parts = [given[kind] for kind in KINDS if kind in given]
        if not all(isinstance(part, Mapping) for part in parts):
            raise InputError(f"{name} is damaged: a result in it is no object")
        return cls(results=tuple(KINDS[kind].from_json(given[kind]) for kind in KINDS if kind in given))
