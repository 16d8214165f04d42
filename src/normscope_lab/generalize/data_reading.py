"""Read the parts of the data: the training samples D, the held-out samples, and the test samples, each streamed once.

Without held-out samples of the user's own, one in five training samples is set aside for them and is not in D.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope import NormscopeError
from normscope.theory import Loss
from normscope.toolkit import Batches, InputError, Progress, TracedModel, describe_error, untouched

from .bound import CAPTURED, MET, Condition, condition
from .stream import (
    Collector,
    HeldOutCollector,
    SampleBatch,
    SamplesSeen,
    Tally,
    Voronoi,
    identical,
    independent_draws,
    random_keys,
    sample_batches,
    split_off,
)

EVERY = 5
"""Without held-out samples, one in this many training samples is set aside."""
Item = tuple[SampleBatch | None, SampleBatch | None]
"""Samples of D, and samples that are set aside; None where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    """How the cells are fixed; the fields are arguments of `generalization`."""

    sizes: tuple[int, ...]
    radius: float | None
    input_range: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReading:
    """The parts of the data as the bounds need them."""

    train: SamplesSeen  # D, the training samples that were not set aside
    held_tallies: tuple[Tally, ...]  # the held-out samples by cell, one tally per partition
    held_out: int  # how many held-out samples there are
    test: SamplesSeen | None  # the test samples, or None
    example: Tensor  # the inputs of the first batch of D
    traced: TracedModel | None  # the graphs of the model, which ran beside it; None if there are none
    untraced: str  # why there are none
    fixed: Condition  # fixed, independent: conditions of Theorem 20
    independent: Condition
    unseen: Condition  # the condition that no test sample is a training sample
    notes: tuple[str, ...]  # what the reader must know


