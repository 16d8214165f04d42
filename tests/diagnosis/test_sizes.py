"""The sizes that rules of a check compare with thresholds are those that their findings name."""

import math

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.doctor.checking import checking
from normscope.doctor.symptoms.registry import FINDING_WORDS
from normscope.doctor.symptoms.sizes import SIZES, measure_sizes


def chain(depth, activation, gain=1.0, width=16):
    torch.manual_seed(0)
    layers = [nn.Linear(width, width) for _ in range(depth)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, gain)
    return nn.Sequential(*(module for layer in layers for module in (layer, activation())))


def scaled(factor):
    model = chain(6, nn.ReLU)
    with torch.no_grad():
        model[4].weight.mul_(factor)
    return model


def deep_batch_norms():
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(40) for m in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())))


WARNED = [
    (chain(12, nn.Sigmoid), "gradient-vanishing", "gradient decades lost", lambda n: -n["log10_typical"]),
    (chain(12, nn.ReLU, gain=20.0), "exploding-run", "run growth log10", lambda n: n["log10_growth"]),
    (scaled(100.0), "layer-scale", "large scale of a layer", lambda n: n["factor"]),
    (scaled(0.01), "layer-scale", "small scale of a layer", lambda n: n["factor"]),
    (deep_batch_norms(), "batch-norm-depth", "batch norm decades", lambda n: n["log10_gradient"]),
]


@pytest.mark.parametrize(("model", "code", "size", "number"), WARNED, ids=[size for _, _, size, _ in WARNED])
def test_a_size_is_the_number_of_the_finding_that_rests_on_it(model, code, size, number, monkeypatch):
    examined = []
    diagnose = checking.diagnose_model
    monkeypatch.setattr(checking, "diagnose_model", lambda facts: examined.append(facts) or diagnose(facts))
    width = model[0].in_features
    findings = ns.check(model, torch.randn(64, width, generator=torch.Generator().manual_seed(1))).findings
    numbers = [number(finding.numbers) for finding in findings if finding.code == code]
    assert code in SIZES[size].codes
    assert numbers, [finding.code for finding in findings]
    worst = max(numbers) if SIZES[size].worst == "largest" else min(numbers)
    assert math.isclose(measure_sizes(examined[0])[size], worst, rel_tol=1e-9)


def test_sizes_name_codes_that_rules_raise():
    assert {code for size in SIZES.values() for code in size.codes} <= FINDING_WORDS.keys()
