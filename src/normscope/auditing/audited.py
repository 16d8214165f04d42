"""`Audited`: what an audit knows of a model beside what a check knows, when its findings are looked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..bounds.derivative import Mismatch
from ..bounds.graph.ir import Graph, Node, Unit
from ..bounds.operators.effects import Effect
from ..bounds.operators.invariance import FeedingLayer
from ..core.bracket import Bracket
from ..doctor.facts.examined import Examined, ExaminedRow
from ..doctor.facts.layers_over_data import RELATIVE_CHANNEL, NormalizerOverData, WeightOverData
from .audit_result import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedRow:
    """One row of the audit with what stands behind it; `node` and `effect` are None where the model was not traced."""

    row: Row
    node: Node | None = None
    effect: Effect | None = None
    normalizer: NormalizerOverData | None = None
    weight: WeightOverData | None = None

    @property
    def path(self) -> str:
        """Where it is, in words: the module's path, or the model as a whole."""
        return self.row.path or "the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited(Examined):
    """A model, its layers and its data, with its graph and its bounds.

    Attributes:
        rows: one per place.
        feeds: which weights feed which normalizers.
        graph: what was captured; `None` if the model cannot be traced.
        effects: every node's effect by name.
        mismatches: modules whose backward is not the derivative of their forward.
        bounds: the brackets of the whole network by method.
    """

    rows: tuple[AuditedRow, ...] = ()
    feeds: tuple[FeedingLayer, ...] = ()
    graph: Graph | None = None
    effects: Mapping[str, Effect] = field(default_factory=dict)
    mismatches: tuple[Mismatch, ...] = ()
    bounds: Mapping[str, Bracket] = field(default_factory=dict)


def examined_rows(rows: Sequence[AuditedRow], feeds: Sequence[FeedingLayer] = ()) -> tuple[ExaminedRow, ...]:
    """Return the facts of the rows of an audit, of which `feeds` says which weights feed which normalizers."""
    feeding: dict[str, set[str]] = {}
    for feed in feeds:
        feeding.setdefault(feed.normalizer.name, set()).add(feed.weight.name)
    fed = set[str]().union(*feeding.values())
    names = [None if row.node is None else row.node.name for row in rows]
    found = []
    for audited, name in zip(rows, names, strict=True):
        row, node, before = audited.row, audited.node, feeding.get(name or "", ())
        dead = None if node is None or audited.normalizer is not None else dead_filters(node, normalized=name in fed)
        found.append(
            ExaminedRow(
                module=row.path,
                kind=row.kind,
                operator=row.operator,
                role=row.role,
                normalizer=audited.normalizer,
                weight=audited.weight,
                norm=row.norm,
                log10_folded=row.log10_folded,
                folded_with=row.folded_with,
                fed_by=next((number for number, other in enumerate(names) if other in before), None),
                feeds_normalizer=name in fed,
                dead_filters=dead,
            )
        )
    return tuple(found)


def dead_filters(node: Node, *, normalized: bool) -> Tensor | None:
    """Return which filters of a weight layer are negligible; None where the layout of its weight is not known.

    Args:
        node: a linear layer or a convolution.
        normalized: whether a normalizer follows, which makes up for a small filter, but not for a zero one.
    """
    if node.is_transposed_convolution:
        return None
    if isinstance(node.op, Unit):
        weight, axis = (node.args[1] if len(node.args) > 1 else None), 0
    else:
        given = node.bound()
        weight, axis = given.get("weight"), 0
        if given.get("transposed"):
            return None
        if weight is None:  # x @ W: the channels are columns
            weight, axis = given.get("mat2", given.get("other")), 1
    if not isinstance(weight, Tensor) or weight.ndim < 2 or (axis == 1 and weight.ndim > 2) or not weight.numel():
        return None
    size = torch.linalg.vector_norm(weight.detach().double().transpose(0, axis).flatten(1), dim=1).cpu()
    return size <= (0.0 if normalized else RELATIVE_CHANNEL) * size.max()
