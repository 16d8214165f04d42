"""The first part: healthy runs, many of which look wrong in some figure."""

import copy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue.parts import (
    GPT,
    VAE,
    Autoencoder,
    ConvNet,
    Generator,
    GraphNet,
    ResNet,
    SentenceEncoder,
    SequenceClassifier,
    as_pixels,
    blob_images,
    communities,
    discriminator,
    evidence_loss,
    mlp,
    regression_table,
    sentences,
    text,
    waves,
)
from .case import HealthyRun, Watch, healthy_run
from .first_layers import Reconstruction, likeness
from .first_learning import over_tokens
from .parts import (
    accuracy,
    adam,
    batches,
    by_step,
    digits,
    explained,
    fit,
    log_validation,
    or_minus_infinity,
    sgd,
    split,
)

HEALTHY: list[HealthyRun] = []
sound = partial(healthy_run, HEALTHY)


# ------------------------------------------------------------------------------------------------------------ schedules


@sound("MLP")
def batches_of_two(watch: Watch, steps: int = 500) -> float:
    """Small batches: the loss jumps between 0 and 3 from step to step and falls on average."""
    torch.manual_seed(9501)
    data, model = digits(flat=True), mlp(64, 48, 10)
    fit(watch, model, sgd(model, 0.02), data, steps, batch=2)
    return accuracy(model, data)


