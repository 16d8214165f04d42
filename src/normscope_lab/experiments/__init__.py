"""Experiments and claims of the papers, one folder each: what is measured, and how it judges the claims."""
