"""
Twins: the same network with other normalizers
==============================================

``ns.twin`` copies a model and removes, replaces or inserts its normalizers. Weights are kept, the model is not touched,
and the result says what was changed.
"""

import torch
from torch import nn

import normscope as ns

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 10)
)  # fmt: skip
batch = torch.randn(16, 1, 8, 8)
twin = ns.twin(model, batch, normalizer="group")
print(twin)
print(twin.model[1])

# %%
# The twin of a twin, with the normalizer of the model, is the model again, running statistics included:

back = ns.twin(twin.model, batch, normalizer="batch").model
print(torch.equal(back.eval()(batch), model.eval()(batch)))

# %%
# In eval mode a BatchNorm is an affine map, which the layer before it can take in:

folded = ns.twin(model, batch, normalizer=None, fold=True)
print(folded.changes[0].note, float((folded.model.eval()(batch) - model(batch)).abs().max()) < 1e-5)

# %%
# In a model without normalizers they are put behind the layers that feed an activation:

plain = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
print([change.path for change in ns.twin(plain, torch.randn(4, 8), normalizer="layer").changes])

# %%
# Values and gradients of the twin by depth:

ns.check(twin.model, batch).plot()
