"""What a reader sees of a check and of a watched run: one file per result, which turns it into a `Document`."""
