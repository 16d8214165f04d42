"""Held-out faults of weights: how they are drawn, layers whose scale stands out, units that are dead or saturated."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from ..parts import (
    GPT,
    Autoencoder,
    ConvNet,
    GraphNet,
    SequenceClassifier,
    UNet,
    ViT,
    accuracy,
    binary_accuracy,
    blob_images,
    communities,
    mlp,
    over_tokens,
    overlap_with,
    ratings,
    regression_table,
    table,
    text,
    train,
    waves,
)

FAULTS: list[Fault] = []


# ------------------------------------------------------------------------------------------------------ initialisation


@fault(
    FAULTS,
    "CNN",
    causes="exploding-signal exploding-gradient layer-scale-stands-out rank-one-weights saturated-units",
    layers="features features.0 features.2 features.5 features.7",
    remedies="initialise rescale-layer add-normalizer",
)
def uniform_without_its_bounds(planted: bool) -> Case:
    """`nn.init.uniform_(weight)` draws from 0 to 1, not around zero."""
    torch.manual_seed(1)
    x, y = blob_images()
    model = ConvNet(norm=False)
    if planted:
        for module in model.features:
            if isinstance(module, nn.Conv2d):
                nn.init.uniform_(module.weight)
    return Case(model=model, data=(x, y), loss="cross_entropy")


class Factorisation(nn.Module):
    """Ratings as dot products of factors of users and items."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(40, 6), nn.Embedding(30, 6)
        nn.init.normal_(self.users.weight, std=0.3)
        nn.init.normal_(self.items.weight, std=0.3)

    def forward(self, pairs: Tensor) -> Tensor:
        return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)


@fault(
    FAULTS,
    "recommender",
    causes="constant-initialisation rank-one-weights",
    layers="users items users.weight items.weight",
    remedies="initialise",
)
def factors_all_of_one_value(planted: bool) -> Case:
    """All factors of a matrix factorisation start at the same number; DeepCrime changes initialisers so."""
    torch.manual_seed(2)
    pairs, stars = ratings()
    model = Factorisation()
    if planted:
        nn.init.constant_(model.users.weight, 0.3)
        nn.init.constant_(model.items.weight, 0.3)
    return Case(model=model, data=(pairs, stars), loss="mse")


@fault(
    FAULTS,
    "tabular",
    causes="vanishing-signal vanishing-gradient layer-scale-stands-out output-constant",
    layers="0 2 4 6 8 10",
    remedies="initialise rescale-layer add-normalizer add-skip",
)
def drawn_as_bert_but_without_its_norms(planted: bool) -> Case:
    """The 0.02 of BERT's weights, copied to a plain network that has no LayerNorm to repair it."""
    torch.manual_seed(3)
    x, y = table()
    model = mlp(12, 48, 48, 48, 48, 48, 3)
    if planted:
        for module in model:
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "actor-critic",
    causes="vanishing-signal vanishing-gradient layer-scale-stands-out output-constant zero-weights",
    layers="trunk trunk.0 trunk.2 trunk.4 policy",
    remedies="initialise rescale-layer add-normalizer add-skip",
)
def gain_of_the_policy_head_in_every_layer(planted: bool) -> Case:
    """The gain of 0.01, meant for the last layer of a policy, is given to the function that draws all layers."""
    torch.manual_seed(4)
    x, y = table(classes=4)
    trunk, policy = mlp(12, 64, 64, 64, activation=nn.Tanh), nn.Linear(64, 4)
    for module in trunk:
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, gain=0.01 if planted else 1.4)
            nn.init.zeros_(module.bias)
    nn.init.orthogonal_(policy.weight, gain=0.01)
    nn.init.zeros_(policy.bias)
    model = nn.Sequential()
    model.add_module("trunk", trunk)
    model.add_module("last", nn.Tanh())
    model.add_module("policy", policy)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "autoencoder",
    causes="vanishing-signal vanishing-gradient layer-scale-stands-out output-constant",
    layers="encoder encoder.0 encoder.2 encoder.4 decoder decoder.0 decoder.2 decoder.4",
    remedies="initialise rescale-layer add-normalizer add-skip",
)
def divided_by_the_fan_instead_of_its_root(planted: bool) -> Case:
    """Weights by hand, `randn / n` where `randn / sqrt(n)` was meant."""
    torch.manual_seed(5)
    x = blob_images()[0].flatten(1)
    model = Autoencoder()
    if planted:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=1 / module.in_features)
    return Case(model=model, data=(x, x), loss="mse")


