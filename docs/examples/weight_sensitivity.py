"""
Weight sensitivity: which layer moves the output most
=====================================================

``ns.weight_sensitivity`` brackets, for every weight, how fast the output (and the loss) can change when that weight
changes, at the given data.
"""

import torch
from torch import nn

import normscope as ns

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(),
    nn.Linear(32, 10),
).eval()  # fmt: skip
batch = torch.randn(4, 1, 8, 8)
sensitivity = ns.weight_sensitivity(model, batch, loss="cross_entropy")
print(sensitivity)

# %%
# Parameter by parameter:

sensitivity.plot()
