"""Claims of later papers about normalized networks, and questions that the papers leave open."""

from ..base import Experiment
from .affine import AFFINE
from .architectures import ARCHITECTURES
from .explosion import EXPLOSION
from .gauge import GAUGE
from .reduction import REDUCTION
from .schedules import SCHEDULES

EXPERIMENTS: tuple[Experiment, ...] = (GAUGE, REDUCTION, EXPLOSION, SCHEDULES, AFFINE, ARCHITECTURES)
