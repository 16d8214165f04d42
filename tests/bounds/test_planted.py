"""Do the trials of certificates bite? Bugs are planted one by one; each is caught by a trial that passes without it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.bounds.ellipsoids import ellipsoid, ellipsoid_plan, optimised
from normscope.bounds.ellipsoids.optimised import Certified, certify, optimise
from normscope.bounds.outputs import directed, directions

from ..soundness.planting import around
from .graphs import Sheet, chain, planned
from .relaxations import Relaxation
from .test_certificates import SHAPES, assert_above
from .test_extremes import wide_gain
from .test_rounded import gap, stream

Patch = pytest.MonkeyPatch


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
    graph = chain(2, (3, 4, 2), ["bent leaky"], scale=3.0)
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


def stepping(change: Callable[..., Tensor]) -> Callable[[Patch], None]:
    """Plant a change in one step of the engine."""

    def plant(patch: Patch) -> None:
        real = ellipsoid.advance
        patch.setattr(optimised, "advance", lambda *args, **options: change(partial(real, **options), *args))

    return plant


def no_noise(real: Any, joint: Any, kept: Any, centre: Any, sigma: Any, spread: Any) -> Tensor:
    return real(joint, kept, centre, sigma, 0.1 * spread)


def half_of_the_centre(real: Any, joint: Any, kept: Any, centre: Any, sigma: Any, spread: Any) -> Tensor:
    return real(joint, kept, None if centre is None else 0.5 * centre, sigma, spread)


def nothing_kept_grows(real: Any, joint: Any, kept: int, *rest: Any) -> Tensor:
    after = real(joint, kept, *rest)
    return torch.cat([torch.cat([joint[:kept, :kept], after[:kept, kept:]], 1), after[kept:]])


def crossed_at_once(real: Any, joint: Any, kept: int, *rest: Any) -> Tensor:
    """Forget that u and what is kept move together."""
    after = real(joint, kept, *rest)
    return torch.block_diag(after[:kept, :kept], after[kept:, kept:])


def feasible_or_not(real: Any, joint: Any, kept: int, centre: Any, sigma: Any, spread: Any) -> Tensor:
    """A gain with nothing kept needs nothing of the inverse, and forgets to ask whether there is one."""
    return torch.diag(spread) if centre is None and not kept else real(joint, kept, centre, sigma, spread)


@around(ellipsoid_plan._EllipsoidPlanner, "_stack")
def a_block_is_missing(real: Any, self: Any, forms: Any) -> Tensor:
    matrix = real(self, forms).clone()
    last = list(self.bases.values())[-1]
    if len(self.bases) > 1:
        matrix[:, -last:] = 0.0
    return matrix


@around(ellipsoid_plan._EllipsoidPlanner, "_afresh")
def fresh_starts_do_not_share(real: Any, self: Any, names: Any) -> bool:
    done = real(self, names)
    self.start = {name: value - math.log10(len(names)) / 2 for name, value in self.start.items()}
    return done


@around(ellipsoid_plan._EllipsoidPlanner, "_known")
def operands_do_not_share(real: Any, self: Any, effect: Any, *rest: Any) -> Any:
    apart = dataclasses.replace(effect, joint=True) if hasattr(effect, "joint") else effect
    return real(self, apart, *rest)


@around(ellipsoid_plan._EllipsoidPlanner, "_live")
def last_reader_forgotten(real, self, index):
    """A value counts as dead one node too early."""
    return real(self, index + 1)


@around(Certified, "along")
def sums_for_differences(real, self, rows):
    return real(self, rows.abs())


def rounding_not_counted(patch: Patch) -> None:
    """No state is raised over its rounding, and maps count as written out without error."""
    patch.setattr(ellipsoid, "raised", lambda matrix, *allowances: matrix)
    patch.setattr(optimised, "image_above", lambda q, form, kept=None, slack=None: ellipsoid.image(q, form, kept))


def smallest_eigenvalue(patch: Patch) -> None:
    patch.setattr(optimised, "largest", lambda matrix: torch.linalg.eigvalsh(matrix)[..., 0])


@around(optimised, "run")
def scale_forgotten(real: Any, *args: Any, **options: Any) -> Any:
    done = real(*args, **options)
    return dataclasses.replace(done, log10_scale=0.0)


replace = dataclasses.replace
BUGS: dict[str, tuple[Callable[[Patch], None], Callable[[], object]]] = {  # each with the trial that must see it
    "no e^2/sigma": (stepping(no_noise), units),
    "what is kept does not grow": (stepping(nothing_kept_grows), shape("residual")),
    "what is kept does not move along": (stepping(crossed_at_once), aligned(widest=1024)),
    "multipliers that are not feasible": (stepping(feasible_or_not), pooled_units),
    "no centre": (stepping(half_of_the_centre), units),
    "a block of a turn is missing": (a_block_is_missing, shape("two inputs")),
    "a fresh start without its share": (fresh_starts_do_not_share, aligned(widest=8)),
    "operands of a product without their share": (operands_do_not_share, shape("products")),
    "a value forgotten before its last reader": (last_reader_forgotten, shape("branches")),
    "the smallest eigenvalue": (smallest_eigenvalue, units),
    "the scale of a run forgotten": (scale_forgotten, units),
    "sums for differences": (sums_for_differences, differences),
    "rounding not counted": (rounding_not_counted, streams),
}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str, monkeypatch: Patch) -> None:
    plant, trial = BUGS[name]
    trial()
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, KeyError, RuntimeError)):
            trial()
