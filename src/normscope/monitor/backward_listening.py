"""The losses of a measured step, heard where their backwards begin: also those that a loop tells nobody.

torch has no hook in front of a backward, and behind it the outputs and targets that autograd kept are gone. So the
function `torch.autograd.backward`, which `Tensor.backward` calls, is replaced while somebody listens: from a measured
forward to the step of the optimizer, and never in other steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor
from torch.compiler import is_compiling

_listeners: list[BackwardListener] = []
_backward: Callable[..., None] = torch.autograd.backward


class BackwardListener:
    """Calls a method with each loss whose backward begins, while it is open.

    Args:
        hear: the bound method; its object is not kept alive.
    """

    def __init__(self, hear: Callable[[Tensor], None]) -> None:
        self._hear = WeakMethod(hear)

    def open(self) -> None:
        """Begin to listen."""
        global _backward
        if self not in _listeners:
            if not _listeners:
                _backward = torch.autograd.backward
                torch.autograd.backward = _hear_and_run
            _listeners.append(self)

    def close(self) -> None:
        """Stop listening; the last one puts torch's function back."""
        if self in _listeners:
            _listeners.remove(self)
            if not _listeners and torch.autograd.backward is _hear_and_run:
                torch.autograd.backward = _backward

    def begin(self, tensors: Any) -> None:
        """Hand on the one number that a backward begins with."""
        hear = self._hear()
        loss = tensors[0] if isinstance(tensors, Sequence) and len(tensors) == 1 else tensors
        if hear is None:
            self.close()
        elif isinstance(loss, Tensor) and loss.numel() == 1 and not loss.is_complex():
            with contextlib.suppress(Exception):  # what cannot be heard never stops a backward
                hear(loss)


def _hear_and_run(tensors: Any, *args: Any, **kwargs: Any) -> None:
    """Let everybody hear of a backward, and run it."""
    if not is_compiling():
        for listener in tuple(_listeners):
            listener.begin(tensors)
    _backward(tensors, *args, **kwargs)
