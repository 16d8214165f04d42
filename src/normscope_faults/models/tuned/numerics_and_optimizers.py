"""Faults of numbers and number formats, and of the settings of optimizers."""

import math
from functools import partial
from typing import Any

import torch
from numpy import s_
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import SGD, Adam

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import changed, over, put, scaled
from ...training import accuracy, evidence_loss, explained_variance, over_tokens
from . import rarer, rarer_sequences


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


@OPEN
def deviation_of_equal_points(broken: bool) -> Case:
    """PointNet | 834 | Statistics pooling: the slope of a standard deviation of zero is infinite.
    | gradient-not-finite not-finite | | guard-domain"""

    # Mean and standard deviation over the points, from the features of each.
    def statistics(self, clouds: Tensor) -> Tensor:
        features = torch.relu(self.point(clouds))
        deviation = (features.var(1, correction=0) + self.eps).sqrt()
        return self.cloud(torch.cat([features.mean(1), deviation], dim=1))

    x, y = rarer.clouds()
    x[5] = x[5, :1]
    net = nets.made("Statistics", statistics)
    net.eps, net.point, net.cloud = (0.0 if broken else 1e-6), nets.mlp(3, 32, 16), nets.mlp(32, 32, 4)
    return Case((x, y), net, "cross_entropy")


@OPEN
def tiny_guard_in_half_precision(broken: bool) -> Case:
    """speech | 872 | log(p + 1e-8) in half precision, where 1e-8 is zero.
    | precision gradient-not-finite not-finite | | change-loss change-output-activation guard-domain raise-precision"""

    def frames(self, x: Tensor) -> Tensor:
        p = (12 * self.net(x.flatten(1))).softmax(1)
        return torch.log((p.half() if broken else p) + 1e-8).float()

    x, y = draw.waves()
    net = nets.made("Frames", frames)
    net.net = nets.mlp(120, 48, 3)
    return Case((x, y), net, nn.NLLLoss(), judge_of=accuracy)


def cox(output: Tensor, target: Tensor) -> Tensor:
    """Return the negative partial likelihood of Cox's model, written with exp and log; samples come by falling time."""
    return -(output - torch.log(torch.cumsum(torch.exp(output), dim=0))).mean()


