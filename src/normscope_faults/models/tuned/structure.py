"""Faults of structure: samples mixed, wrong axes, conditions switched off, outputs that are constant."""

import math

import torch
from numpy import s_
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import changed, filled, over, put, variant
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
from . import rarer, rarer_sequences


@OPEN
def concatenated_along_the_batch(broken: bool) -> Case:
    """two streams | 804 | torch.cat without dim=1; a view makes the shape fit again.
    | samples-mixed | | fix-axis"""

    # Two small encoders, one of the image and one of its rows, joined.
    def two_streams(self, x: Tensor) -> Tensor:
        joined = torch.cat([self.image(x), self.rows(x.mean((1, 3)))], self.axis)
        return self.head(joined.view(len(x), -1))

    x, y = draw.blob_images()
    x, y = x[torch.arange(64) * 29 % 64], y[torch.arange(64) * 29 % 64]
    net = nets.made("TwoStreams", two_streams)
    net.axis = 0 if broken else 1
    net.image = nn.Sequential(nn.Flatten(), nn.Linear(256, 24), nn.ReLU())
    net.rows = nn.Sequential(nn.Linear(16, 24), nn.ReLU())
    net.head = nn.Linear(48, 4)
    return Case((x, y), net, "cross_entropy")


class LoudnessNet(nn.Module):  # Classifies series by how loud they are, after a norm over time or none.
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.conv, self.head = nn.Conv1d(3, 16, 5, padding=2), nn.Linear(16, 2)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(self.norm(series.transpose(1, 2)))).mean(2))


@OPEN
def decoder_of_pure_noise(broken: bool) -> Case:
    """VAE | 2002 | The code is noise alone: mean and deviation were left out.
    | output-constant condition-switched-off no-gradient vanishing-signal | | restore-condition"""

    def draw(mean: Tensor, deviation: Tensor) -> Tensor:
        noise = torch.randn_like(mean)
        return noise if broken else mean + deviation * noise

    return rarer.vae_case(draw)


