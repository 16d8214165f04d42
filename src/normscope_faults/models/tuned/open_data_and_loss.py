"""The open half, faults of the data, the targets and the loss."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from ..parts import (
    Autoencoder,
    ConvNet,
    GraphNet,
    Recommender,
    ResNet,
    SequenceClassifier,
    UNet,
    ViT,
    accuracy,
    as_pixels,
    binary_accuracy,
    blob_images,
    communities,
    explained_variance,
    mlp,
    overlap_with,
    ratings,
    regression_table,
    remembered_series,
    table,
    train,
    waves,
)

FAULTS: list[Fault] = []
plant = partial(fault, FAULTS)


def with_last(model: nn.Sequential, last: nn.Module | None) -> nn.Sequential:
    """Return a model with one more module at its end, where there is one."""
    return model if last is None else nn.Sequential(*model, last)


# ------------------------------------------------------------------------------------------------------------- the data


@plant("CNN", causes="inputs-not-scaled exploding-signal", remedies="scale-inputs")
def bytes_into_plain_convolutions(broken: bool) -> Case:
    """Images as they come from the file."""
    torch.manual_seed(401)
    images, y = blob_images()
    pixels = (255 * as_pixels(images)).round()
    return Case(model=ConvNet(norm=False), data=(pixels if broken else (pixels - 60) / 50, y), loss="cross_entropy")


@plant("MLP", causes="inputs-not-scaled", remedies="scale-inputs")
def bytes_before_a_layer_norm(broken: bool) -> Case:
    """LayerNorm after the first layer hides the scale but keeps what all images have in common."""
    torch.manual_seed(402)
    images, y = blob_images(96, classes=6)
    pixels = (200 + 55 * as_pixels(images)).flatten(1)
    model = nn.Sequential(nn.Linear(256, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 6))
    return Case(
        model=model, data=(pixels if broken else (pixels - pixels.mean()) / pixels.std(), y), loss="cross_entropy"
    )


@plant("ViT", causes="inputs-not-scaled vanishing-signal output-constant", remedies="scale-inputs")
def divided_by_255_twice(broken: bool) -> Case:
    """Divided by 255 twice: once by ToTensor, once by hand."""
    torch.manual_seed(403)
    images, y = blob_images()
    pixels = as_pixels(images)
    return Case(model=ViT(depth=2), data=(pixels / 255**2 if broken else 4 * pixels - 1, y), loss="cross_entropy")


@plant("MLP", causes="one-input-column-dominates inputs-not-scaled", remedies="scale-inputs")
def one_column_in_dollars(broken: bool) -> Case:
    """An income beside shares."""
    torch.manual_seed(404)
    x, y = table()
    if broken:
        x[:, 5] = 6e4 + 3e4 * x[:, 5]
    return Case(model=mlp(12, 32, 32, 3), data=(x, y), loss="cross_entropy")


@plant("GRU", causes="one-input-column-dominates inputs-not-scaled", remedies="scale-inputs")
def time_stamps_as_a_feature(broken: bool) -> Case:
    """The time stamp in seconds is fed as a feature."""
    torch.manual_seed(405)
    x, y = waves()
    stamps = torch.arange(40.0).expand(64, 40)[:, :, None]
    x = torch.cat([x, 1.7e9 + 3600 * stamps if broken else stamps / 40], dim=2)
    return Case(model=SequenceClassifier(nn.GRU(4, 24, batch_first=True), 3), data=(x, y), loss="cross_entropy")


@plant("MLP", causes="one-input-column-dominates inputs-not-scaled", remedies="scale-inputs")
def identifier_as_a_number(broken: bool) -> Case:
    """An identifier taken for a number."""
    torch.manual_seed(406)
    x, y = regression_table()
    if broken:
        x = torch.cat([x, torch.randint(10**5, 10**6, (128, 1)).float()], dim=1)
    return Case(model=mlp(x.shape[1], 32, 32, 1), data=(x, y), loss="mse")


@plant("ResNet", causes="inputs-constant output-constant", remedies="check-data")
def the_same_image_each_time(broken: bool) -> Case:
    """The data set returns its first image for every index."""
    torch.manual_seed(407)
    x, y = blob_images()
    return Case(model=ResNet(blocks=2), data=(x[:1].repeat(64, 1, 1, 1) if broken else x, y), loss="cross_entropy")


@plant("MLP", causes="inputs-constant output-constant dead-units", remedies="check-data scale-inputs")
def pixels_floor_divided(broken: bool) -> Case:
    """Integer division of pixels by 255."""
    torch.manual_seed(408)
    images, y = blob_images()
    pixels = (254 * as_pixels(images)).flatten(1)
    x = pixels // 255 if broken else (pixels - 70) / 50
    return Case(model=mlp(256, 32, 4), data=(x, y), loss="cross_entropy")


@plant("MLP", causes="not-finite-data", remedies="clean-data check-data")
def missing_values_in_a_column(broken: bool) -> Case:
    """Missing values in a table."""
    torch.manual_seed(409)
    x, y = table()
    x[5::40, 7] = torch.nan if broken else 0.0
    return Case(model=mlp(12, 32, 3), data=(x, y), loss="cross_entropy")


@plant("CNN", causes="not-finite-data", remedies="clean-data check-data guard-domain")
def logarithm_of_silence(broken: bool) -> Case:
    """The logarithm of a spectrogram with silent bins."""
    torch.manual_seed(410)
    images, y = blob_images()
    power = as_pixels(images).clamp(min=0.2) - 0.2
    x = torch.log(power if broken else power + 1e-2)
    return Case(model=ConvNet(), data=(x, y), loss="cross_entropy")


# -------------------------------------------------------------------------------------------------- the last activation


@plant(
    "ResNet",
    layers="1",
    causes="softmax-twice",
    remedies="remove-final-activation change-loss change-output-activation",
)
def softmax_then_cross_entropy(broken: bool) -> Case:
    """nn.Softmax at the end and nn.CrossEntropyLoss."""
    torch.manual_seed(411)
    x, y = blob_images(96, classes=8)
    model = nn.Sequential(ResNet(blocks=2, width=8, classes=8), nn.Softmax(1) if broken else nn.Identity())
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@plant(
    "U-Net",
    causes="softmax-twice output-range-too-small activation-before-loss",
    remedies="remove-final-activation change-loss",
)
def sigmoid_then_bce_with_logits(broken: bool) -> Case:
    """A sigmoid in the model and BCEWithLogitsLoss."""
    torch.manual_seed(412)
    x, _ = blob_images(32)
    mask = (as_pixels(x) > 0.6).float()
    model = nn.Sequential(UNet(), nn.Sigmoid() if broken else nn.Identity())
    return Case(
        model=model,
        data=(x, mask),
        loss=nn.BCEWithLogitsLoss(),
        judge=overlap_with(mask) if not broken else lambda output: overlap_with(mask)(output - 0.5),
    )


class RectifiedGraph(GraphNet):
    """A graph network that rectifies its output too."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(super().forward(x))


