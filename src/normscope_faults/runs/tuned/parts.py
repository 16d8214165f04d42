"""What several topics share."""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ...networks import mlp
from ..data import Data, batches, digits
from ..loops import Loop, Watch, adam, explained, or_minus_infinity


@torch.no_grad()
def likeness(generator: nn.Module, data: Data) -> float:
    """Return minus the distance of generated images from real ones: of their means and standard deviations."""
    made, real = generator.eval()(torch.randn(256, 16)), data.held_x
    apart = (made.mean(0) - real.mean(0)).square().mean() + (made.std(0) - real.std(0)).square().mean()
    return or_minus_infinity(-apart.sqrt())


class Reconstruction(nn.Module):
    """Pixels from what a VAE returns."""

    def forward(self, output: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return output[0].sigmoid()


def over_tokens_of_first(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of the next tokens."""
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


def conv_net() -> nn.Module:
    """Return a small convolutional network with BatchNorm for digits."""
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1),
        nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10))  # fmt: skip


class PlainAutoencoder(nn.Module):
    """A variational autoencoder of flat digits, whose code may be detached from its decoder."""

    def __init__(self, detached: bool = False) -> None:
        super().__init__()
        self.detached = detached
        self.encoder, self.decoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU()), nn.Linear(8, 64)
        self.mean, self.log_variance = nn.Linear(64, 8), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(code.detach() if self.detached else code), mean, log_variance


def reconstruct_digits(
    watch: Watch, model: PlainAutoencoder, steps: int, rate: float, divergence: Callable[[Tensor, Tensor], Tensor]
) -> float:
    """Train on the error and a divergence of mean and log-variance; return what is explained of the held-out digits."""
    images, _, held, _ = digits(flat=True)
    data = Data(images, images, held, held)

    def loss(output: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        made, mean, log_variance = output
        return (made - x).square().sum(1).mean() + divergence(mean, log_variance)

    Loop(watch, steps).train(data, model, adam(rate), loss=loss)
    return explained(model, data)


class PostNorm(nn.Module):
    """A transformer with normalizers behind the sums, for classes of the next state."""

    def __init__(self, states: int = 12, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(states, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, states)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.blocks(self.tokens(ids), mask=mask, is_causal=True))


class SecondAutoencoder(nn.Module):
    """A variational autoencoder of flat images."""

    def __init__(self, width: int = 64, code: int = 6) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, width, 2 * code), mlp(code, width, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        log_variance = log_variance.clamp(-8, 8)
        return self.decoder(mean + torch.randn_like(mean) * (log_variance / 2).exp()), mean, log_variance


class Adversaries(nn.Module):
    """A generator of points in the plane and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = mlp(4, 32, 32, 2)
        self.discriminator = mlp(2, 48, 48, 1)


def _take(data: Data, size: int, steps: int) -> zip:
    """Return so many steps' numbers and batches."""
    return zip(range(steps), batches(data, size))


def unreported(watch: Watch) -> Watch:
    """Return a watch for a user who calls neither `observe` nor `log_metrics`."""

    @contextlib.contextmanager
    def around_a_silent_loop(model: nn.Module, optimizer: Optimizer) -> Iterator[Any]:
        with watch(model, optimizer):
            yield SimpleNamespace(observe=lambda **values: None, log_metrics=lambda **values: None)

    return around_a_silent_loop
