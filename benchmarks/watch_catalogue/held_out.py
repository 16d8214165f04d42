"""The half of the catalogue for scoring alone: no alarm may be tuned on it."""

from . import held_out_divergence, held_out_healthy, held_out_layers, held_out_learning, held_out_validation

FAULTS = [
    *held_out_learning.FAULTS,
    *held_out_divergence.FAULTS,
    *held_out_layers.FAULTS,
    *held_out_validation.FAULTS,
]
HEALTHY = held_out_healthy.HEALTHY
