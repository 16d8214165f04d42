"""Results, evidence, rounding and errors: what every other room shares."""
