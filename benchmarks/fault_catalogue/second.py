"""The second part, written without sight of the rules: held out until its score was published and its misses named."""

from . import (
    second_awkward_healthy,
    second_data_and_loss,
    second_gradients_and_parameters,
    second_healthy,
    second_numerics_and_optimizers,
    second_sequences_and_attention,
    second_units_and_structure,
    second_weights,
)
from .case import Fault, Healthy

PARTS = (
    second_weights,
    second_gradients_and_parameters,
    second_units_and_structure,
    second_data_and_loss,
    second_sequences_and_attention,
    second_numerics_and_optimizers,
)

FAULTS: list[Fault] = [entry for part in PARTS for entry in part.FAULTS]
HEALTHY: list[Healthy] = [*second_healthy.HEALTHY, *second_awkward_healthy.HEALTHY]
