"""Certified radii against projected gradient descent: 200 steps from 24 starts, at 0.999 and 1 of each radius.

The attack runs on the model in float64, which is the function the radius speaks of. Its strongest points are then given
to the model in its own float.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

import normscope as ns

from ..attacker import double_twin
from .outcome import EPS, Outcome, drawing

STEPS, STARTS = 200, 24
SHARES = (0.999, 1.0)
CLASSES = 3


class Tokens(nn.Module):
    """A block of attention over four tokens of three entries, and a head."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm = norm(4)
        self.embed, self.head = nn.Linear(3, 4), nn.Linear(16, CLASSES)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.reshape(-1, 4, 3))
        seen = self.norm(tokens)
        return self.head((tokens + self.attention(seen, seen, seen, need_weights=False)[0]).flatten(1))


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(12, CLASSES),
    "relu": lambda: nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, CLASSES)),
    "gelu": lambda: nn.Sequential(nn.Linear(12, 10), nn.GELU(), nn.Linear(10, CLASSES)),
    "tanh, no biases": lambda: nn.Sequential(nn.Linear(12, 8, False), nn.Tanh(), nn.Linear(8, CLASSES, False)),
    "batch norm": lambda: nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)),
    "layer norm": lambda: nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, CLASSES)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, CLASSES)
    ),
    "max pool": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 12)), nn.Conv1d(1, 4, 3, padding=1), nn.MaxPool1d(3, 2), nn.LeakyReLU(0.1), nn.Flatten(),
        nn.Linear(20, CLASSES),
    ),
    "attention": lambda: Tokens(nn.LayerNorm),
    "attention, rms": lambda: Tokens(nn.RMSNorm),
}  # fmt: skip


def trained(draw: random.Random, family: str) -> tuple[nn.Module, Tensor]:
    """Return a classifier after a few steps on three blobs, and samples of them."""
    model = FAMILIES[family]()
    centres = draw.choice([0.7, 2.0]) * torch.randn(CLASSES, 12)
    labels = torch.arange(90) % CLASSES
    data = centres[labels] + draw.choice([0.3, 1.0]) * torch.randn(90, 12)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(draw.choice([0, 20, 80])):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), labels).backward()
        optimizer.step()
    return model.eval(), data[:4]


def attack(seed: int) -> Outcome:
    """Train a classifier, certify some samples, and look for another class inside each radius."""
    with drawing(f"radii {seed}") as draw:
        family = [*FAMILIES][seed % len(FAMILIES)]
        model, x = trained(draw, family)
        dtype, effort = draw.choice([torch.float32, torch.float64]), draw.choice(["fast", "tight"])
    model, x = model.to(dtype), x.to(dtype)
    outcome = Outcome("radii", (family, effort, str(dtype).removeprefix("torch.")))
    found = ns.certified_radius(model, x, effort=effort, attack=False)
    twin = double_twin(model).requires_grad_(False)
    for sample, (radius, label) in enumerate(zip(found.radius, found.label, strict=True)):
        if not 0 < radius < math.inf:
            outcome.remarks.append("no radius" if radius == 0 else "no other class")
            continue
        for share in SHARES:
            margin, size, point = least_margin(twin, x[sample].double(), label, share * radius, seed)
            words = f"seed {seed}, sample {sample}: another class wins at {share} of {radius!r} by {-margin!r}"
            outcome.check(margin > -256 * EPS * size, words)
            own = model(point[None].to(dtype)).detach()[0].double()
            room = 256 * torch.finfo(dtype).eps * size
            outcome.check(_margin(own[None], label).item() > -room, f"{words}, in the model's own float")
    return outcome


def least_margin(twin: nn.Module, x: Tensor, label: int, radius: float, seed: int) -> tuple[float, float, Tensor]:
    """The smallest lead of a label found inside a ball, the size of its outputs there, and the point."""
    generator = torch.Generator().manual_seed(seed)
    others = [other for other in range(CLASSES) if other != label]
    rivals = torch.tensor([others[start % len(others)] for start in range(STARTS)])
    move = torch.randn(STARTS, x.numel(), generator=generator, dtype=torch.float64)
    lengths = radius * torch.rand(STARTS, 1, generator=generator, dtype=torch.float64)
    move = move / move.norm(dim=1, keepdim=True) * lengths
    best, size, point = math.inf, 1.0, x
    for step in range(STEPS):
        z = (x + move).requires_grad_(True)
        logits = twin(z)
        margins = _margin(logits.detach(), label)
        if float(margins.min()) < best:
            worst = int(margins.argmin())
            best, size, point = float(margins[worst]), float(logits[worst].detach().abs().max()), z[worst].detach()
        lead = logits[:, label] - logits.gather(1, rivals[:, None])[:, 0]
        (slope,) = torch.autograd.grad(lead.sum(), z)
        rate = 0.5 * radius * (0.02 ** (step / STEPS))
        move = move - rate * slope / slope.norm(dim=1, keepdim=True).clamp(min=1e-300)
        move = move * (radius * (1 - 4 * EPS) / move.norm(dim=1, keepdim=True).clamp(min=1e-300)).clamp(max=1.0)
    return best, size, point


def _margin(logits: Tensor, label: int) -> Tensor:
    """The lead of a label over the best other one, by row."""
    others = logits.clone()
    others[:, label] = -math.inf
    return logits[:, label] - others.amax(1)
