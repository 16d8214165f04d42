"""Values written or added to indexed entries: the maps are exact, and what is not a map has no bound."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import normscope as ns

from ..soundness.networks import Function


def random_places(seed: int, rows: int, most: int) -> Tensor:
    return torch.randint(0, most, (rows,), generator=torch.Generator().manual_seed(seed))


def linear_cases():
    for seed in range(2):
        rows, entries = random_places(seed, 5, 4), random_places(seed, 15, 4).reshape(5, 3)
        once = torch.randperm(6, generator=torch.Generator().manual_seed(seed))[:5]
        yield f"index_add {seed}", lambda x, rows=rows: torch.ones(4, 3).index_add(0, rows, x)
        yield f"alpha {seed}", lambda x, rows=rows, alpha=seed - 2.5: (3 * x[:4]).index_add(0, rows, x, alpha=alpha)
        yield f"scatter_add {seed}", lambda x, entries=entries: x[:4].scatter_add(0, entries, 2 * x)
        yield f"fewer indices {seed}", lambda x, entries=entries: torch.zeros(4, 3).scatter_add(0, entries[:3, :2], x)
        yield f"index_copy {seed}", lambda x, once=once: torch.zeros(6, 3).index_copy(0, once, x - 2 * x.flip(0))
        yield f"accumulate {seed}", lambda x, rows=rows: x.index_put((rows,), x.flip(1), accumulate=True)
        yield f"broadcast {seed}", lambda x, rows=rows: x.index_put((rows,), x[:1], accumulate=True)
        yield f"mean {seed}", lambda x, e=entries: x[:4].scatter_reduce(0, e, 2 * x, "mean", include_self=False)


LINEAR = dict(linear_cases())


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", LINEAR)
def test_the_bound_of_a_linear_case_is_the_norm_of_its_matrix(name):
    model, x = Function(LINEAR[name]), torch.randn(5, 3)
    matrix = torch.func.jacfwd(model)(x).double().reshape(-1, 15)
    found = ns.lipschitz(model, x)
    assert found.upper == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=2e-3)
    assert found.lower <= found.upper


@pytest.mark.one_in(1000)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.zeros(5, 3).index_add(0, x[:, 0].argsort(), x),
        lambda x: torch.zeros(5, 3).scatter_add(0, x.argsort(0), x),
        lambda x: x.scatter(0, x.argsort(0), x),
        lambda x: x.index_copy(0, x[:2].argmax(1), x[:2]),
        lambda x: x.index_put((x[:, 0] > 0,), torch.tensor(1.0)),
        lambda x: x.scatter_reduce(0, x.argsort(0), x, "sum"),
        lambda x: x.gather(0, x.argsort(0)),
        lambda x: x[x[:, 0].argsort()],
    ],
)
def test_places_that_depend_on_the_input_have_no_bound_and_a_reason(function):
    found = ns.lipschitz(Function(function), torch.randn(5, 3))
    assert found.upper == math.inf
    assert "depend on the input" in found.reason


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.scatter(0, torch.zeros(2, 3, dtype=torch.long), x),
        lambda x: x.index_copy(0, torch.tensor([1, 1]), x[:2]),
        lambda x: x.index_put((torch.tensor([0, 0]),), x[:2]),
        lambda x: x.index_put((torch.tensor([0, 0]),), x[:1, :1].expand(2, 3) * torch.ones(2, 3)),
        lambda x: torch.zeros(5, 3).scatter(1, torch.tensor([[0, 0], [1, 2]]), x),
    ],
)
def test_two_values_for_one_entry_have_no_bound_and_a_reason(function):
    found = ns.lipschitz(Function(function), torch.randn(5, 3))
    assert found.upper == math.inf
    assert "two values to one entry" in found.reason


@pytest.mark.slow
def test_one_constant_or_one_number_for_several_entries_is_fine():
    twice = torch.tensor([0, 0, 2])
    assert ns.lipschitz(Function(lambda x: x.index_fill(0, twice, 7.0)), torch.randn(5, 3)).upper == 1.0
    assert ns.lipschitz(Function(lambda x: x.index_put((twice,), torch.ones(3, 3))), torch.randn(5, 3)).upper == 1.0
    spread = ns.lipschitz(Function(lambda x: torch.zeros(5).index_fill(0, twice, x[0, 0])), torch.randn(5, 3))
    assert spread.upper == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("kind", ["amax", "amin"])
def test_extremes_move_no_further_than_their_values(kind):
    entries = torch.tensor([[0, 1, 0], [0, 0, 0], [2, 2, 2]])
    model = Function(lambda x: torch.zeros(3, 3).scatter_reduce(0, entries, 4 * x, kind, include_self=False))
    found = ns.lipschitz(model, torch.randn(3, 3))
    assert found.upper == pytest.approx(4.0)
    assert found.lower == pytest.approx(4.0, rel=1e-3)
