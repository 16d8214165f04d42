"""Healthy networks that look suspicious: zeros, detached tensors, frozen bases, tiny gains and the like, on purpose."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.transformer import Transformer
from torch.optim import Adam

from ...case import Case, Healthy, healthy
from ..parts import (
    ConvNet,
    ResNet,
    as_pixels,
    blob_images,
    mlp,
    noisy_images,
    regression_table,
    sentences,
    table,
    text,
    train,
    waves,
)
from .second_gradients_and_parameters import QuantisedAutoencoder

HEALTHY: list[Healthy] = []


class LowRankAdapter(nn.Module):
    """A frozen linear layer with a trainable correction of low rank that starts at zero (Hu et al. 2021)."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


@healthy(HEALTHY, family="tabular")
def adapters_of_low_rank_on_a_trained_base() -> Case:
    torch.manual_seed(301)
    x, y = table()
    model = mlp(12, 48, 48, 3)
    train(model, x, y, F.cross_entropy, steps=120)
    model[0], model[2] = LowRankAdapter(model[0]), LowRankAdapter(model[2])
    shifted = x + 0.3 * torch.randn(12)
    return Case(model=model, data=(shifted, y), loss="cross_entropy")


class SimSiam(nn.Module):
    """Two views of an image; each predicts the embedding of the other, which is detached (Chen and He 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
        self.predictor = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32))

    def forward(self, views: Tensor) -> Tensor:
        first, second = self.encoder(views[:, :1]), self.encoder(views[:, 1:])
        left = F.cosine_similarity(self.predictor(first), second.detach(), dim=1)
        right = F.cosine_similarity(self.predictor(second), first.detach(), dim=1)
        return -0.5 * (left + right).mean()


@healthy(HEALTHY, family="contrastive")
def stopped_gradients_on_purpose() -> Case:
    torch.manual_seed(302)
    images, _ = blob_images()
    views = torch.cat([images + 0.3 * torch.randn_like(images) for _ in range(2)], dim=1)
    return Case(model=SimSiam(), data=views, objective=lambda output: output)


@healthy(HEALTHY, family="autoencoder")
def nearest_codes_with_straight_through() -> Case:
    torch.manual_seed(303)
    images = blob_images(classes=8)[0].flatten(1)
    return Case(model=QuantisedAutoencoder(straight=True), data=(images, images), loss="mse")


class ReZero(nn.Module):
    """Residual branches times a learned factor that starts at zero (Bachlechner et al. 2020)."""

    def __init__(self, depth: int = 8, width: int = 32) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, width), nn.Linear(width, 3)
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth))
        self.factors = nn.Parameter(torch.zeros(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for factor, branch in zip(self.factors, self.branches):
            x = x + factor * branch(x)
        return self.head(x)


@healthy(HEALTHY, family="ResNet")
def residual_factors_that_start_at_zero() -> Case:
    torch.manual_seed(304)
    x, y = table()
    model = ReZero()
    train(model, x, y, F.cross_entropy, steps=15)
    return Case(model=model, data=(x, y), loss="cross_entropy")


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, LayerNorm over channels, an inverted bottleneck and a layer scale of 1e-6."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.layer_scale = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        branch = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        branch = self.layer_scale * self.narrow(F.gelu(self.widen(branch)))
        return x + branch.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 4, stride=4)
        self.blocks = nn.Sequential(*(ConvNeXtBlock(width) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.stem(x)).mean((2, 3))))


@healthy(HEALTHY, family="CNN")
def convnext_with_its_tiny_layer_scale() -> Case:
    torch.manual_seed(305)
    return Case(model=ConvNeXt(), data=blob_images(), loss="cross_entropy")


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


@healthy(HEALTHY, family="diffusion")
def modulation_that_starts_at_zero() -> Case:
    torch.manual_seed(306)
    data, noise = noisy_images()
    model = TinyDiT()
    optimizer = Adam(model.parameters(), lr=2e-3)
    for _ in range(40):
        optimizer.zero_grad()
        F.mse_loss(model(**data), noise).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case(model=model, data=(data, noise), loss="mse")


@healthy(HEALTHY, family="tabular")
def self_normalising_network() -> Case:
    """Klambauer et al. 2017: LeCun's initialisation, SELU, AlphaDropout."""
    torch.manual_seed(307)
    layers: list[nn.Module] = []
    for inner in (12, 48, 48, 48):
        linear = nn.Linear(inner, 48)
        nn.init.normal_(linear.weight, std=1 / math.sqrt(inner))
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.SELU(), nn.AlphaDropout(0.05)]
    return Case(model=nn.Sequential(*layers, nn.Linear(48, 3)), data=table(), loss="cross_entropy")


