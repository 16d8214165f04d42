"""Small networks with every kind of symmetry."""

from __future__ import annotations

import torch
from torch import Tensor, nn
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


class Attention(nn.Module):
    """Attention with as many heads for the keys as wanted, with or without a norm of queries and keys."""

    def __init__(
        self, *, width: int = 8, heads: int = 2, keys: int = 2, normed: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.keys, self.size = heads, keys, width // heads
        self.q, self.k = nn.Linear(width, width, bias=bias), nn.Linear(width, keys * self.size, bias=bias)
        self.v, self.o = nn.Linear(width, keys * self.size), nn.Linear(width, width)
        self.norm = nn.RMSNorm(self.size, eps=1e-6) if normed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape

        def split(y: Tensor, heads: int) -> Tensor:
            return y.reshape(n, length, heads, self.size).transpose(1, 2)

        def repeated(y: Tensor) -> Tensor:
            times = self.heads // self.keys
            wide = y[:, :, None].expand(n, self.keys, times, length, self.size)
            return wide.reshape(n, self.heads, length, self.size)

        q, k, v = (
            self.norm(split(self.q(x), self.heads)),
            self.norm(split(self.k(x), self.keys)),
            split(self.v(x), self.keys),
        )
        y = nn.functional.scaled_dot_product_attention(q, repeated(k), repeated(v))
        return self.o(y.transpose(1, 2).reshape(n, length, width)).tanh()
