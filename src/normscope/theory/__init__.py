"""Closed forms: normalizers, activations, losses and sample sizes, as pure functions of numbers and tensors."""

from .activations import ACTIVATIONS, Activation, gelu
from .initialisation import batch_norm_growth
from .losses import LOSSES, Loss, l1
from .normalizers import (
    batch_norm_eval,
    layer_norm_jacobian,
    lemma1,
    lemma2,
    lemma3,
)
from .sample_sizes import generalization_slack, sample_size
from .softmax_norms import softmax_norm

__all__ = [
    "ACTIVATIONS",
    "LOSSES",
    "Activation",
    "Loss",
    "batch_norm_eval",
    "batch_norm_growth",
    "gelu",
    "generalization_slack",
    "l1",
    "layer_norm_jacobian",
    "lemma1",
    "lemma2",
    "lemma3",
    "sample_size",
    "softmax_norm",
]
