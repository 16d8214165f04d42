"""Faults of the inputs: scales, columns, constants, values that are missing, padding."""

import torch
from numpy import s_
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import put
from ...training import explained_variance, train
from . import rarer, rarer_sequences


@OPEN
def identifier_as_a_number(broken: bool) -> Case:
    """MLP | 406 | An identifier taken for a number.
    | one-input-column-dominates inputs-not-scaled | | scale-inputs"""
    x, y = draw.regression_table()
    if broken:
        x = torch.cat([x, torch.randint(10**5, 10**6, (128, 1)).float()], dim=1)
    return Case((x, y), nets.mlp(x.shape[1], 32, 32, 1), "mse")


def pressure_in_pascals(broken: bool, seed: int, steps: int) -> Case:
    """Return a regression on columns of which one is in another unit, after some steps of SGD."""
    torch.manual_seed(seed)
    x, y = draw.regression_table()
    if broken:
        x[:, 3] *= 1e5
    model = nets.mlp(8, 32, 32, 1)
    train(model, x, y, F.mse_loss, steps=steps, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    return Case(model=model, data=(x, y), loss="mse")


@OPEN
def pascals_after_one_step(broken: bool) -> Case:
    """MLP |  | One step on a raw column makes outputs so large that their squares overflow.
    | one-input-column-dominates inputs-not-scaled | | scale-inputs"""
    return pressure_in_pascals(broken, 437, steps=1)


@OPEN
def pascals_after_four_steps(broken: bool) -> Case:
    """MLP |  | The weights are NaN, as those of a run that nobody looked at.
    | one-input-column-dominates inputs-not-scaled | | scale-inputs"""
    return pressure_in_pascals(broken, 438, steps=4)


class RawTimeDenoiser(nn.Module):  # A denoiser of convolutions that gets the time as one more channel.
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1), nn.SiLU(),
            nn.Conv2d(16, 1, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.layers(torch.cat([x, t[:, None, None, None].expand_as(x)], dim=1))


@OPEN
def counts_without_a_logarithm(broken: bool) -> Case:
    """DLRM | 882 | Counts over six decades, as they come, into the bottom MLP.
    | inputs-not-scaled exploding-signal one-input-column-dominates | | scale-inputs"""
    exponent = torch.randn(192, 5)
    ids, _ = rarer.clicks()
    score = exponent[:, 0] + exponent[:, 1] * (ids[:, 0] - 4.5) / 3
    y = (score > score.median()).float()
    return Case(
        ({"dense": ((10 ** (3 + 1.2 * exponent)).round() if broken else exponent), "sparse": ids[:, :3]}, y),
        rarer.DLRM(),
        nn.BCEWithLogitsLoss(),
        judge_of=lambda y: lambda output: ((output > 0) == (y > 0.5)).float().mean().item(),
    )


@OPEN
def ratio_with_a_zero_below(broken: bool) -> Case:
    """MLP | 885 | A column of ratios made in the data frame: where the denominator is zero it is infinite.
    | not-finite-data not-finite | | clean-data"""
    x, y = draw.table()
    x[:, 7] = x[:, 7].abs()
    return Case((put(x, s_[::17, 7], torch.inf if broken else 0.0), y), nets.mlp(12, 32, 3), "cross_entropy")


@FIRST
def raw_time_steps(broken: bool) -> Case:
    """diffusion | 127 | The time (0..1000) fed to a linear layer as it is, without sine features or a division.
    | one-input-column-dominates branch-dominates exploding-gradient exploding-signal inputs-not-scaled | first time
    time.0 | add-normalizer rescale-layer scale-inputs"""

    class RawTime(nets.Denoiser):
        """Embeds the bare number of the step."""

        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 16))

        def embed_time(self, t: Tensor) -> Tensor:
            return self.time(t[:, None] if broken else t[:, None] / 500 - 1)[:, :, None, None]

    batch, noise = draw.noisy_images()
    return Case(batch, RawTime(), objective=lambda output: F.mse_loss(output, noise))


@FIRST
def income_column_in_cents(broken: bool) -> Case:
    """MLP | 33 | A table with a column of incomes in cents beside columns of about 1 (UMLAUT: input not normalised).
    | one-input-column-dominates inputs-not-scaled | | scale-inputs"""
    x, y = draw.table()
    if broken:
        x = x.clone()
        x[:, 6] = 3e5 + 1e5 * x[:, 6]
    return Case((x, y), nets.mlp(12, 32, 32, 3), nn.CrossEntropyLoss())


