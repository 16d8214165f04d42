"""The networks of the golden file: small, of every kind, with weights from a seed of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
"""Trained networks and weights of the benches, which lie beside a checkout or nowhere."""


class Case(NamedTuple):
    """A model in eval mode, a batch of it, its labels, and the name of the output."""

    model: nn.Module
    batch: Any
    labels: Tensor | None = None
    output: str | None = None


class ResidualBlock(nn.Module):
    """Two linear layers with BatchNorm beside a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.first = nn.BatchNorm1d(width), nn.Linear(width, width, bias=False)
        self.norm2, self.second = nn.BatchNorm1d(width), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.norm2(self.first(self.norm1(x).relu())).relu())


class UNet(nn.Module):
    """One step down, one up and a skip, with GroupNorm and SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm1 = nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.down, self.norm2 = nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.GroupNorm(4, 8)
        self.up, self.leave = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm1(self.enter(x)))
        deep = self.up(F.silu(self.norm2(self.down(x))))
        return self.leave(torch.cat([x, deep], 1))


class Gpt(nn.Module):
    """Tokens, one pre-norm block of causal attention and GELU, logits."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.embed = heads, nn.Embedding(16, width)
        self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 16), nn.Linear(16, width)
        self.head = nn.Linear(width, 16, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        return self.head(x + self.down(F.gelu(self.up(self.norm2(x)))))


class Gated(nn.Module):
    """RMSNorm in front of a gated SiLU unit, beside a skip."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.gate, self.up = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, 12), nn.Linear(width, 12)
        self.down, self.head = nn.Linear(12, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.head(x + self.down(F.silu(self.gate(y)) * self.up(y)))


class Recurrent(nn.Module):
    """An LSTM and a linear layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def tiny() -> nn.Module:
    """A small ReLU network."""
    return nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3))


def convolutions() -> nn.Module:
    """Two convolutions with BatchNorm, max-pooling and a mean over positions."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4),
    )  # fmt: skip


def circular() -> nn.Module:
    """Convolutions that go around the edge and that stride."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular"), nn.ReLU(),
        nn.Conv2d(4, 3, 3, padding=1, stride=2), nn.LeakyReLU(0.1), nn.Conv2d(3, 2, 3, padding=1),
    )  # fmt: skip


def layer_norm() -> nn.Module:
    """LayerNorm, GELU and tanh."""
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def residual() -> nn.Module:
    """Two residual blocks."""
    return nn.Sequential(nn.Linear(6, 8), ResidualBlock(8), ResidualBlock(8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def encoder() -> nn.Module:
    """Torch's own encoder layer."""
    return nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)


BUILD: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "tiny": (tiny, (6, 4)),
    "convolutions": (convolutions, (4, 1, 6, 6)),
    "circular": (circular, (2, 1, 6, 6)),
    "layernorm": (layer_norm, (6, 5)),
    "residual": (residual, (6, 6)),
    "encoder": (encoder, (2, 3, 6)),
    "gpt": (Gpt, (2, 4)),
    "unet": (UNet, (2, 1, 8, 8)),
    "rmsnorm": (Gated, (4, 8)),
    "lstm": (Recurrent, (2, 3, 4)),
}


def small(name: str) -> Case:
    """Return a small network with statistics and scales as after some training, and a batch."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(map(ord, name)))
        build, shape = BUILD[name]
        model = build().eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0.0, 0.2, generator=generator)
            module.running_var.uniform_(0.5, 2.0, generator=generator)
        if "Norm" in type(module).__name__ and module.weight is not None:
            with torch.no_grad():
                module.weight.uniform_(0.5, 1.5, generator=generator)
    if name == "gpt":
        return Case(model, torch.randint(16, shape, generator=generator))
    batch = torch.randn(shape, generator=generator)
    labels = model(batch).detach().flatten(1).argmax(1) if model(batch).dim() == 2 else None
    return Case(model, batch, labels)


def digits() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits as images of (1, 8, 8) and labels, in a fixed order of their own."""
    from sklearn.datasets import load_digits

    source = load_digits()
    images = torch.from_numpy(source.images).float().unsqueeze(1) / 16.0
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order], torch.from_numpy(source.target).long()[order]


def demo(normalizer: str, *, width: int = 24, steps: int = 200) -> Case:
    """Return a network of the demo's shape, trained for a moment on the digits, and images that it has not seen."""
    between: dict[str, Callable[[], list[nn.Module]]] = {
        "plain": list,
        "batchnorm": lambda: [nn.BatchNorm1d(width)],
        "layernorm": lambda: [nn.LayerNorm(width)],
        "groupnorm": lambda: [nn.GroupNorm(4, width)],
    }
    images, labels = digits()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Flatten()]
        for size in (64, width, width):
            layers += [nn.Linear(size, width), *between[normalizer](), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(width, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(steps):
            chosen = torch.randint(1400, (64,))
            optimizer.zero_grad()
            F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
        optimizer.zero_grad()
    return Case(model.eval(), images[1400:1416], labels[1400:1416])


def family(name: str) -> Case:
    """Return one of the real architectures of tests/real_models."""
    from tests.real_models.families import FAMILIES

    model, batch, output = FAMILIES[name]()
    return Case(model, batch, output=output)


def trained(name: str) -> Case:
    """Return one of the trained networks of the shared folder, at noise of the size of its data."""
    if str(SHARED / "models") not in sys.path:
        sys.path.append(str(SHARED / "models"))
    from networks import load

    model, example = load(name)
    generator = torch.Generator().manual_seed(0)
    if not example.is_floating_point():
        return Case(model, torch.randint(32, 123, (2, 16), generator=generator))
    scale = 3072**-0.5 if name.startswith("mlp") else 1.0
    return Case(model, scale * torch.randn((2, *example.shape[1:]), generator=generator))


def stored_weights(name: str) -> Case:
    """Return the ReLU network of one of the weight files of the benches."""
    import scipy.io

    cells = scipy.io.loadmat(SHARED / "bench" / f"{name}.mat")["weights"].ravel()
    layers: list[nn.Module] = []
    for cell in cells:
        linear = nn.Linear(cell.shape[1], cell.shape[0], bias=False).double()
        linear.weight = nn.Parameter(torch.tensor(cell, dtype=torch.float64))
        layers += [linear, nn.ReLU()]
    batch = torch.randn(2, cells[0].shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Case(nn.Sequential(*layers[:-1]).eval(), batch)
