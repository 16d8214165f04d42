"""Healthy runs whose losses or targets look odd: noise, floors, several terms."""

import copy
import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F
from torch.optim import lr_scheduler

from ...data import as_pixels, blob_images, communities, table, waves
from ...networks import (
    GPT,
    VAE,
    Autoencoder,
    ConvNet,
    Denoiser,
    Generator,
    GraphNet,
    SequenceClassifier,
    UNet,
    discriminator,
    mlp,
)
from ...training import evidence_loss
from ..case import FIRST, OPEN, SECOND, THIRD, sound
from ..data import Data, batches, digits, markov_chain, spirals, split
from ..loops import Loop, accuracy, adam, by, by_step, explained, log_validation, or_minus_infinity, pretrain, sgd
from ..networks import plain_mlp
from .layers import tanh_behind_weights_times_thirty
from .parts import PlainAutoencoder, Reconstruction, _take, likeness, reconstruct_digits
from .targets import loader_begun_anew_behind_a_trial_batch

OPEN.add(
    sound("rate-a-little-higher-from-step-250-on", "mlp",
        "A rate that rises three times in mid-run, which this network bears.", lambda loop: loop.fit(model=plain_mlp(64,
        64, 10), data=digits(flat=True), optimizer=adam(1e-3),
        schedule=by_step(lambda step: 1.0 if step < 250 else 3.0)), steps=400),
    sound("fixed-classifier-behind-a-body-that-learns", "mlp",
        "A random matrix without a bias as the last layer, which stays as it is (Hoffer et al. 2018).",
        lambda loop: loop.fit(digits(flat=True), nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64),
        nn.ReLU(), nn.Linear(64, 10, bias=False)), adam(3e-3), plant=lambda net: net[4].requires_grad_(False)),
        steps=300),
    sound("labels-that-are-mostly-noise", "mlp",
        "Four classes of which the inputs tell little: the loss falls by a few percent and stays.",
        lambda loop: loop.fit(split((x := torch.randn(4096, 16)), (x @ torch.randn(16, 4) + 12 * torch.randn(4096,
        4)).argmax(1)), plain_mlp(16, 64, 4), adam(1e-3)), steps=300),
)  # fmt: skip


@OPEN.sound("mlp", steps=200)
def ten_batches_in_order_behind_a_trial_batch(loop: Loop) -> float:
    """The same with the loader begun once an epoch: each tenth step sees the same batch, and no other step does."""
    return loader_begun_anew_behind_a_trial_batch(False, loop)


@OPEN.sound("mlp", steps=150)
def gelu_behind_weights_times_thirty(loop: Loop) -> float:
    """Most of the inner tanhs of a GELU that is written out are at their limits, where the GELU is not flat."""
    return tanh_behind_weights_times_thirty(False, loop)


@OPEN.sound("vae", steps=200)
def divergence_of_distributions(loop: Loop) -> float:
    """The divergence as `torch.distributions` has it, at half its weight."""

    def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
        made, prior = Normal(mean, (log_variance / 2).exp()), Normal(torch.zeros_like(mean), 1.0)
        return kl_divergence(made, prior).sum(1).mean() / 2

    return reconstruct_digits(loop.watch, PlainAutoencoder(), loop.steps, 3e-3, divergence)


