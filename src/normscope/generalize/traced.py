"""The model as torch.export traced it: what the bounds are about, beside the model whose losses are measured."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..bounds.radius.logits import Logits
from ..core.errors import CaptureError, NormscopeError, said
from ..graph.capturing import capture
from ..graph.ir import Graph
from ..networks.twin import twin


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModel:
    """The graphs that bounds are about.

    Attributes:
        graph: of the model in eval mode.
        folded_model: the model with its BatchNorms folded into the layers before them; the model itself without any.
        folded: its graph.
        why_not_folded: why BatchNorms are left, in brackets, or nothing.
    """

    graph: Graph
    folded_model: nn.Module
    folded: Graph
    why_not_folded: str = ""

    @property
    def beside(self) -> tuple[Logits, ...]:
        """The graphs as functions of many samples, in float64; none where samples meet."""
        graphs = (self.graph,) if self.folded is self.graph else (self.graph, self.folded)
        return tuple(Logits(graph.double()) for graph in graphs) if self.graph.per_sample else ()


def trace(model: nn.Module, batch: Tensor, output: str | int | None) -> TracedModel:
    """Trace a model in eval mode, and its twin with folded BatchNorms.

    Raises:
        NormscopeError: the model cannot be traced, or its graph does not run in float64.
    """
    graph = capture(model, batch, mode="eval", output=output)
    traced = TracedModel(graph=graph, folded_model=model, folded=graph)
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        try:
            folded = twin(model, batch, normalizer=None, fold=True).model.eval()
            traced = TracedModel(
                graph=graph, folded_model=folded, folded=capture(folded, batch, mode="eval", output=output)
            )
        except NormscopeError as error:
            traced = TracedModel(graph=graph, folded_model=model, folded=graph, why_not_folded=f" ({said(error)})")
    try:
        for function in traced.beside:
            function(batch[:2].flatten(1))
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise CaptureError(f"the graph of the model does not run in float64: {said(error)}") from error
    return traced
