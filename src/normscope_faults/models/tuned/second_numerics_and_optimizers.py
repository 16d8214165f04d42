"""Faults of normalizers, of precision and number formats, and of the optimizer that is handed over."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from ...case import Case, Fault, fault
from ..parts import (
    GPT,
    ConvNet,
    ResNet,
    SentenceEncoder,
    Siamese,
    ViT,
    blob_images,
    image_pairs,
    mlp,
    over_tokens,
    regression_table,
    sentences,
    table,
    text,
    train,
)

FAULTS: list[Fault] = []

# --------------------------------------------------------------------------------------------------------- normalizers


class NeckedNet(nn.Module):
    """Convolutions with GroupNorm, then a neck with BatchNorm over vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.GroupNorm(3, 12), nn.ReLU(),
            nn.Conv2d(12, 12, 3, stride=2, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.neck = nn.Sequential(nn.Linear(192, 24, bias=False), nn.BatchNorm1d(24), nn.ReLU())
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.neck(self.trunk(x)))


@fault(
    FAULTS, "ResNet", causes="normalizer-too-few-samples", remedies="larger-batch replace-normalizer",
    layers="neck.1 neck",
)  # fmt: skip
def batchnorm_of_vectors_with_two_samples(planted: bool) -> Case:
    """A batch of two (memory) in front of a BatchNorm1d: all values become plus or minus 1."""
    torch.manual_seed(141)
    model = NeckedNet()
    images, labels = blob_images(2 if planted else 64)
    probe = blob_images(128)

    def judge(_: Tensor) -> float:
        with torch.no_grad():
            probed = copy.deepcopy(model).eval()
            return (probed(probe[0]).argmax(1) == probe[1]).float().mean().item()

    return Case(model=model, data=(images, labels), loss="cross_entropy", judge=judge)


class PooledNorm(nn.Module):
    """Convolutions, then a normalizer before or behind the mean over places."""

    def __init__(self, norm: nn.Module, before: bool) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 5, padding=2), nn.ReLU()
        )
        self.norm, self.before = norm, before
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convs(x)
        x = self.norm(x).mean((2, 3)) if self.before else self.norm(x.mean((2, 3), keepdim=True)).flatten(1)
        return self.head(x)


@fault(
    FAULTS, "CNN", causes="normalizer-too-few-samples normalizer-erases-signal output-constant", layers="norm",
    remedies="replace-normalizer larger-batch",
)  # fmt: skip
def one_channel_per_group_behind_the_pooling(planted: bool) -> Case:
    """GroupNorm with as many groups as channels on maps of 1x1: each value minus itself."""
    torch.manual_seed(142)
    model = PooledNorm(nn.GroupNorm(16 if planted else 1, 16), before=False)
    return Case(model=model, data=blob_images(), loss="cross_entropy")


@fault(
    FAULTS, "CNN", causes="normalizer-erases-signal output-constant", layers="norm", remedies="replace-normalizer",
)  # fmt: skip
def mean_of_what_has_mean_zero(planted: bool) -> Case:
    """InstanceNorm makes the mean over places zero, and just this mean is what the head reads."""
    torch.manual_seed(143)
    norm = nn.InstanceNorm2d(16, affine=True) if planted else nn.GroupNorm(1, 16)
    return Case(model=PooledNorm(norm, before=True), data=blob_images(), loss="cross_entropy")


@fault(
    FAULTS, "CNN", causes="running-statistics-wrong", remedies="refresh-statistics switch-mode",
    layers="features.1 features.4 features.7 features.11 features.14 features.17 features.20 features.1.running_mean "
    "features.1.running_var features.4.running_mean features.4.running_var features.7.running_mean "
    "features.7.running_var features.11.running_mean features.11.running_var features.20.running_mean "
    "features.20.running_var",
)  # fmt: skip
def statistics_never_updated(planted: bool) -> Case:
    """TensorFlow's momentum of 0.999 and torch's are each other's complement: with 1e-4, nothing is ever collected."""
    torch.manual_seed(144)
    images, labels = blob_images(96, classes=8)
    model = ConvNet(depth=7, classes=8)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1e-4 if planted else 0.1
    train(model, images, labels, F.cross_entropy, steps=40)
    return Case(model=model, data=(images, labels), loss="cross_entropy", train=False)


