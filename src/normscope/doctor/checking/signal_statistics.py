"""Small statistics of values, gradients and parameters: taken where they are, and fetched together.

Below them saturation: values in flat parts of an activation, gates wide open or shut, attention on one entry.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ...core.log10 import log10
from ...listening.calls import FunctionCall, Site
from .autograd_flow import operator_name
from .examined import UnitsOverData
from .signal import BFLOAT16_NORMAL, FLOAT16_NORMAL, GATE, ParameterRow, SignalRow, WidestColumn

POWER_STEPS = 4
"""Enough to tell a matrix of rank one: one step finds its direction."""
FLAT = 0.01
"""Nearer to an end of its range than this share of the range, a sigmoid or tanh has less than a twentieth of its
steepest slope."""
SATURATING = ("sigmoid", "tanh", "softmax", "hardsigmoid", "hardtanh")
ATTENTION_ROWS = 64
"""Queries of a fused attention whose rows are looked at."""
MAX_DOUBLE_ENTRIES = 2**16
"""Float32 tensors of more entries are summed up in float32, with half as many bytes to read: their rounding averages
out."""
HIDDEN_BELOW = 1e4
"""A score this far below the largest of its row is that of a hidden position."""


def log10_relative(norm: float | None, end: float) -> float | None:
    """Return log10 of a gradient's norm as a multiple of that at the output."""
    if norm is None or not (math.isfinite(norm) and 0.0 < end < math.inf):
        return None
    return log10(norm) - log10(end)


def signal_row(
    site: Site,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    figures: Sequence[float],
    gradient: float | None,
    units: UnitsOverData | None,
) -> SignalRow:
    """Return the row of a layer from the statistics that were fetched."""
    mean, variance, least, greatest, below_float16, below_bfloat16, saturated, between = figures
    finite = all(map(math.isfinite, (least, greatest)))
    measured: dict[str, Any] = {
        "mean": mean,
        "deviation": math.sqrt(variance) if variance >= 0.0 else variance,
        "least": least,
        "greatest": greatest,
        "below_float16": below_float16,
        "below_bfloat16": below_bfloat16,
        "saturated": None if math.isnan(saturated) or site[1] == GATE else saturated,
        "sample_deviation": None if math.isnan(between) else math.sqrt(max(between, 0.0)),
    }
    return SignalRow(
        path=site[0],
        kind=site[1],
        shape=shape,
        dtype=str(dtype).removeprefix("torch."),
        finite=finite,
        log10_gradient=gradient,
        dead=None if units is None else float(units.dead.double().mean()),
        **(measured if finite else {}),
    )


def _summable(values: Tensor) -> Tensor:
    """Return values in float64, or as they are where their sums are as good and cheaper in float32."""
    return values if values.dtype == torch.float32 and values.numel() > MAX_DOUBLE_ENTRIES else values.double()


@torch.no_grad()
def statistics_of(values: Tensor, saturated: Tensor | None, samples: int) -> Tensor:
    """Return mean, variance, range, shares below half precisions, what is saturated, the variance over the samples.

    The last two are NaN where there is none. Sums are taken over the distance of each value from the first one, in
    units of about half of the range: so nothing overflows in float32, and the variance of a constant is zero. The unit
    is a power of two: values in this unit are as exact as before.
    """
    summable = _summable(values)
    least, greatest = torch.aminmax(summable)
    sizes, zeros = summable.abs(), summable.numel() - torch.count_nonzero(summable)
    below = [
        (torch.count_nonzero(sizes < limit) - zeros).double() / summable.numel()
        for limit in (FLOAT16_NORMAL, BFLOAT16_NORMAL)
    ]
    unit = greatest / 2 - least / 2
    unit = torch.where(unit > 0, unit / unit.frexp().mantissa.mul(2), 1.0)
    scaled, wide_unit = summable / unit, unit.double()
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


@torch.no_grad()
def _parameter_statistics(parameter: Tensor) -> Tensor:
    """Return root mean square, range, deviation between the rows, and the share of the leading singular pair."""
    values = torch.view_as_real(parameter.detach()) if parameter.is_complex() else parameter.detach()
    values = _summable(values)
    least, greatest = torch.aminmax(values)
    unit = torch.maximum(least.abs(), greatest.abs())
    unit = torch.where((unit > 0) & unit.isfinite(), unit, 1.0)
    values = values / unit  # so that no square overflows or is lost
    rows, unit = values.flatten(1) if values.ndim > 1 else values[None], unit.double()
    square = rows.square().mean().double()
    size, ends = unit * square.sqrt(), [least.double(), greatest.double()]
    if min(rows.shape) < 2:
        return torch.stack([size, *ends, *[torch.full_like(size, math.nan)] * 2])
    offsets = rows - rows[:1]  # zero, not rounding, where all rows are the same
    between = unit * offsets.sub_(offsets.mean(0)).square_().mean().double().sqrt()
    vector = torch.ones(rows.shape[1], dtype=rows.dtype, device=rows.device) + rows.abs().sum(0)
    for _ in range(POWER_STEPS):
        vector = rows.mT @ (rows @ vector)
        vector = vector / torch.linalg.vector_norm(vector).clamp(min=1e-30)
    share = ((rows @ vector).double().square().sum() / (square * rows.numel()).clamp(min=1e-300)).clamp(max=1.0)
    return torch.stack([size, *ends, between, share])


