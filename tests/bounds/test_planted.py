"""Do the trials of certificates bite? Bugs are planted one by one; each is caught by a trial that passes without it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.bounds.ellipsoids import ellipsoid, ellipsoid_plan, optimised, rounded
from normscope.bounds.ellipsoids.optimised import Certified, certify, optimise
from normscope.bounds.exact import farkas, feasibility, patterns
from normscope.bounds.exact.kinks import kinks
from normscope.bounds.outputs import directed, directions
from normscope.core.budget import Budget

from . import enumeration
from .graphs import Sheet, chain, planned
from .relaxations import Relaxation
from .test_certificates import SHAPES, assert_above
from .test_extremes import wide_gain
from .test_patterns import assert_exact, assert_sound, wedges
from .test_rounded import gap, stream

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Bug:
    """A mistake, and the trial that must see it."""

    name: str
    plant: Callable[[Patch], None]
    trial: Callable[[], object]
    quick: bool = True


def shape(name: str) -> Callable[[], None]:
    """A shape of graph, as `test_certificates` tries it."""

    def trial() -> None:
        for graph in SHAPES[name](Sheet((1, 5), seed=2)):
            segments, found, _ = planned(graph)
            assert_above(optimise(found, steps=4), Relaxation(segments).strongest(starts=1, rounds=30))

    return trial


def aligned(*, widest: int) -> Callable[[], None]:
    """x + relu(x): both terms move together, the constant is 2."""

    def trial() -> None:
        sheet = Sheet((1, 5))
        x = sheet.refs[0]
        graph = sheet.graph(sheet.add(x, sheet.relu(sheet.linear(x, torch.eye(5)))))
        _, found, _ = planned(graph, widest=widest)
        assert_above(optimise(found, steps=10), 2.0)

    return trial


def units() -> None:
    """One hidden layer: relaxations reach the certificate."""
    graph = chain(2, (3, 4, 2), ["bent leaky"])
    segments, found, _ = planned(graph)
    assert_above(optimise(found, steps=20), Relaxation(segments).strongest(starts=1, rounds=30))


def pooled_units() -> None:
    _, found, _ = planned(wide_gain(100))
    sigma = optimise(found, steps=40).sigma
    for factor in (1.0, 4.0):
        certificate = certify(found, {name: factor * value for name, value in sigma.items()})
        if certificate is not None:
            assert_above(certificate, 1.0)


def differences() -> None:
    graph = chain(2, (3, 5, 3), ["relu"])
    _, found, _ = planned(graph)
    rows = directions("difference", 3)
    along = optimise(found, directions=rows, steps=20).along(rows)
    for row, log in zip(rows, along.tolist(), strict=True):
        segments, _, _ = planned(directed(graph, row))
        assert log >= math.log10(Relaxation(segments).strongest(starts=1, rounds=30)) - 1e-9


def streams() -> None:
    """Terms that cancel, as `test_rounded` tries them."""
    for size, seed in itertools.product((1e4, 1e6), range(6)):  # whether a rounding shows differs by machine
        found = gap(stream(size, seed))
        assert found is None or found >= 0.0


def cells_of_which_nothing_is_known() -> None:
    """No cell can be reached or ruled out: the bounds of all are kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feasibility.Feasibility, "_solve", lambda self, signs, budget: feasibility.Answer())
        assert_sound(chain(1, (2, 3, 1), ["relu"]))


def networks() -> None:
    assert_exact(chain(1, (2, 5, 1), ["relu"]))


class Blind(patterns.PatternSearch):
    """A search that has no guess from below."""

    def _sample(self, budget: Budget) -> None:
        """Look at nothing."""


def tree_alone() -> None:
    for seed in (1, 2):
        graph = chain(seed, (2, 5, 1), ["relu"])
        segments, found, _ = planned(graph)
        done = Blind(segments, found, kinks(segments, found)).run(-math.inf, rtol=1e-6, budget=Budget(400_000))
        assert done.log10_upper >= math.log10(enumeration.constant(graph)) - 1e-9


def stepping(change: Callable[..., Tensor]) -> Callable[[Patch], None]:
    """Plant a change in one step of the engine."""

    def plant(patch: Patch) -> None:
        real = ellipsoid.advance
        patch.setattr(optimised, "advance", lambda *args: change(real, *args))

    return plant


