"""
Which normalizer, at which batch size?
======================================

``ns.choose`` makes twins of your model (the same network with another normalizer, or none), trains each for a few steps
with several batch sizes, learning rates and seeds, and compares them. BatchNorm estimates its statistics from the
batch: the column `noise` says how far off its variances are, and the findings of a twin name what else was met.
"""

import torch

import normscope as ns
from normscope.data import digits
from normscope.networks import mlp

data = digits(generator=torch.Generator().manual_seed(0))
model = mlp(normalizer="batch", width=32, depth=3)
choice = ns.choose(
    model,
    (data.train_images[:400], data.train_labels[:400]),
    loss="cross_entropy",
    normalizers=["batch", "layer"],
    batch_sizes=[4, 32],
    learning_rates=[0.05],
    seeds=1,
    steps=40,
    capacity=False,
    workers=0,
)
print(choice)

# %%
# The held-out loss of the best learning rate, by batch size:

choice.plot()

# %%
# Forty steps and one seed are for this page. ``normscope choose net.py:build --data digits`` takes 300 steps and two
# seeds, on all cores; the result says how certain it is.
