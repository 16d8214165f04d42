"""Find the user's line of code behind a traced value or an error, and say why torch.export stopped there."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
import traceback
from typing import Any

import torch

from ..core.errors import describe_error

TORCH = os.path.dirname(torch.__file__) + os.sep
HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
PACKAGES = tuple(f"{os.sep}{root}{os.sep}" for root in ("site-packages", "dist-packages"))
BY_VALUE = ("data-dependent", "data dependent", "datadependent", "_local_scalar_dense")
"""Parts of torch's errors where Python reads the value of a tensor that is only traced."""


def source_of(meta: dict[str, Any]) -> str:
    """Return the deepest line of code behind a traced value that is not PyTorch's own."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', meta.get("stack_trace") or "")
    frames = [(file, line) for file, line in frames if not file.startswith((HERE, "<eval"))]
    own = [(file, line) for file, line in frames if not file.startswith(TORCH)]
    return ":".join((_short((own or frames)[-1][0]), (own or frames)[-1][1])) if frames else ""


def line_of(error: BaseException) -> str:
    """Return the deepest line of the user's code that an error came through, as `code` at file:line; "" if none."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [(file, line) for file, line in frames if _is_users(file)]
    if not own:
        return ""
    file, line = own[-1]
    code = linecache.getline(file, line).strip()
    return f"`{code}` at {_short(file)}:{line}" if code else f"{_short(file)}:{line}"


def _is_users(file: str) -> bool:
    if file.startswith((TORCH, HERE, "<eval", "<frozen", "<string")):
        return False
    return not file.startswith(STANDARD) or any(root in file for root in PACKAGES)


def why_untraced(error: BaseException) -> str:
    """Say why torch.export stopped, with the user's own line."""
    where, reason = line_of(error), describe_error(error)
    if any(words in f"{type(error).__name__} {error}".lower() for words in BY_VALUE):
        reason = (
            f"Python reads the value of a tensor ({where or 'torch does not say where'}) to decide what to do next or "
            "to compute with it, and a traced graph is the same for all values. Write it in tensor operators "
            "(torch.where for a choice, tensors instead of .item()), or move a check out of forward"
        )
    elif where:
        reason = f"{reason}, in {where}"
    return f"torch.export cannot trace this model: {reason}"


def _short(file: str) -> str:
    """Return the path of a source file inside its package, or relative to the working directory."""
    for root in PACKAGES:
        if root in file:
            return file.split(root, 1)[1]
    here = os.getcwd() + os.sep
    return file.removeprefix(here)
