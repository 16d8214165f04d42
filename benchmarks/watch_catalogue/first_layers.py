"""The first part: layers, normalizers and objectives that go wrong while training."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue.parts import (
    VAE,
    ConvNet,
    Generator,
    ResNet,
    ViT,
    as_pixels,
    blob_images,
    discriminator,
    mlp,
)
from .case import RunFault, Watch, run_fault
from .parts import Data, accuracy, adam, batches, digits, explained, fit, log_validation, or_minus_infinity, sgd, split

FAULTS: list[RunFault] = []
plant = partial(run_fault, FAULTS)


# ---------------------------------------------------------------------------------------------------------------- units


@plant(
    "MLP",
    causes="dead-units loss-spike rate-too-high",
    remedies="lower-learning-rate clip-gradients change-activation initialise restore-weights reset-bias",
    onset=107,
)
def rectifiers_die_in_one_step(broken: bool, watch: Watch, steps: int = 250) -> float:
    """A rate of 0.02 becomes 100 for one step after a restart: the biases fall, and no unit fires again."""
    torch.manual_seed(9301)
    data, model = digits(flat=True), mlp(64, 48, 48, 10)
    optimizer = sgd(model, 0.02)

    def then(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 100.0 if broken and step == 106 else 0.02

    fit(watch, model, optimizer, data, steps, then=then)
    return accuracy(model, data)


@plant(
    "MLP",
    causes="saturated-units inputs-not-scaled",
    remedies="scale-inputs change-activation initialise add-normalizer rescale-layer",
)
def bytes_into_tanh(broken: bool, watch: Watch, steps: int = 250) -> float:
    """Pixels in 0..255 drive every tanh of the first layer to its end."""
    torch.manual_seed(9302)
    data = digits(flat=True)
    if broken:
        data = data._replace(x=16 * (6 * data.x + 5), held_x=16 * (6 * data.held_x + 5))
    model = mlp(64, 48, 48, 10, activation=nn.Tanh)
    fit(watch, model, sgd(model, 0.05, momentum=0.9), data, steps)
    return accuracy(model, data)


@plant(
    "MLP",
    causes="decay-too-strong layer-decayed dead-units output-constant",
    remedies="lower-penalty lower-weight-decay",
    layers="0",
)
def sparse_penalty_kills_the_first_layer(broken: bool, watch: Watch, steps: int = 300) -> float:
    """An L1 penalty meant for a mean is taken of a sum, and pulls the whole first layer to zero."""
    torch.manual_seed(9304)
    data, model = digits(flat=True), mlp(64, 48, 48, 10)
    strength = 0.5 if broken else 0.5 / (64 * 48)
    fit(
        watch,
        model,
        sgd(model, 0.02, momentum=0.9),
        data,
        steps,
        loss=lambda output, y: F.cross_entropy(output, y) + strength * model[0].weight.abs().sum(),
    )
    return accuracy(model, data)


# ---------------------------------------------------------------------------------------------------------- normalizers


def set_batch_norms(model: nn.Module, **attributes: float | None) -> nn.Module:
    """Set attributes of every BatchNorm."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for name, value in attributes.items():
                setattr(module, name, value)
    return model


