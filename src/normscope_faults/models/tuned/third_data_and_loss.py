"""Held-out faults of the data, of targets, and of losses that do not fit what the network says."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from ..parts import (
    GPT,
    ConvNet,
    Recommender,
    SequenceClassifier,
    Siamese,
    UNet,
    as_pixels,
    binary_accuracy,
    blob_images,
    image_pairs,
    mlp,
    over_tokens,
    overlap_with,
    ratings,
    regression_table,
    sentences,
    table,
    text,
    waves,
)
from .third_weights import ConvAutoencoder, blob_masks

FAULTS: list[Fault] = []


# ------------------------------------------------------------------------------------------------------------ the data


@fault(
    FAULTS,
    "tabular",
    causes="one-input-column-dominates inputs-not-scaled",
    remedies="scale-inputs",
)
def platelets_per_microlitre(planted: bool) -> Case:
    """Blood counts as the laboratory writes them: most values around 1, platelets around 250 000."""
    torch.manual_seed(51)
    x, y = table()
    if planted:
        x[:, 7] = 250_000 + 60_000 * x[:, 7]
    return Case(model=mlp(12, 32, 32, 3), data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "CNN",
    causes="inputs-not-scaled exploding-signal exploding-gradient",
    remedies="scale-inputs add-normalizer",
)
def x_rays_of_twelve_bits(planted: bool) -> Case:
    """Grey values of 0 to 4095 go into convolutions without a normalizer."""
    torch.manual_seed(52)
    x, y = blob_images(classes=6)
    if planted:
        x = (as_pixels(x) * 4095).round()
    return Case(model=ConvNet(norm=False, classes=6), data=(x, y), loss="cross_entropy")


class WordNet(nn.Module):
    """Convolutions over words, their maximum over places, a head."""

    def __init__(self, vocabulary: int = 50, classes: int = 2) -> None:
        super().__init__()
        self.words, self.conv = nn.Embedding(vocabulary, 16), nn.Conv1d(16, 32, 5, padding=2)
        self.head = nn.Linear(32, classes)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(self.words(ids).transpose(1, 2))).amax(2))


@fault(
    FAULTS,
    "text CNN",
    causes="inputs-constant output-constant",
    remedies="check-data",
)
def every_word_unknown(planted: bool) -> Case:
    """The vocabulary of another tokenizer: every word is mapped to the id of unknown words."""
    torch.manual_seed(53)
    x, y = sentences(96)
    return Case(model=WordNet(), data=(torch.full_like(x, 1) if planted else x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "tabular",
    causes="not-finite-data not-finite",
    remedies="clean-data guard-domain check-data scale-inputs",
)
def column_without_spread_standardised(planted: bool) -> Case:
    """A column that is constant in the data set is divided by its deviation of zero."""
    torch.manual_seed(54)
    x, y = table()
    x[:, 9] = 3.0
    deviation = x.std(0)
    if not planted:
        deviation = deviation.clamp(min=1e-6)
    return Case(model=mlp(12, 32, 32, 3), data=((x - x.mean(0)) / deviation, y), loss="cross_entropy")


@fault(
    FAULTS,
    "GRU",
    causes="not-finite-data not-finite",
    remedies="clean-data guard-domain check-data",
)
def returns_of_a_price_of_zero(planted: bool) -> Case:
    """Logarithms of price ratios, where a day without trade was stored as a price of zero."""
    torch.manual_seed(55)
    series, y = waves()
    prices = torch.exp(0.1 * series)
    if planted:
        prices[5, 20, 1] = 0.0
    returns = (prices[:, 1:] / prices[:, :-1]).log() * 10
    return Case(model=SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3), data=(returns, y), loss="cross_entropy")


@fault(
    FAULTS,
    "CNN",
    causes="inputs-not-scaled inputs-constant output-constant",
    remedies="scale-inputs check-data",
)
def unit_pixels_centred_as_if_they_were_bytes(planted: bool) -> Case:
    """`(x - 127.5) / 127.5` on pixels that are already in 0 to 1: all become almost -1."""
    torch.manual_seed(56)
    x, y = blob_images()
    x = as_pixels(x)
    x = (x - 127.5) / 127.5 if planted else (x - 0.5) / 0.5
    return Case(model=ConvNet(norm=False), data=(x, y), loss="cross_entropy")


class SetMean(nn.Module):
    """Embeds the members of a set, averages them and reads the mean; members of zeros are padding."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.member, self.head = mlp(3, 32, 32), mlp(32, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        members = torch.relu(self.member(x))
        if self.planted:
            return self.head(members.mean(1))
        real = x.abs().sum(-1, keepdim=True) > 0
        return self.head((members * real).sum(1) / real.sum(1).clamp(min=1))


