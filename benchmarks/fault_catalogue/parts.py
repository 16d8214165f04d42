"""Data that looks like real data, and small sensible networks, in which faults are planted.

Functions that draw random numbers take them from torch's global generator: builders begin with `torch.manual_seed`.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# ---------------------------------------------------------------------------------------------------------------- data


def blob_images(count: int = 64, classes: int = 4, size: int = 16, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Return standardised images (one smooth blob per image, its place and width by class) and their classes."""
    labels = torch.arange(count) % classes
    angle = labels * (2 * math.pi / classes) + 0.25 * torch.randn(count)
    row, column = (size / 2 + size / 4 * direction for direction in (angle.sin(), angle.cos()))
    grid = torch.arange(size) + 0.5
    width = (size / 8) * (1 + 0.2 * torch.rand(count))
    across = ((grid - row[:, None]) / width[:, None]).square()
    along = ((grid - column[:, None]) / width[:, None]).square()
    blobs = torch.exp(-0.5 * (across[:, :, None] + along[:, None, :]))[:, None]
    tint = 0.7 + 0.6 * torch.rand(count, channels, 1, 1)
    images = blobs * tint + 0.1 * torch.randn(count, channels, size, size)
    return (images - images.mean()) / images.std(), labels


def as_pixels(images: Tensor) -> Tensor:
    """Return images in 0..1."""
    low, high = images.amin(), images.amax()
    return (images - low) / (high - low)


