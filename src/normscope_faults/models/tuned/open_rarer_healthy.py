"""Healthy models of rarer kinds: each looks unusual in some way and trains as it is."""

import copy
import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from ...case import Case, Healthy, healthy
from ..parts import as_pixels, blob_images, mlp, regression_table, sentences, table, text, train, waves

HEALTHY: list[Healthy] = []


class SparseExperts(nn.Module):
    """Each sample is sent to the two of its experts that a gate scores highest."""

    def __init__(self, width: int = 24, count: int = 6) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(width, count), nn.Linear(width, 3)
        self.read, self.experts = nn.Linear(12, width), nn.ModuleList(mlp(width, 32, width) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.read(x))
        scores, chosen = self.gate(x).topk(2, dim=1)
        made = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                made = made.index_add(0, rows, scores.softmax(1)[rows, place, None] * expert(x[rows]))
        return self.head(x + made)


@healthy(HEALTHY, family="mixture of experts")
def two_experts_of_six() -> Case:
    torch.manual_seed(2001)
    x, y = table()
    return Case(model=SparseExperts(), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="mixture of experts")
def two_experts_of_six_trained() -> Case:
    torch.manual_seed(2002)
    x, y = table()
    model = SparseExperts()
    train(model, x, y, F.cross_entropy, steps=100)
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


class AdaptedLayer(nn.Module):
    """A frozen layer and a bottleneck beside it whose last layer starts at zero."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, width = base.requires_grad_(False), base.out_features
        self.down, self.up = nn.Linear(width, 4), nn.Linear(4, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.base(x)
        return x + self.up(F.gelu(self.down(x)))


@healthy(HEALTHY, family="adapters")
def bottleneck_adapters_at_zero() -> Case:
    torch.manual_seed(2003)
    x, y = table()
    model = mlp(12, 48, 48, 3)
    train(model, x, y, F.cross_entropy, steps=100)
    for place in (0, 2):
        model[place] = AdaptedLayer(model[place])
    return Case(model=model, data=(x, y), loss="cross_entropy")


class TiedAutoencoder(nn.Module):
    """The decoder multiplies by the transposed weights of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(o, i) / i**0.5) for i, o in pairwise((256, 64, 8)))
        self.shift = nn.Parameter(torch.zeros(256))

    def forward(self, x: Tensor) -> Tensor:
        code = F.linear(torch.tanh(F.linear(x, self.weights[0])), self.weights[1])
        return F.linear(torch.tanh(F.linear(code, self.weights[1].T)), self.weights[0].T) + self.shift


@healthy(HEALTHY, family="autoencoder")
def tied_autoencoder_trained_a_little() -> Case:
    torch.manual_seed(2004)
    x = blob_images(96)[0].flatten(1)
    model = TiedAutoencoder()
    train(model, x, x, F.mse_loss, steps=40)
    return Case(model=model, data=(x, x), loss="mse")


class Flow(nn.Module):
    """Affine couplings that start at the identity; returns the code and the logarithm of the determinant."""

    def __init__(self, width: int = 6, depth: int = 4) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp(width // 2, 32, width) for _ in range(depth))
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


def negative_likelihood(output: tuple[Tensor, Tensor]) -> Tensor:
    """Return the negative logarithm of the likelihood of a flow, without its constant."""
    code, log_determinant = output
    return (0.5 * code.square().sum(1) - log_determinant).mean()


@healthy(HEALTHY, family="flow")
def couplings_from_zero() -> Case:
    torch.manual_seed(2005)
    x = torch.randn(128, 6) @ torch.randn(6, 6) / 2
    return Case(model=Flow(), data=x, loss=negative_likelihood)


@healthy(HEALTHY, family="GAN")
def least_squares_discriminator_trained() -> Case:
    torch.manual_seed(2006)
    x, y = blob_images(96, classes=2)
    real = y[:, None].float()
    x = torch.where(real[:, :, None, None] > 0, x, torch.randn_like(x))
    model = nn.Sequential(
        spectral_norm(nn.Conv2d(1, 16, 4, 2, 1)), nn.LeakyReLU(0.2), spectral_norm(nn.Conv2d(16, 32, 4, 2, 1)),
        nn.LeakyReLU(0.2), nn.Flatten(), spectral_norm(nn.Linear(512, 1)),
    )  # fmt: skip
    train(model, x, real, F.mse_loss, steps=30)
    return Case(model=model, data=(x, real), loss="mse")


class Splines(nn.Module):
    """A layer of a Kolmogorov-Arnold network: a learned curve of radial bumps on every edge, beside a SiLU."""

    def __init__(self, inner: int, outer: int, bumps: int = 8) -> None:
        super().__init__()
        self.base = nn.Linear(inner, outer)
        self.register_buffer("centres", torch.linspace(-2, 2, bumps))
        self.curves = nn.Parameter(0.1 / math.sqrt(inner * bumps) * torch.randn(outer, inner, bumps))

    def forward(self, x: Tensor) -> Tensor:
        bumps = torch.exp(-(x[..., None] - self.centres).square() / 0.3)
        return self.base(F.silu(x)) + torch.einsum("nib,oib->no", bumps, self.curves)


@healthy(HEALTHY, family="KAN")
def curves_on_every_edge() -> Case:
    torch.manual_seed(2007)
    x, y = regression_table()
    return Case(model=nn.Sequential(Splines(8, 16), Splines(16, 1)), data=(x, y), loss="mse")


def rotate(x: Tensor) -> Tensor:
    """Turn pairs of features by angles that grow with the position."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 100.0 ** (-torch.arange(half) / half)
    first, second = x.chunk(2, -1)
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)


class RotaryBlock(nn.Module):
    """RMSNorm, causal attention with rotated and normalized queries and keys, and a SwiGLU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q_norm, self.k_norm = nn.RMSNorm(width // heads), nn.RMSNorm(width // heads)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = rotate(self.q_norm(q)), rotate(self.k_norm(k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        read = self.norm2(x)
        return x + self.down(F.silu(self.gate(read)) * self.up(read))


class RotaryModel(nn.Module):
    """A small causal language model of rotary blocks."""

    def __init__(self, vocabulary: int = 40, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(RotaryBlock(width, 4) for _ in range(depth)))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.words(ids)))).mT


