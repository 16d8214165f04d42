"""Healthy runs, many of which look as if something were wrong."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue import parts as models
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
from .third_parts import blobs, curves, rows, sentences, unreported, waves

HEALTHY: list[HealthyRun] = []


def _take(data: Data, size: int, steps: int) -> zip:
    """Return so many steps' numbers and batches."""
    return zip(range(steps), batches(data, size))


# --------------------------------------------------------------------------------------- two players and codes of data


@healthy_run(HEALTHY, "adversarial")
def hinge_game_with_spectral_norms(watch: Watch, steps: int = 400) -> float:
    """Two clusters, the hinge loss, a discriminator with spectral norms; both losses wander."""
    torch.manual_seed(141)
    generator = models.mlp(8, 64, 64, 2)
    discriminator = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(2, 64)), nn.LeakyReLU(0.2),
        nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64)), nn.LeakyReLU(0.2), nn.Linear(64, 1),
    )  # fmt: skip
    of_generator = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.99))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), 4e-3, betas=(0.5, 0.99))

    def real(count: int) -> Tensor:
        return torch.tensor([1.5, 1.0]) * (2 * torch.randint(2, (count, 1)) - 1) + 0.5 * torch.randn(count, 2)

    both = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    with watch(both, of_generator) as run:
        for _ in range(steps):
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


@healthy_run(HEALTHY, "adversarial")
def deep_convolutional_game(watch: Watch, steps: int = 120) -> float:
    """A small DCGAN on blobs whose discriminator stays ahead, as it usually does."""
    torch.manual_seed(142)
    data = blobs(640)
    images = torch.tanh(data.x / 2)
    generator = models.Generator()
    discriminator = nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(),
        nn.Dropout(0.3), nn.Linear(512, 1),
    )  # fmt: skip
    of_generator = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.99))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), 3e-4, betas=(0.5, 0.99))
    with watch(generator, of_generator) as run:
        for _ in range(steps):
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


@healthy_run(HEALTHY, "variational autoencoder")
def evidence_with_free_bits(watch: Watch, steps: int = 350) -> float:
    """The divergence of each code is not punished below a quarter of a bit, so that it lies there at first."""
    torch.manual_seed(143)
    data, model = digits(flat=True, raw=True), models.VAE(64, 8)
    data = data._replace(x=data.x / 16, held_x=data.held_x / 16)
    optimizer = adam(model, 2e-3)
    with watch(model, optimizer) as run:
        for _, (x, _labels) in _take(data, 64, steps):
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


# -------------------------------------------------------------------------------------------------- reinforcement


@healthy_run(HEALTHY, "reinforcement")
def actor_and_critic_with_an_entropy_bonus(watch: Watch, steps: int = 400) -> float:
    """One network with two heads; the sum of three losses goes up and down around zero while the reward rises."""
    torch.manual_seed(144)
    data, trunk = rows(), models.mlp(12, 64, 32)
    model = nn.ModuleDict({"trunk": trunk, "actor": nn.Linear(32, 3), "critic": nn.Linear(32, 1)})
    optimizer = adam(model, 3e-3)
    with watch(model, optimizer) as run:
        for _, (x, y) in _take(data, 64, steps):
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


@healthy_run(HEALTHY, "reinforcement")
def values_whose_scale_grows_with_the_policy(watch: Watch, steps: int = 500) -> float:
    """Q-learning along a corridor with a target network: the loss grows while the reward spreads backwards."""
    torch.manual_seed(145)
    online = models.mlp(10, 64, 2)
    target, optimizer = copy.deepcopy(online), adam(online, 3e-3)
    with watch(online, optimizer):
        for step in range(steps):
            place, action = torch.randint(10, (64,)), torch.randint(2, (64,))
            goes_to = (place + 2 * action - 1).clamp(0, 9)
            reward = 10 * (goes_to == 9).float()
            with torch.no_grad():
                best = reward + 0.9 * (goes_to < 9) * target(F.one_hot(goes_to, 10).float()).amax(1)
            error = F.smooth_l1_loss(online(F.one_hot(place, 10).float()).gather(1, action[:, None])[:, 0], best)
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
            if step % 25 == 24:
                target.load_state_dict(online.state_dict())
    with torch.no_grad():
        return online(torch.eye(10))[:9].argmax(1).float().mean().item()


# --------------------------------------------------------------------------------------------- learning without labels


