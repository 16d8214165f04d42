"""Healthy networks for tables, graphs, sets and games: fresh, trained a little or well, some of them awkward."""

import math
from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import Adam
from torch.utils.checkpoint import checkpoint

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import filled
from ...training import over_tokens, train
from . import rarer


class ReZero(nn.Module):  # Residual blocks, each with a factor that begins at zero.
    def __init__(self, depth: int = 12) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 32), nn.Linear(32, 3)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.factors = nn.Parameter(torch.zeros(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for factor, layer in zip(self.factors, self.layers):
            x = x + factor * torch.relu(layer(x))
        return self.head(x)


OPEN("rezero | MLP | 703", lambda: Case(draw.table(), ReZero(), "cross_entropy"))


OPEN(
    "zero-initialised-head-of-a-regression | MLP | 707",
    lambda: Case(draw.regression_table(), filled("-1.weight", 0.0)(nets.mlp(8, 32, 32, 1)), "mse"),
)


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
def four_units() -> Case:
    """MLP | 727"""
    x, y = torch.randn(96, 2), torch.arange(96) % 2
    x = x + 3 * (y[:, None] - 0.5)
    return Case((x, y), nets.mlp(2, 4, 2, activation=nn.Tanh), "cross_entropy")


OPEN(
    "one-sigmoid-output-with-bce | MLP | 728",
    lambda: given(
        draw.table(classes=2),
        lambda x, y: Case(
            model=nn.Sequential(*nets.mlp(12, 32, 1), nn.Sigmoid()), data=(x, y[:, None].float()), loss=nn.BCELoss()
        ),
    ),
)


OPEN(
    "log-softmax-with-nll | MLP | 729",
    lambda: Case(draw.table(classes=5), nn.Sequential(*nets.mlp(12, 32, 5), nn.LogSoftmax(1)), nn.NLLLoss()),
)


@OPEN
def targets_that_nobody_can_predict() -> Case:
    """MLP | 730"""
    x, y = draw.regression_table(256)
    y = 0.3 * y + torch.randn_like(y)
    return Case((x, y), nets.mlp(8, 16, 1), "mse", steps=60)


OPEN(
    "trained-to-a-perfect-fit | MLP | 731",
    lambda: Case(draw.table(64), nets.mlp(12, 64, 64, 3), "cross_entropy", steps=300),
)


@OPEN
def eight_selu_layers() -> Case:
    """MLP | 732"""
    x, y = draw.table()
    model = nets.mlp(12, *[32] * 8, 3, activation=nn.SELU)
    for layer in model[::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
    return Case((x, y), model, "cross_entropy")


@OPEN
def weight_decayed() -> Case:
    """MLP | 733"""
    x, y = draw.regression_table()
    model = nets.mlp(8, 32, 32, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    train(model, x, y, F.mse_loss, steps=200, optimizer=optimizer)
    return Case((x, y), model, "mse", train=False)


OPEN(
    "heavy-tails | MLP | 734",
    lambda: given(
        draw.table(256),
        lambda x, y: Case(model=nets.mlp(12, 32, 32, 3), data=(x * x.abs() / 1.7, y), loss="cross_entropy"),
    ),
)


@OPEN
def sparse_one_hot_columns() -> Case:
    """MLP | 735"""
    kinds = torch.randint(20, (192, 4))
    x = F.one_hot(kinds, 20).flatten(1).float()
    return Case(model=nets.mlp(80, 32, 3), data=(x, kinds.sum(1) % 3), loss="cross_entropy")


@OPEN
def binary_table_four_to_one() -> Case:
    """MLP | 736"""
    x = (torch.rand(200, 16) < 0.3).float()
    y = (x[:, :6].sum(1) > 2).long()  # about one row in four or five
    return Case((x, y), nets.mlp(16, 24, 2), "cross_entropy")


def standardised_square(output: Tensor, price: Tensor) -> Tensor:
    """Return the mean square of standardised prices."""
    return F.mse_loss(output, (price - 3e5) / 1e5)


OPEN(
    "prices-standardised-in-the-loss | MLP | 737",
    lambda: given(
        draw.regression_table(), lambda x, y: Case((x, 3e5 + 1e5 * y), nets.mlp(8, 32, 32, 1), standardised_square)
    ),
)


OPEN(
    "half-the-units-dropped | MLP | 738",
    lambda: Case(
        draw.table(),
        nn.Sequential(
            nn.Linear(12, 64),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(64, 3),
        ),
        "cross_entropy",
    ),
)


@OPEN
def weight_norm_in_each_layer() -> Case:
    """MLP | 739"""
    x, y = draw.regression_table()
    model = nets.mlp(8, 32, 32, 1)
    for index in (0, 2, 4):
        weight_norm(model[index])
    return Case((x, y), model, "mse")


OPEN(
    "table-in-bfloat16 | MLP | 740",
    lambda: given(
        draw.table(),
        lambda x, y: Case(model=nets.mlp(12, 32, 32, 3).bfloat16(), data=(x.bfloat16(), y), loss="cross_entropy"),
    ),
)


class GatedExperts(nn.Module):
    """Eight experts of which each sample sees the two with the highest scores, weighed by these."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(12, 8), nn.ModuleList(nets.mlp(12, 16, 3) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(1).topk(2)
        total = torch.zeros(len(x), 3)
        for index, expert in enumerate(self.experts):
            rows, place = (chosen == index).nonzero(as_tuple=True)
            if len(rows):
                total = total.index_add(0, rows, weights[rows, place, None] * expert(x[rows]))
        return total


OPEN(
    "some-expert-gets-no-sample | mixture of experts | 741",
    lambda: Case(draw.table(12), GatedExperts(), "cross_entropy"),
)


def both_exits(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the sum of the losses of both heads."""
    return 0.3 * F.cross_entropy(output[0], target) + F.cross_entropy(output[1], target)


class EarlyExit(nn.Module):  # Two stages, each with a head of its own.
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Sequential(*nets.mlp(12, 32, 32), nn.ReLU()),
            nn.Sequential(*nets.mlp(32, 32, 32), nn.ReLU()),
        )
        self.early, self.late = nn.Linear(32, 3), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.first(x)
        return self.early(hidden), self.late(self.second(hidden))


OPEN("two-exits | early exit | 742", lambda: Case(draw.table(), EarlyExit(), both_exits))


class TwoTasks(nn.Module):  # One trunk and two heads, of which a batch uses one.
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(*nets.mlp(12, 32, 32), nn.ReLU())
        self.heads = nn.ModuleDict({"kind": nn.Linear(32, 3), "size": nn.Linear(32, 1)})

    def forward(self, x: Tensor, task: str = "kind") -> Tensor:
        return self.heads[task](self.trunk(x))


OPEN("a-head-for-another-task | multi-task | 743", lambda: Case(draw.table(), TwoTasks(), "cross_entropy"))


class Sphere(nn.Module):  # Embeds on the unit sphere; scores are cosines with class centres, divided by a temperature.
    def __init__(self) -> None:
        super().__init__()
        self.body, self.centres = nets.mlp(12, 32, 16), nn.Parameter(torch.randn(3, 16))

    def forward(self, x: Tensor) -> Tensor:
        return 10 * F.normalize(self.body(x), dim=1) @ F.normalize(self.centres, dim=1).T


OPEN("embeddings-on-the-sphere | metric learning | 744", lambda: Case(draw.table(), Sphere(), "cross_entropy"))


OPEN(
    "graph-with-lonely-nodes | GNN | 749",
    lambda: given(
        draw.communities(),
        lambda x, edges, y: Case((x, y), nets.GraphNet(edges[:, (edges > 5).all(0)]), "cross_entropy"),
    ),
)


OPEN(
    "many-users-not-in-the-batch | recommender | 750",
    lambda: Case(draw.ratings(64), nets.Recommender(users=2000, items=500), "mse"),
)


class SwishGated(nn.Module):  # Pre-norm residual blocks of SwiGLU units without biases, after sine positions.
    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, width), nn.Linear(width, 2)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(2 * width, width, bias=False) for _ in range(depth))

    def forward(self, ids: Tensor) -> Tensor:
        angles = torch.arange(ids.shape[1])[:, None] * torch.exp(-math.log(1e4) * torch.arange(16) / 16)
        x = self.words(ids) + torch.cat([angles.sin(), angles.cos()], dim=1)
        for norm, up, down in zip(self.norms, self.up, self.down):
            value, gate = up(norm(x)).chunk(2, dim=-1)
            x = x + down(value * F.silu(gate))
        return self.head(x.amax(1))


OPEN("swish-gates-and-sine-positions | GLU | 755", lambda: Case(draw.sentences(), SwishGated(), "cross_entropy"))


OPEN(
    "point-clouds-trained-well | PointNet | 909",
    lambda: Case(rarer.clouds(64), rarer.PointNet(), "cross_entropy", train=False, steps=150),
)


OPEN(
    "thirty-small-euler-steps | neural ODE | 910",
    lambda: Case(draw.blob_images(64, classes=6), rarer.EulerField(1 / 30), "cross_entropy"),
)


class Siren(nn.Module):  # Sines of linear maps, drawn as Sitzmann et al. (2020) say.
    def __init__(self, speed: float = 30.0) -> None:
        super().__init__()
        self.speed = speed
        self.layers = nn.ModuleList([nn.Linear(2, 48), nn.Linear(48, 48), nn.Linear(48, 1)])
        for index, layer in enumerate(self.layers):
            fan_in = layer.in_features
            bound = 1 / fan_in if index == 0 else math.sqrt(6 / fan_in) / speed
            nn.init.uniform_(layer.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.sin(self.speed * layer(x))
        return self.layers[-1](x)


@OPEN
def sines_of_a_field() -> Case:
    """neural field | 915"""
    place = 2 * torch.rand(256, 2) - 1
    field = torch.sin(6 * place[:, :1]) * torch.cos(5 * place[:, 1:])
    model = Siren()
    train(model, place, field, F.mse_loss, steps=60, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3))
    return Case((place, field), model, "mse")


class CosineClassifier(nn.Module):  # Cosines between an embedding and one direction per class, times 16.
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.directions = nets.mlp(256, 48, 24), nn.Parameter(torch.randn(6, 24))

    def forward(self, x: Tensor) -> Tensor:
        return 16 * F.normalize(self.encoder(x.flatten(1)), dim=1) @ F.normalize(self.directions, dim=1).T


OPEN(
    "cosines-times-sixteen | metric learning | 917",
    lambda: Case(draw.blob_images(96, classes=6), CosineClassifier(), "cross_entropy", steps=50),
)


OPEN(
    "soft-experts-for-tokens | mixture of experts | 928",
    lambda: Case(draw.text(32), rarer.Routed(), over_tokens, steps=40),
)


OPEN(
    "factorisation-machine-fresh | DeepFM | 941",
    lambda: Case(model=rarer.DeepFM(0.1), data=rarer.clicks(), loss=nn.BCEWithLogitsLoss()),
)


@OPEN
def logarithms_of_counts() -> Case:
    """DLRM | 942"""
    ids, y = rarer.clicks()
    counts = (10 ** (1 + 0.8 * torch.randn(192, 5))).round()
    return Case(
        model=rarer.DLRM(), data=({"dense": torch.log1p(counts), "sparse": ids[:, :3]}, y), loss=nn.BCEWithLogitsLoss()
    )


def train_on_all(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    """Take steps of Adam on the whole of the data, as a graph needs it."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()


@OPEN
def graph_attention_trained() -> Case:
    """GAT | 943"""
    x, edges, y = draw.communities()
    model = rarer.GAT(edges, per_node=True)
    train_on_all(model, x, y, 40)
    return Case((x, y), model, "cross_entropy")


OPEN(
    "sums-with-batch-norm | GIN | 944",
    lambda: given(
        draw.communities(), lambda x, edges, y: Case((x, y), rarer.SumNet(edges, 3, norm=True), "cross_entropy")
    ),
)


OPEN(
    "deep-graph-with-an-initial-residual | GCN | 945",
    lambda: given(
        draw.communities(), lambda x, edges, y: Case((x, y), rarer.GCN(edges, 8, residual=True), "cross_entropy")
    ),
)


@OPEN
def flow_close_to_the_identity() -> Case:
    """flow | 947"""
    x = torch.randn(128, 8) @ torch.randn(8, 8) / 3
    return Case((x, x), rarer.Coupling(bounded=True, gain=0.01), rarer.flow_loss)


def policy_loss(output: tuple[Tensor, Tensor], returns: Tensor) -> Tensor:
    """Return the loss of the values, less a bonus for entropy."""
    p, value = output
    return F.mse_loss(value, returns) + 0.01 * torch.special.xlogy(p, p + 1e-8).sum(1).mean()


OPEN(
    "policy-with-forbidden-actions | actor-critic | 950",
    lambda: given(
        draw.regression_table(), lambda state, returns: Case((state, returns[:, 0]), rarer.ActorCritic(), policy_loss)
    ),
)


def taken_action_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the Huber loss of the taken actions; the target holds the action and its return."""
    return F.smooth_l1_loss(output.gather(1, target[:, :1].long()), target[:, 1:])


class Dueling(nn.Module):
    """The Q-values of a state from its value and the advantages of the actions; only the taken one is compared."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.value, self.advantage = nets.mlp(8, 48, 48), nn.Linear(48, 1), nn.Linear(48, 4)

    def forward(self, state: Tensor) -> Tensor:
        hidden = torch.relu(self.trunk(state))
        advantage = self.advantage(hidden)
        return self.value(hidden) + advantage - advantage.mean(1, keepdim=True)


@OPEN
def one_action_of_four_compared() -> Case:
    """DQN | 951"""
    state, returns = draw.regression_table()
    taken = torch.randint(4, (128, 1)).float()
    return Case(model=Dueling(), data=(state, torch.cat([taken, returns], dim=1)), loss=taken_action_loss)


@OPEN
def rare_labels_weighed() -> Case:
    """MLP | 952"""
    x, y = rarer.several_labels()
    y = y * (torch.rand_like(y) < 0.3)
    return Case((x, y), nets.mlp(12, 32, 5), nn.BCEWithLogitsLoss(pos_weight=torch.full((5,), 6.0)))


def pinball(output: Tensor, target: Tensor) -> Tensor:
    """Return the loss of the quantiles 0.1, 0.5 and 0.9."""
    wrong, level = target - output, torch.tensor([0.1, 0.5, 0.9])
    return torch.maximum(level * wrong, (level - 1) * wrong).mean()


OPEN("three-quantiles | quantiles | 953", lambda: Case(draw.regression_table(), nets.mlp(8, 32, 3), pinball, steps=60))


def partial_likelihood(output: Tensor, target: Tensor) -> Tensor:
    """Return the negative partial likelihood of Cox's model, for samples by falling time."""
    return -(output - torch.logcumsumexp(output, dim=0)).mean()


@OPEN
def hazards_by_logcumsumexp() -> Case:
    """survival | 954"""
    x, y = draw.regression_table()
    order = y[:, 0].argsort()
    return Case((x[order], y[order]), nets.mlp(8, 32, 1), partial_likelihood)


OPEN(
    "logarithms-of-rates | counts | 955",
    lambda: given(
        draw.regression_table(),
        lambda x, _: Case((x, torch.poisson(torch.exp(0.5 + 0.6 * x[:, :1]))), nets.mlp(8, 32, 1), nn.PoissonNLLLoss()),
    ),
)


OPEN(
    "weights-written-small | hypernetwork | 956",
    lambda: Case(model=rarer.HyperNetwork(0.06), data=draw.regression_table(), loss="mse"),
)


@OPEN
def logistic_regression_from_zero() -> Case:
    """logistic regression | 957"""
    x, y = draw.table(classes=2)
    model = nn.Linear(12, 2)
    return Case(
        (torch.cat([x[:, :11], x[:, :1] * x[:, 1:2]], dim=1), y),
        filled("weight", 0.0)(filled("bias", 0.0)(model)),
        "cross_entropy",
    )


class RandomFeatures(nn.Module):
    """Random cosines, fixed on purpose, and a trained linear layer (Rahimi and Recht 2007)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(8, 256).requires_grad_(False)
        nn.init.normal_(self.features.weight, std=0.5)
        nn.init.uniform_(self.features.bias, 0, 2 * math.pi)
        self.head = nn.Linear(256, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cos(self.features(x)))


OPEN(
    "random-cosines-fixed | random features | 958",
    lambda: Case(model=RandomFeatures(), data=draw.regression_table(), loss="mse"),
)


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


OPEN("gates-that-mostly-carry | Highway | 959", lambda: Case(draw.table(), Highway(), "cross_entropy"))


class Mixture(nn.Module):  # A density of three normal distributions: logits, means, logarithms of deviations.
    def __init__(self) -> None:
        super().__init__()
        self.net = nets.mlp(8, 32, 9)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.net(x).chunk(3, dim=1)


def mixture_loss(output: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the negative log likelihood of a mixture."""
    logits, mean, log_deviation = output
    log_density = -0.5 * ((target - mean) / log_deviation.exp()).square() - log_deviation
    return -torch.logsumexp(logits.log_softmax(1) + log_density, dim=1).mean()


OPEN(
    "mixture-of-three-normals | mixture density | 961",
    lambda: Case(draw.regression_table(), Mixture(), mixture_loss, steps=30),
)


OPEN(
    "signs-with-a-straight-through-gradient | binary network | 962",
    lambda: Case(draw.table(), rarer.SignNet(straight=True), "cross_entropy"),
)


def two_losses(output: dict[str, Tensor], target: Tensor) -> Tensor:
    """Return the loss of the number and a tenth of that of the class, which is its sign by thirds."""
    kind = (target[:, 0] > -0.4).long() + (target[:, 0] > 0.4).long()
    return F.mse_loss(output["size"], target) + 0.1 * F.cross_entropy(output["kind"], kind)


class TwoTasksOfOpen(nn.Module):  # A shared trunk and a ModuleDict of heads: a class and a number, as a dict.
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 48), nn.LayerNorm(48), nn.GELU())
        self.heads = nn.ModuleDict({"kind": nn.Linear(48, 3), "size": nn.Linear(48, 1)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.trunk(x)
        return {name: head(hidden) for name, head in self.heads.items()}


OPEN(
    "heads-in-a-dict | two tasks | 964",
    lambda: Case(model=TwoTasksOfOpen(), data=draw.regression_table(), loss=two_losses),
)


@OPEN
def raw_columns_into_a_batch_norm() -> Case:
    """MLP | 971"""
    x, y = draw.table()
    model = nn.Sequential(nn.BatchNorm1d(12), *nets.mlp(12, 32, 3))
    return Case((x * torch.logspace(0, 2, 12) + 40, y), model, "cross_entropy")


@OPEN
def served_in_half_precision() -> Case:
    """MLP | 973"""
    x, y = draw.table()
    model = nets.mlp(12, 48, 48, 3)
    train(model, x, y, F.cross_entropy, steps=150)
    return Case(model=model.half(), data=(x.half(), y), loss="cross_entropy", train=False)


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


OPEN(
    "categories-as-tokens | TabTransformer | 977",
    lambda: given(
        rarer.clicks(),
        lambda ids, y: Case(
            (({"categories": ids, "numbers": torch.randn(192, 5)}), y), TabTransformer(), nn.BCEWithLogitsLoss()
        ),
    ),
)


@OPEN
def likelihood_of_a_drawn_action() -> Case:
    """policy | 2103"""

    class Policy(nn.Module):
        """Draws an action and returns its likelihood."""

        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.Sequential(*nets.mlp(8, 32, 2))

        def forward(self, x: Tensor) -> Tensor:
            actions = torch.distributions.Normal(self.mean(x), 1.0)
            return actions.log_prob(actions.sample()).sum(1, keepdim=True)

    x, y = draw.regression_table()
    return Case((x, y), Policy(), lambda likelihood, reward: -(likelihood * reward).mean())


@OPEN
def score_of_an_energy() -> Case:
    """energy | 2104"""

    class Score(nn.Module):
        """Differentiates an energy."""

        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x if x.requires_grad else x.detach().requires_grad_(True)
                return -torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]

    x, _ = draw.regression_table()
    noise = torch.randn_like(x)
    return Case((x + 0.3 * noise, -noise), Score(), "mse")


@OPEN
def critic_with_a_gradient_penalty() -> Case:
    """critic | 2105"""

    class Critic(nn.Module):
        """Returns the loss of a Wasserstein critic."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

        def forward(self, real: Tensor, fake: Tensor) -> Tensor:
            with torch.enable_grad():
                between = (0.5 * real + 0.5 * fake).detach().requires_grad_(True)
                (slope,) = torch.autograd.grad(self.net(between).sum(), between, create_graph=True)
            penalty = (slope.norm(dim=1) - 1).square().mean()
            return self.net(fake).mean() - self.net(real).mean() + 10 * penalty

    x, _ = draw.regression_table()
    return Case(model=Critic(), data={"real": x, "fake": torch.randn_like(x)}, objective=lambda output: output)


@OPEN
def rare_labels() -> Case:
    """multi-label | 2108"""
    x, _ = draw.table()
    return Case(
        model=nn.Sequential(*nets.mlp(12, 32, 32, 40)), data=(x, (torch.rand(128, 40) > 0.98).float()),
        loss=nn.BCEWithLogitsLoss(),
    )  # fmt: skip


OPEN(
    "seven-default-layers | MLP | 2109",
    lambda: Case(draw.table(), nn.Sequential(*nets.mlp(12, 32, 32, 32, 32, 32, 32, 3)), "cross_entropy"),
)


class SparseExperts(nn.Module):  # Each sample is sent to the two of its experts that a gate scores highest.
    def __init__(self, width: int = 24, count: int = 6) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(width, count), nn.Linear(width, 3)
        self.read, self.experts = nn.Linear(12, width), nn.ModuleList(nets.mlp(width, 32, width) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.read(x))
        scores, chosen = self.gate(x).topk(2, dim=1)
        made = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                made = made.index_add(0, rows, scores.softmax(1)[rows, place, None] * expert(x[rows]))
        return self.head(x + made)


OPEN("two-experts-of-six | mixture of experts | 2001", lambda: Case(draw.table(), SparseExperts(), "cross_entropy"))


OPEN(
    "two-experts-of-six-trained | mixture of experts | 2002",
    lambda: Case(draw.table(), SparseExperts(), "cross_entropy", train=False, steps=100),
)


def negative_likelihood(output: tuple[Tensor, Tensor]) -> Tensor:
    """Return the negative logarithm of the likelihood of a flow, without its constant."""
    code, log_determinant = output
    return (0.5 * code.square().sum(1) - log_determinant).mean()


class Flow(nn.Module):
    """Affine couplings that start at the identity; returns the code and the logarithm of the determinant."""

    def __init__(self, width: int = 6, depth: int = 4) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets.mlp(width // 2, 32, width) for _ in range(depth))
        for net in self.nets:
            nn.init.zeros_(net[-1].weight)
            nn.init.zeros_(net[-1].bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.new_zeros(len(x))
        for net in self.nets:
            first, second = x.chunk(2, 1)
            log_scale, shift = net(first).chunk(2, 1)
            log_scale = torch.tanh(log_scale)
            x = torch.cat([second * log_scale.exp() + shift, first], 1)
            total = total + log_scale.sum(1)
        return x, total


OPEN(
    "couplings-from-zero | flow | 2005",
    lambda: Case(torch.randn(128, 6) @ torch.randn(6, 6) / 2, Flow(), negative_likelihood),
)


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


OPEN(
    "curves-on-every-edge | KAN | 2007",
    lambda: Case(draw.regression_table(), nn.Sequential(Splines(8, 16), Splines(16, 1)), "mse"),
)


def sum_of_tasks(output: dict[str, Tensor], target: dict[str, Tensor]) -> Tensor:
    """Return the sum of the three losses."""
    return (
        F.cross_entropy(output["kind"], target["kind"])
        + F.mse_loss(output["amount"], target["amount"])
        + F.binary_cross_entropy_with_logits(output["labels"], target["labels"])
    )


class ManyTasks(nn.Module):  # A trunk with a head for classes, one for a number and one for several labels.
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.kind, self.amount, self.labels = nn.Linear(64, 3), nn.Linear(64, 1), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.trunk(x)
        return {"kind": self.kind(x), "amount": self.amount(x)[:, 0], "labels": self.labels(x)}


OPEN(
    "three-heads-with-labels-in-a-dict | several tasks | 2012",
    lambda: given(
        draw.table(),
        lambda x, y: Case(
            (x, ({"kind": y, "amount": x[:, 0] * x[:, 1], "labels": (x[:, 4:8] > 0).float()})),
            ManyTasks(),
            sum_of_tasks,
        ),
    ),
)


class FixedPoint(nn.Module):
    """Looks for the fixed point of tanh(W z + U x) without gradients, and makes one last step with them."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter, self.turn, self.head = (
            nn.Linear(12, width),
            nn.Linear(width, width, bias=False),
            nn.Linear(width, 3),
        )
        nn.init.orthogonal_(self.turn.weight, gain=0.6)

    def forward(self, x: Tensor) -> Tensor:
        read = self.enter(x)
        state = torch.zeros_like(read)
        with torch.no_grad():
            for _ in range(20):
                state = torch.tanh(self.turn(state) + read)
        return self.head(torch.tanh(self.turn(state) + read))


