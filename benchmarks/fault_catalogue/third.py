"""The third part, written without sight of the rules: held out until its score was published and its misses named."""

from . import (
    third_data_and_loss,
    third_gradients_and_parameters,
    third_healthy,
    third_numerics_and_optimizers,
    third_sequences_and_attention,
    third_structure,
    third_weights,
)
from .case import Fault, Healthy

FAULTS: list[Fault] = [
    *third_weights.FAULTS,
    *third_gradients_and_parameters.FAULTS,
    *third_data_and_loss.FAULTS,
    *third_structure.FAULTS,
    *third_sequences_and_attention.FAULTS,
    *third_numerics_and_optimizers.FAULTS,
]
HEALTHY: list[Healthy] = [*third_healthy.HEALTHY]
