"""Faults of the data, and of labels, targets and losses."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from ..parts import (
    GPT,
    Autoencoder,
    ConvNet,
    Denoiser,
    SequenceClassifier,
    UNet,
    accuracy,
    as_pixels,
    blob_images,
    explained_variance,
    mlp,
    noisy_images,
    over_tokens,
    overlap_with,
    regression_table,
    table,
    text,
    waves,
)

FAULTS: list[Fault] = []

# ---------------------------------------------------------------------------------------------------------------- data


@fault(FAULTS, "CNN", causes="inputs-not-scaled exploding-signal", layers="", remedies="scale-inputs")
def pixels_of_0_to_255(planted: bool) -> Case:
    """TheDeepChecker and UMLAUT: images as they come out of the file."""
    torch.manual_seed(81)
    images, labels = blob_images()
    data = as_pixels(images).mul(255).round() if planted else images
    return Case(model=ConvNet(norm=False), data=(data, labels), loss="cross_entropy")


@fault(
    FAULTS, "tabular", causes="one-input-column-dominates inputs-not-scaled", layers="", remedies="scale-inputs",
)  # fmt: skip
def salary_in_euros_beside_standardised_columns(planted: bool) -> Case:
    """Humbatova et al., "missing preprocessing": one column in tens of thousands."""
    torch.manual_seed(82)
    x, y = table()
    if planted:
        x[:, 9] = 42_000 + 11_000 * x[:, 9]
    return Case(model=mlp(12, 48, 48, 3), data=(x, y), loss="cross_entropy")


@fault(
    FAULTS, "regression", causes="one-input-column-dominates inputs-not-scaled", layers="", remedies="scale-inputs",
)  # fmt: skip
def years_not_centred(planted: bool) -> Case:
    """A year of construction (1900 to 2020) beside columns of size 1."""
    torch.manual_seed(83)
    x, y = regression_table()
    if planted:
        x[:, 6] = (1965 + 30 * x[:, 6]).round()
    return Case(model=mlp(8, 48, 48, 1), data=(x, y), loss="mse")


@fault(FAULTS, "tabular", causes="not-finite-data", layers="", remedies="clean-data check-data")
def missing_values_left_in(planted: bool) -> Case:
    """pandas: read_csv turns empty cells into NaN."""
    torch.manual_seed(84)
    x, y = table()
    holes = torch.rand_like(x) < 0.02
    return Case(
        model=mlp(12, 48, 48, 3), data=(x.masked_fill(holes, torch.nan if planted else 0.0), y), loss="cross_entropy"
    )


@fault(FAULTS, "CNN", causes="inputs-constant output-constant", layers="", remedies="check-data")
def loader_returns_one_image_again_and_again(planted: bool) -> Case:
    """A dataset whose __getitem__ uses a loop variable instead of the index."""
    torch.manual_seed(85)
    images, labels = blob_images()
    return Case(
        model=ConvNet(),
        data=(images[7:8].expand_as(images).clone() if planted else images, labels),
        loss="cross_entropy",
    )


@fault(
    FAULTS, "CNN", causes="inputs-not-scaled vanishing-signal output-constant", layers="",
    remedies="scale-inputs check-data",
)  # fmt: skip
def pixels_divided_by_255_twice(planted: bool) -> Case:
    """Stack Overflow: ToTensor divides by 255 already."""
    torch.manual_seed(86)
    images, labels = blob_images()
    pixels = as_pixels(images) - as_pixels(images).mean()
    return Case(model=ConvNet(norm=False), data=(pixels / 255 if planted else 4 * pixels, labels), loss="cross_entropy")


@fault(FAULTS, "regression", causes="not-finite-data", layers="", remedies="clean-data check-data guard-domain")
def logarithm_of_counts_with_zeros(planted: bool) -> Case:
    """log instead of log1p of a column of counts."""
    torch.manual_seed(87)
    x, y = regression_table()
    counts = x[:, 5].exp().floor()
    x[:, 5] = counts.log() if planted else counts.log1p()
    return Case(model=mlp(8, 48, 48, 1), data=(x, y), loss="mse")


class BagOfWords(nn.Module):
    """The mean of embeddings, read by an MLP; pads (id 0) are left out if asked for."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.words, self.head, self.masked = nn.Embedding(50, 16), mlp(16, 32, 2), masked

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


