"""Normalizers that expand, where it costs something; and bounds of no use, with what makes them so."""

import dataclasses
import math

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.auditing.findings import look_at_audit, loose
from normscope.core.bracket import Bracket, Evidence

from ..net import Net
from .seen import INFO, WARNING, examined, normalizer, randn


def told(places):
    return [finding for finding in look_at_audit(examined(*places)) if finding.code == "expanding-normalizer"]


def test_a_thousandfold_gain_is_a_warning_whatever_was_observed():
    places = [normalizer(f"n{n}", "batch", share_below_one=1.0, row={"log10_folded": 3.2}) for n in range(2)]
    assert [(f.where, f.severity) for f in told(places)] == [("n0", WARNING), ("n1", WARNING)]


@pytest.mark.slow
def test_trained_and_fresh_networks_are_left_alone():
    for norm in (nn.BatchNorm1d, nn.LayerNorm):
        generator = torch.Generator().manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), norm(8), nn.ReLU(), nn.Linear(8, 8), norm(8), nn.ReLU(), nn.Linear(8, 2))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) / 8**0.5)
            for _ in range(40):
                model(randn(64, 8))
        audit = ns.audit(model.eval(), randn(4, 8), loader=[randn(64, 8)])
        assert "expanding-normalizer" not in {finding.code for finding in audit.findings}


def bound(upper):
    return Bracket(log10_lower=-math.inf, log10_upper=upper, evidence=Evidence.NUMERICAL, method="m", reason="r")


@pytest.mark.parametrize(
    ("upper", "observed", "expected"),
    [(7.9, 2.0, False), (8.1, 2.0, True), (194.0, 2.0, True), (math.inf, 2.0, False), (3.0, -math.inf, False)],
)
def test_a_millionfold_is_the_line(upper, observed, expected):
    assert loose(upper, observed) is expected
    seen = dataclasses.replace(examined(), bounds={"best": bound(upper), "observed": bound(observed)})
    assert [finding.code for finding in look_at_audit(seen)] == (["loose-bound"] if expected else [])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.q, self.k, self.v = nn.LayerNorm(8), *(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        y = self.norm(x)
        return x + nn.functional.scaled_dot_product_attention(self.q(y), self.k(y), self.v(y))


@pytest.mark.slow
@pytest.mark.one_in(1000)
@pytest.mark.parametrize(
    ("model", "batch", "words"),
    [
        (nn.Sequential(*(Block() for _ in range(4))), randn(2, 3, 8), "attention and LayerNorm at zero variance"),
        (
            nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh()))),
            randn(4, 8),
            "LayerNorm at zero variance",
        ),
        (
            nn.Sequential(nn.Conv2d(2, 4, 3), *(m for _ in range(4) for m in (nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 1)))),
            randn(2, 2, 6, 6),
            "GroupNorm at zero variance",
        ),
    ],
)
def test_what_makes_a_bound_useless_is_named(model, batch, words):
    audit = ns.audit(model.eval(), batch)
    (found,) = [finding for finding in audit.findings if finding.code == "loose-bound"]
    assert found.severity is INFO
    assert found.why == f"What makes it so: {words}."
    shown = audit.document().blocks
    figure = next(
        item for block in shown if hasattr(block, "items") for item in block.items if item.term == "Lipschitz constant"
    )
    assert (figure.value, figure.note) == ("no useful bound", words)
    assert 'scope="ball"' in found.advice


@pytest.mark.slow
def test_depth_alone_makes_a_bound_useless_too():
    layers = [m for _ in range(30) for m in (nn.Linear(8, 8), nn.ReLU())]
    with torch.no_grad():
        for layer in layers[::2]:
            layer.weight.copy_(1.6 * torch.eye(8).roll(1, 0) * torch.linspace(0.2, 1.0, 8))
            layer.bias.zero_()
    audit = ns.audit(nn.Sequential(*layers).eval(), randn(2, 8))
    for finding in (finding for finding in audit.findings if finding.code == "loose-bound"):
        assert "the worst cases of 30 weight layers multiplied" in finding.why


def test_the_steps_of_a_recurrent_layer_make_a_bound_useless():
    model = Net(lambda net, x: net.out(net.gru(x)[0][:, -1]), gru=nn.GRU(4, 16, batch_first=True), out=nn.Linear(16, 2))
    (finding,) = (f for f in ns.audit(model, randn(2, 30, 4)).findings if f.code == "loose-bound")
    assert "the steps of a recurrent layer" in finding.why
    assert "1 weight layer" not in finding.why
