"""The lab of Normscope: claims and experiments of the papers on normalization, bounds on generalization, and more."""

from .experiments.claims import Claims, claims
from .experiments.reproducing import reproduce
from .experiments.reproduction import JudgedClaim, Reproduction, Reproductions
from .extremal import equality6, equality13, equality15, theorem6, theorem13, theorem15
from .generalize import Generalization, generalization
from .gradient_flow import Flow, flow
from .population.predict import predictive_power
from .population.prediction import Prediction
from .population.recipes import RecipeGrid
from .rates import RATES, TrainingCost, corollaries, training_cost

__all__ = [
    "RATES",
    "Claims",
    "Flow",
    "Generalization",
    "JudgedClaim",
    "Prediction",
    "RecipeGrid",
    "Reproduction",
    "Reproductions",
    "TrainingCost",
    "claims",
    "corollaries",
    "equality6",
    "equality13",
    "equality15",
    "flow",
    "generalization",
    "predictive_power",
    "reproduce",
    "theorem6",
    "theorem13",
    "theorem15",
    "training_cost",
]
