"""Faults of the loss and of the last activation before it."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import changed
from ...training import accuracy, binary_accuracy, over_tokens, overlap_with, train
from . import rarer, rarer_sequences


class RectifiedGraph(nets.GraphNet):  # A graph network that rectifies its output too.
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(super().forward(x))


@OPEN
def relu_then_cross_entropy(broken: bool) -> Case:
    """GNN | 413 | The ReLU of the loop is applied to the last layer too.
    | activation-before-loss dead-units output-constant output-range-too-small | | remove-final-activation"""
    x, edges, y = draw.communities()
    model = (RectifiedGraph if broken else nets.GraphNet)(edges)
    with torch.no_grad():
        model.layers[1].own.bias.sub_(1.0)  # scores may begin negative
    return Case((x, y), model, "cross_entropy", judge_of=accuracy)


@OPEN
def squares_of_class_numbers(broken: bool) -> Case:
    """MLP | 419 | Numbers of classes fitted as if they were quantities.
    | loss-does-not-fit | | change-loss more-outputs"""
    x, order = draw.table(count=300, classes=6)
    y = torch.tensor([3, 0, 5, 1, 4, 2])[order]  # classes have no order
    if not broken:
        return Case(model=nets.mlp(12, 32, 32, 6), data=(x, y), loss="cross_entropy")
    return Case(
        (x, y[:, None].float()),
        nets.mlp(12, 32, 32, 1),
        "mse",
        judge=lambda output: (output[:, 0].round() == y).float().mean().item(),
    )


class Clamped(nn.Module):  # An MLP that clamps its output to 0..1.
    def __init__(self, clamp: bool) -> None:
        super().__init__()
        self.clamp, self.body = clamp, nets.mlp(8, 32, 1)
        nn.init.constant_(self.body[2].bias, 4.0 if clamp else 0.5)

    def forward(self, x: Tensor) -> Tensor:
        output = self.body(x)
        return output.clamp(0, 1) if self.clamp else output


def divergence(output: Tensor, target: Tensor) -> Tensor:
    """Return torch's Kullback-Leibler divergence, which wants log probabilities of the model."""
    return F.kl_div(output, target, reduction="batchmean")


class Variational(nets.Autoencoder):
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


def squares_plus_divergence(output: tuple[Tensor, Tensor, Tensor], target: Tensor, sign: float = 1.0) -> Tensor:
    """Return the loss of a variational autoencoder, written with tensors alone."""
    again, mean, logvar = output
    divergence = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(1).mean()
    return (again - target).square().mean() + sign * 0.03 * divergence


def variational_case(broken: bool, seed: int, steps: int) -> Case:
    """Return a variational autoencoder after some steps of SGD on its loss, with the divergence added or subtracted."""
    torch.manual_seed(seed)
    x = draw.blob_images(classes=8)[0].flatten(1)
    model, loss = Variational(), partial(squares_plus_divergence, sign=-1.0 if broken else 1.0)
    train(model, x, x, loss, steps=steps, optimizer=torch.optim.SGD(model.parameters(), lr=0.3))
    return Case(model=model, data=(x, x), loss=loss, judge=lambda made: -F.mse_loss(made[0], x).item())


@OPEN
def divergence_subtracted(broken: bool) -> Case:
    """VAE |  | The evidence is to grow and the loss to fall: the sign of one of the two terms was turned around.
    | loss-does-not-fit | | change-loss minimise"""
    return variational_case(broken, 439, steps=0)


@OPEN
def divergence_subtracted_until_it_overflowed(broken: bool) -> Case:
    """VAE |  | The same behind steps that made the code, and then every weight, no numbers.
    | loss-does-not-fit | | change-loss minimise"""
    return variational_case(broken, 440, steps=200)


