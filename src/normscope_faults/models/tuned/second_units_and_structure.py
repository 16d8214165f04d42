"""Faults of units (dead, saturated, closed) and of structure."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from ..parts import (
    VAE,
    Autoencoder,
    ConvNet,
    Generator,
    GraphNet,
    accuracy,
    as_pixels,
    blob_images,
    communities,
    evidence_loss,
    explained_variance,
    mlp,
    overlap_with,
    regression_table,
    table,
    waves,
)

FAULTS: list[Fault] = []

# --------------------------------------------------------------------------------------------------------------- units


@fault(
    FAULTS, "tabular", causes="dead-units bias-holds-units-off", layers="2 3 2.bias",
    remedies="reset-bias initialise change-activation",
)  # fmt: skip
def second_layer_held_off_by_its_bias(planted: bool) -> Case:
    """A prior for the last layer's bias (log of the odds) was set on a hidden layer."""
    torch.manual_seed(51)
    model = mlp(12, 48, 48, 48, 3)
    if planted:
        nn.init.constant_(model[2].bias, -9.0)
    return Case(model=model, data=table(), loss="cross_entropy")


@fault(
    FAULTS, "tabular", causes="dead-units bias-holds-units-off output-constant", layers="0 1 2 3 4 5 0.bias 2.bias "
    "4.bias", remedies="lower-learning-rate reset-bias initialise change-activation restore-weights add-normalizer",
)  # fmt: skip
def units_killed_by_large_steps(planted: bool) -> Case:
    """DeepDiagnosis, "dying ReLU": a few steps of a far too large rate leave almost no unit alive."""
    torch.manual_seed(52)
    x, y = table()
    model = mlp(12, 32, 32, 32, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.7 if planted else 1e-3)
    for _ in range(12):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case(model=model, data=(x, y), loss="cross_entropy")


@fault(
    FAULTS, "CNN", causes="activation-unsuitable vanishing-gradient saturated-units vanishing-signal output-constant",
    layers="", remedies="change-activation add-normalizer initialise add-skip",
)  # fmt: skip
def eight_sigmoid_convolutions(planted: bool) -> Case:
    """DeepCrime, "change activation function": sigmoid in all hidden layers of a network without normalizers."""
    torch.manual_seed(53)
    model = ConvNet(depth=8, norm=False)
    if planted:
        for index, module in enumerate(model.features):
            if isinstance(module, nn.ReLU):
                model.features[index] = nn.Sigmoid()
    return Case(model=model, data=blob_images(), loss="cross_entropy")


class SquashedAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.squash, self.decoder = mlp(256, 64, 8), nn.Tanh(), mlp(8, 64, 256)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.squash(self.encoder(x)))


@fault(
    FAULTS, "autoencoder", causes="saturated-units layer-scale-stands-out", layers="encoder.2 squash encoder.2.weight",
    remedies="rescale-layer initialise add-normalizer change-activation",
)  # fmt: skip
def code_in_the_flat_part_of_tanh(planted: bool) -> Case:
    """AutoTrainer, "saturated activations": what enters the tanh of the code is in the hundreds."""
    torch.manual_seed(54)
    images = blob_images(classes=8)[0].flatten(1)
    model = SquashedAutoencoder()
    if planted:
        model.encoder[2].weight.data *= 300
    return Case(model=model, data=(images, images), loss="mse")


@fault(
    FAULTS, "regression", causes="activation-unsuitable vanishing-signal vanishing-gradient output-constant",
    layers="1 3 5", remedies="change-activation",
)  # fmt: skip
def softmax_between_hidden_layers(planted: bool) -> Case:
    """Stack Overflow (DeepFD): softmax as the activation of hidden layers."""
    torch.manual_seed(55)
    model = mlp(8, 48, 48, 48, 1)
    if planted:
        for index in (1, 3, 5):
            model[index] = nn.Softmax(dim=1)
    return Case(model=model, data=regression_table(), loss="mse")


