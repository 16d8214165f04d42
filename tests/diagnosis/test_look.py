"""What `diagnose_model` does with many findings: order, joins, caps, and consequences that are dropped."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.core.finding import Finding
from normscope.doctor.symptoms import population, precedence
from normscope.doctor.symptoms.registry import FINDING_WORDS, diagnose_model

from .seen import INFO, WARNING, Untraced, codes, examined, normalizer, randn, weight


def test_most_serious_first_then_causes_then_depth():
    found = codes(
        normalizer("a", share_eps=0.05, log10=-3.0),
        normalizer("b", weight=torch.eye(8)[0]),
        normalizer("c", eps=0.0),
        normalizer("d", weight=torch.eye(8)[0]),
        normalizer("e", entries=1),
    )
    assert [(code, where) for code, where, _ in found] == [
        ("tiny-sets", "e"),
        ("eps-scale", "c"),
        ("dead-channels", "b"),
        ("dead-channels", "d"),
        ("eps-dominated", "a"),
    ]


def test_one_fault_is_one_finding_however_many_layers_show_it():
    (found,) = diagnose_model(examined(*(normalizer(f"n{k}", share_eps=0.5, log10=-4.2) for k in range(53))))
    assert (found.where, *found.others) == tuple(f"n{k}" for k in range(53))
    assert found.numbers["count"] == 53
    few = diagnose_model(examined(*(normalizer(f"n{k}", share_eps=0.5, log10=-4.2) for k in range(3))))
    assert [finding.where for finding in few] == ["n0", "n1", "n2"]


def test_a_module_that_runs_twice_is_one_finding_and_the_worse_one(monkeypatch):
    monkeypatch.setattr(population, "demote_usual", lambda found, examined: found)
    found = codes(normalizer("n", share_eps=0.05, log10=-3.0), normalizer("n", share_eps=0.5, log10=-4.2))
    assert found == [("eps-dominated", "n", WARNING)]


def test_consequences_at_the_same_place_are_dropped():
    everything = {"entries": 1, "eps": 0.1, "log10": -9.0, "share_eps": 1.0, "share_below_one": 1.0}
    assert [code for code, _, _ in codes(normalizer(row={"log10_folded": 4.0}, **everything))] == [
        "tiny-sets",
        "eps-scale",
    ]
    del everything["entries"]
    assert [code for code, _, _ in codes(normalizer(row={"log10_folded": 4.0}, **everything))] == ["eps-scale"]


@pytest.mark.slow
def test_what_lies_behind_a_dead_layer_is_its_consequence_but_not_what_lies_beside_it():
    layers = []
    for _ in range(3):
        layers += [nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(16, 2)).eval()
    with torch.no_grad():
        model[3].weight *= 1e-9
        model[3].bias *= 0.0
        model[1].weight[:8] = 0.0
        model[7].weight[:8] = 0.0
    audit = ns.audit(model, randn(4, 16), loader=[randn(64, 16)])
    serious = [(finding.code, finding.where) for finding in audit.findings if finding.severity is not INFO]
    assert serious == [("dead-layer", "3"), ("dead-channels", "1")]


def test_a_healthy_place_says_nothing():
    assert diagnose_model(examined(normalizer(), normalizer("b", "batch"), weight("c", 0.3))) == ()


def test_a_model_that_cannot_be_traced_still_gets_findings():
    audit = ns.audit(Untraced(nn.LayerNorm(8, eps=0.0), nn.Linear(8, 2)).eval(), randn(64, 8))
    assert (audit.findings[0].code, audit.findings[0].where) == ("eps-scale", "0")


def test_findings_survive_json_and_hold_no_nan():
    for finding in diagnose_model(examined(normalizer(log10=-math.inf, share_eps=1.0), weight("b", -math.inf))):
        assert Finding.from_json(finding.to_json()) == finding
        assert not any(isinstance(number, float) and math.isnan(number) for number in finding.numbers.values())


def test_the_tables_of_causes_name_findings_that_exist():
    for table in (
        precedence.EXPLAINED_AT_SAME_LAYER,
        precedence.EXPLAINED_AT_NEXT_LAYER,
        precedence.EXPLAINED_BEYOND_LAYER,
        precedence.EXPLAINED_ANYWHERE,
    ):
        assert set(table) <= set(FINDING_WORDS)
        assert {cause for causes in table.values() for cause in causes} <= set(FINDING_WORDS)
