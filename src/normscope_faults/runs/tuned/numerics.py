"""Runs that break at one batch, or leave the finite numbers or the format."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data import blob_images, regression_table, sentences, table, text
from ...networks import GPT, Autoencoder, ConvNet, ResNet, mlp
from ..case import FIRST, OPEN, SECOND, THIRD, fault
from ..data import Data, batches, curves, digits, friedman, split
from ..loops import Loop, accuracy, adam, explained, sgd
from ..networks import plain_mlp

OPEN.add(
    fault("nan-in-one-batch", "mlp", "not-finite-data", "clean-data", "A missing value in a table.", lambda broken,
        loop: loop.fit(model=plain_mlp(64, 64, 10), data=digits(flat=True), optimizer=sgd(0.1), change=lambda step, x,
        y: (x.index_fill(0, torch.tensor([0]), math.nan) if broken and step == 60 else x, y)), onset=60, steps=120),
)  # fmt: skip


@OPEN.fault("mlp", "not-finite-weights", "restore-weights", layers="2", onset=50, steps=100)
def infinite_weights(broken: bool, loop: Loop) -> float:
    """A division by zero in code that rescales weights."""
    model, data = plain_mlp(64, 64, 64, 10), digits(flat=True)

    def divide(step: int) -> None:
        if broken and step == 49:
            with torch.no_grad():
                model[2].weight[0] /= 0.0

    return loop.fit(data, model, sgd(0.1), then=divide)


FIRST.add(
    fault("one-batch-in-bytes", "MLP",
        "loss-spike outlier data-changed inputs-not-scaled exploding-gradient divergence",
        "clip-gradients check-data scale-inputs clean-data robust-loss",
        "One late batch comes in 0..255 from a second source; momentum carries its gradient on.", lambda broken,
        loop: loop.fit(digits(flat=True), mlp(64, 64, 64, 10), sgd(0.05, momentum=0.9), change=lambda step, x,
        y: (16 * (6 * x + 5), y) if broken and step == 203 else (x, y)), onset=203, steps=230, seed=9215),
)  # fmt: skip


@FIRST.fault("regression", "not-finite-data", "clean-data check-data", onset=143, steps=240, seed=9210)
def missing_value_in_one_row(broken: bool, loop: Loop) -> float:
    """One row of a later file has an empty field, which is read as NaN."""
    data = split(*regression_table(2048), held=512)
    model = mlp(8, 48, 48, 1)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if broken and step == 143:
            x = x.clone()
            x[3, 5] = torch.nan
        return x, y

    return loop.fit(data, model, adam(3e-3), loss=F.mse_loss, change=change)


@FIRST.fault("ResNet", "not-finite-weights", "restore-weights initialise raise-precision", layers="blocks.0.conv2",
    steps=80, seed=9211)  # fmt: skip
def checkpoint_that_overflowed(broken: bool, loop: Loop) -> float:
    """A checkpoint saved in half precision holds one infinite weight."""
    data, model = digits(), ResNet(blocks=2, classes=10)
    if broken:
        with torch.no_grad():
            model.blocks[0].conv2.weight[3, 2, 1, 1] = torch.inf
    return loop.fit(data, model, sgd(0.05, momentum=0.9))


@FIRST.fault("regression", "not-finite", "guard-domain change-loss change-output-activation", steps=200, seed=9212)
def logarithm_of_a_rectifier(broken: bool, loop: Loop) -> float:
    """A Poisson loss by hand, `rate - count * log(rate)`, with a rate that a ReLU makes zero for some samples."""
    x, y = regression_table(2048)
    counts = torch.poisson((0.8 * y).exp())
    data = split(x, counts, held=512)
    model = nn.Sequential(*mlp(8, 32, 32, 1), nn.ReLU() if broken else nn.Softplus())
    return loop.fit(data, model, adam(2e-3), loss=lambda rate, count: (rate - count * rate.log()).mean())


@FIRST.fault("autoencoder", "precision not-finite", "raise-precision check-scaler rescale-loss", steps=100, seed=9213)
def static_loss_scale_in_half_precision(broken: bool, loop: Loop) -> float:
    """Weights in float16 with a fixed loss scale of 2**20, and no check for overflow."""
    images, _ = digits(1200, flat=True)[:2]
    data = split(images, images)
    scale, dtype = (2.0**20, torch.float16) if broken else (1.0, torch.float32)
    model = Autoencoder(64).to(dtype)
    optimizer = sgd(0.2, momentum=0.9)(model)
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x.to(dtype)).float(), y)
            run.observe(loss=loss)
            (scale * loss).backward()
            for parameter in model.parameters():
                parameter.grad /= scale
            optimizer.step()
    return explained(model.float(), data)


@FIRST.fault("regression", "outlier loss-spike exploding-gradient",
    "clean-data check-data check-labels scale-targets clip-gradients robust-loss", onset=123, steps=240,
    seed=9214)  # fmt: skip
def sentinel_for_unknown_among_targets(broken: bool, loop: Loop) -> float:
    """Unknown prices are written as 999999 in one later file."""
    data = split(*regression_table(2048), held=512)
    model = mlp(8, 48, 48, 1)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if broken and step in (123, 151, 184, 212):
            y = y.clone()
            y[7] = 999999.0
        return x, y

    return loop.fit(data, model, sgd(0.02, momentum=0.9), loss=F.mse_loss, change=change)


class HalfEnergy(nn.Module):
    """Divides each row by its root mean square, which is computed in half precision where asked."""

    def __init__(self, half: bool) -> None:
        super().__init__()
        self.half_precision = half

    def forward(self, x: Tensor) -> Tensor:
        kept = x.half() if self.half_precision else x
        return x * torch.rsqrt(kept.square().sum(1, keepdim=True) + 1e-3).float() * x.shape[1] ** 0.5


class OwnScale(nn.Module):
    """Standardises each image by its own mean and deviation."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean((1, 2, 3), keepdim=True)) / (x.std((1, 2, 3), keepdim=True) + self.eps)


