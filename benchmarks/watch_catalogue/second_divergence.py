"""Runs that diverge, spike, or leave the finite numbers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue.parts import ConvNet, mlp
from .case import RunFault, Watch, run_fault
from .parts import accuracy, adam, batches, by_step, digits, explained, fit, log_validation, sgd
from .second_parts import LastState, blobs, chain, curved_table, fit_silently, frequencies, friedman

FAULTS: list[RunFault] = []

# --------------------------------------------------------------------------------------------------- steps too large


@run_fault(
    FAULTS,
    "regression",
    causes="rate-too-high divergence exploding-gradient exploding-values",
    remedies="lower-learning-rate clip-gradients lower-momentum",
)
def rate_of_plain_sgd_with_momentum(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The rate that was right for plain SGD kept when a momentum of 0.95 was added."""
    torch.manual_seed(741)
    data, model = friedman(), mlp(10, 64, 64, 1)
    optimizer = sgd(model, 0.2 if broken else 0.01, momentum=0.95 if broken else 0.9)
    fit(watch, model, optimizer, data, steps, loss=F.mse_loss)
    return explained(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="rate-too-high divergence dead-units not-learning exploding-values loss-spike",
    remedies="lower-learning-rate clip-gradients",
)
def adam_with_the_rate_of_sgd(broken: bool, watch: Watch, steps: int = 300) -> float:
    """lr=0.2 from an SGD recipe handed to Adam."""
    torch.manual_seed(742)
    data, model = digits(1400), ConvNet(width=8, depth=4, classes=10, norm=False)
    fit_silently(watch, model, adam(model, 0.2 if broken else 3e-3), data, steps)
    return accuracy(model, data)


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


@run_fault(
    FAULTS,
    "transformer",
    causes="rate-too-high divergence not-learning output-constant",
    remedies="lower-learning-rate fix-schedule clip-gradients",
)
def full_rate_from_the_first_step_blind(broken: bool, watch: Watch, steps: int = 220) -> float:
    """The schedule of a transformer without its warm-up, and ten times its peak."""
    torch.manual_seed(743)
    ids, _ = chain(500, 13, sharpness=3.0)
    model = PostNorm()
    optimizer = adam(model, 3e-2 if broken else 3e-3)
    schedule = by_step(optimizer, lambda step: 1.0 if broken else min(1.0, (step + 1) / 50))
    with watch(model, optimizer) as run:
        for _ in range(steps):
            rows = ids[torch.randint(400, (24,))]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return (model(ids[400:, :-1]).argmax(-1) == ids[400:, 1:]).float().mean().item()


