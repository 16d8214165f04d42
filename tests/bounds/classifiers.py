"""Small classifiers of every family, and a plain attack to hold the strong one against."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normscope.bounds.radius.logits import margins


class Tokens(nn.Module):
    """One block of attention over four tokens of four entries, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(4), nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, 4, 4)
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.head((x + self.mlp(self.norm2(x))).flatten(1))


FAMILIES = {
    "relu": lambda: nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 3)),
    "gelu": lambda: nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 3)),
    "batch norm": lambda: nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)),
    "layer norm": lambda: nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16, 3),
    ),
    "attention": Tokens,
}  # fmt: skip


def made(build, seed: int = 0) -> nn.Module:
    """Return a model in eval mode with weights, and running statistics, from a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.3, 2.0)
    return model.eval()


def plain_pgd(model: nn.Module, x: Tensor, y: Tensor, radius: Tensor, steps: int = 40) -> Tensor:
    """Whether 40 steps of plain projected gradient ascent on the margin change the class, per sample."""
    size = radius.float()[:, None]
    change = torch.zeros_like(x)
    for _ in range(steps):
        z = (x + change).requires_grad_(True)
        (slope,) = torch.autograd.grad(-margins(model(z), y).sum(), z)
        change = change + 2.5 / steps * size * slope / slope.norm(dim=1, keepdim=True).clamp(min=1e-12)
        change = change * (size / change.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)
    return (margins(model(x + change), y) <= 0).detach()