class Sine(nn.Module):
    def __init__(self, inner: int, outer: int, first: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, outer)
        bound = 1 / inner if first else math.sqrt(6 / inner) / 30
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(30 * self.linear(x))


@healthy(HEALTHY, family="regression")
def sine_network_of_coordinates() -> Case:
    """SIREN (Sitzmann et al. 2020): from places to the grey of an image."""
    torch.manual_seed(308)
    image = blob_images(1, size=16)[0][0, 0]
    grid = torch.linspace(-1, 1, 16)
    places = torch.cartesian_prod(grid, grid)
    last = nn.Linear(32, 1)
    nn.init.uniform_(last.weight, -math.sqrt(6 / 32) / 30, math.sqrt(6 / 32) / 30)
    model = nn.Sequential(Sine(2, 32, True), Sine(32, 32, False), last)
    train(model, places, image.reshape(-1, 1), F.mse_loss, steps=60, optimizer=Adam(model.parameters(), lr=1e-3))
    return Case(model=model, data=(places, image.reshape(-1, 1)), loss="mse")


@healthy(HEALTHY, family="tabular")
def twenty_orthogonal_layers_of_tanh() -> Case:
    torch.manual_seed(309)
    model = mlp(12, *[32] * 20, 3, activation=nn.Tanh)
    for module in model[:-1]:
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, gain=1.1)
    return Case(model=model, data=table(), loss="cross_entropy")


class InvertedResidual(nn.Module):
    """MobileNetV2: widen, filter each channel, narrow again without an activation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width), nn.ReLU6(),
            nn.Conv2d(4 * width, 4 * width, 3, padding=1, groups=4 * width, bias=False), nn.BatchNorm2d(4 * width),
            nn.ReLU6(), nn.Conv2d(4 * width, width, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


@healthy(HEALTHY, family="CNN")
def linear_bottlenecks_of_a_mobile_network() -> Case:
    torch.manual_seed(310)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(),
        InvertedResidual(8), InvertedResidual(8),
        nn.Conv2d(8, 24, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(24, 4),
    )  # fmt: skip
    return Case(model=model, data=blob_images(), loss="cross_entropy")


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.squeeze, self.excite = nn.Linear(width, 4), nn.Linear(4, width)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.norm(self.conv(x))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(branch.mean((2, 3))))))
        return torch.relu(x + branch * gate[:, :, None, None])


@healthy(HEALTHY, family="ResNet")
def gates_of_squeeze_and_excitation() -> Case:
    torch.manual_seed(311)
    images, labels = blob_images()
    model = ResNet()
    model.blocks = nn.Sequential(SqueezeExcite(12), SqueezeExcite(12))
    train(model, images, labels, F.cross_entropy, steps=40)
    return Case(model=model, data=(images, labels), loss="cross_entropy")


class CausalStack(nn.Module):
    """WaveNet in small: dilated causal convolutions with gates and skips, for the next value of a series."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.head = nn.Conv1d(3, width, 1), nn.Conv1d(width, 3, 1)
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**k) for k in range(4))
        self.mixers = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(4))

    def forward(self, series: Tensor) -> Tensor:
        x = self.first(series.transpose(1, 2))
        skips = torch.zeros_like(x)
        for index, (gated, mixer) in enumerate(zip(self.gated, self.mixers)):
            value, gate = gated(F.pad(x, (2**index, 0))).chunk(2, dim=1)
            branch = mixer(torch.tanh(value) * torch.sigmoid(gate))
            x, skips = x + branch, skips + branch
        return self.head(torch.relu(skips)).transpose(1, 2)


@healthy(HEALTHY, family="TCN")
def gated_causal_convolutions() -> Case:
    torch.manual_seed(312)
    series, _ = waves(32)
    model = CausalStack()
    train(model, series[:, :-1], series[:, 1:], F.mse_loss, steps=60)
    return Case(model=model, data=(series[:, :-1], series[:, 1:]), loss="mse")


