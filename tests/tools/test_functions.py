"""The checker's own table of activations: values against torch, slopes against dense grids of secants."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from normscope.theory.activations import ACTIVATIONS

from .proofs import arithmetic, functions

CASES = {
    "relu": ((), F.relu),
    "leaky_relu": ((-0.3,), lambda x: F.leaky_relu(x, -0.3)),
    "clamp": ((-0.5, 1.25), lambda x: x.clamp(-0.5, 1.25)),
    "abs": ((), torch.abs),
    "hardsigmoid": ((), F.hardsigmoid),
    "hardswish": ((), F.hardswish),
    "elu": ((1.7, 1.1, 0.6), lambda x: torch.ops.aten.elu(x, 1.7, 1.1, 0.6)),
    "gelu": ((), F.gelu),
    "gelu_tanh": ((), lambda x: F.gelu(x, approximate="tanh")),
    "silu": ((1.702,), lambda x: x * torch.sigmoid(1.702 * x)),
    "mish": ((), F.mish),
    "softplus": ((2.0, 40.0), lambda x: F.softplus(x, 2.0, 40.0)),
    "sigmoid": ((), torch.sigmoid),
    "logsigmoid": ((), F.logsigmoid),
    "tanh": ((), torch.tanh),
    "erf": ((), torch.erf),
    "atan": ((), torch.atan),
    "sin": ((), torch.sin),
    "cos": ((), torch.cos),
}
GRID = np.concatenate([np.linspace(-9.0, 9.0, 601), np.linspace(-60.0, 60.0, 401)])


def value(name, points):
    found = arithmetic.each(functions.FUNCTIONS[name].value, arithmetic.balls(points), *CASES[name][0])
    return arithmetic.each(lambda ball: float(ball.mid()), found).astype(float)


def slopes(name):
    known = functions.FUNCTIONS[name].slopes
    return known(*CASES[name][0]) if callable(known) else known


def test_every_function_is_on_trial():
    assert set(CASES) == set(functions.FUNCTIONS)


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_torch(name):
    want = CASES[name][1](torch.from_numpy(GRID)).numpy()
    assert np.allclose(value(name, GRID), want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_slopes_hold_every_secant_and_no_more(name):
    least, most = slopes(name)
    seen = []
    for points in (np.linspace(-9.0, 9.0, 2401), np.linspace(-60.0, 60.0, 1501), 3.0 ** np.arange(8.0, 30.0)):
        for side in (points, -points[::-1]):
            secants = np.diff(value(name, side)) / np.diff(side)
            assert (secants >= least - 1e-10).all()
            assert (secants <= most + 1e-10).all()
            seen += [secants.min(), secants.max()]
    assert np.isfinite([least, most]).all()
    assert (min(seen), max(seen)) == pytest.approx((least, most), abs=1e-2)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "mish"])
def test_bends_are_where_the_slope_is_extreme(name):
    """Beside the bend the derivative is no steeper, to far more digits than its slack."""
    slope = {"gelu": functions.gelu_slope, "gelu_tanh": functions.gelu_tanh_slope,
             "silu": functions.silu_slope, "mish": functions.mish_slope}[name]  # fmt: skip
    least, most = slopes(name)
    for points in (np.linspace(-6.0, 6.0, 4001), np.linspace(1.3, 2.5, 4001), np.linspace(-2.5, -1.3, 4001)):
        found = arithmetic.each(lambda x: float(slope(x)), arithmetic.balls(points)).astype(float)
        assert least <= found.min()
        assert found.max() <= most


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "mish", "tanh", "erf", "sigmoid", "hardswish", "atan"])
def test_the_two_tables_agree_without_sharing_a_line(name):
    assert slopes(name) == pytest.approx(ACTIVATIONS[name].slope, abs=1e-7)


def test_a_wrong_bend_would_be_seen(monkeypatch):
    wrong = functions.Function(functions.FUNCTIONS["gelu"].value, functions.at_bends(functions.gelu_slope, -1.0, 1.0))
    monkeypatch.setitem(functions.FUNCTIONS, "gelu", wrong)
    with pytest.raises(AssertionError):
        test_slopes_hold_every_secant_and_no_more("gelu")
    with pytest.raises(AssertionError):
        test_bends_are_where_the_slope_is_extreme("gelu")
