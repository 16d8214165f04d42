"""Random balls: no attack from inside gets above a bound; and bugs planted one by one are caught."""

from __future__ import annotations

import dataclasses
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.bounds.balls import ball_ellipsoid, enclosure, expansion
from normscope.bounds.captured import Captured
from normscope.bounds.trial import shaken
from normscope.core.errors import SoundnessError
from normscope.linalg import operator_norms
from normscope.linalg.linear_map import LinearMap, Matrix
from normscope.rules.local import entry_sets as local_sets
from normscope.rules.local import products as local_products
from normscope.rules.local.local import Enclosure, OperandShare
from normscope.rules.local.scalar import Scalar, TurningPoint
from normscope.rules.registry import operators

from .balls import ROUNDING, Case, Found, Gate, Mixed, case, try_ball
from .networks import Function, Network, Residual
from .planting import around, replacing
from .provenance import Trial, attempt, count_trials, page_of, run_trials, write_result

Patch = pytest.MonkeyPatch


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 14, 28, 37])
def test_no_attack_from_inside_gets_above_a_bound(seed: int, monkeypatch) -> None:
    """Two radii for every centre of a few networks; a thousand networks in `make test-slow`."""
    monkeypatch.setattr("normscope.bounds.balls.ball.SEARCH_STEPS", 3)
    drawn = case(seed)
    work = Captured.of(drawn.network.model, drawn.network.batch, on_missing="inf")
    for radius, effort in ((drawn.radius, drawn.effort), (0.05, "fast")):
        found = try_ball(dataclasses.replace(drawn, radius=radius, effort=effort), steps=6, work=work)
        assert_met(found)


@pytest.mark.slow
def test_a_thousand_balls() -> None:
    """Writes `docs/results/balls.json` and `.md`, whatever comes, and fails on any violation."""
    count = int(os.environ.get("NORMSCOPE_BALLS", "1000"))
    base = int(os.environ.get("NORMSCOPE_SEED", random.SystemRandom().randrange(2**31)))
    began = time.monotonic()
    trials = list(run_trials(tried, range(base, base + count)))
    result = count_trials(trials, base=base, began=began) | summary(trials)
    write_result("balls", result, page(result))
    assert not result["violations"]
    assert result["networks_with"]["attention"] > 0.05 * count
    assert result["networks_with"]["train"] > 0.05 * count


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [1944530162, 1944530548, 1456266910], ids=["infinite lines", "infinite lines and a skip", "GELU far left"]
)
def test_seeds_that_once_failed(seed: int) -> None:
    assert_met(try_ball(case(seed)))


def assert_met(found: Found) -> None:
    """Every centre has a bound above what was reached there, and an attack got somewhere."""
    assert all(lower <= upper * (1 + ROUNDING) for lower, upper in zip(found.lower, found.upper, strict=True))
    assert max(found.lower) > 0.0


def tried(seed: int) -> Trial:
    """Try one case."""
    one = case(seed)
    parts = [*one.network.parts, one.network.mode, one.effort]
    parts += ["attention"] if any("attention" in part for part in parts) else []
    return attempt(seed, parts, lambda: (one.radius, try_ball(one)))


def summary(trials: list[Trial]) -> dict[str, Any]:
    """Count what the trials saw."""
    seen = [outcome for _, _, outcome in trials if not isinstance(outcome, str)]
    sides = [(radius, upper, lower) for radius, found in seen for upper, lower in zip(found.upper, found.lower)]
    ratios: dict[str, list[float]] = {}
    for radius, upper, lower in sides:
        if math.isfinite(upper) and lower > 0:
            ratios.setdefault(f"1e{math.floor(math.log10(radius))}", []).append(upper / lower)
    return {
        "balls": len(sides),
        "infinite_with_reason": sum(upper == math.inf for _, upper, _ in sides),
        "not_attacked": sum(lower == 0 for _, _, lower in sides),
        "bound_over_attack": {
            decade: {"balls": len(values), "median": _at(values, 0.5), "nine_tenths": _at(values, 0.9)}
            for decade, values in sorted(ratios.items(), key=lambda item: float(item[0]))
        },
    }


