"""Closed forms: normalizers, activations, losses and sample sizes, as pure functions of numbers and tensors."""

from typing import TYPE_CHECKING

from ..core.loading import load_when_used
from .initialisation import batch_norm_growth
from .losses import LOSSES, Loss, l1
from .normalizers import (
    batch_norm_eval,
    layer_norm_jacobian,
    lemma1,
    lemma2,
    lemma3,
)

if TYPE_CHECKING:
    from .activations import ACTIVATIONS, Activation, gelu
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

# What the losses and the normalizers do not need loads when it is first used.
__getattr__ = load_when_used(
    __name__,
    {
        "ACTIVATIONS": "activations",
        "Activation": "activations",
        "gelu": "activations",
        "generalization_slack": "sample_sizes",
        "sample_size": "sample_sizes",
        "softmax_norm": "softmax_norms",
    },
)