@healthy_run(HEALTHY, "self-supervised")
def two_noisy_views_with_many_negatives(watch: Watch, steps: int = 200) -> float:
    """InfoNCE over 64 images, whose loss starts at log 64 and stays well above zero."""
    torch.manual_seed(146)
    data, model = digits(), models.ConvNet(classes=16)
    optimizer = adam(model, 3e-3)
    with watch(model, optimizer) as run:
        for _, (x, _y) in _take(data, 64, steps):
            first, second = (F.normalize(model(x + 0.4 * torch.randn_like(x))) for _ in range(2))
            loss = F.cross_entropy(first @ second.T / 0.2, torch.arange(len(x)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    with torch.no_grad():
        codes, held = F.normalize(model(data.x)), F.normalize(model(data.held_x))
    return (data.y[(held @ codes.T).argmax(1)] == data.held_y).float().mean().item()


@healthy_run(HEALTHY, "self-supervised")
def student_that_predicts_its_own_average(watch: Watch, steps: int = 200) -> float:
    """A teacher that is the student's moving average, a predictor between them, and no negatives."""
    torch.manual_seed(147)
    data = digits(flat=True)
    student = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
    predictor = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32))
    teacher = copy.deepcopy(student).requires_grad_(False)
    model = nn.ModuleDict({"student": student, "predictor": predictor})
    optimizer = adam(model, 2e-3)
    with watch(model, optimizer) as run:
        for _, (x, _y) in _take(data, 64, steps):
            guess = F.normalize(predictor(student(x + 0.3 * torch.randn_like(x))))
            loss = 2 - 2 * (guess * F.normalize(teacher(x + 0.3 * torch.randn_like(x)))).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
            for slow, fast in zip(teacher.parameters(), student.parameters()):
                slow.lerp_(fast.detach(), 0.02)
    with torch.no_grad():
        codes, held = F.normalize(student.eval()(data.x)), F.normalize(student(data.held_x))
    return (data.y[(held @ codes.T).argmax(1)] == data.held_y).float().mean().item()


@healthy_run(HEALTHY, "diffusion")
def velocity_of_a_flow(watch: Watch, steps: int = 400) -> float:
    """Flow matching from noise to a ring: after some steps the loss lies at a floor that no network can pass."""
    torch.manual_seed(148)
    model = models.mlp(3, 64, 64, 2, activation=nn.SiLU)
    optimizer = adam(model, 3e-3)

    def ring(count: int) -> Tensor:
        angle = 2 * math.pi * torch.rand(count)
        return 2 * torch.stack([angle.cos(), angle.sin()], 1)

    with watch(model, optimizer) as run:
        for _ in range(steps):
            start, end, time = torch.randn(128, 2), ring(128), torch.rand(128, 1)
            velocity = model(torch.cat([start + time * (end - start), time], 1))
            loss = F.mse_loss(velocity, end - start)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    points = torch.randn(512, 2)
    with torch.no_grad():
        for k in range(30):
            points = points + model(torch.cat([points, torch.full((512, 1), k / 30)], 1)) / 30
    return 1 - (points.norm(dim=1) - 2).abs().mean().item()


# --------------------------------------------------------------------------------------------- parts that stand still


@healthy_run(HEALTHY, "convolutional")
def pretrained_body_with_its_norms_in_eval_mode(watch: Watch, steps: int = 150) -> float:
    """A body trained before is frozen, BatchNorm and all, and a new head learns on it."""
    torch.manual_seed(149)
    data, model = digits(), models.ConvNet(classes=10)
    before = adam(model, 3e-3)
    for _, (x, y) in _take(data, 32, 120):
        before.zero_grad()
        F.cross_entropy(model(x), y).backward()
        before.step()
    model.requires_grad_(False).zero_grad()
    model.head = nn.Linear(16, 10)
    optimizer = adam(model.head, 1e-2)
    with watch(model, optimizer) as run:
        for _, (x, y) in _take(data, 32, steps):
            model.train()
            model.features.eval()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    return accuracy(model, data)


@healthy_run(HEALTHY, "text")
def random_positions_kept_fixed(watch: Watch, steps: int = 450) -> float:
    """The embedding of places is fixed on purpose, as in the first transformer, and half of the words never occur."""
    torch.manual_seed(150)
    data, model = sentences(), models.SentenceEncoder(vocabulary=100)
    model.positions.weight.requires_grad_(False)
    fit(unreported(watch), model, adam(model, 1e-3), data, steps)
    return accuracy(model, data)


