"""Healthy models for the third part: fresh, trained a little or well, some of them awkward."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    ViTConfig,
    ViTForImageClassification,
)

from ...case import Case, Healthy, healthy
from ..parts import (
    GPT,
    SMALL_GPT2,
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
from .third_data_and_loss import Forecaster, MeanAndVariance, Rates, WordNet, gaussian_loss, soft_dice
from .third_gradients_and_parameters import Cloud
from .third_sequences_and_attention import BothDirections, Encoded
from .third_structure import DeepResidual, Loudness
from .third_weights import ConvAutoencoder, Detector, Factorisation, Mixture, Prototypes, RadialNet, blob_masks, boxes

HEALTHY: list[Healthy] = []


# ------------------------------------------------------------------------------------------------ tables and regression


@healthy(HEALTHY, family="tabular")
def wide_layers_for_a_table() -> Case:
    torch.manual_seed(201)
    return Case(model=mlp(12, 128, 64, 3), data=table(), loss="cross_entropy")


@healthy(HEALTHY, family="tabular")
def table_trained_with_smooth_units() -> Case:
    torch.manual_seed(202)
    x, y = table()
    model = mlp(12, 32, 32, 3, activation=nn.SiLU)
    train(model, x, y, F.cross_entropy, steps=80)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="regression")
def fresh_regression_with_a_column_of_targets() -> Case:
    torch.manual_seed(204)
    return Case(model=mlp(8, 64, 64, 1), data=regression_table(), loss="mse")


@healthy(HEALTHY, family="regression")
def mean_and_positive_variance_fresh() -> Case:
    torch.manual_seed(205)
    return Case(model=MeanAndVariance(False), data=regression_table(), loss=gaussian_loss)


@healthy(HEALTHY, family="counts")
def logarithms_of_rates_for_a_poisson_loss() -> Case:
    torch.manual_seed(206)
    x, score = regression_table()
    y = torch.poisson(torch.exp(0.5 * score.squeeze(1)))
    return Case(model=Rates(False), data=(x, y), loss=nn.PoissonNLLLoss())


@healthy(HEALTHY, family="regression")
def radial_units_of_a_fitting_width() -> Case:
    torch.manual_seed(207)
    x, y = regression_table(columns=4)
    model = RadialNet(1.5)
    train(model, x, y, F.mse_loss, steps=60)
    return Case(model=model, data=(x, y), loss="mse")


@healthy(HEALTHY, family="regression")
def sigmoid_for_shares_between_zero_and_one() -> Case:
    torch.manual_seed(208)
    x, y = regression_table()
    model = nn.Sequential(*mlp(8, 32, 32, 1), nn.Sigmoid())
    return Case(model=model, data=(x, torch.sigmoid(y)), loss="mse")


@healthy(HEALTHY, family="multi-label")
def five_labels_trained_well() -> Case:
    torch.manual_seed(209)
    x, _ = table()
    y = (x[:, :5] + x[:, 5:10] > 0).float()
    model = mlp(12, 48, 5)
    train(model, x, y, F.binary_cross_entropy_with_logits, steps=100)
    return Case(model=model, data=(x, y), loss=nn.BCEWithLogitsLoss())


@healthy(HEALTHY, family="mixture of experts")
def four_soft_experts_fresh() -> Case:
    torch.manual_seed(210)
    return Case(model=Mixture(), data=table(), loss="cross_entropy")


@healthy(HEALTHY, family="residual MLP")
def small_residual_steps_without_a_normalizer() -> Case:
    torch.manual_seed(211)
    return Case(model=DeepResidual(0.1), data=table(), loss="cross_entropy")


@healthy(HEALTHY, family="tabular")
def huber_loss_with_an_optimizer_of_two_groups() -> Case:
    torch.manual_seed(212)
    model = mlp(8, 32, 32, 1)
    weights = [p for p in model.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": weights, "weight_decay": 1e-2}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    return Case(model=model, data=regression_table(), loss=nn.HuberLoss(), optimizer=optimizer)


@healthy(HEALTHY, family="tabular")
def plain_linear_model_of_a_table() -> Case:
    torch.manual_seed(213)
    return Case(model=nn.Linear(12, 3), data=table(), loss="cross_entropy")


@healthy(HEALTHY, family="tabular")
def three_classes_in_unequal_parts() -> Case:
    torch.manual_seed(214)
    x, y = table(classes=6)
    return Case(model=mlp(12, 32, 32, 3), data=(x, torch.tensor([0, 0, 0, 1, 1, 2])[y]), loss="cross_entropy")


@healthy(HEALTHY, family="tabular")
def columns_of_unequal_spread_behind_a_batch_norm() -> Case:
    torch.manual_seed(215)
    x, y = table()
    model = nn.Sequential(nn.BatchNorm1d(12), *mlp(12, 32, 32, 3))
    return Case(model=model, data=(x * torch.linspace(0.2, 20.0, 12), y), loss="cross_entropy")


@healthy(HEALTHY, family="tabular")
def a_hundred_steps_with_dropout_then_eval_mode() -> Case:
    torch.manual_seed(216)
    x, y = table()
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    train(model, x, y, F.cross_entropy, steps=100)
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


# -------------------------------------------------------------------------------------------------------------- images


@healthy(HEALTHY, family="CNN")
def eight_classes_of_images_fresh() -> Case:
    torch.manual_seed(221)
    return Case(model=ConvNet(classes=8), data=blob_images(classes=8), loss="cross_entropy")


@healthy(HEALTHY, family="CNN")
def colour_images_without_a_normalizer_trained() -> Case:
    torch.manual_seed(222)
    x, y = blob_images(channels=3)
    model = ConvNet(channels=3, norm=False)
    train(model, x, y, F.cross_entropy, steps=30)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="CNN")
def pixels_of_zero_to_one_into_a_residual_network() -> Case:
    torch.manual_seed(223)
    x, y = blob_images(channels=3)
    return Case(model=ResNet(channels=3), data=(as_pixels(x), y), loss="cross_entropy")


@healthy(HEALTHY, family="ResNet")
def residual_network_after_thirty_steps_in_eval_mode() -> Case:
    torch.manual_seed(224)
    x, y = blob_images()
    model = ResNet(blocks=2)
    train(model, x, y, F.cross_entropy, steps=40)
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


@healthy(HEALTHY, family="segmentation")
def overlap_of_probabilities_fresh() -> Case:
    torch.manual_seed(225)
    return Case(model=UNet(), data=blob_masks(), loss=soft_dice)


@healthy(HEALTHY, family="segmentation")
def four_classes_of_pixels() -> Case:
    torch.manual_seed(226)
    x, _ = blob_images(16)
    y = torch.bucketize(F.avg_pool2d(x, 3, 1, 1)[:, 0], torch.tensor([-0.4, 0.2, 1.5]))
    return Case(model=UNet(outputs=4), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="detection")
def boxes_trained_a_little() -> Case:
    torch.manual_seed(227)
    x, y = boxes()
    model = Detector()
    train(model, x, y, F.smooth_l1_loss, steps=50)
    return Case(model=model, data=(x, y), loss=nn.SmoothL1Loss())


@healthy(HEALTHY, family="autoencoder")
def convolutional_autoencoder_fresh() -> Case:
    torch.manual_seed(228)
    x, _ = blob_images()
    return Case(model=ConvAutoencoder(), data=(x, x), loss="mse")


@healthy(HEALTHY, family="autoencoder")
def autoencoder_that_takes_noise_away() -> Case:
    torch.manual_seed(229)
    x = blob_images()[0].flatten(1)
    model = Autoencoder(code=16)
    train(model, x, x, F.mse_loss, steps=60)
    return Case(model=model, data=(x + 0.3 * torch.randn_like(x), x), loss="mse")


@healthy(HEALTHY, family="VAE")
def variational_autoencoder_of_pixels_fresh() -> Case:
    torch.manual_seed(230)
    x = as_pixels(blob_images()[0]).flatten(1)
    return Case(model=VAE(code=8), data=(x, x), loss=evidence_loss)


@healthy(HEALTHY, family="GAN")
def critic_of_real_and_false_images() -> Case:
    torch.manual_seed(231)
    x = torch.cat([blob_images(32)[0], torch.randn(32, 1, 16, 16)])
    y = torch.cat([torch.ones(32, 1), torch.zeros(32, 1)])
    return Case(model=discriminator(), data=(x, y), loss=nn.BCEWithLogitsLoss())


@healthy(HEALTHY, family="GAN")
def generator_without_a_loss() -> Case:
    torch.manual_seed(232)
    return Case(model=Generator(), data=torch.randn(32, 16))


@healthy(HEALTHY, family="ViT")
def four_blocks_over_patches_trained_a_little() -> Case:
    torch.manual_seed(233)
    x, y = blob_images()
    model = ViT(depth=4)
    train(model, x, y, F.cross_entropy, steps=30, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3))
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="ViT")
def vision_transformer_of_transformers() -> Case:
    torch.manual_seed(234)
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4,
        num_channels=1, num_labels=4,
    )  # fmt: skip
    x, y = blob_images(32)
    return Case(model=ViTForImageClassification(config), data={"pixel_values": x, "labels": y})


@healthy(HEALTHY, family="Siamese")
def pairs_of_images_fresh() -> Case:
    torch.manual_seed(235)
    return Case(model=Siamese(), data=image_pairs(), loss=contrastive_loss)


@healthy(HEALTHY, family="metric learning")
def prototypes_trained_a_little() -> Case:
    torch.manual_seed(236)
    x, y = blob_images()
    model = Prototypes(nn.Identity())
    train(model, x, y, F.cross_entropy, steps=40)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="diffusion")
def denoiser_fresh_with_sine_features() -> Case:
    torch.manual_seed(237)
    return Case(model=Denoiser(), data=noisy_images(), loss="mse")


@healthy(HEALTHY, family="CNN")
def convolutions_with_nesterov_handed_over() -> Case:
    torch.manual_seed(238)
    model = ConvNet(width=24)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    return Case(model=model, data=blob_images(), loss="cross_entropy", optimizer=optimizer)


# -------------------------------------------------------------------------------------------- sequences, graphs, others


@healthy(HEALTHY, family="GPT")
def three_blocks_with_a_head_of_their_own() -> Case:
    torch.manual_seed(241)
    return Case(model=GPT(depth=3, tied=False), data=text(), loss=over_tokens)


@healthy(HEALTHY, family="GPT")
def decoder_of_texts_trained_for_a_while() -> Case:
    torch.manual_seed(242)
    x, y = text()
    model = GPT()
    train(model, x, y, over_tokens, steps=60)
    return Case(model=model, data=(x, y), loss=over_tokens)


@healthy(HEALTHY, family="GPT-2")
def labels_that_the_model_shifts_itself() -> Case:
    torch.manual_seed(243)
    ids, _ = text()
    return Case(model=GPT2LMHeadModel(GPT2Config(**SMALL_GPT2)), data={"input_ids": ids, "labels": ids})


def padded_sentences() -> tuple[Tensor, Tensor, Tensor]:
    """Return token ids that end in padding (id 0), the mask of what is none, and classes."""
    ids, labels = sentences(48)
    mask = torch.arange(20) < 16
    return F.pad(ids, (0, 4)), mask.long().expand(48, -1), labels


@healthy(HEALTHY, family="BERT")
def bert_with_labels_and_a_mask() -> Case:
    torch.manual_seed(244)
    ids, mask, labels = padded_sentences()
    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    data = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return Case(model=BertForSequenceClassification(config), data=data)


@healthy(HEALTHY, family="BERT")
def distilled_bert_in_eval_mode() -> Case:
    torch.manual_seed(245)
    ids, mask, labels = padded_sentences()
    config = DistilBertConfig(vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=32)
    data = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return Case(model=DistilBertForSequenceClassification(config), data=data, train=False)


@healthy(HEALTHY, family="BERT")
def encoder_with_sine_positions_by_place() -> Case:
    torch.manual_seed(246)
    return Case(model=Encoded(False), data=sentences(), loss="cross_entropy")


@healthy(HEALTHY, family="BERT")
def encoder_with_a_tenth_dropped_trained() -> Case:
    torch.manual_seed(247)
    x, y = sentences()
    model = SentenceEncoder(dropout=0.1)
    train(model, x, y, F.cross_entropy, steps=40)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="text CNN")
def widths_of_five_words_trained_well() -> Case:
    torch.manual_seed(248)
    x, y = sentences()
    model = WordNet()
    train(model, x, y, F.cross_entropy, steps=80)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="GRU")
def both_directions_joined_rightly() -> Case:
    torch.manual_seed(249)
    return Case(model=BothDirections(False), data=waves(), loss="cross_entropy")


@healthy(HEALTHY, family="LSTM")
def two_layers_of_lstm_over_waves() -> Case:
    torch.manual_seed(250)
    model = SequenceClassifier(nn.LSTM(3, 32, num_layers=2, batch_first=True), 3)
    return Case(model=model, data=waves(steps=24), loss="cross_entropy")


@healthy(HEALTHY, family="GRU")
def short_memory_trained_well() -> Case:
    torch.manual_seed(251)
    x, y = remembered_series(steps=10)
    model = SequenceClassifier(nn.GRU(4, 24, batch_first=True), 4)
    train(model, x, y, F.cross_entropy, steps=80)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="forecasting")
def forecasts_at_each_step() -> Case:
    torch.manual_seed(252)
    series, _ = waves(48, steps=31)
    return Case(model=Forecaster(False), data=(series[:, :-1], series[:, 1:, 0]), loss="mse")


@healthy(HEALTHY, family="audio")
def recordings_behind_a_batch_norm() -> Case:
    torch.manual_seed(253)
    return Case(model=Loudness(False), data=waves(features=1), loss="cross_entropy")


@healthy(HEALTHY, family="GNN")
def three_rounds_over_a_graph_trained_a_little() -> Case:
    torch.manual_seed(254)
    x, edges, y = communities()
    model = GraphNet(edges, depth=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="recommender")
def factors_of_users_and_items_fresh() -> Case:
    torch.manual_seed(255)
    return Case(model=Factorisation(), data=ratings(), loss="mse")


@healthy(HEALTHY, family="recommender")
def tower_over_users_and_items_fresh() -> Case:
    torch.manual_seed(256)
    return Case(model=Recommender(), data=ratings(), loss="mse")


class Contrastive(nn.Module):
    """Two views of images, compared across the batch by cosine with a learned temperature, on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), *mlp(256, 64, 32))
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, pairs: Tensor) -> Tensor:
        first, second = (F.normalize(self.encoder(pairs[:, [channel]]), dim=1) for channel in (0, 1))
        return self.log_scale.exp() * first @ second.T


