"""Healthy runs of the open half that look odd: losses that stay, rise, are negative, or mean something else."""

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from .case import HealthyRun, Watch, healthy_run
from .parts import Data, accuracy, adam, batches, by_step, digits, explained, fit, log_validation, sgd, split

HEALTHY: list[HealthyRun] = []
healthy = partial(healthy_run, HEALTHY)


def seeded(flat: bool = True, **options: Any) -> tuple[nn.Module, Data]:
    """Return an MLP and digits, the same ones each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), digits(flat=flat, **options)


def train(
    watch: Watch, model: nn.Module, optimizer: Optimizer, steps: int, losses: Callable[[int], Tensor]
) -> Iterator[int]:
    """Train on the loss that a function of the step returns, watched; yield after each step."""
    with watch(model.train(), optimizer) as run:
        for step in range(steps):
            optimizer.zero_grad()
            loss = losses(step)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            yield step


def finish(loop: Iterator[int]) -> None:
    """Run a loop to its end."""
    for _ in loop:
        pass


# ------------------------------------------------------------------------------------- losses that mean something else


@healthy("vae")
def variational_autoencoder_of_digits(watch: Watch, steps: int = 300) -> float:
    """A reconstruction and a divergence that grows while the sum falls."""

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
            self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            mean, log_variance = self.encoder(x).chunk(2, 1)
            code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
            return self.decoder(code), mean, log_variance

    _, data = seeded()
    model, stream = Autoencoder(), batches(data)

    def loss(step: int) -> Tensor:
        x, _ = next(stream)
        made, mean, log_variance = model(x)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return (made - x).square().sum(1).mean() + 0.5 * divergence

    finish(train(watch, model, adam(model, 1e-3), steps, loss))
    return 1.0


@healthy("rl")
def policy_gradient(watch: Watch, steps: int = 300) -> float:
    """REINFORCE with a baseline: the loss is around zero, of both signs, and does not fall."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))
    rewards = []

    def loss(step: int) -> Tensor:
        states = torch.randn(32, 16)
        chosen = torch.distributions.Categorical(logits=model(states))
        actions = chosen.sample()
        reward = (actions == (states[:, 0] > 0)).float() + 0.5 * torch.randn(32)
        rewards.append(reward.mean().item())
        return -(chosen.log_prob(actions) * (reward - reward.mean())).mean()

    finish(train(watch, model, adam(model, 1e-2), steps, loss))
    return sum(rewards[-20:]) / 20


