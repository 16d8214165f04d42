"""
Certified radius: how far an input may move
===========================================

``ns.certified_radius`` gives, for each sample, a distance within which the class provably does not change, beside the
smallest perturbation with which an attack changed it. The truth lies between the two.
"""

import torch
from torch import nn

import normscope as ns

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
points = torch.randn(512, 2)
labels = (points.norm(dim=1) > 1.1).long()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(200):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(points), labels).backward()
    optimizer.step()
model.eval()

radii = ns.certified_radius(model, points[:16], labels=labels[:16], effort="tight")
print(radii)

# %%
# The share of samples that are classified correctly whatever happens within r, and the share that survived the attack:

for r in (0.0, 0.02, 0.05, 0.1):
    print(f"r = {r:<5} certified {radii.certified_accuracy(r):.2f}  attacked {radii.attacked_accuracy(r):.2f}")

# %%
# The same for every radius:

radii.plot()
