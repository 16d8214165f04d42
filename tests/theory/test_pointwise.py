"""Brackets at a point against dense SVD, also where the variance drowns in the mean."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import normscope as ns
from normscope.core.bracket import Evidence, Scope
from normscope.theory import normalizers as nz

from . import normalizer_oracles as oracles
from . import pointwise as pw

EPS = 1e-3


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def size(matrix):
    return float(torch.linalg.matrix_norm(matrix, 2))


def holds(bracket, matrix, *, gap=None):
    truth, noise = size(matrix), 1e-18  # the dense matrix cancels to eps/s^3 in degenerate sets; see below for those
    assert bracket.scope is Scope.POINT
    assert bracket.evidence is Evidence.PROVEN
    assert bracket.lower <= truth * (1 + 1e-12) + noise
    assert bracket.upper >= truth * (1 - 1e-12) - noise
    if bracket.lower > 0:
        witness = bracket.witness.flatten()
        assert float(witness.norm()) == pytest.approx(1.0)
        assert float((matrix @ witness).norm()) >= bracket.lower * (1 - 1e-12) - noise
    if gap is not None:
        assert bracket.upper <= bracket.lower * (1 + gap)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 20])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1e3])
def test_constant_gamma_closes(n, scale):
    x = scale * normal(n)
    for gamma in (None, torch.tensor([-2.5])):
        full = None if gamma is None else gamma.expand(n)
        holds(pw.layer_norm_at(x, gamma, EPS), nz.layer_norm_jacobian(x, full, EPS), gap=1e-10)
        holds(pw.rms_norm_at(x, gamma, EPS), oracles.rms_norm_jacobian(x, full, EPS), gap=1e-10)


@pytest.mark.parametrize("n", [2, 3, 20, 300])
def test_any_gamma_is_bracketed(n):
    for seed in range(3):
        x, gamma = normal(n, seed=seed), normal(n, seed=seed + 10)
        layer, rms = nz.layer_norm_jacobian(x, gamma, EPS), oracles.rms_norm_jacobian(x, gamma, EPS)
        holds(pw.layer_norm_at(x, gamma, EPS), layer)
        holds(pw.rms_norm_at(x, gamma, EPS), rms)
        assert pw.layer_norm_at(x, gamma, EPS).lower >= size(layer) * (1 - 1e-6)
        assert pw.rms_norm_at(x, gamma, EPS).lower >= size(rms) * (1 - 1e-6)
        assert pw.layer_norm_at(x, gamma, EPS).upper <= float(gamma.abs().max()) / math.sqrt(
            float(x.var(correction=0)) + EPS
        ) * (1 + 1e-12)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-10, 10), st.floats(-3, 3)), min_size=1, max_size=8),
    st.sampled_from([0.0, 1e-12, 1e-5, 1.0]),
)
def test_never_crossed(pairs, eps):
    """The constructor of Bracket raises if the sides cross."""
    x = torch.tensor([first for first, _ in pairs], dtype=torch.float64)
    gamma = torch.tensor([second for _, second in pairs], dtype=torch.float64)
    for bracket, matrix in (
        (pw.layer_norm_at(x, gamma, eps), nz.layer_norm_jacobian(x, gamma, eps)),
        (pw.rms_norm_at(x, gamma, eps), oracles.rms_norm_jacobian(x, gamma, eps)),
    ):
        if matrix.isfinite().all() and eps >= 1e-5:
            truth = size(matrix)
            assert bracket.upper >= truth * (1 - 1e-9) - 1e-9
            assert bracket.lower <= truth * (1 + 1e-9) + 1e-9


def exact_upper_square(x, eps):
    """1/(var + eps) as a rational: the square of the exact norm for n >= 3."""
    entries = [Fraction(float(value)) for value in x]
    mean = sum(entries) / len(entries)
    return 1 / (sum((value - mean) ** 2 for value in entries) / len(entries) + Fraction(eps))


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e8, 1e15])
@pytest.mark.parametrize("n", [3, 5, 50])
def test_variance_that_drowns_in_the_mean(n, offset):
    """Against exact rational arithmetic on the very floats given."""
    for seed, scale in enumerate((1e-6, 1e-3, 1.0)):
        x = normal(n, seed=seed) * scale + offset
        for eps in (0.0, 1e-12, 1e-5):
            if eps == 0.0 and float(x.max()) == float(x.min()):
                assert pw.layer_norm_at(x, None, eps).upper == math.inf
                continue
            square = exact_upper_square(x, eps)
            bracket = pw.layer_norm_at(x, None, eps)
            assert bracket.upper**2 >= float(square) * (1 - 1e-14)
            assert bracket.lower**2 <= float(square) * (1 + 1e-14)
            assert bracket.upper <= bracket.lower * (1 + 1e-9)


def test_blocks():
    x, gamma = normal(6, 5), normal(6, seed=1)
    holds(pw.group_norm_at(x, gamma, 2, EPS), oracles.group_norm_jacobian(x, gamma, 2, EPS))
    holds(pw.group_norm_at(x, gamma, 6, EPS), oracles.group_norm_jacobian(x, gamma, 6, EPS), gap=1e-10)
    assert pw.group_norm_at(x, gamma, 2, EPS).witness.shape == x.shape


def test_degenerate_sets():
    """Claim 6: two entries are nearly a sign, one entry is a constant."""
    pair = torch.tensor([-3.0, 5.0])
    s = math.sqrt(16.0 + 1e-5)
    assert pw.layer_norm_at(pair, None, 1e-5).upper == pytest.approx(1e-5 / s**3)
    assert pw.group_norm_at(pair[None], None, 1, 1e-5).upper == pytest.approx(1e-5 / s**3)
    assert pw.layer_norm_at(torch.tensor([4.0]), None, 1e-5).upper == 0.0
    assert pw.layer_norm_at(pair, None, 0.0).upper == 0.0
    assert pw.rms_norm_at(torch.tensor([4.0]), None, 1e-5).upper == pytest.approx(1e-5 / (16.0 + 1e-5) ** 1.5)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3, 1e6])
def test_degenerate_sets_against_rationals(scale):
    """gain eps/s^3 squared, where a dense matrix would cancel."""
    eps = Fraction(EPS)
    for seed in range(5):
        x, gamma = scale * normal(2, seed=seed), normal(2, seed=seed + 5)
        first, second = (Fraction(float(value)) for value in x)
        one, two = (Fraction(float(value)) for value in gamma)
        layer = (one**2 + two**2) / 2 * eps**2 / ((first - second) ** 2 / 4 + eps) ** 3
        rms = one**2 * eps**2 / (first**2 + eps) ** 3
        for bracket, square in ((pw.layer_norm_at(x, gamma, EPS), layer), (pw.rms_norm_at(x[:1], gamma[:1], EPS), rms)):
            slack = Fraction(1, 10**14)  # of 10**log10 in this test
            assert Fraction(bracket.lower) ** 2 * (1 - slack) <= square <= Fraction(bracket.upper) ** 2 * (1 + slack)
            assert bracket.upper <= bracket.lower * (1 + 1e-11)


def test_constant_set_without_eps_is_infinite_with_a_reason():
    bracket = pw.layer_norm_at(torch.ones(4), None, 0.0)
    assert bracket.upper == math.inf
    assert "eps is 0" in bracket.reason
    with pytest.raises(ValueError, match="NaN"):
        pw.layer_norm_at(torch.tensor([1.0, math.nan]), None, EPS)


@pytest.mark.parametrize(
    ("layer", "bracket"),
    [
        (torch.nn.LayerNorm(6, eps=EPS), pw.layer_norm_at),
        (torch.nn.LayerNorm(2, eps=EPS), pw.layer_norm_at),
        (torch.nn.RMSNorm(6, eps=EPS), pw.rms_norm_at),
        (torch.nn.RMSNorm(1, eps=EPS), pw.rms_norm_at),
        (torch.nn.GroupNorm(2, 6, eps=EPS), lambda x, gamma, eps: pw.group_norm_at(x, gamma, 2, eps)),
    ],
    ids=["layer", "layer of two", "rms", "rms of one", "group"],
)
def test_constants_of_layers_at_a_point_meet_the_formulas(layer, bracket):
    """What `ns.lipschitz` says of a layer at a point lies between the proven sides of the oracle."""
    layer = layer.double()
    with torch.no_grad():
        layer.weight.copy_(normal(*layer.weight.shape, seed=7))
    x = normal(1, layer.weight.numel(), seed=8)
    found = ns.lipschitz(layer, x, scope="point")
    known = bracket(x[0], layer.weight.detach(), EPS)
    assert found.upper >= known.lower * (1 - 1e-12)
    assert found.lower <= known.upper * (1 + 1e-12)
