"""Theorem 20 on known distributions, its counter-example, and the bounds that the paper quotes."""

import math

import numpy as np
import pytest
import torch

from normscope_lab.generalize import than2025
from normscope_lab.generalize.stream import Tally, Voronoi
from normscope_lab.generalize.than2025 import (
    corollary22,
    hkk,
    limited_distances,
    lla,
    mean_distances,
    theorem20,
)

from . import simulated
from .simulated import atoms, memorised_line

DRAWS = 120
SETTINGS = {
    "a steep line": lambda delta: memorised_line(steepness=30.0, m=60, cells=5, delta=delta, draws=DRAWS, seed=0),
    "a gentle line": lambda delta: memorised_line(steepness=2.0, m=400, cells=20, delta=delta, draws=DRAWS, seed=1),
    "one cell": lambda delta: memorised_line(steepness=1e4, m=30, cells=1, delta=delta, draws=DRAWS, seed=2),
} | {
    name: lambda delta, weights=weights, m=m, seed=seed, tilted=tilted: atoms(
        weights=weights, m=m, delta=delta, draws=DRAWS, seed=seed, tilted=tilted
    )
    for name, weights, m, seed, tilted in (
        ("few atoms", torch.ones(6), 12, 3, False),
        ("geometric atoms", 0.7 ** torch.arange(40.0), 50, 4, False),
        ("many atoms", torch.ones(300), 1500, 5, False),
        ("tilted atoms", torch.ones(8), 2000, 6, True),
        ("a coin", torch.tensor([1.0, 3.0]), 4000, 7, True),
    )
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", SETTINGS)
def test_no_draw_violates_the_theorem(name):
    """At delta 1/2 half of the draws might; none does, and smaller deltas only make the right side larger."""
    trials = list(SETTINGS[name](0.5))
    assert len(trials) >= 100
    assert not [trial for trial in trials if trial.violated]
    assert next(SETTINGS[name](0.01)).terms.gap > trials[0].terms.gap


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("one cell", "no cells"),  # without lambda L the memoriser wins
        ("tilted atoms", "no slack"),
        ("few atoms", "no slack"),
        ("a coin", "no slack"),
        ("one cell", "flat"),
    ],
)
def test_planted_bugs_are_seen(monkeypatch, name, bug):
    """The simulation has teeth: a term that is left out shows."""
    if bug == "no slack":
        monkeypatch.setattr(than2025, "generalization_slack", lambda *_, **__: 0.0)
    exact = than2025.theorem20

    def broken(counts, distances, constants, **given):
        constants = -1.0 if bug == "flat" else constants
        return exact(
            counts, 0.0 * distances if bug == "no cells" else distances, constants, **(given | {"delta": 0.99})
        )

    monkeypatch.setattr(simulated, "theorem20", broken)
    if bug in ("no cells", "flat"):
        monkeypatch.setattr(than2025, "generalization_slack", lambda *_, **__: 0.05)
    assert sum(trial.violated for trial in SETTINGS[name](0.5)) > DRAWS // 4


def test_a_memoriser_breaks_corollary_21_as_printed():
    """Its loss is 0 on D and 1 elsewhere, and constant around every point but those of D, a set of probability 0.

    The corollary as printed drops that set and says that the risk is at most g, but it is 1.
    """
    found = theorem20(torch.tensor([4000.0]), torch.ones(1), -math.inf, delta=0.01, most=1.0)
    assert found.gap == pytest.approx(0.0905, abs=5e-5)


def test_a_hand_computed_case():
    """Three cells of ten, of which two hold samples: (6 * 0.1 * 2 + 4 * min(0.5 * 4, 1))/10 = 0.52."""
    counts = torch.tensor([6.0, 0.0, 4.0])
    found = theorem20(counts, torch.tensor([0.1, 9.0, 0.5]), torch.tensor([2.0, 5.0, 4.0]).log10(), delta=0.1, most=1.0)
    assert (found.cells, found.size) == (2, 3)
    assert found.local == pytest.approx(0.52)
    assert 10**found.log10_local_as_printed == pytest.approx((6 * 0.2 + 4 * 2.0) / 10)
    q = 2 * math.log(2 * 3 / 0.1) / 10
    assert found.slack == pytest.approx((math.sqrt(2) + 1) * math.sqrt(q) + 2 * q)


