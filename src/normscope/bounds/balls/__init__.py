"""Constants over all inputs within a radius."""