@fault(FAULTS, "text", causes="padding-counted", layers="words words.weight", remedies="mask-padding fix-mask")
def padding_in_the_mean_of_the_words(planted: bool) -> Case:
    """Reviews of six words padded to 300 and averaged with their padding."""
    torch.manual_seed(88)
    return Case(model=BagOfWords(not planted), data=padded_reviews(), loss="cross_entropy")


@fault(
    FAULTS, "GRU", causes="inputs-not-scaled saturated-units", layers="", remedies="scale-inputs",
)  # fmt: skip
def air_pressure_in_pascal(planted: bool) -> Case:
    """Sensor values of 101325 +- 300 fed to a GRU as they are."""
    torch.manual_seed(89)
    series, labels = waves()
    model = SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    return Case(model=model, data=(101_325 + 300 * series if planted else series, labels), loss="cross_entropy")


class BareTimeDenoiser(Denoiser):
    """A denoiser whose MLP of the time reads the time itself."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 16))

    def embed_time(self, t: Tensor) -> Tensor:
        return self.time(t[:, None])[:, :, None, None]


@fault(
    FAULTS, "diffusion", causes="inputs-not-scaled branch-dominates exploding-signal one-input-column-dominates",
    layers="", remedies="scale-inputs rescale-layer scale-branch",
)  # fmt: skip
def times_of_0_to_1000_without_sine_features(planted: bool) -> Case:
    """The step of the diffusion enters as a plain number: its embedding is hundreds of times the image."""
    torch.manual_seed(90)
    data, noise = noisy_images()
    if not planted:
        data["t"] = data["t"] / 500 - 1
    return Case(model=BareTimeDenoiser(), data=(data, noise), loss="mse", judge=explained_variance(noise))


# ----------------------------------------------------------------------------------------------------- labels and loss


class WithLast(nn.Module):
    def __init__(self, body: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.body, self.last = body, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x))


@fault(
    FAULTS, "CNN", causes="softmax-twice", layers="last", remedies="remove-final-activation change-loss",
)  # fmt: skip
def probabilities_before_a_loss_of_logits(planted: bool) -> Case:
    """The classic of PyTorch: nn.CrossEntropyLoss applies the softmax itself."""
    torch.manual_seed(91)
    model = WithLast(ConvNet(classes=10, norm=False), nn.Softmax(dim=1) if planted else nn.Identity())
    return Case(model=model, data=blob_images(80, classes=10), loss=nn.CrossEntropyLoss())


def several_labels(count: int = 128) -> tuple[Tensor, Tensor]:
    """Return rows and six labels of which each may hold or not."""
    x = torch.randn(count, 10)
    y = torch.stack([x[:, k] * x[:, k + 1] + 0.3 * x[:, k + 2] > 0 for k in range(6)], dim=1)
    return x, y.float()


@fault(
    FAULTS, "multi-label", causes="softmax-twice", layers="last", remedies="remove-final-activation change-loss",
)  # fmt: skip
def sigmoid_before_bce_with_logits(planted: bool) -> Case:
    """PyTorch forums: sigmoid in the model and in the loss."""
    torch.manual_seed(92)
    x, y = several_labels()
    model = WithLast(mlp(10, 64, 64, 6), nn.Sigmoid() if planted else nn.Identity())

    def judge(output: Tensor) -> float:
        return ((output > (0.5 if planted else 0.0)) == (y > 0.5)).float().mean().item()

    return Case(model=model, data=(x, y), loss=nn.BCEWithLogitsLoss(), judge=judge)


@fault(
    FAULTS, "multi-label", causes="activation-before-loss loss-does-not-fit output-range-too-small", layers="last",
    remedies="change-output-activation remove-final-activation change-loss",
)  # fmt: skip
def softmax_for_labels_that_do_not_exclude_each_other(planted: bool) -> Case:
    """Stack Overflow: a softmax with binary cross entropy for several labels at once."""
    torch.manual_seed(93)
    x, y = several_labels()
    model = WithLast(mlp(10, 64, 64, 6), nn.Softmax(dim=1) if planted else nn.Sigmoid())

    def judge(output: Tensor) -> float:
        return ((output > 0.5) == (y > 0.5)).float().mean().item()

    return Case(model=model, data=(x, y), loss=nn.BCELoss(), judge=judge)


@fault(
    FAULTS, "regression", layers="last",
    causes="activation-before-loss output-range-too-small targets-out-of-range dead-units",
    remedies="remove-final-activation",
)  # fmt: skip
def rectifier_behind_a_regression(planted: bool) -> Case:
    """DeepFD: relu on the output while half of the targets are negative."""
    torch.manual_seed(94)
    model = WithLast(mlp(8, 48, 48, 1), nn.ReLU() if planted else nn.Identity())
    return Case(model=model, data=regression_table(), loss="mse")


@fault(FAULTS, "regression", causes="shapes-broadcast", layers="", remedies="match-shapes")
def column_compared_with_a_row(planted: bool) -> Case:
    """PyTorch's own warning: target size [128] against input size [128, 1]."""
    torch.manual_seed(95)
    x, y = regression_table()
    return Case(model=mlp(8, 48, 48, 1), data=(x, y.squeeze(1) if planted else y), loss=nn.MSELoss())


