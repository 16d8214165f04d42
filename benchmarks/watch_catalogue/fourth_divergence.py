"""Runs of the fourth part whose loss, values or gradients grow, or become infinite or NaN."""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue import parts as models
from .case import RunFault, Watch, run_fault
from .fourth_parts import (
    DIVERGES,
    descend,
    echoes,
    graph,
    likeness,
    moves,
    pictures,
    played,
    share_right,
    tastes,
    views,
)
from .parts import Data, accuracy, adam, batches, by_step, digits, explained, fit, or_minus_infinity, sgd, split
from .third_parts import curves, rows, unreported, waves

FAULTS: list[RunFault] = []
plant = partial(run_fault, FAULTS)


# -------------------------------------------------------------------------------------------- rates and what adds to it


@plant("GRU", causes=DIVERGES + " saturated-units", remedies="lower-learning-rate fix-schedule clip-gradients")
def rate_multiplied_by_the_world_size(broken: bool, watch: Watch, steps: int = 200) -> float:
    """The rate is scaled with the number of machines, and the run has one."""
    torch.manual_seed(301)
    data = waves(768)
    model = models.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    fit(watch, model, sgd(model, 0.1 * (64 if broken else 1), 0.9), data, steps)
    return accuracy(model, data)


@plant("CNN", causes=DIVERGES + " dead-units output-constant", remedies="lower-momentum lower-learning-rate")
def betas_exchanged(broken: bool, watch: Watch, steps: int = 250) -> float:
    """Adam gets `betas=(0.999, 0.9)`: a momentum of a thousand steps over a denominator of ten."""
    torch.manual_seed(302)
    data, model = digits(), models.ConvNet(classes=10, norm=False)
    betas = (0.999, 0.9) if broken else (0.9, 0.999)
    fit(watch, model, torch.optim.Adam(model.parameters(), 1e-2, betas=betas), data, steps, validate=50)
    return accuracy(model, data)


