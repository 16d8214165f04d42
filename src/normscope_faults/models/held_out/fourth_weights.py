"""Faults of the fourth part in weights: how they were drawn, loaded or grown, and what that does to the signal."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from .. import parts
from . import fourth_parts

FAULTS: list[Fault] = []


@fault(
    FAULTS,
    "autoencoder",
    causes="vanishing-signal vanishing-gradient output-constant",
    remedies="initialise add-normalizer add-skip rescale-layer",
)
def eight_layers_drawn_at_a_hundredth(planted: bool) -> Case:
    """normal_(std=0.01), which suits wide layers of 4096 units, in an autoencoder of eight narrow layers."""
    torch.manual_seed(4201)
    images, _ = parts.blob_images(64)
    x = images.flatten(1)
    model = parts.mlp(256, 64, 48, 32, 8, 32, 48, 64, 256)
    for module in model:
        if planted and isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
    return Case(model=model, data=(x, x), loss="mse")


class RectifiedLayers(nn.Module):
    """Layers with a ReLU between any two."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


@fault(
    FAULTS,
    "GNN",
    causes="zero-weights constant-initialisation output-constant vanishing-signal vanishing-gradient",
    layers="layers.0 layers.1 layers.0.weight layers.1.weight",
    remedies="initialise",
)
def graph_filters_made_of_zeros(planted: bool) -> Case:
    """A handmade graph convolution begins with nn.Parameter(torch.zeros(...)) and is never initialised."""
    torch.manual_seed(4202)

    class Filter(nn.Module):
        """Mean over neighbours, times a matrix."""

        def __init__(self, inner: int, outer: int, adjacency: Tensor) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(inner, outer))
            if not planted:
                nn.init.xavier_uniform_(self.weight)
            self.register_buffer("adjacency", adjacency)

        def forward(self, x: Tensor) -> Tensor:
            return self.adjacency @ x @ self.weight

    x, edges, y = parts.communities()
    adjacency = torch.eye(len(x)).index_put((edges[0], edges[1]), torch.tensor(1.0))
    adjacency = adjacency / adjacency.sum(1, keepdim=True)
    model = RectifiedLayers(Filter(8, 24, adjacency), Filter(24, 3, adjacency))
    return Case(model=model, data=(x, y), loss="cross_entropy", judge=parts.accuracy(y))


