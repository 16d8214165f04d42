"""The cheap way to listen gives the figures of the thorough one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope.doctor.monitor.forward_listening import ModuleListener
from normscope.doctor.monitor.record import Record
from normscope.doctor.monitor.watching import watch


def network(affine: bool, momentum: float) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=momentum), nn.ReLU(),
        nn.Conv2d(8, 6, 3, padding=1), nn.BatchNorm2d(6, affine=affine, eps=1e-3), nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Flatten(), nn.Linear(72, 16), nn.LayerNorm(16), nn.Linear(16, 12), nn.RMSNorm(12), nn.Linear(12, 4),
    )  # fmt: skip


def records(affine: bool, momentum: float, *, constant: bool = False) -> list[Record]:
    model = network(affine, momentum)
    with torch.no_grad():
        model[1].weight[5] = 0.0  # a dead channel
        if constant:
            model[0].weight[3] = 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    with watch(model, optimizer, every=1) as run:
        for _ in range(4):
            optimizer.zero_grad()
            x, y = torch.randn(12, 2, 6, 6, generator=generator), torch.randint(4, (12,), generator=generator)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return list(run.records)


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.1, 0.02, 1.0])
def test_figures_are_those_of_the_thorough_way(affine: bool, momentum: float, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    recording = ModuleListener.recording
    monkeypatch.setattr(ModuleListener, "recording", lambda self: used.append(1) or recording(self))
    cheap = records(affine, momentum)
    assert len(used) == 3  # the first forward is listened to with everything on
    monkeypatch.setattr(ModuleListener, "fits", staticmethod(lambda model, seen: False))
    thorough = records(affine, momentum)
    assert len(used) == 3
    for one, two in zip(cheap, thorough, strict=True):
        assert one.values.keys() == two.values.keys()
        for kind, table in one.values.items():
            assert table.keys() == two.values[kind].keys()
            for quantity, column in table.items():
                for index, (a, b) in enumerate(zip(column, two.values[kind][quantity], strict=True)):
                    close = a is b if a is None or b is None else a == pytest.approx(b, abs=1e-4)
                    assert close, (one.step, kind, quantity, index, a, b)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("momentum", [0.1, 0.02])
def test_a_constant_channel_is_seen_down_to_the_resolution(momentum: float) -> None:
    first, *later = records(True, momentum, constant=True)
    assert first.of("normalizer", "log10_variance_min")[0] == -math.inf
    for record in later:
        assert -7.0 < record.of("normalizer", "log10_variance_min")[0] + math.log10(momentum) < -5.0
