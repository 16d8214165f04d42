"""
Watching many GPUs, Lightning, Hugging Face, accelerate
=======================================================

``ns.watch`` goes around any loop. Inside of a trainer it is a callback; with several processes every process watches,
the figures are reduced, and the first process writes the log.
"""

# %%
# **Lightning**
#
# .. code-block:: python
#
#     from normscope.doctor.monitor.callbacks.lightning import NormscopeCallback
#     trainer = lightning.Trainer(callbacks=[NormscopeCallback(log="runs/a", every=50)])
#
# **Hugging Face**
#
# .. code-block:: python
#
#     from normscope.doctor.monitor.callbacks.huggingface import NormscopeCallback
#     callbacks = [NormscopeCallback(log="runs/a", every=50)]
#     trainer = transformers.Trainer(model, args, train_dataset=data, callbacks=callbacks)
#
# **accelerate, DDP, FSDP**: pass the objects that the loop uses, behind ``accelerator.prepare`` or the wrapper.
#
# .. code-block:: python
#
#     model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
#     with ns.watch(model, optimizer, log="runs/a") as run:
#         for x, y in loader:
#             loss = loss_fn(model(x), y)
#             run.observe(loss=loss)
#             accelerator.backward(loss)
#             optimizer.step()
#             optimizer.zero_grad()
#
# What can be run here, on one process, is the loop itself. Two accumulated batches count as one step, because a step
# is one of the optimizer's:

import tempfile

import torch
from torch import nn

import normscope as ns
from normscope.data import digits
from normscope.networks import residual_mlp

data = digits(generator=torch.Generator().manual_seed(0))
model = residual_mlp(width=32, blocks=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
folder = tempfile.mkdtemp()
with ns.watch(model, optimizer, log=folder, every=5) as run:
    for step in range(40):
        for half in (0, 1):
            rows = slice(64 * (2 * step + half) % 1300, 64 * (2 * step + half) % 1300 + 64)
            x, y = data.train_images[rows], data.train_labels[rows]
            loss = nn.functional.cross_entropy(model(x), y) / 2
            loss.backward()
        run.observe(loss=2 * loss)
        optimizer.step()
        optimizer.zero_grad()
print(run)

# %%
# The log is a folder that can be read while the run goes on, here and on another machine: ``normscope show runs/a
# --live``, ``ns.Run``.

kept = ns.Run(folder)
print(kept.to_pandas().columns.tolist()[:12])
kept.plot()
