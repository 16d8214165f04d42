"""Runs in which units, normalizers, attention or the players of a game go wrong."""

import math
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data import as_pixels, blob_images, sentences, table, waves
from ...networks import VAE, ConvNet, Generator, ResNet, SequenceClassifier, ViT, discriminator, mlp
from ..case import FIRST, OPEN, SECOND, THIRD, fault
from ..data import batches, curves, digits, friedman, split
from ..loops import Loop, accuracy, adam, explained, log_validation, or_minus_infinity, sgd, when
from ..networks import plain_mlp
from .parts import Adversaries, Reconstruction, SecondAutoencoder, conv_net, likeness


class WrittenGELU(nn.Module):
    """GELU as GPT-2 has it, with a tanh."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


OPEN.add(
    fault("dead-units", "mlp", "dead-units", "lower-learning-rate change-activation reset-bias initialise",
        "Biases that begin far below zero.", lambda broken, loop: loop.fit(model=plain_mlp(64, 64, 64, 10),
        data=digits(flat=True), optimizer=sgd(0.05), plant=lambda net: broken and nn.init.constant_(net[2].bias, -8.0)),
        layers="0 1 2 3", steps=150),
    fault("inputs-in-bytes", "mlp", "saturated-units inputs-not-scaled", "scale-inputs initialise",
        "Pixels of 0 to 255 into units that saturate.", lambda broken, loop: loop.fit(model=plain_mlp(64, 64, 64, 10,
        act=nn.Tanh), data=when(broken, digits(flat=True), lambda d: d._replace(held_x=128 + 60 * d.held_x)),
        change=(lambda step, x, y: (128 + 60 * x, y)) if broken else None, optimizer=sgd(0.05)), steps=200),
    fault("batches-of-two-of-digits", "conv", "normalizer-too-few-samples", "larger-batch replace-normalizer",
        "BatchNorm behind a linear layer, with batches that hold two samples.", lambda broken, loop: loop.fit(
        model=plain_mlp(64, 64, 64, 10, before=lambda: nn.BatchNorm1d(64)), data=digits(flat=True), optimizer=sgd(0.05),
        batch=2 if broken else 32), steps=200),
)  # fmt: skip


@OPEN.fault("conv", "wrong-mode", "switch-mode", layers="1 4", other_harm="Statistics are those of the start.",
    steps=60)  # fmt: skip
def batch_norms_alone_in_eval_mode(broken: bool, loop: Loop) -> float:
    """A loop over the normalizers that was meant for a pretrained model."""
    model, data = conv_net(), digits()
    model.train()
    if broken:
        model.train = lambda mode=True: model
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
    return loop.fit(data, model, sgd(0.05))


@OPEN.fault("conv", "wrong-mode", "switch-mode", other_harm="BatchNorm keeps the statistics of the start.", steps=60)
def eval_mode_all_along(broken: bool, loop: Loop) -> float:
    """`model.eval()` in a helper that is called before the loop."""
    model, data = conv_net(), digits()
    if broken:
        model.train = lambda mode=True: nn.Module.train(model, False)
    return loop.fit(data, model, sgd(0.05))


@OPEN.fault("transformer", "attention-collapse", "scale-attention initialise rescale-layer", steps=150)
def attention_without_a_scale(broken: bool, loop: Loop) -> float:
    """Queries and keys that begin far too large: each row looks at one token."""
    data = digits(flat=True)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.Unflatten(1, (8, 8)), nn.Linear(8, 32), nn.TransformerEncoder(layer, 2,
        enable_nested_tensor=False), nn.Flatten(), nn.Linear(256, 10))  # fmt: skip
    if broken:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("in_proj_weight"):
                    parameter[:64] *= 30
    return loop.fit(data, model, adam(1e-3))


@OPEN.fault("contrastive", "output-constant", "prevent-collapse", other_harm="Features tell nothing.", steps=200)
def views_pulled_together(broken: bool, loop: Loop) -> float:
    """A loss that pulls two views of an image together, and nothing that keeps images apart."""
    model, data = plain_mlp(64, 128, 32), digits(flat=True)
    stream = batches(data, 64)

    def objective(step: int) -> Tensor:
        x, _ = next(stream)
        first, second = (model(x + 0.3 * torch.randn_like(x)) for _ in range(2))
        value = -F.cosine_similarity(first, second).mean()
        if not broken:
            value = value + torch.relu(1 - first.std(0)).mean() + torch.relu(1 - second.std(0)).mean()
        return value

    loop.train(None, model, adam(3e-3), objective=objective)
    with torch.no_grad():
        return float(F.normalize(model(data.held_x), dim=1).std(0).mean())


@OPEN.fault("mlp", "dead-units layer-decayed", "initialise", layers="0 2", steps=150)
def every_weight_at_zero(broken: bool, loop: Loop) -> float:
    """`nn.init.zeros_` for all parameters: no unit is ever on, and no gradient comes back."""
    model, data = plain_mlp(64, 48, 48, 10), digits(flat=True)
    for parameter in model.parameters() if broken else ():
        nn.init.zeros_(parameter)
    return loop.fit(data, model, sgd(0.05, momentum=0.9))


@OPEN.fault("siamese", "output-constant", "prevent-collapse change-loss", steps=250)
def teacher_without_a_predictor(broken: bool, loop: Loop) -> float:
    """The target is the network's own output for another view, without a gradient: both become constant."""
    data, model = digits(flat=True), plain_mlp(64, 64, 16)

    def objective(step: int, x: Tensor, _y: Tensor) -> Tensor:
        one, two = model(x + 0.3 * torch.randn_like(x)), model(x + 0.3 * torch.randn_like(x))
        if broken:
            loss = F.mse_loss(one, two.detach())
        else:
            scores = F.normalize(one, dim=1) @ F.normalize(two, dim=1).T
            loss = F.cross_entropy(scores / 0.1, torch.arange(len(x)))
        return loss

    loop.train(data, model, adam(3e-3), objective=objective, batch=64)
    with torch.no_grad():
        embedded = model(data.held_x)
        return float((embedded - embedded.mean(0)).norm() / data.held_x.norm())


