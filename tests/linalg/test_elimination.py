"""Factorisations entry by entry: what they prove of convolutions against dense singular values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.bounds.linalg import conv_norm, elimination
from normscope.bounds.linalg.dense_form import write_out
from normscope.bounds.linalg.layer_norms import linear_map, spectral_norm
from normscope.bounds.linalg.operator_norms import bracket

from .cases import dense, sigma
from .test_deflation import convolutions


def planned(name: str) -> tuple[conv_norm.Convolution, elimination.Elimination, float]:
    """Return a normalized convolution, the order of its entries and its squared norm."""
    layer, shape = convolutions()[name]
    conv = linear_map(layer, shape)
    plain, _ = conv_norm._normalized(conv, conv.weight.detach().double(), float(conv.weight.abs().max()))
    plan = elimination.plan_elimination(plain)
    assert plan is not None
    return plain, plan, sigma(write_out(plain)) ** 2


@pytest.mark.parametrize("name", convolutions())
def test_the_norm_is_bounded_and_nothing_below_it(name: str) -> None:
    plain, plan, square = planned(name)
    assert elimination.is_below(plain, plan, square * (1.0 + 1e-8))
    assert not elimination.is_below(plain, plan, square * (1.0 - 1e-10))


@pytest.mark.parametrize("name", convolutions())
def test_the_pattern_is_that_of_the_dense_factor(name: str) -> None:
    """Blocks that are left out are zero in the Cholesky factor of the dense matrix in the same order."""
    plain, plan, square = planned(name)
    matrix = write_out(plain).T if plan.inputs else write_out(plain)
    entries, channels = len(plan.reads), plan.channels * plain.groups
    gram = (matrix @ matrix.T).reshape(channels, entries, channels, entries)
    order = list(plan.later)
    gram = gram[:, order][:, :, :, order].permute(1, 0, 3, 2).reshape(entries * channels, -1)
    factor = torch.linalg.cholesky(2.0 * square * torch.eye(len(gram), dtype=torch.float64) - gram)
    present = factor.reshape(entries, channels, entries, channels).abs().amax(dim=(1, 3)) > 1e-13 * square**0.5
    kept = torch.eye(entries, dtype=torch.bool)
    for column, entry in enumerate(order):
        kept[[order.index(other) for other in plan.later[entry]], column] = True
    assert bool((kept | ~present).all())
    assert int(kept.sum()) <= entries * (entries + 1) // 2


def test_a_map_of_four_by_four_takes_two_thirds_of_the_work_of_one_matrix() -> None:
    plain = linear_map(nn.Conv2d(8, 8, 3, padding=1), (8, 4, 4))
    plan = elimination.plan_elimination(plain)
    assert plan is not None
    assert plan.multiplications < 0.65 * (8.0 * 16.0) ** 3 / 6.0


def test_maps_of_many_entries_are_not_planned() -> None:
    assert elimination.plan_elimination(linear_map(nn.Conv2d(2, 2, 3, padding=1), (2, 40, 40))) is None


def test_a_tolerance_that_is_asked_for_is_reached_where_deflation_takes_too_long(monkeypatch) -> None:
    """An audit stays with the torus; `spectral_norm` takes the time."""
    monkeypatch.setattr(conv_norm, "_FAST", 0.0)
    monkeypatch.setattr(conv_norm, "affordable", lambda *given: False)
    torch.manual_seed(0)
    layer, shape = nn.Conv2d(12, 12, 3, padding=1, bias=False), (12, 4, 4)
    truth = sigma(dense(layer, shape))
    quick = bracket(linear_map(layer, shape), rtol=1e-3)
    assert not quick.converged
    assert quick.upper >= truth
    exact = spectral_norm(layer, shape, rtol=1e-3)
    assert exact.method == "Cholesky, entry by entry"
    assert exact.converged
    assert exact.lower <= truth <= exact.upper