def parameter_rows(
    model: nn.Module, gradients: Mapping[int, Tensor], trained: Set[int], used: Set[int], reached: Container[int]
) -> tuple[ParameterRow, ...]:
    """Return one row for each parameter with values, from its gradient and from what is known of it, by its id."""
    held = [(n, p) for n, p in model.named_parameters() if not is_lazy(p) and p.numel() and not p.is_meta]
    none = torch.full((1,), -1.0, dtype=torch.float64)
    fetched = fetch_all([_parameter_statistics(p) for _, p in held])
    norms = fetch_all([norm_of(gradients[id(p)]).reshape(1) if id(p) in gradients else none for _, p in held])
    return tuple(
        ParameterRow(
            name=name,
            shape=tuple(parameter.shape),
            trainable=id(parameter) in trained,
            used=id(parameter) in used,
            reached=id(parameter) in reached,
            root_mean_square=size,
            least=least,
            greatest=greatest,
            row_deviation=None if math.isnan(between) else between,
            leading_share=None if math.isnan(share) else share,
            gradient=None if norm < 0.0 else math.inf if math.isnan(norm) else norm,
        )
        for (name, parameter), (size, least, greatest, between, share), (norm,) in zip(
            held, fetched, norms, strict=True
        )
    )


def places_of_values(values: Tensor) -> list[Tensor]:
    """Return where values are not zero for any sample: by column, by position and feature, or by pixel and channel."""
    there = (values != 0).any(0)
    if there.ndim == 2:
        return [there.any(1), there.any(0)]
    if there.ndim > 2:
        return [there.any(0), there.flatten(1).any(1).reshape(-1, *(1,) * (there.ndim - 1))]
    return [there] if there.ndim else []


@torch.no_grad()
def widest_column(values: Tensor) -> Tensor | None:
    """Return the column of a table with the largest values, their size and that of a usual column; None for others."""
    if values.ndim not in (2, 3) or values.shape[-1] < 2:
        return None
    sizes = values.detach().double().flatten(0, -2).square().mean(0).sqrt()
    usual = torch.where(sizes > 0, sizes, math.nan).nanmedian()
    return torch.stack([sizes.argmax().double(), sizes.max(), usual])


def fetch_columns(columns: Sequence[Tensor | None]) -> tuple[WidestColumn | None, ...]:
    """Fetch what `widest_column` returned for several inputs."""
    fetched = iter(fetch_all([column for column in columns if column is not None]))
    return tuple(
        None if column is None or math.isnan(usual) else WidestColumn(index=int(index), size=size, usual=usual)
        for column in columns
        for index, size, usual in [(0.0, 0.0, 0.0) if column is None else next(fetched)]
    )


def norm_of(gradient: Tensor) -> Tensor:
    """Return the Euclidean norm of a gradient, in float64."""
    gradient = gradient.coalesce().values() if gradient.is_sparse else gradient
    return torch.linalg.vector_norm(gradient.detach().abs(), dtype=torch.float64)


def fetch_all(tensors: Sequence[Tensor]) -> list[list[float]]:
    """Return small vectors as lists of floats, with one transfer from each device."""
    found: list[list[float]] = [[] for _ in tensors]
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        here = [k for k, tensor in enumerate(tensors) if tensor.device == device]
        values = iter(torch.cat([tensors[k] for k in here]).tolist())
        for k in here:
            found[k] = [next(values) for _ in range(tensors[k].numel())]
    return found


def saturated_share(call: FunctionCall, family: str, made: Tensor, dim: Any) -> Tensor | None:
    """Return the saturated share of what a layer's function returned; None for layers that do not saturate."""
    if call.name == "scaled_dot_product_attention":
        return _one_hot_attention(call)
    if call.name == "multi_head_attention_forward":
        return _one_hot_multihead(call)
    if call.name in ("lstm", "gru", "rnn_tanh"):
        return _saturated_gates(call, made)
    return _saturated(family, made, dim, call) if family in SATURATING else None