@OPEN.fault("mlp", "saturated-units", "initialise scale-inputs lower-learning-rate", layers="0 3 6 9", steps=150)
def tanh_behind_weights_times_thirty(broken: bool, loop: Loop) -> float:
    """Weights that were made for a GELU, before a tanh, which is flat where the GELU is not."""
    data = digits(flat=True)
    blocks = [(nn.Linear(64, 64), nn.Tanh() if broken else WrittenGELU(), nn.LayerNorm(64)) for _ in range(4)]
    with torch.no_grad():
        for linear, *_ in blocks:
            linear.weight *= 30.0
    model = nn.Sequential(*chain.from_iterable(blocks), nn.Linear(64, 10))
    return loop.fit(data, model, adam(1e-3))


def set_batch_norms(model: nn.Module, **attributes: float | None) -> nn.Module:
    """Set attributes of every BatchNorm."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for name, value in attributes.items():
                setattr(module, name, value)
    return model


FIRST.add(
    fault("bytes-into-tanh", "MLP", "saturated-units inputs-not-scaled",
        "scale-inputs change-activation initialise add-normalizer rescale-layer",
        "Pixels in 0..255 drive every tanh of the first layer to its end.", lambda broken, loop: loop.fit(when(broken,
        digits(flat=True), lambda d: d._replace(x=16 * (6 * d.x + 5), held_x=16 * (6 * d.held_x + 5))), mlp(64, 48, 48,
        10, activation=nn.Tanh), sgd(0.05, momentum=0.9)), steps=250, seed=9302),
    fault("batch-norm-momentum-of-zero", "ResNet", "running-statistics-wrong",
        "refresh-statistics mind-batch-statistics",
        'A momentum of 0, meant as "no momentum", never updates the running statistics: eval mode sees a stranger.',
        lambda broken, loop: loop.fit(digits(raw=True), set_batch_norms(ResNet(blocks=2, classes=10),
        momentum=0.0 if broken else 0.1), sgd(0.05, momentum=0.9), validate=20), steps=200, seed=9305),
    fault("momentum-of-another-library", "ResNet", "running-statistics-wrong normalizer-too-few-samples",
        "refresh-statistics mind-batch-statistics larger-batch replace-normalizer",
        "0.99 means almost only the past elsewhere and almost only the last batch here; the batches are of three.",
        lambda broken, loop: loop.fit(digits(), set_batch_norms(ResNet(blocks=2, classes=10),
        momentum=0.99 if broken else 0.05), sgd(0.01, momentum=0.9), batch=3, validate=50), steps=300, seed=9306),
)  # fmt: skip


@FIRST.fault("MLP", "dead-units loss-spike rate-too-high",
    "lower-learning-rate clip-gradients change-activation initialise restore-weights reset-bias", onset=107, steps=250,
    seed=9301)  # fmt: skip
def rectifiers_die_in_one_step(broken: bool, loop: Loop) -> float:
    """A rate of 0.02 becomes 100 for one step after a restart: the biases fall, and no unit fires again."""
    data, model = digits(flat=True), mlp(64, 48, 48, 10)
    optimizer = sgd(0.02)(model)

    def then(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 100.0 if broken and step == 106 else 0.02

    return loop.fit(data, model, optimizer, then=then)


@FIRST.fault("CNN", "wrong-mode running-statistics-wrong", "switch-mode refresh-statistics", steps=200, seed=9307)
def batch_norms_frozen_from_the_start(broken: bool, loop: Loop) -> float:
    """A recipe for fine-tuning puts the BatchNorms into eval mode; here they have never seen data."""
    data, model = digits(raw=True), ConvNet(classes=10, depth=6)
    model.train()
    if broken:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
    return loop.fit(data, model, sgd(0.05, momentum=0.9), as_it_is=True)


@FIRST.fault("CNN", "wrong-mode running-statistics-wrong", "switch-mode", onset=23, steps=300, seed=9308)
def left_in_eval_after_validation(broken: bool, loop: Loop) -> float:
    """`model.eval()` for the validation, and no `model.train()` after it."""
    data = digits(200)
    model = nn.Sequential(ConvNet(classes=64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10))
    optimizer = sgd(0.05, momentum=0.9)(model)
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data, 16)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
            if step % 23 == 22:
                log_validation(run, model, data)
                model.train(not broken)
    return accuracy(model, data)


@FIRST.fault("CNN", "normalizer-too-few-samples running-statistics-wrong",
    "larger-batch replace-normalizer mind-batch-statistics", steps=500, seed=9309)  # fmt: skip
def batches_of_one_through_batch_norm(broken: bool, loop: Loop) -> float:
    """Memory was short, so the batch became one sample; BatchNorm stayed."""
    data = digits()
    model = ConvNet(classes=10)
    if not broken:
        for index, module in enumerate(model.features):
            if isinstance(module, nn.BatchNorm2d):
                model.features[index] = nn.GroupNorm(4, module.num_features)
    return loop.fit(data, model, adam(2e-3), batch=1, validate=50)


@FIRST.fault("ViT", "attention-collapse rate-too-high saturated-units exploding-values",
    "scale-attention lower-learning-rate clip-gradients fix-schedule", steps=150, seed=9310)  # fmt: skip
def projections_with_their_own_rate(broken: bool, loop: Loop) -> float:
    """A rate per group by width gives queries and keys two hundred times the others' rate: their logits run away."""
    data = split(*blob_images(768), held=192)
    model = ViT(depth=2)
    projections = [parameter for name, parameter in model.named_parameters() if "qkv" in name]
    others = [parameter for name, parameter in model.named_parameters() if "qkv" not in name]
    rate = 1e-3
    optimizer = torch.optim.AdamW(
        [{"params": others}, {"params": projections, "lr": 300 * rate if broken else rate}], lr=rate
    )
    return loop.fit(data, model, optimizer)


