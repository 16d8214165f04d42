"""Lipschitz brackets of whole networks."""
