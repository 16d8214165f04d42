"""Faults of initialisation and of the scale of single layers."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from ..parts import (
    GPT,
    Autoencoder,
    ConvNet,
    GraphNet,
    Recommender,
    SequenceClassifier,
    Siamese,
    ViT,
    accuracy,
    as_pixels,
    blob_images,
    communities,
    contrastive_loss,
    image_pairs,
    mlp,
    over_tokens,
    ratings,
    regression_table,
    table,
    text,
    waves,
)

FAULTS: list[Fault] = []


def plain_conv_net(depth: int, width: int = 16) -> nn.Sequential:
    """Return convolutions of one width with ReLU, no normalizer, a pooling by mean and a head, He's initialisation."""
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, stride=2, padding=1), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    for module in layers:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 4))


# ------------------------------------------------------------------------------------------------------ initialisation


@fault(
    FAULTS, "autoencoder", causes="constant-initialisation rank-one-weights", remedies="initialise",
    layers="encoder.0 encoder.0.weight encoder.2 encoder.2.weight",
)  # fmt: skip
def hidden_layers_filled_with_a_constant(planted: bool) -> Case:
    """DeepCrime, operator "change weights initialisation": layers get the initialiser Constant."""
    torch.manual_seed(1)
    images = blob_images(classes=8)[0].flatten(1)
    model = Autoencoder()
    if planted:
        nn.init.constant_(model.encoder[0].weight, 0.05)
        nn.init.constant_(model.encoder[2].weight, 0.05)
    return Case(model=model, data=(images, images), loss="mse")


class HandmadeLinear(nn.Module):
    def __init__(self, inner: int, outer: int, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(factor * torch.randn(inner, outer))
        self.bias = nn.Parameter(torch.zeros(outer))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


@fault(
    FAULTS, "tabular", causes="exploding-signal exploding-gradient", layers="0 2 4 6 8",
    remedies="initialise rescale-layer",
)  # fmt: skip
def handmade_layers_from_randn(planted: bool) -> Case:
    """PyTorch forums: `nn.Parameter(torch.randn(in, out))` in a layer written by hand."""
    torch.manual_seed(2)
    sizes = [12, 64, 64, 64, 64, 3]
    layers: list[nn.Module] = []
    for inner, outer in pairwise(sizes):
        layers += [HandmadeLinear(inner, outer, 1.0 if planted else math.sqrt(2 / inner)), nn.ReLU()]
    return Case(model=nn.Sequential(*layers[:-1]), data=table(), loss="cross_entropy")


@fault(
    FAULTS, "CNN", causes="vanishing-signal vanishing-gradient output-constant", layers="0 2 4 6 8 10 12",
    remedies="initialise rescale-layer add-normalizer",
)  # fmt: skip
def all_convolutions_from_a_narrow_normal(planted: bool) -> Case:
    """Code copied from AlexNet's time: normal_(std=0.01) for every layer of a deeper network without normalizers."""
    torch.manual_seed(3)
    model = plain_conv_net(7)
    if planted:
        for module in model:
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.01)
    return Case(model=model, data=blob_images(), loss="cross_entropy")


@fault(
    FAULTS, "regression", causes="vanishing-signal vanishing-gradient output-constant", layers="",
    remedies="initialise rescale-layer add-normalizer add-skip",
)  # fmt: skip
def fourteen_rectified_layers_as_torch_draws_them(planted: bool) -> Case:
    """PyTorch forums: the default of nn.Linear loses a factor of 2.4 per rectified layer."""
    torch.manual_seed(4)
    model = mlp(8, *[48] * 14, 1)
    if planted:
        for module in model:
            if isinstance(module, nn.Linear):
                module.reset_parameters()
    return Case(model=model, data=regression_table(), loss="mse")


class DotProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(40, 8), nn.Embedding(30, 8)
        nn.init.normal_(self.users.weight, std=0.3)
        nn.init.normal_(self.items.weight, std=0.3)
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, pairs: Tensor) -> Tensor:
        return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1) + self.offset


@fault(
    FAULTS, "recommender", causes="zero-weights constant-initialisation vanishing-gradient output-constant",
    layers="users items users.weight items.weight", remedies="initialise",
)  # fmt: skip
def both_factors_of_a_product_start_at_zero(planted: bool) -> Case:
    """Stack Overflow on matrix factorisation: zeros for users and items have a gradient of zero for ever."""
    torch.manual_seed(5)
    model = DotProduct()
    if planted:
        nn.init.zeros_(model.users.weight)
        nn.init.zeros_(model.items.weight)
    return Case(model=model, data=ratings(), loss="mse")


