"""Held-out faults of the data, the targets, and the loss beside the last activation."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from .. import parts

FAULTS: list[Fault] = []


@fault(
    FAULTS,
    family="CNN",
    causes="inputs-not-scaled exploding-signal exploding-gradient",
    remedies="scale-inputs",
    source="Humbatova et al. 2020: missing normalisation of images; uint8 pixels cast to float.",
)
def pixels_from_0_to_255(planted: bool) -> Case:
    torch.manual_seed(31)
    images, y = parts.blob_images(48, channels=3)
    x = (255 * parts.as_pixels(images)).round() if planted else images
    return Case(model=parts.ConvNet(3, norm=False), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="MLP",
    causes="inputs-not-scaled vanishing-signal",
    remedies="scale-inputs",
    source="Pixels divided by 255 in the data set and again by the transform.",
)
def pixels_divided_twice(planted: bool) -> Case:
    torch.manual_seed(32)
    images, y = parts.blob_images(64, size=8)
    x = parts.as_pixels(images) / 255 if planted else images
    model = nn.Sequential(nn.Flatten(), *parts.mlp(64, 48, 48, 4))
    return Case(model=model, data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    family="MLP",
    causes="one-input-column-dominates inputs-not-scaled",
    remedies="scale-inputs",
    source="A table with a column of incomes in cents beside columns of about 1 (UMLAUT: input not normalised).",
)
def income_column_in_cents(planted: bool) -> Case:
    torch.manual_seed(33)
    x, y = parts.table()
    if planted:
        x = x.clone()
        x[:, 6] = 3e5 + 1e5 * x[:, 6]
    return Case(model=parts.mlp(12, 32, 32, 3), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="LSTM",
    causes="one-input-column-dominates inputs-not-scaled saturated-units",
    remedies="scale-inputs",
    source="Series whose first column is a Unix timestamp.",
)
def timestamp_as_a_feature(planted: bool) -> Case:
    torch.manual_seed(34)
    x, y = parts.waves(48, steps=24)
    if planted:
        x = x.clone()
        x[:, :, 0] = 1.7e9 + 60.0 * torch.arange(24) + 86400.0 * torch.randint(300, (48, 1))
    model = parts.SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="MLP",
    causes="inputs-not-scaled one-input-column-dominates",
    remedies="scale-inputs",
    source="Category ids fed to a linear layer as numbers instead of through an embedding.",
)
def category_ids_as_numbers(planted: bool) -> Case:
    torch.manual_seed(35)
    ids = torch.randint(4, (128, 4))
    y = (ids[:, 0] + ids[:, 1]) % 3
    codes = torch.randint(10_000, 90_000, (4, 4)).float()
    x = codes[torch.arange(4), ids] if planted else (ids - 1.5) / 1.12
    return Case(model=parts.mlp(4, 48, 48, 3), data=(x, y), loss=F.cross_entropy)


@fault(
    FAULTS,
    family="CNN",
    causes="inputs-constant output-constant",
    remedies="check-data",
    source="A data set whose __getitem__ ignores its index: every sample is the first image.",
)
def every_sample_the_same_image(planted: bool) -> Case:
    torch.manual_seed(36)
    x, y = parts.blob_images(48)
    x = x[:1].repeat(48, 1, 1, 1) if planted else x
    return Case(model=parts.ConvNet(norm=False), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="ViT",
    causes="inputs-constant output-constant inputs-not-scaled",
    remedies="check-data scale-inputs",
    source="`images // 255` on an integer tensor: all pixels become 0.",
)
def images_divided_as_integers(planted: bool) -> Case:
    torch.manual_seed(37)
    images, y = parts.blob_images(32)
    pixels = (254 * parts.as_pixels(images)).to(torch.uint8)
    x = (pixels // 255).float() if planted else images
    return Case(model=parts.ViT(), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="MLP",
    causes="not-finite-data not-finite",
    remedies="clean-data check-data",
    source="Missing values of a CSV file that pandas reads as NaN.",
)
def missing_values_in_a_table(planted: bool) -> Case:
    torch.manual_seed(38)
    x, y = parts.regression_table()
    if planted:
        x = x.clone()
        x[torch.rand(len(x)) < 0.05, 4] = float("nan")
    return Case(model=parts.mlp(8, 32, 32, 1), data=(x, y), loss=nn.MSELoss())


@fault(
    FAULTS,
    family="CNN",
    causes="softmax-twice activation-before-loss output-range-too-small",
    layers="1 0.head",
    remedies="remove-final-activation change-loss",
    source="The most frequent question of the PyTorch forum: nn.Softmax before nn.CrossEntropyLoss.",
)
def softmax_before_cross_entropy(planted: bool) -> Case:
    torch.manual_seed(39)
    x, y = parts.blob_images(60, classes=10, size=16)
    net = parts.ConvNet(classes=10)
    model = nn.Sequential(net, nn.Softmax(dim=1)) if planted else nn.Sequential(net)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="BERT",
    causes="softmax-twice activation-before-loss output-range-too-small",
    remedies="remove-final-activation change-loss",
    source="Probabilities returned for convenience and trained with BCEWithLogitsLoss.",
)
def sigmoid_before_loss_with_logits(planted: bool) -> Case:
    torch.manual_seed(40)

    class Scorer(parts.SentenceEncoder):
        """One score per sentence."""

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(32, 1)

        def forward(self, ids: Tensor) -> Tensor:
            score = super().forward(ids).squeeze(1)
            return torch.sigmoid(score) if planted else score

    ids, labels = parts.sentences()
    y = labels.float()
    judge = parts.binary_accuracy(y, 0.5 if planted else 0.0)
    return Case(model=Scorer(), data=(ids, y), loss=nn.BCEWithLogitsLoss(), judge=judge)


@fault(
    FAULTS,
    family="MLP",
    causes="loss-does-not-fit activation-before-loss softmax-twice",
    layers="5",
    remedies="change-output-activation change-loss remove-final-activation guard-domain",
    source="Stack Overflow: nn.Softmax with nn.NLLLoss; the loss is negative and stops at -1.",
)
def probabilities_into_nll_loss(planted: bool) -> Case:
    torch.manual_seed(41)
    x, y = parts.table(classes=8)
    last = nn.Softmax(dim=1) if planted else nn.LogSoftmax(dim=1)
    model = nn.Sequential(*parts.mlp(12, 32, 32, 8), last)
    return Case(model=model, data=(x, y), loss=nn.NLLLoss())


@fault(
    FAULTS,
    family="ViT",
    causes="activation-before-loss dead-units output-range-too-small",
    layers="1 0.head",
    remedies="remove-final-activation",
    source="A list of layers built in a loop, each followed by ReLU, the last one too (UMLAUT, DeepFD).",
)
def relu_before_cross_entropy(planted: bool) -> Case:
    torch.manual_seed(42)
    x, y = parts.blob_images(48)
    net = parts.ViT(depth=2)
    with torch.no_grad():
        net.head.bias.sub_(0.6)
    model = nn.Sequential(net, nn.ReLU()) if planted else nn.Sequential(net)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="MLP",
    causes="output-constant activation-before-loss loss-gradient-zero",
    layers="5 4",
    remedies="change-output-activation more-outputs remove-final-activation",
    source="Stack Overflow, DeepFD: softmax over a single output unit is always 1.",
)
def softmax_over_one_output(planted: bool) -> Case:
    torch.manual_seed(43)
    x, labels = parts.table(classes=2)
    y = labels.float()[:, None]
    model = nn.Sequential(*parts.mlp(12, 32, 32, 1), nn.Softmax(dim=1) if planted else nn.Sigmoid())
    return Case(model=model, data=(x, y), loss=nn.BCELoss(), judge=parts.binary_accuracy(y, 0.5))


@fault(
    FAULTS,
    family="MLP",
    causes="samples-mixed normalizer-wrong-axis activation-before-loss",
    layers="5",
    remedies="fix-axis",
    source="nn.LogSoftmax(dim=0): normalised over the batch.",
)
def log_softmax_over_the_batch(planted: bool) -> Case:
    torch.manual_seed(44)
    x, y = parts.table(96, classes=3)
    model = nn.Sequential(*parts.mlp(12, 32, 32, 3), nn.LogSoftmax(dim=0 if planted else 1))

    def accuracy_one_by_one(output: Tensor) -> float:
        return parts.accuracy(y)(torch.cat([model(row) for row in x.split(1)]))

    return Case(model=model, data=(x, y), loss=nn.NLLLoss(), judge=accuracy_one_by_one)


@fault(
    FAULTS,
    family="MLP",
    causes="targets-out-of-range activation-before-loss output-range-too-small saturated-units targets-wrong-scale",
    layers="5 4",
    remedies="remove-final-activation scale-targets fix-targets",
    source="A regression with tanh at the end and targets from 0 to 10.",
)
def tanh_output_for_targets_up_to_ten(planted: bool) -> Case:
    torch.manual_seed(45)
    x, y = parts.regression_table()
    y = (5 + 2 * y).clamp(0, 10)
    layers = parts.mlp(8, 32, 32, 1)
    return Case(
        model=nn.Sequential(*layers, nn.Tanh()) if planted else nn.Sequential(*layers), data=(x, y), loss=nn.MSELoss()
    )


@fault(
    FAULTS,
    family="autoencoder",
    causes="targets-out-of-range activation-before-loss output-range-too-small",
    layers="last decoder.4",
    remedies="remove-final-activation scale-targets fix-targets change-output-activation scale-inputs",
    source="An autoencoder with a sigmoid at the end for images standardised to mean 0.",
)
def sigmoid_output_for_standardised_images(planted: bool) -> Case:
    torch.manual_seed(46)
    images, _ = parts.blob_images(64)
    x = images.flatten(1)
    model = parts.Autoencoder(last=nn.Sigmoid() if planted else nn.Identity())
    return Case(model=model, data=(x, x), loss=nn.MSELoss())


@fault(
    FAULTS,
    family="U-Net",
    causes="targets-out-of-range loss-does-not-fit",
    remedies="fix-targets scale-targets",
    source="Masks saved as PNG files, with 255 for the object, given to BCEWithLogitsLoss.",
)
def masks_with_255(planted: bool) -> Case:
    torch.manual_seed(47)
    x, _ = parts.blob_images(16)
    mask = (x > 1.0).float()
    y = 255 * mask if planted else mask
    return Case(model=parts.UNet(), data=(x, y), loss=nn.BCEWithLogitsLoss(), judge=parts.overlap_with(mask))


@fault(
    FAULTS,
    family="discriminator",
    causes="targets-out-of-range loss-does-not-fit",
    remedies="fix-targets change-loss",
    source="The hinge loss wants -1 and 1; labels 0 and 1 leave one class without a gradient.",
)
def hinge_loss_with_zero_one_labels(planted: bool) -> Case:
    torch.manual_seed(48)
    images, classes = parts.blob_images(64, classes=2)
    y = classes.float()[:, None]
    target = y if planted else 2 * y - 1

    def hinge(output: Tensor, target: Tensor) -> Tensor:
        return F.relu(1 - output * target).mean()

    return Case(model=parts.discriminator(), data=(images, target), loss=hinge, judge=parts.binary_accuracy(y))


@fault(
    FAULTS,
    family="CNN",
    causes="loss-does-not-fit targets-wrong-scale",
    remedies="change-loss more-outputs",
    source="Humbatova et al. 2020: wrong loss; class numbers regressed with the squared error.",
)
def squared_error_on_class_numbers(planted: bool) -> Case:
    torch.manual_seed(49)
    x, y = parts.blob_images(60, classes=10)
    if not planted:
        return Case(model=parts.ConvNet(classes=10), data=(x, y), loss=nn.CrossEntropyLoss())

    def squared_error(output: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(output.squeeze(1), target.float())

    def judge(output: Tensor) -> float:
        return (output.squeeze(1).round() == y).float().mean().item()

    return Case(model=parts.ConvNet(classes=1), data=(x, y), loss=squared_error, judge=judge)


@fault(
    FAULTS,
    family="MLP",
    causes="targets-wrong-scale exploding-gradient",
    remedies="scale-targets",
    source="House prices in dollars as targets of a network whose outputs are about 1.",
)
def prices_in_dollars(planted: bool) -> Case:
    torch.manual_seed(50)
    x, y = parts.regression_table()
    target = 250_000 + 60_000 * y if planted else y
    return Case(model=parts.mlp(8, 32, 32, 1), data=(x, target), loss=nn.MSELoss())


@fault(
    FAULTS,
    family="MLP",
    causes="shapes-broadcast",
    remedies="match-shapes",
    source="torch's own warning, ignored: outputs (N, 1), targets (N,), MSELoss.",
)
def outputs_against_targets_broadcast(planted: bool) -> Case:
    torch.manual_seed(51)
    x, y = parts.regression_table(64)
    return Case(model=parts.mlp(8, 32, 32, 1), data=(x, y.squeeze(1) if planted else y), loss=nn.MSELoss())


@fault(
    FAULTS,
    family="GNN",
    causes="shapes-broadcast",
    remedies="match-shapes",
    source="A loss written by hand, in which torch warns about nothing.",
)
def hand_written_loss_broadcasts(planted: bool) -> Case:
    torch.manual_seed(52)
    x, edges, _ = parts.communities()
    degree = torch.bincount(edges[1], minlength=len(x)).float()
    y = (x[:, 0] * x[:, 1] + 0.2 * degree - 0.2 * degree.mean()) / 1.2

    def huber(output: Tensor, target: Tensor) -> Tensor:
        error = (output - target).abs()
        return torch.where(error < 1, 0.5 * error.square(), error - 0.5).mean()

    class Regressor(parts.GraphNet):
        """One number per node."""

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if planted else super().forward(x).squeeze(1)

    return Case(model=Regressor(edges, width=32, classes=1), data=(x, y), loss=huber)


@fault(
    FAULTS,
    family="CNN",
    causes="labels-constant class-imbalance",
    remedies="check-labels check-data balance-classes",
    source="A folder of files sorted by class and read without shuffling: the whole batch is of one class.",
)
def all_labels_of_one_class(planted: bool) -> Case:
    torch.manual_seed(53)
    x, y = parts.blob_images(48)
    labels = torch.zeros_like(y) if planted else y
    return Case(model=parts.ConvNet(), data=(x, labels), loss=nn.CrossEntropyLoss(), judge=parts.accuracy(y))


@fault(
    FAULTS,
    family="MLP",
    causes="class-imbalance",
    remedies="balance-classes",
    source="Fraud detection: three labels of 256 are positive, plain cross entropy.",
)
def three_positives_in_a_batch(planted: bool) -> Case:
    torch.manual_seed(54)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 12)
        return x, (x[:, 0] * x[:, 1] + x[:, 2] + 0.5 * torch.randn(count)).argsort().argsort() / count

    x, rank = draw(256)
    y = (rank > 0.985 if planted else rank > 0.5).long()
    model = parts.mlp(12, 32, 32, 2)
    unseen, unseen_rank = draw(2000)

    def balanced_accuracy_on_unseen(output: Tensor) -> float:
        right = model(unseen).argmax(1) == (unseen_rank > 0.985 if planted else unseen_rank > 0.5)
        positive = unseen_rank > (0.985 if planted else 0.5)
        return (0.5 * right[positive].float().mean() + 0.5 * right[~positive].float().mean()).item()

    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss(), judge=balanced_accuracy_on_unseen)


@fault(
    FAULTS,
    family="MLP",
    causes="loss-gradient-zero loss-does-not-fit",
    remedies="change-loss more-outputs",
    source="PyTorch forum: one output unit with CrossEntropyLoss and targets (N, 1): the loss is always 0.",
)
def cross_entropy_with_one_output(planted: bool) -> Case:
    torch.manual_seed(55)
    x, labels = parts.table(classes=2)
    y = labels.float()[:, None]
    loss = nn.CrossEntropyLoss() if planted else nn.BCEWithLogitsLoss()
    return Case(model=parts.mlp(12, 32, 32, 1), data=(x, y), loss=loss, judge=parts.binary_accuracy(y))


@fault(
    FAULTS,
    family="GRU",
    causes="no-gradient loss-gradient-zero",
    remedies="change-loss keep-gradient",
    source="Accuracy used as the loss (`requires_grad_()` added to silence the error).",
)
def accuracy_as_loss(planted: bool) -> Case:
    torch.manual_seed(56)
    x, y = parts.waves(48, steps=24)
    model = parts.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)

    def error_rate(output: Tensor, target: Tensor) -> Tensor:
        return (output.argmax(1) != target).float().mean().requires_grad_()

    return Case(model=model, data=(x, y), loss=error_rate if planted else nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="MLP",
    causes="loss-does-not-fit softmax-twice activation-before-loss",
    layers="5",
    remedies="change-loss change-output-activation guard-domain",
    source="nn.KLDivLoss expects log probabilities and is given probabilities.",
)
def probabilities_into_kl_divergence(planted: bool) -> Case:
    torch.manual_seed(57)
    x, classes = parts.table(classes=5)
    y = 0.9 * F.one_hot(classes, 5).float() + 0.02
    last = nn.Softmax(dim=1) if planted else nn.LogSoftmax(dim=1)
    model = nn.Sequential(*parts.mlp(12, 32, 32, 5), last)
    loss = nn.KLDivLoss(reduction="batchmean")
    return Case(model=model, data=(x, y), loss=loss, judge=parts.accuracy(classes))


@fault(
    FAULTS,
    family="MLP",
    causes="activation-before-loss dead-units output-constant targets-out-of-range",
    layers="5 4",
    remedies="remove-final-activation change-activation",
    source="ReLU after the last layer of a regression whose targets are also negative.",
)
def relu_output_for_negative_targets(planted: bool) -> Case:
    torch.manual_seed(58)
    x, y = parts.regression_table()
    layers = parts.mlp(8, 32, 32, 1)
    return Case(
        model=nn.Sequential(*layers, nn.ReLU()) if planted else nn.Sequential(*layers),
        data=(x, y - 0.5),
        loss=nn.MSELoss(),
    )


@fault(
    FAULTS,
    family="Siamese",
    causes="output-range-too-small activation-before-loss",
    remedies="scale-outputs",
    source="Contrastive training in the manner of CLIP that forgot the temperature: logits are cosines.",
)
def cosine_logits_without_temperature(planted: bool) -> Case:
    torch.manual_seed(59)

    class Matcher(nn.Module):
        """The cosines of each image of a batch with four learned class vectors."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Flatten(), *parts.mlp(256, 64, 24))
            self.classes = nn.Parameter(torch.randn(24, 24))

        def forward(self, images: Tensor) -> Tensor:
            codes, vectors = F.normalize(self.encoder(images), dim=1), F.normalize(self.classes, dim=1)
            return codes @ vectors.T if planted else 14.0 * codes @ vectors.T

    x, y = parts.blob_images(72, classes=24)
    return Case(model=Matcher(), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="MLP",
    causes="output-range-too-small activation-before-loss saturated-units loss-gradient-zero no-gradient "
    "targets-out-of-range output-constant",
    remedies="remove-final-activation scale-targets fix-targets change-output-activation",
    source="Predictions clamped to the range that the targets had before they were rescaled.",
)
def clamped_output(planted: bool) -> Case:
    torch.manual_seed(60)

    class Bounded(nn.Module):
        """A regression with its output clamped."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = parts.mlp(8, 32, 32, 1)
            nn.init.constant_(self.layers[-1].bias, 1.5)

        def forward(self, x: Tensor) -> Tensor:
            prediction = 2 + self.layers(x)
            return prediction.clamp(0, 1) if planted else prediction

    x, y = parts.regression_table()
    return Case(model=Bounded(), data=(x, 3 + 1.5 * y), loss=nn.L1Loss())
