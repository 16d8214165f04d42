"""A domain that is followed: where the batches stand in it, and the alarm when they leave."""

from __future__ import annotations

import math
import warnings
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.core.errors import InputError
from normscope.core.finding import Severity
from normscope.doctor.monitor.watching import watch

from .training import batches, losses, network


@cache
def followed(kind: str = "layers") -> tuple[nn.Module, ns.Domain]:
    """The network that the loop trains, untrained, and the domain of its batches."""
    model = network(kind).eval()
    return model, ns.domain(model, [x for x, _ in batches(kind, 60)], margin=0.05)


def train(domain: ns.Domain, *, steps: int = 60, shift: int | None = None, by: float = 0.2, **options) -> ns.Run:
    """Train on batches that are scaled from a step on."""
    model = network("layers")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with watch(model, optimizer, every=5, domain=domain, panel=False, **options) as run:
        for step, (x, y) in enumerate(batches("layers", steps)):
            optimizer.zero_grad()
            scaled = x if shift is None or step < shift else by * x
            nn.functional.cross_entropy(model(scaled), y).backward()
            optimizer.step()
    return run


@pytest.mark.slow
def test_data_that_leave_the_domain_raise_an_alarm() -> None:
    run = train(followed()[1], steps=100, shift=50)
    found = next(finding for finding in run.findings if finding.code == "left-domain")
    assert found.severity is Severity.WARNING
    assert found.numbers["share"] == 1.0
    assert found.numbers["share_first"] == 0.0
    assert found.numbers["excess"] > 0.5
    assert found.where in {layer.name for layer in run.history.of("operator")}
    assert f"`{found.where}`" in found.seen
    assert found.step >= 70  # not for one odd batch


@pytest.mark.slow
def test_the_healthy_twin_is_silent() -> None:
    run = train(followed()[1], steps=100)
    assert not [finding for finding in run.findings if finding.code == "left-domain"]
    recorded = [record for record in run.records if record.step < 60]
    assert all(record.total["share_outside"] == 0.0 for record in recorded)
    assert all(max(record.of("operator", "excess")) <= 0 for record in recorded)
    assert max(record.total["share_outside"] for record in run.records) <= 0.3


def test_data_that_never_were_inside_raise_it_too() -> None:
    run = train(followed()[1], steps=60, shift=0, by=0.05)
    assert [f.code for f in run.findings if f.code == "left-domain"] == ["left-domain"]


@pytest.mark.slow
def test_a_domain_that_covers_little_of_the_data_is_no_alarm() -> None:
    """What is outside from the start and stays so is the domain's coverage, not the data."""
    model = followed()[0]
    narrow = ns.domain(model, [x for x, _ in batches("layers", 60)], quantile=0.02)
    run = train(narrow, steps=60)
    outside = [record.total["share_outside"] for record in run.records]
    assert 0.5 < sum(outside) / len(outside) < 0.9
    assert not [finding for finding in run.findings if finding.code == "left-domain"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", pytest.param("conv", marks=pytest.mark.slow)])
def test_training_is_the_same_to_the_last_bit(kind: str) -> None:
    domain = followed(kind)[1]
    alone, model, _ = losses(kind, 4)
    watched, other, run = losses(kind, 4, watched=lambda m, o: watch(m, o, every=1, domain=domain))
    assert watched == alone
    for (name, one), two in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two), name
    assert len(run.records) == 4
    assert all("share_outside" in record.total for record in run.records)