def table(count: int = 128, columns: int = 12, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Return standardised columns and classes that depend on them in a curved way, all equally frequent."""
    values = torch.randn(count, columns)
    score = values[:, 0] * values[:, 1] + values[:, 2].square() - 1 + 0.5 * values[:, 3]
    order = score.argsort().argsort()
    return values, order * classes // count


def regression_table(count: int = 128, columns: int = 8) -> tuple[Tensor, Tensor]:
    """Return standardised columns and a standardised column of targets that depends on them in a curved way."""
    values = torch.randn(count, columns)
    target = values[:, 0] * values[:, 1] + torch.sin(2 * values[:, 2]) + 0.5 * values[:, 3]
    return values, ((target - target.mean()) / target.std())[:, None]


def text(count: int = 32, length: int = 24, vocabulary: int = 40) -> tuple[Tensor, Tensor]:
    """Return token ids and the ids that follow: four in five by a rule of the last two, the others at random."""
    ids = torch.randint(vocabulary, (count, length + 1))
    for step in range(2, length + 1):
        ruled = (3 * ids[:, step - 1] + ids[:, step - 2] + 1) % vocabulary
        ids[:, step] = torch.where(torch.rand(count) < 0.8, ruled, ids[:, step])
    return ids[:, :-1], ids[:, 1:]


def sentences(count: int = 64, length: int = 16, vocabulary: int = 50) -> tuple[Tensor, Tensor]:
    """Return token ids and classes that depend on the order of the words: does token 7 come before token 8?"""
    ids = torch.randint(10, vocabulary, (count, length))
    labels = torch.arange(count) % 2
    places = torch.stack([torch.randperm(length)[:2].sort().values for _ in range(count)])
    rows = torch.arange(count)
    ids[rows, places[:, 0]] = 8 - labels
    ids[rows, places[:, 1]] = 7 + labels
    return ids, labels


def remembered_series(count: int = 64, steps: int = 50, features: int = 4) -> tuple[Tensor, Tensor]:
    """Return series of noise and their classes: which of the features carried the pulse of the first three steps."""
    labels = torch.arange(count) % features
    series = 0.3 * torch.randn(count, steps, features)
    series[torch.arange(count), :3, labels] += 2.0
    return series, labels


def waves(count: int = 64, steps: int = 40, features: int = 3) -> tuple[Tensor, Tensor]:
    """Return noisy sine waves and their classes by frequency."""
    labels = torch.arange(count) % 3
    time = torch.arange(steps) / steps
    phase = 2 * math.pi * torch.rand(count, 1, features)
    angle = 2 * math.pi * (2 + 2 * labels)[:, None, None] * time[None, :, None] + phase
    return 1.4 * torch.sin(angle) + 0.2 * torch.randn(count, steps, features), labels


def communities(nodes: int = 96, classes: int = 3, features: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Return features of nodes, edges (2, m) mostly within classes, and classes."""
    labels = torch.arange(nodes) % classes
    within = labels[:, None] == labels[None, :]
    linked = torch.rand(nodes, nodes) < torch.where(within, 0.2, 0.02)
    values = torch.randn(nodes, features)
    values[torch.arange(nodes), labels] += 1.0
    return values, linked.triu(1).logical_or(linked.triu(1).T).nonzero().T, labels


def ratings(count: int = 256, users: int = 40, items: int = 30) -> tuple[Tensor, Tensor]:
    """Return pairs (user, item) and standardised ratings from hidden tastes."""
    pairs = torch.stack([torch.randint(users, (count,)), torch.randint(items, (count,))], dim=1)
    tastes, kinds = torch.randn(users, 3), torch.randn(items, 3)
    score = (tastes[pairs[:, 0]] * kinds[pairs[:, 1]]).sum(1) + 0.1 * torch.randn(count)
    return pairs, (score - score.mean()) / score.std()


# ------------------------------------------------------------------------------------------------------------ networks


def mlp(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers with an activation between any two, He's initialisation for rectifiers, Glorot's else."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    model = nn.Sequential(*layers[:-1])
    for module in model[:-1]:
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


def evidence_loss(output: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the negative evidence lower bound of a VAE, per sample."""
    logits, mean, log_variance = output
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(1).mean() + divergence.mean()


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


def noisy_images(count: int = 48) -> tuple[dict[str, Tensor], Tensor]:
    """Return images with noise by time (0..1000) and the noise."""
    images, _ = blob_images(count, size=8)
    time, noise = torch.randint(1000, (count,)).float(), torch.randn_like(images)
    level = (time / 1000)[:, None, None, None]
    return {"x": (1 - level).sqrt() * images + level.sqrt() * noise, "t": time}, noise


class Siamese(nn.Module):
    """Embeds both images of a pair (the two channels) with one network and returns both embeddings."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), *mlp(256, 64, width))

    def forward(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoder(pairs[:, :1]), self.encoder(pairs[:, 1:])


def image_pairs(count: int = 64) -> tuple[Tensor, Tensor]:
    """Return pairs of images as two channels, and whether both are of one class (every other pair is)."""
    images, labels = blob_images(2 * count)
    partner = torch.where(torch.arange(count) % 2 == 0, torch.arange(count) + count, torch.arange(count) + count + 1)
    partner = partner % (2 * count)
    pairs = torch.cat([images[:count], images[partner]], dim=1)
    return pairs, (labels[:count] == labels[partner]).float()


def contrastive_loss(output: tuple[Tensor, Tensor], same: Tensor) -> Tensor:
    """Pull embeddings of one class together, push others apart up to a distance of 2 (Hadsell et al. 2006)."""
    distance = F.pairwise_distance(*output)
    return (same * distance.square() + (1 - same) * F.relu(2 - distance).square()).mean()


SMALL_GPT2: dict[str, Any] = {  # the arguments of a GPT2Config
    "vocab_size": 40,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


# ------------------------------------------------------------------------------------------------------------ training


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Callable[[Any, Tensor], Tensor],
    steps: int = 150,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Take steps on random halves of the data, with Adam unless an optimizer is given; clear the gradients."""
    optimizer = optimizer or torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    model.train()
    for _ in range(steps):
        rows = torch.randperm(len(x))[: max(2, len(x) // 2)]
        optimizer.zero_grad()
        loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
    optimizer.zero_grad()


def over_tokens(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the cross entropy of the next tokens."""
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


# ------------------------------------------------------------------------------------------------------------- judging


def binary_accuracy(target: Tensor, threshold: float = 0.0) -> Callable[[Tensor], float]:
    """Return a judge: how many outputs lie on the right side of a threshold."""
    return lambda output: ((output.reshape(target.shape) > threshold) == (target > 0.5)).float().mean().item()


def accuracy(labels: Tensor) -> Callable[[Tensor], float]:
    """Return a judge: how many samples are put into their class."""
    return lambda output: (output.argmax(1) == labels).float().mean().item()


def explained_variance(target: Tensor) -> Callable[[Any], float]:
    """Return a judge: the explained variance of an output, or of the first of several."""

    def judge(output: Any) -> float:
        first = output[0] if isinstance(output, tuple) else output
        return (1 - (first - target).square().mean() / target.var(correction=0)).item()

    return judge


def overlap_with(mask: Tensor) -> Callable[[Tensor], float]:
    """Return a judge: the intersection of the predicted area with a mask, divided by their union."""

    def judge(logits: Tensor) -> float:
        predicted, wanted = logits > 0, mask > 0.5
        return ((predicted & wanted).sum() / (predicted | wanted).sum()).item()

    return judge
