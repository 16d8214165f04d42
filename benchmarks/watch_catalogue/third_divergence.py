"""Runs whose loss or values run away."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue import parts as models
from .case import RunFault, Watch, run_fault
from .parts import Data, accuracy, adam, batches, digits, explained, fit, or_minus_infinity, sgd
from .third_parts import blobs, curves, rows, sentences, texts, unreported

FAULTS: list[RunFault] = []
_RUNAWAY = "rate-too-high divergence exploding-gradient exploding-values not-finite"


@run_fault(FAULTS, "table", causes=_RUNAWAY, remedies="lower-learning-rate rescale-loss clip-gradients")
def summed_loss_with_the_rate_of_a_mean(broken: bool, watch: Watch, steps: int = 250) -> float:
    """`reduction="sum"` multiplies every gradient by the size of the batch."""
    torch.manual_seed(61)
    data, model = curves(), models.mlp(8, 48, 48, 1)
    reduction = "sum" if broken else "mean"
    loss = nn.MSELoss(reduction=reduction)
    fit(watch, model, sgd(model, 0.1), data, steps, loss=loss)
    return explained(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes=f"{_RUNAWAY} loss-spike dead-units not-learning output-constant",
    remedies="lower-learning-rate",
)
def rmsprop_at_one_tenth(broken: bool, watch: Watch, steps: int = 200) -> float:
    """The rate of SGD is kept when RMSprop takes its place."""
    torch.manual_seed(62)
    data, model = digits(), models.ConvNet(classes=10, norm=False)
    fit(watch, model, torch.optim.RMSprop(model.parameters(), lr=0.1 if broken else 1e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes=f"{_RUNAWAY} loss-spike dead-units not-learning output-constant",
    remedies="lower-learning-rate fix-schedule clip-gradients",
    onset=10,
)
def one_cycle_with_a_peak_of_five(broken: bool, watch: Watch, steps: int = 300) -> float:
    """`OneCycleLR(max_lr=5)`: a decimal point is missing, and the run breaks on the way up."""
    torch.manual_seed(63)
    data, model = blobs(), models.ConvNet(norm=False)
    optimizer = sgd(model, 0.1, momentum=0.9)
    peak = 5.0 if broken else 0.05
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=peak, total_steps=steps, div_factor=1000)
    fit(watch, model, optimizer, data, steps, schedule=cycle)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "transformer",
    causes="rate-too-high not-learning divergence loss-spike output-constant saturated-units vanishing-gradient",
    remedies="lower-learning-rate fix-schedule",
)
def post_norm_encoder_at_full_rate(broken: bool, watch: Watch, steps: int = 400) -> float:
    """An encoder with LayerNorm after each block begins at 5e-2, where 1e-3 would do."""
    torch.manual_seed(64)
    data, model = sentences(), models.SentenceEncoder()
    fit(watch, model, adam(model, 5e-2 if broken else 1e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes=f"{_RUNAWAY} gradient-accumulates loss-spike not-learning dead-units output-constant",
    remedies="order-of-calls lower-learning-rate",
)
def cleared_once_per_epoch(broken: bool, watch: Watch, steps: int = 250) -> float:
    """`zero_grad` stands in the loop over epochs and not in the one over batches."""
    torch.manual_seed(65)
    data, model = digits(), models.ConvNet(classes=10, norm=False)
    optimizer = sgd(model, 0.1, momentum=0.9)
    epoch = len(data.x) // 32
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            if not broken or step % epoch == 0:
                optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    return accuracy(model, data)


class _Dynamics(nn.Module):
    """Predicts the next state and is rolled out on its own predictions."""

    def __init__(self) -> None:
        super().__init__()
        self.change = models.mlp(4, 64, 4)
        nn.init.zeros_(self.change[-1].weight)

    def forward(self, state: Tensor, horizon: int) -> Tensor:
        states = [state]
        for _ in range(horizon):
            states.append(states[-1] + self.change(states[-1]))
        return torch.stack(states[1:], 1)


@run_fault(
    FAULTS,
    "sequence",
    causes="exploding-gradient exploding-values divergence loss-spike not-finite rate-too-high",
    remedies="clip-gradients lower-learning-rate",
    onset=150,
)
def horizon_raised_without_clipping(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A model of the dynamics is rolled out for 3 steps, from step 150 on for 60, through which gradients explode."""
    torch.manual_seed(66)
    turn = torch.linalg.matrix_exp(0.3 * torch.tensor([[0, 1.0, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 2.0], [0, 0, -2, 0]]))
    model = _Dynamics()
    optimizer = sgd(model, 0.02, momentum=0.9)

    def true_states(state: Tensor, horizon: int) -> Tensor:
        return torch.stack([state @ torch.linalg.matrix_power(turn, k).T for k in range(1, horizon + 1)], 1)

    with watch(model, optimizer) as run:
        for step in range(steps):
            horizon = 60 if step >= 150 and broken else 3
            state = torch.randn(32, 4)
            loss = F.mse_loss(model(state, horizon), true_states(state, horizon))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    state = torch.randn(256, 4)
    with torch.no_grad():
        return or_minus_infinity(
            max(-10, 1 - F.mse_loss(model(state, 3), true_states(state, 3)).nan_to_num(1e9).item())
        )


