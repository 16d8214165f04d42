"""Linear maps as the checker reads them: the same matrices, and norms from above."""

import json
import random

import flint
import numpy as np
import pytest
import torch
from torch import nn

from normscope.bounds.linalg.convolution_map import Convolution
from normscope.bounds.linalg.dense_form import write_out
from normscope.bounds.linalg.layer_norms import linear_map
from normscope.bounds.linalg.linear_map import (
    Averaging,
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
from normscope.bounds.linalg.proof_format import Nodes, TooLargeError
from normscope.core.npz import Archive

from ..linalg.cases import random_case
from .proofs import arithmetic, nodes, proving, reading


def read(linear: LinearMap) -> tuple[nodes.Network, reading.Reader]:
    """Return the checker's network for one of our maps, through JSON."""
    archive = Archive()
    written = Nodes(archive)
    written.sizes["x"] = linear.in_size
    written.map("y", linear, "x")
    assert written.sizes["y"] == linear.out_size
    data = {"input": {"name": "x", "size": linear.in_size}, "nodes": written.items, "output": "y"}
    reader = reading.Reader(archive.arrays)
    return nodes.Network(json.loads(json.dumps(data)), reader), reader


def matrix(linear: LinearMap) -> arithmetic.Enclosure:
    """Return the matrix that the checker writes out; one slice of it, repeated."""
    network, _ = read(linear)
    forms = proving.Forms(network, network.output, ["x"])
    forms.run(lambda node: forms.fresh(node, np.ones(1)) and None, lambda *_: None)
    found = forms.forms["y"][0].T
    arithmetic.WORK.done = 0.0
    return arithmetic.Enclosure(*(np.kron(np.eye(forms.slices), side) for side in (found.mid, found.rad)))


def proven(linear: LinearMap, *steps: str) -> float:
    """Return the checker's bound on the norm, by some kinds of steps."""
    network, reader = read(linear)
    prover = proving.Prover(network, reader)
    arithmetic.WORK.done = 0.0
    with flint.ctx.workprec(128):
        for name in list(network.nodes)[1:]:
            prover.take({"do": "gain", "at": name})
        gains = float(prover.best["y"])
        prover.take({"do": "fold", "at": "y", "from": ["x"]})
        return gains if steps == ("gain",) else float(prover.best["y"])


norm = proven


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


MAPS = {
    "reshape": Identity((2, 6), (3, 4)),
    "matrix": Matrix(drawn(3, 5), (2,)),
    "diagonal": Diagonal(drawn(4, 1), (2, 4, 3)),
    "index": Reindex(torch.tensor([[3, -1, 0], [3, 5, 1]]), (2, 3)),
    "centering": Centering((2, 3, 4), dims=2),
    "repeated": Repeated(Convolution(drawn(2, 1, 3), (5,), padding=1, groups=2), (3,)),
    "chain": Composite([Matrix(drawn(3, 5), (2,)), Diagonal(drawn(3), (2, 3)), Identity((2, 3), (6,))]),
    "sum": Sum([Identity((4,)), Matrix(drawn(4, 4))]),
    "averaging": Averaging(nn.AvgPool2d(3, 2, 1), (3, 6, 6), (3, 3, 3)),
    "code": Coded(lambda x: x.cumsum(2), (2, 4), (2, 4)),
    "mixing code": Coded(lambda x: x.sum(1, keepdim=True) + x, (3, 2), (3, 2)),
}


@pytest.mark.parametrize("name", MAPS)
def test_every_kind_of_map_is_read_as_the_same_matrix(name):
    found, want = matrix(MAPS[name]), write_out(MAPS[name]).numpy()
    assert np.allclose(found.mid, want, rtol=0, atol=1e-14)
    assert (found.rad <= 1e-13).all()
    assert (np.abs(found.mid - want) <= found.rad + 1e-15 * np.abs(want)).all()


@pytest.mark.parametrize("name", MAPS)
def test_norms_are_those_of_a_dense_svd(name):
    dense = float(torch.linalg.matrix_norm(write_out(MAPS[name]), ord=2))
    assert norm(MAPS[name]) == pytest.approx(dense, rel=1e-9)
    assert norm(MAPS[name]) >= dense * (1 - 1e-14)
    assert proven(MAPS[name], "gain") >= dense * (1 - 1e-14)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 200))])
def test_convolutions_of_any_geometry(seed):
    case = random_case(seed, entries=60)
    linear = linear_map(case.layer, case.shape)
    dense = write_out(linear).numpy()
    assert np.allclose(matrix(linear).mid, dense, rtol=0, atol=1e-12)
    top = np.linalg.norm(dense, 2)
    assert norm(linear) == pytest.approx(top, rel=1e-8, abs=1e-300)
    assert proven(linear, "gain") >= top * (1 - 1e-12)


def test_slices_that_are_treated_differently_are_no_slices():
    """Factors that differ from slice to slice, and entries that change places between slices."""
    tokens = Matrix(drawn(3, 4), (5,))
    scale = Diagonal(torch.tensor([1.0, 2.0, 7.0, 0.5, 1.0], dtype=torch.float64)[:, None], (5, 3))
    turned = Reindex(torch.arange(15).reshape(5, 3).flip(0), (5, 3))
    for linear in (
        Composite([tokens, scale]),
        Composite([tokens, turned, scale]),
        Sum([tokens, Composite([tokens, turned])]),
    ):
        dense = write_out(linear).numpy()
        assert np.allclose(matrix(linear).mid, dense, rtol=0, atol=1e-12)
        assert norm(linear) == pytest.approx(np.linalg.norm(dense, 2), rel=1e-9)


def test_code_too_large_to_be_written_out_is_said_to_be():
    with pytest.raises(TooLargeError):
        read(Coded(lambda x: x.flip(1), (70_000,), (70_000,)))


def test_random_chains_and_sums_of_maps_agree():
    draw = random.Random(0)
    for _ in range(30):
        linear: LinearMap = Identity((2, 3))
        for _ in range(draw.randint(1, 4)):
            step = draw.choice([Matrix(drawn(3, 3), (2,)), Diagonal(drawn(3), (2, 3)), Centering((2, 3))])
            linear = Composite([linear, step]) if draw.random() < 0.7 else Sum([linear, Composite([linear, step])])
        assert np.allclose(matrix(linear).mid, write_out(linear).numpy(), atol=1e-12)
        top = float(torch.linalg.matrix_norm(write_out(linear), ord=2))
        assert norm(linear) == pytest.approx(top, rel=1e-9, abs=1e-12)


def test_factors_may_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a factorization gives, what it leaves over counts: [[1, 2], [2, 1]] in blocks is not semidefinite."""

    def blocks(across: float, last: float) -> arithmetic.Blocks:
        sides = {(0, 0): 1.0, (0, 1): across, (1, 1): last}
        return {place: arithmetic.Enclosure.exact(np.full((1, 1), side)) for place, side in sides.items()}

    assert arithmetic.factored(blocks(0.5, 1.0), 2, 1e-12)
    assert not arithmetic.factored(blocks(2.0, 1.0), 2, 1e-12)
    monkeypatch.setattr(np.linalg, "solve", lambda left, right: np.zeros_like(right))
    assert not arithmetic.factored(blocks(2.0, 1.0), 2, 1e-12)
    monkeypatch.setattr(np.linalg, "cholesky", lambda matrix: np.ones_like(matrix))
    assert not arithmetic.factored(blocks(0.0, -1.0), 2, 1e-12)
