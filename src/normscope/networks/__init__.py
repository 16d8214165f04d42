"""Builders that return real modules: twins with another normalizer, initialisations, small networks."""

from .small import GROUPS, Normalizer, accuracy, cnn, draw_weights, mlp, residual_mlp, train

__all__ = ["GROUPS", "Normalizer", "accuracy", "cnn", "draw_weights", "mlp", "residual_mlp", "train"]
