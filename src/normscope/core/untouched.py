"""Leave the user's model as found, also after an exception: mode, weights, Python state, grads, RNG; dropout off."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .errors import InputError
from .reached import Reached, copy_to_restore, plain_parts, write_back

DROPPING = ("Dropout", "DropPath", "StochasticDepth")
"""Endings of the class names of modules that only drop values; torch's own Dropout classes are known by type."""
P = ParamSpec("P")
R = TypeVar("R")


def outside_inference_mode(function: Callable[P, R]) -> Callable[P, R]:
    """Let a public function work inside the caller's `torch.inference_mode()`, where autograd is switched off."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(False):
            return function(*args, **kwargs)

    return wrapped


@contextmanager
def untouched(model: nn.Module, mode: str | None = None, *, traced: bool = False) -> Iterator[None]:
    """Run a block on `model` in the given mode and put everything back afterwards.

    In train mode modules that only drop (Dropout, DropPath, ...) are switched off: dropout counts as off. A block that
    only traces the model (`traced`) writes into no weight, so that weights need no copies.
    """
    flags = [(module, module.training) for module in model.modules()]
    reached = Reached(model)
    buffers = [
        (buffer, copy_to_restore(buffer, f"{reached.paths.get(id(module), '')}.{name}".lstrip(".")))
        for module in reached.modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    weights = ProtectedParameters(model)
    grads = [(parameter, parameter.grad) for parameter in model.parameters()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices), random_as_found():
        try:
            if mode is not None:
                for module, _ in flags:
                    module.training = mode == "train"
            for module, _ in flags:
                if drops(module):
                    module.training = False
            with nullcontext() if traced else weights:
                yield
        finally:
            for module, training in flags:
                module.training = training
            with torch.no_grad():
                reached.restore()  # a model may have bound new tensors to its names
                weights.restore()
                for buffer, saved in buffers:
                    write_back(buffer, saved)
            for parameter, grad in grads:
                parameter.grad = grad


@contextmanager
def random_as_found() -> Iterator[None]:
    """Run a block and put the generators of Python and NumPy back: importing rich, for one, draws a number."""
    python, arrays = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


class ProtectedParameters(TorchDispatchMode):
    """Protects the parameters of a model: each is copied before the first operator that writes into its memory."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        for name, parameter in model.named_parameters():
            if parameter.is_nested or parameter.layout is not torch.strided:
                layout = "nested" if parameter.is_nested else parameter.layout
                raise InputError(
                    f"the parameter `{name}` is not a dense tensor ({layout}), and figures of weights need one: store "
                    "it dense, or keep it in a buffer"
                )
        parameters = [p for p in model.parameters() if not is_lazy(p) and type(p.data) is Tensor]
        self._bound = [(parameter, parameter.data) for parameter in parameters]
        self._unwritten: dict[int, list[Tensor]] = {}
        for _, data in self._bound:
            self._unwritten.setdefault(data.untyped_storage().data_ptr(), []).append(data)
        self._copies: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, after copying the parameters that it writes into."""
        kwargs = kwargs or {}
        for tensor in _written(func, args, kwargs):
            for part in [tensor] if tensor.layout is torch.strided else plain_parts(tensor):
                for data in self._unwritten.pop(part.untyped_storage().data_ptr(), ()):
                    self._copies.append((data, data.clone()))
        return func(*args, **kwargs)

    def restore(self) -> None:
        """Put back the parameters that were written into or replaced."""
        for data, copied in self._copies:
            data.copy_(copied)
        for parameter, data in self._bound:
            if parameter.data_ptr() != data.data_ptr() or parameter.shape != data.shape:
                parameter.data = data


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that an operator writes into, as its schema says."""
    if not func._schema.is_mutable:
        return []
    found = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tree_leaves(args[index] if index < len(args) else kwargs.get(argument.name))
    return [value for value in found if isinstance(value, Tensor)]


@contextmanager
def on_copies(model: nn.Module) -> Iterator[None]:
    """Run a block on copies of the buffers: writes into them can be differentiated, and are lost afterwards."""
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


def drops(module: nn.Module) -> bool:
    """Whether a module is known to do nothing but drop values at random in train mode."""
    return isinstance(module, nn.modules.dropout._DropoutNd) or type(module).__name__.endswith(DROPPING)


def mode_of(model: nn.Module, mode: str | None) -> str:
    """Return the mode asked for, or the one the model is in; refuse anything that is not a model or a mode."""
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


DROPOUTS = ("dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "alpha_dropout_",
            "feature_alpha_dropout", "feature_alpha_dropout_", "feature_dropout", "feature_dropout_")  # fmt: skip
"""Functions of torch that drop values at random, and return their first argument where they drop nothing."""
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
POSITIONS = {F.multi_head_attention_forward: 10, F.scaled_dot_product_attention: 4}
"""The position of the argument `dropout_p` in attention functions."""
PROBABILITIES = re.compile(r"(\w*_)?(p_?)?drop(out)?(_?path)?(_?(p|prob|rate|ratio))?")
"""Attribute names of dropout probabilities: `dropout`, `attn_pdrop`, `drop_path_rate`, `hidden_dropout_prob`, ..."""


class _Undropped(TorchFunctionMode):
    """Runs functions that apply dropout as if it were off."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function with a dropout probability of 0."""
        name = getattr(func, "__name__", "").split(".")[0]  # operators are called dropout.default
        return without_dropout(func, name, args, kwargs or {})


def without_dropout(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a torch function, or return what it returns where nothing is dropped."""
    if name in DROPOUTS:
        return args[0] if args else kwargs["input"]
    if name == "native_dropout":  # it returns its mask as well
        values = args[0] if args else kwargs["input"]
        return values, torch.ones_like(values, dtype=torch.bool)
    if name in RECURRENT:  # the dropout probability is the only float among the arguments of every overload
        args = tuple(0.0 if isinstance(value, float) else value for value in args)
        kwargs = {key: 0.0 if key == "dropout" else value for key, value in kwargs.items()}
    elif (position := _dropout_position(func, name)) is not None:
        args = (*args[:position], *((0.0,) if len(args) > position else ()), *args[position + 1 :])
        kwargs = kwargs if len(args) > position else {**kwargs, "dropout_p": 0.0}
    return func(*args, **kwargs)


@contextmanager
def dropping_nothing(model: nn.Module) -> Iterator[None]:
    """Run a block with dropout off: in torch's functions, and where a module holds a probability (`drop_prob`, ...).

    Other random functions still draw random numbers.
    """
    held = [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if (PROBABILITIES.fullmatch(name) or (name == "p" and drops(module)))
        and isinstance(value, float)
        and 0 <= value <= 1
    ]
    try:
        for module, name, _ in held:
            setattr(module, name, 0.0)
        with _Undropped():
            yield
    finally:
        for module, name, value in held:
            setattr(module, name, value)


def _dropout_position(func: Any, name: str) -> int | None:
    """Return the position of the argument `dropout_p`, or None for a function that has none."""
    known = F.scaled_dot_product_attention if name == "scaled_dot_product_attention" else func
    return POSITIONS.get(known)
