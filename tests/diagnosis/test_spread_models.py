"""Models that are spread over processes or devices: `check` gives the figures of the whole one, and leaves it so.

Everything that needs whole weights refuses them by name.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import normscope as ns
from normscope.core.errors import InputError
from normscope.core.whole_weights import whole_weights
from normscope.doctor.checking.check_result import Check

ROOT = Path(__file__).parents[2]


class Block(nn.Module):
    """An MLP behind a normalizer, beside a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Decoder(nn.Module):
    """Embeddings, blocks and a head that shares the table; one layer far too small, one unit in eight dead."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 32)
        self.blocks = nn.ModuleList(Block(32) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 50, bias=False)
        with torch.no_grad():
            self.blocks[1].up.weight.mul_(1e-4)
            self.blocks[2].up.bias[::8] = -100.0

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits."""
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def decoder() -> tuple[Any, Tensor, Tensor]:
    """Return the model, a batch and its labels; the same at every call."""
    torch.manual_seed(0)
    return Decoder(), torch.randint(0, 50, (4, 12)), torch.randint(0, 50, (4, 12))


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy of all positions."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def checked(model: nn.Module, ids: Tensor, labels: Tensor) -> list[Check]:
    """Check the model alone, and with a loss and an optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return [ns.check(model, ids), ns.check(model, (ids, labels), loss=token_loss, optimizer=optimizer)]


def figures(found: Check) -> dict[str, Any]:
    """Return what a check says, but for when and where it was made."""
    return {key: value for key, value in found.to_json().items() if key not in ("provenance", "seconds")}


def assert_alike(one: Any, two: Any, where: str = "") -> None:
    """Compare nests of figures."""
    if isinstance(one, dict) and isinstance(two, dict):
        assert one.keys() == two.keys(), where
        for key in one:
            assert_alike(one[key], two[key], f"{where}.{key}")
    elif isinstance(one, list) and isinstance(two, list):
        assert len(one) == len(two), where
        for index, pair in enumerate(zip(one, two, strict=True)):
            assert_alike(*pair, f"{where}[{index}]")
    elif isinstance(one, float):
        assert two == pytest.approx(one, rel=1e-5, abs=1e-9), where
    else:
        assert one == two, where


def spread(how: str, model: Any) -> None:
    """Spread a model over all processes."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    if how == "fsdp":
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if how == "tensors":
        for block in model.blocks:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def check_together(rank: int, folder: str) -> None:
    """Check the spread models as one of two processes, and train each a step afterwards."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", timeout=timedelta(seconds=60), rank=rank, world_size=2)
    for how in ("fsdp", "tensors"):
        model, ids, labels = decoder()
        spread(how, model)
        kinds = [type(module) for module in model.modules()]
        hooks = [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules()]
        held = [id(parameter) for parameter in model.parameters()]
        found = [figures(one) for one in checked(model, ids, labels)]
        assert kinds == [type(module) for module in model.modules()]
        assert hooks == [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()]
        assert held == [id(parameter) for parameter in model.parameters()]
        assert all(parameter.grad is None for parameter in model.parameters())
        loss = token_loss(model(ids), labels)
        loss.backward()
        assert any(hasattr(parameter.grad, "full_tensor") for parameter in model.parameters())
        torch.save((found, float(loss)), f"{folder}/{how}-{rank}.pt")
        del model, loss
        gc.collect()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what two processes of their own found."""
    folder = tmp_path_factory.mktemp("spread")
    code = "from tests.diagnosis.test_spread_models import check_together; check_together({}, {!r})"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    commands = [[sys.executable, "-c", code.format(rank, str(folder))] for rank in range(2)]
    processes = [subprocess.Popen(command, cwd=ROOT, env=environment) for command in commands]
    try:
        assert [process.wait(150) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return folder


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", ["fsdp", "tensors"])
def test_two_processes_find_what_one_does(how: str, together: Path) -> None:
    """Parameters that are cut along rows, and functions that each process runs on a part of the units."""
    model, ids, labels = decoder()
    alone = [figures(one) for one in checked(model, ids, labels)]
    loss = float(token_loss(model(ids), labels).detach())
    for rank in range(2):
        found, trained = torch.load(together / f"{how}-{rank}.pt")
        assert_alike(alone, found)
        assert trained == pytest.approx(loss, rel=1e-5)
    assert alone[0]["findings"]


def test_a_model_that_accelerate_places_has_the_figures_of_the_plain_one() -> None:
    """Its hooks move what layers are given to their devices."""
    accelerate = pytest.importorskip("accelerate")
    model, ids, labels = decoder()
    alone = [figures(one) for one in checked(model, ids, labels)]
    parts = ["tokens", *(f"blocks.{k}" for k in range(3)), "norm", "head"]
    placed = accelerate.dispatch_model(model, dict.fromkeys(parts, "cpu"), main_device="cpu", force_hooks=True)
    assert hasattr(placed.blocks[0], "_hf_hook")
    assert_alike(alone, [figures(one) for one in checked(placed, ids, labels)])


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A group of one process."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


MEASURES: dict[str, Callable[[nn.Module, Tensor, Tensor], Any]] = {
    "audit": lambda model, ids, labels: ns.audit(model, ids),
    "capture": lambda model, ids, labels: ns.capture(model, ids),
    "lipschitz": lambda model, ids, labels: ns.lipschitz(model, ids),
    "lipschitz at the data": lambda model, ids, labels: ns.lipschitz(model, ids, scope="point"),
    "hessian": lambda model, ids, labels: ns.hessian(model, (ids, labels), loss=token_loss),
    "certified_radius": lambda model, ids, labels: ns.certified_radius(model.eval(), (ids, labels)),
    "spectral_norm": lambda model, ids, labels: ns.spectral_norm(model.blocks[0].up),  # type: ignore
    "twin": lambda model, ids, labels: ns.twin(model, normalizer="rms"),
}


@pytest.mark.parametrize("how", ["fsdp", "tensors"])
def test_what_needs_whole_weights_names_one_that_lies_in_parts(how: str, one_process: None) -> None:
    """It neither blames the batch nor quotes torch; and what the message advises works."""
    model, ids, labels = decoder()
    spread(how, model)
    first = next(name for name, parameter in model.named_parameters() if hasattr(parameter, "full_tensor"))
    for name, measure in MEASURES.items():
        weight = "weight" if name == "spectral_norm" else first
        with pytest.raises(InputError, match=f"^the weight `{weight}` lies on several processes in parts") as raised:
            measure(model, ids, labels)
        assert "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))" in str(raised.value), name
    plain = Decoder()
    plain.load_state_dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)))
    assert ns.capture(plain, ids).output
    assert torch.equal(plain.head.weight, decoder()[0].head.weight)


@pytest.mark.parametrize("how", ["fsdp", "tensors"])
def test_the_step_of_an_optimizer_is_made_on_the_parts(how: str, one_process: None) -> None:
    """Its figures are those of the whole model, and nothing of it is skipped."""
    model, ids, labels = decoder()
    alone = checked(model, ids, labels)[1].signal
    model, ids, labels = decoder()
    spread(how, model)
    found = checked(model, ids, labels)[1].signal
    assert alone is not None
    assert found is not None
    assert alone.steps is not None
    assert found.steps is not None
    assert found.steps.skipped == ()
    for name in ("next_loss", "promised_fall", "moved_share", "most_moved", "unmoved"):
        assert getattr(found.steps, name) == pytest.approx(getattr(alone.steps, name), rel=1e-5), name


def test_whole_models_are_left_alone() -> None:
    """There is nothing to gather."""
    model = Decoder()
    with whole_weights(model):
        assert torch.overrides._len_torch_function_stack() == 0