@fault(
    FAULTS, "CNN", causes="saturated-units layer-scale-stands-out exploding-signal", layers="features.2 features.3 "
    "features.5 features.6 features.0 features.1 features.7 features.8",
    remedies="rescale-layer initialise add-normalizer change-activation",
)  # fmt: skip
def capped_rectifiers_at_their_cap(planted: bool) -> Case:
    """ReLU6 of a mobile network behind weights for another range: almost all units stand at 0 or 6."""
    torch.manual_seed(56)
    model = ConvNet(norm=False)
    for index, module in enumerate(model.features):
        if isinstance(module, nn.ReLU):
            model.features[index] = nn.ReLU6()
        if planted and isinstance(module, nn.Conv2d):
            module.weight.data *= 60
    return Case(model=model, data=blob_images(), loss="cross_entropy")


class SmallSegmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.middle = nn.Sequential(
            nn.Conv2d(12, 12, 3, padding=2, dilation=2, bias=False), nn.BatchNorm2d(12), nn.ReLU()
        )
        self.head = nn.Conv2d(12, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.down(x)))


@fault(
    FAULTS, "segmentation", causes="dead-units bias-holds-units-off", layers="middle.1 middle.2 middle.1.bias middle",
    remedies="reset-bias initialise",
)  # fmt: skip
def shift_of_a_batchnorm_kills_its_channels(planted: bool) -> Case:
    """Shifts of -9 behind a normalizer: no pixel ever passes the rectifier."""
    torch.manual_seed(57)
    images, _ = blob_images(24)
    mask = (F.avg_pool2d(images, 3, 1, 1) > 1.0).float()
    model = SmallSegmenter()
    if planted:
        nn.init.constant_(model.middle[1].bias, -9.0)
    return Case(model=model, data=(images, mask), loss=nn.BCEWithLogitsLoss(), judge=overlap_with(mask))