@fault(
    FAULTS,
    "LSTM",
    causes="saturated-units recurrent-weights-explode exploding-gradient layer-scale-stands-out",
    layers="recurrent recurrent.weight_hh_l0 recurrent.weight_ih_l0",
    remedies="initialise rescale-layer clip-gradients",
)
def lstm_from_a_standard_normal(planted: bool) -> Case:
    """A loop over `parameters()` that draws all of them from a standard normal distribution."""
    torch.manual_seed(6)
    x, y = waves()
    model = SequenceClassifier(nn.LSTM(3, 64, batch_first=True), 3)
    if planted:
        for parameter in model.recurrent.parameters():
            nn.init.normal_(parameter)
    return Case(model=model, data=(x, y), loss="cross_entropy")


class ConvAutoencoder(nn.Module):
    """Strided convolutions down to a code of 8x4x4 and transposed ones back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 8, 3, stride=2, padding=1)
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(8, 12, 4, stride=2, padding=1), nn.ReLU(),
            nn.ConvTranspose2d(12, 1, 4, stride=2, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


@fault(
    FAULTS,
    "regression",
    causes="rank-one-weights constant-initialisation bottleneck-too-narrow",
    layers="2 2.weight 4 4.weight",
    remedies="initialise",
)
def one_row_copied_to_every_unit(planted: bool) -> Case:
    """`weight.data[:] = torch.randn(fan_in)` broadcasts one row to all units."""
    torch.manual_seed(8)
    x, y = regression_table()
    model = mlp(8, 32, 32, 32, 1)
    if planted:
        with torch.no_grad():
            for index in (2, 4):
                model[index].weight[:] = torch.randn(32) / 4
    return Case(model=model, data=(x, y), loss="mse")


@fault(
    FAULTS,
    "ViT",
    causes="branch-dominates layer-scale-stands-out output-constant exploding-signal vanishing-gradient",
    layers="places",
    remedies="initialise rescale-layer scale-branch",
)
def places_left_as_torch_empty_gave_them(planted: bool) -> Case:
    """`nn.Parameter(torch.empty(...))` that nobody fills holds what lay in memory before."""
    torch.manual_seed(9)
    x, y = blob_images()
    model = ViT()
    if planted:
        with torch.no_grad():
            model.places.copy_(torch.randn_like(model.places) * 10 ** (6 * torch.rand_like(model.places)))
    return Case(model=model, data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "regression",
    causes="saturated-units bias-holds-units-off vanishing-gradient layer-scale-stands-out",
    layers="0 2 4 6 0.bias 2.bias 4.bias 1 3 5",
    remedies="reset-bias initialise",
)
def biases_from_a_wide_normal(planted: bool) -> Case:
    """DeepCrime's change of the bias initialiser: a normal distribution that is far too wide for tanh."""
    torch.manual_seed(10)
    x, y = regression_table()
    model = mlp(8, 32, 32, 32, 1, activation=nn.Tanh)
    if planted:
        for index in (0, 2, 4):
            nn.init.normal_(model[index].bias, std=8.0)
    return Case(model=model, data=(x, y), loss="mse")


