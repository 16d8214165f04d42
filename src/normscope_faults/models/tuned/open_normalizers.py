"""The open half, faults of normalizers and of numbers: statistics, axes, eps, NaN, infinity, half precision."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from ..parts import (
    GPT,
    ConvNet,
    GraphNet,
    ResNet,
    blob_images,
    communities,
    image_pairs,
    mlp,
    over_tokens,
    regression_table,
    table,
    text,
    train,
)

FAULTS: list[Fault] = []
plant = partial(fault, FAULTS)


def normalizers(model: nn.Module) -> list[nn.Module]:
    """Return the BatchNorms of a model."""
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]


@plant(
    "CNN",
    layers="features.1 features.4 features.8 features.11",
    causes="running-statistics-wrong",
    remedies="refresh-statistics switch-mode",
)
def buffers_not_saved(broken: bool) -> Case:
    """Only the parameters were saved, not the buffers."""
    torch.manual_seed(501)
    x, y = blob_images(96)
    model = ConvNet()
    train(model, 3 * x + 1, y, F.cross_entropy, steps=80)
    if broken:
        for module in normalizers(model):
            module.reset_running_stats()
    return Case(model=model, data=(3 * x + 1, y), loss="cross_entropy", train=False)


@plant(
    "ResNet",
    layers="stem.1 blocks.0.bn1 blocks.0.bn2 blocks.1.bn1 blocks.1.bn2",
    causes="running-statistics-wrong",
    remedies="refresh-statistics switch-mode",
)
def momentum_of_another_framework(broken: bool) -> Case:
    """momentum=0.001, taken for the momentum of another framework (0.999)."""
    torch.manual_seed(502)
    x, y = blob_images()
    model = ResNet(blocks=2)
    for module in normalizers(model):
        module.momentum = 0.001 if broken else 0.1
    train(model, x, y, F.cross_entropy, steps=60)
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


@plant(
    "MLP", layers="1 4", causes="running-statistics-wrong inputs-not-scaled", remedies="refresh-statistics scale-inputs"
)
def statistics_of_other_data(broken: bool) -> Case:
    """Trained on standardised columns, used on raw ones."""
    torch.manual_seed(503)
    x, y = table(256)
    model = nn.Sequential(
        nn.Linear(12, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 3),
    )
    train(model, x, y, F.cross_entropy, steps=200)
    return Case(model=model, data=(4 * x + 6 if broken else x, y), loss="cross_entropy", train=False)


@plant(
    "CNN",
    layers="features.1 features.4 features.7 features.10 features.14 features.17 features.20 features.23",
    causes="wrong-mode running-statistics-wrong vanishing-signal vanishing-gradient",
    remedies="switch-mode refresh-statistics",
)
def fresh_batch_norm_in_eval_mode(broken: bool) -> Case:
    """BatchNorm kept in eval mode, as for fine-tuning, in a network that starts from scratch."""
    torch.manual_seed(504)
    x, y = blob_images(48, size=12)
    model = SleepyConvNet(depth=8)
    model.sleepy = broken
    for module in model.features:
        if isinstance(module, nn.Conv2d):
            module.reset_parameters()
    return Case(model=model, data=(x, y), loss="cross_entropy")


class SleepyConvNet(ConvNet):
    """A ConvNet whose BatchNorms may stay in eval mode."""

    sleepy = False

    def train(self, mode: bool = True):
        super().train(mode)
        for module in normalizers(self):
            module.train(mode and not self.sleepy)
        return self


@plant(
    "MLP",
    layers="1 4",
    causes="normalizer-too-few-samples normalizer-erases-signal saturated-units",
    remedies="larger-batch replace-normalizer",
)
def batch_norm_of_two_samples(broken: bool) -> Case:
    """A batch of two: BatchNorm returns plus and minus one."""
    torch.manual_seed(505)
    x, y = regression_table(64)
    model = nn.Sequential(
        nn.Linear(8, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 1),
    )
    rows = slice(0, 2) if broken else slice(None)
    return Case(model=model, data=(x[rows], y[rows]), loss="mse", judge=lambda output: judge_alone(model, x, y))


def judge_alone(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the explained variance over the whole table, in eval mode as in use."""
    model.eval()
    wrong = (model(x) - y).square().mean().item()
    model.train()
    return 1 - wrong / y.var().item()


class PooledNorm(nn.Module):
    """Convolutions, a mean over all places, a GroupNorm of as many groups as given, a head."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU())
        self.norm, self.head = nn.GroupNorm(groups, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.features(x).mean((2, 3), keepdim=True)).flatten(1))


@plant(
    "CNN",
    layers="norm",
    causes="normalizer-erases-signal normalizer-too-few-samples output-constant",
    remedies="replace-normalizer fix-axis",
)
def group_norm_of_single_values(broken: bool) -> Case:
    """One group per channel on maps of one place: each value minus itself."""
    torch.manual_seed(506)
    x, y = blob_images()
    return Case(model=PooledNorm(16 if broken else 2), data=(x, y), loss="cross_entropy")


class LoudnessNet(nn.Module):
    """Classifies series by how loud they are, after a norm over time or none."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.conv, self.head = nn.Conv1d(3, 16, 5, padding=2), nn.Linear(16, 2)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(self.norm(series.transpose(1, 2)))).mean(2))


