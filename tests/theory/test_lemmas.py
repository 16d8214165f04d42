"""The printed constants, and the counter-examples of theory section 10, rows 1, 2, 4, 5, 6 and 8."""

import math

import pytest
import torch

from normscope.theory import lemmas
from normscope.theory import normalizers as nz

from . import printed_constants as printed_rows
from .normalizer_oracles import group_norm_jacobian

EPS = 1e-5


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def size(matrix):
    return float(torch.linalg.matrix_norm(matrix, 2))


def test_claim_1_lemma_1_is_a_loose_bound_and_no_equality():
    """n = 512: about 4 in truth and about 20 printed; off by sqrt(n) where all variances agree."""
    variance = 0.05 + normal(512).square()
    row, affine = printed_rows.batch_norm_constants(2 * torch.ones(512), variance, EPS)
    truth = size(torch.diag(nz.batch_norm_eval(None, variance, EPS)))
    assert 10**row.exact.log10 == pytest.approx(truth)
    assert row.printed_is_bound
    assert row.as_printed > 5 * truth
    assert affine.as_printed == pytest.approx(2 * row.as_printed)
    flat = printed_rows.batch_norm_constants(None, torch.ones(512), EPS)[0]
    assert 10**flat.log10_excess == pytest.approx(math.sqrt(512))
    assert printed_rows.batch_norm_constants(None, torch.ones(1), EPS)[0].log10_excess == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("std", [2.0, 20.0])
def test_claim_2_corollary_10_reduces_only_if_std_exceeds_root_n(std):
    """n = 100 equal channels: sigma = min norm(1/sigma_k)^(-1) = std/10."""
    printed = lemmas.lemma1(torch.full((100,), std**2), 0.0)
    assert (printed < 1) == (std > 10)
    assert 10 ** nz.batch_norm_eval_global(None, torch.full((100,), std**2), 0.0).log10 < 1


def test_claim_2_algebra():
    """prod norm(1/sigma_k) <= sigma^(-K) with sigma = min_k norm(1/sigma_k)^(-1)."""
    factors = [lemmas.lemma1(normal(7, seed=k).square(), EPS) for k in range(5)]
    assert math.prod(factors) <= min(1 / factor for factor in factors) ** -5


@pytest.mark.parametrize("n", [2, 3, 64])
def test_claim_4_lemma_2_is_true_and_always_one_over_root_eps(n):
    row = printed_rows.layer_norm_constants(None, n, EPS)[0]
    assert row.as_printed == 1 / math.sqrt(EPS)
    assert row.log10_excess == pytest.approx(0.0, abs=1e-12)
    assert row.printed_is_bound
    for scale in (1e-3, 1.0, 10.0):
        x = scale * normal(n)
        s = math.sqrt(float(x.var(correction=0)) + EPS)
        assert lemmas.lemma2(EPS, float(x.var(correction=0))) == pytest.approx(1 / s)
        assert size(nz.layer_norm_jacobian(x, None, EPS)) <= 1 / s * (1 + 1e-12)


@pytest.mark.parametrize("n", [3, 4, 10, 100])
def test_claim_5_the_digests_layer_norm_constant_is_exceeded(n):
    """(1 - 1/n)/s is below the norm at every point, by exactly 1 - 1/n."""
    for scale in (1e-3, 1.0, 10.0):
        x = scale * normal(n)
        truth = size(nz.layer_norm_jacobian(x, None, EPS))
        printed = lemmas.slides_layer_norm(n, float(x.var(correction=0)), EPS)
        assert printed / truth == pytest.approx(1 - 1 / n)
    assert not printed_rows.layer_norm_constants(None, n, EPS)[1].printed_is_bound


@pytest.mark.parametrize("n", [2, 3, 10, 100])
def test_claim_5_the_slides_l2_form_depends_on_gamma(n):
    """As printed, with the l2 norm of a vector: a bound for equal scales and n >= 3, none for a dominant one."""
    assert printed_rows.layer_norm_constants(None, n, EPS)[2].printed_is_bound == (n >= 3)
    one_hot = torch.zeros(n)
    one_hot[0] = 1.0
    row = printed_rows.layer_norm_constants(one_hot, n, EPS)[2]
    assert not row.printed_is_bound
    assert 10**row.log10_excess == pytest.approx(math.sqrt(1 - 1 / n))


def test_claim_6_two_entries():
    """n = 2: exact eps/s^3; the printed (1 - 1/n)/s fails where var < eps and holds where var > eps."""
    for ratio in (0.5, 0.99, 1.01, 100.0):
        deviation = math.sqrt(ratio * EPS)
        x = torch.tensor([deviation, -deviation], dtype=torch.float64)
        truth = size(nz.layer_norm_jacobian(x, None, EPS))
        s = math.sqrt(deviation**2 + EPS)
        assert truth == pytest.approx(EPS / s**3)
        assert (lemmas.slides_layer_norm(2, deviation**2, EPS) >= truth) == (ratio > 1)
    batch = torch.nn.BatchNorm1d(1, affine=False, eps=1e-12).double()
    one, other = torch.tensor([[1.0], [7.0]]).double(), torch.tensor([[2.0], [3.0]]).double()
    assert torch.allclose(batch(one), batch(other))  # a batch of two tells which is larger, nothing else


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_claim_8_lemma_3_holds_and_is_loose_by_the_number_of_groups(groups):
    row, slides = printed_rows.group_norm_constants(None, groups, 6, EPS)
    assert row.printed_is_bound
    assert 10**row.log10_excess == pytest.approx(groups)
    assert slides.printed_is_bound
    x = normal(4 * groups, 3)
    variances = x.reshape(groups, -1).var(1, correction=0)
    truth = size(group_norm_jacobian(x, None, groups, EPS))
    assert truth == pytest.approx(float((variances + EPS).rsqrt().max()))
    assert truth <= lemmas.lemma3(EPS, variances) * (1 + 1e-12)
    assert lemmas.slides_group_norm(12, variances, EPS) == pytest.approx(truth * (1 - 1 / 12))


def test_verdicts_are_computed():
    """Falsify the input and the verdict flips."""
    row = printed_rows.layer_norm_constants(None, 5, EPS)[0]
    smaller = printed_rows.Printed(exact=row.exact, as_printed=row.as_printed * 0.999, reference=row.reference)
    assert row.printed_is_bound
    assert not smaller.printed_is_bound
    assert smaller.log10_excess < 0


def test_eps_zero():
    assert lemmas.lemma2(0.0) == math.inf
    assert all(row.printed_is_bound for row in printed_rows.layer_norm_constants(None, 4, 0.0))
    assert printed_rows.layer_norm_constants(None, 1, EPS)[1].printed_is_bound
