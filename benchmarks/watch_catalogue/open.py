"""The open half: training runs on which alarms may be tuned, each with a fault that people report of their loops."""

import contextlib
import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from . import open_causes, open_healthy
from .case import HealthyRun, RunFault, Watch, healthy_run, run_fault
from .parts import Data, accuracy, adam, batches, by_step, digits, explained, fit, sgd, split

FAULTS: list[RunFault] = list(open_causes.FAULTS)
HEALTHY: list[HealthyRun] = [*open_healthy.HEALTHY, *open_causes.HEALTHY]
fault, healthy = partial(run_fault, FAULTS), partial(healthy_run, HEALTHY)


def mlp(
    *sizes: int, act: Callable[[], nn.Module] = nn.ReLU, before: Callable[[], nn.Module] | None = None
) -> nn.Module:
    """Return an MLP of these sizes, with a module in front of each activation where one is given."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), *([] if before is None else [before()]), act()]
    return nn.Sequential(*layers[: -1 if before is None else -2])


def seeded(*sizes: int, **options: Any) -> tuple[nn.Module, Data]:
    """Return an MLP and flat digits, the same ones each time."""
    torch.manual_seed(0)
    return mlp(*(sizes or (64, 64, 10)), **options), digits(flat=True)


def conv_net() -> nn.Module:
    """Return a small convolutional network with BatchNorm for digits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1),
        nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------ nothing learned


