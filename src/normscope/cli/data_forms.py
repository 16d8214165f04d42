"""What `--data` on the command line may be, and how each form becomes batches."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import InputError, said
from ..experiments import data as data_sets
from ..report.words import counted
from .model_forms import GivenModel
from .objects import call_object, load_object

BATCH_SIZE = 32
NOISE_SAMPLES = 8
"""A synthetic batch is there to size the layers; its statistics mean little."""
BATCHES = 64
"""Of a named data set: 2,048 samples in batches of 32 settle every statistic an audit shows. Loaders are read whole."""
INPUTS = ("x", "images", "data")
UNIT = "values from 0 to 1"
FORMS = "digits, mnist:FOLDER, cifar10:FOLDER, npz:FILE, package.module:loader or path/to/file.py:loader"
RAW = "raw:"
"""Stands before a folder whose images are wanted as they are, from 0 to 1, and not standardised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Batches to audit with.

    Attributes:
        first: the batch that bounds and Jacobians speak of.
        loader: all of them; `None` if there is just the one.
        notes: for the report.
    """

    first: Any
    loader: Iterable[Any] | None = None
    notes: tuple[str, ...] = ()


def open_data(text: str | None, given: GivenModel, *, batch_size: int | None, seed: int) -> Batches:
    """Turn `--data` into batches for a model.

    Args:
        text: as given on the command line; None takes random noise where the model says what it takes.
        given: the model.
        batch_size: samples a batch; None for the usual number, or the only one the model takes.
        seed: of the noise and of the order of the digits.

    Raises:
        InputError: the data are missing, damaged, empty or of no known form.
    """
    if batch_size is not None and given.batch_size not in (None, batch_size):
        raise InputError(
            f"{given.name} was exported for batches of {given.batch_size}: --batch-size {batch_size} does not fit"
        )
    size = given.batch_size or batch_size
    generator = torch.Generator().manual_seed(seed)
    if text is None:
        return _noise(given, size or NOISE_SAMPLES, generator)
    name, colon, place = text.partition(":")
    if text == "digits":
        images = data_sets.digits(generator=generator).train_images
        return _in_batches(images, given.model, size, f"scikit-learn's digits, the training part, {UNIT}")
    if name in (*_FOLDERS, "npz") and colon and place in ("", RAW):
        raise InputError(f"--data {text} lacks what follows the colon: {FORMS}")
    if name in _FOLDERS and colon:
        limit = BATCHES * (size or BATCH_SIZE)
        split, values = folder_split(name, place, limit)
        count = len(split.train_images)
        source = f"the first {count:,} training images of {name}, {values}"
        return _in_batches(split.train_images, given.model, size, source)
    if name == "npz" and colon:
        return _in_batches(npz_inputs(at_home(place)), given.model, size, f"{place}")
    if colon and place:
        return _from_object(text, given.model, size)
    raise InputError(f"--data {text!r} is of no known form: it is {FORMS}")


_FOLDERS: dict[str, tuple[Callable[..., data_sets.Split], data_sets.ChannelScale]] = {
    "mnist": (data_sets.mnist, data_sets.MNIST_SCALE),
    "cifar10": (data_sets.cifar10, data_sets.CIFAR_SCALE),
}


def folder_split(name: str, place: str, limit: int) -> tuple[data_sets.Split, str]:
    """Read a data set from the user's folder, at most `limit` images of either part; say what was done to the values.

    Args:
        name: of the data set.
        place: what follows it on the command line: the folder, with `raw:` before it for values from 0 to 1.
        limit: at most this many images of either part.
    """
    raw, folder = place.startswith(RAW), at_home(place.removeprefix(RAW))
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


def _noise(given: GivenModel, samples: int, generator: torch.Generator) -> Batches:
    if given.noise is None:
        raise InputError(f"{given.name} does not say what it takes: give --data ({FORMS})")
    note = (
        f"the data are random noise ({samples} samples): norms and bounds over all inputs are those of the model, but "
        "figures at the data, variances and dead units say nothing about real inputs; give --data"
    )
    return Batches(first=given.noise(samples, generator), notes=(note,))


def _in_batches(samples: Tensor, model: nn.Module | None, size: int | None, source: str) -> Batches:
    """Cut a tensor into batches, in the model's dtype; a smaller rest is left out."""
    size = size or BATCH_SIZE
    if not len(samples):
        raise InputError(f"--data holds no sample ({source})")
    kept = samples[: BATCHES * size]
    if kept.is_floating_point():
        kept = converted(kept, dtype_of(model), source)
    batches = kept[: max(len(kept) - len(kept) % size, min(size, len(kept)))].split(size)
    note = f"data: {source}, {counted(len(batches), 'batch', 'batches')} of {len(batches[0]):,}"
    return Batches(first=batches[0], loader=batches, notes=(note,))


