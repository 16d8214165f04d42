"""A convolution, or its transpose, as a linear map at its real input size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.errors import InputError
from ...core.log10 import norm as l2
from .linear_map import LinearMap, at_least_float32

PADDING_MODES = ("zeros", "circular", "reflect", "replicate")
_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_FOLDED = 4.0 * 2.0**-53
"""The relative error of one entry after a product or a sum in float64."""

Padding = str | int | Sequence[int | tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis of the plain (not transposed) convolution: output `o` reads `o stride - left + tap dilation`.

    Attributes:
        size: input entries `n`.
        outputs: output entries.
        kernel: number of taps.
        stride: step between outputs.
        dilation: step between taps.
        left: padding before the input.
        right: padding after it that some window reaches (negative when the last inputs are never read).
    """

    size: int
    outputs: int
    kernel: int
    stride: int
    dilation: int
    left: int
    right: int

    @property
    def extent(self) -> int:
        """Width of the dilated kernel."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def padded(self) -> int:
        """Entries that the windows cover: size + left + right."""
        return (self.outputs - 1) * self.stride + self.extent

    @property
    def inner_output(self) -> int | None:
        """An output whose window lies wholly inside the input (the middle one), or None."""
        first = max(0, -(-self.left // self.stride))
        last = min(self.outputs - 1, (self.size + self.left - self.extent) // self.stride)
        return (first + last) // 2 if first <= last else None

    def source(self, mode: str, device: torch.device) -> Tensor:
        """Return, for each covered position, the input entry it holds under a padding mode other than zeros."""
        position = torch.arange(-self.left, self.size + self.right, device=device)
        if mode == "circular":
            return position % self.size
        if mode == "replicate":
            return position.clamp(0, self.size - 1)
        last = self.size - 1
        return last - (last - position.abs()).abs()

    def reads(self, mode: str, device: torch.device) -> Tensor:
        """Return which input each tap reads for each output, `[taps, outputs]`; -1 for a zero of the padding."""
        tap = torch.arange(self.kernel, device=device)[:, None] * self.dilation
        covered = tap + torch.arange(self.outputs, device=device)[None] * self.stride
        if mode != "zeros":
            return self.source(mode, device)[covered]
        read = covered - self.left
        return torch.where((read >= 0) & (read < self.size), read, -1)

    def reads_transposed(self, device: torch.device) -> Tensor:
        """Return the same for the transpose: input p and a tap write output p stride - left + tap dilation."""
        tap = torch.arange(self.kernel, device=device)[:, None] * self.dilation
        ahead = torch.arange(self.size, device=device)[None] + self.left - tap
        read = torch.div(ahead, self.stride, rounding_mode="floor")
        return torch.where((ahead % self.stride == 0) & (read >= 0) & (read < self.outputs), read, -1)


def combine_axes(places: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Return flat places `[a, b]` in a box from the places `[a_k, b_k]` along each of its axes; -1 stays -1."""
    flat = torch.zeros(1, 1, dtype=torch.int64, device=places[0].device)
    for along, size in zip(places, sizes, strict=True):
        before, here = flat[:, None, :, None], along[None, :, None, :]
        flat = torch.where((before < 0) | (here < 0), -1, before * size + here).flatten(2).flatten(0, 1)
    return flat


