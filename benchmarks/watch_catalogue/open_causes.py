"""Runs of the open part in which one cause is easily taken for another, each fault with its healthy twin."""

from functools import partial
from itertools import chain, cycle

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .case import HealthyRun, RunFault, Watch, healthy_run, run_fault
from .open_healthy import finish, seeded, train
from .parts import accuracy, adam, batches, by_step, digits, explained, fit, sgd, split

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
