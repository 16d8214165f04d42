"""`Twin`: a model's twin, and what was changed to make it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from ..core.codec import JsonForm, encoded
from ..report.shown import Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One place of a model that its twin has otherwise.

    Attributes:
        path: the module.
        was, now: what stood and what stands there.
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
        normalizer: what it was asked to have.
        changes: one per place, in the order of the model.
        checked: whether it was run on a batch.
        notes: what the reader must know.
    """

    page = "twin:twin_document"
    JSON: ClassVar[JsonForm] = JsonForm(left_out=("model",))

    model: nn.Module = field(repr=False)
    normalizer: str | None
    changes: tuple[Change, ...]
    checked: bool
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data: what was changed, without the weights."""
        return dict(encoded(self))