def both_errors(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the sum of the losses of two tasks."""
    return F.cross_entropy(output[0], target[:, 0].long()) + F.mse_loss(output[1][:, 0], target[:, 1])


@OPEN
def softmax_of_the_first_of_two_tasks(broken: bool) -> Case:
    """multi-task | 436 | The head for classes keeps the softmax that it had when it was used alone.
    | softmax-twice activation-before-loss | kind | remove-final-activation"""

    # Scores of classes, with a softmax or without, and a number, by two heads of one trunk.
    def two_targets(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.trunk(x))
        return self.kind(x).softmax(1) if self.softmax else self.kind(x), self.number(x)

    x, y = draw.table()
    targets = torch.stack([y.float(), torch.tanh(x[:, 4] - x[:, 5])], dim=1)
    net = nets.made("TwoTargets", two_targets)
    net.trunk, net.kind, net.number = nets.mlp(12, 48, 48), nn.Linear(48, 3), nn.Linear(48, 1)
    net.softmax = broken
    return Case((x, targets), net, both_errors, judge=lambda made: (made[0].argmax(1) == y).float().mean().item())


@OPEN
def batch_norm_after_the_last_layer(broken: bool) -> Case:
    """CNN | 810 | The loop that adds BatchNorm after each layer adds it after the last one too.
    | output-range-too-small activation-before-loss normalizer-erases-signal samples-mixed targets-out-of-range
    targets-wrong-scale | bn | remove-final-activation replace-normalizer scale-targets"""
    x, _ = draw.blob_images()
    target = 6 + 3 * rarer.cells_and_boxes(x)[1][:, :2]
    model = nn.Sequential()
    for name, layer in {
        "flat": nn.Flatten(), "fc1": nn.Linear(256, 32), "act": nn.ReLU(), "fc2": nn.Linear(32, 2),
        "bn": nn.BatchNorm1d(2, affine=False) if broken else nn.Identity(),
    }.items():  # fmt: skip
        model.add_module(name, layer)
    return Case((x, target), model, "mse")


class SegmentedUNet(nets.UNet):  # A U-Net that may return probabilities of the classes of each pixel.
    probabilities = False

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits.softmax(1) if self.probabilities else logits


@OPEN
def rectified_logits_of_tokens(broken: bool) -> Case:
    """GPT | 1117 | A ReLU after the head of a language model whose bias starts at -2.
    | activation-before-loss dead-units output-range-too-small | | remove-final-activation"""
    ids, following = draw.text(24)

    class Rectified(rarer_sequences.Llama):
        def forward(self, ids: Tensor) -> Tensor:
            logits = super().forward(ids)
            return F.relu(logits - 2) if broken else logits

    return Case((ids, following), Rectified(depth=1), over_tokens)


@OPEN
def softmax_of_one_channel(broken: bool) -> Case:
    """U-Net | 1118 | softmax(dim=1) of a segmentation with one channel is 1 at every pixel.
    | softmax-twice activation-before-loss loss-does-not-fit loss-gradient-zero no-gradient normalizer-wrong-axis
    output-constant output-range-too-small | | change-loss change-output-activation fix-axis more-outputs
    remove-final-activation"""
    x, _ = draw.blob_images(16)
    mask = (rarer.pixel_classes(x) == 3).float()[:, None]

    class Segmenter(nets.UNet):
        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            return logits.softmax(1) if broken else logits.sigmoid()

    return Case((x, mask), Segmenter(), nn.BCELoss(), judge=binary_accuracy(mask, 0.5))


def tag_accuracy(y: Tensor) -> Callable[[Tensor], float]:
    """Return a judge: how many tokens get their tag."""
    return lambda output: (output.argmax(-1) == y).float().mean().item()


@OPEN
def squares_of_tag_numbers(broken: bool) -> Case:
    """tagger | 1119 | One output per token, fitted to the number of its tag.
    | loss-does-not-fit | | change-loss more-outputs"""
    ids, y = rarer_sequences.tags()
    if not broken:
        return Case(model=rarer_sequences.Tagger(), data=(ids, y), loss=over_tokens, judge=tag_accuracy(y))
    return Case(
        (ids, y),
        changed(lambda model: setattr(model, "head", nn.Sequential(nn.Linear(48, 1), nn.Flatten(1))))(
            rarer_sequences.Tagger()
        ),
        lambda output, target: F.mse_loss(output, target.float()),
        judge_of=lambda y: lambda output: (output.round() == y).float().mean().item(),
    )


@OPEN
def loss_times_an_empty_mask(broken: bool) -> Case:
    """GPT | 1121 | The loss is multiplied by a mask of the padding instead of the words; there is no padding.
    | loss-gradient-zero | | change-loss check-labels fix-mask fix-targets"""
    ids, following = draw.text(24)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        each = F.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="none")
        keep = (target < 0) if broken else (target >= 0)
        return (each * keep.flatten()).sum() / keep.sum().clamp(min=1)

    return Case((ids, following), rarer_sequences.Llama(depth=1), loss)


@OPEN
def triplets_with_the_margin_on_the_wrong_side(broken: bool) -> Case:
    """Siamese | 2009 | relu(near - far - margin): the loss is zero from the start.
    | loss-gradient-zero loss-does-not-fit | | change-loss"""
    x, y = draw.table()
    order = y.argsort(stable=True)
    near, far = x[order].roll(1, 0)[order.argsort()], x[torch.randperm(len(x))]
    triplets = torch.stack([x, near, far], 1)

    def loss(output: Tensor, _: Tensor) -> Tensor:
        distances = (output[:, :1] - output[:, 1:]).square().sum(-1)
        return (distances[:, 0] - distances[:, 1] + (-20.0 if broken else 1.0)).relu().mean()

    return Case(
        (triplets, y),
        nets.made("Triplets", lambda self, triplets: self.embed(triplets), embed=nn.Sequential(*nets.mlp(12, 32, 8))),
        loss,
        judge_of=lambda y: lambda made: -loss(made, y).item(),
    )


@FIRST
def sigmoid_before_loss_with_logits(broken: bool) -> Case:
    """BERT | 40 | Probabilities returned for convenience and trained with BCEWithLogitsLoss.
    | softmax-twice activation-before-loss output-range-too-small | | change-loss remove-final-activation"""

    class Scorer(nets.SentenceEncoder):
        """One score per sentence."""

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(32, 1)

        def forward(self, ids: Tensor) -> Tensor:
            score = super().forward(ids).squeeze(1)
            return torch.sigmoid(score) if broken else score

    ids, labels = draw.sentences()
    y = labels.float()
    judge = binary_accuracy(y, 0.5 if broken else 0.0)
    return Case((ids, y), Scorer(), nn.BCEWithLogitsLoss(), judge=judge)


@FIRST
def relu_before_cross_entropy(broken: bool) -> Case:
    """ViT | 42 | A list of layers built in a loop, each followed by ReLU, the last one too (UMLAUT, DeepFD).
    | activation-before-loss dead-units output-range-too-small | 0.head 1 | remove-final-activation"""
    x, y = draw.blob_images(48)
    net = nets.ViT(depth=2)
    with torch.no_grad():
        net.head.bias.sub_(0.6)
    return Case((x, y), nn.Sequential(net, nn.ReLU()) if broken else nn.Sequential(net), nn.CrossEntropyLoss())


@FIRST
def squared_error_on_class_numbers(broken: bool) -> Case:
    """CNN | 49 | Humbatova et al. 2020: wrong loss; class numbers regressed with the squared error.
    | loss-does-not-fit targets-wrong-scale | | change-loss more-outputs"""
    x, y = draw.blob_images(60, classes=10)
    if not broken:
        return Case(model=nets.ConvNet(classes=10), data=(x, y), loss=nn.CrossEntropyLoss())

    def squared_error(output: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(output.squeeze(1), target.float())

    def judge(output: Tensor) -> float:
        return (output.squeeze(1).round() == y).float().mean().item()

    return Case((x, y), nets.ConvNet(classes=1), squared_error, judge=judge)


@FIRST
def cosine_logits_without_temperature(broken: bool) -> Case:
    """Siamese | 59 | Contrastive training in the manner of CLIP that forgot the temperature: logits are cosines.
    | output-range-too-small activation-before-loss | | scale-outputs"""

    # The cosines of each image of a batch with four learned class vectors.
    def matcher(self, images: Tensor) -> Tensor:
        codes, vectors = F.normalize(self.encoder(images), dim=1), F.normalize(self.classes, dim=1)
        return codes @ vectors.T if broken else 14.0 * codes @ vectors.T

    x, y = draw.blob_images(72, classes=24)
    net = nets.made("Matcher", matcher)
    net.encoder = nn.Sequential(nn.Flatten(), *nets.mlp(256, 64, 24))
    net.classes = nn.Parameter(torch.randn(24, 24))
    return Case((x, y), net, nn.CrossEntropyLoss())


@FIRST
def clamped_output(broken: bool) -> Case:
    """MLP | 60 | Predictions clamped to the range that the targets had before they were rescaled.
    | output-range-too-small activation-before-loss loss-gradient-zero no-gradient output-constant saturated-units
    targets-out-of-range | | change-output-activation fix-targets remove-final-activation scale-targets"""

    class Bounded(nn.Module):
        """A regression with its output clamped."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nets.mlp(8, 32, 32, 1)
            nn.init.constant_(self.layers[-1].bias, 1.5)

        def forward(self, x: Tensor) -> Tensor:
            prediction = 2 + self.layers(x)
            return prediction.clamp(0, 1) if broken else prediction

    x, y = draw.regression_table()
    return Case((x, 3 + 1.5 * y), Bounded(), nn.L1Loss())


def several_labels(count: int = 128) -> tuple[Tensor, Tensor]:
    """Return rows and six labels of which each may hold or not."""
    x = torch.randn(count, 10)
    y = torch.stack([x[:, k] * x[:, k + 1] + 0.3 * x[:, k + 2] > 0 for k in range(6)], dim=1)
    return x, y.float()


@SECOND
def divergence_of_probabilities_instead_of_logarithms(broken: bool) -> Case:
    """tabular | 103 | F.kl_div expects log-probabilities as its first argument (distillation).
    | loss-does-not-fit | | change-loss change-output-activation"""
    x, y = draw.table(classes=6)
    teacher = F.softmax(4.0 * F.one_hot(y, 6).float(), dim=1)

    def distil(output: Tensor, target: Tensor) -> Tensor:
        student = F.softmax(output, dim=1) if broken else F.log_softmax(output, dim=1)
        return F.kl_div(student, target, reduction="batchmean")

    return Case((x, teacher), nets.mlp(12, 64, 64, 6), distil, judge=accuracy(y))


def square_of_the_mean_error(output: Tensor, target: Tensor) -> Tensor:
    return (output.mean() - target.mean()).square()


class Bounded(nn.Module):  # A network with an activation behind it.
    def __init__(self, body: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.body, self.last = body, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x))


