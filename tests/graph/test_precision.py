"""Rounding to a narrower float inside a network is a jump: no figure is PROVEN, and every figure says so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.bounds.graph.translate import holds
from normscope.core.bracket import Evidence

from ..soundness.networks import Function


def autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ torch.eye(3)).float()


NARROW = {
    "through bfloat16": lambda x: x.bfloat16().float() * 2,
    "half": lambda x: x.half().float() * 2,
    "type_as": lambda x: x.type_as(torch.ones(1, dtype=torch.bfloat16)).float(),
    "autocast": autocast,
    "the output": lambda x: (2 * x).bfloat16(),
    "a branch": lambda x: x + (x * 1e-3).bfloat16().float(),
}


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("name", NARROW)
def test_rounding_on_the_path_is_named_and_not_proven(name):
    model, batch = Function(NARROW[name]).eval(), torch.randn(2, 3)
    assert ns.capture(model, batch).rounded
    bracket = ns.lipschitz(model, batch, max_seconds=0.2)
    assert bracket.evidence <= Evidence.NUMERICAL
    assert any("rounded to" in note and "PROVEN" in note for note in bracket.notes)


EXACT = {
    "wider": (lambda x: x.double().relu().float(), torch.float32),
    "half throughout": (lambda x: torch.relu(2 * x), torch.bfloat16),
    "a constant is narrow": (lambda x: x + torch.ones(3, dtype=torch.bfloat16).float(), torch.float32),
    "beside the path": (lambda x: x + torch.zeros_like(x, dtype=torch.bfloat16).float(), torch.float32),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", EXACT)
def test_what_rounds_nothing_stays_as_it_was(name):
    function, dtype = EXACT[name]
    model, batch = Function(function).eval(), torch.randn(2, 3).to(dtype)
    assert ns.capture(model, batch).rounded == ()
    bracket = ns.lipschitz(model, batch, max_seconds=0.2)
    assert not any("rounded to" in note for note in bracket.notes)
    assert bracket.evidence is Evidence.PROVEN


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float32, torch.float64),
        (torch.bfloat16, torch.float16), (torch.float16, torch.bfloat16), (torch.float8_e5m2, torch.float16),
    ],
)  # fmt: skip
def test_which_floats_hold_which(narrow, wide):
    assert not holds(narrow, wide)
    assert holds(wide, wide)
    assert holds(torch.float64, narrow)


def test_a_cast_by_example_is_a_cast():
    """`type_as` of an integer tensor is a jump, and the graph makes it."""
    model = Function(lambda x: x + x.type_as(torch.ones(1, dtype=torch.int64))).eval()
    batch = torch.tensor([[1.7, -0.3]])
    assert torch.equal(ns.capture(model, batch).run(batch), model(batch))
    assert ns.lipschitz(model, batch, max_seconds=0.2).upper == float("inf")


class Narrow(nn.Module):
    """A classifier that rounds between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).bfloat16().float().relu())


@pytest.mark.slow
def test_every_figure_says_so():
    model, batch = Narrow().eval(), torch.randn(2, 3)
    rungs = ns.ladder(model, batch, effort="tight", max_seconds=1)
    brackets = [*rungs.values()]
    options = {"max_seconds": 0.5}
    brackets += [
        ns.lipschitz(model, batch, effort="tight", **options),
        ns.lipschitz(model, batch, scope="ball", radius=0.1, **options),
        ns.lipschitz(model, batch, scope="point"),
        ns.lipschitz(model, batch, per="difference", **options),
    ]
    sensitivity = ns.weight_sensitivity(model, batch, max_seconds=1)
    brackets += [row.bracket_h for row in sensitivity.rows]
    for bracket in brackets:
        assert bracket.evidence <= Evidence.NUMERICAL, bracket
        assert any("rounded to bfloat16" in note for note in bracket.notes), bracket
    radii = ns.certified_radius(model, batch, max_seconds=1)
    audit = ns.audit(model, batch, effort="thorough")
    for notes in (radii.notes, sensitivity.notes, audit.notes):
        assert any("rounded to bfloat16" in note for note in notes)
    assert max(radii.evidence) <= Evidence.NUMERICAL