@FIRST.fault("GAN", "discriminator-wins vanishing-gradient gradient-too-small gradient-missing saturated-units",
    "balance-players lower-learning-rate change-loss raise-learning-rate", steps=80, seed=9311)  # fmt: skip
def discriminator_far_ahead(broken: bool, loop: Loop) -> float:
    """The discriminator takes three steps at forty times the rate, and the generator minimises log(1 - D)."""
    images, labels = blob_images(512)
    data = split(2 * as_pixels(images) - 1, labels, held=128)
    generator, critic = Generator(), discriminator()
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    of_critic = torch.optim.Adam(critic.parameters(), lr=2e-2 if broken else 5e-4, betas=(0.5, 0.99))
    stream, ones = batches(data), torch.ones(32, 1)
    with loop.watch(critic, of_critic) as run, loop.watch(generator, of_generator) as second:
        for _ in range(loop.steps):
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


@FIRST.fault("VAE", "posterior-collapse output-constant", "lower-penalty rescale-loss", steps=300, seed=9312)
def divergence_summed_reconstruction_averaged(broken: bool, loop: Loop) -> float:
    """The reconstruction is averaged over pixels, the divergence is summed: the code carries nothing."""
    images, _ = digits(1200, flat=True, raw=True)[:2]
    data = split(images / 16, images / 16)
    model = VAE(64, code=6)

    def loss(output: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
        logits, mean, log_variance = output
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return F.binary_cross_entropy_with_logits(logits, target) * (1 if broken else 64) + divergence

    loop.train(data, model, adam(2e-3), loss=loss)
    return explained(nn.Sequential(model, Reconstruction()), data)


@FIRST.fault("siamese", "output-constant", "prevent-collapse change-loss", steps=200, seed=9313)
def two_views_and_no_negatives(broken: bool, loop: Loop) -> float:
    """Two views of an image are pulled together and nothing is pushed apart: every embedding becomes the same."""
    data, model = digits(flat=True), mlp(64, 64, 16)

    def objective(step: int, x: Tensor, _y: Tensor) -> Tensor:
        views = model(torch.cat([x, x]) + 0.3 * torch.randn(2 * len(x), 64))
        first, second = views.chunk(2)
        if broken:
            loss = (first - second).square().mean()
        else:
            first, second = F.normalize(first, dim=1), F.normalize(second, dim=1)
            loss = F.cross_entropy(first @ second.T / 0.1, torch.arange(len(x)))
        return loss

    loop.train(data, model, adam(3e-3), objective=objective, batch=64)
    with torch.no_grad():
        embedded = model(data.held_x)
        return or_minus_infinity((embedded - embedded.mean(0)).norm() / data.held_x.norm())


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


SECOND.add(
    fault("bias-taken-from-another-range", "table", "dead-units output-constant gradient-missing",
        "reset-bias initialise change-activation",
        "A bias of -30 in the second hidden layer, from a file of weights for inputs in 0..255.", lambda broken,
        loop: loop.fit(split(*table(1600), held=400), mlp(12, 64, 64, 3), adam(3e-3),
        plant=lambda net: nn.init.constant_(net[2].bias, -30.0 if broken else 0.0)), layers="2 3 2.weight 2.bias",
        steps=300, seed=761),
    fault("batches-of-two-under-batchnorm", "table", "normalizer-too-few-samples running-statistics-wrong not-learning",
        "larger-batch replace-normalizer",
        "A batch size cut from 32 to 2 for want of memory, with BatchNorm in each layer.", lambda broken,
        loop: loop.fit(split(*table(1600), held=400), nn.Sequential(nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(),
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3)), adam(3e-3), batch=2 if broken else 32,
        report=None), steps=600, seed=768),
    fault("normalizer-over-one-value", "regression",
        "output-constant normalizer-too-few-samples gradient-missing not-learning gradient-cut gradient-too-small",
        "replace-normalizer fix-axis remove-final-activation",
        "nn.LayerNorm(1) behind the only output: it always gives its bias.", lambda broken, loop: loop.fit(friedman(),
        nn.Sequential(*mlp(10, 48, 48, 1), nn.LayerNorm(1) if broken else nn.Identity()), adam(3e-3), loss=F.mse_loss),
        steps=300, seed=770),
)  # fmt: skip