@plant(
    "GNN",
    causes="activation-before-loss output-range-too-small dead-units output-constant",
    remedies="remove-final-activation",
)
def relu_then_cross_entropy(broken: bool) -> Case:
    """The ReLU of the loop is applied to the last layer too."""
    torch.manual_seed(413)
    x, edges, y = communities()
    model = (RectifiedGraph if broken else GraphNet)(edges)
    with torch.no_grad():
        model.layers[1].own.bias.sub_(1.0)  # scores may begin negative
    return Case(model=model, data=(x, y), loss="cross_entropy", judge=accuracy(y))


@plant(
    "MLP",
    causes="loss-does-not-fit activation-before-loss softmax-twice",
    remedies="change-output-activation change-loss remove-final-activation",
)
def nll_of_probabilities(broken: bool) -> Case:
    """NLLLoss wants log probabilities, the model returns probabilities."""
    torch.manual_seed(414)
    x, y = table(classes=6)
    model = with_last(mlp(12, 32, 6), nn.Softmax(1) if broken else nn.LogSoftmax(1))
    return Case(model=model, data=(x, y), loss=nn.NLLLoss())


@plant(
    "MLP",
    layers="3 2",
    causes="output-constant activation-before-loss loss-gradient-zero",
    remedies="change-output-activation more-outputs remove-final-activation change-loss",
)
def softmax_of_one_output(broken: bool) -> Case:
    """A softmax over a single output."""
    torch.manual_seed(415)
    x, y = table(classes=2)
    target = y[:, None].float()
    model = with_last(mlp(12, 32, 1), nn.Softmax(1) if broken else nn.Sigmoid())
    return Case(model=model, data=(x, target), loss=nn.BCELoss(), judge=binary_accuracy(target, 0.5))


