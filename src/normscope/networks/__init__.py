"""Builders that return real modules: twins with another normalizer, initialisations, small networks."""

from .small import accuracy, cnn, draw_weights, mlp, residual_mlp, train

__all__ = ["accuracy", "cnn", "draw_weights", "mlp", "residual_mlp", "train"]
