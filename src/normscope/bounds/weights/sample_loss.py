"""The loss of one measured sample: its value, its constant, and how far rounding can move it.

A loss that is given as a function is traced with the targets of the sample, and its constant is the bound of that graph
over all outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import CaptureError, InputError, MissingRuleError, describe_error
from ...core.log10 import norm as l2
from ...core.log10 import power10
from ...core.rounding import Upper, gamma
from ...theory.losses import LOSSES, Loss
from ..evaluation import Values
from ..segments import propagate
from ..traced_network import BoundSettings, TracedNetwork

LossFunction = Callable[..., Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLoss:
    """A loss of one flat output, its targets fixed.

    Attributes:
        value: the loss in float64, which can be differentiated.
        constant: its Lipschitz constant in the output, rounded up.
        certain: the traced loss with its rounding errors; None for a `Loss`, whose formula is known.
    """

    value: Callable[[Tensor], Tensor]
    constant: float
    certain: Values | None = None

    def noise(self, output: Tensor, error: float) -> tuple[float, float]:
        """Return the loss of an output, and how far that can be from the loss of the exact output.

        An error of the output moves the loss by its constant at most; for a `Loss` without one (squares) twice the
        gradient at the output, and the error itself, are taken.
        """
        with torch.enable_grad():
            leaf = output.detach().requires_grad_(True)
            value = self.value(leaf)
            (gradient,) = torch.autograd.grad(value, leaf)
        computed = float(value.detach())
        if self.certain is None:
            squared = 2 * float(l2(gradient)) + 2 * error
            slope = self.constant if self.constant < float("inf") else squared
            own = gamma(2.0 * output.numel() + 64.0) * (abs(computed) + 2 * float(output.abs().amax()))
        else:
            slope, own = self.constant, 2 * float(self.certain.at(output.detach()[None]).distance)
        return computed, (slope * error if error > 0 else 0.0) + own


def constant_of(upper: Upper) -> float:
    """Return a constant as a number that is rounded up."""
    return power10(upper.log10) * (1 + 1e-12)


def name_of(loss: Loss | LossFunction) -> str:
    """Return what messages call a loss."""
    return loss.name if isinstance(loss, Loss) else str(getattr(loss, "__name__", type(loss).__name__))


class _LossOfOutputs(nn.Module):
    """A loss as a function of outputs alone, its targets fixed."""

    def __init__(self, function: LossFunction, targets: Any) -> None:
        super().__init__()
        self.function, self.targets = function, targets

    def forward(self, outputs: Tensor) -> Tensor:
        """Return the loss as a vector of one entry."""
        return (self.function(outputs) if self.targets is None else self.function(outputs, self.targets)).reshape(1)


def trace_loss(
    function: LossFunction, output: Tensor, targets: Any, dtype: torch.dtype, bounding: BoundSettings
) -> tuple[SampleLoss, Upper]:
    """Return a loss that is given as a function, at some targets, and its constant over all outputs of this shape.

    Raises:
        InputError: the function fails on the outputs and targets, or cannot be traced to operators with a rule.
    """
    name, batch = name_of(function), output.detach().to(dtype)
    passed = "the outputs alone (there are no labels)" if targets is None else "outputs and targets"
    module = _LossOfOutputs(function, targets)
    try:
        module(batch)
    except Exception as error:
        raise InputError(
            f"the loss {name} raises {describe_error(error)}: it is called with {passed}, those of one sample where "
            "samples are independent, and must return a tensor with one entry"
        ) from error
    try:
        captured = TracedNetwork.of(module, batch, bounding, mode="train")  # in this mode the batch is one input
    except (CaptureError, MissingRuleError) as error:
        raise InputError(
            f"no Lipschitz constant of the loss {name} can be had, as it cannot be read: {error}. Write it with "
            f"operators of torch that have a rule (normscope bound ops), or pass a name: {', '.join(LOSSES)}"
        ) from error
    with torch.no_grad():
        bound = propagate(captured.segments, captured.norm, fold=True)[captured.double.output]
    upper = replace(bound, evidence=captured.evidence(bound))
    shape = captured.double.inputs[0].shape
    loss = SampleLoss(
        value=lambda flat: captured.double.run(flat.reshape(shape)).reshape(()),
        constant=constant_of(upper),
        certain=captured.certain,
    )
    return loss, upper
