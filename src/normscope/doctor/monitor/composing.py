"""Names that others still import from here."""

from .quantities.losses import JUMP_RATIO

__all__ = ["JUMP_RATIO"]
