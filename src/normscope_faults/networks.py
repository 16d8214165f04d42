"""Small sensible networks in which faults are planted; their weights come from torch's global generator."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def mlp(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers with an activation between any two, He's initialisation for rectifiers, Glorot's else."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    model = nn.Sequential(*layers[:-1])
    for module in layers[:-2]:
        if isinstance(module, nn.Linear):
            if activation is nn.ReLU:
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            else:
                nn.init.xavier_normal_(module.weight)
            nn.init.zeros_(module.bias)
    return model


class ConvNet(nn.Module):
    """Convolutions with BatchNorm or without, the first with stride 2, a pooling, mean over places, a linear head."""

    def __init__(self, channels: int = 1, width: int = 16, depth: int = 4, classes: int = 4, norm: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for index in range(depth):
            inner, stride = (channels, 2) if index == 0 else (width, 1)
            conv = nn.Conv2d(inner, width, 3, stride, padding=1, bias=not norm)
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            layers += [conv, nn.BatchNorm2d(width), nn.ReLU()] if norm else [conv, nn.ReLU()]
            if index == depth // 2 - 1:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class ResidualBlock(nn.Module):
    """The basic block of a ResNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    """A stem, basic blocks at half the size, mean over places, a linear head."""

    def __init__(self, channels: int = 1, width: int = 12, blocks: int = 3, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.blocks = nn.Sequential(*(ResidualBlock(width) for _ in range(blocks)))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def double_conv(inner: int, outer: int) -> nn.Sequential:
    """Return two convolutions with GroupNorm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1), nn.GroupNorm(4, outer), nn.ReLU(),
        nn.Conv2d(outer, outer, 3, padding=1), nn.GroupNorm(4, outer), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """Two levels down, two up, joined by concatenation."""

    def __init__(self, channels: int = 1, width: int = 8, outputs: int = 1) -> None:
        super().__init__()
        self.down1, self.down2 = double_conv(channels, width), double_conv(width, 2 * width)
        self.bottom = double_conv(2 * width, 2 * width)
        self.up2, self.up1 = double_conv(4 * width, width), double_conv(2 * width, width)
        self.head = nn.Conv2d(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        low = self.bottom(F.max_pool2d(second, 2))
        middle = self.up2(torch.cat([F.interpolate(low, scale_factor=2), second], dim=1))
        return self.head(self.up1(torch.cat([F.interpolate(middle, scale_factor=2), first], dim=1)))


class SelfAttention(nn.Module):
    """Multi-head attention with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the values that the queries look at, (batch, heads, length, width)."""
        return F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(*parts).transpose(1, 2).reshape(batch, length, width))


class TransformerBlock(nn.Module):
    """The block of GPT-2: LayerNorm before attention and before the MLP."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), SelfAttention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


def initialise_transformer(model: nn.Module) -> None:
    """Draw the weights as GPT-2 does: all of standard deviation 0.02, biases zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


class GPT(nn.Module):
    """A small decoder with learned positions, for token ids."""

    def __init__(self, vocabulary: int = 40, width: int = 32, depth: int = 2, length: int = 24, tied: bool = True):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, 4, causal=True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        initialise_transformer(self)
        if tied:
            self.head.weight = self.tokens.weight

    def embed(self, ids: Tensor) -> Tensor:
        """Return the sum of the embeddings of tokens and places."""
        return self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ViT(nn.Module):
    """Patches, a class token, pre-norm blocks, a linear head."""

    def __init__(self, channels: int = 1, size: int = 16, patch: int = 4, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, 4, causal=False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class SentenceEncoder(nn.Module):
    """A small BERT of torch's own layers, with a class token, for two classes."""

    def __init__(self, vocabulary: int = 50, width: int = 32, depth: int = 2, length: int = 16, dropout: float = 0.0):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head(self.encoder(self.norm(x)).mean(1))


class SequenceClassifier(nn.Module):
    """A recurrent layer and a linear head that reads the last state."""

    def __init__(self, recurrent: nn.RNNBase, classes: int) -> None:
        super().__init__()
        self.recurrent = recurrent
        self.head = nn.Linear(recurrent.hidden_size, classes)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.recurrent(series)[0][:, -1])