@fault("mlp", causes="rate-too-low", remedies="raise-learning-rate")
def rate_of_1e_7(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A learning rate meant for another optimizer."""
    model, data = seeded()
    fit(watch, model, sgd(model, 1e-7 if broken else 0.1), data, steps)
    return accuracy(model, data)


@fault("mlp", causes="rate-zero", remedies="fix-schedule raise-learning-rate")
def rate_zero_by_schedule(broken: bool, watch: Watch, steps: int = 200) -> float:
    """An integer division in a warm-up."""
    model, data = seeded()
    optimizer = adam(model, 1e-3)
    fit(watch, model, optimizer, data, steps, schedule=by_step(optimizer, lambda step: step // 1000 if broken else 1))
    return accuracy(model, data)


@fault("mlp", causes="rate-decays-too-early rate-too-low", remedies="fix-schedule raise-learning-rate", onset=15)
def schedule_per_batch(broken: bool, watch: Watch, steps: int = 200) -> float:
    """StepLR stepped for each batch instead of each epoch."""
    model, data = seeded()
    optimizer = sgd(model, 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5 if broken else 500, 0.1)
    fit(watch, model, optimizer, data, steps, schedule=schedule)
    return accuracy(model, data)


@fault("mlp", causes="gradient-too-small rate-too-low", remedies="rescale-loss raise-learning-rate")
def loss_times_1e_6(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A weight of one term of a loss that is left when the others go."""
    model, data = seeded()
    fit(watch, model, sgd(model, 0.1), data, steps, loss=lambda o, y: F.cross_entropy(o, y) * (1e-6 if broken else 1))
    return accuracy(model, data)


@fault("mlp", causes="clipping-always-active rate-too-low gradient-too-small",
       remedies="loosen-clipping raise-learning-rate")  # fmt: skip
def clipped_at_1e_4(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A limit for another model."""
    model, data = seeded()
    fit(watch, model, sgd(model, 0.1), data, steps, clip=1e-4 if broken else 10.0)
    return accuracy(model, data)


@fault("mlp", causes="weights-put-back", remedies="keep-weights")
def weights_copied_back(broken: bool, watch: Watch, steps: int = 200) -> float:
    """Averaged weights that are swapped in and never out."""
    model, data = seeded()
    start = [parameter.detach().clone() for parameter in model.parameters()]

    def put_back(step: int) -> None:
        with torch.no_grad():
            for parameter, kept in zip(model.parameters(), start, strict=True):
                parameter.copy_(kept)

    fit(watch, model, sgd(model, 0.1), data, steps, then=put_back if broken else None)
    return accuracy(model, data)


@fault("mlp", causes="labels-unrelated not-learning", remedies="check-labels")
def random_labels(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Labels shuffled apart from the inputs."""
    model, data = seeded()
    change = (lambda step, x, y: (x, y[torch.randperm(len(y))])) if broken else None
    fit(watch, model, sgd(model, 0.1), data, steps, change=change)
    return accuracy(model, data)


@fault("mlp", causes="labels-constant", remedies="check-labels")
def one_class_only(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A subset that was cut from sorted data."""
    model, data = seeded()
    kept = data.y == 3
    chosen = data._replace(x=data.x[kept], y=data.y[kept]) if broken else data
    fit(watch, model, sgd(model, 0.1), chosen, steps)
    return accuracy(model, data)


@fault("mlp", causes="same-batch", remedies="vary-batches")
def same_batch_each_step(broken: bool, watch: Watch, steps: int = 200) -> float:
    """`next(iter(loader))` inside of the loop, without shuffling."""
    model, data = seeded()
    loader = DataLoader(TensorDataset(data.x, data.y), batch_size=32)
    fit(watch, model, sgd(model, 0.1), data, steps, change=(lambda *_: next(iter(loader))) if broken else None)
    return accuracy(model, data)


@fault("mlp", causes="dropout-too-strong not-learning", remedies="lower-dropout")
def dropout_of_99_percent(broken: bool, watch: Watch, steps: int = 200) -> float:
    """The share to keep given as the share to drop."""
    model, data = seeded(before=lambda: nn.Dropout(0.99 if broken else 0.1))
    fit(watch, model, adam(model, 1e-3), data, steps)
    return accuracy(model, data)


@fault("mlp", causes="softmax-twice", remedies="remove-final-activation")
def softmax_in_front_of_cross_entropy(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A softmax at the end of the model."""
    model, data = seeded()
    model = nn.Sequential(model, nn.Softmax(1)) if broken else model
    fit(watch, model, sgd(model, 0.1), data, steps)
    return accuracy(model, data)


def _order(watch: Watch, model: nn.Module, data: Data, steps: int, late: bool, to_none: bool) -> None:
    """Train with gradients that are cleared in front of the backward, or between it and the step."""
    optimizer = sgd(model, 0.1)
    with watch(model.train(), optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data), strict=False):
            if not late:
                optimizer.zero_grad(set_to_none=to_none)
            value = F.cross_entropy(model(x), y)
            run.observe(loss=value)
            value.backward()
            if late:
                optimizer.zero_grad(set_to_none=to_none)
            optimizer.step()


@fault("mlp", causes="gradient-missing", remedies="order-of-calls")
def gradients_removed_before_step(broken: bool, watch: Watch, steps: int = 100) -> float:
    """`zero_grad()` between `backward()` and `step()`."""
    model, data = seeded()
    _order(watch, model, data, steps, broken, True)
    return accuracy(model, data)


@fault("mlp", causes="gradient-missing", remedies="order-of-calls")
def gradients_zeroed_before_step(broken: bool, watch: Watch, steps: int = 100) -> float:
    """The same with gradients that become zeros."""
    model, data = seeded()
    _order(watch, model, data, steps, broken, False)
    return accuracy(model, data)


def line_data(count: int = 1024) -> Data:
    """Return a linear regression with noise."""
    torch.manual_seed(0)
    x = torch.randn(count, 16)
    return split(x, x @ torch.randn(16) / 4 + 0.1 * torch.randn(count))


@fault("mlp", causes="shapes-broadcast", remedies="match-shapes")
def targets_broadcast(broken: bool, watch: Watch, steps: int = 200) -> float:
    """Outputs of shape (n, 1) and targets of shape (n,)."""
    data = line_data()
    model = mlp(16, 64, 1)
    fit(watch, model, adam(model, 3e-3), data, steps, loss=lambda o, y: (
        (o - y) if broken else (o[:, 0] - y)).square().mean())  # fmt: skip
    return explained(model, data)


# -------------------------------------------------------------------------------------------------- steps that are none


@fault("mlp", causes="steps-skipped no-step precision not-finite", remedies="check-scaler")
def scaler_skips_every_step(broken: bool, watch: Watch, steps: int = 60) -> float:
    """A gradient that is not finite at each step, and a scaler that leaves them all out."""
    model, data = seeded()
    optimizer = sgd(model, 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6)
    with watch(model.train(), optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data), strict=False):
            optimizer.zero_grad()
            value = F.cross_entropy(model(x), y)
            run.observe(loss=value.item())
            scaler.scale(value).backward()
            if broken:
                next(model.parameters()).grad[0, 0] = math.inf  # type: ignore[index]
            scaler.step(optimizer)
            scaler.update()
    return accuracy(model, data)


@fault("mlp", causes="no-step", remedies="call-step")
def forgotten_step(broken: bool, watch: Watch, steps: int = 100) -> float:
    """`optimizer.step()` lost in a refactoring."""
    model, data = seeded()
    optimizer = sgd(model, 0.1)
    with watch(model.train(), optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data), strict=False):
            optimizer.zero_grad()
            value = F.cross_entropy(model(x), y)
            run.observe(loss=value)
            value.backward()
            if not broken:
                optimizer.step()
    return accuracy(model, data)


