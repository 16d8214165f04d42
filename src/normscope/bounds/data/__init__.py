"""DATA: quantiles of the Jacobian norm over a distribution, from a sample of it."""
