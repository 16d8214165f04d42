"""What a reader sees of bounds and curvature: one file per result, which turns it into a `Document`."""