@FIRST
def timestamp_as_a_feature(broken: bool) -> Case:
    """LSTM | 34 | Series whose first column is a Unix timestamp.
    | one-input-column-dominates inputs-not-scaled saturated-units | | scale-inputs"""
    x, y = draw.waves(48, steps=24)
    if broken:
        x = x.clone()
        x[:, :, 0] = 1.7e9 + 60.0 * torch.arange(24) + 86400.0 * torch.randint(300, (48, 1))
    return Case((x, y), nets.SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3), nn.CrossEntropyLoss())


@FIRST
def missing_values_in_a_table(broken: bool) -> Case:
    """MLP | 38 | Missing values of a CSV file that pandas reads as NaN.
    | not-finite-data not-finite | | check-data clean-data"""
    x, y = draw.regression_table()
    if broken:
        x = x.clone()
        x[torch.rand(len(x)) < 0.05, 4] = float("nan")
    return Case((x, y), nets.mlp(8, 32, 32, 1), nn.MSELoss())


def padded_reviews(count: int = 64, words: int = 6, length: int = 300) -> tuple[Tensor, Tensor]:
    """Return short reviews, padded with id 0 at their end: class 1 has more of the ids below 10 than of 10 to 19."""
    labels = torch.arange(count) % 2
    ids = torch.randint(20, 50, (count, length))
    for row in range(count):
        ids[row, torch.randperm(words)[:3]] = torch.randint(1, 10, (3,)) + 10 * (1 - labels[row])
    used = words + torch.randint(3, (count, 1))
    return ids * (torch.arange(length) < used), labels


@SECOND
def padding_in_the_mean_of_the_words(broken: bool) -> Case:
    """text | 88 | Reviews of six words padded to 300 and averaged with their padding.
    | padding-counted | words | fix-mask mask-padding"""

    # The mean of embeddings, read by an MLP; pads (id 0) are left out if asked for.
    def bag_of_words(self, ids: Tensor) -> Tensor:
        keep = (ids != 0).float()[:, :, None] if self.masked else torch.ones(*ids.shape, 1)
        return self.head((self.words(ids) * keep).sum(1) / keep.sum(1).clamp(min=1))

    net = nets.made("BagOfWords", bag_of_words)
    net.words, net.head, net.masked = nn.Embedding(50, 16), nets.mlp(16, 32, 2), (not broken)
    return Case(model=net, data=padded_reviews(), loss="cross_entropy")


class BareTimeDenoiser(nets.Denoiser):  # A denoiser whose MLP of the time reads the time itself.
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 16))

    def embed_time(self, t: Tensor) -> Tensor:
        return self.time(t[:, None])[:, :, None, None]


@SECOND
def times_of_0_to_1000_without_sine_features(broken: bool) -> Case:
    """diffusion | 90 | The step of the diffusion enters as a plain number: its embedding is hundreds of times the
    image.
    | inputs-not-scaled branch-dominates exploding-signal one-input-column-dominates | | rescale-layer scale-branch
    scale-inputs"""
    data, noise = draw.noisy_images()
    if not broken:
        data["t"] = data["t"] / 500 - 1
    return Case((data, noise), BareTimeDenoiser(), "mse", judge_of=explained_variance)


@SECOND
def state_read_after_ninety_pads(broken: bool) -> Case:
    """GRU | 125 | PyTorch forums: no pack_padded_sequence, the last state has seen mostly padding.
    | padding-counted recurrent-weights-vanish vanishing-gradient | recurrent words | fix-mask mask-padding"""

    # A GRU over token ids that reads its state after the last step, or after the last word.
    def padded_reader(self, ids: Tensor) -> Tensor:
        states, _ = self.recurrent(self.words(ids))
        last = (ids != 0).sum(1) - 1 if self.at_word else torch.full((len(ids),), ids.shape[1] - 1)
        return self.head(states[torch.arange(len(ids)), last])

    net = nets.made("PaddedReader", padded_reader)
    net.words, net.recurrent, net.head = nn.Embedding(50, 16), nn.GRU(16, 24, batch_first=True), nn.Linear(24, 2)
    net.at_word = not broken
    return Case(model=net, data=rarer_sequences.padded_sentences_of_second(), loss="cross_entropy")


