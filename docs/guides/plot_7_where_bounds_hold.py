"""
Where do bounds hold?
=====================

"A change grows at most ten times" means little without the inputs for which it holds. Over *all* inputs the bound of a
network with LayerNorm or attention is large or infinite, because of inputs that no data set contains. Normscope has
bounds for smaller sets:
"""

import matplotlib.pyplot as plt
import torch

import normscope as ns
from normscope.data import digits
from normscope.networks import mlp, train

seed = torch.Generator().manual_seed(0)
data = digits(generator=seed)
model = mlp(normalizer="layer", generator=seed, width=32, depth=3)
train(model, data.train_images, data.train_labels, generator=seed, epochs=3)
model.eval()
batch = data.test_images[:8]
bounds = {
    "all inputs": ns.lipschitz(model, batch),
    "within 0.1 of each sample": ns.lipschitz(model, batch, scope="ball", radius=0.1),
    "99 % of fresh data": ns.lipschitz(model, data.test_images[:300], scope="data"),
    "these 8 samples": ns.lipschitz(model, batch, scope="point"),
}

# %%
# All of them:

names = list(bounds)
plt.figure(figsize=(7, 2.8))
plt.barh(names[::-1], [bounds[name].log10_upper for name in names[::-1]])
plt.xlabel("how much a change can grow, as an exponent of ten")
plt.tight_layout()
for name, bound in bounds.items():
    print(f"{name:32} 10^{bound.log10_upper:.2f}  {bound.evidence.name}")

# %%
# Which figure to quote: over all inputs if somebody may choose the input, within a radius if inputs are near samples
# that you have, the share of the data for a statement about fresh data alone.
