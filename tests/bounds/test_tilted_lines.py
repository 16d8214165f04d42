"""Lower lines of kinks that are searched for: every choice is a bound, the best is kept, planted bugs are caught."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.bounds.balls import sweep
from normscope.bounds.balls.ball import Balls
from normscope.bounds.balls.ball_margins import LinearMargins, _shares, tilted
from normscope.bounds.balls.enclosure import Enclosures, enclose
from normscope.bounds.balls.sweep import Below, Relaxation, below
from normscope.bounds.captured import Captured
from normscope.bounds.radius.certifier import TiltedStage
from normscope.core.budget import Budget
from normscope.rules.local.local import flat
from normscope.rules.local.scalar import Scalar

from .classifiers import drawn, made
from .test_linear_margins import Blocks, ascended, balls_of, points

Patch = pytest.MonkeyPatch


class Kinks(nn.Module):
    """Kinks at zero that bend up and down, and others beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.head = nn.Linear(16, 18), nn.Linear(18, 16), nn.Linear(16, 3)
        self.slopes = nn.PReLU(3, init=0.3)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d, e, f = self.first(x).mul(2).chunk(6, -1)
        bent = [a.abs(), nn.functional.leaky_relu(b, 0.2), self.slopes(c), -d.relu(), e.clamp(-0.5, 0.7), f.tanh()]
        return self.head((x + self.last(torch.cat(bent, -1))).relu())


OWN: dict[str, Callable[[], nn.Module]] = {
    "kinks": Kinks,
    "concave": lambda: nn.Sequential(nn.Linear(16, 4), nn.LeakyReLU(3.0), nn.Linear(4, 3)),
    "clipped": lambda: nn.Sequential(nn.Linear(16, 4), nn.Hardtanh(-0.2, 0.3), nn.Linear(4, 3)),
    "deep": lambda: nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.ReLU())]),
}


@cache
def balls_for(net: str) -> Balls:
    return Balls(Captured.of(made(OWN[net]).double(), drawn(2, 16).double())) if net in OWN else balls_of(net)


def enclosed(balls: Balls, radius: float) -> tuple[Enclosures, Tensor]:
    """All values over balls of one radius, and combinations of the outputs."""
    size = torch.full((2,), radius, dtype=torch.float64)
    values = balls.unrolled.values(balls.centres)
    with torch.no_grad():
        helpers = [Relaxation(Budget())]
        seen = enclose(balls.unrolled, values, size, balls.captured.norm, ceilings=balls.ceilings, helpers=helpers)
    shape = balls.unrolled.shapes[balls.unrolled.output]
    return seen, torch.randn(2, 5, *shape, generator=torch.Generator().manual_seed(5)).double()


def challenge(balls: Balls, radius: float, choice: Callable[[Enclosures, Tensor], Below]) -> tuple[Below, Enclosures]:
    """Compare affine functions with what they bound, at points of the balls and where the functions are least."""
    seen, rows = enclosed(balls, radius)
    found = choice(seen, rows)
    with torch.no_grad():
        changes = torch.cat([points(seen.radius, balls.centres.shape[1], 30), nearest(balls, rows, found, radius)])
        there = balls.unrolled.values((balls.centres + changes).flatten(0, 1))[balls.unrolled.output]
        moved = there.reshape(len(changes), *seen.known[balls.unrolled.output].centre.shape)
        moved = torch.einsum("pbn,bkn->pbk", flat(moved - seen.known[balls.unrolled.output].centre, 2), flat(rows, 2))
        line = torch.einsum("pbn,bkn->pbk", changes, found.slopes) + found.offset
        assert (moved >= line - 1e-11 * (1 + line.abs())).all()
        assert (moved >= found.least(seen.radius) - 1e-11).all()
    return found, seen


@torch.enable_grad()
def nearest(balls: Balls, rows: Tensor, found: Below, radius: float, steps: int = 12) -> Tensor:
    """Points of the balls, `[K, B, n]`, at which what is bounded comes near each affine function, by descent."""
    model, centres, slopes = balls.captured.model, balls.centres[:, None], found.slopes
    step = radius / 4 * slopes / slopes.norm(dim=2, keepdim=True).clamp(min=1e-300)
    change = -step
    for _ in range(steps):
        change = change.detach().requires_grad_(True)
        value = model((centres + change).flatten(0, 1)).reshape(*slopes.shape[:2], -1)
        gap = (value * flat(rows, 2)).sum() - (slopes * change).sum()
        (slope,) = torch.autograd.grad(gap, change)
        change = change.detach() - radius / 4 * slope / slope.norm(dim=2, keepdim=True).clamp(min=1e-300)
        change = change * (radius / change.norm(dim=2, keepdim=True).clamp(min=1e-300)).clamp(max=1.0)
    return change.transpose(0, 1)


def at_random(seed: int) -> Callable[[Enclosures, Tensor], Below]:
    """Lines anywhere in their swing, and (a third of them each) at its ends."""

    def choice(seen: Enclosures, rows: Tensor) -> Below:
        shares = _shares(seen, seen.unrolled.output, rows)
        generator = torch.Generator().manual_seed(seed)
        for share in shares.values():
            share.data.copy_((3 * torch.rand(share.shape, generator=generator) - 1).clamp(0, 1))
        assert shares
        with torch.no_grad():
            return below(seen, seen.unrolled.output, rows, shares)

    return choice


def searched(seen: Enclosures, rows: Tensor) -> Below:
    return tilted(seen, seen.unrolled.output, rows)