@healthy_run(HEALTHY, "convolutional")
def residual_branches_that_start_at_zero(watch: Watch, steps: int = 250) -> float:
    """The last BatchNorm of each block has a scale of zero at first: its convolutions get no gradient in step one."""
    torch.manual_seed(151)
    data, model = digits(), models.ResNet(classes=10)
    for block in model.blocks:
        nn.init.zeros_(block.bn2.weight)
    fit(watch, model, sgd(model, 0.05, momentum=0.9, decay=5e-4), data, steps, validate=50)
    return accuracy(model, data)


@healthy_run(HEALTHY, "table")
def two_thirds_of_the_weights_pruned(watch: Watch, steps: int = 350) -> float:
    """From step 150 on the smallest weights are set back to zero after each step."""
    torch.manual_seed(152)
    data, model = digits(flat=True), models.mlp(64, 64, 64, 10)
    masks: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def prune(step: int) -> None:
        for weight in (parameter for parameter in model.parameters() if parameter.ndim == 2):
            if step == 150:
                masks[weight] = weight.abs() > weight.abs().flatten().kthvalue(2 * weight.numel() // 3).values
            if step >= 150:
                weight.mul_(masks[weight])

    fit(unreported(watch), model, adam(model, 2e-3), data, steps, then=prune)
    return accuracy(model, data)


# ----------------------------------------------------------------------------------------------------------- schedules


@healthy_run(HEALTHY, "transformer")
def inverse_root_after_a_warm_up(watch: Watch, steps: int = 450) -> float:
    """The schedule of the first transformer: up for a hundred steps, then down as one over the root."""
    torch.manual_seed(153)
    data, model = sentences(), models.SentenceEncoder(dropout=0.1)
    optimizer = adam(model, 2e-3)
    schedule = by_step(optimizer, lambda step: min((step + 1) / 100, (100 / (step + 1)) ** 0.5))
    fit(watch, model, optimizer, data, steps, schedule=schedule, validate=90)
    return accuracy(model, data)


@healthy_run(HEALTHY, "convolutional")
def three_cycles_of_a_cosine(watch: Watch, steps: int = 300) -> float:
    """The rate goes to nothing three times and jumps back, and the loss with it."""
    torch.manual_seed(154)
    data, model = digits(), models.ConvNet(classes=10)
    optimizer = sgd(model, 0.2, momentum=0.9)
    restarts = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=100)
    fit(unreported(watch), model, optimizer, data, steps, schedule=restarts)
    return accuracy(model, data)


@healthy_run(HEALTHY, "convolutional")
def rate_divided_by_ten_at_milestones(watch: Watch, steps: int = 300) -> float:
    """The classic schedule of ResNets; after the second milestone hardly anything moves, nor need it."""
    torch.manual_seed(155)
    data, model = blobs(), models.ResNet()
    optimizer = sgd(model, 0.1, momentum=0.9, decay=1e-4)
    milestones = torch.optim.lr_scheduler.MultiStepLR(optimizer, [120, 220])
    fit(watch, model, optimizer, data, steps, schedule=milestones)
    return accuracy(model, data)


@healthy_run(HEALTHY, "table")
def weights_averaged_in_the_last_third(watch: Watch, steps: int = 300) -> float:
    """Stochastic weight averaging at a constant rate, after which the average is what is kept."""
    torch.manual_seed(156)
    data, model = rows(), models.mlp(12, 64, 64, 3)
    average = torch.optim.swa_utils.AveragedModel(model)

    def gather(step: int) -> None:
        if step >= 200 and step % 5 == 0:
            average.update_parameters(model)

    fit(unreported(watch), model, sgd(model, 0.1, momentum=0.9), data, steps, then=gather)
    return accuracy(average, data)


# ------------------------------------------------------------------------------------------------- steps of other kinds


@healthy_run(HEALTHY, "convolutional")
def six_small_batches_for_each_step(watch: Watch, steps: int = 480) -> float:
    """Gradients of six batches of eight are gathered; between steps they grow, as they should."""
    torch.manual_seed(157)
    data, model = digits(), models.ConvNet(classes=10)
    optimizer = adam(model, 5e-3)
    with watch(model, optimizer):
        for step, (x, y) in _take(data, 8, steps):
            (F.cross_entropy(model(x), y) / 6).backward()
            if step % 6 == 5:
                optimizer.step()
                optimizer.zero_grad()
    return accuracy(model, data)


