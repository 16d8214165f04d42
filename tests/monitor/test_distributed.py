"""Two processes over gloo: norms are those of the whole tensors, one process writes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
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

from normscope.monitor import watching
from normscope.monitor.log import read_log
from normscope.monitor.watching import watch

from .training import batches, network

ROOT = Path(__file__).parents[2]
STEPS, KIND = 4, "layers"
CLOSE = ("log10_size", "log10_gradient", "log10_norm", "log10_group", "rotation", "tangential", "log10_moved")


def train(rank: int, world: int, kind: str, how: str, folder: str, port: int, begun: int = 0) -> None:
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
    assert run.step == begun + STEPS
    assert len(run.records) == (run.step if rank == 0 else 0)
    if rank == 0 and not begun:
        assert [line["type"] for line in read_log(f"{folder}/{how}")] == ["run", *["step"] * STEPS, "end"]
        torch.save([dict(record.values["weight"]) for record in run.records], f"{folder}/{how}.pt")
    if world > 1:
        dist.destroy_process_group()


def train_all(folder: str) -> None:
    """Train on two processes with DDP, then FSDP2 twice, then on one; called in a process without threads."""
    watching.SHARE = None  # as for the other tests: every layer at every measured step
    for how in ("ddp", "fsdp"):
        mp.start_processes(train, args=(2, KIND, how, folder, port()), nprocs=2, start_method="fork")
    mp.start_processes(train, args=(2, KIND, "fsdp", folder, port(), STEPS), nprocs=2, start_method="fork")
    train(0, 1, KIND, "alone", folder, port())


def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what was measured, in a process of its own: threads and locks of this one survive no fork."""
    folder = tmp_path_factory.mktemp("distributed")
    code = f"from tests.monitor.test_distributed import train_all; train_all({str(folder)!r})"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True) as process:
        try:
            assert process.wait(120) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return folder


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_norms_are_those_of_one_process(how: str, trained: Path) -> None:
    """Without BatchNorm the gradient of the mean loss is the mean over the processes."""
    together, alone = torch.load(trained / f"{how}.pt"), torch.load(trained / "alone.pt")
    assert len(together) == len(alone) == STEPS
    for step, (one, two) in enumerate(zip(together, alone, strict=True)):
        for quantity in CLOSE:
            for a, b in zip(one[quantity], two[quantity], strict=True) if quantity in {*one, *two} else ():
                assert (a is None) == (b is None), (step, quantity)
                assert a is None or 10**a == pytest.approx(10**b, rel=1e-6), (step, quantity)
    assert {quantity for record in alone for quantity in record} >= set(CLOSE)
    assert alone[0]["rotation"][:2].count(None) == 0