@plant(
    "MLP",
    causes="activation-before-loss targets-out-of-range output-range-too-small",
    remedies="remove-final-activation scale-targets fix-targets",
)
def tanh_for_ages(broken: bool) -> Case:
    """A tanh at the end where the targets are ages."""
    torch.manual_seed(416)
    x, y = regression_table()
    model = with_last(mlp(8, 32, 32, 1), nn.Tanh() if broken else None)
    return Case(model=model, data=(x, 4 + 2 * y), loss="mse")


@plant(
    "autoencoder",
    causes="activation-before-loss targets-out-of-range output-range-too-small",
    remedies="remove-final-activation scale-targets fix-targets change-output-activation",
)
def sigmoid_decoder_for_standardised_images(broken: bool) -> Case:
    """A sigmoid decoder for standardised images."""
    torch.manual_seed(417)
    x = blob_images()[0].flatten(1)
    return Case(model=Autoencoder(last=nn.Sigmoid() if broken else None), data=(x, x), loss="mse")


@plant(
    "MLP",
    causes="activation-before-loss output-range-too-small dead-units targets-out-of-range",
    remedies="remove-final-activation change-activation",
)
def relu_for_standardised_targets(broken: bool) -> Case:
    """A ReLU after the last layer of a regression with negative targets."""
    torch.manual_seed(418)
    x, y = regression_table()
    return Case(model=with_last(mlp(8, 32, 32, 1), nn.ReLU() if broken else None), data=(x, y), loss="mse")


# --------------------------------------------------------------------------------------------- the loss and the targets


@plant("MLP", causes="loss-does-not-fit", remedies="change-loss more-outputs")
def squares_of_class_numbers(broken: bool) -> Case:
    """Numbers of classes fitted as if they were quantities."""
    torch.manual_seed(419)
    x, order = table(count=300, classes=6)
    y = torch.tensor([3, 0, 5, 1, 4, 2])[order]  # classes have no order
    if not broken:
        return Case(model=mlp(12, 32, 32, 6), data=(x, y), loss="cross_entropy")
    return Case(
        model=mlp(12, 32, 32, 1),
        data=(x, y[:, None].float()),
        loss="mse",
        judge=lambda output: (output[:, 0].round() == y).float().mean().item(),
    )


@plant("recommender", causes="targets-wrong-scale", remedies="scale-targets")
def targets_in_ten_thousands(broken: bool) -> Case:
    """Prices in euros."""
    torch.manual_seed(420)
    pairs, score = ratings()
    return Case(model=Recommender(), data=(pairs, 3e4 + 1e4 * score if broken else score), loss="mse")


@plant("LSTM", causes="targets-wrong-scale", remedies="scale-targets")
def targets_at_a_hundred_thousandth(broken: bool) -> Case:
    """Flow rates in cubic metres per second: all targets near 1e-5."""
    torch.manual_seed(421)
    x, _ = waves()
    y = x[:, -4:, :].mean((1, 2))[:, None]
    y = (y - y.mean()) / y.std()
    model = SequenceClassifier(nn.LSTM(3, 16, batch_first=True), 1)
    return Case(model=model, data=(x, 1e-5 * y if broken else y), loss="mse")


@plant("MLP", causes="shapes-broadcast", remedies="match-shapes")
def column_against_row(broken: bool) -> Case:
    """Outputs (N, 1) and targets (N,)."""
    torch.manual_seed(422)
    x, y = regression_table()
    return Case(
        model=mlp(8, 32, 32, 1),
        data=(x, y[:, 0] if broken else y),
        loss="mse",
        judge=explained_variance(y),
    )


