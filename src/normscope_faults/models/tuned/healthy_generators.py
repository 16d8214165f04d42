"""Healthy autoencoders, generators and networks of pairs: fresh, trained a little or well, some of them awkward."""

import copy
import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim import Adam

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import filled
from ...training import contrastive_loss, evidence_loss, train
from . import rarer


def of_discriminator(scores: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss of telling data from what was generated."""
    real, made = scores
    return rarer.LOGISTIC(real, torch.ones_like(real)) + rarer.LOGISTIC(made, torch.zeros_like(made))


class OwnLosses(rarer.Adversaries):  # Adversaries that compute the loss of one of them themselves.
    def forward(self, noise: Tensor, images: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        real, made = super().forward(noise, images)
        return {"loss": of_discriminator((real, made)) if self.detached else rarer.of_generator((real, made))}


def hinge(output: Tensor, sign: Tensor) -> Tensor:
    """Return the hinge loss of a GAN's discriminator; targets are 1 and -1."""
    return F.relu(1 - output * sign).mean()


class Predictor(nn.Module):
    """Two views, an online network with a predictor, and a frozen copy without a gradient (BYOL)."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target, self.predict = nets.mlp(256, 64, 16), nets.mlp(256, 64, 16), nets.mlp(16, 32, 16)
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False)

    def forward(self, views: Tensor) -> Tensor:
        first, second = views.flatten(2).unbind(1)
        with torch.no_grad():
            aim = self.target(second)
        return 2 - 2 * F.cosine_similarity(self.predict(self.online(first)), aim)


@OPEN
def code_drawn_with_rsample() -> Case:
    """VAE | 2101"""
    return rarer.vae_case(lambda mean, deviation: torch.distributions.Normal(mean, deviation).rsample())


@OPEN
def second_decoder_on_a_detached_code() -> Case:
    """VAE | 2110"""

    class TwoStages(nets.VAE):
        """Also decodes a code without its graph, by a decoder that is to leave the code as it is."""

        def __init__(self) -> None:
            super().__init__()
            self.second = nets.mlp(4, 64, 256)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            hidden = self.encoder(x)
            mean, log_variance = self.mean(hidden), self.log_variance(hidden)
            code = self.draw(mean, log_variance)
            return self.decoder(code), mean, log_variance, self.second(code.detach())

    def both(output: tuple[Tensor, Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
        again = F.binary_cross_entropy_with_logits(output[3], target, reduction="none").sum(1).mean()
        return evidence_loss(output[:3], target) + again

    x = rarer.shapes()
    return Case((x, x), TwoStages(), both, judge_of=lambda x: lambda made: -both(made, x).item())


@OPEN
def score_of_an_energy() -> Case:
    """energy | 2104"""

    # Differentiates an energy.
    def score(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_(True)
            return -torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]

    x, _ = draw.regression_table()
    noise = torch.randn_like(x)
    net = nets.made("Score", score)
    net.energy = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))
    return Case((x + 0.3 * noise, -noise), net, "mse")


@OPEN
def representation_that_is_compared() -> Case:
    """Siamese | 2107"""

    # Predicts the representation of the sample beside it, as SimSiam does.
    def siamese(self, pairs: Tensor) -> Tensor:
        code = self.encoder(pairs)
        return F.cosine_similarity(self.predictor(code)[:, 0], code.detach()[:, 1])

    x, _ = draw.table()
    pairs = torch.stack([x, x + 0.1 * torch.randn_like(x)], 1)
    net = nets.made("Siamese", siamese)
    net.encoder, net.predictor = nn.Sequential(*nets.mlp(12, 32, 16)), nn.Sequential(*nets.mlp(16, 8, 16))
    return Case(pairs, net, objective=lambda output: -output.mean())


@OPEN
def tied_autoencoder_trained_a_little() -> Case:
    """autoencoder | 2004"""

    # The decoder multiplies by the transposed weights of the encoder.
    def tied_autoencoder(self, x: Tensor) -> Tensor:
        code = F.linear(torch.tanh(F.linear(x, self.weights[0])), self.weights[1])
        return F.linear(torch.tanh(F.linear(code, self.weights[1].T)), self.weights[0].T) + self.shift

    x = draw.blob_images(96)[0].flatten(1)
    model = nets.made("TiedAutoencoder", tied_autoencoder)
    model.weights = nn.ParameterList(nn.Parameter(torch.randn(o, i) / i**0.5) for i, o in pairwise((256, 64, 8)))
    model.shift = nn.Parameter(torch.zeros(256))
    return Case((x, x), model, "mse", steps=40)


def negative_likelihood(output: tuple[Tensor, Tensor]) -> Tensor:
    """Return the negative logarithm of the likelihood of a flow, without its constant."""
    code, log_determinant = output
    return (0.5 * code.square().sum(1) - log_determinant).mean()


class Flow(nn.Module):
    """Affine couplings that start at the identity; returns the code and the logarithm of the determinant."""

    def __init__(self, width: int = 6, depth: int = 4) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets.mlp(width // 2, 32, width) for _ in range(depth))
        for net in self.nets:
            nn.init.zeros_(net[-1].weight)
            nn.init.zeros_(net[-1].bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.new_zeros(len(x))
        for net in self.nets:
            first, second = x.chunk(2, 1)
            log_scale, shift = net(first).chunk(2, 1)
            log_scale = torch.tanh(log_scale)
            x = torch.cat([second * log_scale.exp() + shift, first], 1)
            total = total + log_scale.sum(1)
        return x, total


class TimedUNet(nn.Module):
    """A U-Net of two levels; the time enters each level as a shift of the channels, and the last layer is zero."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, width))
        self.enter, self.down = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, width, 3, 2, 1)
        self.middle, self.up = nn.Conv2d(width, width, 3, padding=1), nn.ConvTranspose2d(width, width, 2, 2)
        self.norm1, self.norm2 = nn.GroupNorm(4, width), nn.GroupNorm(4, width)
        self.join, self.last = nn.Conv2d(2 * width, width, 3, padding=1), nn.Conv2d(width, 1, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * 10.0 ** -torch.linspace(0, 3, 8)
        shift = self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None]
        wide = F.silu(self.norm1(self.enter(x) + shift))
        deep = F.silu(self.middle(F.silu(self.norm2(self.down(wide) + shift))))
        return self.last(F.silu(self.join(torch.cat([wide, self.up(deep)], 1))))