@SECOND.fault("convolutional",
    "dead-units rate-too-high output-constant loss-spike exploding-values exploding-gradient",
    "lower-learning-rate fix-schedule change-activation clip-gradients initialise", onset=120, steps=320,
    seed=762)  # fmt: skip
def restart_kills_the_rectifiers(broken: bool, loop: Loop) -> float:
    """A warm restart at step 120 with a rate 300 times too high for five steps."""
    data, model = digits(1400), ConvNet(width=8, depth=4, classes=10, norm=False)
    optimizer = adam(3e-3)(model)

    def then(step: int) -> None:
        peak = 1.0 if broken else 4e-3
        optimizer.param_groups[0]["lr"] = peak if 119 <= step < 124 else 3e-3

    return loop.fit(data, model, optimizer, then=then)


@SECOND.fault("table", "saturated-units vanishing-gradient gradient-too-small",
    "initialise rescale-layer add-normalizer change-activation", layers="0 1 2 3 0.weight 2.weight", steps=350,
    seed=763)  # fmt: skip
def weights_drawn_ten_times_too_large(broken: bool, loop: Loop) -> float:
    """Hyperbolic tangents behind weights of deviation 4: nn.init.normal_ with the variance of another layer."""
    data, model = friedman(), mlp(10, 64, 64, 1, activation=nn.Tanh)
    if broken:
        for layer in (model[0], model[2]):
            nn.init.normal_(layer.weight, std=4.0)
    return loop.fit(data, model, sgd(0.03, momentum=0.9), loss=F.mse_loss, report=None)


@SECOND.fault("convolutional", "running-statistics-wrong validation-worsens",
    "mind-batch-statistics refresh-statistics replace-normalizer", steps=300, seed=767)  # fmt: skip
