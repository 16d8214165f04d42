"""
Lipschitz: a whole network
==========================

``ns.lipschitz`` brackets the Lipschitz constant of a model: over all inputs (``scope="global"``) or at the samples of
a batch (``scope="point"``, the Jacobian norm there).
"""

import torch
from torch import nn

import normscope as ns

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(128, 10),
).eval()
batch = torch.randn(4, 1, 8, 8)

everywhere = ns.lipschitz(model, batch)
print(everywhere)

# %%
# The upper side holds for every pair of inputs. The lower side is attained by the pair it keeps as its witness:

(first,), (second,) = everywhere.witness  # one tensor per input of the model
precise = model.double()
change = (precise(first.double()) - precise(second.double())).norm() / (first.double() - second.double()).norm()
print(f"lower {everywhere.lower:.6f}, gain between the two witnesses {change:.6f}")
model.float()

# %%
# At the samples themselves the Jacobian norm is known to rounding. It is a fact about these samples, not a bound for
# others:

here = ns.lipschitz(model, batch, scope="point")
print(here)
for number, sample in enumerate(here.per_sample):
    print(number, sample)

# %%
# LayerNorm divides by a standard deviation that can be as small as ``sqrt(eps)``: its constant over all inputs is
# large, at real samples it is not.

normalized = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4)).eval()
x = torch.randn(4, 16)
print(ns.lipschitz(normalized, x))
print(ns.lipschitz(normalized, x, scope="point"))

# %%
# Where no finite constant exists the upper side is infinite and the reason is given:


class Gate(nn.Module):
    """Multiplies two linear maps of its input: its slope grows without limit."""

    def __init__(self):
        super().__init__()
        self.value, self.gate = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value(x) * self.gate(x)


print(ns.lipschitz(Gate(), x).reason)

# %%
# Both sides of the bracket as a picture:

everywhere.plot()
