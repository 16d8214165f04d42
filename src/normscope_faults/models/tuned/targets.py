"""Faults of the targets: ranges, scales, shapes, labels."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...training import accuracy, binary_accuracy, explained_variance, over_tokens, overlap_with, train
from . import rarer, rarer_sequences


@OPEN
def one_case_in_sixty(broken: bool) -> Case:
    """MLP | 424 | Fraud: one case in sixty.
    | class-imbalance | | balance-classes change-loss"""
    x, y = draw.table(count=360, classes=60)
    rare = y == 59

    def balanced(output: Tensor) -> float:
        hits = (output.argmax(1) == 1) == rare
        return (hits[rare].float().mean() + hits[~rare].float().mean()).item() / 2

    if broken:
        return Case(model=nets.mlp(12, 8, 2), data=(x, rare.long()), loss="cross_entropy", judge=balanced)
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 59.0]))
    return Case((x, rare.long()), nets.mlp(12, 8, 2), weighted, judge=balanced)


@OPEN
def labels_of_other_rows(broken: bool) -> Case:
    """MLP | 426 | The inputs were shuffled, the labels were not.
    | labels-wrong output-constant | | check-labels"""
    x, y = draw.regression_table(256)
    model = nets.mlp(8, 32, 1)
    train(model, x, y, F.mse_loss, steps=200)
    return Case(model=model, data=(x, y[torch.randperm(256)] if broken else y), loss="mse", train=False)


@OPEN
def boxes_with_an_axis_too_many(broken: bool) -> Case:
    """detector | 807 | Targets (N, 1, 4), one box per image, against outputs (N, 4).
    | shapes-broadcast | | match-shapes"""
    x, _ = draw.blob_images()
    _, boxes = rarer.cells_and_boxes(x)

    class Boxes(rarer.Detector):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[1]

    return Case((x, boxes[:, None] if broken else boxes), Boxes(), F.smooth_l1_loss, judge=explained_variance(boxes))


def padded_text(ids: Tensor, following: Tensor, real: int) -> tuple[Tensor, Tensor]:
    """Return texts whose later tokens are padding (0)."""
    keep = torch.arange(ids.shape[1]) < real
    return ids.clamp(min=1) * keep, following.clamp(min=1) * keep


@OPEN
def two_defects_in_two_hundred(broken: bool) -> Case:
    """MLP | 1016 | Two defective parts in two hundred; the loss does not weigh them.
    | class-imbalance labels-constant | | balance-classes"""
    x = torch.randn(200, 10)
    y = torch.zeros(200, dtype=torch.long)
    y[[31, 160]] = 1
    x[y == 1, :3] += 1.0
    return Case(
        (x, y),
        nn.Sequential(nn.Linear(10, 24), nn.Dropout(0.3), nn.ReLU(), nn.Linear(24, 2)),
        nn.CrossEntropyLoss(weight=(None if broken else torch.tensor([1.0, 99.0]))),
        judge_of=lambda y: lambda output: (output.argmax(1)[y == 1] == 1).float().mean().item(),
    )


@FIRST
def hinge_loss_with_zero_one_labels(broken: bool) -> Case:
    """discriminator | 48 | The hinge loss wants -1 and 1; labels 0 and 1 leave one class without a gradient.
    | targets-out-of-range loss-does-not-fit | | change-loss fix-targets"""
    images, classes = draw.blob_images(64, classes=2)
    y = classes.float()[:, None]
    target = y if broken else 2 * y - 1

    def hinge(output: Tensor, target: Tensor) -> Tensor:
        return F.relu(1 - output * target).mean()

    return Case((images, target), nets.discriminator(), hinge, judge=binary_accuracy(y))


@FIRST
def hand_written_loss_broadcasts(broken: bool) -> Case:
    """GNN | 52 | A loss written by hand, in which torch warns about nothing.
    | shapes-broadcast | | match-shapes"""
    x, edges, _ = draw.communities()
    degree = torch.bincount(edges[1], minlength=len(x)).float()
    y = (x[:, 0] * x[:, 1] + 0.2 * degree - 0.2 * degree.mean()) / 1.2

    def huber(output: Tensor, target: Tensor) -> Tensor:
        error = (output - target).abs()
        return torch.where(error < 1, 0.5 * error.square(), error - 0.5).mean()

    class Regressor(nets.GraphNet):
        """One number per node."""

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if broken else super().forward(x).squeeze(1)

    return Case((x, y), Regressor(edges, width=32, classes=1), huber)


@FIRST
def three_positives_in_a_batch(broken: bool) -> Case:
    """MLP | 54 | Fraud detection: three labels of 256 are positive, plain cross entropy.
    | class-imbalance | | balance-classes"""

    def draw(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 12)
        return x, (x[:, 0] * x[:, 1] + x[:, 2] + 0.5 * torch.randn(count)).argsort().argsort() / count

    x, rank = draw(256)
    y = (rank > 0.985 if broken else rank > 0.5).long()
    model = nets.mlp(12, 32, 32, 2)
    unseen, unseen_rank = draw(2000)

    def balanced_accuracy_on_unseen(output: Tensor) -> float:
        right = model(unseen).argmax(1) == (unseen_rank > 0.985 if broken else unseen_rank > 0.5)
        positive = unseen_rank > (0.985 if broken else 0.5)
        return (0.5 * right[positive].float().mean() + 0.5 * right[~positive].float().mean()).item()

    return Case((x, y), model, nn.CrossEntropyLoss(), judge=balanced_accuracy_on_unseen)


@SECOND
def labels_of_minus_one_and_one(broken: bool) -> Case:
    """tabular | 97 | Labels for a hinge loss given to a binary cross entropy: the loss has no lower bound.
    | targets-out-of-range labels-wrong loss-does-not-fit | | change-loss fix-targets"""
    x, y = draw.table(classes=2)
    target = y.float()[:, None]

    def judge(output: Tensor) -> float:
        if not torch.isfinite(output).all():
            return -1.0
        return -F.binary_cross_entropy_with_logits(output, target).item()

    return Case((x, 2 * target - 1 if broken else target), nets.mlp(12, 48, 48, 1), nn.BCEWithLogitsLoss(), judge=judge)


@SECOND
def three_frauds_in_two_hundred(broken: bool) -> Case:
    """tabular | 102 | AutoTrainer's and everyone's data of frauds: the network learns to say no.
    | class-imbalance | | balance-classes"""
    x, y = draw.table(400, classes=2)
    order = torch.cat([(y == 0).nonzero()[:197, 0], (y == 1).nonzero()[: 3 if broken else 197, 0]])
    probe_x, probe_y = draw.table(400, classes=2)
    model = nets.mlp(12, 48, 48, 2)

    def judge(_: Tensor) -> float:
        with torch.no_grad():
            return (model(probe_x).argmax(1) == probe_y).float().mean().item()

    return Case((x[order], y[order]), model, "cross_entropy", judge=judge)


@SECOND
def masks_of_0_and_255(broken: bool) -> Case:
    """segmentation | 104 | Masks read from PNG files and given to a binary cross entropy.
    | targets-out-of-range | | fix-targets"""
    images, _ = draw.blob_images(24)
    mask = (F.avg_pool2d(images, 3, 1, 1) > 1.5).float()
    data = (images, 255 * mask if broken else mask)

    def judge(output: Tensor) -> float:
        return max(overlap_with(mask)(output), 0.0) - F.binary_cross_entropy_with_logits(output, mask).item()

    return Case(data, nets.UNet(), nn.BCEWithLogitsLoss(), judge=judge)


@SECOND
def sorted_data_set_without_shuffling(broken: bool) -> Case:
    """CNN | 105 | ImageFolder without shuffle: a batch is all of one class.
    | labels-constant | | balance-classes check-labels"""
    images, labels = draw.blob_images(256)
    probe = draw.blob_images()
    rows = labels.argsort(stable=True)[:64] if broken else torch.arange(64)
    model = nets.ConvNet(norm=False)

    def judge(_: Tensor) -> float:
        with torch.no_grad():
            return (model(probe[0]).argmax(1) == probe[1]).float().mean().item()

    return Case((images[rows], labels[rows]), model, "cross_entropy", judge=judge)


def boxes_of(images: Tensor) -> Tensor:
    """Return centre and size of the bright area of each image, in pixels."""
    weight = (images[:, 0] - 1).clamp(min=0) + 1e-3
    grid = torch.arange(16.0)
    total = weight.sum((1, 2))
    row, column = (weight.sum(2) * grid).sum(1) / total, (weight.sum(1) * grid).sum(1) / total
    size = 2 * ((weight.sum(2) * (grid - row[:, None]).square()).sum(1) / total).sqrt()
    return torch.stack([row, column, size, size], dim=1)


class BoxNet(nn.Module):  # Predicts the box (centre and size) around a blob.
    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, stride=2, padding=1), nn.ReLU()
        )
        self.box, self.last = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 4)), last

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.box(self.trunk(images)))


@THIRD
def two_complaints_in_a_hundred_letters(broken: bool) -> Case:
    """text CNN | 68 | A batch drawn as the letters come: hardly any of them belongs to the class that matters.
    | class-imbalance | | balance-classes"""
    x, y = draw.sentences(400 if broken else 100, length=12)
    if broken:
        rows = torch.cat([(y == 1).nonzero()[:2], (y == 0).nonzero()[:98]]).squeeze(1)
        x, y = x[rows], y[rows]

    def judge(output: Tensor) -> float:
        margin = output[:, 1] - output[:, 0]
        return min((margin[y == 1] > 0).float().mean().item(), (margin[y == 0] < 0).float().mean().item())

    return Case((x, y), rarer_sequences.WordNet(), "cross_entropy", judge=judge)


def _match(output: Tensor, target: Tensor) -> float:
    """Return the explained variance."""
    return (1 - (output - target).square().mean() / target.var()).item()


def cosine_loss(output: tuple[Tensor, Tensor], same: Tensor) -> Tensor:
    """Return torch's cosine embedding loss."""
    return F.cosine_embedding_loss(*output, same)


