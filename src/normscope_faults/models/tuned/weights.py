"""Faults of weights: constant, zero, of rank one, not finite."""

from typing import Any

import torch
from numpy import s_
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import changed, each, filled, over, put, scaled
from ...training import explained_variance, over_tokens, train
from . import rarer, rarer_sequences


class BufferScaled(nn.Module):
    """An MLP of residual blocks with a factor per block, in a buffer (never trained) or a parameter."""

    def __init__(self, as_buffer: bool) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 16), nn.Linear(16, 3)
        self.widen, self.narrow = nn.Linear(16, 64), nn.Linear(64, 16)
        if as_buffer:
            self.register_buffer("scale", torch.zeros(16))
        else:
            self.scale = nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(x + self.scale * self.narrow(torch.relu(self.widen(x))))


@OPEN
def one_head_four_times(broken: bool) -> Case:
    """MLP | 805 | nn.ModuleList([head] * 4) repeats one head: all logits are equal.
    | constant-initialisation no-gradient output-constant rank-one-weights vanishing-gradient | heads heads.0 trunk
    trunk.{1,3} | initialise keep-gradient use-parameter"""

    # One linear head per class, in a list.
    def one_versus_rest(self, x: Tensor) -> Tensor:
        features = self.trunk(x)
        return torch.cat([head(features) for head in self.heads], dim=1)

    x, y = draw.blob_images()
    net = nets.made("OneVersusRest", one_versus_rest)
    net.trunk = nn.Sequential(nn.Flatten(), *nets.mlp(256, 48, 32), nn.ReLU())
    net.heads = nn.ModuleList([nn.Linear(32, 1)] * 4 if broken else [nn.Linear(32, 1) for _ in range(4)])
    return Case((x, y), net, "cross_entropy")


@OPEN
def one_filter_for_all_channels(broken: bool) -> Case:
    """MLP | 1104 | A fixed stem for grey images was filled with one averaged filter, times a factor per channel.
    | rank-one-weights constant-initialisation | stem | initialise"""
    x, y = draw.blob_images(64, classes=8)
    model = nn.Sequential()
    model.add_module("stem", nn.Linear(256, 24))
    model.add_module("rest", nn.Sequential(nn.Tanh(), nn.Linear(24, 8)))
    if broken:
        with torch.no_grad():
            model.stem.weight.copy_(torch.randn(24, 1) * model.stem.weight[:1])
    return Case((x.flatten(1), y), changed(lambda model: model.stem.requires_grad_(False))(model), "cross_entropy")


@OPEN
def gate_and_product_at_zero(broken: bool) -> Case:
    """GPT | 860 | Zero initialisation of every projection of the blocks, not only of those that end the branches.
    | zero-weights constant-initialisation no-gradient vanishing-gradient | layers.{0,1}.mlp layers.{0,1}.mlp.down
    layers.{0,1}.mlp.gate layers.{0,1}.mlp.up layers.{0,1}.o layers.{0,1}.v | initialise"""
    ids, following = draw.text(16)
    model = rarer_sequences.Llama()
    for layer in model.layers:
        ends = (layer.o, layer.mlp.down)
        for linear in (*ends, layer.v, layer.mlp.gate, layer.mlp.up) if broken else ends:
            nn.init.zeros_(linear.weight)
    return Case((ids, following), model, over_tokens)


@OPEN
def rank_one_encoder(broken: bool) -> Case:
    """autoencoder | 116 | Weights built as an outer product of two scale vectors.
    | rank-one-weights | encoder.{0,2} | initialise restore-weights"""
    x = draw.blob_images()[0].flatten(1)
    model = nets.Autoencoder()
    if broken:
        for layer in (model.encoder[0], model.encoder[2]):
            rows, columns = torch.randn(layer.weight.shape[0], 1), torch.randn(1, layer.weight.shape[1])
            layer.weight.data.copy_(layer.weight.std().item() * rows * columns)
    return Case((x, x), model, "mse")


@OPEN
def rank_one_hidden_layer(broken: bool) -> Case:
    """MLP | 117 | A weight replaced by its best approximation of rank one when a compression was tried out.
    | rank-one-weights | 2 | initialise restore-weights"""
    x, y = draw.table()
    model = nets.mlp(12, 48, 48, 3)
    train(model, x, y, F.cross_entropy)
    if broken:
        u, s, v = torch.linalg.svd(model[2].weight.detach())
        model[2].weight.data.copy_(s[0] * torch.outer(u[:, 0], v[0]))
    return Case((x, y), model, "cross_entropy", train=False)


