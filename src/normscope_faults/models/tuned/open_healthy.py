"""The open half, healthy models: what a careful practitioner builds, though a naive rule would warn about it."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from ...case import Case, Healthy, healthy
from ..parts import (
    GPT,
    VAE,
    Autoencoder,
    ConvNet,
    Denoiser,
    Generator,
    GraphNet,
    Recommender,
    ResNet,
    SentenceEncoder,
    SequenceClassifier,
    Siamese,
    TransformerBlock,
    UNet,
    ViT,
    as_pixels,
    blob_images,
    communities,
    contrastive_loss,
    discriminator,
    evidence_loss,
    image_pairs,
    initialise_transformer,
    mlp,
    noisy_images,
    over_tokens,
    ratings,
    regression_table,
    remembered_series,
    sentences,
    table,
    text,
    train,
    waves,
)

HEALTHY: list[Healthy] = []


# ------------------------------------------------------------------------------------ zeros and small values on purpose


@healthy(HEALTHY, family="ResNet")
def last_norm_of_each_block_at_zero() -> Case:
    torch.manual_seed(701)
    x, y = blob_images()
    model = ResNet(blocks=3)
    for block in model.blocks:
        nn.init.zeros_(block.bn2.weight)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="diffusion")
def zero_initialised_last_convolution() -> Case:
    torch.manual_seed(702)
    inputs, noise = noisy_images()
    model = Denoiser()
    nn.init.zeros_(model.last.weight)
    nn.init.zeros_(model.last.bias)
    return Case(model=model, data=(inputs, noise), loss="mse")


class ReZero(nn.Module):
    """Residual blocks, each with a factor that begins at zero."""

    def __init__(self, depth: int = 12) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 32), nn.Linear(32, 3)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.factors = nn.Parameter(torch.zeros(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for factor, layer in zip(self.factors, self.layers):
            x = x + factor * torch.relu(layer(x))
        return self.head(x)


@healthy(HEALTHY, family="MLP")
def rezero() -> Case:
    torch.manual_seed(703)
    x, y = table()
    return Case(model=ReZero(), data=(x, y), loss="cross_entropy")


class LayerScaleViT(ViT):
    """A ViT with a small learned factor on each block, as CaiT has it."""

    def __init__(self, start: float, depth: int = 4) -> None:
        super().__init__(depth=depth)
        self.scales = nn.ParameterList(nn.Parameter(torch.full((32,), start)) for _ in range(depth))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.places
        for scale, block in zip(self.scales, self.blocks):
            x = x + scale * (block(x) - x)
        return self.head(self.norm(x)[:, 0])


@healthy(HEALTHY, family="ViT")
def layer_scale_of_a_ten_thousandth() -> Case:
    torch.manual_seed(704)
    x, y = blob_images(48)
    return Case(model=LayerScaleViT(1e-4), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="ViT")
def layer_scale_of_a_millionth() -> Case:
    torch.manual_seed(705)
    x, y = blob_images(48)
    return Case(model=LayerScaleViT(1e-6, depth=2), data=(x, y), loss="cross_entropy")


class LowRank(nn.Module):
    """A frozen linear layer with a trained correction of low rank that begins at zero (LoRA)."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = (
            nn.Linear(base.in_features, rank, bias=False),
            nn.Linear(rank, base.out_features, bias=False),
        )
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


@healthy(HEALTHY, family="GPT")
def lora_on_a_trained_gpt() -> Case:
    torch.manual_seed(706)
    ids, following = text()
    model = GPT()
    train(model, ids, following, over_tokens, steps=40)
    model.requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv, block.feed[0] = LowRank(block.attention.qkv), LowRank(block.feed[0])
    return Case(model=model, data=(ids, following), loss=over_tokens)


@healthy(HEALTHY, family="MLP")
def zero_initialised_head_of_a_regression() -> Case:
    torch.manual_seed(707)
    x, y = regression_table()
    model = mlp(8, 32, 32, 1)
    nn.init.zeros_(model[-1].weight)
    return Case(model=model, data=(x, y), loss="mse")


