"""
Flatness: how much loss and accuracy suffer when the weights move
=================================================================

``ns.flatness`` adds noise that is scaled group by group, so that rescaling a weight in front of a normalizer changes
nothing; raw noise stands beside it. Ascent and the sharpness on the spheres complete it.
"""

import torch
from torch import nn

import normscope as ns
from normscope.data import digits

data = digits(generator=torch.Generator().manual_seed(0))
x, y = data.train_images[:128].flatten(1), data.train_labels[:128]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
flatness = ns.flatness(model, (x, y), loss="cross_entropy", levels=(0.03, 0.3, 1.0), draws=4, mode="train")
print(flatness)

# %%
# The loss by the size of the step:

flatness.plot()