@THIRD
def zeros_where_the_cosine_loss_wants_minus_one(broken: bool) -> Case:
    """Siamese | 71 | The cosine embedding loss knows 1 and -1; pairs with a 0 are left out without a word.
    | targets-out-of-range labels-wrong loss-does-not-fit | | change-loss fix-targets"""
    pairs, same = draw.image_pairs()
    targets = same if broken else 2 * same - 1

    def judge(output: tuple[Tensor, Tensor]) -> float:
        alike = F.cosine_similarity(*output)
        return (alike[same == 1].mean() - alike[same == 0].mean()).item()

    return Case((pairs, targets), nets.Siamese(), cosine_loss, judge=judge)


@THIRD
def labels_shifted_before_the_model_shifts_them(broken: bool) -> Case:
    """GPT-2 | 113 | Models of transformers shift the labels themselves; shifted by the user too, they are two words
    ahead.
    | labels-wrong loss-does-not-fit | | check-labels fix-targets shift-targets"""
    ids, following = draw.text()
    model = GPT2LMHeadModel(GPT2Config(**nets.SMALL_GPT2))

    def judge(output: object) -> float:
        return (output.logits[:, :-1].argmax(-1) == ids[:, 1:]).float().mean().item()  # type: ignore[attr-defined]

    data = {"input_ids": ids, "labels": following if broken else ids}
    return Case(data, model, objective=lambda output: output.loss, judge=judge)