@fault(
    FAULTS,
    "GPT",
    causes="exploding-signal layer-scale-stands-out branch-dominates attention-saturated exploding-gradient "
    "saturated-units",
    layers="blocks blocks.0 blocks.1 blocks.0.feed blocks.1.feed blocks.0.feed.2 blocks.1.feed.2 blocks.0.feed.0 "
    "blocks.1.feed.0 blocks.0.attention.out blocks.1.attention.out blocks.0.attention.qkv blocks.1.attention.qkv "
    "head tokens positions",
    remedies="initialise rescale-layer scale-branch scale-attention lower-learning-rate",
)
def variance_given_where_deviation_is_asked(planted: bool) -> Case:
    """A library that takes a deviation gets 0.7, the other way around of what the paper's 0.02 means."""
    torch.manual_seed(11)
    x, y = text()
    model = GPT(tied=False)
    if planted:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.7)
    return Case(model=model, data=(x, y), loss=over_tokens)


# --------------------------------------------------------------------------------------------------------- layer scale


def blob_masks(count: int = 24) -> tuple[Tensor, Tensor]:
    """Return images and masks of their bright part."""
    images, _ = blob_images(count)
    smooth = F.avg_pool2d(images, 3, stride=1, padding=1)
    return images, (smooth > 1.0).float()


@fault(
    FAULTS,
    "segmentation",
    causes="layer-scale-stands-out exploding-signal exploding-gradient",
    layers="head head.weight",
    remedies="rescale-layer initialise",
)
def last_convolution_of_a_segmenter_times_500(planted: bool) -> Case:
    """A head whose weights come from a conversion without its scale."""
    torch.manual_seed(12)
    x, mask = blob_masks()
    model = UNet()
    if planted:
        with torch.no_grad():
            model.head.weight.mul_(500)
    return Case(model=model, data=(x, mask), loss=F.binary_cross_entropy_with_logits, judge=overlap_with(mask))


class Mixture(nn.Module):
    """Four experts, mixed by a soft gate."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(mlp(12, 32, 3) for _ in range(4))
        self.gate = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        return sum(share[:, None] * expert(x) for share, expert in zip(shares.unbind(1), self.experts, strict=True))


@fault(
    FAULTS,
    "mixture of experts",
    causes="layer-scale-stands-out branch-dominates exploding-signal exploding-gradient",
    layers="experts experts.2 experts.2.2 experts.2.0 experts.2.2.weight",
    remedies="rescale-layer initialise scale-branch",
)
def one_expert_shouts(planted: bool) -> Case:
    """An expert copied from a checkpoint with another convention of scale."""
    torch.manual_seed(13)
    x, y = table()
    model = Mixture()
    if planted:
        with torch.no_grad():
            model.experts[2][2].weight.mul_(20000)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "GNN",
    causes="layer-scale-stands-out exploding-signal exploding-gradient branch-dominates",
    layers="layers.1 layers.1.own layers.1.neighbour layers.1.own.weight layers.1.neighbour.weight",
    remedies="rescale-layer initialise add-normalizer",
)
def messages_of_the_second_round_too_loud(planted: bool) -> Case:
    """Weights of a layer that divided its sum over edges by their number, in one that does not."""
    torch.manual_seed(16)
    x, edges, y = communities()
    model = GraphNet(edges, depth=3)
    if planted:
        with torch.no_grad():
            model.layers[1].own.weight.mul_(5000)
            model.layers[1].neighbour.weight.mul_(5000)
    return Case(model=model, data=(x, y), loss="cross_entropy", judge=accuracy(y))


class Detector(nn.Module):
    """A trunk of convolutions, four coordinates of a box (0..1) and a score."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(256, 32), nn.ReLU(),
        )  # fmt: skip
        self.box = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.box(self.trunk(x))


def boxes(count: int = 64) -> tuple[Tensor, Tensor]:
    """Return images and the boxes (0..1) around their bright part."""
    images, _ = blob_images(count)
    bright = F.avg_pool2d(images, 3, stride=1, padding=1)[:, 0] > 0.8
    grid = torch.arange(16.0)
    rows, columns = bright.any(2), bright.any(1)
    edges = [torch.where(line, grid, 16.0).amin(1) for line in (rows, columns)]
    edges += [torch.where(line, grid, -1.0).amax(1) + 1 for line in (rows, columns)]
    return images, (torch.stack(edges, dim=1) / 16).clamp(0, 1)


