"""Leave the user's model exactly as found: mode, buffers, grads, RNG, also after an exception."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


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
    """Return the mode asked for, or the one the model is in."""
    if mode not in (None, "train", "eval"):
        raise ValueError(f'mode is "train", "eval" or None, not {mode!r}')
    return mode or ("train" if model.training else "eval")