@healthy(HEALTHY, family="GPT")
def rotary_model_fresh() -> Case:
    torch.manual_seed(2008)
    return Case(model=RotaryModel(), data=text(), loss="cross_entropy")


@healthy(HEALTHY, family="GPT")
def rotary_model_trained_a_little() -> Case:
    torch.manual_seed(2009)
    ids, following = text()
    model = RotaryModel(depth=2)
    train(model, ids, following, F.cross_entropy, steps=60)
    return Case(model=model, data=(ids, following), loss="cross_entropy", train=False)


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
    images, noise, t = blob_images(count, size=8)[0], torch.randn(count, 1, 8, 8), torch.randint(1000, (count,)).float()
    share = (t / 1000)[:, None, None, None]
    return {"x": (1 - share).sqrt() * images + share.sqrt() * noise, "t": t}, noise


@healthy(HEALTHY, family="diffusion")
def timed_u_net_from_zero() -> Case:
    torch.manual_seed(2010)
    return Case(model=TimedUNet(), data=noised(), loss="mse")


@healthy(HEALTHY, family="diffusion")
def timed_u_net_trained_a_little() -> Case:
    torch.manual_seed(2011)
    inputs, noise = noised()
    model, optimizer = TimedUNet(), None
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(40):
        optimizer.zero_grad()
        F.mse_loss(model(**inputs), noise).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case(model=model, data=(inputs, noise), loss="mse", train=False)


class ManyTasks(nn.Module):
    """A trunk with a head for classes, one for a number and one for several labels."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.kind, self.amount, self.labels = nn.Linear(64, 3), nn.Linear(64, 1), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.trunk(x)
        return {"kind": self.kind(x), "amount": self.amount(x)[:, 0], "labels": self.labels(x)}


def sum_of_tasks(output: dict[str, Tensor], target: dict[str, Tensor]) -> Tensor:
    """Return the sum of the three losses."""
    return (
        F.cross_entropy(output["kind"], target["kind"])
        + F.mse_loss(output["amount"], target["amount"])
        + F.binary_cross_entropy_with_logits(output["labels"], target["labels"])
    )


@healthy(HEALTHY, family="several tasks")
def three_heads_with_labels_in_a_dict() -> Case:
    torch.manual_seed(2012)
    x, y = table()
    target = {"kind": y, "amount": x[:, 0] * x[:, 1], "labels": (x[:, 4:8] > 0).float()}
    return Case(model=ManyTasks(), data=(x, target), loss=sum_of_tasks)


class FixedPoint(nn.Module):
    """Looks for the fixed point of tanh(W z + U x) without gradients, and makes one last step with them."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter, self.turn, self.head = (
            nn.Linear(12, width),
            nn.Linear(width, width, bias=False),
            nn.Linear(width, 3),
        )
        nn.init.orthogonal_(self.turn.weight, gain=0.6)

    def forward(self, x: Tensor) -> Tensor:
        read = self.enter(x)
        state = torch.zeros_like(read)
        with torch.no_grad():
            for _ in range(20):
                state = torch.tanh(self.turn(state) + read)
        return self.head(torch.tanh(self.turn(state) + read))


