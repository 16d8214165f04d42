"""
Compare two checkpoints
=======================

What did training change? Audit both and set them side by side. Saved audits compare on the command line: ``normscope
compare before.json after.json --html difference.html``.
"""

import copy
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import normscope as ns
from normscope.data import digits
from normscope.networks import mlp, train

seed = torch.Generator().manual_seed(0)
data = digits(generator=seed)
model = mlp(normalizer="layer", generator=seed, width=32)
before = copy.deepcopy(model).eval()
train(model, data.train_images, data.train_labels, generator=seed, epochs=3)
batch, loader = data.test_images[:16], data.train_images[:320].split(64)
audits = {
    "before": ns.audit(before, batch, loader=loader, name="before"),
    "after": ns.audit(model.eval(), batch, loader=loader, name="after"),
}
for name, audit in audits.items():
    print(
        name, audit.verdict, f"a small change grows at most 10^{audit.observed.log10_upper:.2f} times at these samples"
    )

# %%
# What each normalizer does to a small change, before and after:

figure, both = plt.subplots(1, 2, figsize=(9, 3), sharex=True, layout="constrained")
for axes, (name, audit) in zip(both, audits.items()):
    audit.plot(axes).set_title(name)

# %%
# ``compare`` sets them side by side; in a notebook the comparison shows itself as a page:

print(ns.compare(audits["before"], audits["after"]))

# %%
# Both are files, for later and for others:

folder = Path(tempfile.mkdtemp())
for name, audit in audits.items():
    audit.to_json(folder / f"{name}.json")
print(ns.Audit.from_json(folder / "after.json").verdict)