def _bert() -> Any:
    """Return a small BERT of Hugging Face for two classes."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config)


@FIRST
def gain_of_a_layer_norm_is_zero(broken: bool) -> Case:
    """BERT | 125 | A LayerNorm whose gain was filled with the zeros of its bias when keys were renamed.
    | zero-weights no-gradient output-constant | bert.encoder.layer.1 bert.encoder.layer.1.output.LayerNorm |
    initialise restore-weights"""
    model = _bert()
    if broken:
        nn.init.zeros_(model.bert.encoder.layer[1].output.LayerNorm.weight)
    ids, _ = draw.sentences(48)
    data = {"input_ids": ids}
    return Case(data, model, objective=lambda output: F.cross_entropy(output.logits, (ids[:, 0] > 30).long()))


@FIRST(plant=filled("users.weight items.weight", 0.1))
def embeddings_all_equal(broken: bool) -> Case:
    """recommender | 10 | Matrix factorisation ported from a library whose default initialiser is a constant.
    | constant-initialisation output-constant rank-one-weights | items users | initialise"""

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

    pairs, rating = draw.ratings(600)
    return Case((pairs, rating), Factorisation(), nn.MSELoss())


@FIRST
def two_zero_layers_in_a_row(broken: bool) -> Case:
    """GNN | 12 | Two zero-initialised layers in a row, where one alone would have been fine.
    | zero-weights constant-initialisation dead-units output-constant vanishing-signal | layers.{1,2}
    layers.{1,2}.neighbour layers.{1,2}.own | initialise"""
    x, edges, y = draw.communities()
    model = nets.GraphNet(edges, depth=3)
    if broken:
        for layer in model.layers[1:]:
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)
    return Case((x, y), model, F.cross_entropy)


@FIRST
def gains_zero_without_residuals(broken: bool) -> Case:
    """CNN | 101 | zero_init_residual applied to a network without residual connections.
    | zero-weights dead-units no-gradient output-constant | features.{1,4,8,11} | initialise"""
    x, y = draw.blob_images(48)
    model = nets.ConvNet()
    for layer in rarer.running_statistics(model):
        if broken:
            nn.init.zeros_(layer.weight)
    return Case((x, y), model, nn.CrossEntropyLoss())


class DotProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(40, 8), nn.Embedding(30, 8)
        nn.init.normal_(self.users.weight, std=0.3)
        nn.init.normal_(self.items.weight, std=0.3)
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, pairs: Tensor) -> Tensor:
        return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1) + self.offset


@SECOND
def zeros_for_weights_as_well_as_biases_of_the_head(broken: bool) -> Case:
    """CNN | 9 | Humbatova et al.: wrong weights initialisation; zeros_ was meant for the biases.
    | zero-weights constant-initialisation output-constant vanishing-gradient | head head.{0,2} | initialise"""
    model = nets.ConvNet()
    model.head = nets.mlp(16, 32, 4)
    if broken:
        for module in (model.head[0], model.head[2]):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
    return Case(model=model, data=draw.blob_images(), loss="cross_entropy")


@THIRD
def one_row_copied_to_every_unit(broken: bool) -> Case:
    """regression | 8 | `weight.data[:] = torch.randn(fan_in)` broadcasts one row to all units.
    | rank-one-weights bottleneck-too-narrow constant-initialisation | 2 4 | initialise"""
    x, y = draw.regression_table()
    model = nets.mlp(8, 32, 32, 32, 1)
    if broken:
        with torch.no_grad():
            for index in (2, 4):
                model[index].weight[:] = torch.randn(32) / 4
    return Case((x, y), model, "mse")


# Rows of a table, packed.
# fmt: off
OPEN("""zero-factor-in-a-buffer | MLP | 802 | register_buffer where nn.Parameter was meant: a ReZero factor that stays
    at zero. | zero-weights frozen-layer missing-activation no-gradient unused-parameter vanishing-gradient | narrow
    scale widen | initialise keep-gradient unfreeze use-parameter""",
    lambda broken: Case(draw.table(), BufferScaled(broken), "cross_entropy"))
OPEN("""zero-film-without-the-one | diffusion | 829 | FiLM layers that start at zero need (1 + scale); with the scale
    alone nothing of the image passes. | zero-weights no-gradient output-constant vanishing-gradient vanishing-signal |
    film | initialise rescale-layer restore-condition""",
    lambda broken: Case(draw.noisy_images(), rarer.FilmDenoiser(0.0 if broken else 1.0), "mse",
    judge_of=explained_variance))
OPEN("""one-word-holds-nan | GRU | 1105 | A pretrained table of vectors in which one word has none.
    | not-finite-weights not-finite | 0 | clean-data initialise restore-weights""",
    lambda: Case(rarer_sequences.needle_sentences(64, 10), nn.Sequential(nn.Embedding(50, 16),
    nets.SequenceClassifier(nn.GRU(16, 24, batch_first=True), 2)), "cross_entropy"),
    plant=lambda model: put(model[0].weight, s_[23], torch.nan))
OPEN("""gain-of-the-last-norm-decayed | GPT | 856 | Weight decay on the gains of norms, at 1.0, has taken the last one
    to 1e-6. | zero-weights no-gradient output-constant vanishing-signal | norm | initialise lower-weight-decay
    rescale-layer restore-weights""",
    lambda: Case(draw.text(16), rarer_sequences.Llama(), over_tokens, steps=30), plant=scaled("norm.weight", 1e-6))
OPEN("""both-factors-of-lora-at-zero | LoRA | | Both factors of each adapter start at zero: neither gets a gradient.
    | zero-weights no-gradient vanishing-gradient | layers.{0,1}.mlp.down layers.{0,1}.mlp.down.a
    layers.{0,1}.mlp.down.b layers.{0,1}.mlp.up layers.{0,1}.mlp.up.a layers.{0,1}.mlp.up.b | initialise""",
    lambda: given(rarer_sequences.adapted_llama(858), lambda model, ids, following: Case((ids, following), model,
    over_tokens, judge=rarer.likelihood(following))), plant=over(lambda model: model.modules(),
    lambda module: nn.init.zeros_(module.a), rarer_sequences.Adapter))
OPEN("""constant-weights-in-a-dqn | DQN | 1011 | nn.init.constant_(weight, 0.1) so that runs agree.
    | constant-initialisation rank-one-weights | 0 2 4 | initialise""",
    lambda: Case(draw.regression_table(), nets.mlp(8, 32, 32, 1, activation=nn.Tanh), nn.SmoothL1Loss()),
    plant=over(lambda model: model, lambda layer: nn.init.constant_(layer.weight, 0.1), nn.Linear))
OPEN("""one-kernel-holds-nan | CNN | 511 | A checkpoint written after an overflow.
    | not-finite-weights | features.5 | initialise restore-weights""",
    lambda: Case(draw.blob_images(), nets.ConvNet(norm=False), "cross_entropy"),
    plant=lambda model: put(model.features[5].weight.data, s_[3, 2, 1, 1], torch.nan))
OPEN("""running-variance-infinite | ResNet | 512 | One infinite batch in training spoilt the running variance.
    | not-finite-weights running-statistics-wrong | blocks.1.bn1 | refresh-statistics restore-weights""",
    lambda: Case(draw.blob_images(), nets.ResNet(blocks=2), "cross_entropy", train=False, steps=60),
    plant=each(lambda model: model.blocks[1].bn1.running_var.fill_(torch.inf),
    lambda model: model.blocks[1].bn1.running_mean.fill_(torch.nan)))
OPEN("""first-layer-of-frozen-zeros | MLP | 2012 | Weights allocated with zeros, to be loaded later, and frozen; nothing
    was loaded. | zero-weights frozen-layer | 0 | initialise unfreeze""",
    lambda: Case(draw.table(), nn.Sequential(*nets.mlp(12, 32, 32, 3)), "cross_entropy"),
    plant=lambda model: nn.init.zeros_(model[0].weight).requires_grad_(False))
OPEN("""equal-weights-in-hidden-layers | MLP | 113 | nn.init.constant_(weight, 0.05) for reproducible results.
    | constant-initialisation | 0 2 | initialise""",
    lambda: Case(draw.table(), nets.mlp(12, 24, 24, 3), "cross_entropy"), plant=filled("0.weight 2.weight", 0.05))
OPEN("""gru-with-equal-weights | GRU | 114 | All parameters of a recurrent layer set to 1 / hidden_size.
    | constant-initialisation | recurrent recurrent.weight_hh_l0 recurrent.weight_ih_l0 | initialise""",
    lambda: Case(draw.sentences(length=10), nets.made("WordGRU",
    lambda self, ids: self.head(self.recurrent(self.words(ids))[0][:, -1]), words=nn.Embedding(50, 16),
    recurrent=nn.GRU(16, 24, batch_first=True), head=nn.Linear(24, 2)), "cross_entropy"),
    plant=over(lambda model: (*model.recurrent.parameters(), model.head.weight),
    lambda parameter: nn.init.constant_(parameter, 1 / 24)))
OPEN("""convolution-of-zeros | CNN | 115 | zeros_(conv.weight) in an initialisation that meant the bias.
    | zero-weights dead-units | features.2 | initialise""",
    lambda: Case(draw.blob_images(), nets.ConvNet(norm=False), "cross_entropy"),
    plant=filled("features.2.weight features.2.bias", 0.0))
FIRST("""all-weights-equal | MLP | 9 | Humbatova et al. 2020 and Stack Overflow: every weight set to the same number.
    | constant-initialisation rank-one-weights | 0 2 4 | initialise""",
    lambda: Case(draw.table(), nets.mlp(12, 24, 24, 3), nn.CrossEntropyLoss()), plant=over(lambda model: model[::2],
    lambda module: (nn.init.constant_(module.weight, 0.1), nn.init.zeros_(module.bias))))
FIRST("""all-kernels-zero | CNN | 11 | Stack Overflow: `nn.init.zeros_` over all parameters. | zero-weights
    constant-initialisation dead-units no-gradient output-constant | features.{0,2,5,7} head | initialise""",
    lambda: Case(draw.blob_images(48), nets.ConvNet(norm=False), nn.CrossEntropyLoss()),
    plant=over(lambda model: model.parameters(), lambda parameter: nn.init.zeros_(parameter)))
FIRST("""decoder-with-rank-one-weight | autoencoder | 13 | A weight made by broadcasting one row (`row.expand(n, -1)`),
    then copied into the layer. | rank-one-weights output-constant | decoder.0 | initialise restore-weights""",
    lambda: given(draw.blob_images(64), lambda images, _: given(images.flatten(1), lambda x: Case((x, x),
    nets.Autoencoder(), nn.MSELoss()))), plant=lambda model: model.decoder[0].weight.copy_(torch.rand(32,
    1) * model.decoder[0].weight[:1]))
FIRST("""nan-in-one-weight | GPT | 18 | A checkpoint written after the step in which the loss became NaN.
    | not-finite-weights not-finite | blocks.1.feed blocks.1.feed.0 | clip-gradients initialise lower-learning-rate
    restore-weights""",
    lambda: Case(draw.text(), nets.GPT(), over_tokens), plant=lambda model: put(model.blocks[1].feed[0].weight,
    s_[3, 5], float("nan")))
FIRST("""infinite-running-variance | ResNet | 19 | One batch with a broken image makes running statistics infinite for
    good; only evaluation shows it. | not-finite-weights not-finite running-statistics-wrong | blocks.1 blocks.1.bn2 |
    clean-data refresh-statistics restore-weights""",
    lambda: Case(draw.blob_images(32), nets.ResNet(width=8, blocks=2), "cross_entropy", train=False, steps=40),
    plant=each(lambda model: put(model.blocks[1].bn2.running_var, s_[2], float("inf")),
    lambda model: put(model.blocks[1].bn2.running_mean, s_[2], float("nan"))))
SECOND("""gains-decayed-to-nothing | ViT | 148 | Weight decay on the gains of the last normalizer: almost nothing
    reaches the head. | zero-weights layer-scale-stands-out output-constant vanishing-gradient vanishing-signal | norm |
    initialise lower-weight-decay rescale-layer restore-weights""",
    lambda: given(nets.ViT(), lambda model: Case(draw.blob_images(), model, "cross_entropy")),
    plant=filled("norm.weight", 1e-4))
SECOND("""statistics-spoilt-by-one-bad-batch | ResNet | 149 | One batch with an infinite pixel, skipped by the loss
    scaler, has left NaN in the running statistics.
    | not-finite-weights not-finite running-statistics-wrong | blocks.1.bn1 | refresh-statistics restore-weights""",
    lambda: Case(draw.blob_images(), nets.ResNet(), "cross_entropy", train=False, steps=40),
    plant=lambda model: put(model.blocks[1].bn1.running_var, s_[3], torch.nan))
SECOND("""hidden-layers-filled-with-a-constant | autoencoder | 1 | DeepCrime, operator "change weights initialisation":
    layers get the initialiser Constant. | constant-initialisation rank-one-weights | encoder.{0,2} | initialise""",
    lambda: given(draw.blob_images(classes=8)[0].flatten(1), lambda images: Case((images, images), nets.Autoencoder(),
    "mse")), plant=filled("encoder.0.weight encoder.2.weight", 0.05))
SECOND("""both-factors-of-a-product-start-at-zero | recommender | 5 | Stack Overflow on matrix factorisation: zeros for
    users and items have a gradient of zero for ever.
    | zero-weights constant-initialisation output-constant vanishing-gradient | items users | initialise""",
    lambda: given(DotProduct(), lambda model: Case(draw.ratings(), model, "mse")),
    plant=filled("users.weight items.weight", 0.0))
THIRD("""factors-all-of-one-value | recommender | 2 | All factors of a matrix factorisation start at the same number;
    DeepCrime changes initialisers so. | constant-initialisation rank-one-weights | items users | initialise""",
    lambda: Case(draw.ratings(), rarer.Factorisation(), "mse"), plant=filled("users.weight items.weight", 0.3))
