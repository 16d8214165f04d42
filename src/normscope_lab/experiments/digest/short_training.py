"""Short watched trainings for the digest's experiments: networks, data sets, initialisations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normscope import watch
from normscope.data import Split, cifar10, digits, mnist
from normscope.networks import draw_weights
from normscope.toolkit import InputError, Record

from ..base import Settings
from ..vision import relu_network, resnet18

JPEG = "The images of CIFAR-10 went through JPEG (quality 75) once."


def load(settings: Settings, name: str, seed: int) -> Split:
    """Return a data set, standardised where it is not digits; the others come from the folder of the settings."""
    if name == "digits":
        return digits(generator=torch.Generator().manual_seed(seed))
    if "data_folder" not in settings:
        raise InputError(f"this needs {name}: give the folder of the data sets with --data")
    return (mnist if name == "mnist" else cifar10)(settings["data_folder"], limit=settings["images"])


def build(name: str, shape: tuple[int, ...], generator: torch.Generator) -> nn.Module:
    """Return a small network with BatchNorm: `mlp`, `cnn` or `resnet`."""
    if name == "mlp":
        return relu_network(shape, generator=generator, depth=6, width=64, batch_norm=True)  # type: ignore[arg-type]
    if name == "resnet":
        return resnet18(shape[0], generator=generator, base=4)
    with torch.device("meta"):
        layers: list[nn.Module] = []
        for inner, outer, stride in ((shape[0], 8, 1), (8, 16, 2), (16, 16, 1), (16, 32, 2)):
            layers += [nn.Conv2d(inner, outer, 3, stride, 1), nn.BatchNorm2d(outer), nn.ReLU()]
        network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return draw_weights(network, generator=generator)


@torch.no_grad()
def begin_with(model: nn.Module, name: str, generator: torch.Generator) -> None:
    """Give the weights another initialisation; `small` and `large` change their variance tenfold, `he` keeps them."""
    draw: dict[str, Callable[..., Tensor]] = {
        "xavier": nn.init.xavier_normal_,
        "orthogonal": partial(nn.init.orthogonal_, gain=2**0.5),
    }
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            if name in draw:
                draw[name](module.weight, generator=generator)
            elif name != "he":
                module.weight *= 10.0 ** (0.5 if name == "large" else -0.5)


def batches(images: Tensor, labels: Tensor, size: int, steps: int, generator: torch.Generator) -> Iterator[Any]:
    """Yield a number of mini-batches, with a new order in every epoch; smaller last batches are left out."""
    done = 0
    while done < steps:
        order = torch.randperm(len(images), generator=generator)
        for rows in order[: len(order) - len(order) % size].split(size):
            if done == steps:
                return
            done += 1
            yield images[rows], labels[rows]


def train_watched(
    model: nn.Module,
    split: Split,
    *,
    size: int,
    steps: int,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
) -> tuple[Record, ...]:
    """Train with cross entropy and return what `ns.watch` measured at the first step and at the last."""
    model.train()
    with watch(model, optimizer, every={"full": max(1, steps - 1)}, overhead=None, panel=False) as run:
        for images, labels in batches(split.train_images, split.train_labels, size, steps, generator):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    model.eval()
    return run.records


@torch.no_grad()
def scores(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the cross entropy and the accuracy of a model, in its present mode."""
    outputs = torch.cat([model(part) for part in images.split(1000)])
    loss = nn.functional.cross_entropy(outputs, labels)
    return float(loss), float((outputs.argmax(1) == labels).double().mean())