class GatedNet(nn.Module):
    """Two layers, each multiplied by a gate of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.value1, self.gate1 = nn.Linear(8, 48), nn.Linear(8, 48)
        self.value2, self.gate2 = nn.Linear(48, 48), nn.Linear(48, 48)
        self.head = nn.Linear(48, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.value1(x) * torch.sigmoid(self.gate1(x))
        return self.head(self.value2(x) * torch.sigmoid(self.gate2(x)))


@fault(
    FAULTS, "regression", causes="saturated-units vanishing-signal vanishing-gradient output-constant",
    layers="gate1 gate2 gate1.bias gate2.bias", remedies="reset-bias initialise",
)  # fmt: skip
def gates_closed_by_their_bias(planted: bool) -> Case:
    """Highway networks: a gate bias of -12 instead of -1 lets nothing through."""
    torch.manual_seed(58)
    model = GatedNet()
    if planted:
        nn.init.constant_(model.gate1.bias, -12.0)
        nn.init.constant_(model.gate2.bias, -12.0)
    return Case(model=model, data=regression_table(), loss="mse")


@fault(
    FAULTS, "GAN", causes="saturated-units layer-scale-stands-out exploding-signal", layers="layers.6 layers.7 "
    "layers.6.weight", remedies="rescale-layer initialise",
)  # fmt: skip
def generator_paints_black_and_white_only(planted: bool) -> Case:
    """normal_(std=2) instead of 0.02 in the last layer: the tanh of all pixels is at -1 or 1."""
    torch.manual_seed(59)
    real = blob_images(32)[0].mul(0.3).clamp(-0.95, 0.95)
    model = Generator()
    if planted:
        nn.init.normal_(model.layers[6].weight, std=2.0)

    def moments(fakes: Tensor) -> Tensor:
        spread = fakes.std(0) - real.std(0)
        return (fakes.mean(0) - real.mean(0)).square().mean() + spread.square().mean()

    return Case(model=model, data=torch.randn(32, 16), objective=moments)


@fault(
    FAULTS, "VAE", causes="layer-scale-stands-out not-finite exploding-signal exploding-gradient gradient-not-finite",
    layers="log_variance log_variance.weight", remedies="rescale-layer initialise guard-domain",
)  # fmt: skip
def log_variances_in_the_hundreds(planted: bool) -> Case:
    """The layer of the log variance is drawn like one of the variance: its exponential overflows."""
    torch.manual_seed(60)
    images = as_pixels(blob_images()[0]).flatten(1)
    model = VAE()
    model.encoder[1] = nn.SiLU()
    if planted:
        nn.init.normal_(model.log_variance.weight, std=15.0)
    return Case(
        model=model, data=(images, images), loss=evidence_loss,
        judge=lambda output: explained_variance(images)(torch.sigmoid(output[0])),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- structure


@fault(FAULTS, "tabular", causes="missing-activation", layers="0 1 2 3", remedies="add-activation")
def linear_layers_in_a_row(planted: bool) -> Case:
    """DeepCrime, "remove activation function": four linear layers with nothing between them."""
    torch.manual_seed(61)
    layers = list(mlp(12, 48, 48, 48, 3))
    model = nn.Sequential(*layers[::2]) if planted else nn.Sequential(*layers)
    return Case(model=model, data=table(), loss="cross_entropy")


class SeriesNet(nn.Module):
    """Convolutions over time, called one by one, then the mean over the steps."""

    def __init__(self, activate: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(3, 24, 5, padding=2)
        self.conv2 = nn.Conv1d(24, 24, 5, stride=2, padding=2)
        self.conv3 = nn.Conv1d(24, 24, 5, padding=2)
        self.head = nn.Linear(24, 3)
        self.activate = activate

    def forward(self, series: Tensor) -> Tensor:
        x = series.transpose(1, 2)
        for conv in (self.conv1, self.conv2, self.conv3):
            x = torch.relu(conv(x)) if self.activate else conv(x)
        return self.head(x.mean(2))


@fault(FAULTS, "TCN", causes="missing-activation", layers="conv1 conv2 conv3 head", remedies="add-activation")
def convolutions_without_activation(planted: bool) -> Case:
    """UMLAUT: activations forgotten when layers are called one by one in forward."""
    torch.manual_seed(62)
    return Case(model=SeriesNet(not planted), data=waves(), loss="cross_entropy")


@fault(FAULTS, "CNN", causes="bottleneck-too-narrow", layers="head.0 head.2 head.1", remedies="widen-layer")
def one_unit_before_eight_classes(planted: bool) -> Case:
    """DeepFD: a hidden layer of one unit, left over from a binary problem, in front of eight classes."""
    torch.manual_seed(63)
    model = ConvNet(classes=8)
    model.head = nn.Sequential(nn.Linear(16, 1 if planted else 16), nn.ReLU(), nn.Linear(1 if planted else 16, 8))
    return Case(model=model, data=blob_images(classes=8), loss="cross_entropy")


class PlainResidual(nn.Module):
    """Residual blocks without normalizers."""

    def __init__(self, blocks: int, scale: float) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 32), nn.Linear(32, 3)
        self.blocks = nn.ModuleList(mlp(32, 32, 32) for _ in range(blocks))
        for block in self.blocks:
            nn.init.kaiming_normal_(block[2].weight)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + self.scale * block(x)
        return self.head(x)


@fault(
    FAULTS, "ResNet", causes="exploding-signal exploding-gradient", layers="",
    remedies="scale-branch add-normalizer initialise rescale-layer",
)  # fmt: skip
def residual_sum_doubles_in_each_block(planted: bool) -> Case:
    """ResNet without normalizers: the branches are not scaled down, so that variance triples per block."""
    torch.manual_seed(64)
    return Case(model=PlainResidual(16, 1.0 if planted else 0.15), data=table(), loss="cross_entropy")


class FlattenedNet(nn.Module):
    """Convolutions, then all places and channels flattened for a linear head."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 4))
        self.mixes = mixes

    def forward(self, x: Tensor) -> Tensor:
        x = self.convs(x)
        return self.head(x.transpose(0, 1).reshape(len(x), -1) if self.mixes else x.flatten(1))


@fault(FAULTS, "CNN", causes="samples-mixed", layers="", remedies="fix-axis")
def channels_first_then_flattened(planted: bool) -> Case:
    """PyTorch forums: a transpose before the view, so that rows hold one channel of many images."""
    torch.manual_seed(65)
    return Case(model=FlattenedNet(planted), data=blob_images(), loss="cross_entropy")


