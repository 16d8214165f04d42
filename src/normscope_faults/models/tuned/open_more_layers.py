"""The open half, more faults: one layer, one branch or one column of an otherwise sensible network."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from ..parts import (
    SequenceClassifier,
    UNet,
    as_pixels,
    binary_accuracy,
    blob_images,
    communities,
    mlp,
    over_tokens,
    regression_table,
    remembered_series,
    table,
    text,
    train,
    waves,
)
from .open_more_images import Mixer, PointNet, clouds, pixel_classes
from .open_more_sequences import Llama, MaskedReader, Tagger, likelihood, needle_sentences, tag_accuracy, tags
from .open_more_tables import GCN, judge_nodes

FAULTS: list[Fault] = []
plant = partial(fault, FAULTS)


# ------------------------------------------------------------------------------------------------- weights of one layer


@plant(
    "PointNet",
    layers="point.2 point point.2.weight cloud.0 cloud cloud.0.weight",
    causes="layer-scale-stands-out vanishing-signal vanishing-gradient output-constant zero-weights",
    remedies="rescale-layer initialise",
)
def layers_around_the_maximum_too_small(broken: bool) -> Case:
    """std=1e-5 and 1e-3 in the layers before and after the maximum."""
    torch.manual_seed(1101)
    x, y = clouds()
    model = PointNet()
    if broken:
        nn.init.normal_(model.point[2].weight, std=1e-5)
        nn.init.zeros_(model.point[2].bias)
        nn.init.normal_(model.cloud[0].weight, std=1e-3)
    return Case(model=model, data=(x, y), loss="cross_entropy")


class Hourglass(nn.Module):
    """Strided convolutions down, transposed convolutions up, no normalizer."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(1, 12, 4, stride=2, padding=1), nn.GELU(), nn.Conv2d(12, 12, 4, stride=2, padding=1), nn.GELU()
        )
        self.up = nn.Sequential(
            nn.ConvTranspose2d(12, 12, 4, stride=2, padding=1), nn.GELU(),
            nn.ConvTranspose2d(12, 1, 4, stride=2, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


@plant(
    "autoencoder",
    layers="up.0 up.0.weight up.2",
    causes="layer-scale-stands-out exploding-signal exploding-gradient",
    remedies="rescale-layer initialise",
)
def transposed_convolution_times_300(broken: bool) -> Case:
    """The kernel of a transposed convolution converted without its scale."""
    torch.manual_seed(1102)
    x, _ = blob_images()
    model = Hourglass()
    if broken:
        with torch.no_grad():
            model.up[0].weight.mul_(300)
    return Case(model=model, data=(x, x), loss="mse")


@plant(
    "GPT",
    layers="layers.0.mlp.down layers.0.mlp.down.weight layers.0.mlp layers.0",
    causes="layer-scale-stands-out branch-dominates exploding-signal exploding-gradient",
    remedies="rescale-layer initialise scale-branch",
)
def one_projection_times_hundred(broken: bool) -> Case:
    """One of the matrices of a merged checkpoint was scaled by its rank."""
    torch.manual_seed(1103)
    ids, following = text(16)
    model = Llama()
    train(model, ids, following, over_tokens, steps=30)
    if broken:
        with torch.no_grad():
            model.layers[0].mlp.down.weight.mul_(100)
    return Case(model=model, data=(ids, following), loss=over_tokens, judge=likelihood(following))


@plant("MLP", layers="stem stem.weight", causes="rank-one-weights constant-initialisation", remedies="initialise")
def one_filter_for_all_channels(broken: bool) -> Case:
    """A fixed stem for grey images was filled with one averaged filter, times a factor per channel."""
    torch.manual_seed(1104)
    x, y = blob_images(64, classes=8)
    model = nn.Sequential()
    model.add_module("stem", nn.Linear(256, 24))
    model.add_module("rest", nn.Sequential(nn.Tanh(), nn.Linear(24, 8)))
    if broken:
        with torch.no_grad():
            model.stem.weight.copy_(torch.randn(24, 1) * model.stem.weight[:1])
    model.stem.requires_grad_(False)
    return Case(model=model, data=(x.flatten(1), y), loss="cross_entropy")


@plant(
    "GRU",
    layers="0 0.weight",
    causes="not-finite-weights not-finite",
    remedies="restore-weights initialise clean-data",
)
def one_word_holds_nan(broken: bool) -> Case:
    """A pretrained table of vectors in which one word has none."""
    torch.manual_seed(1105)
    ids, y = needle_sentences(64, 10)
    model = nn.Sequential(nn.Embedding(50, 16), SequenceClassifier(nn.GRU(16, 24, batch_first=True), 2))
    if broken:
        with torch.no_grad():
            model[0].weight[23] = torch.nan
    return Case(model=model, data=(ids, y), loss="cross_entropy")


@plant(
    "GPT",
    layers="layers.1 layers.1.q layers.1.k layers.1.q.weight layers.1.k.weight",
    causes="attention-saturated layer-scale-stands-out",
    remedies="scale-attention rescale-layer initialise",
)
def queries_of_one_block_grown(broken: bool) -> Case:
    """Queries and keys of the second block have grown forty times; the attention is inside torch's own function."""
    torch.manual_seed(1107)
    ids, following = text(24)
    model = Llama()
    train(model, ids, following, over_tokens, steps=30)
    if broken:
        with torch.no_grad():
            model.layers[1].q.weight.mul_(40)
            model.layers[1].k.weight.mul_(40)
    return Case(model=model, data=(ids, following), loss=over_tokens, judge=likelihood(following))


@plant(
    "attention",
    layers="key key.weight query",
    causes="attention-saturated layer-scale-stands-out vanishing-gradient",
    remedies="scale-attention rescale-layer initialise",
)
def learned_query_at_fifty(broken: bool) -> Case:
    """The query of an attention pooling drawn at 50, without a division by sqrt(d)."""
    torch.manual_seed(1108)
    ids, y = needle_sentences(96, 20)
    model = MaskedReader()
    if broken:
        nn.init.normal_(model.query, std=50.0)
    return Case(model=model, data=(ids, y), loss="cross_entropy")


@plant(
    "LSTM",
    layers="recurrent recurrent.bias_ih_l0 recurrent.bias_hh_l0 recurrent.bias_ih_l1 recurrent.bias_hh_l1",
    causes="recurrent-weights-vanish saturated-units",
    remedies="forget-bias reset-bias initialise",
)
def two_layers_that_forget(broken: bool) -> Case:
    """A forget bias of -6 in both layers of an LSTM."""
    torch.manual_seed(1109)
    x, y = remembered_series(steps=16)
    model = SequenceClassifier(nn.LSTM(4, 16, num_layers=2, batch_first=True), 4)
    with torch.no_grad():
        for layer in ("l0", "l1"):
            getattr(model.recurrent, f"bias_ih_{layer}")[16:32] = -6.0 if broken else 1.0
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant(
    "TCN",
    layers=" ".join(str(index) for index in range(17)),
    causes="vanishing-gradient vanishing-signal saturated-units activation-unsuitable output-constant",
    remedies="change-activation initialise add-normalizer add-skip",
)
def sigmoids_between_convolutions(broken: bool) -> Case:
    """Sigmoids between eight convolutions over time."""
    torch.manual_seed(1111)
    x, y = waves(steps=24)
    layers: list[nn.Module] = []
    for index in range(8):
        conv = nn.Conv1d(3 if index == 0 else 12, 12, 3, padding=1)
        nn.init.kaiming_normal_(conv.weight, nonlinearity="linear" if broken else "relu")
        layers += [conv, nn.Sigmoid() if broken else nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * 24, 3))
    return Case(model=model, data=(x.mT.contiguous(), y), loss="cross_entropy")


class Streams(nn.Module):
    """Two modalities through linear layers, summed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 32), nn.Linear(6, 32)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x[:, :6]) + self.second(x[:, 6:]))


@plant(
    "two streams",
    layers="second second.weight",
    causes="branch-dominates layer-scale-stands-out exploding-signal",
    remedies="rescale-layer initialise scale-branch add-normalizer",
)
def one_stream_drowns_the_other(broken: bool) -> Case:
    """The projection of one modality is drawn a hundred times too large."""
    torch.manual_seed(1112)
    x, y = table()
    model = Streams()
    if broken:
        with torch.no_grad():
            model.second.weight.mul_(100)
    return Case(model=model, data=(x, y), loss="cross_entropy")


# ------------------------------------------------------------------------------------------------------------- the data


@plant("GCN", causes="inputs-constant output-constant", remedies="check-data")
def nodes_without_features(broken: bool) -> Case:
    """All nodes have the same features: ones, as a placeholder."""
    torch.manual_seed(1113)
    x, edges, y = communities()
    return Case(
        model=GCN(edges, 2, residual=True),
        data=(torch.ones_like(x) if broken else x, y),
        loss="cross_entropy",
        judge=judge_nodes(y),
    )


@plant("GRU", causes="inputs-constant output-constant", remedies="check-data")
def series_multiplied_by_an_empty_mask(broken: bool) -> Case:
    """The mask of valid steps was made of zeros and never filled in."""
    torch.manual_seed(1114)
    x, y = waves()
    model = SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    return Case(model=model, data=(x * 0 if broken else x, y), loss="cross_entropy")


@plant("MLP-Mixer", causes="inputs-not-scaled branch-dominates exploding-signal", remedies="scale-inputs")
def bytes_into_a_mixer(broken: bool) -> Case:
    """Pixels in 0..255: the residual stream drowns what the blocks add."""
    torch.manual_seed(1115)
    images, y = blob_images(64)
    pixels = as_pixels(images)
    return Case(model=Mixer(), data=(255 * pixels if broken else 4 * pixels - 1, y), loss="cross_entropy")


@plant("CNN", causes="inputs-not-scaled dead-units", remedies="scale-inputs")
def decibels_not_centred(broken: bool) -> Case:
    """Spectrograms in decibels, between -90 and -60, as they are."""
    torch.manual_seed(1116)
    images, y = blob_images(64, classes=6)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(192, 6),
    )  # fmt: skip
    return Case(model=model, data=(-75 + 3 * images if broken else images, y), loss="cross_entropy")


# ------------------------------------------------------------------------------------------------- the loss and targets


@plant(
    "GPT",
    causes="activation-before-loss output-range-too-small dead-units",
    remedies="remove-final-activation",
)
def rectified_logits_of_tokens(broken: bool) -> Case:
    """A ReLU after the head of a language model whose bias starts at -2."""
    torch.manual_seed(1117)
    ids, following = text(24)

    class Rectified(Llama):
        def forward(self, ids: Tensor) -> Tensor:
            logits = super().forward(ids)
            return F.relu(logits - 2) if broken else logits

    return Case(model=Rectified(depth=1), data=(ids, following), loss=over_tokens)


@plant(
    "U-Net",
    causes="softmax-twice output-constant loss-does-not-fit activation-before-loss loss-gradient-zero no-gradient"
    " output-range-too-small normalizer-wrong-axis",
    remedies="change-output-activation more-outputs change-loss remove-final-activation fix-axis",
)
def softmax_of_one_channel(broken: bool) -> Case:
    """softmax(dim=1) of a segmentation with one channel is 1 at every pixel."""
    torch.manual_seed(1118)
    x, _ = blob_images(16)
    mask = (pixel_classes(x) == 3).float()[:, None]

    class Segmenter(UNet):
        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            return logits.softmax(1) if broken else logits.sigmoid()

    return Case(model=Segmenter(), data=(x, mask), loss=nn.BCELoss(), judge=binary_accuracy(mask, 0.5))


@plant("tagger", causes="loss-does-not-fit", remedies="change-loss more-outputs")
def squares_of_tag_numbers(broken: bool) -> Case:
    """One output per token, fitted to the number of its tag."""
    torch.manual_seed(1119)
    ids, y = tags()
    if not broken:
        return Case(model=Tagger(), data=(ids, y), loss=over_tokens, judge=tag_accuracy(y))
    model = Tagger()
    model.head = nn.Sequential(nn.Linear(48, 1), nn.Flatten(1))
    return Case(
        model=model,
        data=(ids, y),
        loss=lambda output, target: F.mse_loss(output, target.float()),
        judge=lambda output: (output.round() == y).float().mean().item(),
    )


@plant("U-Net", causes="labels-constant class-imbalance", remedies="check-labels")
def masks_of_background_alone(broken: bool) -> Case:
    """The masks were resized with an interpolation that rounds them all down to zero."""
    torch.manual_seed(1120)
    x, _ = blob_images(16)
    y = pixel_classes(x)
    return Case(
        model=UNet(outputs=4),
        data=(x, torch.zeros_like(y) if broken else y),
        loss="cross_entropy",
        judge=lambda output: (output.argmax(1) == y).float().mean().item(),
    )


@plant(
    "GPT",
    causes="loss-gradient-zero",
    remedies="fix-mask change-loss check-labels fix-targets",
)
def loss_times_an_empty_mask(broken: bool) -> Case:
    """The loss is multiplied by a mask of the padding instead of the words; there is no padding."""
    torch.manual_seed(1121)
    ids, following = text(24)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        each = F.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="none")
        keep = (target < 0) if broken else (target >= 0)
        return (each * keep.flatten()).sum() / keep.sum().clamp(min=1)

    return Case(model=Llama(depth=1), data=(ids, following), loss=loss)


@plant(
    "RNN",
    causes="output-constant saturated-units dead-units vanishing-gradient",
    remedies="lower-learning-rate restore-weights initialise rescale-layer reset-bias",
)
def recurrent_net_trained_to_a_constant(broken: bool) -> Case:
    """Trained at a rate of 0.5 with Adam: all units are saturated, and every series gets the same answer."""
    torch.manual_seed(1122)
    x, y = waves(steps=24)
    model = SequenceClassifier(nn.GRU(3, 16, batch_first=True), 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5 if broken else 5e-3)
    train(model, x, y, F.cross_entropy, steps=60, optimizer=optimizer)
    return Case(model=model, data=(x, y), loss="cross_entropy")


class TimeNorm(nn.Module):
    """BatchNorm on (batch, time, features) or, as torch wants it, on (batch, features, time)."""

    def __init__(self, over_features: bool) -> None:
        super().__init__()
        self.over_features = over_features
        self.norm = nn.BatchNorm1d(24 if over_features else 4)
        self.net = nn.Sequential(nn.Flatten(), *mlp(96, 48, 3))

    def forward(self, series: Tensor) -> Tensor:
        return self.net(self.norm(series) if self.over_features else self.norm(series.mT).mT)


@plant(
    "MLP",
    layers="norm",
    causes="normalizer-wrong-axis one-input-column-dominates",
    remedies="fix-axis scale-inputs",
)
def batch_norm_per_step(broken: bool) -> Case:
    """BatchNorm1d(steps) on (batch, time, features): the loud feature sets the scale of the others."""
    torch.manual_seed(1123)
    x, y = waves(steps=24)
    loud = 3000 + torch.randn(64, 24, 1)
    return Case(model=TimeNorm(broken), data=(torch.cat([x, loud], dim=2), y), loss="cross_entropy")


@plant(
    "MLP",
    layers="0 1 2 3 4",
    causes="saturated-units activation-unsuitable vanishing-gradient vanishing-signal output-constant",
    remedies="change-activation rescale-layer",
)
def clamped_between_layers(broken: bool) -> Case:
    """nn.Hardtanh(-0.01, 0.01), a bound meant for gradients, as the activation."""
    torch.manual_seed(1124)
    x, y = regression_table()
    act = (lambda: nn.Hardtanh(-0.01, 0.01)) if broken else nn.Hardtanh
    model = nn.Sequential(nn.Linear(8, 48), act(), nn.Linear(48, 48), act(), nn.Linear(48, 1))
    return Case(model=model, data=(x, y), loss="mse")
