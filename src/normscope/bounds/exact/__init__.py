"""Bounds over activation patterns, down to the exact constant."""
