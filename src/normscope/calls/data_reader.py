"""`Batches`: the user's data, whatever their form, as batches on the model's device; the only reader of data.

Data are one batch (a tensor, a NumPy array, a tuple or a list of arguments, a dict of them, labels behind or among
them), an iterable of batches such as a `DataLoader`, or a map-style data set, whose rows are put into batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import SUPPORTED_NODES
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..core.errors import InputError, describe_error
from ..core.untouched import mode_of, unwrapped
from .call import arguments_needed, arguments_taken, is_label, is_record, map_leaves, names_arguments, parameters_of

LABEL_KEYS = ("labels", "label")
"""The keys under which a batch that is a dict may hold its labels."""
Result = TypeVar("Result")
ROWS_PER_BATCH = 64
"""How many rows of a data set are put into one batch."""
FIRST_ALONE = "the data hold several batches: the first one was measured"
FORMS = (
    "pass a batch (a tensor, a NumPy array, a tuple of arguments, a dict of them), an iterable of batches such as a "
    "DataLoader, or a data set with __getitem__ and __len__"
)


class Batches:
    """The batches of the user's data on the model's device, in the form in which `arguments` takes them.

    NumPy arrays become tensors, those of floats in the model's dtype. Labels that the user named stand behind the
    inputs, as a pair; so do those of a dict whose other entries are the arguments of `forward`. Every iteration reads
    the data anew, if they can be read again.

    Args:
        model: the model that takes the batches.
        data: one batch, an iterable of batches, or a data set.
        labels: the labels of one batch, or the key that they have in batches that are dicts; None to recognise them.
        with_loss: whether a loss compares outputs with labels. Labels then come apart from the inputs also where the
            model would take them itself, and two tensors in a tuple are inputs and targets, of whatever shape.
        name: what the argument is called that these data are passed as.

    Attributes:
        single: whether the data are one batch.

    Raises:
        InputError: the data have none of these forms, or the labels do not fit them.
    """

    def __init__(
        self, model: nn.Module, data: Any, *, labels: Any = None, with_loss: bool = False, name: str = "data"
    ) -> None:
        mode_of(model, None)  # This refuses what is no model.
        self.model, self.labels, self.with_loss, self.name = unwrapped(model), labels, with_loss, name
        tensors = itertools.chain(self.model.parameters(), self.model.buffers())
        self.device = next((tensor.device for tensor in tensors), None)
        floats = (p.dtype for p in self.model.parameters() if p.is_floating_point() and p.itemsize > 1)
        self.dtype = next(floats, torch.get_default_dtype())
        labelled = labels is not None and not isinstance(labels, str)
        self.single = _is_one_batch(self.model, data, with_loss=with_loss, labelled=labelled)
        if labelled and not self.single:
            raise InputError(
                f"{name} is a {type(data).__name__}, which holds several batches, and labels belong to one batch: let "
                "it yield pairs (inputs, labels), or dicts, and pass the key of their labels as labels="
            )
        self._source = [data] if self.single else _source_of(data, name)
        self._opened: Iterator[Any] | None = None  # a reading of which nothing but the first batch was looked at

    @property
    def count(self) -> int | None:
        """How many batches there are; None where the data do not say."""
        try:
            return len(self._source)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            return None

    def __length_hint__(self) -> int:
        return NotImplemented if self.count is None else self.count

    @property
    def readable_again(self) -> bool:
        """Whether the data can be read more than once."""
        return not isinstance(self._source, Iterator)

    def __iter__(self) -> Iterator[Any]:
        batch, source = None, self._opened or self._batches()
        self._opened = None
        for batch in source:
            yield self._placed(batch)
        if batch is None:
            raise InputError(f"`{self.name}` yields no batch: there is nothing to measure")

    @property
    def first(self) -> Any:
        """The first batch; the next iteration begins with it, and goes on reading where this stopped."""
        source = self._opened or self._batches()
        batch = next(source, None)
        if batch is None:
            raise InputError(f"`{self.name}` yields no batch: there is nothing to measure")
        self._opened = itertools.chain([batch], source)
        return self._placed(batch)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a result of the first batch alone tells the reader: nothing where there is no other."""
        return () if self.single or self.count == 1 else (FIRST_ALONE,)

    def noted(self, result: Result) -> Result:
        """Return the result of the first batch with a note that there are others."""
        return replace(result, notes=(*result.notes, *self.notes)) if self.notes else result  # type: ignore

    def _batches(self) -> Iterator[Any]:
        """Read the data from the beginning; rows of a data set that do not fit together are one error."""
        try:
            yield from self._source
        except (TypeError, RuntimeError, KeyError, IndexError) as error:
            if not isinstance(self._source, _Rows):
                raise
            raise InputError(
                f"the rows of this {type(self._source.dataset).__name__} cannot be put into batches "
                f"({describe_error(error)}): pass a DataLoader with a collate_fn"
            ) from error

    def _placed(self, batch: Any) -> Any:
        """Return a batch as tensors on the model's device, with its labels behind it where they can be told."""
        batch = dict(batch) if isinstance(batch, Mapping) and type(batch) not in SUPPORTED_NODES else batch
        batch = _without_text(self.model, batch)
        batch, labels = map_leaves(self._as_tensor, (batch, None if isinstance(self.labels, str) else self.labels))
        if labels is not None:
            try:
                return self._with_labels(batch, torch.as_tensor(labels, device=self.device))
            except (TypeError, ValueError) as error:
                raise InputError(f"labels are a tensor or a list of numbers, such as integers: {error}") from error
        if not isinstance(batch, Mapping):
            if isinstance(self.labels, str):
                raise InputError(f"labels={self.labels!r} names an entry of a dict, and a batch is a {_kind(batch)}")
            if not self.with_loss:
                return batch
            inputs, labels = inputs_and_labels(self.model, batch, expected=True)
            return batch if labels is None else self._with_labels(inputs, labels)
        if isinstance(self.labels, str) and self.labels not in batch:
            raise InputError(f"the batch has no entry {self.labels!r} to take labels from: it has {sorted(batch)}")
        keys = (self.labels,) if isinstance(self.labels, str) else LABEL_KEYS
        inputs, labels = _without_labels(batch, keys)
        named = isinstance(self.labels, str) or self.with_loss
        taken = parameters_of(self.model)
        refused = not taken.keys() & (batch.keys() - inputs.keys())
        refused = refused and not any(p.kind is p.VAR_KEYWORD for p in taken.values())
        apart = named or (refused and names_arguments(self.model, inputs))
        if labels is None or not apart:
            return batch
        shift = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if shift is not None and "decoder_input_ids" not in inputs:  # a Hugging Face decoder is fed the labels before
            inputs["decoder_input_ids"] = shift(labels=labels)
        return inputs, labels

    def _with_labels(self, inputs: Any, labels: Any) -> Any:
        """Return a pair of which nobody can take an argument of the model for the labels."""
        arguments = parameters_of(self.model)
        if isinstance(inputs, Mapping) and (held := [k for k in LABEL_KEYS if k in inputs and k not in arguments]):
            raise InputError(f"the data hold {held[0]!r} and labels were passed, too: pass them once")
        if not isinstance(inputs, Sequence) or isinstance(inputs, PackedSequence):
            return inputs, labels
        taken = arguments_taken(self.model)
        if taken is not None and len(inputs) > taken:
            raise InputError(
                f"the data have {len(inputs)} entries, the model takes {taken}, and labels were passed, too: pass them "
                "once, as labels= or as the last entry of the batch"
            )
        named = taken is not None  # the arguments of a `forward(*args)` have no names
        return dict(zip(parameters_of(self.model), inputs)) if named else tuple(inputs), labels

    def _as_tensor(self, value: Any) -> Any:
        """Return arrays as tensors, and tensors on the model's device."""
        if isinstance(value, np.ndarray | np.generic):
            try:
                value = torch.as_tensor(value)
            except TypeError as error:
                raise InputError(f"the data hold an array that is not one of numbers: {error}") from error
            value = value.to(self.dtype) if value.is_floating_point() else value
        return value.to(self.device) if isinstance(value, Tensor) and self.device is not None else value


