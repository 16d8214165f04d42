"""Held-out healthy models: fresh ones, trained ones, and those that a hasty rule would warn about."""

import copy
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from ...case import Case, Healthy, healthy
from .. import parts

HEALTHY: list[Healthy] = []


def standardise(values: Any) -> Tensor:
    """Return a table with columns of mean 0 and variance 1; constant columns become 0."""
    x = torch.as_tensor(values, dtype=torch.float32)
    return (x - x.mean(0)) / x.std(0).clamp(min=1e-6)


def digits(count: int = 256) -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits (N, 1, 8, 8), standardised as a whole, and their classes."""
    data = load_digits()
    images = torch.as_tensor(data.images[:count], dtype=torch.float32)[:, None]
    return (images - images.mean()) / images.std(), torch.as_tensor(data.target[:count])


@healthy(HEALTHY, family="MLP")
def fresh_mlp_on_wine() -> Case:
    torch.manual_seed(201)
    data = load_wine()
    return Case(
        model=parts.mlp(13, 32, 32, 3),
        data=(standardise(data.data), torch.as_tensor(data.target)),
        loss="cross_entropy",
    )


@healthy(HEALTHY, family="MLP")
def mlp_trained_well_on_digits() -> Case:
    torch.manual_seed(202)
    x, y = digits()
    model = nn.Sequential(nn.Flatten(), *parts.mlp(64, 64, 32, 10))
    parts.train(model, x, y, F.cross_entropy, steps=200)
    return Case(model=model, data=(x[:64], y[:64]), loss=nn.CrossEntropyLoss(), train=False)


@healthy(HEALTHY, family="MLP")
def default_initialisation_one_unit_and_bce() -> Case:
    torch.manual_seed(203)
    data = load_breast_cancer()
    model = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
    x, y = standardise(data.data)[:128], torch.as_tensor(data.target[:128], dtype=torch.float32)[:, None]
    return Case(model=model, data=(x, y), loss=nn.BCELoss())


@healthy(HEALTHY, family="MLP")
def regression_trained_with_weight_decay() -> Case:
    torch.manual_seed(204)
    data = load_diabetes()
    x, y = standardise(data.data), standardise(data.target[:, None])
    model = parts.mlp(10, 32, 32, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    parts.train(model, x, y, F.mse_loss, steps=150, optimizer=optimizer)
    return Case(model=model, data=(x[:128], y[:128]), loss=nn.MSELoss())


@healthy(HEALTHY, family="MLP")
def selu_with_lecun_initialisation() -> Case:
    torch.manual_seed(205)
    x, y = parts.table()
    layers: list[nn.Module] = []
    for fan_in in (12, *(48 for _ in range(7))):
        layers += [nn.Linear(fan_in, 48), nn.SELU()]
        nn.init.normal_(layers[-2].weight, std=fan_in**-0.5)
        nn.init.zeros_(layers[-2].bias)
    return Case(model=nn.Sequential(*layers, nn.Linear(48, 3)), data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="MLP")
def four_hidden_units() -> Case:
    torch.manual_seed(206)
    x, y = parts.regression_table(columns=4)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    parts.train(model, x, y, F.mse_loss, steps=100)
    return Case(model=model, data=(x, y), loss=nn.MSELoss())


@healthy(HEALTHY, family="MLP")
def log_softmax_and_nll_loss() -> Case:
    torch.manual_seed(207)
    x, y = parts.table(classes=5)
    model = nn.Sequential(*parts.mlp(12, 32, 32, 5), nn.LogSoftmax(dim=1))
    return Case(model=model, data=(x, y), loss=nn.NLLLoss())


@healthy(HEALTHY, family="MLP")
def four_labels_to_one() -> Case:
    torch.manual_seed(208)
    x = torch.randn(128, 12)
    score = x[:, 0] + x[:, 1] * x[:, 2]
    y = (score.argsort().argsort() >= 102).long()
    return Case(model=parts.mlp(12, 32, 32, 2), data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="MLP")
def one_hot_inputs() -> Case:
    torch.manual_seed(209)
    ids = torch.randint(20, (128, 3))
    x = F.one_hot(ids, 20).float().flatten(1)
    y = (ids.sum(1) % 3).long()
    return Case(model=parts.mlp(60, 48, 48, 3), data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="MLP")
def binary_inputs() -> Case:
    torch.manual_seed(210)
    x = (torch.rand(128, 24) < 0.3).float()
    y = (x[:, 0] + x[:, 1] - x[:, 2]).clamp(0, 1).long()
    return Case(model=parts.mlp(24, 32, 32, 2), data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="MLP")
def heavy_tailed_inputs() -> Case:
    torch.manual_seed(211)
    values = torch.distributions.StudentT(3.0).sample((256, 10))
    x = (values - values.mean(0)) / values.std(0)
    y = (x[:, 0] * x[:, 1] > 0).long()
    return Case(model=parts.mlp(10, 48, 48, 2), data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="MLP")
def layer_norm_on_six_features() -> Case:
    torch.manual_seed(212)
    x, y = parts.table(columns=12)
    model = nn.Sequential(
        nn.Linear(12, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3)
    )
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="MLP")
def one_unit_in_ten_dead() -> Case:
    torch.manual_seed(213)
    x, y = digits()
    model = nn.Sequential(nn.Flatten(), *parts.mlp(64, 40, 40, 10))
    with torch.no_grad():
        model[3].bias[::10] = -20.0
    parts.train(model, x, y, F.cross_entropy, steps=150)
    return Case(model=model, data=(x[:128], y[:128]), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="MLP")
def dropout_in_train_mode() -> Case:
    torch.manual_seed(214)
    x, y = digits(128)
    first, relu, second, _, last = parts.mlp(64, 128, 64, 10)
    model = nn.Sequential(nn.Flatten(), first, relu, nn.Dropout(0.5), second, nn.ReLU(), nn.Dropout(0.5), last)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="MLP")
def multi_label_with_logits() -> Case:
    torch.manual_seed(215)
    x, _ = parts.table(columns=12)
    y = torch.stack([x[:, 0] > 0, x[:, 1] * x[:, 2] > 0, x[:, 3] > 0.8], dim=1).float()
    return Case(model=parts.mlp(12, 32, 32, 3), data=(x, y), loss=nn.BCEWithLogitsLoss())


@healthy(HEALTHY, family="MLP")
def bfloat16_weights() -> Case:
    torch.manual_seed(216)
    x, y = parts.table()
    return Case(model=parts.mlp(12, 64, 64, 3).bfloat16(), data=(x.bfloat16(), y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="CNN")
def fresh_cnn_with_biases_before_batch_norm() -> Case:
    torch.manual_seed(217)
    x, y = parts.blob_images(48, channels=3)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 16, 4),
    )  # fmt: skip
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="CNN")
def cnn_trained_well_in_eval_mode() -> Case:
    torch.manual_seed(218)
    x, y = parts.blob_images(96)
    model = parts.ConvNet(width=12)
    parts.train(model, x, y, F.cross_entropy, steps=60)
    return Case(model=model, data=(x[:48], y[:48]), loss=nn.CrossEntropyLoss(), train=False)


@healthy(HEALTHY, family="CNN")
def plain_convolutions_on_pixels_from_0_to_1() -> Case:
    torch.manual_seed(219)
    images, y = parts.blob_images(48)
    return Case(model=parts.ConvNet(norm=False), data=(parts.as_pixels(images), y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="CNN")
def weight_norm_regression() -> Case:
    torch.manual_seed(220)
    x, y = parts.blob_images(48)
    layers = [parametrizations.weight_norm(nn.Conv2d(c, 12, 3, 2, 1)) for c in (1, 12)]
    model = nn.Sequential(layers[0], nn.ELU(), layers[1], nn.ELU(), nn.Flatten(), nn.Linear(12 * 16, 1))
    target = ((y - 1.5) / 1.12)[:, None] + 0.1 * torch.randn(48, 1)
    return Case(model=model, data=(x, target), loss=nn.SmoothL1Loss())


@healthy(HEALTHY, family="ResNet")
def zero_gains_in_residual_branches() -> Case:
    torch.manual_seed(221)
    x, y = parts.blob_images(48)
    model = parts.ResNet()
    for block in model.blocks:
        nn.init.zeros_(block.bn2.weight)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="ResNet")
def zero_initialised_head() -> Case:
    torch.manual_seed(222)
    x, y = parts.blob_images(48)
    model = parts.ResNet()
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="ResNet")
def frozen_trained_backbone() -> Case:
    torch.manual_seed(223)
    x, y = parts.blob_images(48)
    model = parts.ResNet(width=8, blocks=2)
    parts.train(model, x, y, F.cross_entropy, steps=40)
    model.stem.requires_grad_(False)
    model.blocks.requires_grad_(False)
    model.head = nn.Linear(8, 3)
    return Case(model=model, data=(x, y % 3), loss=nn.CrossEntropyLoss(), train=False)


@healthy(HEALTHY, family="ResNet")
def rezero_gates() -> Case:
    torch.manual_seed(224)

    class ReZero(nn.Module):
        """Residual blocks that start as the identity (Bachlechner et al. 2020)."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(12, 32), nn.Linear(32, 3)
            self.branches = nn.ModuleList(parts.mlp(32, 64, 32) for _ in range(10))
            self.gates = nn.Parameter(torch.zeros(10))

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for gate, branch in zip(self.gates, self.branches):
                x = x + gate * branch(x)
            return self.last(x)

    x, y = parts.table()
    return Case(model=ReZero(), data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="U-Net")