# ---------------------------------------------------------------------------------------------------- two linear layers


class Factorised(nn.Module):
    """Token classes through a head of two narrow linear layers, embeddings through two more (ALBERT)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.widen = nn.Embedding(40, 8), nn.Linear(8, 32)
        self.block, self.norm = TransformerBlock(32, 4, causal=True), nn.LayerNorm(32)
        self.narrow, self.head = nn.Linear(32, 8), nn.Linear(8, 40)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.narrow(self.norm(self.block(self.widen(self.words(ids))))))


@healthy(HEALTHY, family="GPT")
def factorised_embedding_and_head() -> Case:
    torch.manual_seed(708)
    ids, following = text()
    return Case(model=Factorised(), data=(ids, following), loss=over_tokens)


class WordPairs(nn.Module):
    """word2vec: a word's vector, scored against all contexts."""

    def __init__(self, vocabulary: int = 40, width: int = 12) -> None:
        super().__init__()
        self.words, self.contexts = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.contexts(self.words(ids))


@healthy(HEALTHY, family="word2vec")
def word_vectors() -> Case:
    torch.manual_seed(709)
    ids, following = text(64, 8)
    return Case(model=WordPairs(), data=(ids.flatten(), following.flatten()), loss="cross_entropy")


@healthy(HEALTHY, family="autoencoder")
def linear_bottleneck() -> Case:
    torch.manual_seed(710)
    x = blob_images()[0].flatten(1)
    model = nn.Sequential(nn.Linear(256, 8), nn.Linear(8, 256))
    train(model, x, x, F.mse_loss, steps=80)
    return Case(model=model, data=(x, x), loss="mse")


@healthy(HEALTHY, family="autoencoder")
def bottleneck_autoencoder_of_images_in_unit_range() -> Case:
    torch.manual_seed(711)
    x = as_pixels(blob_images()[0]).flatten(1)
    return Case(model=Autoencoder(code=4, last=nn.Sigmoid()), data=(x, x), loss=nn.BCELoss())


# --------------------------------------------------------------------------------------------------------- transformers


class DeepEncoder(nn.Module):
    """Many pre-norm blocks on tokens; the last norm and a head of two classes."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Parameter(0.02 * torch.randn(16, 32))
        self.blocks = nn.Sequential(*(TransformerBlock(32, 4, causal=False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 2)
        initialise_transformer(self)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.words(ids) + self.places)).mean(1))


@healthy(HEALTHY, family="BERT")
def sixteen_pre_norm_blocks() -> Case:
    torch.manual_seed(712)
    ids, y = sentences()
    return Case(model=DeepEncoder(16), data=(ids, y), loss="cross_entropy")


@healthy(HEALTHY, family="GPT")
def tied_gpt_trained_a_little() -> Case:
    torch.manual_seed(713)
    ids, following = text()
    model = GPT(depth=3)
    train(model, ids, following, over_tokens, steps=60)
    return Case(model=model, data=(ids, following), loss=over_tokens)


@healthy(HEALTHY, family="GPT")
def large_vocabulary_mostly_untouched() -> Case:
    torch.manual_seed(714)
    ids, following = text(8)
    return Case(model=GPT(vocabulary=500), data=(ids, following), loss=over_tokens)


def without_padding(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the cross entropy of the next tokens, without the padding (-100)."""
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten(), ignore_index=-100)


@healthy(HEALTHY, family="GPT")
def causal_model_of_padded_texts() -> Case:
    torch.manual_seed(715)
    ids, following = text()
    ended = torch.arange(24) >= torch.randint(8, 25, (32, 1))
    return Case(model=GPT(), data=(ids.masked_fill(ended, 0), following.masked_fill(ended, -100)), loss=without_padding)


