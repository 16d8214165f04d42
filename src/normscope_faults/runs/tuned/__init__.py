"""Runs on which alarms may be tuned."""