@plant("autoencoder", causes=DIVERGES + " dead-units output-constant", remedies="lower-momentum lower-learning-rate")
def momentum_added_to_rmsprop(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A momentum of 0.99 is added to RMSprop, whose rate stays as it was without."""
    torch.manual_seed(303)
    data = digits(flat=True)
    data, model = Data(data.x, data.x, data.held_x, data.held_x), models.Autoencoder(64)
    optimizer = torch.optim.RMSprop(model.parameters(), 2e-3, momentum=0.99 if broken else 0.0)
    fit(watch, model, optimizer, data, steps, loss=F.mse_loss)
    return explained(model, data)


@plant(
    "RL",
    causes=DIVERGES + " outlier inputs-not-scaled dead-units",
    remedies="scale-targets lower-learning-rate clip-gradients robust-loss rescale-loss",
)
def returns_in_cents(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A value network is trained by SGD on returns in the hundreds, at the rate for returns of about one."""
    torch.manual_seed(304)
    data, model = curves(), models.mlp(8, 48, 48, 1)
    size = 300.0 if broken else 1.0
    data = data._replace(y=size * data.y, held_y=size * data.held_y)
    fit(watch, model, sgd(model, 0.05, 0.9), data, steps, loss=F.mse_loss)
    return explained(model, data)


@plant("MLP", causes=DIVERGES + " dead-units", remedies="rescale-loss lower-learning-rate clip-gradients")
def sixteen_micro_batches_are_summed(broken: bool, watch: Watch, steps: int = 150) -> float:
    """Sixteen losses are sent backward for each step and none is divided by sixteen."""
    torch.manual_seed(305)
    data, model = digits(flat=True), models.mlp(64, 64, 64, 10)
    optimizer, stream = sgd(model, 0.1, 0.9), batches(data, 4)
    with watch(model, optimizer) as run:
        for _ in range(steps):
            optimizer.zero_grad()
            for x, y in (next(stream) for _ in range(16)):
                loss = F.cross_entropy(model(x), y) / (1 if broken else 16)
                loss.backward()
            run.observe(loss=loss)
            optimizer.step()
    return accuracy(model, data)


@plant(
    "GPT",
    causes=DIVERGES + " saturated-units attention-collapse dead-units",
    remedies="lower-learning-rate fix-schedule",
)
def rate_in_per_cent(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A configuration gives the rate in per cent, and nobody divides by a hundred."""
    torch.manual_seed(307)
    data, model = echoes(), models.GPT()
    optimizer = torch.optim.AdamW(model.parameters(), 0.5 if broken else 0.005)
    fit(watch, model, optimizer, data, steps, loss=models.over_tokens)
    return accuracy(model, data)


@plant(
    "recommender",
    causes=DIVERGES + " outlier dead-units",
    remedies="lower-learning-rate clip-gradients fix-schedule",
    onset=21,
)
def restarts_that_grow(broken: bool, watch: Watch, steps: int = 320) -> float:
    """A cosine with restarts multiplies its height by four at each restart, where it should divide."""
    torch.manual_seed(308)
    data, model = tastes(), models.Recommender()
    optimizer = adam(model, 1e-2)
    factor = 4.0 if broken else 0.8
    schedule = by_step(
        optimizer, lambda step: factor ** (step // 40) * (0.55 + 0.45 * math.cos(math.pi * (step % 40) / 40))
    )
    fit(watch, model, optimizer, data, steps, loss=F.mse_loss, schedule=schedule)
    return explained(model, data)


# ------------------------------------------------------------------------------------------------- what feeds on itself


@plant(
    "GAN",
    causes="exploding-values divergence exploding-gradient sign-of-loss discriminator-wins rate-too-high",
    remedies="balance-players clip-gradients lower-learning-rate add-normalizer",
)
def critic_without_a_bound(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A Wasserstein critic with neither clipping of weights nor a penalty: its values grow without limit."""
    torch.manual_seed(309)
    generator, critic = models.mlp(4, 48, 48, 2), models.mlp(2, 48, 48, 1)
    of_generator, of_critic = adam(generator, 1e-3), adam(critic, 3e-3)

    def real(count: int) -> Tensor:
        return torch.tensor([2.0, -1.0]) + 0.4 * torch.randn(count, 2)

    both = nn.ModuleDict({"generator": generator, "critic": critic})
    with watch(both, of_critic) as run:
        for _ in range(steps):
            made, true = generator(torch.randn(64, 4)), real(64)
            between = (0.5 * made + 0.5 * true).detach().requires_grad_()
            slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0].norm(dim=1)
            loss = critic(made.detach()).mean() - critic(true).mean()
            of_critic.zero_grad()
            (loss if broken else loss + 10 * (slope - 1).square().mean()).backward()
            of_critic.step()
            of_generator.zero_grad()
            (-critic(made).mean()).backward()
            of_generator.step()
            run.observe(loss=loss)
    with torch.no_grad():
        return -torch.cdist(generator(torch.randn(256, 4)), real(256)).amin(1).mean().item()


@plant(
    "diffusion",
    causes=DIVERGES + " outlier",
    remedies="clip-gradients lower-learning-rate rescale-loss guard-domain robust-loss",
)
def weights_of_noise_levels_without_a_ceiling(broken: bool, watch: Watch, steps: int = 150) -> float:
    """The loss of each noise level is divided by the level, and some levels are almost zero."""
    torch.manual_seed(310)
    inputs, noise = models.noisy_images(1024)
    model = models.Denoiser()
    weights = (1000.0 / (inputs["t"] + 0.2)).clamp(max=math.inf if broken else 3.0)
    optimizer = sgd(model, 0.02, 0.9)

    def loss_of(step: int) -> Tensor:
        chosen = torch.randperm(768)[:32]
        guess = model(inputs["x"][chosen], inputs["t"][chosen])
        return (weights[chosen] * (guess - noise[chosen]).square().mean((1, 2, 3))).mean()

    descend(watch, model, optimizer, steps, loss_of)
    with torch.no_grad():
        return or_minus_infinity(1 - F.mse_loss(model(inputs["x"][768:], inputs["t"][768:]), noise[768:]))


class _Summed(nn.Module):
    """A layer that adds the features of all neighbours, or their mean."""

    def __init__(self, width: int, near: Tensor) -> None:
        super().__init__()
        self.map = nn.Linear(width, width)
        self.register_buffer("near", near)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.map(self.near @ x))


