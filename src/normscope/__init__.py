"""Normscope: say what is wrong with a PyTorch model, before and while it trains: the layer, the reason, what to do.

Names load when they are first used: `normscope --version` then needs no torch, and `import normscope` little time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .core.errors import InputError
from .core.version import __version__

if TYPE_CHECKING:
    from . import optim as optim
    from .auditing.audit_result import Audit
    from .auditing.auditing import audit
    from .bounds.data.quantile import DataBracket
    from .bounds.geometry.flatness import Flatness, flatness
    from .bounds.geometry.hessian import hessian
    from .bounds.geometry.margins import Margins, margins
    from .bounds.geometry.measure_table import Measures
    from .bounds.geometry.measures import measures
    from .bounds.geometry.smoothness import Smoothness, smoothness
    from .bounds.geometry.spectrum import Spectrum
    from .bounds.geometry.symmetries import Symmetries, symmetries
    from .bounds.graph.capturing import capture
    from .bounds.graph.ir import Graph
    from .bounds.ladder import Ladder, ladder
    from .bounds.linalg.layer_norms import spectral_norm
    from .bounds.lipschitz import lipschitz
    from .bounds.networks.initialise import Initialisation, initialise
    from .bounds.networks.twin import Twin, twin
    from .bounds.operators.registry import rule
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
    from .doctor.checking.check_result import Check
    from .doctor.checking.checking import check
    from .doctor.checking.verdict import FindingsError
    from .doctor.monitor.run import Run
    from .doctor.monitor.watching import watch

__all__ = [
    "Audit",
    "Bracket",
    "Check",
    "Choice",
    "Comparison",
    "DataBracket",
    "Evidence",
    "Finding",
    "FindingsError",
    "Flatness",
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
    "bounds.data.quantile": ("DataBracket",),
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
    "auditing.audit_result": ("Audit",),
    "auditing.auditing": ("audit",),
    "doctor.checking.check_result": ("Check",),
    "doctor.checking.checking": ("check",),
    "choosing.comparison": ("Comparison", "compare"),
    "doctor.checking.verdict": ("FindingsError",),
    "bounds.geometry.flatness": ("Flatness", "flatness"),
    "bounds.geometry.hessian": ("hessian",),
    "bounds.geometry.margins": ("Margins", "margins"),
    "bounds.geometry.measure_table": ("Measures",),
    "bounds.geometry.measures": ("measures",),
    "bounds.geometry.smoothness": ("Smoothness", "smoothness"),
    "bounds.geometry.spectrum": ("Spectrum",),
    "bounds.geometry.symmetries": ("Symmetries", "symmetries"),
    "bounds.graph.capturing": ("capture",),
    "bounds.graph.ir": ("Graph",),
    "bounds.linalg.layer_norms": ("spectral_norm",),
    "doctor.monitor.run": ("Run",),
    "doctor.monitor.watching": ("watch",),
    "bounds.networks.initialise": ("Initialisation", "initialise"),
    "bounds.networks.twin": ("Twin", "twin"),
    "bounds.operators.registry": ("rule",),
}
"""The public names by the module that they come from."""
_HOME = {name: module for module, names in HOMES.items() for name in names}


def load_from_lab(name: str) -> Any:
    """Return a name of `normscope_lab`; where the lab is not installed, say how it is."""
    try:
        return getattr(importlib.import_module("normscope_lab"), name)
    except ModuleNotFoundError as error:
        if error.name != "normscope_lab":
            raise
        raise InputError(
            "bounds on generalization stand in the lab, which is not installed: pip install 'normscope[lab]'"
        ) from error


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    elif name == "optim":
        value = importlib.import_module(".optim", __name__)
    elif name == "generalization":
        try:
            value = load_from_lab(name)
        except InputError:  # A call says how to install the lab; every other name can be used without it.
            return lambda *_args, **_options: load_from_lab(name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "optim"})
