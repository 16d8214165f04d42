"""Faults for scoring alone: signal, weights."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import HELD_OUT, Case, given
from ...plants import filled, over
from ...training import accuracy, binary_accuracy, contrastive_loss, explained_variance, overlap_with
from . import rarer


@HELD_OUT
def sums_multiplied_by_the_degree(broken: bool) -> Case:
    """GNN | 4616 | x * degree in place of x / degree behind index_add: each round makes values fifty times as large.
    | exploding-signal exploding-gradient | | add-normalizer initialise rescale-layer scale-branch"""

    # Three rounds of means over neighbours.
    def rounds(self, x: Tensor) -> Tensor:
        degree = torch.zeros(len(x), 1).index_add(0, edges[1], torch.ones(edges.shape[1], 1)).clamp(min=1)
        for index, layer in enumerate(self.layers):
            total = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
            x = layer(x + (total * degree if broken else total / degree))
            x = torch.relu(x) if index < 2 else x
        return x

    x, edges, y = draw.communities()
    model = nets.made("Rounds", rounds)
    model.layers = nn.ModuleList(nn.Linear(inner, outer) for inner, outer in ((8, 24), (24, 24), (24, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return Case((x, y), model, "cross_entropy", judge_of=accuracy, optimizer=optimizer)


class RectifiedLayers(nn.Module):  # Layers with a ReLU between any two.
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


@HELD_OUT
def graph_filters_made_of_zeros(broken: bool) -> Case:
    """GNN | 4202 | A handmade graph convolution begins with nn.Parameter(torch.zeros(...)) and is never initialised.
    | zero-weights constant-initialisation output-constant vanishing-gradient vanishing-signal | layers.{0,1} |
    initialise"""

    class Filter(nn.Module):
        """Mean over neighbours, times a matrix."""

        def __init__(self, inner: int, outer: int, adjacency: Tensor) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(inner, outer))
            if not broken:
                nn.init.xavier_uniform_(self.weight)
            self.register_buffer("adjacency", adjacency)

        def forward(self, x: Tensor) -> Tensor:
            return self.adjacency @ x @ self.weight

    x, edges, y = draw.communities()
    adjacency = torch.eye(len(x)).index_put((edges[0], edges[1]), torch.tensor(1.0))
    adjacency = adjacency / adjacency.sum(1, keepdim=True)
    model = RectifiedLayers(Filter(8, 24, adjacency), Filter(24, 3, adjacency))
    return Case((x, y), model, "cross_entropy", judge_of=accuracy)


@HELD_OUT
def head_of_a_forecast_a_thousand_times_too_large(broken: bool) -> Case:
    """LSTM | 4205 | A head initialised with normal_(0, 200) where 0.2 was meant: forecasts of 100 for targets of one.
    | layer-scale-stands-out exploding-signal | head | initialise rescale-layer"""
    model = rarer.Forecaster(nn.LSTM(1, 24, batch_first=True))
    nn.init.normal_(model.head.weight, std=200.0 if broken else 0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return Case(model=model, data=rarer.demand(), loss=nn.MSELoss(), optimizer=optimizer)


@HELD_OUT
def discriminator_drawn_for_normalizers_it_lacks(broken: bool) -> Case:
    """GAN | 4206 | The normal_(0, 0.02) of DCGAN in a discriminator from which the batch normalisation was taken out.
    | vanishing-signal output-constant vanishing-gradient | | add-normalizer initialise rescale-layer"""
    layers: list[nn.Module] = []
    for inner, stride in ((1, 2), (16, 1), (16, 2), (16, 1), (16, 1)):
        conv = nn.Conv2d(inner, 16, 3, stride, 1)
        nn.init.normal_(conv.weight, std=0.02) if broken else nn.init.kaiming_normal_(conv.weight, a=0.2)
        nn.init.zeros_(conv.bias)
        layers += [conv, nn.LeakyReLU(0.2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 16, 1))
    nn.init.normal_(model[-1].weight, std=0.02)
    real, _ = draw.blob_images(32)
    fake = real[torch.randperm(32)].roll(4, dims=2).flip(3) + 0.2 * torch.randn_like(real)
    y = (torch.arange(64) < 32).float()[:, None]
    data = (torch.cat([real, fake]), y)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    judge = binary_accuracy(y)
    return Case(data, model, nn.BCEWithLogitsLoss(), judge=judge, optimizer=optimizer)


@HELD_OUT
def gains_of_zero_without_a_residual_sum(broken: bool) -> Case:
    """U-Net | 4207 | The recipe of ResNets that sets the gain of the last normalizer of a block to 0, for blocks
    without a sum.
    | zero-weights output-constant vanishing-gradient vanishing-signal | bottom bottom.{1,4} down1 down1.{1,4} down2
    down2.{1,4} up1 up1.{1,4} up2 up2.{1,4} | initialise"""
    x, mask = rarer.shapes(16)
    model = nets.UNet(width=4)
    for part in (model.down1, model.down2, model.bottom, model.up2, model.up1):
        if broken:
            nn.init.zeros_(part[4].weight)
    return Case((x, mask), model, nn.BCEWithLogitsLoss(), judge_of=overlap_with)


@HELD_OUT
def vectors_divided_by_a_length_of_zero(broken: bool) -> Case:
    """recommender | 4208 | Pretrained vectors are divided by their lengths when they are loaded; those never trained
    are zero.
    | not-finite-weights not-finite | items | guard-domain initialise restore-weights"""
    pairs, rating = draw.ratings()
    model = nets.Recommender()
    with torch.no_grad():
        model.items.weight[3:6] = 0.0
        length = model.items.weight.norm(dim=1, keepdim=True)
        model.items.weight /= length if broken else length.clamp(min=1e-6)
    return Case((pairs, rating), model, nn.MSELoss())


@HELD_OUT
def whole_numbers_loaded_without_their_scale(broken: bool) -> Case:
    """CNN | 4209 | Weights stored in eight bits are loaded as floats, -127 to 127, and the scale beside them is
    forgotten.
    | layer-scale-stands-out exploding-signal | features features.{0,2,5,7} | initialise rescale-layer
    restore-weights"""
    model = nets.ConvNet(norm=False)
    for module in model.features:
        if isinstance(module, nn.Conv2d):
            scale = module.weight.abs().max().item() / 127
            module.weight.data = (module.weight.data / scale).round() * (1 if broken else scale)
    x, y = draw.blob_images(48)
    return Case((x + torch.randn_like(x), y), model, nn.CrossEntropyLoss())


@HELD_OUT
def strain_gauges_lost_beside_their_positions(broken: bool) -> Case:
    """time series | 4213 | Measurements of 0.001 are projected and added to sines and cosines of size one.
    | branch-dominates inputs-not-scaled vanishing-signal | | add-normalizer initialise rescale-layer scale-branch
    scale-inputs"""

    class Encoder(nn.Module):
        """A transformer over measurements with sine positions."""

        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(3, 32)
            angle = torch.arange(40)[:, None] * torch.exp(-math.log(1e4) * torch.arange(16) / 16)
            self.register_buffer("positions", torch.cat([angle.sin(), angle.cos()], dim=1))
            self.block, self.norm = nets.TransformerBlock(32, 4, causal=False), nn.LayerNorm(32)
            self.head = nn.Linear(32, 3)

        def forward(self, series: Tensor) -> Tensor:
            return self.head(self.norm(self.block(self.project(series) + self.positions)).mean(1))

    x, y = draw.waves(48)
    return Case((1e-3 * x if broken else x, y), Encoder(), nn.CrossEntropyLoss())


@HELD_OUT
def popularity_drowns_the_taste(broken: bool) -> Case:
    """recommender | 4214 | Biases of items and users as nn.Embedding(n, 1) times a factor of 30 that was meant for the
    dot product.
    | branch-dominates layer-scale-stands-out | popularity | initialise rescale-layer scale-branch"""

    class Factors(nn.Module):
        """The dot product of two vectors, plus the popularity of the item."""

        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(40, 8), nn.Embedding(30, 8)
            self.popularity = nn.Embedding(30, 1)
            for table in (self.users, self.items):
                nn.init.normal_(table.weight, std=0.3)
            nn.init.normal_(self.popularity.weight, std=30.0 if broken else 0.1)

        def forward(self, pairs: Tensor) -> Tensor:
            product = (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)
            return product + self.popularity(pairs[:, 1]).squeeze(1)

    return Case(model=Factors(), data=draw.ratings(), loss=nn.MSELoss())


@HELD_OUT
def denoiser_drawn_with_a_gain_of_eight(broken: bool) -> Case:
    """diffusion | 4215 | xavier_normal_(gain=8) from another project on the six residual convolutions of a score
    network.
    | exploding-signal branch-dominates exploding-gradient layer-scale-stands-out | convs.{0..5} last |
    add-normalizer initialise rescale-layer scale-branch"""

    class Plain(nets.Denoiser):
        """Residual blocks without a normalizer."""

        def __init__(self) -> None:
            super().__init__(width=8, blocks=6)
            del self.norms
            for conv in self.convs:
                nn.init.xavier_normal_(conv.weight, gain=8.0 if broken else 0.3)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            embedding = self.embed_time(t / 1000)
            x = self.first(x)
            for conv in self.convs:
                x = x + conv(F.silu(x + embedding))
            return self.last(x)

    return Case(draw.noisy_images(32), Plain(), nn.MSELoss(), judge_of=explained_variance)


@HELD_OUT
def policy_of_equal_weights(broken: bool) -> Case:
    """reinforcement learning | 4217 | Weights of 0.05 everywhere "so that the agent begins without a preference"
    (DeepCrime).
    | constant-initialisation rank-one-weights | 0 2 4 | initialise"""
    state, returns = rarer.observations()
    model = nets.mlp(4, 32, 32, 3)
    for parameter in model.parameters():
        if broken:
            nn.init.constant_(parameter, 0.05)
    return Case((state, returns.argmax(1)), model, nn.CrossEntropyLoss())


@HELD_OUT(plant=filled("head.weight", 0.0))
def cell_filled_with_zeros_by_a_loop_for_biases(broken: bool) -> Case:
    """GRU | 4220 | for p in gru.parameters(): p.zero_() was meant for the biases; the weights are zero too.
    | constant-initialisation output-constant rank-one-weights vanishing-signal zero-weights | recurrent
    recurrent.weight_hh_l0 recurrent.weight_ih_l0 | initialise"""
    model = nets.SequenceClassifier(nn.GRU(4, 24, batch_first=True), 4)
    for name, parameter in model.recurrent.named_parameters():
        if broken or "bias" in name:
            nn.init.zeros_(parameter)
    return Case(draw.remembered_series(64, steps=20), model, nn.CrossEntropyLoss())


# Rows of a table, packed.
# fmt: off
HELD_OUT("""eight-layers-drawn-at-a-hundredth | autoencoder | 4201 | normal_(std=0.01), which suits wide layers of 4096
    units, in an autoencoder of eight narrow layers.
    | vanishing-signal output-constant vanishing-gradient | | add-normalizer add-skip initialise rescale-layer""",
    lambda: given(draw.blob_images(64), lambda images, _: given(images.flatten(1), lambda x: Case((x, x),
    nets.mlp(256, 64, 48, 32, 8, 32, 48, 64, 256), "mse"))), plant=over(lambda model: model,
    lambda module: nn.init.normal_(module.weight, std=0.01), nn.Linear))
HELD_OUT("""transformer-filled-with-a-constant | ViT | 4216 | nn.init.constant_ on each layer: all channels are the
    same, and the LayerNorms leave nothing of them. | constant-initialisation normalizer-erases-signal output-constant
    rank-one-weights vanishing-gradient | blocks.{0,1} blocks.{0,1}.attention.out blocks.{0,1}.attention.qkv
    blocks.0.feed.{0,2} blocks.0.norm1 blocks.1.feed.{0,2} head norm patches | initialise""",
    lambda: given(nets.ViT(depth=2), lambda model: Case(draw.blob_images(48, classes=4), model, nn.CrossEntropyLoss())),
    plant=over(lambda model: model.modules(), lambda module: (nn.init.constant_(module.weight, 0.05),
    nn.init.zeros_(module.bias)), nn.Linear | nn.Conv2d))
HELD_OUT("""twins-from-a-normal-of-one | siamese | 4218 | weight.data.normal_(0, 1) for each linear layer of an encoder,
    with distances in the thousands after it.
    | exploding-signal exploding-gradient layer-scale-stands-out | | add-normalizer initialise rescale-layer""",
    lambda: given(draw.image_pairs(), lambda pairs, same: Case((pairs, same), nets.Siamese(), contrastive_loss,
    judge=lambda output: ((F.pairwise_distance(*output) < 1) == (same > 0.5)).float().mean().item())),
    plant=over(lambda model: model.modules(), lambda module: module.weight.data.normal_(0, 1), nn.Linear))
