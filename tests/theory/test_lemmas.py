"""The printed constants against the exact ones, and the counter-examples of theory section 10."""

import math

import pytest
import torch

from normscope.theory import normalizers
from normscope.theory import normalizers as nz
from normscope_lab.experiments.theory import normalizer_claims as slides

EPS = 1e-5


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def size(matrix):
    return float(torch.linalg.matrix_norm(matrix, 2))


def exact(gamma, n):
    """LayerNorm's constant over all inputs."""
    return 10 ** nz.layer_norm_global(gamma, n, EPS).log10


def test_claim_1_lemma_1_is_a_loose_bound_and_no_equality():
    """n = 512: about 4 in truth and about 20 printed; off by sqrt(n) where all variances agree."""
    variance, scales = 0.05 + normal(512).square(), 2 * torch.ones(512)
    truth = size(torch.diag(nz.batch_norm_eval(None, variance, EPS)))
    assert 10 ** nz.batch_norm_eval_global(None, variance, EPS).log10 == pytest.approx(truth)
    assert normalizers.lemma1(variance, EPS) > 5 * truth
    assert normalizers.lemma1(variance, EPS, scales) == pytest.approx(2 * normalizers.lemma1(variance, EPS))
    for n in (1, 512):
        constant = 10 ** nz.batch_norm_eval_global(None, torch.ones(n), EPS).log10
        assert normalizers.lemma1(torch.ones(n), EPS) == pytest.approx(math.sqrt(n) * constant)


@pytest.mark.parametrize("n", [2, 3, 64])
def test_claim_4_lemma_2_is_true_and_always_one_over_root_eps(n):
    assert normalizers.lemma2(EPS) == 1 / math.sqrt(EPS) == pytest.approx(exact(None, n), rel=1e-12)
    for scale in (1e-3, 1.0, 10.0):
        x = scale * normal(n)
        printed = normalizers.lemma2(EPS, float(x.var(correction=0)))
        assert printed == pytest.approx(1 / math.sqrt(float(x.var(correction=0)) + EPS))
        assert size(nz.layer_norm_jacobian(x, None, EPS)) <= printed * (1 + 1e-12)


@pytest.mark.parametrize("n", [3, 4, 100])
def test_claim_5_the_digests_layer_norm_constant_is_exceeded(n):
    """(1 - 1/n)/s is below the norm at every point, by exactly 1 - 1/n."""
    for scale in (1e-3, 1.0, 10.0):
        x = scale * normal(n)
        truth = size(nz.layer_norm_jacobian(x, None, EPS))
        assert slides.slides_layer_norm(n, float(x.var(correction=0)), EPS) == pytest.approx(truth * (1 - 1 / n))
    assert slides.slides_layer_norm(n, 0.0, EPS) < exact(None, n)


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_claim_8_lemma_3_holds_and_is_loose_by_the_number_of_groups(groups):
    assert normalizers.lemma3(EPS, torch.zeros(groups)) == pytest.approx(groups * exact(None, 6))
    assert slides.slides_group_norm(6, torch.zeros(groups), EPS, torch.ones(6 * groups)) >= exact(None, 6)
    x = normal(4 * groups, 3)
    variances = x.reshape(groups, -1).var(1, correction=0)
    module = torch.nn.GroupNorm(groups, 4 * groups, eps=EPS, affine=False)
    truth = size(torch.autograd.functional.jacobian(lambda x: module(x[None])[0], x).reshape(x.numel(), x.numel()))
    assert truth == pytest.approx(float((variances + EPS).rsqrt().max()))
    assert truth <= normalizers.lemma3(EPS, variances) * (1 + 1e-12)
    assert slides.slides_group_norm(12, variances, EPS) == pytest.approx(truth * (1 - 1 / 12))
