"""The finding about gradients that are not those of the forward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...core.finding import Finding, Severity
from ..examined import Examined
from .finding_words import figure, figures


def gradient_mismatch(examined: Examined) -> Iterator[Finding]:
    """Modules whose backward is not the derivative of their forward."""
    for found in examined.mismatches:
        name = f"`{found.path}`" if found.path else "the model"
        if math.isinf(found.share):
            what = "autograd gives a gradient along a direction in which the output does not change"
        elif found.share == 0.0:
            what = "no gradient comes back along a direction in which the output changes"
        else:
            what = f"along one direction autograd gives {figure(found.share)} times the change of the output"
        yield Finding(
            code="gradient-mismatch",
            severity=Severity.WARNING,
            where=found.path,
            seen=f"The backward of {name} is not the derivative of its forward: {what}.",
            why="Training follows this gradient and not that of the loss, and whatever differentiates the model "
            "(attacks, saliency maps, gradient penalties) sees another function. The Jacobians of this audit are those "
            "of the forward.",
            advice="Straight-through estimators, gradient reversal and stopped gradients do this on purpose: then "
            "there is nothing to do. Otherwise check the custom autograd.Function with torch.autograd.gradcheck, and "
            "look for tensor hooks, detach() and no_grad() on the path.",
            numbers=figures(factor=None if math.isinf(found.share) else found.share),
        )
