"""
Ladder: every method side by side
=================================

``ns.ladder`` returns the bracket of every method that applies, by name: from the product of layer norms as papers
print it to the tightest certificate, and the largest Jacobian norm observed at the batch.
"""

import torch
from torch import nn

import normscope as ns

torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()) for _ in range(4)), nn.Linear(64, 10)
)
batch = torch.randn(128, 64)
model(batch)  # one pass in train mode, so that the running statistics mean something
ladder = ns.ladder(model.eval(), batch[:16])
print(ladder)

# %%
# Each rung is a bracket with its own evidence:

for name, bracket in ladder.items():
    print(f"{name:14} 10^{bracket.log10_upper:.2f}  {bracket.evidence.name}")

# %%
# How much of the printed bound is the bound, and not the network:

print(f"printed over best: {10 ** (ladder['printed'].log10_upper - ladder['best'].log10_upper):.3g} times")

# %%
# All rungs as a picture:

ladder.plot()
