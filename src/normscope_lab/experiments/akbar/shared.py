"""Parts that Akbar's experiments share: their source, a task, a loss, curves and spectra."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope import Spectrum, hessian

from ..base import Claim
from ..judging import Judge

KINDS = {"batch": "with BatchNorm", "none": "without"}
"""The networks that are compared."""
POINTS = 60
"""The approximate number of points of a curve."""


def regression(x: Tensor) -> Tensor:
    """Return a smooth function of the first three of a sample's numbers, `[..., 1]`."""
    return (2.0 * x[..., :1]).sin() + x[..., 1:2] * x[..., 2:3] / 2.0


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the logistic loss of logits `[samples, 1]` for labels of 1 and -1."""
    return F.softplus(-targets * outputs[:, 0]).mean()


def first(below: Tensor, never: int) -> Tensor:
    """Return the first step at which a condition `[steps, ...]` is true, or `never` where it never is."""
    return torch.where(below.any(0), below.double().argmax(0), never).double()


def every(steps: int) -> int:
    """Return how many steps lie between two points of a curve."""
    return max(1, steps // POINTS)


def log10_points(values: Sequence[float], apart: int, least: float = 1e-300) -> tuple[tuple[float, float], ...]:
    """Return the points of a curve of log10, for values that are `apart` steps apart."""
    return tuple((float(step * apart), math.log10(max(value, least))) for step, value in enumerate(values))


def spectrum(network: nn.Module, batch: tuple[Tensor, Tensor]) -> Spectrum:
    """Return the whole Hessian of the squared error in train mode."""
    return hessian(network, batch, loss=F.mse_loss, k=1, mode="train", whole=True, rtol=1e-2)


def zeros(spectrum: Spectrum) -> float:
    """Return how many eigenvalues are zero or lie along symmetries."""
    return float(spectrum.directions + (spectrum.zero_modes or 0))


def remark(id: str, where: str, text: str, quotation: str, judge: Judge, corrected: str = "") -> Claim:
    """Return a claim of a section."""
    where = f"Section {where}"
    return Claim(id=f"akbar.{id}", where=where, text=text, quotation=quotation, judge=judge, corrected=corrected)
