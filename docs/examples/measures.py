"""
Measures of generalization: all that the literature compares
============================================================

``ns.measures`` takes forty measures of a trained classifier: norms of its weights, products over the margin, distances
from the start, path norms, the largest noise and box that keep the error, sharpness. The table says what each rests on,
and whether it stays when two layers are rescaled without effect. ``ns.compare`` sets two models side by side.
"""

import copy

import torch
from torch import nn

import normscope as ns
from normscope.data import digits

data = digits(generator=torch.Generator().manual_seed(0))
x, y = data.train_images[:256].flatten(1), data.train_labels[:256]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
start = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []
for step in range(150):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append((step, loss.item()))

result = ns.measures(model, (x, y), start=start, losses=losses)
print(result)

twice = copy.deepcopy(model)  # the same function: one layer twice as large, the other half as large
twice[0].weight.data *= 2
twice[0].bias.data *= 2
twice[2].weight.data /= 2
chosen = ["frobenius-sum", "spectral-product", "path-norm", "fisher-rao"]
measured = [ns.measures(one, (x, y), only=chosen) for one in (model, twice)]
print(ns.compare(*measured, names=["trained", "rescaled"]))

# %%
# The measures as a picture:

result.plot()