def noised(count: int = 64) -> tuple[dict[str, Tensor], Tensor]:
    """Return images with noise and the time that says how much, and the noise."""
    images, noise, t = (
        draw.blob_images(count, size=8)[0],
        torch.randn(count, 1, 8, 8),
        torch.randint(1000, (count,)).float(),
    )
    share = (t / 1000)[:, None, None, None]
    return {"x": (1 - share).sqrt() * images + share.sqrt() * noise, "t": t}, noise


@OPEN
def timed_u_net_trained_a_little() -> Case:
    """diffusion | 2011"""
    inputs, noise = noised()
    model, optimizer = TimedUNet(), None
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(40):
        optimizer.zero_grad()
        F.mse_loss(model(**inputs), noise).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case((inputs, noise), model, "mse", train=False)


class MaskedAutoencoder(nn.Module):
    """A Transformer that sees a quarter of the patches of an image and fills in the others."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter, self.places = nn.Linear(16, width), nn.Parameter(0.02 * torch.randn(16, width))
        self.missing = nn.Parameter(torch.zeros(width))
        self.encoder, self.decoder = (
            nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm, self.leave = nn.LayerNorm(width), nn.Linear(width, 16)

    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(x, 4, stride=4).mT
        shown = torch.rand(patches.shape[:2]).argsort(1)[:, :4, None]
        read = (self.enter(patches) + self.places).gather(1, shown.expand(-1, -1, self.places.shape[1]))
        whole = self.missing.expand(len(x), 16, -1).scatter(1, shown.expand(-1, -1, read.shape[2]), self.encoder(read))
        return F.fold(self.leave(self.norm(self.decoder(whole + self.places))).mT, 16, 4, stride=4)


class Averaged(nn.Module):
    """A student and the moving average of it, which the loss compares with; only the student learns."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(12, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 16))
        self.predictor = nets.mlp(16, 32, 16)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            wanted = self.teacher(x + 0.05 * torch.randn_like(x))
        return self.predictor(self.student(x)), wanted


