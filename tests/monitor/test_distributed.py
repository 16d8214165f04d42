"""Two processes over gloo: norms are those of the whole tensors, one process writes."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from normscope.monitor.log import read_log
from normscope.monitor.watching import watch

from .training import batches, network

STEPS = 4
CLOSE = ("log10_size", "log10_gradient", "log10_norm", "log10_group", "rotation", "tangential", "log10_moved")


def train(rank: int, world: int, kind: str, how: str, folder: str, port: int) -> None:
    """One process: every process has its half of each batch."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(world)}
    if world > 1:
        dist.init_process_group("gloo", rank=rank, world_size=world)
    model: Any = network(kind)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if how == "ddp":
        model = DistributedDataParallel(model)
    elif how == "fsdp":
        mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
        for layer in model:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with watch(model, optimizer, every={"economy": 1, "standard": 2}, log=f"{folder}/{how}") as run:
        for x, y in batches(kind, STEPS):
            x, y = x.chunk(world)[rank], y.chunk(world)[rank]
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert run.step == STEPS
    assert (len(run.records) == STEPS) == (rank == 0)
    if rank == 0:
        assert [line["type"] for line in read_log(f"{folder}/{how}")] == ["run", *["step"] * STEPS, "end"]
        torch.save([dict(record.values["weight"]) for record in run.records], f"{folder}/{how}.pt")
    if world > 1:
        dist.destroy_process_group()


def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_norms_are_those_of_one_process(how: str, tmp_path: Path) -> None:
    """Without BatchNorm the gradient of the mean loss is the mean over the processes."""
    kind = "layers"
    mp.start_processes(train, args=(2, kind, how, str(tmp_path), port()), nprocs=2, start_method="fork")
    train(0, 1, kind, "alone", str(tmp_path), port())
    together, alone = torch.load(tmp_path / f"{how}.pt"), torch.load(tmp_path / "alone.pt")
    assert len(together) == len(alone) == STEPS
    for step, (one, two) in enumerate(zip(together, alone, strict=True)):
        for quantity in CLOSE:
            for a, b in zip(one.get(quantity, ()), two.get(quantity, ()), strict=True):
                assert (a is None) == (b is None), (step, quantity)
                assert a is None or 10**a == pytest.approx(10**b, rel=1e-6), (step, quantity)
    assert alone[0]["rotation"][:2].count(None) == 0