@THIRD
def column_without_spread_standardised(broken: bool) -> Case:
    """tabular | 54 | A column that is constant in the data set is divided by its deviation of zero.
    | not-finite-data not-finite | | check-data clean-data guard-domain scale-inputs"""
    x, y = draw.table()
    x[:, 9] = 3.0
    deviation = x.std(0)
    if not broken:
        deviation = deviation.clamp(min=1e-6)
    return Case(((x - x.mean(0)) / deviation, y), nets.mlp(12, 32, 32, 3), "cross_entropy")


@THIRD
def returns_of_a_price_of_zero(broken: bool) -> Case:
    """GRU | 55 | Logarithms of price ratios, where a day without trade was stored as a price of zero.
    | not-finite-data not-finite | | check-data clean-data guard-domain"""
    series, y = draw.waves()
    prices = torch.exp(0.1 * series)
    if broken:
        prices[5, 20, 1] = 0.0
    returns = (prices[:, 1:] / prices[:, :-1]).log() * 10
    return Case((returns, y), nets.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3), "cross_entropy")


@THIRD
def empty_places_of_a_set_averaged(broken: bool) -> Case:
    """sets | 57 | Baskets of 2 to 40 articles, filled up with zeros, and the mean over all 40 places.
    | padding-counted | | mask-padding"""

    # Embeds the members of a set, averages them and reads the mean; members of zeros are padding.
    def set_mean(self, x: Tensor) -> Tensor:
        members = torch.relu(self.member(x))
        if self.planted:
            return self.head(members.mean(1))
        real = x.abs().sum(-1, keepdim=True) > 0
        return self.head((members * real).sum(1) / real.sum(1).clamp(min=1))

    x = torch.randn(128, 40, 3) + torch.randn(128, 1, 3)
    present = torch.arange(40) < torch.randint(2, 41, (128, 1))
    x = x * present[..., None]
    y = x.sum(1) / present.sum(1, keepdim=True)
    y = (y[:, :1] - y[:, 1:2]).tanh() + 0.5 * y[:, 2:]
    net = nets.made("SetMean", set_mean)
    net.planted = broken
    net.member, net.head = nets.mlp(3, 32, 32), nets.mlp(32, 32, 1)
    return Case((x, (y - y.mean()) / y.std()), net, "mse")


# Rows of a table, packed.
# fmt: off
OPEN("""bytes-into-plain-convolutions | CNN | 401 | Images as they come from the file.
    | inputs-not-scaled exploding-signal | | scale-inputs""",
    lambda broken: given(draw.blob_images(), lambda images, y: given((255 * draw.as_pixels(images)).round(),
    lambda pixels: Case((pixels if broken else (pixels - 60) / 50, y), nets.ConvNet(norm=False), "cross_entropy"))))
OPEN("""bytes-before-a-layer-norm | MLP | 402 | LayerNorm after the first layer hides the scale but keeps what all
    images have in common. | inputs-not-scaled | | scale-inputs""",
    lambda broken: given(draw.blob_images(96, classes=6),
    lambda images, y: given((200 + 55 * draw.as_pixels(images)).flatten(1),
    lambda pixels: Case((pixels if broken else (pixels - pixels.mean()) / pixels.std(), y),
    nn.Sequential(nn.Linear(256, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 6)), "cross_entropy"))))
OPEN("""divided-by-255-twice | ViT | 403 | Divided by 255 twice: once by ToTensor, once by hand.
    | inputs-not-scaled output-constant vanishing-signal | | scale-inputs""",
    lambda broken: given(draw.blob_images(), lambda images, y: given(draw.as_pixels(images),
    lambda pixels: Case((pixels / 255**2 if broken else 4 * pixels - 1, y), nets.ViT(depth=2), "cross_entropy"))))
OPEN("""one-column-in-dollars | MLP | 404 | An income beside shares.
    | one-input-column-dominates inputs-not-scaled | | scale-inputs""",
    lambda broken: given(draw.table(), lambda x, y: Case(((put(x, s_[:, 5], 6e4 + 3e4 * x[:, 5]) if broken else x), y),
    nets.mlp(12, 32, 32, 3), "cross_entropy")))
OPEN("""time-stamps-as-a-feature | GRU | 405 | The time stamp in seconds is fed as a feature.
    | one-input-column-dominates inputs-not-scaled | | scale-inputs""",
    lambda broken: given(draw.waves(), lambda x, y: given(torch.arange(40.0).expand(64, 40)[:, :, None],
    lambda stamps: Case((torch.cat([x, 1.7e9 + 3600 * stamps if broken else stamps / 40], dim=2), y),
    nets.SequenceClassifier(nn.GRU(4, 24, batch_first=True), 3), "cross_entropy"))))
