"""Turn a PyTorch model into a small immutable graph of operators."""
