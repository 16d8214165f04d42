"""`Signal`: how large the values of a network are at every depth, and how much of the gradient comes back there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from ...core.codec import JsonForm, Part
from .descent_pass import StepFacts
from .divergence import Divergence
from .loss_facts import BINARY, BrokenContract, LabelsOutside, LossFacts
from .padding import PaddingRead
from .sample_pass import SampleFacts

FLOAT16_LARGEST, BFLOAT16_LARGEST = 65504.0, float.fromhex("0x1.fep127")
"""The largest numbers of the two half precisions; beyond them is infinity."""
FLOAT16_NORMAL, BFLOAT16_NORMAL = 2.0**-14, 2.0**-126
"""Their smallest normal numbers; below them digits are lost, and soon everything."""
NO_DIFFERENCE = 1e-6
"""A share of the size of the values: float32 keeps seven digits."""
RANDOM = "a random direction of the output"
"""What is differentiated where there is no loss."""
NO_GRADIENT = "the output does not depend on anything that has a gradient"
"""Why there is no backward where autograd has nothing to follow."""
INPUT = "input"
"""The kind of the row that stands for the input, which is no layer."""
GATE = "gate"
"""The kind of a sigmoid or tanh that is part of an activation which is written out, such as a GELU."""


def name_input(name: str, inputs: int) -> str:
    """Return what the row of an argument of the model is called, where it has so many inputs."""
    return INPUT if inputs == 1 else f"{INPUT} {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRow(Part):
    """An input, or what one layer hands on, over one batch. `None` means not measured.

    Attributes:
        path: the module; for an input its name. A module that runs several times has one row per run.
        kind: `input`, the family of the function (`linear`, `batch_norm`, `relu`, ...), or the class of a module whose
            output no such function made (a residual block).
        shape, dtype: the shape and type of the values.
        finite: whether all of them are; otherwise there are no figures.
        mean, deviation: over all values.
        least, greatest: their range.
        below_float16, below_bfloat16: of all values, those that are not zero and lie below the smallest normal number.
        log10_gradient: the norm of the gradient here, as a multiple of that at the output; `-inf` is no gradient.
        saturated: sigmoid and tanh: the share of values in the flat parts; softmax and attention: of rows that are
            one-hot.
        dead: ReLU: the share of channels that were positive for no sample of the data.
        sample_deviation: how much the values of one sample differ from those of another: the deviation over the
            samples, as a root mean square over all entries; 0 if the layer hands on the same for every sample.
        silent: inputs and embeddings: of the places (columns, positions or pixels) whose values differ from sample to
            sample, the share whose gradient is exactly zero for every sample, and that have no influence.
        recurrence: inputs and embeddings that are sequences: what the model reads anew at each step (a module, a
            parameter), and the factor by which the gradient changes from a step to the one before; `None` unless it is
            about the same at every step.
        leak: softmax: the share that goes to entries which `masked_fill` was to hide.
        cut: where such places have one, and the model detaches values: the module that does, and their share.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=("sample_deviation", "silent", "cut", "recurrence", "leak"))

    path: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    finite: bool = True
    mean: float | None = None
    deviation: float | None = None
    least: float | None = None
    greatest: float | None = None
    below_float16: float | None = None
    below_bfloat16: float | None = None
    log10_gradient: float | None = None
    saturated: float | None = None
    dead: float | None = None
    sample_deviation: float | None = None
    silent: float | None = None
    cut: tuple[str, float] | None = None
    recurrence: tuple[str, float] | None = None
    leak: float | None = None

    @property
    def largest(self) -> float | None:
        """The largest absolute value."""
        return None if self.least is None or self.greatest is None else max(-self.least, self.greatest)

    @property
    def root_mean_square(self) -> float | None:
        """The size of a typical value, its mean included."""
        return None if self.mean is None or self.deviation is None else math.hypot(self.mean, self.deviation)

    @property
    def varies(self) -> bool | None:
        """Whether the values differ from sample to sample; None where nobody can tell."""
        size = self.root_mean_square
        return None if self.sample_deviation is None or size is None else self.sample_deviation > NO_DIFFERENCE * size

    @property
    def log10_room_float16(self) -> float | None:
        """log10 of the factor by which the values could grow before float16 overflows; below 0 they are beyond."""
        return _room(FLOAT16_LARGEST, self.largest)

    @property
    def log10_room_bfloat16(self) -> float | None:
        """log10 of the factor by which the values could grow before bfloat16 overflows; below 0 they are beyond."""
        return _room(BFLOAT16_LARGEST, self.largest)


