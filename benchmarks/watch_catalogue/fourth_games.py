"""Healthy runs of the fourth part with several players, views, codes or policies, whose losses wander or stay."""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue import parts as models
from .case import HealthyRun, Watch, healthy_run
from .fourth_parts import (
    Quantised,
    better_than_the_mean,
    descend,
    entropy,
    likeness,
    moves,
    pictures,
    played,
    tastes,
    views,
)
from .parts import Data, accuracy, adam, batches, digits, explained, fit, or_minus_infinity, split
from .third_parts import blobs

HEALTHY: list[HealthyRun] = []
healthy = partial(healthy_run, HEALTHY)


@healthy("GAN")
def two_moons_by_two_players(watch: Watch, steps: int = 500) -> float:
    """The usual game on two half circles; both losses wander around those of a tie."""
    torch.manual_seed(481)
    generator, judge = models.mlp(4, 64, 64, 2), models.mlp(2, 64, 64, 1)
    of_generator, of_judge = (torch.optim.Adam(m.parameters(), 1e-3, betas=(0.5, 0.99)) for m in (generator, judge))

    def real(count: int) -> Tensor:
        side = torch.randint(2, (count,)) * 2.0 - 1
        angle = math.pi * torch.rand(count)
        points = torch.stack([angle.cos() + 0.5 * side, side * angle.sin()], 1)
        return points + 0.1 * torch.randn(count, 2)

    with watch(nn.ModuleDict({"generator": generator, "judge": judge}), of_generator) as run:
        for _ in range(steps):
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


@healthy("GAN")
def least_squares_between_three_clusters(watch: Watch, steps: int = 500) -> float:
    """Least squares in place of logarithms, on three clusters; neither loss falls for long."""
    torch.manual_seed(482)
    centres = torch.tensor([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])
    generator, judge = models.mlp(4, 64, 64, 2), models.mlp(2, 64, 64, 1)
    of_generator, of_judge = adam(generator, 1e-3), adam(judge, 1e-3)

    def real(count: int) -> Tensor:
        return centres[torch.randint(3, (count,))] + 0.15 * torch.randn(count, 2)

    with watch(nn.ModuleDict({"generator": generator, "judge": judge}), of_generator) as run:
        for _ in range(steps):
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


@healthy("RL")
def rewards_without_a_baseline(watch: Watch, steps: int = 400) -> float:
    """REINFORCE in its plainest form: the loss says little, and rises while the policy improves."""
    torch.manual_seed(483)
    data, policy = moves(), models.mlp(6, 32, 4)
    stream = batches(data)

    def loss_of(step: int) -> Tensor:
        _, chance, reward = played(policy, *next(stream))
        return -(chance * reward).mean()

    descend(watch, policy, adam(policy, 5e-3), steps, loss_of)
    return accuracy(policy, data)


@healthy("RL")
def four_clipped_passes_over_each_round(watch: Watch, steps: int = 320) -> float:
    """PPO: each round of play is used for four steps, and the ratio to the old policy is clipped."""
    torch.manual_seed(484)
    data, policy = moves(), models.mlp(6, 32, 4)
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

    descend(watch, policy, adam(policy, 5e-3), steps, loss_of)
    return accuracy(policy, data)


@healthy("RL")
def corridor_with_a_slow_target(watch: Watch, steps: int = 500) -> float:
    """Q-learning on a corridor of eight places with a target network that follows slowly; the loss rises at first."""
    torch.manual_seed(485)
    model, slow = models.mlp(8, 32, 2), models.mlp(8, 32, 2)
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

    descend(watch, model, adam(model, 5e-3), steps, loss_of, then=then)
    with torch.no_grad():
        right = 0.9 ** torch.arange(6, -1, -1.0)
        return 1 - (model(eye[:7])[:, 1] - right).abs().mean().item()