class SetNet(nn.Module):
    """Embeds the members of a set, takes their mean, classifies the set."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Sequential(*mlp(4, 32, 32), nn.ReLU()), mlp(32, 32, 3, activation=nn.GELU)
        self.dim = dim

    def forward(self, sets: Tensor) -> Tensor:
        return self.head(self.embed(sets).mean(self.dim))


@fault(FAULTS, "set", causes="samples-mixed output-constant normalizer-wrong-axis", layers="", remedies="fix-axis")
def mean_over_the_batch_instead_of_the_set(planted: bool) -> Case:
    """DeepSets with as many members as samples: mean(0) runs without an error."""
    torch.manual_seed(66)
    labels = torch.arange(48) % 3
    sets = torch.randn(48, 48, 4) * (0.6 + 0.4 * labels)[:, None, None]
    return Case(model=SetNet(0 if planted else 1), data=(sets, labels), loss="cross_entropy")


@fault(FAULTS, "CNN", causes="dropout-too-strong", layers="features.3 features.7", remedies="lower-dropout")
def dropout_keeps_one_channel_in_twenty_five(planted: bool) -> Case:
    """DeepCrime, "change dropout rate": 0.96 was meant as the probability to keep."""
    torch.manual_seed(67)
    model = ConvNet()
    layers = list(model.features)
    rate = 0.96 if planted else 0.04
    model.features = nn.Sequential(*layers[:3], nn.Dropout2d(rate), *layers[3:6], nn.Dropout2d(rate), *layers[6:])
    return Case(model=model, data=blob_images(), loss="cross_entropy")


@fault(FAULTS, "regression", causes="dropout-misplaced dropout-too-strong", layers="6", remedies="lower-dropout")
def dropout_behind_the_output(planted: bool) -> Case:
    """Stack Overflow: dropout as the last layer zeroes predictions themselves."""
    torch.manual_seed(68)
    layers = list(mlp(8, 48, 48, 1))
    layers += [nn.Identity(), nn.Dropout(0.5 if planted else 0.0)]
    return Case(model=nn.Sequential(*layers), data=regression_table(), loss="mse")


class Conditioned(nn.Module):
    """Classifies a row of numbers by a rule that a category chooses."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.category, self.strength = nn.Embedding(4, 32), strength
        self.first, self.rest = nn.Linear(8, 32), nn.Sequential(nn.ReLU(), *mlp(32, 32, 32, 2))

    def forward(self, x: Tensor, category: Tensor) -> Tensor:
        return self.rest(self.first(x) + self.strength * self.category(category))


@fault(
    FAULTS, "conditional", causes="condition-switched-off branch-dominates", layers="category category.weight",
    remedies="restore-condition rescale-layer initialise scale-branch",
)  # fmt: skip
def category_multiplied_by_almost_nothing(planted: bool) -> Case:
    """A guidance strength that was annealed to 1e-5 and left there."""
    torch.manual_seed(69)
    x, category = torch.randn(128, 8), torch.arange(128) % 4
    labels = (x[torch.arange(128), category] > 0).long()
    model = Conditioned(1e-5 if planted else 1.0)
    return Case(
        model=model, data=({"x": x, "category": category}, labels), loss="cross_entropy", judge=accuracy(labels)
    )


class NeighbourMean(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, outer)
        nn.init.kaiming_normal_(self.linear.weight, nonlinearity="relu")

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        degree = torch.zeros(len(x), 1).index_add(0, target, torch.ones(len(target), 1))
        return self.linear(torch.zeros_like(x).index_add(0, target, x[source]) / degree.clamp(min=1))


@fault(
    FAULTS, "GNN", causes="vanishing-signal output-constant vanishing-gradient", layers="",
    remedies="fewer-layers add-skip add-normalizer initialise",
)  # fmt: skip
def sixteen_means_over_neighbours(planted: bool) -> Case:
    """Over-smoothing (Li et al. 2018): after many means all nodes have the same state."""
    torch.manual_seed(70)
    x, edges, labels = communities()
    model = GraphNet(edges, depth=16 if planted else 2)
    for index, layer in enumerate(model.layers):
        model.layers[index] = NeighbourMean(layer.own.in_features, layer.own.out_features)
    return Case(model=model, data=(x, labels), loss="cross_entropy")


class SharingAutoencoder(Autoencoder):
    shares = True

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x).softmax(dim=0) if self.shares else self.encoder(x))


@fault(
    FAULTS, "autoencoder", causes="samples-mixed normalizer-wrong-axis activation-unsuitable vanishing-signal "
    "output-constant", layers="", remedies="fix-axis change-activation",
)  # fmt: skip
def code_softmaxed_over_the_batch(planted: bool) -> Case:
    """F.softmax without a dim took dimension 0 in old versions: the samples share one distribution."""
    torch.manual_seed(71)
    images = blob_images(classes=8)[0].flatten(1)
    model = SharingAutoencoder()
    model.shares = planted
    return Case(model=model, data=(images, images), loss="mse")
