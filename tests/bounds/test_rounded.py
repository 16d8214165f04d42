"""Rounding is counted: what a certificate claims is never below what its multipliers prove in sixty digits."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from mpmath import mp
from torch import nn

import normscope as ns
from normscope.bounds import bounds_by_method
from normscope.bounds.bounds_by_method import upper_sides
from normscope.bounds.ellipsoids.ellipsoid import image_above, prove_inverse
from normscope.bounds.ellipsoids.optimised import is_exact, optimise, with_rounding
from normscope.bounds.graph.ir import Graph
from normscope.bounds.traced_network import TracedNetwork

from .exactly import DIGITS, matrix_of, proves
from .graphs import DOUBLE, Sheet, aten, chain, planned, random_graph


def gap(graph: Graph, *, steps: int = 3, widest: int = 1024) -> float | None:
    """Claimed over proven, as log10; None where nothing is claimed."""
    _, plan, _ = planned(graph, widest=widest)
    certificate = None if plan is None else optimise(plan, steps=steps)
    if plan is None or certificate is None:
        return None
    claimed = with_rounding(plan, certificate)
    return None if claimed is None else claimed.log10 - proves(plan, certificate)


def stream(size: float, seed: int, *, both: bool = False) -> Graph:
    """A residual stream that is large in one direction, read out in the other (or both): terms cancel in between."""
    sheet = Sheet((1, 2), seed=seed)
    turn = torch.linalg.qr(sheet.normal(2, 2))[0]
    spread = turn @ torch.diag(torch.tensor([size, 1.0], dtype=DOUBLE)) @ torch.linalg.qr(sheet.normal(2, 2))[0]
    x = sheet.refs[0]
    first, second, third = 0.1 * sheet.normal(3, 2), 0.1 * sheet.normal(2, 3), 0.1 * sheet.normal(2, 3)
    y = sheet.add(sheet.linear(x, spread), sheet.linear(sheet.relu(sheet.linear(x, first)), second))
    z = sheet.add(y, sheet.linear(sheet.relu(sheet.linear(y, sheet.normal(3, 2) / size)), third))
    return sheet.graph(sheet.linear(z, turn[:, 0 if both else 1 :].mT.contiguous()))


@pytest.mark.parametrize("name", ["relu", "bent leaky", "abs", "gelu", "leaky 0.999999"])
def test_chains(name: str) -> None:
    found = gap(chain(3, (3, 5, 4, 2), [name]))
    assert found is not None
    assert 0.0 <= found < 1e-9


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", [1e2, 1e4, 1e6, 1e8])
def test_streams_that_cancel(size: float) -> None:
    gaps = [found for seed in range(3) if (found := gap(stream(size, seed))) is not None]
    assert all(found >= 0.0 for found in gaps)
    assert size > 1e3 or max(gaps) < 1e-7


@pytest.mark.one_in(2)
@pytest.mark.parametrize("widest", [1024, 8])
def test_random_graphs(widest: int) -> None:
    gaps = [gap(random_graph(seed, steps=8, widest=4), steps=2, widest=widest) for seed in range(8)]
    found = [value for value in gaps if value is not None]
    assert len(found) >= 4
    assert all(value >= 0.0 for value in found)


def test_infeasible_multipliers_are_not_accounted_for() -> None:
    _, plan, _ = planned(chain(3, (3, 5, 4, 2), ["relu"]))
    certificate = optimise(plan, steps=3)
    for factor in (0.0, 3.0, 1e6, -1.0, math.nan, math.inf):
        worse = {name: factor * sigma for name, sigma in certificate.sigma.items()}
        assert with_rounding(plan, replace(certificate, sigma=worse)) is None


def known_from_the_inputs(graph: Graph, **options: int) -> bool | None:
    """Whether its plan is exact; None without one."""
    segments, plan, _ = planned(graph, **options)
    return None if plan is None else is_exact(plan, {item.name for item in segments.graph.inputs})


def test_what_is_exact() -> None:
    """Maps as they are stored, from the inputs on: anything else is only numerical."""
    assert known_from_the_inputs(chain(3, (3, 5, 4, 2), ["relu"]))
    sheet = Sheet((1, 4))
    x = sheet.relu(sheet.linear(sheet.refs[0], 4))
    fresh = sheet.graph(sheet.add(x, sheet.refs[0]))
    assert known_from_the_inputs(fresh, widest=6) is False  # a fresh start rests on other bounds
    product = sheet.graph(sheet.call(aten.mul.Tensor, sheet.call(aten.tanh.default, x), sheet.relu(x)))
    assert not known_from_the_inputs(product)


def test_an_image_counts_the_error_of_its_map() -> None:
    """F Q F^T is below what is given for it, for every map that the slack allows."""
    sheet = Sheet((1, 1))
    root, form, error = sheet.normal(4, 4), sheet.normal(3, 4), sheet.normal(3, 4)
    for size in (1e-6, 1e-2):
        moved = form + size * error / torch.linalg.matrix_norm(error, 2)
        for q, factor in ((root @ root.mT, root), (None, torch.eye(4, dtype=DOUBLE))):
            room = image_above(q, form, slack=size) - (moved @ factor) @ (moved @ factor).mT
            assert float(torch.linalg.eigvalsh(room)[0]) > 0.0


def test_an_inverse_counts_its_own_error() -> None:
    """What stands for (I - R)^-1 is at least that, taken in sixty digits, also next to a singular matrix."""
    for seed, gap in itertools.product(range(6), (1e-1, 1e-6, 1e-10)):
        turn = torch.linalg.qr(Sheet((1, 1), seed=seed).normal(5, 5))[0]
        reduced = turn @ torch.diag(torch.tensor([1 - gap, 0.7, 0.5, 0.1, 0.0], dtype=DOUBLE)) @ turn.mT
        reduced = (reduced + reduced.mT) / 2
        found = prove_inverse(reduced)
        with mp.workdps(DIGITS):
            exact = mp.inverse(mp.eye(5) - matrix_of(reduced))
            assert min(mp.eigsy(matrix_of(found) - exact, eigvals_only=True)) >= 0


def test_only_what_is_exact_and_counted_is_proven_at_the_front_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that rests on other bounds is numerical; a certificate whose rounding cannot be counted claims nothing."""
    graph = TracedNetwork.of(small(), torch.randn(2, 4, dtype=DOUBLE))
    found, without = upper_sides(graph, effort="tight"), upper_sides(graph)
    assert found["tight"].log10_upper < without["best"].log10_upper
    assert found["tight"].evidence is found["best"].evidence is ns.Evidence.PROVEN
    with monkeypatch.context() as patch:
        patch.setattr(bounds_by_method, "is_exact", lambda plan, inputs: False)
        assert upper_sides(graph, effort="tight")["tight"].evidence is ns.Evidence.NUMERICAL
    monkeypatch.setattr(bounds_by_method, "with_rounding", lambda plan, certificate: None)
    assert upper_sides(graph, effort="tight")["best"].log10_upper == without["best"].log10_upper


def small() -> nn.Module:
    """A network of which the optimised certificate knows more than the others."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)]
        return nn.Sequential(*layers).double().eval()


@pytest.mark.slow
def test_a_fresh_start_from_a_constant_of_one_is_not_proven() -> None:
    """What is known of the values before it counts: torch's softplus has a small jump at 20."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Softplus(), nn.Linear(1500, 20), nn.ReLU(), nn.Linear(20, 5)).double().eval()
    rungs = ns.ladder(model, torch.randn(1, 1500, dtype=DOUBLE), effort="tight", max_seconds=0.5)
    assert rungs["tight"].evidence is ns.Evidence.NUMERICAL
    assert rungs["best"].evidence is ns.Evidence.NUMERICAL


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 400, 50))
def test_many_random_graphs(first: int) -> None:
    for seed in range(first, first + 50):
        for widest in (1024, 8):
            found = gap(random_graph(seed, steps=4 + seed % 9, widest=5), steps=1 + seed % 4, widest=widest)
            assert found is None or found >= 0.0