@healthy_run(HEALTHY, "regression")
def second_order_on_the_whole_table(watch: Watch, steps: int = 40) -> float:
    """LBFGS with a line search, which calls the model several times for a step."""
    torch.manual_seed(158)
    data, model = curves(512), models.mlp(8, 24, 1, activation=nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
    with watch(model, optimizer) as run:
        for _ in range(steps):

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = F.mse_loss(model(data.x), data.y) + 1e-3 * sum(p.square().sum() for p in model.parameters())
                loss.backward()
                return loss

            run.observe(loss=optimizer.step(closure))
    return explained(model, data)


@healthy_run(HEALTHY, "recommender")
def embeddings_by_one_optimizer_and_tower_by_another(watch: Watch, steps: int = 400) -> float:
    """Embeddings learn by Adagrad, the tower by Adam; most rows of a table get no gradient in a step."""
    torch.manual_seed(159)
    data, model = split(*models.ratings(3000)), models.Recommender()
    tables = torch.optim.Adagrad([*model.users.parameters(), *model.items.parameters()], 0.1)
    tower = adam(model.tower, 3e-3)
    with watch(model, tables) as run:
        for _, (pairs, y) in _take(data, 32, steps):
            loss = F.mse_loss(model(pairs), y)
            tables.zero_grad()
            tower.zero_grad()
            loss.backward()
            tables.step()
            tower.step()
            run.observe(loss=loss)
    return explained(model, data)


@healthy_run(HEALTHY, "convolutional")
def attacked_images_as_training_data(watch: Watch, steps: int = 180) -> float:
    """Each step attacks its batch first, by a gradient with respect to the images, and trains on the result."""
    torch.manual_seed(160)
    data, model = digits(), models.ConvNet(classes=10)
    optimizer = adam(model, 3e-3)
    with watch(model, optimizer) as run:
        for _, (x, y) in _take(data, 32, steps):
            attacked = x.clone().requires_grad_()
            slope = torch.autograd.grad(F.cross_entropy(model(attacked), y), attacked)[0]
            loss = F.cross_entropy(model(x + 0.25 * slope.sign()), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    return accuracy(model, data)


@healthy_run(HEALTHY, "sequence")
def clipped_in_one_step_of_twenty(watch: Watch, steps: int = 250) -> float:
    """Clipping at a norm that ordinary gradients do not reach."""
    torch.manual_seed(161)
    data, model = waves(), models.SequenceClassifier(nn.LSTM(3, 32, batch_first=True), 3)
    fit(unreported(watch), model, adam(model, 5e-3), data, steps, clip=1.5)
    return accuracy(model, data)


# ---------------------------------------------------------------------------------------- data and losses that look odd


@healthy_run(HEALTHY, "convolutional")
def patches_cut_and_mixed(watch: Watch, steps: int = 250) -> float:
    """CutMix with smoothed labels: the loss of training stays far above that of validation."""
    torch.manual_seed(162)
    data, model = digits(), models.ConvNet(classes=10)
    optimizer = adam(model, 4e-3)
    with watch(model, optimizer) as run:
        for step, (x, y) in _take(data, 32, steps):
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


@healthy_run(HEALTHY, "table")
def half_of_all_units_dropped(watch: Watch, steps: int = 400) -> float:
    """Dropout of one half in both hidden layers, evaluated every 80 steps in eval mode."""
    torch.manual_seed(163)
    data = digits(flat=True)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(64, 10),
    )  # fmt: skip
    fit(watch, model, adam(model, 2e-3), data, steps, validate=80)
    return accuracy(model, data)


@healthy_run(HEALTHY, "segmentation")
def pairs_of_images_under_group_norm(watch: Watch, steps: int = 120) -> float:
    """A U-Net with GroupNorm on two images at a time, whose loss jumps from pair to pair."""
    torch.manual_seed(164)
    data = blobs(640)
    masked = Data(data.x, (data.x > 1.5).float(), data.held_x, (data.held_x > 1.5).float())
    model = models.UNet()
    fit(watch, model, adam(model, 3e-3), masked, steps, loss=F.binary_cross_entropy_with_logits, batch=2)
    with torch.no_grad():
        marked = model(masked.held_x) > 0
    return or_minus_infinity(2 * (marked * masked.held_y).sum() / (marked.sum() + masked.held_y.sum()))


@healthy_run(HEALTHY, "regression")
def returns_of_which_little_can_be_known(watch: Watch, steps: int = 300) -> float:
    """Targets with four times as much noise as signal: the loss falls by a few per cent and no more."""
    torch.manual_seed(165)
    x = torch.randn(4096, 8)
    signal = 0.5 * (x[:, :1] - x[:, 1:2])
    data = split(x, signal + 1.4 * torch.randn(4096, 1))
    model = models.mlp(8, 16, 1)
    fit(watch, model, torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.05), data, steps, loss=F.mse_loss)
    return explained(model, data)


