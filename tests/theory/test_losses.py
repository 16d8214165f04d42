"""Constants of losses against gradients: none is longer, and some come as close as one likes."""

import dataclasses
import math

import pytest
import torch

from normscope.core.errors import InputError
from normscope.theory import losses
from normscope.theory.losses import LOSSES, Loss, named

VARIANTS: dict[str, Loss] = {
    **{name: make() for name, make in LOSSES.items() if name != "mse"},
    "smoothed": losses.cross_entropy(label_smoothing=0.3),
    "weighted": losses.cross_entropy(weight=torch.tensor([0.5, 2.0, 1.0, 0.1])),
    "smoothed, weighted": losses.cross_entropy(label_smoothing=0.2, weight=torch.tensor([0.5, 2.0, 1.0, 0.1])),
    "clipped low": losses.clipped_cross_entropy(0.7),
    "narrow ramp": losses.ramp(0.25),
    "clipped squares": losses.clipped_mse(9.0),
}


def squares(loss: Loss, x: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The squared length of every row's gradient, and the direction in which it grows."""
    x = x.detach().requires_grad_(True)
    (grad,) = torch.autograd.grad(loss.rows(x, targets).sum(), x, create_graph=True)
    length = grad.square().sum(-1)
    up = torch.zeros_like(x)
    if length.requires_grad:
        (up,) = torch.autograd.grad(length.clamp(min=1e-30).log().sum(), x)
    return length.detach(), up / up.norm(dim=-1, keepdim=True).clamp(min=1e-30)


def climbed(loss: Loss, classes: int, seed: int) -> float:
    """The longest gradient found by ascent from random logits of many sizes, every row with steps of its own."""
    generator = torch.Generator().manual_seed(seed)
    rows = 64
    scale = 10 ** (2 * torch.rand(rows, 1, generator=generator, dtype=torch.float64) - 1)
    x = scale * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    if loss.targets == "classes":
        targets = torch.randint(classes, (rows,), generator=generator)
    else:
        targets = torch.rand(rows, classes, generator=generator, dtype=torch.float64).round()
    step = torch.full((rows, 1), 0.5, dtype=torch.float64)
    length, up = squares(loss, x, targets)
    for _ in range(80):
        ahead, further = squares(loss, x + step * up, targets)
        better = (ahead > length)[:, None]
        x, up = torch.where(better, x + step * up, x), torch.where(better, further, up)
        length, step = torch.maximum(ahead, length), torch.where(better, 1.5 * step, 0.4 * step)
    return float(length.max()) ** 0.5


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", VARIANTS)
def test_no_gradient_is_longer_and_ascent_comes_close(name):
    loss, classes = VARIANTS[name], 4
    constant = loss.constant(classes)
    found = climbed(loss, classes, seed=len(name))
    assert found <= constant * (1 + 1e-12)
    assert found >= constant * 0.995


def test_the_printed_constant_of_the_l1_loss_is_a_bound_for_one_output_alone():
    loss = losses.l1()
    assert loss.as_printed == 1.0
    assert [loss.printed_is_bound(outputs) for outputs in (1, 2, 10)] == [True, False, False]
    assert losses.cross_entropy().printed_is_bound(10)  # nothing is printed, nothing is claimed


def test_a_mean_over_rows_divides_by_the_root_of_their_number():
    loss = losses.cross_entropy()
    assert loss.upper(5, 16).log10 == pytest.approx(loss.upper(5).log10 - math.log10(4))
    generator = torch.Generator().manual_seed(0)
    logits = 8 * torch.randn(16, 5, generator=generator, dtype=torch.float64)
    worst = logits.argmin(-1)
    x = logits.clone().requires_grad_(True)
    (grad,) = torch.autograd.grad(loss.rows(x, worst).mean(), x)
    assert 0.9 * 10 ** loss.upper(5, 16).log10 < float(grad.norm()) <= 10 ** loss.upper(5, 16).log10


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: losses.cross_entropy(label_smoothing=1.5), "between 0 and 1"),
        (lambda: losses.cross_entropy(weight=torch.tensor([-1.0, 1.0])), "not negative"),
        (lambda: losses.cross_entropy(weight=torch.ones(3)).constant(4), "3 class weights for 4 classes"),
        (lambda: losses.ramp(0.0), "must be positive"),
        (lambda: losses.clipped_mse(math.inf), "must be positive and finite"),
        (lambda: named("focal"), "known are cross_entropy"),
        (lambda: losses.binary_cross_entropy().rows(torch.zeros(1, 1), torch.full((1, 1), 2.0)), "between 0 and 1"),
    ],
)
def test_what_cannot_be_a_loss_is_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        wrong()


@pytest.mark.parametrize("value", [-1.0, -1e-300, -math.inf, math.nan])
def test_a_loss_with_a_constant_that_is_none_is_refused(value):
    wrong = dataclasses.replace(losses.cross_entropy(), name="mine", constant=lambda outputs: value)
    with pytest.raises(InputError, match=r"the loss mine has the constant .* at least 0"):
        wrong.upper(10)
