"""Healthy networks of the usual families: fresh, trained a little, trained well."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim import SGD, Adam, AdamW

from ...case import Case, Healthy, healthy
from ..parts import (
    GPT,
    SMALL_GPT2,
    VAE,
    ConvNet,
    Denoiser,
    Generator,
    GraphNet,
    Recommender,
    ResNet,
    SentenceEncoder,
    SequenceClassifier,
    Siamese,
    UNet,
    ViT,
    as_pixels,
    blob_images,
    communities,
    contrastive_loss,
    discriminator,
    evidence_loss,
    image_pairs,
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
from .second_sequences_and_attention import MaskedEncoder, padded_sentences
from .second_weights import ContrastiveEncoder, two_views

HEALTHY: list[Healthy] = []


@healthy(HEALTHY, family="tabular")
def fresh_classifier_of_a_table() -> Case:
    torch.manual_seed(201)
    return Case(model=mlp(12, 64, 64, 3), data=table(), loss="cross_entropy")


@healthy(HEALTHY, family="tabular")
def table_with_dropout_and_batchnorm_trained() -> Case:
    torch.manual_seed(202)
    x, y = table(192)
    model = nn.Sequential(
        nn.Linear(12, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 3),
    )  # fmt: skip
    train(model, x, y, F.cross_entropy, steps=120)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="regression")
def regression_with_gelu_trained_well() -> Case:
    torch.manual_seed(203)
    x, y = regression_table()
    model = mlp(8, 48, 48, 1, activation=nn.GELU)
    train(model, x, y, F.mse_loss, steps=300)
    return Case(model=model, data=(x, y), loss="mse")


@healthy(HEALTHY, family="regression")
def regression_with_an_adam_handed_over() -> Case:
    torch.manual_seed(204)
    model = mlp(8, 48, 48, 1)
    optimizer = Adam(model.parameters(), lr=1e-3)
    return Case(model=model, data=regression_table(), loss="mse", optimizer=optimizer)


@healthy(HEALTHY, family="CNN")
def fresh_convolutions_with_sgd_handed_over() -> Case:
    torch.manual_seed(205)
    model = ConvNet(channels=3)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    return Case(model=model, data=blob_images(channels=3), loss="cross_entropy", optimizer=optimizer)


@healthy(HEALTHY, family="CNN")
def convolutions_trained_until_the_loss_is_small_in_eval_mode() -> Case:
    torch.manual_seed(206)
    images, labels = blob_images(128)
    model = ConvNet()
    train(model, images, labels, F.cross_entropy, steps=80)
    return Case(model=model, data=(images, labels), loss="cross_entropy", train=False)


@healthy(HEALTHY, family="ResNet")
def residual_network_with_gains_of_zero() -> Case:
    """Goyal et al. 2017: the last gain of each branch starts at zero."""
    torch.manual_seed(207)
    model = ResNet()
    for block in model.blocks:
        nn.init.zeros_(block.bn2.weight)
    return Case(model=model, data=blob_images(), loss="cross_entropy")


@healthy(HEALTHY, family="ResNet")
def residual_network_trained() -> Case:
    torch.manual_seed(208)
    images, labels = blob_images()
    model = ResNet()
    train(model, images, labels, F.cross_entropy, steps=40)
    return Case(model=model, data=(images, labels), loss="cross_entropy")


def segmentation_data() -> tuple[Tensor, Tensor]:
    """Return images and where they are bright."""
    images, _ = blob_images(24)
    return images, (F.avg_pool2d(images, 3, 1, 1) > 0.7).float()


@healthy(HEALTHY, family="segmentation")
def fresh_unet() -> Case:
    torch.manual_seed(209)
    return Case(model=UNet(), data=segmentation_data(), loss=nn.BCEWithLogitsLoss())


def dice_loss(logits: Tensor, mask: Tensor) -> Tensor:
    """Return 1 minus the overlap, per image."""
    chances = torch.sigmoid(logits).flatten(1)
    mask = mask.flatten(1)
    return (1 - (2 * (chances * mask).sum(1) + 1) / (chances.sum(1) + mask.sum(1) + 1)).mean()


@healthy(HEALTHY, family="segmentation")
def unet_trained_with_overlap() -> Case:
    torch.manual_seed(210)
    images, mask = segmentation_data()
    model = UNet()
    train(model, images, mask, dice_loss, steps=35, optimizer=Adam(model.parameters(), lr=5e-4))
    return Case(model=model, data=(images, mask), loss=dice_loss)


@healthy(HEALTHY, family="GPT")
def fresh_decoder_with_two_groups_of_decay() -> Case:
    torch.manual_seed(211)
    model = GPT()
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    return Case(model=model, data=text(), loss=over_tokens, optimizer=AdamW(groups, lr=6e-4, betas=(0.9, 0.95)))


@healthy(HEALTHY, family="GPT")
def decoder_trained() -> Case:
    torch.manual_seed(212)
    ids, following = text()
    model = GPT()
    train(model, ids, following, over_tokens, steps=70)
    return Case(model=model, data=(ids, following), loss=over_tokens)


@healthy(HEALTHY, family="GPT")
def gpt2_of_transformers() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(213)
    ids, _ = text(16)
    model = GPT2LMHeadModel(GPT2Config(**SMALL_GPT2))
    return Case(model=model, data={"input_ids": ids, "labels": ids}, objective=lambda output: output.loss)


@healthy(HEALTHY, family="GPT")
def llama_of_transformers() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(214)
    ids, _ = text(16)
    config = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return Case(
        model=LlamaForCausalLM(config), data={"input_ids": ids, "labels": ids}, objective=lambda output: output.loss
    )


@healthy(HEALTHY, family="BERT")
def bert_of_transformers_with_padding() -> Case:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(215)
    ids, labels = padded_sentences(32, length=14)
    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, num_labels=2,
    )  # fmt: skip
    data = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}
    return Case(model=BertForSequenceClassification(config), data=data, objective=lambda output: output.loss)


@healthy(HEALTHY, family="T5")
def t5_of_transformers() -> Case:
    """T5 does not divide its attention logits by the root of the width: its initialisation does that."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(216)
    ids, _ = text(16, 12)
    config = T5Config(
        vocab_size=40, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    data = {"input_ids": ids.clamp(min=2), "labels": ids.clamp(min=2).flip(1)}
    return Case(model=model, data=data, objective=lambda output: output.loss)


@healthy(HEALTHY, family="BERT")
def encoder_with_a_right_padding_mask_trained() -> Case:
    torch.manual_seed(217)
    ids, labels = padded_sentences(length=14)
    model = MaskedEncoder("right", length=14)
    train(model, ids, labels, F.cross_entropy, steps=40)
    return Case(model=model, data=(ids, labels), loss="cross_entropy")


@healthy(HEALTHY, family="BERT")
def encoder_with_dropout_fresh() -> Case:
    torch.manual_seed(218)
    return Case(model=SentenceEncoder(dropout=0.1), data=sentences(), loss="cross_entropy")


@healthy(HEALTHY, family="ViT")
def fresh_vision_transformer() -> Case:
    torch.manual_seed(219)
    return Case(model=ViT(), data=blob_images(), loss="cross_entropy")


@healthy(HEALTHY, family="ViT")
def vision_transformer_trained() -> Case:
    torch.manual_seed(220)
    images, labels = blob_images()
    model = ViT()
    train(model, images, labels, F.cross_entropy, steps=40)
    return Case(model=model, data=(images, labels), loss="cross_entropy")


@healthy(HEALTHY, family="LSTM")
def lstm_with_open_forget_gates() -> Case:
    torch.manual_seed(221)
    model = SequenceClassifier(nn.LSTM(4, 24, batch_first=True), 4)
    nn.init.orthogonal_(model.recurrent.weight_hh_l0)
    nn.init.constant_(model.recurrent.bias_ih_l0[24:48], 2.0)
    return Case(model=model, data=remembered_series(steps=20), loss="cross_entropy")


class BothWays(nn.Module):
    """A GRU in both directions, read by the mean over its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.GRU(3, 16, batch_first=True, bidirectional=True), nn.Linear(32, 3)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.recurrent(series)[0].mean(1))


@healthy(HEALTHY, family="GRU")
def gru_in_both_directions_trained() -> Case:
    torch.manual_seed(222)
    series, labels = waves(steps=24)
    model = BothWays()
    train(model, series, labels, F.cross_entropy, steps=40)
    return Case(model=model, data=(series, labels), loss="cross_entropy")


@healthy(HEALTHY, family="RNN")
def rectified_recurrence_from_the_identity() -> Case:
    """Le et al. 2015: recurrent weights of the identity, small input weights."""
    torch.manual_seed(223)
    model = SequenceClassifier(nn.RNN(4, 24, batch_first=True, nonlinearity="relu"), 4)
    nn.init.eye_(model.recurrent.weight_hh_l0)
    nn.init.zeros_(model.recurrent.bias_ih_l0)
    nn.init.zeros_(model.recurrent.bias_hh_l0)
    return Case(model=model, data=remembered_series(steps=16), loss="cross_entropy")


@healthy(HEALTHY, family="GNN")
def graph_network_trained() -> Case:
    torch.manual_seed(224)
    x, edges, labels = communities()
    model = GraphNet(edges)
    train_whole(model, x, labels, 60)
    return Case(model=model, data=(x, labels), loss="cross_entropy")


def train_whole(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    """Take steps of Adam on the whole batch."""
    optimizer = Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()


@healthy(HEALTHY, family="recommender")
def recommender_trained() -> Case:
    torch.manual_seed(225)
    pairs, score = ratings()
    model = Recommender()
    train(model, pairs, score, F.mse_loss, steps=150)
    return Case(model=model, data=(pairs, score), loss="mse")


@healthy(HEALTHY, family="autoencoder")
def autoencoder_of_pixels_with_a_sigmoid() -> Case:
    torch.manual_seed(226)
    images = as_pixels(blob_images()[0]).flatten(1)
    model = nn.Sequential(*mlp(256, 64, 8, activation=nn.GELU), *mlp(8, 64, 256, activation=nn.GELU), nn.Sigmoid())
    train(model, images, images, F.mse_loss, steps=150)
    return Case(model=model, data=(images, images), loss="mse")


@healthy(HEALTHY, family="VAE")
def variational_autoencoder_trained() -> Case:
    torch.manual_seed(227)
    images = as_pixels(blob_images(128)[0]).flatten(1)
    model = VAE()
    model.encoder[1] = nn.SiLU()
    train(model, images, images, evidence_loss, steps=150, optimizer=Adam(model.parameters(), lr=5e-4))
    return Case(model=model, data=(images, images), loss=evidence_loss)


@healthy(HEALTHY, family="GAN")
def generator_as_dcgan_draws_it() -> Case:
    torch.manual_seed(228)
    return Case(model=Generator(), data=torch.randn(32, 16))


@healthy(HEALTHY, family="GAN")
def discriminator_bounded_by_spectral_norm() -> Case:
    torch.manual_seed(229)
    images, _ = blob_images(32)
    fakes = torch.tanh(F.avg_pool2d(2 * torch.randn(32, 1, 16, 16), 3, 1, 1))
    both, real = torch.cat([images.mul(0.4).clamp(-1, 1), fakes]), torch.cat([torch.ones(32, 1), torch.zeros(32, 1)])
    model = discriminator(spectral_norm)
    train(model, both, real, F.binary_cross_entropy_with_logits, steps=40)
    return Case(model=model, data=(both, real), loss=nn.BCEWithLogitsLoss())


@healthy(HEALTHY, family="Siamese")
def twins_trained() -> Case:
    torch.manual_seed(230)
    pairs, same = image_pairs()
    model = Siamese()
    train(model, pairs, same, contrastive_loss, steps=60, optimizer=Adam(model.parameters(), lr=5e-4))
    return Case(model=model, data=(pairs, same), loss=contrastive_loss)


@healthy(HEALTHY, family="contrastive")
def contrastive_pairs_with_a_temperature() -> Case:
    torch.manual_seed(231)
    return Case(model=ContrastiveEncoder(math.log(1 / 0.07)), data=two_views(), loss="cross_entropy")


@healthy(HEALTHY, family="diffusion")
def denoiser_after_forty_steps() -> Case:
    torch.manual_seed(232)
    data, noise = noisy_images()
    model = Denoiser()
    optimizer = Adam(model.parameters(), lr=2e-3)
    for _ in range(40):
        optimizer.zero_grad()
        F.mse_loss(model(**data), noise).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case(model=model, data=(data, noise), loss="mse")


@healthy(HEALTHY, family="multi-label")
def several_labels_with_a_sigmoid_and_plain_bce() -> Case:
    torch.manual_seed(233)
    x = torch.randn(128, 10)
    y = (x[:, :6] * x[:, 1:7] > 0).float()
    model = nn.Sequential(*mlp(10, 64, 64, 6), nn.Sigmoid())
    train(model, x, y, F.binary_cross_entropy, steps=60)
    return Case(model=model, data=(x, y), loss=nn.BCELoss())


@healthy(HEALTHY, family="tabular")
def logistic_regression() -> Case:
    torch.manual_seed(234)
    x = torch.randn(128, 6)
    y = (x[:, :1] + 0.5 * x[:, 1:2] + 0.5 * torch.randn(128, 1) > 0).float()
    model = nn.Linear(6, 1)
    train(model, x, y, F.binary_cross_entropy_with_logits, steps=50)
    return Case(model=model, data=(x, y), loss=nn.BCEWithLogitsLoss())
