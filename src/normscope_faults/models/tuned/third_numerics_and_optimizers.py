"""Held-out faults of number formats and of the settings of optimizers."""

import torch
from torch import Tensor, nn

from ...case import Case, Fault, fault
from ..parts import ConvNet, GraphNet, accuracy, blob_images, communities, mlp, regression_table, table

FAULTS: list[Fault] = []


def handmade_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the binary cross entropy by its formula."""
    share = torch.sigmoid(logits)
    return -(target * share.log() + (1 - target) * (1 - share).log()).mean()


@fault(
    FAULTS,
    "tabular",
    causes="not-finite gradient-not-finite precision loss-does-not-fit",
    remedies="guard-domain change-loss",
)
def formula_of_the_entropy_meets_a_certain_network(planted: bool) -> Case:
    """The logarithm of one minus a sigmoid is minus infinity from logits of 17 on."""
    torch.manual_seed(122)
    x, _ = table(256)
    y = (x[:, 0] + x[:, 1] > 0).float()[:, None]
    x[40, :2] = 9.0  # one sample far out, of which the network is certain
    x[41, :2] = -9.0
    model = mlp(12, 32, 1)
    with torch.no_grad():
        model[2].weight.mul_(20)
    judge_target = y > 0.5
    return Case(
        model=model,
        data=(x, y),
        loss=handmade_entropy if planted else nn.BCEWithLogitsLoss(),
        judge=lambda output: (
            float("nan") if not output.isfinite().all() else ((output > 0) == judge_target).float().mean().item()
        ),
    )


class CosineMatch(nn.Module):
    """Compares bags of words with queries by cosine."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.eps = 0.0 if planted else 1e-6
        self.words = nn.Linear(20, 16, bias=False)
        self.classes = nn.Parameter(torch.randn(3, 16))

    def forward(self, x: Tensor) -> Tensor:
        texts = self.words(x)
        texts = texts / (texts.norm(dim=1, keepdim=True) + self.eps)
        return 10 * texts @ (self.classes / self.classes.norm(dim=1, keepdim=True)).T


@fault(
    FAULTS,
    "bag of words",
    causes="not-finite gradient-not-finite",
    layers="words",
    remedies="guard-domain clean-data",
)
def direction_of_an_empty_document(planted: bool) -> Case:
    """A document without any known word has length zero, by which it is divided."""
    torch.manual_seed(123)
    y = torch.arange(96) % 3
    x = torch.poisson(0.4 + 1.2 * torch.nn.functional.one_hot(torch.arange(20) % 3, 3).float().T[y])
    x[7] = 0.0
    return Case(model=CosineMatch(planted), data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "mixed precision",
    causes="precision not-finite",
    remedies="raise-precision lower-eps",
)
def adam_on_weights_of_half_precision(planted: bool) -> Case:
    """`model.half()` for training: the eps of Adam is zero in this format, and so are squares of small gradients."""
    torch.manual_seed(124)
    x, y = table()
    kind = torch.float16 if planted else torch.float32
    model = mlp(12, 32, 32, 3).to(kind)
    return Case(
        model=model,
        data=(x.to(kind), y),
        loss="cross_entropy",
        optimizer=torch.optim.Adam(model.parameters(), lr=3e-3),
    )


class Variance(nn.Module):
    """Standardises each series inside, in the format of the argument."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind
        self.body = mlp(40, 32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.kind)
        x = (x - x[:, :1]).float()
        return self.body(x / 3)


@fault(
    FAULTS,
    "time series",
    causes="precision",
    remedies="raise-precision",
)
def differences_of_large_numbers_in_bfloat16(planted: bool) -> Case:
    """Index levels around 5000 are cast to bfloat16 before their small changes are taken."""
    torch.manual_seed(125)
    y = torch.arange(96) % 3
    steps = torch.randn(96, 40) + 0.8 * (y - 1)[:, None] * torch.sin(torch.arange(40) / 3)
    x = 5000 + steps.cumsum(1) - steps.cumsum(1).mean(1, keepdim=True)
    return Case(model=Variance(torch.bfloat16 if planted else torch.float32), data=(x, y), loss="cross_entropy")


# ---------------------------------------------------------------------------------------------------------- optimizers


@fault(
    FAULTS,
    "regression",
    causes="learning-rate-too-large",
    remedies="lower-learning-rate",
)
def descent_with_a_rate_of_two(planted: bool) -> Case:
    """The rate of a scheduler's peak for batches of thousands, on a batch of a hundred."""
    torch.manual_seed(131)
    x, y = regression_table()
    model = mlp(8, 32, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0 if planted else 0.05)
    return Case(model=model, data=(x, y), loss="mse", optimizer=optimizer)


@fault(
    FAULTS,
    "CNN",
    causes="learning-rate-too-small not-in-optimizer frozen-layer",
    remedies="raise-learning-rate add-to-optimizer unfreeze",
)
def group_of_the_backbone_with_a_rate_of_zero(planted: bool) -> Case:
    """The group of the backbone has a rate of 0, of a fine-tuning recipe, and the network is fresh."""
    torch.manual_seed(132)
    x, y = blob_images(classes=8)
    model = ConvNet(width=8, classes=8, norm=False)
    groups = [
        {"params": model.features.parameters(), "lr": 0.0 if planted else 3e-3},
        {"params": model.head.parameters()},
    ]
    return Case(model=model, data=(x, y), loss="cross_entropy", optimizer=torch.optim.AdamW(groups, lr=3e-3))


@fault(
    FAULTS,
    "GNN",
    causes="weight-decay-too-strong",
    remedies="lower-weight-decay",
)
def rate_of_decay_taken_for_a_factor(planted: bool) -> Case:
    """`weight_decay=0.9`, meant as the factor of a schedule."""
    torch.manual_seed(134)
    x, edges, y = communities()
    model = GraphNet(edges)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.9 if planted else 5e-4)
    return Case(model=model, data=(x, y), loss="cross_entropy", optimizer=optimizer, judge=accuracy(y))


@fault(
    FAULTS,
    "CNN",
    causes="learning-rate-too-small eps-dominates",
    remedies="raise-learning-rate lower-eps",
)
def eps_of_adam_beside_which_gradients_vanish(planted: bool) -> Case:
    """`eps=1.0` of a recipe for another network, with the rate of this one."""
    torch.manual_seed(135)
    x, y = blob_images(classes=8)
    model = ConvNet(norm=False, classes=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1.0 if planted else 1e-8)
    return Case(model=model, data=(x, y), loss="cross_entropy", optimizer=optimizer)


@fault(
    FAULTS,
    "regression",
    causes="learning-rate-too-small",
    remedies="raise-learning-rate",
)
def rate_of_ten_to_the_minus_six_for_plain_descent(planted: bool) -> Case:
    """The rate of fine-tuning a large language model with Adam, for plain gradient descent from scratch."""
    torch.manual_seed(136)
    x, y = regression_table()
    model = mlp(8, 32, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6 if planted else 0.05)
    return Case(model=model, data=(x, y), loss="mse", optimizer=optimizer)