@healthy(HEALTHY, family="equilibrium")
def fixed_point_with_one_step_of_gradient() -> Case:
    torch.manual_seed(2013)
    x, y = table()
    return Case(model=FixedPoint(), data=(x, y), loss="cross_entropy")


class Unrolled(nn.Module):
    """Ten steps of a shrinkage that learns its step and its threshold, for sparse codes."""

    def __init__(self, codes: int = 32, features: int = 16) -> None:
        super().__init__()
        self.atoms = nn.Parameter(F.normalize(torch.randn(features, codes), dim=0))
        self.step, self.threshold = nn.Parameter(torch.full((10,), 0.2)), nn.Parameter(torch.full((10,), 0.02))

    def forward(self, x: Tensor) -> Tensor:
        code = x.new_zeros(len(x), self.atoms.shape[1])
        for step, threshold in zip(self.step, self.threshold):
            code = F.softshrink(code + step * (x - code @ self.atoms.T) @ self.atoms, 0.0)
            code = code.sign() * F.relu(code.abs() - threshold)
        return code @ self.atoms.T


@healthy(HEALTHY, family="unrolled")
def ten_shrinkage_steps() -> Case:
    torch.manual_seed(2014)
    code = torch.randn(96, 32) * (torch.rand(96, 32) < 0.1)
    x = code @ F.normalize(torch.randn(16, 32), dim=0).T
    return Case(model=Unrolled(), data=(x, x), loss="mse")


class Perceiver(nn.Module):
    """A few learned queries read the pixels of an image by cross-attention."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.queries = nn.Parameter(0.02 * torch.randn(6, width))
        self.enter, self.places = nn.Linear(1, width), nn.Parameter(0.02 * torch.randn(256, width))
        self.norm, self.read = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)
        self.block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.norm(self.enter(x.flatten(1)[..., None]) + self.places)
        queries = self.queries.expand(len(x), -1, -1)
        queries = queries + self.read(queries, pixels, pixels, need_weights=False)[0]
        return self.head(self.block(queries).mean(1))


@healthy(HEALTHY, family="perceiver")
def latent_queries_read_pixels() -> Case:
    torch.manual_seed(2015)
    x, y = blob_images(48)
    return Case(model=Perceiver(), data=(x, y), loss="cross_entropy")


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


@healthy(HEALTHY, family="masked autoencoder")
def a_quarter_of_the_patches_shown() -> Case:
    torch.manual_seed(2016)
    x, _ = blob_images(48)
    return Case(model=MaskedAutoencoder(), data=(x, x), loss="mse")


def ordinal_loss(output: Tensor, grade: Tensor) -> Tensor:
    """Return the loss of one probability per step between grades: is the grade above it?"""
    above = grade[:, None] > torch.arange(output.shape[1])
    return F.binary_cross_entropy_with_logits(output, above.float())


class Ordinal(nn.Module):
    """One score and an increasing row of thresholds, which is a bias of the last layer."""

    def __init__(self, grades: int = 5) -> None:
        super().__init__()
        self.score, self.thresholds = mlp(12, 32, 32, 1), nn.Parameter(torch.linspace(1.5, -1.5, grades - 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.score(x) + self.thresholds


@healthy(HEALTHY, family="ordinal regression")
def grades_by_thresholds() -> Case:
    torch.manual_seed(2017)
    x, y = table(classes=5)
    return Case(model=Ordinal(), data=(x, y), loss=ordinal_loss)


@healthy(HEALTHY, family="SVM")
def hinge_of_several_classes_trained() -> Case:
    torch.manual_seed(2018)
    x, y = blob_images(96)
    model = nn.Sequential(nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    train(model, x, y, F.multi_margin_loss, steps=60)
    return Case(model=model, data=(x, y), loss=nn.MultiMarginLoss())


class PaddedMean(nn.Module):
    """The mean of word vectors without the padding, whose vector is zero and stays it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, 24, padding_idx=0), mlp(24, 32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).sum(1) / (ids > 0).sum(1, keepdim=True))


@healthy(HEALTHY, family="words")
def padding_vector_of_zero() -> Case:
    torch.manual_seed(2019)
    ids, y = sentences(96)
    ids = ids * (torch.arange(16) < torch.randint(6, 17, (96, 1)))
    return Case(model=PaddedMean(), data=(ids, y), loss="cross_entropy")


