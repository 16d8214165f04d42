"""`CallWatcher`: every call of a torch function in a forward, module or function, and the module it belongs to.

The calls are seen by a `TorchFunctionMode`, so that functional layers count too; the module they belong to is known
from global hooks, which leave the user's modules alone.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..core.dropout import DROPOUTS
from .examined import Site

NORMALIZERS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")
WEIGHTS = {
    "linear": "linear", "addmm": "linear", "conv1d": "convolution", "conv2d": "convolution", "conv3d": "convolution",
    "conv_transpose1d": "convolution", "conv_transpose2d": "convolution", "conv_transpose3d": "convolution",
}  # fmt: skip
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
PRODUCTS = ("matmul", "__matmul__", "mm")
RELUS = ("relu", "relu_", "relu6")


class CallWatcher(TorchFunctionMode):
    """Hands every call to `calling` before it runs and to `called` after it; dropout counts as off."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.names = {id(module): name for name, module in model.named_modules()}  # by its first name
        self._stack: list[str] = []
        self._runs: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch one forward."""
        self._stack, self._runs = [], Counter()
        hooks = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        try:
            with self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function between `calling` and `called`."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").split(".")[0]  # operators are called relu.default
        self.calling(name, func, args, kwargs)
        if name in DROPOUTS:  # also where no module holds it
            return args[0] if args else kwargs.get("input")
        if func is F.multi_head_attention_forward:
            args, kwargs = (), {**bound_arguments(func, args, kwargs), "dropout_p": 0.0}
        elif func is F.scaled_dot_product_attention:
            args, kwargs = (*args[:4], *((0.0,) if len(args) > 4 else ()), *args[5:]), {**kwargs}
            kwargs |= {} if len(args) > 4 else {"dropout_p": 0.0}
        return self.called(name, args, kwargs, func(*args, **kwargs))

    def calling(self, name: str, func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        """See a call before it runs."""

    def called(self, name: str, args: Any, kwargs: Mapping[str, Any], result: Any) -> Any:
        """See a call after it ran, and return what the model shall get."""
        return result

    def entered(self, path: str, args: Any) -> None:
        """See a module before it runs."""

    def left(self, path: str, made: Any) -> None:
        """See what a module returned."""

    def site(self, family: str, path: str | None = None) -> Site:
        """Return where a call of this family runs (in the module that is running now), and count the run."""
        key = (path if path is not None else self._stack[-1] if self._stack else "", family)
        self._runs[key] += 1
        return (*key, self._runs[key] - 1)

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        path = self.names.get(id(module))
        self._stack.append(path if path is not None else (self._stack[-1] if self._stack else ""))
        if path is not None:
            self.entered(path, args)

    def _leave_module(self, module: nn.Module, args: Any, made: Any) -> None:
        self.left(self._stack.pop() if self._stack else "", made)


def weight_family(name: str, args: Any) -> str | None:
    """Return the family of a weight layer's call, `linear` or `convolution`; None for any other call."""
    if name in PRODUCTS and len(args) == 2 and isinstance(args[1], nn.Parameter):
        return "linear"
    return WEIGHTS.get(name)


def float_tensors(made: Any) -> list[Tensor]:
    """Return the float tensors that a module returned, out of their nest."""
    tensors = tree_leaves(vars(made) if hasattr(made, "__dict__") and not isinstance(made, Tensor) else made)
    return [t for t in tensors if isinstance(t, Tensor) and t.is_floating_point() and t.numel()]


def bound_arguments(func: Any, args: Any, kwargs: Any) -> Mapping[str, Any]:
    """Return the arguments of a call by name, defaults filled in: of a Python function, or of torch's operator."""
    if inspect.isfunction(func):
        found = inspect.signature(func).bind(*args, **kwargs)
        found.apply_defaults()
        return found.arguments
    packet = getattr(torch.ops.aten, func.__name__.split(".")[0])
    kinds = packet.overloads()
    schema = getattr(packet, "default" if "default" in kinds else kinds[0])._schema
    given = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    return given | dict(zip((argument.name for argument in schema.arguments), args)) | kwargs