@OPEN
def where_does_not_guard_the_gradient(broken: bool) -> Case:
    """survival | 896 | where(x > 0, sqrt(x), 0): the value is guarded, the gradient of the other branch is not.
    | gradient-not-finite not-finite | | guard-domain"""

    def root_features(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        inner = hidden if broken else torch.where(hidden > 0.01, hidden, 0.01)
        return self.second(torch.where(hidden > 0.01, torch.sqrt(inner), 0.0))

    x, y = draw.regression_table()
    net = nets.made("RootFeatures", root_features)
    net.first, net.second = nn.Linear(8, 32), nn.Linear(32, 1)
    return Case((x, y), net, "mse")


@OPEN
def angle_of_equal_directions(broken: bool) -> Case:
    """angles | 1007 | acos of a cosine that reaches 1: its slope is infinite.
    | gradient-not-finite not-finite | | guard-domain"""

    def angles(self, x: Tensor) -> Tensor:
        first, second = self.embed(x[:, :3]), self.embed(x[:, 3:])
        bound = 1.0 if broken else 1 - 1e-4
        cosine = (first * second).sum(1) / (first.norm(dim=1) * second.norm(dim=1))
        return self.head(torch.acos(cosine.clamp(-bound, bound))[:, None])

    x = torch.randn(96, 6)
    x[::12, 3:] = x[::12, :3]
    angle = torch.acos(F.cosine_similarity(x[:, :3], x[:, 3:]).clamp(-1, 1))
    net = nets.made("Angles", angles)
    net.embed, net.head = nets.mlp(3, 32, 8), nn.Linear(1, 1)
    return Case((x, angle[:, None]), net, "mse")


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
    | precision output-constant vanishing-gradient vanishing-signal zero-weights | items users | initialise
    raise-precision rescale-layer"""
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


def hinge_of_distance(distance: Tensor, same: Tensor) -> Tensor:
    """Return the contrastive loss of distances, with a margin of 2."""
    return (same * distance + (1 - same) * F.relu(2 - distance)).mean()


@OPEN
def root_of_a_zero_distance(broken: bool) -> Case:
    """Siamese | 516 | The root of a distance that is zero: its slope is infinite.
    | gradient-not-finite not-finite | | guard-domain"""

    # How far apart the embeddings of two images are, by a root with or without a guard.
    def distances(self, pairs: Tensor) -> Tensor:
        difference = self.encoder(pairs[:, :1]) - self.encoder(pairs[:, 1:])
        return torch.sqrt(difference.square().sum(1) + self.guard)

    pairs, same = draw.image_pairs()
    pairs[4, 1] = pairs[4, 0]  # a pair of one image with itself
    net = nets.made("Distances", distances)
    net.guard, net.encoder = (0.0 if broken else 1e-6), nn.Sequential(nn.Flatten(), *nets.mlp(256, 64, 16))
    return Case(
        (pairs, same),
        net,
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


def small_mean_square(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean square with the small weight that one of many losses has."""
    return 1e-6 * F.mse_loss(output, target)


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


@FIRST
def distance_of_equal_images(broken: bool) -> Case:
    """Siamese | 82 | sqrt of a squared distance that is 0 for a pair of equal images: values are fine, the gradient is
    NaN.
    | gradient-not-finite not-finite | | guard-domain"""

    # The distance of the embeddings of both images.
    def distance(self, pairs: Tensor) -> Tensor:
        first, second = (self.encoder(pairs[:, index].flatten(1)) for index in (0, 1))
        squared = (first - second).square().sum(1)
        return torch.sqrt(squared if broken else squared + 1e-6)

    pairs, same = draw.image_pairs()
    pairs[:4, 1], same[:4] = pairs[:4, 0], 1.0
    net = nets.made("Distance", distance)
    net.encoder = nets.mlp(256, 64, 16)
    return Case((pairs, 2 * (1 - same)), net, nn.MSELoss())


class Standardise(nn.Module):  # Brings each channel of each image to mean 0 and standard deviation 1.
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean((2, 3), keepdim=True)) / (x.std((2, 3), keepdim=True) + self.eps)


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


@SECOND
def energies_beyond_the_range_of_half(broken: bool) -> Case:
    """mixed precision | 151 | A sum of squares leaves the range of float16 (65504).
    | precision not-finite | | raise-precision scale-inputs"""

    # Classifies sounds by the logarithm of the energy of their two halves, summed up in a number format.
    def loudness(self, sounds: Tensor) -> Tensor:
        energy = sounds.to(self.dtype).square().view(len(sounds), 2, -1).sum(2)
        return self.tower(energy.log().float() - 9)

    labels = torch.arange(48) % 3
    sounds = torch.randn(48, 4096) * torch.tensor([1.0, 3.0, 7.0])[labels][:, None] * (1 + 0.2 * torch.rand(48, 1))
    net = nets.made("Loudness", loudness)
    net.dtype, net.tower = (torch.float16 if broken else torch.float32), nets.mlp(2, 32, 32, 3)
    return Case((sounds, labels), net, "cross_entropy")


