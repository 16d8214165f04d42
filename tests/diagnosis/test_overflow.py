"""A loss, values or weights that are no numbers because an input is far too large: the input is named first."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns

TABLE = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))
NUMBERS = TABLE[:, :1] - TABLE[:, 1:2]
CLASSES = (TABLE[:, 0] > TABLE[:, 1]).long()


def squares(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def check_after(steps: int, scale: Tensor, *, loss: object, rate: float, first: nn.Module | None = None) -> ns.Check:
    """Check a network that has made some steps on a table whose columns are multiplied by a scale."""
    torch.manual_seed(1)
    classes = loss == "cross_entropy"
    x, y = TABLE * scale, CLASSES if classes else NUMBERS
    layers = [nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2 if classes else 1)]
    model = nn.Sequential(*([first] if first else []), *layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        (F.cross_entropy if classes else F.mse_loss)(model(x), y).backward()
        optimizer.step()
    return ns.check(model, (x, y), loss=loss)


COLUMN = torch.ones(8).index_fill(0, torch.tensor([3]), 1e5)


@pytest.mark.parametrize(
    ("loss", "rate", "steps", "symptom"),
    [
        ("mse", 1e-3, 0, None),
        ("mse", 1e-3, 1, "loss-not-finite"),
        (squares, 1e-3, 1, "loss-not-finite"),
        ("mse", 1e-3, 2, "non-finite-activations"),
        ("mse", 1e-3, 4, "non-finite-weights"),
        ("cross_entropy", 0.1, 0, None),
        ("cross_entropy", 0.1, 3, "loss-not-finite"),
    ],
)
def test_a_column_that_is_far_too_large_is_named_before_what_it_does(
    loss: object, rate: float, steps: int, symptom: str | None
) -> None:
    findings = check_after(steps, COLUMN, loss=loss, rate=rate).findings
    assert findings[0].code == "input-columns"
    assert [finding.code for finding in findings if finding.severity is ns.Severity.ERROR] == (
        [] if symptom is None else ["input-columns", symptom]
    )
    words = " ".join(finding.advice for finding in findings)
    assert "logarithm of a zero" not in words
    assert "before a logarithm" not in words
    assert "exponential" not in words


def test_an_input_that_is_far_too_large_as_a_whole_is_named_before_what_it_does() -> None:
    findings = check_after(1, torch.tensor(1e5), loss="mse", rate=0.01).findings
    assert [finding.code for finding in findings][:2] == ["input-scale", "loss-not-finite"]


def test_a_column_that_the_model_scales_itself_is_not_what_broke_its_weights() -> None:
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    nn.init.constant_(model[3].weight, math.nan)
    findings = ns.check(model, (TABLE * COLUMN, NUMBERS), loss="mse").findings
    assert findings[0].code == "non-finite-weights"
    assert "input-columns" not in [finding.code for finding in findings]


def test_a_loss_with_a_fault_of_its_own_is_not_blamed_on_the_input() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().mean() + (target - target).log().mean()

    findings = check_after(0, COLUMN, loss=loss, rate=0.0).findings
    assert findings[0].code == "loss-not-finite"
    assert "the logarithm of a zero" in findings[0].advice
    assert [finding.severity for finding in findings if finding.code == "input-columns"] == [ns.Severity.WARNING]