def _at(values: list[float], share: float) -> float:
    return float(f"{sorted(values)[int(share * (len(values) - 1))]:.4g}")


def page(result: dict[str, Any]) -> str:
    """The result as a short page."""
    text = (
        "Every bound was compared with pairs of inputs inside its ball: from the package's own ascent and from dense "
        "Jacobians of the model at points of the ball. Every value on the way was compared with its limits and with "
        "how fast it may move, and every nonlinear step with its centre map. "
        f"{result['infinite_with_reason']} balls have no finite bound, and the result says why."
    )
    tables = ["", "| radius | balls | bound over attack, median | nine in ten below |", "|---|---|---|---|"]
    for decade, row in result["bound_over_attack"].items():
        tables.append(
            f"| {float(decade):g} to {10 * float(decade):g} | {row['balls']} | {row['median']} | {row['nine_tenths']} |"
        )
    written_by = "`make test-slow` (`tests/soundness/test_balls.py`) from `balls.json`"
    counted = f"{result['networks']} random networks and radii, {result['balls']} balls"
    return page_of(result, "Random balls against their bounds", written_by, counted, text, tables)


@pytest.mark.slow
def test_every_example_of_every_rule_over_balls() -> None:
    """What the global rules are tried on, over a small and a large ball; nothing fails, whatever is bounded holds."""
    met = set()
    for rule in operators():
        for index, (function, *shapes) in enumerate(rule.examples):
            if len(shapes) != 1 or id(function) in met:
                continue
            met.add(id(function))
            generator = torch.Generator().manual_seed(index)
            model = shaken(function, generator) if isinstance(function, nn.Module) else Function(function)
            network = Network(index, model, torch.randn(shapes[0], generator=generator), "eval", ())
            work = Captured.of(model, network.batch, on_missing="inf")
            for radius, effort in ((1e-4, "tight"), (0.3, "fast")):
                try_ball(Case(network, radius, effort), steps=12, work=work, twin=False)


@dataclass(frozen=True)
class Bug:
    """A mistake, and the network and radius that show it."""

    name: str
    plant: Callable[[Patch], None]
    net: str
    radius: float
    effort: str = "fast"
    quick: bool = False


@cache
def planted(name: str) -> tuple[Network, Captured]:
    build, shape = NETS[name]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = build().double().eval()
        batch = torch.randn(2, *shape, dtype=torch.float64)
    network = Network(0, model, batch, "eval", ())
    return network, Captured.of(model, batch)


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)), (3,)),
    "smooth": (lambda: nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)), (3,)),
    "norm": (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, eps=1e-4), nn.Linear(4, 3)), (4,)),
    "attention": (lambda: Mixed(4, 2, "bare"), (3, 4)),
    "gate": (lambda: Residual(Gate(3, "bilinear"), nn.Identity()), (3,)),
    "pool": (lambda: nn.Sequential(nn.Linear(6, 6), nn.MaxPool1d(3, 1), nn.Linear(4, 2)), (2, 6)),
}


no_distance = replacing(
    Enclosure, "distance", lambda self, dims: torch.zeros(self.centre.shape[: self.centre.ndim - dims])
)


@around(Scalar, "slopes")
def early_slopes(real: Any, self: Any, low: Tensor, high: Tensor) -> Any:
    return real(self, low + 0.4 * (high - low), high - 0.4 * (high - low))


missed_turns = replacing(TurningPoint, "inside", lambda self, low, high: torch.zeros_like(low, dtype=torch.bool))


@around(expansion, "_uncertain")
def no_operand_factor(real: Any, found: Tensor, part: OperandShare, seen: Any, name: str) -> Any:
    x = seen.known[name]
    slow = Enclosure(x.centre, x.low, x.high, x.constant.clamp(max=0.05), x.entries.clamp(max=0.05), x.radius)
    small = dataclasses.replace(seen, known={name: slow})
    return real(found, dataclasses.replace(part, operand=None), small, name)