@plant("CNN", causes="labels-constant class-imbalance", remedies="check-labels balance-classes check-data")
def labels_all_of_one_class(broken: bool) -> Case:
    """The labels are read from a column that was never filled in."""
    torch.manual_seed(423)
    x, y = blob_images()
    data = (x, torch.zeros_like(y) if broken else y)
    return Case(model=ConvNet(), data=data, loss="cross_entropy", judge=accuracy(y))


@plant("MLP", causes="class-imbalance", remedies="balance-classes change-loss")
def one_case_in_sixty(broken: bool) -> Case:
    """Fraud: one case in sixty."""
    torch.manual_seed(424)
    x, y = table(count=360, classes=60)
    rare = y == 59

    def balanced(output: Tensor) -> float:
        hits = (output.argmax(1) == 1) == rare
        return (hits[rare].float().mean() + hits[~rare].float().mean()).item() / 2

    if broken:
        return Case(model=mlp(12, 8, 2), data=(x, rare.long()), loss="cross_entropy", judge=balanced)
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 59.0]))
    return Case(model=mlp(12, 8, 2), data=(x, rare.long()), loss=weighted, judge=balanced)


@plant("CNN", causes="labels-wrong", remedies="check-labels fix-targets")
def labels_shifted_by_one(broken: bool) -> Case:
    """Labels counted from 1 in the file that is read now, from 0 in the one that was trained on."""
    torch.manual_seed(425)
    x, y = blob_images(96, classes=6)
    model = ConvNet(classes=7)
    train(model, x, y, F.cross_entropy, steps=60)
    return Case(model=model, data=(x, y + 1 if broken else y), loss="cross_entropy", train=False)


@plant("MLP", causes="labels-wrong output-constant", remedies="check-labels")
def labels_of_other_rows(broken: bool) -> Case:
    """The inputs were shuffled, the labels were not."""
    torch.manual_seed(426)
    x, y = regression_table(256)
    model = mlp(8, 32, 1)
    train(model, x, y, F.mse_loss, steps=200)
    return Case(model=model, data=(x, y[torch.randperm(256)] if broken else y), loss="mse", train=False)


@plant(
    "MLP",
    causes="output-constant dead-units",
    remedies="lower-learning-rate restore-weights initialise change-activation reset-bias",
)
def trained_to_the_mean(broken: bool) -> Case:
    """Trained for long at a rate that killed it early; nobody looked."""
    torch.manual_seed(427)
    x, y = regression_table()
    model = mlp(8, 16, 16, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3.0 if broken else 3e-3)
    train(model, x, y, F.mse_loss, steps=200, optimizer=optimizer)
    return Case(model=model, data=(x, y), loss="mse", train=False)


def error_rate(output: Tensor, target: Tensor) -> Tensor:
    """Return the share of wrong classes, which has no slope."""
    return (output.argmax(1) != target).float().mean()


@plant("RNN", causes="no-gradient loss-gradient-zero loss-does-not-fit", remedies="keep-gradient change-loss")
def error_rate_as_loss(broken: bool) -> Case:
    """The error rate itself as the loss."""
    torch.manual_seed(428)
    x, y = remembered_series(steps=8)
    model = SequenceClassifier(nn.RNN(4, 16, batch_first=True), 4)
    return Case(model=model, data=(x, y), loss=error_rate if broken else "cross_entropy", judge=accuracy(y))


class Clamped(nn.Module):
    """An MLP that clamps its output to 0..1."""

    def __init__(self, clamp: bool) -> None:
        super().__init__()
        self.clamp, self.body = clamp, mlp(8, 32, 1)
        nn.init.constant_(self.body[2].bias, 4.0 if clamp else 0.5)

    def forward(self, x: Tensor) -> Tensor:
        output = self.body(x)
        return output.clamp(0, 1) if self.clamp else output


@plant(
    "MLP",
    causes="loss-gradient-zero no-gradient output-constant activation-before-loss saturated-units",
    remedies="remove-final-activation change-output-activation reset-bias change-activation keep-gradient",
)
def clamp_holds_every_output(broken: bool) -> Case:
    """Outputs clamped to the range of the targets, all of them beyond it."""
    torch.manual_seed(429)
    x, y = regression_table()
    return Case(model=Clamped(broken), data=(x, as_pixels(y)), loss="mse")


