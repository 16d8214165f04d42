"""A second set for scoring alone, written without sight of the alarms: no alarm may be tuned on it."""

from . import blind_divergence, blind_healthy, blind_layers, blind_learning, blind_steps, blind_validation

FAULTS = [
    *blind_learning.FAULTS,
    *blind_steps.FAULTS,
    *blind_divergence.FAULTS,
    *blind_layers.FAULTS,
    *blind_validation.FAULTS,
]
HEALTHY = blind_healthy.HEALTHY
