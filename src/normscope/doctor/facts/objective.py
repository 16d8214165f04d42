"""What is differentiated: the user's loss of what a model returns, or its outputs along random signs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...calls.batches import LossFunction
from ...calls.call import ALL_OUTPUTS, select, usual_output
from ...core.codec import JsonForm, Part
from ...core.errors import InputError, describe_error
from ...listening.calls import as_floats
from .autograd_graph import output_limits
from .layers import Layers
from .loss import (
    BrokenContract,
    LabelsOutside,
    LossFacts,
    LossListener,
    measure_last_call,
    measure_other_calls,
    read_loss,
)
from .loss_at_output import LossAtOutput, OutputFacts

LOSS = "the loss"
RANDOM = "a random direction of the output"
"""What is differentiated where there is no loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveFacts(Part):
    """What was differentiated, and how losses fit what they were given.

    Attributes:
        gradient_of: what was differentiated: `the loss`, or `a random direction of the output`.
        loss_value: the loss, where one was given.
        outputs: how many outputs were differentiated together.
        taken: the name of the output that is differentiated, where the model returns others beside it.
        other_losses: what other losses were given that compare outputs with labels, as those of several tasks.
        labels_outside: labels that are none of the classes, so that the loss cannot be taken.
        broken_contract: a loss of torch that was given what it does not take.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=(...,))

    gradient_of: str
    loss_value: float | None = None
    outputs: int = 1
    taken: str = ""
    other_losses: tuple[LossFacts, ...] = ()
    labels_outside: LabelsOutside | None = None
    broken_contract: BrokenContract | None = None


class Objective:
    """What is differentiated of one forward: the loss, where one is given, or a random direction of the output.

    Attributes:
        loss: the user's; None also where it refuses the labels, or the model's own counts.
        has_own_loss: whether the model returns a loss that it has computed itself, where the user gives none.
        value: the loss.
        returned: the floats that the model returned.
        gradients: those at the outputs that have a row for each sample.
        facts_of_loss: what the loss was given, where it is known.
    """

    def __init__(self, loss: LossFunction | None, output: str | int | None, labels: Sequence[Any]) -> None:
        self.loss, self.output, self.labels = loss, output, labels
        self.has_own_loss = False
        self.value: Tensor | None = None
        self.returned, self.gradients = list[Tensor](), list[Tensor]()
        self.facts_of_loss: LossFacts | None = None
        self._limits: tuple[float, float] | None = None
        self._facts: dict[str, Any] = {}

    def choose(self, made: Any) -> list[Tensor]:
        """Return the outputs that are differentiated, or that the loss is taken of."""
        outputs = differentiated_outputs(made, self.output)
        self.has_own_loss = self.loss is None and getattr(own_loss(made), "requires_grad", False)
        self._facts["outputs"] = len(outputs)
        self._facts["taken"] = usual_output(made) if self.output is None else ""
        self._limits = output_limits(outputs[0]) if len(outputs) == 1 else None
        self.returned = [tensor.detach() for tensor in as_floats(made)]
        return outputs

    def take(self, made: Any, outputs: list[Tensor], losses: LossListener) -> list[Tensor]:
        """Return what is differentiated: the loss, or these outputs where there is none."""
        losses.in_loss, named = True, own_loss if self.has_own_loss else self.loss
        if named is None:
            return outputs
        try:
            value = take_loss(named, made, self.output, self.labels)
        except InputError:
            if losses.outside is None:
                raise
            self._facts["labels_outside"], self.loss = losses.outside, None
            return outputs
        self.value = value.detach()
        return [value]

    def read(self, values: Sequence[Tensor], losses: LossListener, layers: Layers, leaves: Sequence[Any]) -> None:
        """Look at what losses were given, in front of the backward of what is differentiated."""
        labels = None if self.loss is None else self.labels
        self._facts["broken_contract"] = losses.broken_contract(layers.maker)
        reading = read_loss(None if self.value is None else values[0], losses.calls) if losses.calls else None
        if reading is not None:
            self.facts_of_loss = measure_last_call(reading, labels, leaves, layers.maker)
            if labels is not None:
                self._facts["other_losses"] = measure_other_calls(reading, labels, layers.maker)

    def facts(self, *, has_loss: bool) -> ObjectiveFacts:
        """Return what was noted."""
        refused = "labels_outside" in self._facts
        return ObjectiveFacts(
            gradient_of=LOSS if has_loss and not refused else RANDOM,
            loss_value=None if self.value is None else float(self.value),
            **self._facts,
        )

    def at_output(self, loss: LossFunction | None) -> OutputFacts:
        """Return how a loss reads the model's output, where there is one output for all samples."""
        if loss is None or len(self.gradients) != 1 or len(self.returned) != 1:
            return OutputFacts()
        (gradient,), (output,) = self.gradients, self.returned
        if gradient.shape != output.shape:
            return OutputFacts()
        return LossAtOutput(loss=loss, labels=self.labels, output=output, gradient=gradient).facts(self._limits)


def own_loss(made: Any) -> Any:
    """Return the loss that a model has computed itself and returns as `loss`, if it is one."""
    value = made.get("loss") if isinstance(made, Mapping) else getattr(made, "loss", None)
    return value if isinstance(value, Tensor) and value.numel() == 1 else None


def differentiated_outputs(made: Any, output: str | int | None) -> list[Tensor]:
    """Return the output that is differentiated; where none is the usual one, all floats that the model returns."""
    if output == ALL_OUTPUTS:
        return as_floats(made)
    try:
        return [select(made, output)]
    except InputError:
        if output is not None:
            raise
        return as_floats(made)


def take_loss(loss: LossFunction, made: Any, output: str | int | None, labels: Sequence[Any]) -> Tensor:
    """Return the loss of the user's function: of the one output, or else of all that the model returns (`o.loss`).

    An output that the user named comes first, and to losses of torch, which take tensors, the one there is. A function
    of the user's that takes what the model returns may take a tensor as well, and read it otherwise: `o[0]` of a tensor
    is its first sample.
    """
    outputs = differentiated_outputs(made, output)
    single = outputs[0] if len(outputs) == 1 else made
    module = loss.__module__ if hasattr(loss, "__qualname__") else type(loss).__module__
    by_tensor = output is not None or str(module).startswith("torch.")
    forms = (single, made) if by_tensor else (made, single)
    value: Any
    try:
        value = loss(forms[0], *labels)
    except Exception as error:
        try:
            value = None if forms[0] is forms[1] else loss(forms[1], *labels)
        except Exception:
            value = None
        if value is None:
            raise InputError(
                f"the loss raises {describe_error(error)}: it is called with the model's output, and with the labels "
                "where the batch is a pair of inputs and labels, or a dict that holds labels"
            ) from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        kind = f"{value.numel()} values" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(
            f"the loss must return a tensor with one value, and it returned {kind}. With loss= a model is not given "
            'its labels, so that it computes no loss of its own: name that loss, as in loss="cross_entropy"'
        )
    return value


def random_signs(value: Tensor) -> Tensor:
    """Return random signs, the same for the same shape."""
    generator = torch.Generator(value.device).manual_seed(0)
    drawn = torch.empty(value.shape, device=value.device).bernoulli_(0.5, generator=generator)
    return (2.0 * drawn - 1.0).to(value.dtype)
