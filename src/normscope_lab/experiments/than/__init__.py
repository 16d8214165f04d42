"""Than (2025), The Hidden Power of Normalization: its figures."""

from ..base import Experiment
from .decay_seeds import DECAY_SEEDS
from .figures import FIGURE1, FIGURE2, FIGURE3

EXPERIMENTS: tuple[Experiment, ...] = (FIGURE1, FIGURE2, FIGURE3, DECAY_SEEDS)
