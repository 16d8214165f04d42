"""Akbar's paper on the geometry of normalization: its experiments."""

from ..base import Experiment

EXPERIMENTS: tuple[Experiment, ...] = ()
