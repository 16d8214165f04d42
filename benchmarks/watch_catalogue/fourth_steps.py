"""Runs of the fourth part whose steps never happen, happen twice, or do not reach the parameters that are meant."""

import copy
import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue import parts as models
from .case import RunFault, Watch, run_fault
from .fourth_parts import DIVERGES, echoes, pictures, tastes
from .parts import accuracy, adam, batches, digits, explained, fit, sgd, split
from .third_parts import blobs, curves, rows, sentences, unreported, waves

FAULTS: list[RunFault] = []
plant = partial(run_fault, FAULTS)


# ----------------------------------------------------------------------------------------------- parameters left behind


@plant(
    "ResNet",
    causes="not-in-optimizer gradient-missing no-step not-learning",
    remedies="give-to-optimizer add-to-optimizer keep-weights call-step order-of-calls",
)
def checkpoint_assigned_after_the_optimizer(broken: bool, watch: Watch, steps: int = 150) -> float:
    """`load_state_dict(..., assign=True)` puts new parameters into the model, and the optimizer keeps the old ones."""
    torch.manual_seed(361)
    data, model = digits(), models.ResNet(blocks=2, classes=10)
    state, optimizer = copy.deepcopy(model.state_dict()), adam(model, 3e-3)
    model.load_state_dict(state, assign=broken)
    if broken:
        model.requires_grad_()
    fit(watch, model, optimizer, data, steps)
    return accuracy(model, data)


@plant(
    "MLP",
    causes="not-in-optimizer gradient-missing no-step not-learning",
    layers="0 2 4 0.parametrizations.weight 2.parametrizations.weight 4.parametrizations.weight "
    "0.parametrizations.weight.original0 0.parametrizations.weight.original1 2.parametrizations.weight.original0 "
    "2.parametrizations.weight.original1 4.parametrizations.weight.original0 4.parametrizations.weight.original1",
    remedies="give-to-optimizer add-to-optimizer",
)
def weight_norm_after_the_optimizer(broken: bool, watch: Watch, steps: int = 200) -> float:
    """Weights are split into length and direction after the optimizer took them, and only biases still learn."""
    torch.manual_seed(362)
    data, model = digits(flat=True), models.mlp(64, 48, 48, 10)
    before = adam(model, 3e-3)
    for layer in model[::2]:
        nn.utils.parametrizations.weight_norm(layer)
    fit(watch, model, before if broken else adam(model, 3e-3), data, steps)
    return accuracy(model, data)


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


@plant(
    "GRU",
    causes="not-in-optimizer",
    layers="recurrent recurrent.weight_ih_l0 recurrent.weight_hh_l0 recurrent.bias_ih_l0 recurrent.bias_hh_l0",
    remedies="give-to-optimizer add-to-optimizer order-of-calls",
)
def layer_built_in_the_first_call(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A layer takes its size from the first batch, and the optimizer was built before that."""
    torch.manual_seed(363)
    data, model = waves(768), _BuiltLate()
    if not broken:
        model(data.x[:1])
    fit(watch, model, adam(model, 1e-2), data, steps)
    return accuracy(model, data)


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


@plant(
    "MLP",
    causes="gradient-missing vanishing-gradient units-alike not-learning no-step dead-units layer-decayed",
    remedies="initialise",
)
def both_factors_of_the_adapter_at_zero(broken: bool, watch: Watch, steps: int = 250) -> float:
    """A low-rank adapter starts with both of its factors at zero, and neither ever gets a gradient."""
    torch.manual_seed(364)
    data, model = digits(flat=True), models.mlp(64, 64, 10)
    model = nn.Sequential(_Adapted(model[0], broken), nn.ReLU(), _Adapted(model[2], broken))
    fit(watch, model, adam(model, 1e-2), data, steps)
    return accuracy(model, data)


@plant(
    "recommender",
    causes="gradient-accumulates rate-too-high divergence exploding-gradient not-learning exploding-values loss-spike",
    remedies="order-of-calls lower-learning-rate clip-gradients",
)
def second_optimizer_is_never_cleared(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Two optimizers step, and `zero_grad` is called for one of them: the tower sums all its gradients."""
    torch.manual_seed(365)
    data, model = tastes(), models.Recommender()
    of_tower, stream = adam(model.tower, 5e-3), batches(data)
    of_tables = torch.optim.Adam([*model.users.parameters(), *model.items.parameters()], 1e-2)
    with watch(model, of_tower) as run:
        for _, (x, y) in zip(range(steps), stream):
            of_tables.zero_grad()
            if not broken:
                of_tower.zero_grad()
            loss = F.mse_loss(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            of_tables.step()
            of_tower.step()
    return explained(model, data)


@plant(
    "BERT",
    causes="gradient-accumulates " + DIVERGES,
    remedies="order-of-calls lower-learning-rate clip-gradients",
)
def average_is_cleared_in_place_of_the_model(broken: bool, watch: Watch, steps: int = 300) -> float:
    """`zero_grad` is called on the averaged copy that stands beside the model."""
    torch.manual_seed(366)
    data, model = sentences(), models.SentenceEncoder()
    average, optimizer = copy.deepcopy(model), adam(model, 2e-3)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            (average if broken else model).zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            run.observe(loss=loss)
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), model.parameters()):
                    slow.lerp_(fast, 0.05)
    return accuracy(model, data)


