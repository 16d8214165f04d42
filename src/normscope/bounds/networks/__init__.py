"""Twins with another normalizer, and weights drawn anew: modules made from a given network."""
