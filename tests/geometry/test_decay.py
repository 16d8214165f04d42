"""Scale invariance and weight decay: what one step adds, Wan's equilibrium, and Li and Arora's growing rate."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

DIMENSION = 64


def loss_of(weight: Tensor, data: Tensor, target: Tensor) -> Tensor:
    """A loss of the direction of a weight alone: a neuron with an exact normalization (eps = 0)."""
    made = data @ weight
    normal = (made - made.mean()) / made.std(unbiased=False)
    return (normal - target).square().mean()


def batches(count: int, seed: int = 0, size: int = 16) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [(drawn(size, DIMENSION), drawn(size)) for _ in range(count)]


def start(seed: int = 1) -> Tensor:
    return torch.randn(DIMENSION, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradient(weight: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    leaf = weight.clone().requires_grad_()
    return torch.autograd.grad(loss_of(leaf, *batch), leaf)[0]


def test_one_step_adds_the_square_of_the_step() -> None:
    weight = start()
    for batch in batches(5):
        slope = gradient(weight, batch)
        after = weight - 0.3 * slope
        assert float(after @ after) == pytest.approx(float(weight @ weight + 0.09 * slope @ slope), rel=1e-14)
        weight = after


def test_a_batch_of_any_data_leaves_the_gradient_across_the_weight() -> None:
    """Akbar 7.1 has mini-batches break this: they do not, batch by batch."""
    weight = start()
    for batch in batches(20):
        slope = gradient(weight, batch)
        assert abs(float(weight @ slope)) < 1e-13 * float(weight.norm() * slope.norm())


def test_li_and_arora_decay_is_a_growing_rate() -> None:
    """SGD with weight decay and rate lr is SGD without it and rate lr (1 - lr wd)^(-2t-1), direction by direction."""
    lr, decay, count = 0.2, 0.05, 60
    with_decay, without = start(), start()
    for t, batch in enumerate(batches(count)):
        with_decay = (1.0 - lr * decay) * with_decay - lr * gradient(with_decay, batch)
        without = without - lr * (1.0 - lr * decay) ** (-2 * t - 1) * gradient(without, batch)
        ratio = (1.0 - lr * decay) ** (t + 1)
        torch.testing.assert_close(with_decay, ratio * without, rtol=1e-10, atol=1e-12)
    assert lr * (1.0 - lr * decay) ** (-2 * count - 1) > 3 * lr  # it really grows


def test_another_exponent_is_not_the_same() -> None:
    lr, decay = 0.2, 0.05
    one, other = start(), start()
    for t, batch in enumerate(batches(30)):
        one = (1.0 - lr * decay) * one - lr * gradient(one, batch)
        other = other - lr * (1.0 - lr * decay) ** (-2 * t) * gradient(other, batch)
    assert float((one / one.norm() - other / other.norm()).norm()) > 1e-4


def rotations(lr: float, decay: float, momentum: float, steps: int) -> tuple[list[float], list[float]]:
    """Train a weight by torch's SGD on fresh batches; return the angle of every step and the norm after it."""
    weight = nn.Parameter(start())
    optimizer = torch.optim.SGD([weight], lr=lr, momentum=momentum, weight_decay=decay)
    angles, norms = [], []
    for batch in batches(steps, seed=3):
        before = weight.detach().clone()
        optimizer.zero_grad()
        loss_of(weight, *batch).backward()
        optimizer.step()
        cosine = float(before @ weight.detach() / before.norm() / weight.detach().norm())
        angles.append(math.acos(min(cosine, 1.0)))
        norms.append(float(weight.detach().norm()))
    return angles, norms


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("lr", "decay", "momentum"), [(0.5, 0.02, 0.0), (0.1, 0.05, 0.0), (0.1, 0.01, 0.9)])
def test_wan_rotation_at_equilibrium(lr: float, decay: float, momentum: float) -> None:
    """Rotation settles at sqrt(2 lr wd/(1 + momentum)) a step, whatever the norm at the start (Wan et al. 2021)."""
    angles, norms = rotations(lr, decay, momentum, 1200)
    settled = math.sqrt(sum(angle**2 for angle in angles[-400:]) / 400)
    expected = math.sqrt(2.0 * lr * decay / (1.0 + momentum))
    assert settled == pytest.approx(expected, rel=0.05)
    late, earlier = norms[-200:], norms[-400:-200]
    assert sum(late) / 200 == pytest.approx(sum(earlier) / 200, rel=0.05)


def test_without_decay_there_is_no_equilibrium() -> None:
    angles, norms = rotations(4.0, 0.0, 0.0, 400)
    assert all(after >= before for before, after in pairwise(norms))
    assert sum(angles[-100:]) < 0.7 * sum(angles[:100])
