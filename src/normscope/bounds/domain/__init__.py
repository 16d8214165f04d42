"""Constants where the data lives: ranges of inner values, recorded over data, and bounds over all inputs inside."""
