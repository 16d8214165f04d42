"""Small statistics of values, gradients and parameters: taken where they are, and fetched together."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..core.log10 import log10
from ..listening.calls import Site
from .examined import UnitsOverData
from .signal import BFLOAT16_NORMAL, FLOAT16_NORMAL, ParameterRow, SignalRow

POWER_STEPS = 4
"""Enough to tell a matrix of rank one: one step finds its direction."""


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
        "saturated": None if math.isnan(saturated) else saturated,
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


@torch.no_grad()
def statistics_of(values: Tensor, saturated: Tensor | None, samples: int) -> Tensor:
    """Return mean, variance, range, shares below half precisions, what is saturated, the variance over the samples.

    The last two are NaN where there is none.
    """
    wide = values.double()
    variance, mean = torch.var_mean(wide, correction=0)
    least, greatest = torch.aminmax(wide)
    sizes = wide.abs()
    below = [((sizes < limit) & (sizes > 0)).double().mean() for limit in (FLOAT16_NORMAL, BFLOAT16_NORMAL)]
    unknown = torch.full_like(mean, math.nan)
    flat = unknown if saturated is None else saturated.double()
    comparable = samples > 1 and values.ndim > 0 and values.shape[0] == samples
    between = wide.var(0, correction=0).mean() if comparable else unknown
    return torch.stack([mean, variance, least, greatest, *below, flat, between])


@torch.no_grad()
def _parameter_statistics(parameter: Tensor) -> Tensor:
    """Return root mean square, range, deviation between the rows, and the share of the leading singular pair."""
    wide = torch.view_as_real(parameter.detach()) if parameter.is_complex() else parameter.detach()
    wide = wide.double()
    least, greatest = torch.aminmax(wide)
    square = wide.square().mean()
    rows = wide.flatten(1) if wide.ndim > 1 else wide[None]
    if min(rows.shape) < 2:
        return torch.stack([square.sqrt(), least, greatest, *[torch.full_like(square, math.nan)] * 2])
    between = rows.var(0, correction=0).mean().sqrt()
    vector = torch.ones(rows.shape[1], dtype=wide.dtype, device=wide.device) + rows.abs().sum(0)
    for _ in range(POWER_STEPS):
        vector = rows.mT @ (rows @ vector)
        vector = vector / torch.linalg.vector_norm(vector).clamp(min=1e-300)
    share = (rows @ vector).square().sum() / rows.square().sum().clamp(min=1e-300)
    return torch.stack([square.sqrt(), least, greatest, between, share])


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
