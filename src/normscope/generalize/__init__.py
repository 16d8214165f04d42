"""Generalization: bounds on the loss on fresh data, each with its conditions and whether they hold."""
