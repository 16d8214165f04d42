"""Networks trained on digits, and the figures that the open questions compare."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope import lipschitz
from normscope.data import Split, digits
from normscope.networks import accuracy, train

SAMPLES = 400
"""The number of training images: few, so that there is a gap."""
MEASURED = 16
"""The number of test images at which Jacobians are taken."""
BATCH, LEARNING_RATE = 50, 2e-3
"""The samples in a step of Adam, and its rate."""
ONE_RATE = (
    f"Not controlled: the learning rate. All networks are trained by Adam at {LEARNING_RATE:g}, which need not be the "
    "best rate of each, and at another rate the difference may have another size or the other sign."
)
"""What an answer from networks with and without something leaves open."""
LOOKED_AT = 4
"""The number of steps after which the loss over all training images is taken again."""


@dataclass(frozen=True)
class TrainedNetwork:
    """A trained network in eval mode with its data."""

    network: nn.Module
    split: Split

    @property
    def gap(self) -> float:
        """Accuracy on the training images less that on the test images."""
        return self._accuracy(self.split.train_images, self.split.train_labels) - self.tested

    @property
    def tested(self) -> float:
        """Accuracy on the test images."""
        return self._accuracy(self.split.test_images, self.split.test_labels)

    @property
    def steepest(self) -> float:
        """log10 of the largest Jacobian norm at test images."""
        return lipschitz(self.network, self.split.test_images[:MEASURED], scope="point").log10_upper

    def _accuracy(self, images: Tensor, labels: Tensor) -> float:
        return accuracy(self.network, images, labels)


def trained(network: nn.Module, seed: int, epochs: int) -> TrainedNetwork:
    """Train a network on few digits, and return it in eval mode."""
    split = few_digits(seed)
    order = torch.Generator().manual_seed(seed)
    train(
        network,
        split.train_images,
        split.train_labels,
        generator=order,
        epochs=epochs,
        batch_size=BATCH,
        learning_rate=LEARNING_RATE,
    )
    return TrainedNetwork(network.eval().requires_grad_(False), split)


def trained_to_loss(network: nn.Module, seed: int, *, loss: float, steps: int) -> tuple[TrainedNetwork, float]:
    """Train a network on few digits until its loss over all of them, in eval mode, is at most `loss`.

    Returns:
        The network, and its loss: larger than `loss` where the steps did not suffice.
    """
    split = few_digits(seed)
    order, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    reached, step = math.inf, 0
    while reached > loss and step < steps:
        for rows in torch.randperm(SAMPLES, generator=order).split(BATCH):
            network.train()
            optimizer.zero_grad()
            F.cross_entropy(network(split.train_images[rows]), split.train_labels[rows]).backward()
            optimizer.step()
            step += 1
            if step % LOOKED_AT == 0:
                with torch.no_grad():
                    reached = float(F.cross_entropy(network.eval()(split.train_images), split.train_labels))
                if reached <= loss:
                    break
    return TrainedNetwork(network.eval().requires_grad_(False), split), reached


def few_digits(seed: int) -> Split:
    """Return digits with few training images."""
    split = digits(generator=torch.Generator().manual_seed(seed))
    return Split(
        train_images=split.train_images[:SAMPLES],
        train_labels=split.train_labels[:SAMPLES],
        test_images=split.test_images,
        test_labels=split.test_labels,
    )


def log10_factors(network: nn.Module) -> tuple[float, float]:
    """Return log10 of the products of weight norms and of the l2 norms of 1/sigma, as Theorem 9 has them."""
    weights = [layer.weight for layer in network.modules() if isinstance(layer, nn.Linear)]
    norms = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm1d)]
    inverse = [(layer.running_var.double() + layer.eps).rsqrt() for layer in norms if layer.running_var is not None]
    return (
        math.fsum(math.log10(float(torch.linalg.matrix_norm(weight.double(), ord=2))) for weight in weights),
        math.fsum(math.log10(float(values.norm())) for values in inverse),
    )
