"""What later papers say of normalized networks, and the questions that the papers leave open."""

from ..base import Experiment
from .affine import AFFINE
from .architectures import ARCHITECTURES
from .explosion import EXPLOSION
from .gauge import GAUGE
from .schedules import SCHEDULES

EXPERIMENTS: tuple[Experiment, ...] = (GAUGE, EXPLOSION, SCHEDULES, AFFINE, ARCHITECTURES)
