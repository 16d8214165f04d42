"""What is measured of a step: pure functions of tensors, each result a small tensor on their device."""