@fault(
    FAULTS,
    "detection",
    causes="layer-scale-stands-out exploding-signal exploding-gradient",
    layers="box box.weight",
    remedies="rescale-layer initialise",
)
def box_layer_still_in_pixels(planted: bool) -> Case:
    """Weights of a head that spoke in pixels are loaded into one that speaks in parts of the image."""
    torch.manual_seed(17)
    x, y = boxes()
    model = Detector()
    if planted:
        with torch.no_grad():
            model.box.weight.mul_(640)
    return Case(model=model, data=(x, y), loss=nn.SmoothL1Loss())


# ---------------------------------------------------------------------------------------------- dead or saturated units


@fault(
    FAULTS,
    "detection",
    causes="dead-units bias-holds-units-off output-constant no-gradient vanishing-signal",
    layers="trunk trunk.0 trunk.2 trunk.5 trunk.0.bias trunk.2.bias trunk.5.bias trunk.1 trunk.3 trunk.6",
    remedies="reset-bias initialise",
)
def prior_bias_in_all_layers_of_a_detector(planted: bool) -> Case:
    """The bias of a rare-object prior, set in a loop that meets every layer instead of the last."""
    torch.manual_seed(18)
    x, y = boxes()
    model = Detector()
    if planted:
        for module in model.trunk:
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.constant_(module.bias, -4.6)
    return Case(model=model, data=(x, y), loss="mse")


@fault(
    FAULTS,
    "GNN",
    causes="dead-units bias-holds-units-off output-constant no-gradient",
    layers="layers layers.0 layers.1 layers.2 layers.0.own layers.1.own layers.0.neighbour layers.1.neighbour "
    "layers.0.own.bias layers.1.own.bias",
    remedies="initialise reset-bias restore-weights lower-learning-rate change-activation",
)
def graph_units_killed_by_one_step(planted: bool) -> Case:
    """A first step with a rate of hundreds of times too much leaves rectified units at zero for every node."""
    torch.manual_seed(20)
    x, edges, y = communities()
    model = GraphNet(edges, depth=3)
    if planted:
        for _ in range(2):
            loss = F.cross_entropy(model(x), y)
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 40.0 * parameter.grad
        model.zero_grad()
    return Case(model=model, data=(x, y), loss="cross_entropy", judge=accuracy(y))


class Prototypes(nn.Module):
    """Embeds images and compares them with a learned prototype per class."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), *mlp(256, 64, 16))
        self.prototypes = nn.Parameter(torch.randn(4, 16))
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        distances = (self.encoder(x)[:, None] - self.prototypes).square().mean(-1)
        return self.last(-distances)


@fault(
    FAULTS,
    "metric learning",
    causes="dead-units activation-before-loss output-constant no-gradient output-range-too-small loss-gradient-zero",
    layers="last",
    remedies="remove-final-activation change-activation",
)
def negative_distances_through_a_rectifier(planted: bool) -> Case:
    """A rectifier behind values that are never positive lets nothing through."""
    torch.manual_seed(21)
    x, y = blob_images()
    return Case(model=Prototypes(nn.ReLU() if planted else nn.Identity()), data=(x, y), loss="cross_entropy")


class RadialNet(nn.Module):
    """Gaussian units around learned centres, and a linear head."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(48, 4))
        self.log_width = nn.Parameter(torch.full((48,), width).log())
        self.head = nn.Linear(48, 1)

    def forward(self, x: Tensor) -> Tensor:
        distances = (x[:, None] - self.centres).square().sum(-1)
        return self.head(torch.exp(-0.5 * distances / self.log_width.exp().square()))