def directions_apart(output: tuple[Tensor, Tensor]) -> Tensor:
    """Return how far the directions of prediction and target are apart."""
    return 2 - 2 * F.cosine_similarity(*output, dim=1).mean()


@OPEN
def student_and_its_average() -> Case:
    """self-supervised | 2020"""
    x, _ = draw.table()
    model = Averaged()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        directions_apart(model(x)).backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(model.teacher.parameters(), model.student.parameters()):
                slow.lerp_(fast, 0.05)
    optimizer.zero_grad()
    return Case(x, model, directions_apart)


@FIRST
def siamese_with_dict_of_outputs() -> Case:
    """Siamese | 244"""

    class Named(nets.Siamese):
        """Returns embeddings by name."""

        def forward(self, pairs: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
            first, second = super().forward(pairs)
            return {"first": first, "second": second}

    def cosine_loss(output: dict[str, Tensor], same: Tensor) -> Tensor:
        return F.cosine_embedding_loss(output["first"], output["second"], 2 * same - 1, margin=0.2)

    pairs, same = draw.image_pairs()
    return Case((pairs, same), Named(), cosine_loss)


@FIRST
def denoiser_trained_a_little() -> Case:
    """diffusion | 246"""
    batch, noise = draw.noisy_images()
    model = nets.Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(50):
        optimizer.zero_grad()
        F.mse_loss(model(**batch), noise).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case(batch, model)


@FIRST
def student_beside_its_frozen_teacher() -> Case:
    """Siamese | 247"""

    class Momentum(nn.Module):
        """A student that follows a frozen copy of itself, as in BYOL: the copy needs no gradient."""

        def __init__(self) -> None:
            super().__init__()
            self.student = nets.mlp(256, 64, 32)
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)
            self.predictor = nn.Linear(32, 32)

        def forward(self, pairs: Tensor) -> Tensor:
            guess = self.predictor(self.student(pairs[:, 0].flatten(1)))
            with torch.no_grad():
                aim = self.teacher(pairs[:, 1].flatten(1))
            return F.cosine_similarity(guess, aim)

    pairs, _ = draw.image_pairs()
    return Case(pairs, Momentum())


@SECOND
def stopped_gradients_on_purpose() -> Case:
    """contrastive | 302"""

    # Two views of an image; each predicts the embedding of the other, which is detached (Chen and He 2021).
    def sim_siam(self, views: Tensor) -> Tensor:
        first, second = self.encoder(views[:, :1]), self.encoder(views[:, 1:])
        left = F.cosine_similarity(self.predictor(first), second.detach(), dim=1)
        right = F.cosine_similarity(self.predictor(second), first.detach(), dim=1)
        return -0.5 * (left + right).mean()

    images, _ = draw.blob_images()
    views = torch.cat([images + 0.3 * torch.randn_like(images) for _ in range(2)], dim=1)
    net = nets.made("SimSiam", sim_siam)
    net.encoder = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
    net.predictor = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32))
    return Case(views, net, objective=lambda output: output)


