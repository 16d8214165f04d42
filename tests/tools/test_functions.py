"""The checker's own table of activations: values against torch, slopes against dense grids of secants."""

import flint
import numpy as np
import pytest
import torch
from flint import arb
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
    found = known(*(np.array([value]) for value in CASES[name][0])) if callable(known) else known
    return float(np.max(found[0])), float(np.max(found[1]))


def test_every_function_is_on_trial():
    assert set(CASES) == set(functions.FUNCTIONS)


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_torch(name):
    want = CASES[name][1](torch.from_numpy(GRID)).numpy()
    assert np.allclose(value(name, GRID), want, rtol=1e-12, atol=1e-14)


@pytest.mark.one_in(2)
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


def slope(name, x):
    """The derivative, from balls that are close to one another."""
    with flint.ctx.workprec(400):
        near, parameters = arb(2) ** -30, (1.0,) if name == "silu" else ()
        ends = (functions.FUNCTIONS[name].value(arb(float(x)) + side, *parameters) for side in (near, -near))
        return (next(ends) - next(ends)) / (2 * near)


BENDS = {
    "gelu": (-(2**0.5), 2**0.5),
    "gelu_tanh": (-1.4185040087908283, 1.4185040087908283),
    "silu": (-2.3993572805154677, 2.3993572805154677),
    "mish": (-2.2563763963607931, 1.4905711794854284),
}
"""Where f'' is zero."""


@pytest.mark.parametrize("name", BENDS)
def test_bends_are_where_the_slope_is_extreme(name):
    """The table holds the slopes at the bends to the last digits, and beside them the derivative is no steeper."""
    least, most = slopes(name)
    for bend, side in zip(BENDS[name], (least, most), strict=True):
        assert abs(side - slope(name, bend)) < 3e-15
        assert (side < slope(name, bend)) if side == least else (side > slope(name, bend))
    for points in (np.linspace(-6.0, 6.0, 1001), np.linspace(1.3, 2.5, 1001), np.linspace(-2.5, -1.3, 1001)):
        found = [slope(name, x) for x in points]
        assert all(least <= value <= most for value in found)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "mish", "tanh", "erf", "sigmoid", "hardswish", "atan"])
def test_the_two_tables_agree_without_sharing_a_line(name):
    assert slopes(name) == pytest.approx(ACTIVATIONS[name].slope, abs=1e-7)