@plant(
    "CNN",
    layers="norm",
    causes="normalizer-wrong-axis normalizer-erases-signal",
    remedies="fix-axis replace-normalizer",
)
def layer_norm_over_time(broken: bool) -> Case:
    """LayerNorm(steps): over time, where the loudness is the signal."""
    torch.manual_seed(507)
    y = torch.arange(192) % 2
    x = torch.randn(192, 40, 3) * (0.5 + y[:, None, None])
    return Case(model=LoudnessNet(nn.LayerNorm(40) if broken else nn.Identity()), data=(x, y), loss="cross_entropy")


@plant(
    "MLP",
    layers="1",
    causes="normalizer-erases-signal normalizer-too-few-samples saturated-units",
    remedies="replace-normalizer",
)
def layer_norm_of_two_features(broken: bool) -> Case:
    """LayerNorm over two features returns only their order."""
    torch.manual_seed(508)
    x, y = regression_table()
    middle = nn.LayerNorm(2) if broken else nn.Identity()
    return Case(model=nn.Sequential(mlp(8, 32, 2), middle, mlp(2, 32, 1)), data=(x, y), loss="mse")


@plant(
    "GPT",
    layers="blocks.0.norm1 blocks.0.norm2 blocks.1.norm1 blocks.1.norm2 norm",
    causes="eps-dominates vanishing-signal",
    remedies="lower-eps",
)
def layer_norm_eps_of_one(broken: bool) -> Case:
    """eps=1 in place of 1e-5 beside embeddings of size 0.02."""
    torch.manual_seed(509)
    ids, following = text()
    model = GPT()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1.0 if broken else 1e-5
    return Case(model=model, data=(ids, following), loss=over_tokens)


@plant(
    "CNN",
    layers="features.1 features.4 features.8 features.11",
    causes="eps-dominates vanishing-signal vanishing-gradient",
    remedies="lower-eps",
)
def batch_norm_eps_of_hundred(broken: bool) -> Case:
    """The second argument of BatchNorm is eps, not momentum: BatchNorm2d(16, 100)."""
    torch.manual_seed(510)
    x, y = blob_images()
    model = ConvNet()
    for module in normalizers(model):
        module.eps = 100.0 if broken else 1e-5
    return Case(model=model, data=(x, y), loss="cross_entropy")


# --------------------------------------------------------------------------------------------- NaN, infinity, precision


@plant("CNN", layers="features.5 features.5.weight", causes="not-finite-weights", remedies="restore-weights initialise")
def one_kernel_holds_nan(broken: bool) -> Case:
    """A checkpoint written after an overflow."""
    torch.manual_seed(511)
    x, y = blob_images()
    model = ConvNet(norm=False)
    if broken:
        model.features[5].weight.data[3, 2, 1, 1] = torch.nan
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant(
    "ResNet",
    layers="blocks.1.bn1 blocks.1.bn1.running_var",
    causes="not-finite-weights running-statistics-wrong",
    remedies="refresh-statistics restore-weights",
)
def running_variance_infinite(broken: bool) -> Case:
    """One infinite batch in training spoilt the running variance."""
    torch.manual_seed(512)
    x, y = blob_images()
    model = ResNet(blocks=2)
    train(model, x, y, F.cross_entropy, steps=60)
    if broken:
        model.blocks[1].bn1.running_var.fill_(torch.inf)
        model.blocks[1].bn1.running_mean.fill_(torch.nan)
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


class LogLayer(nn.Module):
    """The logarithm of rectified values, with a constant added or not."""

    def __init__(self, added: float) -> None:
        super().__init__()
        self.added = added

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(torch.relu(x) + self.added)


@plant("MLP", layers="1", causes="not-finite", remedies="guard-domain")
def logarithm_of_rectified_values(broken: bool) -> Case:
    """The logarithm of a ReLU."""
    torch.manual_seed(513)
    x, y = table()
    model = nn.Sequential(
        nn.Linear(12, 32), LogLayer(0.0 if broken else 1.0), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)
    )
    return Case(model=model, data=(x, y), loss="cross_entropy")


class MeanGraph(GraphNet):
    """A graph network that averages its input over neighbours first."""

    def __init__(self, edges: Tensor) -> None:
        super().__init__(edges)
        self.average = NeighbourMean()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.average(x, self.edges))


class NeighbourMean(nn.Module):
    """The mean over neighbours."""

    guarded = True

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        degree = torch.zeros(len(x), 1).index_add(0, edges[1], torch.ones(edges.shape[1], 1))
        total = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return total / (degree.clamp(min=1) if self.guarded else degree)