@fault(
    FAULTS,
    "sets",
    causes="padding-counted",
    remedies="mask-padding",
)
def empty_places_of_a_set_averaged(planted: bool) -> Case:
    """Baskets of 2 to 40 articles, filled up with zeros, and the mean over all 40 places."""
    torch.manual_seed(57)
    x = torch.randn(128, 40, 3) + torch.randn(128, 1, 3)
    present = torch.arange(40) < torch.randint(2, 41, (128, 1))
    x = x * present[..., None]
    y = x.sum(1) / present.sum(1, keepdim=True)
    y = (y[:, :1] - y[:, 1:2]).tanh() + 0.5 * y[:, 2:]
    return Case(model=SetMean(planted), data=(x, (y - y.mean()) / y.std()), loss="mse")


@fault(
    FAULTS,
    "GRU",
    causes="inputs-not-scaled saturated-units one-input-column-dominates",
    remedies="scale-inputs",
)
def traded_volumes_in_pieces(planted: bool) -> Case:
    """Counts of traded pieces, in the millions, beside nothing that would bring them to the size of a gate."""
    torch.manual_seed(58)
    x, y = waves(96)
    if planted:
        x = 2e6 * (x + 4)
    return Case(model=SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3), data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "regression",
    causes="inputs-not-scaled vanishing-signal",
    remedies="scale-inputs",
)
def concentrations_in_moles_per_litre(planted: bool) -> Case:
    """Concentrations of billionths in all columns; the network sees its biases only."""
    torch.manual_seed(59)
    x, y = regression_table()
    return Case(model=mlp(8, 32, 32, 1), data=(x * 2e-8 if planted else x, y), loss="mse")


# ----------------------------------------------------------------------------------------------------- targets and loss


class Bounded(nn.Module):
    """A network with an activation behind it."""

    def __init__(self, body: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.body, self.last = body, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x))


@fault(
    FAULTS,
    "recommender",
    causes="output-range-too-small targets-out-of-range activation-before-loss saturated-units",
    layers="last",
    remedies="remove-final-activation scale-targets scale-outputs fix-targets",
)
def five_stars_through_a_sigmoid(planted: bool) -> Case:
    """A sigmoid, of a tutorial on clicks, in front of ratings of one to five stars."""
    torch.manual_seed(61)
    pairs, stars = ratings()
    stars = (3 + 1.2 * stars).clamp(1, 5)
    last = nn.Sigmoid() if planted else nn.Identity()
    return Case(model=Bounded(Recommender(), last), data=(pairs, stars), loss="mse")


def dice(output: Tensor, mask: Tensor) -> Tensor:
    """Return one minus the overlap of Dice, for outputs that are probabilities."""
    return 1 - 2 * (output * mask).sum() / (output.sum() + mask.sum() + 1e-6)


def soft_dice(logits: Tensor, mask: Tensor) -> Tensor:
    """Return one minus the overlap of Dice, for logits."""
    return dice(logits.sigmoid(), mask)


@fault(
    FAULTS,
    "segmentation",
    causes="loss-does-not-fit targets-out-of-range output-range-too-small",
    remedies="change-output-activation change-loss",
)
def overlap_of_raw_outputs(planted: bool) -> Case:
    """The overlap of Dice is taken of logits; it is not bounded then, and does not measure an overlap."""
    torch.manual_seed(62)
    x, mask = blob_masks()
    return Case(model=UNet(), data=(x, mask), loss=dice if planted else soft_dice, judge=overlap_with(mask))


class Forecaster(nn.Module):
    """A GRU with one forecast per step."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.recurrent, self.head = nn.GRU(3, 24, batch_first=True), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        steps = self.head(self.recurrent(x)[0])
        return steps if self.planted else steps.squeeze(-1)


@fault(
    FAULTS,
    "forecasting",
    causes="shapes-broadcast",
    remedies="match-shapes",
)
def forecast_of_all_steps_against_a_flat_target(planted: bool) -> Case:
    """Forecasts of shape (40, 40, 1) against targets of shape (40, 40): each step is compared with each series."""
    torch.manual_seed(63)
    series, _ = waves(40, steps=41)
    x, y = series[:, :-1], series[:, 1:, 0]

    def judge(output: Tensor) -> float:
        return (1 - (output.reshape(y.shape) - y).square().mean() / y.var()).item()

    return Case(model=Forecaster(planted), data=(x, y), loss=nn.SmoothL1Loss(), judge=judge)


class MeanAndVariance(nn.Module):
    """Predicts a mean and a variance."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.body = mlp(8, 32, 32, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = self.body(x).split(1, dim=1)
        return mean, variance if self.planted else F.softplus(variance) + 1e-3