def fresh_segmentation() -> Case:
    torch.manual_seed(225)
    x, _ = parts.blob_images(16)
    return Case(model=parts.UNet(), data=(x, (x > 1.0).float()), loss=nn.BCEWithLogitsLoss())


@healthy(HEALTHY, family="GPT")
def fresh_gpt_with_tied_weights() -> Case:
    torch.manual_seed(226)
    return Case(model=parts.GPT(vocabulary=100), data=parts.text(16), loss=parts.over_tokens)


@healthy(HEALTHY, family="GPT")
def gpt_trained_a_little() -> Case:
    torch.manual_seed(227)
    ids, following = parts.text(24)
    model = parts.GPT(tied=False)
    parts.train(model, ids, following, parts.over_tokens, steps=50)
    return Case(model=model, data=(ids[:16], following[:16]), loss=parts.over_tokens)


@healthy(HEALTHY, family="GPT")
def gpt2_of_hugging_face() -> Case:
    torch.manual_seed(228)
    from transformers import GPT2Config, GPT2LMHeadModel

    ids, _ = parts.text(8)
    model: Any = GPT2LMHeadModel(GPT2Config(**parts.SMALL_GPT2))
    return Case(model=model, data={"input_ids": ids})


@healthy(HEALTHY, family="ViT")
def pre_norm_vit_of_twelve_blocks() -> Case:
    torch.manual_seed(229)
    x, y = parts.blob_images(16)
    return Case(model=parts.ViT(depth=12), data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="ViT")
