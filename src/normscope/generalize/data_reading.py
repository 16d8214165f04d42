"""Reading the parts of the data: samples of D, samples set aside or held out, and test samples, each streamed once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.progress import Progress
from ..core.untouched import untouched
from ..theory.losses import Loss
from .bound import Condition, condition
from .fingerprints import identical, random_keys
from .partition import partitions
from .stream import Aside, Collector, SampleBatch, SamplesSeen, Tally, parted, pieces

EVERY = 5
"""Without held-out samples one in so many of D is set aside."""
Item = tuple[SampleBatch | None, SampleBatch | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    """How the cells are fixed: what `generalization` was asked for."""

    kind: str
    sizes: tuple[int, ...]
    radius: float | None
    input_range: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReading:
    """What was read.

    Attributes:
        seen: D.
        held: held-out samples by cell, one tally per partition.
        held_out: how many there are.
        test: the test samples, or None.
        example: a few inputs of D.
        fixed, independent: conditions of Theorem 20.
        unseen: whether the test samples are none of train.
        limits: the declared range of entries, or Nones.
        notes: what the reader must know.
    """

    seen: SamplesSeen
    held: tuple[Tally, ...]
    held_out: int
    test: SamplesSeen | None
    example: Tensor
    fixed: Condition
    independent: Condition
    unseen: Condition
    limits: tuple[float | None, float | None]
    notes: tuple[str, ...]


def read(
    model: nn.Module,
    train: Any,
    test: Any,
    held_out: Any,
    *,
    plan: CellPlan,
    loss: Loss,
    output: str | int | None,
    duplicates: int,
    seed: int,
) -> DataReading:
    """Stream all parts once.

    Args:
        model: in any mode; it runs in eval mode.
        train: D, and the samples set aside where there are no held-out ones.
        test: fresh samples, or None.
        held_out: samples for the partition and for distances, or None.
        plan: how the cells are fixed.
        loss: bounded.
        output: which output of the model.
        duplicates: how many samples may stand in two parts.
        seed: of the partition.

    Raises:
        InputError: parts share samples, labels are no classes, or something is missing.
    """
    generator = torch.Generator().manual_seed(seed)
    with untouched(model, "eval"):
        aside = parted(pieces(model, train), EVERY) if held_out is None else ((p, None) for p in pieces(model, train))
        items: Iterator[Item] = iter(aside)
        fresh: Iterator[SampleBatch] = iter(()) if held_out is None else iter(pieces(model, held_out))
        points, left = None, max(plan.sizes)
        if held_out is None:
            points, items = _first_points(items, lambda item: item[1], left)
        else:
            points, fresh = _first_points(fresh, lambda piece: piece, left)
        first = next(items, None)
        if first is None or first[0] is None:
            raise InputError("train holds no sample, or too few to set one in five aside")
        example = first[0].inputs[:8].clone()
        features = example[0].numel()
        if points is None or not len(points):
            raise InputError("there is no held-out sample: pass held_out, or more samples in train")
        if points.shape[1] != features:
            raise InputError(f"held-out samples have {points.shape[1]} entries, those of train {features}")
        sizes = tuple(size for size in plan.sizes if size <= max(1, len(points) // 2)) or plan.sizes[:1]
        cells = partitions(
            plan.kind,
            sizes if len(points) < left else plan.sizes,
            features=features,
            points=points,
            dtype=example.dtype,
            radius=plan.radius,
            input_range=plan.input_range,
            generator=generator,
        )
        keys = random_keys(features, generator)
        collector = Collector(model, loss, keys, output, cells)
        held = _stream(model, collector, itertools.chain([first], items), fresh, held_out is not None, train)
        seen = collector.finish("train")
        tallies, prints = held.finish("held-out samples")
        tested = None
        if test is not None:
            tester = Collector(model, loss, keys.to(collector.keys.device), output)
            with Progress("reading the test samples") as progress:
                for piece in pieces(model, test):
                    tester.samples_of(piece, slopes=False)
                    progress.step()
            tested = tester.finish("test")
    _check(seen, held, tested, plan)
    passed = seen.fingerprints if held_out is not None else torch.cat([seen.fingerprints, prints])
    leaked = {"held_out": 0, "test": 0}
    for name, other in (
        ("held_out", prints if held_out is not None else None),
        ("test", None if tested is None else tested.fingerprints),
    ):
        if other is None:
            continue
        leaked[name] = shared = identical(other, passed)  # samples set aside are of train too: the model may know them
        if shared > duplicates:
            raise InputError(
                f"{shared} samples of {name} also stand in train, byte for byte: they are leaked, and not independent "
                f"of D. Take them out, or pass duplicates={shared} if the distribution repeats itself"
            )
    notes = () if len(cells) == len(plan.sizes) else (
        f"there are too few held-out samples for {plan.sizes[len(cells)]} cells and more",
    )  # fmt: skip
    return DataReading(
        seen=seen,
        held=tallies,
        held_out=held.samples,
        test=tested,
        example=example,
        fixed=_fixed(plan, held_out is None, leaked["held_out"]),
        independent=condition(
            "the samples for distances are independent of D",
            None if leaked["held_out"] else True,
            f"one in {EVERY} samples was set aside by its place and is not in D"
            if held_out is None
            else f"declared as held out; {_standing(leaked['held_out'])}",
        ),
        unseen=condition(
            "the model was not trained on the test samples",
            None if leaked["test"] else True,
            f"declared by passing them as test; {_standing(leaked['test'])}",
        ),
        limits=plan.input_range or (None, None),
        notes=notes,
    )


def _standing(shared: int) -> str:
    """Say how many samples of a part also stand in train."""
    return f"{shared} also stand in train, byte for byte" if shared else "none stands in train, byte for byte"


def _fixed(plan: CellPlan, set_aside: bool, shared: int) -> Condition:
    where = f"one in {EVERY} samples, which are not in D" if set_aside else "the held-out samples, which are not in D"
    why = {
        "split": f"the centres are the first of {where}",
        "random": "the centres are drawn at random in the declared range",
        "grid": "boxes of the declared range",
    }[plan.kind]
    if plan.kind == "split" and shared:
        return condition("the partition is fixed before D is seen", None, f"{why}; {_standing(shared)}")
    return condition("the partition is fixed before D is seen", True, why)


def _first_points(
    items: Iterator[Any], pick: Callable[[Any], SampleBatch | None], count: int
) -> tuple[Tensor | None, Iterator[Any]]:
    """Return the first points that are not of D, and the items as if none had been read."""
    read, found, total = [], [], 0
    for item in items:
        read.append(item)
        piece = pick(item)
        if piece is not None:
            found.append(piece.inputs.flatten(1))
            total += len(piece.labels)
        if total >= count:
            break
    return (torch.cat(found)[:count] if found else None), itertools.chain(read, items)


def _stream(
    model: nn.Module, collector: Collector, items: Iterable[Item], fresh: Iterable[SampleBatch], apart: bool, train: Any
) -> Aside:
    """Run D through the model and count the held-out samples by cell."""
    held: Aside | None = None
    with Progress(
        "reading D", len(train) if hasattr(train, "__len__") and not isinstance(train, Tensor) else None
    ) as bar:
        for kept, aside in items:
            if kept is not None:
                collector.samples_of(kept, slopes=True)
                bar.step()
                if held is None:
                    device, features = kept.inputs.device, kept.inputs[0].numel()
                    tallies = [Tally.empty(p, collector.classes, features, device) for p in collector.partitions]
                    held = Aside(collector.keys, collector.classes, tallies)
            if aside is not None and held is not None:
                held.samples_of(aside)
    assert held is not None
    if apart:
        with Progress("reading held-out samples") as bar:
            for piece in fresh:
                held.samples_of(piece)
                bar.step()
    return held


def _check(seen: SamplesSeen, held: Aside, tested: SamplesSeen | None, plan: CellPlan) -> None:
    """Refuse one class alone, and inputs outside of the declared range."""
    present = sum(int(part.any()) for part in seen.tallies[0].counts.view(seen.classes, -1))
    if present < 2:
        raise InputError("all samples of train have one label: a bound on a classifier needs two classes or more")
    if plan.input_range is not None:
        low, high = plan.input_range
        for name, (least, most) in (
            ("train", seen.entries),
            ("held_out", held.entries),
            *((("test", tested.entries),) if tested is not None else ()),
        ):
            if least < low or most > high:
                raise InputError(
                    f"input_range is ({low:g}, {high:g}), but {name} has entries from {least:g} to {most:g}: declare "
                    "what every input is known to lie in"
                )


def repeated(model: nn.Module, train: Any, held_out: Any) -> Callable[[], Iterator[SampleBatch]]:
    """Return a function that reads D once more, the samples set aside left out.

    Raises:
        InputError: the loader can be read once only.
    """
    if isinstance(train, Iterator):
        raise InputError("train can be read once only, and PAC-Bayes reads it many times: pass a list or a DataLoader")
    if held_out is not None:
        return lambda: pieces(model, train)
    return lambda: (kept for kept, _ in parted(pieces(model, train), EVERY) if kept is not None)


def endless(read_again: Callable[[], Iterator[SampleBatch]], size: int) -> Iterator[SampleBatch]:
    """Yield pieces of at most `size` samples without end.

    Raises:
        InputError: a reading has no sample.
    """
    while True:
        empty = True
        for piece in read_again():
            empty = False
            for inputs, labels in zip(piece.inputs.split(size), piece.labels.split(size)):
                yield SampleBatch(inputs, labels)
        if empty:
            raise InputError(
                "train holds no sample when it is read again, and PAC-Bayes reads it many times: pass a list or a "
                "DataLoader"
            )
