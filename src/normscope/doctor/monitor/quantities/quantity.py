"""What a watched quantity is: its declaration, and the probe that measures it in a step and writes it into the record.

A file of this folder holds one quantity or close relatives: each is declared as a `Quantity`, and a `Probe` says what
is measured of them at which moment of a step, all of it small tensors that stay on the device, and what the record has
of the numbers once they have arrived on the host. `quantities/__init__.py` lists the probes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar
from weakref import proxy

import numpy as np
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ....core.whole_weights import is_sharded
from ..forward_record import ForwardRecord
from ..layer_record import Numbers
from ..schedule import Tier, TimeBudget
from ..transfer import Arriving, Outbox
from ..watched_layers import Subject


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: each is declared once
class Quantity:
    """One watched quantity.

    Attributes:
        of: what it is a number of: a kind of layer, `network` (a number of `Record.total`), `metrics`, `record` (a
            field of its own), or `histograms`.
        name: its name in the record; those that begin with `log10_` are exponents.
        meaning: what it is.
        optional: whether it is not known of every layer that is measured: NaN then says so, and becomes None.
        derive: makes it of a record, for the history alone: no record has it.
    """

    of: str
    name: str
    meaning: str
    optional: bool = False
    derive: Callable[[Any], Numbers] | None = None


class MeasuredStep:
    """One measured step, as all of its probes see it.

    Args:
        number: steps the optimizer has taken before.
        tier: how much is measured.
        subject: what is watched.
        optimizer: the optimizer of the run.

    Attributes:
        forward: what the forward showed; None where none was heard.
        parameters: those of the model, in front of the optimizer's step and behind it.
        budget: the time for what can wait its turn, from the optimizer's step on.
        lost: layers whose parameters have been replaced since the first forward.
        has_gradients: whether the optimizer has its gradients, and they were measured.
        awaits_backward: whether a probe looks at the gradients behind the backward that runs.
        outbox: what is sent to the host.
    """

    budget: TimeBudget

    def __init__(self, number: int, tier: Tier, subject: Subject, optimizer: Optimizer) -> None:
        self.number, self.tier, self.subject, self.optimizer = number, tier, subject, optimizer
        self.forward: ForwardRecord | None = None
        self.parameters: Mapping[str, nn.Parameter] = {}
        self.lost: list[str] = []
        self.has_gradients = self.awaits_backward = False
        self.outbox = Outbox()
        self._probes: dict[type[Probe], Probe] = {}

    def probe(self, family: type[AnyProbe]) -> AnyProbe:
        """Return another probe of this step, by its class."""
        return self._probes[family]  # type: ignore[return-value]

    def send(self, tensor: Tensor) -> Arriving:
        """Send a tensor to the host, with all others of the step."""
        return self.outbox.add(tensor)

    def send_any(self, tensor: Tensor | None) -> Arriving | None:
        """Send a tensor, if there is one."""
        return None if tensor is None else self.send(tensor)

    def send_rate(self, group: Mapping[str, Any] | None) -> float | Arriving:
        """Return the learning rate of a parameter group, NaN if it has none; one in a tensor is sent as it is now."""
        lr = None if group is None else group.get("lr")
        return self.send(lr.detach().clone()) if isinstance(lr, Tensor) else math.nan if lr is None else float(lr)

    @property
    def is_rich(self) -> bool:
        """Whether more is measured than in the economy tier."""
        return self.tier is not Tier.ECONOMY

    def sized(self) -> dict[str, nn.Parameter]:
        """Return the parameters that have a size by now."""
        return {name: parameter for name, parameter in self.parameters.items() if not is_lazy(parameter)}

    def trained(self) -> list[nn.Parameter]:
        """Return the parameters that the optimizer is to train, in one piece each; none where they are in shards."""
        trained = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        chosen = [p for p in self.sized().values() if id(p) in trained and p.requires_grad and not p.is_complex()]
        return [] if is_sharded(chosen) else chosen

    def followed(self) -> list[tuple[str, ...]]:
        """Return the names of the parameters of each weight layer; none where they are others than at first."""
        return [() if layer.name in self.lost else layer.parameters for layer in self.subject.of("weight")]


class Probe:
    """Measures close quantities in one step, and writes them into its record.

    Each method but the last is called at a moment of the step, in which nothing may wait for the device; a probe has
    those that it needs.

    Args:
        step: the step.
        memory: what the probe of the step before has left for this one; `Memory` makes it for the first.
    """

    quantities: ClassVar[tuple[Quantity, ...]] = ()
    Memory: ClassVar[Callable[[], Any]] = type(None)

    def __init__(self, step: MeasuredStep, memory: Any) -> None:
        self.step: MeasuredStep = proxy(step)  # which has its probes, and goes as soon as it is recorded
        self.memory = memory

    def take_outputs(self, made: Any) -> None:
        """Take what a forward returned."""

    def observe_loss(self, loss: Tensor | float) -> None:
        """Take the loss of a batch that the loop observes."""

    def hear_loss(self, loss: Tensor, alone: bool) -> None:
        """Take a loss whose backward begins; `alone` is whether no other optimizer steps."""

    def begin_backward(self, forwards: int) -> None:
        """Look at the gradients in front of a backward, behind so many forwards."""

    def end_backward(self) -> None:
        """Look at the gradients behind a backward."""

    def before_step(self) -> None:
        """Measure in front of the optimizer's step; once more where that step raised and is taken again."""

    def after_step(self) -> None:
        """Measure what the optimizer's step did, and keep no parameter any longer."""

    def take_next_batch(self, args: Any, kwargs: Any) -> None:
        """Take what the forward of the very next step is called with."""

    def finish(self) -> None:
        """Send what is known at the end of the step alone."""

    def fill(self, record: RecordDraft) -> None:
        """Write what has arrived into the record of the step."""


