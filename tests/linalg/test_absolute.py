"""Absolute maps and row norms against dense matrices."""

from __future__ import annotations

import pytest
import torch

from normscope.bounds.linalg import operator_norms as module
from normscope.bounds.linalg.dense_form import write_out
from normscope.bounds.linalg.folding import add, compose
from normscope.bounds.linalg.layer_norms import linear_map
from normscope.bounds.linalg.linear_map import (
    Averaging,
    Bounded,
    Centering,
    Coded,
    Composite,
    Diagonal,
    Identity,
    LinearMap,
    Matrix,
    Reindex,
    Repeated,
    Sum,
)
from normscope.bounds.linalg.operator_norms import absolute, row_norms

from .cases import random_case


def _matrix(rows: int, columns: int, seed: int = 0) -> Matrix:
    return Matrix(torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def _coded() -> Coded:
    weight = _matrix(3, 4).weight
    return Coded(lambda x: x @ weight.to(x.dtype).T, (4,), (3,))


def maps() -> dict[str, LinearMap]:
    """Return maps of every kind, of which nothing is known yet."""
    return {
        "matrix": Matrix(_matrix(3, 4).weight, (2,)),
        "identity": Identity((2, 3), (6,)),
        "diagonal": Diagonal(torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64), (2, 3)),
        "reindex": Reindex(torch.tensor([[2, 0, -1], [1, 1, 2]]), (3,)),
        "centering": Centering((2, 5)),
        "centering of one": Centering((2, 1)),
        "averaging": Averaging(lambda x: x.mean(-1), (2, 3), (2,)),
        "repeated": Repeated(_matrix(3, 4), (2,)),
        "coded": _coded(),
        "bounded": Bounded(lambda x: x.flip(-1), (2, 3), (2, 3), 1.0, "a flip"),
        "composite": Composite([_matrix(5, 4), Centering((5,)), _matrix(2, 5, 1)]),
        "cancelling sum": Sum([_matrix(4, 4), Composite([_matrix(4, 4), Diagonal(torch.tensor(-1.0), (4,))])]),
        "residual": add(compose(_matrix(4, 4), Centering((4,))), Identity((4,))),
    }


@pytest.mark.parametrize("written", [True, False], ids=["written out", "by parts"])
@pytest.mark.parametrize("name", maps())
def test_entries_and_rows_against_the_matrix(name: str, written: bool, monkeypatch) -> None:
    """Never below the truth, and exact for single maps and whatever is written out."""
    if not written:
        monkeypatch.setattr(module, "WRITTEN", 0)
    linear = maps()[name]
    dense = write_out(linear)
    spread, rows = absolute(linear), row_norms(linear)
    if not written and name in ("coded", "bounded"):
        assert spread is None
        assert rows is None
        return
    assert spread is not None
    assert rows is not None
    assert rows.shape == linear.out_shape
    assert bool((write_out(spread) >= dense.abs() - 1e-12).all())
    assert bool((rows.reshape(-1) >= dense.norm(dim=1) - 1e-12).all())
    if written or name not in ("composite", "cancelling sum", "residual", "averaging"):
        assert torch.allclose(write_out(spread), dense.abs(), atol=1e-12)
        assert torch.allclose(rows.reshape(-1), dense.norm(dim=1), atol=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_convolutions_of_every_kind(seed: int) -> None:
    case = random_case(seed, entries=200)
    linear = linear_map(case.layer, case.shape)
    dense = write_out(linear)
    spread, rows = absolute(linear), row_norms(linear)
    assert spread is not None
    assert rows is not None
    assert bool((write_out(spread) >= dense.abs() - 1e-9).all())
    norms = dense.norm(dim=1)
    assert bool((rows.reshape(-1) >= norms - 1e-9).all())
    if getattr(case.layer, "padding_mode", "zeros") == "zeros":
        assert torch.allclose(rows.reshape(-1).double(), norms, atol=1e-6)
        assert torch.allclose(write_out(spread).double(), dense.abs(), atol=1e-6)
