"""Faults of numbers and number formats, and of the settings of optimizers."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import SGD, Adam

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import scaled
from ...training import accuracy, evidence_loss, explained_variance, over_tokens
from . import rarer


@OPEN
def class_weights_by_integer_division(broken: bool) -> Case:
    """U-Net | 819 | weight = count // total is zero for each class, and the weighted mean divides by zero.
    | not-finite class-imbalance gradient-not-finite loss-does-not-fit loss-gradient-zero | | balance-classes
    change-loss guard-domain"""
    x, _ = draw.blob_images(16)
    y = rarer.pixel_classes(x)
    count = torch.bincount(y.flatten(), minlength=4)
    weight = (count // y.numel()).float() if broken else y.numel() / (4.0 * count)
    return Case((x, y), nets.UNet(outputs=4), nn.CrossEntropyLoss(weight=weight))


@OPEN
def weight_norm_of_a_zero_layer(broken: bool) -> Case:
    """GAN | 822 | A last layer initialised to zero and then wrapped in weight_norm, which divides by its norm.
    | not-finite not-finite-weights zero-weights | 5 | guard-domain initialise"""
    x, y = draw.blob_images(classes=2)
    model = nets.discriminator()
    if broken:
        nn.init.zeros_(model[5].weight)
    model[5] = weight_norm(model[5], dim=0)
    return Case(
        (x, y.float()[:, None]),
        model,
        nn.BCEWithLogitsLoss(),
        judge_of=lambda target: (
            lambda output: ((output > 0) == (target > 0.5)).float().mean().item() if output.isfinite().all() else 0.0
        ),
    )


OPEN(
    """squash-of-an-empty-capsule | capsules | 831 | The squash divides by the length of a capsule; behind a ReLU
    some capsules are zero.
    | not-finite gradient-not-finite | | guard-domain""",
    lambda broken: Case(
        draw.blob_images(), rarer.Capsules(0.0 if broken else 1e-6), "cross_entropy", judge_of=accuracy
    ),
)


class Statistics(nn.Module):  # Mean and standard deviation over the points, from the features of each.
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.point, self.cloud = eps, nets.mlp(3, 32, 16), nets.mlp(32, 32, 4)

    def forward(self, clouds: Tensor) -> Tensor:
        features = torch.relu(self.point(clouds))
        deviation = (features.var(1, correction=0) + self.eps).sqrt()
        return self.cloud(torch.cat([features.mean(1), deviation], dim=1))


@OPEN
def deviation_of_equal_points(broken: bool) -> Case:
    """PointNet | 834 | Statistics pooling: the slope of a standard deviation of zero is infinite.
    | gradient-not-finite not-finite | | guard-domain"""
    x, y = rarer.clouds()
    x[5] = x[5, :1]
    return Case((x, y), Statistics(0.0 if broken else 1e-6), "cross_entropy")


@OPEN
def every_target_ignored(broken: bool) -> Case:
    """GPT | 845 | The mask of the prompt covers the answer too: all targets are -100, and the mean of nothing is NaN.
    | not-finite gradient-not-finite labels-constant loss-does-not-fit loss-gradient-zero | | change-loss
    check-labels fix-mask fix-targets"""
    ids, following = draw.text(16)
    target = following.clone()
    target[:, : None if broken else 6] = -100
    return Case((ids, target), nets.GPT(depth=1), over_tokens, judge=rarer.likelihood(following))


@OPEN
def scores_in_half_precision(broken: bool) -> Case:
    """attention | 851 | Scores of large queries in half precision, divided by sqrt(d) only afterwards.
    | precision attention-saturated gradient-not-finite not-finite | | raise-precision scale-attention"""
    ids, y = draw.sentences(96, length=6, vocabulary=14)
    model = rarer.Heads(dtype=torch.float16 if broken else torch.float32)
    for layer in (model.q, model.k):
        nn.init.normal_(layer.weight, std=16.0 if broken else 0.2)
    return Case((ids, y), model, "cross_entropy")


@OPEN
def tiny_guard_in_half_precision(broken: bool) -> Case:
    """speech | 872 | log(p + 1e-8) in half precision, where 1e-8 is zero.
    | precision gradient-not-finite not-finite | | change-loss change-output-activation guard-domain raise-precision"""
    x, y = draw.waves()

    class Frames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nets.mlp(120, 48, 3)

        def forward(self, x: Tensor) -> Tensor:
            p = (12 * self.net(x.flatten(1))).softmax(1)
            return torch.log((p.half() if broken else p) + 1e-8).float()

    return Case((x, y), Frames(), nn.NLLLoss(), judge_of=accuracy)


OPEN(
    """rates-that-may-be-negative | counts | 894 | PoissonNLLLoss(log_input=False) on a linear output: the logarithm
    of a negative rate.
    | not-finite activation-before-loss gradient-not-finite loss-does-not-fit | | change-loss
    change-output-activation guard-domain""",
    lambda broken: given(
        draw.regression_table(),
        lambda x, _: Case(
            (x, torch.poisson(torch.exp(0.5 + 0.6 * x[:, :1]))),
            nets.mlp(8, 32, 1),
            nn.PoissonNLLLoss(log_input=not broken),
            judge_of=lambda counts: lambda output: -F.poisson_nll_loss(output, counts).item(),
        ),
    ),
)


def cox(output: Tensor, target: Tensor) -> Tensor:
    """Return the negative partial likelihood of Cox's model, written with exp and log; samples come by falling time."""
    return -(output - torch.log(torch.cumsum(torch.exp(output), dim=0))).mean()


