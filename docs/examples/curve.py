"""
Curve: growth against the share of the data
===========================================

``ns.curve`` shows how much a small change can grow against the share of the data that the figure speaks of: bounds for
all inputs near the data on one side, quantiles over samples of the data on the other.
"""

import torch

import normscope as ns
from normscope.data import digits
from normscope.networks import mlp

data = digits(generator=torch.Generator().manual_seed(0))
model = mlp(normalizer="layer", generator=torch.Generator().manual_seed(0)).eval()
curve = ns.curve(model, data.train_images[:400])
print(curve)

# %%
# The curve itself:

curve.plot()
