"""Healthy networks for tables: fresh, trained a little or well, some of them awkward."""

import math
from functools import partial
from typing import Any

import torch
from numpy import s_
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import Adam
from torch.utils.checkpoint import checkpoint

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import changed, filled, over, put
from ...training import train
from . import rarer


@OPEN
def rezero() -> Case:
    """MLP | 703"""

    # Residual blocks, each with a factor that begins at zero.
    def re_zero(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for factor, layer in zip(self.factors, self.layers):
            x = x + factor * torch.relu(layer(x))
        return self.head(x)

    x, y = draw.table()
    net = nets.made("ReZero", re_zero)
    net.first, net.head = nn.Linear(12, 32), nn.Linear(32, 3)
    net.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(12))
    net.factors = nn.Parameter(torch.zeros(12))
    return Case((x, y), net, "cross_entropy")


@OPEN
def one_unit_in_six_is_dead() -> Case:
    """MLP | 726"""
    x, y = draw.table()
    model = nets.mlp(12, 48, 48, 3)
    train(model, x, y, F.cross_entropy, steps=60)
    for layer in (model[0], model[2]):
        layer.bias.data[:8] = -20.0
    return Case((x, y), model, "cross_entropy", steps=60)


@OPEN
def binary_table_four_to_one() -> Case:
    """MLP | 736"""
    x = (torch.rand(200, 16) < 0.3).float()
    y = (x[:, :6].sum(1) > 2).long()  # about one row in four or five
    return Case((x, y), nets.mlp(16, 24, 2), "cross_entropy")


def standardised_square(output: Tensor, price: Tensor) -> Tensor:
    """Return the mean square of standardised prices."""
    return F.mse_loss(output, (price - 3e5) / 1e5)


@OPEN
def weight_norm_in_each_layer() -> Case:
    """MLP | 739"""
    x, y = draw.regression_table()
    model = nets.mlp(8, 32, 32, 1)
    for index in (0, 2, 4):
        weight_norm(model[index])
    return Case((x, y), model, "mse")


def pinball(output: Tensor, target: Tensor) -> Tensor:
    """Return the loss of the quantiles 0.1, 0.5 and 0.9."""
    wrong, level = target - output, torch.tensor([0.1, 0.5, 0.9])
    return torch.maximum(level * wrong, (level - 1) * wrong).mean()


def partial_likelihood(output: Tensor, target: Tensor) -> Tensor:
    """Return the negative partial likelihood of Cox's model, for samples by falling time."""
    return -(output - torch.logcumsumexp(output, dim=0)).mean()


