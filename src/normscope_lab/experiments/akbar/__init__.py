"""Akbar's paper on the geometry of normalization: its propositions and experiments."""

from ..base import Experiment
from .cues import CUES_OF_SCALE
from .deep_linear import DEEP_LINEAR
from .discussion import DISCUSSION
from .experiment1 import TOY
from .experiment2 import CURVATURE
from .experiment3 import MARGINS
from .experiment4 import INITIALISATION
from .large_rates import LARGE_RATES
from .practice import PRACTICE
from .propositions import SYMMETRIES
from .saddles import SADDLES

EXPERIMENTS: tuple[Experiment, ...] = (
    SYMMETRIES,
    TOY,
    CURVATURE,
    MARGINS,
    INITIALISATION,
    DEEP_LINEAR,
    LARGE_RATES,
    SADDLES,
    CUES_OF_SCALE,
    DISCUSSION,
    PRACTICE,
)
