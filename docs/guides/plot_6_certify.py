"""
Certify robustness, and hand the proof to someone else
======================================================

How far can an image move before its class *can* change? A certified radius is a promise (no change within it alters
the class), an attack is a counterexample (this change alters it). The truth lies between the two.
"""

import tempfile
from pathlib import Path

import torch

import normscope as ns
from normscope.data import digits
from normscope.networks import mlp, train

seed = torch.Generator().manual_seed(0)
data = digits(generator=seed)
model = mlp(generator=seed, width=32, depth=3)
train(model, data.train_images, data.train_labels, generator=seed, epochs=5)
model.eval()
images, labels = data.test_images[:12], data.test_labels[:12]
radii = ns.certified_radius(model, (images, labels))
print(radii)

# %%
# The accuracy that is certain, and the accuracy that an attack leaves:

radii.plot()

# %%
# A bound over all inputs can be handed on with its proof. The file holds the network, the steps of the proof and the
# pair of inputs that attains the lower side; a small program that knows nothing of Normscope or torch checks it.

bound = ns.lipschitz(model, images)
print(bound)
bound.save(Path(tempfile.mkdtemp()) / "proof.npz")

# %%
# .. code-block:: console
#
#     $ normscope bound verify proof.npz
#
# Or, where Normscope is not installed, ``python tools/verify proof.npz`` from its source.