@fault(
    FAULTS, "GNN", causes="exploding-signal exploding-gradient rank-one-weights layer-scale-stands-out",
    layers="layers.0 layers.1 layers.2 layers.0.own layers.1.own layers.2.own layers.0.neighbour layers.1.neighbour "
    "layers.2.neighbour", remedies="initialise rescale-layer",
)  # fmt: skip
def graph_weights_from_rand_instead_of_randn(planted: bool) -> Case:
    """PyTorch forums: torch.rand draws from 0..1, so that all weights are positive and large."""
    torch.manual_seed(6)
    x, edges, labels = communities()
    model = GraphNet(edges, width=32, depth=3)
    if planted:
        for layer in model.layers:
            nn.init.uniform_(layer.own.weight)
            nn.init.uniform_(layer.neighbour.weight)
    return Case(model=model, data=(x, labels), loss="cross_entropy")


@fault(
    FAULTS, "ViT",
    causes="attention-saturated exploding-signal exploding-gradient layer-scale-stands-out saturated-units",
    layers="blocks blocks.0.attention blocks.1.attention blocks.2.attention blocks.0.attention.qkv "
    "blocks.1.attention.qkv blocks.2.attention.qkv blocks.0 blocks.1 blocks.2 blocks.0.feed.0 blocks.0.feed.2 "
    "blocks.1.feed.0 blocks.1.feed.2 blocks.2.feed.0 blocks.2.feed.2 head blocks.0.attention.out "
    "blocks.1.attention.out blocks.2.attention.out",
    remedies="initialise rescale-layer scale-attention",
)  # fmt: skip
def vision_transformer_with_standard_normal_weights(planted: bool) -> Case:
    """GitHub: `nn.init.normal_(module.weight)` with its std of 1 where std=0.02 was meant."""
    torch.manual_seed(7)
    model = ViT()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.0 if planted else 0.1)
            nn.init.zeros_(module.bias)
    return Case(model=model, data=blob_images(), loss="cross_entropy")


@fault(
    FAULTS, "CNN", causes="exploding-signal exploding-gradient", layers="0 2 4 6 8 10",
    remedies="initialise rescale-layer add-normalizer",
)  # fmt: skip
def fan_in_without_the_kernel_size(planted: bool) -> Case:
    """GitHub: std = sqrt(2 / in_channels) for 3x3 convolutions, too large by 3 in each layer."""
    torch.manual_seed(8)
    model = plain_conv_net(6)
    if planted:
        for module in model:
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=math.sqrt(2 / module.in_channels))
    return Case(model=model, data=blob_images(), loss="cross_entropy")


@fault(
    FAULTS, "CNN", causes="zero-weights constant-initialisation output-constant vanishing-gradient",
    layers="head.0 head.2 head.0.weight head.2.weight head", remedies="initialise",
)  # fmt: skip
def zeros_for_weights_as_well_as_biases_of_the_head(planted: bool) -> Case:
    """Humbatova et al.: wrong weights initialisation; zeros_ was meant for the biases."""
    torch.manual_seed(9)
    model = ConvNet()
    model.head = mlp(16, 32, 4)
    if planted:
        for module in (model.head[0], model.head[2]):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
    return Case(model=model, data=blob_images(), loss="cross_entropy")


# --------------------------------------------------------------------------------------------------------- layer scale


@fault(
    FAULTS, "tabular", causes="layer-scale-stands-out exploding-signal exploding-gradient", layers="4",
    remedies="rescale-layer initialise restore-weights",
)  # fmt: skip
def middle_layer_fifty_times_too_large(planted: bool) -> Case:
    """A rescaling for inference (weights times a quantisation scale) that was never undone."""
    torch.manual_seed(11)
    model = mlp(12, 64, 64, 64, 64, 3)
    if planted:
        model[4].weight.data *= 50
    return Case(model=model, data=table(), loss="cross_entropy")


@fault(
    FAULTS, "GPT", causes="branch-dominates layer-scale-stands-out", layers="tokens positions",
    remedies="rescale-layer initialise",
)  # fmt: skip
def token_embeddings_drown_the_places(planted: bool) -> Case:
    """Embeddings of another model (std of 10) beside fresh positions of 0.02."""
    torch.manual_seed(12)
    model = GPT(tied=False)
    if planted:
        nn.init.normal_(model.tokens.weight, std=10.0)
    return Case(model=model, data=text(), loss=over_tokens)


@fault(
    FAULTS, "autoencoder", causes="layer-scale-stands-out vanishing-signal vanishing-gradient output-constant",
    layers="encoder.4 encoder.4.weight", remedies="rescale-layer initialise",
)  # fmt: skip
def code_a_thousand_times_too_small(planted: bool) -> Case:
    """An initialisation meant for a policy's last layer (gain 0.001) in the middle of an autoencoder."""
    torch.manual_seed(13)
    images = as_pixels(blob_images()[0]).flatten(1)
    images = (images - images.mean()) / images.std()
    model = Autoencoder()
    if planted:
        model.encoder[4].weight.data *= 1e-3
        model.encoder[4].bias.data.zero_()
    return Case(model=model, data=(images, images), loss="mse")


