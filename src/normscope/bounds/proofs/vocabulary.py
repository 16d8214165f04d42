"""The words of a script: activations, normalizers and windows, read off operators and recognised units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...graph.ir import Node, Unit
from ...theory.activations import QUICK_GELU, Activation

Parameters = dict[str, float | Tensor]
Said = tuple[str, Parameters]
_NONE = 1e300
"""A limit that nothing reaches, for a clamp on one side."""
_SELU = {"alpha": 1.6732632423543772848170429916717, "scale": 1.0507009873554804934193349852946, "input_scale": 1.0}
_MASKED = -1e30
"""What a masked score becomes: softmax gives it the weight 0, as it does for -inf."""


def compact(value: Tensor) -> Tensor:
    """Return a tensor with every dimension along which it is constant shrunk to 1."""
    for dim in range(value.ndim):
        first = value.narrow(dim, 0, 1)
        if value.shape[dim] > 1 and bool((value == first).all()):
            value = first
    return value.contiguous()


def _clamp(low: Any, high: Any) -> Said:
    def limit(value: Any, missing: float) -> float | Tensor:
        if value is None:
            return missing
        return value.double() if isinstance(value, Tensor) else max(-_NONE, min(_NONE, float(value)))

    return "clamp", {"low": limit(low, -_NONE), "high": limit(high, _NONE)}


def _prelu(weight: Tensor, shape: Sequence[int]) -> Said:
    per_channel = (-1,) + (1,) * (len(shape) - 2) if len(shape) > 1 else (-1,)
    return "leaky_relu", {"slope": weight.double().reshape(-1 if weight.numel() == 1 else per_channel)}


_PLAIN = {
    "relu": "relu", "mish": "mish", "hardswish": "hardswish", "hardsigmoid": "hardsigmoid", "sigmoid": "sigmoid",
    "log_sigmoid": "logsigmoid", "tanh": "tanh", "sin": "sin", "cos": "cos", "erf": "erf", "atan": "atan", "abs": "abs",
}  # fmt: skip
_WITH: dict[str, Callable[[dict[str, Any], Sequence[int]], Said]] = {
    "relu6": lambda a, shape: _clamp(0.0, 6.0),
    "selu": lambda a, shape: ("elu", dict(_SELU)),
    "silu": lambda a, shape: ("silu", {"beta": 1.0}),
    "gelu": lambda a, shape: ("gelu" if a["approximate"] == "none" else "gelu_tanh", {}),
    "leaky_relu": lambda a, shape: ("leaky_relu", {"slope": float(a["negative_slope"])}),
    "rrelu": lambda a, shape: ("leaky_relu", {"slope": (float(a["lower"]) + float(a["upper"])) / 2}),
    "prelu": lambda a, shape: _prelu(a["weight"], shape),
    "elu": lambda a, shape: ("elu", {key: float(a[key]) for key in ("alpha", "scale", "input_scale")}),
    "celu": lambda a, shape: (
        "elu",
        {"alpha": float(a["alpha"]), "scale": 1.0, "input_scale": 1.0 / float(a["alpha"])},
    ),
    "softplus": lambda a, shape: ("softplus", {key: float(a[key]) for key in ("beta", "threshold")}),
    "threshold": lambda a, shape: _clamp(float(a["threshold"]), None),
    "hardtanh": lambda a, shape: _clamp(a["min_val"], a["max_val"]),
    "clamp": lambda a, shape: _clamp(a.get("min"), a.get("max")),
    "clamp_min": lambda a, shape: _clamp(a.get("min"), None),
    "clamp_max": lambda a, shape: _clamp(None, a.get("max")),
}


def activation(node: Node) -> Said | None:
    """Return an activation's name and parameters in the checker's words, or None if it has none for it."""
    if isinstance(node.op, Unit):
        said = _recognised(node.op.data["activation"]) if node.op.name == "activation" else None
        if said is None or not _identical(node.op.function, node.op.data["activation"].function):
            return None
    else:
        name = node.operator
        if name in _PLAIN:
            return _PLAIN[name], {}
        if name not in _WITH:
            return None
        said = _WITH[name](node.bound(), node.shape)
    function, given = said
    unusual = {
        # below 37 torch's function jumps at its threshold by more than a float64 rounds
        "softplus": lambda: not (1e-9 <= float(given["beta"]) <= 1e9 and float(given["threshold"]) >= 37),
        "elu": lambda: not 1e-9 <= float(given["input_scale"]) <= 1e9,
        "silu": lambda: not 1e-9 <= float(given["beta"]) <= 1e9,
        "clamp": lambda: bool((torch.as_tensor(given["low"]) > torch.as_tensor(given["high"])).any()),
    }
    return None if function in unusual and unusual[function]() else said


def _recognised(known: Activation) -> Said | None:
    """Return a recognised activation in the checker's words; its parameters are those its function is called with."""
    name = known.name.partition("(")[0]
    given: dict[str, Any] = getattr(known.function, "keywords", {})
    if name == "silu" and known.factor == 1.0 and known.inner > 0:
        return "silu", {"beta": known.inner}
    if (known.inner, known.factor) != (1.0, 1.0):
        return None
    match name:
        case "gelu" | "gelu_tanh" | "mish" | "relu" | "tanh" | "sigmoid" | "abs":
            return name, {}
        case "logsigmoid" | "erf" | "atan" | "sin" | "cos":
            return name, {}
        case "quick_gelu":
            return "silu", {"beta": QUICK_GELU}
        case "leaky_relu" | "rrelu":
            return "leaky_relu", {"slope": float(given["negative_slope"])}
        case "elu" | "celu":
            return "elu", {key: float(given[key]) for key in ("alpha", "scale", "input_scale")}
        case "selu":
            return "elu", dict(_SELU)
        case "softplus":
            return "softplus", {key: float(given[key]) for key in ("beta", "threshold")}
        case "clamp" | "hardtanh":
            return _clamp(given["min"], given["max"])
        case "relu6":
            return _clamp(0.0, 6.0)
    return None


