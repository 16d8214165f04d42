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

from ..core.errors import InputError, describe_error


def load_object(reference: str) -> Any:
    """Import the object that `package.module:name` or `path/to/file.py:name` names.

    Modules are looked for in the current folder first, as `python -m` does.
    """
    source, _, name = reference.rpartition(":")
    module = _file_module(Path(source)) if source.endswith(".py") else _module(source)
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            known = [item for item in vars(module) if not item.startswith("_")]
            raise InputError(f"{source} has no {name!r}; it has {', '.join(known) or 'no names at all'}")
        value = getattr(value, part)
    return value


def call_object(function: Any, reference: str) -> Any:
    """Call an object of the user's without arguments; errors name it by its reference."""
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InputError(f"{reference} is called without arguments, but {error}: name a function without") from error
    except ValueError:  # A function that is written in C may have no signature.
        pass
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise InputError(f"{reference}() raises {describe_error(error)}") from error


@contextmanager
def refuse_exit() -> Iterator[None]:
    """Turn `sys.exit()` in the user's code, a forward pass for example, into an error: nothing was measured.

    Raises:
        InputError: the code inside ends the program.
    """
    try:
        yield
    except SystemExit as error:
        raise InputError(f"the code of the model or of its data ends the program ({describe_error(error)})") from error


def _module(name: str) -> ModuleType:
    """Import a module, from the current folder first."""
    _search_first(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise InputError(
                f"there is no module {name!r} here or among the installed packages (current folder: {Path.cwd()})"
            ) from error
        raise InputError(f"importing {name} raises {describe_error(error)}") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"importing {name} raises {describe_error(error)}") from error


def _file_module(path: Path) -> ModuleType:
    """Run a Python file as a module, once: the model and the data may be in one file."""
    if not os.path.isfile(path):
        raise InputError(f"no file {path}")
    name, location = f"_normscope_user_{path.stem}", str(path.resolve())
    known = sys.modules.get(name)
    if known is not None and known.__file__ == location:
        return known
    spec = importlib.util.spec_from_file_location(name, location)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _search_first(path.resolve().parent)
    sys.modules[name] = module  # Dataclasses look their own module up.
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"running {path} raises {describe_error(error)}") from error
    return module


def _search_first(folder: Path) -> None:
    """Let imports look into a folder before all others."""
    if os.fspath(folder) not in sys.path:
        sys.path.insert(0, os.fspath(folder))