@around(operator_norms, "_row_norms")
def rows_of_the_transpose(real: Any, linear: LinearMap) -> Tensor | None:
    if isinstance(linear, Matrix) and linear.weight.shape[0] == linear.weight.shape[1]:
        return linear.weight.double().norm(dim=0).expand(linear.out_shape)
    return real(linear)


@around(operator_norms, "absolute_entries")
def signs_kept(real, linear):
    return linear if isinstance(linear, Matrix) else real(linear)


@around(local_products.Multiply, "local")
def one_factor(real: Any, self: Any, operands: Any) -> Any:
    found = real(self, operands)
    still = dataclasses.replace(
        found.parts[1], pull=lambda rows: 0 * rows, weight=0 * found.parts[1].weight,
        gain=0 * found.parts[1].gain, entries=0 * found.parts[1].entries,
    )  # fmt: skip
    return dataclasses.replace(found, parts=(found.parts[0], still))


@around(local_sets, "_simplex")
def weights_of_the_centre(real: Any, x: Enclosure) -> Any:
    p = real(x)
    return dataclasses.replace(p, low=p.centre, high=p.centre, distance=0 * p.distance)


@around(local_sets.WindowMaximum, "local")
def winner_of_the_centre(real: Any, self: Any, operands: Any) -> Any:
    (x,) = operands
    return real(self, [Enclosure(x.centre, x.centre, x.centre, x.constant, x.entries, x.radius)])


@around(enclosure, "tidy")
def half_the_ball(
    real: Any, centre: Tensor, low: Tensor, high: Tensor, constant: Tensor, entries: Tensor, radius: Tensor
) -> Enclosure:
    return real(centre, low, high, constant, entries, radius / 2)


@around(Scalar, "_lines")
def crossed_lines(real: Any, self: Any, x: Any, a: Any, b: Any) -> Any:
    found = real(self, x, a, b)
    return dataclasses.replace(found, low_offset=found.low_offset + 0.2 * (x.high - x.low))


def light_pieces(patch: Patch) -> None:
    real = ball_ellipsoid.EllipsoidOperand.of.__func__

    def of(cls: Any, part: OperandShare, operand: Any, value: Any) -> Any:
        piece = real(cls, part, operand, value)
        return dataclasses.replace(piece, weight=0.3 * piece.weight)

    patch.setattr(ball_ellipsoid.EllipsoidOperand, "of", classmethod(of))


BUGS = [
    Bug("the distance from the centre forgotten", no_distance, "norm", 0.5, quick=True),
    Bug(
        "the second derivative of a normalizer too small",
        lambda p: p.setattr(local_sets, "_CURVATURE", 0.05),
        "norm",
        0.02,
    ),
    Bug("slopes fixed too early", early_slopes, "mlp", 1.0, quick=True),
    Bug("extrema of a smooth slope missed", missed_turns, "smooth", 2.0),
    Bug("the operand's constant forgotten", no_operand_factor, "gate", 1.0),
    Bug("row norms of the transpose", rows_of_the_transpose, "smooth", 0.1, quick=True),
    Bug("absolute maps with signs", signs_kept, "smooth", 0.1),
    Bug("a product of one factor", one_factor, "gate", 0.1, quick=True),
    Bug("softmax weights as at the centre", weights_of_the_centre, "attention", 0.5),
    Bug("windows decided by the centre", winner_of_the_centre, "pool", 0.5),
    Bug("half the radius", half_the_ball, "mlp", 0.3),
    Bug("lines that cross the function", crossed_lines, "smooth", 0.5, "tight"),
    Bug("ellipsoids of lighter pieces", light_pieces, "smooth", 1.0),
]


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("bug", [pytest.param(b, id=b.name, marks=[] if b.quick else [pytest.mark.slow]) for b in BUGS])
def test_a_planted_bug_is_caught(bug: Bug, monkeypatch) -> None:
    network, work = planted(bug.net)
    one = Case(network, bug.radius, bug.effort)
    try_ball(one, steps=12, samples=12, work=work)
    bug.plant(monkeypatch)
    with pytest.raises((SoundnessError, AssertionError)):
        try_ball(one, steps=12, samples=12)  # captured anew: maps keep what was worked out about them