@fault(
    FAULTS, "regression", causes="targets-wrong-scale exploding-gradient", layers="", remedies="scale-targets",
)  # fmt: skip
def house_prices_as_they_are(planted: bool) -> Case:
    """Targets of 300 thousand for a network whose outputs begin around 0."""
    torch.manual_seed(96)
    x, y = regression_table()
    return Case(model=mlp(8, 48, 48, 1), data=(x, 310_000 + 90_000 * y if planted else y), loss="mse")


@fault(
    FAULTS, "tabular", causes="targets-out-of-range loss-does-not-fit labels-wrong", layers="",
    remedies="fix-targets change-loss",
)  # fmt: skip
def labels_of_minus_one_and_one(planted: bool) -> Case:
    """Labels for a hinge loss given to a binary cross entropy: the loss has no lower bound."""
    torch.manual_seed(97)
    x, y = table(classes=2)
    target = y.float()[:, None]

    def judge(output: Tensor) -> float:
        if not torch.isfinite(output).all():
            return -1.0
        return -F.binary_cross_entropy_with_logits(output, target).item()

    return Case(
        model=mlp(12, 48, 48, 1),
        data=(x, 2 * target - 1 if planted else target),
        loss=nn.BCEWithLogitsLoss(),
        judge=judge,
    )


@fault(
    FAULTS, "CNN", causes="loss-does-not-fit output-range-too-small", layers="last",
    remedies="change-output-activation change-loss remove-final-activation",
)  # fmt: skip
def probabilities_given_to_nll(planted: bool) -> Case:
    """nn.NLLLoss wants log-probabilities: softmax instead of log_softmax."""
    torch.manual_seed(98)
    last = nn.Softmax(dim=1) if planted else nn.LogSoftmax(dim=1)
    model = WithLast(ConvNet(classes=10, norm=False), last)
    return Case(model=model, data=blob_images(80, classes=10), loss=nn.NLLLoss())


@fault(
    FAULTS, "tabular", causes="loss-does-not-fit", layers="",
    remedies="change-output-activation change-loss",
)  # fmt: skip
def logits_given_to_nll(planted: bool) -> Case:
    """nn.NLLLoss on raw outputs: the loss falls without bound and the network blows up."""
    torch.manual_seed(99)
    x, y = table()

    def judge(output: Tensor) -> float:
        return -F.cross_entropy(output, y).item()

    return Case(model=mlp(12, 48, 48, 3), data=(x, y), loss=nn.NLLLoss() if planted else "cross_entropy", judge=judge)


@fault(
    FAULTS, "tabular", causes="normalizer-wrong-axis samples-mixed", layers="last", remedies="fix-axis",
)  # fmt: skip
def log_softmax_over_the_samples(planted: bool) -> Case:
    """log_softmax with dim=0: the rows of the batch share the probability of a class."""
    torch.manual_seed(100)
    x, y = table(classes=3)
    rare = torch.cat([(y == 0).nonzero()[:6, 0], (y == 1).nonzero()[:6, 0], (y == 2).nonzero()[:, 0]])
    x, y = x[rare], y[rare]
    model = WithLast(mlp(12, 48, 48, 3), nn.LogSoftmax(dim=0 if planted else 1))

    def judge(_: Tensor) -> float:
        with torch.no_grad():
            return -F.cross_entropy(model.body(x), y).item()

    return Case(model=model, data=(x, y), loss=nn.NLLLoss(), judge=judge)


