"""Runs that break at one batch, or leave the finite numbers or the format."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data import table, waves
from ...networks import Recommender, SequenceClassifier, mlp
from ..case import HELD_OUT, fault
from ..data import batches, curves, digits, split
from ..loops import Loop, accuracy, adam, sgd
from .parts import descend, likeness_of_held_out, moves, played, tastes, views

HELD_OUT.add(
    fault("rating-of-an-unrated-film", "recommender", "not-finite-data not-finite",
        "clean-data check-data check-labels", "An outer join brings pairs without a rating, whose target is NaN.",
        lambda broken, loop: loop.fit(tastes(), Recommender(), adam(1e-2), loss=F.mse_loss, change=lambda step, x,
        y: (x, y.index_fill(0, torch.tensor([9]), torch.nan) if broken and step == 200 else y), report=None), onset=200,
        steps=300, seed=417),
)  # fmt: skip


@HELD_OUT.fault("table", "not-finite-data not-finite", "clean-data check-data guard-domain scale-inputs", onset=110,
    steps=200, seed=315)  # fmt: skip
def logarithm_of_zero_purchases(broken: bool, loop: Loop) -> float:
    """A feature is the logarithm of a count that first becomes zero in a later file."""
    data, model = split(*table(1280)), mlp(12, 48, 3)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if step >= 110 and broken:
            x = x.clone()
            x[:2, 6] = torch.zeros(2).log()
        return x, y

    return loop.fit(data, model, adam(3e-3), change=change)


@HELD_OUT.fault("RL", "not-finite normalizer-too-few-samples not-finite-data",
    "guard-domain larger-batch clean-data check-data", onset=140, steps=220, seed=316)  # fmt: skip
def advantages_of_an_episode_of_one_step(broken: bool, loop: Loop) -> float:
    """Advantages are divided by their standard deviation, and one episode has a single step."""
    data, policy = moves(), mlp(6, 32, 4)
    stream = batches(data)

    def loss_of(step: int) -> Tensor:
        x, y = next(stream)
        if broken and step == 140:
            x, y = x[:1], y[:1]
        _, chance, reward = played(policy, x, y)
        return -(chance * (reward - reward.mean()) / (reward.std() + 1e-6)).mean()

    descend(loop.watch, policy, adam(1e-2)(policy), loop.steps, loss_of)
    return accuracy(policy, data)


@HELD_OUT.fault("contrastive", "not-finite precision exploding-values",
    "guard-domain change-loss scale-outputs raise-precision", steps=150, seed=317)  # fmt: skip
def exponentials_summed_by_hand(broken: bool, loop: Loop) -> float:
    """Similarities over a temperature of 0.01 are put through `exp` and summed, which float32 does not hold."""
    data = digits(flat=True)
    model, stream = mlp(64, 64, 16), batches(data, 64)

    def loss_of(step: int) -> Tensor:
        first, second = (F.normalize(model(x), dim=1) for x in views(next(stream)[0], 0.3))
        if broken:
            powers = (first @ second.T / 0.01).exp()
            return -(powers.diag() / powers.sum(1)).log().mean()
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(64))

    descend(loop.watch, model, adam(2e-3)(model), loop.steps, loss_of)
    return likeness_of_held_out(model, data)


@HELD_OUT.fault("table", "not-finite-data precision not-finite", "raise-precision scale-inputs check-data clean-data",
    onset=90, steps=180, seed=318)  # fmt: skip
def salaries_in_half_precision(broken: bool, loop: Loop) -> float:
    """Columns are stored in float16, and later rows hold a salary above 65504."""
    data, model = curves(), mlp(8, 48, 1)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        salary = 20000 * x[:, 7] + (62000 if step >= 90 else 10000)
        salary = salary.half().float() if broken else salary.clamp(max=65000.0)
        return torch.cat([x[:, :7], salary[:, None].sub(10000) / 20000], 1), y

    return loop.fit(data, model, adam(3e-3), loss=F.mse_loss, change=change, report=None)


@HELD_OUT.fault("table", "outlier loss-spike exploding-gradient data-changed inputs-not-scaled exploding-values",
    "clean-data check-data clip-gradients robust-loss scale-inputs", onset=170, steps=200, seed=319)  # fmt: skip
def one_transaction_of_a_billion(broken: bool, loop: Loop) -> float:
    """One row in one late batch has an amount in the wrong currency, ten thousand times the others."""
    data, model = curves(), mlp(8, 48, 48, 1)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if broken and step == 170:
            x = x.clone()
            x[5, 1] = 1e4
        return x, y

    return loop.fit(data, model, sgd(0.02, 0.9), loss=F.mse_loss, change=change)


@HELD_OUT.fault("LSTM", "not-finite-data not-finite", "clean-data check-data", onset=120, steps=200, seed=416)
def gap_in_a_sensor(broken: bool, loop: Loop) -> float:
    """From a later recording on, some steps of one channel are missing and stand as NaN."""
    data = split(*waves(768))
    model = SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if broken and step >= 120 and (step % 9 == 3):
            x = x.clone()
            x[4, 11:14, 2] = torch.nan
        return x, y

    return loop.fit(data, model, adam(5e-3), change=change)
