"""The fourth held-out part, written by someone who had seen neither the rules nor what they missed before."""

from . import (
    fourth_axes_and_sequences,
    fourth_gradients_and_parameters,
    fourth_healthy_sequences_and_more,
    fourth_healthy_tables_and_images,
    fourth_inputs,
    fourth_numerics_and_optimizers,
    fourth_targets_and_losses,
    fourth_units_and_activations,
    fourth_weights,
)
from .case import Fault, Healthy

FAULTS: list[Fault] = [
    *fourth_inputs.FAULTS,
    *fourth_targets_and_losses.FAULTS,
    *fourth_weights.FAULTS,
    *fourth_units_and_activations.FAULTS,
    *fourth_gradients_and_parameters.FAULTS,
    *fourth_axes_and_sequences.FAULTS,
    *fourth_numerics_and_optimizers.FAULTS,
]
HEALTHY: list[Healthy] = [*fourth_healthy_tables_and_images.HEALTHY, *fourth_healthy_sequences_and_more.HEALTHY]
