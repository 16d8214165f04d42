"""`layer_constants`: every weight layer and normalizer of a captured model with its own constant."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.bracket import Evidence
from ..graph.ir import Shape
from ..rules.effects import Linear
from .captured import Captured
from .printed import is_normalizer, is_weight


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConstant:
    """One weight layer or normalizer: its own constant, at its real input size.

    Attributes:
        path, operator, kind: where it stands, its operator and its module's class.
        input_shape, output_shape: of the captured graph.
        log10_upper, evidence, method: the bound on its constant.
        normalizer: whether it normalizes.
    """

    path: str
    operator: str
    kind: str
    input_shape: Shape
    output_shape: Shape
    log10_upper: float
    evidence: Evidence
    method: str
    normalizer: bool


def layer_constants(captured: Captured) -> tuple[LayerConstant, ...]:
    """Return the weight layers and normalizers with their own constants."""
    rows = []
    for node in captured.graph:
        effect = captured.segments.effects[node.name]
        normalizer = is_normalizer(node)
        if normalizer:
            bound = effect.constant(captured.norm)
        elif is_weight(node) and isinstance(effect, Linear):
            bound = captured.norm(effect.maps[0])
        else:
            continue
        rows.append(
            LayerConstant(
                path=node.path,
                operator=node.operator,
                kind=node.kind,
                input_shape=node.operands[0].shape,
                output_shape=node.shape,
                log10_upper=bound.log10,
                evidence=bound.evidence,
                method=bound.method,
                normalizer=normalizer,
            )
        )
    return tuple(rows)
