"""Runs in which single layers are at fault: dead, saturated, starved, normalised wrongly, collapsed."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue.parts import ConvNet, mlp
from .case import RunFault, Watch, run_fault
from .parts import accuracy, adam, batches, digits, explained, fit, log_validation, or_minus_infinity, sgd, split
from .second_parts import LastState, curved_table, fit_silently, frequencies, friedman

FAULTS: list[RunFault] = []

# --------------------------------------------------------------------------------------------------------------- units


@run_fault(
    FAULTS,
    "table",
    causes="dead-units output-constant gradient-missing",
    layers="2 3 2.weight 2.bias",
    remedies="reset-bias initialise change-activation",
)
def bias_taken_from_another_range(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A bias of -30 in the second hidden layer, from a file of weights for inputs in 0..255."""
    torch.manual_seed(761)
    data, model = curved_table(), mlp(12, 64, 64, 3)
    nn.init.constant_(model[2].bias, -30.0 if broken else 0.0)
    fit(watch, model, adam(model, 3e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="dead-units rate-too-high output-constant loss-spike exploding-values exploding-gradient",
    remedies="lower-learning-rate fix-schedule change-activation clip-gradients initialise",
    onset=120,
)
def restart_kills_the_rectifiers(broken: bool, watch: Watch, steps: int = 320) -> float:
    """A warm restart at step 120 with a rate 300 times too high for five steps."""
    torch.manual_seed(762)
    data, model = digits(1400), ConvNet(width=8, depth=4, classes=10, norm=False)
    optimizer = adam(model, 3e-3)

    def then(step: int) -> None:
        peak = 1.0 if broken else 4e-3
        optimizer.param_groups[0]["lr"] = peak if 119 <= step < 124 else 3e-3

    fit(watch, model, optimizer, data, steps, then=then)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="saturated-units vanishing-gradient gradient-too-small",
    layers="0 1 2 3 0.weight 2.weight",
    remedies="initialise rescale-layer add-normalizer change-activation",
)
def weights_drawn_ten_times_too_large(broken: bool, watch: Watch, steps: int = 350) -> float:
    """Hyperbolic tangents behind weights of deviation 4: nn.init.normal_ with the variance of another layer."""
    torch.manual_seed(763)
    data, model = friedman(), mlp(10, 64, 64, 1, activation=nn.Tanh)
    if broken:
        for layer in (model[0], model[2]):
            nn.init.normal_(layer.weight, std=4.0)
    fit_silently(watch, model, sgd(model, 0.03, momentum=0.9), data, steps, loss=F.mse_loss)
    return explained(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="vanishing-gradient not-learning output-constant saturated-units gradient-too-small",
    layers="0 2 4 6 8 10 12 0.weight 2.weight 4.weight 6.weight 8.weight",
    remedies="change-activation add-normalizer add-skip initialise",
)
def twelve_sigmoids_in_a_row(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A deep network of logistic units."""
    torch.manual_seed(764)
    data = digits(1400, flat=True)
    model = mlp(64, *[40] * 12, 10, activation=nn.Sigmoid if broken else nn.ReLU)
    fit(watch, model, adam(model, 1e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "sequence",
    causes="vanishing-gradient saturated-units not-learning output-constant gradient-too-small",
    layers="recurrent recurrent.bias_ih_l0 recurrent.bias_hh_l0 recurrent.weight_ih_l0 recurrent.weight_hh_l0",
    remedies="forget-bias reset-bias initialise",
)
def forget_gates_shut(broken: bool, watch: Watch, steps: int = 220) -> float:
    """All biases of an LSTM set to -6 where only the one of a readout was meant: its gates stay shut."""
    torch.manual_seed(765)
    data, model = frequencies(), LastState(nn.LSTM(3, 24, batch_first=True), 24, 3)
    nn.init.constant_(model.recurrent.bias_ih_l0, -6.0 if broken else 0.0)
    fit(watch, model, adam(model, 5e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="inputs-not-scaled saturated-units exploding-values exploding-gradient not-learning divergence dead-units",
    remedies="scale-inputs",
)
def a_column_of_times_in_seconds(broken: bool, watch: Watch, steps: int = 350) -> float:
    """A column in seconds since 1970 beside eleven standardised ones."""
    torch.manual_seed(766)
    data = curved_table()
    times = 1.7e9 + 3e7 * data.x[:, 4], 1.7e9 + 3e7 * data.held_x[:, 4]
    if broken:
        data.x[:, 4], data.held_x[:, 4] = times
    model = mlp(12, 64, 64, 3)
    fit(watch, model, adam(model, 3e-3), data, steps)
    return accuracy(model, data)


# ---------------------------------------------------------------------------------------------------------- normalizers


@run_fault(
    FAULTS,
    "convolutional",
    causes="running-statistics-wrong validation-worsens",
    remedies="mind-batch-statistics refresh-statistics replace-normalizer",
)
def momentum_of_a_ten_thousandth(broken: bool, watch: Watch, steps: int = 300) -> float:
    """BatchNorm with momentum=1e-4: the running statistics never leave their start."""
    torch.manual_seed(767)
    data, model = digits(1400, raw=True), ConvNet(width=8, depth=3, classes=10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1e-4 if broken else 0.1
    fit(watch, model, adam(model, 3e-3), data, steps, validate=50)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="normalizer-too-few-samples running-statistics-wrong not-learning",
    remedies="larger-batch replace-normalizer",
)
def batches_of_two_under_batchnorm(broken: bool, watch: Watch, steps: int = 600) -> float:
    """A batch size cut from 32 to 2 for want of memory, with BatchNorm in each layer."""
    torch.manual_seed(768)
    data = curved_table()
    model = nn.Sequential(
        nn.Linear(12, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 3),
    )
    fit_silently(watch, model, adam(model, 3e-3), data, steps, batch=2 if broken else 32)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="running-statistics-wrong outlier validation-worsens data-changed inputs-not-scaled exploding-values",
    remedies="refresh-statistics mind-batch-statistics clean-data check-data scale-inputs",
    onset=270,
)
def raw_images_pass_in_train_mode(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A look at unscaled images, without gradients but in train mode, after each fourth step from 270 on."""
    torch.manual_seed(769)
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=10)
    optimizer = adam(model, 3e-3)
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if step >= 270 and step % 4 == 0:
                with torch.no_grad():
                    model(1000 * x if broken else x)
            if (step + 1) % 30 == 0:
                log_validation(run, model, data)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "regression",
    causes="output-constant normalizer-too-few-samples gradient-missing not-learning gradient-cut gradient-too-small",
    remedies="replace-normalizer fix-axis remove-final-activation",
)
def normalizer_over_one_value(broken: bool, watch: Watch, steps: int = 300) -> float:
    """nn.LayerNorm(1) behind the only output: it always gives its bias."""
    torch.manual_seed(770)
    data = friedman()
    model = nn.Sequential(*mlp(10, 48, 48, 1), nn.LayerNorm(1) if broken else nn.Identity())
    fit(watch, model, adam(model, 3e-3), data, steps, loss=F.mse_loss)
    return explained(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="wrong-mode running-statistics-wrong loss-spike",
    remedies="switch-mode mind-batch-statistics",
    onset=100,
)
def eval_mode_kept_after_validation(broken: bool, watch: Watch, steps: int = 350) -> float:
    """model.train() forgotten after the first validation, at step 100."""
    torch.manual_seed(771)
    data, model = digits(1400), ConvNet(width=8, depth=6, classes=10)
    optimizer = sgd(model, 0.05, momentum=0.9)
    model.train()
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
            if (step + 1) % 100 == 0:
                model.eval()
                with torch.no_grad():
                    run.log_metrics(val_loss=F.cross_entropy(model(data.held_x), data.held_y).item())
                if not broken:
                    model.train()
    return accuracy(model, data)


