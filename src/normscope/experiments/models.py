"""Small networks for 8x8 images, initialised from a generator of their own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

Normalizer = Literal["none", "batch", "layer", "group"]
GROUPS = 8
"""Of GroupNorm; a width must be divisible by it."""


def mlp(*, generator: torch.Generator, normalizer: Normalizer = "none", width: int = 128, depth: int = 4) -> nn.Module:
    """Return a ReLU network of `depth` linear layers from (1, 8, 8) images to 10 logits.

    Args:
        generator: draws the weights; torch's global generator is left alone.
        normalizer: what stands between each hidden linear layer and its activation; `"group"` takes 8 groups.
        width: of the hidden layers.
        depth: number of linear layers.

    Returns:
        A network in train mode.
    """
    between: dict[Normalizer, Callable[[], nn.Module]] = {
        "batch": lambda: nn.BatchNorm1d(width),
        "layer": lambda: nn.LayerNorm(width),
        "group": lambda: nn.GroupNorm(GROUPS, width),
    }
    with torch.device("meta"):
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for index in range(1, depth):
            layers[f"linear{index}"] = nn.Linear(width if index > 1 else 64, width)
            if normalizer != "none":
                layers[f"norm{index}"] = between[normalizer]()
            layers[f"relu{index}"] = nn.ReLU()
        layers[f"linear{depth}"] = nn.Linear(width, 10)
        network = nn.Sequential(layers)
    return initialise(network, generator=generator)


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


def residual_mlp(*, generator: torch.Generator, width: int = 64, blocks: int = 4) -> nn.Module:
    """Return a residual ReLU network with BatchNorm from (1, 8, 8) images to 10 logits.

    Its blocks are optional, as the skips lead around them: one that dies leaves no trace in the accuracy.

    Args:
        generator: draws the weights; torch's global generator is left alone.
        width: of the stream and inside the blocks.
        blocks: of two linear layers each.

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
    return initialise(network, generator=generator)


def initialise(network: nn.Module, *, generator: torch.Generator) -> nn.Module:
    """Give a network built on the meta device real weights: He's for linear maps, the defaults for normalizers.

    Args:
        network: built under `torch.device("meta")`, so that building it drew no random numbers.
        generator: draws the weights; they lie on its device.

    Returns:
        The same network.
    """
    network.to_empty(device=generator.device)
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm):
            module.reset_parameters()
    return network
