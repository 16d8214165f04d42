"""
Choose: which normalizer, at which batch size
=============================================

``ns.choose`` trains short runs of a model's twins and compares them. It takes a function that builds the model, so that
every seed has weights of its own. Here are 60 steps on made-up data; a real choice takes some hundred steps, and a
folder to go on from.
"""

import torch
from torch import nn

import normscope as ns


def build():
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))


inputs = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
classes = (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()
choice = ns.choose(
    build,
    (inputs, classes),
    loss="cross_entropy",
    normalizers=("none", "batch", "layer"),
    batch_sizes=(2, 64),
    learning_rates=(0.1,),
    steps=60,
    capacity=False,
    workers=0,
)
print(choice)
print(choice.recommendation)

# %%
# The twins by batch size:

choice.plot()