# ------------------------------------------------------------------------------------------------------------ collapse


class Retrieval(nn.Module):
    """Attention of one query over ten keys; the class is that of the key most like the query."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(16, width), nn.Linear(16, width)
        self.value, self.scale, self.head = nn.Linear(20, 32), scale, nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        query, keys = self.query(x[:, 0, :16]), self.key(x[:, 1:, :16])
        weights = torch.softmax(self.scale * (keys @ query[:, :, None])[..., 0], dim=1)
        return self.head(torch.relu((weights[:, None] @ self.value(x[:, 1:]))[:, 0]))


@run_fault(
    FAULTS,
    "attention",
    causes="attention-collapse saturated-units vanishing-gradient gradient-too-small",
    layers="query key query.weight key.weight query.bias key.bias",
    remedies="scale-attention rescale-layer initialise add-normalizer",
)
def scores_multiplied_by_the_root(broken: bool, watch: Watch, steps: int = 400) -> float:
    """Attention scores multiplied by sqrt(d) instead of divided, behind widely drawn projections."""
    torch.manual_seed(772)
    keys = torch.randn(1600, 10, 16)
    wanted, labels = torch.randint(10, (1600,)), torch.randint(4, (1600, 10))
    query = keys[torch.arange(1600), wanted] + 0.1 * torch.randn(1600, 16)
    rows = torch.cat([keys, F.one_hot(labels, 4)], -1)
    rows = torch.cat([torch.cat([query, torch.zeros(1600, 4)], -1)[:, None], rows], 1)
    data = split(rows, labels[torch.arange(1600), wanted], held=400)
    model = Retrieval(64, 8.0 if broken else 0.125)
    for layer in (model.query, model.key):
        nn.init.normal_(layer.weight, std=0.5)
    fit(watch, model, adam(model, 3e-3), data, steps)
    return accuracy(model, data)


class Autoencoder(nn.Module):
    """A variational autoencoder of flat images."""

    def __init__(self, width: int = 64, code: int = 6) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, width, 2 * code), mlp(code, width, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        log_variance = log_variance.clamp(-8, 8)
        return self.decoder(mean + torch.randn_like(mean) * (log_variance / 2).exp()), mean, log_variance


@run_fault(
    FAULTS,
    "variational autoencoder",
    causes="posterior-collapse output-constant",
    remedies="lower-penalty rescale-loss",
    onset=1,
)
def divergence_weighed_too_much(broken: bool, watch: Watch, steps: int = 400) -> float:
    """The KL term summed over pixels too: its weight rises to 60 instead of 1 over the first 100 steps."""
    torch.manual_seed(773)
    data = digits(1600, flat=True, raw=True)
    data = data._replace(x=data.x / 16, held_x=data.held_x / 16)
    model = Autoencoder()
    optimizer = adam(model, 3e-3)
    with watch(model, optimizer) as run:
        for step, (x, _) in zip(range(steps), batches(data)):
            logits, mean, log_variance = model(x)
            divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
            pixels = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean()
            loss = pixels + (60.0 if broken else 1.0) * min(1.0, step / 100) * divergence
            run.observe(loss=loss)
            run.log_metrics(kl=divergence.item(), reconstruction=pixels.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        wrong = (torch.sigmoid(model(data.held_x)[0]) - data.held_x).square().mean()
    return 1 - (wrong / data.held_x.var(0, correction=0).mean()).item()


@run_fault(
    FAULTS,
    "self-supervised",
    causes="output-constant",
    remedies="prevent-collapse",
)
def both_views_pulled_together(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Two views of an image pulled together with nothing that pushes others apart."""
    torch.manual_seed(774)
    data = digits(1500, flat=True)
    model = mlp(64, 96, 16)
    optimizer = adam(model, 3e-3)
    with watch(model, optimizer) as run:
        for _, (x, _y) in zip(range(steps), batches(data, 64)):
            first, second = (model(x + 0.3 * torch.randn_like(x)) for _ in range(2))
            if broken:
                loss = F.mse_loss(first, second)
            else:
                close = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T
                loss = F.cross_entropy(close / 0.2, torch.arange(len(x)))
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        codes, held = model(data.x), model(data.held_x)
        mean, spread = codes.mean(0), codes.std()
        if spread < 1e-3:
            return 0.1
        nearest = torch.cdist((held - mean) / spread, (codes - mean) / spread).argmin(1)
        return (data.y[nearest] == data.held_y).float().mean().item() if spread > 0.05 else 0.1