class Convolution(LinearMap):
    """A 1d, 2d or 3d convolution `(C_in, *spatial) -> (C_out, *spatial_out)`, or a transposed one.

    Holds the *plain* convolution (`axes`, `weight`) and runs it forwards, or backwards when `transposed`: a
    transposed convolution is the transpose of the convolution that has the same weight tensor.

    The weight has torch's layouts: `[C_out, C_in/groups, *k]`, or `[C_in, C_out/groups, *k]` when transposed. Padding
    is one number, or for each axis a number or a `(left, right)` pair, or `"same"` or `"valid"`.

    Example:
        >>> Convolution(torch.ones(8, 3, 5, 5), (32, 32), stride=2, padding=2)
        Convolution([3, 32, 32] -> [8, 16, 16])
    """

    def __init__(
        self,
        weight: Tensor,
        spatial_in: Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        padding: Padding = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
        transposed: bool = False,
        output_padding: int | Sequence[int] = 0,
    ) -> None:
        dims = weight.ndim - 2
        spatial = tuple(int(size) for size in spatial_in)
        _check(weight, spatial, groups, padding_mode, transposed)
        kernel = tuple(weight.shape[2:])
        strides, dilations = _each(stride, dims, "stride"), _each(dilation, dims, "dilation")
        extras = _each(output_padding, dims, "output_padding")
        pairs = _padding_pairs(padding, kernel, dilations, strides)
        axes = []
        for n, k, s, d, (left, right), extra in zip(spatial, kernel, strides, dilations, pairs, extras, strict=True):
            extent = d * (k - 1) + 1
            if transposed:
                outputs, size = n, (n - 1) * s - left - right + extent + extra
            else:
                outputs, size = (n + left + right - extent) // s + 1, n
            if outputs < 1 or size < 1:
                raise InputError(
                    f"a kernel of {k} taps (dilation {d}, stride {s}, padding {left}, {right}) does not fit an input "
                    f"of {n}: pass the real input size of the layer"
                )
            if padding_mode == "reflect" and max(left, right) >= size:
                raise InputError(f"reflect padding of {max(left, right)} needs an input larger than {size}")
            axes.append(Axis(size, outputs, k, s, d, left, (outputs - 1) * s - left + extent - size))
        self._set(weight, tuple(axes), groups, padding_mode, transposed)

    def _set(self, weight: Tensor, axes: tuple[Axis, ...], groups: int, mode: str, transposed: bool) -> None:
        self.weight = at_least_float32(weight)
        self.device = weight.device
        self.axes, self.groups, self.padding_mode, self.transposed = axes, groups, mode, transposed
        small = (weight.shape[0], *(axis.outputs for axis in axes))
        large = (weight.shape[1] * groups, *(axis.size for axis in axes))
        self.in_shape, self.out_shape = (small, large) if transposed else (large, small)

    def _with_weight(self, weight: Tensor, slack: float) -> Convolution:
        other = Convolution.__new__(Convolution)
        other._set(weight, self.axes, self.groups, self.padding_mode, self.transposed)
        other.slack = slack
        return other

    def apply(self, x: Tensor) -> Tensor:
        """Convolve a batch (or run the transposed convolution)."""
        return self._backward(x) if self.transposed else self._forward(x)

    def adjoint(self, y: Tensor) -> Tensor:
        """Run the transpose of `apply`."""
        return self._forward(y) if self.transposed else self._backward(y)

    def _forward(self, x: Tensor) -> Tensor:
        """Run the plain convolution."""
        weight, strides, dilations = self.weight.to(x.dtype), self._tuple("stride"), self._tuple("dilation")
        conv = _CONV[len(self.axes)]
        if self._native:
            return conv(x, weight, None, strides, self._tuple("left"), dilations, self.groups)
        if self.padding_mode == "zeros":
            x = F.pad(x, [side for axis in reversed(self.axes) for side in (axis.left, axis.right)])
        else:
            for dim, axis in enumerate(self.axes, start=2):
                x = x.index_select(dim, axis.source(self.padding_mode, x.device))
        return conv(x, weight, None, strides, 0, dilations, self.groups)

    def _backward(self, y: Tensor) -> Tensor:
        """Run the transpose of the plain convolution."""
        weight, strides, dilations = self.weight.to(y.dtype), self._tuple("stride"), self._tuple("dilation")
        conv_transpose = _CONV_TRANSPOSE[len(self.axes)]
        if self._native:
            extra = tuple(axis.left - axis.right for axis in self.axes)
            return conv_transpose(y, weight, None, strides, self._tuple("left"), extra, self.groups, dilations)
        x = conv_transpose(y, weight, None, strides, 0, 0, self.groups, dilations)
        if self.padding_mode == "zeros":
            return F.pad(x, [-side for axis in reversed(self.axes) for side in (axis.left, axis.right)])
        for dim, axis in enumerate(self.axes, start=2):
            shape = [*x.shape[:dim], axis.size, *x.shape[dim + 1 :]]
            target = torch.zeros(shape, dtype=x.dtype, device=x.device)
            x = target.index_add_(dim, axis.source(self.padding_mode, x.device), x)
        return x

    @property
    def _native(self) -> bool:
        """Whether torch's own symmetric zero padding gives exactly this map."""
        return self.padding_mode == "zeros" and all(
            axis.left >= 0 and 0 <= axis.left - axis.right < axis.stride for axis in self.axes
        )

    def _tuple(self, name: str) -> tuple[int, ...]:
        return tuple(getattr(axis, name) for axis in self.axes)

    def blocks(self) -> Tensor:
        """Write the groups of the plain convolution out in float64, one below the other: `[C_out O, C_in/groups n]`.

        Every entry is a tap, or a sum of taps that read one input through padding.
        """
        reads = combine_axes([axis.reads(self.padding_mode, self.device) for axis in self.axes], self._tuple("size"))
        placed = (reads[..., None] == torch.arange(math.prod(self._tuple("size")), device=self.device)).double()
        spread = torch.tensordot(self.weight.double().flatten(2), placed, dims=1).permute(0, 2, 1, 3)
        return spread.flatten(2).flatten(0, 1)

    def scaled(self, scale: Tensor, *, outputs: bool) -> Convolution:
        """Return the convolution followed by one factor per output channel (a folded BatchNorm), or behind such."""
        weight = self.weight.double()
        scale = scale.detach().to(weight)
        ones = (1,) * len(self.axes)
        if outputs != self.transposed:
            weight = weight * scale.reshape(-1, 1, *ones)
        else:
            per_group = weight.shape[0] // self.groups
            scale = scale.reshape(self.groups, 1, -1).expand(-1, per_group, -1)
            weight = weight * scale.reshape(weight.shape[0], weight.shape[1], *ones)
        most = float(scale.abs().max()) if scale.numel() else 0.0
        return self._with_weight(weight, _FOLDED * self.tap_norms(weight) + self.slack * most)

    def plus_identity(self, scale: float | Tensor = 1.0) -> Convolution | None:
        """Return the convolution plus `scale` (a number, or one per channel) times the identity.

        None where the geometry does not permit it: it needs stride 1, zero padding, equal shapes and a tap that reads
        the output's own position.
        """
        zero_tap = [axis.left // axis.dilation for axis in self.axes]
        if self.in_shape != self.out_shape or self.padding_mode != "zeros":
            return None
        for axis, tap in zip(self.axes, zero_tap, strict=True):
            if axis.stride != 1 or axis.left % axis.dilation or not 0 <= tap < axis.kernel:
                return None
        weight = self.weight.double().clone()
        channels, per_group = weight.shape[:2]
        row = torch.arange(channels, device=self.device)
        index: tuple[Tensor | int, ...] = (row, row % per_group, *zero_tap)
        weight[index] += scale.to(weight) if isinstance(scale, Tensor) else scale
        return self._with_weight(weight, self.slack + _FOLDED * self.tap_norms(weight))

    def plus(self, other: Convolution) -> Convolution | None:
        """Return the sum of two convolutions as one, or None where their geometries differ."""
        same = (self.in_shape, self.out_shape, self.groups, self.padding_mode, self.transposed)
        if same != (other.in_shape, other.out_shape, other.groups, other.padding_mode, other.transposed):
            return None
        if self.axes == other.axes:
            weight = self.weight.double() + other.weight.double()
            return self._with_weight(weight, self.slack + other.slack + _FOLDED * self.tap_norms(weight))
        if self.padding_mode != "zeros":
            return None
        axes, grown = [], []
        for a, b in zip(self.axes, other.axes, strict=True):
            if (a.stride, a.dilation) != (b.stride, b.dilation) or (a.left - b.left) % a.dilation:
                return None
            left = max(a.left, b.left)
            reach = max(axis.extent - axis.left for axis in (a, b))
            kernel = (left + reach - 1) // a.dilation + 1
            axis = Axis(a.size, a.outputs, kernel, a.stride, a.dilation, left, 0)
            axes.append(Axis(a.size, a.outputs, kernel, a.stride, a.dilation, left, axis.padded - left - a.size))
            before = [(left - x.left) // a.dilation for x in (a, b)]
            grown.append([(n, kernel - n - x.kernel) for n, x in zip(before, (a, b), strict=True)])
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for index, conv in enumerate((self, other)):
            pad = [side for pairs in reversed(grown) for side in pairs[index]]
            total = total + F.pad(conv.weight.double(), pad)
        result = Convolution.__new__(Convolution)
        result._set(total, tuple(axes), self.groups, "zeros", self.transposed)
        result.slack = self.slack + other.slack + _FOLDED * self.tap_norms(total)
        return result

    def tap_norms(self, weight: Tensor | None = None) -> float:
        """Return a cheap bound on the norm: the sum of the taps' Frobenius norms, times the norm of the padding."""
        weight = self.weight.double() if weight is None else weight
        return float(l2(weight.flatten(2), (0, 1)).sum()) * (1.0 + 1e-9) * self.copies()

    def copies(self) -> float:
        """Return the norm of the padding: the root of the largest number of copies of one input entry."""
        if self.padding_mode == "zeros":
            return 1.0
        counts = [torch.bincount(axis.source(self.padding_mode, torch.device("cpu"))).max() for axis in self.axes]
        return math.sqrt(math.prod(int(count) for count in counts)) * (1.0 + 1e-15)


def _check(weight: Tensor, spatial: tuple[int, ...], groups: int, padding_mode: str, transposed: bool) -> None:
    dims = weight.ndim - 2
    if dims not in _CONV:
        raise InputError(f"a convolution weight has 3, 4 or 5 dimensions, this one has shape {tuple(weight.shape)}")
    if len(spatial) != dims:
        raise InputError(f"a {dims}d convolution needs {dims} spatial sizes, got {spatial}")
    if padding_mode not in PADDING_MODES:
        raise InputError(f"padding mode {padding_mode!r}: known are {', '.join(PADDING_MODES)}")
    if transposed and padding_mode != "zeros":
        raise InputError("a transposed convolution pads with zeros only")
    if weight.shape[0] % groups:
        raise InputError(f"{weight.shape[0]} channels cannot be split into {groups} groups")


def _each(value: int | Sequence[int], dims: int, name: str) -> tuple[int, ...]:
    """Return one value per axis."""
    values = (value,) * dims if isinstance(value, int) else tuple(int(v) for v in value)
    if len(values) == 1:
        values *= dims
    if len(values) != dims:
        raise InputError(f"{name} {value} does not fit a {dims}d convolution")
    return values


def _padding_pairs(
    padding: Padding, kernel: Sequence[int], dilation: Sequence[int], stride: Sequence[int]
) -> list[tuple[int, int]]:
    """Return (left, right) per axis."""
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        if any(step != 1 for step in stride):
            raise InputError("padding 'same' needs stride 1")
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    if isinstance(padding, str):
        raise InputError(f"padding {padding!r}: known are numbers, pairs, 'same' and 'valid'")
    values = (padding,) * len(kernel) if isinstance(padding, int) else tuple(padding)
    if len(values) == 1:
        values *= len(kernel)
    if len(values) != len(kernel):
        raise InputError(f"padding {padding} does not fit a {len(kernel)}d convolution")
    return [(value, value) if isinstance(value, int) else (int(value[0]), int(value[1])) for value in values]
