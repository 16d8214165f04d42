"""Samples with their classes from what `--data` names, a limited number of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..experiments import data as data_sets
from .data_forms import UNIT, at_home, converted, dtype_of, folder_split, npz_array, npz_inputs, open_data
from .model_forms import GivenModel

LABELS = ("y", "labels", "targets")
"""What the classes may be called in an npz file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """Batches, each with the classes of its samples or None, and notes for the report."""

    batches: Iterable[tuple[Any, Any]]
    notes: tuple[str, ...] = ()


def open_labelled(text: str | None, given: GivenModel, *, samples: int, seed: int) -> Labelled:
    """Turn `--data` into samples with classes: the test part of named data sets, else what the user's data hold.

    Args:
        text: as given on the command line.
        given: the model.
        samples: at most this many.
        seed: of the order of the digits, and of noise.

    Raises:
        InputError: the data are missing, damaged, empty or of no known form.
    """
    name, colon, place = (text or "").partition(":")
    if text == "digits":
        split = data_sets.digits(generator=torch.Generator().manual_seed(seed))
        return _of_split(split, given, samples, f"scikit-learn's digits, the part kept for testing, {UNIT}")
    if name in ("mnist", "cifar10") and colon and place:
        split, values = folder_split(name, place, samples)
        return _of_split(split, given, samples, f"test images of {name}, {values}")
    if name == "npz" and colon and place:
        return _npz(at_home(place), given, samples)
    found = open_data(text, given, batch_size=min(samples, given.batch_size or samples), seed=seed)
    batches = [found.first] if found.loader is None else found.loader
    return Labelled(batches=_first(batches, samples), notes=found.notes)


def _of_split(split: data_sets.Split, given: GivenModel, samples: int, source: str) -> Labelled:
    images = converted(split.test_images[:samples], dtype_of(given.model), source)
    note = f"data: {source}, {len(images):,} samples"
    return Labelled(batches=((images, split.test_labels[:samples]),), notes=(note,))


def _npz(path: Path, given: GivenModel, samples: int) -> Labelled:
    inputs = npz_inputs(path)
    if not len(inputs):
        raise InputError(f"{path} holds no sample")
    inputs = converted(inputs[:samples], dtype_of(given.model), str(path)) if inputs.is_floating_point() else inputs
    name, array, _ = npz_array(path, LABELS)
    if array is None:
        note = (
            f"data: {path}, {len(inputs):,} samples without labels ({', '.join(LABELS)}): the predicted classes count"
        )
        return Labelled(batches=((inputs, None),), notes=(note,))
    if array.dtype.kind not in "iu":
        raise InputError(f"the array {name!r} of {path} has dtype {array.dtype}: labels are integers")
    labels = torch.from_numpy(array.astype(np.int64))[:samples]
    return Labelled(batches=((inputs, labels),), notes=(f"data: {path}, {len(inputs):,} samples",))


def _first(batches: Iterable[Any], samples: int) -> Iterator[tuple[Any, Any]]:
    """Yield batches as pairs until there are enough samples; the last one is cut."""
    left = samples
    for batch in batches:
        inputs, labels = _pair(batch)
        sizes = [len(leaf) for leaf in _tensors(inputs) if leaf.ndim]
        count = sizes[0] if sizes else 1
        if count > left and len(set(sizes)) == 1:
            inputs, labels, count = _cut(inputs, left), None if labels is None else labels[:left], left
        yield inputs, labels
        left -= count
        if left <= 0:
            return


def _pair(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if key != "labels"}, batch.get("labels")
    if isinstance(batch, Sequence) and len(batch) == 2:
        return batch[0], batch[1]
    return batch, None


def _tensors(inputs: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]


def _cut(inputs: Any, most: int) -> Any:
    return torch.utils._pytree.tree_map(lambda v: v[:most] if isinstance(v, Tensor) else v, inputs)