@OPEN.sound("mlp", steps=300)
def label_smoothing_and_mixup(loop: Loop) -> float:
    """Mixed images with two labels each, smoothed: the loss cannot become small."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    stream = batches(data)

    def loss(step: int) -> Tensor:
        (x, y), share = next(stream), float(torch.distributions.Beta(0.4, 0.4).sample())
        order = torch.randperm(len(x))
        output = model(share * x + (1 - share) * x[order])
        first, second = (F.cross_entropy(output, one, label_smoothing=0.2) for one in (y, y[order]))
        return share * first + (1 - share) * second

    return loop.fit(None, model, sgd(0.1, momentum=0.9), objective=loss, judge=data)


@OPEN.sound("mlp", steps=300)
def distillation(loop: Loop) -> float:
    """A small network that learns the soft outputs of a larger one."""
    model, data = plain_mlp(64, 64, 10), digits(flat=True)
    teacher = plain_mlp(64, 256, 10)
    optimizer = adam(3e-3)(teacher)
    pretrain(data, teacher, optimizer, 150)
    stream = batches(data)

    def loss(step: int) -> Tensor:
        x, _ = next(stream)
        with torch.no_grad():
            goals = F.softmax(teacher(x) / 4, dim=1)
        return 16 * F.kl_div(F.log_softmax(model(x) / 4, dim=1), goals, reduction="batchmean")

    return loop.fit(None, model, adam(1e-3), objective=loss, judge=data)


@OPEN.sound("mlp", steps=300)
def one_in_twenty(loop: Loop) -> float:
    """Two classes, one of which is rare: the loss begins where guessing the other one ends."""
    y = (torch.rand(2048) < 0.05).long()
    data = split(torch.randn(2048, 16) + 0.8 * y[:, None], y)
    model = plain_mlp(16, 64, 2)
    nn.init.zeros_(model[2].weight)
    model[2].bias = nn.Parameter(torch.tensor([0.95, 0.05]).log())
    return loop.fit(data, model, adam(1e-3), validate=60)


FIRST.add(
    sound("mostly-noise", "regression",
        "A tenth of the variance can be explained: the loss falls from 1 to 0.9 and stays there.",
        lambda loop: loop.fit(split((x := torch.randn(6000, 10)), 0.33 * (x @ torch.randn(10,
        1)) / 10**0.5 + 0.95 * torch.randn(6000, 1), held=2000), mlp(10, 16, 1), adam(1e-3), loss=F.mse_loss, batch=64,
        validate=50), steps=400, seed=9516),
    sound("converged-long-ago", "regression",
        "Linear regression reaches its noise floor after 60 steps and stays there for the other 440.",
        lambda loop: loop.fit(split((x := torch.randn(2000, 12)), x @ torch.randn(12, 1) + 0.1 * torch.randn(2000, 1),
        held=500), nn.Linear(12, 1), sgd(0.05), loss=F.mse_loss), steps=500, seed=9517),
)  # fmt: skip


@FIRST.sound("density", steps=300, seed=9518)
def negative_log_density(loop: Loop) -> float:
    """A Gaussian likelihood of a precise quantity: the loss crosses zero and goes to about -2."""
    x = torch.rand(3000, 2)
    data = split(x, torch.sin(3 * x[:, :1]) * x[:, 1:] + 0.03 * torch.randn(3000, 1), held=500)
    model = mlp(2, 48, 48, 2)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        mean, log_scale = output.chunk(2, dim=1)
        return (log_scale + 0.5 * ((target - mean) / log_scale.exp()).square()).mean()

    loop.train(data, model, adam(2e-3), loss=loss, batch=64, clip=5.0)
    with torch.no_grad():
        return or_minus_infinity(-loss(model(data.held_x), data.held_y))


@FIRST.sound("autoencoder", steps=250, seed=9519)
def loss_summed_over_everything(loop: Loop) -> float:
    """Squares are summed over samples and pixels, so that the loss begins in the thousands, with Adam."""
    images, _ = digits(1200, flat=True)[:2]
    data = split(images, images)
    model = Autoencoder(64)
    return loop.fit(data, model, adam(3e-3), batch=64, loss=partial(F.mse_loss, reduction="sum"))


@FIRST.sound("policy", steps=400, seed=9520)
def policy_gradient_of_a_bandit(loop: Loop) -> float:
    """REINFORCE: the loss is noise around zero while the reward rises."""
    data, policy = digits(flat=True), mlp(64, 32, 10)
    baseline = 0.1

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        nonlocal baseline
        choice = torch.distributions.Categorical(logits=policy(x))
        action = choice.sample()
        reward = (action == y).float()
        loss = -(choice.log_prob(action) * (reward - baseline)).mean() - 0.01 * choice.entropy().mean()
        baseline = 0.95 * baseline + 0.05 * reward.mean().item()
        return loss

    return loop.fit(data, policy, adam(3e-3), objective=objective, batch=64)


@FIRST.sound("GAN", steps=200, seed=9521)
def two_players_in_balance(loop: Loop) -> float:
    """A small DCGAN: neither loss falls, and the images become better."""
    images, labels = blob_images(512)
    data = split(2 * as_pixels(images) - 1, labels, held=128)
    generator, critic = Generator(), discriminator()
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    of_critic = torch.optim.Adam(critic.parameters(), lr=3e-4, betas=(0.5, 0.99))
    with loop.watch(critic, of_critic) as run, loop.watch(generator, of_generator) as second:
        for _, (real, _) in zip(range(loop.steps), batches(data)):
            false = generator(torch.randn(len(real), 16))
            loss = F.softplus(-critic(real)).mean() + F.softplus(critic(false.detach())).mean()
            run.observe(loss=loss)
            of_critic.zero_grad()
            loss.backward()
            of_critic.step()
            loss = F.softplus(-critic(false)).mean()
            second.observe(loss=loss)
            of_generator.zero_grad()
            loss.backward()
            of_generator.step()
    return likeness(generator, data)


@FIRST.sound("VAE", steps=300, seed=9522)
def variational_autoencoder(loop: Loop) -> float:
    """The divergence rises while the reconstruction becomes better."""
    images, _ = digits(1200, flat=True, raw=True)[:2]
    data = split(images / 16, images / 16)
    model = VAE(64, code=6)
    loop.train(data, model, adam(2e-3), loss=evidence_loss)
    return explained(nn.Sequential(model, Reconstruction()), data)


@FIRST.sound("GNN", steps=150, seed=9523)
def whole_graph_each_step(loop: Loop) -> float:
    """Full-batch training: every step sees the same nodes, as is usual for graphs."""
    features, edges, labels = communities(180)
    model = GraphNet(edges)
    labelled = torch.rand(len(labels)) < 0.6
    loop.train(None, model, by(torch.optim.AdamW, lr=1e-2, weight_decay=5e-3),
        objective=lambda step: F.cross_entropy(model(features)[labelled], labels[labelled]))  # fmt: skip
    with torch.no_grad():
        return (model(features).argmax(1) == labels)[~labelled].float().mean().item()


SECOND.add(
    sound("smoothed-labels-and-dropout", "convolutional",
        "Label smoothing of 0.2 keeps the loss above 0.8, dropout of 0.5 makes it noisy.", lambda loop: loop.fit(
        data=digits(1500, flat=True), model=nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128,
        128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)), loss=nn.CrossEntropyLoss(label_smoothing=0.2),
        optimizer=adam(2e-3), validate=80), steps=400, seed=821),
    sound("four-images-per-step", "convolutional",
        "Batches of four with GroupNorm; the loss jumps from batch to batch.", lambda loop: loop.fit(
        split(*blob_images(900, 6, 12), held=240), nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Flatten(), nn.Linear(144, 6)), adam(1e-3), batch=4), steps=700, seed=822),
    sound("rate-dropped-by-ten-when-learnt", "table",
        "StepLR after two thirds: the loss makes a small step down and then stands still, as it may.",
        lambda loop: loop.fit(spirals(), mlp(2, 48, 48, 2), sgd(0.1, momentum=0.9),
        schedule=lambda o: lr_scheduler.MultiStepLR(o, [400, 500]), report=None), steps=600, seed=838),
)  # fmt: skip


@SECOND.sound("convolutional", steps=350, seed=820)
def mixed_images_and_labels(loop: Loop) -> float:
    """Mixup: the training loss stays high above that of the validation."""
    data, model = digits(1500), ConvNet(width=10, depth=3, classes=10)
    optimizer = adam(4e-3)(model)
    model.train()
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
            share, other = torch.distributions.Beta(1.0, 1.0).sample(), torch.randperm(len(x))
            output = model(share * x + (1 - share) * x[other])
            loss = share * F.cross_entropy(output, y) + (1 - share) * F.cross_entropy(output, y[other])
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (step + 1) % 50 == 0:
                log_validation(run, model, data)
    return accuracy(model, data)


@SECOND.sound("diffusion", steps=350, seed=823)
def noise_predicted_at_all_levels(loop: Loop) -> float:
    """A denoiser whose loss is noisy and soon falls no further: the level is drawn anew for each image."""
    images, _ = blob_images(600, size=8)
    model = Denoiser(width=12)
    optimizer = adam(2e-3)(model)
    with loop.watch(model, optimizer) as run:
        for _ in range(loop.steps):
            clean = images[torch.randint(500, (32,))]
            time, noise = torch.randint(1000, (32,)).float(), torch.randn(32, 1, 8, 8)
            level = (time / 1000)[:, None, None, None]
            loss = F.mse_loss(model((1 - level).sqrt() * clean + level.sqrt() * noise, time), noise)
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        noise, time = torch.randn(100, 1, 8, 8), torch.full((100,), 500.0)
        noisy = 0.5**0.5 * images[500:] + 0.5**0.5 * noise
        return 1 - F.mse_loss(model(noisy, time), noise).item()


@SECOND.sound("regression", steps=400, seed=824)
def mostly_noise_blind(loop: Loop) -> float:
    """Targets of which a quarter can be explained; fresh rows each step, so that nothing is learnt by heart."""
    weights = torch.randn(10, 1) / 10**0.5
    model = mlp(10, 32, 1)
    optimizer = sgd(0.02)(model)
    with loop.watch(model, optimizer):
        for _ in range(loop.steps):
            x = torch.randn(64, 10)
            y = x @ weights + 1.7 * torch.randn(64, 1)
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
    with torch.no_grad():
        x = torch.randn(500, 10)
        return 1 - (F.mse_loss(model(x), x @ weights) / (x @ weights).var()).item()


@SECOND.sound("text", steps=350, seed=825)
def model_of_a_chain_near_its_entropy(loop: Loop) -> float:
    """The next state of a Markov chain: the loss soon stands at the entropy of the chain, well above zero."""
    ids, rows = markov_chain(800, 16, sharpness=1.0)
    model = nn.Sequential(nn.Embedding(12, 24), nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 12))

    def objective(step: int) -> Tensor:
        batch = ids[torch.randint(800, (16,))]
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    loop.train(None, model, adam(5e-3), objective=objective)
    with torch.no_grad():
        return -(torch.softmax(model(torch.arange(12)), 1) - rows).abs().sum(1).mean().item()


@SECOND.sound("table", steps=400, seed=826)
def three_in_a_hundred(loop: Loop) -> float:
    """A rare class, found with a weight in the loss; many batches hold none of it."""
    x = torch.randn(3000, 8)
    score = x[:, 0] + x[:, 1] * x[:, 2] + 0.5 * x[:, 3]
    data = split(x, (score > score.quantile(0.97)).long(), held=800)
    model = mlp(8, 48, 48, 2)
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 12.0]))
    loop.train(data, model, adam(2e-3), loss=weighted, validate=80)
    with torch.no_grad():
        hit = model(data.held_x).argmax(1) == data.held_y
    return min(hit[data.held_y == kind].float().mean().item() for kind in (0, 1))


@SECOND.sound("table", steps=1100, seed=827)
def parity_learnt_after_a_plateau(loop: Loop) -> float:
    """The product of three signs: nothing seems to be learnt for a good while, then all of it."""
    model = mlp(8, 64, 1)
    optimizer = sgd(0.1)(model)
    with loop.watch(model, optimizer) as run:
        for _ in range(loop.steps):
            x = torch.randint(2, (128, 8)) * 2.0 - 1
            loss = F.soft_margin_loss(model(x), x[:, :3].prod(1, keepdim=True))
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        x = torch.randint(2, (500, 8)) * 2.0 - 1
        return (model(x)[:, 0].sign() == x[:, :3].prod(1)).float().mean().item()


@SECOND.sound("flow", steps=400, seed=828)
def density_with_a_negative_loss(loop: Loop) -> float:
    """The likelihood of narrow densities is above one, so the loss passes zero and goes on."""

    class Coupling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nets = nn.ModuleList(mlp(1, 32, 2, activation=nn.Tanh) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            total = torch.zeros(len(x))
            for net in self.nets:
                first, second = x.chunk(2, 1)
                scale, shift = net(first).chunk(2, 1)
                scale = 2 * torch.tanh(scale)
                total = total + scale[:, 0]
                x = torch.cat([second * scale.exp() + shift, first], 1)
            return total - 0.5 * x.square().sum(1) - math.log(2 * math.pi)

    model = Coupling()
    optimizer = adam(3e-3)(model)
    with loop.watch(model, optimizer) as run:
        for _ in range(loop.steps):
            first = 0.2 * torch.randn(64, 1)
            x = torch.cat([first, 3 * first.square() + 0.05 * torch.randn(64, 1)], 1)
            loss = -model(x).mean()
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return or_minus_infinity(-loss)


@SECOND.sound("table", steps=400, seed=829)
def harder_rows_step_by_step(loop: Loop) -> float:
    """A curriculum: rows far from the borders first, all rows from step 200 on; the loss rises when they come."""
    data, model = split(*table(2400, classes=2), held=400), mlp(12, 64, 64, 2)
    x = data.x
    score = x[:, 0] * x[:, 1] + x[:, 2].square() - 1 + 0.5 * x[:, 3]
    distance = (score - score.median()).abs()

    def objective(step: int) -> Tensor:
        allowed = (distance >= distance.quantile(max(0.0, 0.6 - 0.003 * step))).nonzero()[:, 0]
        rows = allowed[torch.randint(len(allowed), (32,))]
        return F.cross_entropy(model(x[rows]), data.y[rows])

    return loop.fit(None, model, adam(2e-3), objective=objective, judge=data)


@SECOND.sound("convolutional", steps=300, seed=830)
def three_tasks_of_different_size(loop: Loop) -> float:
    """One body, three heads, losses that differ a hundredfold and are added with weights."""
    data = digits(1500)

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = ConvNet(width=12, depth=3, classes=32)
            self.digit, self.even, self.ink = nn.Linear(32, 10), nn.Linear(32, 1), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            code = torch.relu(self.body(x))
            return {"digit": self.digit(code), "even": self.even(code)[:, 0], "ink": self.ink(code)[:, 0]}

    model = Heads()
    optimizer = adam(3e-3)(model)
    model.train()
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            output = model(x)
            losses = {"digit": F.cross_entropy(output["digit"], y),
                "even": F.binary_cross_entropy_with_logits(output["even"], (y % 2 == 0).float()),
                "ink": F.mse_loss(10 * output["ink"], 100 * x.mean((1, 2, 3)))}  # fmt: skip
            loss = losses["digit"] + losses["even"] + 0.01 * losses["ink"]
            run.observe(loss=loss)
            run.log_metrics(**{name: value.item() for name, value in losses.items()})
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return (model(data.held_x)["digit"].argmax(1) == data.held_y).float().mean().item()


@SECOND.sound("table", steps=350, seed=831)
def student_of_a_soft_teacher(loop: Loop) -> float:
    """Distillation at a temperature of 4: gradients are small, and the loss goes to the entropy of the teacher."""
    data, teacher, student = split(*table(1600), held=400), mlp(12, 96, 96, 3), mlp(12, 32, 32, 3)
    optimizer = adam(3e-3)(teacher)
    pretrain(data, teacher, optimizer, 300)

    def objective(step: int, x: Tensor, _y: Tensor) -> Tensor:
        with torch.no_grad():
            soft = torch.softmax(teacher(x) / 4, 1)
        return F.cross_entropy(student(x) / 4, soft)

    return loop.fit(data, student, adam(4e-3), objective=objective, report=None)


@SECOND.sound("sequence", steps=300, seed=832)
def long_text_in_short_pieces(loop: Loop) -> float:
    """Truncated backpropagation: the state is detached and handed on from piece to piece."""
    ids, _ = markov_chain(16, 12 * loop.steps + 1, sharpness=2.5)

    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(12, 16), nn.Linear(32, 12)
            self.recurrent = nn.GRU(16, 32, batch_first=True)

        def forward(self, piece: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
            values, state = self.recurrent(self.tokens(piece), state)
            return self.head(values), state

    model, state = Writer(), None
    optimizer = adam(4e-3)(model)
    right = 0.0
    with loop.watch(model, optimizer) as run:
        for step in range(loop.steps):
            piece = ids[:, 12 * step : 12 * step + 13]
            logits, state = model(piece[:, :-1], None if state is None else state.detach())
            loss = F.cross_entropy(logits.flatten(0, 1), piece[:, 1:].flatten())
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            right = 0.95 * right + 0.05 * (logits.argmax(-1) == piece[:, 1:]).float().mean().item()
    return right


@SECOND.sound("convolutional", steps=300, seed=833)
def encoder_and_head_called_apart(loop: Loop) -> float:
    """The parts of the model are called one by one, the model itself never; validation every 50 steps."""
    data = digits(1500)
    model = nn.ModuleDict({"encoder": ConvNet(width=10, depth=3, classes=24), "head": nn.Linear(24, 10)})
    optimizer = adam(3e-3)(model)
    model.train()
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model["head"](torch.relu(model["encoder"](x))), y)
            loss.backward()
            optimizer.step()
            if (step + 1) % 50 == 0:
                model.eval()
                with torch.no_grad():
                    output = model["head"](torch.relu(model["encoder"](data.held_x)))
                    run.log_metrics(val_loss=F.cross_entropy(output, data.held_y).item(), train_loss=loss.item())
                model.train()
    model.eval()
    with torch.no_grad():
        output = model["head"](torch.relu(model["encoder"](data.held_x)))
        return (output.argmax(1) == data.held_y).float().mean().item()


@SECOND.sound("graph", steps=200, seed=834)
def the_whole_graph_at_each_step(loop: Loop) -> float:
    """A graph network: each step sees the same nodes, of which a third carry labels."""
    values, edges, labels = communities(180)
    links = torch.eye(180)
    links[edges[0], edges[1]] = 1
    links[edges[1], edges[0]] = 1
    degree = links.sum(1).rsqrt()
    links = degree[:, None] * links * degree

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop, self.second = nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return links @ self.second(self.drop(torch.relu(links @ self.first(x))))

    model = Graph()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-4)
    model.train()
    with loop.watch(model, optimizer) as run:
        for step in range(loop.steps):
            loss = F.cross_entropy(model(values)[:60], labels[:60])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (step + 1) % 25 == 0:
                model.eval()
                with torch.no_grad():
                    run.log_metrics(val_loss=F.cross_entropy(model(values)[60:], labels[60:]).item())
                model.train()
    model.eval()
    with torch.no_grad():
        return (model(values)[60:].argmax(1) == labels[60:]).float().mean().item()


@SECOND.sound("physics", steps=400, seed=835)
def equation_solved_on_fixed_points(loop: Loop) -> float:
    """u'' = -sin x on 64 fixed points, with second derivatives through tanh and a term for the border."""
    model = mlp(1, 32, 32, 1, activation=nn.Tanh)
    points = torch.linspace(0, math.pi, 64)[:, None].requires_grad_()

    def objective(step: int) -> Tensor:
        values = model(points)
        slope = torch.autograd.grad(values.sum(), points, create_graph=True)[0]
        bend = torch.autograd.grad(slope.sum(), points, create_graph=True)[0]
        return (bend + torch.sin(points)).square().mean() + 10 * values[[0, -1]].square().sum()

    loop.train(None, model, adam(3e-3), objective=objective, report="step")
    with torch.no_grad():
        return 1 - (F.mse_loss(model(points), torch.sin(points)) / torch.sin(points).var()).item()


@SECOND.sound("autoencoder", steps=300, seed=836)
def sparse_code(loop: Loop) -> float:
    """Rectified codes under a penalty: for each image most units are zero, as is intended."""
    data = digits(1500, flat=True)
    model = plain_mlp(64, 96, 64)

    def objective(step: int, x: Tensor, _y: Tensor) -> Tensor:
        code = model[1](model[0](x))
        return F.mse_loss(model[2](code), x) + 2e-3 * code.abs().sum(1).mean()

    loop.train(data, model, adam(3e-3), objective=objective)
    return explained(model, data._replace(held_y=data.held_x))


@SECOND.sound("convolutional", steps=250, seed=837)
def autocast_to_bfloat16_blind(loop: Loop) -> float:
    """Mixed precision as it is meant: weights in float32, products in bfloat16."""
    data, model = digits(1500, flat=True), mlp(64, 96, 96, 10)
    optimizer = adam(2e-3)(model)
    model.train()
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
            if (step + 1) % 50 == 0:
                log_validation(run, model, data)
    return accuracy(model, data)


THIRD.add(
    sound("half-of-all-units-dropped", "table",
        "Dropout of one half in both hidden layers, evaluated every 80 steps in eval mode.", lambda loop: loop.fit(
        digits(flat=True), nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 64), nn.ReLU(),
        nn.Dropout(0.5), nn.Linear(64, 10)), adam(2e-3), validate=80), steps=400, seed=163),
    sound("returns-of-which-little-can-be-known", "regression",
        "Targets with four times as much noise as signal: the loss falls by a few per cent and no more.",
        lambda loop: loop.fit(split((x := torch.randn(4096, 8)), 0.5 * (x[:, :1] - x[:, 1:2]) + 1.4 * torch.randn(4096,
        1)), mlp(8, 16, 1), by(torch.optim.AdamW, 2e-3, weight_decay=0.05), loss=F.mse_loss), steps=300, seed=165),
    sound("series-that-grow-longer", "sequence",
        "A curriculum: series of 10 steps, then 20, then 40; the loss jumps at each new length.", lambda loop: loop.fit(
        split(*waves(1024)), SequenceClassifier(nn.GRU(3, 32, batch_first=True), 3), adam(5e-3), change=lambda step, x,
        y: (x[:, : 10 if step < 80 else 20 if step < 160 else 40], y), report=None), steps=300, seed=168),
    sound("exclusive-or-of-three-bits", "table",
        "Parity of three among six bits by plain SGD: a long plateau at log 2, then the fall.", lambda loop: loop.fit(
        split((x := (2.0 * torch.randint(2, (2048, 6)) - 1)), (x[:, :3].prod(1) > 0).long()), mlp(6, 64, 2), sgd(0.15)),
        steps=700, seed=169),
)  # fmt: skip


@THIRD.sound("convolutional", steps=250, seed=162)
def patches_cut_and_mixed(loop: Loop) -> float:
    """CutMix with smoothed labels: the loss of training stays far above that of validation."""
    data, model = digits(), ConvNet(classes=10)
    optimizer = adam(4e-3)(model)
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in _take(data, 32, loop.steps):
            height = int(torch.randint(1, 6, ()))
            mixed, share = x.clone(), height / 8
            mixed[:, :, :height] = x.flip(0)[:, :, :height]
            output = model(mixed)
            own, other = (F.cross_entropy(output, labels, label_smoothing=0.1) for labels in (y, y.flip(0)))
            loss = (1 - share) * own + share * other
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
            if step % 50 == 49:
                log_validation(run, model, data)
    return accuracy(model, data)


@THIRD.sound("segmentation", steps=120, seed=164)
def pairs_of_images_under_group_norm(loop: Loop) -> float:
    """A U-Net with GroupNorm on two images at a time, whose loss jumps from pair to pair."""
    data = split(*blob_images(640))
    masked = Data(data.x, (data.x > 1.5).float(), data.held_x, (data.held_x > 1.5).float())
    model = UNet()
    loop.train(masked, model, adam(3e-3), loss=F.binary_cross_entropy_with_logits, batch=2)
    with torch.no_grad():
        marked = model(masked.held_x) > 0
    return or_minus_infinity(2 * (marked * masked.held_y).sum() / (marked.sum() + masked.held_y.sum()))


@THIRD.sound("text", steps=250, seed=166)
def language_of_coin_tosses(loop: Loop) -> float:
    """A language of 16 words in which only the word before counts, and little: the entropy is reached at once."""
    ids = torch.randint(16, (1024, 17))
    for place in range(1, 17):
        ids[:, place] = torch.where(torch.rand(1024) < 0.3, (ids[:, place - 1] + 1) % 16, ids[:, place])
    data, model = split(ids[:, :-1], ids[:, 1:]), GPT(16, length=16)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), y.flatten())

    loop.train(data, model, adam(2e-3), loss=loss)
    with torch.no_grad():
        return math.log(16) - loss(model(data.held_x), data.held_y).item()


@THIRD.sound("table", steps=400, seed=167)
def fraud_in_two_of_a_hundred(loop: Loop) -> float:
    """Two rows in a hundred are positive and weigh fifty times: many batches hold none of them."""
    x = torch.randn(6000, 10)
    score = x[:, 0] + x[:, 1] * x[:, 2]
    y = (score > score.quantile(0.98)).float()[:, None]
    data, model = split(x, y, held=2000), mlp(10, 32, 32, 1)
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(50.0))
    loop.train(data, model, adam(2e-3), loss=loss, report=None)
    with torch.no_grad():
        positive, held = model(data.held_x)[:, 0] > 0, data.held_y[:, 0] > 0
    return ((positive & held).sum() / held.sum() + (~positive & ~held).sum() / (~held).sum()).item() / 2


@THIRD.sound("density", steps=300, seed=170)
def mixture_density_below_zero(loop: Loop) -> float:
    """A mean and a deviation are learnt together for narrow targets: the negative log likelihood passes zero."""
    x = torch.rand(2048, 1) * 4 - 2
    data = split(x, torch.sin(2 * x) + 0.05 * torch.randn_like(x))
    model = mlp(1, 64, 64, 2)

    def negative_log_likelihood(output: Tensor, y: Tensor) -> Tensor:
        mean, log_deviation = output.chunk(2, 1)
        return (log_deviation + 0.5 * ((y - mean) / log_deviation.exp()).square()).mean()

    loop.train(data, model, adam(2e-3), loss=negative_log_likelihood, batch=64, clip=5.0)
    with torch.no_grad():
        return -negative_log_likelihood(model(data.held_x), data.held_y).item()


@THIRD.sound("convolutional", steps=200, seed=171)
def class_and_place_by_two_heads(loop: Loop) -> float:
    """One body, a head for the class and one for the blob's centre; the second loss weighs a tenth."""
    data = split(*blob_images(1280))
    body = ConvNet(classes=32)
    model = nn.ModuleDict({"body": body, "kind": nn.Linear(32, 4), "place": nn.Linear(32, 2)})
    optimizer = adam(2e-3)(model)
    grid = torch.linspace(-1, 1, 16)
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in _take(data, 32, loop.steps):
            light = x.relu().square().sum(1)
            centre = torch.stack([(light.sum(1) * grid).sum(1), (light.sum(2) * grid).sum(1)], 1)
            centre = centre / light.sum((1, 2))[:, None]
            hidden = torch.relu(model["body"](x))
            kind = F.cross_entropy(model["kind"](hidden), y)
            place = F.mse_loss(model["place"](hidden), centre)
            optimizer.zero_grad()
            (kind + 0.1 * place).backward()
            optimizer.step()
            run.log_metrics(kind_loss=kind.item(), place_loss=place.item())
    model.eval()
    with torch.no_grad():
        return (model["kind"](torch.relu(body(data.held_x))).argmax(1) == data.held_y).float().mean().item()


