"""Which calls of torch functions are layers, where they run, and with which arguments.

A layer counts whether a module or a plain function runs it: what says so is the name of the function that is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

Site = tuple[str, str, int]
"""Where something runs: module path, family (`batch_norm`, `linear`, `relu`, ...), which of its runs in one forward."""

NORMALIZERS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")
WEIGHTS = {
    "linear": "linear", "addmm": "linear", "conv1d": "convolution", "conv2d": "convolution", "conv3d": "convolution",
    "conv_transpose1d": "convolution", "conv_transpose2d": "convolution", "conv_transpose3d": "convolution",
}  # fmt: skip
"""Functions of weight layers, with the families that sites name."""
PRODUCTS = ("matmul", "__matmul__", "mm")
"""Functions that are weight layers if their second factor is a parameter."""
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
EMBEDDINGS = ("embedding", "embedding_bag")
"""Functions that look rows of a table up."""
RELUS = ("relu", "relu_", "relu6")


class FunctionCall(NamedTuple):
    """One call of a torch function.

    Attributes:
        name: the name of the function, without the overload (`relu`, not `relu.default`).
        func: the function itself.
        args, kwargs: what it is called with.
    """

    name: str
    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def weight_family(self) -> str | None:
        """The family of a weight layer, `linear` or `convolution`; None for any other call."""
        if self.name in PRODUCTS and len(self.args) == 2 and isinstance(self.args[1], nn.Parameter):
            return "linear"
        return WEIGHTS.get(self.name)

    @property
    def input(self) -> Any:
        """The first argument."""
        return self.args[0] if self.args else self.kwargs.get("input")

    def named(self) -> Mapping[str, Any]:
        """Return the arguments by name, with the defaults of those that are not given."""
        if inspect.isfunction(self.func):
            found = _signature(self.func).bind(*self.args, **self.kwargs)
            found.apply_defaults()
            return found.arguments
        names, defaults = _schema(self.name)
        return {**defaults, **dict(zip(names, self.args)), **self.kwargs}


@lru_cache(maxsize=64)
def _signature(func: Any) -> inspect.Signature:
    """Return the parameters of a function that is written in Python."""
    return inspect.signature(func)


@lru_cache(maxsize=64)
def _schema(name: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the names of the arguments of one of torch's own operators, and their defaults."""
    packet = getattr(torch.ops.aten, name)
    kinds = packet.overloads()
    arguments = getattr(packet, "default" if "default" in kinds else kinds[0])._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    return tuple(argument.name for argument in arguments), defaults


def tensors_in(made: Any) -> list[Tensor]:
    """Return the tensors that a module returned, out of their nest or the object that holds them."""
    inner = vars(made) if hasattr(made, "__dict__") and not isinstance(made, Tensor) else made
    return [leaf for leaf in tree_leaves(inner) if isinstance(leaf, Tensor)]


def float_tensors(made: Any) -> list[Tensor]:
    """Return the float tensors that a module returned, without empty ones."""
    return [tensor for tensor in tensors_in(made) if tensor.is_floating_point() and tensor.numel()]
