"""Switch dropout off, in modules and in functions, because figures count it as off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .untouched import drops

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