class Highway(nn.Module):  # Ten highway layers whose gates begin at a bias of -2: mostly carrying.
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 24), nn.Linear(24, 3)
        self.layers, self.gates = (nn.ModuleList(nn.Linear(24, 24) for _ in range(10)) for _ in range(2))
        for gate in self.gates:
            nn.init.constant_(gate.bias, -2.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer, gate in zip(self.layers, self.gates):
            share = torch.sigmoid(gate(x))
            x = share * torch.relu(layer(x)) + (1 - share) * x
        return self.head(x)


def two_losses(output: dict[str, Tensor], target: Tensor) -> Tensor:
    """Return the loss of the number and a tenth of that of the class, which is its sign by thirds."""
    kind = (target[:, 0] > -0.4).long() + (target[:, 0] > 0.4).long()
    return F.mse_loss(output["size"], target) + 0.1 * F.cross_entropy(output["kind"], kind)


@OPEN
def heads_in_a_dict() -> Case:
    """two tasks | 964"""

    # A shared trunk and a ModuleDict of heads: a class and a number, as a dict.
    def two_tasks(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.trunk(x)
        return {name: head(hidden) for name, head in self.heads.items()}

    net = nets.made("TwoTasks", two_tasks)
    net.trunk = nn.Sequential(nn.Linear(8, 48), nn.LayerNorm(48), nn.GELU())
    net.heads = nn.ModuleDict({"kind": nn.Linear(48, 3), "size": nn.Linear(48, 1)})
    return Case(model=net, data=draw.regression_table(), loss=two_losses)


@OPEN
def served_in_half_precision() -> Case:
    """MLP | 973"""
    x, y = draw.table()
    model = nets.mlp(12, 48, 48, 3)
    train(model, x, y, F.cross_entropy, steps=150)
    return Case((x.half(), y), model.half(), "cross_entropy", train=False)


class TabTransformer(nn.Module):
    """Categories as tokens through an encoder, numbers through a LayerNorm, both into one MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.categories = nn.Embedding(60, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.norm, self.head = nn.LayerNorm(5), nets.mlp(6 * 16 + 5, 32, 1)
        self.register_buffer("offsets", 10 * torch.arange(6))

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        tokens = self.encoder(self.categories(categories + self.offsets))
        return self.head(torch.cat([tokens.flatten(1), self.norm(numbers)], dim=1)).squeeze(1)


class Splines(nn.Module):
    """A layer of a Kolmogorov-Arnold network: a learned curve of radial bumps on every edge, beside a SiLU."""

    def __init__(self, inner: int, outer: int, bumps: int = 8) -> None:
        super().__init__()
        self.base = nn.Linear(inner, outer)
        self.register_buffer("centres", torch.linspace(-2, 2, bumps))
        self.curves = nn.Parameter(0.1 / math.sqrt(inner * bumps) * torch.randn(outer, inner, bumps))

    def forward(self, x: Tensor) -> Tensor:
        bumps = torch.exp(-(x[..., None] - self.centres).square() / 0.3)
        return self.base(F.silu(x)) + torch.einsum("nib,oib->no", bumps, self.curves)


def sum_of_tasks(output: dict[str, Tensor], target: dict[str, Tensor]) -> Tensor:
    """Return the sum of the three losses."""
    return (
        F.cross_entropy(output["kind"], target["kind"])
        + F.mse_loss(output["amount"], target["amount"])
        + F.binary_cross_entropy_with_logits(output["labels"], target["labels"])
    )


@OPEN
def three_heads_with_labels_in_a_dict() -> Case:
    """several tasks | 2012"""

    # A trunk with a head for classes, one for a number and one for several labels.
    def many_tasks(self, x: Tensor) -> dict[str, Tensor]:
        x = self.trunk(x)
        return {"kind": self.kind(x), "amount": self.amount(x)[:, 0], "labels": self.labels(x)}

    x, y = draw.table()
    target = {"kind": y, "amount": x[:, 0] * x[:, 1], "labels": (x[:, 4:8] > 0).float()}
    net = nets.made("ManyTasks", many_tasks)
    net.trunk = nn.Sequential(nn.Linear(12, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
    net.kind, net.amount, net.labels = nn.Linear(64, 3), nn.Linear(64, 1), nn.Linear(64, 4)
    return Case((x, target), net, sum_of_tasks)


def ordinal_loss(output: Tensor, grade: Tensor) -> Tensor:
    """Return the loss of one probability per step between grades: is the grade above it?"""
    above = grade[:, None] > torch.arange(output.shape[1])
    return F.binary_cross_entropy_with_logits(output, above.float())


class Normalised(nn.Module):  # Standardises its raw columns with figures that it keeps.
    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", x.mean(0))
        self.register_buffer("deviation", x.std(0))
        self.net = nets.mlp(12, 32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - self.mean) / self.deviation)


def standardise(values: Any) -> Tensor:
    """Return a table with columns of mean 0 and variance 1; constant columns become 0."""
    x = torch.as_tensor(values, dtype=torch.float32)
    return (x - x.mean(0)) / x.std(0).clamp(min=1e-6)


def digits(count: int = 256) -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits (N, 1, 8, 8), standardised as a whole, and their classes."""
    data = load_digits()
    images = torch.as_tensor(data.images[:count], dtype=torch.float32)[:, None]
    return (images - images.mean()) / images.std(), torch.as_tensor(data.target[:count])


@FIRST
def regression_trained_with_weight_decay() -> Case:
    """MLP | 204"""
    data = load_diabetes()
    x, y = standardise(data.data), standardise(data.target[:, None])
    model = nets.mlp(10, 32, 32, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    return Case((x[:128], y[:128]), train(model, x, y, F.mse_loss, steps=150, optimizer=optimizer), nn.MSELoss())


@FIRST
def selu_with_lecun_initialisation() -> Case:
    """MLP | 205"""
    x, y = draw.table()
    layers: list[nn.Module] = []
    for fan_in in (12, *(48 for _ in range(7))):
        layers += [nn.Linear(fan_in, 48), nn.SELU()]
        nn.init.normal_(layers[-2].weight, std=fan_in**-0.5)
        nn.init.zeros_(layers[-2].bias)
    return Case((x, y), nn.Sequential(*layers, nn.Linear(48, 3)), nn.CrossEntropyLoss())


class LowRankAdapter(nn.Module):
    """A frozen linear layer with a trainable correction of low rank that starts at zero (Hu et al. 2021)."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


@SECOND
def adapters_of_low_rank_on_a_trained_base() -> Case:
    """tabular | 301"""
    x, y = draw.table()
    model = nets.mlp(12, 48, 48, 3)
    train(model, x, y, F.cross_entropy, steps=120)
    model[0], model[2] = LowRankAdapter(model[0]), LowRankAdapter(model[2])
    return Case(((x + 0.3 * torch.randn(12)), y), model, "cross_entropy")


@SECOND
def self_normalising_network() -> Case:
    """tabular | 307"""
    layers: list[nn.Module] = []
    for inner in (12, 48, 48, 48):
        linear = nn.Linear(inner, 48)
        nn.init.normal_(linear.weight, std=1 / math.sqrt(inner))
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.SELU(), nn.AlphaDropout(0.05)]
    return Case(model=nn.Sequential(*layers, nn.Linear(48, 3)), data=draw.table(), loss="cross_entropy")


class Sine(nn.Module):
    def __init__(self, inner: int, outer: int, first: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, outer)
        bound = 1 / inner if first else math.sqrt(6 / inner) / 30
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(30 * self.linear(x))


@SECOND
def sine_network_of_coordinates() -> Case:
    """regression | 308"""
    image = draw.blob_images(1, size=16)[0][0, 0]
    grid = torch.linspace(-1, 1, 16)
    places = torch.cartesian_prod(grid, grid)
    last = nn.Linear(32, 1)
    nn.init.uniform_(last.weight, -math.sqrt(6 / 32) / 30, math.sqrt(6 / 32) / 30)
    model = nn.Sequential(Sine(2, 32, True), Sine(32, 32, False), last)
    train(model, places, image.reshape(-1, 1), F.mse_loss, steps=60, optimizer=Adam(model.parameters(), lr=1e-3))
    return Case((places, image.reshape(-1, 1)), model, "mse")


@SECOND
def twenty_orthogonal_layers_of_tanh() -> Case:
    """tabular | 309"""
    model = nets.mlp(12, *[32] * 20, 3, activation=nn.Tanh)
    for module in model[:-1]:
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, gain=1.1)
    return Case(model=model, data=draw.table(), loss="cross_entropy")


@SECOND
def counts_with_a_logarithmic_link() -> Case:
    """regression | 316"""
    x = torch.randn(160, 6)
    counts = torch.poisson(torch.exp(0.6 * x[:, :1] - 0.4 * x[:, 1:2] * x[:, 2:3] + 0.5))
    model = nets.mlp(6, 32, 32, 1)
    train(model, x, counts, F.poisson_nll_loss, steps=60, optimizer=Adam(model.parameters(), lr=1e-3))
    return Case((x, counts), model, nn.PoissonNLLLoss())


def gaussian_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    return F.gaussian_nll_loss(output[0], target, output[1])


@SECOND
def mean_and_variance_of_a_target() -> Case:
    """regression | 317"""

    def mean_and_spread(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x)
        return self.mean(hidden), F.softplus(self.spread(hidden)) + 1e-3

    x, y = draw.regression_table()
    model = nets.made("MeanAndSpread", mean_and_spread)
    model.trunk = nn.Sequential(*nets.mlp(8, 48, 48), nn.ReLU())
    model.mean, model.spread = nn.Linear(48, 1), nn.Linear(48, 1)
    train(model, x, y, gaussian_loss, steps=40, optimizer=Adam(model.parameters(), lr=1e-3))
    return Case((x, y), model, gaussian_loss)


@SECOND
def soft_mixture_of_experts() -> Case:
    """regression | 325"""

    # A soft mixture of four experts.
    def experts(self, x: Tensor) -> Tensor:
        answers = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (answers * self.gate(x).softmax(1)[:, None]).sum(-1)

    x, y = draw.regression_table()
    model = nets.made("Experts", experts)
    model.experts = nn.ModuleList(nets.mlp(8, 24, 1) for _ in range(4))
    model.gate = nn.Linear(8, 4)
    return Case((x, y), model, "mse", steps=80)


class Spectrum(nn.Module):  # Random Fourier features that are fixed on purpose (a buffer), read by an MLP.
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 0.7 * torch.randn(8, 32))
        self.tower = nets.mlp(64, 48, 1)

    def forward(self, x: Tensor) -> Tensor:
        angles = x @ self.frequencies
        return self.tower(math.sqrt(2) * torch.cat([angles.sin(), angles.cos()], dim=1))


@THIRD
def huber_loss_with_an_optimizer_of_two_groups() -> Case:
    """tabular | 212"""
    model = nets.mlp(8, 32, 32, 1)
    weights = [p for p in model.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": weights, "weight_decay": 1e-2}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    return Case(draw.regression_table(), model, nn.HuberLoss(), optimizer=optimizer)


# Rows of a table, packed.
# fmt: off
OPEN("zero-initialised-head-of-a-regression | MLP | 707", lambda: Case(draw.regression_table(), filled("-1.weight",
    0.0)(nets.mlp(8, 32, 32, 1)), "mse"))
OPEN("four-units | MLP | 727", lambda: given((torch.randn(96, 2), torch.arange(96) % 2),
    lambda x, y: Case(((x + 3 * (y[:, None] - 0.5)), y), nets.mlp(2, 4, 2, activation=nn.Tanh), "cross_entropy")))
OPEN("one-sigmoid-output-with-bce | MLP | 728", lambda: given(draw.table(classes=2), lambda x, y: Case((x,
    y[:, None].float()), nn.Sequential(*nets.mlp(12, 32, 1), nn.Sigmoid()), nn.BCELoss())))
OPEN("log-softmax-with-nll | MLP | 729", lambda: Case(draw.table(classes=5), nn.Sequential(*nets.mlp(12, 32, 5),
    nn.LogSoftmax(1)), nn.NLLLoss()))
OPEN("targets-that-nobody-can-predict | MLP | 730", lambda: given(draw.regression_table(256), lambda x, y: Case((x,
    (0.3 * y + torch.randn_like(y))), nets.mlp(8, 16, 1), "mse", steps=60)))
OPEN("trained-to-a-perfect-fit | MLP | 731", lambda: Case(draw.table(64), nets.mlp(12, 64, 64, 3), "cross_entropy",
    steps=300))
OPEN("eight-selu-layers | MLP | 732", lambda: Case(draw.table(), over(lambda model: model[::2],
    lambda layer: nn.init.kaiming_normal_(layer.weight, nonlinearity="linear"))(nets.mlp(12, *[32] * 8, 3,
    activation=nn.SELU)), "cross_entropy"))
OPEN("weight-decayed | MLP | 733", lambda: given(draw.regression_table(), lambda x, y: given(nets.mlp(8, 32, 32, 1),
    lambda model: given(torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1),
    lambda optimizer: Case((x, y), train(model, x, y, F.mse_loss, steps=200, optimizer=optimizer), "mse",
    train=False)))))
OPEN("heavy-tails | MLP | 734", lambda: given(draw.table(256), lambda x, y: Case((x * x.abs() / 1.7, y),
    nets.mlp(12, 32, 32, 3), "cross_entropy")))
OPEN("sparse-one-hot-columns | MLP | 735", lambda: given(torch.randint(20, (192, 4)),
    lambda kinds: Case((F.one_hot(kinds, 20).flatten(1).float(), kinds.sum(1) % 3), nets.mlp(80, 32, 3),
    "cross_entropy")))
OPEN("prices-standardised-in-the-loss | MLP | 737", lambda: given(draw.regression_table(), lambda x, y: Case((x,
    3e5 + 1e5 * y), nets.mlp(8, 32, 32, 1), standardised_square)))
OPEN("half-the-units-dropped | MLP | 738", lambda: Case(draw.table(), nn.Sequential(nn.Linear(12, 64), nn.ReLU(),
    nn.Dropout(0.5), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3)), "cross_entropy"))
OPEN("table-in-bfloat16 | MLP | 740", lambda: given(draw.table(), lambda x, y: Case((x.bfloat16(), y),
    nets.mlp(12, 32, 32, 3).bfloat16(), "cross_entropy")))
OPEN("a-head-for-another-task | multi-task | 743", lambda: Case(draw.table(), nets.made("TwoTasks",
    lambda self, x, task="kind": self.heads[task](self.trunk(x)), trunk=nn.Sequential(*nets.mlp(12, 32, 32), nn.ReLU()),
    heads=nn.ModuleDict({"kind": nn.Linear(32, 3), "size": nn.Linear(32, 1)})), "cross_entropy"))
OPEN("many-users-not-in-the-batch | recommender | 750", lambda: Case(draw.ratings(64), nets.Recommender(users=2000,
    items=500), "mse"))
OPEN("factorisation-machine-fresh | DeepFM | 941", lambda: Case(model=rarer.DeepFM(0.1), data=rarer.clicks(),
    loss=nn.BCEWithLogitsLoss()))
OPEN("logarithms-of-counts | DLRM | 942", lambda: given(rarer.clicks(), lambda ids, y: given((10 ** (1 + 0.8 *
    torch.randn(192, 5))).round(), lambda counts: Case(model=rarer.DLRM(), data=({"dense": torch.log1p(counts),
    "sparse": ids[:, :3]}, y), loss=nn.BCEWithLogitsLoss()))))
OPEN("rare-labels-weighed | MLP | 952", lambda: given(rarer.several_labels(), lambda x, y: Case((x,
    (y * (torch.rand_like(y) < 0.3))), nets.mlp(12, 32, 5), nn.BCEWithLogitsLoss(pos_weight=torch.full((5,), 6.0)))))
OPEN("three-quantiles | quantiles | 953", lambda: Case(draw.regression_table(), nets.mlp(8, 32, 3), pinball, steps=60))
OPEN("hazards-by-logcumsumexp | survival | 954", lambda: given(draw.regression_table(), lambda x, y: given(y[:,
    0].argsort(), lambda order: Case((x[order], y[order]), nets.mlp(8, 32, 1), partial_likelihood))))
OPEN("logarithms-of-rates | counts | 955", lambda: given(draw.regression_table(), lambda x, _: Case((x,
    torch.poisson(torch.exp(0.5 + 0.6 * x[:, :1]))), nets.mlp(8, 32, 1), nn.PoissonNLLLoss())))
OPEN("logistic-regression-from-zero | logistic regression | 957", lambda: given(draw.table(classes=2),
    lambda x, y: Case((torch.cat([x[:, :11], x[:, :1] * x[:, 1:2]], dim=1), y), filled("bias",
    0.0)(filled("weight", 0.0)(nn.Linear(12, 2))), "cross_entropy")))
OPEN("gates-that-mostly-carry | Highway | 959", lambda: Case(draw.table(), Highway(), "cross_entropy"))
OPEN("raw-columns-into-a-batch-norm | MLP | 971", lambda: given(draw.table(), lambda x, y:
    given(nn.Sequential(nn.BatchNorm1d(12), *nets.mlp(12, 32, 3)), lambda model: Case((x * torch.logspace(0, 2,
    12) + 40, y), model, "cross_entropy"))))
OPEN("categories-as-tokens | TabTransformer | 977", lambda: given(rarer.clicks(), lambda ids, y: Case((({"categories":
    ids, "numbers": torch.randn(192, 5)}), y), TabTransformer(), nn.BCEWithLogitsLoss())))
OPEN("rare-labels | multi-label | 2108", lambda: given(draw.table(), lambda x, _: Case(model=nn.Sequential(*nets.mlp(12,
    32, 32, 40)), data=(x, (torch.rand(128, 40) > 0.98).float()), loss=nn.BCEWithLogitsLoss())))
OPEN("seven-default-layers | MLP | 2109", lambda: Case(draw.table(), nn.Sequential(*nets.mlp(12, 32, 32, 32, 32, 32, 32,
    3)), "cross_entropy"))
OPEN("curves-on-every-edge | KAN | 2007", lambda: Case(draw.regression_table(), nn.Sequential(Splines(8, 16),
    Splines(16, 1)), "mse"))
OPEN("grades-by-thresholds | ordinal regression | 2017", lambda: Case(draw.table(classes=5), nets.made("Ordinal",
    lambda self, x: self.score(x) + self.thresholds, score=nets.mlp(12, 32, 32, 1),
    thresholds=nn.Parameter(torch.linspace(1.5, -1.5, 5 - 1))), ordinal_loss))
OPEN("hinge-of-several-classes-trained | SVM | 2018", lambda: Case(draw.blob_images(96), nn.Sequential(nn.Conv2d(1, 8,
    5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)), nn.MultiMarginLoss(), steps=60))
OPEN("raw-columns-standardised-inside | MLP | 2026", lambda: given(draw.table(), lambda x, y: given(40 + x * 10 **
    torch.linspace(-2, 5, 12), lambda raw: Case((raw, y), Normalised(raw), "cross_entropy"))))
FIRST("fresh-mlp-on-wine | MLP | 201", lambda: given(load_wine(), lambda data: Case(model=nets.mlp(13, 32, 32, 3),
    data=(standardise(data.data), torch.as_tensor(data.target)), loss="cross_entropy")))
FIRST("mlp-trained-well-on-digits | MLP | 202", lambda: given(digits(), lambda x, y: Case((x[:64], y[:64]),
    train(nn.Sequential(nn.Flatten(), *nets.mlp(64, 64, 32, 10)), x, y, F.cross_entropy, steps=200),
    nn.CrossEntropyLoss(), train=False)))
FIRST("default-initialisation-one-unit-and-bce | MLP | 203", lambda: given(load_breast_cancer(),
    lambda data: given(nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1),
    nn.Sigmoid()), lambda model: given((standardise(data.data)[:128], torch.as_tensor(data.target[:128],
    dtype=torch.float32)[:, None]), lambda x, y: Case((x, y), model, nn.BCELoss())))))
FIRST("four-hidden-units | MLP | 206", lambda: Case(draw.regression_table(columns=4), nn.Sequential(nn.Linear(4, 4),
    nn.Tanh(), nn.Linear(4, 1)), nn.MSELoss(), steps=100))
FIRST("log-softmax-and-nll-loss | MLP | 207", lambda: Case(draw.table(classes=5), nn.Sequential(*nets.mlp(12, 32, 32,
    5), nn.LogSoftmax(dim=1)), nn.NLLLoss()))
FIRST("four-labels-to-one | MLP | 208", lambda: given(torch.randn(128, 12), lambda x: given(x[:, 0] + x[:, 1] * x[:, 2],
    lambda score: Case((x, (score.argsort().argsort() >= 102).long()), nets.mlp(12, 32, 32, 2),
    nn.CrossEntropyLoss()))))
FIRST("one-hot-inputs | MLP | 209", lambda: given(torch.randint(20, (128, 3)), lambda ids: given(F.one_hot(ids,
    20).float().flatten(1), lambda x: Case((x, (ids.sum(1) % 3).long()), nets.mlp(60, 48, 48, 3),
    nn.CrossEntropyLoss()))))
FIRST("binary-inputs | MLP | 210", lambda: given((torch.rand(128, 24) < 0.3).float(), lambda x: Case((x,
    (x[:, 0] + x[:, 1] - x[:, 2]).clamp(0, 1).long()), nets.mlp(24, 32, 32, 2), nn.CrossEntropyLoss())))
FIRST("heavy-tailed-inputs | MLP | 211", lambda: given(torch.distributions.StudentT(3.0).sample((256, 10)),
    lambda values: given((values - values.mean(0)) / values.std(0), lambda x: Case((x, (x[:, 0] * x[:, 1] > 0).long()),
    nets.mlp(10, 48, 48, 2), nn.CrossEntropyLoss()))))
FIRST("layer-norm-on-six-features | MLP | 212", lambda: Case(draw.table(columns=12), nn.Sequential(nn.Linear(12, 6),
    nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3)), nn.CrossEntropyLoss()))
FIRST("one-unit-in-ten-dead | MLP | 213", lambda: given(digits(), lambda x, y: Case((x[:128], y[:128]),
    train(changed(lambda model: put(model[3].bias, s_[::10], -20.0))(nn.Sequential(nn.Flatten(),
    *nets.mlp(64, 40, 40, 10))), x, y, F.cross_entropy, steps=150), nn.CrossEntropyLoss())))
FIRST("dropout-in-train-mode | MLP | 214", lambda: given(digits(128), lambda x, y: given(nets.mlp(64, 128, 64, 10),
    lambda first, relu, second, _, last: Case((x, y), nn.Sequential(nn.Flatten(), first, relu, nn.Dropout(0.5), second,
    nn.ReLU(), nn.Dropout(0.5), last), nn.CrossEntropyLoss()))))
FIRST("multi-label-with-logits | MLP | 215", lambda: given(draw.table(columns=12), lambda x, _: Case((x,
    torch.stack([x[:, 0] > 0, x[:, 1] * x[:, 2] > 0, x[:, 3] > 0.8], dim=1).float()), nets.mlp(12, 32, 32, 3),
    nn.BCEWithLogitsLoss())))
FIRST("bfloat16-weights | MLP | 216", lambda: given(draw.table(), lambda x, y: Case((x.bfloat16(), y),
    nets.mlp(12, 64, 64, 3).bfloat16(), nn.CrossEntropyLoss())))
FIRST("embedding-rows-that-no-one-asks-for | recommender | 237", lambda: Case(draw.ratings(64, users=40, items=30),
    nets.Recommender(users=2000, items=500), nn.MSELoss()))
SECOND("one-hot-columns | tabular | 320", lambda: given(torch.randint(6, (160, 4)),
    lambda categories: given(F.one_hot(categories, 6).flatten(1).float(), lambda x: Case((x,
    ((categories[:, 0] + categories[:, 1] * categories[:, 2]) % 3).long()), nets.mlp(24, 48, 48, 3), "cross_entropy",
    steps=40))))
SECOND("classifier-that-has-learnt-its-batch-by-heart | tabular | 327", lambda: Case(draw.table(), nets.mlp(12, 64, 64,
    3), "cross_entropy", steps=300))
SECOND("fixed-fourier-features | regression | 329", lambda: Case(model=Spectrum(), data=draw.regression_table(),
    loss="mse"))
SECOND("fresh-classifier-of-a-table | tabular | 201", lambda: Case(model=nets.mlp(12, 64, 64, 3), data=draw.table(),
    loss="cross_entropy"))
SECOND("table-with-dropout-and-batchnorm-trained | tabular | 202", lambda: Case(draw.table(192),
    nn.Sequential(nn.Linear(12, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 48),
    nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 3)), "cross_entropy", steps=120))
SECOND("regression-with-gelu-trained-well | regression | 203", lambda: Case(draw.regression_table(), nets.mlp(8, 48, 48,
    1, activation=nn.GELU), "mse", steps=300))
SECOND("regression-with-an-adam-handed-over | regression | 204", lambda: given(nets.mlp(8, 48, 48, 1),
    lambda model: Case(draw.regression_table(), model, "mse", optimizer=partial(Adam, lr=1e-3))))
SECOND("recommender-trained | recommender | 225", lambda: Case(draw.ratings(), nets.Recommender(), "mse", steps=150))
SECOND("several-labels-with-a-sigmoid-and-plain-bce | multi-label | 233", lambda: given(torch.randn(128, 10),
    lambda x: Case((x, (x[:, :6] * x[:, 1:7] > 0).float()), nn.Sequential(*nets.mlp(10, 64, 64, 6), nn.Sigmoid()),
    nn.BCELoss(), steps=60)))
SECOND("logistic-regression | tabular | 234", lambda: given(torch.randn(128, 6), lambda x: Case((x, (x[:,
    :1] + 0.5 * x[:, 1:2] + 0.5 * torch.randn(128, 1) > 0).float()), nn.Linear(6, 1), nn.BCEWithLogitsLoss(),
    steps=50)))
THIRD("wide-layers-for-a-table | tabular | 201", lambda: Case(model=nets.mlp(12, 128, 64, 3), data=draw.table(),
    loss="cross_entropy"))
THIRD("table-trained-with-smooth-units | tabular | 202", lambda: Case(draw.table(), nets.mlp(12, 32, 32, 3,
    activation=nn.SiLU), "cross_entropy", steps=80))
THIRD("fresh-regression-with-a-column-of-targets | regression | 204", lambda: Case(model=nets.mlp(8, 64, 64, 1),
    data=draw.regression_table(), loss="mse"))
THIRD("mean-and-positive-variance-fresh | regression | 205", lambda: Case(model=rarer.MeanAndVariance(False),
    data=draw.regression_table(), loss=rarer.gaussian_loss))
THIRD("logarithms-of-rates-for-a-poisson-loss | counts | 206", lambda: given(draw.regression_table(),
    lambda x, score: Case((x, torch.poisson(torch.exp(0.5 * score.squeeze(1)))), rarer.Rates(False),
    nn.PoissonNLLLoss())))
THIRD("radial-units-of-a-fitting-width | regression | 207", lambda: Case(draw.regression_table(columns=4),
    rarer.RadialNet(1.5), "mse", steps=60))
THIRD("sigmoid-for-shares-between-zero-and-one | regression | 208", lambda: given(draw.regression_table(),
    lambda x, y: Case((x, torch.sigmoid(y)), nn.Sequential(*nets.mlp(8, 32, 32, 1), nn.Sigmoid()), "mse")))
THIRD("five-labels-trained-well | multi-label | 209", lambda: given(draw.table(), lambda x, _: Case((x,
    (x[:, :5] + x[:, 5:10] > 0).float()), nets.mlp(12, 48, 5), nn.BCEWithLogitsLoss(), steps=100)))
THIRD("small-residual-steps-without-a-normalizer | residual MLP | 211", lambda: Case(model=rarer.DeepResidual(0.1),
    data=draw.table(), loss="cross_entropy"))
THIRD("plain-linear-model-of-a-table | tabular | 213", lambda: Case(model=nn.Linear(12, 3), data=draw.table(),
    loss="cross_entropy"))
THIRD("three-classes-in-unequal-parts | tabular | 214", lambda: given(draw.table(classes=6), lambda x, y: Case((x,
    torch.tensor([0, 0, 0, 1, 1, 2])[y]), nets.mlp(12, 32, 32, 3), "cross_entropy")))
THIRD("columns-of-unequal-spread-behind-a-batch-norm | tabular | 215", lambda: given(draw.table(),
    lambda x, y: Case((x * torch.linspace(0.2, 20.0, 12), y), nn.Sequential(nn.BatchNorm1d(12),
    *nets.mlp(12, 32, 32, 3)), "cross_entropy")))
THIRD("a-hundred-steps-with-dropout-then-eval-mode | tabular | 216", lambda: Case(draw.table(),
    nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)),
    "cross_entropy", train=False, steps=100))
THIRD("factors-of-users-and-items-fresh | recommender | 255", lambda: Case(model=rarer.Factorisation(),
    data=draw.ratings(), loss="mse"))
THIRD("tower-over-users-and-items-fresh | recommender | 256", lambda: Case(model=nets.Recommender(),
    data=draw.ratings(), loss="mse"))
THIRD("first-stage-recomputed | tabular | 260", lambda: Case(model=nets.made("Recomputed",
    lambda self, x: self.stage2(torch.relu(checkpoint(self.stage1, x, use_reentrant=False))),
    stage1=nets.mlp(12, 32, 32), stage2=nets.mlp(32, 32, 3)), data=draw.table(), loss="cross_entropy"))
