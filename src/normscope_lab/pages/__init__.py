"""What a reader sees of the results of the lab: from the result to a `Document`."""
