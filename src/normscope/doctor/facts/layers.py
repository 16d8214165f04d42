"""`LayerRow`: how large the values are that a layer hands on, and how much of the gradient comes back there.

Statistics are taken where the values are, and fetched together when both passes are done: no layer waits for the
device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.codec import JsonForm, Part
from ...core.log10 import log10
from ...core.untouched import unobserved
from ...core.whole_weights import gather_whole
from ...listening.calls import WEIGHTS, Site
from .autograd_graph import Feed, find_feeds, find_makers
from .layers_over_data import UnitsOverData

FLOAT16_LARGEST, BFLOAT16_LARGEST = 65504.0, float.fromhex("0x1.fep127")
"""The largest numbers of the two half precisions; beyond them is infinity."""
FLOAT16_NORMAL, BFLOAT16_NORMAL = 2.0**-14, 2.0**-126
"""Their smallest normal numbers; below them digits are lost, and soon everything."""
NO_DIFFERENCE = 1e-6
"""A share of the size of the values: float32 keeps seven digits."""
INPUT = "input"
"""The kind of the row that stands for the input, which is no layer."""
GATE = "gate"
"""The kind of a sigmoid or tanh that is part of an activation which is written out, such as a GELU."""
OTHER_LAYERS = {
    "scaled_dot_product_attention": "attention", "multi_head_attention_forward": "attention", "lstm": "lstm",
    "gru": "gru", "rnn_tanh": "rnn", "rnn_relu": "rnn",
}  # fmt: skip
LAYER_KINDS = (*WEIGHTS.values(), *OTHER_LAYERS.values())
"""Kinds of rows that hold weights, or mix places."""
MAX_DOUBLE_ENTRIES = 2**16
"""Float32 tensors of more entries are summed up in float32, with half as many bytes to read: their rounding averages
out."""


def name_input(name: str, inputs: int) -> str:
    """Return what the row of an argument of the model is called, where it has so many inputs."""
    return INPUT if inputs == 1 else f"{INPUT} {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow(Part):
    """An input, or what one layer hands on, over one batch. `None` means not measured.

    Attributes:
        path: the module; for an input its name. A module that runs several times has one row per run.
        kind: `input`, the family of the function (`linear`, `batch_norm`, `relu`, ...), or the class of a module whose
            output no such function made (a residual block).
        shape, dtype: the shape and type of the values.
        finite: whether all of them are; otherwise there are no figures.
        mean, deviation: over all values.
        least, greatest: their range.
        below_float16, below_bfloat16: of all values, those that are not zero and lie below the smallest normal number.
        log10_gradient: the norm of the gradient here, as a multiple of that at the output; `-inf` is no gradient.
        saturated: sigmoid and tanh: the share of values in the flat parts; softmax and attention: of rows that are
            one-hot.
        dead: ReLU: the share of channels that were positive for no sample of the data.
        sample_deviation: how much the values of one sample differ from those of another: the deviation over the
            samples, as a root mean square over all entries; 0 if the layer hands on the same for every sample.
        silent: inputs and embeddings: of the places (columns, positions or pixels) whose values differ from sample to
            sample, the share whose gradient is exactly zero for every sample, and that have no influence.
        recurrence: inputs and embeddings that are sequences: what the model reads anew at each step (a module, a
            parameter), and the factor by which the gradient changes from a step to the one before; `None` unless it is
            about the same at every step.
        leak: softmax: the share that goes to entries which `masked_fill` was to hide.
        width: softmax: how many entries share a sum of 1.
        blind_heads: attention: the share of heads in which it makes no difference who looks at whom: all weights are
            equal (queries are zero, or keys the same at all positions), or all values are.
        cut: where such places have one, and the model detaches values: the module that does, and their share.
    """

    JSON: ClassVar[JsonForm] = JsonForm(
        sparse=("sample_deviation", "silent", "cut", "recurrence", "leak", "blind_heads"), left_out=("width",)
    )

    path: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    finite: bool = True
    mean: float | None = None
    deviation: float | None = None
    least: float | None = None
    greatest: float | None = None
    below_float16: float | None = None
    below_bfloat16: float | None = None
    log10_gradient: float | None = None
    saturated: float | None = None
    dead: float | None = None
    sample_deviation: float | None = None
    silent: float | None = None
    cut: tuple[str, float] | None = None
    recurrence: tuple[str, float] | None = None
    leak: float | None = None
    width: int | None = field(default=None, compare=False)
    blind_heads: float | None = None

    @property
    def largest(self) -> float | None:
        """The largest absolute value."""
        return None if self.least is None or self.greatest is None else max(-self.least, self.greatest)

    @property
    def root_mean_square(self) -> float | None:
        """The size of a typical value, its mean included."""
        return None if self.mean is None or self.deviation is None else math.hypot(self.mean, self.deviation)

    @property
    def varies(self) -> bool | None:
        """Whether the values differ from sample to sample; None where nobody can tell."""
        size = self.root_mean_square
        return None if self.sample_deviation is None or size is None else self.sample_deviation > NO_DIFFERENCE * size

    @property
    def log10_room_float16(self) -> float | None:
        """log10 of the factor by which the values could grow before float16 overflows; below 0 they are beyond."""
        return _room(FLOAT16_LARGEST, self.largest)

    @property
    def log10_room_bfloat16(self) -> float | None:
        """log10 of the factor by which the values could grow before bfloat16 overflows; below 0 they are beyond."""
        return _room(BFLOAT16_LARGEST, self.largest)


def _room(limit: float, largest: float | None) -> float | None:
    if largest is None:
        return None
    return math.log10(limit) - math.log10(largest) if largest > 0.0 else math.inf


@dataclass(frozen=True, slots=True)
class HeardLayer:
    """A row while the model runs: its place and form, statistics on the device, and the id of its values."""

    site: Site
    shape: tuple[int, ...]
    dtype: torch.dtype
    statistics: Tensor
    key: int

    @property
    def path(self) -> str:
        """The module."""
        return self.site[0]

    @property
    def kind(self) -> str:
        """The kind of the row."""
        return self.site[1]


class Layers:
    """What every layer of one forward hands on, and the gradients that come back there, on the device.

    Attributes:
        samples: how many samples the batch has.
        heard: one per row, the inputs first.
        functions: autograd's node of every row, until its graph was read.
        feeds: for each row, the rows that it reads with no other row between.
        leaves: inputs, embeddings and other values at which a graph begins that is no part of the user's model.
        end_gradients: the norms of the gradients at what is differentiated.
    """

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.heard: list[HeardLayer] = []
        self.functions: list[Any] = []
        self.feeds: list[tuple[Feed, ...]] = []
        self.leaves: list[Tensor] = []
        self.end_gradients: list[Tensor] = []
        self._gradients: dict[int, Tensor] = {}
        self._sites: dict[int, Site] = {}  # by the id of the values
        self._held: dict[int, tuple[Tensor, int]] = {}  # by address; autograd holds nearly all of them anyway
        self._hooks: list[Any] = []

    def add(self, site: Site, made: Tensor, saturated: Tensor | None = None) -> int:
        """Add a row, and return its number."""
        number, values = len(self.heard), made.detach()
        with unobserved():
            statistics = statistics_of(values, saturated, self.samples)
        self.heard.append(HeardLayer(site, tuple(made.shape), made.dtype, statistics, id(made)))
        self.functions.append(made.grad_fn)
        if not torch.is_grad_enabled():
            self._held.clear()
        self._held[made.data_ptr()] = made, _version(made)
        self._sites[id(made)] = site
        if made.requires_grad:
            self.follow(made, functools.partial(self._returned, number))
        return number

    def follow(self, values: Tensor, hook: Callable[[Tensor], None]) -> None:
        """Hand the gradient that comes back to values to a function."""
        self._hooks.append(values.register_hook(hook))

    def remove_hooks(self) -> None:
        """Leave no hook behind: a parameter that the model returns is one of its outputs."""
        for hook in self._hooks:
            hook.remove()

    def _returned(self, number: int, gradient: Tensor) -> None:
        with unobserved():
            self._gradients[number] = norm_of(gradient)

    def forget_gradients(self) -> None:
        """Drop what a backward that did not end has left."""
        self._gradients, self.end_gradients = {}, []

    def new_leaf(self, tensor: Tensor) -> Tensor:
        """Return a copy that has a gradient and may be written to."""
        if not torch.is_grad_enabled():
            return tensor.clone()
        leaf = tensor.detach().requires_grad_(True)
        self.leaves.append(leaf)
        return leaf.clone()

    def is_row(self, values: Any) -> bool:
        """Whether this very object was handed on by a layer."""
        return id(values) in self._sites

    def is_held(self, made: Tensor) -> bool:
        """Whether these are the values of a row: in the same memory, and not written to since."""
        held, version = self._held.get(made.data_ptr(), (None, -1))
        return held is not None and made.numel() == held.numel() and _version(made) == version

    def site_of_graph(self, values: Tensor) -> Site | None:
        """Return the row in whose memory values lie, if it has a gradient."""
        row = self._held.get(values.data_ptr())
        return self._sites[id(row[0])] if row is not None and row[0].requires_grad else None

    def release(self) -> None:
        """Hold the values of no row any longer."""
        self._held.clear()

    def maker(self, made: Tensor | None) -> str:
        """Return the module that made a tensor: of the layers before it the last one that is a module of its own."""
        waiting = [] if made is None else list(find_makers(made, self.functions))
        feeds = find_feeds(self.functions) if waiting else []
        while waiting:
            number = max(waiting)
            if self.heard[number].path and self.heard[number].kind != INPUT:
                return self.heard[number].path
            waiting = [k for k in waiting if k != number] + [feed.layer for feed in feeds[number]]
        return ""

    def rows(self, units: Mapping[Site, UnitsOverData], more: Mapping[int, Mapping[str, Any]]) -> tuple[LayerRow, ...]:
        """Fetch everything and return the rows.

        Args:
            units: the ReLUs over the data.
            more: further fields of some rows, by their numbers.
        """
        indices, count = list(self._gradients), len(self.heard)
        fetched = fetch_all(
            [layer.statistics for layer in self.heard]
            + [self._gradients[index].reshape(1) for index in indices]
            + [norm.reshape(1) for norm in self.end_gradients]
        )
        end = math.hypot(*(norm for (norm,) in fetched[count + len(indices) :]))
        gradients = {index: norm for index, (norm,) in zip(indices, fetched[count:])}
        return tuple(
            _layer_row(
                layer, fetched[k], _log10_relative(gradients.get(k), end), units.get(layer.site), more.get(k, {})
            )
            for k, layer in enumerate(self.heard)
        )


def is_input(layers: Layers, number: int, made: Tensor) -> bool:
    """Whether a row is an input or an embedding that has samples as its first dimension."""
    return layers.heard[number].kind in (INPUT, "embedding") and made.shape[:1] == (layers.samples,)


def _version(tensor: Tensor) -> int:
    """Return how often a tensor was written to; those of inference mode do not count that."""
    return 0 if tensor.is_inference() else tensor._version


def _log10_relative(norm: float | None, end: float) -> float | None:
    """Return log10 of a gradient's norm as a multiple of that at the output."""
    if norm is None or not (math.isfinite(norm) and 0.0 < end < math.inf):
        return None
    return log10(norm) - log10(end)