@healthy_run(HEALTHY, "text")
def language_of_coin_tosses(watch: Watch, steps: int = 250) -> float:
    """A language of 16 words in which only the word before counts, and little: the entropy is reached at once."""
    torch.manual_seed(166)
    ids = torch.randint(16, (1024, 17))
    for place in range(1, 17):
        ids[:, place] = torch.where(torch.rand(1024) < 0.3, (ids[:, place - 1] + 1) % 16, ids[:, place])
    data, model = split(ids[:, :-1], ids[:, 1:]), models.GPT(16, length=16)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), y.flatten())

    fit(watch, model, adam(model, 2e-3), data, steps, loss=loss)
    with torch.no_grad():
        return math.log(16) - loss(model(data.held_x), data.held_y).item()


@healthy_run(HEALTHY, "table")
def fraud_in_two_of_a_hundred(watch: Watch, steps: int = 400) -> float:
    """Two rows in a hundred are positive and weigh fifty times: many batches hold none of them."""
    torch.manual_seed(167)
    x = torch.randn(6000, 10)
    score = x[:, 0] + x[:, 1] * x[:, 2]
    y = (score > score.quantile(0.98)).float()[:, None]
    data, model = split(x, y, held=2000), models.mlp(10, 32, 32, 1)
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(50.0))
    fit(unreported(watch), model, adam(model, 2e-3), data, steps, loss=loss)
    with torch.no_grad():
        positive, held = model(data.held_x)[:, 0] > 0, data.held_y[:, 0] > 0
    return ((positive & held).sum() / held.sum() + (~positive & ~held).sum() / (~held).sum()).item() / 2


@healthy_run(HEALTHY, "sequence")
def series_that_grow_longer(watch: Watch, steps: int = 300) -> float:
    """A curriculum: series of 10 steps, then 20, then 40; the loss jumps at each new length."""
    torch.manual_seed(168)
    data, model = waves(), models.SequenceClassifier(nn.GRU(3, 32, batch_first=True), 3)

    def cut(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, : 10 if step < 80 else 20 if step < 160 else 40], y

    fit(unreported(watch), model, adam(model, 5e-3), data, steps, change=cut)
    return accuracy(model, data)


@healthy_run(HEALTHY, "table")
def exclusive_or_of_three_bits(watch: Watch, steps: int = 700) -> float:
    """Parity of three among six bits by plain SGD: a long plateau at log 2, then the fall."""
    torch.manual_seed(169)
    x = 2.0 * torch.randint(2, (2048, 6)) - 1
    data, model = split(x, (x[:, :3].prod(1) > 0).long()), models.mlp(6, 64, 2)
    fit(watch, model, sgd(model, 0.15), data, steps)
    return accuracy(model, data)


@healthy_run(HEALTHY, "density")
def mixture_density_below_zero(watch: Watch, steps: int = 300) -> float:
    """A mean and a deviation are learnt together for narrow targets: the negative log likelihood passes zero."""
    torch.manual_seed(170)
    x = torch.rand(2048, 1) * 4 - 2
    data = split(x, torch.sin(2 * x) + 0.05 * torch.randn_like(x))
    model = models.mlp(1, 64, 64, 2)
    optimizer = adam(model, 2e-3)

    def negative_log_likelihood(output: Tensor, y: Tensor) -> Tensor:
        mean, log_deviation = output.chunk(2, 1)
        return (log_deviation + 0.5 * ((y - mean) / log_deviation.exp()).square()).mean()

    fit(watch, model, optimizer, data, steps, loss=negative_log_likelihood, batch=64, clip=5.0)
    with torch.no_grad():
        return -negative_log_likelihood(model(data.held_x), data.held_y).item()


@healthy_run(HEALTHY, "convolutional")
def class_and_place_by_two_heads(watch: Watch, steps: int = 200) -> float:
    """One body, a head for the class and one for the blob's centre; the second loss weighs a tenth."""
    torch.manual_seed(171)
    data = blobs()
    body = models.ConvNet(classes=32)
    model = nn.ModuleDict({"body": body, "kind": nn.Linear(32, 4), "place": nn.Linear(32, 2)})
    optimizer = adam(model, 2e-3)
    grid = torch.linspace(-1, 1, 16)
    with watch(model, optimizer) as run:
        for _, (x, y) in _take(data, 32, steps):
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