@plant(
    "GNN",
    causes=DIVERGES + " dead-units",
    remedies="add-normalizer lower-learning-rate rescale-layer scale-branch initialise clip-gradients fewer-layers",
)
def neighbours_summed_over_twelve_rounds(broken: bool, watch: Watch, steps: int = 150) -> float:
    """Messages of all neighbours are added and not averaged, twelve rounds one after another."""
    torch.manual_seed(311)
    x, edges, y, train, rest = graph()
    near = torch.zeros(len(x), len(x))
    near[edges[1], edges[0]] = 1.0
    near = near if broken else near / near.sum(1, keepdim=True).clamp(min=1)
    model = nn.Sequential(nn.Linear(8, 24), *(_Summed(24, near) for _ in range(12)), nn.Linear(24, 3))
    descend(watch, model, sgd(model, 0.03, 0.9), steps, lambda step: F.cross_entropy(model(x)[train], y[train]))
    return share_right(model(x)[rest], y[rest])


class _StateSpace(nn.Module):
    """A diagonal linear recurrence over a series."""

    def __init__(self, pole: float) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(3, 24), nn.Linear(24, 3)
        self.poles = nn.Parameter(pole + 0.02 * torch.randn(24))

    def forward(self, series: Tensor) -> Tensor:
        state = torch.zeros(len(series), 24)
        for values in self.enter(series).unbind(1):
            state = self.poles * state + values
        return self.leave(torch.tanh(state) + 0.1 * state)


@plant(
    "state space",
    causes=DIVERGES + " saturated-units",
    layers="poles enter leave",
    remedies="clip-gradients initialise lower-learning-rate gated-recurrence rescale-layer",
)
def poles_beyond_one(broken: bool, watch: Watch, steps: int = 200) -> float:
    """The poles of a linear recurrence over eighty steps start at 1.1, and its states grow a thousandfold."""
    torch.manual_seed(312)
    data = split(*models.waves(768, steps=80))
    model = _StateSpace(1.1 if broken else 0.9)
    fit(watch, model, adam(model, 3e-3), data, steps)
    return accuracy(model, data)


class _Residual(nn.Module):
    """A linear layer, a rectifier and another, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = models.mlp(width, width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


@plant(
    "residual MLP",
    causes=DIVERGES + " dead-units",
    remedies="scale-branch add-normalizer initialise lower-learning-rate clip-gradients rescale-layer",
)
def forty_branches_without_a_normalizer(broken: bool, watch: Watch, steps: int = 150) -> float:
    """Forty residual branches, each as large as what it is added to: the sum doubles forty times."""
    torch.manual_seed(313)
    data = rows()
    model = nn.Sequential(nn.Linear(12, 32), *(_Residual(32) for _ in range(40)), nn.Linear(32, 3))
    if not broken:
        for block in model[1:-1]:
            nn.init.zeros_(block.branch[-1].weight)
    fit(watch, model, adam(model, 2e-3), data, steps)
    return accuracy(model, data)


@plant(
    "flow",
    causes=DIVERGES,
    remedies="lower-learning-rate clip-gradients guard-domain change-activation fix-schedule",
)
def scales_of_a_flow_without_a_bound(broken: bool, watch: Watch, steps: int = 250) -> float:
    """The exponent of a coupling layer is not held back by a tanh, and its rate is that of the other parts."""
    torch.manual_seed(314)
    nets = nn.ModuleList(models.mlp(1, 32, 2) for _ in range(6))

    def log_density(x: Tensor) -> Tensor:
        total = torch.zeros(len(x))
        for index, net in enumerate(nets):
            still, moved = x[:, index % 2], x[:, 1 - index % 2]
            log_scale, shift = net(still[:, None]).unbind(1)
            log_scale = 6 * log_scale if broken else 0.8 * torch.tanh(log_scale)
            moved = moved * log_scale.exp() + shift
            total = total + log_scale
            x = torch.stack([still, moved] if index % 2 == 0 else [moved, still], 1)
        return total - 0.5 * x.square().sum(1) - math.log(2 * math.pi)

    def ring(count: int) -> Tensor:
        angle = 2 * math.pi * torch.rand(count)
        return torch.stack([angle.cos(), angle.sin()], 1) * 1.5 + 0.15 * torch.randn(count, 2)

    descend(watch, nets, adam(nets, 1e-2), steps, lambda step: -log_density(ring(64)).mean())
    with torch.no_grad():
        return or_minus_infinity(log_density(ring(512)).mean())


# -------------------------------------------------------------------------------------- one number, one batch, one type


@plant(
    "table", causes="not-finite-data not-finite", remedies="clean-data check-data guard-domain scale-inputs", onset=110
)
def logarithm_of_zero_purchases(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A feature is the logarithm of a count that first becomes zero in a later file."""
    torch.manual_seed(315)
    data, model = rows(), models.mlp(12, 48, 3)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if step >= 110 and broken:
            x = x.clone()
            x[:2, 6] = torch.zeros(2).log()
        return x, y

    fit(watch, model, adam(model, 3e-3), data, steps, change=change)
    return accuracy(model, data)


