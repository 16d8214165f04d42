"""
Margins: how clearly the classes win
====================================

``ns.margins`` measures the logit margin of every sample, alone and over how far the outputs can move: over sqrt(2)
times the Lipschitz constant of all inputs.
"""

import torch
from torch import nn

import normscope as ns
from normscope.data import digits

data = digits(generator=torch.Generator().manual_seed(0))
x, y = data.train_images.flatten(1), data.train_labels
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(100):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()

batches = [(x[:128], y[:128])]
found = ns.margins(model.eval(), batches)
print(found)
print(sorted(found.normalised("global"))[64])

# %%
# The margins of all samples:

found.plot()