def test_the_figures_are_those_of_the_domain() -> None:
    domain = followed()[1]
    x = 0.7 * next(batches("layers", 1, size=40))[0]
    trained = network("layers")
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    with watch(trained, optimizer, every=1, domain=domain, panel=False) as run:
        for _ in range(3):
            optimizer.zero_grad()
            trained(x).square().sum().backward()
            optimizer.step()
    first = run.records[0]
    inside = domain.contains(x[:32])
    assert 0 < first.total["share_outside"] < 1
    assert first.total["share_outside"] == pytest.approx(1 - float(inside.double().mean()))
    worst = max(domain.violations(x[:32]), key=lambda violation: violation.excess)
    excess = first.of("operator", "excess")
    layers = run.history.of("operator")
    place = layers[excess.index(max(excess))]
    assert (place.name.split("#")[0], place.family) == (worst.path, worst.operator)
    assert max(excess) == pytest.approx(worst.excess)
    # the recorded network is run, not the trained one: the same batch stands where it stood
    assert run.records[-1].of("operator", "excess") == first.of("operator", "excess")


def test_a_batch_with_nan_is_outside() -> None:
    x = next(batches("layers", 1))[0]
    model = network("layers")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, every=1, domain=followed()[1], panel=False) as run:
        model(torch.where(torch.arange(12)[:, None] < 3, math.nan, x)).sum().backward()
        optimizer.step()
    assert run.records[0].total["share_outside"] == pytest.approx(3 / 12)


def test_the_log_has_it(tmp_path) -> None:
    train(followed()[1], steps=11, log=tmp_path / "run")
    run = ns.Run(tmp_path / "run")
    assert [record.total["share_outside"] for record in run.records] == [0.0, 0.0, 0.0]
    frame = run.to_pandas()
    assert frame[frame["kind"] == "operator"]["excess"].max() <= 0
    assert list(run.totals()["share_outside"]) == [0.0, 0.0, 0.0]
    assert "<svg" in run.to_html()


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(72, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.inner(torch.where(mask, x, 0.0)).relu()


@pytest.mark.slow
def test_calls_with_other_tensors_are_told_once_and_not_followed() -> None:
    model, x = Masked(), torch.randn(6, 72)
    domain = ns.domain(model.eval(), [(x, torch.ones(6, 72).bool())])
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    with (
        warnings.catch_warnings(record=True) as told,
        watch(model, optimizer, every=1, domain=domain, panel=False) as run,
    ):
        warnings.simplefilter("always")
        for _ in range(3):
            model(x, torch.ones(6, 72).bool()).sum().backward()
            optimizer.step()
    assert ["stand in the domain is not measured" in str(one.message) for one in told] == [True]
    assert len(run.records) == 3
    assert all("share_outside" not in record.total for record in run.records)


def test_domains_of_whole_batches_follow_batches_of_their_size() -> None:
    model = network("layers").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    domain = ns.domain(model, [torch.randn(4, 72, generator=torch.Generator().manual_seed(3))])
    with watch(model, optimizer, every=1, domain=domain, panel=False) as run:
        for size in (4, 5):
            model(torch.randn(size, 72)).sum().backward()
            optimizer.step()
    assert ["share_outside" in record.total for record in run.records] == [True, False]


def test_what_cannot_be_followed_is_refused() -> None:
    tokens = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Flatten(), nn.Linear(12, 2)).eval()
    linear = nn.Sequential(nn.Linear(72, 4)).eval()
    cases = [
        (tokens, ns.domain(tokens, [torch.tensor([[0, 1, 2], [3, 4, 0]])]), "model of tokens"),
        (linear, ns.domain(linear, [torch.randn(3, 72)]), "no ranges"),
        (linear, "domain.npz", "domain is a str"),
    ]
    for model, domain, words in cases:
        with pytest.raises(InputError, match=words):
            watch(model, torch.optim.SGD(model.parameters(), lr=0.1), domain=domain)


def test_a_domain_keeps_the_weights_that_it_was_recorded_with() -> None:
    """Also of a model in float64, whose own weights need no conversion."""
    model = network("layers").double().eval()
    x = next(batches("layers", 1))[0].double()
    domain = ns.domain(model, [x])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    with pytest.raises(InputError, match="weights have changed"):
        domain.contains(x)
    assert bool(domain.inside(x).all())
