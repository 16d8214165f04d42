"""Runs of the open part in which one cause is easily taken for another, each fault with its healthy twin."""

import math
from collections.abc import Callable
from functools import partial
from itertools import chain, cycle

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from .case import HealthyRun, RunFault, Watch, healthy_run, run_fault
from .open_healthy import finish, seeded, train
from .parts import Data, accuracy, adam, batches, by_step, digits, explained, fit, sgd, split

FAULTS: list[RunFault] = []
HEALTHY: list[HealthyRun] = []
fault, healthy = partial(run_fault, FAULTS), partial(healthy_run, HEALTHY)

# ------------------------------------------------------------------------------------------------------- batches


@fault("mlp", causes="same-batch", remedies="vary-batches")
def loader_begun_anew_behind_a_trial_batch(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A step on a large batch to try the memory, then `next(iter(loader))` inside of the loop, without shuffling."""
    model, data = seeded(count=480)
    pairs = list(zip(data.x.split(36), data.y.split(36), strict=True))
    assert len(pairs) == 10, "records at every tenth step then meet one batch of each epoch"
    order = chain([(data.x[:64], data.y[:64])], cycle(pairs[:1] if broken else pairs))

    def loss(step: int) -> Tensor:
        x, y = next(order)
        return F.cross_entropy(model(x), y)

    finish(train(watch, model, adam(model, 3e-3), steps, loss))
    return accuracy(model, data)


@healthy("mlp")
def ten_batches_in_order_behind_a_trial_batch(watch: Watch, steps: int = 200) -> float:
    """The same with the loader begun once an epoch: each tenth step sees the same batch, and no other step does."""
    return loader_begun_anew_behind_a_trial_batch(False, watch, steps)


# --------------------------------------------------------------------------------------------------------- rates


@fault("conv", causes="rate-too-high", remedies="lower-learning-rate")
def adamw_at_a_rate_of_one(broken: bool, watch: Watch, steps: int = 150) -> float:
    """A rate for another optimizer; the weight decay is the one that AdamW has by itself."""
    torch.manual_seed(0)
    data = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    fit(watch, model, torch.optim.AdamW(model.parameters(), lr=1.0 if broken else 3e-3), data, steps)
    return accuracy(model, data)


@fault("mlp", causes="inputs-not-scaled", remedies="scale-inputs")
def a_column_times_a_hundred_thousand(broken: bool, watch: Watch, steps: int = 60) -> float:
    """One column in another unit: the first step throws the outputs so far that the loss is infinite, then NaN."""
    torch.manual_seed(0)
    x = torch.randn(768, 8)
    y = x[:, :4].sum(1, keepdim=True) / 2
    x[:, 3] *= 1e5 if broken else 1.0
    model, data = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1)), split(x, y)
    fit(watch, model, sgd(model, 0.05), data, steps, loss=F.mse_loss)
    return explained(model, data)


@fault("mlp", causes="rate-too-high", remedies="fix-schedule lower-learning-rate", onset=250)
def rate_times_a_thousand_from_step_250_on(broken: bool, watch: Watch, steps: int = 400) -> float:
    """A second phase of a schedule that has its rate in other units."""
    model, data = seeded()
    optimizer = adam(model, 1e-3)
    fit(watch, model, optimizer, data, steps, schedule=by_step(
        optimizer, lambda step: 1.0 if step < 250 else 1000.0 if broken else 0.5))  # fmt: skip
    return accuracy(model, data)


@healthy("mlp")
def rate_a_little_higher_from_step_250_on(watch: Watch, steps: int = 400) -> float:
    """A rate that rises three times in mid-run, which this network bears."""
    model, data = seeded()
    optimizer = adam(model, 1e-3)
    fit(watch, model, optimizer, data, steps, schedule=by_step(optimizer, lambda step: 1.0 if step < 250 else 3.0))
    return accuracy(model, data)


# -------------------------------------------------------------------------------------------------------- frozen heads


@fault("mlp", causes="frozen-layer", layers="3", remedies="unfreeze", other_harm="The body has to suit a random head.")
def new_head_frozen_in_place_of_the_body(broken: bool, watch: Watch, steps: int = 150) -> float:
    """Fine-tuning that freezes what was to be trained: the new head and not the trained body."""
    torch.manual_seed(0)
    data = digits(flat=True)
    body, old_head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), nn.Linear(64, 10)
    first = nn.Sequential(body, nn.ReLU(), old_head)
    optimizer = adam(first, 3e-3)
    for _, (x, y) in zip(range(200), batches(data), strict=False):
        optimizer.zero_grad()
        F.cross_entropy(first(x), y).backward()
        optimizer.step()
    model = nn.Sequential(*body, nn.Linear(64, 10))
    model[3 if broken else slice(3)].requires_grad_(False)
    fit(watch, model, adam(model, 3e-3), data, steps)
    return accuracy(model, data)


@healthy("mlp")
def fixed_classifier_behind_a_body_that_learns(watch: Watch, steps: int = 300) -> float:
    """A random matrix without a bias as the last layer, which stays as it is (Hoffer et al. 2018)."""
    torch.manual_seed(0)
    data = digits(flat=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10, bias=False))
    model[4].requires_grad_(False)
    fit(watch, model, adam(model, 3e-3), data, steps)
    return accuracy(model, data)


# ---------------------------------------------------------------------------------------------- activations and codes


class WrittenGELU(nn.Module):
    """GELU as GPT-2 has it, with a tanh."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


@fault("mlp", causes="saturated-units", layers="0 3 6 9", remedies="initialise scale-inputs lower-learning-rate")
def tanh_behind_weights_times_thirty(broken: bool, watch: Watch, steps: int = 150) -> float:
    """Weights that were made for a GELU, before a tanh, which is flat where the GELU is not."""
    torch.manual_seed(0)
    data = digits(flat=True)
    blocks = [(nn.Linear(64, 64), nn.Tanh() if broken else WrittenGELU(), nn.LayerNorm(64)) for _ in range(4)]
    with torch.no_grad():
        for linear, *_ in blocks:
            linear.weight *= 30.0  # type: ignore[operator]
    model = nn.Sequential(*chain.from_iterable(blocks), nn.Linear(64, 10))
    fit(watch, model, adam(model, 1e-3), data, steps)
    return accuracy(model, data)


@healthy("mlp")
def gelu_behind_weights_times_thirty(watch: Watch, steps: int = 150) -> float:
    """Most of the inner tanhs of a GELU that is written out are at their limits, where the GELU is not flat."""
    return tanh_behind_weights_times_thirty(False, watch, steps)


class Autoencoder(nn.Module):
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
    watch: Watch, model: Autoencoder, steps: int, rate: float, divergence: Callable[[Tensor, Tensor], Tensor]
) -> float:
    """Train on the error and a divergence of mean and log-variance; return what is explained of the held-out digits."""
    images, _, held, _ = digits(flat=True)
    data = Data(images, images, held, held)

    def loss(output: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        made, mean, log_variance = output
        return (made - x).square().sum(1).mean() + divergence(mean, log_variance)

    fit(watch, model, adam(model, rate), data, steps, loss=loss)
    return explained(model, data)


@fault("vae", causes="gradient-cut", layers="mean log_variance encoder", remedies="keep-gradient")
def code_detached_from_its_decoder(broken: bool, watch: Watch, steps: int = 200) -> float:
    """The decoder reads `code.detach()`: the divergence alone teaches the encoder."""
    torch.manual_seed(0)
    return reconstruct_digits(
        watch, Autoencoder(broken), steps, 3e-3,
        lambda mean, log_variance: -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean(),
    )  # fmt: skip


@fault("vae", causes="sign-of-loss", remedies="flip-sign")
def divergence_of_a_code_subtracted(broken: bool, watch: Watch, steps: int = 200) -> float:
    """The minus in front of the divergence was lost: the loss falls to minus infinity, then it is NaN."""
    torch.manual_seed(0)
    return reconstruct_digits(
        watch, Autoencoder(), steps, 1e-2,
        lambda mean, log_variance: (0.5 if broken else -0.5)
        * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean(),
    )  # fmt: skip


@healthy("vae")
def divergence_of_distributions(watch: Watch, steps: int = 200) -> float:
    """The divergence as `torch.distributions` has it, at half its weight."""
    torch.manual_seed(0)

    def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
        made, prior = Normal(mean, (log_variance / 2).exp()), Normal(torch.zeros_like(mean), 1.0)
        return kl_divergence(made, prior).sum(1).mean() / 2

    return reconstruct_digits(watch, Autoencoder(), steps, 3e-3, divergence)
