"""The ladder of a 10-layer 512-wide BatchNorm network trained on CIFAR-10.

    python benchmarks/trained_ladder.py FOLDER [--epochs 5] [--device cuda] [--weights FILE] [--seconds 15 60]

FOLDER holds CIFAR-10's python batches. Prints the accuracy, every rung in log10 and the seconds each part took, then
what the optimised certificate reaches within each of the budgets. FILE keeps the trained weights, and is read instead
of training if it exists.
"""

import argparse
import pathlib
import time

import torch
from torch import nn

import normscope as ns
from normscope.data import cifar10


def network(depth: int = 10, width: int = 512) -> nn.Sequential:
    """Return `depth` linear layers with BatchNorm and ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for index in range(depth - 1):
        layers += [nn.Linear(width if index else 3072, width), nn.BatchNorm1d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int, lr: float) -> None:
    """Train with Adam in batches of 256."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for epoch in range(epochs):
        order = torch.randperm(len(images))
        for part in order.split(256):
            loss = nn.functional.cross_entropy(model(images[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss of the last batch {loss.item():.3f}", flush=True)


def main() -> None:
    """Train, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weights", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, nargs="*", default=[15.0])
    arguments = parser.parse_args()
    if arguments.folder is None:
        print("trained_ladder: skipped, give the folder with CIFAR-10's python batches to run it")
        return
    data = cifar10(arguments.folder)
    images, labels = data.train_images.to(arguments.device), data.train_labels.to(arguments.device)
    tests, answers = data.test_images.to(arguments.device), data.test_labels.to(arguments.device)
    torch.manual_seed(0)
    model = network().to(arguments.device)
    began = time.perf_counter()
    if arguments.weights is not None and arguments.weights.exists():
        model.load_state_dict(torch.load(arguments.weights, map_location=arguments.device, weights_only=True))
    else:
        train(model, images, labels, arguments.epochs, arguments.lr)
        if arguments.weights is not None:
            torch.save(model.state_dict(), arguments.weights)
    model.eval()
    with torch.no_grad():
        right = (model(tests).argmax(1) == answers).float().mean()
    print(f"test accuracy {right:.3f}, trained in {time.perf_counter() - began:.0f} s on {arguments.device}")
    began = time.perf_counter()
    print(ns.ladder(model, tests[:256]))
    print(f"ladder in {time.perf_counter() - began:.1f} s")
    for seconds in arguments.seconds:
        began = time.perf_counter()
        bracket = ns.lipschitz(model, tests[:256], effort="tight", max_seconds=seconds)
        print(f"tight, max_seconds={seconds:g}: {bracket.log10_upper:.4f}, {time.perf_counter() - began:.1f} s in all")


if __name__ == "__main__":
    main()