class FunctionalDropout(nn.Module):
    """An MLP with dropout by function, whose switch may be forgotten."""

    def __init__(self, switched: bool) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(12, 64), nn.Linear(64, 64), nn.Linear(64, 3)
        self.switched = switched

    def forward(self, x: Tensor) -> Tensor:
        on = self.training if self.switched else True
        x = F.dropout(torch.relu(self.first(x)), 0.6, training=on)
        return self.head(F.dropout(torch.relu(self.second(x)), 0.6, training=on))


@fault(FAULTS, "tabular", causes="wrong-mode", layers="", remedies="switch-mode lower-dropout")
def functional_dropout_never_switched_off(planted: bool) -> Case:
    """PyTorch forums: F.dropout(x) has training=True by default, also in eval mode."""
    torch.manual_seed(145)
    x, y = table(96)
    model = FunctionalDropout(switched=True)
    train(model, x, y, F.cross_entropy, steps=200)
    model.switched = not planted
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


class BatchedNorm(nn.Module):
    """A normalizer by hand that subtracts the mean over one dimension."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain, self.shift, self.dim = nn.Parameter(torch.ones(32)), nn.Parameter(torch.zeros(32)), dim

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(self.dim, keepdim=True)
        return self.gain * centred / (centred.square().mean(self.dim, keepdim=True) + 1e-5).sqrt() + self.shift


@fault(
    FAULTS, "BERT", causes="normalizer-wrong-axis samples-mixed", layers="norm", remedies="fix-axis replace-normalizer"
)
def layer_norm_by_hand_over_the_batch(planted: bool) -> Case:
    """A LayerNorm written by hand with mean(0): a sentence alone is normalised to nothing."""
    torch.manual_seed(146)
    ids, labels = sentences()
    model = SentenceEncoder()
    model.norm = BatchedNorm(0 if planted else -1)

    def judge(_: Tensor) -> float:
        with torch.no_grad():
            return (
                torch.cat([model(row[None]).argmax(1) == label for row, label in zip(ids, labels)])
                .float()
                .mean()
                .item()
            )

    return Case(model=model, data=(ids, labels), loss="cross_entropy", judge=judge)


@fault(
    FAULTS, "GPT", causes="eps-dominates vanishing-signal", remedies="lower-eps",
    layers="norm blocks.0.norm1 blocks.0.norm2 blocks.1.norm1 blocks.1.norm2",
)  # fmt: skip
def second_argument_of_layer_norm_is_eps(planted: bool) -> Case:
    """nn.LayerNorm(width, 1): the number of dimensions was meant, but it is the eps."""
    torch.manual_seed(147)
    model = GPT()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1.0 if planted else 1e-5
    return Case(model=model, data=text(), loss=over_tokens)


@fault(
    FAULTS, "ViT", causes="zero-weights vanishing-signal layer-scale-stands-out output-constant vanishing-gradient",
    layers="norm norm.weight", remedies="rescale-layer initialise lower-weight-decay restore-weights",
)  # fmt: skip
def gains_decayed_to_nothing(planted: bool) -> Case:
    """Weight decay on the gains of the last normalizer: almost nothing reaches the head."""
    torch.manual_seed(148)
    model = ViT()
    if planted:
        nn.init.constant_(model.norm.weight, 1e-4)
    return Case(model=model, data=blob_images(), loss="cross_entropy")


@fault(
    FAULTS, "ResNet", causes="not-finite-weights running-statistics-wrong not-finite", remedies="refresh-statistics "
    "restore-weights", layers="blocks.1.bn1 blocks.1.bn1.running_mean blocks.1.bn1.running_var",
)  # fmt: skip
def statistics_spoilt_by_one_bad_batch(planted: bool) -> Case:
    """One batch with an infinite pixel, skipped by the loss scaler, has left NaN in the running statistics."""
    torch.manual_seed(149)
    images, labels = blob_images()
    model = ResNet()
    train(model, images, labels, F.cross_entropy, steps=40)
    if planted:
        model.blocks[1].bn1.running_var[3] = torch.nan
    return Case(model=model, data=(images, labels), loss="cross_entropy", train=False)


class BareStandardiser(nn.Module):
    """Standardises each row, with or without something that keeps the division from zero."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + self.eps)


