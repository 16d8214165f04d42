"""Models with nothing wrong: fresh and trained, with every normalizer and with none.

Each is a function of a seed that returns a `Case`; what was trained is trained once per seed.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.data import Split, digits
from normscope.networks.small import draw_weights, mlp, train


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and how to audit it; `where` and `code` are what was planted."""

    model: nn.Module
    batch: Any
    loader: list[Any]
    mode: str | None = None
    output: str | None = None
    where: str = ""
    code: str = ""


HEALTHY: dict[str, Callable[[int], Case]] = {}


def healthy(build: Callable[[int], Case]) -> Callable[[int], Case]:
    HEALTHY[build.__name__] = build
    return build


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@functools.cache
def data(seed: int) -> Split:
    return digits(generator=generator(seed))


def images(seed: int, *, size: int = 64, batches: int = 4) -> list[Tensor]:
    return list(data(seed).train_images[: size * batches].split(size))


def case(model: nn.Module, seed: int, **known: Any) -> Case:
    loader = known.pop("loader", None) or images(seed)
    return Case(model=model, batch=loader[0][:4], loader=loader, **known)


def trained(model: nn.Module, seed: int, *, epochs: int, forward: nn.Module | None = None) -> nn.Module:
    """Train on digits; `forward` wraps models that return more than logits."""
    split = data(seed)
    train(forward or model, split.train_images, split.train_labels, generator=generator(seed), epochs=epochs)
    return model.eval()


# ------------------------------------------------------------------ networks


class Block(nn.Module):
    """Two convolutions with BatchNorm and a skip."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.skip = nn.Sequential()
        if stride > 1:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.out = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.out(self.bn2(self.conv2(y)) + self.skip(x))


class ResNet(nn.Module):
    """A stem and two blocks for 8x8 images."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
        self.layer1 = Block(channels, channels, 1)
        self.layer2 = Block(channels, 2 * channels, 2)
        self.head = nn.Linear(2 * channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


def resnet(seed: int, zero_init: bool = False) -> nn.Module:
    with torch.device("meta"):
        network = ResNet()
    network = draw_weights(network, generator=generator(seed))
    for module in network.modules():
        if zero_init and isinstance(module, Block):
            nn.init.zeros_(module.bn2.weight)
    return network


def group_cnn(seed: int, groups: int = 4) -> nn.Module:
    """Convolutions with GroupNorm, the last of them after pooling."""
    with torch.device("meta"):
        network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.GroupNorm(groups, 32),
            nn.ReLU(),
            nn.Linear(32, 10),
        )
    draw_weights(network, generator=generator(seed))
    for module in network.modules():
        if isinstance(module, nn.GroupNorm):
            module.reset_parameters()
    return network


def vgg(seed: int) -> nn.Module:
    """Seven convolutions without a normalizer."""
    with torch.device("meta"):
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, 16), (16, 16), (16, 16), (16, 32), (32, 32), (32, 32), (32, 32)):
            stride = 2 if outputs > inputs > 1 else 1
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.ReLU()]
        network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return draw_weights(network, generator=generator(seed))


def vit(seed: int) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, image_size=8, patch_size=2,
        num_channels=1, num_labels=10,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ViTForImageClassification(config).eval()


def gpt2(seed: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=24, n_layer=1, n_head=2, n_positions=16, vocab_size=32, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config).eval()


def sentences(seed: int, batches: int = 4) -> list[dict[str, Tensor]]:
    """Token ids that count upwards from a random start, in steps of one to three."""
    draw = generator(seed)
    found = []
    for _ in range(batches):
        start = torch.randint(0, 32, (16, 1), generator=draw)
        step = torch.randint(1, 4, (16, 1), generator=draw)
        ids = (start + step * torch.arange(12)) % 32
        found.append({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return found


def spoken(model: nn.Module, seed: int, **known: Any) -> Case:
    loader = sentences(seed)
    batch = {name: value[:2] for name, value in loader[0].items()}
    return Case(model=model, batch=batch, loader=loader, output="logits", **known)


# ------------------------------------------------- trained once, handed out as copies


class Logits(nn.Module):
    """Only the logits of a Hugging Face model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


@functools.cache
def _trained(build: Callable[[int], nn.Module], seed: int) -> nn.Module:
    model = build(seed)
    if build is vit:
        return trained(model, seed, epochs=4, forward=Logits(model))
    if build is not gpt2:
        return trained(model, seed, epochs=4)
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=3e-3)
    for batch in sentences(seed + 1, 60):
        optimizer.zero_grad()
        model(**batch, labels=batch["input_ids"]).loss.backward()
        optimizer.step()
    model.zero_grad()
    return model.eval()


def after_training(build: Callable[[int], nn.Module], seed: int) -> nn.Module:
    return copy.deepcopy(_trained(build, seed))


def plain_mlp(seed: int) -> nn.Module:
    return mlp(generator=generator(seed), depth=6, width=32)


def batch_mlp(seed: int) -> nn.Module:
    return mlp(generator=generator(seed), normalizer="batch", width=32)


def layer_mlp(seed: int) -> nn.Module:
    return mlp(generator=generator(seed), normalizer="layer", width=32)


# ---------------------------------------------------------------- the models


@healthy
def fresh_resnet_in_train_mode(seed: int) -> Case:
    return case(resnet(seed, zero_init=True), seed, mode="train")


@healthy
def fresh_resnet_in_eval_mode(seed: int) -> Case:
    return case(resnet(seed), seed, mode="eval")


@healthy
def trained_resnet(seed: int) -> Case:
    return case(after_training(resnet, seed), seed)


@healthy
def fresh_vit(seed: int) -> Case:
    return case(vit(seed), seed, output="logits")


@healthy
def trained_vit(seed: int) -> Case:
    return case(after_training(vit, seed), seed, output="logits")


@healthy
def fresh_gpt2(seed: int) -> Case:
    return spoken(gpt2(seed), seed)


@healthy
def trained_gpt2(seed: int) -> Case:
    return spoken(after_training(gpt2, seed), seed)


@healthy
def fresh_plain_mlp(seed: int) -> Case:
    return case(plain_mlp(seed), seed)


@healthy
def trained_plain_mlp(seed: int) -> Case:
    return case(after_training(plain_mlp, seed), seed)


@healthy
def trained_batch_mlp(seed: int) -> Case:
    return case(after_training(batch_mlp, seed), seed)


@healthy
def trained_layer_mlp(seed: int) -> Case:
    return case(after_training(layer_mlp, seed), seed)


@healthy
def trained_group_cnn(seed: int) -> Case:
    return case(after_training(group_cnn, seed), seed)


@healthy
def fresh_vgg(seed: int) -> Case:
    return case(vgg(seed), seed)
