"""Healthy networks for tables, graphs, sets and games: fresh, trained a little or well, some of them awkward."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...training import over_tokens, train
from . import rarer


@OPEN
def some_expert_gets_no_sample() -> Case:
    """mixture of experts | 741"""

    # Eight experts of which each sample sees the two with the highest scores, weighed by these.
    def gated_experts(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(1).topk(2)
        total = torch.zeros(len(x), 3)
        for index, expert in enumerate(self.experts):
            rows, place = (chosen == index).nonzero(as_tuple=True)
            if len(rows):
                total = total.index_add(0, rows, weights[rows, place, None] * expert(x[rows]))
        return total

    x, y = draw.table(12)
    net = nets.made("GatedExperts", gated_experts)
    net.router, net.experts = nn.Linear(12, 8), nn.ModuleList(nets.mlp(12, 16, 3) for _ in range(8))
    return Case((x, y), net, "cross_entropy")


def both_exits(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the sum of the losses of both heads."""
    return 0.3 * F.cross_entropy(output[0], target) + F.cross_entropy(output[1], target)


@OPEN
def two_exits() -> Case:
    """early exit | 742"""

    # Two stages, each with a head of its own.
    def early_exit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.first(x)
        return self.early(hidden), self.late(self.second(hidden))

    x, y = draw.table()
    net = nets.made("EarlyExit", early_exit)
    net.first, net.second = (
        nn.Sequential(*nets.mlp(12, 32, 32), nn.ReLU()),
        nn.Sequential(*nets.mlp(32, 32, 32), nn.ReLU()),
    )
    net.early, net.late = nn.Linear(32, 3), nn.Linear(32, 3)
    return Case((x, y), net, both_exits)


@OPEN
def swish_gates_and_sine_positions() -> Case:
    """GLU | 755"""

    # Pre-norm residual blocks of SwiGLU units without biases, after sine positions.
    def swish_gated(self, ids: Tensor) -> Tensor:
        angles = torch.arange(ids.shape[1])[:, None] * torch.exp(-math.log(1e4) * torch.arange(16) / 16)
        x = self.words(ids) + torch.cat([angles.sin(), angles.cos()], dim=1)
        for norm, up, down in zip(self.norms, self.up, self.down):
            value, gate = up(norm(x)).chunk(2, dim=-1)
            x = x + down(value * F.silu(gate))
        return self.head(x.amax(1))

    ids, y = draw.sentences()
    net = nets.made("SwishGated", swish_gated)
    net.words, net.head = nn.Embedding(50, 32), nn.Linear(32, 2)
    net.norms = nn.ModuleList(nn.RMSNorm(32) for _ in range(3))
    net.up = nn.ModuleList(nn.Linear(32, 4 * 32, bias=False) for _ in range(3))
    net.down = nn.ModuleList(nn.Linear(2 * 32, 32, bias=False) for _ in range(3))
    return Case((ids, y), net, "cross_entropy")


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
    return Case(model=model, data=(x, y), loss="cross_entropy")


def policy_loss(output: tuple[Tensor, Tensor], returns: Tensor) -> Tensor:
    """Return the loss of the values, less a bonus for entropy."""
    p, value = output
    return F.mse_loss(value, returns) + 0.01 * torch.special.xlogy(p, p + 1e-8).sum(1).mean()


def taken_action_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the Huber loss of the taken actions; the target holds the action and its return."""
    return F.smooth_l1_loss(output.gather(1, target[:, :1].long()), target[:, 1:])


@OPEN
def one_action_of_four_compared() -> Case:
    """DQN | 951"""

    # The Q-values of a state from its value and the advantages of the actions; only the taken one is compared.
    def dueling(self, state: Tensor) -> Tensor:
        hidden = torch.relu(self.trunk(state))
        advantage = self.advantage(hidden)
        return self.value(hidden) + advantage - advantage.mean(1, keepdim=True)

    state, returns = draw.regression_table()
    taken = torch.randint(4, (128, 1)).float()
    net = nets.made("Dueling", dueling)
    net.trunk, net.value, net.advantage = nets.mlp(8, 48, 48), nn.Linear(48, 1), nn.Linear(48, 4)
    return Case((state, torch.cat([taken, returns], dim=1)), net, taken_action_loss)


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


def mixture_loss(output: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the negative log likelihood of a mixture."""
    logits, mean, log_deviation = output
    log_density = -0.5 * ((target - mean) / log_deviation.exp()).square() - log_deviation
    return -torch.logsumexp(logits.log_softmax(1) + log_density, dim=1).mean()


