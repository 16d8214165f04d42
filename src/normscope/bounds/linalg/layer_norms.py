"""The linear map of a tensor or a torch layer at a given input size, and its norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ...core.bracket import Bracket
from ...core.budget import Budget
from ...core.effort import Effort
from ...core.errors import InputError
from ...core.untouched import outside_inference_mode, untouched
from .convolution_map import Convolution
from .linear_map import LinearMap, Matrix
from .operator_norms import BOUNDING, bracket
from .proof_format import NormProof, Unchanged

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def linear_map(x: Tensor | nn.Module | LinearMap, input_shape: Sequence[int] | None = None) -> LinearMap:
    """Return the linear map of a matrix, a linear layer or a convolution at `(C, *spatial)`, without its bias.

    Parametrizations are honoured, and a leading batch dimension of the shape is ignored.
    """
    if isinstance(x, LinearMap):
        return x
    with torch.no_grad():
        if isinstance(x, Tensor):
            return _tensor_map(x, input_shape)
        if isinstance(x, nn.Linear):
            weight = _checked(_weight(x), "nn.Linear.weight")
            if input_shape is not None and (not len(input_shape) or input_shape[-1] != x.in_features):
                raise InputError(
                    f"input_shape {tuple(input_shape)} does not end in the {x.in_features} features of {x}"
                )
            return Matrix(weight)
        if isinstance(x, (*_CONVOLUTIONS, *_TRANSPOSED)):
            return _convolution_map(x, input_shape)
    kinds = "a matrix, nn.Linear, nn.Conv1d/2d/3d, nn.ConvTranspose1d/2d/3d or a LinearMap"
    raise InputError(f"spectral_norm takes {kinds}, not {type(x).__name__}; for a whole model use normscope.lipschitz")


def _tensor_map(x: Tensor, input_shape: Sequence[int] | None) -> Matrix:
    if x.ndim == 1 or x.ndim == 0:
        raise InputError(f"a tensor of shape {tuple(x.shape)} is no matrix: reshape it to two dimensions")
    if x.ndim > 2:
        raise InputError(
            f"a tensor of shape {tuple(x.shape)} could be a kernel, whose norm depends on input size, stride and "
            "padding: pass the convolution layer itself with input_shape=(C, *spatial)"
        )
    if input_shape is not None and (not len(input_shape) or input_shape[-1] != x.shape[1]):
        raise InputError(f"input_shape {tuple(input_shape)} does not fit a matrix with {x.shape[1]} columns")
    return Matrix(_checked(x, "the matrix"))


def _convolution_map(layer: nn.Module, input_shape: Sequence[int] | None) -> Convolution:
    transposed = isinstance(layer, _TRANSPOSED)
    weight = _checked(_weight(layer), f"{type(layer).__name__}.weight")
    dims, channels = weight.ndim - 2, int(layer.in_channels)  # type: ignore[arg-type]
    if input_shape is None:
        raise InputError(
            f"the norm of {layer} depends on its input size: pass input_shape=({channels}, "
            + ", ".join("HWD"[:dims] if dims > 1 else "L")
            + ")"
        )
    shape = tuple(int(size) for size in input_shape)
    if len(shape) == dims + 2:
        shape = shape[1:]
    if len(shape) != dims + 1 or shape[0] != channels or min(shape) < 1:
        raise InputError(
            f"input_shape {tuple(input_shape)} does not fit {layer}: it takes ({channels}, + {dims} sizes)"
        )
    return Convolution(
        weight,
        shape[1:],
        stride=layer.stride,  # type: ignore[arg-type]
        padding=layer.padding,  # type: ignore[arg-type]
        dilation=layer.dilation,  # type: ignore[arg-type]
        groups=layer.groups,  # type: ignore[arg-type]
        padding_mode=layer.padding_mode,  # type: ignore[arg-type]
        transposed=transposed,
        output_padding=layer.output_padding if transposed else 0,  # type: ignore[arg-type]
    )


def _weight(layer: nn.Module) -> Tensor:
    """Read the weight; a parametrization may run code, and what that changes is put back."""
    with untouched(layer):
        return layer.weight.detach().clone() if is_parametrized(layer) else layer.weight  # type: ignore[operator,return-value]


def _checked(weight: Tensor, what: str) -> Tensor:
    """Return the weight, detached, or say why it has no norm."""
    if weight.is_complex():
        raise InputError(f"{what} is complex: only real maps are supported (stack real and imaginary parts)")
    if not weight.is_floating_point():
        raise InputError(f"{what} has dtype {weight.dtype}: convert it to a floating-point dtype first")
    if weight.is_meta or weight.is_sparse:
        raise InputError(f"{what} is a {'meta' if weight.is_meta else 'sparse'} tensor: pass a dense one with values")
    weight = weight.detach()
    if weight.numel() and not bool(torch.isfinite(weight).all()):
        count = math.prod(weight.shape) - int(torch.isfinite(weight).sum())
        raise InputError(f"{what} has {count} NaN or infinite value(s): the map has no norm")
    return weight


@outside_inference_mode
def spectral_norm(
    x: Tensor | nn.Module | LinearMap,
    input_shape: Sequence[int] | None = None,
    *,
    rtol: float = 1e-3,
    max_seconds: float | None = None,
    seed: int = 0,
) -> Bracket:
    """Return the spectral norm of a matrix, a linear layer or a convolution as a bracket.

    The norm of a convolution is that of the map it applies at `input_shape`, with its stride, padding, dilation and
    groups, not that of its reshaped kernel.

    Args:
        x: a matrix, `nn.Linear`, `nn.Conv1d/2d/3d`, `nn.ConvTranspose1d/2d/3d` or a `LinearMap`; left untouched.
        input_shape: `(C, *spatial)` for convolutions.
        rtol: the search goes on until `upper/lower - 1 <= rtol`.
        max_seconds: the search ends after so many seconds; the result is still sound, and the upper side not above its
            closed form where there is time for that (see `lipschitz`).
        seed: the seed of the search from below.

    Returns:
        A bracket: `.lower` with its `.witness` (a unit vector), `.upper` with its `.evidence`, `.gap`, `.converged`.

    Raises:
        InputError: when the input cannot be used as given.

    Example:
        >>> norm = spectral_norm(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        >>> round(norm.lower, 6), round(norm.upper, 6)
        (4.0, 4.0)
    """
    if not rtol > 0.0:
        raise InputError(f"rtol must be positive, got {rtol}")
    linear = linear_map(x, input_shape)
    budget = Budget(max_seconds=max_seconds, what=BOUNDING)
    norm = bracket(linear, rtol=rtol, budget=budget, seed=seed, effort=Effort.THOROUGH)
    held = (linear.weight,) if isinstance(linear, Matrix | Convolution) else ()
    return replace(norm, proof=NormProof(linear, Unchanged.of(*held)))