@pytest.mark.slow
@pytest.mark.one_in(1000)
@pytest.mark.parametrize("net", ["kinks", "blocks", "relu", "windows"])
def test_every_choice_of_lines_is_a_bound(net: str) -> None:
    for radius in (0.1, 0.6):
        for seed in range(3):
            challenge(balls_for(net), radius, at_random(seed))
        found, seen = challenge(balls_for(net), radius, searched)
        plain = below(seen, seen.unrolled.output, enclosed(balls_for(net), radius)[1])
        assert (found.least(seen.radius) >= plain.least(seen.radius)).all()


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("net", ["blocks", "relu"])
def test_no_point_of_a_ball_has_a_smaller_margin(net: str) -> None:
    balls = balls_of(net)
    values = balls.values
    top = values.argmax(1)
    gaps = (values.gather(1, top[:, None]) - values).scatter(1, top[:, None], math.inf)
    size = torch.full((2,), 0.3, dtype=torch.float64)
    outcome = LinearMargins(balls, tilt=True).over(size, top, gaps, Budget())
    assert (outcome.left >= LinearMargins(balls).over(size, top, gaps, Budget()).left - 1e-12).all()
    assert (ascended(net, size) >= outcome.left.amin(1) - 1e-12).all()
    assert (ascended(net, outcome.safe) > 0).all()


def swing(function: Callable[[Tensor], Tensor]) -> tuple[float, float] | None:
    """The swing of a function over [-1, 1]."""
    network = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(network.weight)

    class Alone(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    balls = Balls(Captured.of(nn.Sequential(network, Alone()).eval(), torch.zeros(1, 1, dtype=torch.float64)))
    values = balls.unrolled.values(balls.centres)
    seen = enclose(balls.unrolled, values, torch.ones(1).double(), balls.captured.norm, ceilings=balls.ceilings)
    found = [local.lines().swing for local in seen.locals.values() if local.lines is not None]
    found = [ends for ends in found if ends is not None and float(ends[0]) < float(ends[1])]
    return None if not found else (float(found[0][0]), float(found[0][1]))


@pytest.mark.slow
def test_only_convex_kinks_at_zero_swing() -> None:
    assert swing(torch.relu) == (0.0, 1.0)
    assert swing(torch.abs) == (-1.0, 1.0)
    assert swing(lambda x: nn.functional.leaky_relu(x, 0.2)) == pytest.approx((0.2, 1.0))
    for other in (
        lambda x: nn.functional.leaky_relu(x, 2.0),  # bends down
        torch.tanh,
        nn.functional.gelu,
        nn.functional.relu6,
        lambda x: x.clamp(-0.5, 0.7),
        lambda x: x.clamp(min=0.5),  # a kink elsewhere
        torch.sign,
    ):
        assert swing(other) is None


@pytest.mark.slow
def test_tight_radii_search_for_lines_and_fast_ones_do_not(monkeypatch: Patch) -> None:
    model, x = made(Blocks), drawn(3, 16)
    tests: list[int] = []
    real = TiltedStage.tested
    monkeypatch.setattr(TiltedStage, "tested", lambda self, *given: tests.append(1) or real(self, *given))
    fast = ns.certified_radius(model, x, attack=False).radius
    assert not tests
    tight = ns.certified_radius(model, x, effort="tight", attack=False).radius
    assert tests
    assert all(b >= a for a, b in zip(fast, tight, strict=True))


# ---- planted bugs


def wider_swing(patch: Patch) -> None:
    real = Scalar._swing

    def wide(self: Scalar, *given: Tensor) -> tuple[Tensor, Tensor] | None:
        found = real(self, *given)
        return None if found is None else (found[0], torch.where(found[1] > found[0], found[1] + 0.3, found[1]))

    patch.setattr(Scalar, "_swing", wide)


def concave_swing(patch: Patch) -> None:
    real = Scalar._swing

    def every(self: Scalar, x: object, bends_up: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor] | None:
        return real(self, x, torch.ones_like(bends_up), *rest)

    patch.setattr(Scalar, "_swing", every)


def kinks_elsewhere(patch: Patch) -> None:
    patch.setattr(Scalar, "_swing", lambda self, x, bends_up, slope, a, b: (a, b))


def lost_offsets(patch: Patch) -> None:
    patch.setattr(sweep, "_row_by_row", lambda found, *rest: torch.zeros(found.shape[:2]).double())


def same_offset(patch: Patch) -> None:
    real = sweep._swung

    def about_the_centre(*given: object) -> object:
        bend = real(*given)
        return dataclasses.replace(bend, low=torch.zeros_like(bend.low))

    patch.setattr(sweep, "_swung", about_the_centre)


def turned_sides(patch: Patch) -> None:
    real = sweep._swung

    def turned(*given: object) -> object:
        bend = real(*given)
        return dataclasses.replace(bend, tilts=[-tilt for tilt in bend.tilts])

    patch.setattr(sweep, "_swung", turned)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("plant", "net"),
    [
        (wider_swing, "blocks"),
        (concave_swing, "concave"),
        (kinks_elsewhere, "clipped"),
        (lost_offsets, "blocks"),
        (same_offset, "blocks"),
        (turned_sides, "blocks"),
    ],
)
def test_a_planted_bug_in_tilted_lines_is_caught(plant: Callable[[Patch], None], net: str, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        attacked(net)


def attacked(net: str) -> None:
    """Challenge lines drawn at random over small balls and large ones."""
    for radius in (0.6, 2.0):
        for seed in range(3):
            challenge(balls_for(net), radius, at_random(seed))
