"""The fourth part of the catalogue, for scoring alone: its runs are joined here."""

from . import fourth_divergence

_MODULES = (fourth_divergence,)
FAULTS = [fault for module in _MODULES for fault in getattr(module, "FAULTS", [])]
HEALTHY = [run for module in _MODULES for run in getattr(module, "HEALTHY", [])]