@healthy(HEALTHY, family="contrastive")
def views_matched_across_the_batch() -> Case:
    torch.manual_seed(257)
    images, _ = blob_images(48)
    pairs = torch.cat([images, images + 0.2 * torch.randn_like(images)], dim=1)
    return Case(model=Contrastive(), data=(pairs, torch.arange(48)), loss="cross_entropy")


@healthy(HEALTHY, family="mixed precision")
def convolutions_kept_in_bfloat16() -> Case:
    torch.manual_seed(258)
    x, y = blob_images()
    return Case(model=ConvNet(norm=False).bfloat16(), data=(x.bfloat16(), y), loss="cross_entropy")


@healthy(HEALTHY, family="CNN")
def new_head_on_a_trained_trunk_with_its_optimizer() -> Case:
    """The trunk was trained on eight classes, is frozen on purpose, and the optimizer holds the new head only."""
    torch.manual_seed(259)
    x, y = blob_images(classes=8)
    model = ConvNet(norm=False, classes=8)
    train(model, x, y, F.cross_entropy, steps=60)
    model.features.requires_grad_(False)
    model.head = nn.Linear(16, 4)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=3e-3)
    return Case(model=model, data=(x, y % 4), loss="cross_entropy", optimizer=optimizer)


class Recomputed(nn.Module):
    """Recomputes its first stage in the backward, in the way that keeps the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.stage1, self.stage2 = mlp(12, 32, 32), mlp(32, 32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.stage2(torch.relu(checkpoint(self.stage1, x, use_reentrant=False)))


@healthy(HEALTHY, family="tabular")
def first_stage_recomputed() -> Case:
    torch.manual_seed(260)
    return Case(model=Recomputed(), data=table(), loss="cross_entropy")


@healthy(HEALTHY, family="image to image")
def style_network_with_instance_norms() -> Case:
    torch.manual_seed(261)
    x, _ = blob_images(24)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, padding_mode="reflect"), nn.InstanceNorm2d(16, affine=True), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect"), nn.InstanceNorm2d(16, affine=True), nn.ReLU(),
        nn.Conv2d(16, 1, 3, padding=1, padding_mode="reflect"),
    )  # fmt: skip
    return Case(model=model, data=(x, F.avg_pool2d(x, 3, 1, 1)), loss="mse")


class CosineAttention(nn.Module):
    """Attention with normalised queries and keys and a learned scale, as in large vision transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.log_scale, self.norm, self.head = nn.Parameter(torch.tensor(1.5)), nn.LayerNorm(32), mlp(32, 32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        query, key = F.normalize(self.query(x), dim=-1), F.normalize(self.key(x), dim=-1)
        mixed = (self.log_scale.exp() * query @ key.transpose(1, 2)).softmax(-1) @ self.value(x)
        return self.head(self.norm(x + mixed).amax(1))


@healthy(HEALTHY, family="attention")
def normalised_queries_trained_a_little() -> Case:
    torch.manual_seed(262)
    x, y = sentences()
    model = CosineAttention()
    train(model, x, y, F.cross_entropy, steps=40)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="sets")
def deep_set_of_points_with_a_maximum() -> Case:
    torch.manual_seed(263)
    y = torch.arange(64) % 3
    x = torch.randn(64, 20, 3) * (0.5 + F.one_hot(y, 3))[:, None]
    return Case(model=Cloud(False), data=(x, y), loss="cross_entropy")