def test_constants_beyond_all_floats_count_with_the_largest_loss():
    found = theorem20(torch.tensor([5.0, 5.0]), torch.tensor([1.0, 2.0]), 400.0, delta=0.1, most=3.0)
    assert found.local == 3.0
    assert found.log10_local_as_printed == pytest.approx(400 + math.log10(1.5))
    unknown = theorem20(torch.tensor([5.0]), torch.tensor([math.inf]), 0.0, delta=0.1, most=1.0)
    assert (unknown.local, unknown.log10_local_as_printed) == (1.0, math.inf)


class TestDistances:
    @staticmethod
    def tallies(points, fresh, labels, other, regions=3, radius=None):
        generator = torch.Generator().manual_seed(5)
        partition = Voronoi(torch.randn(regions, points.shape[1], generator=generator), radius)
        found = []
        for some, which in ((points, labels), (fresh, other)):
            tally = Tally.empty(partition, 2, points.shape[1], torch.device("cpu"))
            tally.add(some, which)
            found.append(tally)
        return found

    def test_the_root_of_the_mean_square_is_above_the_mean_over_all_pairs(self):
        generator = torch.Generator().manual_seed(0)
        x, z = torch.randn(200, 3, generator=generator), torch.randn(150, 3, generator=generator)
        labels, other = torch.arange(200) % 2, torch.arange(150) % 2
        train, held = self.tallies(x, z, labels, other)
        found = mean_distances(train, held)
        train.vectors = None
        through = mean_distances(train, held)
        own, theirs = (which * 3 + train.partition.assign(some)[0] for some, which in ((x, labels), (z, other)))
        for cell in range(6):
            pairs = torch.cdist(x[own == cell].double(), z[theirs == cell].double())
            assert pairs.mean() <= found[cell] <= pairs.mean() * 1.2
            assert found[cell] <= through[cell] + 1e-9

    @pytest.mark.parametrize("seed", range(5))
    def test_the_limit_holds_in_at_least_its_share_of_draws(self, seed):
        """Uniform in [0, 1]^2, one region: E|x - c| by a million samples."""
        generator = torch.Generator().manual_seed(seed)
        partition = Voronoi(torch.full((1, 2), 0.3))
        truth = float((torch.rand(10**5, 2, generator=generator) - 0.3).norm(dim=1).mean())
        broken = 0
        for _ in range(40):
            train, held = (Tally.empty(partition, 1, 2, torch.device("cpu")) for _ in range(2))
            train.add(torch.full((1, 2), 0.3), torch.zeros(1, dtype=torch.long))
            held.add(torch.rand(25, 2, generator=generator), torch.zeros(25, dtype=torch.long))
            broken += float(limited_distances(train, held, partition.reach(0.0, 1.0), 0.1)[0]) < truth
        assert broken <= 4


class TestQuoted:
    def test_corollary_22_spelled_out(self):
        omega, gap = corollary22(math.log10(50.0), math.log10(0.25), 0.3, 0.1, math.log10(0.01))
        assert 10**omega == pytest.approx(50 * 0.25 * 0.3 * 0.01)
        assert 10**gap == pytest.approx(50 * 0.25 * 0.3 * 0.01 + 0.1)

    def test_hkk_spelled_out_with_numpy(self):
        counts, spread, steep = np.array([3.0, 0.0, 7.0]), np.array([0.5, 1.0, 0.2]), np.array([0.5, 9.0, 4.0])
        held = counts > 0
        mean = (counts[held] / 10 * spread[held] * np.maximum(1, steep[held])).sum()
        worst = (spread * steep)[held].max() * math.sqrt(math.log(4 / 0.05) / 10)
        found = hkk(*(torch.from_numpy(v) for v in (counts, spread)), torch.from_numpy(np.log10(steep)), delta=0.05)
        assert [10**x for x in found] == pytest.approx([mean, worst, math.sqrt(3 / 10)])

    @pytest.mark.parametrize("sharpness", [0.01, 1.0, 40.0])
    def test_lla_takes_the_best_mu(self, sharpness):
        first, second, mu = lla(sharpness, 1000)

        def at(other):
            return sharpness * other**2 / 2 + math.log(1000) / (other * math.sqrt(1000))

        assert first + second == pytest.approx(at(mu))
        assert first + second <= min(at(mu * f) for f in (0.5, 0.9, 1.1, 2.0))
