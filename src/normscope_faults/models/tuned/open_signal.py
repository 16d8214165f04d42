"""The open half, faults of weights: signals and gradients over the depth, scales, constant and rank-one weights."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from ..parts import (
    GPT,
    Autoencoder,
    ConvNet,
    Generator,
    Recommender,
    blob_images,
    mlp,
    over_tokens,
    ratings,
    regression_table,
    sentences,
    table,
    text,
    train,
)

FAULTS: list[Fault] = []
plant = partial(fault, FAULTS)
SMALLER_SIGNAL = "vanishing-gradient vanishing-signal"
LARGER_SIGNAL = "exploding-gradient exploding-signal"


def scale_weights(model: nn.Module, names: str, factor: float) -> None:
    """Multiply the weights of the modules with these names (split at spaces)."""
    with torch.no_grad():
        for name in names.split():
            model.get_submodule(name).weight.mul_(factor)


@plant(
    "MLP",
    causes=f"{SMALLER_SIGNAL} activation-unsuitable saturated-units",
    remedies="change-activation add-normalizer add-skip initialise",
)
def seven_layers_of_sigmoids(broken: bool) -> Case:
    """A textbook network of sigmoids, made deeper."""
    torch.manual_seed(101)
    x, y = table()
    return Case(
        model=mlp(12, *[32] * 7, 3, activation=nn.Sigmoid if broken else nn.ReLU), data=(x, y), loss="cross_entropy"
    )


@plant("MLP", causes=f"{SMALLER_SIGNAL} output-constant", remedies="initialise rescale-layer add-normalizer add-skip")
def tanh_layers_drawn_at_a_hundredth(broken: bool) -> Case:
    """normal_(std=0.01), as AlexNet did, in a deeper network of tanh units."""
    torch.manual_seed(102)
    x, y = regression_table()
    model = mlp(8, *[24] * 9, 1, activation=nn.Tanh)
    if broken:
        for layer in model[::2]:
            nn.init.normal_(layer.weight, std=0.01)
    return Case(model=model, data=(x, y), loss="mse")


@plant("CNN", causes=f"{SMALLER_SIGNAL} output-constant", remedies="initialise add-normalizer add-skip")
def sixteen_convolutions_as_torch_draws_them(broken: bool) -> Case:
    """Convolutions without a normalizer at PyTorch's default initialisation."""
    torch.manual_seed(103)
    x, y = blob_images(48, size=12)
    model = ConvNet(depth=16, width=12, norm=False)
    if broken:
        for layer in model.features:
            if isinstance(layer, nn.Conv2d):
                layer.reset_parameters()
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant("MLP", causes=LARGER_SIGNAL, remedies="initialise rescale-layer add-normalizer clip-gradients")
def weights_drawn_at_one(broken: bool) -> Case:
    """Weights made by hand: torch.randn(out, in)."""
    torch.manual_seed(104)
    x, y = table()
    model = mlp(12, 48, 48, 48, 48, 3)
    if broken:
        for layer in model[::2]:
            nn.init.normal_(layer.weight)
    return Case(model=model, data=(x, y), loss="cross_entropy")


class PlainResidual(nn.Module):
    """Residual blocks without a normalizer; each branch is multiplied by `factor`."""

    def __init__(self, blocks: int, factor: float) -> None:
        super().__init__()
        self.stem, self.factor = nn.Conv2d(1, 12, 3, stride=2, padding=1), factor
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1))
            for _ in range(blocks)
        )
        for block in self.blocks:
            for conv in (block[0], block[2]):
                nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + self.factor * block(x)
        return self.head(x.mean((2, 3)))


@plant(
    "ResNet",
    causes=f"{LARGER_SIGNAL} branch-dominates",
    remedies="scale-branch add-normalizer initialise rescale-layer",
)
def residual_blocks_without_normalizer(broken: bool) -> Case:
    """A ResNet without BatchNorm whose branches are drawn at full size."""
    torch.manual_seed(105)
    x, y = blob_images(32, size=12)
    return Case(model=PlainResidual(16, 1.0 if broken else 0.1), data=(x, y), loss="cross_entropy")


@plant(
    "ResNet",
    causes=f"{LARGER_SIGNAL} branch-dominates",
    remedies="scale-branch add-normalizer initialise rescale-layer",
)
def residual_scale_of_ten(broken: bool) -> Case:
    """A residual scale meant as 0.1 and written as 10."""
    torch.manual_seed(106)
    x, y = blob_images(32, size=12)
    return Case(model=PlainResidual(6, 10.0 if broken else 0.1), data=(x, y), loss="cross_entropy")