def _layer_row(
    layer: HeardLayer,
    statistics: Sequence[float],
    gradient: float | None,
    units: UnitsOverData | None,
    more: Mapping[str, Any],
) -> LayerRow:
    """Return the row of a layer from the statistics that were fetched."""
    mean, variance, least, greatest, below_float16, below_bfloat16, saturated, between = statistics
    finite = all(map(math.isfinite, (least, greatest)))
    measured: dict[str, Any] = {
        "mean": mean,
        "deviation": math.sqrt(variance) if variance >= 0.0 else variance,
        "least": least,
        "greatest": greatest,
        "below_float16": below_float16,
        "below_bfloat16": below_bfloat16,
        "saturated": None if math.isnan(saturated) or layer.kind == GATE else saturated,
        "sample_deviation": None if math.isnan(between) else math.sqrt(max(between, 0.0)),
    }
    return LayerRow(
        path=layer.path,
        kind=layer.kind,
        shape=layer.shape,
        dtype=str(layer.dtype).removeprefix("torch."),
        finite=finite,
        log10_gradient=gradient,
        dead=None if units is None else float(units.dead.double().mean()),
        **(measured if finite else {}),
        **more,
    )


def summable(values: Tensor) -> Tensor:
    """Return values in float64, or as they are where their sums are as good and cheaper in float32."""
    return values if values.dtype == torch.float32 and values.numel() > MAX_DOUBLE_ENTRIES else values.double()


