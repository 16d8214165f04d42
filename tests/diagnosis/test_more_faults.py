"""Faults that users plant without noticing, and the healthy models that look like them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.errors import InputError

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
CLASSES = torch.arange(64) % 4


def mlp(*tail: nn.Module, outputs: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, outputs), *tail)


def found(model: nn.Module, data, **given) -> list[tuple[str, str]]:
    result = ns.check(model, data, **given)
    assert ns.Check.from_json(result.to_json()).findings == result.findings
    return [(finding.code, finding.where) for finding in result.findings if finding.severity > ns.Severity.INFO]


class Held(nn.Module):
    """Keeps a hidden layer in a list."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head, self.hidden = nn.Linear(8, 16), nn.Linear(16, 4), [nn.Linear(16, 16)]

    def forward(self, x: Tensor) -> Tensor:
        """Run all layers."""
        return self.head(self.hidden[0](self.first(x).relu()).relu())


def test_an_optimizer_that_holds_a_layer_in_a_list_trains_it():
    model = Held()
    parameters = [*model.parameters(), *model.hidden[0].parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    assert found(model, (X, CLASSES), loss="cross_entropy", optimizer=optimizer) == []


class Logged(nn.Module):
    """Hands its values to numpy, which takes none that ask for a gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Run both layers."""
        hidden = self.first(x)
        self.mean = float(hidden.data.numpy().mean())
        return self.head(hidden.relu())


def test_values_that_are_logged_keep_their_gradients():
    check = ns.check(Logged(), (X, CLASSES), loss="cross_entropy")
    assert check.skipped == ()
    assert [finding for finding in check.findings if finding.severity > ns.Severity.INFO] == []


class Returned(Logged):
    """Returns values without their graph beside its output."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Run both layers."""
        hidden = self.first(x)
        return self.head(hidden.relu()), hidden.data


def test_a_loss_that_hands_values_to_numpy():
    def loss(output: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return F.cross_entropy(output[0], y) + float(output[1].numpy().mean())

    assert found(Returned(), (X, CLASSES), loss=loss) == []


def test_labels_that_count_from_one():
    check = ns.check(mlp(), (X, CLASSES + 1), loss="cross_entropy")
    (finding,) = (finding for finding in check.findings if finding.severity is ns.Severity.ERROR)
    assert (finding.code, finding.where) == ("targets-out-of-range", "2")
    assert "Subtract 1" in finding.advice
    ignored = torch.where(CLASSES > 2, -100, CLASSES)
    assert found(mlp(), (X, ignored), loss="cross_entropy") == []


def test_other_errors_of_a_loss_are_raised():
    with pytest.raises(InputError, match="the loss raises"):
        ns.check(mlp(), (X, CLASSES[:5]), loss="cross_entropy")
    with pytest.raises(InputError, match=r'it returned NoneType.*loss="cross_entropy"'):
        ns.check(mlp(), (X, CLASSES), loss=lambda output, labels: None)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda output, y: -F.cross_entropy(output, y), [("loss-does-not-fit", "the loss")]),
        (lambda output, y: 1.0 / F.cross_entropy(output, y), [("loss-does-not-fit", "the loss")]),
        (lambda output, y: 2.0 * F.cross_entropy(output, y) - 1.0, []),
        (lambda output, y: F.cross_entropy(output, y) - 0.1 * F.cross_entropy(output, (y + 1) % 4), []),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.0, 1.0, 1.0])), [("loss-does-not-fit", "the loss")]),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.1, 1.0, 1.0])), []),
        (lambda output, y: (output.sum(1) - 1e3).relu().mean(), [("no-loss-gradient", "the loss")]),
    ],
    ids=["negated", "inverse", "scaled", "difference", "no weight", "weights", "zero"],
)
def test_losses_that_teach_the_wrong_thing_or_nothing(loss, expected):
    assert found(mlp(), (X, CLASSES), loss=loss) == expected


def test_units_that_are_off_by_chance_are_no_fault():
    """In a fresh network the biases of deep layers, as torch draws them, outweigh what varies."""
    deep = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.ReLU())], nn.Linear(32, 4))
    assert found(deep, torch.randn(64, 32)) == []
    assert found(mlp(), 0.05 * X.abs()) == []


def test_several_optimizers():
    model = mlp()
    first, last = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters())
    given = {"loss": "cross_entropy"}
    assert found(model, (X, CLASSES), optimizer=[first, last], **given) == []
    assert found(model, (X, CLASSES), optimizer=[first], **given) == [("not-in-optimizer", "2.weight")]
    with pytest.raises(InputError, match="several as a list"):
        ns.check(model, (X, CLASSES), optimizer=[first, 3], **given)


def test_large_targets_have_one_advice():
    targets = 3e5 + 1e4 * X[:, :1] * X[:, 1:2]
    assert found(mlp(outputs=1), (X, targets), loss="mse") == [("targets-scale", "2")]


def test_rare_labels_among_many_are_no_fault():
    rare = (torch.rand(64, 50, generator=torch.Generator().manual_seed(0)) > 0.99).float()
    assert found(mlp(outputs=50), (X, rare), loss="bce_with_logits") == []