def _identical(function: Callable[[Tensor], Tensor], known: Callable[[Tensor], Tensor]) -> bool:
    """Whether two functions agree to rounding: a script must be the network, not one that comes close."""
    grid = torch.cat([torch.linspace(-12, 12, 4801, dtype=torch.float64), torch.logspace(1.1, 3, 50).double()])
    grid = torch.cat([grid, -grid])
    first, second = function(grid), known(grid)
    return bool(((first - second).abs() <= 1e-12 * (grid.abs() + second.abs() + 1e-3)).all())


@dataclass(frozen=True, slots=True)
class NormalizerWord:
    """Division of sets of entries by their root mean square: the axes of a view that make up one set.

    Attributes:
        view, axes: the value in the shape `view`, one set along `axes`.
        eps: under the root.
        scale, shift: in a shape that broadcasts to the value's.
        centred: whether the mean of the set is subtracted first.
    """

    view: tuple[int, ...]
    axes: tuple[int, ...]
    eps: float
    scale: Tensor | None
    shift: Tensor | None
    centred: bool = True


def normalizer(node: Node) -> NormalizerWord | None:
    """Return a normalizer with statistics of its input, or None if the node is none."""
    shape = node.shape
    dims = tuple(range(len(shape)))
    if isinstance(node.op, Unit):
        if node.op.name != "rms":
            return None
        return NormalizerWord(shape, tuple(node.op.data["dims"]), float(node.op.data["eps"]), None, None, centred=False)
    arguments = node.bound()
    eps = arguments.get("eps")
    if not isinstance(eps, float | int) or not eps > 0:
        return None
    weight, bias = arguments.get("weight"), arguments.get("bias")
    name = node.operator
    if name in ("layer_norm", "rms_norm"):
        axes = dims[len(dims) - len(arguments["normalized_shape"]) :]
        scale, shift = (None if value is None else value.double() for value in (weight, bias))
        return NormalizerWord(shape, axes, float(eps), scale, shift, centred=name == "layer_norm")
    scale, shift = (
        None if value is None else value.double().reshape(-1, *(1,) * (len(shape) - 2)) for value in (weight, bias)
    )
    if name == "group_norm":
        sets = shape[0] * int(arguments["num_groups"])
        return NormalizerWord((sets, math.prod(shape) // sets), (1,), float(eps), scale, shift)
    if name == "instance_norm" and arguments["use_input_stats"]:
        return NormalizerWord(shape, dims[2:], float(eps), scale, shift)
    if node.is_batch_norm and node.uses_batch_statistics:
        return NormalizerWord(shape, (0, *dims[2:]), float(eps), scale, shift)
    return None


def windows(node: Node) -> tuple[Tensor, int, bool] | None:
    """Return the windows of a pooling or an extreme over dimensions, or None if the node is neither.

    Returns:
        The entries each output looks at, `[outputs, taps]` (-1 for none), within every slice of the leading
        dimensions; the number of these; whether the lowest is taken.
    """
    shape = node.operands[0].shape
    if node.operator in ("amax", "amin") or node.overload in ("max.dim", "min.dim", "max.default", "min.default"):
        arguments = node.bound()
        given = arguments.get("dim")
        dims = tuple(range(len(shape))) if given in (None, [], ()) else given
        dims = tuple(d % len(shape) for d in ((dims,) if isinstance(dims, int) else dims))
        ids = torch.arange(math.prod(shape)).reshape(shape)
        ids = ids.permute(*(d for d in range(len(shape)) if d not in dims), *dims)
        return ids.reshape(math.prod(node.shape), -1), 0, node.takes_smallest
    if "max_pool" not in node.operator:
        return None
    dims = node.pooled_axes
    axes = [_taps(node, axis, dims, adaptive=node.operator.startswith("adaptive")) for axis in range(dims)]
    index = torch.zeros(1, 1, dtype=torch.int64)
    for axis, taps in enumerate(axes):
        size = shape[axis - dims]
        wide, missing = index[:, None, :, None] * size + taps[None, :, None, :], index[:, None, :, None] < 0
        wide = torch.where(missing | (taps[None, :, None, :] < 0), -1, wide)
        index = wide.reshape(len(index) * len(taps), -1)
    return index, len(shape) - dims, False


def _taps(node: Node, axis: int, dims: int, *, adaptive: bool) -> Tensor:
    """Return the places along one axis that each output reads, `[outputs, taps]`."""
    size, outputs = node.operands[0].shape[axis - dims], node.shape[axis - dims]
    if adaptive:
        ends = [(o * size // outputs, -(-(o + 1) * size // outputs)) for o in range(outputs)]
        widest = max(end - start for start, end in ends)
        rows = [[place if place < end else -1 for place in range(start, start + widest)] for start, end in ends]
        return torch.tensor(rows)
    arguments = node.bound()
    kernel = _at(arguments["kernel_size"], axis)
    stride = _at(arguments.get("stride") or arguments["kernel_size"], axis)
    padding, dilation = _at(arguments.get("padding", 0), axis), _at(arguments.get("dilation", 1), axis)
    places = torch.arange(outputs)[:, None] * stride - padding + torch.arange(kernel)[None] * dilation
    return torch.where((places >= 0) & (places < size), places, -1)


def _at(value: int | Sequence[int], axis: int) -> int:
    values = (value,) if isinstance(value, int) else tuple(value)
    return int(values[axis] if len(values) > 1 else values[0])


def mask(given: Any, causal: bool, queries: int, keys: int) -> Tensor | str | None:
    """Return what is added to attention scores, None for nothing, or why it has no finite form."""
    found = None
    if isinstance(given, Tensor):
        found = torch.where(given, 0.0, _MASKED).double() if given.dtype is torch.bool else given.double()
        found = found.clamp(min=_MASKED)
    if causal:
        lower = torch.ones(queries, keys, dtype=torch.bool).tril()
        found = torch.where(lower, 0.0, _MASKED).double() + (0.0 if found is None else found.cpu())
        found = found.clamp(min=_MASKED)
    if found is None:
        return None
    if not bool(torch.isfinite(found).all()) or bool((found <= _MASKED / 2).all(-1).any()):
        return "a row of the mask leaves nothing"
    return found