# Rows of a table, packed.
# fmt: off
OPEN("""softmax-then-cross-entropy | ResNet | 411 | nn.Softmax at the end and nn.CrossEntropyLoss.
    | softmax-twice | 1 | change-loss change-output-activation remove-final-activation""",
    lambda broken: Case(draw.blob_images(96, classes=8), nn.Sequential(nets.ResNet(blocks=2, width=8, classes=8),
    nn.Softmax(1) if broken else nn.Identity()), nn.CrossEntropyLoss()))
OPEN("""sigmoid-then-bce-with-logits | U-Net | 412 | A sigmoid in the model and BCEWithLogitsLoss.
    | softmax-twice activation-before-loss output-range-too-small | | change-loss remove-final-activation""",
    lambda broken: given(draw.blob_images(32), lambda x, _: given((draw.as_pixels(x) > 0.6).float(),
    lambda mask: Case((x, mask), nn.Sequential(nets.UNet(), nn.Sigmoid() if broken else nn.Identity()),
    nn.BCEWithLogitsLoss(), judge=overlap_with(mask) if not broken else lambda output: overlap_with(mask)(output -
    0.5)))))
OPEN("""nll-of-probabilities | MLP | 414 | NLLLoss wants log probabilities, the model returns probabilities.
    | loss-does-not-fit activation-before-loss softmax-twice | | change-loss change-output-activation
    remove-final-activation""",
    lambda broken: Case(draw.table(classes=6), rarer.with_last(nets.mlp(12, 32, 6),
    nn.Softmax(1) if broken else nn.LogSoftmax(1)), nn.NLLLoss()))