# Rows of a table, packed.
# fmt: off
OPEN("""targets-in-ten-thousands | recommender | 420 | Prices in euros. | targets-wrong-scale | | scale-targets""",
    lambda broken: given(draw.ratings(), lambda pairs, score: Case((pairs, 3e4 + 1e4 * score if broken else score),
    nets.Recommender(), "mse")))
OPEN("""targets-at-a-hundred-thousandth | LSTM | 421 | Flow rates in cubic metres per second: all targets near 1e-5.
    | targets-wrong-scale | | scale-targets""",
    lambda broken: given(draw.waves(), lambda x, _: given(x[:, -4:, :].mean((1, 2))[:, None],
    lambda y: given((y - y.mean()) / y.std(), lambda y: Case((x, 1e-5 * y if broken else y),
    nets.SequenceClassifier(nn.LSTM(3, 16, batch_first=True), 1), "mse")))))
OPEN("""column-against-row | MLP | 422 | Outputs (N, 1) and targets (N,). | shapes-broadcast | | match-shapes""",
    lambda broken: given(draw.regression_table(), lambda x, y: Case((x, y[:, 0] if broken else y),
    nets.mlp(8, 32, 32, 1), "mse", judge=explained_variance(y))))
OPEN("""labels-all-of-one-class | CNN | 423 | The labels are read from a column that was never filled in.
    | labels-constant class-imbalance | | balance-classes check-data check-labels""",
    lambda broken: given(draw.blob_images(), lambda x, y: Case((x, torch.zeros_like(y) if broken else y),
    nets.ConvNet(), "cross_entropy", judge=accuracy(y))))