def knowing(change: Callable[[ellipsoid.Uncertain], ellipsoid.Uncertain]) -> Callable[[Patch], None]:
    """Plant a change in what a step believes of its slopes."""
    return stepping(lambda real, q, form, qvv, kept, known, sigma: real(q, form, qvv, kept, change(known), sigma))


def no_noise(real: Any, q: Any, form: Any, qvv: Any, kept: Any, known: Any, sigma: Any) -> Tensor:
    spread = (known.radius.square() / sigma).expand(known.size)
    return real(q, form, qvv, kept, known, sigma) - torch.diag(torch.cat([torch.zeros(len(kept)), 0.9 * spread]))


def nothing_kept_grows(real: Any, q: Any, form: Any, qvv: Any, kept: Any, known: Any, sigma: Any) -> Tensor:
    after = real(q, form, qvv, kept, known, sigma)
    k = len(kept)
    return torch.cat([torch.cat([q[kept][:, kept], after[:k, k:]], 1), after[k:]])


def crossed_at_once(real: Any, q: Any, form: Any, qvv: Any, kept: Any, known: Any, sigma: Any) -> Tensor:
    """Forget that u and what is kept move together."""
    after = real(q, form, qvv, kept, known, sigma)
    k = len(kept)
    return torch.block_diag(after[:k, :k], after[k:, k:])


def feasible_or_not(real: Any, q: Any, form: Any, qvv: Any, kept: Any, known: Any, sigma: Any) -> Tensor:
    """A gain with nothing kept needs nothing of the inverse, and forgets to ask whether there is one."""
    if known.centre is None and kept.numel() == 0:
        return torch.diag((known.radius.square() / sigma).expand(known.size))
    return real(q, form, qvv, kept, known, sigma)


def a_block_is_missing(patch: Patch) -> None:
    real = ellipsoid_plan._EllipsoidPlanner._stack

    def stacked(self: Any, forms: Any) -> Tensor:
        matrix = real(self, forms).clone()
        last = list(self.bases.values())[-1]
        if len(self.bases) > 1:
            matrix[:, -last:] = 0.0
        return matrix

    patch.setattr(ellipsoid_plan._EllipsoidPlanner, "_stack", stacked)


def fresh_starts_do_not_share(patch: Patch) -> None:
    real = ellipsoid_plan._EllipsoidPlanner._afresh

    def afresh(self: Any, names: Any) -> bool:
        done = real(self, names)
        self.start = {name: value - math.log10(len(names)) / 2 for name, value in self.start.items()}
        return done

    patch.setattr(ellipsoid_plan._EllipsoidPlanner, "_afresh", afresh)


def operands_do_not_share(patch: Patch) -> None:
    real = ellipsoid_plan._EllipsoidPlanner._known

    def known(self: Any, effect: Any, *rest: Any) -> Any:
        apart = dataclasses.replace(effect, joint=True) if hasattr(effect, "joint") else effect
        return real(self, apart, *rest)

    patch.setattr(ellipsoid_plan._EllipsoidPlanner, "_known", known)


def last_reader_forgotten(patch: Patch) -> None:
    """A value counts as dead one node too early."""
    real = ellipsoid_plan._EllipsoidPlanner._live
    patch.setattr(ellipsoid_plan._EllipsoidPlanner, "_live", lambda self, index: real(self, index + 1))


def one_side_of_every_split(patch: Patch) -> None:
    real = patterns.PatternSearch._split
    patch.setattr(patterns.PatternSearch, "_split", lambda self, batch: real(self, batch)[::2])


def settled_patterns_forgotten(patch: Patch) -> None:
    real = patterns.PatternSearch._decided

    def decided(self: Any, bound: float, answer: Any) -> None:
        before = self.settled
        real(self, bound, answer)
        self.settled = before

    patch.setattr(patterns.PatternSearch, "_decided", decided)


def asked_the_wrong_way_round(patch: Patch) -> None:
    real = feasibility.Feasibility._solve
    patch.setattr(feasibility.Feasibility, "_solve", lambda self, signs, budget: real(self, -signs, budget))


