"""Small networks with every kind of symmetry."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give all parameters values by chance, so that nothing is 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator) + 0.1)
    return model


def of_every_kind() -> nn.Module:
    """A convolutional network with a BatchNorm, GroupNorm, LayerNorm, RMSNorm, `weight_norm` and ReLUs."""
    return shaken(
        nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3, bias=False),
            nn.GroupNorm(2, 6),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(24, 8),
            nn.LayerNorm(8),
            nn.GELU(),
            weight_norm(nn.Linear(8, 5)),
            nn.RMSNorm(5),
            nn.Linear(5, 7),
            nn.ReLU(),
            nn.Linear(7, 3),
        )
    )