@plant("GNN", layers="average", causes="not-finite", remedies="guard-domain")
def mean_of_no_neighbours(broken: bool) -> Case:
    """A mean over the neighbours of a node that has none."""
    torch.manual_seed(514)
    x, edges, y = communities()
    model = MeanGraph(edges[:, (edges != 17).all(0)])
    model.average.guarded = not broken
    return Case(
        model=model,
        data=(x, y),
        loss="cross_entropy",
        judge=lambda output: (output.argmax(1) == y).float().mean().item() if output.isfinite().all() else -torch.inf,
    )


class HandSoftmax(nn.Module):
    """A softmax over the last axis, written by hand."""

    stable = True

    def forward(self, scores: Tensor) -> Tensor:
        if self.stable:
            scores = scores - scores.amax(-1, keepdim=True)
        return scores.exp() / scores.exp().sum(-1, keepdim=True)


@plant(
    "MLP",
    layers="attend",
    causes="not-finite",
    remedies="guard-domain change-output-activation raise-precision scale-attention",
)
def softmax_by_hand_overflows(broken: bool) -> Case:
    """exp(x) / sum(exp(x)) without taking off the maximum."""
    torch.manual_seed(515)
    x, y = table()
    model = Selector()
    model.attend.stable = not broken
    return Case(model=model, data=(x, y), loss="cross_entropy")


class Selector(nn.Module):
    """Weighs its columns by a softmax of scores of some size, then an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.attend, self.body = nn.Linear(12, 12), HandSoftmax(), mlp(24, 32, 3)
        nn.init.normal_(self.score.weight, std=8.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(torch.cat([x, x * self.attend(self.score(x))], dim=1))


class Distances(nn.Module):
    """How far apart the embeddings of two images are, by a root with or without a guard."""

    def __init__(self, guard: float) -> None:
        super().__init__()
        self.guard, self.encoder = guard, nn.Sequential(nn.Flatten(), *mlp(256, 64, 16))

    def forward(self, pairs: Tensor) -> Tensor:
        difference = self.encoder(pairs[:, :1]) - self.encoder(pairs[:, 1:])
        return torch.sqrt(difference.square().sum(1) + self.guard)


def hinge_of_distance(distance: Tensor, same: Tensor) -> Tensor:
    """Return the contrastive loss of distances, with a margin of 2."""
    return (same * distance + (1 - same) * F.relu(2 - distance)).mean()


@plant("Siamese", causes="gradient-not-finite not-finite", remedies="guard-domain")
def root_of_a_zero_distance(broken: bool) -> Case:
    """The root of a distance that is zero: its slope is infinite."""
    torch.manual_seed(516)
    pairs, same = image_pairs()
    pairs[4, 1] = pairs[4, 0]  # a pair of one image with itself
    return Case(
        model=Distances(0.0 if broken else 1e-6),
        data=(pairs, same),
        loss=hinge_of_distance,
        judge=lambda distance: (
            ((distance < 1) == (same > 0.5)).float().mean().item() if distance.isfinite().all() else -torch.inf
        ),
    )


class LogPower(nn.Module):
    """The logarithm of the power of each band, of amplitudes brought back to the range of 16-bit sound."""

    def forward(self, bands: Tensor) -> Tensor:
        return torch.log((4096 * bands).square().mean(2) + 1) - 12


@plant("sound", layers="0", causes="precision not-finite exploding-signal", remedies="raise-precision guard-domain")
def half_precision_overflows(broken: bool) -> Case:
    """Squares of 16-bit amplitudes in half precision, which ends at 65,504."""
    torch.manual_seed(517)
    loudness = torch.randn(128, 6).exp()
    bands, y = 0.1 * loudness[:, :, None] * torch.randn(128, 6, 40), loudness[:, :3].argmax(1)
    dtype = torch.float16 if broken else torch.float32
    model = nn.Sequential(LogPower(), *mlp(6, 32, 3)).to(dtype)
    return Case(model=model, data=(bands.to(dtype), y), loss="cross_entropy")


@plant("MLP", layers="0 2 4", causes="precision vanishing-gradient", remedies="raise-precision")
def half_precision_underflows(broken: bool) -> Case:
    """Half precision without a GradScaler: gradients below 6e-8 are zero."""
    torch.manual_seed(518)
    x, y = regression_table()
    dtype = torch.float16 if broken else torch.float32
    model = mlp(8, 32, 32, 1).to(dtype)
    return Case(model=model, data=(x.to(dtype), y.to(dtype)), loss=small_mean_square)


def small_mean_square(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean square with the small weight that one of many losses has."""
    return 1e-6 * F.mse_loss(output, target)


@plant("MLP", causes="precision inputs-not-scaled", remedies="raise-precision scale-inputs")
def years_in_bfloat16(broken: bool) -> Case:
    """Years in bfloat16, which rounds them to multiples of 8."""
    torch.manual_seed(519)
    x, y = regression_table()
    years = 2000 + 2 * x
    dtype = torch.bfloat16 if broken else torch.float32
    return Case(model=mlp(8, 32, 32, 1).to(dtype), data=(years.to(dtype) if broken else x, y.to(dtype)), loss="mse")
