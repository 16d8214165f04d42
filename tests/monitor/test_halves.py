"""Gradients that accumulate are two parts of a batch: how far they agree is their noise."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns


def agreement(*, parts: int = 2, forwards: bool = True, clip: bool = False, cleared: bool = True, twice: bool = False):
    """Train with accumulated gradients; return what was recorded at step 10, and the true cosine there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    true = None
    with ns.watch(model, optimizer, every=5, panel=False) as run:
        for step in range(16):
            x, y = torch.randn(parts, 8, 5), torch.randint(3, (parts, 8))
            if step == 10:
                true = cosine(*(gradient(copy.deepcopy(model), x[i], y[i]) for i in range(2)))
            if cleared:
                optimizer.zero_grad()
            losses = [F.cross_entropy(model(x[0]), y[0])] * parts if not forwards else None
            for part in range(parts):
                if twice and part:
                    optimizer.zero_grad()
                loss = F.cross_entropy(model(x[part]), y[part]) if losses is None else losses[part]
                loss.backward(retain_graph=not forwards)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
    return next(record for record in run.records if record.step == 10).total.get("halves_agree"), true


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / one.norm() / other.norm())


@pytest.mark.parametrize(("parts", "clip"), [(2, False), (4, False), (2, True)])
def test_the_first_two_parts_of_a_batch_are_compared_whatever_is_clipped_later(parts: int, clip: bool) -> None:
    found, true = agreement(parts=parts, clip=clip)
    assert found == pytest.approx(true, abs=1e-5)


def test_two_losses_of_one_forward_and_gradients_cleared_between_are_not_compared() -> None:
    assert agreement(forwards=False)[0] is None
    assert agreement(twice=True)[0] is None


def test_gradients_that_were_never_cleared_are_not_compared() -> None:
    assert agreement(cleared=False)[0] is None