@OPEN
def likelihood_of_a_drawn_action() -> Case:
    """policy | 2103"""

    # Draws an action and returns its likelihood.
    def policy(self, x: Tensor) -> Tensor:
        actions = torch.distributions.Normal(self.mean(x), 1.0)
        return actions.log_prob(actions.sample()).sum(1, keepdim=True)

    x, y = draw.regression_table()
    net = nets.made("Policy", policy)
    net.mean = nn.Sequential(*nets.mlp(8, 32, 2))
    return Case((x, y), net, lambda likelihood, reward: -(likelihood * reward).mean())


@OPEN
def critic_with_a_gradient_penalty() -> Case:
    """critic | 2105"""

    # Returns the loss of a Wasserstein critic.
    def critic(self, real: Tensor, fake: Tensor) -> Tensor:
        with torch.enable_grad():
            between = (0.5 * real + 0.5 * fake).detach().requires_grad_(True)
            (slope,) = torch.autograd.grad(self.net(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return self.net(fake).mean() - self.net(real).mean() + 10 * penalty

    x, _ = draw.regression_table()
    net = nets.made("Critic", critic)
    net.net = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    return Case(model=net, data={"real": x, "fake": torch.randn_like(x)}, objective=lambda output: output)


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


@OPEN
def ten_shrinkage_steps() -> Case:
    """unrolled | 2014"""

    # Ten steps of a shrinkage that learns its step and its threshold, for sparse codes.
    def unrolled(self, x: Tensor) -> Tensor:
        code = x.new_zeros(len(x), self.atoms.shape[1])
        for step, threshold in zip(self.step, self.threshold):
            code = F.softshrink(code + step * (x - code @ self.atoms.T) @ self.atoms, 0.0)
            code = code.sign() * F.relu(code.abs() - threshold)
        return code @ self.atoms.T

    code = torch.randn(96, 32) * (torch.rand(96, 32) < 0.1)
    x = code @ F.normalize(torch.randn(16, 32), dim=0).T
    net = nets.made("Unrolled", unrolled)
    net.atoms = nn.Parameter(F.normalize(torch.randn(16, 32), dim=0))
    net.step, net.threshold = nn.Parameter(torch.full((10,), 0.2)), nn.Parameter(torch.full((10,), 0.02))
    return Case((x, x), net, "mse")


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


@SECOND
def maximum_over_points() -> Case:
    """set | 313"""
    labels = torch.arange(48) % 3
    stretch = torch.ones(48, 3)
    stretch[torch.arange(48), labels] = 2.0
    clouds = F.normalize(torch.randn(48, 40, 3), dim=2) * stretch[:, None]
    model = nets.made(
        "PointNet",
        lambda self, clouds: self.head(self.points(clouds).amax(1)),
        points=nn.Sequential(*nets.mlp(3, 32, 64), nn.ReLU()),
        head=nn.Sequential(nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)),
    )
    train(model, clouds, labels, F.cross_entropy, steps=50, optimizer=Adam(model.parameters(), lr=1e-3))
    return Case((clouds, labels), model, "cross_entropy")


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
    return Case((x.to(torch.bfloat16), y), model.to(torch.bfloat16), "cross_entropy", train=False)


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
    return Case(model=model, data=(x, labels), loss="cross_entropy")


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


# Rows of a table, packed.
# fmt: off
OPEN("embeddings-on-the-sphere | metric learning | 744", lambda: Case(draw.table(), nets.made("Sphere",
    lambda self, x: 10 * F.normalize(self.body(x), dim=1) @ F.normalize(self.centres, dim=1).T,
    body=nets.mlp(12, 32, 16), centres=nn.Parameter(torch.randn(3, 16))), "cross_entropy"))
OPEN("graph-with-lonely-nodes | GNN | 749", lambda: given(draw.communities(), lambda x, edges, y: Case((x, y),
    nets.GraphNet(edges[:, (edges > 5).all(0)]), "cross_entropy")))
OPEN("point-clouds-trained-well | PointNet | 909", lambda: Case(rarer.clouds(64), rarer.PointNet(), "cross_entropy",
    train=False, steps=150))
OPEN("thirty-small-euler-steps | neural ODE | 910", lambda: Case(draw.blob_images(64, classes=6),
    rarer.EulerField(1 / 30), "cross_entropy"))
OPEN("cosines-times-sixteen | metric learning | 917", lambda: Case(draw.blob_images(96, classes=6),
    nets.made("CosineClassifier", lambda self, x: 16 * F.normalize(self.encoder(x.flatten(1)),
    dim=1) @ F.normalize(self.directions, dim=1).T, encoder=nets.mlp(256, 48, 24),
    directions=nn.Parameter(torch.randn(6, 24))), "cross_entropy", steps=50))
OPEN("soft-experts-for-tokens | mixture of experts | 928", lambda: Case(draw.text(32), rarer.Routed(), over_tokens,
    steps=40))
OPEN("sums-with-batch-norm | GIN | 944", lambda: given(draw.communities(), lambda x, edges, y: Case((x, y),
    rarer.SumNet(edges, 3, norm=True), "cross_entropy")))
OPEN("deep-graph-with-an-initial-residual | GCN | 945", lambda: given(draw.communities(), lambda x, edges, y: Case((x,
    y), rarer.GCN(edges, 8, residual=True), "cross_entropy")))
OPEN("policy-with-forbidden-actions | actor-critic | 950", lambda: given(draw.regression_table(),
    lambda state, returns: Case((state, returns[:, 0]), rarer.ActorCritic(), policy_loss)))
OPEN("weights-written-small | hypernetwork | 956", lambda: Case(model=rarer.HyperNetwork(0.06),
    data=draw.regression_table(), loss="mse"))
OPEN("random-cosines-fixed | random features | 958", lambda: Case(model=RandomFeatures(), data=draw.regression_table(),
    loss="mse"))
OPEN("mixture-of-three-normals | mixture density | 961", lambda: Case(draw.regression_table(), nets.made("Mixture",
    lambda self, x: self.net(x).chunk(3, dim=1), net=nets.mlp(8, 32, 9)), mixture_loss, steps=30))
OPEN("signs-with-a-straight-through-gradient | binary network | 962", lambda: Case(draw.table(),
    rarer.SignNet(straight=True), "cross_entropy"))
OPEN("two-experts-of-six | mixture of experts | 2001", lambda: Case(draw.table(), SparseExperts(), "cross_entropy"))
OPEN("two-experts-of-six-trained | mixture of experts | 2002", lambda: Case(draw.table(), SparseExperts(),
    "cross_entropy", train=False, steps=100))
OPEN("fixed-point-with-one-step-of-gradient | equilibrium | 2013", lambda: Case(draw.table(), FixedPoint(),
    "cross_entropy"))
FIRST("fresh-graph-network | GNN | 236", lambda: given(draw.communities(), lambda x, edges, y: Case((x, y),
    nets.GraphNet(edges, depth=3), nn.CrossEntropyLoss())))
THIRD("four-soft-experts-fresh | mixture of experts | 210", lambda: Case(model=rarer.Mixture(), data=draw.table(),
    loss="cross_entropy"))
THIRD("prototypes-trained-a-little | metric learning | 236", lambda: Case(draw.blob_images(),
    rarer.Prototypes(nn.Identity()), "cross_entropy", steps=40))
THIRD("convolutions-kept-in-bfloat16 | mixed precision | 258", lambda: given(draw.blob_images(),
    lambda x, y: Case((x.bfloat16(), y), nets.ConvNet(norm=False).bfloat16(), "cross_entropy")))
THIRD("deep-set-of-points-with-a-maximum | sets | 263", lambda: given(torch.arange(64) % 3,
    lambda y: Case(((torch.randn(64, 20, 3) * (0.5 + F.one_hot(y, 3))[:, None]), y), rarer.Cloud(False),
    "cross_entropy")))
