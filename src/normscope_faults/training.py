"""A short training, losses beyond those of torch, and judges: functions that say how good an output is."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def evidence_loss(output: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the negative evidence lower bound of a VAE, per sample."""
    logits, mean, log_variance = output
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(1).mean() + divergence.mean()


def contrastive_loss(output: tuple[Tensor, Tensor], same: Tensor) -> Tensor:
    """Pull embeddings of one class together, push others apart up to a distance of 2 (Hadsell et al. 2006)."""
    distance = F.pairwise_distance(*output)
    return (same * distance.square() + (1 - same) * F.relu(2 - distance).square()).mean()


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Callable[[Any, Tensor], Tensor],
    steps: int = 150,
    optimizer: torch.optim.Optimizer | None = None,
) -> Any:
    """Take steps on random halves of the data, with Adam unless an optimizer is given; return the model."""
    optimizer = optimizer or torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    model.train()
    for _ in range(steps):
        rows = torch.randperm(len(x))[: max(2, len(x) // 2)]
        optimizer.zero_grad()
        loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model


def over_tokens(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the cross entropy of the next tokens."""
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


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
