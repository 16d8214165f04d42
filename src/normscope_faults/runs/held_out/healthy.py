"""Healthy runs, many of which look wrong in some figure."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from ...data import blob_images, sentences, table, waves
from ...networks import (
    GPT,
    VAE,
    Autoencoder,
    ConvNet,
    Denoiser,
    GraphNet,
    Recommender,
    ResNet,
    SentenceEncoder,
    SequenceClassifier,
    ViT,
    mlp,
)
from ...training import over_tokens
from ..case import HELD_OUT, sound
from ..data import Data, batches, curves, digits, split
from ..loops import Loop, accuracy, adam, by, by_step, explained, log_validation, or_minus_infinity, pretrain, sgd
from .parts import (
    Quantised,
    better_than_the_mean,
    descend,
    entropy,
    graph,
    likeness_of_held_out,
    moves,
    pictures,
    played,
    share_right,
    tastes,
    views,
)


class _Exponential(nn.Module):
    """The exponential function."""

    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


class _Skipping(nn.Module):
    """A residual block that is left out at random while training."""

    def __init__(self, block: nn.Module, share: float) -> None:
        super().__init__()
        self.block, self.share = block, share

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.rand(()) < self.share:
            return x
        return self.block(x)


HELD_OUT.add(
    sound("ratings-with-a-strong-decay-that-helps", "recommender",
        "AdamW with a decay of 0.5 keeps a net on few ratings from learning them by heart.", lambda loop: loop.fit(
        tastes(), Recommender(width=16), by(torch.optim.AdamW, 1e-2, weight_decay=0.5), loss=F.mse_loss, validate=50),
        steps=400, seed=496),
    sound("cosine-cycles-that-double", "CNN",
        "Warm restarts of 20, 40, 80 and 160 steps; the loss leaps a little at each.", lambda loop: loop.fit(digits(),
        ConvNet(classes=10, norm=False), sgd(0.1, 0.9), schedule=lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o,
        20, 2), clip=5.0, validate=20), steps=300, seed=441),
    sound("batches-of-512-after-a-warm-up", "MLP",
        "A large batch, a rate scaled with it, and forty steps of warm-up towards it.", lambda loop: loop.fit(
        digits(flat=True), mlp(64, 64, 10), sgd(0.4, 0.9), batch=512, schedule=by_step(lambda step: min(1.0,
        (step + 1) / 40))), steps=160, seed=442),
    sound("constant-rate-and-a-short-cooldown", "ResNet",
        "Warm-up, a constant rate, and a linear fall to zero in the last quarter.", lambda loop: loop.fit(digits(),
        ResNet(blocks=2, classes=10), by(torch.optim.AdamW, 5e-3), schedule=by_step(lambda step: min((step + 1) / 20,
        1.0, (loop.steps - step) / 50)), validate=25), steps=200, seed=443),
    sound("adadelta-at-a-rate-of-one", "MLP", "A rate of one is what Adadelta is meant to have.", lambda loop: loop.fit(
        split(*table(1280)), mlp(12, 64, 3), by(torch.optim.Adadelta, 1.0)), steps=300, seed=446),
    sound("norm-of-one-in-every-step", "CNN",
        "Gradients are clipped to a norm of one, which is most often active, at a rate chosen for that.",
        lambda loop: loop.fit(digits(), ConvNet(classes=10, norm=False), sgd(0.1, 0.9), clip=1.0), steps=250, seed=448),
    sound("random-features-under-a-head-that-learns", "MLP",
        "A wide first layer stays as it was drawn, on purpose, and a linear layer reads its features.",
        lambda loop: loop.fit(digits(flat=True), mlp(64, 400, 10), adam(3e-3),
        plant=lambda net: net[0].requires_grad_(False)), steps=300, seed=451),
    sound("three-tenths-of-smoothing", "CNN", "Smoothed labels keep the loss above one for good.",
        lambda loop: loop.fit(digits(), ConvNet(classes=10), adam(3e-3), loss=nn.CrossEntropyLoss(label_smoothing=0.3),
        validate=40), steps=220, seed=456),
    sound("noise-raised-step-by-step", "CNN",
        "A curriculum: noise on the images grows slowly, and so does the loss of training late in the run.",
        lambda loop: loop.fit(digits(), ConvNet(classes=10), adam(3e-3), change=lambda step, x,
        y: (x + 1.2 * step / loop.steps * torch.randn_like(x), y), validate=40), steps=320, seed=458),
    sound("seven-in-ten-units-dropped", "MLP",
        "A wide net with a dropout of 0.7: the loss of training stays above that of the validation.",
        lambda loop: loop.fit(digits(flat=True), nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.7),
        nn.Linear(512, 10)), adam(2e-3), validate=50), steps=400, seed=459),
    sound("catapult-in-the-first-steps", "MLP",
        "A brave rate throws the loss up for a few steps; it comes down by itself into a flatter valley.",
        lambda loop: loop.fit(digits(flat=True), mlp(64, 64, 10), sgd(0.35, 0.8), batch=64), steps=200, seed=461),
    sound("two-numbers-in-all", "line", "A slope and an intercept.", lambda loop: loop.fit(split((x := torch.randn(512,
        1)), 1.7 * x - 0.4 + 0.2 * torch.randn(512, 1)), nn.Linear(1, 1), sgd(0.1), loss=F.mse_loss, batch=16),
        steps=150, seed=463),
    sound("three-columns-and-two-classes", "logistic",
        "A logistic regression with four numbers, some labels of which are wrong.", lambda loop: loop.fit(
        split((x := torch.randn(1024, 3)), (x[:, 0] - 0.5 * x[:, 1] + 0.5 * torch.randn(1024) > 0).long()), nn.Linear(3,
        2), sgd(0.2, 0.9), batch=16, report=None), steps=200, seed=464),
    sound("several-labels-per-image", "CNN", "Ten yes-or-no questions about each image, most of them answered no.",
        lambda loop: loop.fit(digits(), ConvNet(classes=10), adam(5e-3), loss=lambda out,
        y: F.binary_cross_entropy_with_logits(out, F.one_hot(y, 10).float())), steps=220, seed=467),
)  # fmt: skip


@HELD_OUT.sound("GAN", steps=500, seed=481)
def two_moons_by_two_players(loop: Loop) -> float:
    """The usual game on two half circles; both losses wander around those of a tie."""
    generator, judge = mlp(4, 64, 64, 2), mlp(2, 64, 64, 1)
    of_generator, of_judge = (torch.optim.Adam(m.parameters(), 1e-3, betas=(0.5, 0.99)) for m in (generator, judge))

    def real(count: int) -> Tensor:
        side = torch.randint(2, (count,)) * 2.0 - 1
        angle = math.pi * torch.rand(count)
        points = torch.stack([angle.cos() + 0.5 * side, side * angle.sin()], 1)
        return points + 0.1 * torch.randn(count, 2)

    with loop.watch(nn.ModuleDict({"generator": generator, "judge": judge}), of_generator) as run:
        for _ in range(loop.steps):
            made = generator(torch.randn(64, 4))
            of_judge.zero_grad()
            verdict = (F.softplus(-judge(real(64))) + F.softplus(judge(made.detach()))).mean()
            verdict.backward()
            of_judge.step()
            of_generator.zero_grad()
            loss = F.softplus(-judge(made)).mean()
            loss.backward()
            of_generator.step()
            run.observe(loss=loss)
            run.log_metrics(d_loss=verdict.item())
    with torch.no_grad():
        return 1 - torch.cdist(generator(torch.randn(512, 4)), real(512)).amin(1).mean().item()


@HELD_OUT.sound("GAN", steps=500, seed=482)
def least_squares_between_three_clusters(loop: Loop) -> float:
    """Least squares in place of logarithms, on three clusters; neither loss falls for long."""
    centres = torch.tensor([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])
    generator, judge = mlp(4, 64, 64, 2), mlp(2, 64, 64, 1)
    of_generator, of_judge = adam(1e-3)(generator), adam(1e-3)(judge)

    def real(count: int) -> Tensor:
        return centres[torch.randint(3, (count,))] + 0.15 * torch.randn(count, 2)

    with loop.watch(nn.ModuleDict({"generator": generator, "judge": judge}), of_generator) as run:
        for _ in range(loop.steps):
            made = generator(torch.randn(64, 4))
            of_judge.zero_grad()
            ((judge(real(64)) - 1).square() + judge(made.detach()).square()).mean().backward()
            of_judge.step()
            of_generator.zero_grad()
            loss = (judge(made) - 1).square().mean()
            loss.backward()
            of_generator.step()
            run.observe(loss=loss)
    with torch.no_grad():
        made, true = generator(torch.randn(512, 4)), real(512)
        distances = torch.cdist(made, true)
        return 1 - distances.amin(1).mean().item() - distances.amin(0).mean().item()


@HELD_OUT.sound("RL", steps=400, seed=483)
def rewards_without_a_baseline(loop: Loop) -> float:
    """REINFORCE in its plainest form: the loss says little, and rises while the policy improves."""
    data, policy = moves(), mlp(6, 32, 4)
    stream = batches(data)

    def loss_of(step: int) -> Tensor:
        _, chance, reward = played(policy, *next(stream))
        return -(chance * reward).mean()

    descend(loop.watch, policy, adam(5e-3)(policy), loop.steps, loss_of)
    return accuracy(policy, data)


@HELD_OUT.sound("RL", steps=320, seed=484)
def four_clipped_passes_over_each_round(loop: Loop) -> float:
    """PPO: each round of play is used for four steps, and the ratio to the old policy is clipped."""
    data, policy = moves(), mlp(6, 32, 4)
    stream, kept = batches(data, 64), {}

    def loss_of(step: int) -> Tensor:
        if step % 4 == 0:
            x, best = next(stream)
            with torch.no_grad():
                chances = policy(x).log_softmax(1)
                move = (chances - (-torch.rand_like(chances).log()).log()).argmax(1, keepdim=True)
            reward = (move[:, 0] == best).float()
            kept.update(x=x, move=move, old=chances.gather(1, move)[:, 0], gain=reward - reward.mean())
        chances = policy(kept["x"]).log_softmax(1)
        ratio = (chances.gather(1, kept["move"])[:, 0] - kept["old"]).exp()
        gain = torch.minimum(ratio * kept["gain"], ratio.clamp(0.8, 1.2) * kept["gain"])
        return -gain.mean() - 0.01 * entropy(chances)

    descend(loop.watch, policy, adam(5e-3)(policy), loop.steps, loss_of)
    return accuracy(policy, data)


@HELD_OUT.sound("RL", steps=500, seed=485)
def corridor_with_a_slow_target(loop: Loop) -> float:
    """Q-learning on a corridor of eight places with a target network that follows slowly; the loss rises at first."""
    model, slow = mlp(8, 32, 2), mlp(8, 32, 2)
    slow.load_state_dict(model.state_dict())
    eye = torch.eye(8)

    def loss_of(step: int) -> Tensor:
        place, move = torch.randint(7, (64,)), torch.randint(2, (64,))
        after = (place + 2 * move - 1).clamp(0, 7)
        with torch.no_grad():
            goal = torch.where(after == 7, 1.0, 0.9 * slow(eye[after]).amax(1))
        return F.mse_loss(model(eye[place]).gather(1, move[:, None])[:, 0], goal)

    @torch.no_grad()
    def then(run: object, step: int) -> None:
        for late, early in zip(slow.parameters(), model.parameters()):
            late.lerp_(early, 0.05)

    descend(loop.watch, model, adam(5e-3)(model), loop.steps, loss_of, then=then)
    with torch.no_grad():
        right = 0.9 ** torch.arange(6, -1, -1.0)
        return 1 - (model(eye[:7])[:, 1] - right).abs().mean().item()


@HELD_OUT.sound("VAE", steps=360, seed=486)
def divergence_weighed_in_cycles(loop: Loop) -> float:
    """The weight of the divergence rises from zero to one three times, and the loss with it."""
    data, model = pictures(), VAE()
    stream = batches(data)

    def evidence(step: int) -> Tensor:
        x, _ = next(stream)
        logits, mean, log_variance = model(x)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        wrong = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean()
        return wrong + min(1.0, step % 120 / 60) * divergence

    descend(loop.watch, model, adam(3e-3)(model), loop.steps, evidence)
    with torch.no_grad():
        mean = model.mean(model.encoder(data.held_x))
        return or_minus_infinity(1 - F.mse_loss(model.decoder(mean).sigmoid(), data.held_x) / data.held_x.var(0).mean())


@HELD_OUT.sound("autoencoder", steps=350, seed=487)
def noise_taken_out_of_digits(loop: Loop) -> float:
    """A denoising autoencoder, whose loss cannot fall far."""
    data = digits(flat=True)
    data, model = Data(data.x, data.x, data.held_x, data.held_x), Autoencoder(64, code=16)
    return loop.fit(
        data, model, adam(3e-3), loss=F.mse_loss, change=lambda step, x, y: (x + 0.5 * torch.randn_like(x), y)
    )


@HELD_OUT.sound("VQ-VAE", steps=400, seed=488)
def sixteen_codes_with_straight_through(loop: Loop) -> float:
    """Codes are chosen from a table, and the gradient passes the choice straight through."""
    data = pictures()
    model = Quantised(data.x)
    loop.train(data, model, adam(3e-3), loss=lambda out, y: 100 * F.mse_loss(out, y) + model.commitment)
    return better_than_the_mean(model, data)


@HELD_OUT.sound("diffusion", steps=300, seed=489)
def picture_predicted_with_a_ceiling_on_weights(loop: Loop) -> float:
    """The clean picture is predicted, with weights of the ratio of signal to noise, at most five."""
    images, model = blob_images(1024, size=8)[0], Denoiser()

    def draw(chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        level = torch.rand(len(chosen))[:, None, None, None].clamp(0.01, 0.99)
        noisy = (1 - level).sqrt() * images[chosen] + level.sqrt() * torch.randn(len(chosen), 1, 8, 8)
        return noisy, 1000 * level.flatten(), ((1 - level) / level).clamp(max=5.0)

    def loss_of(step: int) -> Tensor:
        chosen = torch.randperm(768)[:32]
        noisy, time, weight = draw(chosen)
        return (weight * (model(noisy, time) - images[chosen]).square()).mean()

    descend(loop.watch, model, adam(3e-3)(model), loop.steps, loss_of, clip=1.0)
    with torch.no_grad():
        noisy, time, _ = draw(torch.arange(768, 1024))
        return 1 - F.mse_loss(model(noisy, time), images[768:]).item()


@HELD_OUT.sound("recommender", steps=400, seed=490)
def liked_above_not_liked(loop: Loop) -> float:
    """Pairwise ranking: for a user, a liked article is to score above another; the loss starts at log 2."""
    taste, kind = torch.randn(40, 3), torch.randn(30, 3)
    users, items = nn.Embedding(40, 8), nn.Embedding(30, 8)
    for table in (users, items):  # noqa: F402
        nn.init.normal_(table.weight, std=0.1)
    model = nn.ModuleDict({"readers": users, "articles": items})

    def margins(count: int) -> Tensor:
        user, one, other = torch.randint(40, (count,)), torch.randint(30, (count,)), torch.randint(30, (count,))
        better = (taste[user] * (kind[one] - kind[other])).sum(1).sign()
        return better * (users(user) * (items(one) - items(other))).sum(1)

    descend(loop.watch, model, adam(1e-2)(model), loop.steps, lambda step: -F.logsigmoid(margins(64)).mean())
    with torch.no_grad():
        return (margins(4096) > 0).float().mean().item()


@HELD_OUT.sound("two towers", steps=300, seed=491)
def other_rows_of_the_batch_as_negatives(loop: Loop) -> float:
    """Two towers for the two halves of an image are to find each other among 32; a temperature is learned."""
    data = digits(flat=True)
    model = nn.ModuleDict({"left": mlp(32, 64, 16), "right": mlp(32, 64, 16)})
    model.scale = nn.Parameter(torch.tensor(2.0))
    stream = batches(data)

    def scores(x: Tensor) -> Tensor:
        halves = F.normalize(model["left"](x[:, :32]), dim=1), F.normalize(model["right"](x[:, 32:]), dim=1)
        return model.scale.exp().clamp(max=100.0) * halves[0] @ halves[1].T

    def loss_of(step: int) -> Tensor:
        logits, right = scores(next(stream)[0]), torch.arange(32)
        return 0.5 * F.cross_entropy(logits, right) + 0.5 * F.cross_entropy(logits.T, right)

    descend(loop.watch, model, adam(3e-3)(model), loop.steps, loss_of)
    with torch.no_grad():
        return (scores(data.held_x[:32]).argmax(1) == torch.arange(32)).float().mean().item()


@HELD_OUT.sound("contrastive", steps=350, seed=492)
def triplets_with_a_margin(loop: Loop) -> float:
    """Anchor, one of the same class and one of another; more and more triplets have no loss at all."""
    data, model = digits(flat=True), mlp(64, 64, 16)
    stream = batches(data, 64)

    def loss_of(step: int) -> Tensor:
        x, y = next(stream)
        codes, same = F.normalize(model(x), dim=1), y[:, None] == y[None, :]
        friend = torch.where(same, torch.rand(64, 64), -1.0).argmax(1)
        stranger = torch.where(same, -1.0, torch.rand(64, 64)).argmax(1)
        return F.triplet_margin_loss(codes, codes[friend], codes[stranger], margin=0.3)

    descend(loop.watch, model, adam(3e-3)(model), loop.steps, loss_of)
    return likeness_of_held_out(model, data)


@HELD_OUT.sound("contrastive", steps=300, seed=493)
def views_apart_in_every_direction(loop: Loop) -> float:
    """Barlow Twins: the correlation of two views is to be the identity."""
    data, model = digits(flat=True), mlp(64, 64, 16)
    stream = batches(data, 128)

    def loss_of(step: int) -> Tensor:
        first, second = (model(x) for x in views(next(stream)[0]))
        first, second = ((code - code.mean(0)) / code.std(0) for code in (first, second))
        correlation = first.T @ second / 128
        apart = correlation - torch.eye(16)
        return (apart.diag().square().sum() + 0.05 * (apart - torch.diag(apart.diag())).square().sum()) / 16

    descend(loop.watch, model, adam(3e-3)(model), loop.steps, loss_of)
    return likeness_of_held_out(model, data)


@HELD_OUT.sound("experts", steps=400, seed=494)
def two_experts_and_a_soft_gate(loop: Loop) -> float:
    """Two small nets, weighed by a gate, share a target that jumps between two rules."""
    x = torch.randn(1536, 6)
    y = torch.where(x[:, :1] > 0, x[:, 1:2] - x[:, 2:3], x[:, 3:4] + 0.5 * x[:, 4:5].square())
    data = split(x, (y - y.mean()) / y.std())

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(6, 2)
            self.experts = nn.ModuleList(mlp(6, 16, 1) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return (self.gate(x).softmax(1) * torch.cat([expert(x) for expert in self.experts], 1)).sum(1, keepdim=True)

    model = Mixture()
    return loop.fit(data, model, adam(5e-3), loss=F.mse_loss)


@HELD_OUT.sound("ViT", steps=200, seed=495)
def teacher_that_follows_on_unlabelled_images(loop: Loop) -> float:
    """A mean teacher: few labels, many images without, and a weight of the agreement that rises."""
    data, model, teacher = split(*blob_images(1280)), ViT(depth=1), ViT(depth=1)
    teacher.load_state_dict(model.state_dict())
    labelled, stream = Data(data.x[:128], data.y[:128], data.held_x, data.held_y), batches(data, 32)
    few = batches(labelled, 32)

    def loss_of(step: int) -> Tensor:
        (x, y), (free, _) = next(few), next(stream)
        first, second = views(free, 0.2)
        with torch.no_grad():
            wanted = teacher(first).softmax(1)
        agreement = (model(second).softmax(1) - wanted).square().sum(1).mean()
        return F.cross_entropy(model(x), y) + min(1.0, step / 100) * agreement

    @torch.no_grad()
    def then(run: object, step: int) -> None:
        for slow, fast in zip(teacher.parameters(), model.parameters()):
            slow.lerp_(fast, 0.05)

    descend(loop.watch, model, adam(2e-3)(model), loop.steps, loss_of, then=then)
    return accuracy(model, data)


@HELD_OUT.sound("MLP", steps=240, seed=444)
def batch_that_grows_in_place_of_a_falling_rate(loop: Loop) -> float:
    """The batch doubles each sixty steps, from 8 to 64 samples, so that noise fades as under a falling rate."""
    data, model = digits(flat=True), mlp(64, 64, 10)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        size = 8 * 2 ** (step // 60)
        return x[:size], y[:size]

    return loop.fit(data, model, sgd(0.05, 0.9), batch=64, change=change)


@HELD_OUT.sound("GRU", steps=80, seed=445)
def micro_batches_divided_and_summed(loop: Loop) -> float:
    """Four micro-batches of 16 series for each step, each loss divided by four."""
    data = split(*waves(768))
    model = SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    optimizer, stream = adam(1e-2)(model), batches(data, 16)
    with loop.watch(model, optimizer) as run:
        for _ in range(loop.steps):
            optimizer.zero_grad(set_to_none=False)
            total = 0.0
            for x, y in (next(stream) for _ in range(4)):
                loss = F.cross_entropy(model(x), y) / 4
                loss.backward()
                total += loss.item()
            optimizer.step()
            run.observe(loss=total)
    return accuracy(model, data)


@HELD_OUT.sound("MLP", steps=120, seed=447)
def signs_of_the_whole_gradient(loop: Loop) -> float:
    """Rprop on all rows at once, which moves each weight by a length of its own."""
    data, model = curves(), mlp(8, 32, 1)
    optimizer = torch.optim.Rprop(model.parameters(), 1e-3)
    descend(loop.watch, model, optimizer, loop.steps, lambda step: F.mse_loss(model(data.x), data.y))
    return explained(model, data)


@HELD_OUT.sound("MLP", steps=400, seed=449)
def rate_cut_when_the_validation_waits(loop: Loop) -> float:
    """`ReduceLROnPlateau` on the loss of the validation halves the rate whenever it waits."""
    data, model = curves(noise=0.3), mlp(8, 32, 1)
    optimizer = adam(1e-2)(model)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=3, factor=0.5)
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            if (step + 1) % 20 == 0:
                log_validation(run, model, data, F.mse_loss)
                with torch.no_grad():
                    schedule.step(F.mse_loss(model(data.held_x), data.held_y))
    return explained(model, data)


@HELD_OUT.sound("ResNet", steps=120, seed=450)
def lower_half_frozen_and_the_rest_tuned(loop: Loop) -> float:
    """A net that knows five digits learns all ten; its stem and first block stay frozen, normalizers included."""
    data, model = digits(), ResNet(blocks=2, classes=10)
    known = data.y < 5
    teach = adam(3e-3)(model)
    pretrain(Data(data.x[known], data.y[known], data.held_x, data.held_y), model, teach, 120)
    model.head.reset_parameters()
    frozen = model.stem, model.blocks[0]
    for part in frozen:
        part.requires_grad_(False)
    model.train()
    for part in frozen:
        part.eval()
    return loop.fit(data, model, adam(2e-3), as_it_is=True)


@HELD_OUT.sound("CNN", steps=220, seed=452)
def body_and_head_with_rates_of_their_own(loop: Loop) -> float:
    """One optimizer for the body, with a tenth of the rate, and another for the head; both step."""
    data, model = digits(), ConvNet(classes=10)
    of_body, of_head = sgd(0.03, 0.9)(model.features), adam(1e-2)(model.head)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        of_head.zero_grad()
        return F.cross_entropy(model(x), y)

    return loop.fit(data, model, of_body, schedule=of_head, objective=objective)


@HELD_OUT.sound("MLP", steps=150, seed=453)
def resumed_near_the_end(loop: Loop) -> float:
    """A run goes on from a good checkpoint with a small rate; the loss starts low and stays there."""
    data, model = digits(flat=True), mlp(64, 64, 10)
    before = adam(3e-3)(model)
    pretrain(data, model, before, 250)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    optimizer.load_state_dict(before.state_dict())
    optimizer.param_groups[0]["lr"] = 5e-4
    return loop.fit(data, model, optimizer, validate=30)


@HELD_OUT.sound("ViT", steps=250, seed=454)
def average_kept_beside_and_evaluated(loop: Loop) -> float:
    """A copy follows the weights slowly, is evaluated, and never goes back into the model."""
    data, model = split(*blob_images(1280)), ViT(depth=2)
    average, optimizer = copy.deepcopy(model), adam(2e-3)(model)
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), model.parameters()):
                    slow.lerp_(fast, 0.05)
                if (step + 1) % 50 == 0:
                    run.log_metrics(val_accuracy=share_right(average(data.held_x), data.held_y))
    return accuracy(average, data)


@HELD_OUT.sound("BERT", steps=250, seed=455)
def autocast_to_bfloat16_in_an_encoder(loop: Loop) -> float:
    """The forward pass runs in bfloat16, the weights stay in float32."""
    data, model = split(*sentences(1280)), SentenceEncoder()
    optimizer = adam(2e-3)(model)
    stream = batches(data)

    def loss_of(step: int) -> Tensor:
        x, y = next(stream)
        with torch.autocast("cpu", torch.bfloat16):
            output = model(x)
        return F.cross_entropy(output.float(), y)

    descend(loop.watch, model, optimizer, loop.steps, loss_of)
    return accuracy(model, data)


@HELD_OUT.sound("MLP", steps=350, seed=457)
def bias_set_to_the_base_rate(loop: Loop) -> float:
    """Four in a hundred are positive, and the bias starts there: the loss is low from the first step on."""
    x = torch.randn(3072, 10)
    y = (x[:, 0] + x[:, 1] - x[:, 2] > 3.0).float()[:, None]
    data, model = split(x, y, held=1024), mlp(10, 32, 1)
    nn.init.constant_(model[-1].bias, math.log(0.04 / 0.96))
    loop.train(data, model, adam(5e-3), loss=F.binary_cross_entropy_with_logits, batch=128)
    with torch.no_grad():
        order = model(data.held_x)[:, 0].argsort(descending=True)
    positives = int(data.held_y.sum())
    return data.held_y[order[:positives], 0].mean().item()


@HELD_OUT.sound("linear", steps=400, seed=460)
def chain_of_linear_maps_from_a_small_start(loop: Loop) -> float:
    """Three linear layers that start small: the loss waits on a plateau before it falls."""
    x = torch.randn(1024, 6)
    data = split(x, x @ torch.randn(6, 3) / 2)
    model = nn.Sequential(nn.Linear(6, 12, bias=False), nn.Linear(12, 12, bias=False), nn.Linear(12, 3, bias=False))
    for layer in model:
        nn.init.normal_(layer.weight, std=0.06)
    return loop.fit(data, model, sgd(0.05, 0.9), loss=F.mse_loss)


@HELD_OUT.sound("MLP", steps=350, seed=462)
def heavy_tails_under_a_robust_loss(loop: Loop) -> float:
    """Targets have tails of a Student distribution, and Huber's loss takes them calmly."""
    data, model = curves(), mlp(8, 48, 1)
    tails = torch.distributions.StudentT(2.0)
    noisy = data._replace(y=data.y + 0.3 * tails.sample(data.y.shape))
    return loop.fit(noisy, model, adam(5e-3), loss=nn.HuberLoss(delta=0.5), judge=data)


