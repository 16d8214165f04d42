"""
Certificates: tight and local
=============================

The default bounds are cheap. ``effort="tight"`` optimises a certificate.
"""

import torch
from torch import nn

import normscope as ns

torch.manual_seed(0)
small = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
x = torch.randn(8, 3)
print(ns.ladder(small, x, effort="tight", max_seconds=4))

# %%
# Residual networks gain most: a product of norms cannot see that a skip and its branch share their input.


class Residual(nn.Module):
    """Three blocks x + W2 relu(W1 x)."""

    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(16, 32) for _ in range(3)])
        self.outer = nn.ModuleList([nn.Linear(32, 16) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for inner, outer in zip(self.inner, self.outer, strict=True):
            x = x + outer(inner(x).relu())
        return x


residual = Residual().eval()
points = torch.randn(8, 16)
for effort in ("fast", "tight"):
    print(effort, ns.lipschitz(residual, points, effort=effort, max_seconds=2))

# %%
# One certificate gives the constants of all differences of logits, which is what a certified radius needs:

both = ns.lipschitz(small, x, effort="tight", per="difference", max_seconds=2)
print(both.per_output[0])

# %%
# Over a ball around each sample the bound tends to the Jacobian norm as the ball shrinks:

for radius in (1.0, 0.1, 0.01, 1e-6):
    print(radius, ns.lipschitz(residual, points[:1], scope="ball", radius=radius, max_seconds=1))
print("point ", ns.lipschitz(residual, points[:1], scope="point"))

# %%
# The constants of all differences, side by side:

both.plot()
