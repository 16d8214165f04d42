"""Data that looks like real data, drawn from torch's global generator: builders begin with `torch.manual_seed`."""

import math

import torch
from torch import Tensor


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


def noisy_images(count: int = 48) -> tuple[dict[str, Tensor], Tensor]:
    """Return images with noise by time (0..1000) and the noise."""
    images, _ = blob_images(count, size=8)
    time, noise = torch.randint(1000, (count,)).float(), torch.randn_like(images)
    level = (time / 1000)[:, None, None, None]
    return {"x": (1 - level).sqrt() * images + level.sqrt() * noise, "t": time}, noise


def image_pairs(count: int = 64) -> tuple[Tensor, Tensor]:
    """Return pairs of images as two channels, and whether both are of one class (every other pair is)."""
    images, labels = blob_images(2 * count)
    partner = torch.where(torch.arange(count) % 2 == 0, torch.arange(count) + count, torch.arange(count) + count + 1)
    partner = partner % (2 * count)
    pairs = torch.cat([images[:count], images[partner]], dim=1)
    return pairs, (labels[:count] == labels[partner]).float()
