"""
Capture: see the operators of a model
=====================================

``ns.capture`` turns a model and a batch into a small immutable graph. Every node knows its operator, the shape of
its value, the module that ran it and the line of source code it comes from.
"""

import torch
from torch import nn

import normscope as ns


class Block(nn.Module):
    """A residual block with a bottleneck."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.down = nn.Linear(width, width // 4)
        self.up = nn.Linear(width // 4, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.up(torch.relu(self.down(self.norm(x))))


model = nn.Sequential(nn.Linear(32, 16), Block(16), nn.Linear(16, 10)).eval()
graph = ns.capture(model, torch.randn(8, 32))
print(graph)

# %%
# The graph is what every bound reads. It can be walked node by node:

for node in graph:
    print(f"{node.path:10} {node.op!s:32} {list(node.shape)}")

# %%
# It is also a function: running it gives what the model gives.

x = graph.inputs[0].value
print(torch.allclose(graph.run(x), model(x), atol=1e-6))

# %%
# Every method of bounding reads it; what each makes of it:

ns.ladder(graph, sides="upper").plot()
