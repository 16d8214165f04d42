"""What later papers say of normalized networks, and the questions that the papers leave open."""

from ..base import Experiment

EXPERIMENTS: tuple[Experiment, ...] = ()
