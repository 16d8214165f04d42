"""Linear maps as the checker reads them: the same matrices, and norms from above."""

import json
import random

import numpy as np
import pytest
import torch
from torch import nn

from normscope.core.archive import Archive
from normscope.linalg.convolution import Convolution
from normscope.linalg.layers import linear_map
from normscope.linalg.linear_map import (
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
from normscope.linalg.script import TooLargeError, describe

from ..soundness.networks import convolution
from .proofs import checker


def read(linear: LinearMap):
    """Return the checker's map for one of ours, through JSON."""
    archive = Archive()
    data = json.loads(json.dumps(describe(linear, archive)))
    return checker.parse_map(data, tuple(linear.in_shape), checker.Reader(archive.arrays))


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
    own = read(MAPS[name])
    assert np.allclose(own.matrix(), MAPS[name].dense().numpy(), rtol=0, atol=1e-14)
    assert (own.absolute().matrix() >= np.abs(own.matrix()) - 1e-15).all()


@pytest.mark.parametrize("name", MAPS)
def test_norms_are_those_of_a_dense_svd(name):
    dense = float(torch.linalg.matrix_norm(MAPS[name].dense(), ord=2))
    assert 10 ** checker.Norms()(read(MAPS[name])) == pytest.approx(dense, rel=1e-9)


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 200))])
def test_convolutions_of_any_geometry(seed):
    layer, shape = convolution(seed)
    linear = linear_map(layer, shape)
    own, dense = read(linear), linear.dense().numpy()
    assert np.allclose(own.matrix(), dense, rtol=0, atol=1e-12)
    assert np.allclose(own.absolute().matrix(), np.abs(dense), rtol=0, atol=1e-12) or linear.padding_mode != "zeros"
    top = np.linalg.norm(dense, 2)
    norms = checker.Norms()
    assert 10 ** norms(own) == pytest.approx(top, rel=1e-9, abs=1e-300)
    if isinstance(own, checker.Convolution):
        bound = 10 ** norms._convolution(own)
        assert bound >= top * (1 - 1e-9)
        assert bound <= top * 6 + 1e-12


def test_a_large_convolution_is_bounded_on_a_torus_within_a_percent():
    layer = nn.Conv2d(8, 8, 3, padding=1, bias=False)
    own = read(linear_map(layer, (8, 28, 28)))
    assert not own.small
    exact = read(linear_map(layer, (8, 12, 12)))
    norms = checker.Norms()
    bound = 10 ** norms(own)
    assert norms.loose
    assert 10 ** norms(exact) <= bound * (1 + 1e-9)
    assert bound <= 1.1 * 10 ** norms(exact)


def test_a_batch_norm_is_folded_into_a_large_convolution():
    layer = nn.Conv2d(8, 8, 3, padding=1, bias=False)
    linear = linear_map(layer, (8, 28, 28))
    scale = torch.linspace(0.01, 1.0, 8)[:, None, None].double()
    folded = Composite([linear, Diagonal(scale, linear.out_shape)])
    norms = checker.Norms()
    assert norms(read(folded)) < norms(read(linear))
    scaled = nn.Conv2d(8, 8, 3, padding=1, bias=False).double()
    with torch.no_grad():
        scaled.weight.copy_(layer.weight.double() * scale[:, None])
    assert norms(read(folded)) == pytest.approx(norms(read(linear_map(scaled, (8, 28, 28)))), abs=1e-9)


def test_slices_are_bounded_once():
    tokens = Matrix(drawn(40, 50), (200,))
    norms = checker.Norms()
    assert 10 ** norms(read(tokens)) == pytest.approx(float(torch.linalg.matrix_norm(tokens.weight, 2)), rel=1e-9)
    assert not norms.loose


def test_code_too_large_to_be_written_out_is_said_to_be():
    with pytest.raises(TooLargeError):
        describe(Coded(lambda x: x.flip(1), (70_000,), (70_000,)), Archive())


def test_random_chains_and_sums_of_maps_agree():
    draw = random.Random(0)
    for _ in range(30):
        linear: LinearMap = Identity((2, 3))
        for _ in range(draw.randint(1, 4)):
            step = draw.choice([Matrix(drawn(3, 3), (2,)), Diagonal(drawn(3), (2, 3)), Centering((2, 3))])
            linear = Composite([linear, step]) if draw.random() < 0.7 else Sum([linear, Composite([linear, step])])
        own = read(linear)
        assert np.allclose(own.matrix(), linear.dense().numpy(), atol=1e-12)
        top = float(torch.linalg.matrix_norm(linear.dense(), ord=2))
        assert 10 ** checker.Norms()(own) == pytest.approx(top, rel=1e-9, abs=1e-12)