@run_fault(
    FAULTS,
    "regression",
    causes="rate-too-high divergence loss-spike exploding-gradient exploding-values not-finite not-learning",
    remedies="lower-learning-rate fix-schedule clip-gradients",
    onset=150,
)
def gamma_of_ten(broken: bool, watch: Watch, steps: int = 350) -> float:
    """StepLR with gamma=10 where 0.1 was meant."""
    torch.manual_seed(744)
    data, model = friedman(), mlp(10, 64, 64, 1)
    optimizer = sgd(model, 0.03, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 150, gamma=10 if broken else 0.1)
    fit_silently(watch, model, optimizer, data, steps, loss=F.mse_loss, schedule=schedule)
    return explained(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="rate-too-high divergence loss-spike exploding-gradient exploding-values not-learning",
    remedies="lower-momentum lower-learning-rate fix-schedule",
    onset=160,
)
def momentum_cycled_beyond_one(broken: bool, watch: Watch, steps: int = 350) -> float:
    """A cycle of the momentum that adds 0.13 to 0.9 in its second half."""
    torch.manual_seed(745)
    data, model = curved_table(), mlp(12, 64, 64, 3)
    optimizer = sgd(model, 0.02, momentum=0.9)
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            optimizer.param_groups[0]["momentum"] = 0.9 if step < 160 else 1.03 if broken else 0.85
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="gradient-accumulates rate-too-high divergence exploding-gradient exploding-values not-learning loss-spike",
    remedies="order-of-calls lower-learning-rate clip-gradients",
)
def gradients_never_cleared_blind(broken: bool, watch: Watch, steps: int = 300) -> float:
    """zero_grad forgotten altogether."""
    torch.manual_seed(746)
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=10, norm=False)
    optimizer = sgd(model, 0.1)
    model.train()
    with watch(model, optimizer):
        for _, (x, y) in zip(range(steps), batches(data)):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if not broken:
                optimizer.zero_grad()
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "sequence",
    causes="exploding-gradient exploding-values",
    remedies="clip-gradients gated-recurrence initialise rescale-layer",
)
def recurrent_rectifier_beyond_one(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A rectified recurrent layer whose recurrent weight starts at 1.6 times the identity."""
    torch.manual_seed(747)
    data = frequencies(steps=40)
    recurrent = nn.RNN(3, 24, nonlinearity="relu", batch_first=True)
    with torch.no_grad():
        recurrent.weight_hh_l0.copy_((1.6 if broken else 0.9) * torch.eye(24))
    model = LastState(recurrent, 24, 3)
    optimizer = adam(model, 3e-3)
    fit(watch, model, optimizer, data, steps, clip=None if broken else 1.0)
    return accuracy(model, data)


# ----------------------------------------------------------------------------------------------------- data that harm


@run_fault(
    FAULTS,
    "table",
    causes="not-finite-data not-finite not-finite-weights",
    remedies="clean-data check-data",
    onset=200,
)
def missing_values_in_a_later_file(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A column with missing values in the rows that are read from step 200 on."""
    torch.manual_seed(748)
    data, model = curved_table(), mlp(12, 64, 64, 3)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if step >= 200:
            x = x.clone()
            x[::7, 9] = float("nan") if broken else 0.0
        return x, y

    fit(watch, model, adam(model, 3e-3), data, steps, change=change)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "regression",
    causes="outlier loss-spike exploding-gradient divergence data-changed exploding-values not-finite",
    remedies="robust-loss clean-data check-data clip-gradients check-labels scale-targets",
    onset=150,
)
def targets_in_another_unit(broken: bool, watch: Watch, steps: int = 260) -> float:
    """From step 150 on, one row in 30 has its target in grams where the others have kilograms."""
    torch.manual_seed(749)
    data, model = friedman(), mlp(10, 64, 64, 1)
    optimizer = sgd(model, 0.02, momentum=0.9)
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            if broken and step >= 150:
                y = torch.where(torch.rand_like(y) < 1 / 30, 1000 * y, y)
            loss = F.mse_loss(model(x), y)
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return explained(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="outlier loss-spike exploding-gradient exploding-values data-changed inputs-not-scaled not-finite",
    remedies="clean-data check-data clip-gradients scale-inputs",
    onset=170,
)
def three_batches_without_scaling(broken: bool, watch: Watch, steps: int = 230) -> float:
    """Three batches of 16-bit images that miss the scaling of all others."""
    torch.manual_seed(750)
    data, model = blobs(), ConvNet(width=8, depth=3, classes=6, norm=False)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (3000 * x + 8000 if broken and 170 <= step < 173 else x), y

    fit(watch, model, sgd(model, 0.02, momentum=0.9), data, steps, change=change)
    return accuracy(model, data)


# ------------------------------------------------------------------------------------------------ formats and domains


class HalfEnergy(nn.Module):
    """Divides each row by its root mean square, which is computed in half precision where asked."""

    def __init__(self, half: bool) -> None:
        super().__init__()
        self.half_precision = half

    def forward(self, x: Tensor) -> Tensor:
        kept = x.half() if self.half_precision else x
        return x * torch.rsqrt(kept.square().sum(1, keepdim=True) + 1e-3).float() * x.shape[1] ** 0.5