@OPEN
def hazards_of_raw_columns(broken: bool) -> Case:
    """survival | 895 | Raw laboratory values: the exponential of the hazard overflows.
    | not-finite exploding-signal gradient-not-finite inputs-not-scaled | | guard-domain scale-inputs"""
    x, y = draw.regression_table()
    order = y[:, 0].argsort()
    x, y = x[order], y[order]
    return Case(
        (300 + 250 * x if broken else x, y),
        nets.mlp(8, 32, 1),
        cox,
        judge_of=lambda y: lambda output: -cox(output, y).item(),
    )


@OPEN
def where_does_not_guard_the_gradient(broken: bool) -> Case:
    """survival | 896 | where(x > 0, sqrt(x), 0): the value is guarded, the gradient of the other branch is not.
    | gradient-not-finite not-finite | | guard-domain"""
    x, y = draw.regression_table()

    class RootFeatures(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x)
            inner = hidden if broken else torch.where(hidden > 0.01, hidden, 0.01)
            return self.second(torch.where(hidden > 0.01, torch.sqrt(inner), 0.0))

    return Case((x, y), RootFeatures(), "mse")


@OPEN
def angle_of_equal_directions(broken: bool) -> Case:
    """angles | 1007 | acos of a cosine that reaches 1: its slope is infinite.
    | gradient-not-finite not-finite | | guard-domain"""
    x = torch.randn(96, 6)
    x[::12, 3:] = x[::12, :3]
    angle = torch.acos(F.cosine_similarity(x[:, :3], x[:, 3:]).clamp(-1, 1))

    class Angles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nets.mlp(3, 32, 8), nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            first, second = self.embed(x[:, :3]), self.embed(x[:, 3:])
            bound = 1.0 if broken else 1 - 1e-4
            cosine = (first * second).sum(1) / (first.norm(dim=1) * second.norm(dim=1))
            return self.head(torch.acos(cosine.clamp(-bound, bound))[:, None])

    return Case((x, angle[:, None]), Angles(), "mse")


@OPEN
def entropy_of_forbidden_actions(broken: bool) -> Case:
    """actor-critic | 1008 | p * log(p) for actions whose probability is exactly zero.
    | not-finite gradient-not-finite | | change-output-activation guard-domain"""
    state, returns = draw.regression_table()

    def loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        p, value = output
        entropy = -(p * torch.log(p if broken else p + 1e-8)).sum(1).mean()
        return F.mse_loss(value, target) - 0.01 * entropy

    return Case(
        (state, returns[:, 0]),
        rarer.ActorCritic(),
        loss,
        judge=lambda output: explained_variance(returns[:, 0])(output[1]),
    )


@OPEN
def tiny_embeddings_in_half_precision(broken: bool) -> Case:
    """recommender | 1018 | Embeddings drawn at 1e-5 in half precision: their products are zero.
    | precision output-constant vanishing-gradient vanishing-signal zero-weights | items{,.weight} users{,.weight} |
    initialise raise-precision rescale-layer"""
    pairs, score = draw.ratings()

    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(40, 8), nn.Embedding(30, 8)
            for embedding in (self.users, self.items):
                nn.init.normal_(embedding.weight, std=1e-5 if broken else 0.3)

        def forward(self, pairs: Tensor) -> Tensor:
            user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
            return (user * item).sum(1).float()

    return Case((pairs, score), Factors().half() if broken else Factors(), "mse")


