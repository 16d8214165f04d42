"""The first part: runs that diverge, or break at one step."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue.parts import (
    Autoencoder,
    ConvNet,
    ResNet,
    SequenceClassifier,
    ViT,
    blob_images,
    mlp,
    regression_table,
    remembered_series,
    waves,
)
from .case import RunFault, Watch, run_fault
from .parts import accuracy, adam, batches, by_step, digits, explained, fit, or_minus_infinity, sgd, split

FAULTS: list[RunFault] = []
plant = partial(run_fault, FAULTS)
DIVERGES = "rate-too-high divergence exploding-gradient exploding-values not-finite"


# ------------------------------------------------------------------------------------------------------------- the rate


@plant("MLP", causes=DIVERGES + " dead-units", remedies="lower-learning-rate clip-gradients")
def sgd_with_a_rate_of_four(broken: bool, watch: Watch, steps: int = 150) -> float:
    """A rate for Adam's relatives that someone multiplied instead of dividing."""
    torch.manual_seed(9201)
    data, model = digits(flat=True), mlp(64, 64, 64, 10)
    fit(watch, model, sgd(model, 4.0 if broken else 0.05, momentum=0.9), data, steps)
    return accuracy(model, data)


@plant("CNN", causes=DIVERGES + " dead-units loss-spike", remedies="fix-schedule lower-learning-rate", onset=153)
def milestone_with_gamma_ten(broken: bool, watch: Watch, steps: int = 260) -> float:
    """`MultiStepLR(gamma=10)` where 0.1 was meant: at the milestone the rate grows instead of falling."""
    torch.manual_seed(9202)
    data, model = digits(), ConvNet(classes=10, norm=False)
    optimizer = sgd(model, 0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [153, 173], gamma=10 if broken else 0.1)
    fit(watch, model, optimizer, data, steps, schedule=schedule)
    return accuracy(model, data)


@plant("LSTM", causes=DIVERGES + " saturated-units", remedies="lower-learning-rate")
def adam_at_three_tenths(broken: bool, watch: Watch, steps: int = 150) -> float:
    """A rate of SGD given to Adam."""
    torch.manual_seed(9203)
    data = split(*waves(512, steps=24), held=128)
    model = SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)
    fit(watch, model, adam(model, 0.3 if broken else 5e-3), data, steps)
    return accuracy(model, data)


@plant("ViT", causes=DIVERGES + " saturated-units attention-collapse", remedies="lower-learning-rate fix-schedule")
def full_rate_from_the_first_step(broken: bool, watch: Watch, steps: int = 120) -> float:
    """A transformer at a brave rate of Adam that it bears after a warm-up, but not from the first step on."""
    torch.manual_seed(9204)
    data = split(*blob_images(768), held=192)
    model = ViT(depth=2)
    optimizer = adam(model, 0.02)
    schedule = by_step(optimizer, lambda step: 1.0 if broken else min(1.0, step / 60))
    fit(watch, model, optimizer, data, steps, batch=16, schedule=schedule)
    return accuracy(model, data)