@fault(
    FAULTS, "tabular", causes="output-constant activation-before-loss loss-does-not-fit loss-gradient-zero "
    "normalizer-wrong-axis output-range-too-small", layers="last",
    remedies="change-output-activation remove-final-activation more-outputs change-loss fix-axis",
)  # fmt: skip
def softmax_of_a_single_output(planted: bool) -> Case:
    """Stack Overflow (DeepFD): softmax of one unit is always 1."""
    torch.manual_seed(101)
    x, y = table(classes=2)
    target = y.float()[:, None]
    model = WithLast(mlp(12, 48, 48, 1), nn.Softmax(dim=1) if planted else nn.Sigmoid())
    return Case(
        model=model, data=(x, target), loss=nn.BCELoss(),
        judge=lambda output: ((output > 0.5) == (target > 0.5)).float().mean().item(),
    )  # fmt: skip


@fault(FAULTS, "tabular", causes="class-imbalance", layers="", remedies="balance-classes")
def three_frauds_in_two_hundred(planted: bool) -> Case:
    """AutoTrainer's and everyone's data of frauds: the network learns to say no."""
    torch.manual_seed(102)
    x, y = table(400, classes=2)
    order = torch.cat([(y == 0).nonzero()[:197, 0], (y == 1).nonzero()[: 3 if planted else 197, 0]])
    probe_x, probe_y = table(400, classes=2)
    model = mlp(12, 48, 48, 2)

    def judge(_: Tensor) -> float:
        with torch.no_grad():
            return (model(probe_x).argmax(1) == probe_y).float().mean().item()

    return Case(model=model, data=(x[order], y[order]), loss="cross_entropy", judge=judge)


@fault(FAULTS, "tabular", causes="loss-does-not-fit", layers="", remedies="change-loss change-output-activation")
def divergence_of_probabilities_instead_of_logarithms(planted: bool) -> Case:
    """F.kl_div expects log-probabilities as its first argument (distillation)."""
    torch.manual_seed(103)
    x, y = table(classes=6)
    teacher = F.softmax(4.0 * F.one_hot(y, 6).float(), dim=1)

    def distil(output: Tensor, target: Tensor) -> Tensor:
        student = F.softmax(output, dim=1) if planted else F.log_softmax(output, dim=1)
        return F.kl_div(student, target, reduction="batchmean")

    return Case(model=mlp(12, 64, 64, 6), data=(x, teacher), loss=distil, judge=accuracy(y))


@fault(
    FAULTS, "segmentation", causes="targets-out-of-range", layers="", remedies="fix-targets",
)  # fmt: skip
def masks_of_0_and_255(planted: bool) -> Case:
    """Masks read from PNG files and given to a binary cross entropy."""
    torch.manual_seed(104)
    images, _ = blob_images(24)
    mask = (F.avg_pool2d(images, 3, 1, 1) > 1.5).float()
    data = (images, 255 * mask if planted else mask)

    def judge(output: Tensor) -> float:
        return max(overlap_with(mask)(output), 0.0) - F.binary_cross_entropy_with_logits(output, mask).item()

    return Case(model=UNet(), data=data, loss=nn.BCEWithLogitsLoss(), judge=judge)


@fault(FAULTS, "CNN", causes="labels-constant", layers="", remedies="check-labels balance-classes")
def sorted_data_set_without_shuffling(planted: bool) -> Case:
    """ImageFolder without shuffle: a batch is all of one class."""
    torch.manual_seed(105)
    images, labels = blob_images(256)
    probe = blob_images()
    rows = labels.argsort(stable=True)[:64] if planted else torch.arange(64)
    model = ConvNet(norm=False)

    def judge(_: Tensor) -> float:
        with torch.no_grad():
            return (model(probe[0]).argmax(1) == probe[1]).float().mean().item()

    return Case(model=model, data=(images[rows], labels[rows]), loss="cross_entropy", judge=judge)


