"""Runs for scoring alone."""
