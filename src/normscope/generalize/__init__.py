"""Generalization: what bounds say of the loss on fresh data, each with its conditions and what they are here."""