def read(
    model: nn.Module,
    train: Batches,
    test: Batches | None,
    held_out: Batches | None,
    *,
    plan: CellPlan,
    loss: Loss,
    output: str | int | None,
    duplicates: int,
    seed: int,
    trace: Callable[[Tensor], TracedModel] | None = None,
) -> DataReading:
    """Stream all parts of the data once."""
    set_aside = held_out is None
    generator = torch.Generator().manual_seed(seed)
    with untouched(model, "eval", traced=True):
        sources = _open(model, train, held_out, count=max(plan.sizes))
        cells = _cells(plan, sources.points)
        keys = random_keys(sources.features, generator)
        traced, untraced = None, "the model was not traced"
        try:
            traced = None if trace is None else trace(sources.example[:CAPTURED])
        except NormscopeError as error:
            untraced = describe_error(error)
        beside = traced.beside if traced is not None else ()
        # Weights are guarded from here on; operators in place of a trace would write into tensors without memory.
        with untouched(model, "eval"):
            collector = Collector(model, loss, keys, output, cells, beside)
            held = _stream(collector, sources, train)
            read_train = collector.finish("train", duplicates)
            held_tallies, held_fingerprints = held.finish("held-out samples")
            read_test = None
            if test is not None:
                tested = Collector(model, loss, collector.keys, output, traced=beside)
                with Progress("reading the test samples") as progress:
                    for batch in sample_batches(model, test):
                        tested.add(batch, slopes=False)
                        progress.step()
                read_test = tested.finish("test", duplicates)
    if read_test is not None and beside:  # A model that differs from its graph on some samples is another function.
        apart = max(read_train.difference or 0.0, read_test.difference or 0.0)
        read_train, read_test = (dataclasses.replace(one, difference=apart) for one in (read_train, read_test))
    if int(read_train.tallies[0].counts.view(read_train.classes, -1).any(1).sum()) < 2:
        raise InputError("all samples of train have one label: a bound on a classifier needs two classes or more")
    tested_entries = None if read_test is None else read_test.entries
    _check_range(plan, train=read_train.entries, held_out=held.entries, test=tested_entries)
    # Samples that were set aside are training samples too: the model may have learned them.
    passed_as_train = torch.cat([read_train.fingerprints, held_fingerprints]) if set_aside else read_train.fingerprints
    if set_aside:
        shared_held = identical(held_fingerprints, read_train.fingerprints)
        leaked_held = shared_held if shared_held > duplicates else 0  # As many as are declared are draws of their own.
    else:
        shared_held = leaked_held = _leaked("held_out", held_fingerprints, passed_as_train, duplicates)
    held_draws = independent_draws(held_fingerprints, duplicates)
    origin = f"one in {EVERY} samples was set aside by its place" if set_aside else "declared as held out"
    leaked_test = 0 if read_test is None else _leaked("test", read_test.fingerprints, passed_as_train, duplicates)
    return DataReading(
        train=read_train,
        held_tallies=held_tallies,
        held_out=held.samples,
        test=read_test,
        example=sources.example,
        traced=traced,
        untraced=untraced,
        fixed=_fixed(set_aside, leaked_held),
        independent=condition(
            "the samples for distances are independent of D",
            None if leaked_held or held_draws.status != MET else True,
            f"{origin}; {_describe_leak(shared_held)}" if held_draws.status == MET else held_draws.why,
        ),
        unseen=condition(
            "the model was not trained on the test samples",
            None if leaked_test else True,
            f"declared by passing them as test; {_describe_leak(leaked_test)}",
        ),
        notes=()
        if len(cells) == len(plan.sizes)
        else (f"there are too few held-out samples for {plan.sizes[len(cells)]} cells and more",),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    """The training and the held-out samples, opened but not yet read."""

    points: Tensor  # the first held-out samples, as flat vectors
    example: Tensor  # the inputs of the first batch of D
    items: Iterator[Item]  # the batches of `train`, as samples of D and samples set aside
    # the batches of `held_out`; None if samples of `train` are set aside instead
    held_out: Iterator[SampleBatch] | None

    @property
    def features(self) -> int:
        """How many entries an input has."""
        return self.example[0].numel()


def _open(model: nn.Module, train: Batches, held_out: Batches | None, count: int) -> _Sources:
    """Open the training and the held-out samples, and take the first held-out samples, `count` at most."""
    batches = sample_batches(model, train)
    items: Iterator[Item]
    fresh: Iterator[SampleBatch] | None = None
    if held_out is None:
        points, items = _first_points(split_off(batches, EVERY), lambda item: item[1], count)
    else:
        items = ((batch, None) for batch in batches)
        points, fresh = _first_points(sample_batches(model, held_out), lambda batch: batch, count)
    first = next(items, None)
    if first is None or first[0] is None:
        raise InputError("train holds no sample, or too few to set one in five aside")
    example = first[0].inputs.clone()
    if points is None or not len(points):
        raise InputError("there is no held-out sample: pass held_out, or more samples in train")
    if points.shape[1] != example[0].numel():
        raise InputError(f"held-out samples have {points.shape[1]} entries, those of train {example[0].numel()}")
    return _Sources(points=points, example=example, items=itertools.chain([first], items), held_out=fresh)


def _cells(plan: CellPlan, points: Tensor) -> tuple[Voronoi, ...]:
    """Return the declared partitions around held-out points, without those that have too many cells for the points."""
    affordable = tuple(size for size in plan.sizes if size <= max(1, len(points) // 2)) or plan.sizes[:1]
    sizes = affordable if len(points) < max(plan.sizes) else plan.sizes
    return tuple(Voronoi(points[:size], plan.radius) for size in sizes)


def _leaked(name: str, part: Tensor, train: Tensor, allowed: int) -> int:
    """Return how many samples of a part are training samples, by their fingerprints; refuse more than are allowed."""
    shared = identical(part, train)
    if shared > allowed:
        raise InputError(
            f"{shared} samples of {name} are also in train, byte for byte: they are leaked, and not independent "
            f"of D. Take them out, or pass duplicates={shared} if the distribution repeats itself"
        )
    return shared


def _describe_leak(shared: int) -> str:
    """Return in words how many samples of a part are also in train."""
    return f"{shared} also stand in train, byte for byte" if shared else "none stands in train, byte for byte"


def _fixed(set_aside: bool, shared: int) -> Condition:
    """Return whether the partition does not depend on D."""
    where = f"one in {EVERY} samples, which are not in D" if set_aside else "the held-out samples, which are not in D"
    why = f"the centres are the first of {where}" + (f"; {_describe_leak(shared)}" if shared else "")
    return condition("the partition is fixed before D is seen", None if shared else True, why)


def _first_points(
    items: Iterator[Any], pick: Callable[[Any], SampleBatch | None], count: int
) -> tuple[Tensor | None, Iterator[Any]]:
    """Return the first held-out points, `count` at most, and the items as if none had been read.

    `pick` returns the held-out samples of an item, or None.
    """
    consumed, points, total = [], [], 0
    for item in items:
        consumed.append(item)
        batch = pick(item)
        if batch is not None:
            points.append(batch.inputs.flatten(1))
            total += len(batch.labels)
        if total >= count:
            break
    return (torch.cat(points)[:count] if points else None), itertools.chain(consumed, items)


def _stream(collector: Collector, sources: _Sources, train: Batches) -> HeldOutCollector:
    """Run D through the model and count the held-out samples by cell."""
    held: HeldOutCollector | None = None
    with Progress("reading D", train.count) as progress:
        for kept, aside in sources.items:
            if kept is not None:
                collector.add(kept, slopes=True)
                progress.step()
                if held is None:
                    device, features = kept.inputs.device, kept.inputs[0].numel()
                    tallies = [Tally.empty(p, collector.classes, features, device) for p in collector.partitions]
                    held = HeldOutCollector(collector.keys, collector.classes, tallies)
            if aside is not None and held is not None:
                held.add(aside)
    assert held is not None
    if sources.held_out is not None:
        with Progress("reading held-out samples") as progress:
            for batch in sources.held_out:
                held.add(batch)
                progress.step()
    return held


def _check_range(plan: CellPlan, **entries: tuple[float, float] | None) -> None:
    """Refuse parts of the data with entries outside of the declared range."""
    if plan.input_range is None:
        return
    low, high = plan.input_range
    for name, (least, most) in ((name, ends) for name, ends in entries.items() if ends is not None):
        if least < low or most > high:
            raise InputError(
                f"input_range is ({low:g}, {high:g}), but {name} has entries from {least:g} to {most:g}: declare "
                "what every input is known to lie in"
            )


def rereader(model: nn.Module, train: Batches, held_out: Batches | None) -> Callable[[], Iterator[SampleBatch]]:
    """Return a function that reads D once more, without the samples that were set aside."""
    if not train.readable_again:
        raise InputError("train can be read once only, and PAC-Bayes reads it many times: pass a list or a DataLoader")
    if held_out is not None:
        return lambda: sample_batches(model, train)
    return lambda: (kept for kept, _ in split_off(sample_batches(model, train), EVERY) if kept is not None)


def endless(read_again: Callable[[], Iterator[SampleBatch]], size: int) -> Iterator[SampleBatch]:
    """Yield batches of at most `size` samples, reading D again and again without end."""
    while True:
        empty = True
        for batch in read_again():
            empty = False
            for inputs, labels in zip(batch.inputs.split(size), batch.labels.split(size)):
                yield SampleBatch(inputs, labels)
        if empty:
            raise InputError(
                "train holds no sample when it is read again, and PAC-Bayes reads it many times: pass a list or a "
                "DataLoader"
            )
