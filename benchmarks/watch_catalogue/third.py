"""The third part, written without sight of the alarms: held out until its score was published."""

from . import third_divergence, third_healthy, third_layers, third_learning, third_steps, third_validation

_MODULES = (third_learning, third_steps, third_divergence, third_layers, third_validation, third_healthy)
FAULTS = [fault for module in _MODULES for fault in getattr(module, "FAULTS", [])]
HEALTHY = [run for module in _MODULES for run in getattr(module, "HEALTHY", [])]
