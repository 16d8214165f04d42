"""The growth of small changes against the share of the data that it speaks of, for DATA and DOMAIN."""
