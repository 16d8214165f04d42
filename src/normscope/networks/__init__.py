"""Small networks for images, their normalizers, weights and training."""

from .small import GROUPS, Normalizer, accuracy, cnn, draw_weights, mlp, residual_mlp, train

__all__ = ["GROUPS", "Normalizer", "accuracy", "cnn", "draw_weights", "mlp", "residual_mlp", "train"]