@plant(
    "RL",
    causes="not-finite normalizer-too-few-samples not-finite-data",
    remedies="guard-domain larger-batch clean-data check-data",
    onset=140,
)
def advantages_of_an_episode_of_one_step(broken: bool, watch: Watch, steps: int = 220) -> float:
    """Advantages are divided by their standard deviation, and one episode has a single step."""
    torch.manual_seed(316)
    data, policy = moves(), models.mlp(6, 32, 4)
    stream = batches(data)

    def loss_of(step: int) -> Tensor:
        x, y = next(stream)
        if broken and step == 140:
            x, y = x[:1], y[:1]
        _, chance, reward = played(policy, x, y)
        return -(chance * (reward - reward.mean()) / (reward.std() + 1e-6)).mean()

    descend(watch, policy, adam(policy, 1e-2), steps, loss_of)
    return accuracy(policy, data)


@plant(
    "contrastive",
    causes="not-finite precision exploding-values",
    remedies="guard-domain change-loss scale-outputs raise-precision",
)
def exponentials_summed_by_hand(broken: bool, watch: Watch, steps: int = 150) -> float:
    """Similarities over a temperature of 0.01 are put through `exp` and summed, which float32 does not hold."""
    torch.manual_seed(317)
    data = digits(flat=True)
    model, stream = models.mlp(64, 64, 16), batches(data, 64)

    def loss_of(step: int) -> Tensor:
        first, second = (F.normalize(model(x), dim=1) for x in views(next(stream)[0], 0.3))
        if broken:
            powers = (first @ second.T / 0.01).exp()
            return -(powers.diag() / powers.sum(1)).log().mean()
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(64))

    descend(watch, model, adam(model, 2e-3), steps, loss_of)
    return likeness(model, data)


@plant(
    "table",
    causes="not-finite-data precision not-finite",
    remedies="raise-precision scale-inputs check-data clean-data",
    onset=90,
)
def salaries_in_half_precision(broken: bool, watch: Watch, steps: int = 180) -> float:
    """Columns are stored in float16, and later rows hold a salary above 65504."""
    torch.manual_seed(318)
    data, model = curves(), models.mlp(8, 48, 1)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        salary = 20000 * x[:, 7] + (62000 if step >= 90 else 10000)
        salary = salary.half().float() if broken else salary.clamp(max=65000.0)
        return torch.cat([x[:, :7], salary[:, None].sub(10000) / 20000], 1), y

    fit(unreported(watch), model, adam(model, 3e-3), data, steps, loss=F.mse_loss, change=change)
    return explained(model, data)


@plant(
    "table",
    causes="outlier loss-spike exploding-gradient data-changed inputs-not-scaled exploding-values",
    remedies="clean-data check-data clip-gradients robust-loss scale-inputs",
    onset=170,
)
def one_transaction_of_a_billion(broken: bool, watch: Watch, steps: int = 200) -> float:
    """One row in one late batch has an amount in the wrong currency, ten thousand times the others."""
    torch.manual_seed(319)
    data, model = curves(), models.mlp(8, 48, 48, 1)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if broken and step == 170:
            x = x.clone()
            x[5, 1] = 1e4
        return x, y

    fit(watch, model, sgd(model, 0.02, 0.9), data, steps, loss=F.mse_loss, change=change)
    return explained(model, data)