class Averaged(nn.Module):
    """A student and the moving average of it, which the loss compares with; only the student learns."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(12, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 16))
        self.predictor = mlp(16, 32, 16)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            wanted = self.teacher(x + 0.05 * torch.randn_like(x))
        return self.predictor(self.student(x)), wanted


def directions_apart(output: tuple[Tensor, Tensor]) -> Tensor:
    """Return how far the directions of prediction and target are apart."""
    return 2 - 2 * F.cosine_similarity(*output, dim=1).mean()


@healthy(HEALTHY, family="self-supervised")
def student_and_its_average() -> Case:
    torch.manual_seed(2020)
    x, _ = table()
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
    return Case(model=model, data=x, loss=directions_apart)


def soft_targets(output: Tensor, teacher: Tensor) -> Tensor:
    """Return the divergence from a teacher's distribution at a temperature of 4."""
    return 16 * F.kl_div((output / 4).log_softmax(1), (teacher / 4).softmax(1), reduction="batchmean")


@healthy(HEALTHY, family="distillation")
def student_of_a_trained_teacher() -> Case:
    torch.manual_seed(2021)
    x, y = blob_images(96)
    teacher = nn.Sequential(nn.Flatten(), mlp(256, 64, 4))
    train(teacher, x, y, F.cross_entropy, steps=60)
    student = nn.Sequential(nn.Flatten(), mlp(256, 16, 4))
    return Case(model=student, data=(x, teacher(x).detach()), loss=soft_targets)


class CausalConvolutions(nn.Module):
    """Dilated causal convolutions with weights on the sphere of their norm, of which the last step is read."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(i, 24, 3, dilation=2**k) for k, i in enumerate((3, 24, 24, 24)))
        self.head = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.mT
        for number, layer in enumerate(self.layers):
            made = F.relu(layer(F.pad(x, (2 * 2**number, 0))))
            x = made + x if made.shape == x.shape else made
        return self.head(x[:, :, -1])


@healthy(HEALTHY, family="TCN")
def last_step_of_causal_convolutions() -> Case:
    torch.manual_seed(2022)
    x, y = waves()
    return Case(model=CausalConvolutions(), data=(x, y), loss="cross_entropy")


class GruOfCells(nn.Module):
    """A GRU cell in a loop over the steps of a series, with the mean of all states as its summary."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(3, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        state, total = x.new_zeros(len(x), 24), x.new_zeros(len(x), 24)
        for step in x.unbind(1):
            state = self.cell(step, state)
            total = total + state
        return self.head(total / x.shape[1])


@healthy(HEALTHY, family="GRU")
def mean_of_the_states_of_a_cell() -> Case:
    torch.manual_seed(2023)
    x, y = waves(steps=30)
    return Case(model=GruOfCells(), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="GRU")
def last_state_of_a_gru_fresh() -> Case:
    torch.manual_seed(2024)
    x, y = waves(steps=60)

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.head = nn.GRU(3, 24, batch_first=True), nn.Linear(24, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.recurrent(x)[0][:, -1])

    return Case(model=Last(), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="RNN")
def time_first_and_labels_per_step() -> Case:
    torch.manual_seed(2025)
    x, _ = waves(steps=30)
    x = x.transpose(0, 1).contiguous()

    class PerStep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.head = nn.LSTM(3, 24), nn.Linear(24, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.recurrent(x)[0])[..., 0]

    return Case(model=PerStep(), data=(x, x.cumsum(0)[..., 0] / 5), loss="mse")


class Normalised(nn.Module):
    """Standardises its raw columns with figures that it keeps."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", x.mean(0))
        self.register_buffer("deviation", x.std(0))
        self.net = mlp(12, 32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - self.mean) / self.deviation)


@healthy(HEALTHY, family="MLP")
def raw_columns_standardised_inside() -> Case:
    torch.manual_seed(2026)
    x, y = table()
    raw = 40 + x * 10 ** torch.linspace(-2, 5, 12)
    return Case(model=Normalised(raw), data=(raw, y), loss="cross_entropy")


@healthy(HEALTHY, family="autoencoder")
def pixels_with_a_sigmoid_trained() -> Case:
    torch.manual_seed(2027)
    x = as_pixels(blob_images(96)[0]).flatten(1)
    model = nn.Sequential(mlp(256, 32, 6), mlp(6, 32, 256), nn.Sigmoid())
    train(model, x, x, F.mse_loss, steps=80)
    return Case(model=model, data=(x, x), loss="mse", train=False)


@healthy(HEALTHY, family="CNN")
def ten_outputs_for_four_classes() -> Case:
    torch.manual_seed(2028)
    x, y = blob_images(64)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU6(), nn.Conv2d(16, 16, 3, 2, 1), nn.Hardswish(),
                          nn.Flatten(), nn.Linear(256, 10))  # fmt: skip
    train(model, x, y, F.cross_entropy, steps=60)
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)
