"""The open half, faults of structure: gradients cut, parameters unused or frozen, samples mixed, conditions lost."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from ..parts import (
    VAE,
    Autoencoder,
    ConvNet,
    Denoiser,
    GraphLayer,
    GraphNet,
    SentenceEncoder,
    SequenceClassifier,
    UNet,
    accuracy,
    as_pixels,
    blob_images,
    communities,
    contrastive_loss,
    evidence_loss,
    explained_variance,
    image_pairs,
    mlp,
    noisy_images,
    overlap_with,
    ratings,
    regression_table,
    remembered_series,
    sentences,
    table,
    train,
    waves,
)

FAULTS: list[Fault] = []
plant = partial(fault, FAULTS)


class CutAutoencoder(Autoencoder):
    """An autoencoder whose code passes a function before it is decoded."""

    between = staticmethod(lambda code: code)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.between(self.encoder(x)))


def autoencoder_with(between: Callable[[Tensor], Tensor], seed: int) -> Case:
    """Return an autoencoder of images with a function on its code."""
    torch.manual_seed(seed)
    x = blob_images(192)[0].flatten(1)
    model = CutAutoencoder(code=3)
    model.between = between
    return Case(model=model, data=(x, x), loss="mse")


ENCODER = "encoder encoder.0 encoder.2 encoder.4"


@plant("autoencoder", layers=ENCODER, causes="no-gradient", remedies="keep-gradient")
def code_detached(broken: bool) -> Case:
    """The code was detached for a plot."""
    return autoencoder_with((lambda code: code.detach()) if broken else (lambda code: code), 201)


@plant("autoencoder", layers=ENCODER, causes="no-gradient", remedies="keep-gradient")
def code_rounded(broken: bool) -> Case:
    """A quantised code without a straight-through estimator."""

    def quantise(code: Tensor) -> Tensor:
        rounded = (4 * code).round() / 4
        return rounded if broken else code + (rounded - code).detach()

    return autoencoder_with(quantise, 202)


class NoGradFeatures(ConvNet):
    """Convolutions that run without recording, as for feature extraction."""

    recording = False

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.recording and torch.is_grad_enabled()):
            features = self.features(x)
        return self.head(features.mean((2, 3)))


@plant(
    "CNN",
    layers="features features.0 features.1 features.3 features.4 features.7 features.8 features.10 features.11",
    causes="no-gradient",
    remedies="keep-gradient",
)
def backbone_under_no_grad(broken: bool) -> Case:
    """torch.no_grad() around the backbone, copied from a script for feature extraction."""
    torch.manual_seed(203)
    x, y = blob_images(classes=8)
    model = NoGradFeatures(width=8, classes=8)
    model.recording = not broken
    return Case(model=model, data=(x, y), loss="cross_entropy")


class Products(nn.Module):
    """Scores pairs by the weighted products of two embeddings, which may be read by `.data`."""

    def __init__(self, by_data: bool = False) -> None:
        super().__init__()
        self.by_data, self.users, self.items = by_data, nn.Embedding(40, 24), nn.Embedding(30, 24)
        self.head = nn.Linear(24, 1)

    def forward(self, pairs: Tensor) -> Tensor:
        user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        return self.head(user.data * item.data if self.by_data else user * item).squeeze(1)


@plant("recommender", layers="users items users.weight items.weight", causes="no-gradient", remedies="keep-gradient")
def embeddings_by_data(broken: bool) -> Case:
    """.data, from an old tutorial."""
    torch.manual_seed(204)
    pairs, score = ratings()
    return Case(model=Products(broken), data=(pairs, score), loss="mse")


class Experts(nn.Module):
    """Four experts; a router picks one of them (hard) or weighs all."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.hard, self.router = hard, nn.Linear(12, 4)
        self.experts = nn.ModuleList(nn.Linear(12, 3) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        weights = self.router(x).softmax(1)
        if self.hard:
            weights = F.one_hot(weights.argmax(1), 4).to(x.dtype)
        return (weights[:, :, None] * outputs).sum(1)


@plant("mixture of experts", layers="router router.weight router.bias", causes="no-gradient", remedies="keep-gradient")
def hard_choice_of_experts(broken: bool) -> Case:
    """A hard choice by argmax."""
    torch.manual_seed(205)
    x, y = table()
    return Case(model=Experts(hard=broken), data=(x, y), loss="cross_entropy")


class RebuiltGraph(nn.Module):
    """Two graph layers; the states between them may be rebuilt from a list."""

    def __init__(self, edges: Tensor, rebuild: bool) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        self.rebuild = rebuild
        self.first, self.second = GraphLayer(8, 4), GraphLayer(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x, self.edges))
        if self.rebuild:
            x = torch.tensor(x.tolist(), dtype=x.dtype)
        return self.second(x, self.edges)


