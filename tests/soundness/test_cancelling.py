"""Linear layers that cancel each other almost wholly: what is left is rounding, and what follows makes it large."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.linalg import folding, writing

LARGE = 1e18


def drawn(count: int) -> list[tuple[float, float, float]]:
    """Weights whose sum 3a + 7b + 5c, in exact arithmetic, is several times what float64 computes."""
    rng, found = random.Random(0), []
    while len(found) < count:
        a, b = rng.random(), rng.random()
        c = -(a * 3 + b * 7) / 5
        computed = float(torch.tensor([[3.0, 7.0, 5.0]]).double() @ torch.tensor([[a], [b], [c]]).double())
        if abs(computed) < 0.3 * abs(left(a, b, c)):
            found.append((a, b, c))
    return found


def left(a: float, b: float, c: float) -> float:
    return float(Fraction(a) * 3 + Fraction(b) * 7 + Fraction(c) * 5)


def linear(weight: list[list[float]]) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight), bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight, dtype=torch.float64))
    return layer


class Branches(nn.Module):
    """Three branches that cancel where they are added."""

    def __init__(self, *weights: float) -> None:
        super().__init__()
        self.branches = nn.ModuleList(linear([[weight]]) for weight in weights)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(sum(branch(x) for branch in self.branches)) * LARGE


def networks(a: float, b: float, c: float) -> dict[str, tuple[nn.Module, float]]:
    """By name: a network and its exact constant."""
    first, second, last = linear([[a], [b], [c]]), linear([[3.0, 7.0, 5.0]]), linear([[LARGE]])
    pair, signs = linear([[a, -a], [b, -b], [c, -c]]), linear([[1.0], [-1.0]])
    convolutions = nn.Conv1d(1, 3, 1, bias=False).double(), nn.Conv1d(3, 1, 1, bias=False).double()
    for layer, weight in zip(convolutions, (first.weight, second.weight), strict=True):
        layer.weight.data = weight.detach()[:, :, None]
    truth = LARGE * abs(left(a, b, c))
    summed = LARGE * abs(float(Fraction(3 * a) + Fraction(7 * b) + Fraction(5 * c)))
    return {
        "before a relu": (nn.Sequential(first, second, nn.ReLU(), last), truth),
        "behind a relu": (nn.Sequential(signs, nn.ReLU(), pair, second, last), truth),
        "between two": (nn.Sequential(signs, nn.ReLU(), pair, second, nn.LeakyReLU(0.5), last), truth),
        "convolutions": (
            nn.Sequential(nn.Unflatten(1, (1, 1)), *convolutions, nn.ReLU(), nn.Flatten(), last), truth
        ),
        "branches": (Branches(3 * a, 7 * b, 5 * c), summed),
    }  # fmt: skip


QUESTIONS = ({}, {"per": "output"}, {"scope": "ball", "radius": 0.1})
BATCH = torch.tensor([[0.5], [-0.25]], dtype=torch.float64)


def false_figures(model: nn.Module, truth: float, questions: Sequence[dict[str, Any]] = QUESTIONS) -> list[str]:
    """What is asked, where an answer is wrong."""
    wrong = []
    for question in questions:
        found = ns.lipschitz(model.eval(), BATCH, **question)
        if found.upper < truth * (1 - 1e-9) or found.lower > truth * (1 + 1e-9):
            wrong.append(f"{question}: [{found.lower}, {found.upper}], truth {truth}")
    return wrong


@pytest.mark.one_in(6)
@pytest.mark.parametrize("weights", drawn(6), ids=[str(index) for index in range(6)])
def test_no_figure_is_false(weights):
    assert {name: wrong for name, case in networks(*weights).items() if (wrong := false_figures(*case))} == {}


@pytest.mark.slow
@pytest.mark.parametrize("weights", drawn(6), ids=[str(index) for index in range(6)])
@pytest.mark.parametrize("effort", ["tight", "exact"])
def test_no_certificate_is_false(weights, effort):
    for name, (model, truth) in networks(*weights).items():
        assert not false_figures(model, truth, [{"effort": effort}]), name


def test_folding_what_cancels_would_be_seen(monkeypatch):
    monkeypatch.setattr(folding, "cancels", lambda linear: False)
    monkeypatch.setattr(writing, "cancels", lambda linear: False)
    assert false_figures(*networks(*drawn(1)[0])["before a relu"], [{}])
