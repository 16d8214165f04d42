"""The bounds: from a model to a graph of operators, and from it to figures that hold, with the evidence for each."""