@fault(
    FAULTS,
    "ViT",
    causes="attention-saturated layer-scale-stands-out exploding-signal branch-dominates saturated-units",
    layers="blocks.0.attention.qkv blocks.1.attention.qkv blocks.0.attention blocks.1.attention blocks.0 blocks.1 "
    "blocks.0.attention.qkv.weight blocks.1.attention.qkv.weight blocks.0.attention.out blocks.1.attention.out",
    remedies="initialise rescale-layer scale-attention",
)
def attention_of_handmade_normal_matrices(planted: bool) -> Case:
    """Matrices for queries, keys and values from torch.randn(width, width), without a factor."""
    torch.manual_seed(4203)
    model = parts.ViT(depth=2)
    for block in model.blocks:
        if planted:
            nn.init.normal_(block.attention.qkv.weight, std=1.0)
    x, y = parts.blob_images(48)
    x = x + 1.5 * torch.randn_like(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return Case(model=model, data=(x, y), loss="cross_entropy", optimizer=optimizer)


@fault(
    FAULTS,
    "LSTM",
    causes="saturated-units recurrent-weights-explode layer-scale-stands-out exploding-gradient output-constant",
    layers="recurrent recurrent.weight_hh_l0 recurrent.weight_ih_l0",
    remedies="initialise rescale-layer gated-recurrence",
)
def lstm_drawn_between_zero_and_one(planted: bool) -> Case:
    """nn.init.uniform_(weight) draws from 0 to 1, not around 0: all gates saturate at one."""
    torch.manual_seed(4204)
    x, y = parts.waves(60)
    model = parts.SequenceClassifier(nn.LSTM(3, 32, batch_first=True), 3)
    for name, weight in model.recurrent.named_parameters():
        if planted and "weight" in name:
            nn.init.uniform_(weight)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "LSTM",
    causes="layer-scale-stands-out exploding-signal",
    layers="head head.weight",
    remedies="initialise rescale-layer",
)
def head_of_a_forecast_a_thousand_times_too_large(planted: bool) -> Case:
    """A head initialised with normal_(0, 200) where 0.2 was meant: forecasts of 100 for targets of one."""
    torch.manual_seed(4205)
    model = fourth_parts.Forecaster(nn.LSTM(1, 24, batch_first=True))
    nn.init.normal_(model.head.weight, std=200.0 if planted else 0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return Case(model=model, data=fourth_parts.demand(), loss=nn.MSELoss(), optimizer=optimizer)


@fault(
    FAULTS,
    "GAN",
    causes="vanishing-signal vanishing-gradient output-constant",
    remedies="initialise add-normalizer rescale-layer",
)
def discriminator_drawn_for_normalizers_it_lacks(planted: bool) -> Case:
    """The normal_(0, 0.02) of DCGAN in a discriminator from which the batch normalisation was taken out."""
    torch.manual_seed(4206)
    layers: list[nn.Module] = []
    for inner, stride in ((1, 2), (16, 1), (16, 2), (16, 1), (16, 1)):
        conv = nn.Conv2d(inner, 16, 3, stride, 1)
        nn.init.normal_(conv.weight, std=0.02) if planted else nn.init.kaiming_normal_(conv.weight, a=0.2)
        nn.init.zeros_(conv.bias)
        layers += [conv, nn.LeakyReLU(0.2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 16, 1))
    nn.init.normal_(model[-1].weight, std=0.02)
    real, _ = parts.blob_images(32)
    fake = real[torch.randperm(32)].roll(4, dims=2).flip(3) + 0.2 * torch.randn_like(real)
    y = (torch.arange(64) < 32).float()[:, None]
    data = (torch.cat([real, fake]), y)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    judge = parts.binary_accuracy(y)
    return Case(model=model, data=data, loss=nn.BCEWithLogitsLoss(), judge=judge, optimizer=optimizer)


@fault(
    FAULTS,
    "U-Net",
    causes="zero-weights vanishing-signal vanishing-gradient output-constant",
    layers=" ".join(
        f"{part}.{index} {part}.{index}.weight {part}"
        for part in ("down1", "down2", "bottom", "up2", "up1")
        for index in (1, 4)
    ),
    remedies="initialise",
)
def gains_of_zero_without_a_residual_sum(planted: bool) -> Case:
    """The recipe of ResNets that sets the gain of the last normalizer of a block to 0, for blocks without a sum."""
    torch.manual_seed(4207)
    x, mask = fourth_parts.shapes(16)
    model = parts.UNet(width=4)
    for part in (model.down1, model.down2, model.bottom, model.up2, model.up1):
        if planted:
            nn.init.zeros_(part[4].weight)
    return Case(model=model, data=(x, mask), loss=nn.BCEWithLogitsLoss(), judge=parts.overlap_with(mask))


@fault(
    FAULTS,
    "recommender",
    causes="not-finite-weights not-finite",
    layers="items items.weight",
    remedies="restore-weights initialise guard-domain",
)
def vectors_divided_by_a_length_of_zero(planted: bool) -> Case:
    """Pretrained vectors are divided by their lengths when they are loaded; those never trained are zero."""
    torch.manual_seed(4208)
    pairs, rating = parts.ratings()
    model = parts.Recommender()
    with torch.no_grad():
        model.items.weight[3:6] = 0.0
        length = model.items.weight.norm(dim=1, keepdim=True)
        model.items.weight /= length if planted else length.clamp(min=1e-6)
    return Case(model=model, data=(pairs, rating), loss=nn.MSELoss())


@fault(
    FAULTS,
    "CNN",
    causes="layer-scale-stands-out exploding-signal",
    layers="features features.0 features.2 features.5 features.7 features.0.weight features.2.weight features.5.weight "
    "features.7.weight",
    remedies="rescale-layer restore-weights initialise",
)
def whole_numbers_loaded_without_their_scale(planted: bool) -> Case:
    """Weights stored in eight bits are loaded as floats, -127 to 127, and the scale beside them is forgotten."""
    torch.manual_seed(4209)
    model = parts.ConvNet(norm=False)
    for module in model.features:
        if isinstance(module, nn.Conv2d):
            scale = module.weight.abs().max().item() / 127
            module.weight.data = (module.weight.data / scale).round() * (1 if planted else scale)
    x, y = parts.blob_images(48)
    return Case(model=model, data=(x + torch.randn_like(x), y), loss=nn.CrossEntropyLoss())


class HandmadeRecurrence(nn.Module):
    """h = f(U x + W h), and a head that reads the last state."""

    def __init__(self, features: int, width: int, outputs: int, function: nn.Module, radius: float) -> None:
        super().__init__()
        self.enter, self.recur, self.head = (
            nn.Linear(features, width),
            nn.Linear(width, width),
            nn.Linear(width, outputs),
        )
        self.function = function
        nn.init.orthogonal_(self.recur.weight, gain=radius)

    def forward(self, series: Tensor) -> Tensor:
        state = series.new_zeros(len(series), self.recur.in_features)
        for step in range(series.shape[1]):
            state = self.function(self.enter(series[:, step]) + self.recur(state))
        return self.head(state)


@fault(
    FAULTS,
    "RNN",
    causes="recurrent-weights-explode exploding-signal exploding-gradient missing-activation",
    layers="recur recur.weight function",
    remedies="initialise rescale-layer gated-recurrence add-activation clip-gradients add-normalizer",
)
def recurrence_without_a_bound_that_grows(planted: bool) -> Case:
    """A handmade recurrence without an activation, whose matrix doubles states at each of 40 steps."""
    torch.manual_seed(4210)
    x, y = parts.remembered_series(64, steps=40)
    function = nn.Identity() if planted else nn.Tanh()
    model = HandmadeRecurrence(4, 24, 4, function, radius=2.0 if planted else 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss(), optimizer=optimizer)


@fault(
    FAULTS,
    "RNN",
    causes="recurrent-weights-vanish vanishing-gradient activation-unsuitable saturated-units vanishing-signal "
    "output-constant",
    layers="recur recur.weight function enter",
    remedies="change-activation gated-recurrence initialise rescale-layer",
)
def recurrence_through_sigmoids(planted: bool) -> Case:
    """A sigmoid in a recurrence: its slope of a quarter forgets the first steps long before the fortieth."""
    torch.manual_seed(4211)
    x, y = parts.remembered_series(64, steps=40)
    model = HandmadeRecurrence(4, 24, 4, nn.Sigmoid() if planted else nn.Tanh(), radius=1.0)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "RNN",
    causes="recurrent-weights-vanish vanishing-gradient",
    layers="recurrent recurrent.weight_hh_l0",
    remedies="initialise gated-recurrence rescale-layer",
)
def sixty_steps_as_torch_draws_a_tanh_network(planted: bool) -> Case:
    """nn.RNN with the weights that torch draws, for what happened sixty steps ago (Stack Overflow)."""
    torch.manual_seed(4212)
    x, y = parts.remembered_series(64, steps=60)
    model = parts.SequenceClassifier(nn.RNN(4, 32, batch_first=True), 4)
    if not planted:
        nn.init.orthogonal_(model.recurrent.weight_hh_l0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss(), optimizer=optimizer)


