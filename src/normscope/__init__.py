"""Normscope: measure what normalization layers do to a PyTorch network, with the evidence for each figure."""

from .bounds.ladder import Ladder, ladder, lipschitz
from .core.bracket import Bracket, Evidence, Scope
from .core.errors import NormscopeError
from .graph.export import capture
from .graph.ir import Graph
from .linalg.layers import spectral_norm
from .rules.registry import rule

__version__ = "0.1.0.dev0"
__all__ = [
    "Bracket",
    "Evidence",
    "Graph",
    "Ladder",
    "NormscopeError",
    "Scope",
    "capture",
    "ladder",
    "lipschitz",
    "rule",
    "spectral_norm",
]
