"""
My training diverges or stalls
==============================

Put ``ns.watch`` around the loop you have. It measures a step now and then and raises an alarm with the layer, the
reason and what to do. Three faults are planted here, found and mended; the loop is the same every time:
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import normscope as ns
from normscope.data import digits

data = digits(generator=torch.Generator().manual_seed(0))


def fit(model, optimizer, steps=60, clear=True):
    """Train for a few steps under watch; return the watched run and the losses."""
    generator, losses = torch.Generator().manual_seed(0), []
    with ns.watch(model, optimizer, every=10) as run:
        for _ in range(steps):
            rows = torch.randint(len(data.train_labels), (64,), generator=generator)
            x, y = data.train_images[rows], data.train_labels[rows]
            loss = nn.functional.cross_entropy(model(x), y)
            run.observe(loss=loss)
            if clear:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return run, losses


def network(activation=nn.ReLU, depth=3):
    """Return a small network."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(64, 64), activation())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10))


# %%
# **One: steps that are too large.** The loss explodes; the alarms say since when, in which layers, and why.

model = network()
run, losses = fit(model, torch.optim.SGD(model.parameters(), lr=30.0))
print(run)

# %%
# Mended: a hundredth of the learning rate.

model = network()
run, mended = fit(model, torch.optim.SGD(model.parameters(), lr=0.3))
print([finding.code for finding in run.findings])
print(f"loss {mended[0]:.2f} -> {mended[-1]:.2f}")

# %%
# **Two: a network that is too deep for its activation.** The loss stays where it is: almost no gradient reaches the
# first layers. ``ns.check`` says so before the first step.

deep = network(nn.Sigmoid, depth=12)
check = ns.check(deep, (data.train_images[:64], data.train_labels[:64]), loss="cross_entropy")
print(check.verdict)
print(check.findings[0].advice)

# %%
# The gradient by depth, and the same with the advice taken:

relus = nn.Sequential(
    nn.Flatten(),
    *(layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())),
    nn.Linear(64, 10),
)
better = ns.check(relus, (data.train_images[:64], data.train_labels[:64]), loss="cross_entropy")
print(better.verdict)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
check.plot(left).set_title("sigmoids")
better.plot(right).set_title("LayerNorm and ReLU")

# %%
# **Three: gradients that are never cleared.** The loop runs, and each step goes along the sum of all gradients so far.

model = network()
run, losses = fit(model, torch.optim.SGD(model.parameters(), lr=0.3), clear=False)
for finding in run.findings:
    print(f"{finding.severity}: {finding.code}: {finding.advice}")

# %%
# Mended, the loop is that of the first run again: ``clear=True``.
