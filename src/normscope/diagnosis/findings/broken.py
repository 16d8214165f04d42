"""Findings about values that are NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...core.finding import Finding, Severity
from ...core.untouched import plain_parts
from ...graph.call import broken_tensors
from ...report.words import pluralise
from ..examined import Examined
from .finding_words import figures

RESTORE = (
    "Load the last checkpoint with finite weights and look for the step that broke them: clip gradients "
    "(torch.nn.utils.clip_grad_norm_), lower the learning rate, skip steps whose loss is not finite."
)


def non_finite_weights(examined: Examined) -> Iterator[Finding]:
    """Parameters or buffers that hold NaN, infinite values or negative variances."""
    broken = broken_tensors(examined.model)
    if not broken:
        return
    first, what = next(iter(broken.items()))
    tensor = examined.model.state_dict(keep_vars=True).get(first)
    size, parts = (0, []) if tensor is None else (tensor.numel(), plain_parts(tensor.detach()))
    parts = [part.float() if part.itemsize == 1 else part for part in parts]
    bad = sum(int((~torch.isfinite(part)).sum()) for part in parts)
    nans = sum(int(torch.isnan(part).sum()) for part in parts)
    shown = f" Of its {size:,} values {nans:,} are NaN and {bad - nans:,} infinite." if bad else ""
    others = f" {pluralise(len(broken) - 1, 'other tensor')} of the model are broken too." if len(broken) > 1 else ""
    yield Finding(
        code="non-finite-weights",
        severity=Severity.ERROR,
        where=first,
        seen=f"`{first}` {what}.{shown}{others}",
        why="One such value makes everything computed from it NaN, so the model's output carries nothing.",
        advice=RESTORE,
        numbers=figures(values=bad, nan=nans, size=size, count=len(broken)),
    )


def non_finite_activations(examined: Examined) -> Iterator[Finding]:
    """The first module whose output holds NaN or infinite values."""
    if examined.data.not_finite is None:
        return
    where, what = examined.data.not_finite
    where = where.partition(".parametrizations")[0]  # what computes a weight belongs to the layer
    own = f"{where}." if where else ""
    if any(name.removeprefix(own).count(".") == 0 and name.startswith(own) for name in broken_tensors(examined.model)):
        return
    spoiled = next((row.path for row in examined.signal.inputs if not row.finite), None) if examined.signal else None
    if spoiled is not None:
        yield Finding(
            code="non-finite-activations",
            severity=Severity.ERROR,
            where=spoiled,
            seen=f"The {spoiled} itself holds NaN or infinite values; {f'`{where}`' if where else 'the model'} is the "
            "first module that returns some.",
            why="What is computed from such a sample is lost: the loss, its gradient and, after a step, all weights.",
            advice="Look at the data: find these samples with torch.isfinite, and drop or fill them; look for missing "
            "values in a table, a division by a deviation of zero, or a logarithm of zero.",
            numbers={},
        )
        return
    yield Finding(
        code="non-finite-activations",
        severity=Severity.ERROR,
        where=where,
        seen=f"{f'`{where}`' if where else 'The model'} is the first module with {what}.",
        why="A value overflowed or was divided by zero here, and everything computed from it is lost.",
        advice="Check the data for NaN first (torch.isfinite). Then look inside this module: clamp, or add a small eps "
        "of 1e-8, before a logarithm, a root or a division; check the mask for rows that hide every position; run it "
        "in float32 if its values leave the range of float16 (65,504).",
        numbers={},
    )