class ModulatedBlock(nn.Module):
    """A block of DiT in small: the time gives shift, scale and gate, all of them zero at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.modulation = nn.Linear(width, 3 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        shift, scale, gate = self.modulation(F.silu(time)).chunk(3, dim=1)
        return x + gate * self.feed(self.norm(x) * (1 + scale) + shift)


class TinyDiT(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(64, width), nn.Linear(width, 64)
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.register_buffer("frequencies", torch.exp(-math.log(1000.0) * torch.arange(8) / 8))
        self.blocks = nn.ModuleList(ModulatedBlock(width) for _ in range(2))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * self.frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        hidden = self.embed(x.flatten(1))
        for block in self.blocks:
            hidden = block(hidden, time)
        return self.head(hidden).view_as(x)


@SECOND
def modulation_that_starts_at_zero() -> Case:
    """diffusion | 306"""
    data, noise = draw.noisy_images()
    model = TinyDiT()
    optimizer = Adam(model.parameters(), lr=2e-3)
    for _ in range(40):
        optimizer.zero_grad()
        F.mse_loss(model(**data), noise).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case((data, noise), model, "mse")


@SECOND
def variational_autoencoder_trained() -> Case:
    """VAE | 227"""
    images = draw.as_pixels(draw.blob_images(128)[0]).flatten(1)
    model = nets.VAE()
    model.encoder[1] = nn.SiLU()
    train(model, images, images, evidence_loss, steps=150, optimizer=Adam(model.parameters(), lr=5e-4))
    return Case((images, images), model, evidence_loss)


@SECOND
def twins_trained() -> Case:
    """Siamese | 230"""
    pairs, same = draw.image_pairs()
    model = nets.Siamese()
    train(model, pairs, same, contrastive_loss, steps=60, optimizer=Adam(model.parameters(), lr=5e-4))
    return Case((pairs, same), model, contrastive_loss)


@SECOND
def denoiser_after_forty_steps() -> Case:
    """diffusion | 232"""
    data, noise = draw.noisy_images()
    model = nets.Denoiser()
    optimizer = Adam(model.parameters(), lr=2e-3)
    for _ in range(40):
        optimizer.zero_grad()
        F.mse_loss(model(**data), noise).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case((data, noise), model, "mse")


@THIRD
def autoencoder_that_takes_noise_away() -> Case:
    """autoencoder | 229"""
    x = draw.blob_images()[0].flatten(1)
    model = nets.Autoencoder(code=16)
    train(model, x, x, F.mse_loss, steps=60)
    return Case(model=model, data=(x + 0.3 * torch.randn_like(x), x), loss="mse")


@THIRD
def views_matched_across_the_batch() -> Case:
    """contrastive | 257"""

    # Two views of images, compared across the batch by cosine with a learned temperature, on purpose.
    def contrastive(self, pairs: Tensor) -> Tensor:
        first, second = (F.normalize(self.encoder(pairs[:, [channel]]), dim=1) for channel in (0, 1))
        return self.log_scale.exp() * first @ second.T

    images, _ = draw.blob_images(48)
    pairs = torch.cat([images, images + 0.2 * torch.randn_like(images)], dim=1)
    net = nets.made("Contrastive", contrastive)
    net.encoder = nn.Sequential(nn.Flatten(), *nets.mlp(256, 64, 32))
    net.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))
    return Case((pairs, torch.arange(48)), net, "cross_entropy")


# Rows of a table, packed.
# fmt: off
OPEN("step-of-a-discriminator | GAN | 2202", lambda: given(rarer.Adversaries(detached=True),
    lambda model: Case(rarer.noise_and_images(), model, of_discriminator, objective=of_discriminator,
    optimizer=rarer.adam(model.discriminator))))
OPEN("step-of-a-discriminator-that-takes-its-own-loss | GAN | 2203", lambda: Case(model=OwnLosses(detached=True),
    data=rarer.noise_and_images(), objective=lambda output: output["loss"]))
OPEN("step-of-a-generator-that-takes-its-own-loss | GAN | 2204", lambda: Case(model=OwnLosses(detached=False),
    data=rarer.noise_and_images(), objective=lambda output: output["loss"]))
OPEN("zero-initialised-last-convolution | diffusion | 702", lambda: Case(draw.noisy_images(), filled("last.bias",
    0.0)(filled("last.weight", 0.0)(nets.Denoiser())), "mse"))
OPEN("linear-bottleneck | autoencoder | 710", lambda: given(draw.blob_images()[0].flatten(1), lambda x: Case((x, x),
    nn.Sequential(nn.Linear(256, 8), nn.Linear(8, 256)), "mse", steps=80)))
OPEN("bottleneck-autoencoder-of-images-in-unit-range | autoencoder | 711", lambda:
    given(draw.as_pixels(draw.blob_images()[0]).flatten(1), lambda x: Case((x, x), nets.Autoencoder(code=4,
    last=nn.Sigmoid()), nn.BCELoss())))
OPEN("pixel-shuffle | super-resolution | 721", lambda: given(draw.as_pixels(draw.blob_images(32)[0]),
    lambda x: Case((F.avg_pool2d(x, 2), x), nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1, groups=4), nn.ReLU(), nn.Conv2d(16, 4, 3, padding=1), nn.PixelShuffle(2)), "mse")))
OPEN("siamese-pairs | Siamese | 745", lambda: Case(draw.image_pairs(), nets.Siamese(), contrastive_loss))
OPEN("vae-trained-a-little | VAE | 746", lambda: given(draw.as_pixels(draw.blob_images()[0]).flatten(1),
    lambda x: Case((x, x), nets.VAE(), evidence_loss, steps=60)))
OPEN("generator-from-noise | GAN | 747", lambda: Case(model=nets.Generator(), data=torch.randn(48, 16)))
OPEN("spectral-norm-in-a-discriminator | GAN | 748", lambda: given(draw.blob_images(48),
    lambda x, _: given((torch.arange(48) % 2)[:, None].float(), lambda real: Case((torch.where(real[:, :, None,
    None] > 0.5, x, torch.randn_like(x)), real), nets.discriminator(spectral_norm),
    F.binary_cross_entropy_with_logits))))
OPEN("residual-of-an-enlarged-image | super-resolution | 907", lambda: given(draw.blob_images()[0],
    lambda large: Case((F.avg_pool2d(large, 2), large), filled("body.-1.bias", 0.0)(filled("body.-1.weight",
    0.0)(rarer.Enlarger(lambda image: image))), nn.L1Loss())))
OPEN("film-from-zero | diffusion | 908", lambda: Case(draw.noisy_images(), rarer.FilmDenoiser(1.0), "mse"))
OPEN("discriminator-with-a-hinge | GAN | 911", lambda: given(draw.blob_images(classes=2),
    lambda x, y: given((2.0 * y - 1)[:, None], lambda sign: Case((torch.where(sign[:, :, None, None] > 0, x,
    torch.randn_like(x)), sign), nets.discriminator(spectral_norm), hinge, steps=2))))
OPEN("decoder-tied-to-encoder | autoencoder | 916", lambda: given(draw.blob_images()[0].flatten(1), lambda x: Case((x,
    x), nets.made("TiedAutoencoder", lambda self, x: F.linear(torch.tanh(F.linear(x, self.weight, self.inner)),
    self.weight.T, self.outer), weight=nn.Parameter(torch.randn(24, 256) / 16), inner=nn.Parameter(torch.zeros(24)),
    outer=nn.Parameter(torch.zeros(256))), "mse")))
OPEN("codebook-partly-unused | VQ-VAE | 946", lambda: given(draw.blob_images(96, classes=8)[0].flatten(1),
    lambda x: Case((x, x), rarer.Quantised(straight=True), "mse", steps=40)))
OPEN("flow-close-to-the-identity | flow | 947", lambda: given(torch.randn(128, 8) @ torch.randn(8, 8) / 3,
    lambda x: Case((x, x), rarer.Coupling(bounded=True, gain=0.01), rarer.flow_loss)))
OPEN("towers-with-a-learned-scale | CLIP | 948", lambda: Case(model=rarer.Towers(math.log(5)), data=rarer.halves(),
    loss="cross_entropy"))
OPEN("scaled-cosines-of-pairs-trained | Siamese | 949", lambda: Case(draw.image_pairs(), rarer.CosinePairs(10.0),
    nn.BCEWithLogitsLoss(), steps=15))
OPEN("target-network-without-gradient | self-supervised | 960", lambda: given(draw.blob_images(),
    lambda images, _: given(torch.stack([images[:, 0] + 0.2 * torch.randn(64, 16, 16) for _ in range(2)], dim=1),
    lambda views: Case((views, torch.zeros(64)), Predictor(), lambda output, target: (output - target).mean()))))
OPEN("condition-dropped-at-times | conditional | 963", lambda: given(torch.arange(96) % 6,
    lambda label: given(torch.sin(torch.linspace(0, 3, 32) * (1 + label[:, None])) + 0.05 * torch.randn(96, 32),
    lambda curve: Case(model=rarer.Conditional(0.1), data=({"noise": torch.randn(96, 8), "label": label}, curve),
    loss="mse"))))
OPEN("hourglass-trained-a-little | autoencoder | 974", lambda: given(draw.blob_images(), lambda x, _: Case((x, x),
    rarer.Hourglass(), "mse", steps=50)))
OPEN("choice-by-a-hard-gumbel-softmax | autoencoder | 2106", lambda: given(draw.regression_table(),
    lambda x, _: Case((x, x), nets.made("Choice", lambda self, x: self.decoder(F.gumbel_softmax(self.encoder(x),
    hard=True)), encoder=nn.Sequential(*nets.mlp(8, 32, 10)), decoder=nn.Sequential(*nets.mlp(10, 32, 8))), "mse")))
OPEN("couplings-from-zero | flow | 2005", lambda: Case(torch.randn(128, 6) @ torch.randn(6, 6) / 2, Flow(),
    negative_likelihood))
OPEN("least-squares-discriminator-trained | GAN | 2006", lambda: given(draw.blob_images(96, classes=2),
    lambda x, y: given(y[:, None].float(), lambda real: Case((torch.where(real[:, :, None, None] > 0, x,
    torch.randn_like(x)), real), nn.Sequential(spectral_norm(nn.Conv2d(1, 16, 4, 2, 1)), nn.LeakyReLU(0.2),
    spectral_norm(nn.Conv2d(16, 32, 4, 2, 1)), nn.LeakyReLU(0.2), nn.Flatten(), spectral_norm(nn.Linear(512, 1))),
    "mse", steps=30))))
OPEN("timed-u-net-from-zero | diffusion | 2010", lambda: Case(model=TimedUNet(), data=noised(), loss="mse"))
OPEN("a-quarter-of-the-patches-shown | masked autoencoder | 2016", lambda: given(draw.blob_images(48),
    lambda x, _: Case((x, x), MaskedAutoencoder(), "mse")))
OPEN("pixels-with-a-sigmoid-trained | autoencoder | 2027", lambda:
    given(draw.as_pixels(draw.blob_images(96)[0]).flatten(1), lambda x: Case((x, x), nn.Sequential(nets.mlp(256, 32, 6),
    nets.mlp(6, 32, 256), nn.Sigmoid()), "mse", train=False, steps=80)))
FIRST("sigmoid-output-for-pixels-with-bce | autoencoder | 238", lambda: given(draw.blob_images(64),
    lambda images, _: given(draw.as_pixels(images).flatten(1), lambda x: Case((x, x.clone()),
    nets.Autoencoder(last=nn.Sigmoid()), nn.BCELoss()))))
FIRST("sigmoid-output-for-pixels-with-mse-trained | autoencoder | 239", lambda: given(draw.blob_images(64),
    lambda images, _: given(draw.as_pixels(images).flatten(1), lambda x: Case((x, x.clone()),
    train(nets.Autoencoder(last=nn.Sigmoid()), x, x, F.mse_loss, steps=100), nn.MSELoss()))))
FIRST("fresh-vae | VAE | 240", lambda: given(draw.blob_images(64), lambda images, _:
    given(draw.as_pixels(images).flatten(1), lambda x: Case((x, x.clone()), nets.VAE(), evidence_loss))))
FIRST("fresh-generator | GAN generator | 241", lambda: Case(model=nets.Generator(), data=torch.randn(32, 16)))
FIRST("discriminator-with-spectral-norm | discriminator | 242", lambda: given(draw.blob_images(64, classes=2),
    lambda x, y: Case((x, y.float()[:, None]), nets.discriminator(parametrizations.spectral_norm),
    nn.BCEWithLogitsLoss())))
FIRST("siamese-with-pair-of-outputs | Siamese | 243", lambda: Case(draw.image_pairs(), nets.Siamese(),
    contrastive_loss))
FIRST("denoiser-with-zero-last-convolution | diffusion | 245", lambda: given(draw.noisy_images(),
    lambda batch, _: Case(batch, filled("last.bias", 0.0)(filled("last.weight", 0.0)(nets.Denoiser())))))
SECOND("nearest-codes-with-straight-through | autoencoder | 303", lambda:
    given(draw.blob_images(classes=8)[0].flatten(1), lambda images: Case((images, images),
    rarer.QuantisedAutoencoder(straight=True), "mse")))
SECOND("code-of-two-numbers | autoencoder | 324", lambda: given(draw.blob_images()[0].flatten(1),
    lambda images: Case((images, images), nn.Sequential(*nets.mlp(256, 64, 32, 2, activation=nn.ELU),
    *nets.mlp(2, 32, 64, 256, activation=nn.ELU)), "mse", steps=80)))
SECOND("triplets-on-the-sphere | Siamese | 328", lambda: given(draw.blob_images(96),
    lambda images, _: Case(torch.cat([images[0:64], images[4:68], images[1:65]], dim=1),
    nets.made("TripletNet", lambda self, triplets: tuple(F.normalize(self.encoder(triplets[:, k : k + 1]),
    dim=1) for k in range(3)), encoder=nn.Sequential(nn.Flatten(), *nets.mlp(256, 64, 16))),
    objective=lambda output: F.triplet_margin_loss(*output, margin=0.5))))
SECOND("autoencoder-of-pixels-with-a-sigmoid | autoencoder | 226", lambda:
    given(draw.as_pixels(draw.blob_images()[0]).flatten(1), lambda images: Case((images, images),
    nn.Sequential(*nets.mlp(256, 64, 8, activation=nn.GELU), *nets.mlp(8, 64, 256, activation=nn.GELU), nn.Sigmoid()),
    "mse", steps=150)))
SECOND("generator-as-dcgan-draws-it | GAN | 228", lambda: Case(model=nets.Generator(), data=torch.randn(32, 16)))
SECOND("discriminator-bounded-by-spectral-norm | GAN | 229", lambda: given(draw.blob_images(32),
    lambda images, _: given(torch.tanh(F.avg_pool2d(2 * torch.randn(32, 1, 16, 16), 3, 1, 1)),
    lambda fakes: given((torch.cat([images.mul(0.4).clamp(-1, 1), fakes]), torch.cat([torch.ones(32, 1),
    torch.zeros(32, 1)])), lambda both, real: Case((both, real), nets.discriminator(spectral_norm),
    nn.BCEWithLogitsLoss(), steps=40)))))
SECOND("contrastive-pairs-with-a-temperature | contrastive | 231", lambda:
    Case(model=rarer.ContrastiveEncoder(math.log(1 / 0.07)), data=rarer.two_views(), loss="cross_entropy"))
THIRD("convolutional-autoencoder-fresh | autoencoder | 228", lambda: given(draw.blob_images(), lambda x, _: Case((x, x),
    rarer.ConvAutoencoder(), "mse")))
THIRD("variational-autoencoder-of-pixels-fresh | VAE | 230", lambda:
    given(draw.as_pixels(draw.blob_images()[0]).flatten(1), lambda x: Case((x, x), nets.VAE(code=8), evidence_loss)))
THIRD("critic-of-real-and-false-images | GAN | 231", lambda: given(torch.cat([draw.blob_images(32)[0],
    torch.randn(32, 1, 16, 16)]), lambda x: Case((x, torch.cat([torch.ones(32, 1), torch.zeros(32, 1)])),
    nets.discriminator(), nn.BCEWithLogitsLoss())))
THIRD("generator-without-a-loss | GAN | 232", lambda: Case(model=nets.Generator(), data=torch.randn(32, 16)))
THIRD("pairs-of-images-fresh | Siamese | 235", lambda: Case(model=nets.Siamese(), data=draw.image_pairs(),
    loss=contrastive_loss))
THIRD("denoiser-fresh-with-sine-features | diffusion | 237", lambda: Case(model=nets.Denoiser(),
    data=draw.noisy_images(), loss="mse"))
THIRD("style-network-with-instance-norms | image to image | 261", lambda: given(draw.blob_images(24),
    lambda x, _: Case((x, F.avg_pool2d(x, 3, 1, 1)), nn.Sequential(nn.Conv2d(1, 16, 3, padding=1,
    padding_mode="reflect"), nn.InstanceNorm2d(16, affine=True), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1,
    padding_mode="reflect"), nn.InstanceNorm2d(16, affine=True), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1,
    padding_mode="reflect")), "mse")))