@OPEN
def histogram_of_nothing(broken: bool) -> Case:
    """histograms | 1019 | Counts divided by their sum, which is zero for an empty document.
    | not-finite gradient-not-finite not-finite-data | | clean-data guard-domain"""
    counts = torch.poisson(torch.rand(64, 20) * 3)
    y = (counts[:, :5].sum(1) > counts[:, 5:10].sum(1)).long()
    counts[11] = 0

    class Shares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nets.mlp(20, 32, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(20 * x / (x.sum(1, keepdim=True) + (0.0 if broken else 1e-6)))

    return Case((counts, y), Shares(), "cross_entropy")


OPEN(
    """adamw-with-a-rate-of-three | MLP | 1018 | A rate in thousandths without its factor; the weight decay is the
    one that AdamW has by itself.
    | learning-rate-too-large | | lower-learning-rate""",
    lambda broken: Case(
        draw.table(),
        nets.mlp(12, 32, 32, 3),
        "cross_entropy",
        optimizer=partial(torch.optim.AdamW, lr=3.0 if broken else 3e-3),
    ),
)


class LogLayer(nn.Module):  # The logarithm of rectified values, with a constant added or not.
    def __init__(self, added: float) -> None:
        super().__init__()
        self.added = added

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(torch.relu(x) + self.added)


OPEN(
    """logarithm-of-rectified-values | MLP | 513 | The logarithm of a ReLU.
    | not-finite | 1 | guard-domain""",
    lambda broken: Case(
        draw.table(),
        nn.Sequential(
            nn.Linear(12, 32), LogLayer(0.0 if broken else 1.0), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)
        ),
        "cross_entropy",
    ),
)


class NeighbourMean(nn.Module):  # The mean over neighbours.
    guarded = True

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        degree = torch.zeros(len(x), 1).index_add(0, edges[1], torch.ones(edges.shape[1], 1))
        total = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return total / (degree.clamp(min=1) if self.guarded else degree)


class MeanGraph(nets.GraphNet):  # A graph network that averages its input over neighbours first.
    def __init__(self, edges: Tensor) -> None:
        super().__init__(edges)
        self.average = NeighbourMean()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.average(x, self.edges))


@OPEN
def mean_of_no_neighbours(broken: bool) -> Case:
    """GNN | 514 | A mean over the neighbours of a node that has none.
    | not-finite | average | guard-domain"""
    x, edges, y = draw.communities()
    model = MeanGraph(edges[:, (edges != 17).all(0)])
    model.average.guarded = not broken
    return Case(
        (x, y),
        model,
        "cross_entropy",
        judge_of=lambda y: (
            lambda output: (output.argmax(1) == y).float().mean().item() if output.isfinite().all() else -torch.inf
        ),
    )


class HandSoftmax(nn.Module):  # A softmax over the last axis, written by hand.
    stable = True

    def forward(self, scores: Tensor) -> Tensor:
        if self.stable:
            scores = scores - scores.amax(-1, keepdim=True)
        return scores.exp() / scores.exp().sum(-1, keepdim=True)


