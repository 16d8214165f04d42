"""Old names."""

from ..facts.layers_over_data import SetTally as SetTally
