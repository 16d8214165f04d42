"""
Spectral norm: one layer between two sides
==========================================

``ns.spectral_norm`` brackets the operator norm of a matrix, a linear layer or a convolution. For a convolution it is
the norm of the map that is really applied: input size, stride, padding, dilation and groups all count.
"""

import torch
from torch import nn

import normscope as ns

torch.manual_seed(0)
conv = nn.Conv2d(16, 32, 3, padding=1)
bracket = ns.spectral_norm(conv, input_shape=(16, 32, 32))
print(bracket)
print(f"between {bracket.lower:.5f} and {bracket.upper:.5f}, a gap of {100 * bracket.gap:.3f} %")

# %%
# The lower side comes with a witness, a unit vector that attains it:

witness = bracket.witness.reshape(1, 16, 32, 32).to(torch.float64)
image = nn.functional.conv2d(witness, conv.weight.double(), padding=1)
print(f"norm of the witness {witness.norm():.6f}, of its image {image.norm():.6f}")

# %%
# The norm of the reshaped kernel, which is often used instead, is another number, and a smaller one:

print(f"reshaped kernel: {torch.linalg.matrix_norm(conv.weight.detach().flatten(1), 2):.5f}")

# %%
# The same layer at another input size or stride is another map. A bracket that did not close to ``rtol`` is still true;
# it says that it did not close, and by how much:

for size in (8, 16, 64):
    print(size, ns.spectral_norm(conv, input_shape=(16, size, size)))
print("stride 2", ns.spectral_norm(nn.Conv2d(16, 32, 3, stride=2, padding=1), input_shape=(16, 32, 32)))

# %%
# Matrices and linear layers need no input shape:

print(ns.spectral_norm(torch.randn(200, 300)))
print(ns.spectral_norm(nn.Linear(300, 200)))

# %%
# Both sides as a picture:

bracket.plot()
