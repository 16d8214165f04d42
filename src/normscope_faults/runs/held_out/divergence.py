"""Runs that diverge because steps are too large or gradients explode."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data import noisy_images, remembered_series, table, waves
from ...networks import GPT, Autoencoder, ConvNet, Denoiser, Recommender, SequenceClassifier, mlp
from ...training import over_tokens
from ..case import HELD_OUT, fault
from ..data import Data, batches, curves, digits, split
from ..loops import Loop, accuracy, adam, by, by_step, explained, or_minus_infinity, sgd
from .parts import descend, echoes, graph, pictures, share_right, tastes


class _Summed(nn.Module):
    """A layer that adds the features of all neighbours, or their mean."""

    def __init__(self, width: int, near: Tensor) -> None:
        super().__init__()
        self.map = nn.Linear(width, width)
        self.register_buffer("near", near)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.map(self.near @ x))


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


class _Residual(nn.Module):
    """A linear layer, a rectifier and another, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = mlp(width, width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def only_mean(model: nn.Module) -> nn.Module:
    """Return the model with its first output alone."""

    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return model(x)[:, :1]

    return Mean()


HELD_OUT.add(
    fault("rate-multiplied-by-the-world-size", "GRU",
        "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike not-learning "
        "saturated-units", "lower-learning-rate fix-schedule clip-gradients",
        "The rate is scaled with the number of machines, and the run has one.", lambda broken, loop: loop.fit(
        split(*waves(768)), SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3), sgd(0.1 * (64 if broken else 1),
        0.9)), steps=200, seed=301),
    fault("betas-exchanged", "CNN",
        "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike not-learning dead-units "
        "output-constant", "lower-momentum lower-learning-rate",
        "Adam gets `betas=(0.999, 0.9)`: a momentum of a thousand steps over a denominator of ten.", lambda broken,
        loop: loop.fit(digits(), ConvNet(classes=10, norm=False), by(torch.optim.Adam, 1e-2, betas=(0.999,
        0.9) if broken else (0.9, 0.999)), validate=50), steps=250, seed=302),
    fault("returns-in-cents", "RL",
        "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike not-learning outlier "
        "inputs-not-scaled dead-units", "scale-targets lower-learning-rate clip-gradients robust-loss rescale-loss",
        "A value network is trained by SGD on returns in the hundreds, at the rate for returns of about one.",
        lambda broken, loop: loop.fit((data := curves())._replace(y=(300.0 if broken else 1.0) * data.y,
        held_y=(300.0 if broken else 1.0) * data.held_y), mlp(8, 48, 48, 1), sgd(0.05, 0.9), loss=F.mse_loss),
        steps=200, seed=304),
    fault("rate-in-per-cent", "GPT",
        "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike not-learning "
        "saturated-units attention-collapse dead-units", "lower-learning-rate fix-schedule",
        "A configuration gives the rate in per cent, and nobody divides by a hundred.", lambda broken, loop: loop.fit(
        echoes(), GPT(), by(torch.optim.AdamW, 0.5 if broken else 0.005), loss=over_tokens), steps=200, seed=307),
    fault("restarts-that-grow", "recommender",
        "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike not-learning outlier "
        "dead-units", "lower-learning-rate clip-gradients fix-schedule",
        "A cosine with restarts multiplies its height by four at each restart, where it should divide.", lambda broken,
        loop: loop.fit(tastes(), Recommender(), adam(1e-2), loss=F.mse_loss,
        schedule=by_step(lambda step: (4.0 if broken else 0.8) ** (step // 40) * (0.55 + 0.45 * math.cos(math.pi * (step % 40) / 40)))),  # noqa: E501
        onset=21, steps=320, seed=308),
    fault("poles-beyond-one", "state space",
        "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike not-learning "
        "saturated-units", "clip-gradients initialise lower-learning-rate gated-recurrence rescale-layer",
        "The poles of a linear recurrence over eighty steps start at 1.1, and its states grow a thousandfold.",
        lambda broken, loop: loop.fit(split(*waves(768, steps=80)), _StateSpace(1.1 if broken else 0.9),
        adam(3e-3)), layers="poles enter leave", steps=200, seed=312),
    fault("decay-pulls-at-every-embedding", "recommender",
        "decay-too-strong layer-decayed output-constant not-learning", "lower-weight-decay lower-penalty",
        "A weight decay of 0.1 in Adam acts on embeddings whose own gradients are sparse and small.", lambda broken,
        loop: loop.fit(tastes(), Recommender(), by(torch.optim.Adam, 1e-2, weight_decay=0.1 if broken else 0.0),
        loss=F.mse_loss), layers="users items tower.0 tower.2 tower.4 users.weight items.weight", steps=400, seed=322),
    fault("pictures-at-a-rate-of-thirty", "autoencoder",
        "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike not-learning dead-units "
        "sign-of-loss", "lower-learning-rate clip-gradients",
        "The mean over pixels has small gradients, and the rate that makes up for it is sixty times too large.",
        lambda broken, loop: loop.fit(pictures(), Autoencoder(), sgd(30.0 if broken else 0.5, 0.9), loss=F.mse_loss),
        steps=200, seed=325),
    fault("state-of-adam-lost-at-each-step", "autoencoder",
        "rate-too-high divergence loss-spike not-learning exploding-values exploding-gradient dead-units "
        "output-constant", "lower-learning-rate lower-momentum keep-weights",
        "The state of Adam is cleared in each step, so that every weight moves by the full rate each time.",
        lambda broken, loop: loop.fit(pictures(), (model := Autoencoder()), (optimizer := adam(1e-2)(model)),
        loss=F.mse_loss, then=lambda step: broken and optimizer.state.clear()), steps=300, seed=372),
)  # fmt: skip


@HELD_OUT.fault("autoencoder",
    "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike not-learning dead-units "
    "output-constant", "lower-momentum lower-learning-rate", steps=300, seed=303)  # fmt: skip
def momentum_added_to_rmsprop(broken: bool, loop: Loop) -> float:
    """A momentum of 0.99 is added to RMSprop, whose rate stays as it was without."""
    data = digits(flat=True)
    data, model = Data(data.x, data.x, data.held_x, data.held_x), Autoencoder(64)
    return loop.fit(data, model, by(torch.optim.RMSprop, 2e-3, momentum=0.99 if broken else 0.0), loss=F.mse_loss)


@HELD_OUT.fault("MLP",
    "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike not-learning dead-units",
    "rescale-loss lower-learning-rate clip-gradients", steps=150, seed=305)  # fmt: skip
def sixteen_micro_batches_are_summed(broken: bool, loop: Loop) -> float:
    """Sixteen losses are sent backward for each step and none is divided by sixteen."""
    data, model = digits(flat=True), mlp(64, 64, 64, 10)
    optimizer, stream = sgd(0.1, 0.9)(model), batches(data, 4)
    with loop.watch(model, optimizer) as run:
        for _ in range(loop.steps):
            optimizer.zero_grad()
            for x, y in (next(stream) for _ in range(16)):
                loss = F.cross_entropy(model(x), y) / (1 if broken else 16)
                loss.backward()
            run.observe(loss=loss)
            optimizer.step()
    return accuracy(model, data)


@HELD_OUT.fault("GAN", "exploding-values divergence exploding-gradient sign-of-loss discriminator-wins rate-too-high",
    "balance-players clip-gradients lower-learning-rate add-normalizer", steps=300, seed=309)  # fmt: skip
def critic_without_a_bound(broken: bool, loop: Loop) -> float:
    """A Wasserstein critic with neither clipping of weights nor a penalty: its values grow without limit."""
    generator, critic = mlp(4, 48, 48, 2), mlp(2, 48, 48, 1)
    of_generator, of_critic = adam(1e-3)(generator), adam(3e-3)(critic)

    def real(count: int) -> Tensor:
        return torch.tensor([2.0, -1.0]) + 0.4 * torch.randn(count, 2)

    both = nn.ModuleDict({"generator": generator, "critic": critic})
    with loop.watch(both, of_critic) as run:
        for _ in range(loop.steps):
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


@HELD_OUT.fault("diffusion",
    "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike not-learning outlier",
    "clip-gradients lower-learning-rate rescale-loss guard-domain robust-loss", steps=150, seed=310)  # fmt: skip
def weights_of_noise_levels_without_a_ceiling(broken: bool, loop: Loop) -> float:
    """The loss of each noise level is divided by the level, and some levels are almost zero."""
    inputs, noise = noisy_images(1024)
    model = Denoiser()
    weights = (1000.0 / (inputs["t"] + 0.2)).clamp(max=math.inf if broken else 3.0)
    optimizer = sgd(0.02, 0.9)(model)

    def loss_of(step: int) -> Tensor:
        chosen = torch.randperm(768)[:32]
        guess = model(inputs["x"][chosen], inputs["t"][chosen])
        return (weights[chosen] * (guess - noise[chosen]).square().mean((1, 2, 3))).mean()

    descend(loop.watch, model, optimizer, loop.steps, loss_of)
    with torch.no_grad():
        return or_minus_infinity(1 - F.mse_loss(model(inputs["x"][768:], inputs["t"][768:]), noise[768:]))


@HELD_OUT.fault("GNN",
    "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike not-learning dead-units",
    "add-normalizer lower-learning-rate rescale-layer scale-branch initialise clip-gradients fewer-layers", steps=150,
    seed=311)  # fmt: skip
def neighbours_summed_over_twelve_rounds(broken: bool, loop: Loop) -> float:
    """Messages of all neighbours are added and not averaged, twelve rounds one after another."""
    x, edges, y, train, rest = graph()
    near = torch.zeros(len(x), len(x))
    near[edges[1], edges[0]] = 1.0
    near = near if broken else near / near.sum(1, keepdim=True).clamp(min=1)
    model = nn.Sequential(nn.Linear(8, 24), *(_Summed(24, near) for _ in range(12)), nn.Linear(24, 3))
    descend(
        loop.watch, model, sgd(0.03, 0.9)(model), loop.steps, lambda step: F.cross_entropy(model(x)[train], y[train])
    )
    return share_right(model(x)[rest], y[rest])


@HELD_OUT.fault("residual MLP",
    "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike not-learning dead-units",
    "scale-branch add-normalizer initialise lower-learning-rate clip-gradients rescale-layer", steps=150,
    seed=313)  # fmt: skip
def forty_branches_without_a_normalizer(broken: bool, loop: Loop) -> float:
    """Forty residual branches, each as large as what it is added to: the sum doubles forty times."""
    data = split(*table(1280))
    model = nn.Sequential(nn.Linear(12, 32), *(_Residual(32) for _ in range(40)), nn.Linear(32, 3))
    if not broken:
        for block in model[1:-1]:
            nn.init.zeros_(block.branch[-1].weight)
    return loop.fit(data, model, adam(2e-3))


@HELD_OUT.fault("flow",
    "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike not-learning",
    "lower-learning-rate clip-gradients guard-domain change-activation fix-schedule", steps=250,
    seed=314)  # fmt: skip
def scales_of_a_flow_without_a_bound(broken: bool, loop: Loop) -> float:
    """The exponent of a coupling layer is not held back by a tanh, and its rate is that of the other parts."""
    nets = nn.ModuleList(mlp(1, 32, 2) for _ in range(6))

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

    descend(loop.watch, nets, adam(1e-2)(nets), loop.steps, lambda step: -log_density(ring(64)).mean())
    with torch.no_grad():
        return or_minus_infinity(log_density(ring(512)).mean())


@HELD_OUT.fault("table", "exploding-gradient divergence not-finite loss-spike exploding-values rate-too-high",
    "guard-domain clip-gradients lower-learning-rate change-loss robust-loss", steps=500, seed=320)  # fmt: skip
def variance_without_a_floor(broken: bool, loop: Loop) -> float:
    """Half of the targets are exactly zero, so that the predicted variance falls to nothing, and errors explode."""
    data, model = curves(), mlp(8, 48, 48, 2)
    data = data._replace(y=data.y.relu(), held_y=data.held_y.relu())

    def density(output: Tensor, y: Tensor) -> Tensor:
        mean, log_variance = output[:, :1], 6 * output[:, 1:]
        log_variance = log_variance if broken else log_variance.clamp(min=-3.0)
        return 0.5 * (log_variance + (mean - y).square() / log_variance.exp()).mean()

    loop.train(data, model, adam(1e-2), loss=density)
    return explained(only_mean(model), data)


@HELD_OUT.fault("MLP", "exploding-values divergence sign-of-loss exploding-gradient rate-too-high not-finite",
    "flip-sign lower-penalty minimise lower-learning-rate", steps=400, seed=321)  # fmt: skip
def penalty_with_the_wrong_sign(broken: bool, loop: Loop) -> float:
    """The square of the weights is subtracted from the loss instead of added, and they grow at every step."""
    data, model = digits(flat=True), mlp(64, 48, 10)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        size = sum(parameter.square().sum() for parameter in model.parameters())
        return F.cross_entropy(output, y) + (-0.05 if broken else 1e-4) * size

    loop.train(data, model, sgd(0.05, 0.9), loss=loss, validate=50)
    with torch.no_grad():
        return or_minus_infinity(-F.cross_entropy(model.eval()(data.held_x), data.held_y))


@HELD_OUT.fault("LSTM", "decay-too-strong layer-decayed output-constant not-learning vanishing-gradient",
    "lower-penalty lower-weight-decay", steps=300, seed=323)  # fmt: skip
def lasso_over_all_gates(broken: bool, loop: Loop) -> float:
    """The sum of all absolute weights enters the loss with a factor of a tenth."""
    data = split(*waves(768))
    model = SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        size = sum(parameter.abs().sum() for parameter in model.parameters())
        return F.cross_entropy(output, y) + (0.1 if broken else 0.0) * size

    return loop.fit(data, model, adam(1e-2), loss=loss)


@HELD_OUT.fault("CNN", "decay-too-strong layer-decayed dead-units output-constant vanishing-gradient not-learning",
    "lower-penalty lower-weight-decay", layers="features.1 features.4 features.8 features.11", steps=250,
    seed=324)  # fmt: skip
def gains_thinned_by_a_penalty(broken: bool, loop: Loop) -> float:
    """Network slimming with a factor that leaves no channel: all gains of BatchNorm go to zero."""
    data, model = digits(), ConvNet(classes=10)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        gains = sum(m.weight.abs().sum() for m in model.modules() if isinstance(m, nn.BatchNorm2d))
        return F.cross_entropy(output, y) + (1.0 if broken else 1e-4) * gains

    return loop.fit(data, model, adam(1e-2), loss=loss)


@HELD_OUT.fault("MLP",
    "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike not-learning dead-units",
    "lower-learning-rate call-step order-of-calls lower-momentum clip-gradients", steps=200, seed=368)  # fmt: skip
def step_in_the_loop_and_in_a_callback(broken: bool, loop: Loop) -> float:
    """A callback steps once more, five times for each batch, at a rate that bears one step."""
    data, model = curves(), mlp(8, 48, 48, 1)
    optimizer = sgd(0.06, 0.9)(model)

    def then(step: int) -> None:
        for _ in range(4 if broken else 0):
            optimizer.step()

    return loop.fit(data, model, optimizer, loss=F.mse_loss, then=then)


@HELD_OUT.fault("RNN",
    "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike not-learning saturated-units",
    "clip-gradients order-of-calls lower-learning-rate gated-recurrence initialise", steps=200, seed=370)  # fmt: skip
def clipped_before_the_backward_pass(broken: bool, loop: Loop) -> float:
    """`clip_grad_norm_` stands before `backward`, where there is nothing to clip yet."""
    data = split(*remembered_series(768, steps=30))
    model = SequenceClassifier(nn.RNN(4, 32, nonlinearity="relu", batch_first=True), 4)
    with torch.no_grad():
        model.recurrent.weight_hh_l0.copy_(1.05 * torch.eye(32))
    optimizer = sgd(0.1, 0.9)(model)
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if broken:
                nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            loss.backward()
            if not broken:
                nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
            run.observe(loss=loss)
    return accuracy(model, data)


@HELD_OUT.fault("CNN",
    "rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike not-learning dead-units "
    "precision", "check-scaler rescale-loss lower-learning-rate clip-gradients", steps=120, seed=371)  # fmt: skip
def stepped_without_the_scaler(broken: bool, loop: Loop) -> float:
    """The loss is scaled, and `optimizer.step()` is called where `scaler.step(optimizer)` was meant."""
    data, model = digits(), ConvNet(classes=10, norm=False)
    optimizer, scaler = sgd(0.05, 0.9)(model), torch.amp.GradScaler("cpu", init_scale=2.0**12)
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            if broken:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            run.observe(loss=loss)
    return accuracy(model, data)


@HELD_OUT.fault("CNN",
    "divergence not-learning exploding-values sign-of-loss rate-too-high weights-put-back exploding-gradient",
    "keep-weights restore-weights order-of-calls flip-sign lower-learning-rate", steps=150, seed=374)  # fmt: skip
def ascent_of_sharpness_not_taken_back(broken: bool, loop: Loop) -> float:
    """Sharpness-aware training moves the weights uphill for a second gradient, and forgets to move them back."""
    data, model = digits(), ConvNet(classes=10, norm=False)
    optimizer = sgd(0.05, 0.9)(model)
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            run.observe(loss=loss)
            with torch.no_grad():
                size = torch.stack([p.grad.norm() for p in model.parameters()]).norm() + 1e-12
                moved = [0.2 * p.grad / size for p in model.parameters()]
                for parameter, move in zip(model.parameters(), moved):
                    parameter += move
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for parameter, move in zip(model.parameters(), moved):
                    parameter -= 0 * move if broken else move
            optimizer.step()
    return accuracy(model, data)
