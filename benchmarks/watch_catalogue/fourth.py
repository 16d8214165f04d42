"""The fourth part of the catalogue, for scoring alone: its runs are joined here."""

from . import (
    fourth_divergence,
    fourth_games,
    fourth_healthy,
    fourth_layers,
    fourth_learning,
    fourth_steps,
    fourth_validation,
)

_MODULES = (
    fourth_learning,
    fourth_steps,
    fourth_divergence,
    fourth_layers,
    fourth_validation,
    fourth_healthy,
    fourth_games,
)
FAULTS = [fault for module in _MODULES for fault in getattr(module, "FAULTS", [])]
HEALTHY = [run for module in _MODULES for run in getattr(module, "HEALTHY", [])]