@fault("mlp", causes="not-in-optimizer", layers="2", remedies="give-to-optimizer",
       other_harm="A layer keeps its random weights.")  # fmt: skip
def layer_outside_of_optimizer(broken: bool, watch: Watch, steps: int = 100) -> float:
    """A list of parameters that leaves a layer out."""
    model, data = seeded(64, 64, 64, 10)
    chosen = [p for name, p in model.named_parameters() if not (broken and name.startswith("2."))]
    fit(watch, model, torch.optim.Adam(chosen, lr=1e-3), data, steps)
    return accuracy(model, data)


@fault("mlp", causes="frozen-layer", layers="2", remedies="unfreeze",
       other_harm="A layer keeps its random weights.")  # fmt: skip
def layer_frozen_by_mistake(broken: bool, watch: Watch, steps: int = 100) -> float:
    """A pattern of names that freezes one layer too many."""
    model, data = seeded(64, 64, 64, 10)
    model[2].requires_grad_(not broken)  # type: ignore[index]
    fit(watch, model, adam(model, 1e-3), data, steps)
    return accuracy(model, data)


# ----------------------------------------------------------------------------------------------------------- divergence


@fault("mlp", causes="rate-too-high", remedies="lower-learning-rate")
def adamw_at_0_3(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A rate for SGD given to AdamW: the loss stays at a plateau."""
    model, data = seeded(64, 64, 64, 64, 10)
    fit(watch, model, torch.optim.AdamW(model.parameters(), lr=0.3 if broken else 1e-3), data, steps)
    return accuracy(model, data)


class Recurrent(nn.Module):
    """A plain recurrent network with ReLU whose matrix may expand."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.rnn, self.head = nn.RNN(8, 32, nonlinearity="relu", batch_first=True), nn.Linear(32, 10)
        with torch.no_grad():
            self.rnn.weight_hh_l0.copy_(scale * torch.eye(32) + 0.05 * torch.randn(32, 32))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x.reshape(len(x), -1, 8).repeat(1, 3, 1))[0][:, -1])  # type: ignore[no-any-return]


@fault("recurrent", causes="exploding-gradient exploding-values rate-too-high", remedies="clip-gradients initialise",
       )  # fmt: skip
def recurrent_net_explodes_from_the_start(broken: bool, watch: Watch, steps: int = 100) -> float:
    """A recurrent matrix of norm 1.8 over 24 steps."""
    torch.manual_seed(0)
    model, data = Recurrent(1.8 if broken else 0.9), digits(flat=True)
    fit(watch, model, adam(model, 1e-3), data, steps)
    return accuracy(model, data)