@HELD_OUT.sound("MLP", steps=350, seed=465)
def counts_under_a_poisson_loss(loop: Loop) -> float:
    """Counts with a logarithmic link; the loss may fall below zero."""
    x = torch.randn(2048, 6)
    rate = (1.2 + 0.7 * x[:, :1] - 0.5 * x[:, 1:2] * x[:, 2:3].tanh()).exp()
    data, model = split(x, torch.poisson(rate)), mlp(6, 48, 1)
    loop.train(data, model, adam(3e-3), loss=nn.PoissonNLLLoss(log_input=True))
    return explained(nn.Sequential(model, _Exponential()), data)


@HELD_OUT.sound("MLP", steps=350, seed=466)
def three_quantiles_by_one_net(loop: Loop) -> float:
    """The pinball loss for a lower, a middle and an upper quantile."""
    data, model = curves(noise=0.3), mlp(8, 48, 3)
    levels = torch.tensor([0.1, 0.5, 0.9])
    loop.train(data, model, adam(5e-3), loss=lambda output, y: torch.maximum(levels * (y - output),
        (levels - 1) * (y - output)).mean())  # fmt: skip
    with torch.no_grad():
        low, _, high = model(data.held_x).unbind(1)
    inside = ((low < data.held_y[:, 0]) & (data.held_y[:, 0] < high)).float().mean().item()
    return 1 - abs(inside - 0.8)


