"""Files the command line is asked to write, checked before the long work."""

from __future__ import annotations

import os
from pathlib import Path

from ..core.errors import InputError


def check_targets(*paths: Path | None) -> None:
    """Refuse files that could not be written in the end.

    Args:
        paths: where to write; None is not asked for.

    Raises:
        InputError: a folder is missing or not writable, a target is a folder, or two targets are one file.
    """
    asked = [path for path in paths if path is not None]
    for path in asked:
        folder = path.parent
        if not folder.is_dir():
            raise InputError(f"cannot write {path}: there is no folder {folder}")
        if path.is_dir():
            raise InputError(f"cannot write {path}: it is a folder")
        if not os.access(folder, os.W_OK):
            raise InputError(f"cannot write {path}: the folder {folder} is not writable")
    if len({path.resolve() for path in asked}) < len(asked):
        raise InputError(f"two files of the same name: {asked[0]}")
