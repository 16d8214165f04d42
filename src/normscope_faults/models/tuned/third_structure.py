"""Held-out faults of structure and of normalizers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from ..parts import (
    ConvNet,
    GraphLayer,
    ResNet,
    Siamese,
    UNet,
    accuracy,
    blob_images,
    communities,
    image_pairs,
    mlp,
    overlap_with,
    regression_table,
    remembered_series,
    table,
    train,
    waves,
)
from .third_weights import blob_masks

FAULTS: list[Fault] = []


# ----------------------------------------------------------------------------------------------------------- structure


class Rectified(nn.Module):
    """An MLP written with functions."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.first, self.second, self.third = nn.Linear(12, 32), nn.Linear(32, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            x = layer(x)
            if self.planted:
                F.relu(x)
            else:
                x = F.relu(x)
        return self.third(x)


@fault(
    FAULTS,
    "tabular",
    causes="missing-activation",
    layers="first second third",
    remedies="add-activation",
)
def rectified_but_not_assigned(planted: bool) -> Case:
    """`F.relu(x)` on a line of its own changes nothing."""
    torch.manual_seed(81)
    x, y = table()
    return Case(model=Rectified(planted), data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "regression",
    causes="missing-activation activation-unsuitable",
    layers="0 1 2 3 4",
    remedies="add-activation change-activation",
)
def leaky_slope_of_one(planted: bool) -> Case:
    """A leaky rectifier with a slope of one is the identity."""
    torch.manual_seed(82)
    x, y = regression_table()
    slope = 1.0 if planted else 0.01
    model = nn.Sequential(
        nn.Linear(8, 32), nn.LeakyReLU(slope), nn.Linear(32, 32), nn.LeakyReLU(slope), nn.Linear(32, 1)
    )
    return Case(model=model, data=(x, y), loss="mse")


@fault(
    FAULTS,
    "CNN",
    causes="bottleneck-too-narrow",
    layers="4 3 2 7",
    remedies="widen-layer",
)
def one_channel_before_the_pooling(planted: bool) -> Case:
    """A convolution to one channel, taken over from a segmenter, then the mean over places, then ten classes."""
    torch.manual_seed(83)
    x, y = blob_images(80, classes=8)
    width = 1 if planted else 16
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, width, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2 if not planted else 1), nn.Flatten(), nn.Identity(),
        nn.Linear(width * (4 if not planted else 1), 8),
    )  # fmt: skip
    return Case(model=model, data=(x, y), loss="cross_entropy")