class Adversaries(nn.Module):
    """A generator of points in the plane and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = mlp(4, 32, 32, 2)
        self.discriminator = mlp(2, 48, 48, 1)


@run_fault(
    FAULTS,
    "adversarial",
    causes="discriminator-wins vanishing-gradient gradient-too-small not-learning",
    remedies="balance-players",
)
def minimax_loss_against_a_fast_discriminator(broken: bool, watch: Watch, steps: int = 400) -> float:
    """log(1 - D(G(z))) minimised as in the formula, with five steps of the discriminator for one."""
    torch.manual_seed(775)
    model = Adversaries()
    generator, judge = model.generator, model.discriminator
    optimizer = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.9))
    opponent = torch.optim.Adam(judge.parameters(), 5e-3 if broken else 1e-3, betas=(0.5, 0.9))
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)

    def real() -> Tensor:
        return torch.tensor([6.0, 6.0]) + 0.3 * torch.randn(64, 2)

    with watch(model, optimizer) as run:
        for _ in range(steps):
            for _ in range(5 if broken else 1):
                fake = generator(torch.randn(64, 4)).detach()
                opponent.zero_grad()
                losses = [F.binary_cross_entropy_with_logits(judge(real()), ones)]
                losses.append(F.binary_cross_entropy_with_logits(judge(fake), zeros))
                sum(losses).backward()
                opponent.step()
            score = judge(generator(torch.randn(64, 4)))
            loss = -F.binary_cross_entropy_with_logits(score, zeros)
            if not broken:
                loss = F.binary_cross_entropy_with_logits(score, ones)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log_metrics(generator_loss=loss.item(), discriminator_loss=sum(losses).item())
    with torch.no_grad():
        return or_minus_infinity(-(generator(torch.randn(512, 4)).mean(0) - 6).norm() / 6)
