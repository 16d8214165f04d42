"""Two processes over gloo: norms are those of the whole tensors, one process writes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from normscope.doctor.monitor import watching
from normscope.doctor.monitor.log import read_log
from normscope.doctor.monitor.watching import watch

from .training import batches, network

ROOT = Path(__file__).parents[2]
STEPS, KIND = 4, "layers"
CLOSE = ("log10_size", "log10_gradient", "log10_group", "rotation", "tangential", "log10_moved")


def train_together(rank: int, how: str, folder: str, begun: int = 0) -> None:
    """One of two processes."""
    store = f"file://{folder}/store-{how}-{begun}"
    dist.init_process_group("gloo", store, timeout=timedelta(seconds=60), rank=rank, world_size=2)
    train(rank, 2, how, folder, begun)
    gc.collect()  # a model that outlives its group ends it while it holds the GIL, for which the group's threads wait
    dist.destroy_process_group()


def train(rank: int, world: int, how: str, folder: str, begun: int = 0) -> None:
    """One process: each has its half of every batch, or of the weights."""
    kind = KIND
    model: Any = nn.Sequential(*network(kind), nn.ReLU(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
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
    elif how == "tensors":
        mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
        parallelize_module(model, mesh, {"8": ColwiseParallel(), "10": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with watch(model, optimizer, every={"economy": 1, "standard": 2}, log=f"{folder}/{how}") as run:
        for x, y in batches(kind, STEPS):
            if how != "tensors":  # then each process has the whole batch
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
        torch.save([{k: dict(v) for k, v in record.values.items()} for record in run.records], f"{folder}/{how}.pt")


def train_all(rank: int, folder: str) -> None:
    """Train as one of two processes with DDP, with FSDP2, go on with that; the first then trains alone."""
    torch.set_num_threads(1)
    watching.watch.__kwdefaults__["overhead"] = None  # as for the other tests: every layer at every step that is due
    train_together(rank, "ddp", folder)
    train_together(rank, "fsdp", folder)
    train_together(rank, "fsdp", folder, STEPS)
    train_together(rank, "tensors", folder)
    if rank == 0:
        train(0, 1, "alone", folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with what was measured, by two processes of their own."""
    folder = tmp_path_factory.mktemp("distributed")
    code = "from tests.monitor.test_distributed import train_all; train_all({}, {!r})"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    commands = [[sys.executable, "-c", code.format(rank, str(folder))] for rank in range(2)]
    processes = [subprocess.Popen(command, cwd=ROOT, env=environment) for command in commands]
    try:
        assert [process.wait(150) for process in processes] == [0, 0]
        yield folder
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("how", ["ddp", "fsdp", "tensors"])
def test_norms_are_those_of_one_process(how: str, trained: Path) -> None:
    """Without BatchNorm the gradient of the mean loss is the mean over the processes."""
    together, alone = torch.load(trained / f"{how}.pt"), torch.load(trained / "alone.pt")
    assert len(together) == len(alone) == STEPS
    for step, (whole_one, whole_two) in enumerate(zip(together, alone, strict=True)):
        one, two = whole_one["weight"], whole_two["weight"]
        compared = {("weight", quantity): 1e-6 for quantity in CLOSE}
        if how == "tensors":  # both processes have all samples
            compared |= {("units", "dead"): 0.0, ("block", "log10_activation"): 1e-5, ("block", "log10_backward"): 1e-5}
        for (kind, quantity), close in compared.items():
            figures = [record.get(kind, {}).get(quantity, ()) for record in (whole_one, whole_two)]
            for a, b in zip(*figures, strict=True):
                assert (a is None) == (b is None), (step, quantity)
                assert a is None or 10**a == pytest.approx(10**b, rel=close), (step, quantity)
        # a search shares vectors with the normalizer behind, which sees half a batch: norms have errors of their own
        norms = zip(*(run[name] for run in (one, two) for name in ("log10_norm", "norm_error")), strict=True)
        for norm, error, alone_norm, alone_error in norms:
            assert abs(norm - alone_norm) <= max(error, alone_error, 1e-6), step
    assert {quantity for record in alone for quantity in record["weight"]} >= set(CLOSE)
    assert alone[0]["weight"]["rotation"][:2].count(None) == 0
    assert max(dead for record in alone for dead in record.get("units", {}).get("dead", ())) > 0.0
    assert sum("block" in record for record in alone) == 2
