"""Runs in which the optimizer's steps never happen, or never reach a part of the network."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue import parts as models
from .case import RunFault, Watch, run_fault
from .parts import accuracy, adam, batches, digits, fit, or_minus_infinity, sgd
from .third_parts import blobs, sentences, texts, unreported

FAULTS: list[RunFault] = []


@run_fault(
    FAULTS,
    "convolutional",
    causes="steps-skipped precision not-finite no-step not-learning",
    remedies="check-scaler raise-precision rescale-loss",
)
def scaler_created_in_every_step(broken: bool, watch: Watch, steps: int = 150) -> float:
    """`GradScaler()` stands inside the function of one step, so that it always begins at a scale that overflows."""
    torch.manual_seed(41)
    data, model = digits(), models.ConvNet(classes=10)
    optimizer, scaler = sgd(model, 2e-3, momentum=0.9), torch.amp.GradScaler("cpu", init_scale=2.0**20)
    with watch(model, optimizer) as run:
        for x, y in (batch for batch, _ in zip(batches(data), range(steps))):
            if broken:
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(x), y, reduction="sum")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            run.observe(loss=loss / len(x))
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "table",
    causes="no-step not-learning",
    remedies="call-step order-of-calls",
)
def step_indented_under_the_logging(broken: bool, watch: Watch, steps: int = 250) -> float:
    """`optimizer.step()` slips into the block that prints every hundred batches."""
    torch.manual_seed(42)
    data, model = digits(flat=True), models.mlp(64, 48, 10)
    optimizer = adam(model, 3e-3)
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            run.observe(loss=loss)
            if step % 100 == 99 or not broken:
                optimizer.step()
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "adversarial",
    causes="not-in-optimizer no-step",
    layers="generator generator.0 generator.2 generator.4 generator.0.weight generator.2.weight generator.4.weight",
    remedies="give-to-optimizer add-to-optimizer",
)
def both_players_under_the_same_parameters(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The generator's optimizer is a copy of the line above it and holds the discriminator's parameters."""
    torch.manual_seed(43)
    players = nn.ModuleDict({"generator": models.mlp(4, 32, 32, 2), "discriminator": models.mlp(2, 32, 32, 1)})
    generator, discriminator = players["generator"], players["discriminator"]
    critic = torch.optim.Adam(discriminator.parameters(), 2e-3, betas=(0.5, 0.99))
    artist = torch.optim.Adam((discriminator if broken else generator).parameters(), 2e-3, betas=(0.5, 0.99))
    with watch(players, artist):
        for _ in range(steps):
            real = torch.tensor([2.0, -1.0]) + 0.3 * torch.randn(64, 2)
            made = generator(torch.randn(64, 4))
            critic.zero_grad()
            scores = F.softplus(-discriminator(real)) + F.softplus(discriminator(made.detach()))
            scores.mean().backward()
            critic.step()
            artist.zero_grad()
            generator.zero_grad()
            F.softplus(-discriminator(generator(torch.randn(64, 4)))).mean().backward()
            artist.step()
    with torch.no_grad():
        distance = (generator(torch.randn(512, 4)).mean(0) - torch.tensor([2.0, -1.0])).norm()
    return or_minus_infinity(1 - distance)


class _BodyAndHead(nn.Module):
    """A convolutional body and a linear head with names of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(6 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


_BODY = "body body.0 body.2 body.0.weight body.2.weight body.0.bias body.2.bias"


@run_fault(
    FAULTS,
    "convolutional",
    causes="not-in-optimizer no-step gradient-accumulates frozen-layer",
    layers=_BODY,
    remedies="call-step give-to-optimizer add-to-optimizer",
)
def optimizer_of_the_body_never_steps(broken: bool, watch: Watch, steps: int = 200) -> float:
    """Body and head have an optimizer each, and only the head's is stepped."""
    torch.manual_seed(44)
    data, model = digits(), _BodyAndHead()
    of_body, of_head = adam(model.body, 3e-3), adam(model.head, 3e-4)
    with watch(model, of_head) as run:
        for x, y in (batch for batch, _ in zip(batches(data), range(steps))):
            of_body.zero_grad()
            of_head.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            of_head.step()
            if not broken:
                of_body.step()
            run.observe(loss=loss)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "convolutional",
    causes="frozen-layer not-in-optimizer",
    layers=_BODY,
    remedies="unfreeze give-to-optimizer add-to-optimizer",
)
def flag_set_on_the_module(broken: bool, watch: Watch, steps: int = 200) -> float:
    """The body is thawed after a short warm-up by `module.requires_grad = True`, which sets an attribute only."""
    torch.manual_seed(45)
    data, model = digits(), _BodyAndHead()
    model.body.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.8)

    def thaw(step: int) -> None:
        if step == 10 and broken:
            model.body.requires_grad = True
        elif step == 10:
            model.body.requires_grad_(True)

    fit(unreported(watch), model, optimizer, data, steps, then=thaw)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "text",
    causes="frozen-layer not-in-optimizer",
    layers="words words.weight",
    remedies="unfreeze",
)
def embedding_from_pretrained_stays_frozen(broken: bool, watch: Watch, steps: int = 500) -> float:
    """`nn.Embedding.from_pretrained` freezes unless told otherwise, and these vectors were drawn tiny, for training."""
    torch.manual_seed(46)
    data, model = sentences(), models.SentenceEncoder(depth=1)
    model.words = nn.Embedding.from_pretrained(1e-3 * torch.randn(50, 32), freeze=broken)
    model.norm = nn.Identity()
    fit(unreported(watch), model, adam(model, 1e-3), data, steps)
    return accuracy(model, data)


class _Transferred(nn.Module):
    """An encoder that somebody froze by a decorator, and a head."""

    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.broken = broken
        self.encoder, self.head = models.ConvNet(width=16, classes=3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(not self.broken):
            features = self.encoder(x)
        return self.head(torch.tanh(features))


@run_fault(
    FAULTS,
    "convolutional",
    causes="gradient-cut gradient-missing frozen-layer",
    layers="encoder encoder.features encoder.features.0 encoder.features.0.weight encoder.head encoder.head.weight "
    "encoder.features.1 encoder.features.3 encoder.features.4 encoder.features.7 encoder.features.8",
    remedies="keep-gradient",
)
def no_grad_left_in_the_forward(broken: bool, watch: Watch, steps: int = 200) -> float:
    """The encoder's `with torch.no_grad():` of the feature extraction is still there when all is to be trained."""
    torch.manual_seed(47)
    data, model = blobs(), _Transferred(broken)
    fit(watch, model, torch.optim.Adam(model.parameters(), 2e-3), data, steps)
    return accuracy(model, data)


@run_fault(
    FAULTS,
    "transformer",
    causes="no-step not-learning steps-skipped gradient-missing",
    remedies="call-step check-data order-of-calls",
    onset=80,
)
def guard_against_spikes_skips_everything(broken: bool, watch: Watch, steps: int = 350) -> float:
    """From step 80 on, batches whose loss lies above the best one so far are skipped as outliers, that is, all."""
    torch.manual_seed(48)
    data, model = texts(), models.GPT()
    optimizer, best = adam(model, 3e-3), float("inf")
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data, 16)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            run.observe(loss=loss)
            if step < 80 or loss.item() < best * (1 if broken else 2):
                optimizer.step()
            best = min(best, loss.item())
    return accuracy(model, data)
