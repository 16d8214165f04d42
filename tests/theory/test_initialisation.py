"""The growth of gradients through fresh BatchNorm networks: the law, and what wide networks do."""

import math

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.theory.initialisation import LIMIT, batch_norm_growth, relu_overlap


def measured(batch: int, *, width: int, seeds: range, depth: int = 14, activation: str = "relu") -> float:
    """Return the growth of the squared norm per layer of real networks, away from both ends, as a geometric mean."""
    logs = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        values, outputs = torch.randn(batch, width, generator=generator).requires_grad_(), []
        for _ in range(depth):
            weight = torch.randn(width, width, generator=generator) / math.sqrt(width)
            values = values @ weight.T
            outputs.append(values)
            values = nn.functional.batch_norm(values, None, None, training=True, eps=1e-12)
            values = values.relu() if activation == "relu" else values
        direction = torch.randn(values.shape, generator=generator)
        norms = [float(g.double().norm()) for g in torch.autograd.grad((values * direction).sum(), outputs)]
        logs += [2.0 * math.log(norms[k] / norms[k + 1]) for k in range(3, depth - 4)]
    return math.exp(sum(logs) / len(logs))


@pytest.mark.parametrize(("batch", "wanted"), [(8, 1.788), (64, 1.493)])
def test_the_law_gives_the_known_figures_and_wide_networks_follow_it(batch, wanted):
    assert batch_norm_growth(batch) == pytest.approx(wanted, abs=5e-4)
    assert measured(batch, width=512, seeds=range(3)) == pytest.approx(wanted, rel=0.03)


def test_limits():
    assert batch_norm_growth(10**6) == pytest.approx(LIMIT, rel=1e-5)
    assert pytest.approx(1.467, abs=5e-4) == LIMIT
    assert relu_overlap(-1.0) == pytest.approx(0.0, abs=1e-15)
    growths = [batch_norm_growth(size) for size in (4, 5, 8, 16, 64, 1000)]
    assert growths == sorted(growths, reverse=True)
    with pytest.raises(InputError, match="4 or more"):
        batch_norm_growth(3)