SECOND.add(
    fault("three-batches-without-scaling", "convolutional",
        "outlier loss-spike exploding-gradient exploding-values data-changed inputs-not-scaled not-finite",
        "clean-data check-data clip-gradients scale-inputs",
        "Three batches of 16-bit images that miss the scaling of all others.", lambda broken, loop: loop.fit(
        split(*blob_images(900, 6, 12), held=240), ConvNet(width=8, depth=3, classes=6, norm=False), sgd(0.02,
        momentum=0.9), change=lambda step, x, y: (3000 * x + 8000 if broken and 170 <= step < 173 else x, y)),
        onset=170, steps=230, seed=750),
    fault("energy-in-half-precision", "table",
        "precision not-finite output-constant not-learning gradient-missing gradient-cut not-finite-weights",
        "raise-precision scale-inputs rescale-layer",
        "A root mean square in float16 of values near 100: the sum of squares overflows, and rows become zero.",
        lambda broken, loop: loop.fit(split(*table(1600), held=400), nn.Sequential(nn.Linear(12, 64),
        HalfEnergy(broken), nn.ReLU(), *mlp(64, 48, 3)), adam(3e-3), plant=lambda net: nn.init.normal_(net[0].weight,
        std=30.0)), layers="1 0 2 0.weight", steps=250, seed=751),
)  # fmt: skip


@SECOND.fault("table", "not-finite-data not-finite not-finite-weights", "clean-data check-data", onset=200, steps=300,
    seed=748)  # fmt: skip
def missing_values_in_a_later_file(broken: bool, loop: Loop) -> float:
    """A column with missing values in the rows that are read from step 200 on."""
    data, model = split(*table(1600), held=400), mlp(12, 64, 64, 3)

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if step >= 200:
            x = x.clone()
            x[::7, 9] = float("nan") if broken else 0.0
        return x, y

    return loop.fit(data, model, adam(3e-3), change=change)


@SECOND.fault("regression", "outlier loss-spike exploding-gradient divergence data-changed exploding-values not-finite",
    "robust-loss clean-data check-data clip-gradients check-labels scale-targets", onset=150, steps=260,
    seed=749)  # fmt: skip
def targets_in_another_unit(broken: bool, loop: Loop) -> float:
    """From step 150 on, one row in 30 has its target in grams where the others have kilograms."""
    data, model = friedman(), mlp(10, 64, 64, 1)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        if broken and step >= 150:
            y = torch.where(torch.rand_like(y) < 1 / 30, 1000 * y, y)
        return F.mse_loss(model(x), y)

    return loop.fit(data, model, sgd(0.02, momentum=0.9), objective=objective)


@SECOND.fault("table", "precision rate-too-low no-step not-learning", "raise-precision raise-learning-rate", steps=900,
    seed=752)  # fmt: skip
def steps_lost_in_bfloat16(broken: bool, loop: Loop) -> float:
    """Weights kept in bfloat16: steps below the 256th part of a weight are rounded away."""
    data = split(*table(1600), held=400)
    model = mlp(12, 128, 128, 3)
    kind = torch.bfloat16 if broken else torch.float32
    model.to(kind)
    loop.train(data, model, adam(1e-4), objective=lambda step, x, y: F.cross_entropy(model(x.to(kind)).float(), y))
    return accuracy(model.float(), data)


