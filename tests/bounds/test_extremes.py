"""Numbers that strain a certificate: wide gains, underflow, overflow, slopes that leave little or nothing open."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import normscope as ns
from normscope.bounds.ellipsoids.ellipsoid import advance, balanced, largest
from normscope.bounds.ellipsoids.optimised import optimise, with_rounding
from normscope.bounds.graph.ir import Graph, Ref

from ..soundness.networks import Function
from .graphs import DOUBLE, Sheet, aten, chain, planned


def claims(graph: Graph, *, steps: int = 20) -> list[float]:
    """What the engine claims of a graph, as log10, with the rounding of its recursion counted; nothing if it cannot."""
    _, plan, _ = planned(graph)
    certificate = None if plan is None else optimise(plan, steps=steps)
    sure = None if plan is None or certificate is None else with_rounding(plan, certificate)
    return [] if sure is None else [sure.log10]


def assert_never_below(graph: Graph, truth: float, *, steps: int = 20) -> None:
    for claim in claims(graph, steps=steps):
        assert claim >= math.log10(truth), f"10^{claim} for a constant of {truth}"


def diagonal(sheet: Sheet, x: Ref, *entries: float) -> Ref:
    return sheet.linear(x, torch.diag(torch.tensor(entries, dtype=DOUBLE)))


def wide_gain(width: int) -> Graph:
    """Units that get better while a pooling is certified: the eigenvector that is followed falls below the truth, 1."""
    sheet = Sheet((1, width))
    before, after = torch.full((width,), 1e-2, dtype=DOUBLE), torch.full((width,), 1e-2, dtype=DOUBLE)
    before[0] = after[0] = 1.0
    before[2], after[2] = 0.2, 4.0
    x = sheet.linear(sheet.relu(diagonal(sheet, sheet.refs[0], *before)), torch.diag(after))
    return sheet.graph(sheet.call(aten.max_pool1d.default, x, [2]))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("width", [64, 100, pytest.param(200, marks=pytest.mark.slow)])
def test_a_wide_gain_behind_units_that_get_better(width: int) -> None:
    assert_never_below(wide_gain(width), 1.0, steps=40)


def dwindling(factor: float, times: int, *, side_by_side: bool) -> Graph:
    """A branch that is scaled down again and again and then up, beside one that stays as it is."""
    sheet = Sheet((1, 4))
    x = sheet.refs[0]
    branch, other = sheet.linear(x, torch.ones(1, 4)), sheet.relu(sheet.linear(x, 2 * times + 4))
    for step in range(2 * times):
        scale = factor if step < times else 1 / factor
        branch = sheet.linear(branch, torch.tensor([[scale]], dtype=DOUBLE))
        other = sheet.relu(sheet.linear(other, 2 * times + 3 - step))
    rest = sheet.linear(other, 1, scale=1e-3)
    return sheet.graph(sheet.call(aten.cat.default, [branch, rest], -1) if side_by_side else sheet.add(branch, rest))


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("side_by_side", [True, False], ids=["NUMERICAL", "PROVEN"])
@pytest.mark.parametrize(("factor", "times"), [(1e-3, 6), (1e-25, 8), (1e-60, 3)])
def test_a_branch_that_dwindles_and_comes_back(factor: float, times: int, side_by_side: bool) -> None:
    assert_never_below(dwindling(factor, times, side_by_side=side_by_side), 1.5, steps=4)


def test_a_value_that_is_kept_beside_one_that_grows() -> None:
    sheet = Sheet((1, 3))
    kept, grown = diagonal(sheet, sheet.refs[0], 1e-50, 1e-50, 1e-50), sheet.refs[0]
    for scale in (1e60, 1e60, 1e-85, 1e-88):
        grown = sheet.relu(diagonal(sheet, grown, scale, scale, scale))
    assert_never_below(sheet.graph(sheet.add(kept, grown)), 1.001e-50 * (1 - 1e-12))


@pytest.mark.parametrize("factor", [1e-10, 1e-100])
def test_slopes_that_leave_nothing_open(factor: float) -> None:
    sheet = Sheet((1, 3))
    x = y = sheet.refs[0]
    for scale in (factor, factor, 1 / factor):
        y = sheet.leaky(diagonal(sheet, y, scale, scale, scale), 1.0)
    assert_never_below(sheet.graph(sheet.add(x, diagonal(sheet, y, 1 / factor, 1 / factor, 1 / factor))), 2 - 1e-8)


@pytest.mark.parametrize("open_", [1e-2, 1e-4, 1e-9])
def test_slopes_that_are_nearly_fixed(open_: float) -> None:
    """Slopes in [1 - open, 1]: the state behind the units is at least the one before."""
    _, plan, _ = planned(chain(0, (6, 6, 6), [f"leaky {1.0 - open_!r}"]))
    (step,) = plan.steps
    for seed in range(6):
        root = Sheet((1, 1), seed=seed).normal(6, 6)
        q = root @ root.mT
        weights, factor = balanced(step.known, alone=True)
        sigma = factor * weights / largest(q)
        after = advance(q, 0, step.known.centre, sigma, step.known.spread(sigma))
        assert float(torch.linalg.eigvalsh(after - q)[0]) >= -1e-10 * float(largest(q))


class TestOverflow:
    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("sign", [1, -1])
    def test_chains_beyond_the_range_of_floats(self, sign: int) -> None:
        sheet = Sheet((1, 2))
        x = sheet.refs[0]
        for exponent in (*[sign * 60] * 4, *[-sign * 60] * 4):
            x = sheet.relu(diagonal(sheet, x, 10.0**exponent, 10.0**exponent))
        assert_never_below(sheet.graph(x), 1 - 1e-9)

    def test_products_of_operands_beyond_the_range_of_floats(self) -> None:
        sheet = Sheet((1, 2))
        x = sheet.refs[0]
        for _ in range(4):
            x = sheet.relu(diagonal(sheet, x, 1e80, 1e80))
        left, right = sheet.call(aten.tanh.default, x), sheet.call(aten.sigmoid.default, sheet.refs[0])
        graph = sheet.graph(sheet.call(aten.mul.Tensor, left, right))
        assert_never_below(graph, 0.5e308)


def bounded_above(function: object, truth: float) -> None:
    """No method is below the truth, as log10; none is NaN, and an infinite one says why."""
    rungs = ns.ladder(Function(function).eval(), torch.ones(1, 2, dtype=DOUBLE), effort="tight")
    for name in {"product", "folded", "closed-form", "tight", "best"} & set(rungs):
        assert rungs[name].log10_upper >= truth - 1e-9, name
        assert rungs[name].log10_upper < math.inf or rungs[name].reason


@pytest.mark.one_in(4)
@pytest.mark.parametrize("slope", [1e200, -1e200, 1e-200, 1e100, -1e308])
def test_slopes_of_any_size(slope: float) -> None:
    weight = torch.tensor([[1.0, 0.5], [0.25, 2.0]], dtype=DOUBLE)
    truth = math.log10(float(torch.linalg.matrix_norm(weight, 2)))
    bounded_above(lambda x: F.linear(F.leaky_relu(F.linear(x, weight), slope), torch.eye(2, dtype=DOUBLE)), truth)
    if abs(slope) > 1:
        bounded_above(lambda x: F.leaky_relu(F.linear(x, weight), slope), truth + math.log10(abs(slope)))


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("row", [1e-170, 1e-200, 1e-300, 1e-100, 0.0])
def test_single_outputs_of_any_size(row: float) -> None:
    """One certificate gives all of them: a small one beside a large one has a figure of its own all the same."""
    last = torch.tensor([[1.0, 0.5], [row, row]], dtype=DOUBLE)
    model = Function(lambda x: F.linear(F.relu(F.linear(x, torch.eye(2, dtype=DOUBLE))), last)).eval()
    found = ns.lipschitz(model, torch.ones(1, 2, dtype=DOUBLE), per="output", effort="tight").per_output
    assert found[0].upper == pytest.approx(math.hypot(1.0, 0.5))
    if row:
        assert math.log10(row) + 0.15 <= found[1].log10_upper <= max(-140.0, math.log10(row) + 0.2)
    else:
        assert found[1].log10_upper == -math.inf


def test_values_that_start_afresh_far_apart_are_refused() -> None:
    """Squares of their ratio would vanish: 1e-170 beside 1e170."""
    sheet = Sheet((1, 3))
    small = sheet.relu(sheet.linear(sheet.refs[0], 1e-130 * torch.eye(3, dtype=DOUBLE)))
    large = sheet.relu(sheet.linear(sheet.refs[0], 1e130 * torch.eye(3, dtype=DOUBLE)))
    both = sheet.relu(
        sheet.add(
            sheet.linear(small, 1e130 * torch.eye(3, dtype=DOUBLE)),
            sheet.linear(large, 1e-139 * torch.eye(3, dtype=DOUBLE)),
        )
    )
    graph = sheet.graph(sheet.linear(both, torch.ones(1, 3, dtype=DOUBLE)))
    for widest in (3, 4, 6, 1024):
        _, plan, _ = planned(graph, widest=widest)
        found = None if plan is None else optimise(plan, steps=2)
        assert found is None or found.log10 >= math.log10(3.0**0.5) - 1e-9
