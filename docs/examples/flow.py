"""
Flow: what gradient descent conserves, and what it does not
===========================================================

``lab.flow`` follows gradient flow as a differential equation, and gradient descent beside it. Flow conserves the norm
of every scale-invariant weight; each step of descent adds lr^2 norm(grad)^2 to its square.
"""

import torch
from torch import nn

import normscope_lab as lab
from normscope.data import digits

data = digits(generator=torch.Generator().manual_seed(0))
x, y = data.train_images[:128].flatten(1), data.train_labels[:128]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
found = lab.flow(model, (x, y), loss="cross_entropy", time=0.5, lr=0.1, mode="train")
print(found)
print(f"descent: defect of the growth {found.growth_defect:.1e}")

# %%
# The course as a picture:

found.plot()