class PointNet(nn.Module):
    """A network of each point alone, a maximum over the points, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Sequential(*mlp(3, 32, 64), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, clouds: Tensor) -> Tensor:
        return self.head(self.points(clouds).amax(1))


@healthy(HEALTHY, family="set")
def maximum_over_points() -> Case:
    torch.manual_seed(313)
    labels = torch.arange(48) % 3
    stretch = torch.ones(48, 3)
    stretch[torch.arange(48), labels] = 2.0
    clouds = F.normalize(torch.randn(48, 40, 3), dim=2) * stretch[:, None]
    model = PointNet()
    train(model, clouds, labels, F.cross_entropy, steps=50, optimizer=Adam(model.parameters(), lr=1e-3))
    return Case(model=model, data=(clouds, labels), loss="cross_entropy")


class Translator(nn.Module):
    """torch's own Transformer with a causal mask for its decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 32), nn.Parameter(0.02 * torch.randn(1, 16, 32))
        nn.init.normal_(self.words.weight, std=0.2)
        self.transformer = Transformer(32, 4, 2, 2, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 40)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = Transformer.generate_square_subsequent_mask(target.shape[1])
        x, y = (self.words(ids) + self.places[:, : ids.shape[1]] for ids in (source, target))
        return self.head(self.transformer(x, y, tgt_mask=mask, tgt_is_causal=True))


@healthy(HEALTHY, family="seq2seq")
def encoder_and_decoder_of_torch() -> Case:
    torch.manual_seed(314)
    source, _ = text(24, 12)
    target = source.flip(1)
    model = Translator()
    following = target[:, 1:]
    return Case(
        model=model,
        data={"source": source, "target": target[:, :-1]},
        objective=lambda logits: F.cross_entropy(logits.flatten(0, 1), following.flatten()),
    )


class PriorHead(nn.Module):
    """A detector whose bias says that objects are rare, as with the focal loss (Lin et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.objects = nn.Conv2d(12, 1, 1)
        nn.init.constant_(self.objects.bias, -math.log(0.9 / 0.1))

    def forward(self, images: Tensor) -> Tensor:
        return self.objects(self.trunk(images))


def focal_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross entropy with easy places weighed down."""
    wrong = (torch.sigmoid(logits) - target).abs()
    return (wrong.square() * F.binary_cross_entropy_with_logits(logits, target, reduction="none")).sum((1, 2, 3)).mean()


@healthy(HEALTHY, family="detection")
def rare_objects_with_a_prior_bias() -> Case:
    torch.manual_seed(315)
    images, _ = blob_images()
    target = (F.avg_pool2d(images, 4) > 1.2).float()
    return Case(model=PriorHead(), data=(images, target), loss=focal_loss)


@healthy(HEALTHY, family="regression")
def counts_with_a_logarithmic_link() -> Case:
    torch.manual_seed(316)
    x = torch.randn(160, 6)
    counts = torch.poisson(torch.exp(0.6 * x[:, :1] - 0.4 * x[:, 1:2] * x[:, 2:3] + 0.5))
    model = mlp(6, 32, 32, 1)
    train(model, x, counts, F.poisson_nll_loss, steps=60, optimizer=Adam(model.parameters(), lr=1e-3))
    return Case(model=model, data=(x, counts), loss=nn.PoissonNLLLoss())