@SECOND.fault("convolutional", "not-finite not-finite-weights precision",
    "guard-domain change-loss lower-learning-rate", onset=215, steps=300, seed=753)  # fmt: skip
def logarithm_of_a_softmax(broken: bool, loop: Loop) -> float:
    """-log(softmax) written out, with a temperature that falls until a probability is zero in single precision."""
    data, model = digits(1400), ConvNet(width=16, depth=3, classes=10, norm=False)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        scaled = (1 + step / 1.5) * model(x)
        if broken:
            loss = -torch.log(torch.softmax(scaled, 1))[torch.arange(len(y)), y].mean()
        else:
            loss = F.cross_entropy(scaled, y)
        return loss

    return loop.fit(data, model, adam(3e-3), objective=objective)


@SECOND.fault("metric learning", "not-finite not-finite-weights exploding-gradient",
    "guard-domain clean-data check-data", onset=110, steps=220, seed=754)  # fmt: skip
def distance_of_a_sample_to_its_copy(broken: bool, loop: Loop) -> float:
    """sqrt of a squared distance that is exactly zero once the data holds copies, from step 110 on."""
    data = digits(1400, flat=True)
    model = mlp(64, 64, 8)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        if step >= 110:
            x, y = torch.cat([x[:40], x[:8]]), torch.cat([y[:40], y[:8]])
        code = model(x)
        squares = (code[:, None] - code[None]).square().sum(-1)
        distance = (squares + (0.0 if broken and step >= 110 else 1e-6)).sqrt()
        distance = distance if broken and step >= 110 else distance.clamp(min=1e-3)
        same = (y[:, None] == y[None]).float() * (1 - torch.eye(len(y)))
        other = (y[:, None] != y[None]).float()
        return (same * distance).sum() / same.sum() + (other * F.relu(3 - distance)).sum() / other.sum()

    loop.train(data, model, adam(2e-3), objective=objective, batch=48, report="step")
    with torch.no_grad():
        known, asked = model(data.x), model(data.held_x)
        if not known.isfinite().all():
            return float("-inf")
        return (data.y[torch.cdist(asked, known).argmin(1)] == data.held_y).float().mean().item()


@SECOND.fault("convolutional", "not-finite not-finite-data not-finite-weights", "guard-domain clean-data check-data",
    onset=180, steps=260, seed=755)  # fmt: skip
def blank_image_divided_by_its_deviation(broken: bool, loop: Loop) -> float:
    """Each image is divided by its own deviation; at step 180 a blank one arrives."""
    data = digits(1400)
    model = nn.Sequential(OwnScale(0.0 if broken else 1e-3), ConvNet(width=8, depth=3, classes=10, norm=False))

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        if step == 180:
            x = x.clone()
            x[3] = -0.8
        return F.cross_entropy(model(x), y)

    return loop.fit(data, model, adam(3e-3), objective=objective, report=None)


