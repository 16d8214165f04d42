"""The networks of Than's figures: a deep ReLU network, ResNet18 with the stem for small images, EfficientNet-B3.

Weights are drawn by He's normal initialisation from a generator; networks map images to the logits of 10 classes.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

from normscope.networks import draw_weights

CLASSES = 10


def relu_network(
    shape: tuple[int, int, int], *, generator: torch.Generator, depth: int = 10, width: int = 512, batch_norm: bool
) -> nn.Module:
    """Return `depth` linear layers with ReLU between them, and optionally BatchNorm in front of each ReLU."""
    with torch.device("meta"):
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for index in range(1, depth):
            layers[f"linear{index}"] = nn.Linear(width if index > 1 else math.prod(shape), width)
            if batch_norm:
                layers[f"norm{index}"] = nn.BatchNorm1d(width)
            layers[f"relu{index}"] = nn.ReLU()
        layers[f"linear{depth}"] = nn.Linear(width, CLASSES)
        network = nn.Sequential(layers)
    return draw_weights(network, generator=generator)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm around a skip (He et al. 2016, Deep Residual Learning, figure 2)."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.downsample: nn.Module | None = None
        if stride != 1 or inner != outer:
            self.downsample = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to its input, which is made smaller where necessary."""
        branch = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        around = x if self.downsample is None else self.downsample(x)
        return (around + branch).relu()


def resnet18(channels: int, *, generator: torch.Generator, base: int = 64) -> nn.Module:
    """Return ResNet18 for small images: its stem is one 3x3 convolution of stride 1, without pooling."""
    with torch.device("meta"):
        widths = [base, base, 2 * base, 4 * base, 8 * base]
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(channels, base, 3, 1, 1, bias=False), bn1=nn.BatchNorm2d(base), relu=nn.ReLU()
        )
        for stage in range(1, 5):
            inner, outer, stride = widths[stage - 1], widths[stage], 1 if stage == 1 else 2
            layers[f"layer{stage}"] = nn.Sequential(BasicBlock(inner, outer, stride), BasicBlock(outer, outer, 1))
        layers |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(8 * base, CLASSES)}
        network = nn.Sequential(layers)
    return draw_weights(network, generator=generator)


class SqueezeExcite(nn.Module):
    """Channels weighted by a small network of their means (Hu et al. 2018)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Weight the channels."""
        means = nn.functional.adaptive_avg_pool2d(x, 1)
        return x * self.expand(nn.functional.silu(self.reduce(means))).sigmoid()


class MBConv(nn.Module):
    """An inverted bottleneck: expand, convolve each channel, squeeze and excite, project (Tan and Le 2019)."""

    def __init__(self, inner: int, outer: int, *, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = inner * expansion
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if expansion != 1:
            layers |= {"expand": nn.Conv2d(inner, wide, 1, bias=False), "bn0": nn.BatchNorm2d(wide), "act0": nn.SiLU()}
        spatial = nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False)
        layers |= {"spatial": spatial, "bn1": nn.BatchNorm2d(wide), "act1": nn.SiLU()}
        layers["excite"] = SqueezeExcite(wide, max(1, inner // 4))
        layers |= {"project": nn.Conv2d(wide, outer, 1, bias=False), "bn2": nn.BatchNorm2d(outer)}
        self.branch = nn.Sequential(layers)
        self.skips = stride == 1 and inner == outer

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to its input where their shapes agree."""
        branch: Tensor = self.branch(x)
        return x + branch if self.skips else branch


STAGES = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)  # fmt: skip
"""The stages of EfficientNet-B0: expansion, channels, blocks, stride and kernel."""


def efficientnet(
    channels: int, *, generator: torch.Generator, width: float = 1.2, depth: float = 1.4, divisor: int = 8
) -> nn.Module:
    """Return an EfficientNet, by default B3, without dropout and without stochastic depth."""

    def wide(count: int) -> int:
        near = max(divisor, int(count * width + divisor / 2) // divisor * divisor)
        return near + divisor if near < 0.9 * count * width else near

    with torch.device("meta"):
        inner = wide(32)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            stem=nn.Conv2d(channels, inner, 3, 2, 1, bias=False), bn=nn.BatchNorm2d(inner), act=nn.SiLU()
        )
        for number, (expansion, count, repeats, stride, kernel) in enumerate(STAGES, 1):
            blocks = []
            for index in range(math.ceil(repeats * depth)):
                step = stride if index == 0 else 1
                blocks.append(MBConv(inner, wide(count), expansion=expansion, kernel=kernel, stride=step))
                inner = wide(count)
            layers[f"stage{number}"] = nn.Sequential(*blocks)
        last = 4 * inner
        layers |= {
            "head": nn.Conv2d(inner, last, 1, bias=False),
            "head_bn": nn.BatchNorm2d(last),
            "head_act": nn.SiLU(),
            "avgpool": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
            "classifier": nn.Linear(last, CLASSES),
        }
        network = nn.Sequential(layers)
    return draw_weights(network, generator=generator)