class ContrastiveEncoder(nn.Module):
    """Embeds two views (two channels) and returns the scaled similarities of each with each."""

    def __init__(self, log_scale: float) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), *mlp(256, 64, 32))
        self.log_scale = nn.Parameter(torch.tensor(log_scale))

    def forward(self, pairs: Tensor) -> Tensor:
        first, second = (F.normalize(self.encoder(pairs[:, view : view + 1]), dim=1) for view in (0, 1))
        return self.log_scale.exp() * first @ second.T


def two_views(count: int = 32) -> tuple[Tensor, Tensor]:
    """Return pairs of views of images, as two channels, and the numbers of the pairs."""
    images = blob_images(count)[0] + torch.randn(count, 1, 16, 16)
    return torch.cat([images + 2.5 * torch.randn_like(images) for _ in range(2)], dim=1) / 2.8, torch.arange(count)


@fault(
    FAULTS, "contrastive", causes="layer-scale-stands-out saturated-units exploding-gradient exploding-signal",
    layers="log_scale", remedies="rescale-layer scale-outputs initialise",
)  # fmt: skip
def logit_scale_is_the_exponential_of_nine(planted: bool) -> Case:
    """CLIP's log(1/0.07) replaced by a scale that is exponentiated once more than meant."""
    torch.manual_seed(14)
    pairs, numbers = two_views()
    model = ContrastiveEncoder(9.0 if planted else 2.6)
    return Case(model=model, data=(pairs, numbers), loss="cross_entropy", judge=accuracy(numbers))


@fault(
    FAULTS, "regression", causes="layer-scale-stands-out exploding-signal exploding-gradient targets-wrong-scale",
    layers="6", remedies="rescale-layer initialise",
)  # fmt: skip
def regression_head_a_hundred_times_too_large(planted: bool) -> Case:
    """A head drawn with normal_(std=1) times the fan."""
    torch.manual_seed(15)
    model = mlp(8, 64, 64, 64, 1)
    if planted:
        model[6].weight.data *= 100
    return Case(model=model, data=regression_table(), loss="mse")


@fault(
    FAULTS, "Siamese", causes="layer-scale-stands-out exploding-signal exploding-gradient", remedies="rescale-layer "
    "initialise", layers="encoder.3 encoder.3.weight",
)  # fmt: skip
def last_layer_of_the_twins_far_too_large(planted: bool) -> Case:
    """Weights stored as integers and read back without their scale: all distances are far beyond the margin."""
    torch.manual_seed(16)
    pairs, same = image_pairs()
    model = Siamese()
    if planted:
        model.encoder[3].weight.data *= 127

    def judge(output: tuple[Tensor, Tensor]) -> float:
        return ((F.pairwise_distance(*output) < 1) == (same > 0.5)).float().mean().item()

    return Case(model=model, data=(pairs, same), loss=contrastive_loss, judge=judge)


@fault(
    FAULTS, "ViT", causes="branch-dominates layer-scale-stands-out", layers="patches places token patches.weight",
    remedies="rescale-layer initialise",
)  # fmt: skip
def patches_drown_the_places(planted: bool) -> Case:
    """A patch embedding for pixels of 0..1/255 used for standardised pixels."""
    torch.manual_seed(17)
    model = ViT()
    if planted:
        model.patches.weight.data *= 255
    return Case(model=model, data=blob_images(), loss="cross_entropy")


@fault(
    FAULTS, "GRU", causes="saturated-units layer-scale-stands-out", layers="recurrent recurrent.weight_ih_l0",
    remedies="rescale-layer initialise",
)  # fmt: skip
def input_weights_saturate_all_gates(planted: bool) -> Case:
    """An initialiser with std of 1 times the width for the input weights of a GRU."""
    torch.manual_seed(18)
    model = SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    if planted:
        model.recurrent.weight_ih_l0.data *= 150
    return Case(model=model, data=waves(), loss="cross_entropy")


@fault(
    FAULTS, "recommender", causes="layer-scale-stands-out branch-dominates", layers="users items users.weight",
    remedies="rescale-layer initialise",
)  # fmt: skip
def embedding_of_users_hides_the_items(planted: bool) -> Case:
    """One table is loaded from factors in another unit, 200 times larger than the other one."""
    torch.manual_seed(19)
    model = Recommender()
    if planted:
        model.users.weight.data *= 200
    return Case(model=model, data=ratings(), loss="mse")