@plant(
    "ViT",
    causes=DIVERGES + " saturated-units attention-collapse",
    remedies="fix-schedule lower-learning-rate",
    onset=10,
)
def warm_up_without_an_end(broken: bool, watch: Watch, steps: int = 180) -> float:
    """`min(1, ...)` is missing in the warm-up, so that the rate grows with every step."""
    torch.manual_seed(9205)
    data = split(*blob_images(768), held=192)
    model = ViT(depth=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = by_step(optimizer, lambda step: step / 10 if broken else min(1.0, step / 10))
    fit(watch, model, optimizer, data, steps, batch=16, schedule=schedule)
    return accuracy(model, data)


@plant(
    "RNN",
    causes=DIVERGES + " saturated-units",
    remedies="clip-gradients lower-learning-rate gated-recurrence initialise",
)
def recurrent_network_without_clipping(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A plain recurrent network of rectifiers over 40 steps, with gradients as they come."""
    torch.manual_seed(9206)
    data = split(*remembered_series(640, steps=40), held=128)
    model = SequenceClassifier(nn.RNN(4, 32, nonlinearity="relu", batch_first=True), 4)
    with torch.no_grad():
        model.recurrent.weight_hh_l0.copy_(1.02 * torch.eye(32))
    fit(watch, model, sgd(model, 0.02, momentum=0.9), data, steps, clip=None if broken else 0.5)
    return accuracy(model, data)


@plant("MLP", causes=DIVERGES + " dead-units", remedies="lower-momentum lower-learning-rate")
def momentum_with_a_nine_too_many(broken: bool, watch: Watch, steps: int = 250) -> float:
    """A momentum of 0.999 instead of 0.9: a hundred times the effective rate, and swings that grow."""
    torch.manual_seed(9207)
    data, model = digits(flat=True), mlp(64, 64, 64, 10)
    fit(watch, model, sgd(model, 0.08, momentum=0.999 if broken else 0.9), data, steps)
    return accuracy(model, data)


@plant("CNN", causes=DIVERGES + " dead-units", remedies="rescale-loss lower-learning-rate clip-gradients")
def accumulated_without_dividing(broken: bool, watch: Watch, steps: int = 120) -> float:
    """Four micro-batches are summed into one gradient, and the loss is not divided by four."""
    torch.manual_seed(9208)
    data, model = digits(), ConvNet(classes=10, norm=False)
    optimizer = sgd(model, 0.1, momentum=0.9)
    stream = batches(data, 8)
    with watch(model, optimizer) as run:
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(4):
                x, y = next(stream)
                loss = F.cross_entropy(model(x), y)
                loss = loss if broken else loss / 4
                loss.backward()
            run.observe(loss=loss)
            optimizer.step()
    return accuracy(model, data)


@plant(
    "CNN",
    causes="decay-too-strong layer-decayed output-constant dead-units",
    remedies="lower-weight-decay lower-penalty",
)
def weight_decay_of_one_hundred(broken: bool, watch: Watch, steps: int = 150) -> float:
    """A weight decay of 100 takes a tenth of every weight at every step."""
    torch.manual_seed(9209)
    data, model = digits(), ConvNet(classes=10, norm=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=100.0 if broken else 0.01)
    fit(watch, model, optimizer, data, steps)
    return accuracy(model, data)


# ------------------------------------------------------------------------------------------------ one batch, one number


@plant("regression", causes="not-finite-data", remedies="clean-data check-data", onset=143)
def missing_value_in_one_row(broken: bool, watch: Watch, steps: int = 240) -> float:
    """One row of a later file has an empty field, which is read as NaN."""
    torch.manual_seed(9210)
    data = split(*regression_table(2048), held=512)
    model = mlp(8, 48, 48, 1)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if broken and step == 143:
            x = x.clone()
            x[3, 5] = torch.nan
        return x, y

    fit(watch, model, adam(model, 3e-3), data, steps, loss=F.mse_loss, change=change)
    return explained(model, data)


@plant(
    "ResNet",
    causes="not-finite-weights",
    remedies="restore-weights initialise raise-precision",
    layers="blocks.0.conv2",
)
def checkpoint_that_overflowed(broken: bool, watch: Watch, steps: int = 80) -> float:
    """A checkpoint saved in half precision holds one infinite weight."""
    torch.manual_seed(9211)
    data, model = digits(), ResNet(blocks=2, classes=10)
    if broken:
        with torch.no_grad():
            model.blocks[0].conv2.weight[3, 2, 1, 1] = torch.inf
    fit(watch, model, sgd(model, 0.05, momentum=0.9), data, steps)
    return accuracy(model, data)


@plant("regression", causes="not-finite", remedies="guard-domain change-loss change-output-activation")
def logarithm_of_a_rectifier(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A Poisson loss by hand, `rate - count * log(rate)`, with a rate that a ReLU makes zero for some samples."""
    torch.manual_seed(9212)
    x, y = regression_table(2048)
    counts = torch.poisson((0.8 * y).exp())
    data = split(x, counts, held=512)
    model = nn.Sequential(*mlp(8, 32, 32, 1), nn.ReLU() if broken else nn.Softplus())
    fit(watch, model, adam(model, 2e-3), data, steps, loss=lambda rate, count: (rate - count * rate.log()).mean())
    return explained(model, data)


@plant("autoencoder", causes="precision not-finite", remedies="raise-precision check-scaler rescale-loss")
def static_loss_scale_in_half_precision(broken: bool, watch: Watch, steps: int = 100) -> float:
    """Weights in float16 with a fixed loss scale of 2**20, and no check for overflow."""
    torch.manual_seed(9213)
    images, _ = digits(1200, flat=True)[:2]
    data = split(images, images)
    scale, dtype = (2.0**20, torch.float16) if broken else (1.0, torch.float32)
    model = Autoencoder(64).to(dtype)
    optimizer = sgd(model, 0.2, momentum=0.9)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x.to(dtype)).float(), y)
            run.observe(loss=loss)
            (scale * loss).backward()
            for parameter in model.parameters():
                parameter.grad /= scale
            optimizer.step()
    return explained(model.float(), data)


