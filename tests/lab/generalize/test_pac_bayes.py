"""PAC-Bayes: its formulas against others, and the bound itself on a distribution where the truth is known."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from normscope.bounds.graph.capturing import capture
from normscope_lab.generalize.bound import condition
from normscope_lab.generalize.description import Fixed
from normscope_lab.generalize.pac_bayes import (
    AT_ONCE,
    Posterior,
    WeightVector,
    average_error,
    binary_kl,
    bound_error,
    complexity,
    kl_inverse,
    pac_bayes_row,
)
from normscope_lab.generalize.stream import SampleBatch

ALONE = condition("the loss of a sample depends on that sample alone", True, "it does")


def posterior(count=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(count, generator=generator, dtype=torch.float64) for _ in range(3)]
    return Posterior(parts[0], parts[1] - 2.0, parts[2], torch.tensor(-2.0, dtype=torch.float64))


class TestFormulas:
    @pytest.mark.parametrize("seed", range(3))
    def test_kl_is_that_of_torch(self, seed):
        found = posterior(seed=seed)
        own = Normal(found.mean, found.log_deviation.exp())
        prior = Normal(found.start, found.log_prior.exp())
        expected = float(kl_divergence(own, prior).sum())
        assert float(found.kl()) == pytest.approx(expected)

    @pytest.mark.parametrize("q", [0.0, 0.03, 0.9, 1.0])
    @pytest.mark.parametrize("limit", [0.0, 1e-4, 3.0])
    def test_the_inverse_of_kl_is_the_largest_share_within_the_limit(self, q, limit):
        p = kl_inverse(q, limit)
        assert p >= q
        assert binary_kl(q, max(q, p - 1e-9)) <= limit + 1e-12
        if p < 1.0:
            assert binary_kl(q, min(1.0, p + 1e-9)) >= limit - 1e-12
        assert p <= q + math.sqrt((limit + 1e-14) / 2)  # Pinsker: never worse than McAllester's square root

    def test_the_shares_of_all_priors_add_up_to_delta(self):
        """The right side grows by ln(1/share): undo it and add."""
        base = math.log(2 * math.sqrt(100) / 0.05)
        shares = [math.exp(-(complexity(0.0, 100, 0.05, j) * 100 - base)) for j in range(1, 20_000)]
        assert sum(shares) <= 1.0
        assert sum(shares) == pytest.approx(1.0, abs=1e-3)

    @pytest.mark.parametrize("truth", [0.02, 0.3])
    def test_the_average_of_draws_bounds_their_mean(self, truth):
        """Draws of unlike means, as batches have: the limit fails no more often than its delta."""
        generator = torch.Generator().manual_seed(0)
        chances = (truth * torch.tensor([0.5, 1.5]).repeat(50)).clamp(max=1)
        failed = sum(
            bound_error(float(torch.bernoulli(chances, generator=generator).mean()), 100, 0.1) < truth
            for _ in range(300)
        )
        assert failed <= 0.1 * 300 + 3 * math.sqrt(300 * 0.09)


class TestWeights:
    def test_draws_are_counted_by_the_largest_share_one_of_them_has(self):
        model = nn.Linear(2, 2)
        weights = WeightVector.of(model)
        x, y = torch.randn(3 * AT_ONCE + 10, 2), torch.zeros(3 * AT_ONCE + 10, dtype=torch.long)
        own = Posterior(weights.vector(), torch.full((6,), -50.0), weights.vector(), torch.tensor(-1.0))
        share, draws = average_error(
            weights,
            own,
            lambda: iter([SampleBatch(x, y)]),
            samples=len(x),
            draws=6,
            generator=torch.Generator().manual_seed(0),
        )
        assert draws == (2 * len(x)) // AT_ONCE
        assert share == pytest.approx(float((model(x).argmax(1) != 0).double().mean()))


def problem(m, seed, flip=0.1):
    """Two Gaussian clouds, a share of the labels flipped: the best error is about `flip`."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (m,), generator=generator)
    x = torch.randn(m, 2, generator=generator) + 4.0 * (y[:, None] - 0.5)
    return x, torch.where(torch.rand(m, generator=generator) < flip, 1 - y, y)


def bound(m, seed, model, fixed=(), **options):
    x, y = problem(m, seed)
    declared = Fixed.of(fixed, capture(model, x[:8], mode="eval"))
    return pac_bayes_row(
        model,
        lambda: iter([SampleBatch(x, y)]),
        **({"steps": 60, "draws": 40, "rates": (1e-2, 5e-2)} | options),
        samples=m,
        classes=2,
        delta=0.1,
        output=None,
        asked=(ALONE,),
        seed=seed,
        fixed=declared,
    )


class TestBound:
    @pytest.mark.slow
    def test_it_says_something_about_a_small_network_and_is_above_the_truth(self):
        for seed in range(2):
            torch.manual_seed(seed)
            row, figures = bound(1000, seed, nn.Linear(2, 2))
            assert row.evidence == "certified"
            assert not row.vacuous
            assert row.value > 0.1  # the share of flipped labels, which every classifier errs on
            assert figures["error"] <= figures["error_at_most"] <= row.value
            assert 10**row.log10_as_printed >= row.value - 1e-12

    @pytest.mark.slow
    def test_no_draw_of_the_data_violates_it(self):
        """Random labels: every classifier errs on half of fresh data, however well it fits D."""
        for seed in range(100):
            generator = torch.Generator().manual_seed(seed)
            x, y = torch.randn(40, 30, generator=generator), torch.randint(2, (40,), generator=generator)
            torch.manual_seed(seed)
            row, _ = pac_bayes_row(
                nn.Linear(30, 2), lambda x=x, y=y: iter([SampleBatch(x, y)]),
                steps=40, draws=20, rates=(0.05, 0.05), samples=40, classes=2, delta=0.5,
                output=None, asked=(ALONE,), seed=seed,
            )  # fmt: skip
            assert row.value >= 0.5

    @pytest.mark.slow
    def test_running_statistics_have_no_prior_and_are_paid_for(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
        model[1].running_mean.normal_()
        model[1].running_var.uniform_(0.5, 2.0)
        row, figures = bound(1000, 0, model, steps=2)
        free, declared = bound(1000, 0, model, steps=2, fixed=("1.running_*", "numbers"))
        assert "`1.running_mean`, `1.running_var` and" in row.conditions[-1].why
        assert figures["right"] - declared["right"] >= 6 * 32 * math.log(2) / 1000
        assert row.value > free.value
        assert {row.evidence, free.evidence} == {"certified"}

    def test_a_prior_that_is_the_model_itself_is_doubted(self):
        model = nn.Linear(2, 2)
        kept = dict(model.named_parameters())  # not copied: it follows the training
        row, _ = bound(100, 0, model, steps=2, prior=kept)
        assert [one.what for one in row.missing] == ["the prior does not depend on D"]
        copied = {name: one.detach().clone() + 0.1 for name, one in kept.items()}
        assert bound(100, 0, model, steps=2, prior=copied)[0].evidence == "certified"

    @pytest.mark.filterwarnings("ignore")
    def test_a_weight_that_is_computed_from_parameters_is_no_such_tensor(self):
        model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
        nn.utils.weight_norm(model[0])
        row, _ = bound(100, 0, model, steps=2)
        assert row.evidence == "certified"
        assert row.conditions[-1].why.startswith("the other arguments of 1 operator in the code: 3.466 nats")