@SECOND
def variance_by_the_difference_of_squares(broken: bool) -> Case:
    """tabular | 152 | E[x^2] - E[x]^2 of values around 5000 drowns in rounding and becomes negative.
    | precision not-finite | | guard-domain raise-precision scale-inputs"""

    # Scales rows by the root of their variance, computed as the mean of squares minus the square of the mean.
    def one_divided(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        centred = x - mean
        variance = centred.square().mean(1, keepdim=True)
        if not self.stable:
            variance = x.square().mean(1, keepdim=True) - mean.square()
        return self.tower(centred / variance.sqrt())

    x, y = draw.table()
    net = nets.made("OneDivided", one_divided)
    net.stable, net.tower = (not broken), nets.mlp(12, 48, 48, 3)
    return Case((5000 + x, y), net, "cross_entropy")


class BareDistance(nets.Siamese):  # Returns the distance of both embeddings, with something under the root or without.
    inside = 0.0

    def forward(self, pairs: Tensor) -> Tensor:
        first, second = super().forward(pairs)
        return ((first - second).square().sum(1) + self.inside).sqrt()


def margin_loss(distance: Tensor, same: Tensor) -> Tensor:
    return (same * distance.square() + (1 - same) * F.relu(2 - distance).square()).mean()


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

    return Case(
        (x, actions),
        nets.made(
            "MaskedPolicy",
            lambda self, x: self.tower(x).masked_fill(x[:, 7:] > 0.5, -1e9),
            tower=nets.mlp(12, 48, 48, 5),
        ),
        loss,
    )


@SECOND
def gradients_below_the_smallest_half(broken: bool) -> Case:
    """mixed precision | 155 | A model in float16 without a GradScaler: a small loss has gradients that round to zero.
    | precision loss-gradient-zero vanishing-gradient | | raise-precision"""
    x, y = draw.regression_table()
    model = nets.mlp(8, 48, 48, 1)
    dtype = torch.float16 if broken else torch.float32

    def small_loss(output: Tensor, target: Tensor) -> Tensor:
        return 3e-6 * F.mse_loss(output, target)  # its weight beside other losses

    return Case((x.to(dtype), y.to(dtype)), model.to(dtype), small_loss)


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


@THIRD
def direction_of_an_empty_document(broken: bool) -> Case:
    """bag of words | 123 | A document without any known word has length zero, by which it is divided.
    | not-finite gradient-not-finite | words | clean-data guard-domain"""

    # Compares bags of words with queries by cosine.
    def cosine_match(self, x: Tensor) -> Tensor:
        texts = self.words(x)
        texts = texts / (texts.norm(dim=1, keepdim=True) + self.eps)
        return 10 * texts @ (self.classes / self.classes.norm(dim=1, keepdim=True)).T

    y = torch.arange(96) % 3
    x = torch.poisson(0.4 + 1.2 * torch.nn.functional.one_hot(torch.arange(20) % 3, 3).float().T[y])
    x[7] = 0.0
    net = nets.made("CosineMatch", cosine_match)
    net.eps = 0.0 if broken else 1e-6
    net.words = nn.Linear(20, 16, bias=False)
    net.classes = nn.Parameter(torch.randn(3, 16))
    return Case((x, y), net, "cross_entropy")


@THIRD
def differences_of_large_numbers_in_bfloat16(broken: bool) -> Case:
    """time series | 125 | Index levels around 5000 are cast to bfloat16 before their small changes are taken.
    | precision | | raise-precision"""

    # Standardises each series inside, in the format of the argument.
    def variance(self, x: Tensor) -> Tensor:
        x = x.to(self.kind)
        x = (x - x[:, :1]).float()
        return self.body(x / 3)

    y = torch.arange(96) % 3
    steps = torch.randn(96, 40) + 0.8 * (y - 1)[:, None] * torch.sin(torch.arange(40) / 3)
    x = 5000 + steps.cumsum(1) - steps.cumsum(1).mean(1, keepdim=True)
    net = nets.made("Variance", variance)
    net.kind = torch.bfloat16 if broken else torch.float32
    net.body = nets.mlp(40, 32, 3)
    return Case((x, y), net, "cross_entropy")


# Rows of a table, packed.
# fmt: off
OPEN("""class-weights-by-integer-division | U-Net | 819 | weight = count // total is zero for each class, and the
    weighted mean divides by zero. | not-finite class-imbalance gradient-not-finite loss-does-not-fit loss-gradient-zero
    | | balance-classes change-loss guard-domain""",
    lambda broken: given(draw.blob_images(16), lambda x, _: given(rarer.pixel_classes(x),
    lambda y: given(torch.bincount(y.flatten(), minlength=4), lambda count: Case((x, y), nets.UNet(outputs=4),
    nn.CrossEntropyLoss(weight=((count // y.numel()).float() if broken else y.numel() / (4.0 * count))))))))
OPEN("""squash-of-an-empty-capsule | capsules | 831 | The squash divides by the length of a capsule; behind a ReLU some
    capsules are zero. | not-finite gradient-not-finite | | guard-domain""",
    lambda broken: Case(draw.blob_images(), rarer.Capsules(0.0 if broken else 1e-6), "cross_entropy",
    judge_of=accuracy))
OPEN("""every-target-ignored | GPT | 845 | The mask of the prompt covers the answer too: all targets are -100, and the
    mean of nothing is NaN. | not-finite gradient-not-finite labels-constant loss-does-not-fit loss-gradient-zero | |
    change-loss check-labels fix-mask fix-targets""",
    lambda broken: given(draw.text(16), lambda ids, following: given(following.clone(), lambda target: Case((ids,
    put(target, s_[:, : None if broken else 6], -100)), nets.GPT(depth=1), over_tokens,
    judge=rarer.likelihood(following)))))
OPEN("""scores-in-half-precision | attention | 851 | Scores of large queries in half precision, divided by sqrt(d) only
    afterwards. | precision attention-saturated gradient-not-finite not-finite | | raise-precision scale-attention""",
    lambda broken: Case(draw.sentences(96, length=6, vocabulary=14), over(lambda model: (model.q, model.k),
    lambda layer: nn.init.normal_(layer.weight, std=16.0 if broken else 0.2))(rarer_sequences.Heads(dtype=torch.float16
    if broken else torch.float32)), "cross_entropy"))
OPEN("""rates-that-may-be-negative | counts | 894 | PoissonNLLLoss(log_input=False) on a linear output: the logarithm of
    a negative rate. | not-finite activation-before-loss gradient-not-finite loss-does-not-fit | | change-loss
    change-output-activation guard-domain""",
    lambda broken: given(draw.regression_table(), lambda x, _: Case((x, torch.poisson(torch.exp(0.5 + 0.6 * x[:, :1]))),
    nets.mlp(8, 32, 1), nn.PoissonNLLLoss(log_input=not broken),
    judge_of=lambda counts: lambda output: -F.poisson_nll_loss(output, counts).item())))
OPEN("""hazards-of-raw-columns | survival | 895 | Raw laboratory values: the exponential of the hazard overflows.
    | not-finite exploding-signal gradient-not-finite inputs-not-scaled | | guard-domain scale-inputs""",
    lambda broken: given(draw.regression_table(), lambda x, y: given(y[:, 0].argsort(), lambda order: given((x[order],
    y[order]), lambda x, y: Case((300 + 250 * x if broken else x, y), nets.mlp(8, 32, 1), cox,
    judge_of=lambda y: lambda output: -cox(output, y).item())))))
OPEN("""histogram-of-nothing | histograms | 1019 | Counts divided by their sum, which is zero for an empty document.
    | not-finite gradient-not-finite not-finite-data | | clean-data guard-domain""",
    lambda broken: given(torch.poisson(torch.rand(64, 20) * 3), lambda counts: given((counts[:, :5].sum(1) > counts[:,
    5:10].sum(1)).long(), lambda y: Case((put(counts, s_[11], 0), y), nets.made("Shares",
    lambda self, x: self.net(20 * x / (x.sum(1, keepdim=True) + (0.0 if broken else 1e-6))), net=nets.mlp(20, 32, 2)),
    "cross_entropy"))))
OPEN("""adamw-with-a-rate-of-three | MLP | 1018 | A rate in thousandths without its factor; the weight decay is the one
    that AdamW has by itself. | learning-rate-too-large | | lower-learning-rate""",
    lambda broken: Case(draw.table(), nets.mlp(12, 32, 32, 3), "cross_entropy", optimizer=partial(torch.optim.AdamW,
    lr=3.0 if broken else 3e-3)))
OPEN("""logarithm-of-rectified-values | MLP | 513 | The logarithm of a ReLU. | not-finite | 1 | guard-domain""",
    lambda broken: Case(draw.table(), nn.Sequential(nn.Linear(12, 32), nets.made("LogLayer",
    lambda self, x: torch.log(torch.relu(x) + self.added), added=0.0 if broken else 1.0), nn.Linear(32, 32), nn.ReLU(),
    nn.Linear(32, 3)), "cross_entropy"))
OPEN("""mean-of-no-neighbours | GNN | 514 | A mean over the neighbours of a node that has none.
    | not-finite | average | guard-domain""",
    lambda broken: given(draw.communities(), lambda x, edges, y: Case((x, y),
    changed(lambda model: setattr(model.average, "guarded", not broken))(MeanGraph(edges[:, (edges != 17).all(0)])),
    "cross_entropy", judge_of=lambda y: lambda output: (output.argmax(1) == y).float().mean().item() if
    output.isfinite().all() else -torch.inf)))
OPEN("""softmax-by-hand-overflows | MLP | 515 | exp(x) / sum(exp(x)) without taking off the maximum.
    | not-finite | attend | change-output-activation guard-domain raise-precision scale-attention""",
    lambda broken: Case(draw.table(), changed(lambda model: setattr(model.attend, "stable", not broken))(Selector()),
    "cross_entropy"))
OPEN("""half-precision-overflows | sound | 517 | Squares of 16-bit amplitudes in half precision, which ends at 65,504.
    | precision exploding-signal not-finite | 0 | guard-domain raise-precision""",
    lambda broken: given(torch.randn(128, 6).exp(), lambda loudness: given((0.1 * loudness[:, :,
    None] * torch.randn(128, 6, 40), loudness[:, :3].argmax(1)),
    lambda bands, y: given(torch.float16 if broken else torch.float32, lambda dtype: Case((bands.to(dtype), y),
    nn.Sequential(LogPower(), *nets.mlp(6, 32, 3)).to(dtype), "cross_entropy")))))
OPEN("""half-precision-underflows | MLP | 518 | Half precision without a GradScaler: gradients below 6e-8 are zero.
    | precision vanishing-gradient | 0 2 4 | raise-precision""",
    lambda broken: given(draw.regression_table(), lambda x, y: given(torch.float16 if broken else torch.float32,
    lambda dtype: Case((x.to(dtype), y.to(dtype)), nets.mlp(8, 32, 32, 1).to(dtype), small_mean_square))))
OPEN("""years-in-bfloat16 | MLP | 519 | Years in bfloat16, which rounds them to multiples of 8.
    | precision inputs-not-scaled | | raise-precision scale-inputs""",
    lambda broken: given(draw.regression_table(), lambda x, y: given(2000 + 2 * x,
    lambda years: given(torch.bfloat16 if broken else torch.float32,
    lambda dtype: Case((years.to(dtype) if broken else x, y.to(dtype)), nets.mlp(8, 32, 32, 1).to(dtype), "mse")))))
OPEN("""mask-hides-the-diagonal | GPT | 611 | tril(-1): the first token sees nothing, and the softmax of nothing is NaN.
    | not-finite attention-mask-wrong | blocks.0.attention | fix-mask guard-domain""",
    lambda broken: Case(draw.text(), MaskedGPT(broken), over_tokens))
FIRST("""log-variance-overflows | VAE | 21 | GitHub threads on VAEs: exp(logvar) overflows in the first step.
    | not-finite exploding-gradient exploding-signal layer-scale-stands-out | log_variance | guard-domain initialise
    rescale-layer reset-bias""",
    lambda: given(draw.blob_images(64), lambda images, _: given(draw.as_pixels(images).flatten(1),
    lambda x: Case((x, x), nets.VAE(), evidence_loss, judge_of=lambda x: lambda o: -evidence_loss(o, x).item()))),
    plant=scaled("log_variance.weight", 1500.0))
FIRST("""logarithm-of-relu | MLP | 81 | log of a ReLU's output, which is 0 for half of the units (TheDeepChecker:
    numerical instability). | not-finite gradient-not-finite | 2 | guard-domain""",
    lambda broken: given(draw.regression_table(), lambda x, y: given(nets.made("LogFeatures",
    lambda self, x: torch.log(x + self.shift), shift=0.0 if broken else 1.0), lambda log: Case((x, y),
    nn.Sequential(nn.Linear(8, 32), nn.ReLU(), log, nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)), nn.MSELoss()))))
FIRST("""division-by-zero-deviation | CNN | 83 | Division by the standard deviation of an image that is one colour (an
    empty scan). | not-finite gradient-not-finite | standardise | clean-data guard-domain""",
    lambda broken: given(draw.blob_images(48), lambda x, y: Case((put(x, s_[5], 0.0), y),
    nets.made("Scans", lambda self, x: self.net(self.standardise(x)), standardise=Standardise(0.0 if broken else 1e-5),
    net=nets.ConvNet()), nn.CrossEntropyLoss())))
SECOND("""standardiser-without-eps | tabular | 150 | A row of equal values (a sensor that is off) is divided by a
    standard deviation of zero. | not-finite gradient-not-finite | 0 | guard-domain""",
    lambda broken: given(draw.table(), lambda x, y: Case((put(x, s_[17], 0.0), y),
    nn.Sequential(nets.made("BareStandardiser", lambda self, x: (x - x.mean(1, keepdim=True)) / (x.std(1,
    keepdim=True) + self.eps), eps=0.0 if broken else 1e-5), *nets.mlp(12, 48, 48, 3)), "cross_entropy")))
SECOND("""root-of-zero-for-equal-pairs | Siamese | 153 | The derivative of a root at zero is infinite: one pair of twice
    the same image makes all gradients NaN. | gradient-not-finite | | guard-domain""",
    lambda broken: given(draw.image_pairs(), lambda pairs, same: Case((put(pairs, s_[4, 1], pairs[4, 0]), same),
    changed(lambda model: setattr(model, "inside", 0.0 if broken else 1e-8))(BareDistance()), margin_loss,
    judge_of=lambda same: lambda distance: ((distance < 1) == (same > 0.5)).float().mean().item())))
SECOND("""rate-and-momentum-swapped | CNN | 161 | SGD(parameters, 0.9, 0.02): the rate is where the momentum should be.
    | learning-rate-too-large | | lower-learning-rate""",
    lambda broken: given(nets.ConvNet(norm=False), lambda model: given(SGD(model.parameters(), 0.9,
    0.02) if broken else SGD(model.parameters(), 0.02, 0.9), lambda optimizer: Case(draw.blob_images(), model,
    "cross_entropy", optimizer=optimizer))))
SECOND("""adam-with-a-rate-of-a-half | GPT | 162 | A rate for SGD in an Adam: every weight moves by 0.5 in the first
    step. | learning-rate-too-large | | lower-learning-rate""",
    lambda broken: given(nets.GPT(), lambda model: Case(draw.text(), model, over_tokens,
    optimizer=partial(Adam, lr=0.5 if broken else 3e-3))))
SECOND("""rate-of-one-in-a-billion | regression | 163 | DeepCrime, "decrease learning rate": a schedule has run out
    before training begins. | learning-rate-too-small | | raise-learning-rate""",
    lambda broken: given(nets.mlp(8, 48, 48, 1), lambda model: Case(draw.regression_table(), model, "mse",
    optimizer=partial(Adam, lr=1e-9 if broken else 3e-3))))
SECOND("""weight-decay-of-one | CNN | 164 | A strength of 1 from a ridge regression: the weights vanish, whatever the
    loss says. | weight-decay-too-strong | | lower-weight-decay""",
    lambda broken: given(nets.ConvNet(norm=False), lambda model: Case(draw.blob_images(), model, "cross_entropy",
    optimizer=partial(SGD, lr=0.02, momentum=0.9, weight_decay=1.0 if broken else 1e-4))))
SECOND("""momentum-that-never-fades | regression | 165 | Momentum of 1 (0.9 rounded in a configuration of whole
    numbers): all gradients add up for ever.
    | momentum-too-large learning-rate-too-large | | lower-learning-rate lower-momentum""",
    lambda broken: given(nets.mlp(8, 48, 48, 1), lambda model: Case(draw.regression_table(), model, "mse",
    optimizer=partial(SGD, lr=0.02, momentum=1.0 if broken else 0.9))))
SECOND("""optimizer-set-to-maximise | regression | 166 | maximize=True was copied from a policy gradient.
    | optimizer-ascends | | minimise""",
    lambda broken: given(nets.mlp(8, 48, 48, 1), lambda model: Case(draw.regression_table(), model, "mse",
    optimizer=partial(Adam, lr=3e-3, maximize=broken))))
THIRD("""variance-without-a-constraint | regression | 64 | A linear layer predicts a variance, which comes out negative
    for half of the samples. | not-finite gradient-not-finite loss-does-not-fit targets-out-of-range | |
    change-output-activation guard-domain""",
    lambda broken: given(draw.regression_table(), lambda x, y: Case((x, y), rarer.MeanAndVariance(broken),
    rarer.gaussian_loss, judge=lambda output: (1 - (output[0] - y).square().mean() / y.var()).item())))
THIRD("""adam-on-weights-of-half-precision | mixed precision | 124 | `model.half()` for training: the eps of Adam is
    zero in this format, and so are squares of small gradients. | precision not-finite | | lower-eps raise-precision""",
    lambda broken: given(draw.table(), lambda x, y: given(torch.float16 if broken else torch.float32,
    lambda kind: Case((x.to(kind), y), nets.mlp(12, 32, 32, 3).to(kind), "cross_entropy",
    optimizer=partial(torch.optim.Adam, lr=3e-3)))))
THIRD("""descent-with-a-rate-of-two | regression | 131 | The rate of a scheduler's peak for batches of thousands, on a
    batch of a hundred. | learning-rate-too-large | | lower-learning-rate""",
    lambda broken: Case(draw.regression_table(), nets.mlp(8, 32, 32, 1), "mse", optimizer=partial(torch.optim.SGD,
    lr=2.0 if broken else 0.05)))
THIRD("""group-of-the-backbone-with-a-rate-of-zero | CNN | 132 | The group of the backbone has a rate of 0, of a
    fine-tuning recipe, and the network is fresh.
    | learning-rate-too-small frozen-layer not-in-optimizer | | add-to-optimizer raise-learning-rate unfreeze""",
    lambda broken: given(draw.blob_images(classes=8), lambda x, y: given(nets.ConvNet(width=8, classes=8, norm=False),
    lambda model: given([{"params": model.features.parameters(), "lr": 0.0 if broken else 3e-3},
    {"params": model.head.parameters()}], lambda groups: Case((x, y), model, "cross_entropy",
    optimizer=torch.optim.AdamW(groups, lr=3e-3))))))
THIRD("""rate-of-decay-taken-for-a-factor | GNN | 134 | `weight_decay=0.9`, meant as the factor of a schedule.
    | weight-decay-too-strong | | lower-weight-decay""",
    lambda broken: given(draw.communities(), lambda x, edges, y: Case((x, y), nets.GraphNet(edges), "cross_entropy",
    optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.9 if broken else 5e-4),
    judge_of=accuracy)))
THIRD("""eps-of-adam-beside-which-gradients-vanish | CNN | 135 | `eps=1.0` of a recipe for another network, with the
    rate of this one. | learning-rate-too-small eps-dominates | | lower-eps raise-learning-rate""",
    lambda broken: Case(draw.blob_images(classes=8), nets.ConvNet(norm=False, classes=8), "cross_entropy",
    optimizer=partial(torch.optim.Adam, lr=3e-3, eps=1.0 if broken else 1e-8)))
THIRD("""rate-of-ten-to-the-minus-six-for-plain-descent | regression | 136 | The rate of fine-tuning a large language
    model with Adam, for plain gradient descent from scratch. | learning-rate-too-small | | raise-learning-rate""",
    lambda broken: Case(draw.regression_table(), nets.mlp(8, 32, 32, 1), "mse", optimizer=partial(torch.optim.SGD,
    lr=1e-6 if broken else 0.05)))