OPEN("""labels-shifted-by-one | CNN | 425 | Labels counted from 1 in the file that is read now, from 0 in the one that
    was trained on. | labels-wrong | | check-labels fix-targets""",
    lambda broken: given(draw.blob_images(96, classes=6), lambda x, y: Case((x, y + 1 if broken else y),
    train(nets.ConvNet(classes=7), x, y, F.cross_entropy, steps=60), "cross_entropy", train=False)))
OPEN("""bce-with-signs | CNN | 432 | Labels of -1 and 1, from a data set for support vector machines.
    | targets-out-of-range loss-does-not-fit | | change-loss fix-targets""",
    lambda broken: given(draw.blob_images(classes=2), lambda x, y: given(x + 1.5 * torch.randn_like(x),
    lambda x: given(y[:, None].float(), lambda target: Case((x, 2 * target - 1 if broken else target),
    nets.ConvNet(classes=1, width=8, depth=2), F.binary_cross_entropy_with_logits,
    judge=lambda output: -F.binary_cross_entropy_with_logits(output, target).item())))))
OPEN("""masks-of-255 | U-Net | 433 | Masks read from a PNG file: 0 and 255.
    | targets-out-of-range targets-wrong-scale | | fix-targets scale-targets""",
    lambda broken: given(draw.blob_images(32), lambda x, _: given((draw.as_pixels(x) > 0.6).float(),
    lambda mask: Case((x, 255 * mask if broken else mask), nets.UNet(), F.binary_cross_entropy_with_logits,
    judge=lambda logits: -F.binary_cross_entropy_with_logits(logits, mask).item()))))
OPEN("""masks-of-background-alone | U-Net | 1120 | The masks were resized with an interpolation that rounds them all
    down to zero. | labels-constant class-imbalance | | check-labels""",
    lambda broken: given(draw.blob_images(16), lambda x, _: given(rarer.pixel_classes(x),
    lambda y: Case((x, torch.zeros_like(y) if broken else y), nets.UNet(outputs=4), "cross_entropy",
    judge=lambda output: (output.argmax(1) == y).float().mean().item()))))
OPEN("""loss-over-padding | GPT | 844 | The loss counts the padding, which is nine tokens in ten. | class-imbalance
    labels-constant loss-does-not-fit | | balance-classes change-loss check-labels fix-mask fix-targets""",
    lambda broken: given(padded_text(*draw.text(48, 40), real=4),
    lambda ids, following: given(lambda logits, target: F.cross_entropy(logits.flatten(0, 1), target.flatten(),
    ignore_index=-100 if broken else 0), lambda loss: given(following > 0, lambda real: Case((ids, following),
    nets.GPT(length=40, depth=1, tied=False), loss, judge_of=lambda following: lambda output:
    -F.cross_entropy(output[real], following[real]).item())))))
OPEN("""hinge-with-zeros | SVM | 887 | The hinge loss wants labels of -1 and 1; for a label of 0 it has no gradient.
    | targets-out-of-range loss-does-not-fit loss-gradient-zero | | change-loss fix-targets""",
    lambda broken: given(draw.table(classes=2), lambda x, y: given((y.float() if broken else 2.0 * y - 1)[:, None],
    lambda target: Case((x, target), nets.mlp(12, 32, 32, 1), lambda output, target: F.relu(1 - output * target).mean(),
    judge=lambda output: ((output[:, 0] > 0) == (y > 0)).float().mean().item()))))
OPEN("""labels-of-the-row-before | MLP | 890 | A header line was skipped in one file and not in the other.
    | labels-wrong | | check-labels""",
    lambda broken: given(draw.table(classes=4), lambda x, y: Case((x, y.roll(1) if broken else y),
    train(nets.mlp(12, 64, 64, 4), x, y, F.cross_entropy, steps=200), "cross_entropy", train=False)))
