"""The bounds: from a model to a graph of operators, and from it to figures that hold, with the evidence for each."""

from . import operators  # noqa: F401  (what is known of each operator must be there before a graph is read)
