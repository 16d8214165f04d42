"""Names that others still import from here."""

from .series import FIRST, LASTING_STEPS, PLAIN_STEPS, SPIKE_WINDOW_RECORDS, SeriesByLayer

__all__ = ["FIRST", "LASTING_STEPS", "PLAIN_STEPS", "SPIKE_WINDOW_RECORDS", "SeriesByLayer"]
