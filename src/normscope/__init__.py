"""Normscope: measure what normalization layers do to a PyTorch network, with the evidence for each figure."""

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
from .core.bracket import Bracket, Evidence, Scope
from .core.errors import NormscopeError
from .core.finding import Finding, Severity
from .core.version import __version__
from .diagnosis.audit_result import Audit
from .diagnosis.auditing import audit
from .diagnosis.checked import Check
from .diagnosis.checking import check
from .diagnosis.verdict import FindingsError
from .generalize.bounding import generalization
from .generalize.generalization_table import Generalization
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
    "curve",
    "domain",
    "flatness",
    "generalization",
    "hessian",
    "initialise",
    "ladder",
    "lipschitz",
    "margins",
    "rule",
    "smoothness",
    "spectral_norm",
    "symmetries",
    "twin",
    "watch",
    "weight_sensitivity",
]
