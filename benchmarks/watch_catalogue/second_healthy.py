"""Runs with nothing wrong, many of which look as if there were."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue.parts import ConvNet, Denoiser, blob_images, communities, mlp
from .case import HealthyRun, Watch, healthy_run
from .parts import (
    Data,
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
from .second_divergence import PostNorm
from .second_layers import Adversaries, Autoencoder
from .second_parts import (
    LastState,
    blobs,
    chain,
    curved_table,
    fit_silently,
    frequencies,
    friedman,
    spirals,
    word_orders,
)

HEALTHY: list[HealthyRun] = []

# -------------------------------------------------------------------------------------- players, codes and rewards


@healthy_run(HEALTHY, "adversarial")
def points_on_a_ring(watch: Watch, steps: int = 700) -> float:
    """A balanced pair of generator and discriminator; both losses stay where they are, as they should."""
    torch.manual_seed(801)
    model = Adversaries()
    generator, judge = model.generator, model.discriminator
    optimizer = torch.optim.Adam(generator.parameters(), 2e-3, betas=(0.5, 0.9))
    opponent = torch.optim.Adam(judge.parameters(), 4e-3, betas=(0.5, 0.9))
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    with watch(generator, optimizer) as run:
        for _ in range(steps):
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


@healthy_run(HEALTHY, "adversarial")
def critic_with_a_gradient_penalty(watch: Watch, steps: int = 500) -> float:
    """A Wasserstein critic: its loss is negative, and the gradient of a gradient is taken."""
    torch.manual_seed(802)
    generator, critic = mlp(4, 32, 2), mlp(2, 32, 32, 1)
    optimizer = torch.optim.Adam(critic.parameters(), 2e-3, betas=(0.0, 0.9))
    other = torch.optim.Adam(generator.parameters(), 2e-3, betas=(0.0, 0.9))
    with watch(critic, optimizer) as run:
        for step in range(steps):
            real, fake = torch.randn(64, 2) + 3, generator(torch.randn(64, 4))
            between = torch.lerp(real, fake.detach(), torch.rand(64, 1)).requires_grad_()
            slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
            loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 3 == 0:
                other.zero_grad()
                (-critic(generator(torch.randn(64, 4))).mean()).backward()
                other.step()
    with torch.no_grad():
        return -(generator(torch.randn(512, 4)).mean(0) - 3).norm().item()


@healthy_run(HEALTHY, "variational autoencoder")
def annealed_evidence(watch: Watch, steps: int = 400) -> float:
    """The weight of the divergence rises over the first half, and the loss with it."""
    torch.manual_seed(803)
    data = digits(1600, flat=True, raw=True)
    data = data._replace(x=data.x / 16, held_x=data.held_x / 16)
    model = Autoencoder()
    optimizer = adam(model, 3e-3)
    with watch(model, optimizer) as run:
        for step, (x, _) in zip(range(steps), batches(data, 48)):
            logits, mean, log_variance = model(x)
            divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
            pixels = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean()
            loss = pixels + min(1.0, step / 200) * divergence
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        wrong = (torch.sigmoid(model(data.held_x)[0]) - data.held_x).square().mean()
    return 1 - (wrong / data.held_x.var(0, correction=0).mean()).item()


@healthy_run(HEALTHY, "reinforcement")
def policy_gradient_of_a_contextual_bandit(watch: Watch, steps: int = 400) -> float:
    """REINFORCE with a baseline: the loss is no measure of progress, the reward is."""
    torch.manual_seed(804)
    rule, policy = torch.randn(8, 4), mlp(8, 32, 4)
    optimizer = adam(policy, 5e-3)
    baseline = 0.25
    with watch(policy, optimizer) as run:
        for _ in range(steps):
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


@healthy_run(HEALTHY, "reinforcement")
def values_with_a_target_network(watch: Watch, steps: int = 500) -> float:
    """Q-learning on a line of ten cells: the loss rises as rewards are found and jumps when the target is renewed."""
    torch.manual_seed(805)
    model = mlp(10, 48, 2)
    target, optimizer = copy.deepcopy(model), adam(model, 3e-3)
    with watch(model, optimizer) as run:
        for step in range(steps):
            cell, action = torch.randint(10, (64,)), torch.randint(2, (64,))
            following = (cell + 2 * action - 1).clamp(0, 9)
            reward = (following == 9).float()
            with torch.no_grad():
                best = target(F.one_hot(following, 10).float()).amax(1)
            value = model(F.one_hot(cell, 10).float())[torch.arange(64), action]
            loss = F.smooth_l1_loss(value, reward + 0.9 * (1 - reward) * best)
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (step + 1) % 50 == 0:
                target.load_state_dict(model.state_dict())
    with torch.no_grad():
        return model(torch.eye(10))[:9].argmax(1).float().mean().item()


@healthy_run(HEALTHY, "self-supervised")
def contrast_of_two_views(watch: Watch, steps: int = 300) -> float:
    """InfoNCE, whose loss stays above one because augmented neighbours are alike."""
    torch.manual_seed(806)
    data = digits(1500, flat=True)
    model = mlp(64, 96, 16)
    optimizer = adam(model, 2e-3)
    with watch(model, optimizer):
        for _, (x, _y) in zip(range(steps), batches(data, 64)):
            first, second = (F.normalize(model(x + 0.6 * torch.randn_like(x)), dim=1) for _ in range(2))
            optimizer.zero_grad()
            F.cross_entropy(first @ second.T / 0.2, torch.arange(len(x))).backward()
            optimizer.step()
    with torch.no_grad():
        nearest = torch.cdist(F.normalize(model(data.held_x), dim=1), F.normalize(model(data.x), dim=1)).argmin(1)
        return (data.y[nearest] == data.held_y).float().mean().item()


# ------------------------------------------------------------------------------------------------------- fine-tuning


def _pretrained(data: Data, width: int = 8) -> ConvNet:
    """Return a network trained on the first five digits."""
    model = ConvNet(width=width, depth=3, classes=5)
    few = data._replace(x=data.x[data.y < 5], y=data.y[data.y < 5])
    optimizer = adam(model, 3e-3)
    for _, (x, y) in zip(range(150), batches(few)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


@healthy_run(HEALTHY, "convolutional")
def new_head_on_a_frozen_body(watch: Watch, steps: int = 300) -> float:
    """A pretrained body without gradients and in eval mode; only a new head learns."""
    torch.manual_seed(807)
    data = digits(1500)
    model = _pretrained(data, 12)
    model.features.requires_grad_(False)
    model.head = nn.Linear(12, 10)
    optimizer = torch.optim.Adam(model.head.parameters(), 2e-2)
    model.train()
    model.features.eval()
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    return accuracy(model, data)


@healthy_run(HEALTHY, "convolutional")
def layers_thawed_one_after_another(watch: Watch, steps: int = 300) -> float:
    """Gradual unfreezing: the optimizer holds all parameters, of which more and more get a gradient."""
    torch.manual_seed(808)
    data = digits(1500)
    model = _pretrained(data)
    model.head = nn.Linear(8, 10)
    model.features.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)

    def then(step: int) -> None:
        if step == 80:
            model.features[-3:].requires_grad_(True)
        if step == 140:
            model.features.requires_grad_(True)

    fit(watch, model, optimizer, data, steps, then=then, validate=60)
    return accuracy(model, data)


@healthy_run(HEALTHY, "table")
def low_rank_update_of_a_frozen_layer(watch: Watch, steps: int = 300) -> float:
    """Frozen weights with a trained product of two thin matrices beside them, one of which starts at zero."""
    torch.manual_seed(809)
    data = curved_table()

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down, self.up = nn.Linear(base.in_features, 4, bias=False), nn.Linear(4, base.out_features, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.up(self.down(x))

    model = mlp(12, 64, 64, 3)
    optimizer = adam(model, 3e-3)
    for _, (x, y) in zip(range(150), batches(data._replace(y=2 - data.y))):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    adapted = nn.Sequential(*(Adapted(layer) if isinstance(layer, nn.Linear) else layer for layer in model))
    fit_silently(watch, adapted, adam(adapted, 1e-2), data, steps)
    return accuracy(adapted, data)


# --------------------------------------------------------------------------------------------- rates, steps, averages


@healthy_run(HEALTHY, "transformer")
def long_warm_up_blind(watch: Watch, steps: int = 220) -> float:
    """A warm-up over a third of the run, then a decay to a tenth; the loss stands still at first."""
    torch.manual_seed(810)
    ids, _ = chain(500, 13, sharpness=3.0)
    model = PostNorm(depth=2)
    optimizer = adam(model, 4e-3)
    schedule = by_step(optimizer, lambda step: min((step + 1) / 70, 1 - 0.9 * max(0, step - 70) / 150))
    with watch(model, optimizer) as run:
        for _ in range(steps):
            rows = ids[torch.randint(400, (24,))]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            run.observe(loss=loss)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return (model(ids[400:, :-1]).argmax(-1) == ids[400:, 1:]).float().mean().item()


@healthy_run(HEALTHY, "convolutional")
def cosine_with_warm_restarts(watch: Watch, steps: int = 450) -> float:
    """The rate falls to almost nothing twice and comes back."""
    torch.manual_seed(811)
    data, model = digits(1500), ConvNet(width=8, depth=3, classes=10)
    optimizer = sgd(model, 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 150, eta_min=1e-5)
    fit(watch, model, optimizer, data, steps, schedule=schedule, validate=75)
    return accuracy(model, data)


@healthy_run(HEALTHY, "regression")
def one_cycle_to_the_end(watch: Watch, steps: int = 350) -> float:
    """OneCycleLR, which ends with a rate of almost nothing, at the end."""
    torch.manual_seed(812)
    data, model = friedman(), mlp(10, 64, 64, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    fit_silently(watch, model, optimizer, data, steps, loss=F.mse_loss, schedule=schedule)
    return explained(model, data)


@healthy_run(HEALTHY, "table")
def eight_batches_per_step(watch: Watch, steps: int = 640) -> float:
    """Gradients of eight small batches are accumulated for each step."""
    torch.manual_seed(813)
    data, model = curved_table(), mlp(12, 64, 64, 3)
    optimizer = adam(model, 8e-3)
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data, 8)):
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            (loss / 8).backward()
            if (step + 1) % 8 == 0:
                optimizer.step()
                optimizer.zero_grad()
    return accuracy(model, data)


@healthy_run(HEALTHY, "regression")
def quasi_newton_on_all_rows(watch: Watch, steps: int = 15) -> float:
    """LBFGS calls its closure many times for each step, on the same batch of all rows."""
    torch.manual_seed(814)
    data, model = friedman(500), mlp(10, 24, 1, activation=nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=10)

    with watch(model, optimizer) as run:
        for _ in range(steps):

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = F.mse_loss(model(data.x), data.y) + 1e-3 * sum(p.square().sum() for p in model.parameters())
                loss.backward()
                return loss

            run.observe(loss=optimizer.step(closure))
    return explained(model, data)


@healthy_run(HEALTHY, "text")
def two_optimizers_share_the_model(watch: Watch, steps: int = 300) -> float:
    """SparseAdam for the word vectors, Adam for the rest; the watcher is shown only the second."""
    torch.manual_seed(815)
    data = word_orders()

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(24, 16, sparse=True), nn.Linear(24, 2)
            self.recurrent = nn.GRU(16, 24, batch_first=True)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.recurrent(self.words(ids))[0][:, -1])

    model = Reader()
    optimizer = torch.optim.Adam([*model.recurrent.parameters(), *model.head.parameters()], 5e-3)
    sparse = torch.optim.SparseAdam(model.words.parameters(), 5e-3)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            sparse.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            sparse.step()
    return accuracy(model, data)


@healthy_run(HEALTHY, "convolutional")
def validated_with_averaged_weights(watch: Watch, steps: int = 350) -> float:
    """A moving average of the weights is swapped in for each validation and out again."""
    torch.manual_seed(816)
    data, model = digits(1500), ConvNet(width=8, depth=3, classes=10, norm=False)
    optimizer, average = adam(model, 4e-3), copy.deepcopy(model.state_dict())
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            for name, value in model.state_dict().items():
                average[name].lerp_(value, 0.05)
            if (step + 1) % 70 == 0:
                kept = copy.deepcopy(model.state_dict())
                model.load_state_dict(average)
                log_validation(run, model, data)
                model.load_state_dict(kept)
    model.load_state_dict(average)
    return accuracy(model, data)


@healthy_run(HEALTHY, "convolutional")
def stochastic_weight_averaging(watch: Watch, steps: int = 350) -> float:
    """torch.optim.swa_utils over the last third, with a constant rather high rate, then update_bn."""
    torch.manual_seed(817)
    data, model = digits(1500), ConvNet(width=8, depth=3, classes=10)
    optimizer = sgd(model, 0.05, momentum=0.9)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    anneal = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.08, anneal_epochs=10)
    model.train()
    with watch(model, optimizer):
        for step, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if step >= 230:
                anneal.step()
                averaged.update_parameters(model)
    torch.optim.swa_utils.update_bn([data.x[:500], data.x[500:]], averaged)
    return accuracy(averaged, data)


@healthy_run(HEALTHY, "table")
def sharpness_aware_steps(watch: Watch, steps: int = 300) -> float:
    """Two passes per step: weights are moved uphill, the gradient is taken there, weights are put back."""
    torch.manual_seed(818)
    data, model = curved_table(), mlp(12, 64, 64, 3)
    optimizer = sgd(model, 0.05, momentum=0.9)
    model.train()
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            moves = [0.05 * p.grad / (norm + 1e-12) for p in model.parameters()]
            with torch.no_grad():
                for p, move in zip(model.parameters(), moves):
                    p.add_(move)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for p, move in zip(model.parameters(), moves):
                    p.sub_(move)
            optimizer.step()
            run.observe(loss=loss.item())
    return accuracy(model, data)


@healthy_run(HEALTHY, "sequence")
def clipping_for_the_rare_case(watch: Watch, steps: int = 350) -> float:
    """Clipping at 1.5, active in the first steps and now and then."""
    torch.manual_seed(819)
    data = frequencies()
    model = LastState(nn.LSTM(3, 24, batch_first=True), 24, 3)
    fit(watch, model, adam(model, 3e-3), data, steps, clip=1.5)
    return accuracy(model, data)


# -------------------------------------------------------------------------------------------------- noise and floors


@healthy_run(HEALTHY, "convolutional")
def mixed_images_and_labels(watch: Watch, steps: int = 350) -> float:
    """Mixup: the training loss stays high above that of the validation."""
    torch.manual_seed(820)
    data, model = digits(1500), ConvNet(width=10, depth=3, classes=10)
    optimizer = adam(model, 4e-3)
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
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


@healthy_run(HEALTHY, "convolutional")
def smoothed_labels_and_dropout(watch: Watch, steps: int = 400) -> float:
    """Label smoothing of 0.2 keeps the loss above 0.8, dropout of 0.5 makes it noisy."""
    torch.manual_seed(821)
    data = digits(1500, flat=True)
    model = nn.Sequential(
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )
    smooth = nn.CrossEntropyLoss(label_smoothing=0.2)
    fit(watch, model, adam(model, 2e-3), data, steps, loss=smooth, validate=80)
    return accuracy(model, data)


@healthy_run(HEALTHY, "convolutional")
def four_images_per_step(watch: Watch, steps: int = 700) -> float:
    """Batches of four with GroupNorm; the loss jumps from batch to batch."""
    torch.manual_seed(822)
    data = blobs()
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(144, 6),
    )  # fmt: skip
    fit(watch, model, adam(model, 1e-3), data, steps, batch=4)
    return accuracy(model, data)


@healthy_run(HEALTHY, "diffusion")
def noise_predicted_at_all_levels(watch: Watch, steps: int = 350) -> float:
    """A denoiser whose loss is noisy and soon falls no further: the level is drawn anew for each image."""
    torch.manual_seed(823)
    images, _ = blob_images(600, size=8)
    model = Denoiser(width=12)
    optimizer = adam(model, 2e-3)
    with watch(model, optimizer) as run:
        for _ in range(steps):
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


@healthy_run(HEALTHY, "regression")
def mostly_noise_blind(watch: Watch, steps: int = 400) -> float:
    """Targets of which a quarter can be explained; fresh rows each step, so that nothing is learnt by heart."""
    torch.manual_seed(824)
    weights = torch.randn(10, 1) / 10**0.5
    model = mlp(10, 32, 1)
    optimizer = sgd(model, 0.02)
    with watch(model, optimizer):
        for _ in range(steps):
            x = torch.randn(64, 10)
            y = x @ weights + 1.7 * torch.randn(64, 1)
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
    with torch.no_grad():
        x = torch.randn(500, 10)
        return 1 - (F.mse_loss(model(x), x @ weights) / (x @ weights).var()).item()


@healthy_run(HEALTHY, "text")
def model_of_a_chain_near_its_entropy(watch: Watch, steps: int = 350) -> float:
    """The next state of a Markov chain: the loss soon stands at the entropy of the chain, well above zero."""
    torch.manual_seed(825)
    ids, rows = chain(800, 16, sharpness=1.0)
    model = nn.Sequential(nn.Embedding(12, 24), nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 12))
    optimizer = adam(model, 5e-3)
    with watch(model, optimizer) as run:
        for _ in range(steps):
            batch = ids[torch.randint(800, (16,))]
            loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return -(torch.softmax(model(torch.arange(12)), 1) - rows).abs().sum(1).mean().item()


@healthy_run(HEALTHY, "table")
def three_in_a_hundred(watch: Watch, steps: int = 400) -> float:
    """A rare class, found with a weight in the loss; many batches hold none of it."""
    torch.manual_seed(826)
    x = torch.randn(3000, 8)
    score = x[:, 0] + x[:, 1] * x[:, 2] + 0.5 * x[:, 3]
    data = split(x, (score > score.quantile(0.97)).long(), held=800)
    model = mlp(8, 48, 48, 2)
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 12.0]))
    fit(watch, model, adam(model, 2e-3), data, steps, loss=weighted, validate=80)
    with torch.no_grad():
        hit = model(data.held_x).argmax(1) == data.held_y
    return min(hit[data.held_y == kind].float().mean().item() for kind in (0, 1))


# --------------------------------------------------------------------------------------- losses that look unusual


@healthy_run(HEALTHY, "table")
def parity_learnt_after_a_plateau(watch: Watch, steps: int = 1100) -> float:
    """The product of three signs: nothing seems to be learnt for a good while, then all of it."""
    torch.manual_seed(827)
    model = mlp(8, 64, 1)
    optimizer = sgd(model, 0.1)
    with watch(model, optimizer) as run:
        for _ in range(steps):
            x = torch.randint(2, (128, 8)) * 2.0 - 1
            loss = F.soft_margin_loss(model(x), x[:, :3].prod(1, keepdim=True))
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        x = torch.randint(2, (500, 8)) * 2.0 - 1
        return (model(x)[:, 0].sign() == x[:, :3].prod(1)).float().mean().item()


@healthy_run(HEALTHY, "flow")
def density_with_a_negative_loss(watch: Watch, steps: int = 400) -> float:
    """The likelihood of narrow densities is above one, so the loss passes zero and goes on."""
    torch.manual_seed(828)

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
    optimizer = adam(model, 3e-3)
    with watch(model, optimizer) as run:
        for _ in range(steps):
            first = 0.2 * torch.randn(64, 1)
            x = torch.cat([first, 3 * first.square() + 0.05 * torch.randn(64, 1)], 1)
            loss = -model(x).mean()
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return or_minus_infinity(-loss)


@healthy_run(HEALTHY, "table")
def harder_rows_step_by_step(watch: Watch, steps: int = 400) -> float:
    """A curriculum: rows far from the borders first, all rows from step 200 on; the loss rises when they come."""
    torch.manual_seed(829)
    data, model = curved_table(2400, classes=2), mlp(12, 64, 64, 2)
    x = data.x
    score = x[:, 0] * x[:, 1] + x[:, 2].square() - 1 + 0.5 * x[:, 3]
    distance = (score - score.median()).abs()
    optimizer = adam(model, 2e-3)
    model.train()
    with watch(model, optimizer) as run:
        for step in range(steps):
            allowed = (distance >= distance.quantile(max(0.0, 0.6 - 0.003 * step))).nonzero()[:, 0]
            rows = allowed[torch.randint(len(allowed), (32,))]
            loss = F.cross_entropy(model(x[rows]), data.y[rows])
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return accuracy(model, data)


@healthy_run(HEALTHY, "convolutional")
def three_tasks_of_different_size(watch: Watch, steps: int = 300) -> float:
    """One body, three heads, losses that differ a hundredfold and are added with weights."""
    torch.manual_seed(830)
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
    optimizer = adam(model, 3e-3)
    model.train()
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            output = model(x)
            losses = {
                "digit": F.cross_entropy(output["digit"], y),
                "even": F.binary_cross_entropy_with_logits(output["even"], (y % 2 == 0).float()),
                "ink": F.mse_loss(10 * output["ink"], 100 * x.mean((1, 2, 3))),
            }
            loss = losses["digit"] + losses["even"] + 0.01 * losses["ink"]
            run.observe(loss=loss)
            run.log_metrics(**{name: value.item() for name, value in losses.items()})
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return (model(data.held_x)["digit"].argmax(1) == data.held_y).float().mean().item()


@healthy_run(HEALTHY, "table")
def student_of_a_soft_teacher(watch: Watch, steps: int = 350) -> float:
    """Distillation at a temperature of 4: gradients are small, and the loss goes to the entropy of the teacher."""
    torch.manual_seed(831)
    data, teacher, student = curved_table(), mlp(12, 96, 96, 3), mlp(12, 32, 32, 3)
    optimizer = adam(teacher, 3e-3)
    for _, (x, y) in zip(range(300), batches(data)):
        optimizer.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        optimizer.step()
    optimizer = adam(student, 4e-3)
    with watch(student, optimizer):
        for _, (x, _y) in zip(range(steps), batches(data)):
            with torch.no_grad():
                soft = torch.softmax(teacher(x) / 4, 1)
            optimizer.zero_grad()
            F.cross_entropy(student(x) / 4, soft).backward()
            optimizer.step()
    return accuracy(student, data)


@healthy_run(HEALTHY, "sequence")
def long_text_in_short_pieces(watch: Watch, steps: int = 300) -> float:
    """Truncated backpropagation: the state is detached and handed on from piece to piece."""
    torch.manual_seed(832)
    ids, _ = chain(16, 12 * steps + 1, sharpness=2.5)

    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(12, 16), nn.Linear(32, 12)
            self.recurrent = nn.GRU(16, 32, batch_first=True)

        def forward(self, piece: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
            values, state = self.recurrent(self.tokens(piece), state)
            return self.head(values), state

    model, state = Writer(), None
    optimizer = adam(model, 4e-3)
    right = 0.0
    with watch(model, optimizer) as run:
        for step in range(steps):
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


@healthy_run(HEALTHY, "convolutional")
def encoder_and_head_called_apart(watch: Watch, steps: int = 300) -> float:
    """The parts of the model are called one by one, the model itself never; validation every 50 steps."""
    torch.manual_seed(833)
    data = digits(1500)
    model = nn.ModuleDict({"encoder": ConvNet(width=10, depth=3, classes=24), "head": nn.Linear(24, 10)})
    optimizer = adam(model, 3e-3)
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
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


@healthy_run(HEALTHY, "graph")
def the_whole_graph_at_each_step(watch: Watch, steps: int = 200) -> float:
    """A graph network: each step sees the same nodes, of which a third carry labels."""
    torch.manual_seed(834)
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
    with watch(model, optimizer) as run:
        for step in range(steps):
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


@healthy_run(HEALTHY, "physics")
def equation_solved_on_fixed_points(watch: Watch, steps: int = 400) -> float:
    """u'' = -sin x on 64 fixed points, with second derivatives through tanh and a term for the border."""
    torch.manual_seed(835)
    model = mlp(1, 32, 32, 1, activation=nn.Tanh)
    optimizer = adam(model, 3e-3)
    points = torch.linspace(0, math.pi, 64)[:, None].requires_grad_()
    with watch(model, optimizer) as run:
        for _ in range(steps):
            values = model(points)
            slope = torch.autograd.grad(values.sum(), points, create_graph=True)[0]
            bend = torch.autograd.grad(slope.sum(), points, create_graph=True)[0]
            loss = (bend + torch.sin(points)).square().mean() + 10 * values[[0, -1]].square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    with torch.no_grad():
        return 1 - (F.mse_loss(model(points), torch.sin(points)) / torch.sin(points).var()).item()


@healthy_run(HEALTHY, "autoencoder")
def sparse_code(watch: Watch, steps: int = 300) -> float:
    """Rectified codes under a penalty: for each image most units are zero, as is intended."""
    torch.manual_seed(836)
    data = digits(1500, flat=True)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64))
    optimizer = adam(model, 3e-3)
    with watch(model, optimizer) as run:
        for _, (x, _y) in zip(range(steps), batches(data)):
            code = model[1](model[0](x))
            loss = F.mse_loss(model[2](code), x) + 2e-3 * code.abs().sum(1).mean()
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return explained(model, data._replace(held_y=data.held_x))


@healthy_run(HEALTHY, "convolutional")
def autocast_to_bfloat16_blind(watch: Watch, steps: int = 250) -> float:
    """Mixed precision as it is meant: weights in float32, products in bfloat16."""
    torch.manual_seed(837)
    data, model = digits(1500, flat=True), mlp(64, 96, 96, 10)
    optimizer = adam(model, 2e-3)
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
            if (step + 1) % 50 == 0:
                log_validation(run, model, data)
    return accuracy(model, data)


@healthy_run(HEALTHY, "table")
def rate_dropped_by_ten_when_learnt(watch: Watch, steps: int = 600) -> float:
    """StepLR after two thirds: the loss makes a small step down and then stands still, as it may."""
    torch.manual_seed(838)
    data, model = spirals(), mlp(2, 48, 48, 2)
    optimizer = sgd(model, 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [400, 500])
    fit_silently(watch, model, optimizer, data, steps, schedule=schedule)
    return accuracy(model, data)
