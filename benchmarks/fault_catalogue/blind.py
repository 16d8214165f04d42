"""The blind half: written by someone who has seen neither the rules nor what they miss, and not to be tuned on."""

from . import (
    blind_gradients_and_parameters,
    blind_units_and_structure,
    blind_weights,
)
from .case import Fault, Healthy

PARTS = (blind_weights, blind_gradients_and_parameters, blind_units_and_structure)

FAULTS: list[Fault] = [entry for part in PARTS for entry in part.FAULTS]
HEALTHY: list[Healthy] = []
