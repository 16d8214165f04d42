"""Faults of the inputs: scales, columns, constants, values that are missing, padding."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...training import explained_variance, train
from . import rarer


@OPEN
def bytes_into_plain_convolutions(broken: bool) -> Case:
    """CNN | 401 | Images as they come from the file.
    | inputs-not-scaled exploding-signal | | scale-inputs"""
    images, y = draw.blob_images()
    pixels = (255 * draw.as_pixels(images)).round()
    return Case((pixels if broken else (pixels - 60) / 50, y), nets.ConvNet(norm=False), "cross_entropy")


@OPEN
def bytes_before_a_layer_norm(broken: bool) -> Case:
    """MLP | 402 | LayerNorm after the first layer hides the scale but keeps what all images have in common.
    | inputs-not-scaled | | scale-inputs"""
    images, y = draw.blob_images(96, classes=6)
    pixels = (200 + 55 * draw.as_pixels(images)).flatten(1)
    model = nn.Sequential(nn.Linear(256, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 6))
    return Case((pixels if broken else (pixels - pixels.mean()) / pixels.std(), y), model, "cross_entropy")


@OPEN
def divided_by_255_twice(broken: bool) -> Case:
    """ViT | 403 | Divided by 255 twice: once by ToTensor, once by hand.
    | inputs-not-scaled output-constant vanishing-signal | | scale-inputs"""
    images, y = draw.blob_images()
    pixels = draw.as_pixels(images)
    return Case((pixels / 255**2 if broken else 4 * pixels - 1, y), nets.ViT(depth=2), "cross_entropy")


@OPEN
def one_column_in_dollars(broken: bool) -> Case:
    """MLP | 404 | An income beside shares.
    | one-input-column-dominates inputs-not-scaled | | scale-inputs"""
    x, y = draw.table()
    if broken:
        x[:, 5] = 6e4 + 3e4 * x[:, 5]
    return Case((x, y), nets.mlp(12, 32, 32, 3), "cross_entropy")


@OPEN
def time_stamps_as_a_feature(broken: bool) -> Case:
    """GRU | 405 | The time stamp in seconds is fed as a feature.
    | one-input-column-dominates inputs-not-scaled | | scale-inputs"""
    x, y = draw.waves()
    stamps = torch.arange(40.0).expand(64, 40)[:, :, None]
    x = torch.cat([x, 1.7e9 + 3600 * stamps if broken else stamps / 40], dim=2)
    return Case((x, y), nets.SequenceClassifier(nn.GRU(4, 24, batch_first=True), 3), "cross_entropy")


@OPEN
def identifier_as_a_number(broken: bool) -> Case:
    """MLP | 406 | An identifier taken for a number.
    | one-input-column-dominates inputs-not-scaled | | scale-inputs"""
    x, y = draw.regression_table()
    if broken:
        x = torch.cat([x, torch.randint(10**5, 10**6, (128, 1)).float()], dim=1)
    return Case((x, y), nets.mlp(x.shape[1], 32, 32, 1), "mse")


OPEN(
    """the-same-image-each-time | ResNet | 407 | The data set returns its first image for every index.
    | inputs-constant output-constant | | check-data""",
    lambda broken: given(
        draw.blob_images(),
        lambda x, y: Case(
            model=nets.ResNet(blocks=2), data=(x[:1].repeat(64, 1, 1, 1) if broken else x, y), loss="cross_entropy"
        ),
    ),
)


@OPEN
def pixels_floor_divided(broken: bool) -> Case:
    """MLP | 408 | Integer division of pixels by 255.
    | inputs-constant dead-units output-constant | | check-data scale-inputs"""
    images, y = draw.blob_images()
    pixels = (254 * draw.as_pixels(images)).flatten(1)
    return Case(((pixels // 255 if broken else (pixels - 70) / 50), y), nets.mlp(256, 32, 4), "cross_entropy")


@OPEN
def missing_values_in_a_column(broken: bool) -> Case:
    """MLP | 409 | Missing values in a table.
    | not-finite-data | | check-data clean-data"""
    x, y = draw.table()
    x[5::40, 7] = torch.nan if broken else 0.0
    return Case((x, y), nets.mlp(12, 32, 3), "cross_entropy")


@OPEN
def logarithm_of_silence(broken: bool) -> Case:
    """CNN | 410 | The logarithm of a spectrogram with silent bins.
    | not-finite-data | | check-data clean-data guard-domain"""
    images, y = draw.blob_images()
    power = draw.as_pixels(images).clamp(min=0.2) - 0.2
    return Case((torch.log(power if broken else power + 1e-2), y), nets.ConvNet(), "cross_entropy")


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


@OPEN
def means_of_imagenet_for_bytes(broken: bool) -> Case:
    """CNN | 827 | (x - 0.485) / 0.229 on pixels that were not divided by 255.
    | inputs-not-scaled exploding-signal | | scale-inputs"""
    images, y = draw.blob_images(64, classes=6, channels=3)
    pixels = draw.as_pixels(images) * (255 if broken else 1)
    return Case(
        (
            (
                (pixels - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
                / torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
            ),
            y,
        ),
        nets.ConvNet(channels=3, depth=6, classes=6, norm=False),
        "cross_entropy",
    )


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
def steps_of_diffusion_as_numbers(broken: bool) -> Case:
    """diffusion | 830 | The number of the step, up to 1000, as one more channel.
    | inputs-not-scaled branch-dominates exploding-signal one-input-column-dominates | | scale-inputs"""
    inputs, noise = draw.noisy_images()
    inputs["t"] = inputs["t"] if broken else inputs["t"] / 1000
    return Case((inputs, noise), RawTimeDenoiser(), "mse", judge_of=explained_variance)


OPEN(
    """coordinates-of-a-map | PointNet | 833 | Points in metres of a national grid.
    | inputs-not-scaled dead-units exploding-signal | | scale-inputs""",
    lambda broken: given(
        rarer.clouds(),
        lambda x, y: Case(
            (10 * x + torch.tensor([471_000.0, 5_531_000.0, 112.0]) if broken else x, y),
            rarer.PointNet(),
            "cross_entropy",
        ),
    ),
)


@OPEN
def coordinates_in_metres(broken: bool) -> Case:
    """neural field | 835 | A field over a sample of 10 micrometres, with coordinates in metres.
    | inputs-not-scaled output-constant vanishing-signal | | scale-inputs"""
    place = 2 * torch.rand(256, 2) - 1
    field = torch.sin(3 * place[:, :1]) * torch.cos(2 * place[:, 1:])
    model = nets.mlp(2, 48, 48, 1, activation=nn.Tanh)
    return Case((place * 5e-6 if broken else place, field / field.std()), model, "mse")


OPEN(
    """nodes-without-features | GCN | 1113 | All nodes have the same features: ones, as a placeholder.
    | inputs-constant output-constant | | check-data""",
    lambda broken: given(
        draw.communities(),
        lambda x, edges, y: Case(
            model=rarer.GCN(edges, 2, residual=True),
            data=(torch.ones_like(x) if broken else x, y),
            loss="cross_entropy",
            judge=rarer.judge_nodes(y),
        ),
    ),
)


OPEN(
    """series-multiplied-by-an-empty-mask | GRU | 1114 | The mask of valid steps was made of zeros and never filled
    in.
    | inputs-constant output-constant | | check-data""",
    lambda broken: given(
        draw.waves(),
        lambda x, y: Case(
            (x * 0 if broken else x, y), nets.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3), "cross_entropy"
        ),
    ),
)


@OPEN
def bytes_into_a_mixer(broken: bool) -> Case:
    """MLP-Mixer | 1115 | Pixels in 0..255: the residual stream drowns what the blocks add.
    | inputs-not-scaled branch-dominates exploding-signal | | scale-inputs"""
    images, y = draw.blob_images(64)
    pixels = draw.as_pixels(images)
    return Case((255 * pixels if broken else 4 * pixels - 1, y), rarer.Mixer(), "cross_entropy")


@OPEN
def decibels_not_centred(broken: bool) -> Case:
    """CNN | 1116 | Spectrograms in decibels, between -90 and -60, as they are.
    | inputs-not-scaled dead-units | | scale-inputs"""
    images, y = draw.blob_images(64, classes=6)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(192, 6),
    )  # fmt: skip
    return Case((-75 + 3 * images if broken else images, y), model, "cross_entropy")


@OPEN
def samples_of_sixteen_bits(broken: bool) -> Case:
    """TCN | 869 | Samples of a sound file as integers up to 32,767.
    | inputs-not-scaled exploding-signal saturated-units | | scale-inputs"""
    x, y = draw.waves(steps=32)
    x = (x * 12_000).round() if broken else x
    blocks = [rarer.DilatedBlock(3 if i == 0 else 16, 16, 2**i, skip=True) for i in range(3)]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(16 * 32, 3))
    return Case((x.mT.contiguous(), y), model, "cross_entropy")


OPEN(
    """prices-not-centred | LSTM | 870 | Prices near 40,000, whose movements are a hundredth of that.
    | inputs-not-scaled saturated-units | | scale-inputs""",
    lambda broken: given(
        draw.waves(steps=24),
        lambda x, y: Case(
            (40_000 + 300 * x if broken else x, y),
            nets.SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3),
            "cross_entropy",
        ),
    ),
)


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
def missing_values_as_minus_9999(broken: bool) -> Case:
    """MLP | 883 | -9999 stands for a missing value in four columns.
    | inputs-not-scaled one-input-column-dominates | | check-data clean-data scale-inputs"""
    x, y = draw.regression_table()
    missing = (torch.rand(128, 8) < 0.1) & (torch.arange(8) >= 4)
    model = nn.Sequential(nn.Linear(8, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
    return Case((x.masked_fill(missing, -9999.0 if broken else 0.0), y), model, "mse")


@OPEN
def postcodes_as_numbers(broken: bool) -> Case:
    """MLP | 884 | Postcodes and shop numbers among the columns of numbers.
    | inputs-not-scaled exploding-signal one-input-column-dominates | | scale-inputs"""
    x, y = draw.table()
    codes = torch.randint(10_000, 99_999, (128, 2)).float()
    x = torch.cat([x, codes if broken else (codes - 55_000) / 26_000], dim=1)
    return Case(
        (x, y),
        nn.Sequential(nn.Linear(14, 32), nn.ELU(), nn.Linear(32, 32), nn.ELU(), nn.Linear(32, 3)),
        "cross_entropy",
    )


@OPEN
def ratio_with_a_zero_below(broken: bool) -> Case:
    """MLP | 885 | A column of ratios made in the data frame: where the denominator is zero it is infinite.
    | not-finite-data not-finite | | clean-data"""
    x, y = draw.table()
    x[:, 7] = x[:, 7].abs()
    x[::17, 7] = torch.inf if broken else 0.0
    return Case((x, y), nets.mlp(12, 32, 3), "cross_entropy")


@OPEN
def one_node_without_features(broken: bool) -> Case:
    """GIN | 900 | The features of one node are missing; the sums carry the NaN to all others.
    | not-finite-data not-finite | | clean-data"""
    x, edges, y = draw.communities()
    if broken:
        x[17, 3] = torch.nan
    return Case((x, y), rarer.SumNet(edges, 2, norm=True), "cross_entropy", judge=rarer.judge_nodes(y))


OPEN(
    """temperatures-in-kelvin-over-ten | MLP | 2011 | Columns around 29 that vary by 1: what varies is lost beside
    the mean.
    | inputs-not-scaled | | scale-inputs""",
    lambda broken: given(
        draw.table(),
        lambda x, y: Case((x + 29.0 * broken, y), nn.Sequential(*nets.mlp(12, 32, 32, 3)), "cross_entropy"),
    ),
)


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


FIRST(
    """pixels-from-0-to-255 | CNN | 31 | Humbatova et al. 2020: missing normalisation of images; uint8 pixels cast to
    float.
    | inputs-not-scaled exploding-gradient exploding-signal | | scale-inputs""",
    lambda broken: given(
        draw.blob_images(48, channels=3),
        lambda images, y: Case(
            (((255 * draw.as_pixels(images)).round() if broken else images), y),
            nets.ConvNet(3, norm=False),
            nn.CrossEntropyLoss(),
        ),
    ),
)


FIRST(
    """pixels-divided-twice | MLP | 32 | Pixels divided by 255 in the data set and again by the transform.
    | inputs-not-scaled vanishing-signal | | scale-inputs""",
    lambda broken: given(
        draw.blob_images(64, size=8),
        lambda images, y: Case(
            ((draw.as_pixels(images) / 255 if broken else images), y),
            nn.Sequential(nn.Flatten(), *nets.mlp(64, 48, 48, 4)),
            "cross_entropy",
        ),
    ),
)


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
def category_ids_as_numbers(broken: bool) -> Case:
    """MLP | 35 | Category ids fed to a linear layer as numbers instead of through an embedding.
    | inputs-not-scaled one-input-column-dominates | | scale-inputs"""
    ids = torch.randint(4, (128, 4))
    y = (ids[:, 0] + ids[:, 1]) % 3
    codes = torch.randint(10_000, 90_000, (4, 4)).float()
    return Case(
        ((codes[torch.arange(4), ids] if broken else (ids - 1.5) / 1.12), y), nets.mlp(4, 48, 48, 3), F.cross_entropy
    )


@FIRST
def every_sample_the_same_image(broken: bool) -> Case:
    """CNN | 36 | A data set whose __getitem__ ignores its index: every sample is the first image.
    | inputs-constant output-constant | | check-data"""
    x, y = draw.blob_images(48)
    x = x[:1].repeat(48, 1, 1, 1) if broken else x
    return Case((x, y), nets.ConvNet(norm=False), nn.CrossEntropyLoss())


@FIRST
def images_divided_as_integers(broken: bool) -> Case:
    """ViT | 37 | `images // 255` on an integer tensor: all pixels become 0.
    | inputs-constant inputs-not-scaled output-constant | | check-data scale-inputs"""
    images, y = draw.blob_images(32)
    pixels = (254 * draw.as_pixels(images)).to(torch.uint8)
    return Case((((pixels // 255).float() if broken else images), y), nets.ViT(), nn.CrossEntropyLoss())


@FIRST
def missing_values_in_a_table(broken: bool) -> Case:
    """MLP | 38 | Missing values of a CSV file that pandas reads as NaN.
    | not-finite-data not-finite | | check-data clean-data"""
    x, y = draw.regression_table()
    if broken:
        x = x.clone()
        x[torch.rand(len(x)) < 0.05, 4] = float("nan")
    return Case((x, y), nets.mlp(8, 32, 32, 1), nn.MSELoss())


SECOND(
    """pixels-of-0-to-255 | CNN | 81 | TheDeepChecker and UMLAUT: images as they come out of the file.
    | inputs-not-scaled exploding-signal | | scale-inputs""",
    lambda broken: given(
        draw.blob_images(),
        lambda images, labels: Case(
            ((draw.as_pixels(images).mul(255).round() if broken else images), labels),
            nets.ConvNet(norm=False),
            "cross_entropy",
        ),
    ),
)


@SECOND
def salary_in_euros_beside_standardised_columns(broken: bool) -> Case:
    """tabular | 82 | Humbatova et al., "missing preprocessing": one column in tens of thousands.
    | one-input-column-dominates inputs-not-scaled | | scale-inputs"""
    x, y = draw.table()
    if broken:
        x[:, 9] = 42_000 + 11_000 * x[:, 9]
    return Case((x, y), nets.mlp(12, 48, 48, 3), "cross_entropy")


@SECOND
def years_not_centred(broken: bool) -> Case:
    """regression | 83 | A year of construction (1900 to 2020) beside columns of size 1.
    | one-input-column-dominates inputs-not-scaled | | scale-inputs"""
    x, y = draw.regression_table()
    if broken:
        x[:, 6] = (1965 + 30 * x[:, 6]).round()
    return Case((x, y), nets.mlp(8, 48, 48, 1), "mse")


@SECOND
def missing_values_left_in(broken: bool) -> Case:
    """tabular | 84 | pandas: read_csv turns empty cells into NaN.
    | not-finite-data | | check-data clean-data"""
    x, y = draw.table()
    holes = torch.rand_like(x) < 0.02
    return Case(
        model=nets.mlp(12, 48, 48, 3),
        data=(x.masked_fill(holes, torch.nan if broken else 0.0), y),
        loss="cross_entropy",
    )


SECOND(
    """loader-returns-one-image-again-and-again | CNN | 85 | A dataset whose __getitem__ uses a loop variable instead
    of the index.
    | inputs-constant output-constant | | check-data""",
    lambda broken: given(
        draw.blob_images(),
        lambda images, labels: Case(
            model=nets.ConvNet(),
            data=(images[7:8].expand_as(images).clone() if broken else images, labels),
            loss="cross_entropy",
        ),
    ),
)


@SECOND
def pixels_divided_by_255_twice(broken: bool) -> Case:
    """CNN | 86 | Stack Overflow: ToTensor divides by 255 already.
    | inputs-not-scaled output-constant vanishing-signal | | check-data scale-inputs"""
    images, labels = draw.blob_images()
    pixels = draw.as_pixels(images) - draw.as_pixels(images).mean()
    return Case((pixels / 255 if broken else 4 * pixels, labels), nets.ConvNet(norm=False), "cross_entropy")


@SECOND
def logarithm_of_counts_with_zeros(broken: bool) -> Case:
    """regression | 87 | log instead of log1p of a column of counts.
    | not-finite-data | | check-data clean-data guard-domain"""
    x, y = draw.regression_table()
    counts = x[:, 5].exp().floor()
    x[:, 5] = counts.log() if broken else counts.log1p()
    return Case((x, y), nets.mlp(8, 48, 48, 1), "mse")


class BagOfWords(nn.Module):  # The mean of embeddings, read by an MLP; pads (id 0) are left out if asked for.
    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.words, self.head, self.masked = nn.Embedding(50, 16), nets.mlp(16, 32, 2), masked

    def forward(self, ids: Tensor) -> Tensor:
        keep = (ids != 0).float()[:, :, None] if self.masked else torch.ones(*ids.shape, 1)
        return self.head((self.words(ids) * keep).sum(1) / keep.sum(1).clamp(min=1))


def padded_reviews(count: int = 64, words: int = 6, length: int = 300) -> tuple[Tensor, Tensor]:
    """Return short reviews, padded with id 0 at their end: class 1 has more of the ids below 10 than of 10 to 19."""
    labels = torch.arange(count) % 2
    ids = torch.randint(20, 50, (count, length))
    for row in range(count):
        ids[row, torch.randperm(words)[:3]] = torch.randint(1, 10, (3,)) + 10 * (1 - labels[row])
    used = words + torch.randint(3, (count, 1))
    return ids * (torch.arange(length) < used), labels


SECOND(
    """padding-in-the-mean-of-the-words | text | 88 | Reviews of six words padded to 300 and averaged with their
    padding.
    | padding-counted | words{,.weight} | fix-mask mask-padding""",
    lambda broken: Case(model=BagOfWords(not broken), data=padded_reviews(), loss="cross_entropy"),
)


SECOND(
    """air-pressure-in-pascal | GRU | 89 | Sensor values of 101325 +- 300 fed to a GRU as they are.
    | inputs-not-scaled saturated-units | | scale-inputs""",
    lambda broken: given(
        draw.waves(),
        lambda series, labels: Case(
            (101_325 + 300 * series if broken else series, labels),
            nets.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3),
            "cross_entropy",
        ),
    ),
)


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


class PaddedReader(nn.Module):  # A GRU over token ids that reads its state after the last step, or after the last word.
    def __init__(self, at_word: bool) -> None:
        super().__init__()
        self.words, self.recurrent, self.head = nn.Embedding(50, 16), nn.GRU(16, 24, batch_first=True), nn.Linear(24, 2)
        self.at_word = at_word

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.recurrent(self.words(ids))
        last = (ids != 0).sum(1) - 1 if self.at_word else torch.full((len(ids),), ids.shape[1] - 1)
        return self.head(states[torch.arange(len(ids)), last])


SECOND(
    """state-read-after-ninety-pads | GRU | 125 | PyTorch forums: no pack_padded_sequence, the last state has seen
    mostly padding.
    | padding-counted recurrent-weights-vanish vanishing-gradient | recurrent words | fix-mask mask-padding""",
    lambda broken: Case(model=PaddedReader(not broken), data=rarer.padded_sentences_of_second(), loss="cross_entropy"),
)


SECOND(
    """padding-attended-to-and-averaged | BERT | 133 | The tokenizer's attention mask is not passed on: nine of ten
    tokens that are seen are pads.
    | padding-counted attention-mask-wrong | encoder encoder.layers.{0,1} encoder.layers.{0,1}.self_attn words |
    fix-mask mask-padding""",
    lambda broken: given(
        rarer.MaskedEncoder("none" if broken else "right", length=100),
        lambda model: Case(rarer.padded_sentences_of_second(), model, "cross_entropy"),
    ),
)


@THIRD
def platelets_per_microlitre(broken: bool) -> Case:
    """tabular | 51 | Blood counts as the laboratory writes them: most values around 1, platelets around 250 000.
    | one-input-column-dominates inputs-not-scaled | | scale-inputs"""
    x, y = draw.table()
    if broken:
        x[:, 7] = 250_000 + 60_000 * x[:, 7]
    return Case((x, y), nets.mlp(12, 32, 32, 3), "cross_entropy")


@THIRD
def x_rays_of_twelve_bits(broken: bool) -> Case:
    """CNN | 52 | Grey values of 0 to 4095 go into convolutions without a normalizer.
    | inputs-not-scaled exploding-gradient exploding-signal | | add-normalizer scale-inputs"""
    x, y = draw.blob_images(classes=6)
    if broken:
        x = (draw.as_pixels(x) * 4095).round()
    return Case((x, y), nets.ConvNet(norm=False, classes=6), "cross_entropy")


THIRD(
    """every-word-unknown | text CNN | 53 | The vocabulary of another tokenizer: every word is mapped to the id of
    unknown words.
    | inputs-constant output-constant | | check-data""",
    lambda broken: given(
        draw.sentences(96),
        lambda x, y: Case(
            model=rarer.WordNet(), data=(torch.full_like(x, 1) if broken else x, y), loss="cross_entropy"
        ),
    ),
)


@THIRD
def column_without_spread_standardised(broken: bool) -> Case:
    """tabular | 54 | A column that is constant in the data set is divided by its deviation of zero.
    | not-finite-data not-finite | | check-data clean-data guard-domain scale-inputs"""
    x, y = draw.table()
    x[:, 9] = 3.0
    deviation = x.std(0)
    if not broken:
        deviation = deviation.clamp(min=1e-6)
    return Case(model=nets.mlp(12, 32, 32, 3), data=((x - x.mean(0)) / deviation, y), loss="cross_entropy")


@THIRD
def returns_of_a_price_of_zero(broken: bool) -> Case:
    """GRU | 55 | Logarithms of price ratios, where a day without trade was stored as a price of zero.
    | not-finite-data not-finite | | check-data clean-data guard-domain"""
    series, y = draw.waves()
    prices = torch.exp(0.1 * series)
    if broken:
        prices[5, 20, 1] = 0.0
    return Case(
        (((prices[:, 1:] / prices[:, :-1]).log() * 10), y),
        nets.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3),
        "cross_entropy",
    )


@THIRD
def unit_pixels_centred_as_if_they_were_bytes(broken: bool) -> Case:
    """CNN | 56 | `(x - 127.5) / 127.5` on pixels that are already in 0 to 1: all become almost -1.
    | inputs-not-scaled inputs-constant output-constant | | check-data scale-inputs"""
    x, y = draw.blob_images()
    x = draw.as_pixels(x)
    x = (x - 127.5) / 127.5 if broken else (x - 0.5) / 0.5
    return Case((x, y), nets.ConvNet(norm=False), "cross_entropy")


class SetMean(nn.Module):
    """Embeds the members of a set, averages them and reads the mean; members of zeros are padding."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.member, self.head = nets.mlp(3, 32, 32), nets.mlp(32, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        members = torch.relu(self.member(x))
        if self.planted:
            return self.head(members.mean(1))
        real = x.abs().sum(-1, keepdim=True) > 0
        return self.head((members * real).sum(1) / real.sum(1).clamp(min=1))