@healthy_run(HEALTHY, "table")
def soft_answers_of_a_larger_network(watch: Watch, steps: int = 250) -> float:
    """Distillation at a temperature of 4: the loss is small from the beginning."""
    torch.manual_seed(172)
    data, teacher, student = digits(flat=True), models.mlp(64, 128, 10), models.mlp(64, 24, 10)
    before = adam(teacher, 3e-3)
    for _, (x, y) in _take(data, 32, 200):
        before.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        before.step()
    optimizer = adam(student, 3e-3)
    with watch(student, optimizer):
        for _, (x, _y) in _take(data, 32, steps):
            with torch.no_grad():
                answer = (teacher(x) / 4).softmax(1)
            loss = F.kl_div((student(x) / 4).log_softmax(1), answer, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return accuracy(student, data)


@healthy_run(HEALTHY, "text")
def state_carried_and_cut_every_ten_letters(watch: Watch, steps: int = 300) -> float:
    """A GRU reads on and on; its state is carried over and detached every ten letters."""
    torch.manual_seed(173)
    letters = torch.randint(5, (16, steps * 10 + 1))
    for place in range(2, letters.shape[1]):
        ruled = (letters[:, place - 1] + letters[:, place - 2]) % 5
        letters[:, place] = torch.where(torch.rand(16) < 0.9, ruled, letters[:, place])
    model = nn.ModuleDict({"letters": nn.Embedding(5, 16), "memory": nn.GRU(16, 48, batch_first=True)})
    model["head"] = nn.Linear(48, 5)
    optimizer, state, right = adam(model, 4e-3), torch.zeros(1, 16, 48), 0.0
    with watch(model, optimizer) as run:
        for step in range(steps):
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


@healthy_run(HEALTHY, "convolutional")
def validated_by_a_moving_average(watch: Watch, steps: int = 250) -> float:
    """The moving average is loaded for each validation, and the trained weights are put back after it."""
    torch.manual_seed(174)
    data, model = digits(), models.ConvNet(classes=10)
    optimizer = adam(model, 3e-3)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.95), use_buffers=True
    )
    with watch(model, optimizer) as run:
        for step, (x, y) in _take(data, 32, steps):
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


@healthy_run(HEALTHY, "autoencoder")
def encoder_and_decoder_called_by_name(watch: Watch, steps: int = 300) -> float:
    """A denoising autoencoder whose parts are called one by one and whose `forward` is never used."""
    torch.manual_seed(175)
    data, model = digits(flat=True), models.Autoencoder(64, 12)
    optimizer = torch.optim.NAdam(model.parameters(), 2e-3)
    with watch(model, optimizer):
        for _, (x, _y) in _take(data, 32, steps):
            code = model.encoder(x + 0.5 * torch.randn_like(x))
            loss = F.mse_loss(model.decoder(code), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return explained(model, Data(data.x, data.x, data.held_x, data.held_x))


@healthy_run(HEALTHY, "graph")
def few_labels_on_one_graph(watch: Watch, steps: int = 120) -> float:
    """One graph is the batch of every step, and a third of its nodes have labels."""
    torch.manual_seed(176)
    x, edges, y = models.communities(240)
    labelled = torch.rand(240) < 0.33
    model = models.GraphNet(edges)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-3)
    with watch(model, optimizer) as run:
        for _ in range(steps):
            loss = F.cross_entropy(model(x)[labelled], y[labelled])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    with torch.no_grad():
        return (model(x).argmax(1) == y)[~labelled].float().mean().item()


@healthy_run(HEALTHY, "table")
def resumed_with_the_second_half_of_the_data(watch: Watch, steps: int = 250) -> float:
    """A trained network is loaded and trained on more rows of the same kind: little is left to learn."""
    torch.manual_seed(177)
    data, model = digits(flat=True), models.mlp(64, 64, 10)
    half = len(data.x) // 2
    before = adam(model, 3e-3)
    for _, (x, y) in _take(data._replace(x=data.x[:half], y=data.y[:half]), 32, 250):
        before.zero_grad()
        F.cross_entropy(model(x), y).backward()
        before.step()
    optimizer = adam(model, 1e-3)
    optimizer.load_state_dict(before.state_dict())
    fit(watch, model, optimizer, data._replace(x=data.x[half:], y=data.y[half:]), steps, validate=50)
    return accuracy(model, data)
