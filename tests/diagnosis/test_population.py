"""Warnings that rest on sizes lie beyond what healthy networks of others show."""

from __future__ import annotations

import json
from importlib import resources

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.core.finding import Finding, Severity
from normscope.doctor.symptoms import population
from normscope.doctor.symptoms.registry import FINDING_WORDS
from normscope.doctor.symptoms.sizes import SIZES, measure_size

POPULATION = json.loads(resources.files(population.__package__).joinpath("population.json").read_text())


def test_the_population_is_large_and_of_several_packages():
    assert sum(POPULATION["packages"].values()) >= 300
    assert len(POPULATION["packages"]) >= 4
    assert POPULATION["families"] >= 100


@pytest.mark.parametrize("name", POPULATION["sizes"])
def test_the_extremes_of_a_size_come_in_order_and_reach_beyond_the_rare_share(name):
    size = SIZES[name]
    for state in POPULATION["sizes"][name].values():
        extremes = [float(figure) for figure in state["extremes"]]
        assert extremes == sorted(extremes, reverse=size.worst == "largest")
        assert len(extremes) == min(state["having"], 25)
    assert population.RARE_SHARE * max(POPULATION["networks"].values()) < 25


def test_every_code_that_rests_on_a_size_is_one_of_the_doctor():
    assert {code for size in SIZES.values() for code in size.codes} <= set(FINDING_WORDS)


class Beside(nn.Module):
    """A branch of a given size beside a stream."""

    def __init__(self, size: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.branch, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        with torch.no_grad():
            self.branch.weight.mul_(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stream = self.first(x)
        return self.last(stream + self.branch(stream))


def stand(value: float, **numbers: float) -> Finding:
    """Return what becomes of a warning of a factor of a layer's weights."""
    found = Finding(
        code="layer-scale", severity=Severity.WARNING, where="fc", seen="Seen.", why="", advice="",
        numbers={"factor": value, **numbers},
    )  # fmt: skip
    return population.demote_usual([found], EXAMINED[0])[0]


EXAMINED = []


@pytest.fixture(autouse=True)
def examined(monkeypatch):
    """What a check knows of a small fresh model."""
    from normscope.doctor.checking import checking

    diagnose = checking.diagnose_model

    def keep(facts, *more):
        EXAMINED[:] = [facts]
        return diagnose(facts, *more)

    monkeypatch.setattr(checking, "diagnose_model", keep)
    torch.manual_seed(0)
    x = torch.randn(32, 16)
    ns.check(Beside(1.0), (x, torch.arange(32) % 3), loss="cross_entropy")


def test_a_size_that_healthy_networks_show_is_a_note():
    usual = sorted(float(figure) for figure in POPULATION["sizes"]["large scale of a layer"]["fresh"]["extremes"])
    assert stand(usual[0]).severity is Severity.INFO
    assert stand(usual[0]).seen == "Seen."


def test_a_size_beyond_healthy_networks_is_a_warning_that_says_so():
    networks = POPULATION["networks"]["fresh"]
    told = stand(1e6)
    assert told.severity is Severity.WARNING
    assert told.seen.endswith(f"Of {networks:,} healthy networks of others none show as much.")


def test_a_size_is_looked_for_at_the_end_that_is_bad():
    assert stand(1e-9).severity is Severity.WARNING
    assert stand(0.9).severity is Severity.INFO


def test_a_finding_that_rests_on_no_size_stays_as_it_is():
    found = Finding(code="layer-scale", severity=Severity.WARNING, where="fc", seen="Seen.", why="", advice="")
    assert population.demote_usual([found], EXAMINED[0]) == [found]


X, Y = torch.randn(64, 16, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 4


def warned(code: str, result: ns.Check) -> bool:
    """Return whether a check has a warning of a code."""
    return any(finding.code == code and finding.severity > Severity.INFO for finding in result.findings)


class Certain(nn.Sequential):
    """A sigmoid at the end of which nearly all values lie at its limits, whatever the layers before do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (1000.0 * super().forward(x)).sigmoid()


def test_a_layer_is_judged_by_its_own_share_and_not_by_that_of_another():
    model = Certain(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    assert warned("saturated-units", ns.check(model, (X, (Y[:, None] > 1).float()), loss="mse"))


@pytest.mark.parametrize("norm", [nn.Identity, nn.LayerNorm])
def test_filters_without_effect_are_not_judged_by_the_scales_of_a_normalizer(norm):
    model = nn.Sequential(norm(16), nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    with torch.no_grad():
        for layer in model[1::2]:
            layer.weight.mul_(1.5)
            layer.bias.normal_(0.0, 0.3)
        model[3].weight[:40] = 0.0
    assert warned("dead-channels", ns.audit(model, (X, Y), loss="cross_entropy"))


class Rooted(nn.Module):
    """A network beside a parameter that the next step takes below zero, where it has no root."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.root = nn.Parameter(torch.tensor(1e-30))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * (1.0 + self.root.sqrt())


def test_a_step_that_makes_the_loss_no_number_is_no_usual_one():
    model = Rooted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.body[2].weight.data.copy_(X[:4].repeat(1, 2) / 10)
    assert warned("step-too-long", ns.check(model, (X, Y), loss="cross_entropy", optimizer=optimizer))


def test_a_network_whose_end_is_constant_is_none_that_fades():
    layers = [layer for _ in range(10) for layer in (nn.Linear(16, 16), nn.ReLU())]
    nn.init.constant_(layers[10].bias, -100.0)
    ns.check(nn.Sequential(*layers, nn.Linear(16, 4)), (X, Y), loss="cross_entropy")
    assert measure_size("share that differs at the end", EXAMINED[0]) is None
    assert min(POPULATION["sizes"]["share that differs at the end"]["fresh"]["extremes"]) > 0.0
