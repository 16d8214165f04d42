"""Warnings of torch while a model is looked at: they name the model's code, once, and never a file of this package."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope_faults.data import table

HERE, PACKAGE = __file__, str(Path(ns.__file__).parent)


class Model(nn.Module):
    """Two layers with something between that warns."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.kind = nn.Linear(12, 8), nn.Linear(8, 3), kind

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.kind == "cast":
            x = (x * torch.ones((), dtype=torch.complex64)).to(torch.float32)
        elif self.kind == "softmax":
            x = x + F.softmax(x)
        elif self.kind == "copy":
            x = x + torch.tensor(x.detach().mean())
        else:
            warnings.warn("a word of the model's own", stacklevel=1)
        return self.last(x.tanh())


def heard(run: Any) -> list[warnings.WarningMessage]:
    """Return the warnings of a run, each once for each line, as by default."""
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("default")
        torch.set_warn_always(True)
        try:
            run()
        finally:
            torch.set_warn_always(False)
    return messages


def train(model: nn.Module) -> None:
    """Take two steps that are watched."""
    x, y = table()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ns.watch(model, optimizer, every=1, tier="full"):
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


RUNS = {
    "check": lambda model: ns.check(model, table(), loss="cross_entropy"),
    "audit": lambda model: ns.audit(model, table(), loss="cross_entropy"),
    "watch": train,
}


@pytest.mark.parametrize("kind", ["cast", "softmax", "copy", "own"])
@pytest.mark.parametrize("run", RUNS)
def test_a_warning_of_a_model_names_its_code_once(run: str, kind: str) -> None:
    model = Model(kind)
    [alone] = {(w.filename, w.lineno, w.category) for w in heard(lambda: model(table()[0]))}
    found = [(w.filename, w.lineno, w.category) for w in heard(lambda: RUNS[run](model))]
    assert not [filename for filename, *_ in found if filename.startswith(PACKAGE)]
    assert alone[0] == HERE
    # torch.export traces the model for an audit, and lets Python forget what it has shown
    assert 1 <= found.count(alone) <= (2 if run == "audit" else 1)


@pytest.mark.parametrize("run", RUNS)
def test_a_warning_of_torchs_own_modules_is_no_warning_of_this_package(run: str) -> None:
    model = nn.Sequential(nn.Unflatten(1, (3, 4)), nn.Conv1d(3, 4, 2, padding="same"), nn.Flatten(), nn.Linear(16, 3))
    found = {w.filename for w in heard(lambda: RUNS[run](model))}
    assert {Path(filename).name for filename in found} == {"conv.py"}


def test_what_is_computed_for_a_check_alone_warns_nobody() -> None:
    x, _ = table()
    model = nn.Sequential(nn.Linear(12, 1))
    assert not heard(lambda: ns.check(model, (x, torch.randn(128)), loss="mse"))


def test_the_filters_and_the_way_to_show_warnings_are_put_back() -> None:
    before = warnings.showwarning, list(warnings.filters)
    heard(lambda: ns.check(Model("cast"), table(), loss="cross_entropy"))
    assert (warnings.showwarning, list(warnings.filters)) == before


def test_infinite_running_statistics_warn_nobody() -> None:
    model = nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def diverge() -> None:
        with ns.watch(model, optimizer, every=1):
            for step in range(20):
                optimizer.zero_grad()
                model(torch.randn(16, 12) * (1e25 if step == 3 else 1.0)).square().mean().backward()
                optimizer.step()

    assert not [w for w in heard(diverge) if issubclass(w.category, RuntimeWarning)]
    assert bool(torch.isinf(model[0].running_var).any())