@healthy("VAE")
def divergence_weighed_in_cycles(watch: Watch, steps: int = 360) -> float:
    """The weight of the divergence rises from zero to one three times, and the loss with it."""
    torch.manual_seed(486)
    data, model = pictures(), models.VAE()
    stream = batches(data)

    def evidence(step: int) -> Tensor:
        x, _ = next(stream)
        logits, mean, log_variance = model(x)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        wrong = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean()
        return wrong + min(1.0, step % 120 / 60) * divergence

    descend(watch, model, adam(model, 3e-3), steps, evidence)
    with torch.no_grad():
        mean = model.mean(model.encoder(data.held_x))
        return or_minus_infinity(1 - F.mse_loss(model.decoder(mean).sigmoid(), data.held_x) / data.held_x.var(0).mean())


@healthy("autoencoder")
def noise_taken_out_of_digits(watch: Watch, steps: int = 350) -> float:
    """A denoising autoencoder, whose loss cannot fall far."""
    torch.manual_seed(487)
    data = digits(flat=True)
    data, model = Data(data.x, data.x, data.held_x, data.held_x), models.Autoencoder(64, code=16)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + 0.5 * torch.randn_like(x), y

    fit(watch, model, adam(model, 3e-3), data, steps, loss=F.mse_loss, change=change)
    return explained(model, data)


@healthy("VQ-VAE")
def sixteen_codes_with_straight_through(watch: Watch, steps: int = 400) -> float:
    """Codes are chosen from a table, and the gradient passes the choice straight through."""
    torch.manual_seed(488)
    data = pictures()
    model = Quantised(data.x)
    fit(watch, model, adam(model, 3e-3), data, steps, loss=lambda out, y: 100 * F.mse_loss(out, y) + model.commitment)
    return better_than_the_mean(model, data)


