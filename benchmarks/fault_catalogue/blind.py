"""The blind half: written by someone who has seen neither the rules nor what they miss, and not to be tuned on."""

from . import (
    blind_awkward_healthy,
    blind_data_and_loss,
    blind_gradients_and_parameters,
    blind_healthy,
    blind_numerics_and_optimizers,
    blind_sequences_and_attention,
    blind_units_and_structure,
    blind_weights,
)
from .case import Fault, Healthy

PARTS = (
    blind_weights,
    blind_gradients_and_parameters,
    blind_units_and_structure,
    blind_data_and_loss,
    blind_sequences_and_attention,
    blind_numerics_and_optimizers,
)

FAULTS: list[Fault] = [entry for part in PARTS for entry in part.FAULTS]
HEALTHY: list[Healthy] = [*blind_healthy.HEALTHY, *blind_awkward_healthy.HEALTHY]
