"""Findings about eps against the variances it is added to."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn

from ...core.finding import Finding, Severity
from ...core.log10 import log10
from ..examined import Examined, ExaminedRow
from .finding_words import figure, figures, percent, power

MUCH = 0.2
"""A fifth of the sets ruled by eps changes what the layer computes; less is a few quiet channels or tokens."""
LARGE_EPS = 1e-3
"""Every common default is at most this (Keras and EfficientNet use 1e-3, PyTorch 1e-5)."""
HALF_STEP = 2.0**-24
"""The smallest positive float16, about 6e-8."""


def eps_scale(examined: Examined) -> Iterator[Finding]:
    """An eps that is zero, vanishes in half precision, or is larger than the variances it protects."""
    for place, seen in examined.normalizers():
        where, median = place.path, seen.log10_median
        if seen.eps == 0.0:
            yield _finding(
                where,
                Severity.WARNING,
                f"`{where}` has eps = 0.",
                "A set of equal values has variance 0 and is divided by 0, and just before that the gain has no limit.",
                "Set eps to 1e-5.",
                figures(eps=0.0, log10_median=median),
            )
        elif seen.eps > LARGE_EPS and median < log10(seen.eps):
            yield _finding(
                where,
                Severity.WARNING,
                f"eps = {figure(seen.eps)} in `{where}` exceeds the typical variance of its input, {power(median)}.",
                "The layer then divides by sqrt(eps), a constant: it scales its input and normalizes nothing.",
                f"Set eps to 1e-5, or at most to a hundredth of the variance ({power(median - 2)}).",
                figures(eps=seen.eps, log10_median=median),
            )
        elif seen.eps < HALF_STEP and _half(examined.model, place):
            yield _finding(
                where,
                Severity.INFO,
                f"`{where}` holds float16 weights, and its eps = {figure(seen.eps)} is below the smallest float16, "
                f"{figure(HALF_STEP)}.",
                "PyTorch's own kernels add eps in float32, where it counts; code or an exported model that computes in "
                "float16 adds zero.",
                "Set eps to 1e-5 before exporting to a runtime that works in float16.",
                figures(eps=seen.eps, log10_median=median),
            )


def _finding(
    where: str, severity: Severity, seen: str, why: str, advice: str, numbers: dict[str, float | int | None]
) -> Finding:
    return Finding(code="eps-scale", severity=severity, where=where, seen=seen, why=why, advice=advice, numbers=numbers)


def _half(model: nn.Module, place: ExaminedRow) -> bool:
    """Whether the module of a place holds float16 parameters."""
    try:
        module = model.get_submodule(place.path)
    except AttributeError:
        return False
    return any(parameter.dtype == torch.float16 for parameter in module.parameters(recurse=False))


def eps_dominated(examined: Examined) -> Iterator[Finding]:
    """Normalizers that see variances which eps outweighs."""
    for place, seen in examined.normalizers():
        share = seen.share_eps
        if not share > 0.0 or seen.eps == 0.0:
            continue
        where, much = place.path, share >= MUCH
        median = seen.log10_median
        yield Finding(
            code="eps-dominated",
            severity=Severity.WARNING if much else Severity.INFO,
            where=where,
            seen=f"{percent(share)} of the {'stored variances' if seen.uses_running else 'sets'} of `{where}` "
            f"{'are' if seen.uses_running else 'have a variance'} below 10 eps = {figure(10.0 * seen.eps)} (median "
            f"{power(median)}).",
            why="There eps decides the result: the output is smaller than normalized, and rescaling the weights before "
            "the layer changes the function.",
            advice="Raise the scale of what comes before (its weights, or a skip that carries them), exclude those "
            f"weights from weight decay, or lower eps below {power(median - 2)}."
            if math.isfinite(median) and much
            else "Look at the quiet sets: constant channels, padded positions or empty patches end up here.",
            numbers=figures(share=share, eps=seen.eps, log10_median=median),
        )
