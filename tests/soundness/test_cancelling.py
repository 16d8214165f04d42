"""Linear layers that cancel each other almost wholly: what is left is rounding, and what follows makes it large."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.bounds.bounds_by_method import upper_sides
from normscope.bounds.traced_network import TracedNetwork
from normscope.core.bracket import Evidence
from normscope.core.rounding import Upper, root_sum_squares, total

LARGE = 1e18
SLOW = pytest.mark.slow


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
        # One sample where outputs are told apart: rounding is as large as the outputs and may differ between rows.
        found = ns.lipschitz(model.eval(), BATCH[:1] if "per" in question else BATCH, **question)
        if found.upper < truth * (1 - 1e-9) or found.lower > truth * (1 + 1e-9):
            wrong.append(f"{question}: [{found.lower}, {found.upper}], truth {truth}")
    return wrong


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["before a relu", "behind a relu", "between two", "convolutions", "branches"])
def test_no_rung_is_false(name):
    model, truth = networks(*drawn(1)[0])[name]
    rungs = upper_sides(TracedNetwork.of(model.eval(), BATCH))
    assert [name for name, rung in rungs.items() if "printed" not in name and rung.upper < truth * (1 - 1e-9)] == []


@SLOW
@pytest.mark.parametrize("weights", drawn(6), ids=[str(index) for index in range(6)])
@pytest.mark.parametrize("questions", [QUESTIONS, [{"effort": "tight"}]], ids=str)
def test_no_figure_is_false(weights, questions):
    for name, (model, truth) in networks(*weights).items():
        assert not false_figures(model, truth, questions), name


def biased(weight: list[list[float]]) -> nn.Linear:
    """A layer whose ReLUs stay on."""
    layer = nn.Linear(len(weight[0]), len(weight), dtype=torch.float64)
    layer.weight.data, layer.bias.data = torch.tensor(weight, dtype=torch.float64), torch.full((len(weight),), 10.0)
    return layer.double()


def nearly(share: float, count: int, seed: int = 0) -> list[tuple[float, float, float]]:
    """Weights whose sum 3a + 7b + 5c is a small number: its square is below the rounding of squares."""
    rng = random.Random(seed)
    pairs = [(rng.random(), rng.random()) for _ in range(count)]
    return [(a, b, (share - (a * 3 + b * 7)) / 5) for a, b in pairs]


def ball_uppers(weights: Sequence[tuple[float, float, float]], **options: Any) -> list[tuple[float, float]]:
    """Bounds over balls in which all units stay on, and the constants there."""
    found = []
    for a, b, c in weights:
        model = nn.Sequential(biased([[a], [b], [c]]), nn.ReLU(), linear([[3.0, 7.0, 5.0]])).eval()
        found.append((ns.lipschitz(model, BATCH, scope="ball", radius=0.1, **options).upper, abs(left(a, b, c))))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("effort", ["fast", "tight"])
@pytest.mark.parametrize("share", [1e-9, 1e-7, 0.0])
def test_units_that_stay_on_cancel_over_a_ball(share, effort):
    assert all(upper >= truth * (1 - 1e-9) for upper, truth in ball_uppers(nearly(share, 1), effort=effort))


def chained(slope: float, a: float, b: float, c: float) -> tuple[nn.Module, float]:
    """Layers that cancel but for a leaky ReLU that is nearly linear, and the exact constant."""
    model = nn.Sequential(linear([[a], [b], [c]]), nn.LeakyReLU(slope), linear([[3.0, 7.0, 5.0]])).eval()
    terms, leak = [Fraction(a) * 3, Fraction(b) * 7, Fraction(c) * 5], Fraction(slope)
    sides = [sum(t * (1 if (t > 0) is up else leak) for t in terms) for up in (True, False)]
    return model, float(max(map(abs, sides)))


NEARLY = [1.0 - 2.0**-53, 1.0 - 1e-14, 1.0 - 1e-9]


@SLOW
@pytest.mark.parametrize("slope", [1.0, *NEARLY], ids=str)
def test_paths_through_nearly_linear_units(slope):
    for weights in drawn(1):
        assert not false_figures(*chained(slope, *weights), [{}])


def thinned(share: float, depth: int, seed: int) -> tuple[nn.Module, float]:
    """Layers of each of which a small share is left, one after another, and the exact constant."""
    rng = random.Random(seed)
    weights = [[[rng.gauss(0, 1)] for _ in range(3)]]
    path = [Fraction(row[0]) for row in weights[0]]
    for index in range(depth):
        unit = [float(value / max(map(abs, path))) for value in path]
        rows = []
        for _ in range(1 if index == depth - 1 else 3):
            row = [rng.gauss(0, 1) for _ in unit]
            excess = sum(map(float.__mul__, row, unit)) - share * rng.choice((-1, 1)) * rng.uniform(0.5, 1.5)
            rows.append([entry - excess * along / sum(u * u for u in unit) for entry, along in zip(row, unit)])
        weights.append(rows)
        path = [sum(Fraction(entry) * value for entry, value in zip(row, path)) for row in rows]
    scale = float(1 / abs(path[0]))
    layers = [linear(rows) for rows in weights]
    return nn.Sequential(*layers, nn.ReLU(), linear([[scale]])).eval(), float(abs(path[0]) * Fraction(scale))


def low_rungs(share: float, depth: int, seeds: range) -> list[str]:
    """The bounds that lie below the constant."""
    wrong = []
    for model, truth in (thinned(share, depth, seed) for seed in seeds):
        rungs = upper_sides(TracedNetwork.of(model, BATCH))
        wrong += [name for name, rung in rungs.items() if "printed" not in name and rung.upper < truth * (1 - 1e-9)]
    return wrong


SHARES = [(1e-4, 4), (1e-3, 3), (1e-2, 5), (1e-4, 8)]


@pytest.mark.parametrize(("share", "depth"), [(1e-4, 3), *(pytest.param(*case, marks=SLOW) for case in SHARES)])
def test_little_by_little_is_counted_as_all_at_once(share, depth):
    assert low_rungs(share, depth, range(1)) == []


def test_a_zero_that_may_be_rounded_is_not_proven():
    rounded, proven = Upper(-math.inf, Evidence.NUMERICAL, ""), Upper(0.0, Evidence.PROVEN, "")
    for rule in (total, root_sum_squares):
        for bounds in ([rounded], [rounded, rounded], [rounded, proven], [rounded, proven, proven]):
            assert rule(bounds).evidence == Evidence.NUMERICAL
