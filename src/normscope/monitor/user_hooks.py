"""Whether a function is called by a hook that the user has put on a module, and not by the model itself."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from torch import nn
from torch.nn.modules import module as modules

CALLS = {
    nn.Module._call_impl.__code__,
    *(held for held in nn.Module._call_impl.__code__.co_consts if isinstance(held, CodeType)),
}
"""What torch runs to call a module: its forward, and the hooks around it."""


def in_user_hook() -> bool:
    """Whether the present call was made by a forward hook, or a forward pre-hook, of a module that runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None:
        if frame.f_back.f_code in CALLS and frame.f_code in _codes(frame.f_back.f_locals.get("self")):
            return True
        frame = frame.f_back
    return False


def _codes(module: Any) -> Iterator[CodeType]:
    """Yield the code of every hook of a module."""
    held = [modules._global_forward_pre_hooks, modules._global_forward_hooks]
    held += [] if module is None else [module._forward_pre_hooks, module._forward_hooks]
    for hooks in held:
        for hook in hooks.values():
            inner = hook.func if isinstance(hook, functools.partial) else hook
            code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
            if code is not None:
                yield code
