"""The curve over shares of the data: one pass, nested domains, and limits that hold as often as they say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import Tensor, nn

import normscope as ns
from normscope.auditing.share_curve import statements
from normscope.bounds.captured import Captured
from normscope.bounds.curve import curve as measuring
from normscope.bounds.curve.curve import DomainPoint, checked_widths
from normscope.bounds.domain.domain import covered
from normscope.bounds.domain.domain_bounds import domain_sides
from normscope.core.bracket import Scope
from normscope.core.errors import InputError, SoundnessError

from .test_domain import data, drawn, normed

DRAWS = 1000


class Once:
    """Batches that can be read once, and are counted."""

    def __init__(self, batches: list[Tensor]) -> None:
        self.batches, self.read = batches, 0

    def __iter__(self) -> Iterator[Tensor]:
        while self.batches:
            self.read += 1
            yield self.batches.pop(0)


@pytest.fixture(scope="module")
def found() -> ns.ShareCurve:
    return ns.curve(normed(), list(data(400, 4).split(50)), share=0.9)


@pytest.mark.slow
def test_larger_domains_have_larger_bounds_and_coverages(found: ns.ShareCurve) -> None:
    assert [(p.quantile, p.margin) for p in found.domains] == list(
        checked_widths(measuring.QUANTILES, measuring.MARGINS)
    )
    bounds = [point.bracket.log10_upper for point in found.domains]
    inside = [point.coverage.inside for point in found.domains]
    assert bounds == sorted(bounds)
    assert inside == sorted(inside)
    assert bounds[-1] <= found.everywhere.log10_upper
    assert all(point.bracket.scope is Scope.DOMAIN for point in found.domains)
    assert (found.samples, found.domains[0].coverage.samples) == (320, 80)


@pytest.mark.slow
def test_the_order_of_the_scopes(found: ns.ShareCurve) -> None:
    """The Jacobians at the samples inside are below the bound of their domain, and that is below the one everywhere."""
    model, x = normed(), data(400, 4)
    assert found.data.log10_norms == pytest.approx(
        ns.lipschitz(model, x[:29], scope="data", share=0.9).log10_norms, abs=1e-9
    )
    seen = found.domains[2]
    assert max(found.data.log10_norms_lower[:4]) <= seen.bracket.log10_lower <= seen.bracket.log10_upper
    assert found.domains[0].bracket.log10_lower == -math.inf  # which samples lie inside is not asked


@pytest.mark.slow
def test_every_point_is_the_domain_that_its_samples_define(found: ns.ShareCurve) -> None:
    model, x = normed(), data(400, 4)
    held = torch.arange(400) % 5 == 4
    work = Captured.of(model, x[:2])
    for point in (found.domains[0], found.domains[-1]):
        domain = ns.domain(model, [x[~held]], quantile=point.quantile, margin=point.margin)
        assert domain.coverage([x[held]]) == point.coverage
        bound = domain_sides(work, domain)["best"]
        assert bound.log10_upper == pytest.approx(point.bracket.log10_upper, abs=1e-9)


def test_the_data_are_read_once_and_no_further_than_asked() -> None:
    model, loader = normed(), Once(list(data(90, 4).split(10)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = ns.curve(model, loader, samples=60, share=0.9, margins=(0.0,), quantiles=())
    assert loader.read == 6
    assert (found.samples, found.domains[0].coverage.samples, found.data.samples) == (48, 12, 30)
    assert not model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.slow
def test_train_mode_has_domains_of_whole_batches_and_no_data() -> None:
    model = drawn(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))).train()
    batches = [*data(48, 3).split(8), data(5, 3, seed=2)]
    found = ns.curve(model, batches, quantiles=(), margins=(0.0, 1.0))
    assert (found.mode, found.samples, found.domains[0].coverage.samples) == ("train", 5, 1)
    assert found.data is None
    assert "train mode mixes" in dict(found.skipped)["DATA"]
    assert found.limits(0.5)[0] == math.inf
    assert "whole batches" in " ".join(statements(found))


def test_a_bound_below_a_jacobian_is_refused() -> None:
    """A planted bug: the bounds over domains are a hundredth of what they are."""

    def sides(*given: Any, **options: Any) -> dict[str, ns.Bracket]:
        found = domain_sides(*given, **options)
        return {name: replace(rung, log10_upper=rung.log10_upper - 2) for name, rung in found.items()}

    with mock.patch.object(measuring, "domain_sides", sides), pytest.raises(SoundnessError):
        ns.curve(normed(), [data(60, 4)], share=0.9, margins=(0.0,), quantiles=())


def curve_of(base: ns.ShareCurve, insides: list[int], fresh: int, confidence: float) -> ns.ShareCurve:
    """A curve with other coverages."""
    points = [
        DomainPoint(
            quantile=0.0, margin=float(i), bracket=base.domains[i].bracket, coverage=covered(n, fresh, confidence)
        )
        for i, n in enumerate(insides)
    ]
    return replace(base, domains=tuple(points), confidence=confidence)


@pytest.mark.parametrize(("share", "confidence"), [(0.9, 0.95), (0.97, 0.9)])
def test_the_choice_among_nested_domains_costs_no_confidence(
    found: ns.ShareCurve, share: float, confidence: float
) -> None:
    """Domains hold 80 % to 99.9 % of a distribution; the one chosen has the share as often as promised."""
    truth, fresh = [0.8, share - 0.02, share - 0.001, share + 0.01, 0.999], 300
    generator, held = np.random.default_rng(0), 0
    for _ in range(DRAWS):
        draws = generator.random(fresh)
        curve = curve_of(found, [int((draws < t).sum()) for t in truth], fresh, confidence)
        value = curve.limits(share)[1]
        chosen = next((i for i, p in enumerate(curve.domains) if p.bracket.log10_upper == value), None)
        held += chosen is None or truth[chosen] >= share
    assert binom.cdf(held, DRAWS, confidence) > 1e-4
    assert held < DRAWS


def test_limits_and_the_domain_of_the_headline(found: ns.ShareCurve) -> None:
    curve = curve_of(found, [10, 290, 300], 300, 0.95)
    assert curve.limits(0.9)[1] == found.domains[1].bracket.log10_upper
    assert curve.limits(0.99)[1] == found.domains[2].bracket.log10_upper
    assert curve.limits(0.999)[1] == math.inf
    assert curve.domain(0.95) is curve.domains[1]
    assert curve.domain(0.99) is curve.domains[2]
    assert curve_of(found, [10, 20], 300, 0.95).domain(0.9).margin == 1.0
    assert curve.limits(0.9)[0] == found.data.limits(0.9)[1]


def test_json_and_back(found: ns.ShareCurve, tmp_path) -> None:
    found.to_json(tmp_path / "curve.json")
    again = ns.ShareCurve.from_json(tmp_path / "curve.json")
    assert again.to_json() == found.to_json()
    assert again.limits(0.9) == found.limits(0.9)
    for broken, why in (
        ({}, "holds no curve over shares: write one with"),
        ({"type": "share_curve", "schema_version": 9}, "has schema_version 9, this version reads 1: update Normscope"),
        ({**found.to_json(), "domains": [{}]}, r"is a damaged curve over shares \(domains\[0\]\.quantile is missing\)"),
    ):
        with pytest.raises(InputError, match=why):
            ns.ShareCurve.from_json(broken)
