"""Runs in progress as data for a page that draws itself: every look reads only what was added to the log."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.files import bounded_lines
from ..monitor.log import FILE, LogReading, read_line
from ..monitor.run import Run
from ..report.cells import visible
from ..report.document import Curve, Curves
from ..report.limits import CUT_CAPTION_LETTERS, MAX_CURVES, MAX_ROWS, cut_text, left_out
from .run import (
    MOST,
    PRODUCTS,
    READING_THE_PRODUCTS,
    Points,
    headline,
    loss_courses,
    marks,
    metric_names,
    total_curves,
    verdict_of,
    view_curves,
)
from .run_views import PARTS, LayerPicture

HISTOGRAMS = "Histograms"
TOTALS: dict[str, tuple[tuple[str, str, Callable[[Run], dict[str, Points]]], ...]] = {
    "Loss": (("loss", "Loss by step", loss_courses),),
    "Rates and products": (
        ("lr", "Learning rate", lambda run: {"lr": run.total("lr")}),
        ("products", "Product of what all layers can do", lambda run: {n: run.total(q) for q, n in PRODUCTS}),
        ("gradient", "Size of the whole gradient", lambda run: {"gradient": run.total("log10_gradient")}),
    ),
}
"""The charts of the whole network, by part of the page: the key, the title and the curves of each."""
AXES = {
    "loss": "loss",
    "lr": "learning rate",
    "products": "log10 of the product",
    "gradient": "log10 of the norm",
}


class Followed:
    """The log of a run in progress; `refresh` reads what was added to it.

    Args:
        folder: the folder of the run, or the log in it.

    Attributes:
        run: the run, as far as its log has been read.
        broken: why the log cannot be read any further; None if it can.
        version: a number that grows with every change.

    Raises:
        InputError: there is no log, or it is damaged.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = Path(folder)
        self.run = Run(path)
        self._folder, self._file = self.run.path, path / FILE if path.is_dir() else path
        self._reading, self._read, self._lines, self._inode = LogReading(), 0, 0, -1
        self.broken: str | None = None
        self.version = 0
        self.refresh()

    def refresh(self) -> None:
        """Read what has been written since the last time; a log that was started anew is read from the start."""
        try:
            with self._file.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._read:
                    self._reading, self._read, self._lines = LogReading(), 0, 0
                    self._inode, self.broken = status.st_ino, None
                if self.broken is not None or status.st_size == self._read:
                    return
                file.seek(self._read)
                before = self._lines
                for line in bounded_lines(file, self._file, already_read=before):
                    if not line.endswith(b"\n"):  # the run is writing it
                        break
                    self._reading.take_from(self._folder, read_line(line, str(self._file)))
                    self._read += len(line)
                    self._lines += 1
                self.version += self._lines > before
        except (OSError, InputError) as error:
            self.version += self.broken is None
            self.broken = str(error)
        self.run = Run.of_reading(self._folder, self._reading)


def live_data(
    runs: Sequence[Followed], names: Sequence[str], parts: Collection[str], low: float, high: float
) -> dict[str, Any]:
    """Return what the page shows, as plain data.

    Args:
        runs: the runs that are followed.
        names: the name of each run.
        parts: the parts of the page whose charts are wanted.
        low: the first step that is shown.
        high: the last step that is shown.
    """
    shown = [followed.run.between(low, high) for followed in runs]
    return {
        "version": version(runs),
        "runs": [
            {"name": _text(name), "state": _text(f.broken or _state(f.run)), "verdict": _text(verdict_of(f.run))}
            for f, name in zip(runs, names, strict=True)
        ],
        "alarms": [
            {
                "run": index, "step": finding.step, "level": finding.severity.value, "code": _text(finding.code),
                "where": _text(finding.where), "seen": _text(finding.seen),
            }
            for index, followed in enumerate(runs)
            for finding in followed.run.findings[:MAX_ROWS]
        ],
        "parts": [*TOTALS, *(heading for heading, _, views in PARTS if _any(runs, views)), *_spread_part(runs)],
        "charts": [chart for part in parts for chart in _charts(shown, part)],
        "histograms": list(_histograms(shown)) if HISTOGRAMS in parts else [],
    }  # fmt: skip


def version(runs: Sequence[Followed]) -> int:
    """Return a number that grows with every change of any run."""
    return sum(followed.version for followed in runs)


def _state(run: Run) -> str:
    said = headline(run)
    where = f"Step {run.records[-1].step:,}." if run.records else ""
    cut = (
        left_out(len(run.findings), MAX_ROWS, "alarm"),
        left_out(len(run.resumed), MAX_ROWS, "resumption"),
        left_out(len(metric_names(run)), MOST, "logged figure"),
        left_out(len(run.of("weight")), MAX_CURVES, "layer"),
    )
    return " ".join(filter(None, (where, *cut, *said[1:])))