@run_fault(
    FAULTS,
    "table",
    causes="precision not-finite output-constant not-learning gradient-missing gradient-cut not-finite-weights",
    layers="1 0 2 0.weight",
    remedies="raise-precision scale-inputs rescale-layer",
)
def energy_in_half_precision(broken: bool, watch: Watch, steps: int = 250) -> float:
    """A root mean square in float16 of values near 100: the sum of squares overflows, and rows become zero."""
    torch.manual_seed(751)
    data = curved_table()
    model = nn.Sequential(nn.Linear(12, 64), HalfEnergy(broken), nn.ReLU(), *mlp(64, 48, 3))
    nn.init.normal_(model[0].weight, std=30.0)
    fit(watch, model, adam(model, 3e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="precision rate-too-low no-step not-learning",
    remedies="raise-precision raise-learning-rate",
)
def steps_lost_in_bfloat16(broken: bool, watch: Watch, steps: int = 900) -> float:
    """Weights kept in bfloat16: steps below the 256th part of a weight are rounded away."""
    torch.manual_seed(752)
    data = curved_table()
    model = mlp(12, 128, 128, 3)
    kind = torch.bfloat16 if broken else torch.float32
    model.to(kind)
    optimizer = adam(model, 1e-4)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(kind)).float(), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    return accuracy(model.float(), data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="not-finite not-finite-weights precision",
    remedies="guard-domain change-loss lower-learning-rate",
    onset=215,
)
def logarithm_of_a_softmax(broken: bool, watch: Watch, steps: int = 300) -> float:
    """-log(softmax) written out, with a temperature that falls until a probability is zero in single precision."""
    torch.manual_seed(753)
    data, model = digits(1400), ConvNet(width=16, depth=3, classes=10, norm=False)

    optimizer = adam(model, 3e-3)
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            scaled = (1 + step / 1.5) * model(x)
            if broken:
                loss = -torch.log(torch.softmax(scaled, 1))[torch.arange(len(y)), y].mean()
            else:
                loss = F.cross_entropy(scaled, y)
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "metric learning",
    causes="not-finite not-finite-weights exploding-gradient",
    remedies="guard-domain clean-data check-data",
    onset=110,
)
def distance_of_a_sample_to_its_copy(broken: bool, watch: Watch, steps: int = 220) -> float:
    """sqrt of a squared distance that is exactly zero once the data holds copies, from step 110 on."""
    torch.manual_seed(754)
    data = digits(1400, flat=True)
    model = mlp(64, 64, 8)
    optimizer = adam(model, 2e-3)
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data, 48)):
            if step >= 110:
                x, y = torch.cat([x[:40], x[:8]]), torch.cat([y[:40], y[:8]])
            code = model(x)
            squares = (code[:, None] - code[None]).square().sum(-1)
            distance = (squares + (0.0 if broken and step >= 110 else 1e-6)).sqrt()
            distance = distance if broken and step >= 110 else distance.clamp(min=1e-3)
            same = (y[:, None] == y[None]).float() * (1 - torch.eye(len(y)))
            other = (y[:, None] != y[None]).float()
            loss = (same * distance).sum() / same.sum() + (other * F.relu(3 - distance)).sum() / other.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    with torch.no_grad():
        known, asked = model(data.x), model(data.held_x)
        if not known.isfinite().all():
            return float("-inf")
        return (data.y[torch.cdist(asked, known).argmin(1)] == data.held_y).float().mean().item()


class OwnScale(nn.Module):
    """Standardises each image by its own mean and deviation."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean((1, 2, 3), keepdim=True)) / (x.std((1, 2, 3), keepdim=True) + self.eps)


@run_fault(
    FAULTS,
    "convolutional",
    causes="not-finite not-finite-data not-finite-weights",
    remedies="guard-domain clean-data check-data",
    onset=180,
)
def blank_image_divided_by_its_deviation(broken: bool, watch: Watch, steps: int = 260) -> float:
    """Each image is divided by its own deviation; at step 180 a blank one arrives."""
    torch.manual_seed(755)
    data = digits(1400)
    model = nn.Sequential(OwnScale(0.0 if broken else 1e-3), ConvNet(width=8, depth=3, classes=10, norm=False))
    optimizer = adam(model, 3e-3)
    model.train()
    with watch(model, optimizer):
        for step, (x, y) in zip(range(steps), batches(data)):
            if step == 180:
                x = x.clone()
                x[3] = -0.8
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return accuracy(model, data)


# ------------------------------------------------------------------------------------------------------------- decay


@run_fault(
    FAULTS,
    "table",
    causes="decay-too-strong layer-decayed output-constant not-learning vanishing-gradient",
    remedies="lower-weight-decay lower-penalty",
)
def decay_of_a_half(broken: bool, watch: Watch, steps: int = 300) -> float:
    """weight_decay=0.5, taken for a factor by which something decays."""
    torch.manual_seed(756)
    data, model = curved_table(), mlp(12, 64, 64, 3)
    fit_silently(watch, model, sgd(model, 0.05, momentum=0.9, decay=0.5 if broken else 5e-4), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="decay-too-strong layer-decayed output-constant not-learning loss-spike divergence",
    remedies="lower-weight-decay lower-penalty",
    onset=140,
)
def penalty_without_its_factor(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A penalty on absolute weights, switched on at step 140 without its factor of 1e-5."""
    torch.manual_seed(757)
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=10, norm=False)
    optimizer = adam(model, 3e-3)
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if step >= 140:
                penalty = torch.stack([weight.abs().sum() for weight in model.parameters()]).sum()
                loss = loss + (1.0 if broken else 1e-5) * penalty
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            if (step + 1) % 50 == 0:
                log_validation(run, model, data)
    return accuracy(model, data)
