"""One pass over labelled samples: losses, margins, cells, slopes and fingerprints, in the memory of a batch.

What is kept beside a batch are sums by cell and, for each sample, its margin and its fingerprint. Nothing is read back
from the device before the pass is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..geometry.batches import Batch, placed_batches
from ..graph.call import Call, run
from ..theory.losses import Loss
from ..theory.losses import margins as logit_margins
from .fingerprints import fingerprints
from .partition import Partition

CHUNK = 1024
"""Samples that go through the model at once, where a batch holds more."""
VECTORS = 2**26
"""Entries that the sums of vectors by cell may have; with more, distances are bounded through the centres."""


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Some samples: inputs as the model takes them, and their labels."""

    inputs: Tensor
    labels: Tensor


def pieces(model: nn.Module, loader: Any) -> Iterator[SampleBatch]:
    """Yield the samples of a loader, at most `CHUNK` at a time, on the model's device.

    Raises:
        InputError: inputs that are not one tensor of floats, or samples without one label each.
    """
    for batch in placed_batches(model, loader):
        inputs, labels = _checked(batch)
        for some in zip(inputs.split(CHUNK), labels.split(CHUNK)):
            yield SampleBatch(*some)


def _checked(batch: Batch) -> tuple[Tensor, Tensor]:
    variables = batch.call.variables
    if len(variables) != 1 or len([leaf for leaf in batch.call.leaves if isinstance(leaf, Tensor)]) != 1:
        raise InputError(
            "generalization bounds speak of samples that are one tensor of floats each: this model takes other inputs"
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


def parted(source: Iterable[SampleBatch], every: int) -> Iterator[tuple[SampleBatch | None, SampleBatch | None]]:
    """Yield each piece as (samples of D, samples set aside): every so many-th is set aside, by its place."""
    place = 0
    for piece in source:
        count = len(piece.labels)
        aside = torch.tensor(range((-place - 1) % every, count, every), dtype=torch.long)
        kept = torch.ones(count, dtype=torch.bool).index_fill(0, aside, False).nonzero()[:, 0]
        place += count
        yield tuple(  # type: ignore[misc]
            SampleBatch(piece.inputs[index.to(piece.inputs.device)], piece.labels[index.to(piece.labels.device)])
            if len(index)
            else None
            for index in (kept, aside)
        )


@dataclass(slots=True)
class Tally:
    """Sums over the samples of each cell of a partition; a cell is one of its regions with one label.

    Attributes:
        partition: the regions.
        counts: samples.
        distances: sums of the distances from the centre.
        squares: sums of the squares of these distances.
        vectors: sums of the offsets from the centre, or None where they would take too much memory.
        slopes: the longest gradient of the loss at a sample.
    """

    partition: Partition
    counts: Tensor
    distances: Tensor
    squares: Tensor
    vectors: Tensor | None
    slopes: Tensor

    @classmethod
    def empty(cls, partition: Partition, classes: int, features: int, device: torch.device) -> Tally:
        """Return sums of nothing."""
        cells = classes * partition.size
        zeros = torch.zeros(cells, dtype=torch.float64, device=device)
        kept = cells * features <= VECTORS
        vectors = torch.zeros(cells, features, dtype=torch.float64, device=device) if kept else None
        return cls(partition, zeros, zeros.clone(), zeros.clone(), vectors, zeros.clone())

    def add(self, points: Tensor, labels: Tensor, slopes: Tensor | None = None, *, fresh: bool = False) -> None:
        """Count samples; `fresh` leaves those out that are themselves a centre."""
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
        """Return the same on the host."""
        vectors = None if self.vectors is None else self.vectors.cpu()
        return Tally(
            self.partition, self.counts.cpu(), self.distances.cpu(), self.squares.cpu(), vectors, self.slopes.cpu()
        )


@dataclass(slots=True)
class SamplesSeen:
    """What a pass saw of a part of the data.

    Attributes:
        samples: how many.
        loss: the mean of the bounded loss.
        error: the share of samples that are not classified correctly; a tie is an error.
        margins: one per sample, ascending.
        square_norms: the sum of the squared norms of the inputs.
        largest_norm: of an input.
        entries: the least and the largest entry of an input.
        fingerprints: one per sample.
        tallies: sums by cell, one per partition.
        classes: outputs of the model.
    """

    samples: int
    loss: float
    error: float
    margins: Tensor
    square_norms: float
    largest_norm: float
    entries: tuple[float, float]
    fingerprints: Tensor
    tallies: tuple[Tally, ...] = ()
    classes: int = 0


@dataclass(slots=True)
class Collector:
    """Adds up what goes by; `finish` reads it back."""

    model: nn.Module
    loss: Loss
    keys: Tensor
    output: str | int | None = None
    partitions: Sequence[Partition] = ()
    classes: int = 0
    samples: int = 0
    tallies: list[Tally] = field(default_factory=list)
    sums: Tensor | None = None
    ends: Tensor | None = None
    margins: list[Tensor] = field(default_factory=list)
    prints: list[Tensor] = field(default_factory=list)

    def start(self, classes: int, features: int, device: torch.device) -> None:
        """Make room for the sums, once the number of classes is known."""
        self.classes = classes
        self.keys = self.keys.to(device)
        self.tallies = [Tally.empty(one, classes, features, device) for one in self.partitions]

    def samples_of(self, piece: SampleBatch, *, slopes: bool) -> None:
        """Run the model on some samples and add what is seen."""
        inputs = piece.inputs.detach().requires_grad_(slopes)
        with torch.set_grad_enabled(slopes):
            logits = run(self.model, Call(args=(inputs,), kwargs={}, output=self.output))
            if logits.ndim != 2 or logits.shape[1] < 2 or len(logits) != len(piece.labels):
                raise InputError(
                    f"the output has shape {tuple(logits.shape)}: a classifier gives a row of 2 or more, one output "
                    "for each of two or more classes"
                )
            labels = piece.labels.clamp(0, logits.shape[1] - 1)  # what is out of range is refused at the end
            rows = self.loss.rows(logits, labels)
            lengths = None
            if slopes:
                (gradient,) = torch.autograd.grad(rows.sum(), inputs)
                lengths = gradient.flatten(1).double().norm(dim=1)
        points = inputs.detach().flatten(1)
        if not self.classes:
            self.start(logits.shape[1], points.shape[1], points.device)
        margin = logit_margins(logits.detach().double(), labels)
        norms, each = points.double().norm(dim=1), rows.detach().double()
        rounding = 4.0 * torch.finfo(rows.dtype).eps * self.loss.most
        self._add(
            torch.stack([each.sum(), (margin <= 0).double().sum(), norms.square().sum()]),
            torch.stack([norms.max(), points.double().max(), -points.double().min(), piece.labels.max().double(),
                         -piece.labels.min().double(), each.max() - rounding, -each.min() - rounding]),
        )  # fmt: skip
        self.samples += len(labels)
        self.margins.append(margin)
        self.prints.append(fingerprints(points, self.keys))
        for tally in self.tallies:
            tally.add(points, labels, lengths)

    def _add(self, sums: Tensor, ends: Tensor) -> None:
        self.sums = sums if self.sums is None else self.sums + sums
        self.ends = ends if self.ends is None else torch.maximum(self.ends, ends)

    def finish(self, what: str) -> SamplesSeen:
        """Read the sums back.

        Raises:
            InputError: there is no sample, a label is no class, or a loss is not finite or not in its range.
        """
        if self.sums is None or self.ends is None:
            raise InputError(f"{what} holds no sample")
        loss, wrong, squares = self.sums.tolist()
        norm, most, least, label, lowest, dearest, cheapest = self.ends.tolist()
        if not math.isfinite(loss) or not math.isfinite(squares):
            raise InputError(f"{what} holds samples that are not finite, or whose loss is not")
        _check_labels(what, -lowest, label, self.classes)
        if -cheapest < 0.0 or dearest > self.loss.most:
            raise InputError(
                f"the {self.loss.name} is said to lie between 0 and {self.loss.most:g}, but on {what} it goes from "
                f"{-cheapest:g} to {dearest:g}"
            )
        return SamplesSeen(
            samples=self.samples,
            loss=loss / self.samples,
            error=wrong / self.samples,
            margins=torch.cat(self.margins).sort().values.cpu(),
            square_norms=squares,
            largest_norm=norm,
            entries=(-least, most),
            fingerprints=torch.cat(self.prints).cpu(),
            tallies=tuple(tally.cpu() for tally in self.tallies),
            classes=self.classes,
        )


def _check_labels(what: str, least: float, most: float, classes: int) -> None:
    if least < 0 or most >= classes:
        raise InputError(
            f"{what} has labels from {least:.0f} to {most:.0f}: the model has {classes} classes, numbered from 0 to "
            f"{classes - 1}"
        )


@dataclass(slots=True)
class Aside:
    """Held-out samples by cell, with their fingerprints; the model does not see them."""

    keys: Tensor
    classes: int
    tallies: list[Tally]
    prints: list[Tensor] = field(default_factory=list)
    samples: int = 0
    ends: Tensor | None = None
    entries: tuple[float, float] = (0.0, 0.0)

    def samples_of(self, piece: SampleBatch) -> None:
        """Count some samples."""
        points, labels = piece.inputs.flatten(1), piece.labels
        ends = torch.stack([v.double() for v in (labels.max(), -labels.min(), points.max(), -points.min())])
        self.ends = ends if self.ends is None else torch.maximum(self.ends, ends)
        self.samples += len(labels)
        self.prints.append(fingerprints(points, self.keys.to(points.device)))
        for tally in self.tallies:
            tally.add(points, labels.clamp(0, self.classes - 1), fresh=True)

    def finish(self, what: str) -> tuple[tuple[Tally, ...], Tensor]:
        """Read back the sums by cell and the fingerprints.

        Raises:
            InputError: there is no sample, a label is no class, or an input is not finite.
        """
        if self.ends is None:
            raise InputError(f"{what} hold no sample")
        most, least, high, low = self.ends.tolist()
        self.entries = (-low, high)
        if not (math.isfinite(low) and math.isfinite(high)):
            raise InputError(f"{what} are not all finite")
        _check_labels(what, -least, most, self.classes)
        return tuple(tally.cpu() for tally in self.tallies), torch.cat(self.prints).cpu()
