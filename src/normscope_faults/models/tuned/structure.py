"""Faults of structure: samples mixed, wrong axes, conditions switched off, outputs that are constant."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import filled
from ...training import (
    accuracy,
    binary_accuracy,
    contrastive_loss,
    evidence_loss,
    explained_variance,
    over_tokens,
    overlap_with,
    train,
)
from . import rarer


@OPEN
def softmax_of_one_output(broken: bool) -> Case:
    """MLP | 415 | A softmax over a single output.
    | output-constant activation-before-loss loss-gradient-zero | 2 3 | change-loss change-output-activation
    more-outputs remove-final-activation"""
    x, y = draw.table(classes=2)
    target = y[:, None].float()
    return Case(
        (x, target),
        rarer.with_last(nets.mlp(12, 32, 1), nn.Softmax(1) if broken else nn.Sigmoid()),
        nn.BCELoss(),
        judge=binary_accuracy(target, 0.5),
    )


@OPEN
def trained_to_the_mean(broken: bool) -> Case:
    """MLP | 427 | Trained for long at a rate that killed it early; nobody looked.
    | output-constant dead-units | | change-activation initialise lower-learning-rate reset-bias restore-weights"""
    x, y = draw.regression_table()
    model = nets.mlp(8, 16, 16, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3.0 if broken else 3e-3)
    train(model, x, y, F.mse_loss, steps=200, optimizer=optimizer)
    return Case((x, y), model, "mse", train=False)


OPEN(
    """tokens-and-samples-exchanged | MLP-Mixer | 803 | transpose(0, 2) for transpose(1, 2), unnoticed since the
    batch is as large as the number of patches.
    | samples-mixed | tokens tokens.{0,2} | fix-axis""",
    lambda broken: Case(draw.blob_images(16), rarer.Mixer(0 if broken else 1), "cross_entropy"),
)


class TwoStreams(nn.Module):  # Two small encoders, one of the image and one of its rows, joined.
    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.image = nn.Sequential(nn.Flatten(), nn.Linear(256, 24), nn.ReLU())
        self.rows = nn.Sequential(nn.Linear(16, 24), nn.ReLU())
        self.head = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([self.image(x), self.rows(x.mean((1, 3)))], self.axis)
        return self.head(joined.view(len(x), -1))


@OPEN
def concatenated_along_the_batch(broken: bool) -> Case:
    """two streams | 804 | torch.cat without dim=1; a view makes the shape fit again.
    | samples-mixed | | fix-axis"""
    x, y = draw.blob_images()
    x, y = x[torch.arange(64) * 29 % 64], y[torch.arange(64) * 29 % 64]
    return Case((x, y), TwoStreams(0 if broken else 1), "cross_entropy")


OPEN(
    """maximum-over-clouds | PointNet | 832 | torch.max(x, 0): over the clouds instead of the points, of which there
    are as many.
    | samples-mixed | | fix-axis""",
    lambda broken: Case(rarer.clouds(), rarer.PointNet(0 if broken else 1), "cross_entropy"),
)


@OPEN
def recurrent_net_trained_to_a_constant(broken: bool) -> Case:
    """RNN | 1122 | Trained at a rate of 0.5 with Adam: all units are saturated, and every series gets the same answer.
    | output-constant dead-units saturated-units vanishing-gradient | | initialise lower-learning-rate rescale-layer
    reset-bias restore-weights"""
    x, y = draw.waves(steps=24)
    model = nets.SequenceClassifier(nn.GRU(3, 16, batch_first=True), 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5 if broken else 5e-3)
    train(model, x, y, F.cross_entropy, steps=60, optimizer=optimizer)
    return Case((x, y), model, "cross_entropy")


class TimeNorm(nn.Module):  # BatchNorm on (batch, time, features) or, as torch wants it, on (batch, features, time).
    def __init__(self, over_features: bool) -> None:
        super().__init__()
        self.over_features = over_features
        self.norm = nn.BatchNorm1d(24 if over_features else 4)
        self.net = nn.Sequential(nn.Flatten(), *nets.mlp(96, 48, 3))

    def forward(self, series: Tensor) -> Tensor:
        return self.net(self.norm(series) if self.over_features else self.norm(series.mT).mT)


@OPEN
def batch_norm_per_step(broken: bool) -> Case:
    """MLP | 1123 | BatchNorm1d(steps) on (batch, time, features): the loud feature sets the scale of the others.
    | normalizer-wrong-axis one-input-column-dominates | norm | fix-axis scale-inputs"""
    x, y = draw.waves(steps=24)
    loud = 3000 + torch.randn(64, 24, 1)
    return Case(model=TimeNorm(broken), data=(torch.cat([x, loud], dim=2), y), loss="cross_entropy")


@OPEN
def log_softmax_over_time(broken: bool) -> Case:
    """speech | 842 | LogSoftmax(dim=-1) on (batch, classes, time): the speaker of a frame, whom all frames share,
    cancels.
    | normalizer-wrong-axis loss-does-not-fit output-constant | 4 | fix-axis"""
    x, y = draw.waves()
    model = nn.Sequential(
        nn.Conv1d(3, 16, 5, padding=2), nn.ReLU(), nn.AvgPool1d(8), nn.Conv1d(16, 3, 1),
        nn.LogSoftmax(dim=-1 if broken else 1),
    )  # fmt: skip
    return Case((x.mT.contiguous(), y[:, None].expand(-1, 5).contiguous()), model, nn.NLLLoss())


OPEN(
    """softmax-over-an-axis-of-one | seq2seq | 846 | softmax(dim=-1) of energies (batch, time, 1): every weight is 1.
    | normalizer-wrong-axis loss-gradient-zero no-gradient output-constant unused-parameter vanishing-gradient |
    key{,.bias,.weight} query{,.bias,.weight} score{,.bias,.weight} | fix-axis""",
    lambda broken: Case(rarer.needle_sentences(96, 120), rarer.Pointer(-1 if broken else 1), "cross_entropy"),
)


OPEN(
    """heads-not-moved-back | attention | 849 | reshape of (heads, batch, time, width) to (batch, time, heads *
    width) without a permute.
    | samples-mixed | norm out | fix-axis""",
    lambda broken: Case(
        draw.sentences(96, length=6, vocabulary=14), rarer.Heads(moved_back=not broken), "cross_entropy"
    ),
)


OPEN(
    """encoder-attends-over-the-batch | BERT | 852 | nn.TransformerEncoderLayer expects (time, batch, width) unless
    batch_first=True.
    | samples-mixed | layers layers.{0,1} layers.{0,1}.self_attn | fix-axis""",
    lambda broken: given(
        rarer.Encoder(vocabulary=30, outputs=5, dropout=0.0, batch_first=not broken),
        lambda model: Case(rarer.tags(), model, over_tokens),
    ),
)


OPEN(
    """router-softmax-over-the-batch | mixture of experts | 861 | F.softmax without dim takes axis 0 of a tensor with
    three axes.
    | samples-mixed normalizer-wrong-axis vanishing-signal | router | fix-axis""",
    lambda broken: given(
        draw.text(48),
        lambda ids, following: Case(
            (ids, following), rarer.Routed(0 if broken else -1), over_tokens, judge=rarer.likelihood(following)
        ),
    ),
)


OPEN(
    """attention-over-all-edges | GAT | 897 | softmax over every edge of the graph instead of the edges of each node.
    | normalizer-wrong-axis output-constant samples-mixed vanishing-gradient vanishing-signal | | fix-axis
    rescale-layer""",
    lambda broken: given(
        draw.communities(),
        lambda x, edges, y: Case(
            (x, y),
            rarer.GAT(edges, not broken),
            "cross_entropy",
            judge_of=lambda y: lambda output: (output.argmax(1) == y).float().mean().item(),
        ),
    ),
)


OPEN(
    """sixteen-averages-over-neighbours | GCN | 899 | Sixteen means over neighbours make all nodes alike
    (over-smoothing).
    | output-constant vanishing-gradient vanishing-signal | first head layers.{0..15} | add-normalizer add-skip
    initialise""",
    lambda broken: given(
        draw.communities(),
        lambda x, edges, y: Case((x, y), rarer.GCN(edges, 16, not broken), "cross_entropy", judge=rarer.judge_nodes(y)),
    ),
)


@OPEN
def condition_always_dropped(broken: bool) -> Case:
    """conditional | 1014 | The share of samples without a condition, for classifier-free guidance, is 1.0 instead of
    0.1.
    | condition-switched-off no-gradient unused-parameter | label{,.weight} | keep-gradient lower-dropout
    restore-condition use-parameter"""
    label = torch.arange(96) % 6
    curve = torch.sin(torch.linspace(0, 3, 32) * (1 + label[:, None])) + 0.05 * torch.randn(96, 32)
    return Case(
        model=rarer.Conditional(1.0 if broken else 0.1),
        data=({"noise": torch.randn(96, 8), "label": label}, curve),
        loss="mse",
        judge_of=explained_variance,
    )


class LoudnessNet(nn.Module):  # Classifies series by how loud they are, after a norm over time or none.
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.conv, self.head = nn.Conv1d(3, 16, 5, padding=2), nn.Linear(16, 2)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(self.norm(series.transpose(1, 2)))).mean(2))


@OPEN
def layer_norm_over_time(broken: bool) -> Case:
    """CNN | 507 | LayerNorm(steps): over time, where the loudness is the signal.
    | normalizer-wrong-axis normalizer-erases-signal | norm | fix-axis replace-normalizer"""
    y = torch.arange(192) % 2
    return Case(
        ((torch.randn(192, 40, 3) * (0.5 + y[:, None, None])), y),
        LoudnessNet(nn.LayerNorm(40) if broken else nn.Identity()),
        "cross_entropy",
    )


@OPEN
def decoder_of_pure_noise(broken: bool) -> Case:
    """VAE | 2002 | The code is noise alone: mean and deviation were left out.
    | output-constant condition-switched-off no-gradient vanishing-signal | | restore-condition"""

    def draw(mean: Tensor, deviation: Tensor) -> Tensor:
        noise = torch.randn_like(mean)
        return noise if broken else mean + deviation * noise

    return rarer.vae_case(draw)


OPEN(
    """softmax-over-the-queries | GPT | 2005 | softmax(dim=1) in attention: the shares of a key add up to 1, those of
    a query do not.
    | normalizer-wrong-axis attention-mask-wrong | key query value | fix-axis""",
    lambda broken: Case(draw.text(), rarer.Speaker(causal=True, axis=1 if broken else -1), "cross_entropy"),
)


@OPEN
def tanh_layers_drawn_at_a_hundredth(broken: bool) -> Case:
    """MLP | 102 | normal_(std=0.01), as AlexNet did, in a deeper network of tanh units.
    | output-constant vanishing-gradient vanishing-signal | | add-normalizer add-skip initialise rescale-layer"""
    x, y = draw.regression_table()
    model = nets.mlp(8, *[24] * 9, 1, activation=nn.Tanh)
    if broken:
        for layer in model[::2]:
            nn.init.normal_(layer.weight, std=0.01)
    return Case((x, y), model, "mse")


@OPEN
def sixteen_convolutions_as_torch_draws_them(broken: bool) -> Case:
    """CNN | 103 | Convolutions without a normalizer at PyTorch's default initialisation.
    | output-constant vanishing-gradient vanishing-signal | | add-normalizer add-skip initialise"""
    x, y = draw.blob_images(48, size=12)
    model = nets.ConvNet(depth=16, width=12, norm=False)
    if broken:
        for layer in model.features:
            if isinstance(layer, nn.Conv2d):
                layer.reset_parameters()
    return Case((x, y), model, "cross_entropy")


@OPEN
def decayed_to_nothing(broken: bool) -> Case:
    """MLP | 118 | weight_decay=0.5 with plain SGD.
    | output-constant vanishing-gradient vanishing-signal zero-weights | 0 2 4 | initialise lower-weight-decay
    restore-weights"""
    x, y = draw.table()
    model = nets.mlp(12, 48, 48, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5 if broken else 1e-4)
    train(model, x, y, F.cross_entropy, steps=200, optimizer=optimizer)
    return Case((x, y), model, "cross_entropy", train=False)


class WrittenGELU(nn.Module):  # GELU as GPT-2's first code writes it, with a tanh.
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh((2.0 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


@OPEN
def written_gelus_behind_small_weights(broken: bool) -> Case:
    """MLP | 121 | GPT-2's deviation of 0.02 and its GELU, in a plain network without skips.
    | output-constant vanishing-gradient vanishing-signal | | initialise rescale-layer"""
    x, y = draw.regression_table()
    model = nets.mlp(8, *[32] * 7, 1, activation=WrittenGELU)
    for layer in model if broken else ():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)
    return Case((x, y), model, "mse")


OPEN(
    """lstm-runs-over-the-batch | LSTM | 212 | batch_first is False by default.
    | samples-mixed normalizer-wrong-axis | recurrent | fix-axis""",
    lambda broken: Case(
        draw.waves(), nets.SequenceClassifier(nn.LSTM(3, 24, batch_first=not broken), 3), "cross_entropy"
    ),
)


class PooledSet(nn.Module):  # A set network with attention pooling; `axis` is where the weights sum to one.
    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.embed, self.score, self.head = nets.mlp(2, 32, 32), nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, points: Tensor) -> Tensor:
        x = torch.relu(self.embed(points))
        return self.head((self.score(x).softmax(self.axis) * x).sum(1))


@OPEN
def pooling_weights_over_the_batch(broken: bool) -> Case:
    """set network | 213 | softmax(dim=0), as for a single set.
    | samples-mixed normalizer-wrong-axis | | fix-axis"""
    points = torch.randn(64, 6, 2) * (0.5 + torch.rand(64, 1, 1)) + torch.randn(64, 1, 2)
    y = points.square().sum(2).amax(1, keepdim=True).sqrt()
    return Case(model=PooledSet(0 if broken else 1), data=(points, (y - y.mean()) / y.std()), loss="mse")


class Reshaped(nn.Module):
    """Convolutions over time whose (width, batch, time) states are brought back by `view` or by `transpose`."""

    def __init__(self, by_view: bool) -> None:
        super().__init__()
        self.by_view = by_view
        self.conv, self.head = nn.Conv1d(3, 16, 5, padding=2), nets.mlp(16 * 10, 32, 3)

    def forward(self, series: Tensor) -> Tensor:
        x = F.avg_pool1d(torch.relu(self.conv(series.transpose(1, 2))), 4).transpose(0, 1)
        width, batch, steps = x.shape
        x = x.reshape(batch, width, steps) if self.by_view else x.transpose(0, 1)
        return self.head(x.flatten(1))


OPEN(
    """reshape-instead-of-transpose | CNN | 214 | reshape where the axes had to be exchanged.
    | samples-mixed | | fix-axis""",
    lambda broken: Case(draw.waves(), Reshaped(broken), "cross_entropy"),
)


class BatchMean(nets.ConvNet):  # A ConvNet that may average over the batch before its head.
    over_batch = False

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x).flatten(2).mean(2)
        return self.head(features.mean(0, keepdim=True).expand_as(features) if self.over_batch else features)


@OPEN
def mean_over_the_batch(broken: bool) -> Case:
    """CNN | 215 | A mean over dimension 0, with keepdim and expand to make the shapes fit.
    | samples-mixed output-constant | | fix-axis"""
    x, y = draw.blob_images()
    model = BatchMean()
    model.over_batch = broken
    return Case((x, y), model, "cross_entropy")


class SphereSiamese(nn.Module):  # Embeds two images, given by name, onto the unit sphere.
    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis, self.encoder = axis, nn.Sequential(nn.Flatten(), *nets.mlp(256, 64, 16))

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        first, second = (F.normalize(self.encoder(image), dim=self.axis) for image in (left, right))
        return first, second


@OPEN
def embeddings_normalised_over_the_batch(broken: bool) -> Case:
    """Siamese | 216 | F.normalize(dim=0).
    | samples-mixed normalizer-wrong-axis | | fix-axis"""
    pairs, same = draw.image_pairs()
    model = SphereSiamese(0 if broken else 1)

    def judge(output: tuple[Tensor, Tensor]) -> float:  # in use, pairs come in other batches than in training
        near = [F.pairwise_distance(*model(few[:, :1], few[:, 1:])) < 1 for few in pairs.split(2)]
        return (torch.cat(near) == (same > 0.5)).float().mean().item()

    return Case(
        {"left": pairs[:, :1], "right": pairs[:, 1:]},
        model,
        objective=lambda output: contrastive_loss(output, same),
        judge=judge,
    )


class QuietTime(nets.Denoiser):  # A denoiser with a factor on the embedding of the time.
    factor = 1.0

    def embed_time(self, t: Tensor) -> Tensor:
        return self.factor * super().embed_time(t)


@OPEN
def time_times_zero(broken: bool) -> Case:
    """diffusion | 217 | The embedding of the time was multiplied by zero for a comparison.
    | condition-switched-off no-gradient vanishing-gradient | time time.{0,2} | restore-condition use-parameter"""
    inputs, noise = draw.noisy_images(96)
    inputs["x"], noise = noise, noise * (inputs["t"][:, None, None, None] / 500 - 1)  # the time says what to predict
    model = QuietTime()
    model.factor = 0.0 if broken else 1.0
    return Case(inputs, model, objective=lambda output: F.mse_loss(output, noise), judge=explained_variance(noise))


class LabelDecoder(nn.Module):  # Draws an image from noise and a label.
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.label = scale, nn.Embedding(4, 16)
        self.decoder = nets.mlp(20, 64, 256)

    def forward(self, noise: Tensor, label: Tensor) -> Tensor:
        return self.decoder(torch.cat([noise, self.scale * self.label(label)], dim=1))


@OPEN
def label_embedding_at_a_millionth(broken: bool) -> Case:
    """conditional generator | 218 | A scale of 1e-6 for the condition, from a schedule that never got started.
    | condition-switched-off vanishing-gradient | label{,.weight} | rescale-layer restore-condition use-parameter"""
    images, labels = draw.blob_images(128)
    images = images.flatten(1)
    return Case(
        model=LabelDecoder(1e-6 if broken else 1.0),
        data={"noise": 0.1 * torch.randn(128, 4), "label": labels},
        objective=lambda output: F.mse_loss(output, images),
        judge=explained_variance(images),
    )


class BlindVAE(nets.VAE):  # A VAE that may decode noise alone.
    blind = False

    def draw(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        noise = torch.randn_like(mean)
        return noise if self.blind else mean + torch.exp(0.5 * log_variance) * noise


@OPEN
def decoder_gets_noise_alone(broken: bool) -> Case:
    """VAE | 219 | The reparametrisation returns the noise alone.
    | condition-switched-off no-gradient output-constant unused-parameter | encoder encoder.0 log_variance mean |
    keep-gradient restore-condition use-parameter"""
    x = draw.as_pixels(draw.blob_images(128)[0]).flatten(1)
    model = BlindVAE()
    model.blind = broken
    return Case(
        (x, x),
        model,
        lambda output, target: F.mse_loss(output[0], target) + 1e-4 * evidence_loss(output, target),
        judge_of=explained_variance,
    )


class LostInput(nets.UNet):  # A U-Net that may read zeros in place of its input.
    lost = False

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.zeros_like(x) if self.lost else x)


@OPEN
def input_replaced_by_zeros(broken: bool) -> Case:
    """U-Net | 220 | A buffer of zeros that was meant to be filled is handed on in place of the input.
    | output-constant dead-units inputs-constant no-gradient vanishing-signal zero-weights | | check-data initialise
    keep-gradient restore-condition use-parameter"""
    x, _ = draw.blob_images(32)
    mask = (draw.as_pixels(x) > 0.6).float()
    model = LostInput()
    model.lost = broken
    return Case((x, mask), model, F.binary_cross_entropy_with_logits, judge_of=overlap_with)


OPEN(
    """head-pruned-away | MLP | 222 | A head whose weights were pruned away; only its bias is left.
    | output-constant dead-units no-gradient zero-weights | 4 4.bias 4.weight | initialise keep-gradient
    lower-learning-rate restore-weights""",
    lambda: Case(draw.table(), nets.mlp(12, 32, 32, 3), "cross_entropy", train=False, steps=150),
    plant=filled("4.weight", 0.0),
)


FIRST(
    """batch-first-forgotten | LSTM | 117 | batch_first forgotten: the recurrence runs over the samples (PyTorch
    forum, often).
    | samples-mixed | recurrent | fix-axis""",
    lambda broken: Case(
        draw.remembered_series(steps=15),
        nets.SequenceClassifier(nn.LSTM(4, 24, batch_first=not broken), 4),
        nn.CrossEntropyLoss(),
    ),
)


@FIRST
def softmax_over_one_output(broken: bool) -> Case:
    """MLP | 43 | Stack Overflow, DeepFD: softmax over a single output unit is always 1.
    | output-constant activation-before-loss loss-gradient-zero | 4 5 | change-output-activation more-outputs
    remove-final-activation"""
    x, labels = draw.table(classes=2)
    y = labels.float()[:, None]
    return Case(
        (x, y),
        nn.Sequential(*nets.mlp(12, 32, 32, 1), nn.Softmax(dim=1) if broken else nn.Sigmoid()),
        nn.BCELoss(),
        judge=binary_accuracy(y, 0.5),
    )


@FIRST
def log_softmax_over_the_batch(broken: bool) -> Case:
    """MLP | 44 | nn.LogSoftmax(dim=0): normalised over the batch.
    | samples-mixed activation-before-loss normalizer-wrong-axis | 5 | fix-axis"""
    x, y = draw.table(96, classes=3)
    model = nn.Sequential(*nets.mlp(12, 32, 32, 3), nn.LogSoftmax(dim=0 if broken else 1))

    def accuracy_one_by_one(output: Tensor) -> float:
        return accuracy(y)(torch.cat([model(row) for row in x.split(1)]))

    return Case((x, y), model, nn.NLLLoss(), judge=accuracy_one_by_one)


@FIRST
def batch_standardised_by_hand(broken: bool) -> Case:
    """MLP | 105 | A hand-written normalizer with dim=0 meant as LayerNorm: it subtracts what a batch has in common.
    | normalizer-wrong-axis normalizer-erases-signal samples-mixed | norm | fix-axis replace-normalizer"""

    class Centre(nn.Module):
        """Standardises over one axis."""

        def forward(self, x: Tensor) -> Tensor:
            axis = 0 if broken else 1
            return (x - x.mean(axis, keepdim=True)) / (x.std(axis, keepdim=True) + 1e-5)

    class Net(nn.Module):
        """One hidden layer, normalised."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(12, 32), Centre(), nn.Linear(32, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.norm(self.first(x))))

    x = torch.randn(128, 12)
    y = (x[:, 0] > 0).long()
    x[:, 0] += torch.where(y > 0, 1.0, -1.0)
    model = Net()
    train(model, x, y, F.cross_entropy, steps=80)
    rows = (y > 0).nonzero().squeeze(1)[:16]  # a request whose samples are all of one class
    return Case(x[rows], model, train=False, judge=accuracy(y[rows]))


