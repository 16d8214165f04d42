"""The open half, healthy models: what a careful practitioner builds, though a naive rule would warn about it."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .case import Case, Healthy, healthy
from .parts import (
    GPT,
    Autoencoder,
    ConvNet,
    Denoiser,
    ResNet,
    SentenceEncoder,
    TransformerBlock,
    UNet,
    ViT,
    as_pixels,
    blob_images,
    initialise_transformer,
    mlp,
    noisy_images,
    over_tokens,
    regression_table,
    sentences,
    table,
    text,
    train,
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
