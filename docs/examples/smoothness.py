"""
Smoothness: how far a gradient step can be trusted
==================================================

``ns.smoothness`` brackets the largest learning rate at which short runs are stable, and looks along the gradient at
every step: the range of the loss, how much the gradient changes, and the curvature that the step meets.
"""

import torch
from torch import nn

import normscope as ns
from normscope.data import digits

data = digits(generator=torch.Generator().manual_seed(0))
x, y = data.train_images[:128].flatten(1), data.train_labels[:128]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
smoothness = ns.smoothness(model, (x, y), loss="cross_entropy", lr=0.1, steps=3, trial_steps=5, mode="train")
print(smoothness)

# %%
# The loss along each step:

smoothness.plot()