# --------------------------------------------------------------------------------------------------- when and how often


@plant(
    "ViT",
    causes="no-step not-learning steps-skipped",
    remedies="call-step order-of-calls",
)
def step_under_the_branch_of_the_best_loss(broken: bool, watch: Watch, steps: int = 250) -> float:
    """The step slid into the branch that saves the model when the loss of a batch is a record."""
    torch.manual_seed(367)
    data, model, best = blobs(), models.ViT(depth=2), math.inf
    optimizer = adam(model, 2e-3)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            if loss.item() < best or not broken:
                best = loss.item()
                optimizer.step()
    return accuracy(model, data)


@plant(
    "MLP",
    causes=DIVERGES + " dead-units",
    remedies="lower-learning-rate call-step order-of-calls lower-momentum clip-gradients",
)
def step_in_the_loop_and_in_a_callback(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A callback steps once more, five times for each batch, at a rate that bears one step."""
    torch.manual_seed(368)
    data, model = curves(), models.mlp(8, 48, 48, 1)
    optimizer = sgd(model, 0.06, 0.9)

    def then(step: int) -> None:
        for _ in range(4 if broken else 0):
            optimizer.step()

    fit(watch, model, optimizer, data, steps, loss=F.mse_loss, then=then)
    return explained(model, data)


@plant(
    "GAN",
    causes="gradient-missing no-step not-learning discriminator-wins",
    layers="generator generator.0 generator.2 generator.4 generator.0.weight generator.2.weight generator.4.weight "
    "generator.0.bias generator.2.bias generator.4.bias",
    remedies="order-of-calls call-step",
)
def generator_cleared_before_its_step(broken: bool, watch: Watch, steps: int = 300) -> float:
    """All gradients are cleared after the generator's backward pass, so that its step has nothing to go by."""
    torch.manual_seed(369)
    generator, judge = models.mlp(4, 48, 48, 2), models.mlp(2, 48, 1)
    of_generator, of_judge = adam(generator, 2e-3), adam(judge, 2e-3)

    def real(count: int) -> Tensor:
        return torch.tensor([1.5, -1.5]) + 0.3 * torch.randn(count, 2)

    with watch(nn.ModuleDict({"generator": generator, "judge": judge}), of_generator) as run:
        for _ in range(steps):
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


@plant(
    "RNN",
    causes=DIVERGES + " saturated-units",
    remedies="clip-gradients order-of-calls lower-learning-rate gated-recurrence initialise",
)
def clipped_before_the_backward_pass(broken: bool, watch: Watch, steps: int = 200) -> float:
    """`clip_grad_norm_` stands before `backward`, where there is nothing to clip yet."""
    torch.manual_seed(370)
    data = split(*models.remembered_series(768, steps=30))
    model = models.SequenceClassifier(nn.RNN(4, 32, nonlinearity="relu", batch_first=True), 4)
    with torch.no_grad():
        model.recurrent.weight_hh_l0.copy_(1.05 * torch.eye(32))
    optimizer = sgd(model, 0.1, 0.9)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
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


@plant(
    "CNN",
    causes=DIVERGES + " dead-units precision",
    remedies="check-scaler rescale-loss lower-learning-rate clip-gradients",
)
def stepped_without_the_scaler(broken: bool, watch: Watch, steps: int = 120) -> float:
    """The loss is scaled, and `optimizer.step()` is called where `scaler.step(optimizer)` was meant."""
    torch.manual_seed(371)
    data, model = digits(), models.ConvNet(classes=10, norm=False)
    optimizer, scaler = sgd(model, 0.05, 0.9), torch.amp.GradScaler("cpu", init_scale=2.0**12)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
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


@plant(
    "autoencoder",
    causes="rate-too-high divergence loss-spike not-learning exploding-values exploding-gradient "
    "dead-units output-constant",
    remedies="lower-learning-rate lower-momentum keep-weights",
)
def state_of_adam_lost_at_each_step(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The state of Adam is cleared in each step, so that every weight moves by the full rate each time."""
    torch.manual_seed(372)
    data, model = pictures(), models.Autoencoder()
    optimizer = adam(model, 1e-2)

    def then(step: int) -> None:
        if broken:
            optimizer.state.clear()

    fit(watch, model, optimizer, data, steps, loss=F.mse_loss, then=then)
    return explained(model, data)


@plant(
    "MLP",
    causes="sign-of-loss divergence exploding-values exploding-gradient rate-too-high not-finite",
    remedies="flip-sign minimise",
)
def maximize_left_on(broken: bool, watch: Watch, steps: int = 150) -> float:
    """`SGD(maximize=True)` was taken over from a script for policies."""
    torch.manual_seed(373)
    data, model = rows(), models.mlp(12, 48, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.2, maximize=broken)
    fit(watch, model, optimizer, data, steps)
    return accuracy(model, data)


# -------------------------------------------------------------------------------------------- weights taken or put back


@plant(
    "CNN",
    causes="divergence not-learning exploding-values sign-of-loss rate-too-high weights-put-back exploding-gradient",
    remedies="keep-weights restore-weights order-of-calls flip-sign lower-learning-rate",
)
def ascent_of_sharpness_not_taken_back(broken: bool, watch: Watch, steps: int = 150) -> float:
    """Sharpness-aware training moves the weights uphill for a second gradient, and forgets to move them back."""
    torch.manual_seed(374)
    data, model = digits(), models.ConvNet(classes=10, norm=False)
    optimizer = sgd(model, 0.05, 0.9)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
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


@plant(
    "GRU",
    causes="weights-put-back not-learning no-step",
    remedies="keep-weights flip-sign",
)
def best_state_by_the_wrong_comparison(broken: bool, watch: Watch, steps: int = 300) -> float:
    """After each twenty steps the best state is loaded again, and the best is the one with the largest loss."""
    torch.manual_seed(375)
    data = waves(768)
    model = models.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    best, state = -math.inf if broken else math.inf, copy.deepcopy(model.state_dict())

    def then(step: int) -> None:
        nonlocal best, state
        if step % 20 != 19:
            return
        with torch.no_grad():
            loss = F.cross_entropy(model(data.x[:128]), data.y[:128]).item()
        if (loss > best) if broken else (loss < 1.3 * best):
            best, state = loss, copy.deepcopy(model.state_dict())
        else:
            model.load_state_dict(state)

    fit(watch, model, adam(model, 5e-3), data, steps, then=then)
    return accuracy(model, data)


@plant(
    "MLP",
    causes="weights-put-back no-step not-learning precision rate-too-low",
    remedies="keep-weights raise-precision raise-learning-rate",
)
def weights_rounded_after_every_step(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Weights are rounded to a grid in place, which undoes every step smaller than half its width."""
    torch.manual_seed(376)
    data, model = digits(flat=True), models.mlp(64, 48, 48, 10)

    @torch.no_grad()
    def then(step: int) -> None:
        for parameter in model.parameters() if broken else ():
            parameter.copy_((parameter / 0.05).round() * 0.05)

    fit(watch, model, adam(model, 2e-3), data, steps, then=then)
    return accuracy(model, data)


class _Matched(nn.Module):
    """Ratings as products of two embeddings."""

    def __init__(self, limit: float | None) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(40, 8, max_norm=limit), nn.Embedding(30, 8, max_norm=limit)

    def forward(self, pairs: Tensor) -> Tensor:
        return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)


@plant(
    "recommender",
    causes="weights-put-back not-learning output-constant layer-decayed gradient-too-small vanishing-gradient",
    layers="users items users.weight items.weight",
    remedies="keep-weights rescale-layer initialise scale-outputs",
)
def embeddings_renormed_to_a_tenth(broken: bool, watch: Watch, steps: int = 400) -> float:
    """`max_norm=0.1` shortens both embeddings in every call, and their products are at most a hundredth."""
    torch.manual_seed(377)
    data, model = tastes(), _Matched(0.1 if broken else None)
    fit(watch, model, adam(model, 2e-2), data, steps, loss=F.mse_loss)
    return explained(model, data)


@plant(
    "GPT",
    causes="layer-decayed decay-too-strong not-learning gradient-missing gradient-cut output-constant "
    "vanishing-gradient",
    remedies="order-of-calls lower-penalty rescale-loss keep-gradient",
)
def only_the_penalty_is_sent_backward(broken: bool, watch: Watch, steps: int = 250) -> float:
    """`penalty.backward()` stands where `(loss + penalty).backward()` was meant."""
    torch.manual_seed(378)
    data, model = echoes(), models.GPT()
    optimizer = adam(model, 5e-3)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = models.over_tokens(model(x), y)
            penalty = 1e-4 * sum(parameter.square().sum() for parameter in model.parameters())
            (penalty if broken else loss + penalty).backward()
            run.observe(loss=loss)
            optimizer.step()
    return accuracy(model, data)


@plant(
    "table",
    causes="no-step not-learning rate-zero rate-too-low",
    remedies="call-step raise-learning-rate give-to-optimizer add-to-optimizer",
)
def group_of_all_weights_at_rate_zero(broken: bool, watch: Watch, steps: int = 250) -> float:
    """A group's own rate of zero, meant for a frozen phase, is never raised; only the biases have another."""
    torch.manual_seed(379)
    data, model = curves(), models.mlp(8, 48, 48, 1)
    weights = [p for p in model.parameters() if p.ndim == 2]
    biases = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": weights, "lr": 0.0 if broken else 5e-3}, {"params": biases}]
    fit(unreported(watch), model, torch.optim.Adam(groups, 5e-3), data, steps, loss=F.mse_loss)
    return explained(model, data)