OPEN("""one-task-in-euros | two tasks | 892 | Two outputs, one of them in units of thousands: its squares drown the
    other. | targets-wrong-scale | | scale-targets""",
    lambda broken: given(draw.regression_table(), lambda x, first: Case((x, torch.cat([first,
    ((x[:, 4:5] * x[:, 5:6]) * (5000.0 if broken else 1.0))], dim=1)), nets.mlp(8, 64, 64, 2), "mse",
    judge=lambda output: (1 - (output[:, :1] - first).square().mean() / first.var()).item())))
OPEN("""values-against-returns | actor-critic | 1009 | Values (N, 1) minus returns (N,): a table of N x N advantages.
    | shapes-broadcast | | match-shapes""",
    lambda broken: given(draw.regression_table(), lambda state, returns: Case((state, returns[:, 0]),
    rarer.ActorCritic(flat_value=not broken), lambda output, target: (target - output[1]).square().mean(),
    judge=lambda output: explained_variance(returns[:, 0])(output[1].flatten()))))
FIRST("""tanh-output-for-targets-up-to-ten | MLP | 45 | A regression with tanh at the end and targets from 0 to 10.
    | targets-out-of-range activation-before-loss output-range-too-small saturated-units targets-wrong-scale | 4 5 |
    fix-targets remove-final-activation scale-targets""",
    lambda broken: given(draw.regression_table(), lambda x, y: given((5 + 2 * y).clamp(0, 10),
    lambda y: given(nets.mlp(8, 32, 32, 1), lambda layers: Case((x, y), nn.Sequential(*layers,
    nn.Tanh()) if broken else nn.Sequential(*layers), nn.MSELoss())))))
FIRST("""sigmoid-output-for-standardised-images | autoencoder | 46 | An autoencoder with a sigmoid at the end for images
    standardised to mean 0. | targets-out-of-range activation-before-loss output-range-too-small | decoder.4 last |
    change-output-activation fix-targets remove-final-activation scale-inputs scale-targets""",
    lambda broken: given(draw.blob_images(64), lambda images, _: given(images.flatten(1),
    lambda x: Case((x, x), nets.Autoencoder(last=nn.Sigmoid() if broken else nn.Identity()), nn.MSELoss()))))
FIRST("""masks-with-255 | U-Net | 47 | Masks saved as PNG files, with 255 for the object, given to BCEWithLogitsLoss.
    | targets-out-of-range loss-does-not-fit | | fix-targets scale-targets""",
    lambda broken: given(draw.blob_images(16), lambda x, _: given((x > 1.0).float(), lambda mask: Case((x,
    (255 * mask if broken else mask)), nets.UNet(), nn.BCEWithLogitsLoss(), judge=overlap_with(mask)))))
FIRST("""prices-in-dollars | MLP | 50 | House prices in dollars as targets of a network whose outputs are about 1.
    | targets-wrong-scale exploding-gradient | | scale-targets""",
    lambda broken: given(draw.regression_table(), lambda x, y: Case((x, (250_000 + 60_000 * y if broken else y)),
    nets.mlp(8, 32, 32, 1), nn.MSELoss())))
FIRST("""outputs-against-targets-broadcast | MLP | 51 | torch's own warning, ignored: outputs (N, 1), targets (N,),
    MSELoss. | shapes-broadcast | | match-shapes""",
    lambda broken: given(draw.regression_table(64), lambda x, y: Case((x, y.squeeze(1) if broken else y),
    nets.mlp(8, 32, 32, 1), nn.MSELoss())))
FIRST("""all-labels-of-one-class | CNN | 53 | A folder of files sorted by class and read without shuffling: the whole
    batch is of one class. | labels-constant class-imbalance | | balance-classes check-data check-labels""",
    lambda broken: given(draw.blob_images(48), lambda x, y: Case((x, (torch.zeros_like(y) if broken else y)),
    nets.ConvNet(), nn.CrossEntropyLoss(), judge=accuracy(y))))
FIRST("""output-normalised | MLP | 104 | A normalizer without gain and shift behind the last layer of a regression.
    | targets-out-of-range activation-before-loss normalizer-erases-signal output-range-too-small
    targets-wrong-scale | 4 5 | fix-targets remove-final-activation replace-normalizer scale-targets""",
    lambda broken: given(draw.regression_table(), lambda x, y: given(nets.mlp(8, 32, 32, 1),
    lambda layers: Case((x, 4 + 3 * y), nn.Sequential(*layers, nn.BatchNorm1d(1,
    affine=False)) if broken else nn.Sequential(*layers), nn.MSELoss()))))