@torch.no_grad()
def statistics_of(values: Tensor, saturated: Tensor | None, samples: int) -> Tensor:
    """Return mean, variance, range, shares below half precisions, what is saturated, the variance over the samples.

    The last two are NaN where there is none. Sums are taken over the distance of each value from the first one, in
    units of about half of the range: so nothing overflows in float32, and the variance of a constant is zero. The unit
    is a power of two: values in this unit are as exact as before.
    """
    wide = summable(values)
    least, greatest = torch.aminmax(wide)
    sizes, zeros = wide.abs(), wide.numel() - torch.count_nonzero(wide)
    below = [
        (torch.count_nonzero(sizes < limit) - zeros).double() / wide.numel()
        for limit in (FLOAT16_NORMAL, BFLOAT16_NORMAL)
    ]
    if wide.dtype == values.dtype:
        unit = greatest / 2 - least / 2
        unit = torch.where(unit > 0, unit / unit.frexp().mantissa.mul(2), 1.0)
        scaled, wide_unit = wide / unit, unit.double()
    else:  # float64 holds the squares of all narrower floats
        scaled, wide_unit = wide, torch.ones_like(least)
    first = scaled.reshape(-1)[0].clone()
    unknown = torch.full_like(wide_unit, math.nan)
    saturation = unknown if saturated is None else saturated.double()
    between = unknown
    if samples > 1 and values.ndim > 0 and values.shape[0] == samples:  # the mean of `values.var(0, correction=0)`
        offsets = scaled - scaled[:1]
        between = offsets.sub_(offsets.mean(0)).square_().mean().double() * wide_unit.square()
    offsets = scaled.sub_(first)
    mean = offsets.mean()
    variance = offsets.sub_(mean).square_().mean().double() * wide_unit.square()
    mean = (first.double() + mean.double()) * wide_unit
    return torch.stack([mean, variance, least.double(), greatest.double(), *below, saturation, between])