@healthy("rl")
def temporal_differences(watch: Watch, steps: int = 300) -> float:
    """Values that are learned from themselves: targets move, and the loss rises before it falls."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    target, turn = deepcopy(model), torch.linalg.qr(torch.randn(8, 8))[0]

    def loss(step: int) -> Tensor:
        if step % 25 == 0:
            target.load_state_dict(model.state_dict())
        states = torch.randn(64, 8)
        with torch.no_grad():
            goals = states[:, :1] + 0.3 * torch.randn(64, 1) + 0.9 * target(states @ turn)
        return F.mse_loss(model(states), goals)

    finish(train(watch, model, adam(model, 1e-3), steps, loss))
    return 1.0


@healthy("contrastive")
def contrastive_pairs(watch: Watch, steps: int = 300) -> float:
    """Two views of each image against all others of the batch: the labels are the places in the batch."""
    _, data = seeded()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    stream = batches(data, 64)

    def loss(step: int) -> Tensor:
        x, _ = next(stream)
        first, second = (F.normalize(model(x + 0.5 * torch.randn_like(x)), dim=1) for _ in range(2))
        return F.cross_entropy(first @ second.T / 0.2, torch.arange(len(x)))

    finish(train(watch, model, adam(model, 1e-3), steps, loss))
    return 1.0


@healthy("diffusion")
def noise_prediction(watch: Watch, steps: int = 400) -> float:
    """A denoiser: its loss falls at first and then stays high, for most of the noise cannot be told."""
    _, data = seeded()
    model = nn.Sequential(nn.Linear(65, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 64))
    stream = batches(data, 64)

    def loss(step: int) -> Tensor:
        x, _ = next(stream)
        noise, time = torch.randn_like(x), torch.rand(len(x), 1)
        noisy = (math.pi / 2 * time).cos() * x + (math.pi / 2 * time).sin() * noise
        return F.mse_loss(model(torch.cat([noisy, time], 1)), noise)

    finish(train(watch, model, adam(model, 1e-3), steps, loss))
    return 1.0


class Tokens(nn.Module):
    """A recurrent model of tokens with one matrix for inputs and outputs."""

    def __init__(self, count: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(count, width)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.memory, self.norm = nn.GRU(width, width, batch_first=True), nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(self.memory(self.embedding(tokens))[0]) @ self.embedding.weight.T


@healthy("language")
def tokens_that_are_almost_random(watch: Watch, steps: int = 300) -> float:
    """A text in which one token in five follows from the one before: the loss stays near log V."""
    torch.manual_seed(0)
    text = torch.randint(0, 64, (20000,))
    follows = torch.rand(20000) < 0.2
    for place in follows.nonzero()[1:, 0].tolist():
        text[place] = (7 * text[place - 1] + 3) % 64
    model = Tokens(64)

    def loss(step: int) -> Tensor:
        rows = torch.stack([text[i : i + 33] for i in torch.randint(0, 19000, (16,)).tolist()])
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    finish(train(watch, model, adam(model, 3e-3), steps, loss))
    return 1.0


@healthy("mlp")
def weighted_terms(watch: Watch, steps: int = 300) -> float:
    """A classification, a penalty that is most of the loss, and weights of classes."""
    model, data = seeded()
    weight = torch.linspace(0.2, 3.0, 10)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        size = torch.stack([p.square().sum() for p in model.parameters()]).sum()
        return F.cross_entropy(output, y, weight=weight) + 0.1 * size

    fit(watch, model, adam(model, 1e-3), data, steps, loss=loss)
    return accuracy(model, data)


# ------------------------------------------------------------------------------------------------- targets that are odd


@healthy("mlp")
def label_smoothing_and_mixup(watch: Watch, steps: int = 300) -> float:
    """Mixed images with two labels each, smoothed: the loss cannot become small."""
    model, data = seeded()
    stream = batches(data)

    def loss(step: int) -> Tensor:
        (x, y), share = next(stream), float(torch.distributions.Beta(0.4, 0.4).sample())
        order = torch.randperm(len(x))
        output = model(share * x + (1 - share) * x[order])
        first, second = (F.cross_entropy(output, one, label_smoothing=0.2) for one in (y, y[order]))
        return share * first + (1 - share) * second

    finish(train(watch, model, sgd(model, 0.1, momentum=0.9), steps, loss))
    return accuracy(model, data)


@healthy("mlp")
def distillation(watch: Watch, steps: int = 300) -> float:
    """A small network that learns the soft outputs of a larger one."""
    model, data = seeded()
    teacher = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = adam(teacher, 3e-3)
    for _, (x, y) in zip(range(150), batches(data), strict=False):
        optimizer.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        optimizer.step()
    stream = batches(data)

    def loss(step: int) -> Tensor:
        x, _ = next(stream)
        with torch.no_grad():
            goals = F.softmax(teacher(x) / 4, dim=1)
        return 16 * F.kl_div(F.log_softmax(model(x) / 4, dim=1), goals, reduction="batchmean")

    finish(train(watch, model, adam(model, 1e-3), steps, loss))
    return accuracy(model, data)


@healthy("mlp")
def one_in_twenty(watch: Watch, steps: int = 300) -> float:
    """Two classes, one of which is rare: the loss begins where guessing the other one ends."""
    torch.manual_seed(0)
    y = (torch.rand(2048) < 0.05).long()
    data = split(torch.randn(2048, 16) + 0.8 * y[:, None], y)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
    nn.init.zeros_(model[2].weight)
    model[2].bias = nn.Parameter(torch.tensor([0.95, 0.05]).log())
    fit(watch, model, adam(model, 1e-3), data, steps, validate=60)
    return accuracy(model, data)


@healthy("mlp")
def labels_that_are_mostly_noise(watch: Watch, steps: int = 300) -> float:
    """Four classes of which the inputs tell little: the loss falls by a few percent and stays."""
    torch.manual_seed(0)
    x = torch.randn(4096, 16)
    data = split(x, (x @ torch.randn(16, 4) + 12 * torch.randn(4096, 4)).argmax(1))
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    fit(watch, model, adam(model, 1e-3), data, steps)
    return accuracy(model, data)


# --------------------------------------------------------------------------------------- optimizers and their schedules


@healthy("conv")
def plateau_at_the_start(watch: Watch, steps: int = 300) -> float:
    """Convolutions without a normalizer: two hundred steps at the loss of guessing, then they learn."""
    _, data = seeded(flat=False)
    layers = [part for width in (1, 8, 8, 8) for part in (nn.Conv2d(width, 8, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))
    fit(watch, model, sgd(model, 0.1, momentum=0.9), data, steps, batch=64)
    return accuracy(model, data)


@healthy("conv")
def strong_decay(watch: Watch, steps: int = 300) -> float:
    """SGD with a decay of 0.01 on a network with normalizers: weights shrink to their equilibrium."""
    _, data = seeded(flat=False)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    fit(watch, model, sgd(model, 0.05, momentum=0.9, decay=1e-2), data, steps, validate=60)
    return accuracy(model, data)


@healthy("mlp")
def cosine_with_restarts(watch: Watch, steps: int = 400) -> float:
    """A rate that falls to nothing each hundred steps and begins again."""
    model, data = seeded()
    optimizer = sgd(model, 0.2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 100)
    fit(watch, model, optimizer, data, steps, schedule=schedule, validate=50)
    return accuracy(model, data)


@healthy("mlp")
def long_warm_up(watch: Watch, steps: int = 300) -> float:
    """A rate that begins at a hundred-thousandth and takes two hundred steps to rise."""
    model, data = seeded()
    optimizer = adam(model, 1e-3)
    fit(watch, model, optimizer, data, steps, schedule=by_step(optimizer, lambda s: max(1e-5, min(1.0, s / 200) ** 2)))
    return accuracy(model, data)


@healthy("mlp")
def eight_batches_a_step(watch: Watch, steps: int = 100) -> float:
    """Gradients of eight batches for each step, with the sum of their losses."""
    model, data = seeded()
    optimizer = adam(model, 1e-3)
    with watch(model.train(), optimizer) as run:
        for count, (x, y) in zip(range(8 * steps), batches(data, 16), strict=False):
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            (loss / 8).backward()
            if count % 8 == 7:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    return accuracy(model, data)


@healthy("mlp")
def averaged_weights_evaluated(watch: Watch, steps: int = 300) -> float:
    """An average of the weights is validated in place of the model, by a swap there and back."""
    model, data = seeded()
    optimizer, average = sgd(model, 0.05, momentum=0.9), [p.detach().clone() for p in model.parameters()]
    stream = batches(data)
    with watch(model.train(), optimizer) as run:
        for step in range(steps):
            x, y = next(stream)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for mean, parameter in zip(average, model.parameters(), strict=True):
                    mean.lerp_(parameter, 0.02)
                if step % 50 == 49:
                    kept = [p.clone() for p in model.parameters()]
                    for parameter, mean in zip(model.parameters(), average, strict=True):
                        parameter.copy_(mean)
                    log_validation(run, model, data)
                    for parameter, own in zip(model.parameters(), kept, strict=True):
                        parameter.copy_(own)
    return accuracy(model, data)


@healthy("transformer")
def fine_tuned_head(watch: Watch, steps: int = 200) -> float:
    """A trained backbone whose last layers are new, at a small rate for the old ones."""
    model, data = seeded()
    backbone = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    pretraining = nn.Sequential(backbone, nn.Linear(64, 10))
    optimizer = adam(pretraining, 3e-3)
    for _, (x, y) in zip(range(200), batches(data), strict=False):
        optimizer.zero_grad()
        F.cross_entropy(pretraining(x), y).backward()
        optimizer.step()
    model = nn.Sequential(backbone, nn.LayerNorm(64), nn.Linear(64, 10))
    groups = [{"params": backbone.parameters(), "lr": 1e-6}, {"params": model[1:].parameters(), "lr": 1e-3}]
    fit(watch, model, torch.optim.AdamW(groups, weight_decay=0.01), data, steps, validate=40)
    return accuracy(model, data)


@healthy("mlp")
def all_of_sixty_samples(watch: Watch, steps: int = 300) -> float:
    """A data set of sixty samples, all of them at each step."""
    model, data = seeded(count=80)
    fit(watch, model, sgd(model, 0.2), data, steps, batch=len(data.x), validate=50)
    return accuracy(model, data)


@healthy("mlp")
def one_batch_learned_by_heart(watch: Watch, steps: int = 150) -> float:
    """A table of 24 rows and a regression by Adam, always the whole table in the same order."""
    torch.manual_seed(0)
    x = torch.randn(24, 6)
    data = Data(x, x @ torch.randn(6, 1), x, x @ torch.randn(6, 1))
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    finish(train(watch, model, adam(model, 1e-2), steps, lambda step: F.mse_loss(model(data.x), data.y)))
    return explained(model, data)


@healthy("mlp")
def parts_are_called_and_never_the_whole(watch: Watch, steps: int = 150) -> float:
    """A ModuleDict, whose parts the loop calls one after the other."""
    torch.manual_seed(0)
    data = digits(flat=True)
    parts = nn.ModuleDict({"encoder": nn.Linear(64, 64), "decoder": nn.Linear(64, 10)})
    stream = batches(data)

    def loss(step: int) -> Tensor:
        x, y = next(stream)
        return F.cross_entropy(parts["decoder"](parts["encoder"](x).relu()), y)

    finish(train(watch, parts, adam(parts, 3e-3), steps, loss))
    return accuracy(nn.Sequential(parts["encoder"], nn.ReLU(), parts["decoder"]), data)


@healthy("mlp")
def an_epoch_of_five_batches_in_order(watch: Watch, steps: int = 200) -> float:
    """Few data and no shuffling: each tenth step sees the same batch."""
    model, data = seeded(count=200)
    pairs = list(zip(data.x.split(30), data.y.split(30)))
    finish(
        train(
            watch,
            model,
            adam(model, 3e-3),
            steps,
            lambda step: F.cross_entropy(model(pairs[step % 5][0]), pairs[step % 5][1]),
        )
    )
    return accuracy(model, data)


@healthy("regression")
def targets_that_grow(watch: Watch, steps: int = 300) -> float:
    """Targets grow thirtyfold over the run, as returns of a policy do that becomes better; so does the loss."""
    torch.manual_seed(0)
    rule = torch.randn(8, 1)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))

    def loss(step: int) -> Tensor:
        x = torch.randn(32, 8)
        return F.mse_loss(model(x), (0.1 + 0.01 * step) * (x @ rule))

    finish(train(watch, model, adam(model, 1e-2), steps, loss))
    x = torch.randn(512, 8)
    return explained(model, Data(x, x, x, (0.1 + 0.01 * steps) * (x @ rule)))


@healthy("regression")
def little_to_learn_and_a_schedule_that_waits(watch: Watch, steps: int = 400) -> float:
    """Nine tenths of the targets are noise; a schedule lowers the rate each time the validation stays."""
    torch.manual_seed(9)
    x = torch.randn(1200, 10)
    data = split(x, 0.3 * x[:, :1] + torch.randn(1200, 1))
    model = nn.Linear(10, 1)
    optimizer = sgd(model, 0.05)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    with watch(model, optimizer) as run:
        for step, (rows, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            F.mse_loss(model(rows), y).backward()
            optimizer.step()
            if step % 15 == 14:
                log_validation(run, model, data, F.mse_loss)
                with torch.no_grad():
                    schedule.step(F.mse_loss(model(data.held_x), data.held_y))
    return explained(model, data)


@healthy("regression")
def all_data_at_once_down_to_the_noise(watch: Watch, steps: int = 300) -> float:
    """Gradient descent on all data: the gradient vanishes where nothing is left but noise."""
    torch.manual_seed(10)
    x = torch.randn(200, 5)
    y = 0.2 * x[:, :1] + torch.randn(200, 1)
    model = nn.Linear(5, 1)
    finish(train(watch, model, sgd(model, 0.3), steps, lambda step: F.mse_loss(model(x), y)))
    return explained(model, Data(x, y, x, y))


@healthy("fine-tuning")
def head_on_codes_that_fit_already(watch: Watch, steps: int = 250) -> float:
    """A new head on a trained, frozen body: losses are tiny, and one batch has a thousand times that of the last."""
    torch.manual_seed(2)
    data = digits(1400, flat=True)
    body, first = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, 10)
    early = torch.optim.Adam([*body.parameters(), *first.parameters()], 3e-3)
    for _, (x, y) in zip(range(150), batches(data)):
        early.zero_grad()
        F.cross_entropy(first(body(x)), y).backward()
        early.step()
    model = nn.Sequential(body.requires_grad_(False), nn.Linear(32, 10))
    fit(watch, model, sgd(model, 0.05, momentum=0.9), data, steps)
    return accuracy(model, data)
