"""Runs in which gradients or steps do not reach some layers, or none."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data import blob_images, sentences, waves
from ...networks import GPT, VAE, Recommender, ResNet, SentenceEncoder, TransformerBlock, ViT, mlp
from ...training import evidence_loss, over_tokens
from ..case import HELD_OUT, fault
from ..data import batches, curves, digits, split
from ..loops import Loop, accuracy, adam, explained, or_minus_infinity, sgd
from .parts import echoes, pictures, tastes


class _NoSkip(nn.Module):
    """The block of a transformer whose two additions were lost."""

    def __init__(self, block: TransformerBlock) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        x = self.block.attention(self.block.norm1(x))
        return self.block.feed(self.block.norm2(x))


class _BuiltLate(nn.Module):
    """A recurrent network that builds the layer it reads with in its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = None
        self.head = nn.Linear(16, 3)

    def forward(self, series: Tensor) -> Tensor:
        if self.recurrent is None:
            self.recurrent = nn.GRU(series.shape[-1], 16, batch_first=True)
        return self.head(self.recurrent(series)[0][:, -1])


class _Adapted(nn.Module):
    """A frozen linear layer and a product of two narrow ones that learns."""

    def __init__(self, base: nn.Linear, both_at_zero: bool) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, 6, bias=False), nn.Linear(6, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        if both_at_zero:
            nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


HELD_OUT.add(
    fault("both-factors-of-the-adapter-at-zero", "MLP",
        "gradient-missing vanishing-gradient units-alike not-learning no-step dead-units layer-decayed", "initialise",
        "A low-rank adapter starts with both of its factors at zero, and neither ever gets a gradient.", lambda broken,
        loop: loop.fit(digits(flat=True), nn.Sequential(_Adapted((model := mlp(64, 64, 10))[0], broken), nn.ReLU(),
        _Adapted(model[2], broken)), adam(1e-2)), steps=250, seed=364),
    fault("group-of-all-weights-at-rate-zero", "table", "no-step not-learning rate-zero rate-too-low",
        "call-step raise-learning-rate give-to-optimizer add-to-optimizer",
        "A group's own rate of zero, meant for a frozen phase, is never raised; only the biases have another.",
        lambda broken, loop: loop.fit(curves(), (model := mlp(8, 48, 48, 1)),
        torch.optim.Adam([{"params": [p for p in model.parameters() if p.ndim == 2], "lr": 0.0 if broken else 5e-3},
        {"params": [p for p in model.parameters() if p.ndim == 1]}], 5e-3), loss=F.mse_loss, report=None), steps=250,
        seed=379),
)  # fmt: skip


@HELD_OUT.fault("MLP", "vanishing-gradient output-constant not-learning gradient-too-small",
    "lower-eps replace-normalizer", steps=250, seed=393)  # fmt: skip
def epsilon_of_ten_thousand(broken: bool, loop: Loop) -> float:
    """`LayerNorm(eps=1e4)`, a lost minus: each of five normalizers divides by a hundred."""
    data, layers = digits(flat=True), []
    for inner in (64, 48, 48, 48, 48):
        layers += [nn.Linear(inner, 48), nn.LayerNorm(48, eps=1e4 if broken else 1e-4), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(48, 10))
    return loop.fit(data, model, sgd(0.05, 0.9))


@HELD_OUT.fault("VAE", "gradient-cut posterior-collapse vanishing-gradient gradient-too-small",
    "keep-gradient lower-penalty", layers="encoder encoder.0 mean log_variance", steps=300, seed=346)  # fmt: skip
def codes_drawn_by_a_generator(broken: bool, loop: Loop) -> float:
    """Codes come from `torch.normal`, through which the reconstruction sends no gradient to the encoder."""
    data, model = pictures(), VAE()
    if broken:
        model.draw = lambda mean, log_variance: torch.normal(mean.detach(), torch.exp(0.5 * log_variance.detach()))
    loop.train(data, model, adam(3e-3), loss=evidence_loss)
    with torch.no_grad():
        mean = model.mean(model.encoder(data.held_x))
        return or_minus_infinity(1 - F.mse_loss(model.decoder(mean).sigmoid(), data.held_x) / data.held_x.var(0).mean())


@HELD_OUT.fault("GPT", "vanishing-gradient output-constant not-learning", "add-skip initialise", steps=180, seed=348)
def blocks_that_lost_their_skips(broken: bool, loop: Loop) -> float:
    """In a rewrite `x = x + attention(...)` became `x = attention(...)` in four blocks."""
    data, model = echoes(), GPT(depth=4, tied=False)
    if broken:
        model.blocks = nn.ModuleList(_NoSkip(block) for block in model.blocks)
    return loop.fit(data, model, adam(3e-3), loss=over_tokens)


@HELD_OUT.fault("table", "frozen-layer gradient-missing gradient-cut no-step vanishing-gradient",
    "unfreeze keep-gradient", layers="0 0.weight 0.bias 2 2.weight 2.bias", steps=300, seed=356)  # fmt: skip
def grid_features_without_gradient(broken: bool, loop: Loop) -> float:
    """The narrow first layers run under `no_grad` to save memory, and stay as they were drawn."""
    data, model = curves(), mlp(8, 6, 6, 32, 1)
    plain = model.forward

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            x = model[:4](x)
        return model[4:](x)

    model.forward = forward if broken else plain
    return loop.fit(data, model, adam(1e-2), loss=F.mse_loss)


@HELD_OUT.fault("ResNet", "not-in-optimizer gradient-missing no-step not-learning",
    "give-to-optimizer add-to-optimizer keep-weights call-step order-of-calls", steps=150, seed=361)  # fmt: skip
def checkpoint_assigned_after_the_optimizer(broken: bool, loop: Loop) -> float:
    """`load_state_dict(..., assign=True)` puts new parameters into the model, and the optimizer keeps the old ones."""
    data, model = digits(), ResNet(blocks=2, classes=10)
    state = copy.deepcopy(model.state_dict())
    model.load_state_dict(state, assign=broken)
    if broken:
        model.requires_grad_()
    return loop.fit(data, model, adam(3e-3))


@HELD_OUT.fault("MLP", "not-in-optimizer gradient-missing no-step not-learning", "give-to-optimizer add-to-optimizer",
    layers="0 2 4 0.parametrizations.weight 2.parametrizations.weight 4.parametrizations.weight "
    "0.parametrizations.weight.original0 0.parametrizations.weight.original1 2.parametrizations.weight.original0 "
    "2.parametrizations.weight.original1 4.parametrizations.weight.original0 4.parametrizations.weight.original1",
    steps=200, seed=362)  # fmt: skip
def weight_norm_after_the_optimizer(broken: bool, loop: Loop) -> float:
    """Weights are split into length and direction after the optimizer took them, and only biases still learn."""
    data, model = digits(flat=True), mlp(64, 48, 48, 10)
    before = adam(3e-3)(model)
    for layer in model[::2]:
        nn.utils.parametrizations.weight_norm(layer)
    return loop.fit(data, model, before if broken else adam(3e-3)(model))


@HELD_OUT.fault("GRU", "not-in-optimizer", "give-to-optimizer add-to-optimizer order-of-calls",
    layers="recurrent recurrent.weight_ih_l0 recurrent.weight_hh_l0 recurrent.bias_ih_l0 recurrent.bias_hh_l0",
    steps=200, seed=363)  # fmt: skip
def layer_built_in_the_first_call(broken: bool, loop: Loop) -> float:
    """A layer takes its size from the first batch, and the optimizer was built before that."""
    data, model = split(*waves(768)), _BuiltLate()
    if not broken:
        model(data.x[:1])
    return loop.fit(data, model, adam(1e-2))


@HELD_OUT.fault("recommender",
    "gradient-accumulates rate-too-high divergence exploding-gradient not-learning exploding-values loss-spike",
    "order-of-calls lower-learning-rate clip-gradients", steps=300, seed=365)  # fmt: skip
def second_optimizer_is_never_cleared(broken: bool, loop: Loop) -> float:
    """Two optimizers step, and `zero_grad` is called for one of them: the tower sums all its gradients."""
    data, model = tastes(), Recommender()
    of_tower, stream = adam(5e-3)(model.tower), batches(data)
    of_tables = torch.optim.Adam([*model.users.parameters(), *model.items.parameters()], 1e-2)
    with loop.watch(model, of_tower) as run:
        for _, (x, y) in zip(range(loop.steps), stream):
            of_tables.zero_grad()
            if not broken:
                of_tower.zero_grad()
            loss = F.mse_loss(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            of_tables.step()
            of_tower.step()
    return explained(model, data)


@HELD_OUT.fault("BERT",
    "gradient-accumulates rate-too-high divergence exploding-gradient exploding-values not-finite loss-spike "
    "not-learning", "order-of-calls lower-learning-rate clip-gradients", steps=300, seed=366)  # fmt: skip
def average_is_cleared_in_place_of_the_model(broken: bool, loop: Loop) -> float:
    """`zero_grad` is called on the averaged copy that stands beside the model."""
    data, model = split(*sentences(1280)), SentenceEncoder()
    average, optimizer = copy.deepcopy(model), adam(2e-3)(model)
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            (average if broken else model).zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            run.observe(loss=loss)
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), model.parameters()):
                    slow.lerp_(fast, 0.05)
    return accuracy(model, data)


