"""The reports that a reader sees: one file per result, which turns the result into a `Document`."""