@plant("GNN", layers="first first.own first.neighbour", causes="no-gradient", remedies="keep-gradient")
def states_rebuilt_from_a_list(broken: bool) -> Case:
    """torch.tensor(list) of the states in the middle of forward."""
    torch.manual_seed(206)
    x, edges, y = communities()
    return Case(model=RebuiltGraph(edges, broken), data=(x, y), loss="cross_entropy", judge=accuracy(y))


class OrderEncoder(SentenceEncoder):
    """A sentence encoder that may forget to add its positions."""

    placed = True

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        if self.placed:
            x = x + self.positions(torch.arange(ids.shape[1]))
        return self.head(self.encoder(self.norm(x)).mean(1))


@plant("BERT", layers="positions positions.weight", causes="unused-parameter", remedies="use-parameter")
def order_of_words_lost(broken: bool) -> Case:
    """The line that adds the positions was lost."""
    torch.manual_seed(207)
    ids, y = sentences(128, length=6, vocabulary=12)
    model = OrderEncoder(length=6, depth=1)
    model.placed = not broken
    return Case(model=model, data=(ids, y), loss="cross_entropy")


class LoneGraph(GraphNet):
    """A graph network whose layers may leave the neighbours out."""

    alone = False

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer.own(x) if self.alone else layer(x, self.edges))
        return self.layers[-1].own(x) if self.alone else self.layers[-1](x, self.edges)


@plant(
    "GNN",
    layers="layers.0.neighbour layers.1.neighbour layers.0.neighbour.weight layers.1.neighbour.weight edges",
    causes="unused-parameter",
    remedies="use-parameter",
)
def neighbours_never_read(broken: bool) -> Case:
    """A rewritten layer that leaves the messages out."""
    torch.manual_seed(208)
    x, edges, y = communities(nodes=150)
    x = 0.5 * x + torch.randn_like(x)
    model = LoneGraph(edges, width=4)
    model.alone = broken
    return Case(model=model, data=(x, y), loss="cross_entropy", judge=accuracy(y))


class Conditioned(nn.Module):
    """A regression that should read its context through a second encoder."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.reads = reads
        self.main, self.context, self.head = nn.Linear(4, 24), nn.Linear(4, 24), mlp(24, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.main(x[:, 4:])
        if self.reads:
            hidden = hidden + self.context(x[:, :4])
        return self.head(torch.relu(hidden))


@plant(
    "MLP",
    layers="context context.weight context.bias",
    causes="unused-parameter condition-switched-off",
    remedies="use-parameter restore-condition",
)
def second_encoder_never_called(broken: bool) -> Case:
    """A second encoder that is built and never called."""
    torch.manual_seed(209)
    x, y = regression_table()
    return Case(model=Conditioned(not broken), data=(x, y), loss="mse")


@plant("MLP", layers="0 0.weight 0.bias", causes="frozen-layer", remedies="unfreeze")
def narrow_first_layer_frozen(broken: bool) -> Case:
    """A fresh layer frozen for an experiment and never thawed."""
    torch.manual_seed(210)
    x, y = table()
    model = mlp(12, 5, 32, 32, 3)
    model[0].requires_grad_(not broken)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant("recommender", layers="users users.weight items items.weight", causes="frozen-layer", remedies="unfreeze")
def random_embeddings_frozen(broken: bool) -> Case:
    """nn.Embedding.from_pretrained freezes; here on random vectors."""
    torch.manual_seed(211)
    pairs, score = ratings()
    model = Products()
    for name in ("users", "items"):
        setattr(model, name, nn.Embedding.from_pretrained(getattr(model, name).weight.data, freeze=broken))
    return Case(model=model, data=(pairs, score), loss="mse")


@plant("LSTM", layers="recurrent", causes="samples-mixed normalizer-wrong-axis", remedies="fix-axis")
def lstm_runs_over_the_batch(broken: bool) -> Case:
    """batch_first is False by default."""
    torch.manual_seed(212)
    x, y = waves()
    return Case(model=SequenceClassifier(nn.LSTM(3, 24, batch_first=not broken), 3), data=(x, y), loss="cross_entropy")


class PooledSet(nn.Module):
    """A set network with attention pooling; `axis` is where the weights sum to one."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.embed, self.score, self.head = mlp(2, 32, 32), nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, points: Tensor) -> Tensor:
        x = torch.relu(self.embed(points))
        return self.head((self.score(x).softmax(self.axis) * x).sum(1))


