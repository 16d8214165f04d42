"""Certificates on tori: the geometry against the network itself, the state against changes, bounds against attacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from normscope.bounds.ellipsoids import optimised
from normscope.bounds.ellipsoids.ellipsoid import Uncertain, largest
from normscope.bounds.ellipsoids.ellipsoid_plan import EllipsoidPlan, EllipsoidStep, plan
from normscope.bounds.segments import Segments
from normscope.bounds.torus import stage_plan as torus_plan
from normscope.bounds.torus.frequencies import Torus, ready
from normscope.bounds.torus.stage import Bend, TorusStage
from normscope.bounds.torus.stage_plan import stages
from normscope.bounds.torus.stage_walk import Passed, run
from normscope.bounds.torus.stencil import Stencil, stencil_of
from normscope.bounds.torus.torus import _Careful, torus_certificate
from normscope.rules.effects import Elementwise, Linear

from .torus_cases import CASES, CPU, Net, aten, attack, bounds, case, drawn, planned
from .torus_replay import Replay

MASKED_AWAY = {"leaky"}  # the mask widens the slopes there, so the dense plan knows more
NOT_LINEAR = {"max pooling"}


def _multipliers(stages: tuple[TorusStage, ...], seed: int = 0) -> _Careful:
    """Multipliers with random weights: certificates hold for any."""
    steps = tuple(step for stage in stages for step in ready(stage, stage.sizes, CPU).steps)
    free = _Careful.of(EllipsoidPlan({}, steps, torch.empty(0)))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in free.all:
            parameter += 0.5 * torch.randn(parameter.shape, generator=generator).double()
    return free


def _log10(found: Passed) -> float:
    value = found.log10_scale + float(found.peaks) / math.log(10.0)
    return value if found.q is None else value + math.log10(float(largest(found.q))) / 2


def _slow(quick: int, all_of: int) -> list[object]:
    return [*range(quick), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(quick, all_of))]


class Watched:
    """Multipliers that look on their way whether the state holds what the network did."""

    def __init__(self, stage: TorusStage, replay: Replay) -> None:
        self.free, self.replay = _multipliers((stage,)), replay
        self.seen: list[float] = []

    def choose(self, step: EllipsoidStep, known: Uncertain, qvv: Tensor, log: float) -> Tensor:
        if qvv.is_complex():
            weights = self.replay.torus(step.name).weights
            wave = self.replay.waves[step.name] / (self.replay.size * 10.0**log)
            ridge = 1e-10 * float(qvv.diagonal(dim1=-2, dim2=-1).real.amax()) * torch.eye(qvv.shape[-1])
            solved = torch.linalg.solve(qvv + ridge, wave[..., None])[..., 0]
            self.seen.append(float(((wave.conj() * solved).sum(-1).real * weights).sum()))
        return self.free.choose(step, known, qvv, log)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CASES)
def test_the_tori_carry_what_the_network_computes_and_the_state_holds_it(name: str) -> None:
    segments = case(name)
    for stage in planned(segments):
        replay = Replay(segments, stage)
        prepared = replay.run()
        watched = Watched(stage, replay)
        with torch.no_grad():
            found = run([prepared], watched.choose, watched.free.top)
        assert len(watched.seen) == sum(isinstance(operation, Bend) for operation in stage.operations) > 0
        assert max(watched.seen) <= 1.0 + 1e-7
        if found.q is not None:
            change = replay.change[segments.graph.output].flatten() / (replay.size * 10.0**found.log10_scale)
            assert float(change @ torch.linalg.pinv(found.q, hermitian=True) @ change) <= 1.0 + 1e-7


@pytest.mark.parametrize("seed", _slow(8, 80))
def test_random_networks(seed: int) -> None:
    segments = drawn(seed)
    found = stages(segments, bounds(segments), widest=8)
    for stage in found or ():
        replay = Replay(segments, stage, seed)
        prepared = replay.run()
        watched = Watched(stage, replay)
        with torch.no_grad():
            run([prepared], watched.choose, watched.free.top)
        assert max(watched.seen, default=0.0) <= 1.0 + 1e-7
    padded = any(str(node.op) == "padded_convolution" for node in segments.graph)
    assert padded or len(segments.graph) < 4 or (found is not None and list(found[0].start) == ["x"])
    certified = torus_certificate(segments, bounds(segments), steps=0, widest=8)
    assert certified is None or attack(segments) <= certified.log10 + 1e-9


def _too_small(monkeypatch: pytest.MonkeyPatch, segments: Segments) -> tuple[TorusStage, ...]:
    exact = torus_plan._sizes
    monkeypatch.setattr(torus_plan, "_sizes", lambda least, axes: tuple(n - 1 for n in exact(least, axes)))
    return planned(segments)


def _without_mask(monkeypatch: pytest.MonkeyPatch, segments: Segments) -> tuple[TorusStage, ...]:
    bare = {name: e.slope for name, e in segments.effects.items() if isinstance(e, Elementwise)}
    (stage,) = planned(segments)
    operations = tuple(replace(o, slope=bare[o.name]) if isinstance(o, Bend) else o for o in stage.operations)
    return (replace(stage, operations=operations),)


def _unscaled(monkeypatch: pytest.MonkeyPatch, segments: Segments) -> tuple[TorusStage, ...]:
    exact = Stencil.at
    monkeypatch.setattr(Stencil, "at", lambda self, turns: exact(self, turns) * math.sqrt(math.prod(self.stride)))
    return planned(segments)


def _unconjugated(monkeypatch: pytest.MonkeyPatch, segments: Segments) -> tuple[TorusStage, ...]:
    exact = Torus.__init__

    def planted(self: Torus, *args: object) -> None:
        exact(self, *args)
        self.flip = torch.zeros_like(self.flip)

    monkeypatch.setattr(Torus, "__init__", planted)
    return planned(segments)


def _turned(monkeypatch: pytest.MonkeyPatch, segments: Segments) -> tuple[TorusStage, ...]:
    exact = Stencil.at
    monkeypatch.setattr(Stencil, "at", lambda self, turns: exact(self, turns).conj())
    return planned(segments)


def _taken_for_clean(monkeypatch: pytest.MonkeyPatch, segments: Segments) -> tuple[TorusStage, ...]:
    monkeypatch.setattr(Stencil, "covers", True)
    return planned(segments)


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (_too_small, "plain"),
        (_too_small, "one axis"),
        (_without_mask, "leaky"),
        (_unscaled, "stride 2"),
        (_unconjugated, "residual"),
        (_turned, "plain"),
        (_taken_for_clean, "convolutions in a row"),
    ],
)
def test_planted_errors_are_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch, Segments], tuple[TorusStage, ...]], name: str
) -> None:
    segments = case(name)
    with monkeypatch.context() as patch:
        (stage,) = plant(patch, segments)
        replay = Replay(segments, stage)
        with pytest.raises((AssertionError, RuntimeError)):
            replay.run()
    Replay(segments, planned(segments)[0]).run()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [name for name in CASES if name not in MASKED_AWAY | NOT_LINEAR])
def test_the_dense_plan_with_the_same_multipliers_is_below_and_near(name: str) -> None:
    segments = case(name)
    found = planned(segments)
    free = _multipliers(found)
    with torch.no_grad():
        passed = run([ready(stage, stage.sizes, CPU) for stage in found], free.choose, free.top)
    dense = plan(segments, bounds(segments), widest=3000)
    assert dense is not None
    if name == "convolutions in a row":  # masks are steps of their own
        assert _log10(passed) >= attack(segments)
        return
    sigma = {}
    for step in dense.steps:
        own, count = passed.sigma[step.name], step.known.radius.numel()
        sigma[step.name] = own.repeat_interleave(count // own.numel())
    certified = optimised.certify(dense, sigma)
    assert certified is not None
    assert certified.log10 <= _log10(passed) + 1e-9
    assert _log10(passed) <= certified.log10 + 0.15


def _stencil(build: Callable[[Net], object], *shape: int) -> Stencil | None:
    net = Net(*shape)
    build(net)
    segments = net.segments(type(net.x)(net.nodes[-1].name, net.nodes[-1].shape))
    effect = segments.effects[net.nodes[-1].name]
    assert isinstance(effect, Linear)
    return stencil_of(effect.maps[0], net.nodes[-1], len(shape) - 1)


@pytest.mark.parametrize(
    "build",
    [
        lambda net: net.call(aten.avg_pool2d.default, net.x, [3, 3], [2, 2], [1, 1], False, False),
        lambda net: net.call(aten.avg_pool2d.default, net.x, [3, 3], [2, 2], [0, 0], True),
        lambda net: net.call(aten.adaptive_avg_pool2d.default, net.x, [4, 4]),
        lambda net: net.call(aten.mean.dim, net.x, [2, 3], True),
        lambda net: net.call(aten.mul.Tensor, net.x, net.normal(2, 6, 6)),
        lambda net: net.call(aten.flip.default, net.x, [2]),
        lambda net: net.call(aten.roll.default, net.x, [1], [2]),
        lambda net: net.call(aten.permute.default, net.x, [0, 1, 3, 2]),
        lambda net: net.call(aten.reshape.default, net.x, [1, 2, 9, 4]),
        lambda net: net.call(aten.pixel_unshuffle.default, net.x, 2),
        lambda net: net.conv(net.x, 3, mode="replicate"),
        lambda net: net.conv(net.x, 3, padding=2, mode="circular"),
    ],
    ids=range(12),
)
def test_maps_that_differ_from_place_to_place_are_no_stencils(build: Callable[[Net], object]) -> None:
    assert _stencil(build, 2, 6, 6) is None


def test_stencils_of_slices_pads_and_choices_of_channels() -> None:
    shifted = _stencil(lambda net: net.call(aten.constant_pad_nd.default, net.x, [1, 0, 2, 1], 0.0), 2, 5, 5)
    assert shifted is not None
    assert (shifted.offsets, shifted.stride, shifted.outputs, shifted.reach) == (((-2, -1),), (1, 1), (8, 6), (2, 1))
    assert shifted.covers
    thinned = _stencil(lambda net: net.call(aten.slice.Tensor, net.x, 2, 1, 99, 2), 3, 5, 5)
    assert thinned is not None
    assert (thinned.offsets, thinned.stride, thinned.outputs) == (((1, 0),), (2, 1), (2, 5))
    chosen = _stencil(lambda net: net.call(aten.slice.Tensor, net.x, 1, 1, 3), 3, 5, 5)
    assert chosen is not None
    assert chosen.weight[0].tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    assert chosen.covers