@healthy("diffusion")
def picture_predicted_with_a_ceiling_on_weights(watch: Watch, steps: int = 300) -> float:
    """The clean picture is predicted, with weights of the ratio of signal to noise, at most five."""
    torch.manual_seed(489)
    images, model = models.blob_images(1024, size=8)[0], models.Denoiser()

    def draw(chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        level = torch.rand(len(chosen))[:, None, None, None].clamp(0.01, 0.99)
        noisy = (1 - level).sqrt() * images[chosen] + level.sqrt() * torch.randn(len(chosen), 1, 8, 8)
        return noisy, 1000 * level.flatten(), ((1 - level) / level).clamp(max=5.0)

    def loss_of(step: int) -> Tensor:
        chosen = torch.randperm(768)[:32]
        noisy, time, weight = draw(chosen)
        return (weight * (model(noisy, time) - images[chosen]).square()).mean()

    descend(watch, model, adam(model, 3e-3), steps, loss_of, clip=1.0)
    with torch.no_grad():
        noisy, time, _ = draw(torch.arange(768, 1024))
        return 1 - F.mse_loss(model(noisy, time), images[768:]).item()


@healthy("recommender")
def liked_above_not_liked(watch: Watch, steps: int = 400) -> float:
    """Pairwise ranking: for a user, a liked article is to score above another; the loss starts at log 2."""
    torch.manual_seed(490)
    taste, kind = torch.randn(40, 3), torch.randn(30, 3)
    users, items = nn.Embedding(40, 8), nn.Embedding(30, 8)
    for table in (users, items):
        nn.init.normal_(table.weight, std=0.1)
    model = nn.ModuleDict({"readers": users, "articles": items})

    def margins(count: int) -> Tensor:
        user, one, other = torch.randint(40, (count,)), torch.randint(30, (count,)), torch.randint(30, (count,))
        better = (taste[user] * (kind[one] - kind[other])).sum(1).sign()
        return better * (users(user) * (items(one) - items(other))).sum(1)

    descend(watch, model, adam(model, 1e-2), steps, lambda step: -F.logsigmoid(margins(64)).mean())
    with torch.no_grad():
        return (margins(4096) > 0).float().mean().item()


@healthy("two towers")
def other_rows_of_the_batch_as_negatives(watch: Watch, steps: int = 300) -> float:
    """Two towers for the two halves of an image are to find each other among 32; a temperature is learned."""
    torch.manual_seed(491)
    data = digits(flat=True)
    model = nn.ModuleDict({"left": models.mlp(32, 64, 16), "right": models.mlp(32, 64, 16)})
    model.scale = nn.Parameter(torch.tensor(2.0))
    stream = batches(data)

    def scores(x: Tensor) -> Tensor:
        halves = F.normalize(model["left"](x[:, :32]), dim=1), F.normalize(model["right"](x[:, 32:]), dim=1)
        return model.scale.exp().clamp(max=100.0) * halves[0] @ halves[1].T

    def loss_of(step: int) -> Tensor:
        logits, right = scores(next(stream)[0]), torch.arange(32)
        return 0.5 * F.cross_entropy(logits, right) + 0.5 * F.cross_entropy(logits.T, right)

    descend(watch, model, adam(model, 3e-3), steps, loss_of)
    with torch.no_grad():
        return (scores(data.held_x[:32]).argmax(1) == torch.arange(32)).float().mean().item()


@healthy("contrastive")
def triplets_with_a_margin(watch: Watch, steps: int = 350) -> float:
    """Anchor, one of the same class and one of another; more and more triplets have no loss at all."""
    torch.manual_seed(492)
    data, model = digits(flat=True), models.mlp(64, 64, 16)
    stream = batches(data, 64)

    def loss_of(step: int) -> Tensor:
        x, y = next(stream)
        codes, same = F.normalize(model(x), dim=1), y[:, None] == y[None, :]
        friend = torch.where(same, torch.rand(64, 64), -1.0).argmax(1)
        stranger = torch.where(same, -1.0, torch.rand(64, 64)).argmax(1)
        return F.triplet_margin_loss(codes, codes[friend], codes[stranger], margin=0.3)

    descend(watch, model, adam(model, 3e-3), steps, loss_of)
    return likeness(model, data)


@healthy("contrastive")
def views_apart_in_every_direction(watch: Watch, steps: int = 300) -> float:
    """Barlow Twins: the correlation of two views is to be the identity."""
    torch.manual_seed(493)
    data, model = digits(flat=True), models.mlp(64, 64, 16)
    stream = batches(data, 128)

    def loss_of(step: int) -> Tensor:
        first, second = (model(x) for x in views(next(stream)[0]))
        first, second = ((code - code.mean(0)) / code.std(0) for code in (first, second))
        correlation = first.T @ second / 128
        apart = correlation - torch.eye(16)
        return (apart.diag().square().sum() + 0.05 * (apart - torch.diag(apart.diag())).square().sum()) / 16

    descend(watch, model, adam(model, 3e-3), steps, loss_of)
    return likeness(model, data)


@healthy("experts")
def two_experts_and_a_soft_gate(watch: Watch, steps: int = 400) -> float:
    """Two small nets, weighed by a gate, share a target that jumps between two rules."""
    torch.manual_seed(494)
    x = torch.randn(1536, 6)
    y = torch.where(x[:, :1] > 0, x[:, 1:2] - x[:, 2:3], x[:, 3:4] + 0.5 * x[:, 4:5].square())
    data = split(x, (y - y.mean()) / y.std())

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(6, 2)
            self.experts = nn.ModuleList(models.mlp(6, 16, 1) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return (self.gate(x).softmax(1) * torch.cat([expert(x) for expert in self.experts], 1)).sum(1, keepdim=True)

    model = Mixture()
    fit(watch, model, adam(model, 5e-3), data, steps, loss=F.mse_loss)
    return explained(model, data)


@healthy("ViT")
def teacher_that_follows_on_unlabelled_images(watch: Watch, steps: int = 200) -> float:
    """A mean teacher: few labels, many images without, and a weight of the agreement that rises."""
    torch.manual_seed(495)
    data, model, teacher = blobs(), models.ViT(depth=1), models.ViT(depth=1)
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

    descend(watch, model, adam(model, 2e-3), steps, loss_of, then=then)
    return accuracy(model, data)


@healthy("recommender")
def ratings_with_a_strong_decay_that_helps(watch: Watch, steps: int = 400) -> float:
    """AdamW with a decay of 0.5 keeps a net on few ratings from learning them by heart."""
    torch.manual_seed(496)
    data, model = tastes(), models.Recommender(width=16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.5)
    fit(watch, model, optimizer, data, steps, loss=F.mse_loss, validate=50)
    return explained(model, data)