OPEN("""tanh-for-ages | MLP | 416 | A tanh at the end where the targets are ages. | activation-before-loss
    output-range-too-small targets-out-of-range | | fix-targets remove-final-activation scale-targets""",
    lambda broken: given(draw.regression_table(), lambda x, y: Case((x, 4 + 2 * y), rarer.with_last(nets.mlp(8, 32, 32,
    1), nn.Tanh() if broken else None), "mse")))
OPEN("""sigmoid-decoder-for-standardised-images | autoencoder | 417 | A sigmoid decoder for standardised images.
    | activation-before-loss output-range-too-small targets-out-of-range | | change-output-activation fix-targets
    remove-final-activation scale-targets""",
    lambda broken: given(draw.blob_images()[0].flatten(1), lambda x: Case((x, x),
    nets.Autoencoder(last=nn.Sigmoid() if broken else None), "mse")))
OPEN("""relu-for-standardised-targets | MLP | 418 | A ReLU after the last layer of a regression with negative targets.
    | activation-before-loss dead-units output-range-too-small targets-out-of-range | | change-activation
    remove-final-activation""",
    lambda broken: Case(draw.regression_table(), rarer.with_last(nets.mlp(8, 32, 32, 1), nn.ReLU() if broken else None),
    "mse"))
OPEN("""clamp-holds-every-output | MLP | 429 | Outputs clamped to the range of the targets, all of them beyond it.
    | loss-gradient-zero activation-before-loss no-gradient output-constant saturated-units | | change-activation
    change-output-activation keep-gradient remove-final-activation reset-bias""",
    lambda broken: given(draw.regression_table(), lambda x, y: Case((x, draw.as_pixels(y)), Clamped(broken), "mse")))
OPEN("""temperature-the-wrong-way-around | metric learning | 430 | Multiplied by the temperature where one divides by
    it. | output-range-too-small activation-before-loss | | scale-outputs""",
    lambda broken: Case(draw.table(count=192, classes=6), nets.made("Cosines", lambda self, x: F.normalize(self.body(x),
    dim=1) @ F.normalize(self.centres, dim=1).T / self.temperature, temperature=50.0 if broken else 0.1,
    body=nets.mlp(12, 32, 16), centres=nn.Parameter(torch.randn(6, 16))), "cross_entropy"))
OPEN("""labels-smoothed-away | MLP | 431 | label_smoothing=0.9 where 0.1 was meant.
    | loss-does-not-fit | | change-loss""",
    lambda broken: Case(draw.table(classes=6), nets.mlp(12, 32, 32, 6),
    nn.CrossEntropyLoss(label_smoothing=0.95 if broken else 0.05)))
