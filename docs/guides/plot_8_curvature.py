"""
Curvature and safe learning rates
=================================

Gradient descent on a quadratic is stable as long as the learning rate is below 2 over the largest curvature
(eigenvalue of the Hessian). ``ns.hessian`` finds the largest ones of your loss, without the directions along which a
normalizer undoes every change.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import normscope as ns
from normscope.data import digits
from normscope.networks import mlp, train

seed = torch.Generator().manual_seed(0)
data = digits(generator=seed)
model = mlp(generator=seed, width=16, depth=3)
train(model, data.train_images, data.train_labels, generator=seed, epochs=3)
batch = data.train_images[:256], data.train_labels[:256]
spectrum = ns.hessian(model, batch, loss="cross_entropy", k=3, mode="train")
print(spectrum)

# %%
# The largest eigenvalues:

spectrum.plot()

# %%
# Is the limit real? Full-batch gradient descent from here, below and above it:

limit = 2.0 / spectrum.sharpness
start = {name: value.clone() for name, value in model.state_dict().items()}
plt.figure()
for factor in (0.5, 0.9, 1.5, 3.0):
    model.load_state_dict(start)
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        losses.append(float(loss.detach()))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), gradients):
                weight -= factor * limit * gradient
    plt.semilogy(losses, label=f"{factor} × the limit of {limit:.3f}")
plt.xlabel("step")
plt.ylabel("loss")
plt.legend()

# %%
# Above the limit the loss rises at first; whether it comes back is a matter of the loss beyond the quadratic. The
# sharpness changes while a network trains: measure it again, or watch it.