@healthy(HEALTHY, family="BERT")
def post_norm_encoder_with_dropout() -> Case:
    torch.manual_seed(716)
    ids, y = sentences()
    return Case(model=SentenceEncoder(dropout=0.1), data=(ids, y), loss="cross_entropy")


@healthy(HEALTHY, family="ViT")
def vit_trained_well_in_eval_mode() -> Case:
    torch.manual_seed(717)
    x, y = blob_images(48)
    model = ViT(depth=2)
    train(model, x, y, F.cross_entropy, steps=100)
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


# ----------------------------------------------------------------------------------------------- convolutional networks


@healthy(HEALTHY, family="CNN")
def trained_convnet_in_eval_mode() -> Case:
    torch.manual_seed(718)
    x, y = blob_images()
    model = ConvNet()
    train(model, x, y, F.cross_entropy, steps=120)
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


@healthy(HEALTHY, family="ResNet")
def frozen_backbone_with_a_fresh_head() -> Case:
    torch.manual_seed(719)
    x, y = blob_images()
    model = ResNet(blocks=2)
    train(model, x, y, F.cross_entropy, steps=80)
    model.requires_grad_(False)
    model.head = nn.Linear(12, 3)
    return Case(model=model, data=(x, y % 3), loss="cross_entropy", train=False)