@sound("ResNet")
def cosine_down_to_zero(watch: Watch, steps: int = 200) -> float:
    """The last steps have a rate of almost zero, as planned."""
    torch.manual_seed(9502)
    data, model = digits(), ResNet(blocks=1, classes=10)
    optimizer = sgd(model, 0.1, momentum=0.9, decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    fit(watch, model, optimizer, data, steps, schedule=schedule, validate=50)
    return accuracy(model, data)


@sound("GPT")
def warm_up_from_rate_zero(watch: Watch, steps: int = 200) -> float:
    """The first step has a rate of exactly zero; embedding and head share their weights."""
    torch.manual_seed(9503)
    data = split(*text(480, length=16, vocabulary=12), held=96)
    model = GPT(vocabulary=12, length=16, tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = by_step(optimizer, lambda step: min(step / 40, 1.0))
    fit(watch, model, optimizer, data, steps, loss=over_tokens, schedule=schedule, clip=1.0)
    return accuracy(model, data)


@sound("CNN")
def one_cycle(watch: Watch, steps: int = 200) -> float:
    """A rate that rises to its peak and falls far below its start."""
    torch.manual_seed(9504)
    data, model = digits(), ConvNet(classes=10, depth=3)
    optimizer = sgd(model, 0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=steps + 1)
    fit(watch, model, optimizer, data, steps, schedule=schedule)
    return accuracy(model, data)


@sound("MLP")
def warm_restarts(watch: Watch, steps: int = 300) -> float:
    """The rate returns to its start every 100 steps, and the loss makes a small jump."""
    torch.manual_seed(9505)
    data, model = digits(flat=True), mlp(64, 64, 10)
    optimizer = sgd(model, 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 100)
    fit(watch, model, optimizer, data, steps, schedule=schedule)
    return accuracy(model, data)


# ------------------------------------------------------------------------------------------------------ unusual loops


@sound("LSTM")
def gradients_of_four_batches(watch: Watch, steps: int = 80) -> float:
    """Gradients are accumulated over four batches, each loss divided by four."""
    torch.manual_seed(9506)
    data = split(*waves(512, steps=20), held=128)
    model = SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)
    optimizer, stream = adam(model, 1e-2), batches(data, 16)
    with watch(model, optimizer) as run:
        for _ in range(steps):
            total = 0.0
            for _ in range(4):
                x, y = next(stream)
                loss = F.cross_entropy(model(x), y) / 4
                loss.backward()
                total = total + loss.detach()
            run.observe(loss=total)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return accuracy(model, data)


@sound("CNN")
def head_on_a_frozen_backbone(watch: Watch, steps: int = 150) -> float:
    """Fine-tuning: a trained backbone in eval mode and without gradients, a fresh head for other classes."""
    torch.manual_seed(9507)
    data, model = digits(), ConvNet(classes=10)
    optimizer = adam(model, 1e-2)
    for _, (x, y) in zip(range(100), batches(data)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    data = data._replace(y=(data.y >= 5).long(), held_y=(data.held_y >= 5).long())
    model.head = nn.Linear(16, 2)
    model.requires_grad_(False).eval()
    model.head.requires_grad_(True).train()
    optimizer = adam(model, 1e-2)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    return accuracy(model, data)


@sound("ResNet")
def resumed_from_a_checkpoint(watch: Watch, steps: int = 150) -> float:
    """The watched part begins with a trained network: the loss is small at once and hardly falls."""
    torch.manual_seed(9508)
    data, model = digits(), ResNet(blocks=1, classes=10)
    optimizer = sgd(model, 0.05, momentum=0.9)
    for _, (x, y) in zip(range(150), batches(data)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    again = ResNet(blocks=1, classes=10)
    again.load_state_dict(model.state_dict())
    resumed = sgd(again, 0.05, momentum=0.9)
    resumed.load_state_dict(optimizer.state_dict())
    fit(watch, again, resumed, data, steps, validate=50)
    return accuracy(again, data)


@sound("regression")
def lbfgs_with_a_closure(watch: Watch, steps: int = 30) -> float:
    """Each step of LBFGS calls the closure several times."""
    torch.manual_seed(9509)
    data = split(*regression_table(768), held=256)
    model = mlp(8, 16, 1, activation=nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
    with watch(model, optimizer) as run:

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(data.x), data.y)
            loss.backward()
            return loss

        for _ in range(steps):
            run.observe(loss=optimizer.step(closure))
    return explained(model, data)


@sound("MLP")
def two_gradients_for_each_step(watch: Watch, steps: int = 200) -> float:
    """Sharpness-aware minimisation: the weights climb, a second gradient is taken there, they return, then the step."""
    torch.manual_seed(9510)
    data, model = digits(flat=True), mlp(64, 48, 10)
    optimizer = sgd(model, 0.05, momentum=0.9)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            weights = [parameter.detach().clone() for parameter in model.parameters()]
            length = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(parameter.grad, alpha=0.05 / (length.item() + 1e-12))
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for parameter, weight in zip(model.parameters(), weights):
                    parameter.copy_(weight)
            optimizer.step()
    return accuracy(model, data)


@sound("MLP")
def average_beside_the_model(watch: Watch, steps: int = 250) -> float:
    """A moving average of the weights is kept beside the model and validated."""
    torch.manual_seed(9511)
    data, model = digits(flat=True), mlp(64, 48, 10)
    average, optimizer = copy.deepcopy(model), sgd(model, 0.05, momentum=0.9)
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for mean, weight in zip(average.parameters(), model.parameters()):
                    mean.lerp_(weight, 0.02)
            if step % 50 == 49:
                log_validation(run, average, data)
    return accuracy(average, data)


@sound("CNN")
def scaler_that_finds_its_scale(watch: Watch, steps: int = 150) -> float:
    """The gradient scaler begins far too high, skips its first steps and then trains well."""
    torch.manual_seed(9512)
    data, model = digits(), ConvNet(classes=10, depth=3)
    optimizer, scaler = adam(model, 5e-3), torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            scaler.scale(loss * 64).backward()
            scaler.step(optimizer)
            scaler.update()
    return accuracy(model, data)


@sound("transformer")
def autocast_to_bfloat16(watch: Watch, steps: int = 150) -> float:
    """Mixed precision on the CPU: the forward in bfloat16, the weights in float32."""
    torch.manual_seed(9513)
    data = split(*sentences(768), held=192)
    model = SentenceEncoder(depth=1, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    return accuracy(model, data)


@sound("MLP")
def dropout_and_frequent_validation(watch: Watch, steps: int = 300) -> float:
    """Dropout of a half, and a validation in eval mode every ten steps; its loss is below that of training."""
    torch.manual_seed(9514)
    data = digits(flat=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))
    fit(watch, model, adam(model, 3e-3), data, steps, validate=10)
    return accuracy(model, data)


@sound("CNN")
def group_norm_with_batches_of_two(watch: Watch, steps: int = 400) -> float:
    """Two samples per step, with a normalizer that does not mind."""
    torch.manual_seed(9515)
    data = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    fit(watch, model, sgd(model, 0.01), data, steps, batch=2)
    return accuracy(model, data)


# ------------------------------------------------------------------------------------------------------- unusual losses


@sound("regression")
def mostly_noise(watch: Watch, steps: int = 400) -> float:
    """A tenth of the variance can be explained: the loss falls from 1 to 0.9 and stays there."""
    torch.manual_seed(9516)
    x = torch.randn(6000, 10)
    y = 0.33 * (x @ torch.randn(10, 1)) / 10**0.5 + 0.95 * torch.randn(6000, 1)
    data = split(x, y, held=2000)
    model = mlp(10, 16, 1)
    fit(watch, model, adam(model, 1e-3), data, steps, loss=F.mse_loss, batch=64, validate=50)
    return explained(model, data)


@sound("regression")
def converged_long_ago(watch: Watch, steps: int = 500) -> float:
    """Linear regression reaches its noise floor after 60 steps and stays there for the other 440."""
    torch.manual_seed(9517)
    x = torch.randn(2000, 12)
    data = split(x, x @ torch.randn(12, 1) + 0.1 * torch.randn(2000, 1), held=500)
    model = nn.Linear(12, 1)
    fit(watch, model, sgd(model, 0.05), data, steps, loss=F.mse_loss)
    return explained(model, data)


@sound("density")
def negative_log_density(watch: Watch, steps: int = 300) -> float:
    """A Gaussian likelihood of a precise quantity: the loss crosses zero and goes to about -2."""
    torch.manual_seed(9518)
    x = torch.rand(3000, 2)
    data = split(x, torch.sin(3 * x[:, :1]) * x[:, 1:] + 0.03 * torch.randn(3000, 1), held=500)
    model = mlp(2, 48, 48, 2)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        mean, log_scale = output.chunk(2, dim=1)
        return (log_scale + 0.5 * ((target - mean) / log_scale.exp()).square()).mean()

    fit(watch, model, adam(model, 2e-3), data, steps, loss=loss, batch=64, clip=5.0)
    with torch.no_grad():
        return or_minus_infinity(-loss(model(data.held_x), data.held_y))


@sound("autoencoder")
def loss_summed_over_everything(watch: Watch, steps: int = 250) -> float:
    """Squares are summed over samples and pixels, so that the loss begins in the thousands, with Adam."""
    torch.manual_seed(9519)
    images, _ = digits(1200, flat=True)[:2]
    data = split(images, images)
    model = Autoencoder(64)
    fit(watch, model, adam(model, 3e-3), data, steps, batch=64, loss=partial(F.mse_loss, reduction="sum"))
    return explained(model, data)


@sound("policy")
def policy_gradient_of_a_bandit(watch: Watch, steps: int = 400) -> float:
    """REINFORCE: the loss is noise around zero while the reward rises."""
    torch.manual_seed(9520)
    data, policy = digits(flat=True), mlp(64, 32, 10)
    optimizer, baseline = adam(policy, 3e-3), 0.1
    with watch(policy, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data, 64)):
            choice = torch.distributions.Categorical(logits=policy(x))
            action = choice.sample()
            reward = (action == y).float()
            loss = -(choice.log_prob(action) * (reward - baseline)).mean() - 0.01 * choice.entropy().mean()
            baseline = 0.95 * baseline + 0.05 * reward.mean().item()
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return accuracy(policy, data)


@sound("GAN")
def two_players_in_balance(watch: Watch, steps: int = 200) -> float:
    """A small DCGAN: neither loss falls, and the images become better."""
    torch.manual_seed(9521)
    images, labels = blob_images(512)
    data = split(2 * as_pixels(images) - 1, labels, held=128)
    generator, critic = Generator(), discriminator()
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    of_critic = torch.optim.Adam(critic.parameters(), lr=3e-4, betas=(0.5, 0.99))
    with watch(critic, of_critic) as run, watch(generator, of_generator) as second:
        for _, (real, _) in zip(range(steps), batches(data)):
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


@sound("VAE")
def variational_autoencoder(watch: Watch, steps: int = 300) -> float:
    """The divergence rises while the reconstruction becomes better."""
    torch.manual_seed(9522)
    images, _ = digits(1200, flat=True, raw=True)[:2]
    data = split(images / 16, images / 16)
    model = VAE(64, code=6)
    fit(watch, model, adam(model, 2e-3), data, steps, loss=evidence_loss)
    return explained(nn.Sequential(model, Reconstruction()), data)


@sound("GNN")
def whole_graph_each_step(watch: Watch, steps: int = 150) -> float:
    """Full-batch training: every step sees the same nodes, as is usual for graphs."""
    torch.manual_seed(9523)
    features, edges, labels = communities(180)
    model = GraphNet(edges)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=5e-3)
    labelled = torch.rand(len(labels)) < 0.6
    with watch(model, optimizer) as run:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(features)[labelled], labels[labelled])
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return (model(features).argmax(1) == labels)[~labelled].float().mean().item()
