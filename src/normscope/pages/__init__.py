"""What a reader sees of each result: one file per result, from the result to a `Document`."""
