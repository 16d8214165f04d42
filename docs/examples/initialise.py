"""
Initialise: every layer hands on values of deviation one
========================================================

``ns.initialise`` runs a fresh model once on a batch and divides each weight layer by the deviation of its output. Here
is a deep network that starts with vanishing gradients:
"""

import torch
from torch import nn

import normscope as ns

torch.manual_seed(0)
model = nn.Sequential(*(m for _ in range(20) for m in (nn.Linear(32, 32), nn.ReLU())), nn.Linear(32, 10))
batch = torch.randn(64, 32)
print(ns.check(model, batch).verdict)
done = ns.initialise(model, batch)
print(done)
print(ns.check(done.model, batch).verdict)

# %%
# BatchNorm keeps values at their size, and pays with the gradient: without skips its squared norm grows by a factor per
# layer, which Yang et al. (2019) give in closed form.

layers = [nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()) for _ in range(40)]
for finding in ns.check(nn.Sequential(*layers), torch.randn(64, 64)).findings[:1]:
    print(finding.code, finding.seen, finding.advice, sep="\n")

# %%
# By how much the weights of each layer were multiplied:

done.plot()
