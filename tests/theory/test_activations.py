"""Slope intervals and ranges against 30-digit extrema, autograd, secants and a search."""

import math
from fractions import Fraction

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import normscope as ns
from normscope.core.bracket import Evidence
from normscope.theory import activations as act
from normscope.theory import softmax_norms, templates
from normscope.theory.piecewise import Unreadable
from normscope.theory.templates import Polynomial

LIPSCHITZ = {
    **{name: row for name, row in act.ACTIVATIONS.items() if row.reason is None},
    "leaky_relu(-0.7)": act.leaky_relu(-0.7),
    "prelu(0.3)": act.prelu(torch.tensor([0.3])),
    "elu(2.5)": act.elu(2.5),
    "elu(-2)": act.elu(-2.0),
    "elu(1.3, 0.7, 2.1)": act.elu(1.3, 0.7, 2.1),
    "elu(1.3, -0.7, 2.1)": act.elu(1.3, -0.7, 2.1),
    "celu(0.3)": act.celu(0.3),
    "clamp(-2, 0.5)": act.clamp(-2.0, 0.5),
    "clamp(max=1)": act.clamp(high=1.0),
    "clamp": act.clamp(),
    "clamp(2, 1)": act.clamp(2.0, 1.0),
    "softplus(0.5)": act.softplus(0.5),
    "softplus(-2)": act.softplus(-2.0),
    "softshrink(0)": act.softshrink(0.0),
    "hardshrink(0)": act.hardshrink(0.0),
    "hardshrink(-1)": act.hardshrink(-1.0),
    "threshold(0.5, 0.5)": act.threshold(0.5, 0.5),
    "rrelu(0.1, 0.4)": act.rrelu(0.1, 0.4),
}
cases = pytest.mark.parametrize("activation", LIPSCHITZ.values(), ids=LIPSCHITZ.keys())


def grid() -> torch.Tensor:
    near = torch.linspace(-15, 15, 20_013, dtype=torch.float64)
    far = torch.logspace(1.2, 5, 200, dtype=torch.float64)
    return torch.cat([-far.flip(0), near, far])


def derivative(function, x):
    leaf = x.clone().requires_grad_()
    value = function(leaf)
    return torch.autograd.grad(value.sum(), leaf)[0] if value.requires_grad else torch.zeros_like(x)


@cases
def test_derivatives_stay_inside_and_reach_both_ends(activation):
    """Zooming in on the best grid point closes in on the ends, also where they are one-sided limits at a kink."""
    low, high = activation.slope
    x = grid()
    slopes = derivative(activation.function, x)
    assert slopes.min() >= low - 1e-14
    assert slopes.max() <= high + 1e-14

    def search(sign):
        points, best = x, -math.inf
        for _ in range(8):
            at = derivative(activation.function, points).mul(sign)
            best, where = max(best, float(at.max())), int(at.argmax())
            left, right = points[max(where - 1, 0)], points[min(where + 1, len(points) - 1)]
            points = left + (right - left) * torch.linspace(0, 1, 101, dtype=torch.float64)
        return best

    top, bottom = search(1.0), -search(-1.0)
    reach = 5e-8 if activation.name in ("hardswish", "hardsigmoid") else 1e-9  # torch's 1.0f/6.0f
    assert high + 1e-14 >= top >= high - reach
    assert low - 1e-14 <= bottom <= low + reach


@cases
def test_secants_stay_inside(activation):
    low, high = activation.slope
    x = grid()
    generator = torch.Generator().manual_seed(0)
    for width in (1e-3, 0.1, 1.0, 10.0):
        other = x + width * (0.1 + torch.rand(x.shape, dtype=torch.float64, generator=generator))
        first, second = activation.function(x), activation.function(other)
        step = other - x
        noise = 8 * 2.0**-53 * (first.abs() + second.abs() + x.abs() + other.abs()) / step
        if "softplus" in activation.name:
            noise = noise + 4.2e-9 / step  # torch's jump at its threshold, beta >= 0.5
        secants = (second - first) / step
        assert (secants >= low - noise).all()
        assert (secants <= high + noise).all()