@fault(FAULTS, "tabular", causes="not-finite gradient-not-finite", layers="0", remedies="guard-domain")
def standardiser_without_eps(planted: bool) -> Case:
    """A row of equal values (a sensor that is off) is divided by a standard deviation of zero."""
    torch.manual_seed(150)
    x, y = table()
    x[17] = 0.0
    model = nn.Sequential(BareStandardiser(0.0 if planted else 1e-5), *mlp(12, 48, 48, 3))
    return Case(model=model, data=(x, y), loss="cross_entropy")


# ----------------------------------------------------------------------------------------------------------- precision


class Loudness(nn.Module):
    """Classifies sounds by the logarithm of the energy of their two halves, summed up in a number format."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.tower = dtype, mlp(2, 32, 32, 3)

    def forward(self, sounds: Tensor) -> Tensor:
        energy = sounds.to(self.dtype).square().view(len(sounds), 2, -1).sum(2)
        return self.tower(energy.log().float() - 9)


@fault(
    FAULTS, "mixed precision", causes="precision not-finite", layers="",
    remedies="raise-precision scale-inputs",
)  # fmt: skip
def energies_beyond_the_range_of_half(planted: bool) -> Case:
    """A sum of squares leaves the range of float16 (65504)."""
    torch.manual_seed(151)
    labels = torch.arange(48) % 3
    sounds = torch.randn(48, 4096) * torch.tensor([1.0, 3.0, 7.0])[labels][:, None] * (1 + 0.2 * torch.rand(48, 1))
    return Case(
        model=Loudness(torch.float16 if planted else torch.float32), data=(sounds, labels), loss="cross_entropy"
    )


class OneDivided(nn.Module):
    """Scales rows by the root of their variance, computed as the mean of squares minus the square of the mean."""

    def __init__(self, stable: bool) -> None:
        super().__init__()
        self.stable, self.tower = stable, mlp(12, 48, 48, 3)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        centred = x - mean
        variance = centred.square().mean(1, keepdim=True)
        if not self.stable:
            variance = x.square().mean(1, keepdim=True) - mean.square()
        return self.tower(centred / variance.sqrt())


@fault(
    FAULTS, "tabular", causes="precision not-finite", layers="", remedies="raise-precision guard-domain scale-inputs",
)  # fmt: skip
def variance_by_the_difference_of_squares(planted: bool) -> Case:
    """E[x^2] - E[x]^2 of values around 5000 drowns in rounding and becomes negative."""
    torch.manual_seed(152)
    x, y = table()
    return Case(model=OneDivided(not planted), data=(5000 + x, y), loss="cross_entropy")


class BareDistance(Siamese):
    """Returns the distance of both embeddings, with something under the root or without."""

    inside = 0.0

    def forward(self, pairs: Tensor) -> Tensor:
        first, second = super().forward(pairs)
        return ((first - second).square().sum(1) + self.inside).sqrt()


def margin_loss(distance: Tensor, same: Tensor) -> Tensor:
    return (same * distance.square() + (1 - same) * F.relu(2 - distance).square()).mean()


@fault(FAULTS, "Siamese", causes="gradient-not-finite", layers="", remedies="guard-domain")
def root_of_zero_for_equal_pairs(planted: bool) -> Case:
    """The derivative of a root at zero is infinite: one pair of twice the same image makes all gradients NaN."""
    torch.manual_seed(153)
    pairs, same = image_pairs()
    pairs[4, 1] = pairs[4, 0]
    model = BareDistance()
    model.inside = 0.0 if planted else 1e-8
    return Case(
        model=model, data=(pairs, same), loss=margin_loss,
        judge=lambda distance: ((distance < 1) == (same > 0.5)).float().mean().item(),
    )  # fmt: skip


class MaskedPolicy(nn.Module):
    """Scores five actions, of which some are not allowed (the last five inputs say which)."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = mlp(12, 48, 48, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.tower(x).masked_fill(x[:, 7:] > 0.5, -1e9)


@fault(
    FAULTS, "policy", causes="not-finite gradient-not-finite", layers="",
    remedies="guard-domain change-loss change-output-activation",
)  # fmt: skip
def entropy_by_the_logarithm_of_a_softmax(planted: bool) -> Case:
    """p * log(p) of an action that is not allowed is 0 times minus infinity; log_softmax is finite there."""
    torch.manual_seed(154)
    x = torch.randn(128, 12)
    x[:, 7:] = (x[:, 7:] > 0.8).float()
    x[:, 7] = 0.0
    actions = (x[:, :5] * x[:, 1:6]).masked_fill(x[:, 7:] > 0.5, -9.0).argmax(1)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        chances = F.softmax(output, dim=1)
        logarithms = torch.log(chances) if planted else F.log_softmax(output, dim=1)
        return F.cross_entropy(output, target) + 0.01 * (chances * logarithms).sum(1).mean()

    return Case(model=MaskedPolicy(), data=(x, actions), loss=loss)