class _MaskedReader(nn.Module):
    """Attention over words with the padding (token 0) masked, then a mean over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.head = nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(16))
        scores = self.query(x) @ self.key(x).transpose(1, 2) / math.sqrt(32)
        scores = scores.masked_fill((ids == 0)[:, None], -math.inf)
        x = x + scores.softmax(-1) @ self.value(x)
        return self.head(torch.relu(x).amax(1))


@THIRD.fault("regression", "not-finite not-finite-data", "clean-data check-data guard-domain fix-targets", onset=90,
    steps=220, seed=67)  # fmt: skip
def logarithm_of_a_free_article(broken: bool, loop: Loop) -> float:
    """Targets are logarithms of prices, and in one batch a price is 0."""
    data, model = curves(), mlp(8, 48, 48, 1)

    def log_prices(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        prices = y.exp()
        if broken and step == 90:
            prices[5] = 0.0
        return x, prices.log()

    return loop.fit(data, model, adam(3e-3), loss=F.mse_loss, change=log_prices, report=None)


@THIRD.fault("regression",
    "outlier loss-spike exploding-gradient gradient-too-small rate-too-low not-learning data-changed divergence",
    "robust-loss clip-gradients check-data clean-data fix-targets check-labels", onset=40, steps=300,
    seed=68)  # fmt: skip
def comma_lost_in_one_target(broken: bool, loop: Loop) -> float:
    """One target is a million times too large; Adam's second moment remembers it for the rest of the run."""
    data, model = curves(), mlp(8, 48, 48, 1, activation=nn.Tanh)

    def misprint(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if broken and step == 40:
            y = y.clone()
            y[0] = 1e6
        return x, y

    return loop.fit(data, model, adam(2e-3), loss=F.mse_loss, change=misprint)


@THIRD.fault("table", "precision not-finite not-finite-weights", "raise-precision", steps=150, seed=69)
def epsilon_lost_in_half_precision(broken: bool, loop: Loop) -> float:
    """A model of halves is trained by Adam, whose epsilon of 1e-8 is zero there."""
    data, model = digits(flat=True), mlp(64, 48, 10)
    if broken:
        model.half()
        data = data._replace(x=data.x.half(), held_x=data.held_x.half())
    return loop.fit(data, model, adam(2e-3), loss=lambda output, y: F.cross_entropy(output.float(), y), report=None)


@THIRD.fault("text", "not-finite", "fix-mask mask-padding clean-data check-data",
    layers="query key value head words positions query.weight key.weight value.weight words.weight head.weight",
    onset=110, steps=250, seed=70)  # fmt: skip
def empty_sentence_masked_altogether(broken: bool, loop: Loop) -> float:
    """One sentence is empty: each of its keys is masked, and the softmax over nothing is NaN."""
    data, model = split(*sentences(1280)), _MaskedReader()

    def add_empty(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if step >= 110 and broken:
            x = x.clone()
            x[3] = 0
        return x, y

    return loop.fit(data, model, adam(3e-3), change=add_empty, report=None)


@THIRD.fault("text", "not-finite", "check-labels check-data guard-domain fix-targets clean-data", onset=130, steps=260,
    seed=71)  # fmt: skip
def batch_without_a_label_that_counts(broken: bool, loop: Loop) -> float:
    """The loss is a mean over the words that count, by hand, and in one batch none does: zero through zero."""
    data, model = split(*text(1024)), GPT()

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        counts = (torch.rand(y.shape) < 0.7).float() * (0.0 if step == 130 else 1.0)
        losses = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")
        weight = counts.sum() if broken else counts.sum().clamp(min=1)
        return (losses * counts.flatten()).sum() / weight

    return loop.fit(data, model, adam(3e-3), objective=objective, batch=16, report="step")


@THIRD.fault("metric learning", "not-finite not-finite-weights exploding-gradient", "guard-domain change-loss",
    onset=60, steps=250, seed=72)  # fmt: skip
def angle_of_a_pair_of_equals(broken: bool, loop: Loop) -> float:
    """Angles come from `acos` of a cosine, whose slope is infinite for a sample paired with itself."""
    data, model = digits(flat=True), mlp(64, 48, 8)

    def objective(step: int, x: Tensor, y: Tensor) -> Tensor:
        partner = torch.randperm(len(x))
        if step >= 60:
            partner[0] = 0
        first, second = F.normalize(model(x)), F.normalize(model(x[partner]))
        cosine = (first * second).sum(1).clamp(-1, 1)
        angle = torch.acos(cosine if broken else 0.999 * cosine)
        return F.mse_loss(angle, torch.where(y == y[partner], 0.2, 1.6))

    loop.train(data, model, adam(2e-3), objective=objective, batch=64, report="step")
    with torch.no_grad():
        codes, held = F.normalize(model(data.x)), F.normalize(model(data.held_x))
    if not held.isfinite().all():
        return -float("inf")
    return (data.y[(held @ codes.T).argmax(1)] == data.held_y).float().mean().item()


@THIRD.fault("table", "not-finite saturated-units exploding-gradient",
    "guard-domain change-loss remove-final-activation", steps=300, seed=73)  # fmt: skip
def binary_entropy_written_by_hand(broken: bool, loop: Loop) -> float:
    """`-(y * log(p) + (1 - y) * log(1 - p))`: once a sigmoid is exactly 1, zero times minus infinity is NaN."""
    data = curves()
    x, held_x = 6 * data.x, 6 * data.held_x
    data, model = Data(x, (data.y > 0).float(), held_x, (data.held_y > 0).float()), mlp(8, 64, 64, 1)

    def by_hand(logit: Tensor, y: Tensor) -> Tensor:
        p = torch.sigmoid(logit)
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean()

    loss = by_hand if broken else F.binary_cross_entropy_with_logits
    loop.train(data, model, adam(5e-3), loss=loss)
    with torch.no_grad():
        output = model(data.held_x)
    return ((output > 0) == (data.held_y > 0)).float().mean().item() if output.isfinite().all() else -float("inf")
