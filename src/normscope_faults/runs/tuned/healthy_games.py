"""Healthy runs of players, codes, rewards, and objectives that mean something else."""

import copy
import math
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data import blob_images, table
from ...networks import VAE, ConvNet, Generator, mlp
from ..case import OPEN, SECOND, THIRD
from ..data import Data, batches, digits, split
from ..loops import Loop, adam, by, or_minus_infinity
from ..networks import plain_mlp
from .parts import Adversaries, SecondAutoencoder, _take


def seeded(flat: bool = True, **options: Any) -> tuple[nn.Module, Data]:
    """Return an MLP and digits, the same ones each time."""
    torch.manual_seed(0)
    return plain_mlp(64, 64, 10), digits(flat=flat, **options)


class Tokens(nn.Module):
    """A recurrent model of tokens with one matrix for inputs and outputs."""

    def __init__(self, count: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(count, width)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.memory, self.norm = nn.GRU(width, width, batch_first=True), nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(self.memory(self.embedding(tokens))[0]) @ self.embedding.weight.T


@OPEN.sound("vae", steps=300, seed=None)
def variational_autoencoder_of_digits(loop: Loop) -> float:
    """A reconstruction and a divergence that grows while the sum falls."""

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = plain_mlp(64, 64, 16)
            self.decoder = plain_mlp(8, 64, 64)

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

    loop.train(None, model, adam(1e-3), objective=loss)
    return 1.0


@OPEN.sound("rl", steps=300)
def policy_gradient(loop: Loop) -> float:
    """REINFORCE with a baseline: the loss is around zero, of both signs, and does not fall."""
    model = plain_mlp(16, 32, 2, act=nn.Tanh)
    rewards = []

    def loss(step: int) -> Tensor:
        states = torch.randn(32, 16)
        chosen = torch.distributions.Categorical(logits=model(states))
        actions = chosen.sample()
        reward = (actions == (states[:, 0] > 0)).float() + 0.5 * torch.randn(32)
        rewards.append(reward.mean().item())
        return -(chosen.log_prob(actions) * (reward - reward.mean())).mean()

    loop.train(None, model, adam(1e-2), objective=loss)
    return sum(rewards[-20:]) / 20


@OPEN.sound("rl", steps=300)
def temporal_differences(loop: Loop) -> float:
    """Values that are learned from themselves: targets move, and the loss rises before it falls."""
    model = plain_mlp(8, 64, 1)
    target, turn = deepcopy(model), torch.linalg.qr(torch.randn(8, 8))[0]

    def loss(step: int) -> Tensor:
        if step % 25 == 0:
            target.load_state_dict(model.state_dict())
        states = torch.randn(64, 8)
        with torch.no_grad():
            goals = states[:, :1] + 0.3 * torch.randn(64, 1) + 0.9 * target(states @ turn)
        return F.mse_loss(model(states), goals)

    loop.train(None, model, adam(1e-3), objective=loss)
    return 1.0


@OPEN.sound("contrastive", steps=300)
def contrastive_pairs(loop: Loop) -> float:
    """Two views of each image against all others of the batch: the labels are the places in the batch."""
    _, data = plain_mlp(64, 64, 10), digits(flat=True)
    model = plain_mlp(64, 128, 32)
    stream = batches(data, 64)

    def loss(step: int) -> Tensor:
        x, _ = next(stream)
        first, second = (F.normalize(model(x + 0.5 * torch.randn_like(x)), dim=1) for _ in range(2))
        return F.cross_entropy(first @ second.T / 0.2, torch.arange(len(x)))

    loop.train(None, model, adam(1e-3), objective=loss)
    return 1.0


@OPEN.sound("diffusion", steps=400)
def noise_prediction(loop: Loop) -> float:
    """A denoiser: its loss falls at first and then stays high, for most of the noise cannot be told."""
    _, data = plain_mlp(64, 64, 10), digits(flat=True)
    model = plain_mlp(65, 128, 128, 64, act=nn.SiLU)
    stream = batches(data, 64)

    def loss(step: int) -> Tensor:
        x, _ = next(stream)
        noise, time = torch.randn_like(x), torch.rand(len(x), 1)
        noisy = (math.pi / 2 * time).cos() * x + (math.pi / 2 * time).sin() * noise
        return F.mse_loss(model(torch.cat([noisy, time], 1)), noise)

    loop.train(None, model, adam(1e-3), objective=loss)
    return 1.0


@OPEN.sound("language", steps=300)
def tokens_that_are_almost_random(loop: Loop) -> float:
    """A text in which one token in five follows from the one before: the loss stays near log V."""
    text = torch.randint(0, 64, (20000,))
    follows = torch.rand(20000) < 0.2
    for place in follows.nonzero()[1:, 0].tolist():
        text[place] = (7 * text[place - 1] + 3) % 64
    model = Tokens(64)

    def loss(step: int) -> Tensor:
        rows = torch.stack([text[i : i + 33] for i in torch.randint(0, 19000, (16,)).tolist()])
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    loop.train(None, model, adam(3e-3), objective=loss)
    return 1.0


@OPEN.sound("mlp", steps=300)
def weighted_terms(loop: Loop) -> float:
    """A classification, a penalty that is most of the loss, and weights of classes."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    weight = torch.linspace(0.2, 3.0, 10)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        size = torch.stack([p.square().sum() for p in model.parameters()]).sum()
        return F.cross_entropy(output, y, weight=weight) + 0.1 * size

    return loop.fit(data, model, adam(1e-3), loss=loss)


@SECOND.sound("adversarial", steps=700, seed=801)
def points_on_a_ring(loop: Loop) -> float:
    """A balanced pair of generator and discriminator; both losses stay where they are, as they should."""
    model = Adversaries()
    generator, judge = model.generator, model.discriminator
    optimizer = torch.optim.Adam(generator.parameters(), 2e-3, betas=(0.5, 0.9))
    opponent = torch.optim.Adam(judge.parameters(), 4e-3, betas=(0.5, 0.9))
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    with loop.watch(generator, optimizer) as run:
        for _ in range(loop.steps):
            angle = 2 * math.pi * torch.rand(64, 1)
            real = 2 * torch.cat([angle.sin(), angle.cos()], 1) + 0.1 * torch.randn(64, 2)
            fake = generator(torch.randn(64, 4))
            opponent.zero_grad()
            against = F.binary_cross_entropy_with_logits(judge(real), ones)
            against = against + F.binary_cross_entropy_with_logits(judge(fake.detach()), zeros)
            against.backward()
            opponent.step()
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(judge(fake), ones)
            loss.backward()
            optimizer.step()
            run.log_metrics(generator_loss=loss.item(), discriminator_loss=against.item())
    with torch.no_grad():
        return or_minus_infinity(-(generator(torch.randn(512, 4)).norm(dim=1) - 2).abs().mean())


@SECOND.sound("adversarial", steps=500, seed=802)
def critic_with_a_gradient_penalty(loop: Loop) -> float:
    """A Wasserstein critic: its loss is negative, and the gradient of a gradient is taken."""
    generator, critic = mlp(4, 32, 2), mlp(2, 32, 32, 1)
    other = torch.optim.Adam(generator.parameters(), 2e-3, betas=(0.0, 0.9))

    def objective(step: int) -> Tensor:
        real, fake = torch.randn(64, 2) + 3, generator(torch.randn(64, 4))
        between = torch.lerp(real, fake.detach(), torch.rand(64, 1)).requires_grad_()
        slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
        return critic(fake.detach()).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()

    def then(step: int) -> None:
        if step % 3 == 0:
            other.zero_grad()
            (-critic(generator(torch.randn(64, 4))).mean()).backward()
            other.step()

    loop.train(None, critic, by(torch.optim.Adam, 2e-3, betas=(0.0, 0.9)), objective=objective, then=then)
    with torch.no_grad():
        return -(generator(torch.randn(512, 4)).mean(0) - 3).norm().item()


@SECOND.sound("variational autoencoder", steps=400, seed=803)
def annealed_evidence(loop: Loop) -> float:
    """The weight of the divergence rises over the first half, and the loss with it."""
    data = digits(1600, flat=True, raw=True)
    data = data._replace(x=data.x / 16, held_x=data.held_x / 16)
    model = SecondAutoencoder()

    def objective(step: int, x: Tensor, _: Tensor) -> Tensor:
        logits, mean, log_variance = model(x)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        pixels = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean()
        return pixels + min(1.0, step / 200) * divergence

    loop.train(data, model, adam(3e-3), objective=objective, batch=48)
    with torch.no_grad():
        wrong = (torch.sigmoid(model(data.held_x)[0]) - data.held_x).square().mean()
    return 1 - (wrong / data.held_x.var(0, correction=0).mean()).item()


@SECOND.sound("reinforcement", steps=400, seed=804)
def policy_gradient_of_a_contextual_bandit(loop: Loop) -> float:
    """REINFORCE with a baseline: the loss is no measure of progress, the reward is."""
    rule, policy = torch.randn(8, 4), mlp(8, 32, 4)
    optimizer = adam(5e-3)(policy)
    baseline = 0.25
    with loop.watch(policy, optimizer) as run:
        for _ in range(loop.steps):
            state = torch.randn(48, 8)
            choice = torch.distributions.Categorical(logits=policy(state))
            action = choice.sample()
            reward = (action == (state @ rule).argmax(1)).float()
            loss = -((reward - baseline) * choice.log_prob(action)).mean() - 0.01 * choice.entropy().mean()
            baseline = 0.95 * baseline + 0.05 * reward.mean().item()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
            run.log_metrics(reward=reward.mean().item())
    with torch.no_grad():
        state = torch.randn(500, 8)
        return (policy(state).argmax(1) == (state @ rule).argmax(1)).float().mean().item()


@SECOND.sound("reinforcement", steps=500, seed=805)
def values_with_a_target_network(loop: Loop) -> float:
    """Q-learning on a line of ten cells: the loss rises as rewards are found and jumps when the target is renewed."""
    model = mlp(10, 48, 2)
    target = copy.deepcopy(model)

    def objective(step: int) -> Tensor:
        cell, action = torch.randint(10, (64,)), torch.randint(2, (64,))
        following = (cell + 2 * action - 1).clamp(0, 9)
        reward = (following == 9).float()
        with torch.no_grad():
            best = target(F.one_hot(following, 10).float()).amax(1)
        value = model(F.one_hot(cell, 10).float())[torch.arange(64), action]
        return F.smooth_l1_loss(value, reward + 0.9 * (1 - reward) * best)

    loop.train(None, model, adam(3e-3), objective=objective,
        then=lambda step: (step + 1) % 50 == 0 and target.load_state_dict(model.state_dict()))  # fmt: skip
    with torch.no_grad():
        return model(torch.eye(10))[:9].argmax(1).float().mean().item()


@SECOND.sound("self-supervised", steps=300, seed=806)
def contrast_of_two_views(loop: Loop) -> float:
    """InfoNCE, whose loss stays above one because augmented neighbours are alike."""
    data = digits(1500, flat=True)
    model = mlp(64, 96, 16)

    def objective(step: int, x: Tensor, _y: Tensor) -> Tensor:
        first, second = (F.normalize(model(x + 0.6 * torch.randn_like(x)), dim=1) for _ in range(2))
        return F.cross_entropy(first @ second.T / 0.2, torch.arange(len(x)))

    loop.train(data, model, adam(2e-3), objective=objective, batch=64, report=None)
    with torch.no_grad():
        nearest = torch.cdist(F.normalize(model(data.held_x), dim=1), F.normalize(model(data.x), dim=1)).argmin(1)
        return (data.y[nearest] == data.held_y).float().mean().item()


@THIRD.sound("adversarial", steps=400, seed=141)
def hinge_game_with_spectral_norms(loop: Loop) -> float:
    """Two clusters, the hinge loss, a discriminator with spectral norms; both losses wander."""
    generator = mlp(8, 64, 64, 2)
    discriminator = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(2, 64)), nn.LeakyReLU(0.2),
        nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64)), nn.LeakyReLU(0.2), nn.Linear(64, 1))  # fmt: skip
    of_generator = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.99))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), 4e-3, betas=(0.5, 0.99))

    def real(count: int) -> Tensor:
        return torch.tensor([1.5, 1.0]) * (2 * torch.randint(2, (count, 1)) - 1) + 0.5 * torch.randn(count, 2)

    both = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    with loop.watch(both, of_generator) as run:
        for _ in range(loop.steps):
            made = generator(torch.randn(64, 8))
            score = (F.relu(1 - discriminator(real(64))) + F.relu(1 + discriminator(made.detach()))).mean()
            of_discriminator.zero_grad()
            score.backward()
            of_discriminator.step()
            answer = -discriminator(made).mean()
            of_generator.zero_grad()
            answer.backward()
            of_generator.step()
            run.log_metrics(d_loss=score.item(), g_loss=answer.item())
    with torch.no_grad():
        nearest = torch.cdist(generator(torch.randn(512, 8)), real(512)).amin(1)
    return 1 - nearest.mean().item()


@THIRD.sound("adversarial", steps=120, seed=142)
def deep_convolutional_game(loop: Loop) -> float:
    """A small DCGAN on blobs whose discriminator stays ahead, as it usually does."""
    data = split(*blob_images(640))
    images = torch.tanh(data.x / 2)
    generator = Generator()
    discriminator = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1),
        nn.LeakyReLU(0.2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, 1))  # fmt: skip
    of_generator = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.99))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), 3e-4, betas=(0.5, 0.99))
    with loop.watch(generator, of_generator) as run:
        for _ in range(loop.steps):
            real = images[torch.randint(len(images), (32,))]
            made = generator(torch.randn(32, 16))
            of_discriminator.zero_grad()
            score = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(made.detach())).mean()
            score.backward()
            of_discriminator.step()
            of_generator.zero_grad()
            answer = F.softplus(-discriminator(made)).mean()
            answer.backward()
            of_generator.step()
            run.log_metrics(d_loss=score.item(), g_loss=answer.item())
    with torch.no_grad():
        made = generator(torch.randn(256, 16))
    return 1 - (made.mean(0) - images.mean(0)).square().mean().sqrt().item()


@THIRD.sound("variational autoencoder", steps=350, seed=143)
def evidence_with_free_bits(loop: Loop) -> float:
    """The divergence of each code is not punished below a quarter of a bit, so that it lies there at first."""
    data, model = digits(flat=True, raw=True), VAE(64, 8)
    data = data._replace(x=data.x / 16, held_x=data.held_x / 16)
    optimizer = adam(2e-3)(model)
    with loop.watch(model, optimizer) as run:
        for _, (x, _labels) in _take(data, 64, loop.steps):
            logits, mean, log_variance = model(x)
            divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean(0)
            reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean()
            loss = reconstruction + divergence.clamp(min=0.25).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log_metrics(loss=loss.item(), kl=divergence.sum().item())
    with torch.no_grad():
        wrong = model(data.held_x)[0].sigmoid() - data.held_x
    return 1 - (wrong.square().mean() / data.held_x.var()).item()


@THIRD.sound("reinforcement", steps=400, seed=144)
def actor_and_critic_with_an_entropy_bonus(loop: Loop) -> float:
    """One network with two heads; the sum of three losses goes up and down around zero while the reward rises."""
    data, trunk = split(*table(1280)), mlp(12, 64, 32)
    model = nn.ModuleDict({"trunk": trunk, "actor": nn.Linear(32, 3), "critic": nn.Linear(32, 1)})
    optimizer = adam(3e-3)(model)
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in _take(data, 64, loop.steps):
            hidden = torch.relu(model["trunk"](x))
            actions, value = torch.distributions.Categorical(logits=model["actor"](hidden)), model["critic"](hidden)
            action = actions.sample()
            reward = (action == y).float() + 0.3 * torch.randn(len(x))
            advantage = reward - value[:, 0]
            policy = -(actions.log_prob(action) * advantage.detach()).mean()
            loss = policy + 0.5 * advantage.square().mean() - 0.02 * actions.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            run.log_metrics(loss=loss.item(), reward=reward.mean().item())
    with torch.no_grad():
        return (model["actor"](torch.relu(trunk(data.held_x))).argmax(1) == data.held_y).float().mean().item()


@THIRD.sound("reinforcement", steps=500, seed=145)
def values_whose_scale_grows_with_the_policy(loop: Loop) -> float:
    """Q-learning along a corridor with a target network: the loss grows while the reward spreads backwards."""
    online = mlp(10, 64, 2)
    target = copy.deepcopy(online)

    def objective(step: int) -> Tensor:
        place, action = torch.randint(10, (64,)), torch.randint(2, (64,))
        goes_to = (place + 2 * action - 1).clamp(0, 9)
        reward = 10 * (goes_to == 9).float()
        with torch.no_grad():
            best = reward + 0.9 * (goes_to < 9) * target(F.one_hot(goes_to, 10).float()).amax(1)
        return F.smooth_l1_loss(online(F.one_hot(place, 10).float()).gather(1, action[:, None])[:, 0], best)

    loop.train(None, online, adam(3e-3), objective=objective,
        then=lambda step: step % 25 == 24 and target.load_state_dict(online.state_dict()), report=None)  # fmt: skip
    with torch.no_grad():
        return online(torch.eye(10))[:9].argmax(1).float().mean().item()


@THIRD.sound("self-supervised", steps=200, seed=146)
def two_noisy_views_with_many_negatives(loop: Loop) -> float:
    """InfoNCE over 64 images, whose loss starts at log 64 and stays well above zero."""
    data, model = digits(), ConvNet(classes=16)

    def objective(step: int, x: Tensor, _y: Tensor) -> Tensor:
        first, second = (F.normalize(model(x + 0.4 * torch.randn_like(x))) for _ in range(2))
        return F.cross_entropy(first @ second.T / 0.2, torch.arange(len(x)))

    loop.train(data, model, adam(3e-3), objective=objective, batch=64, report="step")
    with torch.no_grad():
        codes, held = F.normalize(model(data.x)), F.normalize(model(data.held_x))
    return (data.y[(held @ codes.T).argmax(1)] == data.held_y).float().mean().item()


@THIRD.sound("self-supervised", steps=200, seed=147)
def student_that_predicts_its_own_average(loop: Loop) -> float:
    """A teacher that is the student's moving average, a predictor between them, and no negatives."""
    data = digits(flat=True)
    student = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
    predictor = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32))
    teacher = copy.deepcopy(student).requires_grad_(False)
    model = nn.ModuleDict({"student": student, "predictor": predictor})

    def objective(step: int, x: Tensor, _y: Tensor) -> Tensor:
        guess = F.normalize(predictor(student(x + 0.3 * torch.randn_like(x))))
        return 2 - 2 * (guess * F.normalize(teacher(x + 0.3 * torch.randn_like(x)))).sum(1).mean()

    def then(step: int) -> None:
        for slow, fast in zip(teacher.parameters(), student.parameters()):
            slow.lerp_(fast.detach(), 0.02)

    loop.train(data, model, adam(2e-3), objective=objective, then=then, batch=64, report="step")
    with torch.no_grad():
        codes, held = F.normalize(student.eval()(data.x)), F.normalize(student(data.held_x))
    return (data.y[(held @ codes.T).argmax(1)] == data.held_y).float().mean().item()


@THIRD.sound("diffusion", steps=400, seed=148)
def velocity_of_a_flow(loop: Loop) -> float:
    """Flow matching from noise to a ring: after some steps the loss lies at a floor that no network can pass."""
    model = mlp(3, 64, 64, 2, activation=nn.SiLU)

    def ring(count: int) -> Tensor:
        angle = 2 * math.pi * torch.rand(count)
        return 2 * torch.stack([angle.cos(), angle.sin()], 1)

    def objective(step: int) -> Tensor:
        start, end, time = torch.randn(128, 2), ring(128), torch.rand(128, 1)
        velocity = model(torch.cat([start + time * (end - start), time], 1))
        return F.mse_loss(velocity, end - start)

    loop.train(None, model, adam(3e-3), objective=objective, report="step")
    points = torch.randn(512, 2)
    with torch.no_grad():
        for k in range(30):
            points = points + model(torch.cat([points, torch.full((512, 1), k / 30)], 1)) / 30
    return 1 - (points.norm(dim=1) - 2).abs().mean().item()
