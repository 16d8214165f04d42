"""Jacobians against autograd of torch's modules; global constants against dense norms and an attacker."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from normscope.core.bracket import Evidence
from normscope.theory import normalizers as nz

EPS = 1e-3


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def jacobian(function, x):
    matrix = torch.autograd.functional.jacobian(function, x)
    return matrix.reshape(math.prod(matrix.shape[: matrix.dim() - x.dim()]), x.numel())


def with_gamma(module, gamma):
    module = module.double()
    with torch.no_grad():
        module.weight.copy_(gamma)
    return module


def size(matrix):
    return float(torch.linalg.matrix_norm(matrix, 2))


def value(upper):
    assert upper.evidence is Evidence.PROVEN
    return 10**upper.log10


# --- Jacobians --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 7, 30])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 100.0])
def test_layer_norm_jacobian(n, scale):
    x, gamma = scale * normal(n), normal(n, seed=1)
    module = with_gamma(nn.LayerNorm(n, eps=EPS), gamma)
    assert torch.allclose(nz.layer_norm_jacobian(x, gamma, EPS), jacobian(module, x), rtol=1e-9, atol=1e-12)


def test_batch_norm_eval():
    gamma, variance = normal(5, seed=1), normal(5).square()
    module = with_gamma(nn.BatchNorm1d(5, eps=EPS), gamma).eval()
    module.running_var.copy_(variance)
    truth = jacobian(lambda x: module(x[None])[0], normal(5))
    assert torch.allclose(torch.diag(nz.batch_norm_eval(gamma, variance, EPS)), truth, rtol=1e-12)
    upper = value(nz.batch_norm_eval_global(gamma, variance, EPS))
    assert size(truth) <= upper <= size(truth) * (1 + 1e-13)


# --- the gain of diag(gamma)(I - 11^T/n) ------------------------------------------------------------------------------


def dense_gain(gamma):
    n = gamma.numel()
    return size(gamma.double().flatten()[:, None] * (torch.eye(n, dtype=torch.float64) - 1.0 / n))


@pytest.mark.slow
@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3, allow_subnormal=False), min_size=1, max_size=12))
def test_centred_gain_is_tight_and_never_below(values):
    gamma = torch.tensor(values, dtype=torch.float64)
    bound, truth = nz.centred_gain(gamma), dense_gain(gamma)
    assert bound >= truth * (1 - 1e-14)
    assert bound <= truth * (1 + 1e-12) + 1e-150
    assert bound <= float(gamma.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 50, 700])
@pytest.mark.parametrize("exponent", [-140, 0, 140])
def test_centred_gain_in_all_sizes(n, exponent):
    for seed in range(3):
        gamma = normal(n, seed=seed) * 10.0**exponent
        assert nz.centred_gain(gamma) == pytest.approx(dense_gain(gamma * 10.0**-exponent) * 10.0**exponent, rel=1e-12)


def test_centred_gain_is_proven():
    """One-hot gamma: the square is 1 - 1/n, compared as rationals."""
    for n in range(2, 200, 9):
        gamma = torch.zeros(n)
        gamma[n // 2] = 1.0
        bound = Fraction(nz.centred_gain(gamma)) ** 2
        assert Fraction(n - 1, n) <= bound <= Fraction(n - 1, n) * (1 + Fraction(1, 10**13))


# --- global constants -------------------------------------------------------------------------------------------------


def ascend(norm_at, x, steps=40):
    """Gradient ascent on the Jacobian norm; returns the largest value met."""
    best = 0.0
    for _ in range(steps):
        x = x.detach().requires_grad_()
        figure = norm_at(x)
        best = max(best, float(figure.detach()))
        (slope,) = torch.autograd.grad(figure, x)
        if float(slope.norm()) == 0.0:
            break
        x = x + 0.3 * x.detach().norm() * slope / slope.norm()
    return best


def spectral(function):
    return lambda x: torch.linalg.matrix_norm(
        torch.autograd.functional.jacobian(function, x, create_graph=True).reshape(x.numel(), x.numel()), 2
    )


def modules():
    gamma = normal(6, seed=3)
    yield "layer", with_gamma(nn.LayerNorm(6, eps=EPS), gamma), 6, nz.layer_norm_global(gamma, 6, EPS)
    yield "pair", with_gamma(nn.LayerNorm(2, eps=EPS), gamma[:2]), 2, nz.layer_norm_global(gamma[:2], 2, EPS)
    yield "rms", with_gamma(nn.RMSNorm(6, eps=EPS), gamma), 6, nz.rms_norm_global(gamma, 6, EPS)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("function", "n", "upper"), [pytest.param(*row[1:], id=row[0]) for row in modules()])
def test_global_constants_resist_and_are_reached(function, n, upper):
    bound = value(upper)
    for scale in (1e-6, 1e-2, 1.0):
        assert ascend(spectral(function), scale * normal(n, seed=5)) <= bound * (1 + 1e-12)
    nearly_constant = 1e-9 * normal(n, seed=6)
    assert float(spectral(function)(nearly_constant).detach()) >= bound * (1 - 1e-6)
    # A secant pair around zero variance, as the bounds room confirms its lower sides.
    direction = torch.linalg.svd(jacobian(function, torch.zeros(n, dtype=torch.float64)))[2][0]
    step = 1e-5 * direction
    secant = float((function(step) - function(-step)).detach().norm() / (2 * step).norm())
    assert bound * (1 - 1e-6) <= secant <= bound * (1 + 1e-12)


def test_uppers_are_rounded_outward():
    """Never below the exact rational square root of 1/eps."""
    for eps in (1e-5, 1e-6, 1e-12, 1e-3, 0.1, 3e-7, 1.0):
        upper = Fraction(value(nz.layer_norm_global(None, 8, eps)))
        assert upper**2 * Fraction(eps) >= 1 - Fraction(1, 10**15)
        assert upper**2 * Fraction(eps) <= 1 + Fraction(1, 10**12)


def test_eps_zero_is_infinite_with_a_reason():
    for upper in (
        nz.layer_norm_global(None, 4, 0.0),
        nz.rms_norm_global(None, 4, 0.0),
        nz.batch_norm_eval_global(None, torch.tensor([1.0, 0.0]), 0.0),
    ):
        assert upper.log10 == math.inf
        assert "eps" in upper.reason


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_default_epsilon_of_rms_norm(dtype):
    """torch computes half precision in float32 and takes float32's eps there, unlike its documentation."""
    x = torch.full((4,), 1e-3 if dtype != torch.float64 else 1e-9, dtype=dtype)
    y = nn.RMSNorm(4, dtype=dtype)(x).detach().double()
    seen = (x.double() / y)[0] ** 2 - x.double()[0] ** 2
    assert float(seen) == pytest.approx(nz.rms_epsilon(None, dtype), rel=0.1)
    assert nz.rms_epsilon(1e-6, dtype) == 1e-6
