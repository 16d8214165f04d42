"""`PassFacts`: what one forward and one backward on one batch show of a model, in one record for each kind of fact."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from ...core.codec import JsonForm, Part
from .batch import BatchFacts
from .calls import CallFacts
from .detached import GraphCuts
from .divergence import Divergence
from .flow import FlowFacts
from .layers import INPUT, LayerRow
from .loss import BINARY, LossFacts
from .loss_at_output import OutputFacts
from .objective import ObjectiveFacts
from .parameters import ParameterRow, WeightUse
from .samples import SampleFacts
from .steps import StepFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class PassFacts(Part):
    """What one forward and one backward on one batch show, and a few passes on some of its samples.

    Attributes:
        rows: the inputs first, then every layer in the order they run.
        samples: how many samples the batch has.
        forwards, backwards: passes that this took.
        reason: why there are no gradients, if there are none.
        objective: what was differentiated.
        loss: what the loss was given, where there is one that is known.
        at_output: how the loss reads the model's one output.
        divergence: what the loss holds of the divergence of a drawn code from a standard normal one.
        parameters: every parameter of the model.
        weights: weights that are read and not learned as parameters are.
        flow: which rows read which.
        cuts: where autograd's graph ends too early.
        calls: what functions did that no values show.
        batch: what the batch itself shows.
        dependence: how outputs depend on samples and arguments, where that was looked at.
        steps: what a step along the gradient of the loss does, where there is a loss.
    """

    JSON: ClassVar[JsonForm] = JsonForm(
        inlined=("objective", "at_output", "weights", "flow", "cuts", "calls", "batch"),
        sparse=("loss", "divergence", "parameters", "dependence", "steps"),
    )

    rows: tuple[LayerRow, ...]
    objective: ObjectiveFacts
    samples: int
    forwards: int
    backwards: int
    reason: str | None = None
    parameters: tuple[ParameterRow, ...] = ()
    flow: FlowFacts = field(default_factory=FlowFacts)
    loss: LossFacts | None = None
    batch: BatchFacts = field(default_factory=BatchFacts)
    dependence: SampleFacts | None = None
    calls: CallFacts = field(default_factory=CallFacts)
    steps: StepFacts | None = None
    cuts: GraphCuts = field(default_factory=GraphCuts)
    at_output: OutputFacts = field(default_factory=OutputFacts)
    weights: WeightUse = field(default_factory=WeightUse)
    divergence: Divergence | None = None

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """What was not looked at, and why."""
        skipped = [] if self.reason is None else [("gradients by depth", self.reason)]
        if self.dependence is not None and self.dependence.reason is not None:
            skipped.append(("one sample beside others", self.dependence.reason))
        if self.dependence is not None and self.dependence.ahead_reason is not None:
            skipped.append(("whether labels are read ahead", self.dependence.ahead_reason))
        if self.dependence is not None and self.dependence.positions is not None and self.dependence.positions.reason:
            skipped.append(("what outputs know of other positions", self.dependence.positions.reason))
        if self.calls.unheard:
            skipped.append(("layers inside of torch.vmap", "their values cannot be looked at while they run"))
        return skipped if self.steps is None else [*skipped, *self.steps.skipped]

    @property
    def inputs(self) -> tuple[LayerRow, ...]:
        """The rows of the inputs."""
        return tuple(row for row in self.rows if row.kind == INPUT)

    @property
    def layers(self) -> tuple[LayerRow, ...]:
        """The rows of the layers."""
        return tuple(row for row in self.rows if row.kind != INPUT)

    def paths_before(self, path: str, kind: str, call: int | None = None) -> frozenset[str]:
        """Return the paths of the layers that feed a layer of this kind directly, in all of its calls or in one."""
        own = [number for number, row in enumerate(self.rows) if (row.path, row.kind) == (path, kind)]
        own = own if call is None else own[call : call + 1]
        feeds = {feed for number in own if number < len(self.flow.feeds) for feed in self.flow.feeds[number]}
        return frozenset(self.rows[feed].path for feed in feeds)

    def sources(self, number: int) -> frozenset[int]:
        """Return the rows that a row reads, seen through modules that only rearrange what they are given."""
        found = frozenset[int]()
        for feed in self.flow.feeds[number] if number < len(self.flow.feeds) else ():
            rearranges = (
                self.rows[feed].kind[:1].isupper() and self.flow.linear_feeds[feed] == self.flow.feeds[feed] != ()
            )
            found |= self.sources(feed) if rearranges else {feed}
        return found

    def added_sources(self, number: int, through: Container[str]) -> frozenset[int]:
        """Return the rows whose outputs a row reads with at most additions and constant factors between.

        Rows of the kinds in `through` do not count: the rows that they read stand for them. Neither do modules that
        only hand on or add what they are given.
        """
        found, seen, waiting, added = set[int](), set[int](), [number], self.flow.added_feeds
        while waiting:
            place = waiting.pop()
            for feed in added[place] if place < len(added) else ():
                hands_on = self.rows[feed].kind[:1].isupper() and added[feed] == self.flow.feeds[feed] != ()
                if not hands_on and self.rows[feed].kind not in through:
                    found.add(feed)
                elif feed not in seen:
                    seen.add(feed)
                    waiting.append(feed)
        return frozenset(found)

    def passing(self, path: str, kind: str, call: int) -> float:
        """Return the size of what one call of a layer hands on over that of what it reads; 1 where nobody can tell."""
        own = [number for number, row in enumerate(self.rows) if (row.path, row.kind) == (path, kind)][call : call + 1]
        feeds = self.flow.feeds[own[0]] if own and own[0] < len(self.flow.feeds) else ()
        if len(feeds) != 1:
            return 1.0
        after, before = self.rows[own[0]].root_mean_square, self.rows[feeds[0]].root_mean_square
        return after / before if after is not None and before else 1.0

    def __iter__(self) -> Iterator[LayerRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def find_discriminator_layers(facts: PassFacts) -> set[str]:
    """Return the layers that run after all that train, if they are several: those of a discriminator, perhaps.

    In the step of a generator they do not train: they are frozen, or the optimizer does not hold them.
    """
    outside = () if facts.steps is None else facts.steps.outside
    trains = {row.module: row.trainable and row.name not in outside for row in facts.parameters if len(row.shape) > 1}
    from_last = [path for path in dict.fromkeys(row.path for row in reversed(facts.layers)) if path in trains]
    behind = set(itertools.takewhile(lambda path: not trains[path], from_last))
    return behind if 1 < len(behind) < len(from_last) else set()


def is_generator_step(facts: PassFacts) -> bool:
    """Whether the loss asks a discriminator for one answer to everything, as in the step of a generator."""
    loss = facts.loss
    return (
        loss is not None
        and loss.is_constant
        and ((loss.own_targets and loss.name in BINARY) or bool(find_discriminator_layers(facts)))
    )
