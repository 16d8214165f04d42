"""Rows of recurrent layers: what they do to a change over the captured steps, and the norms of their matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..bounds.captured import Captured
from ..core.bracket import Bracket
from ..graph.ir import Node
from ..linalg.linear_map import LinearMap, Matrix
from ..report.words import factor
from ..rules.effects import Effect, Gain, Unbounded
from .audit_result import Row
from .examined import ExaminedRow
from .node_sites import family

Norm = Callable[[LinearMap], Bracket]
"""Brackets the norm of one linear map."""


def is_recurrent(node: Node) -> bool:
    """Whether a node is a recurrent layer or cell."""
    return family(node) == "recurrent"


def over_steps(captured: Captured, node: Node) -> dict[str, Any]:
    """Return how many parameters a recurrent layer has, and what it does to a change over the captured steps."""
    parameters = captured.model.get_submodule(node.path).parameters(recurse=False)
    notes = (_amplified(captured.segments.effects[node.name]),)
    return {"parameters": sum(p.numel() for p in parameters), "notes": notes}


def _amplified(effect: Effect) -> str:
    """Say what a recurrent layer does to a change, over all inputs of the captured length."""
    if isinstance(effect, Gain):
        return (
            f"over the captured steps it amplifies a change of its input at most {factor(effect.gains[0].log10)} times"
        )
    return f"no bound: {effect.reason}" if isinstance(effect, Unbounded) else ""


def matrix_rows(module: nn.Module, path: str, norm: Norm) -> list[ExaminedRow]:
    """Return one row for each matrix of a recurrent module: its norm, whatever the number of steps."""
    places = []
    for name, weight in module.named_parameters(recurse=False):
        if weight.ndim == 2:
            row = Row(
                path=f"{path}.{name}" if path else name,
                kind=type(module).__name__,
                operator="matrix",
                role="weight",
                parameters=weight.numel(),
                input_shape=(weight.shape[1],),
                output_shape=(weight.shape[0],),
                norm=norm(Matrix(weight)),
            )
            places.append(ExaminedRow(row=row))
    return places