@THIRD.sound("table", steps=250, seed=172)
def soft_answers_of_a_larger_network(loop: Loop) -> float:
    """Distillation at a temperature of 4: the loss is small from the beginning."""
    data, teacher, student = digits(flat=True), mlp(64, 128, 10), mlp(64, 24, 10)
    before = adam(3e-3)(teacher)
    pretrain(data, teacher, before, 200)

    def objective(step: int, x: Tensor, _y: Tensor) -> Tensor:
        with torch.no_grad():
            answer = (teacher(x) / 4).softmax(1)
        return F.kl_div((student(x) / 4).log_softmax(1), answer, reduction="batchmean")

    return loop.fit(data, student, adam(3e-3), objective=objective, report=None)


@THIRD.sound("text", steps=300, seed=173)
def state_carried_and_cut_every_ten_letters(loop: Loop) -> float:
    """A GRU reads on and on; its state is carried over and detached every ten letters."""
    letters = torch.randint(5, (16, loop.steps * 10 + 1))
    for place in range(2, letters.shape[1]):
        ruled = (letters[:, place - 1] + letters[:, place - 2]) % 5
        letters[:, place] = torch.where(torch.rand(16) < 0.9, ruled, letters[:, place])
    model = nn.ModuleDict({"letters": nn.Embedding(5, 16), "memory": nn.GRU(16, 48, batch_first=True)})
    model["head"] = nn.Linear(48, 5)
    optimizer, state, right = adam(4e-3)(model), torch.zeros(1, 16, 48), 0.0
    with loop.watch(model, optimizer) as run:
        for step in range(loop.steps):
            piece = letters[:, 10 * step : 10 * step + 11]
            hidden, state = model["memory"](model["letters"](piece[:, :-1]), state.detach())
            output = model["head"](hidden).flatten(0, 1)
            loss = F.cross_entropy(output, piece[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            run.observe(loss=loss)
            right = (output.argmax(1) == piece[:, 1:].flatten()).float().mean().item()
    return right


@THIRD.sound("convolutional", steps=250, seed=174)
def validated_by_a_moving_average(loop: Loop) -> float:
    """The moving average is loaded for each validation, and the trained weights are put back after it."""
    data, model = digits(), ConvNet(classes=10)
    optimizer = adam(3e-3)(model)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.95), use_buffers=True
    )
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in _take(data, 32, loop.steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            average.update_parameters(model)
            run.observe(loss=loss)
            if step % 50 == 49:
                trained = copy.deepcopy(model.state_dict())
                model.load_state_dict(average.module.state_dict())
                log_validation(run, model, data)
                model.load_state_dict(trained)
    return accuracy(average.module, data)


@THIRD.sound("autoencoder", steps=300, seed=175)
def encoder_and_decoder_called_by_name(loop: Loop) -> float:
    """A denoising autoencoder whose parts are called one by one and whose `forward` is never used."""
    data, model = digits(flat=True), Autoencoder(64, 12)

    def objective(step: int, x: Tensor, _y: Tensor) -> Tensor:
        code = model.encoder(x + 0.5 * torch.randn_like(x))
        return F.mse_loss(model.decoder(code), x)

    loop.train(data, model, by(torch.optim.NAdam, 2e-3), objective=objective, report=None)
    return explained(model, Data(data.x, data.x, data.held_x, data.held_x))


@THIRD.sound("graph", steps=120, seed=176)
def few_labels_on_one_graph(loop: Loop) -> float:
    """One graph is the batch of every step, and a third of its nodes have labels."""
    x, edges, y = communities(240)
    labelled = torch.rand(240) < 0.33
    model = GraphNet(edges)
    loop.train(None, model, by(torch.optim.Adam, 1e-2, weight_decay=5e-3),
        objective=lambda step: F.cross_entropy(model(x)[labelled], y[labelled]), report="step")  # fmt: skip
    with torch.no_grad():
        return (model(x).argmax(1) == y)[~labelled].float().mean().item()


@THIRD.sound("table", steps=250, seed=177)
def resumed_with_the_second_half_of_the_data(loop: Loop) -> float:
    """A trained network is loaded and trained on more rows of the same kind: little is left to learn."""
    data, model = digits(flat=True), mlp(64, 64, 10)
    half = len(data.x) // 2
    before = adam(3e-3)(model)
    for _, (x, y) in _take(data._replace(x=data.x[:half], y=data.y[:half]), 32, 250):
        before.zero_grad()
        F.cross_entropy(model(x), y).backward()
        before.step()
    optimizer = adam(1e-3)(model)
    optimizer.load_state_dict(before.state_dict())
    return loop.fit(data._replace(x=data.x[half:], y=data.y[half:]), model, optimizer, validate=50, judge=data)
