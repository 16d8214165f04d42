"""One pass over labelled samples: losses, margins, cells, slopes and fingerprints, in the memory of a batch.

Beside the batch, the pass keeps sums by cell and, for each sample, its margin and its fingerprint. Nothing is read back
from the device before the pass is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normscope.theory import Loss
from normscope.toolkit import (
    Batch,
    Call,
    InputError,
    Logits,
    Shape,
    logit_margins,
    placed_batches,
    refuse_lost_gradients,
    run_model,
    sample_shapes,
)

from .bound import INDEPENDENT, Condition, condition


@dataclass(frozen=True, slots=True, eq=False)
class Voronoi:
    """A cell per centre: the points nearest to it; with a radius only those within it, and one cell for all others."""

    centres: Tensor  # `[N, n]`, no two of them equal
    radius: float | None = None  # the radius of the cells, or None

    def __post_init__(self) -> None:
        if len(torch.unique(self.centres, dim=0)) < len(self.centres):
            raise InputError(
                f"two of the {len(self.centres)} centres of the partition are the same point, so that a cell is empty: "
                "ask for fewer cells, or pass other data to take them from"
            )

    @property
    def size(self) -> int:
        """How many cells there are for each label."""
        return len(self.centres) + (self.radius is not None)

    def assign(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cell of each flat point `[B, n]`, and its offset from the centre of that cell `[B, n]`."""
        points = points.double()  # In single precision, points far from the origin would lose all digits.
        centres = self.centres.to(points)
        squares = centres.square().sum(1) - 2.0 * points @ centres.T
        nearest = squares.argmin(1)
        offsets = points - centres[nearest]
        if self.radius is None:
            return nearest, offsets
        inside = offsets.norm(dim=1) <= self.radius
        return torch.where(inside, nearest, len(centres)), offsets

    def reach(self, low: float | None, high: float | None) -> Tensor:
        """Return how far from its centre a point of each cell can be, if all entries lie between `low` and `high`."""
        if self.radius is not None:
            return torch.tensor([self.radius] * len(self.centres) + [math.inf], dtype=torch.float64)
        if low is None or high is None:
            return torch.full((self.size,), math.inf, dtype=torch.float64)
        centres = self.centres.double()
        return torch.maximum((centres - low).abs(), (high - centres).abs()).square().sum(1).sqrt().cpu()


WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer dtype by its number of bytes."""
CHUNK = 1024
"""Larger batches are split, so that at most this many samples go through the model at once."""
ROUNDING = 1e-6
"""A difference of losses that is not worth a number."""
MAX_LOSS_DIFFERENCE = 0.01
"""By how much the losses of a model and of its graph may differ in the mean, as a share of the largest loss."""
VECTORS = 2**26
"""How many entries the sums of vectors by cell may have; with more, distances are bounded through the centres."""


def fingerprints(points: Tensor, keys: Tensor) -> Tensor:
    """Return an integer for each row: equal bytes have equal integers in every batch.

    Sums of integers do not depend on their order, so that batches of other sizes give the same integer. Two different
    rows have the same integer with a probability of about 2^-40.
    """
    words = points.contiguous().view(WORDS[points.element_size()]).long()
    mixed = words * -7046029254386353131
    mixed = mixed ^ (mixed >> 29)
    return (mixed * keys).sum(1)


def random_keys(features: int, generator: torch.Generator) -> Tensor:
    """Return random odd int64 numbers, one per entry of a sample."""
    return torch.randint(-(2**62), 2**62, (features,), generator=generator) * 2 + 1


def identical(first: Tensor, second: Tensor) -> int:
    """Return how many entries of `first` are also in `second`."""
    return int(torch.isin(first, second).sum())


def independent_draws(samples: Tensor, allowed: int) -> Condition:
    """Return the condition that samples are independent draws, from their fingerprints.

    A sample that is read again, as by a sampler with replacement, is no new draw; `allowed` of them are declared to be.
    """
    repeats = len(samples) - len(samples.unique())
    if repeats <= allowed:
        return condition(INDEPENDENT, True, "declared by passing them; no test can show it")
    why = f"{repeats:,} of {len(samples):,} repeat others, byte for byte: read each sample once, or pass duplicates="
    return condition(INDEPENDENT, None, f"{why}{repeats} if the distribution repeats itself")


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Some samples: inputs as the model takes them, and their labels."""

    inputs: Tensor
    labels: Tensor


