"""Optimisers that know the geometry of normalized networks."""