@plant(
    "table",
    causes="exploding-gradient divergence not-finite loss-spike exploding-values rate-too-high",
    remedies="guard-domain clip-gradients lower-learning-rate change-loss robust-loss",
)
def variance_without_a_floor(broken: bool, watch: Watch, steps: int = 500) -> float:
    """Half of the targets are exactly zero, so that the predicted variance falls to nothing, and errors explode."""
    torch.manual_seed(320)
    data, model = curves(), models.mlp(8, 48, 48, 2)
    data = data._replace(y=data.y.relu(), held_y=data.held_y.relu())

    def density(output: Tensor, y: Tensor) -> Tensor:
        mean, log_variance = output[:, :1], 6 * output[:, 1:]
        log_variance = log_variance if broken else log_variance.clamp(min=-3.0)
        return 0.5 * (log_variance + (mean - y).square() / log_variance.exp()).mean()

    fit(watch, model, adam(model, 1e-2), data, steps, loss=density)
    return explained(only_mean(model), data)


def only_mean(model: nn.Module) -> nn.Module:
    """Return the model with its first output alone."""

    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return model(x)[:, :1]

    return Mean()


# ----------------------------------------------------------------------------------------------------- penalties, decay


@plant(
    "MLP",
    causes="exploding-values divergence sign-of-loss exploding-gradient rate-too-high not-finite",
    remedies="flip-sign lower-penalty minimise lower-learning-rate",
)
def penalty_with_the_wrong_sign(broken: bool, watch: Watch, steps: int = 400) -> float:
    """The square of the weights is subtracted from the loss instead of added, and they grow at every step."""
    torch.manual_seed(321)
    data, model = digits(flat=True), models.mlp(64, 48, 10)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        size = sum(parameter.square().sum() for parameter in model.parameters())
        return F.cross_entropy(output, y) + (-0.05 if broken else 1e-4) * size

    fit(watch, model, sgd(model, 0.05, 0.9), data, steps, loss=loss, validate=50)
    with torch.no_grad():
        return or_minus_infinity(-F.cross_entropy(model.eval()(data.held_x), data.held_y))


@plant(
    "recommender",
    causes="decay-too-strong layer-decayed output-constant not-learning",
    layers="users items tower.0 tower.2 tower.4 users.weight items.weight",
    remedies="lower-weight-decay lower-penalty",
)
def decay_pulls_at_every_embedding(broken: bool, watch: Watch, steps: int = 400) -> float:
    """A weight decay of 0.1 in Adam acts on embeddings whose own gradients are sparse and small."""
    torch.manual_seed(322)
    data, model = tastes(), models.Recommender()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=0.1 if broken else 0.0)
    fit(watch, model, optimizer, data, steps, loss=F.mse_loss)
    return explained(model, data)


@plant(
    "LSTM",
    causes="decay-too-strong layer-decayed output-constant not-learning vanishing-gradient",
    remedies="lower-penalty lower-weight-decay",
)
def lasso_over_all_gates(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The sum of all absolute weights enters the loss with a factor of a tenth."""
    torch.manual_seed(323)
    data = waves(768)
    model = models.SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        size = sum(parameter.abs().sum() for parameter in model.parameters())
        return F.cross_entropy(output, y) + (0.1 if broken else 0.0) * size

    fit(watch, model, adam(model, 1e-2), data, steps, loss=loss)
    return accuracy(model, data)


@plant(
    "CNN",
    causes="decay-too-strong layer-decayed dead-units output-constant vanishing-gradient not-learning",
    layers="features.1 features.4 features.8 features.11",
    remedies="lower-penalty lower-weight-decay",
)
def gains_thinned_by_a_penalty(broken: bool, watch: Watch, steps: int = 250) -> float:
    """Network slimming with a factor that leaves no channel: all gains of BatchNorm go to zero."""
    torch.manual_seed(324)
    data, model = digits(), models.ConvNet(classes=10)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        gains = sum(m.weight.abs().sum() for m in model.modules() if isinstance(m, nn.BatchNorm2d))
        return F.cross_entropy(output, y) + (1.0 if broken else 1e-4) * gains

    fit(watch, model, adam(model, 1e-2), data, steps, loss=loss)
    return accuracy(model, data)


@plant("autoencoder", causes=DIVERGES + " dead-units sign-of-loss", remedies="lower-learning-rate clip-gradients")
def pictures_at_a_rate_of_thirty(broken: bool, watch: Watch, steps: int = 200) -> float:
    """The mean over pixels has small gradients, and the rate that makes up for it is sixty times too large."""
    torch.manual_seed(325)
    data, model = pictures(), models.Autoencoder()
    fit(watch, model, sgd(model, 30.0 if broken else 0.5, 0.9), data, steps, loss=F.mse_loss)
    return explained(model, data)