class GraphLayer(nn.Module):
    """Mean over neighbours beside the node itself (GraphSAGE), summed with index_add."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.own, self.neighbour = nn.Linear(inner, outer), nn.Linear(inner, outer, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        degree = torch.zeros(len(x), 1, dtype=x.dtype).index_add(0, target, torch.ones(len(target), 1, dtype=x.dtype))
        total = torch.zeros_like(x).index_add(0, target, x[source])
        return self.own(x) + self.neighbour(total / degree.clamp(min=1))


class GraphNet(nn.Module):
    """Graph layers with ReLU between them, on a fixed graph, one output per node and class."""

    def __init__(self, edges: Tensor, features: int = 8, width: int = 16, depth: int = 2, classes: int = 3) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        sizes = [features] + [width] * (depth - 1) + [classes]
        self.layers = nn.ModuleList(GraphLayer(inner, outer) for inner, outer in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x, self.edges))
        return self.layers[-1](x, self.edges)


class Recommender(nn.Module):
    """Embeddings of user and item, joined by an MLP."""

    def __init__(self, users: int = 40, items: int = 30, width: int = 8) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.tower = mlp(2 * width, 32, 16, 1)

    def forward(self, pairs: Tensor) -> Tensor:
        joined = torch.cat([self.users(pairs[:, 0]), self.items(pairs[:, 1])], dim=1)
        return self.tower(joined).squeeze(1)


class Autoencoder(nn.Module):
    """An encoder and a decoder of linear layers around a narrow code, for flattened images."""

    def __init__(self, inputs: int = 256, code: int = 8, last: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(inputs, 64, 32, code), mlp(code, 32, 64, inputs)
        self.last = last or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.decoder(self.encoder(x)))


class VAE(nn.Module):
    """A variational autoencoder that returns the reconstruction's logits, the mean and the log variance."""

    def __init__(self, inputs: int = 256, code: int = 4) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(64, code), nn.Linear(64, code)
        self.decoder = mlp(code, 64, inputs)

    def draw(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """Draw a code."""
        return mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.decoder(self.draw(mean, log_variance)), mean, log_variance


class Generator(nn.Module):
    """The generator of a DCGAN: from noise to images in -1..1."""

    def __init__(self, noise: int = 16, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(noise, width, 4, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.ConvTranspose2d(width, width, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1), nn.Tanh(),
        )  # fmt: skip
        for module in self.layers:
            if isinstance(module, nn.ConvTranspose2d):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, noise: Tensor) -> Tensor:
        return self.layers(noise[:, :, None, None])


def discriminator(wrap: Callable[[nn.Module], nn.Module] = lambda layer: layer) -> nn.Sequential:
    """Return a convolutional discriminator with one output; `wrap` is applied to each layer with weights."""
    return nn.Sequential(
        wrap(nn.Conv2d(1, 16, 4, stride=2, padding=1)), nn.LeakyReLU(0.2),
        wrap(nn.Conv2d(16, 16, 4, stride=2, padding=1)), nn.LeakyReLU(0.2),
        nn.Flatten(), wrap(nn.Linear(16 * 16, 1)),
    )  # fmt: skip


class Denoiser(nn.Module):
    """Predicts the noise in images from the noisy images and the time; sine features of the time enter each block."""

    def __init__(self, width: int = 16, blocks: int = 2) -> None:
        super().__init__()
        self.frequencies: Tensor
        self.register_buffer("frequencies", torch.exp(-math.log(1000.0) * torch.arange(8) / 8))
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, width))
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(blocks))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(blocks))
        self.last = nn.Conv2d(width, 1, 3, padding=1)

    def embed_time(self, t: Tensor) -> Tensor:
        """Return the embedding of the times, (batch, width, 1, 1)."""
        angles = t[:, None] * self.frequencies
        return self.time(torch.cat([angles.sin(), angles.cos()], dim=1))[:, :, None, None]

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        embedding = self.embed_time(t)
        x = self.first(x)
        for norm, conv in zip(self.norms, self.convs):
            x = x + conv(F.silu(norm(x) + embedding))
        return self.last(x)


class Siamese(nn.Module):
    """Embeds both images of a pair (the two channels) with one network and returns both embeddings."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), *mlp(256, 64, width))

    def forward(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoder(pairs[:, :1]), self.encoder(pairs[:, 1:])


SMALL_GPT2: dict[str, Any] = {  # the arguments of a GPT2Config
    "vocab_size": 40,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def made(name: str, forward: Callable[..., Any], **parts: Any) -> Any:
    """Return a module with these parts, of a class of its own with this `forward(self, ...)`."""
    module = type(name, (nn.Module,), {"forward": forward})()
    for key, part in parts.items():
        setattr(module, key, part)
    return module