@fault(
    FAULTS, "mixed precision", causes="precision vanishing-gradient loss-gradient-zero", layers="",
    remedies="raise-precision",
)  # fmt: skip
def gradients_below_the_smallest_half(planted: bool) -> Case:
    """A model in float16 without a GradScaler: a small loss has gradients that round to zero."""
    torch.manual_seed(155)
    x, y = regression_table()
    model = mlp(8, 48, 48, 1)
    dtype = torch.float16 if planted else torch.float32

    def small_loss(output: Tensor, target: Tensor) -> Tensor:
        return 3e-6 * F.mse_loss(output, target)  # its weight beside other losses

    return Case(model=model.to(dtype), data=(x.to(dtype), y.to(dtype)), loss=small_loss)


# ----------------------------------------------------------------------------------------------------------- optimizer


@fault(FAULTS, "CNN", causes="learning-rate-too-large", layers="", remedies="lower-learning-rate")
def rate_and_momentum_swapped(planted: bool) -> Case:
    """SGD(parameters, 0.9, 0.02): the rate is where the momentum should be."""
    torch.manual_seed(161)
    model = ConvNet(norm=False)
    optimizer = SGD(model.parameters(), 0.9, 0.02) if planted else SGD(model.parameters(), 0.02, 0.9)
    return Case(model=model, data=blob_images(), loss="cross_entropy", optimizer=optimizer)


@fault(FAULTS, "GPT", causes="learning-rate-too-large", layers="", remedies="lower-learning-rate")
def adam_with_a_rate_of_a_half(planted: bool) -> Case:
    """A rate for SGD in an Adam: every weight moves by 0.5 in the first step."""
    torch.manual_seed(162)
    model = GPT()
    optimizer = Adam(model.parameters(), lr=0.5 if planted else 3e-3)
    return Case(model=model, data=text(), loss=over_tokens, optimizer=optimizer)


@fault(FAULTS, "regression", causes="learning-rate-too-small", layers="", remedies="raise-learning-rate")
def rate_of_one_in_a_billion(planted: bool) -> Case:
    """DeepCrime, "decrease learning rate": a schedule has run out before training begins."""
    torch.manual_seed(163)
    model = mlp(8, 48, 48, 1)
    optimizer = Adam(model.parameters(), lr=1e-9 if planted else 3e-3)
    return Case(model=model, data=regression_table(), loss="mse", optimizer=optimizer)


@fault(FAULTS, "CNN", causes="weight-decay-too-strong", layers="", remedies="lower-weight-decay")
def weight_decay_of_one(planted: bool) -> Case:
    """A strength of 1 from a ridge regression: the weights vanish, whatever the loss says."""
    torch.manual_seed(164)
    model = ConvNet(norm=False)
    optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1.0 if planted else 1e-4)
    return Case(model=model, data=blob_images(), loss="cross_entropy", optimizer=optimizer)


@fault(
    FAULTS, "regression", causes="momentum-too-large learning-rate-too-large", layers="",
    remedies="lower-momentum lower-learning-rate",
)  # fmt: skip
def momentum_that_never_fades(planted: bool) -> Case:
    """Momentum of 1 (0.9 rounded in a configuration of whole numbers): all gradients add up for ever."""
    torch.manual_seed(165)
    model = mlp(8, 48, 48, 1)
    optimizer = SGD(model.parameters(), lr=0.02, momentum=1.0 if planted else 0.9)
    return Case(model=model, data=regression_table(), loss="mse", optimizer=optimizer)


@fault(FAULTS, "regression", causes="optimizer-ascends", layers="", remedies="minimise")
def optimizer_set_to_maximise(planted: bool) -> Case:
    """maximize=True was copied from a policy gradient."""
    torch.manual_seed(166)
    model = mlp(8, 48, 48, 1)
    optimizer = Adam(model.parameters(), lr=3e-3, maximize=planted)
    return Case(model=model, data=regression_table(), loss="mse", optimizer=optimizer)
