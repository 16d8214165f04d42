"""Folding: every pair of maps, composed or added, is the map that was asked for, and keeps its certificate."""

from __future__ import annotations

import itertools

import pytest
import torch

from normscope.bounds.linalg import operator_norms
from normscope.bounds.linalg.convolution_map import Convolution
from normscope.bounds.linalg.dense_form import write_out
from normscope.bounds.linalg.folding import add, compose
from normscope.bounds.linalg.linear_map import (
    Averaging,
    Centering,
    Composite,
    Diagonal,
    Identity,
    LinearMap,
    Matrix,
    Reindex,
    Repeated,
    Sum,
)

F64 = torch.float64


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(sum(shape) + 7))


def conv(out: int, into: int, kernel: int = 3, **options) -> Convolution:
    options.setdefault("padding", kernel // 2)
    return Convolution(random(out, into // options.get("groups", 1), kernel, kernel), (4, 5), **options)


def square_maps() -> dict[str, LinearMap]:
    """Maps of many kinds from [2, 4, 4, 5] to itself (a batch of 2 images of 4 channels)."""
    batch = (2, 4, 4, 5)
    return {
        "identity": Identity(batch),
        "diagonal per image channel": Diagonal(random(4, 1, 1), batch),
        "diagonal per last": Diagonal(random(5), batch),
        "diagonal per entry": Diagonal(random(2, 4, 4, 5), batch),
        "scalar": Diagonal(torch.tensor(-0.7, dtype=F64), batch),
        "matrix": Matrix(random(5, 5), batch[:-1]),
        "matrix of rank 2": Matrix(random(5, 2) @ random(2, 5), batch[:-1]),
        "convolution": Repeated(conv(4, 4), (2,)),
        "wide convolution": Repeated(conv(4, 4, 5), (2,)),
        "grouped convolution": Repeated(conv(4, 4, groups=2), (2,)),
        "circular convolution": Repeated(conv(4, 4, padding_mode="circular"), (2,)),
        "transposed convolution": Repeated(conv(4, 4, transposed=True), (2,)),
        "centering": Centering(batch),
        "centering of images": Centering(batch, 3),
        "flip": Reindex.of(lambda x: x.flip(-1), batch),
        "shift with zeros": Reindex.of(lambda x: torch.nn.functional.pad(x, (1, -1)), batch),
        "averaging": Averaging(lambda x: x.mean(-1, keepdim=True).expand_as(x), batch, batch),
        "composite": Composite([Matrix(random(5, 5), batch[:-1]), Reindex.of(lambda x: x.flip(-2), batch)]),
        "sum": Sum([Repeated(conv(4, 4), (2,)), Reindex.of(lambda x: x.flip(1), batch)]),
    }


MAPS = square_maps()


def same(folded: LinearMap, matrix: torch.Tensor) -> None:
    assert torch.allclose(write_out(folded), matrix, rtol=0.0, atol=1e-12)
    y = random(3, *folded.out_shape)
    assert torch.allclose(folded.adjoint(y).reshape(3, -1), y.reshape(3, -1) @ matrix, rtol=0.0, atol=1e-11)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("second", MAPS)
def test_a_composition_is_the_product_and_a_sum_the_sum(second: str) -> None:
    for first in MAPS.values():
        same(compose(MAPS[second], first), write_out(MAPS[second]) @ write_out(first))
        same(add(MAPS[second], first), write_out(MAPS[second]) + write_out(first))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("second", "first"), list(itertools.product(MAPS, MAPS))[::11])
def test_bound_of_a_folded_map_holds(second: str, first: str) -> None:
    for folded, matrix in (
        (compose(MAPS[second], MAPS[first]), write_out(MAPS[second]) @ write_out(MAPS[first])),
        (add(MAPS[second], MAPS[first]), write_out(MAPS[second]) + write_out(MAPS[first])),
    ):
        sigma = float(torch.linalg.matrix_norm(matrix, 2))
        result = operator_norms.bracket(folded)
        assert result.lower <= sigma * (1 + 1e-12)
        assert sigma <= result.upper * (1 + 1e-12)


def kind(linear: LinearMap) -> type:
    return type(linear.inner) if isinstance(linear, Repeated) else type(linear)


@pytest.mark.parametrize(
    ("second", "first", "expected"),
    [
        ("identity", "convolution", Convolution),
        ("scalar", "diagonal per entry", Diagonal),
        ("diagonal per last", "matrix", Matrix),
        ("matrix", "diagonal per last", Matrix),
        ("matrix", "matrix", Matrix),
        ("scalar", "matrix", Matrix),
        ("centering", "matrix", Matrix),
        ("matrix", "centering", Matrix),
        ("diagonal per image channel", "convolution", Convolution),
        ("convolution", "diagonal per image channel", Convolution),
        ("diagonal per image channel", "grouped convolution", Convolution),
        ("grouped convolution", "diagonal per image channel", Convolution),
        ("diagonal per image channel", "transposed convolution", Convolution),
        ("transposed convolution", "diagonal per image channel", Convolution),
        ("flip", "shift with zeros", Reindex),
    ],
)
def test_what_composes_into_one_map(second: str, first: str, expected: type) -> None:
    assert kind(compose(MAPS[second], MAPS[first])) is expected


def test_a_diagonal_moves_past_a_reshape() -> None:
    matrix = Matrix(random(6, 5), (3,))
    reshape = Identity((3, 6), (3, 2, 3))
    scale = Diagonal(random(2, 3), (3, 2, 3))
    folded = compose(scale, compose(reshape, matrix))
    assert [type(part) for part in folded.parts] == [Matrix, Identity]  # type: ignore[attr-defined]
    same(folded, write_out(scale) @ write_out(matrix))
    back = compose(Matrix(random(4, 6), (3,)), compose(Identity((3, 2, 3), (3, 6)), scale))
    assert [type(part) for part in back.parts] == [Identity, Matrix]  # type: ignore[attr-defined]
    same(back, torch.block_diag(*[random(4, 6)] * 3) @ write_out(scale))


def test_rounding_of_a_fold_is_part_of_the_bound() -> None:
    a, b = Matrix(torch.randn(8, 8)), Matrix(torch.randn(8, 8))
    assert compose(a, b).slack > 0.0
    assert compose(Diagonal(random(8), (8,)), a).slack > 0.0
    assert compose(Diagonal(random(8), (8,)), compose(a, b)).slack > compose(a, b).slack * 1e-3
    assert a.slack == 0.0
