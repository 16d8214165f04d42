"""A model as a function of its parameters, in float64 throughout, with its buffers untouched."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ..core.cost import count
from ..core.errors import InputError, said
from ..core.torch_settings import math_attention
from ..graph.call import Call, select
from .actions import State, laid_out

NARROW = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)


class Wide(TorchFunctionMode):
    """Runs everything in float64: tensors that would be cast to a narrower float, or made in one, are widened.

    Two functions are corrected: `_weight_norm`, whose second derivative torch 2.13 gets wrong, is written out; an
    RMSNorm without an eps of its own takes the default of the model's dtype, as it would without widening.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function with float64 in place of any narrower float."""
        kwargs = kwargs or {}
        if func is torch._weight_norm:
            func = _weight_norm
        elif func is F.rms_norm and len(args) < 4 and kwargs.get("eps") is None:
            kwargs = {**kwargs, "eps": torch.finfo(self.dtype).eps}
        elif func is F.rms_norm and len(args) == 4 and args[3] is None:
            args = (*args[:3], torch.finfo(self.dtype).eps)
        if not func.__name__.endswith("_"):  # An in-place function must write into the given tensor, not a wide copy.
            args, kwargs = tree_map(_widened, (args, kwargs))
        else:
            args, kwargs = tree_map(lambda leaf: leaf if isinstance(leaf, Tensor) else _widened(leaf), (args, kwargs))
        return tree_map(_widened, (torch.Tensor.double if func in NARROW else func)(*args, **kwargs))


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    return v * (g / torch.norm_except_dim(v, 2, dim))


def _widened(leaf: Any) -> Any:
    if isinstance(leaf, torch.dtype):
        return torch.float64 if leaf.is_floating_point else leaf
    if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dtype != torch.float64:
        return leaf.double()
    return leaf


class Function:
    """The output of a model at one batch, as a function of a state of its parameters.

    Attributes:
        start: the parameters as found, in float64.
    """

    def __init__(self, model: nn.Module, call: Call) -> None:
        self.model, self.call = model, call
        self._dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        self.start: State = {name: laid_out(p.detach(), p) for name, p in model.named_parameters()}
        self._random = torch.get_rng_state()
        self._buffers = {name: _widened(buffer) for name, buffer in model.named_buffers()}

    def __call__(self, state: State) -> Tensor:
        """Return the output, which can be differentiated twice."""
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        args, kwargs = tree_map(
            lambda leaf: _widened(leaf.clone()) if isinstance(leaf, Tensor) else leaf,
            (self.call.args, self.call.kwargs),
        )
        count("passes", self.call.count)
        torch.set_rng_state(self._random)  # The model draws the same random numbers in every run.
        try:
            with math_attention(), Wide(self._dtype):
                result = functional_call(self.model, {**state, **buffers}, args, kwargs)
        except Exception as error:
            raise InputError(
                f"the model raises {said(error)}, when its parameters are in float64, in which symmetries are checked: "
                "make tensors with the dtype of the input"
            ) from error
        return select(result, self.call.output)
