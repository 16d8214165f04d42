"""Small trainings on scikit-learn's digits, watched for alarms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.finding import Severity
from normscope.data import digits
from normscope.doctor.monitor.watching import Watch, watch
from normscope.networks import small as models

Optimizers = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@cache
def data(classes: int = 10, samples: int = 1500) -> tuple[Tensor, Tensor]:
    """Digits, the first classes and samples of them."""
    split = digits(generator=generator())
    kept = split.train_labels < classes
    return split.train_images[kept][:samples], split.train_labels[kept][:samples]


def mlp(normalizer: models.Normalizer = "none", depth: int = 4, width: int = 64) -> nn.Module:
    return models.mlp(generator=generator(), normalizer=normalizer, width=width, depth=depth)


def convolutional(normalizer: str, width: int = 8, depth: int = 4) -> nn.Module:
    torch.manual_seed(0)
    make: dict[str, Callable[[int], nn.Module]] = {
        "batch": nn.BatchNorm2d, "group": partial(nn.GroupNorm, 4), "none": lambda width: nn.Identity(),
    }  # fmt: skip
    layers: list[nn.Module] = []
    for index in range(depth):
        layers += [
            nn.Conv2d(width if index else 1, width, 3, padding=1, stride=2 if index == 1 else 1),
            make[normalizer](width),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 10))


class Residual(nn.Module):
    """The block of ResNet-18, narrow."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(inner)))


def residual(width: int = 8, blocks: int = 2, classes: int = 10) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        *(Residual(width) for _ in range(blocks)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes),
    )  # fmt: skip


class Attention(nn.Module):
    """A block of a pre-norm transformer."""

    def __init__(self, width: int, normalizer: type[nn.Module]) -> None:
        super().__init__()
        self.norm1, self.norm2 = normalizer(width), normalizer(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(query, key, value))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """16 patches of 2x2 pixels as tokens, a few blocks, a head."""

    def __init__(self, width: int = 24, blocks: int = 2, normalizer: type[nn.Module] = nn.LayerNorm) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.embed, self.places = nn.Linear(4, width), nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.ModuleList(Attention(width, normalizer) for _ in range(blocks))
        self.norm, self.head = normalizer(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.reshape(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, 16, 4)) + self.places
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens).mean(1))


def sgd(lr: float, **more: Any) -> Optimizers:
    return partial(torch.optim.SGD, lr=lr, **more)


def train(
    model: nn.Module,
    optimizer: Optimizers,
    *,
    steps: int = 150,
    every: int = 10,
    batch: int = 64,
    tier: str = "standard",
    samples: tuple[Tensor, Tensor] | None = None,
    before: Callable[[nn.Module, int], None] | None = None,
    log: Any = None,
) -> Watch:
    """Train a classifier, watched; return what watched it."""
    images, labels = data() if samples is None else samples
    trained = optimizer(model.parameters())
    order = generator()
    with watch(model.train(), trained, every=every, tier=tier, log=log, panel=False) as run:
        for step in range(steps):
            rows = torch.randperm(len(images), generator=order)[:batch]
            if before is not None:
                before(model, step)
            trained.zero_grad()
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            run.observe(loss=loss)
            loss.backward()
            trained.step()
    return run


def warned(run: Watch) -> dict[str, list[str]]:
    """The places of the warnings and errors, by code."""
    found: dict[str, list[str]] = {}
    for finding in run.findings:
        if finding.severity >= Severity.WARNING:
            found.setdefault(finding.code, []).append(finding.where)
    return found