@plant("set network", causes="samples-mixed normalizer-wrong-axis", remedies="fix-axis")
def pooling_weights_over_the_batch(broken: bool) -> Case:
    """softmax(dim=0), as for a single set."""
    torch.manual_seed(213)
    points = torch.randn(64, 6, 2) * (0.5 + torch.rand(64, 1, 1)) + torch.randn(64, 1, 2)
    y = points.square().sum(2).amax(1, keepdim=True).sqrt()
    return Case(model=PooledSet(0 if broken else 1), data=(points, (y - y.mean()) / y.std()), loss="mse")


class Reshaped(nn.Module):
    """Convolutions over time whose (width, batch, time) states are brought back by `view` or by `transpose`."""

    def __init__(self, by_view: bool) -> None:
        super().__init__()
        self.by_view = by_view
        self.conv, self.head = nn.Conv1d(3, 16, 5, padding=2), mlp(16 * 10, 32, 3)

    def forward(self, series: Tensor) -> Tensor:
        x = F.avg_pool1d(torch.relu(self.conv(series.transpose(1, 2))), 4).transpose(0, 1)
        width, batch, steps = x.shape
        x = x.reshape(batch, width, steps) if self.by_view else x.transpose(0, 1)
        return self.head(x.flatten(1))


@plant("CNN", causes="samples-mixed", remedies="fix-axis")
def reshape_instead_of_transpose(broken: bool) -> Case:
    """reshape where the axes had to be exchanged."""
    torch.manual_seed(214)
    x, y = waves()
    return Case(model=Reshaped(broken), data=(x, y), loss="cross_entropy")


class BatchMean(ConvNet):
    """A ConvNet that may average over the batch before its head."""

    over_batch = False

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x).flatten(2).mean(2)
        return self.head(features.mean(0, keepdim=True).expand_as(features) if self.over_batch else features)


@plant("CNN", causes="samples-mixed output-constant", remedies="fix-axis")
def mean_over_the_batch(broken: bool) -> Case:
    """A mean over dimension 0, with keepdim and expand to make the shapes fit."""
    torch.manual_seed(215)
    x, y = blob_images()
    model = BatchMean()
    model.over_batch = broken
    return Case(model=model, data=(x, y), loss="cross_entropy")


class SphereSiamese(nn.Module):
    """Embeds two images, given by name, onto the unit sphere."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis, self.encoder = axis, nn.Sequential(nn.Flatten(), *mlp(256, 64, 16))

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        first, second = (F.normalize(self.encoder(image), dim=self.axis) for image in (left, right))
        return first, second


@plant("Siamese", causes="samples-mixed normalizer-wrong-axis", remedies="fix-axis")
def embeddings_normalised_over_the_batch(broken: bool) -> Case:
    """F.normalize(dim=0)."""
    torch.manual_seed(216)
    pairs, same = image_pairs()
    model = SphereSiamese(0 if broken else 1)

    def judge(output: tuple[Tensor, Tensor]) -> float:  # in use, pairs come in other batches than in training
        near = [F.pairwise_distance(*model(few[:, :1], few[:, 1:])) < 1 for few in pairs.split(2)]
        return (torch.cat(near) == (same > 0.5)).float().mean().item()

    return Case(
        model=model,
        data={"left": pairs[:, :1], "right": pairs[:, 1:]},
        objective=lambda output: contrastive_loss(output, same),
        judge=judge,
    )


class QuietTime(Denoiser):
    """A denoiser with a factor on the embedding of the time."""

    factor = 1.0

    def embed_time(self, t: Tensor) -> Tensor:
        return self.factor * super().embed_time(t)


@plant(
    "diffusion",
    layers="time time.0 time.2",
    causes="condition-switched-off vanishing-gradient no-gradient",
    remedies="restore-condition use-parameter",
)
def time_times_zero(broken: bool) -> Case:
    """The embedding of the time was multiplied by zero for a comparison."""
    torch.manual_seed(217)
    inputs, noise = noisy_images(96)
    inputs["x"], noise = noise, noise * (inputs["t"][:, None, None, None] / 500 - 1)  # the time says what to predict
    model = QuietTime()
    model.factor = 0.0 if broken else 1.0
    return Case(
        model=model, data=inputs, objective=lambda output: F.mse_loss(output, noise), judge=explained_variance(noise)
    )


class LabelDecoder(nn.Module):
    """Draws an image from noise and a label."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.label = scale, nn.Embedding(4, 16)
        self.decoder = mlp(20, 64, 256)

    def forward(self, noise: Tensor, label: Tensor) -> Tensor:
        return self.decoder(torch.cat([noise, self.scale * self.label(label)], dim=1))