def momentum_of_a_ten_thousandth(broken: bool, loop: Loop) -> float:
    """BatchNorm with momentum=1e-4: the running statistics never leave their start."""
    data, model = digits(1400, raw=True), ConvNet(width=8, depth=3, classes=10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1e-4 if broken else 0.1
    return loop.fit(data, model, adam(3e-3), validate=50)


@SECOND.fault("convolutional",
    "running-statistics-wrong outlier validation-worsens data-changed inputs-not-scaled exploding-values",
    "refresh-statistics mind-batch-statistics clean-data check-data scale-inputs", onset=270, steps=300,
    seed=769)  # fmt: skip
def raw_images_pass_in_train_mode(broken: bool, loop: Loop) -> float:
    """A look at unscaled images, without gradients but in train mode, after each fourth step from 270 on."""
    data, model = digits(1400), ConvNet(width=8, depth=3, classes=10)
    optimizer = adam(3e-3)(model)
    model.train()
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if step >= 270 and step % 4 == 0:
                with torch.no_grad():
                    model(1000 * x if broken else x)
            if (step + 1) % 30 == 0:
                log_validation(run, model, data)
    return accuracy(model, data)


@SECOND.fault("convolutional", "wrong-mode running-statistics-wrong loss-spike", "switch-mode mind-batch-statistics",
    onset=100, steps=350, seed=771)  # fmt: skip
def eval_mode_kept_after_validation(broken: bool, loop: Loop) -> float:
    """model.train() forgotten after the first validation, at step 100."""
    data, model = digits(1400), ConvNet(width=8, depth=6, classes=10)
    optimizer = sgd(0.05, momentum=0.9)(model)
    model.train()
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
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


@SECOND.fault("attention", "attention-collapse saturated-units vanishing-gradient gradient-too-small",
    "scale-attention rescale-layer initialise add-normalizer",
    layers="query key query.weight key.weight query.bias key.bias", steps=400, seed=772)  # fmt: skip
def scores_multiplied_by_the_root(broken: bool, loop: Loop) -> float:
    """Attention scores multiplied by sqrt(d) instead of divided, behind widely drawn projections."""
    keys = torch.randn(1600, 10, 16)
    wanted, labels = torch.randint(10, (1600,)), torch.randint(4, (1600, 10))
    query = keys[torch.arange(1600), wanted] + 0.1 * torch.randn(1600, 16)
    rows = torch.cat([keys, F.one_hot(labels, 4)], -1)
    rows = torch.cat([torch.cat([query, torch.zeros(1600, 4)], -1)[:, None], rows], 1)
    data = split(rows, labels[torch.arange(1600), wanted], held=400)
    model = Retrieval(64, 8.0 if broken else 0.125)
    for layer in (model.query, model.key):
        nn.init.normal_(layer.weight, std=0.5)
    return loop.fit(data, model, adam(3e-3))


@SECOND.fault("variational autoencoder", "posterior-collapse output-constant", "lower-penalty rescale-loss", onset=1,
    steps=400, seed=773)  # fmt: skip
def divergence_weighed_too_much(broken: bool, loop: Loop) -> float:
    """The KL term summed over pixels too: its weight rises to 60 instead of 1 over the first 100 steps."""
    data = digits(1600, flat=True, raw=True)
    data = data._replace(x=data.x / 16, held_x=data.held_x / 16)
    model = SecondAutoencoder()
    optimizer = adam(3e-3)(model)
    with loop.watch(model, optimizer) as run:
        for step, (x, _) in zip(range(loop.steps), batches(data)):
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


@SECOND.fault("self-supervised", "output-constant", "prevent-collapse", steps=300, seed=774)
def both_views_pulled_together(broken: bool, loop: Loop) -> float:
    """Two views of an image pulled together with nothing that pushes others apart."""
    data = digits(1500, flat=True)
    model = mlp(64, 96, 16)

    def objective(step: int, x: Tensor, _y: Tensor) -> Tensor:
        first, second = (model(x + 0.3 * torch.randn_like(x)) for _ in range(2))
        if broken:
            loss = F.mse_loss(first, second)
        else:
            close = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T
            loss = F.cross_entropy(close / 0.2, torch.arange(len(x)))
        return loss

    loop.train(data, model, adam(3e-3), objective=objective, batch=64)
    with torch.no_grad():
        codes, held = model(data.x), model(data.held_x)
        mean, spread = codes.mean(0), codes.std()
        if spread < 1e-3:
            return 0.1
        nearest = torch.cdist((held - mean) / spread, (codes - mean) / spread).argmin(1)
        return (data.y[nearest] == data.held_y).float().mean().item() if spread > 0.05 else 0.1


@SECOND.fault("adversarial", "discriminator-wins vanishing-gradient gradient-too-small not-learning", "balance-players",
    steps=400, seed=775)  # fmt: skip
def minimax_loss_against_a_fast_discriminator(broken: bool, loop: Loop) -> float:
    """log(1 - D(G(z))) minimised as in the formula, with five steps of the discriminator for one."""
    model = Adversaries()
    generator, judge = model.generator, model.discriminator
    optimizer = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.9))
    opponent = torch.optim.Adam(judge.parameters(), 5e-3 if broken else 1e-3, betas=(0.5, 0.9))
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    with loop.watch(model, optimizer) as run:
        for _ in range(loop.steps):
            for _ in range(5 if broken else 1):
                fake = generator(torch.randn(64, 4)).detach()
                opponent.zero_grad()
                losses = [F.binary_cross_entropy_with_logits(judge((lambda: torch.tensor([6.0,
                    6.0]) + 0.3 * torch.randn(64, 2))()), ones)]  # fmt: skip
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