def gaussian_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the negative logarithm of a normal density."""
    mean, variance = output
    return 0.5 * (variance.log() + (target - mean).square() / variance).mean()


@fault(
    FAULTS,
    "regression",
    causes="not-finite loss-does-not-fit gradient-not-finite targets-out-of-range",
    remedies="guard-domain change-output-activation",
)
def variance_without_a_constraint(planted: bool) -> Case:
    """A linear layer predicts a variance, which comes out negative for half of the samples."""
    torch.manual_seed(64)
    x, y = regression_table()

    def judge(output: tuple[Tensor, Tensor]) -> float:
        return (1 - (output[0] - y).square().mean() / y.var()).item()

    return Case(model=MeanAndVariance(planted), data=(x, y), loss=gaussian_loss, judge=judge)


class Rates(nn.Module):
    """Predicts rates or their logarithms."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.body = mlp(8, 32, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).squeeze(1).exp() if self.planted else self.body(x).squeeze(1)


@fault(
    FAULTS,
    "counts",
    causes="loss-does-not-fit activation-before-loss softmax-twice output-range-too-small exploding-signal",
    remedies="remove-final-activation change-loss",
)
def rates_where_logarithms_are_wanted(planted: bool) -> Case:
    """`nn.PoissonNLLLoss` takes the exponential itself unless it is told not to."""
    torch.manual_seed(65)
    x, score = regression_table()
    y = torch.poisson(torch.exp(0.8 * score.squeeze(1) - 0.7))
    loss = nn.PoissonNLLLoss()
    return Case(model=Rates(planted), data=(x, y), loss=loss, judge=lambda output: -loss(output, y).item())


@fault(
    FAULTS,
    "chemistry",
    causes="targets-wrong-scale",
    remedies="scale-targets reset-bias",
)
def energies_far_from_zero(planted: bool) -> Case:
    """Total energies of molecules in electron volts: -40 000, of which a few matter."""
    torch.manual_seed(66)
    x, y = regression_table()
    return Case(model=mlp(8, 32, 32, 1), data=(x, 5 * y - 40_000 if planted else y), loss="mse")


@fault(
    FAULTS,
    "autoencoder",
    causes="output-range-too-small targets-out-of-range targets-wrong-scale activation-before-loss saturated-units",
    layers="last",
    remedies="scale-targets fix-targets remove-final-activation scale-outputs scale-inputs",
)
def bytes_to_be_painted_by_a_sigmoid(planted: bool) -> Case:
    """The input is divided by 255, the target is not; the last layer reaches 1 at most."""
    torch.manual_seed(67)
    x = as_pixels(blob_images()[0])
    model = Bounded(ConvAutoencoder(), nn.Sigmoid())
    return Case(model=model, data=(x, x * 255 if planted else x), loss="mse")


@fault(
    FAULTS,
    "text CNN",
    causes="class-imbalance",
    remedies="balance-classes",
)
def two_complaints_in_a_hundred_letters(planted: bool) -> Case:
    """A batch drawn as the letters come: hardly any of them belongs to the class that matters."""
    torch.manual_seed(68)
    x, y = sentences(400 if planted else 100, length=12)
    if planted:
        rows = torch.cat([(y == 1).nonzero()[:2], (y == 0).nonzero()[:98]]).squeeze(1)
        x, y = x[rows], y[rows]

    def judge(output: Tensor) -> float:
        margin = output[:, 1] - output[:, 0]
        return min((margin[y == 1] > 0).float().mean().item(), (margin[y == 0] < 0).float().mean().item())

    return Case(model=WordNet(), data=(x, y), loss="cross_entropy", judge=judge)


@fault(
    FAULTS,
    "regression",
    causes="labels-constant labels-wrong output-constant",
    remedies="fix-targets check-labels check-data",
)
def shares_cast_to_integers(planted: bool) -> Case:
    """Shares between 0 and 1 were read with an integer type: all of them became 0."""
    torch.manual_seed(69)
    x, y = regression_table()
    share = torch.sigmoid(1.5 * y)
    targets = share.long().float() if planted else share
    return Case(model=mlp(8, 32, 32, 1), data=(x, targets), loss="mse", judge=lambda output: _match(output, share))


def _match(output: Tensor, target: Tensor) -> float:
    """Return the explained variance."""
    return (1 - (output - target).square().mean() / target.var()).item()


@fault(
    FAULTS,
    "tabular",
    causes="class-imbalance loss-does-not-fit",
    remedies="balance-classes change-loss",
)
def rare_class_weighed_the_wrong_way_around(planted: bool) -> Case:
    """`pos_weight` is the ratio of positives to negatives instead of its inverse: the rare class counts for nothing."""
    torch.manual_seed(70)
    x, _ = table(200)
    score = x[:, 0] * x[:, 1] + x[:, 2]
    y = (score > score.sort().values[-20]).float()[:, None]
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(19 / 181 if planted else 181 / 19))

    def judge(output: Tensor) -> float:
        return 0.5 * ((output[y == 1] > 0).float().mean() + (output[y == 0] < 0).float().mean()).item()

    return Case(model=mlp(12, 32, 32, 1), data=(x, y), loss=loss, judge=judge)


