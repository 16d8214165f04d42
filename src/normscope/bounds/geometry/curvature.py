"""`Curvature`: a spectrum and the other results of `normscope curvature`, as one file and one page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...core.codec import JsonForm, decode, open_json, save_json
from ...core.shown import Shown
from ...report.document import FigureResult
from .flatness import Flatness
from .margins import Margins
from .smoothness import Smoothness
from .spectrum import Spectrum

FORM = JsonForm(kind="curvature", noun="curvature", write="write one with normscope curvature --json")
CURVATURE_RESULTS: dict[str, type[FigureResult]] = {
    kind.JSON.kind: kind for kind in (Spectrum, Smoothness, Flatness, Margins)
}
"""The results that such a file may hold, by their `type`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curvature(Shown):
    """What `normscope curvature` measures: a spectrum, and the other results that were asked for."""

    page = "normscope.bounds.pages.curvature:curvature_document"

    results: tuple[FigureResult, ...]

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return plain data, one entry per result, and write it to a file if a path is given."""
        results = {one.JSON.kind: one.to_json() for one in self.results}
        return save_json({"schema_version": FORM.version, "type": FORM.kind, **results}, path)

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Curvature:
        """Return what `to_json` wrote."""
        with open_json(FORM, source) as data:
            kinds = [kind for name, kind in CURVATURE_RESULTS.items() if name in data or kind is Spectrum]
            return cls(results=tuple(decode(kind, data.get(kind.JSON.kind), kind.JSON.kind) for kind in kinds))
