"""Python objects named on the command line: `package.module:name` and `path/to/file.py:name`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.errors import InputError, said


def load_object(reference: str) -> Any:
    """Import what `package.module:name` or `path/to/file.py:name` names.

    Modules are looked for in the current folder first, as `python -m` does.

    Args:
        reference: the module, a colon, and the name in it (dots reach into objects).

    Returns:
        The object as it stands; nothing is called.

    Raises:
        InputError: the module is missing or its code raises, or it has no such name.
    """
    place, _, name = reference.rpartition(":")
    module = _file_module(Path(place)) if place.endswith(".py") else _module(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [item for item in vars(module) if not item.startswith("_")]
            raise InputError(f"{place} has no {name!r}; it has {', '.join(known) or 'no names at all'}")
        found = getattr(found, part)
    return found


def call_object(found: Any, reference: str) -> Any:
    """Call an object of the user's without arguments.

    Raises:
        InputError: it needs arguments, or raises.
    """
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise InputError(f"{reference} is called without arguments, but {error}: name a function without") from error
    except ValueError:  # written in C: no signature to look at
        pass
    try:
        return found()
    except (Exception, SystemExit) as error:
        raise InputError(f"{reference}() raises {said(error)}") from error


@contextmanager
def staying() -> Iterator[None]:
    """Turn `sys.exit()` in code of the user's, a forward pass for example, into an error: nothing was audited.

    Raises:
        InputError: the code inside ends the program.
    """
    try:
        yield
    except SystemExit as error:
        raise InputError(f"the code of the model or of its data ends the program ({said(error)})") from error


def _module(name: str) -> ModuleType:
    _search_first(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise InputError(
                f"there is no module {name!r} here or among the installed packages (current folder: {Path.cwd()})"
            ) from error
        raise InputError(f"importing {name} raises {said(error)}") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"importing {name} raises {said(error)}") from error


def _file_module(path: Path) -> ModuleType:
    if not os.path.isfile(path):
        raise InputError(f"no file {path}")
    name, place = f"_normscope_user_{path.stem}", str(path.resolve())
    known = sys.modules.get(name)
    if known is not None and known.__file__ == place:  # the model and the data may live in one file
        return known
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _search_first(path.resolve().parent)
    sys.modules[name] = module  # dataclasses look themselves up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"running {path} raises {said(error)}") from error
    return module


def _search_first(folder: Path) -> None:
    if os.fspath(folder) not in sys.path:
        sys.path.insert(0, os.fspath(folder))
