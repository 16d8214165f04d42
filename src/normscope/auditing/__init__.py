"""Audits, which stand on both sides: what `check` finds, what each normalizer does, and bounds."""