class LoudBranches(GPT):
    """A GPT whose branches are multiplied by a constant."""

    factor = 1.0

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + self.factor * block.attention(block.norm1(x))
            x = x + self.factor * block.feed(block.norm2(x))
        return self.head(self.norm(x))


@plant(
    "GPT",
    causes=f"branch-dominates {LARGER_SIGNAL} vanishing-gradient",
    remedies="scale-branch rescale-layer initialise",
)
def branches_of_gpt_times_hundred(broken: bool) -> Case:
    """An experiment with a factor on the branches was left switched on."""
    torch.manual_seed(107)
    ids, following = text()
    model = LoudBranches()
    model.factor = 100.0 if broken else 1.0
    return Case(model=model, data=(ids, following), loss=over_tokens)


@plant("MLP", layers="4", causes=f"layer-scale-stands-out {LARGER_SIGNAL}", remedies="rescale-layer initialise")
def third_layer_times_hundred(broken: bool) -> Case:
    """A layer initialised with the gain of another convention."""
    torch.manual_seed(108)
    x, y = regression_table()
    model = mlp(8, 32, 32, 32, 1)
    scale_weights(model, "4", 100.0 if broken else 1.0)
    return Case(model=model, data=(x, y), loss="mse")


@plant(
    "CNN",
    layers="features.5",
    causes=f"layer-scale-stands-out {LARGER_SIGNAL}",
    remedies="rescale-layer initialise restore-weights",
)
def kernel_times_a_million(broken: bool) -> Case:
    """Weights converted from another framework, one of them still in fixed point."""
    torch.manual_seed(109)
    x, y = blob_images()
    model = ConvNet(norm=False)
    scale_weights(model, "features.5", 1e6 if broken else 1.0)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant(
    "MLP",
    layers="2 4",
    causes=f"layer-scale-stands-out zero-weights output-constant {SMALLER_SIGNAL}",
    remedies="rescale-layer initialise",
)
def two_layers_at_a_ten_thousandth(broken: bool) -> Case:
    """std=1e-5 instead of 1e-1."""
    torch.manual_seed(110)
    x, y = table()
    model = mlp(12, 32, 32, 32, 3)
    scale_weights(model, "2 4", 1e-4 if broken else 1.0)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant(
    "recommender",
    layers="users items",
    causes=f"layer-scale-stands-out branch-dominates saturated-units {LARGER_SIGNAL}",
    remedies="rescale-layer initialise",
)
def embeddings_at_a_thousand(broken: bool) -> Case:
    """Embeddings drawn at 1 and multiplied by a factor meant for something else."""
    torch.manual_seed(111)
    pairs, score = ratings()
    model = Recommender()
    scale_weights(model, "users items", 1e3 if broken else 1.0)
    return Case(model=model, data=(pairs, score), loss="mse")


@plant(
    "GPT",
    layers="positions tokens",
    causes="branch-dominates layer-scale-stands-out",
    remedies="rescale-layer initialise scale-branch",
)
def places_drown_the_tokens(broken: bool) -> Case:
    """Tokens drawn at 0.02, positions left at the default of nn.Embedding and scaled by sqrt(width)."""
    torch.manual_seed(112)
    ids, following = text()
    model = GPT(tied=False)
    if broken:
        nn.init.normal_(model.positions.weight, std=32**0.5)
    return Case(model=model, data=(ids, following), loss=over_tokens)


@plant("MLP", layers="0 2", causes="constant-initialisation", remedies="initialise")
def equal_weights_in_hidden_layers(broken: bool) -> Case:
    """nn.init.constant_(weight, 0.05) for reproducible results."""
    torch.manual_seed(113)
    x, y = table()
    model = mlp(12, 24, 24, 3)
    if broken:
        for layer in (model[0], model[2]):
            nn.init.constant_(layer.weight, 0.05)
    return Case(model=model, data=(x, y), loss="cross_entropy")