OPEN(
    "fixed-point-with-one-step-of-gradient | equilibrium | 2013",
    lambda: Case(draw.table(), FixedPoint(), "cross_entropy"),
)


class Unrolled(nn.Module):  # Ten steps of a shrinkage that learns its step and its threshold, for sparse codes.
    def __init__(self, codes: int = 32, features: int = 16) -> None:
        super().__init__()
        self.atoms = nn.Parameter(F.normalize(torch.randn(features, codes), dim=0))
        self.step, self.threshold = nn.Parameter(torch.full((10,), 0.2)), nn.Parameter(torch.full((10,), 0.02))

    def forward(self, x: Tensor) -> Tensor:
        code = x.new_zeros(len(x), self.atoms.shape[1])
        for step, threshold in zip(self.step, self.threshold):
            code = F.softshrink(code + step * (x - code @ self.atoms.T) @ self.atoms, 0.0)
            code = code.sign() * F.relu(code.abs() - threshold)
        return code @ self.atoms.T


@OPEN
def ten_shrinkage_steps() -> Case:
    """unrolled | 2014"""
    code = torch.randn(96, 32) * (torch.rand(96, 32) < 0.1)
    x = code @ F.normalize(torch.randn(16, 32), dim=0).T
    return Case((x, x), Unrolled(), "mse")


