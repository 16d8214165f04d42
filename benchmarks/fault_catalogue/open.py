"""The half of the catalogue on which rules may be tuned."""

from . import (
    open_adversaries_and_labels,
    open_data_and_loss,
    open_healthy,
    open_more_healthy,
    open_more_images,
    open_more_layers,
    open_more_sequences,
    open_more_tables,
    open_normalizers,
    open_other_families,
    open_rarer_healthy,
    open_sequences,
    open_signal,
    open_structure,
    open_units,
)

FAULTS = [
    *open_signal.FAULTS,
    *open_units.FAULTS,
    *open_structure.FAULTS,
    *open_sequences.FAULTS,
    *open_normalizers.FAULTS,
    *open_data_and_loss.FAULTS,
    *open_more_images.FAULTS,
    *open_more_sequences.FAULTS,
    *open_more_tables.FAULTS,
    *open_more_layers.FAULTS,
    *open_other_families.FAULTS,
    *open_adversaries_and_labels.FAULTS,
]
HEALTHY = [
    *open_healthy.HEALTHY,
    *open_more_healthy.HEALTHY,
    *open_rarer_healthy.HEALTHY,
    *open_other_families.HEALTHY,
    *open_adversaries_and_labels.HEALTHY,
]
