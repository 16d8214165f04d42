"""The live page of runs: its data, and the server that shows it, on this machine and to those who know its address."""

from __future__ import annotations

import json
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ...core.errors import InputError
from ...core.files import bounded_lines
from ...report.document import Curve, Curves
from ...report.html import live_page
from ...report.limits import MAX_CELL_LETTERS, MAX_CURVES, MAX_ROWS, cut_text, left_out
from ...report.words import format_cell, listed, visible
from ..monitor.log import FILE, LogReading, read_line
from ..monitor.run import Run
from .run import (
    MAX_LOGGED_PICTURES,
    PARTS,
    PRODUCTS,
    READING_THE_HALVES,
    READING_THE_PRODUCTS,
    READING_THE_STEPS,
    LayerPicture,
    Points,
    figures,
    headline,
    loss_courses,
    marks,
    metric_names,
    total_curves,
    validation_losses,
    verdict_of,
    view_curves,
)

HISTOGRAMS = "Histograms"
TOTALS: dict[str, tuple[tuple[str, str, Callable[[Run], dict[str, Points]]], ...]] = {
    "Loss": (("loss", "Loss by step", loss_courses),),
    "Rates and products": (
        ("step", "How far one step moves the weights", lambda run: {"one step": run.total("log10_step")}),
        ("halves", "How far two parts of a batch agree", lambda run: {"two parts": run.total("halves_agree")}),
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
    "step": "log10 of the update over the weight",
    "halves": "cosine between their gradients",
}
CAPTIONS = {"products": READING_THE_PRODUCTS, "step": READING_THE_STEPS, "halves": READING_THE_HALVES}


class Followed:
    """The log of a run in progress; `refresh` reads what was added to it.

    Attributes:
        run: the run, as far as its log has been read.
        broken: why the log cannot be read any further; None if it can.
        version: a number that grows with every change.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = Path(folder)
        self.run = Run(path)
        self._folder, self._file = self.run.path, path / FILE if path.is_dir() else path
        self._reading, self._read, self._lines, self._inode = LogReading(), 0, 0, -1
        self.broken: str | None = None
        self.version = 0
        self.refresh()

    @property
    def age(self) -> float | None:
        """Seconds since the log was last written to; None if the run has ended."""
        try:
            return None if self.run.ended is not None else max(time.time() - self._file.stat().st_mtime, 0.0)
        except OSError:  # it was taken away
            return None

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
    """Return what the page shows, as plain data."""
    shown = [followed.run.between(low, high) for followed in runs]
    histograms = [HISTOGRAMS] if any(record.histograms for f in runs for record in f.run.records) else []
    return {
        "version": version(runs),
        "runs": [
            {
                "name": _text(name), "state": _text(f.broken or _state(f.run)), "verdict": _text(verdict_of(f.run)),
                "age": f.age,
                "figures": [[_text(x.label), format_cell(x.value, x.kind), _text(x.note)] for x in figures(f.run)],
            }
            for f, name in zip(runs, names, strict=True)
        ],
        "alarms": [
            {
                "run": index, "step": finding.step, "level": finding.severity.value, "code": _text(finding.code),
                "where": _text(finding.where), "seen": _text(finding.seen), "why": _text(finding.why),
                "advice": _text(finding.advice),
            }
            for index, followed in enumerate(runs)
            for finding in followed.run.findings[:MAX_ROWS]
        ],
        "parts": [*TOTALS, *(heading for heading, _, views in PARTS if _any(runs, views)), *histograms],
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
        left_out(len(metric_names(run)), MAX_LOGGED_PICTURES, "logged figure"),
        left_out(len(run.of("weight")), MAX_CURVES, "layer"),
    )
    return " ".join(filter(None, (where, *cut, *said[1:])))


def _any(runs: Sequence[Followed], views: Sequence[LayerPicture]) -> bool:
    """Whether any of these quantities was measured in any run, as far as its last records tell."""
    return any(f.run.records and any(r.of(v.kind, v.quantity) for r in f.run.records) for f in runs for v in views)


def _charts(runs: Sequence[Run], part: str) -> Iterator[dict[str, Any]]:
    """Yield the charts of a part of the page: those of the whole network, then those of its layers."""
    totals = list(TOTALS.get(part, ()))
    if part == "Loss":  # the user's own figures are shown with the loss
        of_validation = {name for run in runs for name in validation_losses(run)}  # these are with the loss
        for name in dict.fromkeys(
            name for run in runs for name in metric_names(run)[:MAX_LOGGED_PICTURES] if name not in of_validation
        ):
            totals.append((f"metric {_text(name)}", name, lambda run, name=name: {name: run.total(name)}))  # type: ignore[misc]
    for key, title, courses in totals:
        yield from _total_chart(runs, part, key, title, courses)
    for view in (view for heading, _, views in PARTS if heading == part for view in views):
        by_run = [(index, view_curves(run, view)) for index, run in enumerate(runs)]
        measured = [(index, curves) for index, curves in by_run if curves is not None]
        if measured:
            owned = [(index, curve.name, curve) for index, curves in measured for curve in curves.curves]
            captions = dict.fromkeys(curves.caption for _, curves in measured)
            like = replace(measured[0][1], caption=" ".join(captions))
            yield _chart(f"{view.kind}-{view.quantity}", part, like, owned, runs)


def _total_chart(
    runs: Sequence[Run], part: str, key: str, title: str, courses: Callable[[Run], dict[str, Points]]
) -> Iterator[dict[str, Any]]:
    """Yield one chart of the whole network, if it has any points; `courses` returns the curves of a run by name."""
    by_curve = {(index, name): points for index, run in enumerate(runs) for name, points in courses(run).items()}
    joined = total_curves(
        {f"{index} {name}": points for (index, name), points in by_curve.items()},
        title=title,
        axis=AXES.get(key, title),
        caption=CAPTIONS.get(key, ""),
        logarithmic=key in ("loss", "lr"),
    )
    if joined is not None:
        drawn = [curve for curve, points in by_curve.items() if points]
        owned = [(index, name, curve) for (index, name), curve in zip(drawn, joined.curves, strict=True)]
        yield _chart(key, part, joined, owned, runs)


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
    return visible(cut_text(value, MAX_CELL_LETTERS))


def _plain(value: float) -> float | str:
    """Return a number as JSON can hold it: NaN and infinities become strings."""
    return "NaN" if math.isnan(value) else value if math.isfinite(value) else "inf" if value > 0 else "-inf"


HOST = "127.0.0.1"


class LiveServer(ThreadingHTTPServer):
    """Serves the page of several runs, and their data as JSON; no request can change anything.

    A request is answered only if its address holds a random word and it names this host: other users of the machine do
    not know the word, and pages of other sites cannot make such requests. Port 0 is any free port.
    """

    daemon_threads = True

    def __init__(self, runs: Sequence[Followed], names: Sequence[str], port: int = 0) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise InputError(f"cannot serve on port {port}: {getattr(error, 'strerror', None) or error}") from error
        self.word = secrets.token_urlsafe(24)
        self._runs, self._names, self._lock = runs, names, threading.Lock()
        page, self.policy = live_page(f"Live: {listed([visible(name) for name in names], most=4)}")
        self.page = page.encode()

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_port}/{self.word}/"

    def data(self, query: str) -> bytes | None:
        """Return the data that the page asks for; None if it has them already."""
        asked = {key: values[-1] for key, values in parse_qs(query).items()}
        low, high = float(asked.get("low", -math.inf)), float(asked.get("high", math.inf))
        with self._lock:
            for run in self._runs:
                run.refresh()
            if asked.get("seen") == str(version(self._runs)):
                return None
            parts = asked.get("parts", "").split("\n")[:20]
            content = live_data(self._runs, self._names, dict.fromkeys(parts), low, high)
            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "normscope", ""

    def do_GET(self) -> None:
        """Answer with the page or its data, and with "not found" to those who do not know the address."""
        asked = urlsplit(self.path)
        port = self.server.server_port
        names_host = self.headers.get("Host", "") in (f"{HOST}:{port}", f"localhost:{port}")
        word, _, what = asked.path.removeprefix("/").partition("/")
        if not names_host or not secrets.compare_digest(word.encode(), self.server.word.encode()):
            self._answer(HTTPStatus.NOT_FOUND)
        elif what == "":
            self._answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        elif what == "data":
            try:
                content = self.server.data(asked.query)
            except ValueError:
                self._answer(HTTPStatus.BAD_REQUEST)
                return
            status = HTTPStatus.NO_CONTENT if content is None else HTTPStatus.OK
            self._answer(status, content or b"", "application/json")
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    def _answer(self, status: HTTPStatus, body: bytes = b"", kind: str = "text/plain") -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": self.server.policy,
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because requests come every second."""