@FIRST
def pooled_over_the_batch(broken: bool) -> Case:
    """CNN | 77 | mean(0) in place of mean over the places: pooled over the batch.
    | samples-mixed output-constant | | fix-axis"""

    class Pooled(nets.ConvNet):
        """Averages over the samples and returns the same logits for each."""

        def forward(self, x: Tensor) -> Tensor:
            maps = self.features(x)
            pooled = maps.mean((0, 2, 3)).expand(len(x), -1) if broken else maps.mean((2, 3))
            return self.head(pooled)

    x, y = draw.blob_images(48)
    return Case((x, y), Pooled(norm=False), nn.CrossEntropyLoss())


@FIRST
def flattened_across_samples(broken: bool) -> Case:
    """CNN | 78 | view() after a permute that brought the channels to the front: rows hold pieces of several samples.
    | samples-mixed | | fix-axis"""

    class Flattened(nn.Module):
        """Convolutions and a linear head over flattened maps."""

        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
            self.head = nn.Linear(128, 4)

        def forward(self, x: Tensor) -> Tensor:
            maps = torch.relu(self.conv2(torch.relu(self.conv1(x))))
            maps = maps.transpose(0, 1) if broken else maps
            return self.head(maps.reshape(len(x), -1))

    x, y = draw.blob_images(48)
    return Case((x, y), Flattened(), nn.CrossEntropyLoss())


