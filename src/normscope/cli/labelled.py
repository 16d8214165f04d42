"""Turn `--data` into a limited number of samples with their classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import data as data_sets
from ..core.errors import InputError
from .data_forms import UNIT, at_home, converted, dtype_of, folder_split, npz_array, npz_inputs, open_data
from .model_forms import GivenModel

LABELS = ("y", "labels", "targets")
"""The names that the array of classes may have in an npz file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """Batches, each with the classes of its samples or None, and notes for the report."""

    batches: Iterable[tuple[Any, Any]]
    notes: tuple[str, ...] = ()


def open_labelled(text: str | None, given: GivenModel, *, samples: int, seed: int) -> Labelled:
    """Turn `--data` into samples with classes: the test part of named data sets, else the user's data."""
    name, colon, rest = (text or "").partition(":")
    if text == "digits":
        split = data_sets.digits(generator=torch.Generator().manual_seed(seed))
        return _of_split(split, given, samples, f"scikit-learn's digits, the part kept for testing, {UNIT}")
    if name in ("mnist", "cifar10") and colon and rest:
        split, values = folder_split(name, rest, samples)
        return _of_split(split, given, samples, f"test images of {name}, {values}")
    if name == "npz" and colon and rest:
        return _npz(at_home(rest), given, samples)
    opened = open_data(text, given, batch_size=min(samples, given.batch_size or samples), seed=seed)
    batches = [opened.first] if opened.loader is None else opened.loader
    return Labelled(batches=_first(batches, samples), notes=opened.notes)


def _of_split(split: data_sets.Split, given: GivenModel, samples: int, source: str) -> Labelled:
    """Return the test images of a data set with their classes."""
    images = converted(split.test_images[:samples], dtype_of(given.model), source)
    note = f"data: {source}, {len(images):,} samples"
    return Labelled(batches=((images, split.test_labels[:samples]),), notes=(note,))


def _npz(path: Path, given: GivenModel, samples: int) -> Labelled:
    """Return the samples of an npz file, with their classes if it has any."""
    inputs = npz_inputs(path, samples)
    if not len(inputs):
        raise InputError(f"{path} holds no sample")
    inputs = converted(inputs, dtype_of(given.model), str(path)) if inputs.is_floating_point() else inputs
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
        sizes = [len(leaf) for leaf in _tensors(inputs) if leaf.ndim]
        count = sizes[0] if sizes else 1
        if count > remaining and len(set(sizes)) == 1:
            labels = None if labels is None else labels[:remaining]
            inputs, count = _cut(inputs, remaining), remaining
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


def _tensors(inputs: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]


def _cut(inputs: Any, count: int) -> Any:
    """Return the first samples of a batch."""
    return torch.utils._pytree.tree_map(lambda v: v[:count] if isinstance(v, Tensor) else v, inputs)
