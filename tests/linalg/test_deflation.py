"""Deflated tori: what they prove of random convolutions against dense singular values, on both sides of the truth."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.bounds.linalg import conv_norm, deflation
from normscope.bounds.linalg.dense_form import write_out
from normscope.bounds.linalg.layer_norms import linear_map, spectral_norm

from .cases import dense, sigma

Patch = pytest.MonkeyPatch


def convolutions() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Zero-padded convolutions of every geometry, small enough for a dense oracle."""
    torch.manual_seed(0)
    layers: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "square": (nn.Conv2d(6, 6, 3, padding=1), (6, 6, 6)),
        "more outputs": (nn.Conv2d(3, 8, 3, padding=1), (3, 6, 5)),
        "more inputs": (nn.Conv2d(8, 3, 3, padding=1), (8, 5, 6)),
        "strided": (nn.Conv2d(4, 6, 3, padding=1, stride=2), (4, 9, 8)),
        "strided, few inputs": (nn.Conv2d(2, 12, 4, padding=2, stride=2), (2, 10, 9)),
        "dilated": (nn.Conv2d(4, 4, 3, padding=2, dilation=2), (4, 7, 7)),
        "grouped": (nn.Conv2d(8, 8, 3, padding=1, groups=4), (8, 6, 6)),
        "wide padding": (nn.Conv2d(4, 5, 3, padding=3), (4, 5, 5)),
        "no padding": (nn.Conv2d(5, 4, 3), (5, 8, 8)),
        "last inputs unread": (nn.Conv2d(4, 9, 3, stride=2), (4, 8, 10)),
        "transposed": (nn.ConvTranspose2d(5, 4, 4, stride=2, padding=1), (5, 5, 5)),
        "line": (nn.Conv1d(7, 6, 5, padding=2), (7, 14)),
        "volume": (nn.Conv3d(3, 3, 3, padding=1), (3, 4, 5, 4)),
    }
    for layer, _ in layers.values():
        layer.bias = None
    return layers


def on_torus(name: str, twisted: bool) -> tuple[conv_norm.Convolution, conv_norm.Symbol, torch.Tensor]:
    """Return a normalized convolution, its symbol, and its matrix with the side of the Gram matrices first."""
    layer, shape = convolutions()[name]
    conv = linear_map(layer, shape)
    plain, _ = conv_norm._normalized(conv, conv.weight.detach().double(), float(conv.weight.abs().max()))
    torus = [conv_norm.rings(axis, "zeros")[int(twisted)] for axis in conv.axes]
    symbol = conv_norm.Symbol(conv_norm.Kernel(plain, [ring.stride for ring in torus]), torus)
    return plain, symbol, write_out(plain).T if symbol.kernel.inputs else write_out(plain)


def excess(name: str, share: float, twisted: bool = False) -> float:
    """Return how far the Gram matrix less what is deflated exceeds a share of the squared norm, relative to it."""
    plain, symbol, matrix = on_torus(name, twisted)
    threshold = share * sigma(matrix) ** 2
    columns = deflation._deflate(plain, symbol, threshold)
    assert columns is not None
    assert len(columns) > 0
    return float(torch.linalg.eigvalsh(matrix @ matrix.T - columns.T @ columns)[-1]) / threshold - 1.0


def proves(name: str, share: float, twisted: bool = False) -> bool:
    """Say whether a share of the squared norm is proven to bound it."""
    plain, symbol, matrix = on_torus(name, twisted)
    bound = share * sigma(matrix) ** 2
    outcome = deflation.bound_deflated(plain, symbol, bound, margin=0.02 * bound, residual=1e-6)
    assert outcome is not None
    return outcome.proven


@pytest.mark.parametrize("twisted", [False, True])
@pytest.mark.parametrize("name", convolutions())
def test_the_norm_is_bounded_and_nothing_below_it(name: str, twisted: bool) -> None:
    assert proves(name, 1.0 + 1e-4, twisted)
    assert not proves(name, 1.0 - 1e-6, twisted)


@pytest.mark.parametrize("twisted", [False, True])
@pytest.mark.parametrize("name", convolutions())
def test_what_is_not_deflated_is_below_the_threshold(name: str, twisted: bool) -> None:
    for share in (0.9, 0.5, 0.2):
        assert excess(name, share, twisted) <= 1e-12


@pytest.mark.parametrize("rtol", [1e-2, 1e-3, 1e-5])
def test_brackets_reach_the_tolerance(rtol: float) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(16, 16, 3, padding=1, bias=False)
    result = spectral_norm(layer, (16, 9, 9), rtol=rtol)
    assert result.method == "torus + deflation"
    assert result.converged
    assert result.gap <= rtol
    assert result.lower <= sigma(dense(layer, (16, 9, 9))) <= result.upper


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_what_conjugate_gradients_leave_over_counts(share: float, monkeypatch: Patch) -> None:
    """The bound holds for any solution, one from no steps at all included."""
    real = deflation._solve
    monkeypatch.setattr(deflation, "_solve", lambda *given: share * real(*given))
    for name in ("square", "strided, few inputs", "grouped"):
        assert not proves(name, 1.0 - 1e-6)