@plant(
    "regression",
    causes="outlier loss-spike exploding-gradient",
    remedies="clean-data check-data check-labels scale-targets clip-gradients robust-loss",
    onset=123,
)
def sentinel_for_unknown_among_targets(broken: bool, watch: Watch, steps: int = 240) -> float:
    """Unknown prices are written as 999999 in one later file."""
    torch.manual_seed(9214)
    data = split(*regression_table(2048), held=512)
    model = mlp(8, 48, 48, 1)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if broken and step in (123, 151, 184, 212):
            y = y.clone()
            y[7] = 999999.0
        return x, y

    fit(watch, model, sgd(model, 0.02, momentum=0.9), data, steps, loss=F.mse_loss, change=change)
    return explained(model, data)


@plant(
    "MLP",
    causes="loss-spike outlier data-changed inputs-not-scaled exploding-gradient divergence",
    remedies="clip-gradients check-data scale-inputs clean-data robust-loss",
    onset=203,
)
def one_batch_in_bytes(broken: bool, watch: Watch, steps: int = 230) -> float:
    """One late batch comes in 0..255 from a second source; momentum carries its gradient on."""
    torch.manual_seed(9215)
    data, model = digits(flat=True), mlp(64, 64, 64, 10)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (16 * (6 * x + 5), y) if broken and step == 203 else (x, y)

    fit(watch, model, sgd(model, 0.05, momentum=0.9), data, steps, change=change)
    return accuracy(model, data)


@plant("GRU", causes="gradient-accumulates", remedies="order-of-calls")
def zero_grad_forgotten(broken: bool, watch: Watch, steps: int = 150) -> float:
    """`zero_grad()` was lost when the loop was rewritten: each step takes the sum of all gradients so far."""
    torch.manual_seed(9216)
    data = split(*waves(512, steps=24), held=128)
    model = SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    optimizer = sgd(model, 0.2, momentum=0.9)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            if not broken:
                optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    return accuracy(model, data)


@plant("regression", causes="gradient-accumulates", remedies="order-of-calls")
def closure_that_does_not_clear(broken: bool, watch: Watch, steps: int = 40) -> float:
    """The closure of LBFGS computes loss and gradient but does not clear the gradient first."""
    torch.manual_seed(9217)
    data = split(*regression_table(512), held=256)
    model = mlp(8, 24, 1, activation=nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=4)
    with watch(model, optimizer) as run:
        for _ in range(steps):

            def closure() -> Tensor:
                if not broken:
                    optimizer.zero_grad()
                loss = F.mse_loss(model(data.x), data.y)
                loss.backward()
                return loss

            run.observe(loss=optimizer.step(closure))
    return max(-10.0, or_minus_infinity(explained(model, data)))
