"""Short training runs of a model's twins, and which normalizer to choose."""
