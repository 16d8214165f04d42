"""Which normalizer on scikit-learn's digits: two dense networks for `normscope choose`.

    normscope choose benchmarks/choose_digits.py:shallow --data digits --batch-sizes 2,8,32,128 --steps 300 --folder F
    normscope choose benchmarks/choose_digits.py:deep --data digits --batch-sizes 32 --steps 300 --folder G

The networks were not the first that were tried: see docs/networks.md.
"""

from __future__ import annotations

from torch import nn


def network(hidden: int) -> nn.Module:
    """Hidden layers of 64 units with BatchNorm, and a head."""
    layers = [layer for _ in range(hidden) for layer in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10))


def shallow() -> nn.Module:
    """Three hidden layers."""
    return network(3)


def deep() -> nn.Module:
    """Nine hidden layers."""
    return network(9)
