"""DATA in parts: the norms of the samples of each class, and the gains of each layer at all samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import InputError
from ..domain.gains import block_gains
from ..domain.recording import Recorder
from .quantile import DataBracket, quantile

PER = ("class", "layer")
"""The values that the option `per` may have with scope DATA."""
NAMES = ("labels", "label")
"""The keys under which a batch that is a dict may hold its classes."""


def labels_of(batch: Any, count: int) -> list[int]:
    """Return the class of each sample of a batch: the second entry of a pair, or the entry `labels` of a dict.

    Raises:
        InputError: there is none, or not one whole number for each sample.
    """
    given = None
    if isinstance(batch, Mapping):
        given = next((batch[name] for name in NAMES if name in batch), None)
    elif isinstance(batch, Sequence) and len(batch) == 2:
        given = batch[1]
    if not isinstance(given, Tensor) or given.is_floating_point() or given.numel() != count:
        raise InputError(
            'per="class" needs the class of every sample: let the loader yield pairs (inputs, labels), or dicts with '
            "an entry `labels`, of whole numbers"
        )
    return [int(label) for label in given.reshape(-1).tolist()]


def by_class(found: DataBracket, labels: Sequence[int]) -> dict[str, DataBracket]:
    """Return the quantiles of the samples of each class, which are independent draws of that class.

    Args:
        found: the norms at all samples.
        labels: the class of each.
    """
    parts = {}
    for label in sorted(set(labels)):
        places = [i for i, own in enumerate(labels) if own == label]
        part = _part(found, [found.log10_norms_lower[i] for i in places], [found.log10_norms[i] for i in places])
        parts[str(label)] = part.renumbered(places)
    return parts


def _part(found: DataBracket, lowers: list[float], uppers: list[float], method: str = "") -> DataBracket:
    return quantile(
        lowers,
        uppers,
        share=found.share,
        confidence=found.confidence,
        mode="eval",
        method=method or found.method.partition(": ")[2],
        input_shape=found.input_shape or (),
        notes=(),
        products=0,
    )


class LayerNorms:
    """The gains of the layers of a model at samples that come batch by batch: norms of their own Jacobians.

    Layers that stand side by side, in a branch or around one, count as one: a part of the network between two values
    that everything passes through, at the ends of modules. The Jacobian of the network is the product of theirs.

    Args:
        model: any `torch.nn.Module` that can be traced.
        batch: the first one.
        mode: as for `normscope.lipschitz`.
        output: as for `normscope.lipschitz`.

    Raises:
        CaptureError: the model cannot be traced.
    """

    def __init__(self, model: nn.Module, batch: Any, mode: str | None, output: str | int | None) -> None:
        self._recorder = Recorder.of(model, batch, mode, output, None, block_gains)
        self._gains: list[Tensor] = []

    def add(self, batch: Any) -> None:
        """Take the gains at the samples of a batch.

        Raises:
            InputError: its samples have another form than those of the first.
        """
        taken = self._recorder.points(batch)
        if taken is None:
            raise InputError('per="layer" needs batches of one form: these are whole batches of several sizes')
        figures = self._recorder.checked_figures(*taken)
        self._gains.append(torch.cat([figures[c.key] for c in self._recorder.conditions], dim=1).cpu())

    def brackets(self, found: DataBracket) -> dict[str, DataBracket]:
        """Return the quantiles of each layer's gain, by the module that it ends with.

        Args:
            found: the quantile of the whole network.
        """
        columns = torch.cat(self._gains).log10().T.tolist()
        parts: dict[str, DataBracket] = {}
        for condition, uppers in zip(self._recorder.conditions, columns, strict=True):
            name = condition.node.path or condition.node.operator
            runs = sum(known.partition("#")[0] == name for known in parts)
            below = [-float("inf")] * len(uppers)
            title = f"{name}#{runs + 1}" if runs else name
            parts[title] = _part(found, below, uppers, "Jacobians of the layer, from above")
        return parts
