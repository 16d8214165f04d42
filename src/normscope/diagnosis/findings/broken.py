"""Findings about values that are no numbers any more."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ...core.finding import Finding, Severity
from ..examined import Examined
from .words import counted, figures


def non_finite_weights(examined: Examined) -> Iterator[Finding]:
    """Parameters or buffers that hold NaN or infinite values."""
    broken = dict(_broken(examined.model))
    if not broken:
        return
    first, tensor = next(iter(broken.items()))
    bad = int((~torch.isfinite(tensor)).sum())
    nans = int(torch.isnan(tensor).sum())
    others = (
        f" {counted(len(broken) - 1, 'other tensor')} of the model hold such values too." if len(broken) > 1 else ""
    )
    yield Finding(
        code="non-finite-weights",
        severity=Severity.ERROR,
        where=first,
        seen=f"Of the {tensor.numel():,} values of {first} {nans:,} are NaN and {bad - nans:,} infinite.{others}",
        why="One such value makes everything computed from it NaN, so the model's output carries nothing.",
        advice="Load the last checkpoint with finite weights and look for the step that broke them: clip gradients "
        "(torch.nn.utils.clip_grad_norm_), lower the learning rate, skip steps whose loss is not finite.",
        numbers=figures(values=bad, nan=nans, size=tensor.numel(), count=len(broken)),
    )


def _broken(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        if _readable(parameter) and not bool(torch.isfinite(parameter).all()):
            yield name, parameter.detach()
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if not _readable(buffer):
                continue
            # an attention mask is a buffer with infinite values on purpose; statistics never are
            bad = ~torch.isfinite(buffer) if isinstance(module, _NormBase) else torch.isnan(buffer)
            if bool(bad.any()):
                yield f"{path}.{name}" if path else name, buffer.detach()


def _readable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not tensor.is_meta


def non_finite_activations(examined: Examined) -> Iterator[Finding]:
    """The first module whose output holds NaN or infinite values."""
    if examined.data.not_finite is None:
        return
    where, what = examined.data.not_finite
    own = f"{where}." if where else ""
    if any(name.removeprefix(own).count(".") == 0 and name.startswith(own) for name, _ in _broken(examined.model)):
        return
    yield Finding(
        code="non-finite-activations",
        severity=Severity.ERROR,
        where=where,
        seen=f"{where or 'The model'} is the first module with {what}.",
        why="A value overflowed or was divided by zero here, and everything computed from it is lost.",
        advice="Look at this module's input: NaN in the data, values beyond the range of its dtype (65,504 in "
        "float16), the logarithm, root or quotient of a zero, a row that is masked out wholly. Normalize before it, or "
        "run it in float32.",
        numbers={},
    )
