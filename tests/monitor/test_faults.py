"""The table of faults: each with a run that has it and a healthy twin, in the economy tier, at every tenth step.

The watcher has no time to spare in these runs: layers take turns, and alarms are looked for as rarely as they ever are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.monitor.watching import Watch, watch

from .alarm_runs import data, warned
from .training import only_at_first


class Net(nn.Module):
    """A small classifier with a branch; what is wrong with it is set from outside."""

    def __init__(self, normalizer: type[nn.Module] = nn.Identity, depth: int = 2) -> None:
        torch.manual_seed(0)
        super().__init__()
        width = 24
        layers = [(nn.Linear(64 if i == 0 else width, width), normalizer(width), nn.ReLU()) for i in range(depth)]
        self.body = nn.Sequential(*(layer for block in layers for layer in block))
        self.branch, self.head = nn.Linear(width, width), nn.Linear(width, 10)
        self.detached, self.unused, self.late = False, False, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x.flatten(1))
        x = x.detach() if self.detached else x
        return self.head(self.late(x if self.unused else x + torch.relu(self.branch(x))))


def plain(depth: int, seed: int) -> nn.Module:
    """An MLP of 64 units, as textbooks have it."""
    torch.manual_seed(seed)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10))


@dataclass
class Fault:
    """What a run does otherwise than its twin, and what is to be said of it: the code, the layer, and by which step."""

    code: str
    where: str = ""
    by: int = 150
    steps: int = 160
    model: Callable[[], nn.Module] = Net
    change: Callable[[Any], None] = lambda model: None
    healthy: Callable[[Any], None] = lambda model: None
    optimizer: Callable[[Any], torch.optim.Optimizer] = field(
        default=lambda model: torch.optim.SGD(model.parameters(), lr=0.1)
    )
    other: Callable[[Any], torch.optim.Optimizer] | None = None
    batch: Callable[[Tensor, int], Tensor] = lambda x, step: x
    clears: bool = True
    scale: Callable[[int], float] = lambda step: 1.0
    classes: int = 10
    during: Callable[[Any, int], Any] = lambda model, step: None
    compiled: bool = False


def set_to(**values: Any) -> Callable[[Any], None]:
    return lambda model: [setattr(model, name, value) for name, value in values.items()] and None


def add_late(model: Any) -> None:
    model.late = nn.Linear(24, 24)


def heads_only(model: Any) -> torch.optim.Optimizer:
    held = [p for name, p in model.named_parameters() if not name.startswith("late")]
    return torch.optim.SGD(held, lr=0.1)


def kill(model: Any) -> None:
    with torch.no_grad():
        model.branch.bias.fill_(-50.0)


def spoil(model: Any) -> None:
    """Let a layer return NaN for some inputs alone, so that its weights say nothing."""
    model.branch.register_forward_hook(lambda module, args, made: made.where(made < made.amax(), made / 0.0 * 0.0))


ADAM_L2 = {"lr": 1e-2, "weight_decay": 1e-2}
FAULTS = {
    "detach": Fault("no-gradient", "body.3", change=set_to(detached=True)),
    "unused branch": Fault("no-gradient", "branch", change=set_to(unused=True)),
    "a layer that no optimizer trains": Fault(
        "not-trained", "late", change=add_late, healthy=add_late, optimizer=heads_only,
        other=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    ),
    "zero input": Fault("constant-input", by=20, batch=lambda x, step: 0.0 * x),
    "constant input": Fault("constant-input", by=20, batch=lambda x, step: x[:1].expand_as(x)),
    "input that becomes constant": Fault(
        "constant-input", by=60, batch=lambda x, step: x if step < 40 else torch.ones_like(x)
    ),
    "gradients never cleared": Fault("no-zero-grad", by=30, clears=False),
    **{
        f"SGD with a learning rate of 3, depth {depth}, seed {seed}": Fault(
            "lr-too-high", by=120, steps=130, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=3.0),
            model=partial(plain, depth, seed),
            other=None if seed else lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        )
        for depth, seed in ((1, 2), (2, 1), (3, 0))
    },
    "Adam with L2 and LayerNorm": Fault(
        "variance-collapse", "body.4", by=290, steps=300, model=partial(Net, nn.LayerNorm), classes=2,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), **ADAM_L2),
        other=lambda model: torch.optim.AdamW(model.parameters(), **ADAM_L2),
    ),
    "a loss that spikes": Fault("loss-spike", by=140, scale=lambda step: 60.0 if step == 133 else 1.0),
    "a layer that dies": Fault("dead-layer", "branch", change=kill, by=120),
    "a layer that dies midway": Fault("dead-layer", "branch", during=lambda model, step: step == 150 and kill(model),
                                      by=270, steps=280),
    "a layer that breaks": Fault("loss-not-finite", "branch", by=50,
                                 during=lambda model, step: step == 43 and spoil(model)),
    "all in eval mode": Fault("eval-mode", model=partial(Net, nn.BatchNorm1d), change=lambda model: model.eval(), by=10,
                              steps=20),
    "a compiled step around a plain model": Fault("not-seen", by=10, steps=20, compiled=True),
}  # fmt: skip


def trained(fault: Fault, *, ill: bool) -> Watch:
    """Train with the fault, or without; as the watcher sees it when it has no time at all."""
    images, labels = data(fault.classes)
    model = fault.model()
    (fault.change if ill else fault.healthy)(model)
    made = fault.optimizer if ill or fault.other is None else fault.other
    optimizer, order = made(model), torch.Generator().manual_seed(0)
    called = torch.compile(lambda x: model(x), backend="eager") if ill and fault.compiled else model
    with warnings.catch_warnings(), watch(model, optimizer, every=10, panel=False) as run:
        warnings.simplefilter("ignore")  # what the watcher says of runs that it does not see
        for step in range(fault.steps):
            if ill:
                fault.during(model, step)
            rows = torch.randperm(len(images), generator=order)[:64]
            if fault.clears or not ill:
                optimizer.zero_grad()
            x = fault.batch(images[rows], step) if ill else images[rows]
            loss = nn.functional.cross_entropy(called(x), labels[rows]) * (fault.scale(step) if ill else 1.0)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    return run


@pytest.fixture(autouse=True)
def _no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    only_at_first(monkeypatch, records=2)


@pytest.mark.one_in(16)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_in_time_with_its_layer(name: str) -> None:
    fault = FAULTS[name]
    run = trained(fault, ill=True)
    found = [finding for finding in run.findings if finding.code == fault.code]
    assert found, f"raised instead: {warned(run)}"
    assert found[0].where == fault.where
    assert found[0].step is not None
    assert found[0].step <= fault.by
    assert all((found[0].seen, found[0].why, found[0].advice))


@pytest.mark.slow
@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["detach", *(name for name, fault in FAULTS.items() if fault.other)])
def test_its_healthy_twin_is_silent(name: str) -> None:
    """Those that are left out have the same twin as the first."""
    assert not warned(trained(FAULTS[name], ill=False))
