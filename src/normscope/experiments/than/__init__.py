"""Than (2025), The Hidden Power of Normalization: its figures."""

from ..base import Experiment
from .figure1 import FIGURE1
from .figure2 import FIGURE2
from .figure3 import FIGURE3

EXPERIMENTS: tuple[Experiment, ...] = (FIGURE1, FIGURE2, FIGURE3)
