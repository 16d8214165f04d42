"""The ascent of `ns.flatness` against closed forms, and against many starts with many steps, written out here."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

import normscope as ns

from .hessians import CROSS_ENTROPY
from .test_paths import SQUARE, bowl

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)), (8,)),
    "tanh": (lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)), (8,)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(64, 3)), (1, 6, 6)),
}


def trained(name: str, steps: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network in float64 after some steps of Adam, its inputs and random classes."""
    build, shape = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model, x, y = build().double().eval(), torch.randn(48, *shape).double(), torch.randint(3, (48,))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        CROSS_ENTROPY(model(x), y).backward()
        optimizer.step()
    return model, x, y


def steepest(model: nn.Module, x: Tensor, y: Tensor, rho: float, *, raw: bool, starts: int, steps: int) -> float:
    """Return the largest increase of the loss: normalised steps that shrink to nothing, from here and random places."""
    names, values = zip(*((name, p.detach()) for name, p in model.named_parameters()))
    rows = [v.flatten(1).norm(dim=1, keepdim=True).expand_as(v.flatten(1)) if v.ndim > 1 else v.norm() for v in values]
    scale = torch.cat([(row.expand(v.shape[0]) if v.ndim == 1 else row).reshape(-1) for row, v in zip(rows, values)])
    scale = torch.ones_like(scale) if raw else scale
    sizes = [v.numel() for v in values]

    def loss(move: Tensor) -> Tensor:
        parts = (scale * move).split(sizes)
        return CROSS_ENTROPY(
            functional_call(model, {n: v + p.reshape(v.shape) for n, v, p in zip(names, values, parts)}, (x,)), y
        )

    slopes = vmap(grad_and_value(loss))
    moves = torch.randn(starts, len(scale), generator=torch.Generator().manual_seed(11), dtype=torch.float64)
    moves = rho * nn.functional.normalize(moves, dim=1)
    moves[0] = 0.0
    highest = here = float(loss(torch.zeros_like(scale)))
    for step in range(steps + 1):
        slope, heights = slopes(moves)
        highest = max(highest, float(heights.max()))
        moves = moves + 2 * rho * (1 - step / steps) * nn.functional.normalize(slope, dim=1, eps=1e-300)
        moves = moves * (rho / moves.norm(dim=1, keepdim=True)).clamp(max=1.0)
    return highest - here


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.05, 0.2])
@pytest.mark.parametrize("steps", [0, 150])
@pytest.mark.parametrize("name", NETWORKS)
def test_ascent_finds_what_many_starts_find_or_says_that_it_has_not_converged(
    name: str, steps: int, rho: float
) -> None:
    model, x, y = trained(name, steps)
    found = ns.flatness(model, (x, y), loss=CROSS_ENTROPY, rho=rho, levels=(0.1,), draws=1, sharpness=False)
    for raw, increase, converged in (
        (False, found.ascent, found.ascent_converged),
        (True, found.raw_ascent, found.raw_ascent_converged),
    ):
        shrinking = steepest(model, x, y, rho, raw=raw, starts=1, steps=60)
        assert increase >= 0.97 * shrinking
        reference = steepest(model, x, y, rho, raw=raw, starts=8, steps=60)
        assert not converged or increase >= 0.95 * reference
    said = [note for note in found.notes if "has not converged" in note]
    assert len(said) == 2 - found.ascent_converged - found.raw_ascent_converged


@pytest.mark.one_in(3)
@pytest.mark.parametrize("curvatures", [(4.0, 2.0), (1.0, 10.0, 3.0), (5.0, 5.0)])
@pytest.mark.parametrize("rho", [0.1, 1.0, 8.0])
def test_ascent_in_a_bowl_ends_at_its_highest_point(curvatures: tuple[float, ...], rho: float) -> None:
    """From weights of 1 in a bowl of curvatures c the move to it is c/(t - c), for the t that makes it rho long."""
    model, batch = bowl(*curvatures)
    c = torch.tensor(curvatures, dtype=torch.float64)
    low, high = max(curvatures), max(curvatures) + float(c.norm()) / rho
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if float((c / (middle - c)).norm()) > rho else (low, middle)
    move = c / (high - c)
    truth = float((0.5 * c * ((1 + move) ** 2 - 1)).sum())
    found = ns.flatness(model, batch, loss=SQUARE, rho=rho, levels=(0.1,), draws=1, sharpness=False)
    assert 0.98 * truth <= found.raw_ascent <= truth * (1 + 1e-9)


def test_ascent_leaves_a_minimum_where_the_gradient_is_zero() -> None:
    model, batch = bowl(4.0, 1.0)
    nn.init.zeros_(model.weight)
    found = ns.flatness(model, batch, loss=SQUARE, rho=0.5, levels=(0.1,), draws=1, sharpness=False)
    assert found.raw_ascent == pytest.approx(0.5 * 4.0 * 0.5**2, rel=0.01)
    assert found.ascent == 0.0  # the norm of the group is zero


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("options", "advice"), [({"ascent_steps": 1}, "raise ascent_steps"), ({"ascent_starts": 1}, "raise ascent_starts")]
)
def test_too_few_steps_or_starts_are_said(options: dict[str, int], advice: str) -> None:
    model, x, y = trained("relu", 30)
    found = ns.flatness(model, (x, y), loss=CROSS_ENTROPY, rho=0.2, levels=(0.1,), draws=1, sharpness=False, **options)
    assert not found.ascent_converged
    assert any(note.startswith("the ascent has not converged") and note.endswith(advice) for note in found.notes)
    page = " ".join(str(found).split())
    assert "found from below" in page
    assert advice in page


def test_a_loss_without_a_bound_is_infinite() -> None:
    class Log(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return -torch.log(self.weight) + 0 * x

    x = torch.ones(1, 1, dtype=torch.float64)
    found = ns.flatness(
        Log(), (x, x), loss=lambda out, _: out.mean(), rho=1.5, levels=(0.01,), draws=1, sharpness=False
    )
    assert found.raw_ascent == math.inf
