"""Held-out faults of weights: initialisation, scale, dead and saturated units, values that are not finite."""

import torch
from torch import nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from .. import parts

FAULTS: list[Fault] = []


def draw_weights(model: nn.Module, std: float) -> None:
    """Draw every weight matrix or kernel from a normal distribution."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=std)


def scale(tensor: torch.Tensor, factor: float) -> None:
    """Multiply a parameter in place."""
    with torch.no_grad():
        tensor.mul_(factor)


@fault(
    FAULTS,
    family="MLP",
    causes="vanishing-gradient saturated-units activation-unsuitable vanishing-signal",
    layers="0 1 2 3 4 5 6 7 8",
    remedies="change-activation initialise add-normalizer add-skip",
    source="Stack Overflow: a deep sigmoid network whose loss stays at log(classes); AutoTrainer.",
)
def sigmoid_mlp_of_ten_layers(planted: bool) -> Case:
    torch.manual_seed(1)
    x, y = parts.table(classes=3)
    sizes = (12, *(32 for _ in range(9)), 3)
    model = parts.mlp(*sizes, activation=nn.Sigmoid if planted else nn.ReLU)
    if not planted:  # ten plain layers need care: each starts as an orthogonal map
        for layer in model[::2]:
            nn.init.orthogonal_(layer.weight, gain=2**0.5)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="CNN",
    causes="vanishing-gradient vanishing-signal layer-scale-stands-out output-constant",
    layers=" ".join(f"features.{i}" for i in range(17)),
    remedies="initialise add-normalizer rescale-layer add-skip",
    source="AlexNet's normal(0, 0.01) copied into a deeper network without normalization.",
)
def convolutions_drawn_too_small(planted: bool) -> Case:
    torch.manual_seed(2)
    x, y = parts.blob_images(48, channels=3)
    model = parts.ConvNet(3, depth=8, norm=False)
    if planted:
        draw_weights(model, 0.01)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    family="MLP",
    causes="exploding-gradient exploding-signal layer-scale-stands-out",
    layers="0 2 4 6 8 10",
    remedies="initialise rescale-layer add-normalizer",
    source="PyTorch forum: own layers with nn.Parameter(torch.randn(n, m)).",
)
def weights_drawn_with_unit_variance(planted: bool) -> Case:
    torch.manual_seed(3)
    x, y = parts.table(classes=4)
    model = parts.mlp(12, 64, 64, 64, 64, 64, 4)
    if planted:
        draw_weights(model, 1.0)
    return Case(model=model, data=(x, y), loss=F.cross_entropy)


@fault(
    FAULTS,
    family="MLP",
    causes="saturated-units layer-scale-stands-out exploding-gradient",
    layers="0 1 2 3 4 5",
    remedies="initialise rescale-layer change-activation add-normalizer",
    source="DeepCrime's operator for changed weight initialisation, on a tanh network.",
)
def tanh_units_saturated_by_large_weights(planted: bool) -> Case:
    torch.manual_seed(4)
    x, y = parts.regression_table(512)
    model = parts.mlp(8, 48, 48, 48, 1, activation=nn.Tanh)
    if planted:
        for index in (0, 2, 4):
            scale(model[index].weight, 100.0)
    return Case(model=model, data=(x, y), loss=nn.MSELoss())


@fault(
    FAULTS,
    family="CNN",
    causes="layer-scale-stands-out exploding-signal exploding-gradient",
    layers="features.5 features.5.weight",
    remedies="rescale-layer initialise add-normalizer",
    source="A custom initialisation of one layer that forgot the fan-in.",
)
def one_convolution_a_hundred_times_too_large(planted: bool) -> Case:
    torch.manual_seed(5)
    x, y = parts.blob_images(48, channels=1)
    model = parts.ConvNet(1, depth=5, norm=False)
    if planted:
        scale(model.features[5].weight, 100.0)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="autoencoder",
    causes="layer-scale-stands-out vanishing-signal vanishing-gradient output-constant",
    layers="encoder.4 encoder.4.weight decoder.0 decoder.0.weight",
    remedies="rescale-layer initialise add-normalizer",
    source="Both sides of the code initialised with std=1e-4 'to start near zero'.",
)
def code_ten_thousand_times_too_small(planted: bool) -> Case:
    torch.manual_seed(6)
    images, _ = parts.blob_images(64)
    x = images.flatten(1)
    model = parts.Autoencoder()
    if planted:
        scale(model.encoder[4].weight, 1e-4)
        scale(model.decoder[0].weight, 1e-4)
        nn.init.zeros_(model.encoder[4].bias)
    return Case(model=model, data=(x, x), loss=nn.MSELoss())


@fault(
    FAULTS,
    family="U-Net",
    causes="layer-scale-stands-out exploding-signal exploding-gradient saturated-units",
    layers="head head.weight",
    remedies="rescale-layer initialise",
    source="A checkpoint of an integer-quantized layer loaded without its scale.",
)
def last_convolution_a_million_times_too_large(planted: bool) -> Case:
    torch.manual_seed(7)
    x, _ = parts.blob_images(16)
    y = (x > 1.0).float()
    model = parts.UNet()
    if planted:
        scale(model.head.weight, 1e6)
    return Case(model=model, data=(x, y), loss=nn.BCEWithLogitsLoss(), judge=parts.overlap_with(y))


@fault(
    FAULTS,
    family="GPT",
    causes="layer-scale-stands-out exploding-signal branch-dominates exploding-gradient",
    layers="tokens tokens.weight head",
    remedies="rescale-layer initialise",
    source="nn.Embedding's default N(0, 1), multiplied by sqrt(width) as in the paper, tied to the head.",
)
def tied_embedding_drawn_too_large(planted: bool) -> Case:
    torch.manual_seed(8)
    ids, following = parts.text()
    model = parts.GPT()
    if planted:
        nn.init.normal_(model.tokens.weight, std=6.0)
    return Case(model=model, data=(ids, following), loss=parts.over_tokens)


@fault(
    FAULTS,
    family="MLP",
    causes="constant-initialisation rank-one-weights",
    layers="0 2 4 0.weight 2.weight 4.weight",
    remedies="initialise",
    source="Humbatova et al. 2020 and Stack Overflow: every weight set to the same number.",
)
def all_weights_equal(planted: bool) -> Case:
    torch.manual_seed(9)
    x, y = parts.table()
    model = parts.mlp(12, 24, 24, 3)
    if planted:
        for module in model[::2]:
            nn.init.constant_(module.weight, 0.1)
            nn.init.zeros_(module.bias)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="recommender",
    causes="constant-initialisation rank-one-weights output-constant",
    layers="users items users.weight items.weight",
    remedies="initialise",
    source="Matrix factorisation ported from a library whose default initialiser is a constant.",
)
def embeddings_all_equal(planted: bool) -> Case:
    torch.manual_seed(10)

    class Factorisation(nn.Module):
        """Scores a pair by the inner product of its embeddings."""

        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(40, 8), nn.Embedding(30, 8)
            self.offset = nn.Parameter(torch.zeros(()))
            for table in (self.users, self.items):
                nn.init.normal_(table.weight, std=0.3)

        def forward(self, pairs: torch.Tensor) -> torch.Tensor:
            return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1) + self.offset

    pairs, rating = parts.ratings(600)
    model = Factorisation()
    if planted:
        nn.init.constant_(model.users.weight, 0.1)
        nn.init.constant_(model.items.weight, 0.1)
    return Case(model=model, data=(pairs, rating), loss=nn.MSELoss())


@fault(
    FAULTS,
    family="CNN",
    causes="zero-weights output-constant no-gradient dead-units constant-initialisation",
    layers=" ".join(f"features.{i} features.{i}.weight" for i in (0, 2, 5, 7)) + " head head.weight",
    remedies="initialise",
    source="Stack Overflow: `nn.init.zeros_` over all parameters.",
)
def all_kernels_zero(planted: bool) -> Case:
    torch.manual_seed(11)
    x, y = parts.blob_images(48)
    model = parts.ConvNet(norm=False)
    if planted:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="GNN",
    causes="zero-weights output-constant vanishing-signal constant-initialisation dead-units",
    layers="layers.1.own layers.1.neighbour layers.1.own.weight layers.1.neighbour.weight layers.1 "
    "layers.2.own layers.2.neighbour layers.2.own.weight layers.2.neighbour.weight layers.2",
    remedies="initialise",
    source="Two zero-initialised layers in a row, where one alone would have been fine.",
)
def two_zero_layers_in_a_row(planted: bool) -> Case:
    torch.manual_seed(12)
    x, edges, y = parts.communities()
    model = parts.GraphNet(edges, depth=3)
    if planted:
        for layer in model.layers[1:]:
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)
    return Case(model=model, data=(x, y), loss=F.cross_entropy)


@fault(
    FAULTS,
    family="autoencoder",
    causes="rank-one-weights output-constant",
    layers="decoder.0 decoder.0.weight",
    remedies="initialise restore-weights",
    source="A weight made by broadcasting one row (`row.expand(n, -1)`), then copied into the layer.",
)
def decoder_with_rank_one_weight(planted: bool) -> Case:
    torch.manual_seed(13)
    images, _ = parts.blob_images(64)
    x = images.flatten(1)
    model = parts.Autoencoder()
    if planted:
        with torch.no_grad():
            model.decoder[0].weight.copy_(torch.rand(32, 1) * model.decoder[0].weight[:1])
    return Case(model=model, data=(x, x), loss=nn.MSELoss())


@fault(
    FAULTS,
    family="CNN",
    causes="dead-units bias-holds-units-off output-constant",
    layers="features.5 features.6 features.5.bias",
    remedies="reset-bias initialise change-activation",
    source="DeepCrime's bias operators; a bias that carries a log prior into a hidden layer.",
)
def convolution_held_off_by_its_bias(planted: bool) -> Case:
    torch.manual_seed(14)
    x, y = parts.blob_images(48)
    model = parts.ConvNet(norm=False)
    if planted:
        nn.init.constant_(model.features[5].bias, -12.0)
    return Case(model=model, data=(x, y), objective=lambda output: F.cross_entropy(output, y), judge=parts.accuracy(y))


@fault(
    FAULTS,
    family="MLP",
    causes="dead-units output-constant bias-holds-units-off",
    layers="2 3 4 5",
    remedies="lower-learning-rate initialise restore-weights change-activation",
    source="AutoTrainer's dying ReLU: the rate of another optimizer kept for SGD.",
)
def units_killed_by_a_high_learning_rate(planted: bool) -> Case:
    torch.manual_seed(15)
    x, y = parts.regression_table()
    model = parts.mlp(8, 24, 24, 24, 1)
    target = 3 * y + 4
    rate = 0.08 if planted else 0.01
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    parts.train(model, x, target, F.mse_loss, steps=25, optimizer=optimizer)
    return Case(model=model, data=(x, target), loss=nn.MSELoss())


@fault(
    FAULTS,
    family="MLP",
    causes="dead-units bias-holds-units-off",
    layers="2 3 2.bias",
    remedies="reset-bias initialise change-activation",
    source="A narrow layer after a run that overshot: five of six units never fire again.",
)
def five_of_six_units_dead(planted: bool) -> Case:
    torch.manual_seed(16)
    x, y = parts.table(classes=4)
    model = parts.mlp(12, 16, 6, 4)
    if planted:
        with torch.no_grad():
            model[2].bias[:5] = -8.0
            model[2].weight[5] = model[2].weight[5].abs()
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="MLP",
    causes="dead-units inputs-not-scaled bias-holds-units-off",
    layers="0 1 0.weight",
    remedies="scale-inputs initialise change-activation",
    source="Inputs that are all positive and large (a sensor in hPa) meet a unit layer whose weights turned negative.",
)
def four_units_dead_by_data(planted: bool) -> Case:
    torch.manual_seed(17)
    values, y = parts.regression_table(columns=4)
    x = 1000 + 12 * values if planted else values
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        rows = model[0].weight
        rows.sub_(rows.mean(1, keepdim=True) + 0.05)
    return Case(model=model, data=(x, y), loss=nn.MSELoss())


@fault(
    FAULTS,
    family="GPT",
    causes="not-finite-weights not-finite",
    layers="blocks.1.feed.0 blocks.1.feed.0.weight blocks.1.feed",
    remedies="restore-weights initialise lower-learning-rate clip-gradients",
    source="A checkpoint written after the step in which the loss became NaN.",
)
def nan_in_one_weight(planted: bool) -> Case:
    torch.manual_seed(18)
    ids, following = parts.text()
    model = parts.GPT()
    if planted:
        with torch.no_grad():
            model.blocks[1].feed[0].weight[3, 5] = float("nan")
    return Case(model=model, data=(ids, following), loss=parts.over_tokens)


@fault(
    FAULTS,
    family="ResNet",
    causes="not-finite-weights not-finite running-statistics-wrong",
    layers="blocks.1.bn2 blocks.1.bn2.running_var blocks.1 blocks.1.bn2.running_mean",
    remedies="refresh-statistics restore-weights clean-data",
    source="One batch with a broken image makes running statistics infinite for good; only evaluation shows it.",
)
def infinite_running_variance(planted: bool) -> Case:
    torch.manual_seed(19)
    x, y = parts.blob_images(32)
    model = parts.ResNet(width=8, blocks=2)
    parts.train(model, x, y, F.cross_entropy, steps=40)
    if planted:
        model.blocks[1].bn2.running_var[2] = float("inf")
        model.blocks[1].bn2.running_mean[2] = float("nan")
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


@fault(
    FAULTS,
    family="GAN generator",
    causes="saturated-units layer-scale-stands-out",
    layers="layers.6 layers.7 layers.6.weight",
    remedies="initialise rescale-layer",
    source="weights_init of the DCGAN tutorial with std 1.0 in place of 0.02 for the last layer.",
)
def generator_with_saturated_tanh(planted: bool) -> Case:
    torch.manual_seed(20)
    noise = torch.randn(32, 16)
    images, _ = parts.blob_images(32)
    target = 2 * parts.as_pixels(images) - 1
    model = parts.Generator()
    if planted:
        nn.init.normal_(model.layers[6].weight, std=2.0)
    return Case(model=model, data=noise, objective=lambda output: F.mse_loss(output, target))


@fault(
    FAULTS,
    family="VAE",
    causes="not-finite exploding-signal layer-scale-stands-out exploding-gradient",
    layers="log_variance log_variance.weight log_variance.bias",
    remedies="rescale-layer initialise guard-domain reset-bias",
    source="GitHub threads on VAEs: exp(logvar) overflows in the first step.",
)
def log_variance_overflows(planted: bool) -> Case:
    torch.manual_seed(21)
    images, _ = parts.blob_images(64)
    x = parts.as_pixels(images).flatten(1)
    model = parts.VAE()
    if planted:
        scale(model.log_variance.weight, 1500.0)
    return Case(model=model, data=(x, x), loss=parts.evidence_loss, judge=lambda o: -parts.evidence_loss(o, x).item())
