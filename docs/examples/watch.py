"""
Watch: see capacity move while it trains
========================================

``ns.watch`` stands around a training loop. Here a small network with BatchNorm is trained by Adam with
``weight_decay``, which adds the decay to the gradient: weights in front of a BatchNorm feel no gradient along
themselves, so that nothing holds them up, and the variances behind them collapse. ``torch.optim.AdamW`` with the same
settings is healthy.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

import normscope as ns
from normscope.data import digits

data = digits(generator=torch.Generator().manual_seed(0))
keep = data.train_labels < 2
images, labels = data.train_images[keep], data.train_labels[keep]


def train(optimizer_class: type[torch.optim.Optimizer], folder: Path) -> ns.Run:
    """Train for 200 steps and return the run as it was logged."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 64, 2),
    )  # fmt: skip
    optimizer = optimizer_class(model.parameters(), lr=1e-2, weight_decay=1e-2)
    with ns.watch(model, optimizer, every=5, log=folder) as run:
        for _ in range(200):
            chosen = torch.randint(len(images), (64,))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    return ns.Run(folder)


folder = Path(tempfile.mkdtemp())
runs = {cls.__name__: train(cls, folder / cls.__name__) for cls in (torch.optim.Adam, torch.optim.AdamW)}

# %%
# The alarms of each run, with the step at which they were raised:
for name, run in runs.items():
    print(name, [(finding.code, finding.where, finding.step) for finding in run.findings])

# %%
# One row per step: the loss and the products over the network. ``log10_constants`` is the product of 1/sigma over the
# normalizers, which grows where variances collapse.
for name, run in runs.items():
    first, last = run.records[0].total, run.records[-1].total
    constants = [total["log10_constants"] for total in (first, last)]
    print(f"{name:5s} log10 prod 1/sigma: {constants[0]:+.1f} at first, {constants[1]:+.1f} at last")

# %%
# A report with the curves of every layer; ``normscope show`` and ``normscope compare`` write it too.
runs["Adam"].to_html(folder / "adam.html")
print(runs["Adam"])

# %%
# The loss of the run:

runs["Adam"].plot()
