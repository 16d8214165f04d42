"""Certified radii of a classifier."""