@run_fault(
    FAULTS,
    "regression",
    causes="not-finite not-finite-data",
    remedies="clean-data check-data guard-domain fix-targets",
    onset=90,
)
def logarithm_of_a_free_article(broken: bool, watch: Watch, steps: int = 220) -> float:
    """Targets are logarithms of prices, and in one batch a price is 0."""
    torch.manual_seed(67)
    data, model = curves(), models.mlp(8, 48, 48, 1)

    def log_prices(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        prices = y.exp()
        if broken and step == 90:
            prices[5] = 0.0
        return x, prices.log()

    fit(unreported(watch), model, adam(model, 3e-3), data, steps, loss=F.mse_loss, change=log_prices)
    return explained(model, data)


@run_fault(
    FAULTS,
    "regression",
    causes="outlier loss-spike exploding-gradient gradient-too-small rate-too-low not-learning data-changed divergence",
    remedies="robust-loss clip-gradients check-data clean-data fix-targets check-labels",
    onset=40,
)
def comma_lost_in_one_target(broken: bool, watch: Watch, steps: int = 300) -> float:
    """One target is a million times too large; Adam's second moment remembers it for the rest of the run."""
    torch.manual_seed(68)
    data, model = curves(), models.mlp(8, 48, 48, 1, activation=nn.Tanh)

    def misprint(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if broken and step == 40:
            y = y.clone()
            y[0] = 1e6
        return x, y

    fit(watch, model, adam(model, 2e-3), data, steps, loss=F.mse_loss, change=misprint)
    return explained(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="precision not-finite not-finite-weights",
    remedies="raise-precision",
)
def epsilon_lost_in_half_precision(broken: bool, watch: Watch, steps: int = 150) -> float:
    """A model of halves is trained by Adam, whose epsilon of 1e-8 is zero there."""
    torch.manual_seed(69)
    data, model = digits(flat=True), models.mlp(64, 48, 10)
    if broken:
        model.half()
        data = data._replace(x=data.x.half(), held_x=data.held_x.half())
    fit(
        unreported(watch),
        model,
        adam(model, 2e-3),
        data,
        steps,
        loss=lambda output, y: F.cross_entropy(output.float(), y),
    )
    return accuracy(model, data)


class _MaskedReader(nn.Module):
    """Attention over words with the padding (token 0) masked, then a mean over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.head = nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(16))
        scores = self.query(x) @ self.key(x).transpose(1, 2) / math.sqrt(32)
        scores = scores.masked_fill((ids == 0)[:, None], -math.inf)
        x = x + scores.softmax(-1) @ self.value(x)
        return self.head(torch.relu(x).amax(1))


@run_fault(
    FAULTS,
    "text",
    causes="not-finite",
    layers="query key value head words positions query.weight key.weight value.weight words.weight head.weight",
    remedies="fix-mask mask-padding clean-data check-data",
    onset=110,
)
def empty_sentence_masked_altogether(broken: bool, watch: Watch, steps: int = 250) -> float:
    """One sentence is empty: each of its keys is masked, and the softmax over nothing is NaN."""
    torch.manual_seed(70)
    data, model = sentences(), _MaskedReader()

    def add_empty(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if step >= 110 and broken:
            x = x.clone()
            x[3] = 0
        return x, y

    fit(unreported(watch), model, adam(model, 3e-3), data, steps, change=add_empty)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "text",
    causes="not-finite",
    remedies="check-labels check-data guard-domain fix-targets clean-data",
    onset=130,
)
def batch_without_a_label_that_counts(broken: bool, watch: Watch, steps: int = 260) -> float:
    """The loss is a mean over the words that count, by hand, and in one batch none does: zero through zero."""
    torch.manual_seed(71)
    data, model = texts(), models.GPT()
    optimizer = adam(model, 3e-3)
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data, 16)):
            counts = (torch.rand(y.shape) < 0.7).float() * (0.0 if step == 130 else 1.0)
            losses = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")
            weight = counts.sum() if broken else counts.sum().clamp(min=1)
            loss = (losses * counts.flatten()).sum() / weight
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "metric learning",
    causes="not-finite not-finite-weights exploding-gradient",
    remedies="guard-domain change-loss",
    onset=60,
)
def angle_of_a_pair_of_equals(broken: bool, watch: Watch, steps: int = 250) -> float:
    """Angles come from `acos` of a cosine, whose slope is infinite for a sample paired with itself."""
    torch.manual_seed(72)
    data, model = digits(flat=True), models.mlp(64, 48, 8)
    optimizer = adam(model, 2e-3)
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data, 64)):
            partner = torch.randperm(len(x))
            if step >= 60:
                partner[0] = 0
            first, second = F.normalize(model(x)), F.normalize(model(x[partner]))
            cosine = (first * second).sum(1).clamp(-1, 1)
            angle = torch.acos(cosine if broken else 0.999 * cosine)
            loss = F.mse_loss(angle, torch.where(y == y[partner], 0.2, 1.6))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    with torch.no_grad():
        codes, held = F.normalize(model(data.x)), F.normalize(model(data.held_x))
    if not held.isfinite().all():
        return -float("inf")
    return (data.y[(held @ codes.T).argmax(1)] == data.held_y).float().mean().item()


@run_fault(
    FAULTS,
    "table",
    causes="not-finite saturated-units exploding-gradient",
    remedies="guard-domain change-loss remove-final-activation",
)
def binary_entropy_written_by_hand(broken: bool, watch: Watch, steps: int = 300) -> float:
    """`-(y * log(p) + (1 - y) * log(1 - p))`: once a sigmoid is exactly 1, zero times minus infinity is NaN."""
    torch.manual_seed(73)
    data = curves()
    x, held_x = 6 * data.x, 6 * data.held_x
    data, model = Data(x, (data.y > 0).float(), held_x, (data.held_y > 0).float()), models.mlp(8, 64, 64, 1)

    def by_hand(logit: Tensor, y: Tensor) -> Tensor:
        p = torch.sigmoid(logit)
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean()

    loss = by_hand if broken else F.binary_cross_entropy_with_logits
    fit(watch, model, adam(model, 5e-3), data, steps, loss=loss)
    with torch.no_grad():
        output = model(data.held_x)
    return ((output > 0) == (data.held_y > 0)).float().mean().item() if output.isfinite().all() else -float("inf")


@run_fault(
    FAULTS,
    "convolutional",
    causes="decay-too-strong layer-decayed not-learning output-constant vanishing-gradient",
    remedies="lower-weight-decay lower-penalty",
)
def decay_read_as_per_cent(broken: bool, watch: Watch, steps: int = 250) -> float:
    """A configuration says 5 and means five per cent; AdamW takes it as it is."""
    torch.manual_seed(74)
    data, model = digits(), models.ConvNet(classes=10, norm=False)
    decay = 5.0 if broken else 0.05
    fit(unreported(watch), model, torch.optim.AdamW(model.parameters(), 5e-3, weight_decay=decay), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "variational autoencoder",
    causes="inputs-not-scaled exploding-values exploding-gradient not-finite divergence precision",
    remedies="scale-inputs guard-domain clip-gradients lower-learning-rate",
)
def bytes_into_a_variational_autoencoder(broken: bool, watch: Watch, steps: int = 250) -> float:
    """Images of 0 to 255 make log variances of some hundred at the start, whose exponential is infinite."""
    torch.manual_seed(75)
    data, model = digits(flat=True, raw=True), models.VAE(64, 8)
    scale = 255 / 16 if broken else 1 / 16
    data = Data(scale * data.x, scale * data.x, scale * data.held_x, scale * data.held_x)

    def evidence(output: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        image, mean, log_variance = output
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return 20 * (image - x).square().sum(1).mean() + divergence

    fit(unreported(watch), model, adam(model, 2e-3), data, steps, loss=evidence)
    return max(-10.0, explained(model, data))


@run_fault(
    FAULTS,
    "metric learning",
    causes="exploding-values exploding-gradient divergence sign-of-loss not-finite",
    remedies="change-loss prevent-collapse add-normalizer flip-sign",
)
def strangers_pushed_apart_without_a_margin(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The contrastive loss is distance of equals minus distance of others, which has no lower bound."""
    torch.manual_seed(76)
    data, model = digits(flat=True), models.mlp(64, 48, 8)
    optimizer = adam(model, 5e-3)
    with watch(model, optimizer) as run:
        for x, y in (batch for batch, _ in zip(batches(data, 64), range(steps))):
            distance = (model(x) - model(x).roll(1, 0)).square().sum(1)
            apart = -distance if broken else F.relu(4 - distance)
            loss = torch.where(y == y.roll(1), distance, apart).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    with torch.no_grad():
        nearest = torch.cdist(model(data.held_x), model(data.x)).argmin(1)
    return (data.y[nearest] == data.held_y).float().mean().item()


@run_fault(
    FAULTS,
    "convolutional",
    causes="rate-too-high divergence exploding-values exploding-gradient not-finite loss-spike dead-units not-learning",
    layers="head head.weight head.bias",
    remedies="lower-learning-rate",
)
def rate_of_the_head_a_thousandfold(broken: bool, watch: Watch, steps: int = 200) -> float:
    """The group of the head was to learn ten times as fast as the body; two zeros slipped in."""
    torch.manual_seed(77)
    data, model = digits(), models.ConvNet(classes=10)
    groups = [
        {"params": model.features.parameters(), "lr": 0.02},
        {"params": model.head.parameters(), "lr": 20.0 if broken else 0.2},
    ]
    fit(unreported(watch), model, torch.optim.SGD(groups, momentum=0.9), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "reinforcement",
    causes="divergence exploding-values exploding-gradient not-finite",
    remedies="scale-targets fix-targets lower-learning-rate check-data change-loss",
)
def discount_above_one(broken: bool, watch: Watch, steps: int = 400) -> float:
    """The discount is written as 1.09 where 0.9 was meant: values that feed on themselves grow without end."""
    torch.manual_seed(78)
    model, discount = models.mlp(8, 48, 1), 1.09 if broken else 0.9
    optimizer = adam(model, 5e-3)
    with watch(model, optimizer) as run:
        for _ in range(steps):
            place = torch.randint(8, (64,))
            reward = (place == 7).float()[:, None]
            with torch.no_grad():
                target = reward + discount * model(F.one_hot((place + 1) % 8, 8).float())
            loss = F.mse_loss(model(F.one_hot(place, 8).float()), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    truth = torch.tensor([0.9**steps_left for steps_left in range(7, -1, -1)]) / (1 - 0.9**8)
    with torch.no_grad():
        return or_minus_infinity(max(-10.0, 1 - (model(torch.eye(8))[:, 0] - truth).square().mean().item()))


@run_fault(
    FAULTS,
    "table",
    causes="rate-too-high divergence exploding-gradient exploding-values loss-spike not-finite not-learning",
    remedies="lower-learning-rate fix-schedule clip-gradients",
    onset=200,
)
def rate_of_the_second_stage_in_the_wrong_unit(broken: bool, watch: Watch, steps: int = 350) -> float:
    """At step 200 the rate is set by hand for the second stage: 5 where 0.005 was meant."""
    torch.manual_seed(79)
    data, model = rows(), models.mlp(12, 48, 48, 3)
    optimizer = sgd(model, 0.05, momentum=0.9)

    def second_stage(step: int) -> None:
        if step == 199:
            optimizer.param_groups[0]["lr"] = 5.0 if broken else 0.005

    fit(unreported(watch), model, optimizer, data, steps, then=second_stage)
    return accuracy(model, data)
