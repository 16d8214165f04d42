"""Small training loops to be watched, and what a watcher says of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.doctor.monitor.schedule import TimeBudget
from normscope.doctor.monitor.watching import Watch, watch


def network(kind: str = "conv") -> nn.Module:
    """A fresh network with normalizers and dropout; the same at every call."""
    torch.manual_seed(0)
    if kind == "conv":
        return nn.Sequential(
            nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2),
            nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.ReLU(),
            nn.Flatten(), nn.Linear(8 * 9, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4),
        )  # fmt: skip
    if kind == "mlp":
        return nn.Sequential(
            nn.Linear(72, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 16), nn.RMSNorm(16),
            nn.ReLU(), nn.Linear(16, 4),
        )  # fmt: skip
    if kind == "layers":
        return nn.Sequential(
            nn.Linear(72, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16), nn.GroupNorm(4, 16), nn.ReLU(),
            nn.Linear(16, 4),
        )  # fmt: skip
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (9, 8)), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(72, 4))


def batches(kind: str, count: int, size: int = 12) -> Iterator[tuple[Tensor, Tensor]]:
    """The same random batches at every call."""
    generator = torch.Generator().manual_seed(1)
    shape = (size, 2, 6, 6) if kind == "conv" else (size, 72)
    for _ in range(count):
        yield torch.randn(shape, generator=generator), torch.randint(4, (size,), generator=generator)


def losses(
    kind: str,
    steps: int,
    *,
    watched: Callable[[nn.Module, torch.optim.Optimizer], Any] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    prepared: Callable[[nn.Module], nn.Module] = lambda model: model,
    accumulate: int = 1,
    **options: Any,
) -> tuple[list[float], nn.Module, Any]:
    """Train and return the losses, the model and what watched it."""
    model = network(kind)
    called = prepared(model)
    trained = optimizer(model.parameters(), **{"lr": 0.05, **options})
    torch.manual_seed(2)
    found = []
    with nullcontext() if watched is None else watched(called, trained) as run:
        for index, (x, y) in enumerate(batches(kind, steps * accumulate)):
            loss = F.cross_entropy(called(x), y)
            if run is not None:
                run.observe(loss=loss)
            loss.backward()
            found.append(float(loss.detach()))
            if (index + 1) % accumulate == 0:
                trained.step()
                trained.zero_grad()
    return found, model, run


def tiny_network() -> nn.Sequential:
    """A weight that feeds a BatchNorm, and one that does not."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


TINY_BATCH = torch.linspace(-1, 1, 64).reshape(16, 4)


def take_step(model: nn.Module, optimizer: Any, x: Tensor = TINY_BATCH) -> None:
    """One step on the mean square of what is made of a batch; by default that of a tiny network."""
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def run_watched(model: nn.Module, x: Tensor, *, steps: int = 3, **options: Any) -> Watch:
    """Watch steps on one batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, **{"every": 1, **options}) as run:
        for _ in range(steps):
            take_step(model, optimizer, x)
    return run


def told(caught: list[warnings.WarningMessage]) -> list[str]:
    """What the watcher has warned of."""
    return [str(item.message) for item in caught if str(item.message).startswith("normscope: ")]


def only_at_first(monkeypatch: pytest.MonkeyPatch, records: int) -> None:
    """There is time for every measured step, but for norms and updates of layers only in the first records."""
    monkeypatch.setitem(watch.__kwdefaults__, "overhead", 0.5)

    def affords(self: TimeBudget, task: Any, times: int = 1) -> bool:
        return self.records < records or task[0] == "step"

    monkeypatch.setattr(TimeBudget, "affords", affords)
