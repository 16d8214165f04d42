"""The held-out half of the catalogue: used for scoring alone, never for choosing thresholds or words."""

from . import (
    held_out_attention_and_recurrence,
    held_out_data_and_loss,
    held_out_healthy,
    held_out_initialisation,
    held_out_normalizers,
    held_out_structure,
)
from .case import Fault, Healthy

FAULTS: list[Fault] = [
    *held_out_initialisation.FAULTS,
    *held_out_data_and_loss.FAULTS,
    *held_out_structure.FAULTS,
    *held_out_normalizers.FAULTS,
    *held_out_attention_and_recurrence.FAULTS,
]
HEALTHY: list[Healthy] = held_out_healthy.HEALTHY
