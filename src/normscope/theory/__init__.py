"""Closed forms: normalizers and activations, as pure functions of numbers and tensors."""