@torch.no_grad()
def _saturated(family: str, made: Tensor, dim: Any, call: FunctionCall) -> Tensor | None:
    """Return the share of values in the flat parts of a sigmoid or tanh, or of one-hot rows of a softmax."""
    if family == "hardtanh":
        limits = {**dict(zip(("input", "min_val", "max_val"), call.args)), **call.kwargs}
        return ((made <= limits.get("min_val", -1.0)) | (made >= limits.get("max_val", 1.0))).double().mean()
    if family == "softmax":
        dim = dim if isinstance(dim, int) else -1
        return None if made.shape[dim] == 1 else (made.amax(dim) > 1.0 - FLAT).double().mean()
    low, high = (-1.0, 1.0) if family == "tanh" else (0.0, 1.0)
    edge = FLAT * (high - low)
    return ((made < low + edge) | (made > high - edge)).double().mean()


@torch.no_grad()
def leaked_share(call: FunctionCall, made: Tensor, dim: Any) -> Tensor | None:
    """Return the share that a softmax gives to entries which a mask was to hide, in rows with others."""
    filled = getattr(call.input, "grad_fn", None)
    if filled is None or operator_name(filled) != "MaskedFill" or not isinstance(dim, int):
        return None
    hidden = filled._saved_mask.expand(made.shape)
    rows = hidden.any(dim) & ~hidden.all(dim)
    return ((made * hidden).sum(dim) * rows).double().sum() / rows.sum().clamp(min=1)


def _one_hot_attention(call: FunctionCall) -> Tensor | None:
    """Return the share of rows of fused attention that look at one of several positions alone."""
    given = call.named()
    query, key, mask = given["query"], given["key"], given.get("attn_mask")
    if query.shape[-3] != key.shape[-3]:  # grouped queries share keys
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    if given.get("is_causal"):
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    return _one_hot(query, key, mask, given.get("scale"))


def _one_hot_multihead(call: FunctionCall) -> Tensor | None:
    """Return the same for torch's own attention with its projections."""
    given = call.named()
    weight, bias, heads = given["in_proj_weight"], given["in_proj_bias"], given["num_heads"]
    weights = [given["q_proj_weight"], given["k_proj_weight"]] if weight is None else weight.chunk(3)[:2]
    biases = [None, None] if bias is None else bias.chunk(3)[:2]
    query, key = (
        torch.nn.functional.linear(given[name], own, shift).unflatten(-1, (heads, -1)).movedim(0, -2)
        for name, own, shift in zip(("query", "key"), weights, biases, strict=True)
    )
    mask = given["attn_mask"]
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        mask = ~mask  # there, True means that a position is hidden
    return _one_hot(query, key, mask if mask is None or mask.ndim == 2 else None, None)


@torch.no_grad()
def _one_hot(query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None) -> Tensor | None:
    """Return the share of rows with more than 99 % on one position, of those that may look at several."""
    rows, columns = query.shape[-2], key.shape[-2]
    if columns < 2:
        return None
    picked = slice(None, None, max(1, rows // ATTENTION_ROWS))
    scores = (scale or query.shape[-1] ** -0.5) * query.detach()[..., picked, :].double() @ key.detach().double().mT
    if mask is not None:
        mask = mask.detach().expand(*mask.shape[:-2], rows, columns)[..., picked, :]
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    several = (scores > scores.amax(-1, keepdim=True).clamp(min=-1e30) - HIDDEN_BELOW).sum(-1) > 1
    certain = scores.softmax(-1).amax(-1) > 1.0 - FLAT
    return (certain & several).double().sum() / several.sum().clamp(min=1)


@torch.no_grad()
def _saturated_gates(call: FunctionCall, made: Tensor) -> Tensor | None:
    """Return the share of a recurrent layer's gates that are wide open or shut, for the kind of gate with most of them.

    Of several layers the first is looked at.
    The state that a step reads is the output of the step before; where there are several layers, it is left out.
    """
    if call.name == "rnn_tanh":
        return (made.abs() > 1.0 - 2 * FLAT).double().mean()
    given, _, weights, biased, layers, _, _, both, batch_first = call.args[:9]
    if not isinstance(given, Tensor) or not isinstance(biased, bool):
        return None  # packed sequences
    shift = weights[2] + weights[3] if biased else None
    gates = torch.nn.functional.linear(given.detach(), weights[0], shift)
    if layers == 1 and not both and weights[1].shape[1] == made.shape[-1]:
        time = 1 if batch_first else 0
        before = made.roll(1, time)
        before.select(time, 0).zero_()
        gates = gates + before @ weights[1].mT
    edge = math.log((1.0 - FLAT) / FLAT)
    kept = [part for k, part in enumerate(gates.chunk(4 if call.name == "lstm" else 3, -1)) if k != 2]
    return torch.stack([(part.abs() > edge).double().mean() for part in kept]).amax()