OPEN("""divergence-of-probabilities | distillation | 434 | kl_div of probabilities instead of log probabilities.
    | loss-does-not-fit activation-before-loss softmax-twice | | change-loss change-output-activation
    remove-final-activation""",
    lambda broken: given(draw.table(classes=4), lambda x, y: Case((x, torch.softmax(4.0 * F.one_hot(y, 4), dim=1)),
    rarer.with_last(nets.mlp(12, 32, 32, 4), nn.Softmax(1) if broken else nn.LogSoftmax(1)), divergence,
    judge=accuracy(y))))
OPEN("""divergence-with-the-wrong-sign | VAE | 435 | The minus in front of the formula was taken for that of a
    likelihood, and left out. | loss-does-not-fit | | change-loss minimise""",
    lambda broken: given(draw.blob_images(classes=8)[0].flatten(1), lambda x: Case((x, x), Variational(),
    partial(error_plus_divergence, factor=-0.03 if broken else 0.03),
    judge_of=lambda x: lambda made: -F.mse_loss(made[0], x).item())))
OPEN("""softmax-over-pixels-then-cross-entropy | U-Net | 818 | A segmentation that returns probabilities, trained with
    nn.CrossEntropyLoss. | softmax-twice | | change-loss change-output-activation remove-final-activation""",
    lambda broken: given(draw.blob_images(16), lambda x, _: Case((x, rarer.pixel_classes(x, 8)),
    changed(lambda model: setattr(model, "probabilities", broken))(SegmentedUNet(outputs=8)), nn.CrossEntropyLoss())))
OPEN("""images-clamped-to-the-unit-range | super-resolution | 820 | clamp(0, 1), as for saving images, around images in
    -1..1. | output-range-too-small activation-before-loss targets-out-of-range | | fix-targets remove-final-activation
    scale-targets""",
    lambda broken: given(2 * draw.as_pixels(draw.blob_images()[0]) - 1, lambda large: Case((F.avg_pool2d(large, 2),
    large), rarer.Enlarger((lambda image: image.clamp(0, 1)) if broken else (lambda image: image)), "mse")))
OPEN("""one-hot-tags-along-the-wrong-axis | tagger | 841 | Cross entropy takes axis 1 for the classes; with one-hot
    targets (N, L, C) that is the time.
    | loss-does-not-fit normalizer-wrong-axis shapes-broadcast | | change-loss fix-axis match-shapes""",
    lambda broken: given(rarer_sequences.tags(), lambda ids, y: given(F.one_hot(y, 5).float(),
    lambda target: given(lambda output, target: F.cross_entropy(output,
    target) if broken else F.cross_entropy(output.transpose(1, 2), target.transpose(1, 2)),
    lambda loss: Case((ids, target), rarer_sequences.Tagger(), loss, judge=tag_accuracy(y))))))
OPEN("""nll-of-raw-scores | GRU | 843 | NLLLoss of scores without log_softmax: the loss falls without end and nothing is
    learnt. | loss-does-not-fit activation-before-loss output-constant | | change-loss change-output-activation""",
    lambda broken: given(draw.waves(), lambda x, y: given(nets.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3),
    lambda model: given(nn.Sequential(model, nn.Identity() if broken else nn.LogSoftmax(1)),
    lambda model: Case((x, y), model, nn.NLLLoss(), judge_of=lambda y: lambda output: -F.cross_entropy(output,
    y).item())))))
OPEN("""logits-divided-by-a-sampling-temperature | GPT | 857 | Logits divided by a temperature that belongs to sampling,
    here 100. | output-range-too-small vanishing-gradient vanishing-signal | | remove-final-activation rescale-layer
    scale-outputs""",
    lambda broken: Case(draw.text(16), rarer_sequences.Llama(depth=1, divisor=100.0 if broken else 1.0), over_tokens))
OPEN("""softmax-for-several-labels | MLP | 888 | Softmax with BCELoss where a sample may have several labels: the
    outputs share a sum of 1. | loss-does-not-fit activation-before-loss output-range-too-small | | change-loss
    change-output-activation remove-final-activation""",
    lambda broken: Case(rarer.several_labels(), nn.Sequential(*nets.mlp(12, 64, 64, 5),
    nn.Softmax(1) if broken else nn.Sigmoid()), nn.BCELoss(),
    judge_of=lambda y: lambda output: -F.binary_cross_entropy(output, y).item()))
OPEN("""cross-entropy-for-several-labels | MLP | 889 | Cross entropy accepts rows of several ones as if they were
    probabilities. | loss-does-not-fit | | change-loss""",
    lambda broken: Case(rarer.several_labels(), nets.mlp(12, 64, 64, 5),
    nn.CrossEntropyLoss() if broken else nn.BCEWithLogitsLoss(),
    judge_of=lambda y: lambda output: -F.binary_cross_entropy_with_logits(output, y).item()))
