"""Serve a live page of runs, on this machine alone and only to those who know its address."""

from __future__ import annotations

import json
import math
import secrets
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ..core.errors import InputError
from ..report.cells import visible
from ..report.html import live_page
from ..report.words import listed
from .live import Followed, live_data, version

HOST = "127.0.0.1"


class LiveServer(ThreadingHTTPServer):
    """Serves the page of several runs, and their data as JSON; no request can change anything.

    A request is answered only if its address holds a random word and it names this host: other users of the machine do
    not know the word, and pages of other sites cannot make such requests.

    Args:
        runs: the runs to follow.
        names: the name of each run.
        port: the port to serve on; 0 takes any free port.

    Raises:
        InputError: the port is taken, or not allowed.
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
            found = live_data(self._runs, self._names, dict.fromkeys(parts), low, high)
            return json.dumps(found, allow_nan=False, separators=(",", ":")).encode()


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "normscope", ""

    def do_GET(self) -> None:
        """Answer with the page or its data, and with "not found" to those who do not know the address."""
        asked = urlsplit(self.path)
        port = self.server.server_port
        known = self.headers.get("Host", "") in (f"{HOST}:{port}", f"localhost:{port}")
        word, _, what = asked.path.removeprefix("/").partition("/")
        if not known or not secrets.compare_digest(word.encode(), self.server.word.encode()):
            self._answer(HTTPStatus.NOT_FOUND)
        elif what == "":
            self._answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        elif what == "data":
            try:
                found = self.server.data(asked.query)
            except ValueError:
                self._answer(HTTPStatus.BAD_REQUEST)
                return
            status = HTTPStatus.NO_CONTENT if found is None else HTTPStatus.OK
            self._answer(status, found or b"", "application/json")
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