@fault(
    FAULTS, "GPT", causes="labels-wrong", layers="", remedies="shift-targets fix-targets check-labels",
)  # fmt: skip
def targets_are_the_tokens_themselves(planted: bool) -> Case:
    """nanoGPT clones: x and y are cut from the same place, so that the model learns to copy."""
    torch.manual_seed(106)
    ids, following = text()
    return Case(
        model=GPT(), data=(ids, ids if planted else following), loss=over_tokens,
        judge=lambda logits: (logits.argmax(-1) == following).float().mean().item(),
    )  # fmt: skip


class CosineClassifier(nn.Module):
    """The cosines between the embedding of an image and one direction per class, times a scale."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), *mlp(256, 64, 32))
        self.directions, self.scale = nn.Parameter(torch.randn(64, 32)), scale

    def forward(self, images: Tensor) -> Tensor:
        return self.scale * F.normalize(self.encoder(images), dim=1) @ F.normalize(self.directions, dim=1).T


@fault(
    FAULTS, "contrastive", causes="output-range-too-small", layers="",
    remedies="scale-outputs",
)  # fmt: skip
def cosines_without_a_temperature(planted: bool) -> Case:
    """Metric learning: cosines of -1..1 as logits of 64 classes cannot make the loss small."""
    torch.manual_seed(107)
    centres = torch.randn(64, 1, 16, 16)
    labels = torch.arange(128) % 64
    images = centres[labels] + 0.7 * torch.randn(128, 1, 16, 16)

    def judge(output: Tensor) -> float:
        return output.softmax(1)[torch.arange(128), labels].mean().item()

    return Case(
        model=CosineClassifier(1.0 if planted else 16.0), data=(images, labels), loss="cross_entropy", judge=judge
    )


class BoxNet(nn.Module):
    """Predicts the box (centre and size) around a blob."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, stride=2, padding=1), nn.ReLU()
        )
        self.box, self.last = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 4)), last

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.box(self.trunk(images)))


def boxes_of(images: Tensor) -> Tensor:
    """Return centre and size of the bright area of each image, in pixels."""
    weight = (images[:, 0] - 1).clamp(min=0) + 1e-3
    grid = torch.arange(16.0)
    total = weight.sum((1, 2))
    row, column = (weight.sum(2) * grid).sum(1) / total, (weight.sum(1) * grid).sum(1) / total
    size = 2 * ((weight.sum(2) * (grid - row[:, None]).square()).sum(1) / total).sqrt()
    return torch.stack([row, column, size, size], dim=1)


@fault(
    FAULTS, "detection", layers="last",
    causes="targets-out-of-range activation-before-loss output-range-too-small targets-wrong-scale",
    remedies="scale-targets fix-targets remove-final-activation scale-outputs",
)  # fmt: skip
def boxes_in_pixels_behind_a_sigmoid(planted: bool) -> Case:
    """Detection: the head ends in a sigmoid, but the boxes were not divided by the size of the image."""
    torch.manual_seed(108)
    images, _ = blob_images()
    boxes = boxes_of(images)
    return Case(model=BoxNet(nn.Sigmoid()), data=(images, boxes if planted else boxes / 16), loss=nn.SmoothL1Loss())


def square_of_the_mean_error(output: Tensor, target: Tensor) -> Tensor:
    return (output.mean() - target.mean()).square()


@fault(FAULTS, "regression", causes="loss-does-not-fit", layers="", remedies="change-loss")
def mean_taken_before_the_square(planted: bool) -> Case:
    """A loss by hand: the errors cancel before they are squared."""
    torch.manual_seed(109)
    loss = square_of_the_mean_error if planted else F.mse_loss
    return Case(model=mlp(8, 48, 48, 1), data=regression_table(), loss=loss)


@fault(
    FAULTS, "autoencoder", causes="activation-before-loss output-range-too-small targets-out-of-range", layers="last",
    remedies="remove-final-activation fix-targets scale-targets scale-inputs",
)  # fmt: skip
def sigmoid_for_standardised_images(planted: bool) -> Case:
    """An autoencoder that ends in a sigmoid, trained on images of mean 0 and standard deviation 1."""
    torch.manual_seed(110)
    images = blob_images()[0].flatten(1)
    model = Autoencoder(last=nn.Sigmoid() if planted else nn.Identity())
    return Case(model=model, data=(images, images), loss="mse")