def converted(samples: Tensor, dtype: torch.dtype, source: str) -> Tensor:
    """Return samples in a model's dtype, unless some of them lie beyond its range."""
    made = samples.to(dtype)
    beyond = made.isinf() & ~samples.isinf()
    if bool(beyond.any()):
        name = str(dtype).removeprefix("torch.")
        worst = float(samples[beyond].abs().max())
        raise InputError(f"--data holds {worst:.3g}, beyond the range of the model's {name}: scale the data ({source})")
    return made


def at_home(place: str) -> Path:
    """Return a path with `~` resolved."""
    return Path(os.path.expanduser(place))  # Path.expanduser raises where there is no such user


def dtype_of(model: nn.Module | None) -> torch.dtype:
    """Return the float type of a model's parameters."""
    parameters = () if model is None else model.parameters()
    return next((p.dtype for p in parameters if p.is_floating_point()), torch.float32)


def npz_inputs(path: Path) -> Tensor:
    """Read the inputs of an npz file: bytes become values in [0, 1], other integers stay ids."""
    name, array, names = npz_array(path, INPUTS)
    if array is None:
        held = ", ".join(names) or "nothing"
        raise InputError(f"{path} holds {held}: the inputs must be called {', '.join(INPUTS[:-1])} or {INPUTS[-1]}")
    if array.ndim < 1 or array.dtype.kind not in "fiub":
        raise InputError(f"the array {name!r} of {path} has dtype {array.dtype} and shape {array.shape}: not samples")
    if array.dtype == np.uint8:
        return torch.from_numpy(array).float() / 255.0
    if array.dtype.kind != "f":
        return torch.from_numpy(array.astype(np.int64))
    with np.errstate(over="ignore"):  # long doubles
        return torch.from_numpy(array.astype(np.float64 if array.dtype.itemsize > 4 else np.float32))


def npz_array(path: Path, wanted: tuple[str, ...]) -> tuple[str | None, np.ndarray | None, list[str]]:
    """Return the first array of an npz file that bears a wanted name, with that name, and the names of all."""
    if not os.path.isfile(path):
        raise InputError(f"no file {path}")
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("a single array, not an npz archive")
        with archive:
            names = archive.files
            name = next((name for name in wanted if name in names), None)
            return name, None if name is None else archive[name], names
    except Exception as error:
        raise InputError(f"{path} is no npz file of plain arrays, or is damaged ({said(error)})") from error


def _from_object(text: str, model: nn.Module | None, size: int | None) -> Batches:
    """Take batches from an object of the user's: a loader, a data set, a tensor, or a function that returns one."""
    found = load_object(text)
    if not _iterable(found):
        if not callable(found):
            raise InputError(
                f"{text} is of type {type(found).__name__}: neither batches nor a function that returns them"
            )
        found = call_object(found, text)
    if isinstance(found, np.ndarray):
        found = torch.from_numpy(found)
    if isinstance(found, Tensor):
        return _in_batches(found, model, size, text)
    if isinstance(found, torch.utils.data.Dataset) and not isinstance(found, torch.utils.data.IterableDataset):
        found = torch.utils.data.DataLoader(found, batch_size=size or BATCH_SIZE)
    if not _iterable(found):
        raise InputError(
            f"{text} gives an object of type {type(found).__name__}: batches are a DataLoader, a Dataset, a list or a "
            "tensor"
        )
    try:
        first = next(iter(found), None)
    except (Exception, SystemExit) as error:
        raise InputError(f"{text} raises {said(error)} while it yields its first batch") from error
    if first is None:
        raise InputError(f"{text} yields no batch: there is nothing to audit with")
    if isinstance(found, Iterator):  # it can be read only once
        found = itertools.chain([first], found)
    return Batches(first=first, loader=UserBatches(found, text), notes=(f"data: {text}",))


def _iterable(found: Any) -> bool:
    return not isinstance(found, type) and (hasattr(found, "__iter__") or isinstance(found, torch.utils.data.Dataset))


class UserBatches:
    """The batches of a loader of the user's; its errors become one sentence.

    Args:
        source: yields batches.
        name: how errors call it.
    """

    def __init__(self, source: Iterable[Any], name: str) -> None:
        self.source, self.name = source, name

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.source
        except (Exception, SystemExit) as error:
            raise InputError(f"{self.name} raises {said(error)} while it yields batches") from error

    def __length_hint__(self) -> int:
        return operator.length_hint(self.source)
