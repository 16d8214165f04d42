"""The open half, more faults: tables, recommenders, graphs, codes and control."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from ..parts import (
    VAE,
    as_pixels,
    blob_images,
    communities,
    evidence_loss,
    explained_variance,
    image_pairs,
    mlp,
    ratings,
    regression_table,
    table,
    train,
)

FAULTS: list[Fault] = []
plant = partial(fault, FAULTS)


# ------------------------------------------------------------------------------------------ recommenders and categories


def clicks(count: int = 192, fields: int = 6, values: int = 10) -> tuple[Tensor, Tensor]:
    """Return categories in several fields and whether something was clicked, from products of hidden vectors."""
    ids = torch.randint(values, (count, fields))
    hidden = torch.randn(fields, values, 3)
    chosen = hidden[torch.arange(fields), ids]
    score = (chosen[:, 0] * chosen[:, 1]).sum(1) + (chosen[:, 2] * chosen[:, 3]).sum(1)
    return ids, (score > score.median()).float()


class DeepFM(nn.Module):
    """A factorisation machine beside an MLP, on the same embeddings (Guo et al. 2017)."""

    def __init__(self, scale: float, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.ModuleList(nn.Embedding(10, width) for _ in range(6))
        for table_of_field in self.embed:
            nn.init.normal_(table_of_field.weight, std=scale)
        self.deep = mlp(6 * width, 32, 1)

    def forward(self, ids: Tensor) -> Tensor:
        vectors = torch.stack([embed(ids[:, field]) for field, embed in enumerate(self.embed)], dim=1)
        pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1)
        return pairs + self.deep(vectors.flatten(1)).squeeze(1)


@plant(
    "DeepFM",
    layers="embed " + " ".join(f"embed.{i}" for i in range(6)),
    causes="exploding-signal branch-dominates layer-scale-stands-out exploding-gradient",
    remedies="rescale-layer initialise scale-branch",
)
def factorisation_machine_at_ten(broken: bool) -> Case:
    """Embeddings drawn at 10 enter the pairs squared: logits of thousands."""
    torch.manual_seed(881)
    ids, y = clicks()
    return Case(
        model=DeepFM(10.0 if broken else 0.1),
        data=(ids, y),
        loss=nn.BCEWithLogitsLoss(),
        judge=lambda output: -F.binary_cross_entropy_with_logits(output, y).item(),
    )


class DLRM(nn.Module):
    """A bottom MLP for numbers, embeddings for categories, their products, a top MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = mlp(5, 32, 8)
        self.embeddings = nn.ModuleDict({f"field{i}": nn.Embedding(10, 8) for i in range(3)})
        self.top = mlp(8 + 6, 32, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        numbers = self.bottom(dense)
        vectors = torch.stack([numbers, *(e(sparse[:, i]) for i, e in enumerate(self.embeddings.values()))], dim=1)
        first, second = torch.triu_indices(4, 4, 1)
        pairs = torch.einsum("bid,bjd->bij", vectors, vectors)[:, first, second]
        return self.top(torch.cat([numbers, pairs], dim=1)).squeeze(1)


@plant("DLRM", causes="inputs-not-scaled exploding-signal one-input-column-dominates", remedies="scale-inputs")
def counts_without_a_logarithm(broken: bool) -> Case:
    """Counts over six decades, as they come, into the bottom MLP."""
    torch.manual_seed(882)
    exponent = torch.randn(192, 5)
    ids, _ = clicks()
    score = exponent[:, 0] + exponent[:, 1] * (ids[:, 0] - 4.5) / 3
    y = (score > score.median()).float()
    dense = (10 ** (3 + 1.2 * exponent)).round() if broken else exponent
    return Case(
        model=DLRM(),
        data=({"dense": dense, "sparse": ids[:, :3]}, y),
        loss=nn.BCEWithLogitsLoss(),
        judge=lambda output: ((output > 0) == (y > 0.5)).float().mean().item(),
    )


@plant("MLP", causes="inputs-not-scaled one-input-column-dominates", remedies="scale-inputs clean-data check-data")
def missing_values_as_minus_9999(broken: bool) -> Case:
    """-9999 stands for a missing value in four columns."""
    torch.manual_seed(883)
    x, y = regression_table()
    missing = (torch.rand(128, 8) < 0.1) & (torch.arange(8) >= 4)
    model = nn.Sequential(nn.Linear(8, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
    return Case(model=model, data=(x.masked_fill(missing, -9999.0 if broken else 0.0), y), loss="mse")


@plant("MLP", causes="inputs-not-scaled one-input-column-dominates exploding-signal", remedies="scale-inputs")
def postcodes_as_numbers(broken: bool) -> Case:
    """Postcodes and shop numbers among the columns of numbers."""
    torch.manual_seed(884)
    x, y = table()
    codes = torch.randint(10_000, 99_999, (128, 2)).float()
    x = torch.cat([x, codes if broken else (codes - 55_000) / 26_000], dim=1)
    model = nn.Sequential(nn.Linear(14, 32), nn.ELU(), nn.Linear(32, 32), nn.ELU(), nn.Linear(32, 3))
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant("MLP", causes="not-finite-data not-finite", remedies="clean-data")
def ratio_with_a_zero_below(broken: bool) -> Case:
    """A column of ratios made in the data frame: where the denominator is zero it is infinite."""
    torch.manual_seed(885)
    x, y = table()
    x[:, 7] = x[:, 7].abs()
    x[::17, 7] = torch.inf if broken else 0.0
    return Case(model=mlp(12, 32, 3), data=(x, y), loss="cross_entropy")


class SkippedNorm(nn.Module):
    """A BatchNorm of the inputs whose result may be thrown away."""

    def __init__(self, thrown_away: bool) -> None:
        super().__init__()
        self.thrown_away, self.norm, self.net = thrown_away, nn.BatchNorm1d(12), mlp(12, 32, 32, 3)

    def forward(self, x: Tensor) -> Tensor:
        normalised = self.norm(x)
        return self.net(x if self.thrown_away else normalised)


@plant("MLP", causes="unused-parameter inputs-not-scaled", remedies="use-parameter scale-inputs")
def normalised_inputs_thrown_away(broken: bool) -> Case:
    """`normalised = norm(x)`, and the next line goes on with x."""
    torch.manual_seed(886)
    x, y = table()
    return Case(model=SkippedNorm(broken), data=(500 + 200 * x, y), loss="cross_entropy")


# ------------------------------------------------------------------------------------------------------------- the loss


@plant("SVM", causes="targets-out-of-range loss-does-not-fit loss-gradient-zero", remedies="fix-targets change-loss")
def hinge_with_zeros(broken: bool) -> Case:
    """The hinge loss wants labels of -1 and 1; for a label of 0 it has no gradient."""
    torch.manual_seed(887)
    x, y = table(classes=2)
    target = (y.float() if broken else 2.0 * y - 1)[:, None]
    return Case(
        model=mlp(12, 32, 32, 1),
        data=(x, target),
        loss=lambda output, target: F.relu(1 - output * target).mean(),
        judge=lambda output: ((output[:, 0] > 0) == (y > 0)).float().mean().item(),
    )


def several_labels(count: int = 128, kinds: int = 5) -> tuple[Tensor, Tensor]:
    """Return columns and for each sample which of several kinds it has, about two of five."""
    x = torch.randn(count, 12)
    return x, ((x[:, :kinds] * x[:, kinds : 2 * kinds] + 0.5 * x[:, 1 : kinds + 1]) > 0.2).float()


@plant(
    "MLP",
    layers="",
    causes="loss-does-not-fit activation-before-loss output-range-too-small",
    remedies="change-output-activation change-loss remove-final-activation",
)
def softmax_for_several_labels(broken: bool) -> Case:
    """Softmax with BCELoss where a sample may have several labels: the outputs share a sum of 1."""
    torch.manual_seed(888)
    x, y = several_labels()
    model = nn.Sequential(*mlp(12, 64, 64, 5), nn.Softmax(1) if broken else nn.Sigmoid())
    return Case(
        model=model,
        data=(x, y),
        loss=nn.BCELoss(),
        judge=lambda output: -F.binary_cross_entropy(output, y).item(),
    )


@plant("MLP", causes="loss-does-not-fit", remedies="change-loss")
def cross_entropy_for_several_labels(broken: bool) -> Case:
    """Cross entropy accepts rows of several ones as if they were probabilities."""
    torch.manual_seed(889)
    x, y = several_labels()
    return Case(
        model=mlp(12, 64, 64, 5),
        data=(x, y),
        loss=nn.CrossEntropyLoss() if broken else nn.BCEWithLogitsLoss(),
        judge=lambda output: -F.binary_cross_entropy_with_logits(output, y).item(),
    )


@plant("MLP", causes="labels-wrong", remedies="check-labels")
def labels_of_the_row_before(broken: bool) -> Case:
    """A header line was skipped in one file and not in the other."""
    torch.manual_seed(890)
    x, y = table(classes=4)
    model = mlp(12, 64, 64, 4)
    train(model, x, y, F.cross_entropy, steps=200)
    return Case(model=model, data=(x, y.roll(1) if broken else y), loss="cross_entropy", train=False)


@plant(
    "MLP",
    causes="exploding-gradient loss-does-not-fit targets-wrong-scale",
    remedies="change-loss lower-learning-rate clip-gradients scale-targets",
)
def sum_over_a_large_batch(broken: bool) -> Case:
    """reduction="sum" with thousands of samples: steps thousands of times too long."""
    torch.manual_seed(891)
    x, y = regression_table(4096)
    return Case(model=mlp(8, 32, 1), data=(x, y), loss=nn.MSELoss(reduction="sum" if broken else "mean"))


@plant("two tasks", causes="targets-wrong-scale", remedies="scale-targets")
def one_task_in_euros(broken: bool) -> Case:
    """Two outputs, one of them in units of thousands: its squares drown the other."""
    torch.manual_seed(892)
    x, first = regression_table()
    second = (x[:, 4:5] * x[:, 5:6]) * (5000.0 if broken else 1.0)
    return Case(
        model=mlp(8, 64, 64, 2),
        data=(x, torch.cat([first, second], dim=1)),
        loss="mse",
        judge=lambda output: (1 - (output[:, :1] - first).square().mean() / first.var()).item(),
    )


@plant(
    "recommender",
    causes="loss-gradient-zero no-gradient",
    remedies="change-loss keep-gradient",
)
def stars_rounded_in_the_loss(broken: bool) -> Case:
    """The error of rounded stars, as it is reported, used as the loss."""
    torch.manual_seed(893)
    x, y = regression_table()
    stars = 3 + y

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(output.round() if broken else output, target)

    return Case(model=mlp(8, 32, 1), data=(x, stars), loss=loss)


@plant(
    "counts",
    causes="not-finite loss-does-not-fit activation-before-loss gradient-not-finite",
    remedies="change-loss guard-domain change-output-activation",
)
def rates_that_may_be_negative(broken: bool) -> Case:
    """PoissonNLLLoss(log_input=False) on a linear output: the logarithm of a negative rate."""
    torch.manual_seed(894)
    x, _ = regression_table()
    counts = torch.poisson(torch.exp(0.5 + 0.6 * x[:, :1]))
    return Case(
        model=mlp(8, 32, 1),
        data=(x, counts),
        loss=nn.PoissonNLLLoss(log_input=not broken),
        judge=lambda output: -F.poisson_nll_loss(output, counts).item(),
    )


def cox(output: Tensor, target: Tensor) -> Tensor:
    """Return the negative partial likelihood of Cox's model, written with exp and log; samples come by falling time."""
    return -(output - torch.log(torch.cumsum(torch.exp(output), dim=0))).mean()


@plant(
    "survival",
    causes="not-finite inputs-not-scaled exploding-signal gradient-not-finite",
    remedies="scale-inputs guard-domain",
)
def hazards_of_raw_columns(broken: bool) -> Case:
    """Raw laboratory values: the exponential of the hazard overflows."""
    torch.manual_seed(895)
    x, y = regression_table()
    order = y[:, 0].argsort()
    x, y = x[order], y[order]
    return Case(
        model=mlp(8, 32, 1),
        data=(300 + 250 * x if broken else x, y),
        loss=cox,
        judge=lambda output: -cox(output, y).item(),
    )


@plant(
    "survival",
    causes="gradient-not-finite not-finite",
    remedies="guard-domain",
)
def where_does_not_guard_the_gradient(broken: bool) -> Case:
    """where(x > 0, sqrt(x), 0): the value is guarded, the gradient of the other branch is not."""
    torch.manual_seed(896)
    x, y = regression_table()

    class RootFeatures(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x)
            inner = hidden if broken else torch.where(hidden > 0.01, hidden, 0.01)
            return self.second(torch.where(hidden > 0.01, torch.sqrt(inner), 0.0))

    return Case(model=RootFeatures(), data=(x, y), loss="mse")


# --------------------------------------------------------------------------------------------------------------- graphs


class GAT(nn.Module):
    """Two layers of graph attention over edges; the weights sum to 1 per node, or over all edges by mistake."""

    def __init__(self, edges: Tensor, per_node: bool, width: int = 16) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        self.per_node = per_node
        self.project = nn.ModuleList([nn.Linear(8, width), nn.Linear(width, 3)])
        self.score = nn.ModuleList([nn.Linear(2 * width, 1), nn.Linear(6, 1)])

    def attend(self, x: Tensor, score: nn.Module) -> Tensor:
        """Return the weighted sum over the neighbours of each node."""
        source, target = self.edges
        energy = F.leaky_relu(score(torch.cat([x[source], x[target]], dim=1)), 0.2)
        weight = (energy - energy.max()).exp()
        total = torch.zeros(len(x), 1).index_add(0, target, weight)
        weight = weight / (total[target] + 1e-9 if self.per_node else weight.sum())
        return torch.zeros_like(x).index_add(0, target, weight * x[source])

    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.attend(self.project[0](x), self.score[0]))
        return self.attend(self.project[1](x), self.score[1])


@plant(
    "GAT",
    layers="",
    causes="normalizer-wrong-axis vanishing-signal output-constant vanishing-gradient samples-mixed",
    remedies="fix-axis rescale-layer",
)
def attention_over_all_edges(broken: bool) -> Case:
    """softmax over every edge of the graph instead of the edges of each node."""
    torch.manual_seed(897)
    x, edges, y = communities()
    return Case(
        model=GAT(edges, not broken),
        data=(x, y),
        loss="cross_entropy",
        judge=lambda output: (output.argmax(1) == y).float().mean().item(),
    )


class SumNet(nn.Module):
    """A GIN: sums over neighbours and a small MLP, several times; with BatchNorm or without."""

    def __init__(self, edges: Tensor, depth: int, norm: bool, width: int = 24) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        self.layers = nn.ModuleList(mlp(8 if i == 0 else width, width, width) for i in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) if norm else nn.Identity() for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        source, target = self.edges
        for layer, norm in zip(self.layers, self.norms):
            x = F.relu(norm(layer(x + torch.zeros_like(x).index_add(0, target, x[source]))))
        return self.head(x)


def judge_nodes(y: Tensor) -> Callable[[Tensor], float]:
    """Return a judge: how many nodes are put into their class, 0 where outputs are not finite."""
    return lambda output: (output.argmax(1) == y).float().mean().item() if output.isfinite().all() else 0.0


@plant(
    "GIN",
    layers="head " + " ".join(f"layers.{i} layers.{i}.0 layers.{i}.2" for i in range(5)),
    causes="exploding-signal exploding-gradient",
    remedies="add-normalizer rescale-layer initialise",
)
def sums_over_many_neighbours(broken: bool) -> Case:
    """Sums over eight neighbours in five layers without a normalizer."""
    torch.manual_seed(898)
    x, edges, y = communities()
    return Case(model=SumNet(edges, 5, norm=not broken), data=(x, y), loss="cross_entropy", judge=judge_nodes(y))


class GCN(nn.Module):
    """Means over the neighbours and the node itself, many times, with an initial residual or without."""

    def __init__(self, edges: Tensor, depth: int, residual: bool) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        self.residual, self.first, self.head = residual, nn.Linear(8, 16), nn.Linear(16, 3)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        source, target = self.edges
        start = x = self.first(x)
        count = 1 + torch.zeros(len(x), 1).index_add(0, target, torch.ones(len(target), 1))
        for layer in self.layers:
            mean = (x + torch.zeros_like(x).index_add(0, target, x[source])) / count
            x = torch.tanh(layer(mean) + (start if self.residual else 0.0))
        return self.head(x)


@plant(
    "GCN",
    layers="head first " + " ".join(f"layers.{i}" for i in range(16)),
    causes="output-constant vanishing-signal vanishing-gradient",
    remedies="add-skip add-normalizer initialise",
)
def sixteen_averages_over_neighbours(broken: bool) -> Case:
    """Sixteen means over neighbours make all nodes alike (over-smoothing)."""
    torch.manual_seed(899)
    x, edges, y = communities()
    return Case(model=GCN(edges, 16, not broken), data=(x, y), loss="cross_entropy", judge=judge_nodes(y))


@plant("GIN", causes="not-finite-data not-finite", remedies="clean-data")
def one_node_without_features(broken: bool) -> Case:
    """The features of one node are missing; the sums carry the NaN to all others."""
    torch.manual_seed(900)
    x, edges, y = communities()
    if broken:
        x[17, 3] = torch.nan
    return Case(model=SumNet(edges, 2, norm=True), data=(x, y), loss="cross_entropy", judge=judge_nodes(y))


# -------------------------------------------------------------------------------------------------- codes and densities


class Quantised(nn.Module):
    """A VQ-VAE: the code is replaced by the nearest of 16 vectors, with a straight-through gradient or without."""

    def __init__(self, straight: bool) -> None:
        super().__init__()
        self.straight, self.encoder, self.decoder = straight, mlp(256, 48, 24), mlp(24, 48, 256)
        self.codebook = nn.Parameter(torch.randn(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        code = self.encoder(x).view(-1, 6, 4)
        nearest = torch.cdist(code, self.codebook.expand(len(x), -1, -1)).argmin(-1)
        chosen = self.codebook[nearest]
        return self.decoder((code + chosen - code.detach() if self.straight else chosen).flatten(1))


@plant("VQ-VAE", layers="encoder encoder.0 encoder.2", causes="no-gradient unused-parameter", remedies="keep-gradient")
def nearest_vector_without_straight_through(broken: bool) -> Case:
    """The nearest vector of the codebook is decoded; the encoder gets no gradient."""
    torch.manual_seed(1001)
    x = blob_images(192, classes=8)[0].flatten(1)
    return Case(model=Quantised(not broken), data=(x, x), loss="mse")


@plant(
    "VAE",
    layers="log_variance log_variance.bias",
    causes="exploding-signal branch-dominates exploding-gradient layer-scale-stands-out",
    remedies="reset-bias initialise rescale-layer scale-branch",
)
def noise_of_the_code_too_large(broken: bool) -> Case:
    """The head of the log variance starts at 12: a noise of exp(6)."""
    torch.manual_seed(1002)
    x = as_pixels(blob_images()[0]).flatten(1)
    model = VAE()
    nn.init.constant_(model.log_variance.bias, 12.0 if broken else 0.0)
    return Case(model=model, data=(x, x), loss=evidence_loss, judge=lambda output: -evidence_loss(output, x).item())


class Coupling(nn.Module):
    """Affine coupling layers of a normalizing flow; the logarithms of the scales may be bounded by tanh."""

    def __init__(self, bounded: bool, depth: int = 4, gain: float = 1.0) -> None:
        super().__init__()
        self.bounded = bounded
        self.nets = nn.ModuleList(mlp(4, 32, 8) for _ in range(depth))
        for net in self.nets:
            nn.init.normal_(net[-1].weight, std=gain)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        volume = torch.zeros(len(x))
        for net in self.nets:
            fixed, moved = x.chunk(2, dim=1)
            log_scale, shift = net(fixed).chunk(2, dim=1)
            log_scale = torch.tanh(log_scale) if self.bounded else log_scale
            x = torch.cat([moved * log_scale.exp() + shift, fixed], dim=1)
            volume = volume + log_scale.sum(1)
        return x, volume


def flow_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the negative log likelihood of a flow to a standard normal, up to a constant."""
    code, volume = output
    return (0.5 * code.square().sum(1) - volume).mean()


@plant(
    "flow",
    layers="nets " + " ".join(f"nets.{i} nets.{i}.2 nets.{i}.0" for i in range(4)),
    causes="exploding-signal exploding-gradient not-finite layer-scale-stands-out gradient-not-finite",
    remedies="initialise rescale-layer guard-domain lower-learning-rate clip-gradients change-activation",
)
def unbounded_scales_of_a_flow(broken: bool) -> Case:
    """exp of the scales without a bound, and last layers drawn at 1 instead of near 0."""
    torch.manual_seed(1003)
    x = torch.randn(128, 8) @ torch.randn(8, 8) / 3
    model = Coupling(bounded=not broken, gain=1.0 if broken else 0.01)
    return Case(model=model, data=(x, x), loss=flow_loss, judge=lambda output: -flow_loss(output, x).item())


# ------------------------------------------------------------------------------------------------- pairs and similarity


class Towers(nn.Module):
    """Two towers on the sphere and a learned scale of their cosines, as in CLIP; returns the logits."""

    def __init__(self, log_scale: float, by_item: bool = False) -> None:
        super().__init__()
        self.by_item = by_item
        self.image, self.caption = mlp(128, 48, 16), mlp(128, 48, 16)
        self.log_scale = nn.Parameter(torch.tensor(log_scale))

    def forward(self, pairs: Tensor) -> Tensor:
        image, caption = (
            F.normalize(tower(half), dim=1) for tower, half in zip((self.image, self.caption), pairs.chunk(2, dim=1))
        )
        scale = torch.tensor(self.log_scale.item()) if self.by_item else self.log_scale
        return scale.exp() * image @ caption.T


def halves() -> tuple[Tensor, Tensor]:
    """Return images as upper and lower halves, and the number of each one's partner."""
    return blob_images(64, classes=16)[0].flatten(1), torch.arange(64)


def partner_likelihood(output: Tensor) -> float:
    """Return the mean log probability of the right partner."""
    return -F.cross_entropy(output, torch.arange(len(output))).item()


@plant(
    "CLIP",
    layers="log_scale",
    causes="exploding-signal layer-scale-stands-out exploding-gradient saturated-units",
    remedies="rescale-layer initialise scale-outputs",
)
def scale_not_its_logarithm(broken: bool) -> Case:
    """The scale starts at log(1 / 0.07); here at 1 / 0.07, and forward takes the exponential."""
    torch.manual_seed(1004)
    log_scale = 1 / 0.07 if broken else 2.66
    return Case(model=Towers(log_scale), data=halves(), loss="cross_entropy", judge=partner_likelihood)


@plant(
    "CLIP",
    layers="log_scale",
    causes="no-gradient unused-parameter output-range-too-small",
    remedies="keep-gradient use-parameter scale-outputs",
)
def temperature_by_item(broken: bool) -> Case:
    """self.log_scale.item() takes the learned temperature out of the graph, where it stays at 0."""
    torch.manual_seed(1005)
    model = Towers(0.0, by_item=broken)
    return Case(model=model, data=halves(), loss="cross_entropy", judge=partner_likelihood)


class CosinePairs(nn.Module):
    """The cosine between two embeddings, times a factor, as the logit of being of one class."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.encoder = factor, mlp(256, 64, 16)
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, pairs: Tensor) -> Tensor:
        first, second = (self.encoder(image.flatten(1)) for image in pairs.unbind(1))
        return self.factor * F.cosine_similarity(first, second) + self.shift


@plant(
    "Siamese",
    causes="output-range-too-small loss-does-not-fit activation-before-loss",
    remedies="scale-outputs change-loss",
)
def cosine_as_a_logit(broken: bool) -> Case:
    """A cosine handed to BCEWithLogitsLoss: probabilities between 0.27 and 0.73."""
    torch.manual_seed(1006)
    x, y = image_pairs()
    return Case(
        model=CosinePairs(1.0 if broken else 10.0),
        data=(x, y),
        loss=nn.BCEWithLogitsLoss(),
        judge=lambda output: -F.binary_cross_entropy_with_logits(output, y).item(),
    )


@plant("angles", causes="gradient-not-finite not-finite", remedies="guard-domain")
def angle_of_equal_directions(broken: bool) -> Case:
    """acos of a cosine that reaches 1: its slope is infinite."""
    torch.manual_seed(1007)
    x = torch.randn(96, 6)
    x[::12, 3:] = x[::12, :3]
    angle = torch.acos(F.cosine_similarity(x[:, :3], x[:, 3:]).clamp(-1, 1))

    class Angles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = mlp(3, 32, 8), nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            first, second = self.embed(x[:, :3]), self.embed(x[:, 3:])
            bound = 1.0 if broken else 1 - 1e-4
            cosine = (first * second).sum(1) / (first.norm(dim=1) * second.norm(dim=1))
            return self.head(torch.acos(cosine.clamp(-bound, bound))[:, None])

    return Case(model=Angles(), data=(x, angle[:, None]), loss="mse")


# -------------------------------------------------------------------------------------------------------------- control


class ActorCritic(nn.Module):
    """Probabilities of actions (some forbidden) and the value of the state."""

    def __init__(self, flat_value: bool = True) -> None:
        super().__init__()
        self.flat_value, self.trunk = flat_value, nn.Sequential(nn.Linear(8, 48), nn.Tanh())
        self.actor, self.critic = nn.Linear(48, 4), nn.Linear(48, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(state)
        logits = self.actor(hidden).masked_fill(state[:, :4] < -1.5, -torch.inf)
        value = self.critic(hidden)
        return logits.softmax(1), value.squeeze(1) if self.flat_value else value


@plant(
    "actor-critic",
    causes="not-finite gradient-not-finite",
    remedies="guard-domain change-output-activation",
)
def entropy_of_forbidden_actions(broken: bool) -> Case:
    """p * log(p) for actions whose probability is exactly zero."""
    torch.manual_seed(1008)
    state, returns = regression_table()

    def loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        p, value = output
        entropy = -(p * torch.log(p if broken else p + 1e-8)).sum(1).mean()
        return F.mse_loss(value, target) - 0.01 * entropy

    return Case(
        model=ActorCritic(),
        data=(state, returns[:, 0]),
        loss=loss,
        judge=lambda output: explained_variance(returns[:, 0])(output[1]),
    )


@plant("actor-critic", causes="shapes-broadcast", remedies="match-shapes")
def values_against_returns(broken: bool) -> Case:
    """Values (N, 1) minus returns (N,): a table of N x N advantages."""
    torch.manual_seed(1009)
    state, returns = regression_table()
    return Case(
        model=ActorCritic(flat_value=not broken),
        data=(state, returns[:, 0]),
        loss=lambda output, target: (target - output[1]).square().mean(),
        judge=lambda output: explained_variance(returns[:, 0])(output[1].flatten()),
    )


@plant(
    "actor-critic",
    layers="",
    causes="output-range-too-small targets-out-of-range activation-before-loss targets-wrong-scale",
    remedies="remove-final-activation scale-targets fix-targets scale-outputs",
)
def actions_not_multiplied_by_their_range(broken: bool) -> Case:
    """tanh at the end of a policy whose actions reach from -4 to 4; the factor was left out."""
    torch.manual_seed(1010)
    state, wanted = regression_table()

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(8, 64, 1)

        def forward(self, state: Tensor) -> Tensor:
            return torch.tanh(self.net(state)) * (1.0 if broken else 4.0)

    return Case(model=Policy(), data=(state, (2 * wanted).clamp(-4, 4)), loss="mse")


@plant(
    "DQN",
    layers="0 2 4 0.weight 2.weight 4.weight",
    causes="constant-initialisation rank-one-weights",
    remedies="initialise",
)
def constant_weights_in_a_dqn(broken: bool) -> Case:
    """nn.init.constant_(weight, 0.1) so that runs agree."""
    torch.manual_seed(1011)
    state, value = regression_table()
    model = mlp(8, 32, 32, 1, activation=nn.Tanh)
    for layer in model:
        if broken and isinstance(layer, nn.Linear):
            nn.init.constant_(layer.weight, 0.1)
    return Case(model=model, data=(state, value), loss=nn.SmoothL1Loss())


class HyperNetwork(nn.Module):
    """A network writes the weights of another, from the second half of the columns."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.writer = scale, nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4 * 32 + 32 * 32))
        nn.init.normal_(self.writer[2].weight)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, condition = x.chunk(2, dim=1)
        first, second = self.writer(condition).split([128, 1024], dim=1)
        hidden = torch.einsum("bi,bio->bo", x, self.scale * first.view(-1, 4, 32))
        hidden = torch.einsum("bi,bio->bo", torch.relu(hidden), self.scale * second.view(-1, 32, 32))
        return self.head(torch.relu(hidden))


@plant(
    "hypernetwork",
    layers="writer writer.2 head",
    causes="exploding-signal exploding-gradient layer-scale-stands-out",
    remedies="initialise rescale-layer add-normalizer",
)
def written_weights_too_large(broken: bool) -> Case:
    """The writer of the weights is drawn at 1: what it writes does not heed the fan-in."""
    torch.manual_seed(1012)
    x, y = regression_table()
    return Case(model=HyperNetwork(1.0 if broken else 0.06), data=(x, y), loss="mse")


class SignNet(nn.Module):
    """Binary hidden units."""

    def __init__(self, straight: bool) -> None:
        super().__init__()
        self.straight, self.first, self.second, self.head = (
            straight,
            nn.Linear(12, 24),
            nn.Linear(24, 24),
            nn.Linear(24, 3),
        )

    def binarise(self, x: Tensor) -> Tensor:
        """Return the signs, with the gradient of a clipped identity or none."""
        bounded = x.clamp(-1, 1)
        return bounded + (torch.sign(x) - bounded).detach() if self.straight else torch.sign(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.binarise(self.second(self.binarise(self.first(x)))))


@plant(
    "binary network",
    layers="first second",
    causes="no-gradient activation-unsuitable saturated-units",
    remedies="keep-gradient change-activation",
)
def signs_as_activation(broken: bool) -> Case:
    """torch.sign between the layers: its gradient is zero everywhere."""
    torch.manual_seed(1013)
    x, y = table(classes=3)
    return Case(model=SignNet(not broken), data=(x, y), loss="cross_entropy")


class Conditional(nn.Module):
    """Draws a curve from its class; the condition may be dropped (for guidance) with some probability."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.drop, self.label, self.net = drop, nn.Embedding(6, 16), mlp(24, 48, 32)

    def forward(self, noise: Tensor, label: Tensor) -> Tensor:
        keep = (torch.rand(len(label), 1) >= self.drop).float()
        return self.net(torch.cat([noise, keep * self.label(label)], dim=1))


@plant(
    "conditional",
    layers="label label.weight",
    causes="condition-switched-off unused-parameter no-gradient",
    remedies="restore-condition use-parameter keep-gradient lower-dropout",
)
def condition_always_dropped(broken: bool) -> Case:
    """The share of samples without a condition, for classifier-free guidance, is 1.0 instead of 0.1."""
    torch.manual_seed(1014)
    label = torch.arange(96) % 6
    curve = torch.sin(torch.linspace(0, 3, 32) * (1 + label[:, None])) + 0.05 * torch.randn(96, 32)
    return Case(
        model=Conditional(1.0 if broken else 0.1),
        data=({"noise": torch.randn(96, 8), "label": label}, curve),
        loss="mse",
        judge=explained_variance(curve),
    )


@plant("MLP", layers="1", causes="frozen-layer", remedies="unfreeze")
def trunk_left_frozen(broken: bool) -> Case:
    """requires_grad_(False) on a random narrow trunk, left over from a test of the head."""
    torch.manual_seed(1015)
    x, y = table()
    model = nn.Sequential(
        nn.BatchNorm1d(12), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)
    )
    if broken:
        model[1].requires_grad_(False)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant("MLP", causes="class-imbalance labels-constant", remedies="balance-classes")
def two_defects_in_two_hundred(broken: bool) -> Case:
    """Two defective parts in two hundred; the loss does not weigh them."""
    torch.manual_seed(1016)
    x = torch.randn(200, 10)
    y = torch.zeros(200, dtype=torch.long)
    y[[31, 160]] = 1
    x[y == 1, :3] += 1.0
    weight = None if broken else torch.tensor([1.0, 99.0])
    return Case(
        model=nn.Sequential(nn.Linear(10, 24), nn.Dropout(0.3), nn.ReLU(), nn.Linear(24, 2)),
        data=(x, y),
        loss=nn.CrossEntropyLoss(weight=weight),
        judge=lambda output: (output.argmax(1)[y == 1] == 1).float().mean().item(),
    )


class GhostNorm(nn.Module):
    """BatchNorm over chunks of the batch (ghost batches) of a given size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.first, self.norm, self.head = size, nn.Linear(12, 48), nn.BatchNorm1d(48), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        chunks = self.first(x).split(self.size)
        return self.head(torch.relu(torch.cat([self.norm(chunk) for chunk in chunks])))


@plant(
    "MLP",
    layers="norm",
    causes="normalizer-too-few-samples samples-mixed",
    remedies="larger-batch replace-normalizer",
)
def ghost_batches_of_two(broken: bool) -> Case:
    """Ghost batch normalization with chunks of 2 instead of 64."""
    torch.manual_seed(1017)
    x, y = table()
    return Case(model=GhostNorm(2 if broken else 64), data=(x, y), loss="cross_entropy")


@plant(
    "recommender",
    layers="users items users.weight items.weight",
    causes="precision zero-weights vanishing-signal output-constant vanishing-gradient",
    remedies="raise-precision initialise rescale-layer",
)
def tiny_embeddings_in_half_precision(broken: bool) -> Case:
    """Embeddings drawn at 1e-5 in half precision: their products are zero."""
    torch.manual_seed(1018)
    pairs, score = ratings()

    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(40, 8), nn.Embedding(30, 8)
            for embedding in (self.users, self.items):
                nn.init.normal_(embedding.weight, std=1e-5 if broken else 0.3)

        def forward(self, pairs: Tensor) -> Tensor:
            user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
            return (user * item).sum(1).float()

    model = Factors().half() if broken else Factors()
    return Case(model=model, data=(pairs, score), loss="mse")


@plant(
    "histograms",
    causes="not-finite not-finite-data gradient-not-finite",
    remedies="guard-domain clean-data",
)
def histogram_of_nothing(broken: bool) -> Case:
    """Counts divided by their sum, which is zero for an empty document."""
    torch.manual_seed(1019)
    counts = torch.poisson(torch.rand(64, 20) * 3)
    y = (counts[:, :5].sum(1) > counts[:, 5:10].sum(1)).long()
    counts[11] = 0

    class Shares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(20, 32, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(20 * x / (x.sum(1, keepdim=True) + (0.0 if broken else 1e-6)))

    return Case(model=Shares(), data=(counts, y), loss="cross_entropy")


@plant("MLP", causes="learning-rate-too-large", remedies="lower-learning-rate")
def adamw_with_a_rate_of_three(broken: bool) -> Case:
    """A rate in thousandths without its factor; the weight decay is the one that AdamW has by itself."""
    torch.manual_seed(1018)
    x, y = table()
    model = mlp(12, 32, 32, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3.0 if broken else 3e-3)
    return Case(model=model, data=(x, y), loss="cross_entropy", optimizer=optimizer)
