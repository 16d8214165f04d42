"""Gradient flow and gradient descent, against closed forms and against what symmetry says."""

import copy
import math

import pytest
import torch
from torch import nn

import normscope_lab as lab
from normscope_lab.gradient_flow import integrate

from ..geometry.hessians import CROSS_ENTROPY, made
from ..geometry.test_paths import SQUARE, bowl, unchanged


def test_the_integrator_holds_its_error() -> None:
    for rtol in (1e-4, 1e-8):
        *_, (time, value) = integrate(
            lambda w: -w * w, torch.ones(1, dtype=torch.float64), end=3.0, first=1e-3, rtol=rtol
        )
        assert time == pytest.approx(3.0)
        assert abs(float(value) - 0.25) < 20 * rtol


@pytest.mark.slow
def test_a_bowl_falls_as_an_exponential() -> None:
    model, batch = bowl(3.0, 1.0)
    found = lab.flow(model, batch, loss=SQUARE, time=1.0, lr=0.1, rtol=1e-9)
    assert found.flow[-1].loss == pytest.approx(1.5 * math.exp(-6.0) + 0.5 * math.exp(-2.0), rel=1e-6)
    assert found.descent[-1].loss == pytest.approx(1.5 * 0.7**20 + 0.5 * 0.9**20, rel=1e-9)
    assert (len(found.descent), found.conserved, found.growth_defect) == (11, 0, None)


@pytest.mark.slow
def test_flow_conserves_the_norms_that_descent_lets_grow() -> None:
    model, x, y = made("batch", samples=40)
    model[1].eps = 1e-12
    state = copy.deepcopy(model.state_dict())
    found = lab.flow(model, (x, y), loss=CROSS_ENTROPY, time=2.0, lr=0.5, rtol=1e-8)
    assert unchanged(model, state)
    assert found.conserved == 6
    assert found.flow[-1].drift < 1e-6
    assert found.descent[-1].drift > 100 * found.flow[-1].drift
    assert found.growth_defect < 1e-9  # a step adds lr^2 norm(grad)^2 and nothing else
    assert found.flow[-1].radius == pytest.approx(1.0, abs=1e-6)
    assert found.descent[-1].radius > 1.0001
    assert found.group == "0.weight"
    assert [loss for _, loss in found.slices["scaling"]] == pytest.approx([found.flow[0].loss] * 21, rel=1e-8)
    assert min(loss for _, loss in found.slices["gradient"]) < found.flow[0].loss


def test_too_few_evaluations_are_said() -> None:
    model, batch = bowl(100.0)
    found = lab.flow(model, batch, loss=SQUARE, time=100.0, evaluations=30, lr=50.0)
    assert not found.finished
    assert "raise evaluations" in found.notes[-1]


def test_the_trajectory_on_the_circle_is_that_of_the_points() -> None:
    model, x, y = made("batch")
    found = lab.flow(model, (x, y), loss=CROSS_ENTROPY, time=0.5, mode="train", rtol=1e-3)
    drawn = {block.title: block.curves for block in found.document().blocks if hasattr(block, "curves")}
    for name, figure in (("The trajectory on the circle", "angle"), ("How far it leaves the circle", "radius")):
        for curve, points in zip(drawn[name], (found.flow, found.descent), strict=True):
            ends = [(point.time, getattr(point, figure)) for point in (points[0], points[-1])]
            assert [curve.points[0], curve.points[-1]] == ends
    slopes = torch.autograd.grad(CROSS_ENTROPY(model.train()(x), y), model[0].weight)[0].norm(dim=1)
    fastest = float((slopes / model[0].weight.detach().norm(dim=1)).max())
    assert found.descent[1].angle == pytest.approx(math.atan(0.1 * fastest), rel=1e-3)
    ends = {curve.name: curve.points[-1][1] for curve in drawn["How far it leaves the circle"]}
    assert ends["flow"] == pytest.approx(1.0, abs=1e-3)
    assert ends["descent"] > 1.0 + 1e-4


@pytest.mark.gpu
def test_the_path_runs_where_the_model_is() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).cuda()
    x, y = torch.randn(20, 4), torch.randint(3, (20,))
    assert lab.flow(model, (x, y), loss="cross_entropy", time=0.2).conserved == 6
