"""Names that others still import from here."""

from ..quantities.batch import are_same

__all__ = ["are_same"]
