"""What several symptoms of a check read of its facts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...calls.call import broken_tensors
from ...core.finding import Finding, Severity, figure
from ...listening.calls import WEIGHTS as WEIGHT_FUNCTIONS
from ..facts.examined import Examined
from ..facts.loss import LossFacts
from ..facts.parameters import ParameterRow
from ..facts.samples import SampleFacts
from ..facts.steps import StepFacts
from .symptom import NO_NUMBERS, finding


def parameters_of(examined: Examined) -> Sequence[ParameterRow]:
    """Return the parameters of a model; none where no forward was seen."""
    return () if examined.signal is None else examined.signal.parameters


def is_matrix(row: ParameterRow) -> bool:
    """Return whether a parameter is a matrix of more than one row and column."""
    return len(row.shape) > 1 and least_side(row) > 1


def least_side(row: ParameterRow) -> int:
    """Return the smaller of the two sides of a weight as a matrix."""
    return min(row.shape[0], math.prod(row.shape[1:]))


LOSS = "the loss"
"""The place of what no module is to blame for."""


def loss_facts_of(examined: Examined) -> LossFacts | None:
    """Return what is known of the loss."""
    return None if examined.signal is None else examined.signal.loss


def find_last_linear(examined: Examined) -> str:
    """Return the module of the last linear layer; empty if there is none."""
    layers = () if examined.signal is None else examined.signal.layers
    return next((row.path for row in reversed(layers) if row.kind == "linear"), "")


def every_loss(examined: Examined) -> tuple[LossFacts, ...]:
    """Return what each loss was given that compares outputs with targets."""
    signal = examined.signal
    return () if signal is None or signal.loss is None else (signal.loss, *signal.objective.other_losses)


def write_shape(shape: tuple[int, ...]) -> str:
    """Write a shape as Python does."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def describe_mismatch(
    facts: LossFacts,
    seen: str,
    why: str,
    advice: str,
    *,
    code: str = "activation-before-loss",
    where: str = "",
    severity: Severity = Severity.WARNING,
    numbers: Mapping[str, float | int | None] = NO_NUMBERS,
) -> Finding:
    """What does not fit the loss: the place is the module that made the outputs, if there is one."""
    where = where or facts.made_by or LOSS
    return finding(code, where, seen, why, advice, numbers, severity=severity)


def step_facts_of(examined: Examined) -> StepFacts | None:
    """Return what is known of the next step of the optimizer."""
    return None if examined.signal is None else examined.signal.steps


def sample_facts_of(examined: Examined) -> SampleFacts | None:
    """Return what is known of how samples and arguments show in the output."""
    return None if examined.signal is None else examined.signal.dependence


LARGEST_SQUARE = 1.8e19
"""The square of what is beyond it overflows in float32."""


def find_overflow(examined: Examined) -> float | None:
    """Return the size of outputs that are finite and so large that they make the loss no number, if they do."""
    signal = examined.signal
    if signal is None or not signal.layers:
        return None
    facts, losses, size = signal.loss, [signal.objective.loss_value], signal.layers[-1].largest or 0.0
    if facts is not None:
        losses, size = [*losses, facts.value], max(-facts.output_least, facts.output_greatest)
    broken = any(value is not None and not value < math.inf for value in losses)  # not below all numbers
    return size if broken and LARGEST_SQUARE < size < math.inf else None


def describe_overflow(examined: Examined) -> str:
    """Say what has grown beyond all numbers, as an input that is far too large makes it; empty where nothing has."""
    origin, size = examined.data.not_finite, find_overflow(examined)
    if broken_tensors(examined.model):
        return " Weights or buffers of the model are broken already."
    if origin is not None and origin.function in WEIGHT_FUNCTIONS:
        return f" Values overflow in `{origin.where}`."
    return "" if size is None else f" The outputs are as large as {figure(size)}, and the loss is not finite."