@fault(
    FAULTS,
    "time series",
    causes="branch-dominates inputs-not-scaled vanishing-signal",
    remedies="scale-branch rescale-layer initialise scale-inputs add-normalizer",
)
def strain_gauges_lost_beside_their_positions(planted: bool) -> Case:
    """Measurements of 0.001 are projected and added to sines and cosines of size one."""
    torch.manual_seed(4213)

    class Encoder(nn.Module):
        """A transformer over measurements with sine positions."""

        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(3, 32)
            angle = torch.arange(40)[:, None] * torch.exp(-math.log(1e4) * torch.arange(16) / 16)
            self.register_buffer("positions", torch.cat([angle.sin(), angle.cos()], dim=1))
            self.block, self.norm = parts.TransformerBlock(32, 4, causal=False), nn.LayerNorm(32)
            self.head = nn.Linear(32, 3)

        def forward(self, series: Tensor) -> Tensor:
            return self.head(self.norm(self.block(self.project(series) + self.positions)).mean(1))

    x, y = parts.waves(48)
    return Case(model=Encoder(), data=(1e-3 * x if planted else x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "recommender",
    causes="branch-dominates layer-scale-stands-out",
    layers="popularity popularity.weight",
    remedies="initialise rescale-layer scale-branch",
)
def popularity_drowns_the_taste(planted: bool) -> Case:
    """Biases of items and users as nn.Embedding(n, 1) times a factor of 30 that was meant for the dot product."""
    torch.manual_seed(4214)

    class Factors(nn.Module):
        """The dot product of two vectors, plus the popularity of the item."""

        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(40, 8), nn.Embedding(30, 8)
            self.popularity = nn.Embedding(30, 1)
            for table in (self.users, self.items):
                nn.init.normal_(table.weight, std=0.3)
            nn.init.normal_(self.popularity.weight, std=30.0 if planted else 0.1)

        def forward(self, pairs: Tensor) -> Tensor:
            product = (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)
            return product + self.popularity(pairs[:, 1]).squeeze(1)

    return Case(model=Factors(), data=parts.ratings(), loss=nn.MSELoss())


@fault(
    FAULTS,
    "diffusion",
    causes="exploding-signal exploding-gradient branch-dominates layer-scale-stands-out",
    layers=" ".join(f"convs.{i} convs.{i}.weight" for i in range(6)) + " last",
    remedies="initialise add-normalizer scale-branch rescale-layer",
)
def denoiser_drawn_with_a_gain_of_eight(planted: bool) -> Case:
    """xavier_normal_(gain=8) from another project on the six residual convolutions of a score network."""
    torch.manual_seed(4215)

    class Plain(parts.Denoiser):
        """Residual blocks without a normalizer."""

        def __init__(self) -> None:
            super().__init__(width=8, blocks=6)
            del self.norms
            for conv in self.convs:
                nn.init.xavier_normal_(conv.weight, gain=8.0 if planted else 0.3)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            embedding = self.embed_time(t / 1000)
            x = self.first(x)
            for conv in self.convs:
                x = x + conv(F.silu(x + embedding))
            return self.last(x)

    inputs, noise = parts.noisy_images(32)
    return Case(model=Plain(), data=(inputs, noise), loss=nn.MSELoss(), judge=parts.explained_variance(noise))


@fault(
    FAULTS,
    "ViT",
    causes="constant-initialisation rank-one-weights normalizer-erases-signal output-constant vanishing-gradient",
    layers="patches patches.weight blocks.0.norm1 norm head head.weight "
    + " ".join(
        f"blocks.{i} blocks.{i}.{layer} blocks.{i}.{layer}.weight"
        for i in range(2)
        for layer in ("attention.qkv", "attention.out", "feed.0", "feed.2")
    ),
    remedies="initialise",
)
def transformer_filled_with_a_constant(planted: bool) -> Case:
    """nn.init.constant_ on each layer: all channels are the same, and the LayerNorms leave nothing of them."""
    torch.manual_seed(4216)
    model = parts.ViT(depth=2)
    for module in model.modules():
        if planted and isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.constant_(module.weight, 0.05)
            nn.init.zeros_(module.bias)
    return Case(model=model, data=parts.blob_images(48, classes=4), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "reinforcement learning",
    causes="constant-initialisation rank-one-weights",
    layers="0 2 4 0.weight 2.weight 4.weight",
    remedies="initialise",
)
def policy_of_equal_weights(planted: bool) -> Case:
    """Weights of 0.05 everywhere "so that the agent begins without a preference" (DeepCrime)."""
    torch.manual_seed(4217)
    state, returns = fourth_parts.observations()
    model = parts.mlp(4, 32, 32, 3)
    for parameter in model.parameters():
        if planted:
            nn.init.constant_(parameter, 0.05)
    return Case(model=model, data=(state, returns.argmax(1)), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "siamese",
    causes="exploding-signal layer-scale-stands-out exploding-gradient",
    remedies="initialise rescale-layer add-normalizer",
)
def twins_from_a_normal_of_one(planted: bool) -> Case:
    """weight.data.normal_(0, 1) for each linear layer of an encoder, with distances in the thousands after it."""
    torch.manual_seed(4218)
    pairs, same = parts.image_pairs()
    model = parts.Siamese()
    for module in model.modules():
        if planted and isinstance(module, nn.Linear):
            module.weight.data.normal_(0, 1)

    def judge(output: tuple[Tensor, Tensor]) -> float:
        return ((F.pairwise_distance(*output) < 1) == (same > 0.5)).float().mean().item()

    return Case(model=model, data=(pairs, same), loss=parts.contrastive_loss, judge=judge)


@fault(
    FAULTS,
    "GRU",
    causes="constant-initialisation rank-one-weights zero-weights vanishing-signal output-constant",
    layers="recurrent recurrent.weight_ih_l0 recurrent.weight_hh_l0",
    remedies="initialise",
)
def cell_filled_with_zeros_by_a_loop_for_biases(planted: bool) -> Case:
    """for p in gru.parameters(): p.zero_() was meant for the biases; the weights are zero too."""
    torch.manual_seed(4220)
    model = parts.SequenceClassifier(nn.GRU(4, 24, batch_first=True), 4)
    for name, parameter in model.recurrent.named_parameters():
        if planted or "bias" in name:
            nn.init.zeros_(parameter)
    if planted:
        nn.init.zeros_(model.head.weight)
    return Case(model=model, data=parts.remembered_series(64, steps=20), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "mixture of experts",
    causes="saturated-units layer-scale-stands-out attention-saturated",
    layers="router router.weight",
    remedies="initialise rescale-layer scale-outputs scale-attention",
)
def router_that_has_decided_already(planted: bool) -> Case:
    """The logits of a router are a hundred times too large: each row has one expert, and the router no gradient."""
    torch.manual_seed(4221)

    class Mixture(nn.Module):
        """Four linear experts, weighed by a softmax."""

        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(4, 4)
            self.experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(4))
            if planted:
                self.router.weight.data *= 300

        def forward(self, x: Tensor) -> Tensor:
            answers = torch.cat([expert(x) for expert in self.experts], dim=1)
            return (self.router(x).softmax(1) * answers).sum(1, keepdim=True)

    x = torch.randn(192, 4)
    y = fourth_parts.standardise(x[:, :1].abs() + 0.3 * x[:, 1:2])
    return Case(model=Mixture(), data=(x, y), loss="mse")