AnyProbe = TypeVar("AnyProbe", bound=Probe)


@dataclass(slots=True)
class RecordDraft:
    """A record that is being written; its fields are those of a `Record`."""

    loss: float | None = None
    lr: tuple[float, ...] = ()
    values: dict[str, dict[str, Numbers]] = field(default_factory=dict)
    histograms: dict[str, tuple[tuple[float, ...] | None, ...]] = field(default_factory=dict)
    total: dict[str, float | None] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def column(self, quantity: Quantity, numbers: Sequence[float | None]) -> None:
        """Add one number per layer of a kind, unless none was measured."""
        if any(number is not None for number in numbers):
            self.values.setdefault(quantity.of, {})[quantity.name] = tuple(numbers)

    def columns(self, quantities: Sequence[Quantity], rows: Sequence[np.ndarray | None]) -> None:
        """Add several quantities, given as one row for each layer of a kind; None for one that was not measured."""
        measured = [index for index, row in enumerate(rows) if row is not None]
        if not measured:
            return
        table = np.full((len(rows), len(quantities)), math.nan)
        table[measured] = [rows[index] for index in measured]
        for quantity, column in zip(quantities, table.T.tolist(), strict=True):
            if quantity.optional:
                column = [None if math.isnan(value) else value for value in column]
            elif len(measured) < len(rows):
                column = [None if row is None else value for row, value in zip(rows, column)]
            self.column(quantity, column)

    def network(self, quantity: Quantity, number: float | None) -> None:
        """Add a number of the whole network."""
        self.total[quantity.name] = number

    def arrived(self, quantity: Quantity, sent: Arriving | None) -> None:
        """Add a number of the whole network that was sent, if it was."""
        if sent is not None:
            self.total[quantity.name] = float(sent)


def read_number(arriving: Arriving | None) -> float | None:
    """Return the number that has arrived; None where nothing was sent."""
    return None if arriving is None else float(arriving)


def log10_of(value: float | None) -> float | None:
    """Return the logarithm of a number that was measured."""
    if value is None or math.isnan(value):
        return value
    return math.log10(value) if value > 0 else -math.inf


def sum_measured(numbers: Sequence[float | None]) -> float | None:
    """Return the sum of what was measured; None if nothing was."""
    measured = [value for value in numbers if value is not None]
    return sum(measured) if measured else None


class ArraySegments:
    """Several arrays behind each other: figures of many layers are made at once.

    Args:
        parts: none of them empty.

    Attributes:
        values: all entries.
        counts: how many each part has.

    Example:
        >>> parts = ArraySegments([np.array([1.0, 3.0]), np.array([5.0])])
        >>> parts.mean(parts.values), parts.of(np.maximum, parts.values)
        (array([2., 5.]), array([3., 5.]))
    """

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.values = np.concatenate([part.reshape(-1) for part in parts])
        self.counts = np.array([part.size for part in parts])
        self._first = np.concatenate([[0], np.cumsum(self.counts)[:-1]])

    def of(self, function: np.ufunc, values: np.ndarray) -> np.ndarray:
        """Return a function such as `np.maximum` over each part of some values."""
        result: np.ndarray = function.reduceat(values, self._first)
        return result

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Return the mean of each part of some values."""
        result: np.ndarray = np.add.reduceat(values, self._first, dtype=float) / self.counts
        return result
