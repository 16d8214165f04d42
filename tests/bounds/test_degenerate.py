"""Networks that strain a certificate: rows that vanish, huge slopes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch.nn import functional as F

import normscope as ns
from normscope.bounds import lower
from normscope.bounds.ellipsoids import ellipsoid, optimised

from ..soundness.networks import Function
from .graphs import DOUBLE, Sheet, planned

METHODS = ("product", "folded", "closed-form", "tight", "best")
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _short(monkeypatch: Patch) -> None:
    monkeypatch.setattr(lower, "ATTACK_STEPS", 4)


def diagonal(*entries: float) -> torch.Tensor:
    return torch.diag(torch.tensor(entries, dtype=DOUBLE))


def assert_above(function, truth: float, inputs: int = 2, effort: str = "tight") -> None:
    """No method is below the truth, as log10; none is NaN, and an infinite one says why."""
    batch = torch.ones(1, inputs, dtype=DOUBLE)
    rungs = ns.ladder(Function(function).eval(), batch, effort=effort)
    for name in METHODS:
        if name in rungs:
            assert rungs[name].log10_upper >= truth - 1e-9, name
            assert rungs[name].log10_upper < math.inf or rungs[name].reason


# ------------------------------------------------------------------------------- numbers that vanish or overflow


def dwindling(slope: float, factors: Sequence[float]):
    """The first entry is scaled down again and again and then up, beside one that ends as 1e-3 of itself."""

    def function(x: torch.Tensor) -> torch.Tensor:
        for factor in (*factors, *(1 / f for f in reversed(factors))):
            x = F.leaky_relu(F.linear(x, diagonal(factor, 1.0)), slope)
        return F.linear(x, torch.tensor([[1.0, 1e-3]], dtype=DOUBLE))

    return function


DWINDLING = {
    "by 1e-130, three times": (1.0, (1e-130,) * 3),
    "by 1e-100, four times": (1.0, (1e-100,) * 4),
    "nearly linear": (1.0 - 1e-12, (1e-130,) * 3),
    "to the smallest floats": (1.0, (1e-120, 1e-120, 1e-60)),
    "with a bend": (0.5, (1e-130,) * 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DWINDLING)
def test_a_row_that_vanishes_and_comes_back(name: str) -> None:
    slope, factors = DWINDLING[name]
    assert_above(dwindling(slope, factors), 0.0, effort="fast")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("slope", [1e200, -1e200, 1e-200, 1e100, -1e308])
def test_slopes_of_any_size(slope: float) -> None:
    weight = torch.tensor([[1.0, 0.5], [0.25, 2.0]], dtype=DOUBLE)
    truth = math.log10(float(torch.linalg.matrix_norm(weight, 2)))
    assert_above(lambda x: F.linear(F.leaky_relu(F.linear(x, weight), slope), diagonal(1.0, 1.0)), truth)
    if abs(slope) > 1:
        assert_above(lambda x: F.leaky_relu(F.linear(x, weight), slope), truth + math.log10(abs(slope)))


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("row", [1e-170, 1e-200, 1e-300, 1e-100, 0.0])
def test_single_outputs_of_any_size(row: float) -> None:
    """One certificate gives all of them: a small one beside a large one has a figure of its own all the same."""
    last = torch.tensor([[1.0, 0.5], [row, row]], dtype=DOUBLE)
    model = Function(lambda x: F.linear(F.relu(F.linear(x, diagonal(1.0, 1.0))), last)).eval()
    found = ns.lipschitz(model, torch.ones(1, 2, dtype=DOUBLE), per="output", effort="tight").per_output
    assert found[0].upper == pytest.approx(math.hypot(1.0, 0.5))
    if row:
        assert math.log10(row) + 0.15 <= found[1].log10_upper <= max(-140.0, math.log10(row) + 0.2)
    else:
        assert found[1].log10_upper == -math.inf


def test_values_that_start_afresh_far_apart_are_refused(monkeypatch: Patch) -> None:
    """Squares of their ratio would vanish: 1e-170 beside 1e170."""
    sheet = Sheet((1, 3))
    small = sheet.relu(sheet.linear(sheet.refs[0], diagonal(*[1e-130] * 3)))
    large = sheet.relu(sheet.linear(sheet.refs[0], diagonal(*[1e130] * 3)))
    both = sheet.relu(
        sheet.add(sheet.linear(small, diagonal(*[1e130] * 3)), sheet.linear(large, diagonal(*[1e-139] * 3)))
    )
    graph = sheet.graph(sheet.linear(both, torch.ones(1, 3, dtype=DOUBLE)))
    for widest in (3, 4, 6, 1024):
        _, plan, _ = planned(graph, widest=widest)
        found = None if plan is None else optimised.optimise(plan, steps=2)
        assert found is None or found.log10 >= math.log10(3.0**0.5) - 1e-9


# ------------------------------------------------------------------------------- planted bugs


BUGS = {
    "what underflow takes is not counted": (
        lambda patch: patch.setattr(ellipsoid, "_underflow", lambda sizes: 0 * sizes),
        lambda: test_single_outputs_of_any_size(1e-170),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_caught(name: str, monkeypatch: Patch) -> None:
    plant, trial = BUGS[name]
    plant(monkeypatch)
    with pytest.raises((AssertionError, ns.NormscopeError)):
        trial()