@cases
def test_values_stay_in_range_and_reach_its_ends(activation):
    low, high = activation.bounded
    x = grid()
    values = activation.function(x)
    slack = 1e-15 * max(1.0, *(abs(end) for end in (low, high) if math.isfinite(end)), 0.0)
    assert values.min() >= low - slack
    assert values.max() <= high + slack
    # atan and softsign approach their ends like 1/x; the grid's spacing costs h^2/8 at an inner minimum.
    assert values.min() <= low + 2e-5 if math.isfinite(low) else values.min() <= -10.0
    assert values.max() >= high - 2e-5 if math.isfinite(high) else values.max() >= 10.0


def extrema_with_30_digits():
    mp = mpmath.mp
    root, cubic = mp.sqrt(2 / mp.pi), mp.mpf("0.044715")
    functions = {
        "gelu": (lambda x: x * (1 + mp.erf(x / mp.sqrt(2))) / 2, -1.41, 1.41, -0.75),
        "gelu_tanh": (lambda x: x * (1 + mp.tanh(root * (x + cubic * x**3))) / 2, -1.42, 1.42, -0.75),
        "silu": (lambda x: x / (1 + mp.exp(-x)), -2.4, 2.4, -1.28),
        "quick_gelu": (lambda x: x / (1 + mp.exp(-mp.mpf(1.702) * x)), -1.41, 1.41, -0.75),
        "mish": (lambda x: x * mp.tanh(mp.log(1 + mp.exp(x))), -2.26, 1.49, -1.19),
    }
    for name, (f, left, right, lowest) in functions.items():
        slopes = [mp.diff(f, mp.findroot(lambda x, f=f: mp.diff(f, x, 2), start)) for start in (left, right)]
        minimum = f(mp.findroot(lambda x, f=f: mp.diff(f, x), lowest))
        yield name, *slopes, minimum


def test_typed_constants_against_30_digits():
    """Outward, and by a few units in the last place only."""
    with mpmath.workdps(30):
        for name, low, high, minimum in extrema_with_30_digits():
            row = act.ACTIVATIONS[name]
            assert 0 < low - mpmath.mpf(row.slope[0]) < 2e-15, name
            assert 0 < mpmath.mpf(row.slope[1]) - high < 2e-15, name
            assert 0 < minimum - mpmath.mpf(row.bounded[0]) < 1e-15, name


def test_exact_slopes_stay_exact():
    """A gain of 1 must not become 1 + 1e-16 in a hundred-layer product."""
    for name in ("relu", "relu6", "tanh", "elu", "celu", "hardtanh", "softplus", "abs", "sin"):
        assert act.ACTIVATIONS[name].gain.log10 == 0.0


@pytest.mark.parametrize(
    ("activation", "at"),
    [
        (act.hardshrink(0.5), 0.5),
        (act.threshold(1.0, 0.0), 1.0),
        (act.softplus(1.0, threshold=2.0), 2.0),
        (act.ACTIVATIONS["exp"], 300.0),
        (act.celu(-1.0), -300.0),
    ],
)
def test_what_is_not_lipschitz_says_why_and_is_not(activation, at):
    assert activation.gain.log10 == math.inf
    assert activation.reason
    assert activation.gain.reason == activation.reason
    x = torch.tensor([at - 1e-9, at + 1e-9], dtype=torch.float64)
    value = activation.function(x)
    assert ((value[1] - value[0]) / (x[1] - x[0])).abs() > 1e6


def test_the_jump_of_softplus_at_its_default_threshold_is_not_proven_away():
    for beta in (1.0, 1e-9, 1e3):
        assert act.softplus(beta).evidence is Evidence.NUMERICAL
        assert act.softplus(beta, 40.0).evidence is Evidence.PROVEN
        assert act.softplus(beta, 19.0).gain.log10 == math.inf


