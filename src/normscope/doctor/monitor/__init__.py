"""Watching a training run: probes, a log, alarms, and what the reader sees of them."""