class WordGRU(nn.Module):
    """Embeddings of words, a GRU, a head that reads its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.recurrent = nn.Embedding(50, 16), nn.GRU(16, 24, batch_first=True)
        self.head = nn.Linear(24, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.recurrent(self.words(ids))[0][:, -1])


@plant(
    "GRU",
    layers="recurrent recurrent.weight_hh_l0 recurrent.weight_ih_l0",
    causes="constant-initialisation",
    remedies="initialise",
)
def gru_with_equal_weights(broken: bool) -> Case:
    """All parameters of a recurrent layer set to 1 / hidden_size."""
    torch.manual_seed(114)
    ids, y = sentences(length=10)
    model = WordGRU()
    if broken:
        for parameter in (*model.recurrent.parameters(), model.head.weight):
            nn.init.constant_(parameter, 1 / 24)
    return Case(model=model, data=(ids, y), loss="cross_entropy")


@plant("CNN", layers="features.2", causes="zero-weights dead-units", remedies="initialise")
def convolution_of_zeros(broken: bool) -> Case:
    """zeros_(conv.weight) in an initialisation that meant the bias."""
    torch.manual_seed(115)
    x, y = blob_images()
    model = ConvNet(norm=False)
    if broken:
        nn.init.zeros_(model.features[2].weight)
        nn.init.zeros_(model.features[2].bias)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant("autoencoder", layers="encoder.0 encoder.2", causes="rank-one-weights", remedies="initialise restore-weights")
def rank_one_encoder(broken: bool) -> Case:
    """Weights built as an outer product of two scale vectors."""
    torch.manual_seed(116)
    x = blob_images()[0].flatten(1)
    model = Autoencoder()
    if broken:
        for layer in (model.encoder[0], model.encoder[2]):
            rows, columns = torch.randn(layer.weight.shape[0], 1), torch.randn(1, layer.weight.shape[1])
            layer.weight.data.copy_(layer.weight.std().item() * rows * columns)
    return Case(model=model, data=(x, x), loss="mse")


@plant("MLP", layers="2", causes="rank-one-weights", remedies="initialise restore-weights")
def rank_one_hidden_layer(broken: bool) -> Case:
    """A weight replaced by its best approximation of rank one when a compression was tried out."""
    torch.manual_seed(117)
    x, y = table()
    model = mlp(12, 48, 48, 3)
    train(model, x, y, F.cross_entropy)
    if broken:
        u, s, v = torch.linalg.svd(model[2].weight.detach())
        model[2].weight.data.copy_(s[0] * torch.outer(u[:, 0], v[0]))
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


@plant(
    "MLP",
    layers="0 2 4",
    causes=f"zero-weights output-constant {SMALLER_SIGNAL}",
    remedies="lower-weight-decay restore-weights initialise",
)
def decayed_to_nothing(broken: bool) -> Case:
    """weight_decay=0.5 with plain SGD."""
    torch.manual_seed(118)
    x, y = table()
    model = mlp(12, 48, 48, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5 if broken else 1e-4)
    train(model, x, y, F.cross_entropy, steps=200, optimizer=optimizer)
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


@plant(
    "CNN",
    layers="features.5",
    causes=f"zero-weights output-constant layer-scale-stands-out dead-units {SMALLER_SIGNAL}",
    remedies="lower-weight-decay restore-weights initialise",
)
def one_group_decayed(broken: bool) -> Case:
    """One parameter group with a decay of 2 instead of 2e-4."""
    torch.manual_seed(119)
    x, y = blob_images()
    model = ConvNet(norm=False)
    group = list(model.features[5].parameters())
    others = [p for p in model.parameters() if all(p is not other for other in group)]
    groups = [{"params": group, "weight_decay": 2.0 if broken else 1e-4}, {"params": others}]
    optimizer = torch.optim.SGD(groups, lr=0.05)
    train(model, x, y, F.cross_entropy, steps=100, optimizer=optimizer)
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


@plant(
    "GAN",
    layers="layers.6 layers.7",
    causes=f"saturated-units layer-scale-stands-out {LARGER_SIGNAL}",
    remedies="initialise rescale-layer change-activation",
)
def generator_saturates_its_tanh(broken: bool) -> Case:
    """normal_(std=2) instead of 0.02 in the last layer of a DCGAN."""
    torch.manual_seed(120)
    images, _ = blob_images(48)
    model = Generator()
    if broken:
        nn.init.normal_(model.layers[6].weight, std=2.0)
    return Case(model=model, data=(torch.randn(48, 16), (images / 4).clamp(-1, 1)), loss="mse")


class WrittenGELU(nn.Module):
    """GELU as GPT-2's first code writes it, with a tanh."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh((2.0 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


@plant("MLP", causes=f"{SMALLER_SIGNAL} output-constant", remedies="initialise rescale-layer")
def written_gelus_behind_small_weights(broken: bool) -> Case:
    """GPT-2's deviation of 0.02 and its GELU, in a plain network without skips."""
    torch.manual_seed(121)
    x, y = regression_table()
    model = mlp(8, *[32] * 7, 1, activation=WrittenGELU)
    for layer in model if broken else ():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)
    return Case(model=model, data=(x, y), loss="mse")
