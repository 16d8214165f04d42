"""Akbar's paper on the geometry of normalization: its propositions and experiments."""

from ..base import Experiment
from .cues import CUES_OF_SCALE
from .curvature import CURVATURE
from .deep_linear import DEEP_LINEAR
from .initialisation import INITIALISATION
from .margins import MARGINS
from .saddles import SADDLES
from .symmetries import SYMMETRIES
from .toy import TOY

EXPERIMENTS: tuple[Experiment, ...] = (
    SYMMETRIES,
    TOY,
    CURVATURE,
    MARGINS,
    INITIALISATION,
    DEEP_LINEAR,
    SADDLES,
    CUES_OF_SCALE,
)
