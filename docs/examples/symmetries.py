"""
Symmetries: which changes of the weights change nothing
=======================================================

``ns.symmetries`` reads off the graph which scalings, shifts and mixings of the weights leave the function as it is, and
checks each in float64. ``param_groups`` hands them to optimisers that stay on the spheres of scale-invariant weights,
``canonicalize`` returns the same function with weights of norm 1.
"""

import torch
from torch import nn

import normscope as ns
from normscope.data import digits

data = digits(generator=torch.Generator().manual_seed(0))
x, y = data.train_images[:128].flatten(1), data.train_labels[:128]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
found = ns.symmetries(model, x[:8], mode="train")
print(found)

# %%
# The same function with unit-norm filters, and an optimizer that keeps them there:

copy = found.canonicalize()
print(copy[0].weight.norm(dim=1))
optimizer = ns.optim.SphereSGD(found.param_groups(), lr=0.2, momentum=0.9)
for _ in range(20):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f} after 20 steps; the first filter still has norm {model[0].weight[0].norm().item():.4f}")

# %%
# What was found in each layer:

found.plot()