@HELD_OUT.sound("SIREN", steps=400, seed=468)
def sine_waves_fit_one_picture(loop: Loop) -> float:
    """A net of sines learns one picture as a function of the place, from the same pixels in each step."""
    image = blob_images(4)[0][0, 0]
    axis = torch.linspace(-1, 1, 16)
    places = torch.cartesian_prod(axis, axis)

    class Sine(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(8 * x)

    model = mlp(2, 48, 48, 1, activation=Sine)
    for layer in (model[2], model[4]):
        nn.init.uniform_(layer.weight, -math.sqrt(6 / 48) / 8, math.sqrt(6 / 48) / 8)
    target = image.reshape(-1, 1)
    descend(loop.watch, model, adam(1e-3)(model), loop.steps, lambda step: F.mse_loss(model(places), target))
    with torch.no_grad():
        return (1 - F.mse_loss(model(places), target) / target.var(correction=0)).item()


@HELD_OUT.sound("ResNet", steps=220, seed=469)
def blocks_left_out_at_random(loop: Loop) -> float:
    """Stochastic depth: in each step one block in five is skipped, and its parameters get no gradient."""
    data, model = digits(), ResNet(blocks=3, classes=10)
    model.blocks = nn.Sequential(*(_Skipping(block, 0.2) for block in model.blocks))
    return loop.fit(data, model, adam(3e-3))


@HELD_OUT.sound("GNN", steps=120, seed=470)
def graph_with_dropout_and_decay(loop: Loop) -> float:
    """The usual recipe for a graph: all nodes in each step, a decay of 5e-4, half of the features dropped."""
    x, edges, y, train, rest = graph()
    model = GraphNet(edges)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-4)
    descend(loop.watch, model, optimizer, loop.steps, lambda step: F.cross_entropy(model(F.dropout(x, 0.5))[train],
        y[train]))  # fmt: skip
    return share_right(model(x)[rest], y[rest])


