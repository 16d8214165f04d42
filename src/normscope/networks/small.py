"""Small networks for images, initialised from a generator of their own, and their training."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from .normalizer_modules import SampleRMSNorm

Normalizer = Literal["none", "batch", "layer", "group", "rms"]
GROUPS = 8
"""The number of groups of GroupNorm, which must divide the width."""
EPS = 1e-5
"""The eps of RMSNorm, which is torch's default for the other normalizers."""


def mlp(
    *,
    generator: torch.Generator | None = None,
    normalizer: Normalizer = "none",
    width: int = 128,
    depth: int = 4,
    inputs: int = 64,
    classes: int = 10,
) -> nn.Module:
    """Return a ReLU network of `depth` linear layers, by default from (1, 8, 8) images to 10 logits.

    Args:
        generator: draws the weights; None for one of seed 0. Torch's global generator is left alone.
        normalizer: the normalizer between each hidden linear layer and its activation; `"group"` takes 8 groups.
        width: the width of the hidden layers.
        depth: the number of linear layers.
        inputs: the number of pixels of an image, over all channels.
        classes: the number of outputs.

    Returns:
        A network in train mode.
    """
    between: dict[Normalizer, Callable[[], nn.Module]] = {
        "batch": lambda: nn.BatchNorm1d(width),
        "layer": lambda: nn.LayerNorm(width),
        "group": lambda: nn.GroupNorm(GROUPS, width),
        "rms": lambda: nn.RMSNorm(width, eps=EPS),
    }
    with torch.device("meta"):
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for index in range(1, depth):
            layers[f"linear{index}"] = nn.Linear(width if index > 1 else inputs, width)
            if normalizer != "none":
                layers[f"norm{index}"] = between[normalizer]()
            layers[f"relu{index}"] = nn.ReLU()
        layers[f"linear{depth}"] = nn.Linear(width if depth > 1 else inputs, classes)
        network = nn.Sequential(layers)
    return draw_weights(network, generator=generator)


def cnn(
    *,
    generator: torch.Generator | None = None,
    normalizer: Normalizer = "none",
    width: int = 32,
    depth: int = 4,
    channels: int = 3,
    classes: int = 10,
) -> nn.Module:
    """Return a ReLU network of `depth - 1` 3x3 convolutions, a mean over positions and one linear layer.

    Every second convolution halves the image. Normalizers treat all positions of a sample (or batch) together, with one
    scale per channel.

    Args:
        generator: draws the weights; None for one of seed 0. Torch's global generator is left alone.
        normalizer: the normalizer between each convolution and its activation; `"group"` takes 8 groups.
        width: the number of channels of the hidden layers.
        depth: the number of weight layers, two or more.
        channels: the number of channels of the images.
        classes: the number of outputs.

    Returns:
        A network in train mode.
    """
    between: dict[Normalizer, Callable[[], nn.Module]] = {
        "batch": lambda: nn.BatchNorm2d(width),
        "layer": lambda: nn.GroupNorm(1, width),
        "group": lambda: nn.GroupNorm(GROUPS, width),
        "rms": lambda: SampleRMSNorm(width, eps=EPS, affine=True),
    }
    with torch.device("meta"):
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for index in range(1, depth):
            stride = 1 if index % 2 else 2
            layers[f"conv{index}"] = nn.Conv2d(width if index > 1 else channels, width, 3, stride, padding=1)
            if normalizer != "none":
                layers[f"norm{index}"] = between[normalizer]()
            layers[f"relu{index}"] = nn.ReLU()
        layers["pool"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        layers[f"linear{depth}"] = nn.Linear(width, classes)
        network = nn.Sequential(layers)
    return draw_weights(network, generator=generator)


class ResidualBlock(nn.Module):
    """`x + second(relu(norm2(first(relu(norm1(x))))))`: the block of He et al. (2016), Identity Mappings, figure 1b."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.first = nn.BatchNorm1d(width), nn.Linear(width, width, bias=False)
        self.norm2, self.second = nn.BatchNorm1d(width), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to its input."""
        branch: Tensor = self.second(self.norm2(self.first(self.norm1(x).relu())).relu())
        return x + branch


def residual_mlp(*, generator: torch.Generator | None = None, width: int = 64, blocks: int = 4) -> nn.Module:
    """Return a residual ReLU network with BatchNorm from (1, 8, 8) images to 10 logits.

    Skip connections lead around its blocks, so that a dead block leaves no trace in the accuracy.

    Args:
        generator: draws the weights; None for one of seed 0. Torch's global generator is left alone.
        width: the width of the skip connections and inside the blocks.
        blocks: the number of blocks, of two linear layers each.

    Returns:
        A network in train mode.
    """
    with torch.device("meta"):
        network = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, width, bias=False),
            *(ResidualBlock(width) for _ in range(blocks)),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, 10),
        )
    return draw_weights(network, generator=generator)


def draw_weights(network: nn.Module, *, generator: torch.Generator | None = None) -> nn.Module:
    """Give a network on the meta device real weights: He's for linear maps, torch's defaults for normalizers.

    Args:
        network: built under `torch.device("meta")`, so that building it drew no random numbers.
        generator: draws the weights; they lie on its device. None for one of seed 0 on the CPU.

    Returns:
        The same network.
    """
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    network.to_empty(device=generator.device)
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm):
            module.reset_parameters()
        elif isinstance(module, SampleRMSNorm) and module.weight is not None:
            nn.init.ones_(module.weight)
    return network


def train(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    generator: torch.Generator,
    epochs: int = 15,
    batch_size: int = 64,
    learning_rate: float = 2e-3,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    on_epoch: Callable[[], None] | None = None,
) -> None:
    """Train `model` in place with cross entropy; it is left in eval mode.

    Args:
        model: a classifier.
        images: its inputs.
        labels: the classes.
        generator: shuffles the batches.
        epochs: the number of passes over the data.
        batch_size: the number of samples in a step; a last, smaller batch is left out.
        learning_rate: the learning rate of Adam, which is the optimizer if none is given.
        optimizer: makes another optimizer, e.g. `partial(torch.optim.AdamW, lr=1e-3, weight_decay=1e-2)`.
        on_epoch: called after every epoch.
    """
    make = optimizer or partial(torch.optim.Adam, lr=learning_rate)
    stepper = make(model.parameters())
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=generator)
        for rows in order[: len(order) - len(order) % batch_size].split(batch_size):
            stepper.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            stepper.step()
        if on_epoch is not None:
            on_epoch()
    model.zero_grad()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of `images` that `model`, in its present mode, classifies correctly."""
    return (model(images).argmax(dim=1) == labels).double().mean().item()
