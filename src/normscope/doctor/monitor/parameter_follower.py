"""Names that others still import from here."""

from .parameter_state import FAINT_ENTRIES, SLOW_GROUP_SHARE, Since

__all__ = ["FAINT_ENTRIES", "SLOW_GROUP_SHARE", "Since"]
