"""Convolutions of every kind against the dense operator: lower <= sigma <= upper, without exception."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from normscope.bounds.linalg import conv_norm
from normscope.bounds.linalg.convolution_map import Convolution
from normscope.bounds.linalg.dense_form import write_out
from normscope.bounds.linalg.layer_norms import linear_map, spectral_norm
from normscope.core.bracket import Evidence
from normscope.core.errors import InputError

from .cases import Case, dense, random_case, sigma

ORACLE = 1e-12
"""The oracle's own relative error."""
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


def check(case: Case, rtol: float = 1e-3) -> float:
    """Compare a layer's map and bracket with the dense operator; return the gap."""
    map_ = linear_map(case.layer, case.shape)
    matrix = dense(case.layer, case.shape)
    assert torch.allclose(write_out(map_), matrix, rtol=0.0, atol=1e-12)
    y = torch.randn(2, *map_.out_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(map_.adjoint(y).reshape(2, -1), y.reshape(2, -1) @ matrix, rtol=0.0, atol=1e-11)
    result = spectral_norm(case.layer, case.shape, rtol=rtol)
    truth = sigma(matrix)
    assert result.lower <= truth * (1.0 + ORACLE)
    assert truth <= result.upper * (1.0 + ORACLE)
    assert result.evidence is Evidence.PROVEN
    if truth > 0.0:
        assert result.witness.shape == map_.in_shape
        gain = (matrix @ result.witness.reshape(-1)).norm() / result.witness.norm()
        assert result.lower <= float(gain) * (1.0 + ORACLE)
    return result.gap


def write_nothing_out(patch: pytest.MonkeyPatch) -> None:
    """Bound small convolutions on tori, as large ones are."""
    patch.setattr(conv_norm, "_FAST", -1.0)
    patch.setattr(conv_norm, "_AFFORDABLE", -1.0)


@pytest.fixture
def on_tori(monkeypatch: pytest.MonkeyPatch) -> None:
    write_nothing_out(monkeypatch)


@pytest.mark.parametrize("seed", range(20))
def test_small_convolutions_are_exact(seed: int) -> None:
    assert check(random_case(seed)) <= 1e-5


@pytest.mark.one_in(2)
@pytest.mark.usefixtures("on_tori")
@pytest.mark.parametrize("seed", range(1000, 1030))
def test_torus_bounds_hold(seed: int) -> None:
    check(random_case(seed), rtol=(1e-3, 1e-2)[seed % 2])


@pytest.mark.slow
@pytest.mark.parametrize("written", [True, False])
def test_500_random_convolutions(written: bool, request: pytest.FixtureRequest) -> None:
    if not written:
        request.getfixturevalue("on_tori")
    for seed in range(10_000, 10_500):
        check(random_case(seed))


@pytest.mark.parametrize("seed", range(2000, 2020))
def test_every_torus_is_a_bound(seed: int) -> None:
    """Twisted tori too, not only the ones that are chosen."""
    case = random_case(seed, entries=300)
    conv = linear_map(case.layer, case.shape)
    assert isinstance(conv, Convolution)
    truth = sigma(dense(case.layer, case.shape))
    plain, exponent = conv_norm._normalized(conv, conv.weight.double(), float(conv.weight.abs().max()))
    options = [conv_norm.rings(axis, conv.padding_mode) for axis in conv.axes]
    if not all(options):
        assert truth == 0.0
        return
    for torus in itertools.product(*options):
        symbol = conv_norm.Symbol(conv_norm.Kernel(plain, [ring.stride for ring in torus]), torus)
        bound, _, _ = conv_norm._certified(symbol, 1e-3)
        assert truth <= 10.0**bound.log10 * 2.0**exponent * (1.0 + ORACLE)


def layers() -> list[tuple[nn.Module, tuple[int, ...], float]]:
    """Layers too large to write out at once, and the gap their bracket must close to."""
    torch.manual_seed(0)
    smooth = nn.Conv2d(8, 8, 3, padding=1, bias=False)
    smooth.weight.data = smooth.weight.data.mean(dim=(2, 3), keepdim=True) + 0.1 * smooth.weight.data
    return [
        (nn.Conv2d(8, 12, 3, padding=1), (8, 20, 20), 6e-3),
        (nn.Conv2d(12, 8, 3, padding=1, stride=2), (12, 24, 24), 2e-3),
        (nn.Conv2d(16, 16, 3, padding=1, groups=4), (16, 18, 18), 1e-2),
        (nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"), (8, 20, 20), 1e-4),
        (nn.Conv2d(8, 8, 3, padding=1, stride=2, padding_mode="circular"), (8, 20, 20), 1e-4),
        (nn.Conv2d(16, 12, 1), (16, 30, 30), 1e-6),
        (nn.Conv2d(16, 12, 2, stride=2), (16, 20, 20), 1e-6),
        (nn.ConvTranspose2d(12, 8, 4, stride=2, padding=1), (12, 12, 12), 2e-3),
        (nn.Conv1d(16, 16, 5, padding=2), (16, 200), 1e-3),
        (nn.Conv3d(4, 4, 3, padding=1), (4, 9, 9, 9), 6e-2),
        (smooth, (8, 20, 20), 1e-3),
        (nn.Conv2d(64, 64, 3, padding=1), (64, 32, 32), 1.5e-3),
    ]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("index", range(12))
def test_brackets_of_larger_layers_close(index: int) -> None:
    layer, shape, gap = layers()[index]
    result = spectral_norm(layer, shape)
    assert 0.0 < result.gap <= gap
    assert result.converged == (result.gap <= 1e-3)
    linear = linear_map(layer, shape)
    image = linear.apply(result.witness[None])
    assert result.lower <= float(image.norm()) * (1.0 + ORACLE)
    assert float(image.norm()) == pytest.approx(result.lower, rel=1e-9)


@pytest.mark.parametrize(("size", "kernel", "dilation"), [(3, 5, 1), (4, 7, 1), (4, 3, 3), (5, 9, 1), (6, 5, 2)])
def test_kernels_wider_than_a_circular_input_wrap(size: int, kernel: int, dilation: int) -> None:
    """An FFT of the input's size would crop them."""
    torch.manual_seed(size)
    layer = nn.Conv1d(
        3, 4, kernel, padding="same", dilation=dilation, padding_mode="circular", bias=False, dtype=torch.float64
    )
    assert dilation * (kernel - 1) + 1 > size
    assert check(Case(layer, (3, size))) <= 1e-4


@pytest.mark.usefixtures("on_tori")
def test_kernels_wider_than_their_torus_wrap() -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        check(Case(nn.Conv1d(2, 3, 9, padding=4, bias=False), (2, 3)))
        check(Case(nn.Conv2d(2, 3, (7, 5), padding=(3, 2), bias=False), (2, 2, 3)))
        check(Case(nn.Conv1d(2, 3, 9, padding=4, stride=2, bias=False), (2, 4)))


def test_twisted_tori_close_the_gap_of_smooth_kernels() -> None:
    torch.manual_seed(1)
    layer = nn.Conv2d(24, 24, 3, padding=1, bias=False)
    layer.weight.data = torch.randn(24, 24, 1, 1) * torch.tensor([1.0, 2.0, 1.0]).outer(torch.tensor([1.0, 2.0, 1.0]))
    result = spectral_norm(layer, (24, 14, 14))
    assert result.gap <= 1e-3  # the plain torus leaves 2 %


def test_zero_and_unread_kernels_have_norm_zero() -> None:
    layer = nn.Conv2d(2, 2, 3, padding=1, bias=False)
    nn.init.zeros_(layer.weight)
    assert spectral_norm(layer, (2, 5, 5)).upper == 0.0
    unread = nn.Conv1d(1, 1, 2, dilation=4, padding=2, bias=False)  # both taps fall into the padding
    result = spectral_norm(unread, (1, 1))
    assert (result.lower, result.upper) == (0.0, 0.0)


def test_groups_are_written_out_one_by_one() -> None:
    """The matrix of this layer has 9,408 by 9,408 entries, and the blocks of its groups have 49 by 49."""
    torch.manual_seed(0)
    layer = nn.Conv2d(192, 192, 7, padding=3, groups=192, bias=False)
    result = spectral_norm(layer, (192, 7, 7))
    blocks = linear_map(layer, (192, 7, 7)).blocks().chunk(192)
    truth = max(map(sigma, blocks))
    assert result.gap <= 1e-6  # a torus leaves 60 %
    assert result.lower <= truth * (1.0 + ORACLE) <= result.upper * (1.0 + 2.0 * ORACLE)


@pytest.mark.gpu
@pytest.mark.parametrize("index", range(12))
def test_a_gpu_gives_the_same_bracket(index: int) -> None:
    layer, shape, _ = layers()[index]
    here = spectral_norm(layer, shape)
    there = spectral_norm(layer.to("cuda"), shape)
    assert there.witness.device.type == "cuda"
    assert there.lower <= here.upper
    assert here.lower <= there.upper
    assert there.gap <= here.gap * 1.1 + 1e-3


@pytest.mark.parametrize(
    ("size", "options", "words"),
    [
        ((2, 2), {}, "does not fit"),
        ((5,), {}, "spatial sizes"),
        ((5, 5), {"padding_mode": "mirror"}, "padding mode"),
        ((5, 5), {"padding": "same", "stride": 2}, "same"),
        ((5, 5), {"groups": 3}, "groups"),
        ((2, 2), {"padding": 2, "padding_mode": "reflect"}, "reflect"),
    ],
)
def test_geometry_errors(size: tuple[int, ...], options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Convolution(torch.ones(2, 2, 3, 3), size, **options)


def test_taps_that_cancel_on_a_circle_are_bounded_by_rounding() -> None:
    layer = nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular", bias=False)
    layer.weight.data[:] = torch.tensor([1.0, -2.0, 1.0])
    result = spectral_norm(layer, (2, 1))
    assert result.lower == 0.0
    assert result.upper <= 1e-5
