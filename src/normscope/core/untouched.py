"""Leave the user's model exactly as found: mode, buffers, attributes, grads, RNG, also after an exception."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import nn

from .errors import InputError

DROPPING = ("Dropout", "DropPath", "StochasticDepth")
"""Endings of the class names of modules that only drop; torch's own Dropout classes are known by type."""
OWN = frozenset(vars(nn.Module()))
"""Attributes that every module has."""
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
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module, _ in flags
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    attributes = [Attributes(module) for module, _ in flags]
    grads = [(parameter, parameter.grad) for parameter in model.parameters()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    python, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        try:
            if mode is not None:
                for module, _ in flags:
                    module.training = mode == "train"
            for module, _ in flags:
                if drops(module):
                    module.training = False
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)
            for module, training in flags:
                module.training = training
            with torch.no_grad():
                for module, name, buffer, saved in buffers:
                    if not _same(buffer, saved):
                        buffer.copy_(saved)
                    module._buffers[name] = buffer  # a model may have bound a new tensor to the name
                for held in attributes:
                    held.restore()
            for parameter, grad in grads:
                parameter.grad = grad


@contextmanager
def on_copies(model: nn.Module) -> Iterator[None]:
    """Run a block on copies of the buffers: what it writes into them can be differentiated, and is forgotten."""
    held = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
    copies = {id(buffer): buffer.detach().clone() for _, _, buffer in held if buffer is not None}
    try:
        for module, name, buffer in held:
            if buffer is not None:
                module._buffers[name] = copies[id(buffer)]
        yield
    finally:
        for module, name, buffer in held:
            module._buffers[name] = buffer


class Attributes:
    """The plain attributes of a module (tensors, numbers, lists, ...), which a forward may bind or write anew."""

    def __init__(self, module: nn.Module) -> None:
        own = not type(module).__module__.startswith("torch.")  # torch's modules keep no state in attributes
        self.module = module
        self.held = {name: value for name, value in vars(module).items() if name not in OWN} if own else None
        self.copies = {
            name: copied for name, value in (self.held or {}).items() if (copied := _copy(value)) is not None
        }

    def restore(self) -> None:
        """Put everything back."""
        if self.held is None:
            return
        now = vars(self.module)
        for name in [name for name in now if name not in OWN and name not in self.held]:
            del now[name]
        for name, value in self.held.items():
            now[name] = value
            copied = self.copies.get(name)
            if isinstance(value, torch.Tensor) and copied is not None and not _same(value, copied):
                value.copy_(copied)
            elif isinstance(value, list) and copied is not None:
                value[:] = copied
            elif isinstance(value, dict | set) and copied is not None:
                value.clear()
                value.update(copied)


def _copy(value: Any) -> Any:
    """Return a copy of what can be written in place, None of anything else."""
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        return value.detach().clone()
    return copy.copy(value) if type(value) in (list, dict, set) else None


def drops(module: nn.Module) -> bool:
    """Whether a module is known to do nothing but drop values at random in train mode."""
    return isinstance(module, nn.modules.dropout._DropoutNd) or type(module).__name__.endswith(DROPPING)


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors agree, NaN with NaN."""
    if not first.is_floating_point():
        return torch.equal(first, second)
    return torch.equal(first.isnan(), second.isnan()) and torch.equal(first.nan_to_num(), second.nan_to_num())


def mode_of(model: nn.Module, mode: str | None) -> str:
    """Return the mode asked for, or the one the model is in; refuse what is no model or no mode."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}, not a torch.nn.Module: pass the model itself")
    if mode not in (None, "train", "eval"):
        raise InputError(f'mode is "train", "eval" or None, not {mode!r}')
    return mode or ("train" if model.training else "eval")


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside torch.compile, DataParallel or DistributedDataParallel."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner
