"""From brackets and data to what a person reads: audits and findings."""