@fault(
    FAULTS,
    "regression",
    causes="dead-units saturated-units vanishing-signal output-constant vanishing-gradient layer-scale-stands-out",
    layers="centres log_width head",
    remedies="initialise rescale-layer scale-inputs change-activation",
)
def radial_units_too_narrow(planted: bool) -> Case:
    """Gaussian units so narrow that no sample comes near a centre."""
    torch.manual_seed(22)
    x, y = regression_table(columns=4)
    return Case(model=RadialNet(0.05 if planted else 1.5), data=(x, y), loss="mse")


class PooledTagger(nn.Module):
    """Pools a series by additive attention with tanh scores."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.mix = nn.Linear(3, 32), nn.Linear(96, 32)
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.tanh(self.lift(x))
        windows = torch.cat([steps[:, :-2], steps[:, 1:-1], steps[:, 2:]], dim=-1)
        return self.head(torch.tanh(self.mix(windows)).square().mean(1))


@fault(
    FAULTS,
    "time series",
    causes="saturated-units layer-scale-stands-out vanishing-gradient",
    layers="lift mix lift.weight mix.weight",
    remedies="rescale-layer initialise add-normalizer change-activation",
)
def both_tanh_layers_driven_flat(planted: bool) -> Case:
    """Weights drawn for inputs that were divided by 100, which the loader now does not do any more."""
    torch.manual_seed(23)
    x, y = waves(96)
    model = PooledTagger()
    if planted:
        with torch.no_grad():
            model.lift.weight.mul_(100)
            model.mix.weight.mul_(100)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "CNN",
    causes="dead-units output-constant no-gradient vanishing-signal activation-unsuitable",
    layers="3 0 2 5",
    remedies="change-activation rescale-layer initialise reset-bias add-normalizer",
)
def threshold_that_nothing_reaches(planted: bool) -> Case:
    """`nn.Threshold(20, 0)` was written for features in bytes; standardised ones never pass it."""
    torch.manual_seed(24)
    x, y = blob_images()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.Threshold(20.0, 0.0) if planted else nn.Threshold(0.0, 0.0), nn.Flatten(), nn.Linear(256, 4),
    )  # fmt: skip
    return Case(model=model, data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "tabular",
    causes="dead-units bias-holds-units-off output-constant no-gradient",
    layers="0 2 4 0.bias 2.bias 4.bias 0.weight 2.weight 4.weight 1 3",
    remedies="initialise reset-bias restore-weights lower-learning-rate change-activation scale-targets",
)
def units_killed_by_unscaled_targets(planted: bool) -> Case:
    """Ten steps of SGD on targets in the thousands, then the targets are standardised and training goes on."""
    torch.manual_seed(25)
    x, y = regression_table()
    model = mlp(8, 32, 32, 1)
    if planted:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        train(model, x, 40 * y - 60, F.mse_loss, steps=2, optimizer=optimizer)
    return Case(model=model, data=(x, y), loss="mse")


@fault(
    FAULTS,
    "multi-label",
    causes="saturated-units layer-scale-stands-out vanishing-gradient activation-unsuitable bias-holds-units-off",
    layers="2 3 4 2.bias",
    remedies="reset-bias initialise change-activation add-normalizer rescale-layer",
)
def hidden_sigmoids_with_the_bias_of_rare_labels(planted: bool) -> Case:
    """The bias of the prior of rare labels, -9, was given to the hidden sigmoid layer."""
    torch.manual_seed(26)
    x, _ = table(160)
    y = torch.stack([x[:, 0] * x[:, 1] > 0, x[:, 2] > 0.2, x[:, 3] + x[:, 4] > 0, x[:, 5].abs() > 0.8], dim=1).float()
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.Sigmoid(), nn.Linear(48, 4))
    if planted:
        nn.init.constant_(model[2].bias, -9.0)
    return Case(model=model, data=(x, y), loss=nn.BCEWithLogitsLoss(), judge=binary_accuracy(y))
