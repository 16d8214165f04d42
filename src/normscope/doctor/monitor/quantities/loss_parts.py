"""What outputs and targets of a loss show, and the activations on the way to it, read off what autograd keeps of it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ...facts.loss import read_loss
from ...facts.loss_call import LossReading
from ..transfer import Arriving
from .quantity import MeasuredStep, Probe, Quantity, RecordDraft, read_number

OF_OUTPUTS = (
    Quantity("network", "outputs_own", "the loss of the batch, without factors"),
    Quantity("network", "outputs_constant", "that of the best constant output, estimated without bias"),
    Quantity("network", "outputs_label_low", "the least label"),
    Quantity("network", "outputs_label_high", "the largest label"),
    Quantity("network", "outputs_classes", "how many labels there are in the batch"),
    Quantity("network", "outputs_label_mean", "the mean of the labels"),
    Quantity("network", "outputs_label_error", "the standard error of that mean"),
    Quantity("network", "outputs_samples", "how many labels there are"),
    Quantity(
        "network",
        "outputs_differ",
        "the deviation of the outputs over the samples, over their root mean square (the targets' deviation)",
    ),
    Quantity("network", "outputs_kinds", "how many classes there may be"),
)
"""In the order of `loss_call.FIGURES`."""
OF_ACTIVATIONS = (
    Quantity("weight", "off", "share of the units behind a layer's ReLU that no sample switches on"),
    Quantity("weight", "saturated_tanh", "share of the entries in the flat parts of the tanh behind a layer"),
    Quantity("weight", "saturated_sigmoid", "share of the entries in the flat parts of its sigmoid"),
    Quantity("weight", "one_place", "share of the rows of its attention that look at one entry"),
)
EARLY_RECORDS, ACTIVATION_TURNS = 6, 5
"""Behind the first records, the activations on the way to a loss are looked at in one of so many records."""


@dataclass(slots=True)
class LossMemory:
    """How many losses were read, and whether the loop observes losses."""

    readings: int = 0
    is_observed: bool = False


class LossParts(Probe):
    """Reads what the first loss of a step was made of.

    Attributes:
        reading: that, where it is seen.
    """

    quantities = (*OF_OUTPUTS, *OF_ACTIVATIONS)
    Memory = LossMemory

    def __init__(self, step: MeasuredStep, memory: LossMemory) -> None:
        super().__init__(step, memory)
        self.reading: LossReading | None = None
        self._layer_names: Mapping[int, str] = {}  # weight layers by the ids of their parameters
        self._figures: Arriving | None = None
        self._activations: dict[tuple[str, str], Arriving] = {}

    def read(self, loss: Tensor | float) -> None:
        """Look at what a loss is made of, once in a step."""
        if self.reading is None:
            due = self.memory.readings < EARLY_RECORDS or self.memory.readings % ACTIVATION_TURNS == 0
            with contextlib.suppress(Exception):  # its backward is over, or others pack what it keeps
                self.reading = read_loss(loss, activations=due)
                self.memory.readings += self.reading is not None

    def before_step(self) -> None:
        layers, parameters = self.step.subject.of("weight"), self.step.parameters
        named = ((layer.name, parameters.get(name)) for layer in layers for name in layer.parameters)
        self._layer_names = {id(parameter): name for name, parameter in named if parameter is not None}

    def finish(self) -> None:
        if self.reading is None:
            return
        self._figures = self.step.send_any(self.reading.figures)
        for what, figure, near in self.reading.activations:
            name = next((self._layer_names[one] for one in near if one in self._layer_names), None)
            if name is not None:
                self._activations[what, name] = self.step.send(figure)

    def fill(self, record: RecordDraft) -> None:
        layers = self.step.subject.of("weight") if self._activations else []
        for quantity in OF_ACTIVATIONS:
            record.column(
                quantity, [read_number(self._activations.get((quantity.name, layer.name))) for layer in layers]
            )
        for quantity, number in zip(OF_OUTPUTS, [] if self._figures is None else self._figures.numbers.tolist()):
            if not math.isnan(number):
                record.network(quantity, number)