class DeepResidual(nn.Module):
    """Residual blocks of two linear layers, without a normalizer."""

    def __init__(self, factor: float, blocks: int = 24) -> None:
        super().__init__()
        self.factor = factor
        self.first, self.head = nn.Linear(12, 32), nn.Linear(32, 3)
        self.blocks = nn.ModuleList(mlp(32, 32, 32) for _ in range(blocks))
        for block in self.blocks:
            nn.init.kaiming_normal_(block[2].weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + self.factor * block(x)
        return self.head(x)


@fault(
    FAULTS,
    "residual MLP",
    causes="exploding-signal exploding-gradient branch-dominates",
    remedies="scale-branch add-normalizer initialise rescale-layer lower-learning-rate",
)
def twenty_four_branches_at_full_size(planted: bool) -> Case:
    """Residual blocks without normalizer or factor: each more than doubles the variance of the sum."""
    torch.manual_seed(84)
    x, y = table()
    return Case(model=DeepResidual(1.0 if planted else 0.1), data=(x, y), loss="cross_entropy")


class SpatialMixer(nn.Module):
    """Cuts images into patches, embeds them and reads all of them."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.embed, self.head = nn.Linear(16, 16), mlp(256, 32, 4)

    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(x, 4, stride=4)  # (batch, values, places)
        mixed, right = patches.permute(2, 0, 1).reshape(len(x), -1, 16), patches.transpose(1, 2)
        patches = mixed if self.planted else right
        return self.head(torch.relu(self.embed(patches)).flatten(1))


@fault(
    FAULTS,
    "MLP of patches",
    causes="samples-mixed",
    remedies="fix-axis",
)
def patches_of_different_images_put_together(planted: bool) -> Case:
    """Places come first after the permutation, and the reshape takes them for samples."""
    torch.manual_seed(85)
    x, y = blob_images(96)
    order = torch.randperm(96)
    return Case(model=SpatialMixer(planted), data=(x[order], y[order]), loss="cross_entropy")


class Context(nn.Module):
    """Adds the mean of the steps to each step, then pools by the maximum."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.axis = 0 if planted else 1
        self.lift, self.mix, self.head = nn.Linear(4, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.relu(self.lift(x))
        context = steps.mean(self.axis, keepdim=True)
        return self.head(torch.relu(self.mix((steps - context) * context)).amax(1))


@fault(
    FAULTS,
    "time series",
    causes="samples-mixed normalizer-wrong-axis",
    remedies="fix-axis",
)
def context_of_the_whole_batch(planted: bool) -> Case:
    """`x.mean(0)` where the mean over the steps, `x.mean(1)`, was meant."""
    torch.manual_seed(86)
    x, y = remembered_series(steps=20)
    x = x + 1.5 * torch.randn(64, 1, 4)
    return Case(model=Context(planted), data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "segmentation",
    causes="dropout-misplaced dropout-too-strong",
    layers="1",
    remedies="lower-dropout",
)
def dropout_behind_a_segmenter(planted: bool) -> Case:
    """Dropout is the last layer: logits are zeroed at random, in front of the loss."""
    torch.manual_seed(87)
    x, mask = blob_masks()
    model = nn.Sequential(UNet(), nn.Dropout(0.6) if planted else nn.Identity())
    return Case(model=model, data=(x, mask), loss=F.binary_cross_entropy_with_logits, judge=overlap_with(mask))


class DroppedSeries(nn.Module):
    """Dropout before and behind a GRU."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.before, self.recurrent = nn.Dropout(rate), nn.GRU(4, 32, batch_first=True)
        self.behind, self.head = nn.Dropout(rate), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.behind(self.recurrent(self.before(x))[0].mean(1)))


@fault(
    FAULTS,
    "GRU",
    causes="dropout-too-strong dropout-misplaced",
    layers="before behind",
    remedies="lower-dropout",
)
def rate_of_keeping_given_as_rate_of_dropping(planted: bool) -> Case:
    """Code from a framework that asks how much to keep: 0.97 is kept there and dropped here."""
    torch.manual_seed(88)
    x, y = remembered_series(steps=12)
    return Case(model=DroppedSeries(0.97 if planted else 0.03), data=(x, y), loss="cross_entropy")


class Square(nn.Module):
    """The square of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square()


@fault(
    FAULTS,
    "regression",
    causes="exploding-signal exploding-gradient activation-unsuitable vanishing-gradient vanishing-signal not-finite",
    remedies="change-activation add-normalizer",
)
def squares_as_activations_of_six_layers(planted: bool) -> Case:
    """Squares between layers, for a network that is to be evaluated under encryption: sizes are squared six times."""
    torch.manual_seed(89)
    x, y = regression_table()
    model = mlp(8, 32, 32, 32, 32, 32, 1, activation=Square if planted else nn.Tanh)
    return Case(model=model, data=(x, y), loss="mse")


class SelfCompared(Siamese):
    """A Siamese network that embeds one image twice."""

    def forward(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoder(pairs[:, :1]), self.encoder(pairs[:, :1])


class Verifier(nn.Module):
    """Says from the difference of two embeddings whether they belong together."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.twins = SelfCompared() if planted else Siamese()
        self.head = nn.Linear(32, 2)

    def forward(self, pairs: Tensor) -> Tensor:
        first, second = self.twins(pairs)
        return self.head((first - second).abs())


@fault(
    FAULTS,
    "Siamese",
    causes="output-constant condition-switched-off inputs-constant unused-parameter vanishing-signal no-gradient",
    remedies="use-parameter restore-condition check-data keep-gradient",
)
def image_compared_with_itself(planted: bool) -> Case:
    """Both twins get the first image of the pair; their difference is zero for every pair."""
    torch.manual_seed(90)
    pairs, same = image_pairs()
    return Case(model=Verifier(planted), data=(pairs, same.long()), loss="cross_entropy")


class Simple(nn.Module):
    """Averages over neighbours again and again with one residual-free graph layer per round."""

    def __init__(self, edges: Tensor, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.register_buffer("edges", edges)
        self.first, self.second = GraphLayer(8, 16), GraphLayer(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x, self.edges)), self.edges))
        return self.head(x.mean(0).expand(len(x), -1) if self.planted else x)


@fault(
    FAULTS,
    "GNN",
    causes="output-constant samples-mixed",
    remedies="fix-axis use-parameter",
)
def readout_of_graphs_in_a_model_of_nodes(planted: bool) -> Case:
    """The mean over all nodes, which belongs to the classification of graphs, makes all nodes equal."""
    torch.manual_seed(91)
    x, edges, y = communities()
    return Case(model=Simple(edges, planted), data=(x, y), loss="cross_entropy", judge=accuracy(y))


# --------------------------------------------------------------------------------------------------------- normalizers


class Univariate(nn.Module):
    """Normalises a series of one feature and reads it with a GRU."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(1 if planted else 24)
        self.planted = planted
        self.lift, self.recurrent, self.head = nn.Linear(1, 24), nn.GRU(24, 24, batch_first=True), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        lifted = self.lift(self.norm(x)) if self.planted else self.norm(self.lift(x))
        return self.head(self.recurrent(lifted)[0].mean(1))


@fault(
    FAULTS,
    "time series",
    causes="normalizer-erases-signal normalizer-too-few-samples output-constant normalizer-wrong-axis inputs-constant",
    layers="norm",
    remedies="replace-normalizer fix-axis",
)
def layer_norm_of_a_single_feature(planted: bool) -> Case:
    """`nn.LayerNorm(1)` on a univariate series returns its bias at every step."""
    torch.manual_seed(92)
    x, y = waves(96, features=1)
    return Case(model=Univariate(planted), data=(x, y), loss="cross_entropy")


class Loudness(nn.Module):
    """Classifies recordings."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(1) if planted else nn.BatchNorm1d(1)
        self.conv, self.head = nn.Conv1d(1, 16, 5, padding=2), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(self.norm(x.transpose(1, 2)))).mean(2))


@fault(
    FAULTS,
    "audio",
    causes="normalizer-erases-signal",
    layers="norm",
    remedies="replace-normalizer",
)
def loudness_taken_away_before_it_is_judged(planted: bool) -> Case:
    """Each recording is standardised by itself, but its class is how loud it is."""
    torch.manual_seed(93)
    x, _ = waves(96, features=1)
    y = torch.arange(96) % 3
    x = x[torch.randperm(96)] * (0.3 * 2.5**y)[:, None, None]
    return Case(model=Loudness(planted), data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "CNN",
    causes="running-statistics-wrong wrong-mode",
    layers="features.1 features.4 features.8 features.11 features",
    remedies="refresh-statistics",
)
def averaged_weights_without_new_statistics(planted: bool) -> Case:
    """Weights averaged over training are put into a fresh network whose running statistics nobody updates."""
    torch.manual_seed(94)
    x, y = blob_images()
    model = ConvNet(norm=True, width=8)
    train(model, x, y, F.cross_entropy, steps=60)
    if planted:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


@fault(
    FAULTS,
    "ResNet",
    causes="layer-scale-stands-out branch-dominates exploding-signal exploding-gradient",
    layers="blocks.1 blocks.1.bn2 blocks.1.bn2.weight",
    remedies="rescale-layer initialise scale-branch",
)
def gain_of_a_branch_at_three_hundred(planted: bool) -> Case:
    """The gain of one normalizer comes from a checkpoint in which it stood for percent."""
    torch.manual_seed(95)
    x, y = blob_images(classes=8)
    model = ResNet(width=8, blocks=3, classes=8)
    if planted:
        nn.init.constant_(model.blocks[1].bn2.weight, 300.0)
    return Case(model=model, data=(x, y), loss="cross_entropy")


class Scaler(nn.Module):
    """Divides by the maximum of the batch or by a fixed number."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.abs().max() if self.planted else 1.0)


@fault(
    FAULTS,
    "tabular",
    causes="samples-mixed vanishing-signal inputs-not-scaled one-input-column-dominates",
    remedies="replace-normalizer scale-inputs fix-axis clean-data check-data",
)
def divided_by_the_maximum_of_the_batch(planted: bool) -> Case:
    """Inputs are divided by the largest value of their batch; one wrong reading shrinks all others to nothing."""
    torch.manual_seed(96)
    x, y = table()
    if planted:
        x[17, 4] = 9000.0
    return Case(model=nn.Sequential(Scaler(planted), *mlp(12, 32, 32, 3)), data=(x, y), loss="cross_entropy")


class Dose(nn.Module):
    """A response to features and a dose."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.dose_norm = nn.LayerNorm(1) if planted else nn.BatchNorm1d(1)
        self.body = mlp(5, 32, 32, 1)

    def forward(self, x: Tensor, dose: Tensor) -> Tensor:
        return self.body(torch.cat([x, self.dose_norm(dose)], dim=1))


@fault(
    FAULTS,
    "regression",
    causes="normalizer-erases-signal condition-switched-off normalizer-too-few-samples normalizer-wrong-axis",
    layers="dose_norm",
    remedies="replace-normalizer fix-axis restore-condition",
)
def dose_normalised_by_itself(planted: bool) -> Case:
    """A LayerNorm over the one value of the condition makes it the same for all patients."""
    torch.manual_seed(97)
    x, dose = torch.randn(128, 4), torch.randn(128, 1)
    y = dose * x[:, :1] + dose
    y = (y - y.mean()) / y.std()

    def judge(output: Tensor) -> float:
        return (1 - (output - y).square().mean() / y.var()).item()

    return Case(model=Dose(planted), data=({"x": x, "dose": dose}, y), loss="mse", judge=judge)


class RootMeanSquare(nn.Module):
    """The normalizer of Llama, by hand."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


@fault(
    FAULTS,
    "tabular",
    causes="eps-dominates vanishing-signal vanishing-gradient output-constant",
    layers="1 4 7",
    remedies="lower-eps",
)
def eps_of_a_root_mean_square_in_thousands(planted: bool) -> Case:
    """The argument of an optimizer was passed on to the normalizers."""
    torch.manual_seed(98)
    x, y = table()
    eps = 1e4 if planted else 1e-6
    layers: list[nn.Module] = []
    for inner in (12, 32, 32):
        layers += [nn.Linear(inner, 32), RootMeanSquare(32, eps), nn.ReLU()]
    return Case(model=nn.Sequential(*layers, nn.Linear(32, 3)), data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "CNN",
    causes="normalizer-too-few-samples normalizer-erases-signal output-constant",
    layers="4",
    remedies="replace-normalizer fix-axis",
)
def instance_norm_before_the_pooling(planted: bool) -> Case:
    """Each channel of each image has mean zero, and the mean over places is all that the head reads."""
    torch.manual_seed(99)
    x, y = blob_images(classes=3)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.Identity(),
        nn.InstanceNorm2d(16) if planted else nn.GroupNorm(1, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 3),
    )  # fmt: skip
    return Case(model=model, data=(x, y), loss="cross_entropy")
