"""`Twin`: a model's twin, and the changes that made it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from ..core.codec import JsonForm, encode
from ..report.shown import Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One module of a model that differs in its twin.

    Attributes:
        path: the path of the module.
        was, now: the module in the model, and the one in the twin.
        note: what was done to weights, scales, shifts or statistics.
    """

    path: str
    was: str
    now: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin(Shown):
    """A copy of a model with other normalizers. Prints as a table of what was changed.

    Attributes:
        model: the twin, a `torch.nn.Module` of its own.
        normalizer: the kind of normalizer that was asked for; None for none.
        changes: one per changed module, in the order of the model.
        checked: whether the twin was run on a batch.
        notes: what the reader must know.
    """

    page = "networks:twin_document"
    JSON: ClassVar[JsonForm] = JsonForm(left_out=("model",))

    model: nn.Module = field(repr=False)
    normalizer: str | None
    changes: tuple[Change, ...]
    checked: bool
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the changes as plain data, without the weights."""
        return dict(encode(self))
