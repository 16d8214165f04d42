"""The optimised certificate over domains: fed by local slopes, exact for residual blocks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import normscope as ns

from .test_domain import data, drawn, jacobian_norm

OFF = 50.0
"""A bias that no input of these tests outweighs."""


class Block(nn.Module):
    """A residual block: x + W_2 relu(W_1 x + b); the first half of its units is never on."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x).relu())


def half_off(width: int = 5, hidden: int = 8) -> Block:
    model = drawn(Block(width, hidden))
    with torch.no_grad():
        model.first.bias[: hidden // 2] -= OFF
    return model


def residual_certificate(first: Tensor, second: Tensor, steps: int = 300) -> float:
    """The least sqrt(rho) for which the matrix inequality of a ReLU block holds, by descent on its multipliers.

    With slopes in [0, 1] it says [[(rho - 1) I, -W_2 - W_1^T L], [., 2 L - W_2^T W_2]] >= 0, L diagonal.
    """
    first, second = first.detach().double(), second.detach().double()
    size = float(torch.linalg.matrix_norm(second, 2)) ** 2
    logs = torch.full((len(first),), math.log(size), dtype=torch.float64, requires_grad=True)
    optimizer, best = torch.optim.Adam([logs], lr=0.05), math.inf
    for _ in range(steps):
        multipliers = torch.diag(logs.exp())
        corner, side = 2 * multipliers - second.T @ second, -second - first.T @ multipliers
        least = torch.linalg.eigvalsh(corner)[0]
        if float(least.detach()) <= 1e-9:
            loss = -100 * least
        else:
            loss = torch.linalg.eigvalsh(side @ torch.linalg.solve(corner, side.T))[-1]
            best = min(best, 1 + float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return math.sqrt(best)


@pytest.mark.slow
def test_every_method_of_global_is_there_and_a_block_has_its_exact_certificate() -> None:
    model, x = half_off(), data(12, 5)
    domain = ns.domain(model, [x])
    rungs = ns.ladder(model, x[:2], domain=domain, effort="tight")
    assert {"folded", "closed-form", "tight", "global"} <= set(rungs)
    alive = slice(len(model.first.bias) // 2, None)
    exact = residual_certificate(model.first.weight[alive], model.second.weight[:, alive])
    assert 0.999 * exact <= rungs["tight"].upper <= 1.001 * exact  # over all inputs every unit counts
    assert rungs["tight"].upper < 0.99 * rungs["global"].upper
    assert rungs["tight"].upper < 0.95 * rungs["folded"].upper
    assert max(jacobian_norm(model, row) for row in x) <= rungs["tight"].upper


@pytest.mark.slow
def test_every_pattern_inside_is_below_the_certificate() -> None:
    model, x = half_off(3, 6), data(12, 3)
    upper = ns.lipschitz(model, x[:2], scope="domain", domain=ns.domain(model, [x]), effort="tight").upper
    eye = torch.eye(3, dtype=torch.float64)
    first, second = model.first.weight.detach().double(), model.second.weight.detach().double()
    for pattern in range(2**3):  # of the units that can switch
        on = torch.tensor([0.0] * 3 + [float(pattern >> i & 1) for i in range(3)], dtype=torch.float64)
        assert float(torch.linalg.matrix_norm(eye + second * on @ first, 2)) <= upper * (1 + 1e-12)