def layer_scale_of_one_in_ten_thousand() -> Case:
    torch.manual_seed(230)

    class Scaled(nn.Module):
        """A block whose branches start almost at zero (Touvron et al. 2021)."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = parts.SelfAttention(width, 4, causal=False)
            self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            self.gamma1, self.gamma2 = (nn.Parameter(1e-4 * torch.ones(width)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.gamma1 * self.attention(self.norm1(x))
            return x + self.gamma2 * self.feed(self.norm2(x))

    x, y = parts.blob_images(24)
    model = parts.ViT()
    model.blocks = nn.Sequential(*(Scaled(32) for _ in range(4)))
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="BERT")
def bert_of_hugging_face_in_train_mode() -> Case:
    torch.manual_seed(231)
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    ids, _ = parts.sentences(32)
    mask = torch.ones_like(ids)
    mask[::3, 10:] = 0
    model: Any = BertForSequenceClassification(config)
    return Case(model=model, data={"input_ids": ids, "attention_mask": mask})


@healthy(HEALTHY, family="BERT")
def post_norm_encoder_trained() -> Case:
    torch.manual_seed(232)
    ids, y = parts.sentences(64)
    model = parts.SentenceEncoder(dropout=0.1)
    parts.train(model, ids, y, F.cross_entropy, steps=30)
    return Case(model=model, data=(ids[:32], y[:32]), loss=nn.CrossEntropyLoss(), train=False)


@healthy(HEALTHY, family="LSTM")
def lstm_with_forget_bias_of_one() -> Case:
    torch.manual_seed(233)
    x, y = parts.remembered_series(steps=30)
    recurrent = nn.LSTM(4, 32, num_layers=2, batch_first=True)
    with torch.no_grad():
        for bias in (recurrent.bias_ih_l0, recurrent.bias_ih_l1):
            bias[32:64] = 1.0
    return Case(model=parts.SequenceClassifier(recurrent, 4), data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="GRU")
def gru_trained() -> Case:
    torch.manual_seed(234)
    x, y = parts.waves(48, steps=20)
    model = parts.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    parts.train(model, x, y, F.cross_entropy, steps=60)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="RNN")
def tanh_rnn_with_orthogonal_weights() -> Case:
    torch.manual_seed(235)
    x, y = parts.remembered_series(steps=20)
    recurrent = nn.RNN(4, 32, batch_first=True)
    nn.init.orthogonal_(recurrent.weight_hh_l0)
    return Case(model=parts.SequenceClassifier(recurrent, 4), data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="GNN")
def fresh_graph_network() -> Case:
    torch.manual_seed(236)
    x, edges, y = parts.communities()
    return Case(model=parts.GraphNet(edges, depth=3), data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="recommender")
def embedding_rows_that_no_one_asks_for() -> Case:
    torch.manual_seed(237)
    pairs, rating = parts.ratings(64, users=40, items=30)
    return Case(model=parts.Recommender(users=2000, items=500), data=(pairs, rating), loss=nn.MSELoss())


@healthy(HEALTHY, family="autoencoder")
def sigmoid_output_for_pixels_with_bce() -> Case:
    torch.manual_seed(238)
    images, _ = parts.blob_images(64)
    x = parts.as_pixels(images).flatten(1)
    return Case(model=parts.Autoencoder(last=nn.Sigmoid()), data=(x, x.clone()), loss=nn.BCELoss())


@healthy(HEALTHY, family="autoencoder")
def sigmoid_output_for_pixels_with_mse_trained() -> Case:
    torch.manual_seed(239)
    images, _ = parts.blob_images(64)
    x = parts.as_pixels(images).flatten(1)
    model = parts.Autoencoder(last=nn.Sigmoid())
    parts.train(model, x, x, F.mse_loss, steps=100)
    return Case(model=model, data=(x, x.clone()), loss=nn.MSELoss())


@healthy(HEALTHY, family="VAE")
def fresh_vae() -> Case:
    torch.manual_seed(240)
    images, _ = parts.blob_images(64)
    x = parts.as_pixels(images).flatten(1)
    return Case(model=parts.VAE(), data=(x, x.clone()), loss=parts.evidence_loss)


@healthy(HEALTHY, family="GAN generator")
def fresh_generator() -> Case:
    torch.manual_seed(241)
    return Case(model=parts.Generator(), data=torch.randn(32, 16))


@healthy(HEALTHY, family="discriminator")
def discriminator_with_spectral_norm() -> Case:
    torch.manual_seed(242)
    x, y = parts.blob_images(64, classes=2)
    model = parts.discriminator(parametrizations.spectral_norm)
    return Case(model=model, data=(x, y.float()[:, None]), loss=nn.BCEWithLogitsLoss())


@healthy(HEALTHY, family="Siamese")
def siamese_with_pair_of_outputs() -> Case:
    torch.manual_seed(243)
    pairs, same = parts.image_pairs()
    return Case(model=parts.Siamese(), data=(pairs, same), loss=parts.contrastive_loss)


@healthy(HEALTHY, family="Siamese")
def siamese_with_dict_of_outputs() -> Case:
    torch.manual_seed(244)

    class Named(parts.Siamese):
        """Returns embeddings by name."""

        def forward(self, pairs: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
            first, second = super().forward(pairs)
            return {"first": first, "second": second}

    def cosine_loss(output: dict[str, Tensor], same: Tensor) -> Tensor:
        return F.cosine_embedding_loss(output["first"], output["second"], 2 * same - 1, margin=0.2)

    pairs, same = parts.image_pairs()
    return Case(model=Named(), data=(pairs, same), loss=cosine_loss)


@healthy(HEALTHY, family="diffusion")
def denoiser_with_zero_last_convolution() -> Case:
    torch.manual_seed(245)
    batch, _ = parts.noisy_images()
    model = parts.Denoiser()
    nn.init.zeros_(model.last.weight)
    nn.init.zeros_(model.last.bias)
    return Case(model=model, data=batch)


@healthy(HEALTHY, family="diffusion")
def denoiser_trained_a_little() -> Case:
    torch.manual_seed(246)
    batch, noise = parts.noisy_images()
    model = parts.Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(50):
        optimizer.zero_grad()
        F.mse_loss(model(**batch), noise).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case(model=model, data=batch)


@healthy(HEALTHY, family="Siamese")
def student_beside_its_frozen_teacher() -> Case:
    torch.manual_seed(247)

    class Momentum(nn.Module):
        """A student that follows a frozen copy of itself, as in BYOL: the copy needs no gradient."""

        def __init__(self) -> None:
            super().__init__()
            self.student = parts.mlp(256, 64, 32)
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)
            self.predictor = nn.Linear(32, 32)

        def forward(self, pairs: Tensor) -> Tensor:
            guess = self.predictor(self.student(pairs[:, 0].flatten(1)))
            with torch.no_grad():
                aim = self.teacher(pairs[:, 1].flatten(1))
            return F.cosine_similarity(guess, aim)

    pairs, _ = parts.image_pairs()
    return Case(model=Momentum(), data=pairs)
