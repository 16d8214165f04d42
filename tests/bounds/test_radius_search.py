"""The search for the largest radius, and the constants it starts from."""

import math

import pytest
import torch
from torch import Tensor

from normscope.bounds.balls.ball import RadiusOutcome
from normscope.bounds.bounds_by_method import upper_sides
from normscope.bounds.radius.certifier import difference_constants
from normscope.bounds.radius.largest_radius import widest
from normscope.bounds.traced_network import TracedNetwork
from normscope.core.budget import Budget

from ..soundness.networks import noise
from .classifiers import FAMILIES, made


def mute(left: Tensor) -> RadiusOutcome:
    """A test that only passes or fails: nothing is known to be safe below."""
    return RadiusOutcome(left, torch.zeros(len(left), dtype=left.dtype))


@pytest.mark.parametrize("power", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("start", [1e-2, 1.0, 1e3])
def test_the_search_finds_the_root_in_few_tests(power, start):
    true = torch.logspace(-2, 2, 40, dtype=torch.float64)
    gaps = torch.stack([torch.full_like(true, math.inf), torch.ones_like(true)], 1)
    rates = torch.stack([torch.zeros_like(true), (1 / true if power == 1 else 0 * true)], 1)

    def margin(rows: Tensor, radius: Tensor) -> RadiusOutcome:
        return mute(torch.stack([torch.full_like(radius, math.inf), 1 - (radius / true[rows]) ** power], 1))

    found = widest(margin, gaps, rates, torch.full_like(true, start), torch.zeros_like(true), rtol=1e-2)
    assert found.settled.all()
    assert found.tests <= (7 if power == 1 else 30)
    assert (found.radius <= true).all()
    assert (found.radius >= true / 1.01).all()


def test_the_search_keeps_its_floor_and_gives_up_where_nothing_passes():
    one = torch.ones(2, dtype=torch.float64)
    gaps = torch.stack([one * math.inf, one], 1)
    floor = torch.tensor([0.0, 0.25], dtype=torch.float64)
    found = widest(
        lambda rows, radius: mute(gaps.new_tensor([[math.inf, -math.inf]] * 2)[rows]),
        gaps,
        gaps * 0 + 1,
        one,
        floor,
        rtol=1e-2,
    )
    assert found.radius.tolist() == [0.0, 0.25]
    assert found.settled.all()
    nan = widest(
        lambda rows, radius: mute(gaps.new_full((len(rows), 2), math.nan)), gaps, gaps * 0 + 1, one, floor, rtol=1e-2
    )
    assert nan.radius.tolist() == [0.0, 0.25]
    hurried = widest(lambda rows, r: mute(gaps[rows]), gaps, gaps * 0 + 1, one, floor, rtol=1e-2, budget=Budget(0))
    assert hurried.tests == 3
    assert not hurried.settled.any()


def test_difference_constants_hold_and_beat_the_constant_of_the_output():
    model = made(FAMILIES["relu"])
    work = TracedNetwork.of(model, noise(2, 16))
    fast, tight = difference_constants(work), difference_constants(work, effort="tight")
    x = noise(400, 16)
    step = 1e-2 * noise(400, 16, seed=1)
    moved = (model.double()((x + step).double()) - model(x.double())).detach() / step.double().norm(dim=1, keepdim=True)
    steepest = (moved[:, :, None] - moved[:, None, :]).abs().amax(0)
    assert (steepest <= tight).all()
    assert (tight <= fast * (1 + 1e-6)).all()
    assert float(fast.max()) <= math.sqrt(2) * upper_sides(work)["best"].upper * (1 + 1e-9)
    assert float(fast[0, 1]) < math.sqrt(2) * upper_sides(work)["best"].upper
