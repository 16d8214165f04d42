"""Fast claims of Than, the digest and the Slides: lemmas, theorems and corollaries, computed while one waits."""

from ..base import Experiment
from .generalization import GENERALIZATION
from .networks import NETWORKS
from .normalizers import NORMALIZERS
from .rates import RATES_OF_TRAINING
from .weights import WEIGHTS

EXPERIMENTS: tuple[Experiment, ...] = (NORMALIZERS, NETWORKS, WEIGHTS, RATES_OF_TRAINING, GENERALIZATION)
