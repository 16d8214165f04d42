"""Constants with respect to weights."""
