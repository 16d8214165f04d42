"""Leave the user's model exactly as found: mode, buffers, grads, RNG, also after an exception."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import nn

from .errors import InputError

P = ParamSpec("P")
R = TypeVar("R")


def outside_inference_mode(function: Callable[P, R]) -> Callable[P, R]:
    """Let a public function work inside the caller's `torch.inference_mode()`, where autograd cannot."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(False):
            return function(*args, **kwargs)

    return wrapped


@contextmanager
def untouched(model: nn.Module, mode: str | None = None) -> Iterator[None]:
    """Run a block on `model` in the given mode and put everything back afterwards.

    In train mode modules that only drop (Dropout, DropPath, ...) are switched off: dropout counts as off.

    Args:
        model: the user's model.
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
    """
    flags = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    grads = [(parameter, parameter.grad) for parameter in model.parameters()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        try:
            if mode is not None:
                for module, _ in flags:
                    module.training = mode == "train"
            for module, _ in flags:
                if "Drop" in type(module).__name__ and not any(True for _ in module.parameters(recurse=False)):
                    module.training = False
            yield
        finally:
            for module, training in flags:
                module.training = training
            with torch.no_grad():
                for buffer, saved in buffers:
                    if not torch.equal(buffer, saved):
                        buffer.copy_(saved)
            for parameter, grad in grads:
                parameter.grad = grad


def mode_of(model: nn.Module, mode: str | None) -> str:
    """Return the mode asked for, or the one the model is in; refuse what is no model or no mode."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}, not a torch.nn.Module: pass the model itself")
    if mode not in (None, "train", "eval"):
        raise InputError(f'mode is "train", "eval" or None, not {mode!r}')
    return mode or ("train" if model.training else "eval")
