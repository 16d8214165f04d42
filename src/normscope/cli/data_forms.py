"""Turn `--data` into batches, or into a limited number of samples with their classes."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from .. import data as data_sets
from ..core.errors import InputError
from ..core.npz import open_npz
from ..report.words import listed, pluralise
from .model_forms import GivenModel, call_object, describe_user_error, load_object

BATCH_SIZE = 32
NOISE_SAMPLES = 8
"""How many samples a synthetic batch has: it only fixes the sizes of the layers, and its statistics mean little."""
BATCHES = 64
"""How many batches of a named data set are read: 2,048 samples settle every statistic. Loaders are read whole."""
INPUTS = ("x", "images", "data")
MAX_DATA_BYTES = 4 << 30
"""What is read of an npz file: 2,048 images of 3x224x224 in float64 take 2.5 GB."""
UNIT = "values from 0 to 1"
FORMS = "digits, mnist:FOLDER, cifar10:FOLDER, npz:FILE, package.module:loader or path/to/file.py:loader"
SPLIT_BATCH = 256
"""Samples of a batch of training or test data with labels."""
RAW = "raw:"
"""The prefix of a folder whose images are wanted with values from 0 to 1, and not standardised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Batches to audit with."""

    first: Any  # the batch at which bounds and Jacobians are taken
    loader: Iterable[Any] | None = None  # all batches; `None` if there is only one
    notes: tuple[str, ...] = ()  # notes for the report


def open_data(text: str | None, subject: GivenModel, *, batch_size: int | None, seed: int) -> Batches:
    """Turn `--data` into batches for a model; None is random noise, if the model says what it takes.

    Without a batch size it is the usual one, or the only one that the model takes.
    """
    if batch_size is not None and subject.batch_size not in (None, batch_size):
        raise InputError(
            f"{subject.name} was exported for batches of {subject.batch_size}: --batch-size {batch_size} does not fit"
        )
    size = subject.batch_size or batch_size
    if text is None:
        return _noise(subject, size or NOISE_SAMPLES, torch.Generator().manual_seed(seed))
    name, colon, rest = text.partition(":")
    limit = BATCHES * (size or BATCH_SIZE)
    if name in (*_FOLDERS, "npz") and colon and rest in ("", RAW):
        raise InputError(f"--data {text} lacks what follows the colon: {FORMS}")
    named = named_split(text, limit, seed)
    if named is not None:
        images, count = named[0].train_images, f"{len(named[0].train_images):,}"
        of = f"the first {count} training images of {name}" if colon else "scikit-learn's digits, the training part"
        return _in_batches(images, subject.model, size, f"{of}, {named[1]}")
    if name == "npz" and colon:
        return _in_batches(npz_inputs(at_home(rest), limit), subject.model, size, rest)
    if colon and rest:
        return _from_object(text, subject.model, size)
    raise InputError(f"--data {text!r} is of no known form: it is {FORMS}")


_FOLDERS: dict[str, tuple[Callable[..., data_sets.Split], data_sets.ChannelScale]] = {
    "mnist": (data_sets.mnist, data_sets.MNIST_SCALE),
    "cifar10": (data_sets.cifar10, data_sets.CIFAR_SCALE),
}


def folder_split(name: str, text: str, limit: int) -> tuple[data_sets.Split, str]:
    """Read at most so many images of each part of a data set; return it with how its values were scaled.

    The text is what follows the name on the command line: a folder, with `raw:` before it for values from 0 to 1.
    """
    raw, folder = text.startswith(RAW), at_home(text.removeprefix(RAW))
    read, scale = _FOLDERS[name]
    try:
        split = read(folder, limit=limit, standardise=not raw)
    except OSError as error:
        raise InputError(f"cannot read {folder}: {error.strerror or error}") from error
    if raw:
        return split, f"{UNIT}, not standardised"
    mean, deviation = (", ".join(f"{value:g}" for value in values) for values in (scale.mean, scale.deviation))
    each = " of each channel" if len(scale.mean) > 1 else ""
    return split, (
        f"standardised (less the mean {mean}, divided by the deviation {deviation}{each}; {name}:{RAW}FOLDER leaves "
        "the values from 0 to 1)"
    )


def named_split(text: str, limit: int, seed: int) -> tuple[data_sets.Split, str] | None:
    """Return `digits`, or what `folder_split` reads for `mnist:FOLDER` or `cifar10:FOLDER`; None for other data."""
    name, _, rest = text.partition(":")
    if text == "digits":
        return data_sets.digits(generator=torch.Generator().manual_seed(seed)), UNIT
    return folder_split(name, rest, limit) if name in _FOLDERS and rest else None


def _noise(subject: GivenModel, samples: int, generator: torch.Generator) -> Batches:
    """Return one batch of random noise of the sizes that the model takes."""
    if subject.noise is None:
        raise InputError(f"{subject.name} does not say what it takes: give --data ({FORMS})")
    note = (
        f"the data are random noise ({samples} samples): norms and bounds over all inputs are those of the model, but "
        "figures at the data, variances and dead units say nothing about real inputs; give --data"
    )
    return Batches(first=subject.noise(samples, generator), notes=(note,))


def _in_batches(samples: Tensor, model: nn.Module | None, size: int | None, source: str) -> Batches:
    """Cut a tensor into batches, in the model's dtype; a smaller rest is left out."""
    size = size or BATCH_SIZE
    if not len(samples):
        raise InputError(f"--data holds no sample ({source})")
    kept = samples[: BATCHES * size]
    if kept.is_floating_point():
        kept = convert_samples(kept, dtype_of(model), source)
    batches = kept[: max(len(kept) - len(kept) % size, min(size, len(kept)))].split(size)
    note = f"data: {source}, {pluralise(len(batches), 'batch', 'batches')} of {len(batches[0]):,}"
    return Batches(first=batches[0], loader=batches, notes=(note,))


