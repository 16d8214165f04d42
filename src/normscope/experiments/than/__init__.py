"""Than (2025), The Hidden Power of Normalization: its figures."""

from ..base import Experiment

EXPERIMENTS: tuple[Experiment, ...] = ()
