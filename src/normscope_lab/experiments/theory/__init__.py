"""Fast claims of Than, the digest and the Slides: lemmas, theorems and corollaries, which are computed at once."""

from ..base import Experiment
from .classical_bounds import CLASSICAL
from .generalization_claims import GENERALIZATION
from .networks import NETWORKS
from .normalizer_claims import NORMALIZERS
from .rates import RATES_OF_TRAINING
from .weight_claims import WEIGHTS

EXPERIMENTS: tuple[Experiment, ...] = (NORMALIZERS, NETWORKS, WEIGHTS, RATES_OF_TRAINING, GENERALIZATION, CLASSICAL)