def convert_samples(samples: Tensor, dtype: torch.dtype, source: str) -> Tensor:
    """Return samples in a model's dtype; refuse samples beyond its range."""
    in_dtype = samples.to(dtype)
    beyond = in_dtype.isinf() & ~samples.isinf()
    if bool(beyond.any()):
        name = str(dtype).removeprefix("torch.")
        worst = float(samples[beyond].abs().max())
        raise InputError(f"--data holds {worst:.3g}, beyond the range of the model's {name}: scale the data ({source})")
    return in_dtype


def at_home(path: str) -> Path:
    """Return a path with `~` resolved."""
    return Path(os.path.expanduser(path))  # Path.expanduser would raise if there is no such user.


def dtype_of(model: nn.Module | None) -> torch.dtype:
    """Return the floating-point dtype of a model's parameters."""
    parameters = () if model is None else model.parameters()
    return next((p.dtype for p in parameters if p.is_floating_point()), torch.float32)


def npz_inputs(path: Path, samples: int) -> Tensor:
    """Read the first inputs of an npz file: bytes become values in [0, 1], other integers stay as they are."""
    name, array, names = npz_array(path, INPUTS, samples)
    if array is None:
        held = listed([f"{name:.40}" for name in names], most=10) or "nothing"
        raise InputError(f"{path} holds {held}: the inputs must be called {', '.join(INPUTS[:-1])} or {INPUTS[-1]}")
    if array.ndim < 1:
        raise InputError(f"the array {name!r} of {path} is a single number: not samples")
    if array.dtype == np.uint8:
        return torch.from_numpy(array).float() / 255.0
    if array.dtype.kind != "f":
        return torch.from_numpy(array.astype(np.int64))
    with np.errstate(over="ignore"):  # Long doubles may overflow to infinity.
        return torch.from_numpy(array.astype(np.float64 if array.dtype.itemsize > 4 else np.float32))


def npz_array(
    path: Path, wanted: tuple[str, ...], samples: int
) -> tuple[str | None, np.ndarray | None, tuple[str, ...]]:
    """Return name and first samples of the first wanted array of an npz file, and the names of all its arrays."""
    if not os.path.isfile(path):
        raise InputError(f"no file {path}")
    try:
        with open_npz(path, max_bytes=MAX_DATA_BYTES) as archive:
            name = next((name for name in wanted if name in archive.names), None)
            return name, None if name is None else archive.array(name, rows=samples), archive.names
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as an npz file of plain arrays ({error}): save such a file with numpy.savez, or "
            "give a loader (package.module:loader)"
        ) from error


def _from_object(text: str, model: nn.Module | None, size: int | None) -> Batches:
    """Return the batches of a Python object: a loader, a data set, a tensor, or a function that returns one."""
    source = load_object(text)
    if not _is_iterable(source):
        if not callable(source):
            raise InputError(
                f"{text} is of type {type(source).__name__}: neither batches nor a function that returns them"
            )
        source = call_object(source, text)
    if isinstance(source, np.ndarray):
        source = torch.from_numpy(source)
    if isinstance(source, Tensor):
        return _in_batches(source, model, size, text)
    if isinstance(source, torch.utils.data.Dataset) and not isinstance(source, torch.utils.data.IterableDataset):
        source = torch.utils.data.DataLoader(source, batch_size=size or BATCH_SIZE)
    if not _is_iterable(source):
        raise InputError(
            f"{text} gives an object of type {type(source).__name__}: batches are a DataLoader, a Dataset, a list or a "
            "tensor"
        )
    try:
        first = next(iter(source), None)
    except (Exception, SystemExit) as error:
        raise InputError(f"{text} raises {describe_user_error(error)} while it yields its first batch") from error
    if first is None:
        raise InputError(f"{text} yields no batch: there is nothing to audit with")
    if isinstance(source, Iterator):  # An iterator can be read only once.
        source = itertools.chain([first], source)
    return Batches(first=first, loader=UserBatches(source, text), notes=(f"data: {text}",))


def _is_iterable(source: Any) -> bool:
    """Whether batches can be read from an object; a class is none."""
    return not isinstance(source, type) and (
        hasattr(source, "__iter__") or isinstance(source, torch.utils.data.Dataset)
    )


