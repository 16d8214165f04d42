"""
What do the normalizers of my network do?
=========================================

A normalizer divides by the deviation of what enters it. Where that deviation is below 1 it makes changes larger, where
it is above 1 it makes them smaller. Which of the two happens in *your* network is a matter of measurement:
``ns.audit`` runs the model over the data and says it for every normalizer. Here is a network with BatchNorm, trained
for a moment:
"""

import torch

import normscope as ns
from normscope.data import digits
from normscope.networks import mlp, train

seed = torch.Generator().manual_seed(0)
data = digits(generator=seed)
model = mlp(normalizer="batch", generator=seed, width=32)
train(model, data.train_images, data.train_labels, generator=seed, epochs=2)
audit = ns.audit(model.eval(), data.test_images[:16], loader=data.train_images.split(64))
print(audit.verdict)

# %%
# What all normalizers do together, in one sentence:

print(audit.normalizers.sentence)

# %%
# Each row of the table is a layer. A normalizer has the variances that it met, the factor by which it alone can
# stretch a change at these data (the papers' constant of the normalizer), and the factor together with the layer
# before it. The second is the one to read: weights before a normalizer have no scale of their own, so halving them
# doubles the first and leaves the second.

rows = audit.to_pandas()
normalizers = rows[rows["role"] == "normalizer"].set_index("path")
print(normalizers[["variance_log10_median", "log10_at_data", "log10_folded"]])

# %%
# The audit as a picture. Every result has ``plot``, which draws the first chart of its page.

audit.plot()

# %%
# The theory on this very model: the constant that is printed in the literature, and the exact one.

print(normalizers[["log10_printed", "log10_exact"]])