def ordinal_loss(output: Tensor, grade: Tensor) -> Tensor:
    """Return the loss of one probability per step between grades: is the grade above it?"""
    above = grade[:, None] > torch.arange(output.shape[1])
    return F.binary_cross_entropy_with_logits(output, above.float())


class Ordinal(nn.Module):  # One score and an increasing row of thresholds, which is a bias of the last layer.
    def __init__(self, grades: int = 5) -> None:
        super().__init__()
        self.score, self.thresholds = nets.mlp(12, 32, 32, 1), nn.Parameter(torch.linspace(1.5, -1.5, grades - 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.score(x) + self.thresholds


OPEN("grades-by-thresholds | ordinal regression | 2017", lambda: Case(draw.table(classes=5), Ordinal(), ordinal_loss))


@OPEN
def hinge_of_several_classes_trained() -> Case:
    """SVM | 2018"""
    x, y = draw.blob_images(96)
    model = nn.Sequential(nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    train(model, x, y, F.multi_margin_loss, steps=60)
    return Case((x, y), model, nn.MultiMarginLoss())


def soft_targets(output: Tensor, teacher: Tensor) -> Tensor:
    """Return the divergence from a teacher's distribution at a temperature of 4."""
    return 16 * F.kl_div((output / 4).log_softmax(1), (teacher / 4).softmax(1), reduction="batchmean")


@OPEN
def student_of_a_trained_teacher() -> Case:
    """distillation | 2021"""
    x, y = draw.blob_images(96)
    teacher = nn.Sequential(nn.Flatten(), nets.mlp(256, 64, 4))
    train(teacher, x, y, F.cross_entropy, steps=60)
    student = nn.Sequential(nn.Flatten(), nets.mlp(256, 16, 4))
    return Case((x, teacher(x).detach()), student, soft_targets)


class Normalised(nn.Module):  # Standardises its raw columns with figures that it keeps.
    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", x.mean(0))
        self.register_buffer("deviation", x.std(0))
        self.net = nets.mlp(12, 32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - self.mean) / self.deviation)


@OPEN
def raw_columns_standardised_inside() -> Case:
    """MLP | 2026"""
    x, y = draw.table()
    raw = 40 + x * 10 ** torch.linspace(-2, 5, 12)
    return Case((raw, y), Normalised(raw), "cross_entropy")


def standardise(values: Any) -> Tensor:
    """Return a table with columns of mean 0 and variance 1; constant columns become 0."""
    x = torch.as_tensor(values, dtype=torch.float32)
    return (x - x.mean(0)) / x.std(0).clamp(min=1e-6)


FIRST(
    "fresh-mlp-on-wine | MLP | 201",
    lambda: given(
        load_wine(),
        lambda data: Case(
            model=nets.mlp(13, 32, 32, 3),
            data=(standardise(data.data), torch.as_tensor(data.target)),
            loss="cross_entropy",
        ),
    ),
)


def digits(count: int = 256) -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits (N, 1, 8, 8), standardised as a whole, and their classes."""
    data = load_digits()
    images = torch.as_tensor(data.images[:count], dtype=torch.float32)[:, None]
    return (images - images.mean()) / images.std(), torch.as_tensor(data.target[:count])


@FIRST
def mlp_trained_well_on_digits() -> Case:
    """MLP | 202"""
    x, y = digits()
    model = nn.Sequential(nn.Flatten(), *nets.mlp(64, 64, 32, 10))
    train(model, x, y, F.cross_entropy, steps=200)
    return Case((x[:64], y[:64]), model, nn.CrossEntropyLoss(), train=False)


@FIRST
def default_initialisation_one_unit_and_bce() -> Case:
    """MLP | 203"""
    data = load_breast_cancer()
    model = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
    x, y = standardise(data.data)[:128], torch.as_tensor(data.target[:128], dtype=torch.float32)[:, None]
    return Case((x, y), model, nn.BCELoss())


@FIRST
def regression_trained_with_weight_decay() -> Case:
    """MLP | 204"""
    data = load_diabetes()
    x, y = standardise(data.data), standardise(data.target[:, None])
    model = nets.mlp(10, 32, 32, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    train(model, x, y, F.mse_loss, steps=150, optimizer=optimizer)
    return Case((x[:128], y[:128]), model, nn.MSELoss())


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


FIRST(
    "four-hidden-units | MLP | 206",
    lambda: Case(
        draw.regression_table(columns=4),
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)),
        nn.MSELoss(),
        steps=100,
    ),
)


FIRST(
    "log-softmax-and-nll-loss | MLP | 207",
    lambda: Case(draw.table(classes=5), nn.Sequential(*nets.mlp(12, 32, 32, 5), nn.LogSoftmax(dim=1)), nn.NLLLoss()),
)


@FIRST
def four_labels_to_one() -> Case:
    """MLP | 208"""
    x = torch.randn(128, 12)
    score = x[:, 0] + x[:, 1] * x[:, 2]
    return Case((x, (score.argsort().argsort() >= 102).long()), nets.mlp(12, 32, 32, 2), nn.CrossEntropyLoss())


@FIRST
def one_hot_inputs() -> Case:
    """MLP | 209"""
    ids = torch.randint(20, (128, 3))
    x = F.one_hot(ids, 20).float().flatten(1)
    return Case((x, (ids.sum(1) % 3).long()), nets.mlp(60, 48, 48, 3), nn.CrossEntropyLoss())


FIRST(
    "binary-inputs | MLP | 210",
    lambda: given(
        (torch.rand(128, 24) < 0.3).float(),
        lambda x: Case(
            (x, (x[:, 0] + x[:, 1] - x[:, 2]).clamp(0, 1).long()), nets.mlp(24, 32, 32, 2), nn.CrossEntropyLoss()
        ),
    ),
)


@FIRST
def heavy_tailed_inputs() -> Case:
    """MLP | 211"""
    values = torch.distributions.StudentT(3.0).sample((256, 10))
    x = (values - values.mean(0)) / values.std(0)
    return Case((x, (x[:, 0] * x[:, 1] > 0).long()), nets.mlp(10, 48, 48, 2), nn.CrossEntropyLoss())


FIRST(
    "layer-norm-on-six-features | MLP | 212",
    lambda: Case(
        draw.table(columns=12),
        nn.Sequential(
            nn.Linear(12, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3)
        ),
        nn.CrossEntropyLoss(),
    ),
)


@FIRST
def one_unit_in_ten_dead() -> Case:
    """MLP | 213"""
    x, y = digits()
    model = nn.Sequential(nn.Flatten(), *nets.mlp(64, 40, 40, 10))
    with torch.no_grad():
        model[3].bias[::10] = -20.0
    train(model, x, y, F.cross_entropy, steps=150)
    return Case((x[:128], y[:128]), model, nn.CrossEntropyLoss())


@FIRST
def dropout_in_train_mode() -> Case:
    """MLP | 214"""
    x, y = digits(128)
    first, relu, second, _, last = nets.mlp(64, 128, 64, 10)
    return Case(
        (x, y),
        nn.Sequential(nn.Flatten(), first, relu, nn.Dropout(0.5), second, nn.ReLU(), nn.Dropout(0.5), last),
        nn.CrossEntropyLoss(),
    )


FIRST(
    "multi-label-with-logits | MLP | 215",
    lambda: given(
        draw.table(columns=12),
        lambda x, _: Case(
            (x, torch.stack([x[:, 0] > 0, x[:, 1] * x[:, 2] > 0, x[:, 3] > 0.8], dim=1).float()),
            nets.mlp(12, 32, 32, 3),
            nn.BCEWithLogitsLoss(),
        ),
    ),
)


FIRST(
    "bfloat16-weights | MLP | 216",
    lambda: given(
        draw.table(),
        lambda x, y: Case(model=nets.mlp(12, 64, 64, 3).bfloat16(), data=(x.bfloat16(), y), loss=nn.CrossEntropyLoss()),
    ),
)


FIRST(
    "fresh-graph-network | GNN | 236",
    lambda: given(
        draw.communities(), lambda x, edges, y: Case((x, y), nets.GraphNet(edges, depth=3), nn.CrossEntropyLoss())
    ),
)


FIRST(
    "embedding-rows-that-no-one-asks-for | recommender | 237",
    lambda: Case(draw.ratings(64, users=40, items=30), nets.Recommender(users=2000, items=500), nn.MSELoss()),
)


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
    return Case(draw.table(), model, "cross_entropy")


class PointNet(nn.Module):  # A network of each point alone, a maximum over the points, a classifier.
    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Sequential(*nets.mlp(3, 32, 64), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, clouds: Tensor) -> Tensor:
        return self.head(self.points(clouds).amax(1))


@SECOND
def maximum_over_points() -> Case:
    """set | 313"""
    labels = torch.arange(48) % 3
    stretch = torch.ones(48, 3)
    stretch[torch.arange(48), labels] = 2.0
    clouds = F.normalize(torch.randn(48, 40, 3), dim=2) * stretch[:, None]
    model = PointNet()
    train(model, clouds, labels, F.cross_entropy, steps=50, optimizer=Adam(model.parameters(), lr=1e-3))
    return Case((clouds, labels), model, "cross_entropy")


@SECOND
def counts_with_a_logarithmic_link() -> Case:
    """regression | 316"""
    x = torch.randn(160, 6)
    counts = torch.poisson(torch.exp(0.6 * x[:, :1] - 0.4 * x[:, 1:2] * x[:, 2:3] + 0.5))
    model = nets.mlp(6, 32, 32, 1)
    train(model, x, counts, F.poisson_nll_loss, steps=60, optimizer=Adam(model.parameters(), lr=1e-3))
    return Case((x, counts), model, nn.PoissonNLLLoss())


class MeanAndSpread(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(*nets.mlp(8, 48, 48), nn.ReLU())
        self.mean, self.spread = nn.Linear(48, 1), nn.Linear(48, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x)
        return self.mean(hidden), F.softplus(self.spread(hidden)) + 1e-3


def gaussian_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    return F.gaussian_nll_loss(output[0], target, output[1])


@SECOND
def mean_and_variance_of_a_target() -> Case:
    """regression | 317"""
    x, y = draw.regression_table()
    model = MeanAndSpread()
    train(model, x, y, gaussian_loss, steps=40, optimizer=Adam(model.parameters(), lr=1e-3))
    return Case((x, y), model, gaussian_loss)


class ActorCritic(nn.Module):
    """PPO's network: orthogonal weights, a policy head of gain 0.01 and a value head of gain 1."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nets.mlp(8, 32, 32, 32, activation=nn.Tanh)
        self.policy, self.value = nn.Linear(32, 4), nn.Linear(32, 1)
        for module in self.trunk:
            if isinstance(module, nn.Linear):
                nn.init.orthogonal_(module.weight, gain=math.sqrt(2))
        nn.init.orthogonal_(self.policy.weight, gain=0.01)
        nn.init.orthogonal_(self.value.weight, gain=1.0)
        nn.init.zeros_(self.policy.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.trunk(x))
        return self.policy(hidden), self.value(hidden).squeeze(1)


@SECOND
def policy_head_of_small_gain() -> Case:
    """policy | 318"""
    observations, actions = torch.randn(128, 8), torch.randint(4, (128,))
    returns = observations[:, 0] + 0.3 * torch.randn(128)
    advantage = (returns - returns.mean()) / returns.std()

    def objective(output: tuple[Tensor, Tensor]) -> Tensor:
        chosen = F.log_softmax(output[0], dim=1)[torch.arange(128), actions]
        return -(chosen * advantage).mean() + 0.5 * F.mse_loss(output[1], returns)

    return Case(observations, ActorCritic(), objective=objective)


@SECOND
def network_in_bfloat16() -> Case:
    """mixed precision | 319"""
    x, y = draw.table()
    model = nets.mlp(12, 64, 64, 3)
    train(model, x, y, F.cross_entropy, steps=30)
    return Case(model=model.to(torch.bfloat16), data=(x.to(torch.bfloat16), y), loss="cross_entropy", train=False)


@SECOND
def one_hot_columns() -> Case:
    """tabular | 320"""
    categories = torch.randint(6, (160, 4))
    x = F.one_hot(categories, 6).flatten(1).float()
    return Case(
        (x, ((categories[:, 0] + categories[:, 1] * categories[:, 2]) % 3).long()),
        nets.mlp(24, 48, 48, 3),
        "cross_entropy",
        steps=40,
    )


class Experts(nn.Module):  # A soft mixture of four experts.
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nets.mlp(8, 24, 1) for _ in range(4))
        self.gate = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        answers = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (answers * self.gate(x).softmax(1)[:, None]).sum(-1)


SECOND("soft-mixture-of-experts | regression | 325", lambda: Case(draw.regression_table(), Experts(), "mse", steps=80))


SECOND(
    "classifier-that-has-learnt-its-batch-by-heart | tabular | 327",
    lambda: Case(draw.table(), nets.mlp(12, 64, 64, 3), "cross_entropy", steps=300),
)


class Spectrum(nn.Module):  # Random Fourier features that are fixed on purpose (a buffer), read by an MLP.
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 0.7 * torch.randn(8, 32))
        self.tower = nets.mlp(64, 48, 1)

    def forward(self, x: Tensor) -> Tensor:
        angles = x @ self.frequencies
        return self.tower(math.sqrt(2) * torch.cat([angles.sin(), angles.cos()], dim=1))


