"""A clock for tests of budgets: it stands still, and runs out when it has been looked at so many times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.auditing import audit_steps
from normscope.bounds import lower, traced_network
from normscope.bounds.graph import capturing
from normscope.bounds.graph.capturing import trace_model
from normscope.bounds.graph.ir import Graph
from normscope.core import budget as module

NEVER = 10**9
LATE = 100.0
"""The seconds at which a clock has run out: the largest `max_seconds` here, before the deadline of closed forms."""


class Clock:
    """A clock that stands still, and has run out from one look at it on."""

    def __init__(self, looks: int = NEVER) -> None:
        self.left, self.looks = looks, 0

    def monotonic(self) -> float:
        """Return the time, and count who looks."""
        self.looks += 1
        return LATE if self.late else 0.0

    @property
    def late(self) -> bool:
        """Whether it has run out."""
        return self.looks > self.left


@contextmanager
def clocked(looks: int = NEVER) -> Iterator[Clock]:
    """Let budgets look at another clock."""
    clock = Clock(looks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", clock)
        yield clock


class Skip(nn.Module):
    """Two convolutions with a BatchNorm between them, around which the input is led, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.inner, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return four outputs."""
        x = self.enter(x)
        x = x + self.inner(torch.relu(self.norm(x)))
        return self.head(x.flatten(1))


class Recurrent(nn.Module):
    """An LSTM and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return two outputs."""
        return self.head(self.memory(x)[0][:, -1])


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "skip": (Skip, (4, 1, 4, 4)),
    "normalized": (lambda: nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)), (4, 5)),
    "chain": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (4, 4)),
    "many outputs": (lambda: nn.Sequential(nn.Linear(5, 48), nn.ReLU(), nn.Linear(48, 40)), (4, 5)),
    "wide": (lambda: nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 40)), (2, 40)),
    "attention": (lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), (2, 3, 6)),
    "recurrent": (Recurrent, (3, 4, 3)),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)
        ),
        (3, 1, 6, 6),
    ),
}


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches take few steps, and models be traced once: what they find does not matter here."""
    held: dict[Any, Graph] = {}

    def once(model: nn.Module, batch: Tensor, **options: Any) -> Graph:
        key = (id(model), model.training, tuple(batch.shape))
        if key not in held:
            held[key] = trace_model(model, batch, **options)
        return held[key]

    capturing.warm_up_export(1.0)
    monkeypatch.setattr(lower, "ATTACK_STEPS", 12)
    monkeypatch.setattr(traced_network, "trace_model", once)
    monkeypatch.setattr(audit_steps, "trace_model", lambda *given, budget, **options: once(*given, **options))
    monkeypatch.setattr("normscope.bounds.radius.certifier.ATTACK_STEPS", 12)
    monkeypatch.setattr("normscope.bounds.radius.certifier.MAX_RADIUS_TESTS", 6)
    monkeypatch.setattr("normscope.auditing.auditing.SEARCH_STEPS", 40)
    monkeypatch.setattr("normscope.bounds.ellipsoids.optimised.MOST_SEARCH_STEPS", 12)


def made(name: str, mode: str = "eval") -> tuple[nn.Module, Tensor]:
    """Return a model and a batch, the same ones every time."""
    build, shape = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return build().train(mode == "train"), torch.randn(shape)