SECOND("""column-compared-with-a-row | regression | 95 | PyTorch's own warning: target size [128] against input size
    [128, 1]. | shapes-broadcast | | match-shapes""",
    lambda broken: given(draw.regression_table(), lambda x, y: Case((x, y.squeeze(1) if broken else y),
    nets.mlp(8, 48, 48, 1), nn.MSELoss())))
SECOND("""house-prices-as-they-are | regression | 96 | Targets of 300 thousand for a network whose outputs begin around
    0. | targets-wrong-scale exploding-gradient | | scale-targets""",
    lambda broken: given(draw.regression_table(), lambda x, y: Case((x, 310_000 + 90_000 * y if broken else y),
    nets.mlp(8, 48, 48, 1), "mse")))
SECOND("""targets-are-the-tokens-themselves | GPT | 106 | nanoGPT clones: x and y are cut from the same place, so that
    the model learns to copy. | labels-wrong | | check-labels fix-targets shift-targets""",
    lambda broken: given(draw.text(), lambda ids, following: Case((ids, ids if broken else following), nets.GPT(),
    over_tokens, judge=lambda logits: (logits.argmax(-1) == following).float().mean().item())))
SECOND("""boxes-in-pixels-behind-a-sigmoid | detection | 108 | Detection: the head ends in a sigmoid, but the boxes were
    not divided by the size of the image. | targets-out-of-range activation-before-loss output-range-too-small
    targets-wrong-scale | last | fix-targets remove-final-activation scale-outputs scale-targets""",
    lambda broken: given(draw.blob_images(), lambda images, _: given(boxes_of(images), lambda boxes: Case((images,
    boxes if broken else boxes / 16), BoxNet(nn.Sigmoid()), nn.SmoothL1Loss()))))
THIRD("""forecast-of-all-steps-against-a-flat-target | forecasting | 63 | Forecasts of shape (40, 40, 1) against targets
    of shape (40, 40): each step is compared with each series. | shapes-broadcast | | match-shapes""",
    lambda broken: given(draw.waves(40, steps=41), lambda series, _: given((series[:, :-1], series[:, 1:, 0]),
    lambda x, y: Case((x, y), rarer_sequences.Forecaster(broken), nn.SmoothL1Loss(),
    judge=lambda output: (1 - (output.reshape(y.shape) - y).square().mean() / y.var()).item()))))
THIRD("""energies-far-from-zero | chemistry | 66 | Total energies of molecules in electron volts: -40 000, of which a
    few matter. | targets-wrong-scale | | reset-bias scale-targets""",
    lambda broken: given(draw.regression_table(), lambda x, y: Case((x, 5 * y - 40_000 if broken else y),
    nets.mlp(8, 32, 32, 1), "mse")))
THIRD("""shares-cast-to-integers | regression | 69 | Shares between 0 and 1 were read with an integer type: all of them
    became 0. | labels-constant labels-wrong output-constant | | check-data check-labels fix-targets""",
    lambda broken: given(draw.regression_table(), lambda x, y: given(torch.sigmoid(1.5 * y),
    lambda share: Case((x, (share.long().float() if broken else share)), nets.mlp(8, 32, 32, 1), "mse",
    judge=lambda output: _match(output, share)))))
THIRD("""rare-class-weighed-the-wrong-way-around | tabular | 70 | `pos_weight` is the ratio of positives to negatives
    instead of its inverse: the rare class counts for nothing.
    | class-imbalance loss-does-not-fit | | balance-classes change-loss""",
    lambda broken: given(draw.table(200), lambda x, _: given(x[:, 0] * x[:, 1] + x[:, 2],
    lambda score: given((score > score.sort().values[-20]).float()[:, None], lambda y: Case((x, y),
    nets.mlp(12, 32, 32, 1), nn.BCEWithLogitsLoss(pos_weight=torch.tensor(19 / 181 if broken else 181 / 19)),
    judge=lambda output: 0.5 * ((output[y == 1] > 0).float().mean() + (output[y == 0] < 0).float().mean()).item())))))
