"""A folder with one line of JSON per finished job, so that finished work is never lost."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from ..core.codec import encode
from ..core.errors import InputError, describe_error
from ..core.files import bounded_lines, parse_json, read_json, write_text

RUNS, SETTINGS = "runs.jsonl", "settings.json"


class Kept(Protocol):
    """The result of a job, as a ledger keeps it."""

    @property
    def key(self) -> str:
        """The name of the job."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        ...

    @classmethod
    def from_json(cls, data: Mapping[str, Any], /) -> Self:
        """Return what `to_json` wrote."""
        ...


Result = TypeVar("Result", bound=Kept)


class Ledger(Generic[Result]):
    """The results of finished jobs by key; with a folder each is on disk before the next job begins.

    Args:
        kind: the class of the results.
        folder: the folder, which is made if it is not there; None keeps everything in memory.
        settings: the settings of the jobs; a folder with other settings is refused.

    Raises:
        InputError: the folder cannot be read or written, or holds results that are damaged or have other settings.
    """

    def __init__(self, kind: type[Result], folder: str | os.PathLike[str] | None, settings: Mapping[str, Any]) -> None:
        self._kind = kind
        self.path = None if folder is None else Path(folder)
        self.done: dict[str, Result] = {}
        if self.path is None:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write into {self.path}: {error.strerror or error}") from error
        self._compare(encode(dict(settings)))
        self._read(self.path / RUNS)

    def _compare(self, wanted: Mapping[str, Any]) -> None:
        """Refuse a folder with results of other settings; write these settings into a new folder."""
        assert self.path is not None
        held = self.path / SETTINGS
        if not held.exists():
            if (self.path / RUNS).exists():
                raise InputError(f"{self.path} holds results without their {SETTINGS}: name another folder")
            write_text(held, json.dumps(wanted, indent=1) + "\n")
            return
        try:
            stored = read_json(held)
        except InputError as error:
            raise InputError(f"{error}: name another folder") from error
        other = [name for name in wanted if not isinstance(stored, dict) or stored.get(name) != wanted[name]]
        if other:
            raise InputError(
                f"{self.path} holds results with other settings (of {', '.join(other)}): name another folder"
            )

    def add(self, result: Result) -> None:
        """Keep a result, and write it to disk at once.

        Raises:
            InputError: the folder cannot be written any more.
        """
        self.done[result.key] = result
        if self.path is None:
            return
        line = json.dumps(result.to_json(), allow_nan=False) + "\n"
        try:
            with (self.path / RUNS).open("a") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"cannot write {self.path / RUNS}: {error.strerror or error}") from error

    def _read(self, path: Path) -> None:
        """Read the finished jobs; remove a last line that was cut short when a run was killed."""
        if not path.exists():
            return
        kept, damage = 0, None
        try:
            with path.open("rb") as file:
                for number, line in enumerate(bounded_lines(file, path), start=1):
                    if damage is not None:
                        raise InputError(
                            f"line {number - 1} of {path} is damaged ({describe_error(damage)}): remove it"
                        )
                    try:
                        if not line.endswith(b"\n"):
                            raise ValueError("it has no end")
                        result = self._kind.from_json(parse_json(line))
                    except (AttributeError, KeyError, TypeError, ValueError) as error:
                        damage = error
                        continue
                    kept += len(line)
                    self.done[result.key] = result
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        if damage is not None:
            os.truncate(path, kept)


def hashed(tensors: Iterable[Tensor]) -> str:
    """Return a short name for the values of tensors, by which settings are compared."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