def _room(limit: float, largest: float | None) -> float | None:
    if largest is None:
        return None
    return math.log10(limit) - math.log10(largest) if largest > 0.0 else math.inf


MOST_SILENT = 0.5
"""A share of the places of an input that may go unread: strides and borders leave some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WidestColumn(Part):
    """The column of an input with the largest values: its number and root mean square, and that of a usual column."""

    index: int
    size: float
    usual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DropoutCall(Part):
    """A call of a function of dropout that would drop values: where, the share, and whether in eval mode too.

    One that drops from what the model returns (`on_output`) may be that of a module.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=("on_output",))

    path: str
    rate: float
    in_eval: bool
    on_output: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CutValue(Part):
    """A layer whose values go on without their graph (`.data`, a random draw), and the first layer that reads them."""

    path: str
    reader: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LostParameters(Part):
    """Parameters that nothing but one unread output is made of.

    Attributes:
        path: the module that returned it.
        names: the parameters.
        offered: whether the module returned it beside other tensors; its caller may be free to use only some of them.
    """

    path: str
    names: tuple[str, ...]
    offered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRow(Part):
    """One parameter: its size, and whether it takes part in what the model computes and learns.

    Attributes:
        name, shape: as the model has them.
        trainable: whether it asks for gradients.
        used: whether the forward read it.
        reached: whether gradients of an output can flow to it.
        root_mean_square: the size of a typical entry.
        least, greatest: the range of its entries.
        row_deviation: for matrices and kernels: how much the rows (the weights of each unit) differ from one another,
            as a root mean square; 0 if all units are the same.
        leading_share: for matrices and kernels: the share of the squared entries that one pair of singular vectors
            carries; 1 is a matrix of rank one.
        gradient: the norm of its gradient; `None` without one, infinite where it is no number.
    """

    name: str
    shape: tuple[int, ...]
    trainable: bool
    used: bool
    reached: bool
    root_mean_square: float
    least: float
    greatest: float
    row_deviation: float | None = None
    leading_share: float | None = None
    gradient: float | None = None

    @property
    def is_zero(self) -> bool:
        """Whether all of its entries are zero."""
        return self.least == self.greatest == 0.0

    @property
    def module(self) -> str:
        """The path of the module that holds it."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal(Part):
    """The values of a network by depth, from one forward and one backward on one batch.

    Attributes:
        rows: the inputs first, then every layer in the order they run.
        gradient_of: what was differentiated: `the loss`, or `a random direction of the output`.
        samples: how many samples the batch has.
        forwards, backwards: passes that this took.
        reason: why there are no gradients, if there are none.
        parameters: every parameter of the model.
        feeds: for each row, the numbers of the rows that it reads with no other row between.
        linear_feeds: of these, the ones whose values are only rearranged on the way.
        added_feeds: of these, the ones whose values are only scaled by constants, or added to others, on the way.
        loss: what the loss was given, where there is one that is known.
        other_losses: what other losses were given that compare outputs with labels, as those of several tasks.
        columns: for each input that is a table, its widest column.
        loss_value: the loss, where one was given.
        dependence: how outputs depend on samples and arguments, where that was looked at.
        outputs: how many outputs were differentiated together.
        dropouts: the calls of functions of dropout that drop values, apart from those of torch's modules.
        steps: what a step along the gradient of the loss does, where there is a loss.
        draws: whether the forward draws random numbers, dropout apart.
        unread: modules that ran and whose output nothing read.
        lost: the parameters that nothing but such an output is made of.
        discriminator: the layer that reads inputs and, beside them, values without their autograd graph, as a
            discriminator reads data and what a generator made; empty if there is none.
        idle_label: the label of which no sample gets a gradient at the output, while others do.
        unregistered: attributes of modules that hold weights which are no parameters of the model, though it uses them.
        cut_values: layers whose values go on without their graph.
        shared: the rows that several functions read, or one function and the caller of the model.
        wrong_axis: a softmax whose shares are added up over another axis than its own: where, its axis, and the other.
        labels_outside: labels that are none of the classes, so that the loss cannot be taken.
        broken_contract: a loss of torch that was given what it does not take.
        wanted: what the loss takes where outputs are none: `probabilities` or `scores`; empty where that is not known.
        rounded: where a cast to a narrower float loses much of what varies: the module, the type, and the error as a
            share of the deviation.
        bends: whether the forward has anything but weights, normalizers, poolings and rearrangements, or may have it
            where its graph is cut.
        derives: whether the outputs hold derivatives of the model itself.
        pushed_away: the share of the outputs that a step against the gradient of the loss moves away from their
            targets, where both are known.
        detached_at: where the model's outputs have no graph though it holds parameters that learn: the last module
            with such parameters that ran.
        means_alone: whether the loss stays as it is with other outputs that have the same mean over the samples.
        padding: how inputs that are filled up at their ends are read.
        raises: where a plain forward and backward raises, what it raises, and the line of code behind it, if known.
        unheard: whether some layers run inside of `torch.vmap`, where nobody can look at their values.
        beside_loss: parameters that outputs depend on which the loss does not read.
        replaced: modules that read weights in place of their own, with a gradient (`torch.func.functional_call`).
        taken: the name of the output that is differentiated, where the model returns others beside it.
        divergence: what the loss holds of the divergence of a drawn code from a standard normal one.
    """

    JSON: ClassVar[JsonForm] = JsonForm(
        left_out=("added_feeds",),
        sparse=(
            "parameters",
            "feeds",
            "linear_feeds",
            "loss",
            "other_losses",
            "columns",
            "dependence",
            "loss_value",
            "outputs",
            "dropouts",
            "steps",
            "draws",
            "unread",
            "lost",
            "discriminator",
            "idle_label",
            "unregistered",
            "cut_values",
            "labels_outside",
            "broken_contract",
            "wanted",
            "rounded",
            "shared",
            "wrong_axis",
            "bends",
            "derives",
            "pushed_away",
            "detached_at",
            "means_alone",
            "padding",
            "raises",
            "unheard",
            "beside_loss",
            "replaced",
            "taken",
            "divergence",
        ),
    )

    rows: tuple[SignalRow, ...]
    gradient_of: str
    samples: int
    forwards: int
    backwards: int
    reason: str | None = None
    parameters: tuple[ParameterRow, ...] = ()
    feeds: tuple[tuple[int, ...], ...] = ()
    linear_feeds: tuple[tuple[int, ...], ...] = ()
    added_feeds: tuple[tuple[int, ...], ...] = field(default=(), compare=False)
    loss: LossFacts | None = None
    other_losses: tuple[LossFacts, ...] = ()
    columns: tuple[WidestColumn | None, ...] = ()
    dependence: SampleFacts | None = None
    loss_value: float | None = None
    outputs: int = 1
    dropouts: tuple[DropoutCall, ...] = ()
    steps: StepFacts | None = None
    draws: bool = False
    unread: tuple[str, ...] = ()
    lost: tuple[LostParameters, ...] = ()
    discriminator: str = ""
    idle_label: float | None = None
    unregistered: tuple[str, ...] = ()
    cut_values: tuple[CutValue, ...] = ()
    labels_outside: LabelsOutside | None = None
    broken_contract: BrokenContract | None = None
    wanted: str = ""
    rounded: tuple[str, str, float] | None = None
    shared: tuple[int, ...] = ()
    wrong_axis: tuple[str, int, int] | None = None
    bends: bool = True
    derives: bool = False
    pushed_away: float = 0.0
    detached_at: str | None = None
    means_alone: bool = False
    padding: PaddingRead | None = None
    raises: tuple[str, str, str] | None = None
    unheard: bool = False
    beside_loss: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    taken: str = ""
    divergence: Divergence | None = None

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """What was not looked at, and why."""
        skipped = [] if self.reason is None else [("gradients by depth", self.reason)]
        if self.dependence is not None and self.dependence.reason is not None:
            skipped.append(("one sample beside others", self.dependence.reason))
        if self.dependence is not None and self.dependence.ahead_reason is not None:
            skipped.append(("whether labels are read ahead", self.dependence.ahead_reason))
        if self.unheard:
            skipped.append(("layers inside of torch.vmap", "their values cannot be looked at while they run"))
        return skipped if self.steps is None else [*skipped, *self.steps.skipped]

    @property
    def inputs(self) -> tuple[SignalRow, ...]:
        """The rows of the inputs."""
        return tuple(row for row in self.rows if row.kind == INPUT)

    @property
    def layers(self) -> tuple[SignalRow, ...]:
        """The rows of the layers."""
        return tuple(row for row in self.rows if row.kind != INPUT)

    def paths_before(self, path: str, kind: str, call: int | None = None) -> frozenset[str]:
        """Return the paths of the layers that feed a layer of this kind directly, in all of its calls or in one."""
        own = [number for number, row in enumerate(self.rows) if (row.path, row.kind) == (path, kind)]
        own = own if call is None else own[call : call + 1]
        feeds = {feed for number in own if number < len(self.feeds) for feed in self.feeds[number]}
        return frozenset(self.rows[feed].path for feed in feeds)

    def sources(self, number: int) -> frozenset[int]:
        """Return the rows that a row reads, seen through modules that only rearrange what they are given."""
        found = frozenset[int]()
        for feed in self.feeds[number] if number < len(self.feeds) else ():
            rearranges = self.rows[feed].kind[:1].isupper() and self.linear_feeds[feed] == self.feeds[feed] != ()
            found |= self.sources(feed) if rearranges else {feed}
        return found

    def added_sources(self, number: int, through: Container[str]) -> frozenset[int]:
        """Return the rows whose outputs a row reads with at most additions and constant factors between.

        Rows of the kinds in `through` do not count: the rows that they read stand for them. Neither do modules that
        only hand on or add what they are given.
        """
        found, seen, waiting = set[int](), set[int](), [number]
        while waiting:
            place = waiting.pop()
            for feed in self.added_feeds[place] if place < len(self.added_feeds) else ():
                hands_on = self.rows[feed].kind[:1].isupper() and self.added_feeds[feed] == self.feeds[feed] != ()
                if not hands_on and self.rows[feed].kind not in through:
                    found.add(feed)
                elif feed not in seen:
                    seen.add(feed)
                    waiting.append(feed)
        return frozenset(found)

    def passing(self, path: str, kind: str, call: int) -> float:
        """Return the size of what one call of a layer hands on over that of what it reads; 1 where nobody can tell."""
        own = [number for number, row in enumerate(self.rows) if (row.path, row.kind) == (path, kind)][call : call + 1]
        feeds = self.feeds[own[0]] if own and own[0] < len(self.feeds) else ()
        if len(feeds) != 1:
            return 1.0
        after, before = self.rows[own[0]].root_mean_square, self.rows[feeds[0]].root_mean_square
        return after / before if after is not None and before else 1.0

    def __iter__(self) -> Iterator[SignalRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def find_discriminator_layers(signal: Signal) -> set[str]:
    """Return the layers that run after all that train, if they are several: those of a discriminator, perhaps.

    In the step of a generator they do not train: they are frozen, or the optimizer does not hold them.
    """
    outside = () if signal.steps is None else signal.steps.outside
    trains = {row.module: row.trainable and row.name not in outside for row in signal.parameters if len(row.shape) > 1}
    from_last = [path for path in dict.fromkeys(row.path for row in reversed(signal.layers)) if path in trains]
    behind = set(itertools.takewhile(lambda path: not trains[path], from_last))
    return behind if 1 < len(behind) < len(from_last) else set()


def is_generator_step(signal: Signal) -> bool:
    """Whether the loss asks a discriminator for one answer to everything, as in the step of a generator."""
    loss = signal.loss
    return (
        loss is not None
        and loss.is_constant
        and ((loss.own_targets and loss.name in BINARY) or bool(find_discriminator_layers(signal)))
    )