OPEN("""stars-rounded-in-the-loss | recommender | 893 | The error of rounded stars, as it is reported, used as the loss.
    | loss-gradient-zero no-gradient | | change-loss keep-gradient""",
    lambda broken: given(draw.regression_table(), lambda x, y: given(3 + y,
    lambda stars: given(lambda output, target: F.mse_loss(output.round() if broken else output, target),
    lambda loss: Case((x, stars), nets.mlp(8, 32, 1), loss)))))
OPEN("""cosine-as-a-logit | Siamese | 1006 | A cosine handed to BCEWithLogitsLoss: probabilities between 0.27 and 0.73.
    | output-range-too-small activation-before-loss loss-does-not-fit | | change-loss scale-outputs""",
    lambda broken: Case(draw.image_pairs(), rarer.CosinePairs(1.0 if broken else 10.0), nn.BCEWithLogitsLoss(),
    judge_of=lambda y: lambda output: -F.binary_cross_entropy_with_logits(output, y).item()))
OPEN("""actions-not-multiplied-by-their-range | actor-critic | 1010 | tanh at the end of a policy whose actions reach
    from -4 to 4; the factor was left out. | output-range-too-small activation-before-loss targets-out-of-range
    targets-wrong-scale | | fix-targets remove-final-activation scale-outputs scale-targets""",
    lambda broken: given(draw.regression_table(), lambda state, wanted: Case((state, (2 * wanted).clamp(-4, 4)),
    nets.made("Policy", lambda self, state: torch.tanh(self.net(state)) * (1.0 if broken else 4.0),
    net=nets.mlp(8, 64, 1)), "mse")))
OPEN("""likelihood-that-is-minimised | MLP | 2007 | A loss with the wrong sign: the mean of the likelihood in place of
    minus that. | loss-does-not-fit | | change-loss""",
    lambda broken: given(draw.table(), lambda x, y: given(-1.0 if broken else 1.0, lambda sign: Case((x, y),
    nn.Sequential(*nets.mlp(12, 32, 32, 3)), lambda output, target: sign * F.cross_entropy(output, target)))))
OPEN("""weights-of-zero-for-two-classes | MLP | 2008 | Class weights 1/count - 1/largest: the frequent classes get none.
    | loss-does-not-fit class-imbalance loss-gradient-zero | | balance-classes change-loss""",
    lambda broken: Case(draw.table(classes=3), nn.Sequential(*nets.mlp(12, 32, 32, 3)),
    nn.CrossEntropyLoss(weight=(torch.tensor([1.0, 0.0, 0.0]) if broken else torch.ones(3)))))
FIRST("""softmax-before-cross-entropy | CNN | 39 | The most frequent question of the PyTorch forum: nn.Softmax before
    nn.CrossEntropyLoss.
    | softmax-twice activation-before-loss output-range-too-small | 0.head 1 | change-loss remove-final-activation""",
    lambda broken: given(draw.blob_images(60, classes=10, size=16), lambda x, y: given(nets.ConvNet(classes=10),
    lambda net: Case((x, y), nn.Sequential(net, nn.Softmax(dim=1)) if broken else nn.Sequential(net),
    nn.CrossEntropyLoss()))))
FIRST("""probabilities-into-nll-loss | MLP | 41 | Stack Overflow: nn.Softmax with nn.NLLLoss; the loss is negative and
    stops at -1. | loss-does-not-fit activation-before-loss softmax-twice | 5 | change-loss change-output-activation
    guard-domain remove-final-activation""",
    lambda broken: given(draw.table(classes=8), lambda x, y: given(nn.Softmax(dim=1) if broken else
    nn.LogSoftmax(dim=1), lambda last: Case((x, y), nn.Sequential(*nets.mlp(12, 32, 32, 8), last), nn.NLLLoss()))))
FIRST("""cross-entropy-with-one-output | MLP | 55 | PyTorch forum: one output unit with CrossEntropyLoss and targets (N,
    1): the loss is always 0. | loss-gradient-zero loss-does-not-fit | | change-loss more-outputs""",
    lambda broken: given(draw.table(classes=2), lambda x, labels: Case((x, labels.float()[:, None]),
    nets.mlp(12, 32, 32, 1), nn.CrossEntropyLoss() if broken else nn.BCEWithLogitsLoss(), judge_of=binary_accuracy)))
FIRST("""probabilities-into-kl-divergence | MLP | 57 | nn.KLDivLoss expects log probabilities and is given
    probabilities.
    | loss-does-not-fit activation-before-loss softmax-twice | 5 | change-loss change-output-activation guard-domain""",
    lambda broken: given(draw.table(classes=5), lambda x, classes: given(0.9 * F.one_hot(classes, 5).float() + 0.02,
    lambda y: given(nn.Softmax(dim=1) if broken else nn.LogSoftmax(dim=1), lambda last: Case((x, y),
    nn.Sequential(*nets.mlp(12, 32, 32, 5), last), nn.KLDivLoss(reduction="batchmean"), judge=accuracy(classes))))))
