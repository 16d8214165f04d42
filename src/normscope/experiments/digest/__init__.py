"""The digest of Than (2025): its first experiments and next checks."""

from ..base import Experiment

EXPERIMENTS: tuple[Experiment, ...] = ()