class Selector(nn.Module):  # Weighs its columns by a softmax of scores of some size, then an MLP.
    def __init__(self) -> None:
        super().__init__()
        self.score, self.attend, self.body = nn.Linear(12, 12), HandSoftmax(), nets.mlp(24, 32, 3)
        nn.init.normal_(self.score.weight, std=8.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(torch.cat([x, x * self.attend(self.score(x))], dim=1))


@OPEN
def softmax_by_hand_overflows(broken: bool) -> Case:
    """MLP | 515 | exp(x) / sum(exp(x)) without taking off the maximum.
    | not-finite | attend | change-output-activation guard-domain raise-precision scale-attention"""
    x, y = draw.table()
    model = Selector()
    model.attend.stable = not broken
    return Case((x, y), model, "cross_entropy")


def hinge_of_distance(distance: Tensor, same: Tensor) -> Tensor:
    """Return the contrastive loss of distances, with a margin of 2."""
    return (same * distance + (1 - same) * F.relu(2 - distance)).mean()


class Distances(nn.Module):  # How far apart the embeddings of two images are, by a root with or without a guard.
    def __init__(self, guard: float) -> None:
        super().__init__()
        self.guard, self.encoder = guard, nn.Sequential(nn.Flatten(), *nets.mlp(256, 64, 16))

    def forward(self, pairs: Tensor) -> Tensor:
        difference = self.encoder(pairs[:, :1]) - self.encoder(pairs[:, 1:])
        return torch.sqrt(difference.square().sum(1) + self.guard)


@OPEN
def root_of_a_zero_distance(broken: bool) -> Case:
    """Siamese | 516 | The root of a distance that is zero: its slope is infinite.
    | gradient-not-finite not-finite | | guard-domain"""
    pairs, same = draw.image_pairs()
    pairs[4, 1] = pairs[4, 0]  # a pair of one image with itself
    return Case(
        (pairs, same),
        Distances(0.0 if broken else 1e-6),
        hinge_of_distance,
        judge_of=lambda same: (
            lambda distance: (
                ((distance < 1) == (same > 0.5)).float().mean().item() if distance.isfinite().all() else -torch.inf
            )
        ),
    )


class LogPower(nn.Module):
    """The logarithm of the power of each band, of amplitudes brought back to the range of 16-bit sound."""

    def forward(self, bands: Tensor) -> Tensor:
        return torch.log((4096 * bands).square().mean(2) + 1) - 12


@OPEN
def half_precision_overflows(broken: bool) -> Case:
    """sound | 517 | Squares of 16-bit amplitudes in half precision, which ends at 65,504.
    | precision exploding-signal not-finite | 0 | guard-domain raise-precision"""
    loudness = torch.randn(128, 6).exp()
    bands, y = 0.1 * loudness[:, :, None] * torch.randn(128, 6, 40), loudness[:, :3].argmax(1)
    dtype = torch.float16 if broken else torch.float32
    model = nn.Sequential(LogPower(), *nets.mlp(6, 32, 3)).to(dtype)
    return Case((bands.to(dtype), y), model, "cross_entropy")


def small_mean_square(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean square with the small weight that one of many losses has."""
    return 1e-6 * F.mse_loss(output, target)


@OPEN
def half_precision_underflows(broken: bool) -> Case:
    """MLP | 518 | Half precision without a GradScaler: gradients below 6e-8 are zero.
    | precision vanishing-gradient | 0 2 4 | raise-precision"""
    x, y = draw.regression_table()
    dtype = torch.float16 if broken else torch.float32
    model = nets.mlp(8, 32, 32, 1).to(dtype)
    return Case((x.to(dtype), y.to(dtype)), model, small_mean_square)


@OPEN
def years_in_bfloat16(broken: bool) -> Case:
    """MLP | 519 | Years in bfloat16, which rounds them to multiples of 8.
    | precision inputs-not-scaled | | raise-precision scale-inputs"""
    x, y = draw.regression_table()
    years = 2000 + 2 * x
    dtype = torch.bfloat16 if broken else torch.float32
    return Case(
        model=nets.mlp(8, 32, 32, 1).to(dtype), data=(years.to(dtype) if broken else x, y.to(dtype)), loss="mse"
    )


class StrictAttention(nets.SelfAttention):  # Causal attention by a mask that may hide the diagonal too.
    diagonal = 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        visible = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(self.diagonal)
        scores = (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf)
        return scores.softmax(-1) @ value


class MaskedGPT(nets.GPT):  # A GPT whose attention gets its mask as a tensor.
    def __init__(self, strict: bool) -> None:
        super().__init__()
        for block in self.blocks:
            block.attention.__class__ = StrictAttention
            block.attention.diagonal = -1 if strict else 0


OPEN(
    """mask-hides-the-diagonal | GPT | 611 | tril(-1): the first token sees nothing, and the softmax of nothing is
    NaN.
    | not-finite attention-mask-wrong | blocks.0.attention | fix-mask guard-domain""",
    lambda broken: Case(draw.text(), MaskedGPT(broken), over_tokens),
)


@FIRST
def attention_overflows_in_half(broken: bool) -> Case:
    """GPT | 124 | float16: the product of queries and keys passes 65504 before it is divided.
    | precision attention-saturated not-finite | blocks.{0,1} blocks.{0,1}.attention blocks.1.attention.qkv |
    raise-precision rescale-layer scale-attention"""
    ids, following = draw.text(8)
    model: Any = nets.GPT(width=64)

    class LateDivision(nets.SelfAttention):
        """Divides after the product, as many hand-written attentions do."""

        def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            scores = query @ key.transpose(-2, -1) / 16
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            return scores.masked_fill(hidden, -math.inf).softmax(-1) @ value

    if broken:
        attention = model.blocks[1].attention
        attention.__class__ = LateDivision
        with torch.no_grad():
            attention.qkv.weight[:128].mul_(1000.0)
        model.half()
    return Case((ids, following), model, over_tokens)


@FIRST(plant=scaled("log_variance.weight", 1500.0))
def log_variance_overflows(broken: bool) -> Case:
    """VAE | 21 | GitHub threads on VAEs: exp(logvar) overflows in the first step.
    | not-finite exploding-gradient exploding-signal layer-scale-stands-out | log_variance{,.bias,.weight} |
    guard-domain initialise rescale-layer reset-bias"""
    images, _ = draw.blob_images(64)
    x = draw.as_pixels(images).flatten(1)
    return Case((x, x), nets.VAE(), evidence_loss, judge_of=lambda x: lambda o: -evidence_loss(o, x).item())


class LogFeatures(nn.Module):  # The logarithm of what arrives.
    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x + self.shift)


@FIRST
def logarithm_of_relu(broken: bool) -> Case:
    """MLP | 81 | log of a ReLU's output, which is 0 for half of the units (TheDeepChecker: numerical instability).
    | not-finite gradient-not-finite | 2 | guard-domain"""
    x, y = draw.regression_table()
    log = LogFeatures(0.0 if broken else 1.0)
    return Case(
        (x, y),
        nn.Sequential(nn.Linear(8, 32), nn.ReLU(), log, nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)),
        nn.MSELoss(),
    )


@FIRST
def distance_of_equal_images(broken: bool) -> Case:
    """Siamese | 82 | sqrt of a squared distance that is 0 for a pair of equal images: values are fine, the gradient is
    NaN.
    | gradient-not-finite not-finite | | guard-domain"""

    class Distance(nn.Module):
        """The distance of the embeddings of both images."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = nets.mlp(256, 64, 16)

        def forward(self, pairs: Tensor) -> Tensor:
            first, second = (self.encoder(pairs[:, index].flatten(1)) for index in (0, 1))
            squared = (first - second).square().sum(1)
            return torch.sqrt(squared if broken else squared + 1e-6)

    pairs, same = draw.image_pairs()
    pairs[:4, 1], same[:4] = pairs[:4, 0], 1.0
    return Case((pairs, 2 * (1 - same)), Distance(), nn.MSELoss())


class Standardise(nn.Module):  # Brings each channel of each image to mean 0 and standard deviation 1.
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean((2, 3), keepdim=True)) / (x.std((2, 3), keepdim=True) + self.eps)


@FIRST
def division_by_zero_deviation(broken: bool) -> Case:
    """CNN | 83 | Division by the standard deviation of an image that is one colour (an empty scan).
    | not-finite gradient-not-finite | standardise | clean-data guard-domain"""

    class Scans(nn.Module):
        """Standardises each image, then classifies it."""

        def __init__(self) -> None:
            super().__init__()
            self.standardise = Standardise(0.0 if broken else 1e-5)
            self.net = nets.ConvNet()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(self.standardise(x))

    x, y = draw.blob_images(48)
    x[5] = 0.0
    return Case((x, y), Scans(), nn.CrossEntropyLoss())


@FIRST
def gradients_underflow_in_half(broken: bool) -> Case:
    """MLP | 86 | model.half() without loss scaling: gradients fall below the smallest half and become 0.
    | precision vanishing-gradient | | raise-precision scale-targets"""
    dtype = torch.float16 if broken else torch.float32
    x, y = draw.regression_table(512)

    def small_loss(output: Tensor, target: Tensor) -> Tensor:
        return ((output - target) * 1e-3).square().mean()

    model: Any = nets.mlp(8, 64, 64, 1).to(dtype)
    return Case((x.to(dtype), y.to(dtype)), model, small_loss)


@FIRST
def energy_overflows_in_half(broken: bool) -> Case:
    """CNN | 87 | Pixels 0..255 and half precision: a sum of squares passes 65504.
    | precision exploding-signal not-finite | features.{0..7} head | raise-precision scale-inputs"""

    class Energy(nn.Module):
        """Convolutions and the mean energy of each map."""

        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(),
                nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU(),
            )  # fmt: skip
            self.head = nn.Linear(8, 4)
            for module in self.features:
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.features(x).square().mean((2, 3)))

    images, y = draw.blob_images(48)
    x = (400 * images).half() if broken else images
    model: Any = Energy().half() if broken else Energy()
    return Case((x, y), model, nn.CrossEntropyLoss())