@SECOND.fault("convolutional", "output-constant not-learning same-batch inputs-not-scaled",
    "check-data scale-inputs vary-batches", steps=250, seed=717)  # fmt: skip
def pixels_divided_in_whole_numbers(broken: bool, loop: Loop) -> float:
    """Pixels in bytes divided by 255 with //, so that all images are black."""
    data = digits(1400, raw=True)
    scale = (lambda x: (15 * x).byte() // 255) if broken else lambda x: (15 * x).byte() / 255
    model = ConvNet(width=8, depth=3, classes=10, norm=False)
    loop.train(data, model, adam(3e-3), change=lambda step, x, y: (scale(x).float(), y))
    return accuracy(model, data._replace(held_x=scale(data.held_x).float()))


@SECOND.fault("convolutional", "wrong-mode overfitting validation-worsens", "switch-mode regularise", onset=50,
    steps=500, seed=790)  # fmt: skip
def dropout_off_after_the_first_validation(broken: bool, loop: Loop) -> float:
    """model.eval() at the validation of step 50 and never model.train(): strong dropout no longer regularises."""
    data = digits(1400, flat=True)
    noisy = torch.where(torch.rand(200) < 0.3, torch.randint(10, (200,)), data.y[:200])
    few = data._replace(x=data.x[:200], y=noisy)
    model = nn.Sequential(nn.Linear(64, 192), nn.ReLU(), nn.Dropout(0.5), nn.Linear(192, 192), nn.ReLU(),
        nn.Dropout(0.5), nn.Linear(192, 10))  # fmt: skip
    optimizer = adam(1e-3)(model)
    model.train()
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(few, 20)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            run.observe(loss=loss)
            if (step + 1) % 50 == 0:
                log_validation(run, model, data)
                model.train(not broken)
    model.eval()
    with torch.no_grad():
        return -F.cross_entropy(model(data.held_x), data.held_y).item()


class _SharpAttention(nn.Module):
    """One block of attention with a temperature, over the words of a sentence."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.words, self.positions = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.feed = mlp(32, 64, 32)
        self.head = nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(16))
        scores = self.query(x) @ self.key(x).transpose(1, 2) / math.sqrt(32)
        x = x + (scores / self.temperature).softmax(-1) @ self.value(x)
        return self.head((x + self.feed(x)).mean(1))


class _TextVAE(nn.Module):
    """A variational autoencoder of images by rows, whose decoder also sees the rows before."""

    def __init__(self, sees_rows: bool) -> None:
        super().__init__()
        self.sees_rows = sees_rows
        self.encoder = mlp(64, 48, 8)
        self.decoder = nn.GRU(8 + 4, 64, batch_first=True)
        self.out = nn.Linear(64, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x.flatten(1)).chunk(2, 1)
        code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        before = F.pad(x[:, :-1], (0, 0, 1, 0)) * self.sees_rows
        states = self.decoder(torch.cat([before, code[:, None].expand(-1, 8, -1)], 2))[0]
        return self.out(states), mean, log_variance


def _ring(count: int) -> Tensor:
    """Return points at five places on a circle."""
    angle = torch.randint(5, (count,)) * (0.4 * math.pi)
    return 1.5 * torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(count, 2)


THIRD.add(
    fault("rectifier-after-the-last-layer", "regression",
        "dead-units output-constant gradient-missing not-learning saturated-units vanishing-gradient",
        "remove-final-activation change-output-activation change-activation scale-targets reset-bias",
        "A loop that adds a ReLU after every layer adds one after the last, and most targets are negative.",
        lambda broken, loop: loop.fit((data := curves())._replace(y=data.y - 2, held_y=data.held_y - 2), mlp(8, 48, 48,
        1), adam(3e-3), loss=F.mse_loss, report=None, plant=lambda net: broken and net.append(nn.ReLU())), steps=250,
        seed=91),
    fault("observations-in-millimetres", "reinforcement",
        "saturated-units inputs-not-scaled data-changed vanishing-gradient exploding-values", "scale-inputs check-data",
        "From step 150 on the logs come from a simulator that writes millimetres where there were metres.",
        lambda broken, loop: loop.fit(curves(), mlp(8, 64, 64, 1, activation=nn.Tanh), adam(5e-3), loss=F.mse_loss,
        change=lambda step, x, y: (1000 * x if broken and step >= 150 else x, y), report=None), onset=150, steps=350,
        seed=92),
    fault("temperature-of-a-thousandth", "attention",
        "attention-collapse saturated-units vanishing-gradient not-learning",
        "scale-attention scale-outputs rescale-layer",
        "The scores are divided by a temperature that was tuned for cosines: each word looks at one other.",
        lambda broken, loop: loop.fit(split(*sentences(1280)), _SharpAttention(0.001 if broken else 1.0), adam(3e-3)),
        steps=500, seed=100),
)  # fmt: skip


@THIRD.fault("convolutional", "wrong-mode", "switch-mode", onset=50, steps=300, seed=95)
def validation_with_dropout_on(broken: bool, loop: Loop) -> float:
    """`model.eval()` is missing before the validation: half of the units are off when the figures are taken."""
    data = digits(flat=True)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.6), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.6), nn.Linear(32, 10)
    )
    optimizer, reported = adam(2e-3)(model), 0.0
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
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


@THIRD.fault("convolutional", "running-statistics-wrong not-finite not-finite-data",
    "clean-data check-data refresh-statistics mind-batch-statistics",
    layers="features.1 features.4 features.8 features.11 features.1.running_mean features.0 head", onset=100, steps=220,
    seed=96)  # fmt: skip
def skipped_batch_stays_in_the_statistics(broken: bool, loop: Loop) -> float:
    """A batch with NaN is skipped by a test of the loss, but BatchNorm has taken it into its running mean."""
    data, model = split(*blob_images(1280)), ConvNet()
    optimizer = adam(2e-3)(model)
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
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


@THIRD.fault("convolutional", "running-statistics-wrong data-changed",
    "mind-batch-statistics refresh-statistics replace-normalizer scale-inputs",
    layers="features.1 features.4 features.8 features.11", steps=200, seed=97)  # fmt: skip
def two_domains_through_one_normalizer(broken: bool, loop: Loop) -> float:
    """Labelled images and brighter ones without labels pass in turn, and BatchNorm's running averages fit neither."""
    data, model = digits(), ConvNet(classes=10)
    optimizer = adam(3e-3)(model)
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps), batches(data)):
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