def _without_labels(batch: Mapping[Any, Any], keys: Sequence[str]) -> tuple[dict[Any, Any], Any]:
    """Return the entries of a dict without the one that holds the labels, and the labels or None."""
    held = next((key for key in keys if key in batch), None)
    return {key: value for key, value in batch.items() if key != held}, None if held is None else batch[held]


def _is_text(value: Any) -> bool:
    """Whether a value is text, or a list of it."""
    return isinstance(value, str) or (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(part, str) for part in value)
    )


def _without_text(model: nn.Module, batch: Any) -> Any:
    """Return a batch without its entries of text, such as names of files, that `forward` does not take."""
    names, taken = parameters_of(model), arguments_taken(model)
    if isinstance(batch, Mapping):
        open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())
        extra = [key for key, value in batch.items() if key not in names and _is_text(value)]
        if not extra or open_ended or not names.keys() & batch.keys():
            return batch
        return {key: value for key, value in batch.items() if key not in extra}
    if isinstance(batch, list | tuple) and taken is not None and len(batch) > taken + 1:
        return tuple(value for value in batch if not _is_text(value)) if any(map(_is_text, batch)) else batch
    return batch


def inputs_and_labels(model: nn.Module, batch: Any, *, expected: bool = False) -> tuple[Any, Any]:
    """Return the inputs of a batch and its labels, None without any.

    Labels are the entry `labels` of a dict, and the last entry of a sequence with more entries than the model takes. Of
    two entries the second is the labels where it can only be that (`is_label`), or where labels are `expected` and
    the model needs one argument.
    """
    if isinstance(batch, Mapping):
        return _without_labels(batch, LABEL_KEYS)
    if not isinstance(batch, Sequence) or isinstance(batch, str | bytes | PackedSequence):
        return batch, None
    if len(batch) == 1:
        return batch[0], None
    taken = arguments_taken(model)
    if len(batch) == 2:
        nested = not isinstance(batch[0], Tensor)
        wanted = expected and arguments_needed(model) <= 1
        return tuple(batch) if nested or taken is None or wanted or is_label(model, batch[1]) else (tuple(batch), None)
    most = len(batch) if taken is None and not expected else (taken or len(batch) - 1)
    return (tuple(batch[:-1]), batch[-1]) if len(batch) > most or expected else (tuple(batch), None)