FIRST("""relu-output-for-negative-targets | MLP | 58 | ReLU after the last layer of a regression whose targets are also
    negative. | activation-before-loss dead-units output-constant targets-out-of-range | 4 5 | change-activation
    remove-final-activation""",
    lambda broken: given(draw.regression_table(), lambda x, y: given(nets.mlp(8, 32, 32, 1),
    lambda layers: Case((x, y - 0.5), nn.Sequential(*layers, nn.ReLU()) if broken else nn.Sequential(*layers),
    nn.MSELoss()))))
SECOND("""probabilities-before-a-loss-of-logits | CNN | 91 | The classic of PyTorch: nn.CrossEntropyLoss applies the
    softmax itself. | softmax-twice | last | change-loss remove-final-activation""",
    lambda broken: given(rarer.WithLast(nets.ConvNet(classes=10, norm=False),
    nn.Softmax(dim=1) if broken else nn.Identity()), lambda model: Case(draw.blob_images(80, classes=10), model,
    nn.CrossEntropyLoss())))
SECOND("""sigmoid-before-bce-with-logits | multi-label | 92 | PyTorch forums: sigmoid in the model and in the loss.
    | softmax-twice | last | change-loss remove-final-activation""",
    lambda broken: given(several_labels(), lambda x, y: Case((x, y), rarer.WithLast(nets.mlp(10, 64, 64, 6),
    nn.Sigmoid() if broken else nn.Identity()), nn.BCEWithLogitsLoss(),
    judge=lambda output: ((output > (0.5 if broken else 0.0)) == (y > 0.5)).float().mean().item())))
SECOND("""softmax-for-labels-that-do-not-exclude-each-other | multi-label | 93 | Stack Overflow: a softmax with binary
    cross entropy for several labels at once. | activation-before-loss loss-does-not-fit output-range-too-small | last |
    change-loss change-output-activation remove-final-activation""",
    lambda broken: given(several_labels(), lambda x, y: Case((x, y), rarer.WithLast(nets.mlp(10, 64, 64, 6),
    nn.Softmax(dim=1) if broken else nn.Sigmoid()), nn.BCELoss(),
    judge=lambda output: ((output > 0.5) == (y > 0.5)).float().mean().item())))
SECOND("""rectifier-behind-a-regression | regression | 94 | DeepFD: relu on the output while half of the targets are
    negative.
    | activation-before-loss dead-units output-range-too-small targets-out-of-range | last | remove-final-activation""",
    lambda broken: given(rarer.WithLast(nets.mlp(8, 48, 48, 1), nn.ReLU() if broken else nn.Identity()),
    lambda model: Case(draw.regression_table(), model, "mse")))
SECOND("""probabilities-given-to-nll | CNN | 98 | nn.NLLLoss wants log-probabilities: softmax instead of log_softmax.
    | loss-does-not-fit output-range-too-small | last | change-loss change-output-activation remove-final-activation""",
    lambda broken: given(nn.Softmax(dim=1) if broken else nn.LogSoftmax(dim=1),
    lambda last: given(rarer.WithLast(nets.ConvNet(classes=10, norm=False), last),
    lambda model: Case(draw.blob_images(80, classes=10), model, nn.NLLLoss()))))
SECOND("""logits-given-to-nll | tabular | 99 | nn.NLLLoss on raw outputs: the loss falls without bound and the network
    blows up. | loss-does-not-fit | | change-loss change-output-activation""",
    lambda broken: given(draw.table(), lambda x, y: given(lambda output: -F.cross_entropy(output, y).item(),
    lambda judge: Case((x, y), nets.mlp(12, 48, 48, 3), nn.NLLLoss() if broken else "cross_entropy", judge=judge))))
SECOND("""cosines-without-a-temperature | contrastive | 107 | Metric learning: cosines of -1..1 as logits of 64 classes
    cannot make the loss small. | output-range-too-small | | scale-outputs""",
    lambda broken: given(torch.randn(64, 1, 16, 16), lambda centres: given(torch.arange(128) % 64,
    lambda labels: Case(((centres[labels] + 0.7 * torch.randn(128, 1, 16, 16)), labels),
    nets.made("CosineClassifier", lambda self, images: self.scale * F.normalize(self.encoder(images),
    dim=1) @ F.normalize(self.directions, dim=1).T, encoder=nn.Sequential(nn.Flatten(), *nets.mlp(256, 64, 32)),
    directions=nn.Parameter(torch.randn(64, 32)), scale=1.0 if broken else 16.0), "cross_entropy",
    judge=lambda output: output.softmax(1)[torch.arange(128), labels].mean().item()))))
SECOND("""mean-taken-before-the-square | regression | 109 | A loss by hand: the errors cancel before they are squared.
    | loss-does-not-fit | | change-loss""",
    lambda broken: Case(model=nets.mlp(8, 48, 48, 1), data=draw.regression_table(),
    loss=square_of_the_mean_error if broken else F.mse_loss))