class MeanAndSpread(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(*mlp(8, 48, 48), nn.ReLU())
        self.mean, self.spread = nn.Linear(48, 1), nn.Linear(48, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x)
        return self.mean(hidden), F.softplus(self.spread(hidden)) + 1e-3


def gaussian_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    return F.gaussian_nll_loss(output[0], target, output[1])


@healthy(HEALTHY, family="regression")
def mean_and_variance_of_a_target() -> Case:
    torch.manual_seed(317)
    x, y = regression_table()
    model = MeanAndSpread()
    train(model, x, y, gaussian_loss, steps=40, optimizer=Adam(model.parameters(), lr=1e-3))
    return Case(model=model, data=(x, y), loss=gaussian_loss)


class ActorCritic(nn.Module):
    """PPO's network: orthogonal weights, a policy head of gain 0.01 and a value head of gain 1."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = mlp(8, 32, 32, 32, activation=nn.Tanh)
        self.policy, self.value = nn.Linear(32, 4), nn.Linear(32, 1)
        for module in self.trunk:
            if isinstance(module, nn.Linear):
                nn.init.orthogonal_(module.weight, gain=math.sqrt(2))
        nn.init.orthogonal_(self.policy.weight, gain=0.01)
        nn.init.orthogonal_(self.value.weight, gain=1.0)
        nn.init.zeros_(self.policy.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.trunk(x))
        return self.policy(hidden), self.value(hidden).squeeze(1)


@healthy(HEALTHY, family="policy")
def policy_head_of_small_gain() -> Case:
    torch.manual_seed(318)
    observations, actions = torch.randn(128, 8), torch.randint(4, (128,))
    returns = observations[:, 0] + 0.3 * torch.randn(128)
    advantage = (returns - returns.mean()) / returns.std()

    def objective(output: tuple[Tensor, Tensor]) -> Tensor:
        chosen = F.log_softmax(output[0], dim=1)[torch.arange(128), actions]
        return -(chosen * advantage).mean() + 0.5 * F.mse_loss(output[1], returns)

    return Case(model=ActorCritic(), data=observations, objective=objective)


@healthy(HEALTHY, family="mixed precision")
def network_in_bfloat16() -> Case:
    torch.manual_seed(319)
    x, y = table()
    model = mlp(12, 64, 64, 3)
    train(model, x, y, F.cross_entropy, steps=30)
    return Case(model=model.to(torch.bfloat16), data=(x.to(torch.bfloat16), y), loss="cross_entropy", train=False)


@healthy(HEALTHY, family="tabular")
def one_hot_columns() -> Case:
    """Categories as columns of zeros and ones, most of them zero."""
    torch.manual_seed(320)
    categories = torch.randint(6, (160, 4))
    x = F.one_hot(categories, 6).flatten(1).float()
    labels = ((categories[:, 0] + categories[:, 1] * categories[:, 2]) % 3).long()
    model = mlp(24, 48, 48, 3)
    train(model, x, labels, F.cross_entropy, steps=40)
    return Case(model=model, data=(x, labels), loss="cross_entropy")


@healthy(HEALTHY, family="CNN")
def pixels_of_0_to_1_behind_a_batchnorm() -> Case:
    torch.manual_seed(321)
    images, labels = blob_images()
    return Case(model=ConvNet(), data=(as_pixels(images), labels), loss="cross_entropy")


class WordsWithPadding(nn.Module):
    """Embeddings with a zero row for padding, convolutions of three widths, a maximum over the places (Kim 2014)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 24, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(24, 12, width, padding=width // 2) for width in (2, 3, 5))
        self.dropout, self.head = nn.Dropout(0.3), nn.Linear(36, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids).transpose(1, 2)
        return self.head(self.dropout(torch.cat([torch.relu(conv(x)).amax(2) for conv in self.convs], dim=1)))


@healthy(HEALTHY, family="text")
def convolutions_of_words_with_a_zero_row() -> Case:
    torch.manual_seed(322)
    labels = torch.arange(64) % 2
    ids = torch.randint(20, 50, (64, 16))
    ids[:, 3] = torch.randint(1, 10, (64,)) + 10 * labels
    ids[:, 12:] *= torch.arange(4) < torch.randint(1, 5, (64, 1))
    return Case(model=WordsWithPadding(), data=(ids, labels), loss="cross_entropy")


class FactorisedEmbedding(nn.Module):
    """ALBERT's two tables: a narrow embedding, widened by a linear layer, then blocks that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.widen = nn.Embedding(50, 8), nn.Linear(8, 32)
        self.places = nn.Parameter(0.3 * torch.randn(1, 16, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.widen(self.words(ids)) + self.places
        for _ in range(3):
            x = self.block(x)
        return self.head(self.norm(x).mean(1))


@healthy(HEALTHY, family="BERT")
def shared_blocks_behind_a_factorised_embedding() -> Case:
    torch.manual_seed(323)
    return Case(model=FactorisedEmbedding(), data=sentences(), loss="cross_entropy")


@healthy(HEALTHY, family="autoencoder")
def code_of_two_numbers() -> Case:
    """A map of images in the plane: narrow on purpose."""
    torch.manual_seed(324)
    images = blob_images()[0].flatten(1)
    model = nn.Sequential(*mlp(256, 64, 32, 2, activation=nn.ELU), *mlp(2, 32, 64, 256, activation=nn.ELU))
    train(model, images, images, F.mse_loss, steps=80)
    return Case(model=model, data=(images, images), loss="mse")


class Experts(nn.Module):
    """A soft mixture of four experts."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(mlp(8, 24, 1) for _ in range(4))
        self.gate = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        answers = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (answers * self.gate(x).softmax(1)[:, None]).sum(-1)


@healthy(HEALTHY, family="regression")
def soft_mixture_of_experts() -> Case:
    torch.manual_seed(325)
    x, y = regression_table()
    model = Experts()
    train(model, x, y, F.mse_loss, steps=80)
    return Case(model=model, data=(x, y), loss="mse")


class DenseNet(nn.Module):
    """Each layer reads what all earlier ones have computed."""

    def __init__(self, growth: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16 + growth * k) for k in range(4))
        self.convs = nn.ModuleList(nn.Conv2d(16 + growth * k, growth, 3, padding=1, bias=False) for k in range(4))
        self.norm, self.head = nn.BatchNorm2d(16 + 4 * growth), nn.Linear(16 + 4 * growth, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for norm, conv in zip(self.norms, self.convs):
            x = torch.cat([x, conv(torch.relu(norm(x)))], dim=1)
        return self.head(torch.relu(self.norm(x)).mean((2, 3)))


@healthy(HEALTHY, family="CNN")
def dense_connections() -> Case:
    torch.manual_seed(326)
    return Case(model=DenseNet(), data=blob_images(), loss="cross_entropy")


@healthy(HEALTHY, family="tabular")
def classifier_that_has_learnt_its_batch_by_heart() -> Case:
    """The loss is almost zero, and so is its gradient: training is over."""
    torch.manual_seed(327)
    x, y = table()
    model = mlp(12, 64, 64, 3)
    train(model, x, y, F.cross_entropy, steps=300)
    return Case(model=model, data=(x, y), loss="cross_entropy")


class TripletNet(nn.Module):
    """Embeds anchor, positive and negative (three channels) onto the sphere."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), *mlp(256, 64, 16))

    def forward(self, triplets: Tensor) -> tuple[Tensor, ...]:
        return tuple(F.normalize(self.encoder(triplets[:, k : k + 1]), dim=1) for k in range(3))


@healthy(HEALTHY, family="Siamese")
def triplets_on_the_sphere() -> Case:
    torch.manual_seed(328)
    images, _ = blob_images(96)
    triplets = torch.cat([images[0:64], images[4:68], images[1:65]], dim=1)
    return Case(model=TripletNet(), data=triplets, objective=lambda output: F.triplet_margin_loss(*output, margin=0.5))


class Spectrum(nn.Module):
    """Random Fourier features that are fixed on purpose (a buffer), read by an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 0.7 * torch.randn(8, 32))
        self.tower = mlp(64, 48, 1)

    def forward(self, x: Tensor) -> Tensor:
        angles = x @ self.frequencies
        return self.tower(math.sqrt(2) * torch.cat([angles.sin(), angles.cos()], dim=1))


@healthy(HEALTHY, family="regression")
def fixed_fourier_features() -> Case:
    torch.manual_seed(329)
    return Case(model=Spectrum(), data=regression_table(), loss="mse")


@healthy(HEALTHY, family="ResNet")
def trained_trunk_frozen_under_a_new_head() -> Case:
    """Transfer learning as it is meant: the trunk is good, stays frozen and in eval mode."""
    torch.manual_seed(330)
    images, labels = blob_images()
    trunk = ResNet()
    train(trunk, images, labels, F.cross_entropy, steps=40)
    trunk.head = nn.Identity()
    model = FrozenTrunk(trunk.requires_grad_(False))
    optimizer = Adam(model.head.parameters(), lr=3e-3)
    return Case(model=model, data=(images, labels // 2), loss="cross_entropy", optimizer=optimizer)


class FrozenTrunk(nn.Module):
    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk, self.head = trunk, nn.Linear(12, 2)

    def train(self, mode: bool = True) -> "FrozenTrunk":
        super().train(mode)
        self.trunk.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))