@plant(
    "conditional generator",
    layers="label label.weight",
    causes="condition-switched-off vanishing-gradient",
    remedies="restore-condition rescale-layer use-parameter",
)
def label_embedding_at_a_millionth(broken: bool) -> Case:
    """A scale of 1e-6 for the condition, from a schedule that never got started."""
    torch.manual_seed(218)
    images, labels = blob_images(128)
    images = images.flatten(1)
    return Case(
        model=LabelDecoder(1e-6 if broken else 1.0),
        data={"noise": 0.1 * torch.randn(128, 4), "label": labels},
        objective=lambda output: F.mse_loss(output, images),
        judge=explained_variance(images),
    )


class BlindVAE(VAE):
    """A VAE that may decode noise alone."""

    blind = False

    def draw(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        noise = torch.randn_like(mean)
        return noise if self.blind else mean + torch.exp(0.5 * log_variance) * noise


@plant(
    "VAE",
    layers="encoder encoder.0 mean log_variance",
    causes="condition-switched-off no-gradient output-constant unused-parameter",
    remedies="restore-condition keep-gradient use-parameter",
)
def decoder_gets_noise_alone(broken: bool) -> Case:
    """The reparametrisation returns the noise alone."""
    torch.manual_seed(219)
    x = as_pixels(blob_images(128)[0]).flatten(1)
    model = BlindVAE()
    model.blind = broken
    return Case(
        model=model,
        data=(x, x),
        loss=lambda output, target: F.mse_loss(output[0], target) + 1e-4 * evidence_loss(output, target),
        judge=explained_variance(x),
    )


class LostInput(UNet):
    """A U-Net that may read zeros in place of its input."""

    lost = False

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.zeros_like(x) if self.lost else x)


@plant(
    "U-Net",
    causes="output-constant inputs-constant zero-weights vanishing-signal dead-units no-gradient",
    remedies="use-parameter check-data restore-condition initialise keep-gradient",
)
def input_replaced_by_zeros(broken: bool) -> Case:
    """A buffer of zeros that was meant to be filled is handed on in place of the input."""
    torch.manual_seed(220)
    x, _ = blob_images(32)
    mask = (as_pixels(x) > 0.6).float()
    model = LostInput()
    model.lost = broken
    return Case(
        model=model,
        data=(x, mask),
        loss=F.binary_cross_entropy_with_logits,
        judge=overlap_with(mask),
    )


@plant(
    "LSTM", layers="recurrent recurrent.weight_ih_l0 recurrent.weight_hh_l0", causes="frozen-layer", remedies="unfreeze"
)
def fresh_lstm_frozen(broken: bool) -> Case:
    """A fresh recurrent layer frozen together with the pretrained part."""
    torch.manual_seed(221)
    x, y = remembered_series(steps=20)
    model = SequenceClassifier(nn.LSTM(4, 8, batch_first=True), 4)
    model.recurrent.requires_grad_(not broken)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant(
    "MLP",
    layers="4 4.weight 4.bias",
    causes="output-constant no-gradient zero-weights dead-units",
    remedies="restore-weights initialise lower-learning-rate keep-gradient",
)
def head_pruned_away(broken: bool) -> Case:
    """A head whose weights were pruned away; only its bias is left."""
    torch.manual_seed(222)
    x, y = table()
    model = mlp(12, 32, 32, 3)
    train(model, x, y, F.cross_entropy)
    if broken:
        nn.init.zeros_(model[4].weight)
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


class FunctionalMLP(nn.Module):
    """Linear layers with ReLUs that `forward` calls, and a head that may read values without their graph."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(12, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.head, self.cut = nn.Linear(32, 3), cut

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.third(torch.relu(self.second(F.relu(self.first(x))))))
        return self.head(x.detach() if self.cut else x)


@plant("MLP", layers="first second third", causes="no-gradient", remedies="keep-gradient")
def head_behind_a_detach(broken: bool) -> Case:
    """Left over from an experiment that trained the head alone."""
    torch.manual_seed(223)
    x, y = table()
    return Case(model=FunctionalMLP(cut=broken), data=(x, y), loss="cross_entropy")
