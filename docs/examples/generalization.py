"""
Generalization: what bounds say, and what they ask for
======================================================

``ns.generalization`` bounds the loss of a classifier on fresh data in every known way. Each row has its value, its
terms, its conditions with whether they hold here, and its evidence.
"""

import torch
from torch import nn

import normscope as ns
from normscope.data import digits

data = digits(generator=torch.Generator().manual_seed(0))
x, y = data.train_images.flatten(1), data.train_labels
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
start = {name: value.detach().clone() for name, value in model.named_parameters()}
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(100):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()

test = (data.test_images.flatten(1), data.test_labels)
found = ns.generalization(model, (x, y), test, input_range=(0.0, 1.0), prior=start, steps=300)
print(found)

row = found["PAC-Bayes"]
print(row.value, row.evidence, [(term.name, term.value) for term in row.terms])
for condition in found["Theorem 20, slopes at D"].missing:
    print(condition.what, "-", condition.status, "-", condition.why)

# %%
# Every bound as a picture; those above the largest loss say nothing:

found.plot()