@FIRST
def time_embedding_times_zero(broken: bool) -> Case:
    """diffusion | 79 | A time embedding multiplied by a warm-up factor that stays at 0.
    | condition-switched-off no-gradient unused-parameter zero-weights | time time.{0,2}{,.bias,.weight} |
    restore-condition use-parameter"""

    class Muted(nets.Denoiser):
        """Multiplies the embedding of the time by a factor."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("factor", torch.tensor(0.0 if broken else 1.0))

        def embed_time(self, t: Tensor) -> Tensor:
            return self.factor * super().embed_time(t)

    batch, noise = draw.noisy_images()
    steps = (batch["t"] / 1000)[:, None, None, None]
    target = noise * (1 - 2 * (steps > 0.5).float())  # what is wanted depends on the time
    return Case(batch, Muted(), objective=lambda output: F.mse_loss(output, target))


@FIRST
def label_embedding_zero_and_frozen(broken: bool) -> Case:
    """GAN generator | 80 | A label embedding filled with zeros and frozen: every class gives the same images.
    | condition-switched-off frozen-layer zero-weights | label{,.weight} | initialise restore-condition unfreeze"""

    class Conditional(nn.Module):
        """Makes images from noise and a class."""

        def __init__(self) -> None:
            super().__init__()
            self.label = nn.Embedding(4, 8)
            self.generator = nets.Generator(12)
            if broken:
                nn.init.zeros_(self.label.weight)
                self.label.requires_grad_(False)

        def forward(self, noise: Tensor, classes: Tensor) -> Tensor:
            return self.generator(torch.cat([noise, self.label(classes)], dim=1))

    images, labels = draw.blob_images(96)
    target = 2 * draw.as_pixels(images) - 1
    means = torch.stack([target[labels == label].mean(0) for label in range(4)])[labels]
    return Case(
        {"noise": torch.randn(96, 4), "classes": labels},
        Conditional(),
        objective=lambda output: F.mse_loss(output, means),
    )


@FIRST
def trained_to_a_constant(broken: bool) -> Case:
    """MLP | 85 | A trained model that is no better than a constant: weight decay won over the data.
    | output-constant vanishing-signal zero-weights | {0,2,4}{,.weight} | initialise lower-weight-decay
    restore-weights"""
    x, y = draw.regression_table()
    model = nets.mlp(8, 32, 32, 1)
    decay = 3.0 if broken else 0.0
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=decay)
    train(model, x, y + 2, F.mse_loss, steps=250, optimizer=optimizer)
    return Case((x, y + 2), model, nn.MSELoss(), train=False)


@SECOND
def log_softmax_over_the_samples(broken: bool) -> Case:
    """tabular | 100 | log_softmax with dim=0: the rows of the batch share the probability of a class.
    | normalizer-wrong-axis samples-mixed | last | fix-axis"""
    x, y = draw.table(classes=3)
    rare = torch.cat([(y == 0).nonzero()[:6, 0], (y == 1).nonzero()[:6, 0], (y == 2).nonzero()[:, 0]])
    x, y = x[rare], y[rare]
    model = rarer.WithLast(nets.mlp(12, 48, 48, 3), nn.LogSoftmax(dim=0 if broken else 1))

    def judge(_: Tensor) -> float:
        with torch.no_grad():
            return -F.cross_entropy(model.body(x), y).item()

    return Case((x, y), model, nn.NLLLoss(), judge=judge)


@SECOND
def softmax_of_a_single_output(broken: bool) -> Case:
    """tabular | 101 | Stack Overflow (DeepFD): softmax of one unit is always 1.
    | output-constant activation-before-loss loss-does-not-fit loss-gradient-zero normalizer-wrong-axis
    output-range-too-small | last | change-loss change-output-activation fix-axis more-outputs
    remove-final-activation"""
    x, y = draw.table(classes=2)
    target = y.float()[:, None]
    model = rarer.WithLast(nets.mlp(12, 48, 48, 1), nn.Softmax(dim=1) if broken else nn.Sigmoid())
    return Case(
        model=model, data=(x, target), loss=nn.BCELoss(),
        judge=lambda output: ((output > 0.5) == (target > 0.5)).float().mean().item(),
    )  # fmt: skip


class BatchedNorm(nn.Module):  # A normalizer by hand that subtracts the mean over one dimension.
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain, self.shift, self.dim = nn.Parameter(torch.ones(32)), nn.Parameter(torch.zeros(32)), dim

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(self.dim, keepdim=True)
        return self.gain * centred / (centred.square().mean(self.dim, keepdim=True) + 1e-5).sqrt() + self.shift


@SECOND
def layer_norm_by_hand_over_the_batch(broken: bool) -> Case:
    """BERT | 146 | A LayerNorm written by hand with mean(0): a sentence alone is normalised to nothing.
    | normalizer-wrong-axis samples-mixed | norm | fix-axis replace-normalizer"""
    ids, labels = draw.sentences()
    model = nets.SentenceEncoder()
    model.norm = BatchedNorm(0 if broken else -1)

    def judge(_: Tensor) -> float:
        with torch.no_grad():
            return (
                torch.cat([model(row[None]).argmax(1) == label for row, label in zip(ids, labels)])
                .float()
                .mean()
                .item()
            )

    return Case((ids, labels), model, "cross_entropy", judge=judge)


SECOND(
    """recurrence-over-the-samples | LSTM | 124 | The default of nn.LSTM is (steps, batch, features): without
    batch_first it runs over the samples.
    | samples-mixed | recurrent | fix-axis""",
    lambda broken: given(
        nets.SequenceClassifier(nn.LSTM(3, 24, batch_first=not broken), 3),
        lambda model: Case(draw.waves(), model, "cross_entropy"),
    ),
)


class FirstTokenEncoder(nets.SentenceEncoder):  # An encoder that reads the state of the first token.
    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head(self.encoder(self.norm(x))[:, 0])


@SECOND
def sentences_attend_to_other_sentences(broken: bool) -> Case:
    """BERT | 137 | nn.TransformerEncoderLayer without batch_first: tokens look at the same place of other sentences.
    | samples-mixed | encoder encoder.layers.{0,1} encoder.layers.{0,1}.self_attn | fix-axis"""
    model = FirstTokenEncoder()
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=not broken, activation="gelu")
    model.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return Case(draw.sentences(192), model, "cross_entropy")


class HandmadeAttention(nets.SelfAttention):  # Attention by hand, with a dimension for its softmax.
    dim = -1

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        logits = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        return logits.softmax(self.dim) @ value


@SECOND
def attention_softmax_over_the_images(broken: bool) -> Case:
    """ViT | 138 | softmax(dim=0) on (batch, heads, query, key): the images of the batch compete with each other.
    | normalizer-wrong-axis samples-mixed | blocks blocks.{0..2} blocks.{0..2}.attention | fix-axis"""
    model = nets.ViT()
    for block in model.blocks:
        block.attention = HandmadeAttention(32, 4, causal=False)
        block.attention.dim = 0 if broken else -1
    images, labels = draw.blob_images()

    def judge(_: Tensor) -> float:
        with torch.no_grad():
            alone = torch.cat([model(image[None]) for image in images])
        return (alone.argmax(1) == labels).float().mean().item()

    return Case((images, labels), model, "cross_entropy", judge=judge)


class FlattenedNet(nn.Module):  # Convolutions, then all places and channels flattened for a linear head.
    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 4))
        self.mixes = mixes

    def forward(self, x: Tensor) -> Tensor:
        x = self.convs(x)
        return self.head(x.transpose(0, 1).reshape(len(x), -1) if self.mixes else x.flatten(1))


SECOND(
    """channels-first-then-flattened | CNN | 65 | PyTorch forums: a transpose before the view, so that rows hold one
    channel of many images.
    | samples-mixed | | fix-axis""",
    lambda broken: Case(model=FlattenedNet(broken), data=draw.blob_images(), loss="cross_entropy"),
)


class SetNet(nn.Module):  # Embeds the members of a set, takes their mean, classifies the set.
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Sequential(*nets.mlp(4, 32, 32), nn.ReLU()), nets.mlp(32, 32, 3, activation=nn.GELU)
        self.dim = dim

    def forward(self, sets: Tensor) -> Tensor:
        return self.head(self.embed(sets).mean(self.dim))


@SECOND
def mean_over_the_batch_instead_of_the_set(broken: bool) -> Case:
    """set | 66 | DeepSets with as many members as samples: mean(0) runs without an error.
    | samples-mixed normalizer-wrong-axis output-constant | | fix-axis"""
    labels = torch.arange(48) % 3
    return Case(
        ((torch.randn(48, 48, 4) * (0.6 + 0.4 * labels)[:, None, None]), labels),
        SetNet(0 if broken else 1),
        "cross_entropy",
    )


class Conditioned(nn.Module):  # Classifies a row of numbers by a rule that a category chooses.
    def __init__(self, strength: float) -> None:
        super().__init__()
        self.category, self.strength = nn.Embedding(4, 32), strength
        self.first, self.rest = nn.Linear(8, 32), nn.Sequential(nn.ReLU(), *nets.mlp(32, 32, 32, 2))

    def forward(self, x: Tensor, category: Tensor) -> Tensor:
        return self.rest(self.first(x) + self.strength * self.category(category))


@SECOND
def category_multiplied_by_almost_nothing(broken: bool) -> Case:
    """conditional | 69 | A guidance strength that was annealed to 1e-5 and left there.
    | condition-switched-off branch-dominates | category{,.weight} | initialise rescale-layer restore-condition
    scale-branch"""
    x, category = torch.randn(128, 8), torch.arange(128) % 4
    return Case(
        ({"x": x, "category": category}, (x[torch.arange(128), category] > 0).long()),
        Conditioned(1e-5 if broken else 1.0),
        "cross_entropy",
        judge_of=accuracy,
    )


class SharingAutoencoder(nets.Autoencoder):
    shares = True

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x).softmax(dim=0) if self.shares else self.encoder(x))


@SECOND
def code_softmaxed_over_the_batch(broken: bool) -> Case:
    """autoencoder | 71 | F.softmax without a dim took dimension 0 in old versions: the samples share one distribution.
    | samples-mixed activation-unsuitable normalizer-wrong-axis output-constant vanishing-signal | |
    change-activation fix-axis"""
    images = draw.blob_images(classes=8)[0].flatten(1)
    model = SharingAutoencoder()
    model.shares = broken
    return Case((images, images), model, "mse")


class Tagger(nn.Module):  # A tag for each of twelve words, of twelve tags.
    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.words = nn.Embedding(50, 24)
        self.recurrent, self.head = nn.GRU(24, 24, batch_first=True), nn.Linear(24, 12)

    def forward(self, ids: Tensor) -> Tensor:
        scores = self.head(self.recurrent(self.words(ids))[0])
        return scores if self.planted else scores.transpose(1, 2)


@THIRD
def as_many_tags_as_words(broken: bool) -> Case:
    """tagging | 73 | Scores (batch, words, tags) for a loss that wants (batch, tags, words): with 12 of both, nothing
    complains.
    | normalizer-wrong-axis loss-does-not-fit shapes-broadcast | | fix-axis match-shapes"""
    ids, _ = draw.sentences(96, length=12)
    y = (ids + 3 * ids.roll(1, dims=1)) % 5

    def judge(output: Tensor) -> float:
        scores = output if broken else output.transpose(1, 2)
        return (scores.argmax(-1) == y).float().mean().item()

    return Case((ids, y), Tagger(broken), "cross_entropy", judge=judge)


@THIRD
def states_of_both_directions_joined_by_view(broken: bool) -> Case:
    """GRU | 102 | `h_n` has shape (directions, batch, width); a view to (batch, -1) joins the states of two samples.
    | samples-mixed | | fix-axis"""
    x, y = draw.waves(96)
    order = torch.randperm(96)
    return Case((x[order], y[order]), rarer.BothDirections(broken), "cross_entropy")


class Reads(nn.Module):  # An LSTM of which one step is read.
    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place
        self.recurrent, self.head = nn.LSTM(4, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, self.place])


THIRD(
    """first-step-read-instead-of-the-last | LSTM | 103 | `output[:, 0]` where `output[:, -1]` was meant: the state
    of the first step knows nothing of the series.
    | condition-switched-off no-gradient unused-parameter zero-weights | recurrent recurrent.weight_hh_l0 |
    carry-state fix-axis read-last-step use-parameter""",
    lambda broken: given(
        draw.remembered_series(steps=12),
        lambda x, y: Case(model=Reads(0 if broken else -1), data=(x.flip(1), y), loss="cross_entropy"),
    ),
)


THIRD(
    """positions-by-place-in-the-batch | BERT | 111 | The code of the tutorial wants (length, batch, width); with
    batch_first it is added by sample, not by place.
    | samples-mixed condition-switched-off | | fix-axis""",
    lambda broken: Case(draw.sentences(96), rarer.Encoded(broken), "cross_entropy"),
)


class MeanOfWords(nn.Module):  # Learned attention pooling of words.
    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.axis = 0 if planted else 1
        self.words, self.scores, self.head = nn.Embedding(50, 32), nn.Linear(32, 1), nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        words = self.words(ids)
        words = words + 0.5 * torch.cat([torch.zeros_like(words[:, :1]), words[:, :-1].cumsum(1)], dim=1).tanh()
        return self.head((self.scores(words).softmax(self.axis) * torch.tanh(words)).sum(1))


THIRD(
    """weights-of-the-words-sum-to-one-over-texts | attention | 112 | `softmax(0)` of the scores of words: they
    compete with the words of other texts.
    | normalizer-wrong-axis samples-mixed | | fix-axis""",
    lambda broken: Case(draw.sentences(96), MeanOfWords(broken), "cross_entropy"),
)


class SpatialMixer(nn.Module):  # Cuts images into patches, embeds them and reads all of them.
    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.embed, self.head = nn.Linear(16, 16), nets.mlp(256, 32, 4)

    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(x, 4, stride=4)  # (batch, values, places)
        mixed, right = patches.permute(2, 0, 1).reshape(len(x), -1, 16), patches.transpose(1, 2)
        patches = mixed if self.planted else right
        return self.head(torch.relu(self.embed(patches)).flatten(1))


@THIRD
def patches_of_different_images_put_together(broken: bool) -> Case:
    """MLP of patches | 85 | Places come first after the permutation, and the reshape takes them for samples.
    | samples-mixed | | fix-axis"""
    x, y = draw.blob_images(96)
    order = torch.randperm(96)
    return Case((x[order], y[order]), SpatialMixer(broken), "cross_entropy")


class Context(nn.Module):  # Adds the mean of the steps to each step, then pools by the maximum.
    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.axis = 0 if planted else 1
        self.lift, self.mix, self.head = nn.Linear(4, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.relu(self.lift(x))
        context = steps.mean(self.axis, keepdim=True)
        return self.head(torch.relu(self.mix((steps - context) * context)).amax(1))


@THIRD
def context_of_the_whole_batch(broken: bool) -> Case:
    """time series | 86 | `x.mean(0)` where the mean over the steps, `x.mean(1)`, was meant.
    | samples-mixed normalizer-wrong-axis | | fix-axis"""
    x, y = draw.remembered_series(steps=20)
    x = x + 1.5 * torch.randn(64, 1, 4)
    return Case((x, y), Context(broken), "cross_entropy")


class SelfCompared(nets.Siamese):  # A Siamese network that embeds one image twice.
    def forward(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoder(pairs[:, :1]), self.encoder(pairs[:, :1])


class Verifier(nn.Module):  # Says from the difference of two embeddings whether they belong together.
    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.twins = SelfCompared() if planted else nets.Siamese()
        self.head = nn.Linear(32, 2)

    def forward(self, pairs: Tensor) -> Tensor:
        first, second = self.twins(pairs)
        return self.head((first - second).abs())


THIRD(
    """image-compared-with-itself | Siamese | 90 | Both twins get the first image of the pair; their difference is
    zero for every pair.
    | output-constant condition-switched-off inputs-constant no-gradient unused-parameter vanishing-signal | |
    check-data keep-gradient restore-condition use-parameter""",
    lambda broken: given(
        draw.image_pairs(),
        lambda pairs, same: Case(model=Verifier(broken), data=(pairs, same.long()), loss="cross_entropy"),
    ),
)


class Simple(nn.Module):  # Averages over neighbours again and again with one residual-free graph layer per round.
    def __init__(self, edges: Tensor, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.register_buffer("edges", edges)
        self.first, self.second = nets.GraphLayer(8, 16), nets.GraphLayer(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x, self.edges)), self.edges))
        return self.head(x.mean(0).expand(len(x), -1) if self.planted else x)


THIRD(
    """readout-of-graphs-in-a-model-of-nodes | GNN | 91 | The mean over all nodes, which belongs to the
    classification of graphs, makes all nodes equal.
    | output-constant samples-mixed | | fix-axis use-parameter""",
    lambda broken: given(
        draw.communities(), lambda x, edges, y: Case((x, y), Simple(edges, broken), "cross_entropy", judge_of=accuracy)
    ),
)


class Scaler(nn.Module):  # Divides by the maximum of the batch or by a fixed number.
    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.abs().max() if self.planted else 1.0)


@THIRD
def divided_by_the_maximum_of_the_batch(broken: bool) -> Case:
    """tabular | 96 | Inputs are divided by the largest value of their batch; one wrong reading shrinks all others to
    nothing.
    | samples-mixed inputs-not-scaled one-input-column-dominates vanishing-signal | | check-data clean-data fix-axis
    replace-normalizer scale-inputs"""
    x, y = draw.table()
    if broken:
        x[17, 4] = 9000.0
    return Case((x, y), nn.Sequential(Scaler(broken), *nets.mlp(12, 32, 32, 3)), "cross_entropy")