SECOND(
    "fixed-fourier-features | regression | 329",
    lambda: Case(model=Spectrum(), data=draw.regression_table(), loss="mse"),
)


SECOND(
    "fresh-classifier-of-a-table | tabular | 201",
    lambda: Case(model=nets.mlp(12, 64, 64, 3), data=draw.table(), loss="cross_entropy"),
)


@SECOND
def table_with_dropout_and_batchnorm_trained() -> Case:
    """tabular | 202"""
    x, y = draw.table(192)
    model = nn.Sequential(
        nn.Linear(12, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 3),
    )  # fmt: skip
    return Case((x, y), model, "cross_entropy", steps=120)


SECOND(
    "regression-with-gelu-trained-well | regression | 203",
    lambda: Case(draw.regression_table(), nets.mlp(8, 48, 48, 1, activation=nn.GELU), "mse", steps=300),
)


SECOND(
    "regression-with-an-adam-handed-over | regression | 204",
    lambda: given(
        nets.mlp(8, 48, 48, 1),
        lambda model: Case(draw.regression_table(), model, "mse", optimizer=partial(Adam, lr=1e-3)),
    ),
)


def train_whole(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    """Take steps of Adam on the whole batch."""
    optimizer = Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()


@SECOND
def graph_network_trained() -> Case:
    """GNN | 224"""
    x, edges, labels = draw.communities()
    model = nets.GraphNet(edges)
    train_whole(model, x, labels, 60)
    return Case((x, labels), model, "cross_entropy")


SECOND("recommender-trained | recommender | 225", lambda: Case(draw.ratings(), nets.Recommender(), "mse", steps=150))


@SECOND
def several_labels_with_a_sigmoid_and_plain_bce() -> Case:
    """multi-label | 233"""
    x = torch.randn(128, 10)
    y = (x[:, :6] * x[:, 1:7] > 0).float()
    model = nn.Sequential(*nets.mlp(10, 64, 64, 6), nn.Sigmoid())
    train(model, x, y, F.binary_cross_entropy, steps=60)
    return Case((x, y), model, nn.BCELoss())


@SECOND
def logistic_regression() -> Case:
    """tabular | 234"""
    x = torch.randn(128, 6)
    y = (x[:, :1] + 0.5 * x[:, 1:2] + 0.5 * torch.randn(128, 1) > 0).float()
    model = nn.Linear(6, 1)
    train(model, x, y, F.binary_cross_entropy_with_logits, steps=50)
    return Case((x, y), model, nn.BCEWithLogitsLoss())


THIRD(
    "wide-layers-for-a-table | tabular | 201",
    lambda: Case(model=nets.mlp(12, 128, 64, 3), data=draw.table(), loss="cross_entropy"),
)


THIRD(
    "table-trained-with-smooth-units | tabular | 202",
    lambda: Case(draw.table(), nets.mlp(12, 32, 32, 3, activation=nn.SiLU), "cross_entropy", steps=80),
)


THIRD(
    "fresh-regression-with-a-column-of-targets | regression | 204",
    lambda: Case(model=nets.mlp(8, 64, 64, 1), data=draw.regression_table(), loss="mse"),
)


THIRD(
    "mean-and-positive-variance-fresh | regression | 205",
    lambda: Case(model=rarer.MeanAndVariance(False), data=draw.regression_table(), loss=rarer.gaussian_loss),
)


THIRD(
    "logarithms-of-rates-for-a-poisson-loss | counts | 206",
    lambda: given(
        draw.regression_table(),
        lambda x, score: Case(
            (x, torch.poisson(torch.exp(0.5 * score.squeeze(1)))), rarer.Rates(False), nn.PoissonNLLLoss()
        ),
    ),
)


THIRD(
    "radial-units-of-a-fitting-width | regression | 207",
    lambda: Case(draw.regression_table(columns=4), rarer.RadialNet(1.5), "mse", steps=60),
)


@THIRD
def sigmoid_for_shares_between_zero_and_one() -> Case:
    """regression | 208"""
    x, y = draw.regression_table()
    model = nn.Sequential(*nets.mlp(8, 32, 32, 1), nn.Sigmoid())
    return Case((x, torch.sigmoid(y)), model, "mse")


@THIRD
def five_labels_trained_well() -> Case:
    """multi-label | 209"""
    x, _ = draw.table()
    y = (x[:, :5] + x[:, 5:10] > 0).float()
    model = nets.mlp(12, 48, 5)
    train(model, x, y, F.binary_cross_entropy_with_logits, steps=100)
    return Case((x, y), model, nn.BCEWithLogitsLoss())


THIRD(
    "four-soft-experts-fresh | mixture of experts | 210",
    lambda: Case(model=rarer.Mixture(), data=draw.table(), loss="cross_entropy"),
)


THIRD(
    "small-residual-steps-without-a-normalizer | residual MLP | 211",
    lambda: Case(model=rarer.DeepResidual(0.1), data=draw.table(), loss="cross_entropy"),
)


@THIRD
def huber_loss_with_an_optimizer_of_two_groups() -> Case:
    """tabular | 212"""
    model = nets.mlp(8, 32, 32, 1)
    weights = [p for p in model.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": weights, "weight_decay": 1e-2}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    return Case(draw.regression_table(), model, nn.HuberLoss(), optimizer=optimizer)


THIRD(
    "plain-linear-model-of-a-table | tabular | 213",
    lambda: Case(model=nn.Linear(12, 3), data=draw.table(), loss="cross_entropy"),
)


THIRD(
    "three-classes-in-unequal-parts | tabular | 214",
    lambda: given(
        draw.table(classes=6),
        lambda x, y: Case(
            model=nets.mlp(12, 32, 32, 3), data=(x, torch.tensor([0, 0, 0, 1, 1, 2])[y]), loss="cross_entropy"
        ),
    ),
)


@THIRD
def columns_of_unequal_spread_behind_a_batch_norm() -> Case:
    """tabular | 215"""
    x, y = draw.table()
    model = nn.Sequential(nn.BatchNorm1d(12), *nets.mlp(12, 32, 32, 3))
    return Case((x * torch.linspace(0.2, 20.0, 12), y), model, "cross_entropy")


THIRD(
    "a-hundred-steps-with-dropout-then-eval-mode | tabular | 216",
    lambda: Case(
        draw.table(),
        nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)),
        "cross_entropy",
        train=False,
        steps=100,
    ),
)


