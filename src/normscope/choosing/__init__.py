"""Short training runs of a model's twins, which normalizer to choose, and the processes and ledgers of long jobs."""
