"""Certified accuracy of small trained classifiers by radius, beside a strong l2 attack.

    python benchmarks/certified_accuracy.py [FOLDER] [--samples 100] [--epochs 15] [--efforts fast tight] [--device cpu]

Trains the demo's networks and a block of attention on scikit-learn's digits (pixels in [0, 1]) and, if FOLDER holds
MNIST's idx files, an MLP and a convolutional network on MNIST (standardised: divide by 3.25 to speak of pixels in
[0, 1]). Prints for each, at several radii, the accuracy certified by the constants over all inputs alone, by each
effort, and the accuracy the attack leaves, with the seconds each took.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from normscope.bounds.radius.certifier import difference_constants
from normscope.bounds.radius.radii import Radii
from normscope.bounds.radius.radius import certified_radius
from normscope.bounds.traced_network import TracedNetwork
from normscope.data import Split, digits, mnist
from normscope.networks import small as models
from normscope.networks.small import accuracy, train

DIGITS = (0.02, 0.05, 0.1, 0.2, 0.3)
MNIST = (0.1, 0.25, 0.5, 1.0, 1.5)


class Patches(nn.Module):
    """16 patches of 2x2 pixels as tokens, one pre-norm block of attention, and a linear head."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(16 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return ten logits."""
        patches = x.reshape(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, 16, 4)
        tokens = self.embed(patches)
        seen = self.norm1(tokens)
        tokens = tokens + self.attention(seen, seen, seen, need_weights=False)[0]
        return self.head((tokens + self.mlp(self.norm2(tokens))).flatten(1))


def convolutional() -> nn.Module:
    """Return two strided convolutions and two linear layers for 28x28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 4, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 49, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def perceptron() -> nn.Module:
    """Return three linear layers for 28x28 images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))


def global_accuracy(
    model: nn.Module, x: Tensor, y: Tensor, at: Sequence[float], effort: str
) -> tuple[list[float], float]:
    """Return the accuracy certified by the constants over all inputs alone, and the seconds it took."""
    began = time.perf_counter()
    constants = difference_constants(TracedNetwork.of(model, x), effort=effort)
    with torch.no_grad():
        logits = model(x).double()
    gaps = (logits.gather(1, y[:, None]) - logits).scatter(1, y[:, None], math.inf)
    radius = (gaps / constants[y]).amin(1)
    right = gaps.amin(1) > 0
    return [float((right & (radius >= r)).double().mean()) for r in at], time.perf_counter() - began


def row(name: str, values: Sequence[float | None], note: str) -> str:
    """Return one line of the table."""
    shown = "".join(f"{100 * value:9.1f}" if value is not None else f"{'-':>9}" for value in values)
    return f"  {name:<18}{shown}   {note}"


def measure(name: str, model: nn.Module, data: Split, at: Sequence[float], arguments: argparse.Namespace) -> None:
    """Train nothing more: certify, attack and print."""
    x, y = data.test_images[: arguments.samples].to(arguments.device), data.test_labels[: arguments.samples]
    y = y.to(arguments.device)
    model = model.to(arguments.device).eval()
    clean = accuracy(model, data.test_images.to(arguments.device), data.test_labels.to(arguments.device))
    print(f"{name}: test accuracy {100 * clean:.1f} %, {len(x)} samples certified")
    print("  " + " " * 18 + "".join(f"{radius:9g}" for radius in at) + "   radius (l2)")
    found: Radii | None = None
    for effort in arguments.efforts:
        certified, seconds = global_accuracy(model, x, y, at, effort)
        print(row(f"global, {effort}", certified, f"{seconds:.1f} s"))
        began = time.perf_counter()
        found = certified_radius(model, x, labels=y, effort=effort, attack=effort == arguments.efforts[-1])
        note = f"{time.perf_counter() - began:.1f} s" + (" with the attack" if effort == arguments.efforts[-1] else "")
        print(row(f"certified, {effort}", [found.certified_accuracy(radius) for radius in at], note))
    assert found is not None
    ratio = sorted(
        radius / attacked
        for radius, attacked in zip(found.radius, found.attacked, strict=True)
        if attacked is not None and 0 < attacked < math.inf
    )
    note = f"certified/attacked radius: median {ratio[len(ratio) // 2]:.2f}" if ratio else ""
    print(row("under attack", [found.attacked_accuracy(radius) for radius in at], note), flush=True)


def trained(build: Callable[[torch.Generator], nn.Module], data: Split, epochs: int) -> nn.Module:
    """Return a network trained from seed 0."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = build(generator)
    train(model, data.train_images, data.train_labels, generator=generator, epochs=epochs)
    return model


def main() -> None:
    """Train, certify, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--efforts", nargs="+", choices=("fast", "tight"), default=("fast", "tight"))
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    data = digits(generator=torch.Generator().manual_seed(0))
    networks: dict[str, Callable[[torch.Generator], nn.Module]] = {
        "digits, MLP": lambda generator: models.mlp(generator=generator),
        "digits, MLP + BatchNorm": lambda generator: models.mlp(generator=generator, normalizer="batch"),
        "digits, MLP + LayerNorm": lambda generator: models.mlp(generator=generator, normalizer="layer"),
        "digits, MLP + GroupNorm": lambda generator: models.mlp(generator=generator, normalizer="group"),
        "digits, residual MLP + BatchNorm": lambda generator: models.residual_mlp(generator=generator),
        "digits, attention": lambda _: Patches(),
    }
    for name, build in networks.items():
        measure(name, trained(build, data, arguments.epochs), data, DIGITS, arguments)
    if arguments.folder is None:
        print("certified_accuracy: MNIST skipped, give the folder with its idx files to run it")
        return
    data = mnist(arguments.folder)
    for name, make in {"MNIST, MLP 784-100-50-10": perceptron, "MNIST, convolutional": convolutional}.items():
        model = trained(lambda _, make=make: make(), data, max(1, arguments.epochs // 5))
        measure(name, model, data, MNIST, arguments)


if __name__ == "__main__":
    main()