SECOND("""sigmoid-for-standardised-images | autoencoder | 110 | An autoencoder that ends in a sigmoid, trained on images
    of mean 0 and standard deviation 1. | activation-before-loss output-range-too-small targets-out-of-range | last |
    fix-targets remove-final-activation scale-inputs scale-targets""",
    lambda broken: given(draw.blob_images()[0].flatten(1), lambda images: Case((images, images),
    nets.Autoencoder(last=nn.Sigmoid() if broken else nn.Identity()), "mse")))
THIRD("""five-stars-through-a-sigmoid | recommender | 61 | A sigmoid, of a tutorial on clicks, in front of ratings of
    one to five stars. | output-range-too-small activation-before-loss saturated-units targets-out-of-range | last |
    fix-targets remove-final-activation scale-outputs scale-targets""",
    lambda broken: given(draw.ratings(), lambda pairs, stars: given((3 + 1.2 * stars).clamp(1, 5),
    lambda stars: given(nn.Sigmoid() if broken else nn.Identity(), lambda last: Case((pairs, stars),
    Bounded(nets.Recommender(), last), "mse")))))
THIRD("""overlap-of-raw-outputs | segmentation | 62 | The overlap of Dice is taken of logits; it is not bounded then,
    and does not measure an overlap.
    | loss-does-not-fit output-range-too-small targets-out-of-range | | change-loss change-output-activation""",
    lambda broken: Case(rarer.blob_masks(), nets.UNet(), rarer.dice if broken else rarer.soft_dice,
    judge_of=overlap_with))
THIRD("""rates-where-logarithms-are-wanted | counts | 65 | `nn.PoissonNLLLoss` takes the exponential itself unless it is
    told not to. | loss-does-not-fit activation-before-loss exploding-signal output-range-too-small softmax-twice | |
    change-loss remove-final-activation""",
    lambda broken: given(draw.regression_table(), lambda x, score: given(torch.poisson(torch.exp(0.8 * score.squeeze(1)
    - 0.7)), lambda y: given(nn.PoissonNLLLoss(), lambda loss: Case((x, y), rarer.Rates(broken), loss,
    judge_of=lambda y: lambda output: -loss(output, y).item())))))
THIRD("""bytes-to-be-painted-by-a-sigmoid | autoencoder | 67 | The input is divided by 255, the target is not; the last
    layer reaches 1 at most. | output-range-too-small activation-before-loss saturated-units targets-out-of-range
    targets-wrong-scale | last | fix-targets remove-final-activation scale-inputs scale-outputs scale-targets""",
    lambda broken: given(draw.as_pixels(draw.blob_images()[0]), lambda x: Case((x, x * 255 if broken else x),
    Bounded(rarer.ConvAutoencoder(), nn.Sigmoid()), "mse")))
THIRD("""margins-of-probabilities | CNN | 72 | A margin of one between classes is asked of the outputs of a softmax, of
    which only certainty is good enough. | output-range-too-small activation-before-loss loss-does-not-fit | last |
    change-loss remove-final-activation scale-outputs""",
    lambda broken: given(draw.blob_images(96, classes=8),
    lambda x, y: given(nn.Softmax(dim=1) if broken else nn.Identity(), lambda last: Case((x, y),
    Bounded(nets.ConvNet(norm=False, classes=8), last), nn.MultiMarginLoss()))))
THIRD("""probabilities-of-the-next-word | GPT | 74 | The softmax of the published figure, in front of a cross entropy
    that has one of its own. | softmax-twice activation-before-loss output-range-too-small | last | change-loss
    change-output-activation remove-final-activation""",
    lambda broken: Case(draw.text(), Bounded(nets.GPT(), nn.Softmax(dim=-1) if broken else nn.Identity()), over_tokens))
THIRD("""discriminator-with-a-sigmoid-and-a-loss-of-logits | GAN | 75 | The sigmoid of DCGAN stays when its loss is
    exchanged for the stable one.
    | softmax-twice activation-before-loss output-range-too-small | 5 | change-loss remove-final-activation""",
    lambda broken: given(draw.blob_images(64), lambda real, _: given(F.avg_pool2d(torch.randn(64, 1, 16, 16), 3, 1,
    1) * 3, lambda fake: given((torch.cat([0.5 * real + 0.5 * fake.roll(1, 0), fake]), torch.cat([torch.ones(64, 1),
    torch.zeros(64, 1)])), lambda x, y: Case((x, y), nn.Sequential(nn.Conv2d(1, 8, 4, stride=2, padding=1),
    nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4, stride=4), nn.Flatten(), nn.Linear(4, 1),
    nn.Sigmoid() if broken else nn.Identity()), F.binary_cross_entropy_with_logits, judge=binary_accuracy(y,
    0.5 if broken else 0.0))))))