@HELD_OUT.sound("recommender", steps=400, seed=471)
def rare_articles_with_sparse_gradients(loop: Loop) -> float:
    """Embeddings with sparse gradients under SparseAdam: most rows stand still in most steps."""
    data = tastes()

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(40, 6, sparse=True), nn.Embedding(30, 6, sparse=True)

        def forward(self, pairs: Tensor) -> Tensor:
            return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)

    model = Product()
    optimizer = torch.optim.SparseAdam(list(model.parameters()), 3e-2)
    return loop.fit(data, model, optimizer, loss=F.mse_loss)


@HELD_OUT.sound("GPT", steps=300, seed=472)
def next_tokens_with_a_warm_up_and_decay(loop: Loop) -> float:
    """The usual recipe: AdamW with 0.1 of decay, beta2 of 0.95, warm-up, cosine, clipping at one."""
    ids = torch.randint(12, (1024, 1)) + 3 * torch.arange(17)
    ids = torch.where(torch.rand(ids.shape) < 0.1, torch.randint(12, ids.shape), ids % 12)
    data = split(ids[:, :-1], ids[:, 1:])
    model = GPT(vocabulary=12)
    return loop.fit(data, model, by(torch.optim.AdamW, 5e-3, betas=(0.9, 0.95), weight_decay=0.1), loss=over_tokens,
        schedule=by_step(lambda step: min(1.0,
        (step + 1) / 30) * (0.55 + 0.45 * math.cos(math.pi * step / loop.steps))), clip=1.0, validate=50)  # fmt: skip
