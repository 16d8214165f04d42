"""Data, small networks and training: what the demo measures."""