def sample_batches(model: nn.Module, data: Any) -> Iterator[SampleBatch]:
    """Yield the samples of data, at most `CHUNK` at a time, on the model's device."""
    shapes: tuple[Shape, ...] = ()
    for batch in placed_batches(model, data):
        inputs, labels = _checked(batch)
        shapes = sample_shapes(batch.call, shapes)
        for part in zip(inputs.split(CHUNK), labels.split(CHUNK)):
            yield SampleBatch(*part)


def _checked(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the inputs and the labels of a batch; refuse what is no labelled sample."""
    variables = batch.call.variables
    if len(variables) != 1 or len([leaf for leaf in batch.call.leaves if isinstance(leaf, Tensor)]) != 1:
        raise InputError(
            "generalization bounds need samples that are one tensor of floats each: this model takes other inputs"
        )
    inputs, labels = variables[0][1], batch.targets
    if not isinstance(labels, Tensor):
        raise InputError("the data have no labels: pass batches (inputs, labels)")
    if labels.is_floating_point() or labels.dtype is torch.bool or labels.shape != inputs.shape[:1]:
        raise InputError(
            f"labels are one whole number per sample, not {tuple(labels.shape)} of {labels.dtype} for "
            f"{len(inputs)} samples"
        )
    return inputs, labels.long()


def split_off(source: Iterable[SampleBatch], every: int) -> Iterator[tuple[SampleBatch | None, SampleBatch | None]]:
    """Split each batch into samples of D and samples set aside: the last of every `every` samples is set aside."""
    read = 0
    for batch in source:
        count = len(batch.labels)
        aside = torch.tensor(range((-read - 1) % every, count, every), dtype=torch.long)
        kept = torch.ones(count, dtype=torch.bool).index_fill(0, aside, False).nonzero()[:, 0]
        read += count
        yield tuple(  # type: ignore[misc]
            SampleBatch(batch.inputs[index.to(batch.inputs.device)], batch.labels[index.to(batch.labels.device)])
            if len(index)
            else None
            for index in (kept, aside)
        )


@dataclass(slots=True)
class Tally:
    """Sums over the samples of each cell of a partition; a cell is one of its regions with one label."""

    partition: Voronoi  # the regions
    counts: Tensor  # how many samples each cell holds
    distances: Tensor  # the sum of their distances from the centre
    squares: Tensor  # the sum of the squares of these distances
    vectors: Tensor | None  # the sum of their offsets from the centre, or None where these would take too much memory
    slopes: Tensor  # the longest gradient of the loss at one of them

    @classmethod
    def empty(cls, partition: Voronoi, classes: int, features: int, device: torch.device) -> Tally:
        """Return the tally of no samples."""
        cells = classes * partition.size
        zeros = torch.zeros(cells, dtype=torch.float64, device=device)
        kept = cells * features <= VECTORS
        vectors = torch.zeros(cells, features, dtype=torch.float64, device=device) if kept else None
        return cls(partition, zeros, zeros.clone(), zeros.clone(), vectors, zeros.clone())

    def add(self, points: Tensor, labels: Tensor, slopes: Tensor | None = None, *, fresh: bool = False) -> None:
        """Add samples; `fresh` leaves out samples that are themselves a centre."""
        region, offsets = self.partition.assign(points)
        cells = labels * self.partition.size + region
        squares = offsets.square().sum(1)
        weight = (squares > 0).double() if fresh else torch.ones_like(squares)
        self.counts.index_add_(0, cells, weight)
        self.distances.index_add_(0, cells, squares.sqrt())
        self.squares.index_add_(0, cells, squares)
        if self.vectors is not None:
            self.vectors.index_add_(0, cells, offsets)
        if slopes is not None:
            self.slopes.scatter_reduce_(0, cells, slopes.double(), "amax")

    def cpu(self) -> Tally:
        """Return the same tally on the CPU."""
        vectors = None if self.vectors is None else self.vectors.cpu()
        return Tally(
            self.partition, self.counts.cpu(), self.distances.cpu(), self.squares.cpu(), vectors, self.slopes.cpu()
        )


@dataclass(slots=True)
class SamplesSeen:
    """What a pass over one part of the data measured."""

    samples: int  # how many samples the part has
    loss: float  # the mean of the bounded loss of the model
    error: float  # the share of samples that the model does not classify correctly; a tie is an error
    # worst_loss, worst_error: the same, each sample counted with the worst of the model and its graphs
    worst_loss: float
    worst_error: float
    margins: Tensor  # one per sample, the smallest of the model and its graphs, ascending
    square_norms: float  # the sum of the squared norms of the inputs
    largest_norm: float  # the largest norm of an input
    entries: tuple[float, float]  # the least and the largest entry of an input
    fingerprints: Tensor  # one per sample
    independent: Condition  # the condition that the samples are independent draws
    tallies: tuple[Tally, ...] = ()  # sums by cell, one tally per partition
    classes: int = 0  # how many outputs the model has
    # how far apart the losses of the model and of a graph are, as a mean share of the largest loss; None without a
    # graph
    difference: float | None = None

    @property
    def traced(self) -> Condition:
        """The condition that the model does on these samples what its graph does, which the bounds are about."""
        what = "the model gives on every sample what its graph gives"
        if self.difference is None:
            return condition(what, None, "there is no graph of one sample")
        if self.difference > MAX_LOSS_DIFFERENCE:
            return condition(
                what,
                False,
                f"their losses differ by {self.difference:.2g} of the largest loss in the mean: the model does what "
                "torch.export does not see (it looks up samples, or asks for values or for the size of a batch), or "
                "its rounding errors decide what it gives",
            )
        apart = f"their losses differ by {self.difference:.2g} in the mean"
        apart = apart if self.difference > ROUNDING else "they are equal up to rounding"
        return condition(what, True, f"{apart}; each sample counts with the larger loss")


@dataclass(slots=True)
class Collector:
    """Runs the model on batches of samples and adds up what is measured; `finish` reads the sums back."""

    model: nn.Module
    loss: Loss
    keys: Tensor
    output: str | int | None = None
    partitions: Sequence[Voronoi] = ()
    traced: Sequence[Logits] = ()  # the graphs that the bounds are about, run beside the model
    classes: int = 0  # how many outputs the model has; 0 before the first batch
    samples: int = 0
    tallies: list[Tally] = field(default_factory=list)
    # the sums of the losses, the errors, the worst losses, the worst errors, the squared norms of the inputs, and the
    # differences between the losses of the model and of each graph
    sums: Tensor | None = None
    # the largest norm, entry, negated entry, label, negated label, loss and negated loss
    extremes: Tensor | None = None
    margins: list[Tensor] = field(default_factory=list)
    fingerprints: list[Tensor] = field(default_factory=list)

    def add(self, batch: SampleBatch, *, slopes: bool) -> None:
        """Run the model on a batch and add what is measured; `slopes` says whether to take gradients of the loss."""
        inputs = batch.inputs.detach().requires_grad_(slopes)
        with torch.set_grad_enabled(slopes):
            logits = run_model(self.model, Call(args=(inputs,), kwargs={}, output=self.output))
            if logits.ndim != 2 or logits.shape[1] < 2 or len(logits) != len(batch.labels):
                raise InputError(
                    f"the output has shape {tuple(logits.shape)}: a classifier gives a row of 2 or more, one output "
                    "for each of two or more classes"
                )
            labels = batch.labels.clamp(0, logits.shape[1] - 1)  # Labels out of range are refused in `finish`.
            rows = self.loss.rows(logits, labels)
            lengths = _slopes(self.model, rows, inputs) if slopes else None
        points = inputs.detach().flatten(1)
        if not self.classes:
            self.classes, self.keys = logits.shape[1], self.keys.to(points.device)
            self.tallies = [Tally.empty(one, self.classes, points.shape[1], points.device) for one in self.partitions]
        own_margin = logit_margins(logits.detach().double(), labels)
        norms, losses = points.double().norm(dim=1), rows.detach().double()
        worst, margin, differences = self._worst(points, labels, losses, own_margin)
        rounding = 4.0 * torch.finfo(rows.dtype).eps * self.loss.most
        entries, numbers = points.double(), batch.labels.double()
        sums = torch.stack(
            [losses.sum(), (own_margin <= 0).double().sum(), worst.sum(), (margin <= 0).double().sum(),
             norms.square().sum(), *differences]
        )  # fmt: skip
        extremes = torch.stack(
            [norms.max(), entries.max(), -entries.min(), numbers.max(), -numbers.min(), losses.max() - rounding,
             -losses.min() - rounding]
        )  # fmt: skip
        self.sums = sums if self.sums is None else self.sums + sums
        self.extremes = extremes if self.extremes is None else torch.maximum(self.extremes, extremes)
        self.samples += len(labels)
        self.margins.append(margin)
        self.fingerprints.append(fingerprints(points, self.keys))
        for tally in self.tallies:
            tally.add(points, labels, lengths)

    def _worst(
        self, points: Tensor, labels: Tensor, losses: Tensor, margin: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the largest losses and the smallest margins of the model and its graphs, and how far they are apart.

        The bounds are about the graphs. A model that does something else on these samples, such as to look them up,
        must not count with what it looked up.
        """
        worst, differences = losses, []
        for graph in self.traced:
            logits = graph(points)
            rows = self.loss.rows(logits, labels).double().nan_to_num(self.loss.most)
            differences.append((rows - losses).abs().sum())
            worst = torch.maximum(worst, rows)
            margin = torch.minimum(margin, logit_margins(logits.double(), labels).nan_to_num(-math.inf))
        return worst, margin, differences

    def finish(self, what: str, duplicates: int = 0) -> SamplesSeen:
        """Read the sums back; `what` names the part of the data in errors, which may have some duplicates."""
        if self.sums is None or self.extremes is None:
            raise InputError(f"{what} holds no sample")
        loss, wrong, worst_loss, worst_error, squares, *differences = self.sums.tolist()
        norm, entry, minus_entry, label, minus_label, largest_loss, minus_loss = self.extremes.tolist()
        if not math.isfinite(loss) or not math.isfinite(squares):
            raise InputError(f"{what} holds samples that are not finite, or whose loss is not")
        _check_labels(what, -minus_label, label, self.classes)
        if -minus_loss < 0.0 or largest_loss > self.loss.most:
            raise InputError(
                f"the {self.loss.name} is said to lie between 0 and {self.loss.most:g}, but on {what} it goes from "
                f"{-minus_loss:g} to {largest_loss:g}"
            )
        read = torch.cat(self.fingerprints).cpu()
        return SamplesSeen(
            samples=self.samples,
            loss=loss / self.samples,
            error=wrong / self.samples,
            worst_loss=worst_loss / self.samples,
            worst_error=worst_error / self.samples,
            margins=torch.cat(self.margins).sort().values.cpu(),
            square_norms=squares,
            largest_norm=norm,
            entries=(-minus_entry, entry),
            fingerprints=read,
            independent=independent_draws(read, duplicates),
            tallies=tuple(tally.cpu() for tally in self.tallies),
            classes=self.classes,
            difference=max(differences) / self.samples / self.loss.most if differences else None,
        )


def _slopes(model: nn.Module, rows: Tensor, inputs: Tensor) -> Tensor:
    """Return the length of the gradient of each loss in its input.

    It is 0 where no differentiable operator leads to the input, and infinite where an operator has no derivative.
    """
    try:
        refuse_lost_gradients(model, rows)
        slope = torch.autograd.grad(rows.sum(), inputs, allow_unused=True)[0] if rows.requires_grad else None
    except (InputError, RuntimeError, NotImplementedError):
        return torch.full_like(rows, math.inf, dtype=torch.float64)
    gradient = torch.zeros_like(inputs) if slope is None else slope
    return gradient.flatten(1).double().norm(dim=1)


def _check_labels(what: str, least: float, most: float, classes: int) -> None:
    """Refuse labels that are no numbers of classes."""
    if least < 0 or most >= classes:
        raise InputError(
            f"{what} has labels from {least:.0f} to {most:.0f}: the model has {classes} classes, numbered from 0 to "
            f"{classes - 1}"
        )


@dataclass(slots=True)
class HeldOutCollector:
    """Counts held-out samples by cell and keeps their fingerprints; they do not go through the model.

    `extremes` are the largest label, negated label, entry and negated entry.
    """

    keys: Tensor
    classes: int
    tallies: list[Tally]
    fingerprints: list[Tensor] = field(default_factory=list)
    samples: int = 0
    extremes: Tensor | None = None
    entries: tuple[float, float] = (0.0, 0.0)

    def add(self, batch: SampleBatch) -> None:
        """Count the samples of a batch."""
        points, labels = batch.inputs.flatten(1), batch.labels
        extremes = torch.stack([v.double() for v in (labels.max(), -labels.min(), points.max(), -points.min())])
        self.extremes = extremes if self.extremes is None else torch.maximum(self.extremes, extremes)
        self.samples += len(labels)
        self.fingerprints.append(fingerprints(points, self.keys.to(points.device)))
        for tally in self.tallies:
            tally.add(points, labels.clamp(0, self.classes - 1), fresh=True)

    def finish(self, what: str) -> tuple[tuple[Tally, ...], Tensor]:
        """Read back the sums by cell and the fingerprints; `what` names the part of the data in errors."""
        if self.extremes is None:
            raise InputError(f"{what} hold no sample")
        label, minus_label, entry, minus_entry = self.extremes.tolist()
        self.entries = (-minus_entry, entry)
        if not (math.isfinite(minus_entry) and math.isfinite(entry)):
            raise InputError(f"{what} are not all finite")
        _check_labels(what, -minus_label, label, self.classes)
        return tuple(tally.cpu() for tally in self.tallies), torch.cat(self.fingerprints).cpu()
