"""Attacks on figures of the front door, kind by kind, by code that uses nothing of the package's own searches."""