def believed(patch: Patch) -> None:
    """What the solver says is not checked."""
    patch.setattr(feasibility, "contradictory", lambda system, multipliers: True)


def right_hand_sides_tightened(patch: Patch) -> None:
    patch.setattr(farkas.System, "sides", property(lambda self: self.left * self.last - 0.5 * self.sizes))


def far_away() -> None:
    """A cell that the solver calls empty."""
    graph, signs, _ = wedges(1)
    segments, found, _ = planned(graph)
    assert not patterns.PatternSearch(segments, found, kinks(segments, found)).feasible.ask(signs).impossible


def bounds_of_the_middle(patch: Patch) -> None:
    """The open units of a node are taken at their middle slope."""
    real = patterns.PatternSearch._radii
    patch.setattr(patterns.PatternSearch, "_radii", lambda self, batch: [0.5 * radius for radius in real(self, batch)])


def sums_for_differences(patch: Patch) -> None:
    real = Certified.along
    patch.setattr(Certified, "along", lambda self, rows: real(self, rows.abs()))


def rounding_not_counted(patch: Patch) -> None:
    """No state is raised over its rounding, and maps count as written out without error."""
    real = rounded._State.turn
    patch.setattr(rounded, "_raised", lambda matrix, *allowances: matrix)
    patch.setattr(rounded._State, "turn", lambda self, matrix, slack: real(self, matrix, 0.0))


def smallest_eigenvalue(patch: Patch) -> None:
    patch.setattr(optimised, "largest", lambda matrix: torch.linalg.eigvalsh(matrix)[..., 0])


def scale_forgotten(patch: Patch) -> None:
    real = optimised.run

    def run(*args: Any) -> Any:
        done = real(*args)
        return dataclasses.replace(done, log10_scale=0.0)

    patch.setattr(optimised, "run", run)


replace = dataclasses.replace
BUGS = [
    Bug("no e^2/sigma", stepping(no_noise), units),
    Bug("what is kept does not grow", stepping(nothing_kept_grows), shape("residual")),
    Bug("what is kept does not move along", stepping(crossed_at_once), aligned(widest=1024)),
    Bug("multipliers that are not feasible", stepping(feasible_or_not), pooled_units),
    Bug("radius halved", knowing(lambda known: replace(known, radius=known.radius / 2)), units),
    Bug(
        "no centre",
        knowing(lambda known: known if known.centre is None else replace(known, centre=0.5 * known.centre)),
        units,
    ),
    Bug("a block of a turn is missing", a_block_is_missing, shape("two inputs")),
    Bug("a fresh start without its share", fresh_starts_do_not_share, aligned(widest=8)),
    Bug("operands of a product without their share", operands_do_not_share, shape("products")),
    Bug("a value forgotten before its last reader", last_reader_forgotten, shape("branches")),
    Bug("the smallest eigenvalue", smallest_eigenvalue, units),
    Bug("the scale of a run forgotten", scale_forgotten, units),
    Bug("sums for differences", sums_for_differences, differences),
    Bug("rounding not counted", rounding_not_counted, streams),
    Bug("one side of a split", one_side_of_every_split, tree_alone),
    Bug("settled patterns forgotten", settled_patterns_forgotten, cells_of_which_nothing_is_known),
    Bug("patterns asked for the wrong way round", asked_the_wrong_way_round, networks, quick=False),
    Bug("inequalities tightened", right_hand_sides_tightened, networks),
    Bug("the solver is believed", believed, far_away),
    Bug("open units at their middle", bounds_of_the_middle, tree_alone),
]


def params() -> list[Any]:
    return [pytest.param(bug, id=bug.name, marks=[] if bug.quick else [pytest.mark.slow]) for bug in BUGS]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("bug", params())
def test_a_planted_bug_is_caught(bug: Bug, monkeypatch: Patch) -> None:
    for name, value in (("SAMPLES", 32), ("STARTS", 1), ("ROUNDS", 4)):
        monkeypatch.setattr(patterns, name, value)
    bug.trial()
    with monkeypatch.context() as patch:
        bug.plant(patch)
        with pytest.raises((AssertionError, KeyError, RuntimeError)):
            bug.trial()