class WrittenGELU(nn.Module):  # GELU as GPT-2's first code writes it, with a tanh.
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh((2.0 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


@OPEN
def pooling_weights_over_the_batch(broken: bool) -> Case:
    """set network | 213 | softmax(dim=0), as for a single set.
    | samples-mixed normalizer-wrong-axis | | fix-axis"""

    # A set network with attention pooling; `axis` is where the weights sum to one.
    def pooled_set(self, points: Tensor) -> Tensor:
        x = torch.relu(self.embed(points))
        return self.head((self.score(x).softmax(self.axis) * x).sum(1))

    points = torch.randn(64, 6, 2) * (0.5 + torch.rand(64, 1, 1)) + torch.randn(64, 1, 2)
    y = points.square().sum(2).amax(1, keepdim=True).sqrt()
    net = nets.made("PooledSet", pooled_set)
    net.axis = 0 if broken else 1
    net.embed, net.score, net.head = nets.mlp(2, 32, 32), nn.Linear(32, 1), nn.Linear(32, 1)
    return Case((points, (y - y.mean()) / y.std()), net, "mse")


@OPEN
def reshape_instead_of_transpose(broken: bool) -> Case:
    """CNN | 214 | reshape where the axes had to be exchanged.
    | samples-mixed | | fix-axis"""

    # Convolutions over time whose (width, batch, time) states are brought back by `view` or by `transpose`.
    def reshaped(self, series: Tensor) -> Tensor:
        x = F.avg_pool1d(torch.relu(self.conv(series.transpose(1, 2))), 4).transpose(0, 1)
        width, batch, steps = x.shape
        x = x.reshape(batch, width, steps) if self.by_view else x.transpose(0, 1)
        return self.head(x.flatten(1))

    x, y = draw.waves()
    net = nets.made("Reshaped", reshaped)
    net.by_view = broken
    net.conv, net.head = nn.Conv1d(3, 16, 5, padding=2), nets.mlp(16 * 10, 32, 3)
    return Case((x, y), net, "cross_entropy")


class BatchMean(nets.ConvNet):  # A ConvNet that may average over the batch before its head.
    over_batch = False

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x).flatten(2).mean(2)
        return self.head(features.mean(0, keepdim=True).expand_as(features) if self.over_batch else features)


@OPEN
def embeddings_normalised_over_the_batch(broken: bool) -> Case:
    """Siamese | 216 | F.normalize(dim=0).
    | samples-mixed normalizer-wrong-axis | | fix-axis"""

    # Embeds two images, given by name, onto the unit sphere.
    def sphere_siamese(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        first, second = (F.normalize(self.encoder(image), dim=self.axis) for image in (left, right))
        return first, second

    pairs, same = draw.image_pairs()
    model = nets.made("SphereSiamese", sphere_siamese)
    model.axis, model.encoder = (0 if broken else 1), nn.Sequential(nn.Flatten(), *nets.mlp(256, 64, 16))

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


class BlindVAE(nets.VAE):  # A VAE that may decode noise alone.
    blind = False

    def draw(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        noise = torch.randn_like(mean)
        return noise if self.blind else mean + torch.exp(0.5 * log_variance) * noise


class LostInput(nets.UNet):  # A U-Net that may read zeros in place of its input.
    lost = False

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.zeros_like(x) if self.lost else x)


@FIRST
def batch_standardised_by_hand(broken: bool) -> Case:
    """MLP | 105 | A hand-written normalizer with dim=0 meant as LayerNorm: it subtracts what a batch has in common.
    | normalizer-wrong-axis normalizer-erases-signal samples-mixed | norm | fix-axis replace-normalizer"""

    class Centre(nn.Module):
        """Standardises over one axis."""

        def forward(self, x: Tensor) -> Tensor:
            axis = 0 if broken else 1
            return (x - x.mean(axis, keepdim=True)) / (x.std(axis, keepdim=True) + 1e-5)

    x = torch.randn(128, 12)
    y = (x[:, 0] > 0).long()
    x[:, 0] += torch.where(y > 0, 1.0, -1.0)
    model = nets.made(
        "Net",
        lambda self, x: self.last(torch.relu(self.norm(self.first(x)))),
        first=nn.Linear(12, 32),
        norm=Centre(),
        last=nn.Linear(32, 2),
    )
    train(model, x, y, F.cross_entropy, steps=80)
    rows = (y > 0).nonzero().squeeze(1)[:16]  # a request whose samples are all of one class
    return Case(x[rows], model, train=False, judge=accuracy(y[rows]))


@FIRST
def pooled_over_the_batch(broken: bool) -> Case:
    """CNN | 77 | mean(0) in place of mean over the places: pooled over the batch.
    | samples-mixed output-constant | | fix-axis"""

    # Averages over the samples and returns the same logits for each.
    def forward_pooled(self, x: Tensor) -> Tensor:
        maps = self.features(x)
        pooled = maps.mean((0, 2, 3)).expand(len(x), -1) if broken else maps.mean((2, 3))
        return self.head(pooled)

    x, y = draw.blob_images(48)
    return Case((x, y), variant("Pooled", nets.ConvNet(norm=False), forward=forward_pooled), nn.CrossEntropyLoss())


@FIRST
def flattened_across_samples(broken: bool) -> Case:
    """CNN | 78 | view() after a permute that brought the channels to the front: rows hold pieces of several samples.
    | samples-mixed | | fix-axis"""

    # Convolutions and a linear head over flattened maps.
    def flattened(self, x: Tensor) -> Tensor:
        maps = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        maps = maps.transpose(0, 1) if broken else maps
        return self.head(maps.reshape(len(x), -1))

    x, y = draw.blob_images(48)
    net = nets.made("Flattened", flattened)
    net.conv1, net.conv2 = nn.Conv2d(1, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
    net.head = nn.Linear(128, 4)
    return Case((x, y), net, nn.CrossEntropyLoss())


@FIRST
def time_embedding_times_zero(broken: bool) -> Case:
    """diffusion | 79 | A time embedding multiplied by a warm-up factor that stays at 0.
    | condition-switched-off no-gradient unused-parameter zero-weights | time time.{0,2} | restore-condition
    use-parameter"""

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
    | condition-switched-off frozen-layer zero-weights | label | initialise restore-condition unfreeze"""

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
    data = {"noise": torch.randn(96, 4), "classes": labels}
    return Case(data, Conditional(), objective=lambda output: F.mse_loss(output, means))


@FIRST
def trained_to_a_constant(broken: bool) -> Case:
    """MLP | 85 | A trained model that is no better than a constant: weight decay won over the data.
    | output-constant vanishing-signal zero-weights | 0 2 4 | initialise lower-weight-decay restore-weights"""
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


@SECOND
def sentences_attend_to_other_sentences(broken: bool) -> Case:
    """BERT | 137 | nn.TransformerEncoderLayer without batch_first: tokens look at the same place of other sentences.
    | samples-mixed | encoder encoder.layers.{0,1} encoder.layers.{0,1}.self_attn | fix-axis"""

    # An encoder that reads the state of the first token.
    def forward_first_token_encoder(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head(self.encoder(self.norm(x))[:, 0])

    model = variant("FirstTokenEncoder", nets.SentenceEncoder(), forward=forward_first_token_encoder)
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


@SECOND
def channels_first_then_flattened(broken: bool) -> Case:
    """CNN | 65 | PyTorch forums: a transpose before the view, so that rows hold one channel of many images.
    | samples-mixed | | fix-axis"""

    # Convolutions, then all places and channels flattened for a linear head.
    def flattened_net(self, x: Tensor) -> Tensor:
        x = self.convs(x)
        return self.head(x.transpose(0, 1).reshape(len(x), -1) if self.mixes else x.flatten(1))

    net = nets.made("FlattenedNet", flattened_net)
    net.convs = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU()
    )
    net.head = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 4))
    net.mixes = broken
    return Case(model=net, data=draw.blob_images(), loss="cross_entropy")


class SharingAutoencoder(nets.Autoencoder):
    shares = True

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x).softmax(dim=0) if self.shares else self.encoder(x))


@THIRD
def as_many_tags_as_words(broken: bool) -> Case:
    """tagging | 73 | Scores (batch, words, tags) for a loss that wants (batch, tags, words): with 12 of both, nothing
    complains.
    | normalizer-wrong-axis loss-does-not-fit shapes-broadcast | | fix-axis match-shapes"""

    # A tag for each of twelve words, of twelve tags.
    def tagger(self, ids: Tensor) -> Tensor:
        scores = self.head(self.recurrent(self.words(ids))[0])
        return scores if self.planted else scores.transpose(1, 2)

    ids, _ = draw.sentences(96, length=12)
    y = (ids + 3 * ids.roll(1, dims=1)) % 5

    def judge(output: Tensor) -> float:
        scores = output if broken else output.transpose(1, 2)
        return (scores.argmax(-1) == y).float().mean().item()

    net = nets.made("Tagger", tagger)
    net.planted = broken
    net.words = nn.Embedding(50, 24)
    net.recurrent, net.head = nn.GRU(24, 24, batch_first=True), nn.Linear(24, 12)
    return Case((ids, y), net, "cross_entropy", judge=judge)


@THIRD
def weights_of_the_words_sum_to_one_over_texts(broken: bool) -> Case:
    """attention | 112 | `softmax(0)` of the scores of words: they compete with the words of other texts.
    | normalizer-wrong-axis samples-mixed | | fix-axis"""

    # Learned attention pooling of words.
    def mean_of_words(self, ids: Tensor) -> Tensor:
        words = self.words(ids)
        words = words + 0.5 * torch.cat([torch.zeros_like(words[:, :1]), words[:, :-1].cumsum(1)], dim=1).tanh()
        return self.head((self.scores(words).softmax(self.axis) * torch.tanh(words)).sum(1))

    x, y = draw.sentences(96)
    net = nets.made("MeanOfWords", mean_of_words)
    net.axis = 0 if broken else 1
    net.words, net.scores, net.head = nn.Embedding(50, 32), nn.Linear(32, 1), nn.Linear(32, 2)
    return Case((x, y), net, "cross_entropy")


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
def context_of_the_whole_batch(broken: bool) -> Case:
    """time series | 86 | `x.mean(0)` where the mean over the steps, `x.mean(1)`, was meant.
    | samples-mixed normalizer-wrong-axis | | fix-axis"""

    # Adds the mean of the steps to each step, then pools by the maximum.
    def forward_of_context(self, x: Tensor) -> Tensor:
        steps = torch.relu(self.lift(x))
        context = steps.mean(self.axis, keepdim=True)
        return self.head(torch.relu(self.mix((steps - context) * context)).amax(1))

    x, y = draw.remembered_series(steps=20)
    x = x + 1.5 * torch.randn(64, 1, 4)
    net = nets.made("Context", forward_of_context)
    net.axis = 0 if broken else 1
    net.lift, net.mix, net.head = nn.Linear(4, 32), nn.Linear(32, 32), nn.Linear(32, 4)
    return Case((x, y), net, "cross_entropy")


class SelfCompared(nets.Siamese):  # A Siamese network that embeds one image twice.
    def forward(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoder(pairs[:, :1]), self.encoder(pairs[:, :1])


@THIRD
def image_compared_with_itself(broken: bool) -> Case:
    """Siamese | 90 | Both twins get the first image of the pair; their difference is zero for every pair.
    | output-constant condition-switched-off inputs-constant no-gradient unused-parameter vanishing-signal | |
    check-data keep-gradient restore-condition use-parameter"""

    # Says from the difference of two embeddings whether they belong together.
    def verifier(self, pairs: Tensor) -> Tensor:
        first, second = self.twins(pairs)
        return self.head((first - second).abs())

    pairs, same = draw.image_pairs()
    net = nets.made("Verifier", verifier)
    net.twins = SelfCompared() if broken else nets.Siamese()
    net.head = nn.Linear(32, 2)
    return Case((pairs, same.long()), net, "cross_entropy")


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


# Rows of a table, packed.
# fmt: off
OPEN("""softmax-of-one-output | MLP | 415 | A softmax over a single output. | output-constant activation-before-loss
    loss-gradient-zero | 2 3 | change-loss change-output-activation more-outputs remove-final-activation""",
    lambda broken: given(draw.table(classes=2), lambda x, y: given(y[:, None].float(), lambda target: Case((x, target),
    rarer.with_last(nets.mlp(12, 32, 1), nn.Softmax(1) if broken else nn.Sigmoid()), nn.BCELoss(),
    judge=binary_accuracy(target, 0.5)))))
OPEN("""trained-to-the-mean | MLP | 427 | Trained for long at a rate that killed it early; nobody looked.
    | output-constant dead-units | | change-activation initialise lower-learning-rate reset-bias restore-weights""",
    lambda broken: given(draw.regression_table(), lambda x, y: given(nets.mlp(8, 16, 16, 1),
    lambda model: given(torch.optim.Adam(model.parameters(), lr=3.0 if broken else 3e-3),
    lambda optimizer: Case((x, y), train(model, x, y, F.mse_loss, steps=200, optimizer=optimizer), "mse",
    train=False)))))
OPEN("""tokens-and-samples-exchanged | MLP-Mixer | 803 | transpose(0, 2) for transpose(1, 2), unnoticed since the batch
    is as large as the number of patches. | samples-mixed | tokens tokens.{0,2} | fix-axis""",
    lambda broken: Case(draw.blob_images(16), rarer.Mixer(0 if broken else 1), "cross_entropy"))
OPEN("""maximum-over-clouds | PointNet | 832 | torch.max(x, 0): over the clouds instead of the points, of which there
    are as many. | samples-mixed | | fix-axis""",
    lambda broken: Case(rarer.clouds(), rarer.PointNet(0 if broken else 1), "cross_entropy"))
OPEN("""recurrent-net-trained-to-a-constant | RNN | 1122 | Trained at a rate of 0.5 with Adam: all units are saturated,
    and every series gets the same answer. | output-constant dead-units saturated-units vanishing-gradient | |
    initialise lower-learning-rate rescale-layer reset-bias restore-weights""",
    lambda broken: given(draw.waves(steps=24), lambda x, y: given(nets.SequenceClassifier(nn.GRU(3, 16,
    batch_first=True), 3), lambda model: given(torch.optim.Adam(model.parameters(), lr=0.5 if broken else 5e-3),
    lambda optimizer: Case((x, y), train(model, x, y, F.cross_entropy, steps=60, optimizer=optimizer),
    "cross_entropy")))))
OPEN("""batch-norm-per-step | MLP | 1123 | BatchNorm1d(steps) on (batch, time, features): the loud feature sets the
    scale of the others. | normalizer-wrong-axis one-input-column-dominates | norm | fix-axis scale-inputs""",
    lambda broken: given(draw.waves(steps=24), lambda x, y: Case((torch.cat([x, (3000 + torch.randn(64, 24, 1))],
    dim=2), y), nets.made("TimeNorm", lambda self, series: self.net(self.norm(series) if self.over_features else
    self.norm(series.mT).mT), over_features=broken, norm=nn.BatchNorm1d(24 if broken else 4),
    net=nn.Sequential(nn.Flatten(), *nets.mlp(96, 48, 3))), "cross_entropy")))
OPEN("""log-softmax-over-time | speech | 842 | LogSoftmax(dim=-1) on (batch, classes, time): the speaker of a frame,
    whom all frames share, cancels. | normalizer-wrong-axis loss-does-not-fit output-constant | 4 | fix-axis""",
    lambda broken: given(draw.waves(), lambda x, y: Case((x.mT.contiguous(), y[:, None].expand(-1, 5).contiguous()),
    nn.Sequential(nn.Conv1d(3, 16, 5, padding=2), nn.ReLU(), nn.AvgPool1d(8), nn.Conv1d(16, 3, 1),
    nn.LogSoftmax(dim=-1 if broken else 1)), nn.NLLLoss())))
OPEN("""softmax-over-an-axis-of-one | seq2seq | 846 | softmax(dim=-1) of energies (batch, time, 1): every weight is 1.
    | normalizer-wrong-axis loss-gradient-zero no-gradient output-constant unused-parameter vanishing-gradient | key
    query score | fix-axis""",
    lambda broken: Case(rarer_sequences.needle_sentences(96, 120), rarer_sequences.Pointer(-1 if broken else 1),
    "cross_entropy"))
OPEN("""heads-not-moved-back | attention | 849 | reshape of (heads, batch, time, width) to (batch, time, heads * width)
    without a permute. | samples-mixed | norm out | fix-axis""",
    lambda broken: Case(draw.sentences(96, length=6, vocabulary=14), rarer_sequences.Heads(moved_back=not broken),
    "cross_entropy"))
OPEN("""encoder-attends-over-the-batch | BERT | 852 | nn.TransformerEncoderLayer expects (time, batch, width) unless
    batch_first=True. | samples-mixed | layers layers.{0,1} layers.{0,1}.self_attn | fix-axis""",
    lambda broken: given(rarer_sequences.Encoder(vocabulary=30, outputs=5, dropout=0.0, batch_first=not broken),
    lambda model: Case(rarer_sequences.tags(), model, over_tokens)))
OPEN("""router-softmax-over-the-batch | mixture of experts | 861 | F.softmax without dim takes axis 0 of a tensor with
    three axes. | samples-mixed normalizer-wrong-axis vanishing-signal | router | fix-axis""",
    lambda broken: given(draw.text(48), lambda ids, following: Case((ids, following), rarer.Routed(0 if broken else -1),
    over_tokens, judge=rarer.likelihood(following))))
OPEN("""attention-over-all-edges | GAT | 897 | softmax over every edge of the graph instead of the edges of each node.
    | normalizer-wrong-axis output-constant samples-mixed vanishing-gradient vanishing-signal | | fix-axis
    rescale-layer""",
    lambda broken: given(draw.communities(), lambda x, edges, y: Case((x, y), rarer.GAT(edges, not broken),
    "cross_entropy", judge_of=lambda y: lambda output: (output.argmax(1) == y).float().mean().item())))
OPEN("""sixteen-averages-over-neighbours | GCN | 899 | Sixteen means over neighbours make all nodes alike
    (over-smoothing). | output-constant vanishing-gradient vanishing-signal | first head layers.{0..15} | add-normalizer
    add-skip initialise""",
    lambda broken: given(draw.communities(), lambda x, edges, y: Case((x, y), rarer.GCN(edges, 16, not broken),
    "cross_entropy", judge=rarer.judge_nodes(y))))
OPEN("""condition-always-dropped | conditional | 1014 | The share of samples without a condition, for classifier-free
    guidance, is 1.0 instead of 0.1. | condition-switched-off no-gradient unused-parameter | label | keep-gradient
    lower-dropout restore-condition use-parameter""",
    lambda broken: given(torch.arange(96) % 6, lambda label: given(torch.sin(torch.linspace(0, 3,
    32) * (1 + label[:, None])) + 0.05 * torch.randn(96, 32),
    lambda curve: Case(model=rarer.Conditional(1.0 if broken else 0.1), data=({"noise": torch.randn(96, 8),
    "label": label}, curve), loss="mse", judge_of=explained_variance))))
OPEN("""layer-norm-over-time | CNN | 507 | LayerNorm(steps): over time, where the loudness is the signal.
    | normalizer-wrong-axis normalizer-erases-signal | norm | fix-axis replace-normalizer""",
    lambda broken: given(torch.arange(192) % 2, lambda y: Case(((torch.randn(192, 40, 3) * (0.5 + y[:, None, None])),
    y), LoudnessNet(nn.LayerNorm(40) if broken else nn.Identity()), "cross_entropy")))
OPEN("""softmax-over-the-queries | GPT | 2005 | softmax(dim=1) in attention: the shares of a key add up to 1, those of a
    query do not. | normalizer-wrong-axis attention-mask-wrong | key query value | fix-axis""",
    lambda broken: Case(draw.text(), rarer_sequences.Speaker(causal=True, axis=1 if broken else -1), "cross_entropy"))
OPEN("""tanh-layers-drawn-at-a-hundredth | MLP | 102 | normal_(std=0.01), as AlexNet did, in a deeper network of tanh
    units.
    | output-constant vanishing-gradient vanishing-signal | | add-normalizer add-skip initialise rescale-layer""",
    lambda: Case(draw.regression_table(), nets.mlp(8, *[24] * 9, 1, activation=nn.Tanh), "mse"),
    plant=over(lambda model: model[::2], lambda layer: nn.init.normal_(layer.weight, std=0.01)))
OPEN("""sixteen-convolutions-as-torch-draws-them | CNN | 103 | Convolutions without a normalizer at PyTorch's default
    initialisation. | output-constant vanishing-gradient vanishing-signal | | add-normalizer add-skip initialise""",
    lambda: Case(draw.blob_images(48, size=12), nets.ConvNet(depth=16, width=12, norm=False), "cross_entropy"),
    plant=over(lambda model: model.features, lambda layer: layer.reset_parameters(), nn.Conv2d))
OPEN("""decayed-to-nothing | MLP | 118 | weight_decay=0.5 with plain SGD. | output-constant vanishing-gradient
    vanishing-signal zero-weights | 0 2 4 | initialise lower-weight-decay restore-weights""",
    lambda broken: given(draw.table(), lambda x, y: given(nets.mlp(12, 48, 48, 3),
    lambda model: given(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5 if broken else 1e-4),
    lambda optimizer: Case((x, y), train(model, x, y, F.cross_entropy, steps=200, optimizer=optimizer), "cross_entropy",
    train=False)))))
OPEN("""written-gelus-behind-small-weights | MLP | 121 | GPT-2's deviation of 0.02 and its GELU, in a plain network
    without skips. | output-constant vanishing-gradient vanishing-signal | | initialise rescale-layer""",
    lambda broken: Case(draw.regression_table(), over(lambda model: model if broken else (),
    lambda layer: nn.init.normal_(layer.weight, std=0.02), nn.Linear)(nets.mlp(8, *[32] * 7, 1,
    activation=WrittenGELU)), "mse"))
OPEN("""lstm-runs-over-the-batch | LSTM | 212 | batch_first is False by default.
    | samples-mixed normalizer-wrong-axis | recurrent | fix-axis""",
    lambda broken: Case(draw.waves(), nets.SequenceClassifier(nn.LSTM(3, 24, batch_first=not broken), 3),
    "cross_entropy"))
OPEN("""mean-over-the-batch | CNN | 215 | A mean over dimension 0, with keepdim and expand to make the shapes fit.
    | samples-mixed output-constant | | fix-axis""",
    lambda broken: Case(draw.blob_images(), changed(lambda model: setattr(model, "over_batch", broken))(BatchMean()),
    "cross_entropy"))
OPEN("""label-embedding-at-a-millionth | conditional generator | 218 | A scale of 1e-6 for the condition, from a
    schedule that never got started.
    | condition-switched-off vanishing-gradient | label | rescale-layer restore-condition use-parameter""",
    lambda broken: given(draw.blob_images(128), lambda images, labels: given(images.flatten(1),
    lambda images: Case(model=nets.made("LabelDecoder", lambda self, noise, label: self.decoder(torch.cat([noise,
    self.scale * self.label(label)], dim=1)), scale=1e-6 if broken else 1.0, label=nn.Embedding(4, 16),
    decoder=nets.mlp(20, 64, 256)), data={"noise": 0.1 * torch.randn(128, 4), "label": labels},
    objective=lambda output: F.mse_loss(output, images), judge=explained_variance(images)))))
OPEN("""decoder-gets-noise-alone | VAE | 219 | The reparametrisation returns the noise alone.
    | condition-switched-off no-gradient output-constant unused-parameter | encoder encoder.0 log_variance mean |
    keep-gradient restore-condition use-parameter""",
    lambda broken: given(draw.as_pixels(draw.blob_images(128)[0]).flatten(1), lambda x: Case((x, x),
    changed(lambda model: setattr(model, "blind", broken))(BlindVAE()), lambda output, target: F.mse_loss(output[0],
    target) + 1e-4 * evidence_loss(output, target), judge_of=explained_variance)))
OPEN("""input-replaced-by-zeros | U-Net | 220 | A buffer of zeros that was meant to be filled is handed on in place of
    the input. | output-constant dead-units inputs-constant no-gradient vanishing-signal zero-weights | | check-data
    initialise keep-gradient restore-condition use-parameter""",
    lambda broken: given(draw.blob_images(32), lambda x, _: Case((x, (draw.as_pixels(x) > 0.6).float()),
    changed(lambda model: setattr(model, "lost", broken))(LostInput()), F.binary_cross_entropy_with_logits,
    judge_of=overlap_with)))
OPEN("""head-pruned-away | MLP | 222 | A head whose weights were pruned away; only its bias is left. | output-constant
    dead-units no-gradient zero-weights | 4 | initialise keep-gradient lower-learning-rate restore-weights""",
    lambda: Case(draw.table(), nets.mlp(12, 32, 32, 3), "cross_entropy", train=False, steps=150),
    plant=filled("4.weight", 0.0))
FIRST("""batch-first-forgotten | LSTM | 117 | batch_first forgotten: the recurrence runs over the samples (PyTorch
    forum, often). | samples-mixed | recurrent | fix-axis""",
    lambda broken: Case(draw.remembered_series(steps=15), nets.SequenceClassifier(nn.LSTM(4, 24,
    batch_first=not broken), 4), nn.CrossEntropyLoss()))
FIRST("""softmax-over-one-output | MLP | 43 | Stack Overflow, DeepFD: softmax over a single output unit is always 1.
    | output-constant activation-before-loss loss-gradient-zero | 4 5 | change-output-activation more-outputs
    remove-final-activation""",
    lambda broken: given(draw.table(classes=2), lambda x, labels: given(labels.float()[:, None],
    lambda y: Case((x, y), nn.Sequential(*nets.mlp(12, 32, 32, 1), nn.Softmax(dim=1) if broken else nn.Sigmoid()),
    nn.BCELoss(), judge=binary_accuracy(y, 0.5)))))
FIRST("""log-softmax-over-the-batch | MLP | 44 | nn.LogSoftmax(dim=0): normalised over the batch.
    | samples-mixed activation-before-loss normalizer-wrong-axis | 5 | fix-axis""",
    lambda broken: given(draw.table(96, classes=3), lambda x, y: given(nn.Sequential(*nets.mlp(12, 32, 32, 3),
    nn.LogSoftmax(dim=0 if broken else 1)), lambda model: Case((x, y), model, nn.NLLLoss(),
    judge=lambda output: accuracy(y)(torch.cat([model(row) for row in x.split(1)]))))))
SECOND("""softmax-of-a-single-output | tabular | 101 | Stack Overflow (DeepFD): softmax of one unit is always 1.
    | output-constant activation-before-loss loss-does-not-fit loss-gradient-zero normalizer-wrong-axis
    output-range-too-small | last | change-loss change-output-activation fix-axis more-outputs
    remove-final-activation""",
    lambda broken: given(draw.table(classes=2), lambda x, y: Case((x, y.float()[:, None]),
    rarer.WithLast(nets.mlp(12, 48, 48, 1), nn.Softmax(dim=1) if broken else nn.Sigmoid()), nn.BCELoss(),
    judge_of=lambda target: lambda output: ((output > 0.5) == (target > 0.5)).float().mean().item())))
SECOND("""recurrence-over-the-samples | LSTM | 124 | The default of nn.LSTM is (steps, batch, features): without
    batch_first it runs over the samples. | samples-mixed | recurrent | fix-axis""",
    lambda broken: given(nets.SequenceClassifier(nn.LSTM(3, 24, batch_first=not broken), 3),
    lambda model: Case(draw.waves(), model, "cross_entropy")))
SECOND("""mean-over-the-batch-instead-of-the-set | set | 66 | DeepSets with as many members as samples: mean(0) runs
    without an error. | samples-mixed normalizer-wrong-axis output-constant | | fix-axis""",
    lambda broken: given(torch.arange(48) % 3, lambda labels: Case(((torch.randn(48, 48,
    4) * (0.6 + 0.4 * labels)[:, None, None]), labels), nets.made("SetNet",
    lambda self, sets: self.head(self.embed(sets).mean(self.dim)), embed=nn.Sequential(*nets.mlp(4, 32, 32), nn.ReLU()),
    head=nets.mlp(32, 32, 3, activation=nn.GELU), dim=0 if broken else 1), "cross_entropy")))
SECOND("""category-multiplied-by-almost-nothing | conditional | 69 | A guidance strength that was annealed to 1e-5 and
    left there.
    | condition-switched-off branch-dominates | category | initialise rescale-layer restore-condition scale-branch""",
    lambda broken: given((torch.randn(128, 8), torch.arange(128) % 4), lambda x, category: Case(({"x": x,
    "category": category}, (x[torch.arange(128), category] > 0).long()), nets.made("Conditioned",
    lambda self, x, category: self.rest(self.first(x) + self.strength * self.category(category)),
    category=nn.Embedding(4, 32), strength=1e-5 if broken else 1.0, first=nn.Linear(8, 32),
    rest=nn.Sequential(nn.ReLU(), *nets.mlp(32, 32, 32, 2))), "cross_entropy", judge_of=accuracy)))
SECOND("""code-softmaxed-over-the-batch | autoencoder | 71 | F.softmax without a dim took dimension 0 in old versions:
    the samples share one distribution. | samples-mixed activation-unsuitable normalizer-wrong-axis output-constant
    vanishing-signal | | change-activation fix-axis""",
    lambda broken: given(draw.blob_images(classes=8)[0].flatten(1), lambda images: Case((images, images),
    changed(lambda model: setattr(model, "shares", broken))(SharingAutoencoder()), "mse")))
THIRD("""states-of-both-directions-joined-by-view | GRU | 102 | `h_n` has shape (directions, batch, width); a view to
    (batch, -1) joins the states of two samples. | samples-mixed | | fix-axis""",
    lambda broken: given(draw.waves(96), lambda x, y: given(torch.randperm(96), lambda order: Case((x[order], y[order]),
    rarer_sequences.BothDirections(broken), "cross_entropy"))))
THIRD("""first-step-read-instead-of-the-last | LSTM | 103 | `output[:, 0]` where `output[:, -1]` was meant: the state of
    the first step knows nothing of the series. | condition-switched-off no-gradient unused-parameter zero-weights |
    recurrent recurrent.weight_hh_l0 | carry-state fix-axis read-last-step use-parameter""",
    lambda broken: given(draw.remembered_series(steps=12), lambda x, y: Case((x.flip(1), y),
    nets.made("Reads", lambda self, x: self.head(self.recurrent(x)[0][:, self.place]), place=0 if broken else -1,
    recurrent=nn.LSTM(4, 32, batch_first=True), head=nn.Linear(32, 4)), "cross_entropy")))
THIRD("""positions-by-place-in-the-batch | BERT | 111 | The code of the tutorial wants (length, batch, width); with
    batch_first it is added by sample, not by place. | samples-mixed condition-switched-off | | fix-axis""",
    lambda broken: Case(draw.sentences(96), rarer_sequences.Encoded(broken), "cross_entropy"))
THIRD("""patches-of-different-images-put-together | MLP of patches | 85 | Places come first after the permutation, and
    the reshape takes them for samples. | samples-mixed | | fix-axis""",
    lambda broken: given(draw.blob_images(96), lambda x, y: given(torch.randperm(96), lambda order: Case((x[order],
    y[order]), SpatialMixer(broken), "cross_entropy"))))
THIRD("""readout-of-graphs-in-a-model-of-nodes | GNN | 91 | The mean over all nodes, which belongs to the classification
    of graphs, makes all nodes equal. | output-constant samples-mixed | | fix-axis use-parameter""",
    lambda broken: given(draw.communities(), lambda x, edges, y: Case((x, y), Simple(edges, broken), "cross_entropy",
    judge_of=accuracy)))
THIRD("""divided-by-the-maximum-of-the-batch | tabular | 96 | Inputs are divided by the largest value of their batch;
    one wrong reading shrinks all others to nothing. | samples-mixed inputs-not-scaled one-input-column-dominates
    vanishing-signal | | check-data clean-data fix-axis replace-normalizer scale-inputs""",
    lambda broken: given(draw.table(), lambda x, y: Case(((put(x, s_[17, 4], 9000.0) if broken else x), y),
    nn.Sequential(nets.made("Scaler", lambda self, x: x / (x.abs().max() if self.planted else 1.0), planted=broken),
    *nets.mlp(12, 32, 32, 3)), "cross_entropy")))