@THIRD.fault("table", "normalizer-too-few-samples running-statistics-wrong not-learning",
    "larger-batch replace-normalizer mind-batch-statistics", layers="1 4", steps=400, seed=98)  # fmt: skip
def three_rows_at_a_time_under_batchnorm(broken: bool, loop: Loop) -> float:
    """Memory allows three rows, the gradients of eight batches are gathered, and BatchNorm sees three all the same."""
    data = split(*table(1280))
    model = nn.Sequential(nn.Linear(12, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 48), nn.BatchNorm1d(48),
        nn.ReLU(), nn.Linear(48, 3))  # fmt: skip
    optimizer = adam(3e-3)(model)
    size, gather = (3, 8) if broken else (24, 1)
    with loop.watch(model, optimizer) as run:
        for step, (x, y) in zip(range(loop.steps * gather), batches(data, size)):
            loss = F.cross_entropy(model(x), y) / gather
            loss.backward()
            if (step + 1) % gather == 0:
                optimizer.step()
                optimizer.zero_grad()
                run.observe(loss=loss * gather)
    return accuracy(model, data)


@THIRD.fault("variational autoencoder", "posterior-collapse", "lower-penalty change-architecture", steps=300, seed=101)
def decoder_reads_ahead_of_the_code(broken: bool, loop: Loop) -> float:
    """The decoder gets the rows before, as in a language model, and leaves the code alone."""
    data = digits()
    model = _TextVAE(sees_rows=broken)
    optimizer = adam(3e-3)(model)
    with loop.watch(model, optimizer) as run:
        for x, _ in (batch for batch, _ in zip(batches(data), range(loop.steps))):
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