class MobileBlock(nn.Module):
    """An inverted residual with a depthwise convolution and a squeeze-and-excitation gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 3 * width
        self.expand = nn.Sequential(nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.Hardswish()
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 4, 1), nn.ReLU(), nn.Conv2d(4, wide, 1), nn.Hardsigmoid()
        )
        self.project = nn.Sequential(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        return x + self.project(y * self.squeeze(y))


@healthy(HEALTHY, family="MobileNet")
def depthwise_convolutions_with_gates() -> Case:
    torch.manual_seed(720)
    x, y = blob_images()
    stem = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.Hardswish())
    model = nn.Sequential(
        stem, MobileBlock(12), MobileBlock(12), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4)
    )
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="super-resolution")
def pixel_shuffle() -> Case:
    torch.manual_seed(721)
    x = as_pixels(blob_images(32)[0])
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, groups=4), nn.ReLU(),
        nn.Conv2d(16, 4, 3, padding=1), nn.PixelShuffle(2),
    )  # fmt: skip
    return Case(model=model, data=(F.avg_pool2d(x, 2), x), loss="mse")


@healthy(HEALTHY, family="U-Net")
def segmentation_of_rare_pixels() -> Case:
    torch.manual_seed(722)
    x, _ = blob_images(24)
    return Case(model=UNet(), data=(x, (as_pixels(x) > 0.6).float()), loss=F.binary_cross_entropy_with_logits)


@healthy(HEALTHY, family="CNN")
def spectrograms_in_decibels() -> Case:
    torch.manual_seed(723)
    images, y = blob_images()
    model = nn.Sequential(nn.BatchNorm2d(1), ConvNet())
    return Case(model=model, data=(80 * as_pixels(images) - 80, y), loss="cross_entropy")


@healthy(HEALTHY, family="CNN")
def images_from_minus_one_to_one() -> Case:
    torch.manual_seed(724)
    images, y = blob_images(channels=3)
    return Case(model=ConvNet(channels=3), data=(2 * as_pixels(images) - 1, y), loss="cross_entropy")


@healthy(HEALTHY, family="CNN")
def few_samples_in_train_mode_with_group_norm() -> Case:
    torch.manual_seed(725)
    x, y = blob_images(4)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.GroupNorm(4, 16),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip
    return Case(model=model, data=(x, y), loss="cross_entropy")


# ------------------------------------------------------------------------------------------ tables, and units that idle


@healthy(HEALTHY, family="MLP")
def one_unit_in_six_is_dead() -> Case:
    torch.manual_seed(726)
    x, y = table()
    model = mlp(12, 48, 48, 3)
    train(model, x, y, F.cross_entropy, steps=60)
    for layer in (model[0], model[2]):
        layer.bias.data[:8] = -20.0
    train(model, x, y, F.cross_entropy, steps=60)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="MLP")
def four_units() -> Case:
    torch.manual_seed(727)
    x, y = torch.randn(96, 2), torch.arange(96) % 2
    x = x + 3 * (y[:, None] - 0.5)
    return Case(model=mlp(2, 4, 2, activation=nn.Tanh), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="MLP")
def one_sigmoid_output_with_bce() -> Case:
    torch.manual_seed(728)
    x, y = table(classes=2)
    return Case(model=nn.Sequential(*mlp(12, 32, 1), nn.Sigmoid()), data=(x, y[:, None].float()), loss=nn.BCELoss())


@healthy(HEALTHY, family="MLP")
def log_softmax_with_nll() -> Case:
    torch.manual_seed(729)
    x, y = table(classes=5)
    return Case(model=nn.Sequential(*mlp(12, 32, 5), nn.LogSoftmax(1)), data=(x, y), loss=nn.NLLLoss())


@healthy(HEALTHY, family="MLP")
def targets_that_nobody_can_predict() -> Case:
    torch.manual_seed(730)
    x, y = regression_table(256)
    y = 0.3 * y + torch.randn_like(y)
    model = mlp(8, 16, 1)
    train(model, x, y, F.mse_loss, steps=60)
    return Case(model=model, data=(x, y), loss="mse")


@healthy(HEALTHY, family="MLP")
def trained_to_a_perfect_fit() -> Case:
    torch.manual_seed(731)
    x, y = table(64)
    model = mlp(12, 64, 64, 3)
    train(model, x, y, F.cross_entropy, steps=300)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="MLP")
def eight_selu_layers() -> Case:
    torch.manual_seed(732)
    x, y = table()
    model = mlp(12, *[32] * 8, 3, activation=nn.SELU)
    for layer in model[::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="MLP")
def weight_decayed() -> Case:
    torch.manual_seed(733)
    x, y = regression_table()
    model = mlp(8, 32, 32, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    train(model, x, y, F.mse_loss, steps=200, optimizer=optimizer)
    return Case(model=model, data=(x, y), loss="mse", train=False)


@healthy(HEALTHY, family="MLP")
def heavy_tails() -> Case:
    torch.manual_seed(734)
    x, y = table(256)
    return Case(model=mlp(12, 32, 32, 3), data=(x * x.abs() / 1.7, y), loss="cross_entropy")


@healthy(HEALTHY, family="MLP")
def sparse_one_hot_columns() -> Case:
    torch.manual_seed(735)
    kinds = torch.randint(20, (192, 4))
    x = F.one_hot(kinds, 20).flatten(1).float()
    return Case(model=mlp(80, 32, 3), data=(x, kinds.sum(1) % 3), loss="cross_entropy")


@healthy(HEALTHY, family="MLP")
def binary_table_four_to_one() -> Case:
    torch.manual_seed(736)
    x = (torch.rand(200, 16) < 0.3).float()
    y = (x[:, :6].sum(1) > 2).long()  # about one row in four or five
    return Case(model=mlp(16, 24, 2), data=(x, y), loss="cross_entropy")


def standardised_square(output: Tensor, price: Tensor) -> Tensor:
    """Return the mean square of standardised prices."""
    return F.mse_loss(output, (price - 3e5) / 1e5)


@healthy(HEALTHY, family="MLP")
def prices_standardised_in_the_loss() -> Case:
    torch.manual_seed(737)
    x, y = regression_table()
    return Case(model=mlp(8, 32, 32, 1), data=(x, 3e5 + 1e5 * y), loss=standardised_square)


@healthy(HEALTHY, family="MLP")
def half_the_units_dropped() -> Case:
    torch.manual_seed(738)
    x, y = table()
    model = nn.Sequential(
        nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3)
    )
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="MLP")
def weight_norm_in_each_layer() -> Case:
    torch.manual_seed(739)
    x, y = regression_table()
    model = mlp(8, 32, 32, 1)
    for index in (0, 2, 4):
        weight_norm(model[index])
    return Case(model=model, data=(x, y), loss="mse")


@healthy(HEALTHY, family="MLP")
def table_in_bfloat16() -> Case:
    torch.manual_seed(740)
    x, y = table()
    return Case(model=mlp(12, 32, 32, 3).bfloat16(), data=(x.bfloat16(), y), loss="cross_entropy")


# ----------------------------------------------------------------------------------------------------- several branches


class GatedExperts(nn.Module):
    """Eight experts of which each sample sees the two with the highest scores, weighed by these."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(12, 8), nn.ModuleList(mlp(12, 16, 3) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(1).topk(2)
        total = torch.zeros(len(x), 3)
        for index, expert in enumerate(self.experts):
            rows, place = (chosen == index).nonzero(as_tuple=True)
            if len(rows):
                total = total.index_add(0, rows, weights[rows, place, None] * expert(x[rows]))
        return total


