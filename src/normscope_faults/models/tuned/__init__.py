"""Models on which rules may be tuned."""