class UserBatches:
    """The batches of the user's loader; its exceptions become an `InputError` of one sentence."""

    def __init__(self, source: Iterable[Any], name: str) -> None:
        self.source, self.name = source, name

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.source
        except (Exception, SystemExit) as error:
            raise InputError(f"{self.name} raises {describe_user_error(error)} while it yields batches") from error

    def __length_hint__(self) -> int:
        return operator.length_hint(self.source)


LABELS = ("y", "labels", "targets")
"""The names that the array of classes may have in an npz file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """Batches, each with the classes of its samples or None, and notes for the report."""

    batches: Iterable[tuple[Any, Any]]
    notes: tuple[str, ...] = ()


def open_labelled(text: str | None, subject: GivenModel, *, samples: int, seed: int) -> Labelled:
    """Turn `--data` into samples with classes: the test part of named data sets, else the user's data."""
    name, _, rest = (text or "").partition(":")
    named = named_split(text or "", samples, seed)
    if named is not None:
        of = "scikit-learn's digits, the part kept for testing" if text == "digits" else f"test images of {name}"
        source = f"{of}, {named[1]}"
        images = convert_samples(named[0].test_images[:samples], dtype_of(subject.model), source)
        pair = (images, named[0].test_labels[:samples])
        return Labelled(batches=(pair,), notes=(f"data: {source}, {len(images):,} samples",))
    if name == "npz" and rest:
        return _npz(at_home(rest), subject, samples)
    opened = open_data(text, subject, batch_size=min(samples, subject.batch_size or samples), seed=seed)
    batches = [opened.first] if opened.loader is None else opened.loader
    return Labelled(batches=_first(batches, samples), notes=opened.notes)


def open_with_labels(text: str, subject: GivenModel, *, samples: int, seed: int) -> tuple[list[Any], tuple[str, ...]]:
    """Return the batches of `open_labelled`, and notes for the report; refuse data without labels."""
    labelled = open_labelled(text, subject, samples=samples, seed=seed)
    batches = list(labelled.batches)
    if any(labels is None for _, labels in batches):
        raise InputError(f"{text} has no labels: batches are pairs of inputs and labels")
    return batches, labelled.notes


def open_split(text: str, subject: GivenModel, *, samples: int, seed: int) -> tuple[Any, Any, tuple[str, ...]]:
    """Return training samples with labels, and test samples if the data set has them; and notes for the report."""
    named = named_split(text, samples, seed)
    if named is None:
        train, notes = open_with_labels(text, subject, samples=samples, seed=seed)
        return train, None, notes
    split, values = named
    train, test = (
        list(
            zip(
                convert_samples(images[:samples], dtype_of(subject.model), values).split(SPLIT_BATCH),
                labels[:samples].split(SPLIT_BATCH),
            )
        )
        for images, labels in ((split.train_images, split.train_labels), (split.test_images, split.test_labels))
    )
    return train, test, (f"data: {text.partition(':')[0]}, {values}, training and test part",)


def _npz(path: Path, subject: GivenModel, samples: int) -> Labelled:
    """Return the samples of an npz file, with their classes if it has any."""
    inputs = npz_inputs(path, samples)
    if not len(inputs):
        raise InputError(f"{path} holds no sample")
    inputs = convert_samples(inputs, dtype_of(subject.model), str(path)) if inputs.is_floating_point() else inputs
    name, array, _ = npz_array(path, LABELS, samples)
    if array is None:
        note = (
            f"data: {path}, {len(inputs):,} samples without labels ({', '.join(LABELS)}): the predicted classes count"
        )
        return Labelled(batches=((inputs, None),), notes=(note,))
    if array.dtype.kind not in "iu":
        raise InputError(f"the array {name!r} of {path} has dtype {array.dtype}: labels are integers")
    labels = torch.from_numpy(array.astype(np.int64))
    return Labelled(batches=((inputs, labels),), notes=(f"data: {path}, {len(inputs):,} samples",))


def _first(batches: Iterable[Any], samples: int) -> Iterator[tuple[Any, Any]]:
    """Yield batches as pairs until there are enough samples; the last batch is cut."""
    remaining = samples
    for batch in batches:
        inputs, labels = _pair(batch)
        sizes = [len(leaf) for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim]
        count = sizes[0] if sizes else 1
        if count > remaining and len(set(sizes)) == 1:
            labels = None if labels is None else labels[:remaining]
            inputs = tree_map(lambda v: v[:remaining] if isinstance(v, Tensor) else v, inputs)  # noqa: B023 - called here
            count = remaining
        yield inputs, labels
        remaining -= count
        if remaining <= 0:
            return


def _pair(batch: Any) -> tuple[Any, Any]:
    """Return the inputs and the labels of a batch; None for labels that it does not have."""
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if key != "labels"}, batch.get("labels")
    if isinstance(batch, Sequence) and len(batch) == 2:
        return batch[0], batch[1]
    return batch, None
