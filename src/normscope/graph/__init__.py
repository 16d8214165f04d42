"""From a PyTorch model to a small immutable graph of operators."""