class BareStandardiser(nn.Module):
    """Standardises each row, with or without something that keeps the division from zero."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + self.eps)


@SECOND
def standardiser_without_eps(broken: bool) -> Case:
    """tabular | 150 | A row of equal values (a sensor that is off) is divided by a standard deviation of zero.
    | not-finite gradient-not-finite | 0 | guard-domain"""
    x, y = draw.table()
    x[17] = 0.0
    return Case(
        (x, y), nn.Sequential(BareStandardiser(0.0 if broken else 1e-5), *nets.mlp(12, 48, 48, 3)), "cross_entropy"
    )


class Loudness(nn.Module):
    """Classifies sounds by the logarithm of the energy of their two halves, summed up in a number format."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.tower = dtype, nets.mlp(2, 32, 32, 3)

    def forward(self, sounds: Tensor) -> Tensor:
        energy = sounds.to(self.dtype).square().view(len(sounds), 2, -1).sum(2)
        return self.tower(energy.log().float() - 9)


@SECOND
def energies_beyond_the_range_of_half(broken: bool) -> Case:
    """mixed precision | 151 | A sum of squares leaves the range of float16 (65504).
    | precision not-finite | | raise-precision scale-inputs"""
    labels = torch.arange(48) % 3
    return Case(
        (
            (torch.randn(48, 4096) * torch.tensor([1.0, 3.0, 7.0])[labels][:, None] * (1 + 0.2 * torch.rand(48, 1))),
            labels,
        ),
        Loudness(torch.float16 if broken else torch.float32),
        "cross_entropy",
    )


