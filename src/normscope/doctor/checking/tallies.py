"""Old names."""

from ..facts.tallies import SetTally as SetTally
