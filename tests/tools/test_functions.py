"""The checker's own table of activations: values against torch, slopes against dense grids of secants."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from normscope.theory.activations import ACTIVATIONS

from .proofs import checker

CASES = {
    "relu": ({}, F.relu),
    "leaky_relu": ({"slope": -0.3}, lambda x: F.leaky_relu(x, -0.3)),
    "clamp": ({"low": -0.5, "high": 1.25}, lambda x: x.clamp(-0.5, 1.25)),
    "abs": ({}, torch.abs),
    "softshrink": ({"by": 0.4}, lambda x: F.softshrink(x, 0.4)),
    "hardsigmoid": ({}, F.hardsigmoid),
    "hardswish": ({}, F.hardswish),
    "elu": (
        {"alpha": 1.7, "scale": 1.1, "input_scale": 0.6},
        lambda x: torch.ops.aten.elu(x, 1.7, 1.1, 0.6),
    ),
    "gelu": ({}, F.gelu),
    "gelu_tanh": ({}, lambda x: F.gelu(x, approximate="tanh")),
    "silu": ({"beta": 1.702}, lambda x: x * torch.sigmoid(1.702 * x)),
    "mish": ({}, F.mish),
    "softplus": ({"beta": 2.0, "threshold": 20.0}, lambda x: F.softplus(x, 2.0)),
    "sigmoid": ({}, torch.sigmoid),
    "logsigmoid": ({}, F.logsigmoid),
    "tanh": ({}, torch.tanh),
    "tanhshrink": ({}, F.tanhshrink),
    "softsign": ({}, F.softsign),
    "erf": ({}, torch.erf),
    "atan": ({}, torch.atan),
    "exp": ({}, torch.exp),
    "power": ({"exponent": 3.0}, lambda x: x**3),
    "sin": ({}, torch.sin),
    "cos": ({}, torch.cos),
}
GRID = np.concatenate([np.linspace(-9.0, 9.0, 6001), np.linspace(-60.0, 60.0, 4001)])
INTERVALS = [(-9.0, 9.0), (-1.0, 2.0), (0.5, 0.9), (-3.0, -0.2), (-0.75, -0.74), (1.3, 5.0), (-8.0, -2.5), (2.0, 2.0)]


def test_every_function_is_on_trial():
    assert set(CASES) == set(checker.FUNCTIONS)


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_torch(name):
    parameters, function = CASES[name]
    own = checker.FUNCTIONS[name].value(GRID, parameters)
    want = function(torch.from_numpy(GRID)).numpy()
    assert np.allclose(own, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_slopes_hold_every_secant_and_no_more(name):
    parameters, _ = CASES[name]
    value = checker.FUNCTIONS[name].value
    for low, high in INTERVALS:
        least, most = checker.slopes(name, parameters, np.array(low), np.array(high))
        assert least <= most
        if low == high:
            continue
        points = np.linspace(low, high, 8001)
        secants = np.diff(value(points, parameters)) / np.diff(points)
        noise = 1e-9 * (1 + np.abs(secants))
        assert ((secants >= least - noise) & (secants <= most + noise)).all()
        assert abs(secants.min() - least) < 2e-3 * (1 + abs(least))
        assert abs(secants.max() - most) < 2e-3 * (1 + abs(most))


@pytest.mark.parametrize("name", sorted(set(CASES) - {"exp", "power"}))
def test_slopes_over_all_inputs_hold_every_secant(name):
    parameters, _ = CASES[name]
    least, most = checker.slopes(name, parameters, np.array(-np.inf), np.array(np.inf))
    for points in (np.linspace(-9.0, 9.0, 20001), np.linspace(-60.0, 60.0, 20001), 3.0 ** np.arange(8.0, 30.0)):
        for side in (points, -points[::-1]):
            secants = np.diff(checker.FUNCTIONS[name].value(side, parameters)) / np.diff(side)
            assert (secants >= least - 1e-10).all()
            assert (secants <= most + 1e-10).all()
    assert np.isfinite([least, most]).all()


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "mish", "tanh", "erf", "sigmoid", "hardswish", "atan"])
def test_the_two_tables_agree_without_sharing_a_line(name):
    least, most = checker.slopes(name, {}, np.array(-np.inf), np.array(np.inf))
    assert (least, most) == pytest.approx(ACTIVATIONS[name].slope, abs=1e-7)


def test_a_wrong_bend_would_be_seen(monkeypatch):
    monkeypatch.setattr(checker, "GELU_BEND", 1.0)
    with pytest.raises(AssertionError):
        test_slopes_hold_every_secant_and_no_more("gelu")


@pytest.mark.parametrize("name", sorted(checker.RISING))
def test_rising_functions_rise(name):
    parameters, _ = CASES[name]
    assert (np.diff(checker.FUNCTIONS[name].value(np.linspace(-50, 50, 20001), parameters)) >= 0).all()
