"""Networks that strain a certificate or a search: rows that vanish, huge slopes, units that turn together or never."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch.nn import functional as F

import normscope as ns
from normscope.bounds import certificate, lower, patterns
from normscope.bounds.ellipsoids import ellipsoid, optimised
from normscope.bounds.patterns import PatternSearch, two_slopes
from normscope.core.budget import Budget
from normscope.graph.ir import Graph

from ..soundness.networks import Function
from ..soundness.planting import around
from . import enumeration
from .graphs import DOUBLE, Sheet, aten, planned

METHODS = ("product", "folded", "liplt", "closed-form", "tight", "exact", "best")
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _short(monkeypatch: Patch) -> None:
    monkeypatch.setattr(lower, "ATTACK_STEPS", 4)
    monkeypatch.setattr(patterns, "ROUNDS", 4)


def diagonal(*entries: float) -> torch.Tensor:
    return torch.diag(torch.tensor(entries, dtype=DOUBLE))


def assert_above(function, truth: float, inputs: int = 2, effort: str = "exact") -> None:
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


def test_a_row_of_nothing_does_not_end_a_chain() -> None:
    """Zero rows are not rows that vanished: LipLT stays below the product of norms."""
    generator = torch.Generator().manual_seed(0)
    first, second, last = (torch.randn(4, 4, dtype=DOUBLE, generator=generator) for _ in range(3))
    first[0], second[:, 1] = 0.0, 0.0
    state = certificate.LipLT()
    for weight in (first, second):
        state = state.through(weight, (0.0, 1.0))[1]
        assert state is not None
    norms = sum(math.log10(float(torch.linalg.matrix_norm(w, 2))) for w in (first, second, last))
    assert state.after(last) < norms


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


@pytest.mark.one_in(2)
@pytest.mark.parametrize("slope", [1e-170, 1e-130])
def test_a_small_slope_that_is_all_there_is(slope: float) -> None:
    """leaky(-relu(x) - 1) is always below its bend: the search over patterns must not take its square for nothing."""
    one = torch.ones(1, 1, dtype=DOUBLE)
    assert_above(lambda x: F.leaky_relu(F.linear(F.relu(x), -one, -one[0]), slope), math.log10(slope), inputs=1)
    sheet = Sheet((1, 1))
    value = sheet.leaky(sheet.linear(sheet.relu(sheet.refs[0]), -one, -one[0]), slope)
    segments, plan, _ = planned(sheet.graph(value))
    assert two_slopes(segments, plan) is None


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


# ------------------------------------------------------------------------------- units that turn together, or never


def searched(graph: Graph, steps: int = 100_000) -> PatternSearch:
    segments, plan, _ = planned(graph)
    assert plan is not None
    slopes = two_slopes(segments, plan)
    assert slopes is not None
    search = PatternSearch(segments, plan, slopes)
    search.run(1e-6, Budget(steps))
    return search


def assert_closes(graph: Graph) -> PatternSearch:
    found, truth = searched(graph), math.log10(enumeration.constant(graph))
    assert found.log10_upper == pytest.approx(truth, abs=1e-6)
    assert found.log10_lower == pytest.approx(truth, abs=1e-6)
    return found


def layered(weight: torch.Tensor, bias: torch.Tensor | None, *, last: torch.Tensor | None = None, slope=0.1) -> Graph:
    sheet = Sheet((1, weight.shape[1]), seed=5)
    units = sheet.leaky(sheet.linear(sheet.refs[0], weight, bias), slope)
    return sheet.graph(sheet.linear(units, sheet.normal(2, len(weight)) if last is None else last))


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


ROW, OTHER, THIRD = drawn(2, seed=1), drawn(2, seed=2), drawn(2, seed=3)
NOTHING = torch.zeros(2, dtype=DOUBLE)
UNITS = {
    "doubled": ([ROW, ROW, OTHER, THIRD], [0.3, 0.3, -0.2, 0.5]),
    "doubled twice": ([ROW, OTHER, ROW, OTHER, ROW], [0.3, -0.2, 0.3, -0.2, 0.3]),
    "four times as large": ([ROW, 4 * ROW, OTHER], [0.3, 1.2, -0.2]),
    "opposite": ([ROW, -ROW, OTHER, THIRD], [0.3, -0.3, -0.2, 0.5]),
    "opposite and twice as large": ([ROW, -2 * ROW, OTHER], [0.3, -0.6, -0.2]),
    "without weights": ([ROW, NOTHING, OTHER], [0.3, 0.0, -0.2]),
    "without weights, off": ([ROW, NOTHING, NOTHING, OTHER], [0.3, -1.0, 2.0, -0.2]),
    "without biases": ([ROW, OTHER, THIRD, ROW + OTHER], [0.0] * 4),
    "doubled without biases": ([ROW, ROW, OTHER, THIRD], [0.0] * 4),
}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("slope", [0.0, -0.5])
@pytest.mark.parametrize("name", UNITS)
def test_units_that_turn_together_or_never(name: str, slope: float) -> None:
    """Patterns that only parallel rows rule out are kept, so that the sides need not meet; otherwise they do."""
    rows, bias = UNITS[name]
    graph = layered(torch.stack(rows), torch.tensor(bias), slope=slope)
    if "without" in name and "doubled" not in name:
        assert_closes(graph)
    found, truth = searched(graph), math.log10(enumeration.constant(graph))
    assert found.log10_upper >= truth - 1e-9
    assert found.log10_lower <= found.log10_upper


@pytest.mark.slow
def test_units_that_nothing_reads_are_no_obstacle() -> None:
    weight, bias, last = drawn(6, 2, seed=4), drawn(6, seed=5), drawn(1, 6, seed=6)
    last[:, 2:] = 0.0
    assert_closes(layered(weight, bias, last=last))


def cancelling() -> Graph:
    """relu(v) - relu(v) is zero throughout: the unit that reads it turns nowhere, and either sign of it is right."""
    sheet = Sheet((1, 2))
    doubled = sheet.relu(sheet.linear(sheet.refs[0], torch.stack([ROW, ROW, OTHER])))
    weight = torch.tensor([[1.0, -1.0, 0.0], [0.5, 0.5, -1.0], [1.0, 0.0, 1.0]])
    units = sheet.leaky(sheet.linear(doubled, weight), 0.2)
    return sheet.graph(sheet.linear(units, torch.tensor([[3.0, 1.0, -1.0]])))


def dead() -> Graph:
    """Behind units that are off, one without a bias reads zero throughout."""
    sheet = Sheet((1, 2))
    first = sheet.relu(sheet.linear(sheet.refs[0], torch.stack([ROW, OTHER])))
    second = sheet.relu(sheet.linear(first, torch.tensor([[1.0, 0.5], [-1.0, 2.0]])))
    return sheet.graph(sheet.linear(second, torch.tensor([[1.0, -2.0]])))


def still() -> Graph:
    """5 relu(-x) + leaky(relu(x)): the unit behind relu(x) reads zero throughout where the slope is 5."""
    sheet = Sheet((1, 1))
    first = sheet.relu(sheet.linear(sheet.refs[0], torch.tensor([[1.0], [-1.0]], dtype=DOUBLE)))
    second = sheet.leaky(sheet.linear(first, torch.tensor([[1.0, 0.0]], dtype=DOUBLE)), 0.5)
    both = sheet.call(aten.cat.default, [first, second], -1)
    return sheet.graph(sheet.linear(both, torch.tensor([[0.0, 5.0, 1.0]], dtype=DOUBLE)))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("build", [cancelling, dead, still])
def test_values_that_are_zero_throughout_rule_nothing_out(build) -> None:
    graph = build()
    assert searched(graph, 20_000).log10_upper >= math.log10(enumeration.constant(graph)) - 1e-9


@pytest.mark.one_in(6)
@pytest.mark.parametrize("seed", range(6))
def test_degenerate_networks_of_two_layers_are_sound(seed: int) -> None:
    sheet = Sheet((1, 2), seed=seed)
    first, second = sheet.normal(4, 2), sheet.normal(3, 4)
    first[1], second[1] = first[0], -second[0]
    second[:, 3] = 0.0
    bias = sheet.normal(4) * (seed % 2)
    bias[1] = bias[0]
    hidden = sheet.relu(sheet.linear(sheet.refs[0], first, bias))
    units = sheet.leaky(sheet.linear(hidden, second), (0.0, 0.3, -0.4)[seed % 3])
    graph = sheet.graph(sheet.linear(units, sheet.normal(1, 3)))
    truth = math.log10(enumeration.constant(graph))
    found = searched(graph, 20_000)
    assert found.log10_lower <= truth + 1e-9
    assert found.log10_upper >= truth - 1e-9


# ------------------------------------------------------------------------------- planted bugs


@around(patterns.Cells, "__init__")
def all_strict(real, self, *args) -> None:
    """Units behind others are taken not to be zero throughout."""
    real(self, *args)
    self.varying[:] = True


BUGS = {
    "what is lost of a path is not counted": (
        lambda patch: patch.setattr(certificate, "_followed", lambda *_: 0.0),
        lambda: test_a_row_that_vanishes_and_comes_back("by 1e-130, three times"),
    ),
    "what underflow takes is not counted": (
        lambda patch: patch.setattr(ellipsoid, "_underflow", lambda sizes: 0 * sizes),
        lambda: test_single_outputs_of_any_size(1e-170),
    ),
    "every row is strict": (all_strict, lambda: test_values_that_are_zero_throughout_rule_nothing_out(still)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_caught(name: str, monkeypatch: Patch) -> None:
    plant, trial = BUGS[name]
    plant(monkeypatch)
    with pytest.raises((AssertionError, ns.NormscopeError)):
        trial()