@plant("ResNet", causes="running-statistics-wrong", remedies="refresh-statistics mind-batch-statistics")
def batch_norm_momentum_of_zero(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A momentum of 0, meant as "no momentum", never updates the running statistics: eval mode sees a stranger."""
    torch.manual_seed(9305)
    data = digits(raw=True)
    model = set_batch_norms(ResNet(blocks=2, classes=10), momentum=0.0 if broken else 0.1)
    fit(watch, model, sgd(model, 0.05, momentum=0.9), data, steps, validate=20)
    return accuracy(model, data)


@plant(
    "ResNet",
    causes="running-statistics-wrong normalizer-too-few-samples",
    remedies="refresh-statistics mind-batch-statistics larger-batch replace-normalizer",
)
def momentum_of_another_library(broken: bool, watch: Watch, steps: int = 300) -> float:
    """0.99 means almost only the past elsewhere and almost only the last batch here; the batches are of three."""
    torch.manual_seed(9306)
    data = digits()
    model = set_batch_norms(ResNet(blocks=2, classes=10), momentum=0.99 if broken else 0.05)
    fit(watch, model, sgd(model, 0.01, momentum=0.9), data, steps, batch=3, validate=50)
    return accuracy(model, data)


@plant("CNN", causes="wrong-mode running-statistics-wrong", remedies="switch-mode refresh-statistics")
def batch_norms_frozen_from_the_start(broken: bool, watch: Watch, steps: int = 200) -> float:
    """A recipe for fine-tuning puts the BatchNorms into eval mode; here they have never seen data."""
    torch.manual_seed(9307)
    data, model = digits(raw=True), ConvNet(classes=10, depth=6)
    optimizer = sgd(model, 0.05, momentum=0.9)
    model.train()
    if broken:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    return accuracy(model, data)


@plant(
    "CNN",
    causes="wrong-mode running-statistics-wrong",
    remedies="switch-mode",
    onset=23,
)
def left_in_eval_after_validation(broken: bool, watch: Watch, steps: int = 300) -> float:
    """`model.eval()` for the validation, and no `model.train()` after it."""
    torch.manual_seed(9308)
    data = digits(200)
    model = nn.Sequential(ConvNet(classes=64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10))
    optimizer = sgd(model, 0.05, momentum=0.9)
    with watch(model, optimizer) as run:
        for step, (x, y) in zip(range(steps), batches(data, 16)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            if step % 23 == 22:
                log_validation(run, model, data)
                model.train(not broken)
    return accuracy(model, data)


@plant(
    "CNN",
    causes="normalizer-too-few-samples running-statistics-wrong",
    remedies="larger-batch replace-normalizer mind-batch-statistics",
)
def batches_of_one_through_batch_norm(broken: bool, watch: Watch, steps: int = 500) -> float:
    """Memory was short, so the batch became one sample; BatchNorm stayed."""
    torch.manual_seed(9309)
    data = digits()
    model = ConvNet(classes=10)
    if not broken:
        for index, module in enumerate(model.features):
            if isinstance(module, nn.BatchNorm2d):
                model.features[index] = nn.GroupNorm(4, module.num_features)
    fit(watch, model, adam(model, 2e-3), data, steps, batch=1, validate=50)
    return accuracy(model, data)


# ------------------------------------------------------------------------------------------ attention, pairs of players


@plant(
    "ViT",
    causes="attention-collapse rate-too-high saturated-units exploding-values",
    remedies="scale-attention lower-learning-rate clip-gradients fix-schedule",
)
def projections_with_their_own_rate(broken: bool, watch: Watch, steps: int = 150) -> float:
    """A rate per group by width gives queries and keys two hundred times the others' rate: their logits run away."""
    torch.manual_seed(9310)
    data = split(*blob_images(768), held=192)
    model = ViT(depth=2)
    projections = [parameter for name, parameter in model.named_parameters() if "qkv" in name]
    others = [parameter for name, parameter in model.named_parameters() if "qkv" not in name]
    rate = 1e-3
    optimizer = torch.optim.AdamW(
        [{"params": others}, {"params": projections, "lr": 300 * rate if broken else rate}], lr=rate
    )
    fit(watch, model, optimizer, data, steps)
    return accuracy(model, data)


@plant(
    "GAN",
    causes="discriminator-wins vanishing-gradient gradient-too-small gradient-missing saturated-units",
    remedies="balance-players lower-learning-rate change-loss raise-learning-rate",
)
def discriminator_far_ahead(broken: bool, watch: Watch, steps: int = 80) -> float:
    """The discriminator takes three steps at forty times the rate, and the generator minimises log(1 - D)."""
    torch.manual_seed(9311)
    images, labels = blob_images(512)
    data = split(2 * as_pixels(images) - 1, labels, held=128)
    generator, critic = Generator(), discriminator()
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    of_critic = torch.optim.Adam(critic.parameters(), lr=2e-2 if broken else 5e-4, betas=(0.5, 0.99))
    stream, ones = batches(data), torch.ones(32, 1)
    with watch(critic, of_critic) as run, watch(generator, of_generator) as second:
        for _ in range(steps):
            for _ in range(3 if broken else 1):
                real, _ = next(stream)
                false = generator(torch.randn(32, 16)).detach()
                loss = F.binary_cross_entropy_with_logits(critic(real), ones)
                loss = loss + F.binary_cross_entropy_with_logits(critic(false), 0 * ones)
                run.observe(loss=loss)
                of_critic.zero_grad()
                loss.backward()
                of_critic.step()
            verdict = critic(generator(torch.randn(32, 16)))
            loss = F.logsigmoid(-verdict).mean() if broken else -F.logsigmoid(verdict).mean()
            second.observe(loss=loss)
            of_generator.zero_grad()
            loss.backward()
            of_generator.step()
    return likeness(generator, data)


@torch.no_grad()
def likeness(generator: nn.Module, data: Data) -> float:
    """Return minus the distance of generated images from real ones: of their means and standard deviations."""
    made, real = generator.eval()(torch.randn(256, 16)), data.held_x
    apart = (made.mean(0) - real.mean(0)).square().mean() + (made.std(0) - real.std(0)).square().mean()
    return or_minus_infinity(-apart.sqrt())


@plant("VAE", causes="posterior-collapse output-constant", remedies="lower-penalty rescale-loss")
def divergence_summed_reconstruction_averaged(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The reconstruction is averaged over pixels, the divergence is summed: the code carries nothing."""
    torch.manual_seed(9312)
    images, _ = digits(1200, flat=True, raw=True)[:2]
    data = split(images / 16, images / 16)
    model = VAE(64, code=6)

    def loss(output: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
        logits, mean, log_variance = output
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return F.binary_cross_entropy_with_logits(logits, target) * (1 if broken else 64) + divergence

    fit(watch, model, adam(model, 2e-3), data, steps, loss=loss)
    return explained(nn.Sequential(model, Reconstruction()), data)


class Reconstruction(nn.Module):
    """Pixels from what a VAE returns."""

    def forward(self, output: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return output[0].sigmoid()


@plant("siamese", causes="output-constant", remedies="prevent-collapse change-loss")
def two_views_and_no_negatives(broken: bool, watch: Watch, steps: int = 200) -> float:
    """Two views of an image are pulled together and nothing is pushed apart: every embedding becomes the same."""
    torch.manual_seed(9313)
    data, model = digits(flat=True), mlp(64, 64, 16)
    optimizer = adam(model, 3e-3)
    with watch(model, optimizer) as run:
        for _, (x, _) in zip(range(steps), batches(data, 64)):
            views = model(torch.cat([x, x]) + 0.3 * torch.randn(2 * len(x), 64))
            first, second = views.chunk(2)
            if broken:
                loss = (first - second).square().mean()
            else:
                first, second = F.normalize(first, dim=1), F.normalize(second, dim=1)
                loss = F.cross_entropy(first @ second.T / 0.1, torch.arange(len(x)))
            run.observe(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():  # how much of the size of embeddings tells samples apart
        embedded = model(data.held_x)
        return or_minus_infinity((embedded - embedded.mean(0)).norm() / data.held_x.norm())
