"""
Check: a verdict in seconds
===========================

``ns.check`` runs a model forward over the data and once backward, and says whether anything is wrong: what the layers
hand on, how much of the gradient comes back to them, which units are dead or saturated. Nothing is traced and no bound
is taken, so it works on almost every model that runs. Here is a network of twelve sigmoid layers:
"""

import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns

torch.manual_seed(0)
sigmoids = [layer for _ in range(12) for layer in (nn.Linear(32, 32), nn.Sigmoid())]
check = ns.check(nn.Sequential(*sigmoids, nn.Linear(32, 10)), torch.randn(64, 32))
print(check)

# %%
# The verdict is one sentence; the findings say why it matters and what to do:

print(check.verdict)
print(check.findings[0].advice)
print(check.cost)

# %%
# The advice taken, all is well. With a loss (and labels in the batch) the gradients are those of the loss:

relus = [layer for _ in range(12) for layer in (nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU())]
batch = torch.randn(64, 32), torch.randint(0, 10, (64,))
mended = ns.check(nn.Sequential(*relus, nn.Linear(32, 10)), batch, loss=F.cross_entropy)
print(mended.verdict)

# %%
# The signal by depth is plain data: mean, deviation, range, gradient, saturation, room in float16.

for row in mended.signal.rows[:5]:
    print(f"{row.path:6} {row.kind:11} deviation {row.deviation:.2f} gradient 10^{row.log10_gradient:.2f}")
print(mended.to_pandas()[["path", "kind", "mean", "deviation", "least", "greatest"]].tail(3))

# %%
# The signal as a picture: with sigmoids the gradient falls by depth.

check.plot()
