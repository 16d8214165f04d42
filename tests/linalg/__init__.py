"""Linear maps and their norms."""