class _Rows(DataLoader[Any]):
    """The rows of a map-style data set in batches, in their order; torch's generator is not drawn from."""

    def __init__(self, rows: Any) -> None:
        super().__init__(rows, batch_size=ROWS_PER_BATCH, generator=torch.Generator())


def _source_of(data: Any, name: str) -> Iterable[Any]:
    """Return the batches of data that are more than one batch, as they were passed."""
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return _Rows(data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Sequence):
        return _Rows(data)
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise InputError(f"{name} is a {type(data).__name__}: {FORMS}")
    return data


def _is_one_batch(model: nn.Module, data: Any, *, with_loss: bool, labelled: bool) -> bool:
    """Whether data are one batch, and do not hold several.

    Tensors in a tuple or a list are one batch if the model needs several arguments, or if the last one differs from the
    first in dtype or number of axes and so can only be labels or a mask; so are two matrices of floats with as many
    rows and other columns. Other tensors are batches, as `tensor.split` returns them; but in a tuple they are arguments
    where the model takes that many, and inputs and targets where a loss compares these.
    """
    if isinstance(data, Tensor | np.ndarray | Mapping | PackedSequence) or is_record(data):
        return True
    if not isinstance(data, list | tuple) or not data:
        return False
    whole = isinstance(data, tuple)
    if labelled and not any(isinstance(entry, Mapping | list | tuple) for entry in data):
        return True
    if not all(isinstance(entry, Tensor | np.ndarray) for entry in data):
        nested = [isinstance(entry, Mapping | list | tuple | Tensor | np.ndarray) for entry in data]
        plain = [isinstance(entry, Tensor | np.ndarray) for entry in data]
        pair = len(data) == 2 and (plain[1] or (whole and with_loss and plain[0]))
        mixed = whole and plain[0] and not all(plain)  # such as an input and its state, no two batches
        beside_text = any(plain) and any(map(_is_text, data))
        alone = whole and len(data) == 1 and not isinstance(data[0], Mapping)
        return pair or mixed or beside_text or alone or not all(nested)
    if arguments_needed(model) > 1:
        return True
    taken = arguments_taken(model)
    if whole and len(data) > 1 and taken is not None and 1 < taken >= len(data):
        return True
    first, last = (torch.as_tensor(entry) for entry in (data[0], data[-1]))
    if first.is_floating_point() != last.is_floating_point() or first.ndim != last.ndim:
        return True
    if len(data) != 2:
        return False
    alike = first.shape[1:] == last.shape[1:]
    if not whole:  # matrices of other widths are no two batches, while sequences of other lengths may be
        matrices = first.is_floating_point() and first.ndim == 2 and len(first) == len(last)
        return matrices and not alike and is_label(model, last)
    return with_loss or (not alike and is_label(model, last))


def _kind(batch: Any) -> str:
    return "tensor" if isinstance(batch, Tensor) else type(batch).__name__
