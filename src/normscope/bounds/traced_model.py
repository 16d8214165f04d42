"""`TracedModel`: the graph of a model, beside its twin with folded BatchNorms, as functions of many samples."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.errors import CaptureError, NormscopeError, describe_error
from .graph.capturing import trace_model
from .graph.ir import Graph, Node, Unit
from .networks.twin import twin
from .operators.registry import family_of
from .radius.logits import Logits

SHAKE = 16.0
"""By how much a value is moved, relative to itself, in units of the rounding of its dtype."""
EXACT = ("shape", "comparison")
"""Families of operators that move, choose or compare values, or give whole numbers: they round nothing."""


class ShakenGraph(Logits):
    """A graph of one sample as a function of many, with every computed value moved in its last digits.

    A graph that rounds to a narrower float inside, or whose values are in half precision, is run in float64 throughout.
    """

    def __init__(self, graph: Graph) -> None:
        dtypes = {item.value.dtype for item in graph.inputs} | {node.dtype for node in graph}
        super().__init__(graph.double() if graph.rounded or dtypes & {torch.float16, torch.bfloat16} else graph)
        generator = torch.Generator().manual_seed(0)
        self.graph = dataclasses.replace(self.graph, nodes=tuple(_shaken(node, generator) for node in self.graph))


def _shaken(node: Node, generator: torch.Generator) -> Node:
    """Return an operator whose value is moved up or down, by the place along its last axis; leave exact ones alone."""
    if not node.dtype.is_floating_point or family_of(node) in EXACT:
        return node
    signs = torch.randint(2, node.shape[-1:], generator=generator, dtype=node.dtype) * 2.0 - 1.0
    factor = (1.0 + SHAKE * torch.finfo(node.dtype).eps * signs).to(node.device)
    inner = node.op.function if isinstance(node.op, Unit) else node.op

    def function(*args: Any, **kwargs: Any) -> Tensor:
        result = inner(*args, **kwargs)
        return (result if node.index is None else result[node.index]) * factor

    return dataclasses.replace(node, op=Unit(str(node.op), function), index=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModel:
    """The graph of a model in eval mode, and the model with BatchNorms folded into the layers before them, if any.

    `why_not_folded` says why BatchNorms are left, in brackets.
    """

    graph: Graph
    folded_model: nn.Module
    folded: Graph
    why_not_folded: str = ""

    @property
    def beside(self) -> tuple[Logits, ...]:
        """The graphs as functions of many samples; none where samples meet."""
        graphs = (self.graph,) if self.folded is self.graph else (self.graph, self.folded)
        return tuple(ShakenGraph(graph) for graph in graphs) if self.graph.per_sample else ()


def trace(model: nn.Module, batch: Tensor, output: str | int | None) -> TracedModel:
    """Trace a model in eval mode, and its twin with folded BatchNorms."""
    graph = trace_model(model, batch, mode="eval", output=output)
    folded_model, folded, why_not_folded = model, graph, ""
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        try:
            without_norms = twin(model, batch, normalizer=None, fold=True).model.eval()
            folded_model, folded = without_norms, trace_model(without_norms, batch, mode="eval", output=output)
        except NormscopeError as error:
            why_not_folded = f" ({describe_error(error)})"
    traced = TracedModel(graph=graph, folded_model=folded_model, folded=folded, why_not_folded=why_not_folded)
    try:
        for function in traced.beside:
            function(batch[:2].flatten(1))
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise CaptureError(f"the graph of the model does not run on single samples: {describe_error(error)}") from error
    return traced
