"""The folder of a choice: one line of JSON per finished run, so that a run that is finished is never lost."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import InputError, said
from ..core.files import read_json, write_text
from ..core.plain import plain
from .outcome import Outcome

RUNS, SETTINGS = "runs.jsonl", "settings.json"


class Ledger:
    """What was finished, by key; with a folder it is on disk before the next run begins.

    Args:
        folder: made if it is not there; None keeps everything in memory.
        settings: of the runs; a folder with others is refused.

    Raises:
        InputError: the folder cannot be written, or holds runs with other settings.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, settings: Mapping[str, Any]) -> None:
        self.path = None if folder is None else Path(folder)
        self.done: dict[str, Outcome] = {}
        if self.path is None:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write into {self.path}: {error.strerror or error}") from error
        wanted, held = plain(dict(settings)), self.path / SETTINGS
        if held.exists():
            found = read_json(held)
            other = [name for name in wanted if not isinstance(found, dict) or found.get(name) != wanted[name]]
            if other:
                raise InputError(
                    f"{self.path} holds runs of another choice ({', '.join(other)} differ): name another folder"
                )
        else:
            write_text(held, json.dumps(wanted, indent=1) + "\n")
        self._read(self.path / RUNS)

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome, on disk at once."""
        self.done[outcome.run.key] = outcome
        if self.path is None:
            return
        line = json.dumps(outcome.to_json(), allow_nan=False) + "\n"
        with (self.path / RUNS).open("a") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def _read(self, path: Path) -> None:
        """Read the finished runs; a last line that a kill cut short is cut off."""
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        kept = 0
        for number, line in enumerate(lines, start=1):
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("it has no end")
                outcome = Outcome.from_json(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                if number < len(lines):
                    raise InputError(f"line {number} of {path} is damaged ({said(error)}): remove it") from error
                os.truncate(path, kept)
                return
            kept += len(line)
            self.done[outcome.run.key] = outcome
