"""Normscope: say what is wrong with a PyTorch model, before and while it trains: the layer, the reason, what to do.

Names load when they are first used: `normscope --version` then needs no torch, and `import normscope` little time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .core.version import __version__

if TYPE_CHECKING:
    from . import optim as optim
    from .bounds.curve.curve import ShareCurve, curve
    from .bounds.data.quantile import DataBracket
    from .bounds.domain.domain import Domain, domain
    from .bounds.ladder import Ladder, ladder
    from .bounds.lipschitz import lipschitz
    from .bounds.radius.radii import Radii
    from .bounds.radius.radius import certified_radius
    from .bounds.weights.sensitivity import WeightSensitivity
    from .bounds.weights.weight_constants import weight_sensitivity
    from .choosing.choice import Choice
    from .choosing.choose import choose
    from .choosing.comparison import Comparison, compare
    from .core.bracket import Bracket, Evidence, Scope
    from .core.errors import NormscopeError
    from .core.finding import Finding, Severity
    from .diagnosis.audit_result import Audit
    from .diagnosis.auditing import audit
    from .diagnosis.checked import Check
    from .diagnosis.checking import check
    from .diagnosis.verdict import FindingsError
    from .generalize.bounding import generalization
    from .generalize.generalization_table import Generalization
    from .generalize.measure_table import Measures
    from .generalize.measures import measures
    from .geometry.flatness import Flatness, flatness
    from .geometry.hessian import hessian
    from .geometry.margins import Margins, margins
    from .geometry.smoothness import Smoothness, smoothness
    from .geometry.spectrum import Spectrum
    from .geometry.symmetries import Symmetries, symmetries
    from .graph.capturing import capture
    from .graph.ir import Graph
    from .linalg.layer_norms import spectral_norm
    from .monitor.run import Run
    from .monitor.watching import watch
    from .networks.initialise import Initialisation, initialise
    from .networks.twin import Twin, twin
    from .rules.registry import rule

__all__ = [
    "Audit",
    "Bracket",
    "Check",
    "Choice",
    "Comparison",
    "DataBracket",
    "Domain",
    "Evidence",
    "Finding",
    "FindingsError",
    "Flatness",
    "Generalization",
    "Graph",
    "Initialisation",
    "Ladder",
    "Margins",
    "Measures",
    "NormscopeError",
    "Radii",
    "Run",
    "Scope",
    "Severity",
    "ShareCurve",
    "Smoothness",
    "Spectrum",
    "Symmetries",
    "Twin",
    "WeightSensitivity",
    "__version__",
    "audit",
    "capture",
    "certified_radius",
    "check",
    "choose",
    "compare",
    "curve",
    "domain",
    "flatness",
    "generalization",
    "hessian",
    "initialise",
    "ladder",
    "lipschitz",
    "margins",
    "measures",
    "rule",
    "smoothness",
    "spectral_norm",
    "symmetries",
    "twin",
    "watch",
    "weight_sensitivity",
]

HOMES = {
    "bounds.curve.curve": ("ShareCurve", "curve"),
    "bounds.data.quantile": ("DataBracket",),
    "bounds.domain.domain": ("Domain", "domain"),
    "bounds.ladder": ("Ladder", "ladder"),
    "bounds.lipschitz": ("lipschitz",),
    "bounds.radius.radii": ("Radii",),
    "bounds.radius.radius": ("certified_radius",),
    "bounds.weights.sensitivity": ("WeightSensitivity",),
    "bounds.weights.weight_constants": ("weight_sensitivity",),
    "choosing.choice": ("Choice",),
    "choosing.choose": ("choose",),
    "core.bracket": ("Bracket", "Evidence", "Scope"),
    "core.errors": ("NormscopeError",),
    "core.finding": ("Finding", "Severity"),
    "diagnosis.audit_result": ("Audit",),
    "diagnosis.auditing": ("audit",),
    "diagnosis.checked": ("Check",),
    "diagnosis.checking": ("check",),
    "choosing.comparison": ("Comparison", "compare"),
    "diagnosis.verdict": ("FindingsError",),
    "generalize.bounding": ("generalization",),
    "generalize.generalization_table": ("Generalization",),
    "generalize.measure_table": ("Measures",),
    "generalize.measures": ("measures",),
    "geometry.flatness": ("Flatness", "flatness"),
    "geometry.hessian": ("hessian",),
    "geometry.margins": ("Margins", "margins"),
    "geometry.smoothness": ("Smoothness", "smoothness"),
    "geometry.spectrum": ("Spectrum",),
    "geometry.symmetries": ("Symmetries", "symmetries"),
    "graph.capturing": ("capture",),
    "graph.ir": ("Graph",),
    "linalg.layer_norms": ("spectral_norm",),
    "monitor.run": ("Run",),
    "monitor.watching": ("watch",),
    "networks.initialise": ("Initialisation", "initialise"),
    "networks.twin": ("Twin", "twin"),
    "rules.registry": ("rule",),
}
"""The public names by the module that they come from."""
_HOME = {name: module for module, names in HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    elif name == "optim":
        value = importlib.import_module(".optim", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "optim"})