@HELD_OUT.fault("ViT", "no-step not-learning steps-skipped", "call-step order-of-calls", steps=250, seed=367)
def step_under_the_branch_of_the_best_loss(broken: bool, loop: Loop) -> float:
    """The step slid into the branch that saves the model when the loss of a batch is a record."""
    data, model, best = split(*blob_images(1280)), ViT(depth=2), math.inf
    optimizer = adam(2e-3)(model)
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            if loss.item() < best or not broken:
                best = loss.item()
                optimizer.step()
    return accuracy(model, data)


@HELD_OUT.fault("GAN", "gradient-missing no-step not-learning discriminator-wins", "order-of-calls call-step",
    layers="generator generator.0 generator.2 generator.4 generator.0.weight generator.2.weight generator.4.weight "
    "generator.0.bias generator.2.bias generator.4.bias", steps=300, seed=369)  # fmt: skip
def generator_cleared_before_its_step(broken: bool, loop: Loop) -> float:
    """All gradients are cleared after the generator's backward pass, so that its step has nothing to go by."""
    generator, judge = mlp(4, 48, 48, 2), mlp(2, 48, 1)
    of_generator, of_judge = adam(2e-3)(generator), adam(2e-3)(judge)

    def real(count: int) -> Tensor:
        return torch.tensor([1.5, -1.5]) + 0.3 * torch.randn(count, 2)

    with loop.watch(nn.ModuleDict({"generator": generator, "judge": judge}), of_generator) as run:
        for _ in range(loop.steps):
            made = generator(torch.randn(64, 4))
            of_judge.zero_grad()
            (F.softplus(-judge(real(64))) + F.softplus(judge(made.detach()))).mean().backward()
            of_judge.step()
            of_generator.zero_grad()
            loss = F.softplus(-judge(made)).mean()
            loss.backward()
            if broken:
                of_generator.zero_grad()
            of_generator.step()
            run.observe(loss=loss)
    with torch.no_grad():
        return -torch.cdist(generator(torch.randn(256, 4)), real(256)).amin(1).mean().item()
