"""Generalization: bounds on the loss on fresh data, each with its conditions and whether they hold."""

from .bounding import generalization
from .generalization_table import Generalization

__all__ = ["Generalization", "generalization"]