OPEN("""the-same-image-each-time | ResNet | 407 | The data set returns its first image for every index.
    | inputs-constant output-constant | | check-data""",
    lambda broken: given(draw.blob_images(), lambda x, y: Case((x[:1].repeat(64, 1, 1, 1) if broken else x, y),
    nets.ResNet(blocks=2), "cross_entropy")))
OPEN("""pixels-floor-divided | MLP | 408 | Integer division of pixels by 255.
    | inputs-constant dead-units output-constant | | check-data scale-inputs""",
    lambda broken: given(draw.blob_images(), lambda images, y: given((254 * draw.as_pixels(images)).flatten(1),
    lambda pixels: Case(((pixels // 255 if broken else (pixels - 70) / 50), y), nets.mlp(256, 32, 4),
    "cross_entropy"))))
OPEN("""missing-values-in-a-column | MLP | 409 | Missing values in a table.
    | not-finite-data | | check-data clean-data""",
    lambda broken: given(draw.table(), lambda x, y: Case((put(x, s_[5::40, 7], torch.nan if broken else 0.0), y),
    nets.mlp(12, 32, 3), "cross_entropy")))
OPEN("""logarithm-of-silence | CNN | 410 | The logarithm of a spectrogram with silent bins.
    | not-finite-data | | check-data clean-data guard-domain""",
    lambda broken: given(draw.blob_images(), lambda images, y: given(draw.as_pixels(images).clamp(min=0.2) - 0.2,
    lambda power: Case((torch.log(power if broken else power + 1e-2), y), nets.ConvNet(), "cross_entropy"))))
OPEN("""means-of-imagenet-for-bytes | CNN | 827 | (x - 0.485) / 0.229 on pixels that were not divided by 255.
    | inputs-not-scaled exploding-signal | | scale-inputs""",
    lambda broken: given(draw.blob_images(64, classes=6, channels=3),
    lambda images, y: given(draw.as_pixels(images) * (255 if broken else 1),
    lambda pixels: Case((((pixels - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor([0.229, 0.224,
    0.225]).view(3, 1, 1)), y), nets.ConvNet(channels=3, depth=6, classes=6, norm=False), "cross_entropy"))))
OPEN("""steps-of-diffusion-as-numbers | diffusion | 830 | The number of the step, up to 1000, as one more channel.
    | inputs-not-scaled branch-dominates exploding-signal one-input-column-dominates | | scale-inputs""",
    lambda broken: given(draw.noisy_images(), lambda inputs, noise: Case((put(inputs, s_["t"],
    inputs["t"] if broken else inputs["t"] / 1000), noise), RawTimeDenoiser(), "mse", judge_of=explained_variance)))
OPEN("""coordinates-of-a-map | PointNet | 833 | Points in metres of a national grid.
    | inputs-not-scaled dead-units exploding-signal | | scale-inputs""",
    lambda broken: given(rarer.clouds(), lambda x, y: Case((10 * x + torch.tensor([471_000.0, 5_531_000.0,
    112.0]) if broken else x, y), rarer.PointNet(), "cross_entropy")))
OPEN("""coordinates-in-metres | neural field | 835 | A field over a sample of 10 micrometres, with coordinates in
    metres. | inputs-not-scaled output-constant vanishing-signal | | scale-inputs""",
    lambda broken: given(2 * torch.rand(256, 2) - 1, lambda place: given(torch.sin(3 * place[:,
    :1]) * torch.cos(2 * place[:, 1:]), lambda field: Case((place * 5e-6 if broken else place, field / field.std()),
    nets.mlp(2, 48, 48, 1, activation=nn.Tanh), "mse"))))
OPEN("""nodes-without-features | GCN | 1113 | All nodes have the same features: ones, as a placeholder.
    | inputs-constant output-constant | | check-data""",
    lambda broken: given(draw.communities(), lambda x, edges, y: Case((torch.ones_like(x) if broken else x, y),
    rarer.GCN(edges, 2, residual=True), "cross_entropy", judge=rarer.judge_nodes(y))))
OPEN("""series-multiplied-by-an-empty-mask | GRU | 1114 | The mask of valid steps was made of zeros and never filled in.
    | inputs-constant output-constant | | check-data""",
    lambda broken: given(draw.waves(), lambda x, y: Case((x * 0 if broken else x, y), nets.SequenceClassifier(nn.GRU(3,
    24, batch_first=True), 3), "cross_entropy")))
OPEN("""bytes-into-a-mixer | MLP-Mixer | 1115 | Pixels in 0..255: the residual stream drowns what the blocks add.
    | inputs-not-scaled branch-dominates exploding-signal | | scale-inputs""",
    lambda broken: given(draw.blob_images(64), lambda images, y: given(draw.as_pixels(images),
    lambda pixels: Case((255 * pixels if broken else 4 * pixels - 1, y), rarer.Mixer(), "cross_entropy"))))
OPEN("""decibels-not-centred | CNN | 1116 | Spectrograms in decibels, between -90 and -60, as they are.
    | inputs-not-scaled dead-units | | scale-inputs""",
    lambda broken: given(draw.blob_images(64, classes=6),
    lambda images, y: Case((-75 + 3 * images if broken else images, y), nn.Sequential(nn.Conv2d(1, 12, 3, stride=2,
    padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(192, 6)),
    "cross_entropy")))
OPEN("""samples-of-sixteen-bits | TCN | 869 | Samples of a sound file as integers up to 32,767.
    | inputs-not-scaled exploding-signal saturated-units | | scale-inputs""",
    lambda broken: given(draw.waves(steps=32), lambda x, y: given((x * 12_000).round() if broken else x,
    lambda x: given([rarer_sequences.DilatedBlock(3 if i == 0 else 16, 16, 2**i, skip=True) for i in range(3)],
    lambda blocks: Case((x.mT.contiguous(), y), nn.Sequential(*blocks, nn.Flatten(), nn.Linear(16 * 32, 3)),
    "cross_entropy")))))
OPEN("""prices-not-centred | LSTM | 870 | Prices near 40,000, whose movements are a hundredth of that.
    | inputs-not-scaled saturated-units | | scale-inputs""",
    lambda broken: given(draw.waves(steps=24), lambda x, y: Case((40_000 + 300 * x if broken else x, y),
    nets.SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3), "cross_entropy")))
OPEN("""missing-values-as-minus-9999 | MLP | 883 | -9999 stands for a missing value in four columns.
    | inputs-not-scaled one-input-column-dominates | | check-data clean-data scale-inputs""",
    lambda broken: given(draw.regression_table(), lambda x, y: Case((x.masked_fill(((torch.rand(128,
    8) < 0.1) & (torch.arange(8) >= 4)), -9999.0 if broken else 0.0), y), nn.Sequential(nn.Linear(8, 48), nn.SiLU(),
    nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1)), "mse")))
OPEN("""postcodes-as-numbers | MLP | 884 | Postcodes and shop numbers among the columns of numbers.
    | inputs-not-scaled exploding-signal one-input-column-dominates | | scale-inputs""",
    lambda broken: given(draw.table(), lambda x, y: given(torch.randint(10_000, 99_999, (128, 2)).float(),
    lambda codes: Case((torch.cat([x, codes if broken else (codes - 55_000) / 26_000], dim=1), y),
    nn.Sequential(nn.Linear(14, 32), nn.ELU(), nn.Linear(32, 32), nn.ELU(), nn.Linear(32, 3)), "cross_entropy"))))
OPEN("""one-node-without-features | GIN | 900 | The features of one node are missing; the sums carry the NaN to all
    others. | not-finite-data not-finite | | clean-data""",
    lambda broken: given(draw.communities(), lambda x, edges, y: Case(((put(x, s_[17, 3], torch.nan) if broken else x),
    y), rarer.SumNet(edges, 2, norm=True), "cross_entropy", judge=rarer.judge_nodes(y))))
OPEN("""temperatures-in-kelvin-over-ten | MLP | 2011 | Columns around 29 that vary by 1: what varies is lost beside the
    mean. | inputs-not-scaled | | scale-inputs""",
    lambda broken: given(draw.table(), lambda x, y: Case((x + 29.0 * broken, y), nn.Sequential(*nets.mlp(12, 32, 32,
    3)), "cross_entropy")))
FIRST("""pixels-from-0-to-255 | CNN | 31 | Humbatova et al. 2020: missing normalisation of images; uint8 pixels cast to
    float. | inputs-not-scaled exploding-gradient exploding-signal | | scale-inputs""",
    lambda broken: given(draw.blob_images(48, channels=3),
    lambda images, y: Case((((255 * draw.as_pixels(images)).round() if broken else images), y),
    nets.ConvNet(3, norm=False), nn.CrossEntropyLoss())))
FIRST("""pixels-divided-twice | MLP | 32 | Pixels divided by 255 in the data set and again by the transform.
    | inputs-not-scaled vanishing-signal | | scale-inputs""",
    lambda broken: given(draw.blob_images(64, size=8), lambda images, y: Case(((draw.as_pixels(images) / 255 if broken
    else images), y), nn.Sequential(nn.Flatten(), *nets.mlp(64, 48, 48, 4)), "cross_entropy")))
FIRST("""category-ids-as-numbers | MLP | 35 | Category ids fed to a linear layer as numbers instead of through an
    embedding. | inputs-not-scaled one-input-column-dominates | | scale-inputs""",
    lambda broken: given(torch.randint(4, (128, 4)), lambda ids: given((ids[:, 0] + ids[:, 1]) % 3,
    lambda y: given(torch.randint(10_000, 90_000, (4, 4)).float(), lambda codes: Case(((codes[torch.arange(4),
    ids] if broken else (ids - 1.5) / 1.12), y), nets.mlp(4, 48, 48, 3), F.cross_entropy)))))
FIRST("""every-sample-the-same-image | CNN | 36 | A data set whose __getitem__ ignores its index: every sample is the
    first image. | inputs-constant output-constant | | check-data""",
    lambda broken: given(draw.blob_images(48), lambda x, y: Case(((x[:1].repeat(48, 1, 1, 1) if broken else x), y),
    nets.ConvNet(norm=False), nn.CrossEntropyLoss())))
FIRST("""images-divided-as-integers | ViT | 37 | `images // 255` on an integer tensor: all pixels become 0.
    | inputs-constant inputs-not-scaled output-constant | | check-data scale-inputs""",
    lambda broken: given(draw.blob_images(32), lambda images, y: given((254 * draw.as_pixels(images)).to(torch.uint8),
    lambda pixels: Case((((pixels // 255).float() if broken else images), y), nets.ViT(), nn.CrossEntropyLoss()))))
SECOND("""pixels-of-0-to-255 | CNN | 81 | TheDeepChecker and UMLAUT: images as they come out of the file.
    | inputs-not-scaled exploding-signal | | scale-inputs""",
    lambda broken: given(draw.blob_images(), lambda images, labels: Case(((draw.as_pixels(images).mul(255).round() if
    broken else images), labels), nets.ConvNet(norm=False), "cross_entropy")))
SECOND("""salary-in-euros-beside-standardised-columns | tabular | 82 | Humbatova et al., "missing preprocessing": one
    column in tens of thousands. | one-input-column-dominates inputs-not-scaled | | scale-inputs""",
    lambda broken: given(draw.table(), lambda x, y: Case(((put(x, s_[:, 9], 42_000 + 11_000 * x[:,
    9]) if broken else x), y), nets.mlp(12, 48, 48, 3), "cross_entropy")))
SECOND("""years-not-centred | regression | 83 | A year of construction (1900 to 2020) beside columns of size 1.
    | one-input-column-dominates inputs-not-scaled | | scale-inputs""",
    lambda broken: given(draw.regression_table(), lambda x, y: Case(((put(x, s_[:, 6], (1965 + 30 * x[:,
    6]).round()) if broken else x), y), nets.mlp(8, 48, 48, 1), "mse")))
SECOND("""missing-values-left-in | tabular | 84 | pandas: read_csv turns empty cells into NaN.
    | not-finite-data | | check-data clean-data""",
    lambda broken: given(draw.table(), lambda x, y: Case((x.masked_fill((torch.rand_like(x) < 0.02),
    torch.nan if broken else 0.0), y), nets.mlp(12, 48, 48, 3), "cross_entropy")))
SECOND("""loader-returns-one-image-again-and-again | CNN | 85 | A dataset whose __getitem__ uses a loop variable instead
    of the index. | inputs-constant output-constant | | check-data""",
    lambda broken: given(draw.blob_images(), lambda images, labels: Case(model=nets.ConvNet(),
    data=(images[7:8].expand_as(images).clone() if broken else images, labels), loss="cross_entropy")))
SECOND("""pixels-divided-by-255-twice | CNN | 86 | Stack Overflow: ToTensor divides by 255 already.
    | inputs-not-scaled output-constant vanishing-signal | | check-data scale-inputs""",
    lambda broken: given(draw.blob_images(), lambda images, labels: given(draw.as_pixels(images) -
    draw.as_pixels(images).mean(), lambda pixels: Case((pixels / 255 if broken else 4 * pixels, labels),
    nets.ConvNet(norm=False), "cross_entropy"))))
SECOND("""logarithm-of-counts-with-zeros | regression | 87 | log instead of log1p of a column of counts.
    | not-finite-data | | check-data clean-data guard-domain""",
    lambda broken: given(draw.regression_table(), lambda x, y: given(x[:, 5].exp().floor(),
    lambda counts: Case((put(x, s_[:, 5], counts.log() if broken else counts.log1p()), y), nets.mlp(8, 48, 48, 1),
    "mse"))))
SECOND("""air-pressure-in-pascal | GRU | 89 | Sensor values of 101325 +- 300 fed to a GRU as they are.
    | inputs-not-scaled saturated-units | | scale-inputs""",
    lambda broken: given(draw.waves(), lambda series, labels: Case((101_325 + 300 * series if broken else series,
    labels), nets.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3), "cross_entropy")))
SECOND("""padding-attended-to-and-averaged | BERT | 133 | The tokenizer's attention mask is not passed on: nine of ten
    tokens that are seen are pads. | padding-counted attention-mask-wrong | encoder encoder.layers.{0,1}
    encoder.layers.{0,1}.self_attn words | fix-mask mask-padding""",
    lambda broken: given(rarer_sequences.MaskedEncoder("none" if broken else "right", length=100),
    lambda model: Case(rarer_sequences.padded_sentences_of_second(), model, "cross_entropy")))
THIRD("""platelets-per-microlitre | tabular | 51 | Blood counts as the laboratory writes them: most values around 1,
    platelets around 250 000. | one-input-column-dominates inputs-not-scaled | | scale-inputs""",
    lambda broken: given(draw.table(), lambda x, y: Case(((put(x, s_[:, 7], 250_000 + 60_000 * x[:,
    7]) if broken else x), y), nets.mlp(12, 32, 32, 3), "cross_entropy")))
THIRD("""x-rays-of-twelve-bits | CNN | 52 | Grey values of 0 to 4095 go into convolutions without a normalizer.
    | inputs-not-scaled exploding-gradient exploding-signal | | add-normalizer scale-inputs""",
    lambda broken: given(draw.blob_images(classes=6), lambda x, y: Case((((draw.as_pixels(x) * 4095).round() if broken
    else x), y), nets.ConvNet(norm=False, classes=6), "cross_entropy")))
THIRD("""every-word-unknown | text CNN | 53 | The vocabulary of another tokenizer: every word is mapped to the id of
    unknown words. | inputs-constant output-constant | | check-data""",
    lambda broken: given(draw.sentences(96), lambda x, y: Case((torch.full_like(x, 1) if broken else x, y),
    rarer_sequences.WordNet(), "cross_entropy")))
THIRD("""unit-pixels-centred-as-if-they-were-bytes | CNN | 56 | `(x - 127.5) / 127.5` on pixels that are already in 0 to
    1: all become almost -1. | inputs-not-scaled inputs-constant output-constant | | check-data scale-inputs""",
    lambda broken: given(draw.blob_images(), lambda x, y: given(draw.as_pixels(x),
    lambda x: Case((((x - 127.5) / 127.5 if broken else (x - 0.5) / 0.5), y), nets.ConvNet(norm=False),
    "cross_entropy"))))
THIRD("""traded-volumes-in-pieces | GRU | 58 | Counts of traded pieces, in the millions, beside nothing that would bring
    them to the size of a gate. | inputs-not-scaled one-input-column-dominates saturated-units | | scale-inputs""",
    lambda broken: given(draw.waves(96), lambda x, y: Case(((2e6 * (x + 4) if broken else x), y),
    nets.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3), "cross_entropy")))
THIRD("""concentrations-in-moles-per-litre | regression | 59 | Concentrations of billionths in all columns; the network
    sees its biases only. | inputs-not-scaled vanishing-signal | | scale-inputs""",
    lambda broken: given(draw.regression_table(), lambda x, y: Case((x * 2e-8 if broken else x, y),
    nets.mlp(8, 32, 32, 1), "mse")))
