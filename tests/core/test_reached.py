"""Lists, counters and other Python objects that a forward changes are left as found, wherever they live."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import nullcontext, suppress
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.core.errors import CaptureError

from ..soundness.networks import Function

HISTORY: list[Any] = []
TOTAL = 0


class Notes:
    """An object of the user's."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.last: Any = None

    def take(self, value: Any) -> None:
        self.kept.append(value)
        self.last = value


class Keeps(nn.Module):
    """Remembers what it saw in a place of the given kind."""

    shared: ClassVar[list[Any]] = []

    def __init__(self, where: str) -> None:
        super().__init__()
        self.layer, self.where = nn.Linear(3, 3), where
        self.list: list[Any] = []
        self.nested: dict[str, Any] = {"deep": [[]], "by name": {}}
        self.queue: deque[Any] = deque(maxlen=4)
        self.lists: defaultdict[str, list[Any]] = defaultdict(list)
        self.notes = Notes()
        self.hidden = [nn.BatchNorm1d(3)]

    def forward(self, x: Tensor) -> Tensor:
        global TOTAL
        match self.where:
            case "own list":
                self.list.append(x)
            case "nested":
                self.nested["deep"][0].append(x)
            case "new key":
                self.nested["by name"][len(self.nested["by name"])] = x
            case "queue":
                self.queue.append(x)
            case "default":
                self.lists["x"].append(x)
            case "object":
                self.notes.take(x)
            case "class":
                Keeps.shared.append(x)
            case "global list":
                HISTORY.append(x.mean())
            case "global number":
                TOTAL += 1
            case "new attribute":
                self.cache = x
            case "new buffer":
                self.register_buffer("made", torch.ones(3))
            case "hidden module":
                self.hidden[0](x)
        return self.layer(x)

    def state(self) -> tuple[Any, ...]:
        hidden = self.hidden[0].running_mean.tolist()
        held = (list(self.list), repr(self.nested), list(self.queue), dict(self.lists), list(self.notes.kept))
        rest = (self.notes.last, list(HISTORY), list(Keeps.shared), TOTAL, sorted(vars(self)), sorted(self._buffers))
        return *held, *rest, hidden


PLACES = [
    "own list", "nested", "new key", "queue", "default", "object", "class", "global list", "global number",
    "new attribute", "new buffer", "hidden module",
]  # fmt: skip


@pytest.mark.one_in(8)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("where", PLACES)
def test_what_a_forward_keeps_is_left_as_found(where, training):
    model = Keeps(where).train(training)
    model.hidden[0].train(training)
    before = model.state()
    with suppress(CaptureError) if where == "hidden module" else nullcontext():  # torch sees constants written
        ns.capture(model, torch.randn(4, 3))
    assert model.state() == before


def counting() -> tuple[Any, list[Any]]:
    """A function that counts its calls in a variable of its own, and the list it fills."""
    calls, filled = 0, []

    def forward(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        filled.append(calls)
        return x * 2.0

    return forward, filled


def test_a_closure_counts_on_where_it_was():
    forward, filled = counting()
    model = Function(forward).eval()
    ns.capture(model, torch.randn(4, 3))
    assert filled == []
    model(torch.zeros(1, 3))
    assert filled == [1]


class ReadsBack(nn.Module):
    """Reads a number out of what earlier runs left behind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        HISTORY.append(x.mean())
        return self.layer(x) * float(sum(float(value) for value in HISTORY))


def test_a_model_that_remembers_is_no_random_one():
    with pytest.raises(CaptureError, match=r"two different outputs .* earlier runs left behind"):
        ns.capture(ReadsBack().eval(), torch.randn(4, 3))


@pytest.mark.parametrize("kind", [Counter, OrderedDict, lambda **held: defaultdict(int, held), dict])
def test_tables_of_every_kind_are_put_back(kind):
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = kind(seen=5)

        def forward(self, x):
            self.calls["seen"] = self.calls["seen"] + 1
            self.calls["more"] = 1
            return 2 * x

    model = Counting()
    ns.check(model, torch.ones(2, 3))
    assert dict(model.calls) == {"seen": 5}
