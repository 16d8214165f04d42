"""
My training diverges or stalls
==============================

Put ``ns.watch`` around the loop you have. It measures a step now and then and raises an alarm with the layer, the reason and
what to do. Three faults are planted here, found and mended; the loop is the same every time:
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import normscope as ns
from normscope.data import digits

data = digits(generator=torch.Generator().manual_seed(0))


def fit(model, optimizer, steps=60):
    """Train for a few steps under watch; return the watched run and the losses."""
    generator, losses = torch.Generator().manual_seed(0), []
    with ns.watch(model, optimizer, every=10) as run:
        for _ in range(steps):
            rows = torch.randint(len(data.train_labels), (64,), generator=generator)
            loss = nn.functional.cross_entropy(model(data.train_images[rows]), data.train_labels[rows])
            run.observe(loss=loss)
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


def tell(run):
    """Print the alarms that are more than a note."""
    for finding in run.findings:
        if finding.severity != ns.Severity.INFO:
            print(f"{finding.severity}: {finding.code} in {finding.where or 'the run'}\n  {finding.seen}\n  {finding.advice}")


# %%
# **One: steps that are too large.** The loss becomes NaN; the alarm says since when, and why.

model = network()
run, losses = fit(model, torch.optim.SGD(model.parameters(), lr=30.0))
tell(run)

# %%
# Mended: a hundredth of the learning rate.

model = network()
run, mended = fit(model, torch.optim.SGD(model.parameters(), lr=0.3))
tell(run)
print(f"loss {mended[0]:.2f} -> {mended[-1]:.2f}")

# %%
# **Two: a network that is too deep for its activation.** The loss stays where it is: almost no gradient reaches the first layers.
# ``ns.check`` says so before the first step.

deep = network(nn.Sigmoid, depth=12)
check = ns.check(deep, (data.train_images[:64], data.train_labels[:64]), loss="cross_entropy")
print(check.verdict)
print(check.findings[0].advice)

# %%
# The gradient by depth, and the same with the advice taken:

relus = nn.Sequential(
    nn.Flatten(), *(layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())), nn.Linear(64, 10)
)
better = ns.check(relus, (data.train_images[:64], data.train_labels[:64]), loss="cross_entropy")
print(better.verdict)
for name, result in {"sigmoids": check, "LayerNorm and ReLU": better}.items():
    gradients = [row.log10_gradient for row in result.signal.rows if row.kind == "linear"]
    plt.plot(range(1, len(gradients) + 1), gradients, marker="o", label=name)
plt.xlabel("linear layer")
plt.ylabel("gradient, as an exponent of ten")
plt.legend()

# %%
# **Three: an optimizer that does not have the weights.** The loop runs, the loss does not move.

model, other = network(), network()
run, losses = fit(model, torch.optim.SGD(other.parameters(), lr=0.3), steps=40)
tell(run)
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}")