@fault("mlp", causes="decay-too-strong", remedies="lower-weight-decay")
def decay_of_100(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A weight decay mistaken for another figure."""
    model, data = seeded()
    decay = 100.0 if broken else 1e-2
    fit(watch, model, torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=decay), data, steps)
    return accuracy(model, data)


@fault("mlp", causes="not-finite-data", remedies="clean-data", onset=60)
def nan_in_one_batch(broken: bool, watch: Watch, steps: int = 120) -> float:
    """A missing value in a table."""
    model, data = seeded()

    def spoil(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x.index_fill(0, torch.tensor([0]), math.nan) if broken and step == 60 else x), y

    fit(watch, model, sgd(model, 0.1), data, steps, change=spoil)
    return accuracy(model, data)


@fault(
    "conv", causes="wrong-mode", layers="1 4", remedies="switch-mode", other_harm="Statistics are those of the start."
)
def batch_norms_alone_in_eval_mode(broken: bool, watch: Watch, steps: int = 60) -> float:
    """A loop over the normalizers that was meant for a pretrained model."""
    torch.manual_seed(0)
    model, data = conv_net(), digits()
    model.train()
    if broken:
        model.train = lambda mode=True: model  # type: ignore[method-assign, assignment]
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
    fit(watch, model, sgd(model, 0.05), data, steps)
    return accuracy(model, data)


@fault("mlp", causes="not-finite-weights", layers="2", remedies="restore-weights", onset=50)
def infinite_weights(broken: bool, watch: Watch, steps: int = 100) -> float:
    """A division by zero in code that rescales weights."""
    model, data = seeded(64, 64, 64, 10)

    def divide(step: int) -> None:
        if broken and step == 49:
            with torch.no_grad():
                model[2].weight[0] /= 0.0  # type: ignore[index, operator]

    fit(watch, model, sgd(model, 0.1), data, steps, then=divide)
    return accuracy(model, data)


# ---------------------------------------------------------------------------------------- validation, layers, direction


@fault("mlp", causes="overfitting", remedies="regularise", onset=40)
def validation_loss_rises(broken: bool, watch: Watch, steps: int = 400) -> float:
    """Few samples with wrong labels, and a large network."""
    torch.manual_seed(0)
    model, data = mlp(64, 256, 256, 10), digits(flat=True)
    if broken:
        data = data._replace(x=data.x[:96], y=data.y[:96].where(torch.rand(96) > 0.3, torch.randint(0, 10, (96,))))
    fit(watch, model, adam(model, 1e-3), data, steps, validate=20)
    return accuracy(model, data)


@fault(
    "mlp",
    causes="vanishing-gradient gradient-too-small",
    layers="0 2",
    remedies="change-activation add-normalizer initialise",
)
def deep_sigmoid_net(broken: bool, watch: Watch, steps: int = 150) -> float:
    """Ten layers of sigmoids."""
    model, data = seeded(*[64] * 11, 10, act=nn.Sigmoid if broken else nn.ReLU)
    fit(watch, model, adam(model, 1e-3), data, steps)
    return accuracy(model, data)


@fault("mlp", causes="sign-of-loss divergence", remedies="flip-sign")
def loss_with_a_minus(broken: bool, watch: Watch, steps: int = 100) -> float:
    """A likelihood that is minimised."""
    model, data = seeded()
    fit(watch, model, sgd(model, 0.01), data, steps, loss=lambda o, y: F.cross_entropy(o, y) * (-1 if broken else 1))
    return accuracy(model, data)


@fault("mlp", causes="sorted-batches", remedies="vary-batches", other_harm="Each batch undoes the last ones.")
def sorted_batches(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A loader without shuffling on a folder of classes."""
    model, data = seeded()
    order = data.y.argsort()
    x, y = data.x[order], data.y[order]
    change = None if not broken else lambda step, _x, _y: (
        x[(step * 32) % 1280 :][:32], y[(step * 32) % 1280 :][:32])  # fmt: skip
    fit(watch, model, sgd(model, 0.1), data, steps, change=change)
    return accuracy(model, data)


@fault("mlp", causes="data-changed", remedies="check-data scale-inputs", onset=100)
def inputs_no_longer_scaled(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A second source whose inputs are in other units."""
    model, data = seeded()
    change = (lambda step, x, y: (x * 30 if step >= 100 else x, y)) if broken else None
    fit(watch, model, adam(model, 1e-3), data, steps, change=change)
    return accuracy(model, data)


@fault(
    "mlp", causes="dead-units", layers="0 1 2 3", remedies="lower-learning-rate change-activation reset-bias initialise"
)
def dead_units(broken: bool, watch: Watch, steps: int = 150) -> float:
    """Biases that begin far below zero."""
    model, data = seeded(64, 64, 64, 10)
    if broken:
        nn.init.constant_(model[2].bias, -8.0)  # type: ignore[index, arg-type]
    fit(watch, model, sgd(model, 0.05), data, steps)
    return accuracy(model, data)


@fault("conv", causes="wrong-mode", remedies="switch-mode", other_harm="BatchNorm keeps the statistics of the start.")
def eval_mode_all_along(broken: bool, watch: Watch, steps: int = 60) -> float:
    """`model.eval()` in a helper that is called before the loop."""
    torch.manual_seed(0)
    model, data = conv_net(), digits()
    if broken:
        model.train = lambda mode=True: nn.Module.train(model, False)  # type: ignore[method-assign, assignment]
    fit(watch, model, sgd(model, 0.05), data, steps)
    return accuracy(model, data)


@fault("mlp", causes="gradient-accumulates", remedies="order-of-calls")
def gradients_never_cleared(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A loop without `zero_grad()`."""
    model, data = seeded()
    optimizer = sgd(model, 0.1)
    with watch(model.train(), optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data), strict=False):
            value = F.cross_entropy(model(x), y)
            run.observe(loss=value)
            value.backward()
            optimizer.step()
            if not broken:
                optimizer.zero_grad()
    return accuracy(model, data)


@fault("mlp", causes="saturated-units inputs-not-scaled", remedies="scale-inputs initialise")
def inputs_in_bytes(broken: bool, watch: Watch, steps: int = 200) -> float:
    """Pixels of 0 to 255 into units that saturate."""
    model, data = seeded(64, 64, 64, 10, act=nn.Tanh)
    change = (lambda step, x, y: (128 + 60 * x, y)) if broken else None
    if broken:
        data = data._replace(held_x=128 + 60 * data.held_x)
    fit(watch, model, sgd(model, 0.05), data, steps, change=change)
    return accuracy(model, data)


class Cut(nn.Module):
    """An encoder and a head, which may be cut off from each other."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.encoder, self.head, self.cut = mlp(64, 64, 32), nn.Linear(32, 10), cut

    def forward(self, x: Tensor) -> Tensor:
        code = torch.relu(self.encoder(x))
        return self.head(code.detach() if self.cut else code)  # type: ignore[no-any-return]


@fault("mlp", causes="gradient-cut", layers="encoder", remedies="keep-gradient", other_harm="Random features.")
def encoder_detached(broken: bool, watch: Watch, steps: int = 100) -> float:
    """A `detach()` from a debugging session."""
    torch.manual_seed(0)
    model, data = Cut(broken), digits(flat=True)
    fit(watch, model, adam(model, 1e-3), data, steps)
    return accuracy(model, data)


@fault("transformer", causes="attention-collapse", remedies="scale-attention initialise rescale-layer")
def attention_without_a_scale(broken: bool, watch: Watch, steps: int = 150) -> float:
    """Queries and keys that begin far too large: each row looks at one token."""
    torch.manual_seed(0)
    data = digits(flat=True)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Unflatten(1, (8, 8)), nn.Linear(8, 32), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    if broken:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("in_proj_weight"):
                    parameter[:64] *= 30
    fit(watch, model, adam(model, 1e-3), data, steps)
    return accuracy(model, data)


@fault("contrastive", causes="output-constant", remedies="prevent-collapse", other_harm="Features tell nothing.")
def views_pulled_together(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A loss that pulls two views of an image together, and nothing that keeps images apart."""
    torch.manual_seed(0)
    model, data = mlp(64, 128, 32), digits(flat=True)
    optimizer, stream = adam(model, 3e-3), batches(data, 64)
    with watch(model.train(), optimizer) as run:
        for _ in range(steps):
            x, _ = next(stream)
            first, second = (model(x + 0.3 * torch.randn_like(x)) for _ in range(2))
            value = -F.cosine_similarity(first, second).mean()
            if not broken:
                value = value + torch.relu(1 - first.std(0)).mean() + torch.relu(1 - second.std(0)).mean()
            optimizer.zero_grad()
            run.observe(loss=value)
            value.backward()
            optimizer.step()
    with torch.no_grad():
        return float(F.normalize(model(data.held_x), dim=1).std(0).mean())


@fault("conv", causes="normalizer-too-few-samples", remedies="larger-batch replace-normalizer")
def batches_of_two_of_digits(broken: bool, watch: Watch, steps: int = 200) -> float:
    """BatchNorm behind a linear layer, with batches that hold two samples."""
    model, data = seeded(64, 64, 64, 10, before=lambda: nn.BatchNorm1d(64))
    fit(watch, model, sgd(model, 0.05), data, steps, batch=2 if broken else 32)
    return accuracy(model, data)


@fault("transformer", causes="rate-too-high", remedies="lower-learning-rate")
def transformer_without_warm_up(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A transformer that is normalized behind its branches, at a large rate from the first step."""
    torch.manual_seed(0)
    data = digits(flat=True)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.Sequential(
        nn.Unflatten(1, (8, 8)), nn.Linear(8, 32), nn.TransformerEncoder(layer, 4), nn.Flatten(), nn.Linear(256, 10)
    )
    fit(watch, model, adam(model, 0.05 if broken else 1e-3), data, steps)
    return accuracy(model, data)


# -------------------------------------------------------------------------------------------------------------- healthy


@healthy("mlp")
def noisy_batches_of_four(watch: Watch, steps: int = 400) -> float:
    """Small batches, whose losses are far apart."""
    model, data = seeded()
    fit(watch, model, sgd(model, 0.02), data, steps, batch=4, validate=100)
    return accuracy(model, data)


@healthy("conv")
def warm_up_and_cosine_to_zero(watch: Watch, steps: int = 300) -> float:
    """A rate that begins and ends at zero."""
    torch.manual_seed(0)
    model, data = conv_net(), digits()
    optimizer = adam(model, 3e-3)
    schedule = by_step(optimizer, lambda s: s / 60 if s < 60 else 0.5 + 0.5 * math.cos(math.pi * (s - 60) / 240))
    fit(watch, model, optimizer, data, steps, schedule=schedule, validate=50)
    return accuracy(model, data)


@healthy("mlp")
def long_converged(watch: Watch, steps: int = 800) -> float:
    """Training that goes on when nothing is left to learn."""
    model, data = seeded()
    fit(watch, model, adam(model, 1e-3), data, steps, validate=100)
    return accuracy(model, data)


@healthy("conv")
def frozen_backbone(watch: Watch, steps: int = 150) -> float:
    """Pretrained layers kept as they are, normalizers in eval mode, and a new head."""
    torch.manual_seed(0)
    model, data = conv_net(), digits()
    quiet: Any = lambda *_: contextlib.nullcontext(  # noqa: E731
        type("Run", (), {"observe": lambda self, **_: None, "log_metrics": lambda self, **_: None})()
    )
    fit(quiet, model, adam(model, 3e-3), data, 150)
    for module in list(model)[:-1]:  # type: ignore[call-overload]
        module.requires_grad_(False)
    model[-1] = nn.Linear(64, 10)  # type: ignore[index, operator]
    train = nn.Sequential.train

    def keep(mode: bool = True) -> nn.Module:
        train(model, mode)  # type: ignore[arg-type]
        for module in list(model)[:-1]:  # type: ignore[call-overload]
            module.eval()
        return model

    model.train = keep  # type: ignore[method-assign, assignment]
    fit(watch, model, adam(model, 3e-3), data, steps)
    return accuracy(model, data)


@healthy("gan")
def small_gan(watch: Watch, steps: int = 300) -> float:
    """Two networks that play against each other; the discriminator is watched."""
    torch.manual_seed(0)
    generator, critic = mlp(4, 32, 2), mlp(2, 32, 1)
    first, second = torch.optim.Adam(generator.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)
    with watch(critic, second) as run:
        for _ in range(steps):
            real = torch.randn(64, 2) * 0.5 + 1.0
            fake = generator(torch.randn(64, 4))
            second.zero_grad()
            loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
            run.observe(loss=loss)
            loss.backward()
            second.step()
            first.zero_grad()
            F.softplus(-critic(fake)).mean().backward()
            first.step()
    return 1.0


@healthy("mlp")
def accumulated_gradients(watch: Watch, steps: int = 60) -> float:
    """Sixteen batches for each step."""
    model, data = seeded()
    optimizer = sgd(model, 0.3, momentum=0.9)
    with watch(model.train(), optimizer) as run:
        for count, (x, y) in zip(range(16 * steps), batches(data, 8), strict=False):
            value = F.cross_entropy(model(x), y) / 16
            run.observe(loss=value)
            value.backward()
            if count % 16 == 15:
                optimizer.step()
                optimizer.zero_grad()
    return accuracy(model, data)


@healthy("transformer")
def small_transformer(watch: Watch, steps: int = 200) -> float:
    """Attention with dropout, warm-up and AdamW."""
    torch.manual_seed(0)
    data = digits(flat=True)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    model = nn.Sequential(
        nn.Unflatten(1, (8, 8)), nn.Linear(8, 32), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(256, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, data, steps, schedule=by_step(optimizer, lambda s: min(1, (s + 1) / 50)), clip=1.0)
    return accuracy(model, data)


@healthy("mlp")
def regression_with_noise(watch: Watch, steps: int = 300) -> float:
    """Targets that are mostly noise: the loss hardly falls."""
    torch.manual_seed(0)
    x = torch.randn(2048, 16)
    data = split(x, (x @ torch.randn(16) / 4 + torch.randn(2048))[:, None])
    model = mlp(16, 64, 1)
    fit(watch, model, adam(model, 1e-3), data, steps, loss=F.mse_loss, validate=60)
    return explained(model, data)


@healthy("mlp")
def full_batch_descent(watch: Watch, steps: int = 150) -> float:
    """All samples at each step."""
    model, data = seeded()
    fit(watch, model, sgd(model, 0.5), data, steps, change=lambda step, x, y: (data.x[:1024], data.y[:1024]))
    return accuracy(model, data)


@fault("mlp", causes="dead-units layer-decayed", remedies="initialise", layers="0 2")
def every_weight_at_zero(broken: bool, watch: Watch, steps: int = 150) -> float:
    """`nn.init.zeros_` for all parameters: no unit is ever on, and no gradient comes back."""
    model, data = seeded(64, 48, 48, 10)
    for parameter in model.parameters() if broken else ():
        nn.init.zeros_(parameter)
    fit(watch, model, sgd(model, 0.05, momentum=0.9), data, steps)
    return accuracy(model, data)


@fault("siamese", causes="output-constant", remedies="prevent-collapse change-loss")
def teacher_without_a_predictor(broken: bool, watch: Watch, steps: int = 250) -> float:
    """The target is the network's own output for another view, without a gradient: both become constant."""
    torch.manual_seed(0)
    data, model = digits(flat=True), mlp(64, 64, 16)
    optimizer = adam(model, 3e-3)
    with watch(model, optimizer) as run:
        for _, (x, _) in zip(range(steps), batches(data, 64)):
            one, two = model(x + 0.3 * torch.randn_like(x)), model(x + 0.3 * torch.randn_like(x))
            if broken:
                loss = F.mse_loss(one, two.detach())
            else:
                scores = F.normalize(one, dim=1) @ F.normalize(two, dim=1).T
                loss = F.cross_entropy(scores / 0.1, torch.arange(len(x)))
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        embedded = model(data.held_x)
        return float((embedded - embedded.mean(0)).norm() / data.held_x.norm())


@fault(
    "classification",
    causes="labels-unrelated not-learning data-changed divergence",
    remedies="check-labels check-data",
    onset=150,
)
def labels_of_another_order_from_step_150_on(broken: bool, watch: Watch, steps: int = 350) -> float:
    """The labels of each batch are shuffled on their own from step 150 on, in a loop that reports nothing."""
    torch.manual_seed(0)
    data, model = digits(), conv_net()
    optimizer = adam(model, 3e-3)
    with watch(model.train(), optimizer):
        for step, (x, y) in zip(range(steps), batches(data)):
            y = y[torch.randperm(len(y))] if broken and step >= 150 else y
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return accuracy(model, data)


@fault(
    "classification",
    causes="clipping-always-active gradient-too-small rate-too-low not-learning",
    remedies="loosen-clipping raise-learning-rate rescale-loss",
    onset=30,
)
def norm_clipped_to_nothing_from_step_30_on(broken: bool, watch: Watch, steps: int = 250) -> float:
    """clip_grad_norm_ with a limit that a schedule lowers to 1e-5."""
    model, data = seeded()
    optimizer = sgd(model, 0.02)
    with watch(model.train(), optimizer):
        for step, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-5 if broken and step >= 30 else 5.0)
            optimizer.step()
    return accuracy(model, data)