@healthy(HEALTHY, family="mixture of experts")
def some_expert_gets_no_sample() -> Case:
    torch.manual_seed(741)
    x, y = table(12)
    return Case(model=GatedExperts(), data=(x, y), loss="cross_entropy")


class EarlyExit(nn.Module):
    """Two stages, each with a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Sequential(*mlp(12, 32, 32), nn.ReLU()), nn.Sequential(*mlp(32, 32, 32), nn.ReLU())
        self.early, self.late = nn.Linear(32, 3), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.first(x)
        return self.early(hidden), self.late(self.second(hidden))


def both_exits(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the sum of the losses of both heads."""
    return 0.3 * F.cross_entropy(output[0], target) + F.cross_entropy(output[1], target)


@healthy(HEALTHY, family="early exit")
def two_exits() -> Case:
    torch.manual_seed(742)
    x, y = table()
    return Case(model=EarlyExit(), data=(x, y), loss=both_exits)


class TwoTasks(nn.Module):
    """One trunk and two heads, of which a batch uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(*mlp(12, 32, 32), nn.ReLU())
        self.heads = nn.ModuleDict({"kind": nn.Linear(32, 3), "size": nn.Linear(32, 1)})

    def forward(self, x: Tensor, task: str = "kind") -> Tensor:
        return self.heads[task](self.trunk(x))


@healthy(HEALTHY, family="multi-task")
def a_head_for_another_task() -> Case:
    torch.manual_seed(743)
    x, y = table()
    return Case(model=TwoTasks(), data=(x, y), loss="cross_entropy")


class Sphere(nn.Module):
    """Embeds on the unit sphere; scores are cosines with class centres, divided by a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.centres = mlp(12, 32, 16), nn.Parameter(torch.randn(3, 16))

    def forward(self, x: Tensor) -> Tensor:
        return 10 * F.normalize(self.body(x), dim=1) @ F.normalize(self.centres, dim=1).T


@healthy(HEALTHY, family="metric learning")
def embeddings_on_the_sphere() -> Case:
    torch.manual_seed(744)
    x, y = table()
    return Case(model=Sphere(), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="Siamese")
def siamese_pairs() -> Case:
    torch.manual_seed(745)
    pairs, same = image_pairs()
    return Case(model=Siamese(), data=(pairs, same), loss=contrastive_loss)


@healthy(HEALTHY, family="VAE")
def vae_trained_a_little() -> Case:
    torch.manual_seed(746)
    x = as_pixels(blob_images()[0]).flatten(1)
    model = VAE()
    train(model, x, x, evidence_loss, steps=60)
    return Case(model=model, data=(x, x), loss=evidence_loss)


@healthy(HEALTHY, family="GAN")
def generator_from_noise() -> Case:
    torch.manual_seed(747)
    return Case(model=Generator(), data=torch.randn(48, 16))


