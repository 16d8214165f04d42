"""Models and data that processes can import."""

import os
import signal

import torch
from torch import nn

SIZE = 120


def data(size: int = SIZE) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 6, generator=generator)
    return x, (x[:, 0] + x[:, 1] > 0).long() + (x[:, 2] > 1).long()


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


class Dies(nn.Module):
    """Ends its process where it has a LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.body = build()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and any(isinstance(m, nn.LayerNorm) for m in self.modules()):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.body(x)