def norm_of(gradient: Tensor) -> Tensor:
    """Return the Euclidean norm of a gradient, in float64."""
    gradient = gradient.coalesce().values() if gradient.is_sparse else gradient
    return torch.linalg.vector_norm(gradient.detach().abs(), dtype=torch.float64)


def fetch_numbers(numbers: Sequence[Tensor]) -> list[float]:
    """Return tensors of one number each, as numbers, with one transfer for each type from each device."""
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    whole = [gather_whole(number) if hasattr(number, "full_tensor") else number for number in numbers]
    for k, number in enumerate(whole):
        kinds.setdefault((number.device, number.dtype), []).append(k)
    fetched = [0.0] * len(whole)
    for places in kinds.values():
        for k, number in zip(places, torch.stack([whole[k] for k in places]).tolist(), strict=True):
            fetched[k] = number
    return fetched


def fetch_all(tensors: Sequence[Tensor]) -> list[list[float]]:
    """Return small vectors as lists of floats, with one transfer from each device."""
    tensors = [gather_whole(tensor) if hasattr(tensor, "full_tensor") else tensor for tensor in tensors]
    found: list[list[float]] = [[] for _ in tensors]
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        here = [k for k, tensor in enumerate(tensors) if tensor.device == device]
        values = iter(torch.cat([tensors[k] for k in here]).tolist())
        for k in here:
            found[k] = [next(values) for _ in range(tensors[k].numel())]
    return found
