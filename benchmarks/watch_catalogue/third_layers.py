"""Runs in which a layer or what a layer computes goes wrong."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue import parts as models
from .case import RunFault, Watch, run_fault
from .parts import accuracy, adam, batches, digits, explained, fit, log_validation, sgd, split
from .third_parts import blobs, curves, rows, sentences, unreported

FAULTS: list[RunFault] = []


@run_fault(
    FAULTS,
    "regression",
    causes="dead-units output-constant gradient-missing not-learning saturated-units vanishing-gradient",
    remedies="remove-final-activation change-output-activation change-activation scale-targets reset-bias",
)
def rectifier_after_the_last_layer(broken: bool, watch: Watch, steps: int = 250) -> float:
    """A loop that adds a ReLU after every layer adds one after the last, and most targets are negative."""
    torch.manual_seed(91)
    data = curves()
    data = data._replace(y=data.y - 2, held_y=data.held_y - 2)
    model = models.mlp(8, 48, 48, 1)
    if broken:
        model.append(nn.ReLU())
    fit(unreported(watch), model, adam(model, 3e-3), data, steps, loss=F.mse_loss)
    return explained(model, data)


@run_fault(
    FAULTS,
    "reinforcement",
    causes="saturated-units inputs-not-scaled data-changed vanishing-gradient exploding-values",
    remedies="scale-inputs check-data",
    onset=150,
)
def observations_in_millimetres(broken: bool, watch: Watch, steps: int = 350) -> float:
    """From step 150 on the logs come from a simulator that writes millimetres where there were metres."""
    torch.manual_seed(92)
    data, model = curves(), models.mlp(8, 64, 64, 1, activation=nn.Tanh)

    def other_simulator(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (1000 * x if broken and step >= 150 else x), y

    fit(unreported(watch), model, adam(model, 5e-3), data, steps, loss=F.mse_loss, change=other_simulator)
    return explained(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="vanishing-gradient gradient-too-small output-constant not-learning",
    remedies="initialise add-skip add-normalizer fewer-layers",
)
def thirty_plain_layers(broken: bool, watch: Watch, steps: int = 200) -> float:
    """Thirty linear layers with ReLU and torch's own initialisation, which shrinks at each layer."""
    torch.manual_seed(93)
    data = digits(flat=True)
    depth = 30 if broken else 3
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(32, 32), nn.ReLU())]
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), *hidden, nn.Linear(32, 10))
    fit(unreported(watch), model, adam(model, 1e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "sequence",
    causes="vanishing-gradient not-learning gradient-too-small saturated-units",
    remedies="gated-recurrence initialise add-skip change-architecture",
)
def plain_recurrence_over_eighty_steps(broken: bool, watch: Watch, steps: int = 250) -> float:
    """What decides stands in the first three of eighty steps, and an `nn.RNN` forgets it."""
    torch.manual_seed(94)
    data = split(*models.remembered_series(1024, 80))
    kind = nn.RNN if broken else nn.GRU
    model = models.SequenceClassifier(kind(4, 24, batch_first=True), 4)
    if not broken:
        with torch.no_grad():
            model.recurrent.bias_hh_l0[24:48] = 3.0
    fit(watch, model, adam(model, 4e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="wrong-mode",
    remedies="switch-mode",
    onset=50,
)
def validation_with_dropout_on(broken: bool, watch: Watch, steps: int = 300) -> float:
    """`model.eval()` is missing before the validation: half of the units are off when the figures are taken."""
    torch.manual_seed(95)
    data = digits(flat=True)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.6), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.6), nn.Linear(32, 10)
    )
    optimizer, reported = adam(model, 2e-3), 0.0
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
            if (step + 1) % 50 == 0:
                model.train(broken)
                with torch.no_grad():
                    reported = (model(data.held_x).argmax(1) == data.held_y).float().mean().item()
                run.log_metrics(val_accuracy=reported)
                model.train()
    return reported