class Cosines(nn.Module):
    """Scores of classes by cosines with learned centres, divided by a temperature."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature, self.body = temperature, mlp(12, 32, 16)
        self.centres = nn.Parameter(torch.randn(6, 16))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.body(x), dim=1) @ F.normalize(self.centres, dim=1).T / self.temperature


@plant("metric learning", causes="output-range-too-small activation-before-loss", remedies="scale-outputs")
def temperature_the_wrong_way_around(broken: bool) -> Case:
    """Multiplied by the temperature where one divides by it."""
    torch.manual_seed(430)
    x, y = table(count=192, classes=6)
    return Case(model=Cosines(50.0 if broken else 0.1), data=(x, y), loss="cross_entropy")


@plant("MLP", causes="loss-does-not-fit", remedies="change-loss")
def labels_smoothed_away(broken: bool) -> Case:
    """label_smoothing=0.9 where 0.1 was meant."""
    torch.manual_seed(431)
    x, y = table(classes=6)
    loss = nn.CrossEntropyLoss(label_smoothing=0.95 if broken else 0.05)
    return Case(model=mlp(12, 32, 32, 6), data=(x, y), loss=loss)


@plant("CNN", causes="targets-out-of-range loss-does-not-fit", remedies="fix-targets change-loss")
def bce_with_signs(broken: bool) -> Case:
    """Labels of -1 and 1, from a data set for support vector machines."""
    torch.manual_seed(432)
    x, y = blob_images(classes=2)
    x = x + 1.5 * torch.randn_like(x)
    target = y[:, None].float()
    return Case(
        model=ConvNet(classes=1, width=8, depth=2),
        data=(x, 2 * target - 1 if broken else target),
        loss=F.binary_cross_entropy_with_logits,
        judge=lambda output: -F.binary_cross_entropy_with_logits(output, target).item(),
    )


@plant("U-Net", causes="targets-out-of-range targets-wrong-scale", remedies="fix-targets scale-targets")
def masks_of_255(broken: bool) -> Case:
    """Masks read from a PNG file: 0 and 255."""
    torch.manual_seed(433)
    x, _ = blob_images(32)
    mask = (as_pixels(x) > 0.6).float()
    return Case(
        model=UNet(),
        data=(x, 255 * mask if broken else mask),
        loss=F.binary_cross_entropy_with_logits,
        judge=lambda logits: -F.binary_cross_entropy_with_logits(logits, mask).item(),
    )


def divergence(output: Tensor, target: Tensor) -> Tensor:
    """Return torch's Kullback-Leibler divergence, which wants log probabilities of the model."""
    return F.kl_div(output, target, reduction="batchmean")


@plant(
    "distillation",
    causes="loss-does-not-fit activation-before-loss softmax-twice",
    remedies="change-output-activation change-loss remove-final-activation",
)
def divergence_of_probabilities(broken: bool) -> Case:
    """kl_div of probabilities instead of log probabilities."""
    torch.manual_seed(434)
    x, y = table(classes=4)
    soft = torch.softmax(4.0 * F.one_hot(y, 4), dim=1)
    model = with_last(mlp(12, 32, 32, 4), nn.Softmax(1) if broken else nn.LogSoftmax(1))
    return Case(model=model, data=(x, soft), loss=divergence, judge=accuracy(y))


class Variational(Autoencoder):
    """An autoencoder whose code is drawn around a mean, with the logarithm of its variance beside it."""

    def __init__(self) -> None:
        super().__init__(code=16)
        self.decoder[0] = nn.Linear(8, self.decoder[0].out_features)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, logvar = self.encoder(x).chunk(2, dim=1)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * logvar).exp()), mean, logvar


def error_plus_divergence(output: tuple[Tensor, Tensor, Tensor], target: Tensor, factor: float = 0.03) -> Tensor:
    """Return the loss of a variational autoencoder."""
    again, mean, logvar = output
    return F.mse_loss(again, target) - factor * 0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(1).mean()


