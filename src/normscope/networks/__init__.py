"""Builders that return real modules: twins with another normalizer, extremal networks, initialisations."""