_NORMS = "features.1 features.4 features.8 features.11"


@run_fault(
    FAULTS,
    "convolutional",
    causes="running-statistics-wrong not-finite not-finite-data",
    layers=f"{_NORMS} features.1.running_mean features.0 head",
    remedies="clean-data check-data refresh-statistics mind-batch-statistics",
    onset=100,
)
def skipped_batch_stays_in_the_statistics(broken: bool, watch: Watch, steps: int = 220) -> float:
    """A batch with NaN is skipped by a test of the loss, but BatchNorm has taken it into its running mean."""
    torch.manual_seed(96)
    data, model = blobs(), models.ConvNet()
    optimizer = adam(model, 2e-3)
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            if step == 100 and broken:
                x = x.clone()
                x[0, 0, 3, 3] = math.nan
            loss = F.cross_entropy(model(x), y)
            if not torch.isfinite(loss):
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
            if (step + 1) % 40 == 0:
                log_validation(run, model, data)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="running-statistics-wrong data-changed",
    layers=_NORMS,
    remedies="mind-batch-statistics refresh-statistics replace-normalizer scale-inputs",
)
def two_domains_through_one_normalizer(broken: bool, watch: Watch, steps: int = 200) -> float:
    """Labelled images and brighter ones without labels pass in turn, and BatchNorm's running averages fit neither."""
    torch.manual_seed(97)
    data, model = digits(), models.ConvNet(classes=10)
    optimizer = adam(model, 3e-3)
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            other = 6 * data.x[torch.randperm(len(data.x))[:32]] + 8
            logits = model(other if broken else x)
            loss = loss - 0.1 * (logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
            if (step + 1) % 50 == 0:
                log_validation(run, model, data)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="normalizer-too-few-samples running-statistics-wrong not-learning",
    layers="1 4",
    remedies="larger-batch replace-normalizer mind-batch-statistics",
)
def three_rows_at_a_time_under_batchnorm(broken: bool, watch: Watch, steps: int = 400) -> float:
    """Memory allows three rows, the gradients of eight batches are gathered, and BatchNorm sees three all the same."""
    torch.manual_seed(98)
    data = rows(classes=3)
    model = nn.Sequential(
        nn.Linear(12, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU(),
        nn.Linear(48, 3),
    )  # fmt: skip
    optimizer = adam(model, 3e-3)
    size, gather = (3, 8) if broken else (24, 1)
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps * gather), batches(data, size)):
            loss = F.cross_entropy(model(x), y) / gather
            loss.backward()
            if (step + 1) % gather == 0:
                optimizer.step()
                optimizer.zero_grad()
                run.observe(loss=loss * gather)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "regression",
    causes="inputs-not-scaled not-learning exploding-gradient exploding-values dead-units output-constant",
    remedies="scale-inputs",
)
def years_that_are_not_centred(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The columns are years and postcodes, around 2000 and of little spread, as they stand in the file."""
    torch.manual_seed(99)
    data, model = curves(), models.mlp(8, 64, 64, 1)
    if broken:
        data = data._replace(x=10 * data.x + 2000, held_x=10 * data.held_x + 2000)
    fit(watch, model, adam(model, 3e-3), data, steps, loss=F.mse_loss)
    return explained(model, data)


class _SharpAttention(nn.Module):
    """One block of attention with a temperature, over the words of a sentence."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.words, self.positions = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.feed = models.mlp(32, 64, 32)
        self.head = nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(16))
        scores = self.query(x) @ self.key(x).transpose(1, 2) / math.sqrt(32)
        x = x + (scores / self.temperature).softmax(-1) @ self.value(x)
        return self.head((x + self.feed(x)).mean(1))