class OneDivided(nn.Module):
    """Scales rows by the root of their variance, computed as the mean of squares minus the square of the mean."""

    def __init__(self, stable: bool) -> None:
        super().__init__()
        self.stable, self.tower = stable, nets.mlp(12, 48, 48, 3)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        centred = x - mean
        variance = centred.square().mean(1, keepdim=True)
        if not self.stable:
            variance = x.square().mean(1, keepdim=True) - mean.square()
        return self.tower(centred / variance.sqrt())


SECOND(
    """variance-by-the-difference-of-squares | tabular | 152 | E[x^2] - E[x]^2 of values around 5000 drowns in
    rounding and becomes negative.
    | precision not-finite | | guard-domain raise-precision scale-inputs""",
    lambda broken: given(draw.table(), lambda x, y: Case((5000 + x, y), OneDivided(not broken), "cross_entropy")),
)


class BareDistance(nets.Siamese):  # Returns the distance of both embeddings, with something under the root or without.
    inside = 0.0

    def forward(self, pairs: Tensor) -> Tensor:
        first, second = super().forward(pairs)
        return ((first - second).square().sum(1) + self.inside).sqrt()


def margin_loss(distance: Tensor, same: Tensor) -> Tensor:
    return (same * distance.square() + (1 - same) * F.relu(2 - distance).square()).mean()


@SECOND
def root_of_zero_for_equal_pairs(broken: bool) -> Case:
    """Siamese | 153 | The derivative of a root at zero is infinite: one pair of twice the same image makes all
    gradients NaN.
    | gradient-not-finite | | guard-domain"""
    pairs, same = draw.image_pairs()
    pairs[4, 1] = pairs[4, 0]
    model = BareDistance()
    model.inside = 0.0 if broken else 1e-8
    return Case(
        model=model, data=(pairs, same), loss=margin_loss,
        judge=lambda distance: ((distance < 1) == (same > 0.5)).float().mean().item(),
    )  # fmt: skip