THIRD(
    "prototypes-trained-a-little | metric learning | 236",
    lambda: Case(draw.blob_images(), rarer.Prototypes(nn.Identity()), "cross_entropy", steps=40),
)


@THIRD
def three_rounds_over_a_graph_trained_a_little() -> Case:
    """GNN | 254"""
    x, edges, y = draw.communities()
    model = nets.GraphNet(edges, depth=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case((x, y), model, "cross_entropy")


THIRD(
    "factors-of-users-and-items-fresh | recommender | 255",
    lambda: Case(model=rarer.Factorisation(), data=draw.ratings(), loss="mse"),
)


THIRD(
    "tower-over-users-and-items-fresh | recommender | 256",
    lambda: Case(model=nets.Recommender(), data=draw.ratings(), loss="mse"),
)


THIRD(
    "convolutions-kept-in-bfloat16 | mixed precision | 258",
    lambda: given(
        draw.blob_images(),
        lambda x, y: Case(model=nets.ConvNet(norm=False).bfloat16(), data=(x.bfloat16(), y), loss="cross_entropy"),
    ),
)


class Recomputed(nn.Module):  # Recomputes its first stage in the backward, in the way that keeps the gradient.
    def __init__(self) -> None:
        super().__init__()
        self.stage1, self.stage2 = nets.mlp(12, 32, 32), nets.mlp(32, 32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.stage2(torch.relu(checkpoint(self.stage1, x, use_reentrant=False)))


THIRD(
    "first-stage-recomputed | tabular | 260", lambda: Case(model=Recomputed(), data=draw.table(), loss="cross_entropy")
)


@THIRD
def deep_set_of_points_with_a_maximum() -> Case:
    """sets | 263"""
    y = torch.arange(64) % 3
    return Case(((torch.randn(64, 20, 3) * (0.5 + F.one_hot(y, 3))[:, None]), y), rarer.Cloud(False), "cross_entropy")
