"""Watching on a GPU: norms are right, and measuring them does not wait for the device."""

import math

import pytest
import torch
from torch import nn

from normscope.doctor.monitor.watching import watch
from normscope.listening.calls import LayerGeometry
from normscope.products import followed_norms

pytestmark = pytest.mark.gpu


def test_norms_are_searched_for_and_followed_without_a_wait_for_the_device():
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(8, 8, 3, padding=1, groups=2).cuda() for _ in range(3)]
    settings = ([1, 1], [1, 1], [1, 1], False, [0, 0], 2)
    geometry = LayerGeometry(kind="convolution", shape=(1, 8, 9, 9), channels=8, settings=settings)
    draw = torch.Generator("cuda").manual_seed(0)
    weights, scales = [layer.weight.detach() for layer in convolutions], torch.rand(3, 8, device="cuda") + 0.5

    def measure():
        layers = followed_norms.LayerStack(geometry, weights, scales)
        searched = followed_norms.NormSearch(layers, draw).finish()
        return searched, followed_norms.follow_norms(layers, searched.vectors, draw)

    measure()  # what is loaded at first
    torch.cuda.set_sync_debug_mode("error")
    try:
        estimates = measure()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    eye = torch.eye(8 * 81, device="cuda").reshape(-1, 8, 9, 9)
    for estimate in estimates:
        numbers = estimate.numbers.double().cpu().numpy()
        norms, errors = followed_norms.read_norms(numbers, layers=3, norms=2, steps=estimate.steps, size=4 * 81)
        for index, weight in enumerate(weights):
            matrix = nn.functional.conv2d(eye, weight, None, padding=1, groups=2)
            for column, factor in enumerate((1.0, scales[index].reshape(1, -1, 1, 1))):
                true = math.log10(float(torch.linalg.matrix_norm((matrix * factor).flatten(1), 2)))
                assert true - errors[index, column] - 1e-4 <= norms[index, column] <= true + 1e-3


def test_norms_of_a_run_are_those_of_dense_decompositions():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 4)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = torch.randn(64, 32, device="cuda"), torch.randint(4, (64,), device="cuda")
    exact = {}
    with watch(model, optimizer, every={"economy": 3, "full": 30}, overhead=None) as run:
        for step in range(61):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            exact[step] = [
                math.log10(float(torch.linalg.matrix_norm(p.detach(), 2))) for p in model.parameters() if p.ndim > 1
            ]
            optimizer.step()
    shown = 0
    for record in run.records:
        for norm, true in zip(record.of("weight", "log10_norm") or (None,) * 3, exact[record.step], strict=True):
            if norm is not None:
                shown += 1
                assert norm == pytest.approx(true, abs=0.02), record.step
    assert shown >= 20
    assert run.records[-1].histograms