def cosine_loss(output: tuple[Tensor, Tensor], same: Tensor) -> Tensor:
    """Return torch's cosine embedding loss."""
    return F.cosine_embedding_loss(*output, same)


@fault(
    FAULTS,
    "Siamese",
    causes="targets-out-of-range loss-does-not-fit labels-wrong",
    remedies="fix-targets change-loss",
)
def zeros_where_the_cosine_loss_wants_minus_one(planted: bool) -> Case:
    """The cosine embedding loss knows 1 and -1; pairs with a 0 are left out without a word."""
    torch.manual_seed(71)
    pairs, same = image_pairs()
    targets = same if planted else 2 * same - 1

    def judge(output: tuple[Tensor, Tensor]) -> float:
        alike = F.cosine_similarity(*output)
        return (alike[same == 1].mean() - alike[same == 0].mean()).item()

    return Case(model=Siamese(), data=(pairs, targets), loss=cosine_loss, judge=judge)


@fault(
    FAULTS,
    "CNN",
    causes="output-range-too-small activation-before-loss loss-does-not-fit",
    layers="last",
    remedies="remove-final-activation change-loss scale-outputs",
)
def margins_of_probabilities(planted: bool) -> Case:
    """A margin of one between classes is asked of the outputs of a softmax, of which only certainty is good enough."""
    torch.manual_seed(72)
    x, y = blob_images(96, classes=8)
    last = nn.Softmax(dim=1) if planted else nn.Identity()
    model = Bounded(ConvNet(norm=False, classes=8), last)
    return Case(model=model, data=(x, y), loss=nn.MultiMarginLoss())


class Tagger(nn.Module):
    """A tag for each of twelve words, of twelve tags."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.words = nn.Embedding(50, 24)
        self.recurrent, self.head = nn.GRU(24, 24, batch_first=True), nn.Linear(24, 12)

    def forward(self, ids: Tensor) -> Tensor:
        scores = self.head(self.recurrent(self.words(ids))[0])
        return scores if self.planted else scores.transpose(1, 2)


@fault(
    FAULTS,
    "tagging",
    causes="normalizer-wrong-axis loss-does-not-fit shapes-broadcast",
    remedies="fix-axis match-shapes",
)
def as_many_tags_as_words(planted: bool) -> Case:
    """Scores (batch, words, tags) for a loss that wants (batch, tags, words): with 12 of both, nothing complains."""
    torch.manual_seed(73)
    ids, _ = sentences(96, length=12)
    y = (ids + 3 * ids.roll(1, dims=1)) % 5

    def judge(output: Tensor) -> float:
        scores = output if planted else output.transpose(1, 2)
        return (scores.argmax(-1) == y).float().mean().item()

    return Case(model=Tagger(planted), data=(ids, y), loss="cross_entropy", judge=judge)


@fault(
    FAULTS,
    "GPT",
    causes="softmax-twice activation-before-loss output-range-too-small",
    layers="last",
    remedies="remove-final-activation change-loss change-output-activation",
)
def probabilities_of_the_next_word(planted: bool) -> Case:
    """The softmax of the published figure, in front of a cross entropy that has one of its own."""
    torch.manual_seed(74)
    x, y = text()
    model = Bounded(GPT(), nn.Softmax(dim=-1) if planted else nn.Identity())
    return Case(model=model, data=(x, y), loss=over_tokens)


@fault(
    FAULTS,
    "GAN",
    causes="softmax-twice activation-before-loss output-range-too-small",
    layers="5",
    remedies="remove-final-activation change-loss",
)
def discriminator_with_a_sigmoid_and_a_loss_of_logits(planted: bool) -> Case:
    """The sigmoid of DCGAN stays when its loss is exchanged for the stable one."""
    torch.manual_seed(75)
    real, _ = blob_images(64)
    fake = F.avg_pool2d(torch.randn(64, 1, 16, 16), 3, 1, 1) * 3
    x, y = torch.cat([0.5 * real + 0.5 * fake.roll(1, 0), fake]), torch.cat([torch.ones(64, 1), torch.zeros(64, 1)])
    model = nn.Sequential(
        nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4, stride=4), nn.Flatten(),
        nn.Linear(4, 1), nn.Sigmoid() if planted else nn.Identity(),
    )  # fmt: skip
    judge = binary_accuracy(y, 0.5 if planted else 0.0)
    return Case(model=model, data=(x, y), loss=F.binary_cross_entropy_with_logits, judge=judge)
