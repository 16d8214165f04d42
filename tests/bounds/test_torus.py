"""Certificates on tori: the geometry against the network itself, the state against changes, bounds against attacks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from normscope.bounds import optimised, torus_plan
from normscope.bounds import plan as dense_plan
from normscope.bounds.ellipsoid import Uncertain, largest
from normscope.bounds.plan import Plan, Step, plan
from normscope.bounds.search import Search
from normscope.bounds.segments import Segments
from normscope.bounds.torus import CertifiedField, _Careful, torus_certificate
from normscope.bounds.torus_plan import stages
from normscope.bounds.torus_ready import Torus, ready
from normscope.bounds.torus_run import Passed, run
from normscope.bounds.torus_stage import Bend, Close, Stage, Tail
from normscope.bounds.torus_stencil import Stencil, stencil_of
from normscope.bounds.work import Work
from normscope.rules.effects import Elementwise, Linear

from .torus_cases import CASES, CPU, Net, Replay, aten, attack, bounds, case, drawn, planned

MASKED_AWAY = {"leaky"}  # the mask widens the slopes there, so the dense plan knows more
NOT_LINEAR = {"max pooling"}
QUICK = {"stride 2", "leaky", "gelu", "residual", "circular", "bottleneck", "convolutions in a row"}


def _multipliers(stages: tuple[Stage, ...], seed: int = 0) -> _Careful:
    """Multipliers with random weights: certificates hold for any."""
    steps = tuple(step for stage in stages for step in ready(stage, stage.sizes, CPU).steps)
    free = _Careful.of(Plan({}, steps, torch.empty(0)))
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

    def __init__(self, stage: Stage, replay: Replay) -> None:
        self.free, self.replay = _multipliers((stage,)), replay
        self.seen: list[float] = []

    def choose(self, step: Step, known: Uncertain, qvv: Tensor, log: float) -> Tensor:
        if qvv.is_complex():
            weights = self.replay.torus(step.name).weights
            wave = self.replay.waves[step.name] / (self.replay.size * 10.0**log)
            ridge = 1e-10 * float(qvv.diagonal(dim1=-2, dim2=-1).real.amax()) * torch.eye(qvv.shape[-1])
            solved = torch.linalg.solve(qvv + ridge, wave[..., None])[..., 0]
            self.seen.append(float(((wave.conj() * solved).sum(-1).real * weights).sum()))
        return self.free.choose(step, known, qvv, log)


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
    assert certified is None or attack_log10(segments) <= certified.log10 + 1e-9


def _too_small(monkeypatch: pytest.MonkeyPatch, segments: Segments) -> tuple[Stage, ...]:
    exact = torus_plan._sizes
    monkeypatch.setattr(torus_plan, "_sizes", lambda least, axes: tuple(n - 1 for n in exact(least, axes)))
    return planned(segments)


def _without_mask(monkeypatch: pytest.MonkeyPatch, segments: Segments) -> tuple[Stage, ...]:
    bare = {name: e.slope for name, e in segments.effects.items() if isinstance(e, Elementwise)}
    (stage,) = planned(segments)
    operations = tuple(replace(o, slope=bare[o.name]) if isinstance(o, Bend) else o for o in stage.operations)
    return (replace(stage, operations=operations),)


def _unscaled(monkeypatch: pytest.MonkeyPatch, segments: Segments) -> tuple[Stage, ...]:
    exact = Stencil.at
    monkeypatch.setattr(Stencil, "at", lambda self, turns: exact(self, turns) * math.sqrt(math.prod(self.stride)))
    return planned(segments)


def _unconjugated(monkeypatch: pytest.MonkeyPatch, segments: Segments) -> tuple[Stage, ...]:
    exact = Torus.__init__

    def planted(self: Torus, *args: object) -> None:
        exact(self, *args)
        self.flip = torch.zeros_like(self.flip)

    monkeypatch.setattr(Torus, "__init__", planted)
    return planned(segments)


def _turned(monkeypatch: pytest.MonkeyPatch, segments: Segments) -> tuple[Stage, ...]:
    exact = Stencil.at
    monkeypatch.setattr(Stencil, "at", lambda self, turns: exact(self, turns).conj())
    return planned(segments)


def _taken_for_clean(monkeypatch: pytest.MonkeyPatch, segments: Segments) -> tuple[Stage, ...]:
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
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch, Segments], tuple[Stage, ...]], name: str
) -> None:
    segments = case(name)
    with monkeypatch.context() as patch:
        (stage,) = plant(patch, segments)
        replay = Replay(segments, stage)
        with pytest.raises((AssertionError, RuntimeError)):
            replay.run()
    Replay(segments, planned(segments)[0]).run()


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
        assert _log10(passed) >= attack_log10(segments)
        return
    sigma = {}
    for step in dense.steps:
        own, count = passed.sigma[step.name], step.known.radius.numel()
        sigma[step.name] = own.repeat_interleave(count // own.numel())
    certified = optimised.certify(dense, sigma)
    assert certified is not None
    assert certified.log10 <= _log10(passed) + 1e-9
    assert _log10(passed) <= certified.log10 + 0.15


def attack_log10(segments: Segments) -> float:
    return math.log10(attack(segments))


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES if name not in NOT_LINEAR],
)
def test_no_slopes_of_the_activations_exceed_the_bound(name: str) -> None:
    segments = case(name, seed=1)
    certified = torus_certificate(segments, bounds(segments), steps=6, widest=8)
    found = attack_log10(segments)
    assert certified is not None
    assert found <= certified.log10 + 1e-9
    assert certified.log10 < found + 1.0


def test_no_pair_exceeds_the_bound_behind_max_pooling() -> None:
    segments = case("max pooling")
    found = planned(segments)
    assert [type(stage.end) for stage in found] == [Close, Tail]
    certified = torus_certificate(segments, bounds(segments), steps=12)
    assert certified is not None
    generator = torch.Generator().manual_seed(0)
    shape = segments.graph.input_shape
    for _ in range(20):
        x = torch.randn(shape, dtype=torch.float64, generator=generator)
        jacobian = torch.autograd.functional.jacobian(lambda x: segments.graph.run(x).flatten(), x).flatten(1)
        assert float(torch.linalg.matrix_norm(jacobian, ord=2)) <= 10.0**certified.log10
    assert certified.log10 <= bounds(segments)[segments.graph.output].log10


def test_searching_improves_on_the_start_and_directions_share_a_certificate() -> None:
    segments = case("residual")
    values = bounds(segments)
    start, searched = (torus_certificate(segments, values, steps=steps) for steps in (0, 20))
    assert start is not None
    assert searched is not None
    assert searched.log10 < start.log10 - 0.03
    assert start.log10 < values[segments.graph.output].log10
    rows = torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]], dtype=torch.float64)
    pairs = torus_certificate(segments, values, directions=rows, steps=20)
    assert pairs is not None
    assert bool((pairs.along(rows) <= searched.log10 + math.log10(2.0) / 2).all())
    assert float(pairs.along(rows).mean()) <= float(searched.along(rows).mean()) + 1e-3


def test_a_field_knows_directions_by_their_length_only() -> None:
    segments = case("field")
    certified = torus_certificate(segments, bounds(segments), steps=0)
    assert isinstance(certified, CertifiedField)
    rows = torch.eye(2, math.prod(segments.graph.output_shape), dtype=torch.float64) * 3.0
    assert certified.along(rows).tolist() == pytest.approx([certified.log10 + math.log10(3.0)] * 2)
    assert torus_certificate(segments, bounds(segments), directions=rows, steps=0) is None


def test_sums_over_the_grid_need_not_be_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = case("residual, activation first")
    written = torus_certificate(segments, bounds(segments), steps=0)
    monkeypatch.setattr(dense_plan, "_ENTRIES", 20)
    found = stages(segments, bounds(segments))
    summed = torus_certificate(segments, bounds(segments), steps=3)
    assert found is not None
    assert isinstance(found[-1].end, Tail)
    assert found[-1].end.summed
    assert written is not None
    assert summed is not None
    monkeypatch.undo()
    again = torus_certificate(segments, bounds(segments), steps=3)
    assert again is not None
    assert again.log10 == pytest.approx(summed.log10, abs=1e-8)
    assert summed.log10 < written.log10


@pytest.mark.parametrize("name", ["plain", "residual", "max pooling", "dense block", "field"])
def test_a_batch_has_the_bound_of_one_sample(name: str) -> None:
    one, batch = (
        torus_certificate(segments, bounds(segments), steps=0) for segments in (case(name), case(name, batch=3))
    )
    assert one is not None
    assert batch is not None
    assert batch.log10 == pytest.approx(one.log10, abs=1e-8)


def test_there_is_none_without_time_or_without_fields() -> None:
    segments = case("plain")
    assert torus_certificate(segments, bounds(segments), deadline=time.monotonic()) is None
    net = Net(6)
    dense = net.segments(net.head(net.x, 5, 3))
    assert torus_certificate(dense, bounds(dense)) is None


def _reflected(net: Net) -> object:
    x = net.relu(net.conv(net.relu(net.conv(net.x, 3)), 3, mode="reflect"))
    return net.head(net.relu(net.conv(net.relu(net.conv(x, 3)), 3)), 3)


def _upsampled(net: Net) -> object:
    x = net.relu(net.conv(net.x, 3, stride=2))
    weight = net.normal(3, 2, 2, 2)
    x = net.relu(net.call(aten.conv_transpose2d.input, x, weight, None, [2, 2]))
    return net.head(net.relu(net.conv(net.relu(net.conv(x, 3)), 3)), 3)


@pytest.mark.parametrize("build", [_reflected, _upsampled])
def test_what_is_no_convolution_on_a_torus_starts_afresh(build: Callable[[Net], object]) -> None:
    net = Net(2, 8, 8)
    segments = net.segments(build(net))
    values = bounds(segments)
    found = planned(segments)
    (name,) = found[0].start
    assert found[0].start[name] == values[name].log10 > 0.0
    certified = torus_certificate(segments, values, steps=0)
    assert certified is not None
    assert certified.log10 >= attack_log10(segments)


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


def test_a_captured_network_with_batch_norm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.LeakyReLU(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    ).eval()  # fmt: skip
    work = Work(model, torch.randn(2, 3, 12, 12))
    values = bounds(work.segments)
    certified = torus_certificate(work.segments, values, steps=15)
    assert certified is not None
    assert set(certified.sigma) == set(work.segments.atoms)
    assert attack_log10(work.segments) <= certified.log10 < values[work.double.output].log10 - 0.05


@pytest.mark.parametrize("factor", [1e-200, 1e200, 1e-25, 1e25])
def test_extreme_weights_are_refused_or_carried(factor: float) -> None:
    plain = case("residual")
    segments = case("residual", first=factor)
    certified = torus_certificate(segments, bounds(segments), steps=2)
    if abs(math.log10(factor)) > 100:
        assert certified is None
        return
    expected = torus_certificate(plain, bounds(plain), steps=2)
    assert certified is not None
    assert expected is not None
    assert certified.log10 == pytest.approx(expected.log10 + math.log10(factor), abs=0.05)


def test_weights_of_zero_have_the_constant_zero() -> None:
    net = Net(2, 5, 5)
    segments = net.segments(CASES["plain"][1](net))
    for node in net.nodes:
        for argument in node.args:
            if isinstance(argument, Tensor):
                argument.zero_()
    found = stages(segments, {})
    assert found is not None
    certified = torus_certificate(segments, {}, steps=5)
    assert certified is None or certified.log10 == -math.inf


def test_a_search_keeps_the_best_and_calms_down() -> None:
    point = torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True)

    def evaluate() -> Tensor:
        value = (point - torch.tensor([1.0, 0.5])).square().sum()
        return torch.where(value > 1e-4, value, math.nan)  # not admissible close to the best

    search = Search([point], evaluate, lr=0.5)
    steps = 0
    while search.step():
        steps += 1
    assert 10 < steps < 2000
    assert 1e-4 < search.value < 2e-2
    search.restore()
    assert float(evaluate().detach()) == search.value


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["residual", "field", "max pooling"])
def test_a_gpu_gives_the_same_bound(name: str) -> None:
    shape, build = CASES[name]
    found = []
    for device in (CPU, torch.device("cuda")):
        net = Net(*shape, device=device)
        segments = net.segments(build(net))
        certified = torus_certificate(segments, bounds(segments), steps=0)
        assert certified is not None
        assert all(sigma.device.type == device.type for sigma in certified.sigma.values())
        found.append(certified.log10)
    assert found[0] == pytest.approx(found[1], abs=1e-9)
