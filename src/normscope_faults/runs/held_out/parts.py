"""What several topics share."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ...data import as_pixels, blob_images, communities, ratings
from ...networks import mlp
from ..data import Data, split
from ..loops import Watch, or_minus_infinity


def descend(
    watch: Watch,
    model: nn.Module,
    optimizer: Optimizer,
    steps: int,
    loss_of: Callable[[int], Tensor],
    *,
    clip: float | None = None,
    schedule: Any = None,
    then: Callable[[Any, int], None] | None = None,
) -> None:
    """Train as a user would whose loss needs more than outputs and targets; `then` gets the run and the step."""
    model.train()
    with watch(model, optimizer) as run:
        for step in range(steps):
            optimizer.zero_grad()
            loss = loss_of(step)
            run.observe(loss=loss)
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            if then is not None:
                then(run, step)


def tastes(count: int = 2048) -> Data:
    """Return pairs of user and item, and standardised ratings."""
    return split(*ratings(count))


def echoes(count: int = 1024, length: int = 24, vocabulary: int = 40) -> Data:
    """Return token ids and the ids that follow: six in seven repeat the third token before, the others are random."""
    ids = torch.randint(vocabulary, (count, length + 1))
    for place in range(3, length + 1):
        ids[:, place] = torch.where(torch.rand(count) < 6 / 7, ids[:, place - 3], ids[:, place])
    return split(ids[:, :-1], ids[:, 1:])


def moves(count: int = 1536) -> Data:
    """Return situations of a game of one move, and the one move of four that wins."""
    x = torch.randn(count, 6)
    return split(x, (x @ torch.randn(6, 4)).argmax(1))


def played(policy: nn.Module, x: Tensor, best: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log probabilities of all moves, those of the moves drawn, and the rewards of these."""
    chances = policy(x).log_softmax(1)
    drawn = (chances.detach() - (-torch.rand_like(chances).log()).log()).argmax(1)
    return chances, chances.gather(1, drawn[:, None])[:, 0], (drawn == best).float()


def entropy(chances: Tensor) -> Tensor:
    """Return the mean entropy of distributions given by log probabilities."""
    return -(chances.exp() * chances).sum(1).mean()


def graph(nodes: int = 240) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return features, edges and classes of nodes, and which of these to train on and which to hold out."""
    features, edges, labels = communities(nodes)
    order = torch.randperm(nodes)
    return features, edges, labels, order[: nodes // 2], order[nodes // 2 :]


@torch.no_grad()
def share_right(output: Tensor, labels: Tensor) -> float:
    """Return the share of samples that are put into their class, minus infinity if an output is not finite."""
    return (output.argmax(-1) == labels).float().mean().item() if output.isfinite().all() else -math.inf


def pictures(count: int = 1280, size: int = 16) -> Data:
    """Return flattened images in 0..1, which are their own targets."""
    images = as_pixels(blob_images(count, size=size)[0]).flatten(1)
    return split(images, images)


def views(x: Tensor, noise: float = 0.4) -> tuple[Tensor, Tensor]:
    """Return two noisy copies."""
    return x + noise * torch.randn_like(x), x + noise * torch.randn_like(x)


def likeness_of_held_out(embed: nn.Module, data: Data) -> float:
    """Return the share of held samples whose nearest training sample, by cosine, is of their class."""
    with torch.no_grad():
        embed.eval()
        codes, held = (F.normalize(embed(x), dim=1) for x in (data.x, data.held_x))
    if not (codes.isfinite().all() and held.isfinite().all()):
        return -math.inf
    return (data.y[(held @ codes.T).argmax(1)] == data.held_y).float().mean().item()


class Quantised(nn.Module):
    """An autoencoder whose code is the nearest of sixteen entries, which start at the codes of the samples given."""

    def __init__(self, samples: Tensor) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(256, 64, 4), mlp(4, 64, 256)
        self.codebook = nn.Parameter(self.encoder(samples[:16]).detach())

    def forward(self, x: Tensor) -> Tensor:
        code = self.encoder(x)
        nearest = self.codebook[torch.cdist(code, self.codebook).argmin(1)]
        self.commitment = 0.25 * F.mse_loss(code, nearest.detach()) + F.mse_loss(nearest, code.detach())
        nearest = code + (nearest - code).detach()
        return self.decoder(nearest)


@torch.no_grad()
def better_than_the_mean(model: nn.Module, data: Data) -> float:
    """Return how much better than the mean image a reconstruction is."""
    return or_minus_infinity(1 - F.mse_loss(model(data.held_x), data.held_x) / data.held_x.var(0).mean())


@torch.no_grad()
def _negative_loss(model: nn.Module, data: Data) -> float:
    """Return minus the cross entropy on the held-out data, which overfitting raises before accuracy falls."""
    return -F.cross_entropy(model.eval()(data.held_x), data.held_y).item()
