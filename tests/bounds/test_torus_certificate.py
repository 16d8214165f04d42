"""Optimised certificates on tori: against attacks, against cheaper bounds, and where there are none."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from normscope.bounds.captured import Captured
from normscope.bounds.ellipsoids import ellipsoid_plan as dense_plan
from normscope.bounds.torus.parameter_search import ParameterSearch
from normscope.bounds.torus.stage import Close, Tail
from normscope.bounds.torus.stage_plan import stages
from normscope.bounds.torus.torus import CertifiedField, torus_certificate
from normscope.core.budget import Budget

from .torus_cases import CASES, CPU, Net, aten, attack, bounds, case, planned

NOT_LINEAR = {"max pooling"}
QUICK = {"stride 2", "leaky", "gelu", "residual", "circular", "bottleneck", "convolutions in a row"}


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES if name not in NOT_LINEAR],
)
def test_no_slopes_of_the_activations_exceed_the_bound(name: str) -> None:
    segments = case(name, seed=1)
    certified = torus_certificate(segments, bounds(segments), steps=6, widest=8)
    found = attack(segments)
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
    assert torus_certificate(segments, bounds(segments), budget=Budget(max_seconds=0.0)) is None
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
    assert certified.log10 >= attack(segments)


def test_a_captured_network_with_batch_norm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.LeakyReLU(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    ).eval()  # fmt: skip
    work = Captured.of(model, torch.randn(2, 3, 12, 12))
    values = bounds(work.segments)
    certified = torus_certificate(work.segments, values, steps=15)
    assert certified is not None
    assert set(certified.sigma) == set(work.segments.atoms)
    assert attack(work.segments) <= certified.log10 < values[work.double.output].log10 - 0.05


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

    search = ParameterSearch([point], evaluate, lr=0.5)
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
