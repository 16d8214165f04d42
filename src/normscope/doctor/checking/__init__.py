"""`check`: one pass over a model and its data, and what a person reads of it."""