def _any(runs: Sequence[Followed], views: Sequence[LayerPicture]) -> bool:
    """Whether any of these quantities was measured in any run, as far as its last records tell."""
    return any(f.run.records and any(r.of(v.kind, v.quantity) for r in f.run.records) for f in runs for v in views)


def _spread_part(runs: Sequence[Followed]) -> list[str]:
    return [HISTOGRAMS] if any(record.histograms for f in runs for record in f.run.records) else []


def _totals(runs: Sequence[Run], part: str) -> Iterator[tuple[str, str, Callable[[Run], dict[str, Points]]]]:
    """Yield the charts of the whole network in a part of the page; the user's own figures are shown with the loss."""
    yield from TOTALS.get(part, ())
    if part == "Loss":
        for name in dict.fromkeys(name for run in runs for name in metric_names(run)[:MOST]):
            yield f"metric {_text(name)}", name, lambda run, name=name: {name: run.total(name)}  # type: ignore[misc]


def _charts(runs: Sequence[Run], part: str) -> Iterator[dict[str, Any]]:
    """Yield the charts of a part of the page: those of the whole network, then those of its layers."""
    for key, title, courses in _totals(runs, part):
        yield from _total_chart(runs, part, key, title, courses)
    for view in (view for heading, _, views in PARTS if heading == part for view in views):
        yield from _layer_chart(runs, part, view)


def _total_chart(
    runs: Sequence[Run], part: str, key: str, title: str, courses: Callable[[Run], dict[str, Points]]
) -> Iterator[dict[str, Any]]:
    """Yield one chart of the whole network, if it has any points; `courses` returns the curves of a run by name."""
    by_curve = {(index, name): points for index, run in enumerate(runs) for name, points in courses(run).items()}
    joined = total_curves(
        {f"{index} {name}": points for (index, name), points in by_curve.items()},
        title=title,
        axis=AXES.get(key, title),
        caption=READING_THE_PRODUCTS if key == "products" else "",
        logarithmic=key in ("loss", "lr"),
    )
    if joined is not None:
        drawn = [curve for curve, points in by_curve.items() if points]
        owned = [(index, name, curve) for (index, name), curve in zip(drawn, joined.curves, strict=True)]
        yield _chart(key, part, joined, owned, runs)


def _layer_chart(runs: Sequence[Run], part: str, view: LayerPicture) -> Iterator[dict[str, Any]]:
    """Yield the chart of one quantity of all layers, if any run has it."""
    by_run = [(index, view_curves(run, view)) for index, run in enumerate(runs)]
    measured = [(index, curves) for index, curves in by_run if curves is not None]
    if measured:
        owned = [(index, curve.name, curve) for index, curves in measured for curve in curves.curves]
        captions = dict.fromkeys(curves.caption for _, curves in measured)
        like = replace(measured[0][1], caption=" ".join(captions))
        yield _chart(f"{view.kind}-{view.quantity}", part, like, owned, runs)


def _chart(
    key: str, part: str, like: Curves, owned: Sequence[tuple[int, str, Curve]], runs: Sequence[Run]
) -> dict[str, Any]:
    """Return a chart as plain data: curves with the index of their run and their name, and the marks of all runs."""
    return {
        "id": key,
        "part": part,
        "title": _text(like.title),
        "axis": _text(like.axis),
        "caption": like.caption,
        "rules": [[name, value] for name, value in like.rules],
        "curves": [
            {
                "run": index,
                "name": _text(name),
                "depth": curve.depth,
                "points": [[x, _plain(value)] for x, value in curve.points],
            }
            for index, name, curve in owned
        ],
        "marks": [
            {"run": index, "x": mark.x, "level": mark.level, "name": _text(mark.name)}
            for index, run in enumerate(runs)
            for mark in marks(run)[:MAX_ROWS]
        ],
    }


def _histograms(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Yield the last histogram of every weight and gradient."""
    for index, run in enumerate(runs):
        record = next((record for record in reversed(run.records) if record.histograms), None)
        for what, rows in ({} if record is None else record.histograms).items():
            for layer, row in zip(run.of("weight")[:MAX_CURVES], rows):
                if record is not None and row is not None:
                    shares = [_plain(value) for value in row if value is not None]
                    header = {"run": index, "layer": _text(layer.name), "step": record.step}
                    yield header | {"what": f"{what}s", "shares": shares}


def _text(value: str) -> str:
    """Return a text of a log as the page shows it: its beginning, with invisible characters made visible."""
    return visible(cut_text(value, CUT_CAPTION_LETTERS))


def _plain(value: float) -> float | str | None:
    """Return a number as JSON can hold it: NaN becomes null, infinities become strings."""
    return None if math.isnan(value) else value if math.isfinite(value) else "inf" if value > 0 else "-inf"