class MaskedPolicy(nn.Module):  # Scores five actions, of which some are not allowed (the last five inputs say which).
    def __init__(self) -> None:
        super().__init__()
        self.tower = nets.mlp(12, 48, 48, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.tower(x).masked_fill(x[:, 7:] > 0.5, -1e9)


@SECOND
def entropy_by_the_logarithm_of_a_softmax(broken: bool) -> Case:
    """policy | 154 | p * log(p) of an action that is not allowed is 0 times minus infinity; log_softmax is finite
    there.
    | not-finite gradient-not-finite | | change-loss change-output-activation guard-domain"""
    x = torch.randn(128, 12)
    x[:, 7:] = (x[:, 7:] > 0.8).float()
    x[:, 7] = 0.0
    actions = (x[:, :5] * x[:, 1:6]).masked_fill(x[:, 7:] > 0.5, -9.0).argmax(1)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        chances = F.softmax(output, dim=1)
        logarithms = torch.log(chances) if broken else F.log_softmax(output, dim=1)
        return F.cross_entropy(output, target) + 0.01 * (chances * logarithms).sum(1).mean()

    return Case((x, actions), MaskedPolicy(), loss)


@SECOND
def gradients_below_the_smallest_half(broken: bool) -> Case:
    """mixed precision | 155 | A model in float16 without a GradScaler: a small loss has gradients that round to zero.
    | precision loss-gradient-zero vanishing-gradient | | raise-precision"""
    x, y = draw.regression_table()
    model = nets.mlp(8, 48, 48, 1)
    dtype = torch.float16 if broken else torch.float32

    def small_loss(output: Tensor, target: Tensor) -> Tensor:
        return 3e-6 * F.mse_loss(output, target)  # its weight beside other losses

    return Case(model=model.to(dtype), data=(x.to(dtype), y.to(dtype)), loss=small_loss)


@SECOND
def rate_and_momentum_swapped(broken: bool) -> Case:
    """CNN | 161 | SGD(parameters, 0.9, 0.02): the rate is where the momentum should be.
    | learning-rate-too-large | | lower-learning-rate"""
    model = nets.ConvNet(norm=False)
    optimizer = SGD(model.parameters(), 0.9, 0.02) if broken else SGD(model.parameters(), 0.02, 0.9)
    return Case(draw.blob_images(), model, "cross_entropy", optimizer=optimizer)


SECOND(
    """adam-with-a-rate-of-a-half | GPT | 162 | A rate for SGD in an Adam: every weight moves by 0.5 in the first
    step.
    | learning-rate-too-large | | lower-learning-rate""",
    lambda broken: given(
        nets.GPT(),
        lambda model: Case(draw.text(), model, over_tokens, optimizer=partial(Adam, lr=0.5 if broken else 3e-3)),
    ),
)


SECOND(
    """rate-of-one-in-a-billion | regression | 163 | DeepCrime, "decrease learning rate": a schedule has run out
    before training begins.
    | learning-rate-too-small | | raise-learning-rate""",
    lambda broken: given(
        nets.mlp(8, 48, 48, 1),
        lambda model: Case(draw.regression_table(), model, "mse", optimizer=partial(Adam, lr=1e-9 if broken else 3e-3)),
    ),
)


SECOND(
    """weight-decay-of-one | CNN | 164 | A strength of 1 from a ridge regression: the weights vanish, whatever the
    loss says.
    | weight-decay-too-strong | | lower-weight-decay""",
    lambda broken: given(
        nets.ConvNet(norm=False),
        lambda model: Case(
            draw.blob_images(),
            model,
            "cross_entropy",
            optimizer=partial(SGD, lr=0.02, momentum=0.9, weight_decay=1.0 if broken else 1e-4),
        ),
    ),
)


SECOND(
    """momentum-that-never-fades | regression | 165 | Momentum of 1 (0.9 rounded in a configuration of whole
    numbers): all gradients add up for ever.
    | momentum-too-large learning-rate-too-large | | lower-learning-rate lower-momentum""",
    lambda broken: given(
        nets.mlp(8, 48, 48, 1),
        lambda model: Case(
            draw.regression_table(), model, "mse", optimizer=partial(SGD, lr=0.02, momentum=1.0 if broken else 0.9)
        ),
    ),
)


SECOND(
    """optimizer-set-to-maximise | regression | 166 | maximize=True was copied from a policy gradient.
    | optimizer-ascends | | minimise""",
    lambda broken: given(
        nets.mlp(8, 48, 48, 1),
        lambda model: Case(draw.regression_table(), model, "mse", optimizer=partial(Adam, lr=3e-3, maximize=broken)),
    ),
)


@THIRD
def variance_without_a_constraint(broken: bool) -> Case:
    """regression | 64 | A linear layer predicts a variance, which comes out negative for half of the samples.
    | not-finite gradient-not-finite loss-does-not-fit targets-out-of-range | | change-output-activation
    guard-domain"""
    x, y = draw.regression_table()

    def judge(output: tuple[Tensor, Tensor]) -> float:
        return (1 - (output[0] - y).square().mean() / y.var()).item()

    return Case((x, y), rarer.MeanAndVariance(broken), rarer.gaussian_loss, judge=judge)


def handmade_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the binary cross entropy by its formula."""
    share = torch.sigmoid(logits)
    return -(target * share.log() + (1 - target) * (1 - share).log()).mean()


@THIRD
def formula_of_the_entropy_meets_a_certain_network(broken: bool) -> Case:
    """tabular | 122 | The logarithm of one minus a sigmoid is minus infinity from logits of 17 on.
    | not-finite gradient-not-finite loss-does-not-fit precision | | change-loss guard-domain"""
    x, _ = draw.table(256)
    y = (x[:, 0] + x[:, 1] > 0).float()[:, None]
    x[40, :2] = 9.0  # one sample far out, of which the network is certain
    x[41, :2] = -9.0
    model = nets.mlp(12, 32, 1)
    with torch.no_grad():
        model[2].weight.mul_(20)
    judge_target = y > 0.5
    return Case(
        (x, y),
        model,
        handmade_entropy if broken else nn.BCEWithLogitsLoss(),
        judge=lambda output: (
            float("nan") if not output.isfinite().all() else ((output > 0) == judge_target).float().mean().item()
        ),
    )


class CosineMatch(nn.Module):  # Compares bags of words with queries by cosine.
    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.eps = 0.0 if planted else 1e-6
        self.words = nn.Linear(20, 16, bias=False)
        self.classes = nn.Parameter(torch.randn(3, 16))

    def forward(self, x: Tensor) -> Tensor:
        texts = self.words(x)
        texts = texts / (texts.norm(dim=1, keepdim=True) + self.eps)
        return 10 * texts @ (self.classes / self.classes.norm(dim=1, keepdim=True)).T


@THIRD
def direction_of_an_empty_document(broken: bool) -> Case:
    """bag of words | 123 | A document without any known word has length zero, by which it is divided.
    | not-finite gradient-not-finite | words | clean-data guard-domain"""
    y = torch.arange(96) % 3
    x = torch.poisson(0.4 + 1.2 * torch.nn.functional.one_hot(torch.arange(20) % 3, 3).float().T[y])
    x[7] = 0.0
    return Case((x, y), CosineMatch(broken), "cross_entropy")


@THIRD
def adam_on_weights_of_half_precision(broken: bool) -> Case:
    """mixed precision | 124 | `model.half()` for training: the eps of Adam is zero in this format, and so are squares
    of small gradients.
    | precision not-finite | | lower-eps raise-precision"""
    x, y = draw.table()
    kind = torch.float16 if broken else torch.float32
    model = nets.mlp(12, 32, 32, 3).to(kind)
    return Case((x.to(kind), y), model, "cross_entropy", optimizer=partial(torch.optim.Adam, lr=3e-3))


class Variance(nn.Module):  # Standardises each series inside, in the format of the argument.
    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind
        self.body = nets.mlp(40, 32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.kind)
        x = (x - x[:, :1]).float()
        return self.body(x / 3)


@THIRD
def differences_of_large_numbers_in_bfloat16(broken: bool) -> Case:
    """time series | 125 | Index levels around 5000 are cast to bfloat16 before their small changes are taken.
    | precision | | raise-precision"""
    y = torch.arange(96) % 3
    steps = torch.randn(96, 40) + 0.8 * (y - 1)[:, None] * torch.sin(torch.arange(40) / 3)
    return Case(
        ((5000 + steps.cumsum(1) - steps.cumsum(1).mean(1, keepdim=True)), y),
        Variance(torch.bfloat16 if broken else torch.float32),
        "cross_entropy",
    )


THIRD(
    """descent-with-a-rate-of-two | regression | 131 | The rate of a scheduler's peak for batches of thousands, on a
    batch of a hundred.
    | learning-rate-too-large | | lower-learning-rate""",
    lambda broken: Case(
        draw.regression_table(),
        nets.mlp(8, 32, 32, 1),
        "mse",
        optimizer=partial(torch.optim.SGD, lr=2.0 if broken else 0.05),
    ),
)


@THIRD
def group_of_the_backbone_with_a_rate_of_zero(broken: bool) -> Case:
    """CNN | 132 | The group of the backbone has a rate of 0, of a fine-tuning recipe, and the network is fresh.
    | learning-rate-too-small frozen-layer not-in-optimizer | | add-to-optimizer raise-learning-rate unfreeze"""
    x, y = draw.blob_images(classes=8)
    model = nets.ConvNet(width=8, classes=8, norm=False)
    groups = [
        {"params": model.features.parameters(), "lr": 0.0 if broken else 3e-3},
        {"params": model.head.parameters()},
    ]
    return Case((x, y), model, "cross_entropy", optimizer=torch.optim.AdamW(groups, lr=3e-3))


THIRD(
    """rate-of-decay-taken-for-a-factor | GNN | 134 | `weight_decay=0.9`, meant as the factor of a schedule.
    | weight-decay-too-strong | | lower-weight-decay""",
    lambda broken: given(
        draw.communities(),
        lambda x, edges, y: Case(
            (x, y),
            nets.GraphNet(edges),
            "cross_entropy",
            optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.9 if broken else 5e-4),
            judge_of=accuracy,
        ),
    ),
)


THIRD(
    """eps-of-adam-beside-which-gradients-vanish | CNN | 135 | `eps=1.0` of a recipe for another network, with the
    rate of this one.
    | learning-rate-too-small eps-dominates | | lower-eps raise-learning-rate""",
    lambda broken: Case(
        draw.blob_images(classes=8),
        nets.ConvNet(norm=False, classes=8),
        "cross_entropy",
        optimizer=partial(torch.optim.Adam, lr=3e-3, eps=1.0 if broken else 1e-8),
    ),
)


THIRD(
    """rate-of-ten-to-the-minus-six-for-plain-descent | regression | 136 | The rate of fine-tuning a large language
    model with Adam, for plain gradient descent from scratch.
    | learning-rate-too-small | | raise-learning-rate""",
    lambda broken: Case(
        draw.regression_table(),
        nets.mlp(8, 32, 32, 1),
        "mse",
        optimizer=partial(torch.optim.SGD, lr=1e-6 if broken else 0.05),
    ),
)