@plant("VAE", causes="loss-does-not-fit", remedies="minimise change-loss")
def divergence_with_the_wrong_sign(broken: bool) -> Case:
    """The minus in front of the formula was taken for that of a likelihood, and left out."""
    torch.manual_seed(435)
    x = blob_images(classes=8)[0].flatten(1)
    loss = partial(error_plus_divergence, factor=-0.03 if broken else 0.03)
    return Case(model=Variational(), data=(x, x), loss=loss, judge=lambda made: -F.mse_loss(made[0], x).item())


def squares_plus_divergence(output: tuple[Tensor, Tensor, Tensor], target: Tensor, sign: float = 1.0) -> Tensor:
    """Return the loss of a variational autoencoder, written with tensors alone."""
    again, mean, logvar = output
    divergence = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(1).mean()
    return (again - target).square().mean() + sign * 0.03 * divergence


def variational_case(broken: bool, seed: int, steps: int) -> Case:
    """Return a variational autoencoder after some steps of SGD on its loss, with the divergence added or subtracted."""
    torch.manual_seed(seed)
    x = blob_images(classes=8)[0].flatten(1)
    model, loss = Variational(), partial(squares_plus_divergence, sign=-1.0 if broken else 1.0)
    train(model, x, x, loss, steps=steps, optimizer=torch.optim.SGD(model.parameters(), lr=0.3))
    return Case(model=model, data=(x, x), loss=loss, judge=lambda made: -F.mse_loss(made[0], x).item())


@plant("VAE", causes="loss-does-not-fit", remedies="minimise change-loss")
def divergence_subtracted(broken: bool) -> Case:
    """The evidence is to grow and the loss to fall: the sign of one of the two terms was turned around."""
    return variational_case(broken, 439, steps=0)


@plant("VAE", causes="loss-does-not-fit", remedies="minimise change-loss")
def divergence_subtracted_until_it_overflowed(broken: bool) -> Case:
    """The same behind steps that made the code, and then every weight, no numbers."""
    return variational_case(broken, 440, steps=200)


class TwoTargets(nn.Module):
    """Scores of classes, with a softmax or without, and a number, by two heads of one trunk."""

    def __init__(self, softmax: bool) -> None:
        super().__init__()
        self.trunk, self.kind, self.number = mlp(12, 48, 48), nn.Linear(48, 3), nn.Linear(48, 1)
        self.softmax = softmax

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.trunk(x))
        return self.kind(x).softmax(1) if self.softmax else self.kind(x), self.number(x)


def both_errors(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the sum of the losses of two tasks."""
    return F.cross_entropy(output[0], target[:, 0].long()) + F.mse_loss(output[1][:, 0], target[:, 1])


@plant("multi-task", layers="kind", causes="softmax-twice activation-before-loss", remedies="remove-final-activation")
def softmax_of_the_first_of_two_tasks(broken: bool) -> Case:
    """The head for classes keeps the softmax that it had when it was used alone."""
    torch.manual_seed(436)
    x, y = table()
    targets = torch.stack([y.float(), torch.tanh(x[:, 4] - x[:, 5])], dim=1)
    return Case(
        model=TwoTargets(broken),
        data=(x, targets),
        loss=both_errors,
        judge=lambda made: (made[0].argmax(1) == y).float().mean().item(),
    )


def pressure_in_pascals(broken: bool, seed: int, steps: int) -> Case:
    """Return a regression on columns of which one is in another unit, after some steps of SGD."""
    torch.manual_seed(seed)
    x, y = regression_table()
    if broken:
        x[:, 3] *= 1e5
    model = mlp(8, 32, 32, 1)
    train(model, x, y, F.mse_loss, steps=steps, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    return Case(model=model, data=(x, y), loss="mse")


@plant("MLP", causes="one-input-column-dominates inputs-not-scaled", remedies="scale-inputs")
def pascals_after_one_step(broken: bool) -> Case:
    """One step on a raw column makes outputs so large that their squares overflow."""
    return pressure_in_pascals(broken, 437, steps=1)


@plant("MLP", causes="one-input-column-dominates inputs-not-scaled", remedies="scale-inputs")
def pascals_after_four_steps(broken: bool) -> Case:
    """The weights are NaN, as those of a run that nobody looked at."""
    return pressure_in_pascals(broken, 438, steps=4)