@run_fault(
    FAULTS,
    "attention",
    causes="attention-collapse saturated-units vanishing-gradient not-learning",
    remedies="scale-attention scale-outputs rescale-layer",
)
def temperature_of_a_thousandth(broken: bool, watch: Watch, steps: int = 500) -> float:
    """The scores are divided by a temperature that was tuned for cosines: each word looks at one other."""
    torch.manual_seed(100)
    data, model = sentences(), _SharpAttention(0.001 if broken else 1.0)
    fit(watch, model, adam(model, 3e-3), data, steps)
    return accuracy(model, data)


class _TextVAE(nn.Module):
    """A variational autoencoder of images by rows, whose decoder also sees the rows before."""

    def __init__(self, sees_rows: bool) -> None:
        super().__init__()
        self.sees_rows = sees_rows
        self.encoder = models.mlp(64, 48, 8)
        self.decoder = nn.GRU(8 + 4, 64, batch_first=True)
        self.out = nn.Linear(64, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x.flatten(1)).chunk(2, 1)
        code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        before = F.pad(x[:, :-1], (0, 0, 1, 0)) * self.sees_rows
        states = self.decoder(torch.cat([before, code[:, None].expand(-1, 8, -1)], 2))[0]
        return self.out(states), mean, log_variance


@run_fault(
    FAULTS,
    "variational autoencoder",
    causes="posterior-collapse",
    remedies="lower-penalty change-architecture",
)
def decoder_reads_ahead_of_the_code(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The decoder gets the rows before, as in a language model, and leaves the code alone."""
    torch.manual_seed(101)
    data = digits()
    model = _TextVAE(sees_rows=broken)
    optimizer = adam(model, 3e-3)
    with watch(model, optimizer) as run:
        for x, _ in (batch for batch, _ in zip(batches(data), range(steps))):
            images = x[:, 0]
            output, mean, log_variance = model(images)
            divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
            reconstruction = 0.5 * (output - images).square().sum((1, 2)).mean()
            optimizer.zero_grad()
            (reconstruction + divergence).backward()
            optimizer.step()
            run.log_metrics(kl=divergence.item(), reconstruction=reconstruction.item())
    with torch.no_grad():
        codes = model.encoder(data.x.flatten(1))[:, :4]
        held = model.encoder(data.held_x.flatten(1))[:, :4]
    return (data.y[torch.cdist(held, codes).argmin(1)] == data.held_y).float().mean().item()


def _ring(count: int) -> Tensor:
    """Return points at five places on a circle."""
    angle = torch.randint(5, (count,)) * (0.4 * math.pi)
    return 1.5 * torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(count, 2)


@run_fault(
    FAULTS,
    "adversarial",
    causes="output-constant",
    remedies="balance-players prevent-collapse lower-learning-rate",
)
def generator_runs_ahead(broken: bool, watch: Watch, steps: int = 400) -> float:
    """Six steps of the generator for one of the discriminator: it moves to one place of the ring, then to another."""
    torch.manual_seed(102)
    generator, discriminator = models.mlp(4, 48, 48, 2), models.mlp(2, 48, 48, 1)
    both = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    of_generator = torch.optim.Adam(generator.parameters(), 2e-3, betas=(0.5, 0.99))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), 2e-3, betas=(0.5, 0.99))
    with watch(both, of_generator) as run:
        for _ in range(steps):
            for _ in range(1 if broken else 2):
                real, made = _ring(64), generator(torch.randn(64, 4)).detach()
                of_discriminator.zero_grad()
                score = (F.softplus(-discriminator(real)) + F.softplus(discriminator(made))).mean()
                score.backward()
                of_discriminator.step()
            for _ in range(6 if broken else 1):
                of_generator.zero_grad()
                answer = F.softplus(-discriminator(generator(torch.randn(64, 4)))).mean()
                answer.backward()
                of_generator.step()
            run.log_metrics(d_loss=score.item(), g_loss=answer.item())
    with torch.no_grad():
        made = generator(torch.randn(1024, 4))
    angle = torch.arange(5) * (0.4 * math.pi)
    distances = torch.cdist(made, 1.5 * torch.stack([angle.cos(), angle.sin()], 1))
    hits = torch.bincount(distances.argmin(1)[distances.amin(1) < 0.6], minlength=5)
    return (hits > 30).float().mean().item()


@run_fault(
    FAULTS,
    "metric learning",
    causes="output-constant not-learning rate-too-high",
    remedies="prevent-collapse lower-learning-rate",
)
def hardest_negatives_from_the_start(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Triplets with the hardest negative of each batch pull all embeddings together; the loss stays at the margin."""
    torch.manual_seed(103)
    data, model = digits(), models.ConvNet(classes=8, norm=False)
    optimizer = sgd(model, 0.05, momentum=0.9)
    with watch(model, optimizer) as run:
        for x, y in (batch for batch, _ in zip(batches(data, 64), range(steps))):
            codes = model(x)
            distance = (codes[:, None] - codes[None]).square().sum(2)
            same = y[:, None] == y[None]
            if broken:
                far = distance.masked_fill(~same, 0).amax(1)
                near = distance.masked_fill(same, math.inf).amin(1)
                loss = F.relu(far - near + 1.0).mean()
            else:
                loss = torch.where(same, distance, F.relu(1.0 - distance)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
    with torch.no_grad():
        nearest = torch.cdist(model(data.held_x), model(data.x)).argmin(1)
    return (data.y[nearest] == data.held_y).float().mean().item()


@run_fault(
    FAULTS,
    "table",
    causes="units-alike output-constant not-learning",
    remedies="initialise",
)
def every_weight_at_one_twentieth(broken: bool, watch: Watch, steps: int = 250) -> float:
    """`nn.init.constant_(weight, 0.05)`: all units of a layer begin alike and stay so."""
    torch.manual_seed(104)
    data, model = digits(flat=True), models.mlp(64, 48, 32, 10)
    if broken:
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.05 if parameter.ndim > 1 else 0.0)
    fit(watch, model, adam(model, 2e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="wrong-mode running-statistics-wrong",
    remedies="switch-mode",
    onset=40,
    other_harm="dropout and BatchNorm are off for the rest of the run, which is not the training that was designed",
)
def eval_mode_after_a_grid_of_samples(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A callback draws predictions after 40 steps, calls `model.eval()` for it and does not go back."""
    torch.manual_seed(105)
    data = digits(240)
    conv = models.ConvNet(classes=32)
    model = nn.Sequential(conv, nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))

    def draw(step: int) -> None:
        if step == 39:
            model.eval()
            with torch.no_grad():
                model(data.held_x[:16])
            model.train(not broken)

    fit(unreported(watch), model, adam(model, 2e-3), data, steps, then=draw)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="dead-units vanishing-gradient output-constant not-learning",
    layers="2 3 2.weight 2.bias 0 1 0.weight 0.bias",
    remedies="reset-bias initialise change-activation",
)
def biases_of_a_ported_checkpoint_negated(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A network is ported from another framework that subtracts its thresholds: the biases come with the wrong sign."""
    torch.manual_seed(106)
    data = blobs()
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(192, 4),
    )  # fmt: skip
    with torch.no_grad():
        model[2].bias.copy_(torch.full((12,), -4.0 if broken else 4.0))
    fit(unreported(watch), model, adam(model, 1e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "sequence",
    causes="saturated-units inputs-not-scaled vanishing-gradient not-learning",
    remedies="scale-inputs",
)
def prices_into_a_gated_network(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Closing prices of some ten thousand go into a GRU as they are: its gates are open or shut for good."""
    torch.manual_seed(107)
    x, y = models.waves(1024)
    scale, offset = (2000.0, 30000.0) if broken else (1.0, 0.0)
    data = split(scale * x + offset, y)
    model = models.SequenceClassifier(nn.GRU(3, 32, batch_first=True), 3)
    fit(unreported(watch), model, adam(model, 5e-3), data, steps)
    return accuracy(model, data)
