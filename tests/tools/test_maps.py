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
from .proofs import composition, reading

from normscope_verify.convolution import Convolution as Convolved  # isort: skip


def read(linear: LinearMap):
    """Return the checker's map for one of ours, through JSON."""
    archive = Archive()
    data = json.loads(json.dumps(describe(linear, archive)))
    return composition.parse_map(data, tuple(linear.in_shape), reading.Reader(archive.arrays))


def norm(linear, loose=None) -> float:
    """Return the checker's bound on the norm."""
    return float(read(linear).norm({} if loose is None else loose))


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
    matrix, want = own.matrix(), MAPS[name].dense().numpy()
    assert np.allclose(matrix.mid, want, rtol=0, atol=1e-14)
    assert (matrix.rad <= 1e-13).all()
    basis = np.eye(own.sizes[1]).reshape(-1, *own.inside)
    assert (np.abs(want) - 1e-15 <= own.apply(basis, absolute=True).reshape(own.sizes[1], -1).T).all()


@pytest.mark.parametrize("name", MAPS)
def test_norms_are_those_of_a_dense_svd(name):
    dense = float(torch.linalg.matrix_norm(MAPS[name].dense(), ord=2))
    assert norm(MAPS[name]) == pytest.approx(dense, rel=1e-9)
    assert norm(MAPS[name]) >= dense * (1 - 1e-14)


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 200))])
def test_convolutions_of_any_geometry(seed):
    layer, shape = convolution(seed)
    linear = linear_map(layer, shape)
    own, dense = read(linear), linear.dense().numpy()
    assert np.allclose(own.matrix().mid, dense, rtol=0, atol=1e-12)
    top = np.linalg.norm(dense, 2)
    assert norm(linear) == pytest.approx(top, rel=1e-8, abs=1e-300)
    convolutions = [part for part in (getattr(own, "parts", (own,))) if isinstance(part, Convolved)]
    for part in convolutions:
        exact = np.linalg.norm(part.matrix().mid, 2)
        for extra in (0, 1):
            for twist in (0, 1):
                bound = float(part._on_torus(extra, twist)) if exact else 0.0
                assert exact * (1 - 1e-12) <= bound <= exact * 6


def test_a_large_convolution_is_bounded_on_a_torus_within_a_percent():
    layer = nn.Conv2d(8, 8, 3, padding=1, bias=False)
    loose: dict[str, None] = {}
    bound, exact = norm(linear_map(layer, (8, 28, 28)), loose), norm(linear_map(layer, (8, 12, 12)))
    assert loose
    assert exact <= bound <= 1.1 * exact


def test_a_batch_norm_is_folded_into_a_large_convolution():
    layer = nn.Conv2d(8, 8, 3, padding=1, bias=False)
    linear = linear_map(layer, (8, 28, 28))
    for before in (False, True):
        scale = torch.linspace(0.01, 1.0, 8)[:, None, None].double()
        diagonal = Diagonal(scale, linear.out_shape)
        folded = Composite([diagonal, linear] if before else [linear, diagonal])
        assert norm(folded) < norm(linear)
        scaled = nn.Conv2d(8, 8, 3, padding=1, bias=False).double()
        with torch.no_grad():
            scaled.weight.copy_(layer.weight.double() * (scale[None] if before else scale[:, None]))
        assert norm(folded) == pytest.approx(norm(linear_map(scaled, (8, 28, 28))), rel=1e-8)


def test_slices_are_bounded_once():
    tokens = Composite([Matrix(drawn(40, 50), (200,)), Matrix(drawn(30, 40), (200,))])
    loose: dict[str, None] = {}
    want = float(torch.linalg.matrix_norm(drawn(30, 40) @ drawn(40, 50), 2))
    assert norm(tokens, loose) == pytest.approx(want, rel=1e-9)
    assert not loose


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
        assert np.allclose(read(linear).matrix().mid, linear.dense().numpy(), atol=1e-12)
        top = float(torch.linalg.matrix_norm(linear.dense(), ord=2))
        assert norm(linear) == pytest.approx(top, rel=1e-9, abs=1e-12)