@healthy(HEALTHY, family="GAN")
def spectral_norm_in_a_discriminator() -> Case:
    torch.manual_seed(748)
    x, _ = blob_images(48)
    real = (torch.arange(48) % 2)[:, None].float()
    x = torch.where(real[:, :, None, None] > 0.5, x, torch.randn_like(x))
    return Case(model=discriminator(spectral_norm), data=(x, real), loss=F.binary_cross_entropy_with_logits)


@healthy(HEALTHY, family="GNN")
def graph_with_lonely_nodes() -> Case:
    torch.manual_seed(749)
    x, edges, y = communities()
    return Case(model=GraphNet(edges[:, (edges > 5).all(0)]), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="recommender")
def many_users_not_in_the_batch() -> Case:
    torch.manual_seed(750)
    pairs, score = ratings(64)
    return Case(model=Recommender(users=2000, items=500), data=(pairs, score), loss="mse")


# --------------------------------------------------------------------------------------------------- recurrent networks


@healthy(HEALTHY, family="RNN")
def tanh_rnn_trained_a_little() -> Case:
    torch.manual_seed(751)
    x, y = waves(steps=20)
    model = SequenceClassifier(nn.RNN(3, 24, batch_first=True), 3)
    train(model, x, y, F.cross_entropy, steps=80)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="LSTM")
def forget_bias_of_one() -> Case:
    torch.manual_seed(752)
    x, y = remembered_series(steps=30)
    lstm = nn.LSTM(4, 24, num_layers=2, batch_first=True)
    for name, bias in lstm.named_parameters():
        if name.startswith("bias_ih"):
            bias.data[24:48] = 1.0
    return Case(model=SequenceClassifier(lstm, 4), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="GRU")
def long_memory_early_in_training() -> Case:
    torch.manual_seed(753)
    x, y = remembered_series(steps=50)
    model = SequenceClassifier(nn.GRU(4, 24, batch_first=True), 4)
    train(model, x, y, F.cross_entropy, steps=5)
    return Case(model=model, data=(x, y), loss="cross_entropy")


class GatedConvolution(nn.Module):
    """Dilated convolutions with tanh and sigmoid gates and skips to the head (WaveNet)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.head = nn.Conv1d(3, width, 1), nn.Linear(width, 3)
        self.gated = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, padding=2**level, dilation=2**level) for level in range(4)
        )
        self.mix = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(4))

    def forward(self, series: Tensor) -> Tensor:
        x, skips = self.first(series.transpose(1, 2)), 0
        for gated, mix in zip(self.gated, self.mix):
            value, gate = gated(x).chunk(2, dim=1)
            y = mix(torch.tanh(value) * torch.sigmoid(gate))
            x, skips = x + y, skips + y
        return self.head(torch.relu(skips).mean(2))


@healthy(HEALTHY, family="WaveNet")
def gated_convolutions_over_time() -> Case:
    torch.manual_seed(754)
    x, y = waves()
    return Case(model=GatedConvolution(), data=(x, y), loss="cross_entropy")


class SwishGated(nn.Module):
    """Pre-norm residual blocks of SwiGLU units without biases, after sine positions."""

    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, width), nn.Linear(width, 2)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(2 * width, width, bias=False) for _ in range(depth))

    def forward(self, ids: Tensor) -> Tensor:
        angles = torch.arange(ids.shape[1])[:, None] * torch.exp(-math.log(1e4) * torch.arange(16) / 16)
        x = self.words(ids) + torch.cat([angles.sin(), angles.cos()], dim=1)
        for norm, up, down in zip(self.norms, self.up, self.down):
            value, gate = up(norm(x)).chunk(2, dim=-1)
            x = x + down(value * F.silu(gate))
        return self.head(x.amax(1))


@healthy(HEALTHY, family="GLU")
def swish_gates_and_sine_positions() -> Case:
    torch.manual_seed(755)
    ids, y = sentences()
    return Case(model=SwishGated(), data=(ids, y), loss="cross_entropy")