@THIRD
def empty_places_of_a_set_averaged(broken: bool) -> Case:
    """sets | 57 | Baskets of 2 to 40 articles, filled up with zeros, and the mean over all 40 places.
    | padding-counted | | mask-padding"""
    x = torch.randn(128, 40, 3) + torch.randn(128, 1, 3)
    present = torch.arange(40) < torch.randint(2, 41, (128, 1))
    x = x * present[..., None]
    y = x.sum(1) / present.sum(1, keepdim=True)
    y = (y[:, :1] - y[:, 1:2]).tanh() + 0.5 * y[:, 2:]
    return Case(model=SetMean(broken), data=(x, (y - y.mean()) / y.std()), loss="mse")


@THIRD
def traded_volumes_in_pieces(broken: bool) -> Case:
    """GRU | 58 | Counts of traded pieces, in the millions, beside nothing that would bring them to the size of a gate.
    | inputs-not-scaled one-input-column-dominates saturated-units | | scale-inputs"""
    x, y = draw.waves(96)
    if broken:
        x = 2e6 * (x + 4)
    return Case((x, y), nets.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3), "cross_entropy")


THIRD(
    """concentrations-in-moles-per-litre | regression | 59 | Concentrations of billionths in all columns; the network
    sees its biases only.
    | inputs-not-scaled vanishing-signal | | scale-inputs""",
    lambda broken: given(
        draw.regression_table(), lambda x, y: Case((x * 2e-8 if broken else x, y), nets.mlp(8, 32, 32, 1), "mse")
    ),
)
