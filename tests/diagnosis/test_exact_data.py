"""What a batch and a loss show exactly: each fault beside a healthy batch without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns


def found(model: nn.Module, batch: Any, **options: Any) -> dict[str, ns.Finding]:
    """Return the findings of a check by their code."""
    return {finding.code: finding for finding in ns.check(model, batch, **options).findings}


def network(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, outputs))


X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(64) % 5


def squared(output: Tensor, label: Tensor) -> Tensor:
    return ((output - label[:, None].float()) ** 2).mean()


def squared_of_one_hot(output: Tensor, label: Tensor) -> Tensor:
    return ((output - F.one_hot(label, 5)) ** 2).mean()


def entropy_by_hand(output: Tensor, label: Tensor) -> Tensor:
    return -output.log_softmax(1)[torch.arange(len(label)), label].mean()


@pytest.mark.parametrize("outputs", [1, 5])
def test_a_squared_error_against_class_numbers_is_told_however_it_is_written(outputs):
    assert found(network(outputs), (X, LABELS), loss=squared)["loss-does-not-fit"].where == "the loss"


@pytest.mark.parametrize("loss", [squared_of_one_hot, entropy_by_hand])
def test_other_losses_of_classes_that_are_written_by_hand_are_not(loss):
    assert "loss-does-not-fit" not in found(network(5), (X, LABELS), loss=loss)


def test_numbers_that_are_no_classes_may_have_a_squared_error():
    prices = X.sum(1).round() * 7
    assert "loss-does-not-fit" not in found(network(1), (X, prices), loss=squared)


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_a_column_that_gives_the_target_away_is_told(kind):
    target, loss = (LABELS, "cross_entropy") if kind == "classes" else (X.square().sum(1, keepdim=True), "mse")
    model, batch = network(5 if kind == "classes" else 1), X.clone()
    assert "target-in-input" not in found(model, (batch, target), loss=loss)
    batch[:, 2] = 3.0 - target.flatten()
    finding = found(model, (batch, target), loss=loss)["target-in-input"]
    assert finding.numbers["column"] == 2
    assert finding.severity == ns.Severity.WARNING


def test_a_constant_column_is_a_note():
    batch = X.clone()
    assert "constant-column" not in found(network(5), (batch, LABELS), loss="cross_entropy")
    batch[:, 4] = 1.0
    finding = found(network(5), (batch, LABELS), loss="cross_entropy")["constant-column"]
    assert finding.severity == ns.Severity.INFO
    assert "column 4" in finding.seen


class Reader(nn.Module):
    """Reads words and computes its own loss, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 16), nn.Linear(16, 20)

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.table(ids))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("labels", "labels run from 0 to 20, and outputs for 20 classes take labels from 0 to 19"),
        ("ids", "the ids run from 0 to 20, and the table of `table` has rows from 0 to 19"),
    ],
)
def test_what_lies_outside_of_its_range_is_refused_before_a_gpu_asserts(wrong, message):
    batch = {"ids": torch.arange(20).reshape(4, 5), "labels": torch.arange(20).reshape(4, 5)}
    ns.check(Reader(), batch)
    batch[wrong] = batch[wrong].clone().index_fill_(1, torch.tensor([4]), 20)
    with pytest.raises(ns.InputError, match=message):
        ns.check(Reader(), batch)
