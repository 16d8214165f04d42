"""Batches of every form, and how a model is called with one."""
