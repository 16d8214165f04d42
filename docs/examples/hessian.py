"""
Hessian: the sharpest directions of a loss
==========================================

``ns.hessian`` finds the largest eigenvalues of the Hessian with their residuals, without the directions along which a
normalizer takes every change back. Two over the largest is the learning rate that gradient descent can bear there.
Train and eval mode are two different losses where there is a BatchNorm.
"""

import torch
from torch import nn

import normscope as ns
from normscope.data import digits

data = digits(generator=torch.Generator().manual_seed(0))
x, y = data.train_images[:128].flatten(1), data.train_labels[:128]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
spectrum = ns.hessian(model, (x, y), loss="cross_entropy", k=3, bottom=1, mode="train", probes=4)
print(spectrum)
print(spectrum.safe_learning_rate, spectrum.converged)

# %%
# A spectrum is a file, too; ``normscope show`` shows it:

again = ns.Spectrum.from_json(spectrum.to_json())
print(again == spectrum)

# %%
# The spectrum as a picture:

spectrum.plot()
