"""A population of trained networks, every measure of each, and how well each measure predicts the gap."""