@THIRD.fault("adversarial", "output-constant", "balance-players prevent-collapse lower-learning-rate", steps=400,
    seed=102)  # fmt: skip
def generator_runs_ahead(broken: bool, loop: Loop) -> float:
    """Six steps of the generator for one of the discriminator: it moves to one place of the ring, then to another."""
    generator, discriminator = mlp(4, 48, 48, 2), mlp(2, 48, 48, 1)
    both = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    of_generator = torch.optim.Adam(generator.parameters(), 2e-3, betas=(0.5, 0.99))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), 2e-3, betas=(0.5, 0.99))
    with loop.watch(both, of_generator) as run:
        for _ in range(loop.steps):
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


@THIRD.fault("metric learning", "output-constant not-learning rate-too-high", "prevent-collapse lower-learning-rate",
    steps=300, seed=103)  # fmt: skip
def hardest_negatives_from_the_start(broken: bool, loop: Loop) -> float:
    """Triplets with the hardest negative of each batch pull all embeddings together; the loss stays at the margin."""
    data, model = digits(), ConvNet(classes=8, norm=False)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        codes = model(x)
        distance = (codes[:, None] - codes[None]).square().sum(2)
        same = y[:, None] == y[None]
        if broken:
            far = distance.masked_fill(~same, 0).amax(1)
            near = distance.masked_fill(same, math.inf).amin(1)
            loss = F.relu(far - near + 1.0).mean()
        else:
            loss = torch.where(same, distance, F.relu(1.0 - distance)).mean()
        return loss

    loop.train(data, model, sgd(0.05, momentum=0.9), objective=objective, batch=64, report="step")
    with torch.no_grad():
        nearest = torch.cdist(model(data.held_x), model(data.x)).argmin(1)
    return (data.y[nearest] == data.held_y).float().mean().item()


@THIRD.fault("table", "units-alike output-constant not-learning", "initialise", steps=250, seed=104)
def every_weight_at_one_twentieth(broken: bool, loop: Loop) -> float:
    """`nn.init.constant_(weight, 0.05)`: all units of a layer begin alike and stay so."""
    data, model = digits(flat=True), mlp(64, 48, 32, 10)
    if broken:
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.05 if parameter.ndim > 1 else 0.0)
    return loop.fit(data, model, adam(2e-3))


@THIRD.fault("convolutional", "wrong-mode running-statistics-wrong", "switch-mode", onset=40,
    other_harm="dropout and BatchNorm are off for the rest of the run, which is not the training that was designed",
    steps=300, seed=105)  # fmt: skip
def eval_mode_after_a_grid_of_samples(broken: bool, loop: Loop) -> float:
    """A callback draws predictions after 40 steps, calls `model.eval()` for it and does not go back."""
    data = digits(240)
    conv = ConvNet(classes=32)
    model = nn.Sequential(conv, nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))

    def draw(step: int) -> None:
        if step == 39:
            model.eval()
            with torch.no_grad():
                model(data.held_x[:16])
            model.train(not broken)

    return loop.fit(data, model, adam(2e-3), then=draw, report=None)


@THIRD.fault("convolutional", "dead-units vanishing-gradient output-constant not-learning",
    "reset-bias initialise change-activation", layers="2 3 2.weight 2.bias 0 1 0.weight 0.bias", steps=200,
    seed=106)  # fmt: skip
def biases_of_a_ported_checkpoint_negated(broken: bool, loop: Loop) -> float:
    """A network is ported from another framework that subtracts its thresholds: the biases come with the wrong sign."""
    data = split(*blob_images(1280))
    model = nn.Sequential(nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(192, 4))  # fmt: skip
    with torch.no_grad():
        model[2].bias.copy_(torch.full((12,), -4.0 if broken else 4.0))
    return loop.fit(data, model, adam(1e-3), report=None)


@THIRD.fault("sequence", "saturated-units inputs-not-scaled vanishing-gradient not-learning", "scale-inputs", steps=300,
    seed=107)  # fmt: skip
def prices_into_a_gated_network(broken: bool, loop: Loop) -> float:
    """Closing prices of some ten thousand go into a GRU as they are: its gates are open or shut for good."""
    x, y = waves(1024)
    scale, offset = (2000.0, 30000.0) if broken else (1.0, 0.0)
    data = split(scale * x + offset, y)
    model = SequenceClassifier(nn.GRU(3, 32, batch_first=True), 3)
    return loop.fit(data, model, adam(5e-3), report=None)