@pytest.mark.parametrize("n", [1, 2, 3, 10, 50])
def test_log_softmax_is_sqrt_n_at_a_vertex_and_nowhere_more(n):
    generator = torch.Generator().manual_seed(n)
    bound = 10 ** softmax_norms.log_softmax_norm(n).log10
    logits = torch.randn(40, n, dtype=torch.float64, generator=generator) * torch.logspace(-1, 2, 40).double()[:, None]
    p = torch.cat([logits.softmax(1), torch.eye(n, dtype=torch.float64)[:1]])
    norms = torch.linalg.matrix_norm(torch.eye(n, dtype=torch.float64) - p[:, None, :].expand(-1, n, n), 2)
    assert norms.max() <= bound + 1e-14 * n
    if n > 1:
        assert norms[-1] == pytest.approx(bound, rel=1e-12)
        assert torch.allclose(norms, math.sqrt(n) * p.norm(dim=1), rtol=1e-10)
    else:
        assert bound == 0.0


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_softmax_is_half(n):
    generator = torch.Generator().manual_seed(n)
    logits = torch.randn(500, n, dtype=torch.float64, generator=generator) * 5
    logits[0], logits[0, :2] = -50.0, 0.0
    p = logits.softmax(1)
    norms = torch.linalg.matrix_norm(torch.diag_embed(p) - p[:, :, None] * p[:, None, :], 2)
    bound = 10 ** softmax_norms.softmax_norm(n).log10
    assert norms.max() <= bound + 1e-15
    assert norms.max() >= bound - 1e-12


@pytest.mark.parametrize("radius", [0.0, 2.5, 2.9, 4.0, 30.0, 1e6])
def test_glu(radius):
    b = torch.linspace(-12, 40, 200_001, dtype=torch.float64, requires_grad=True)
    pair = torch.stack([torch.full_like(b, radius), b], 1).detach().requires_grad_()
    gradient = torch.autograd.grad(F.glu(pair, 1).sum(), pair)[0]
    bound = 10 ** softmax_norms.glu_norm(radius).log10
    assert gradient.norm(dim=1).max() <= bound * (1 + 1e-15)
    assert gradient.norm(dim=1).max() >= bound * (1 - 1e-8)


# --- parameters that are no numbers, or hardly ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "scale", "input_scale"),
    [(math.nan, 1.0, 1.0), (math.inf, 1.0, 1.0), (1e200, 1e200, 1.0), (1.0, math.nan, 1.0), (math.inf, 1.0, 0.0)],
)
def test_an_elu_whose_slopes_are_no_numbers_has_no_constant(alpha, scale, input_scale):
    found = act.elu(alpha, scale, input_scale)
    assert found.gain.log10 == math.inf
    assert "not finite" in found.reason


@pytest.mark.one_in(3)
@pytest.mark.parametrize("function", [nn.ELU(math.nan), nn.LeakyReLU(math.nan), nn.CELU(math.nan)])
def test_a_parameter_that_is_nan_is_not_overlooked(function):
    """On positive values nobody notices; below zero the function is NaN."""
    bracket = ns.lipschitz(function.eval(), torch.ones(1, 2), max_seconds=0.1)
    assert bracket.log10_upper == math.inf
    assert bracket.reason


SCALED = {
    "tiny factor, steep": (Fraction(1, 10**200), 10**200),
    "huge factor, flat": (Fraction(10**200), Fraction(1, 10**200)),
    "factor below all floats": (Fraction(1, 10**400), 1),
    "factor above all floats": (Fraction(10**400), 1),
    "steeper than floats": (Fraction(1), 10**400),
}


@pytest.mark.parametrize("name", SCALED)
def test_a_formula_with_constants_beyond_floats_is_not_read(name):
    """x sigmoid(inner x) factor: its range would be 0 times infinity."""
    factor, inner = (Polynomial.constant(Fraction(value)) for value in SCALED[name])
    x = Polynomial.identity()
    with pytest.raises((Unreadable, OverflowError)):
        templates.activation_of(x * (x * inner).called("sigmoid") * factor)
