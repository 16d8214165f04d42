"""`weight_sensitivity`: what it says of losses, of the printed formulas, of gauges, and how it shows itself."""

from __future__ import annotations

import copy
import math
import random
import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from normscope.bounds.weights.figures import LossRows, steepest_classes
from normscope.bounds.weights.weight_constants import weight_sensitivity
from normscope.core.bracket import Scope
from normscope.core.errors import CaptureError, InputError, MissingRuleError
from normscope.core.log10 import log10
from normscope.theory import losses
from normscope.theory.losses import cross_entropy, named


def seeded(make, *shape: int) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().eval(), torch.randn(shape)


def mlp(last: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, last))


def gradients(model: nn.Module, loss, batch: Tensor, targets: Tensor) -> dict[str, float]:
    """The norm of the gradient of a loss in every weight, in float64."""
    model = copy.deepcopy(model).double()
    loss(model(batch.double()), targets).backward()
    return {name: float(p.grad.norm()) for name, p in model.named_parameters() if p.ndim > 1}


@pytest.fixture(scope="module")
def plain():
    model, batch = seeded(mlp, 2, 4)
    return model, batch, weight_sensitivity(model, batch, loss="l1", labels=torch.full((2, 3), -100.0))


def test_every_sample_has_its_bracket_and_the_largest_stands_for_the_batch(plain):
    _, _, result = plain
    for row in result:
        brackets = row.bracket_h.per_sample
        assert len(brackets) == result.samples == 2
        assert row.bracket_h.log10_upper == max(b.log10_upper for b in brackets)
        assert row.bracket_h.log10_lower == max(b.log10_lower for b in brackets)
        assert {b.scope for b in (row.bracket_h, *brackets)} == {Scope.POINT}


def test_the_witness_attains_the_lower_side(plain):
    model, batch, result = plain
    wide = copy.deepcopy(model).double()
    for row in result:
        change = row.bracket_h.witness
        weight = dict(wide.named_parameters())[row.parameter].detach()
        with torch.no_grad():
            ends = [functional_call(wide, {row.parameter: weight + s * change}, (batch.double(),)) for s in (1, -1)]
        slope = float((ends[0] - ends[1]).norm(dim=1).max() / (2 * change.norm()))
        assert slope == pytest.approx(row.bracket_h.lower, rel=1e-6)


def test_the_printed_figure_is_the_product_of_the_theorem(plain):
    model, batch, result = plain
    with torch.no_grad():
        norms = [float(torch.linalg.matrix_norm(layer.weight, ord=2)) for layer in model if hasattr(layer, "weight")]
        reads = [batch, model[:2](batch), model[:4](batch)]
    for index, row in enumerate(result):
        expected = float(reads[index].norm(dim=1).max()) * math.prod(norms[index + 1 :])
        assert row.printed_h.upper == pytest.approx(expected, rel=1e-4)
        assert row.printed_h.holds
        assert row.bracket_h.log10_upper <= row.printed_h.log10_upper + 1e-9


def test_the_printed_corollary_takes_the_l1_loss_for_less_than_it_is(plain):
    # targets far below every output: the gradient of the loss is a vector of ones, of norm sqrt(3)
    model, batch, result = plain
    for row in result:
        assert not row.printed_f.holds
        assert "sqrt(3)" in row.printed_f.reason
    last = result.rows[-1]
    with torch.no_grad():
        read = float(model[:4](batch).norm(dim=1).max())
    assert last.bracket_f.lower == pytest.approx(math.sqrt(3) * read, rel=1e-4)
    assert last.bracket_f.gap < 1e-5
    assert last.bracket_f.log10_lower > last.printed_f.log10_upper + 0.1
    assert weight_sensitivity(*seeded(lambda: mlp(1), 1, 4), loss="l1").rows[0].printed_f.holds


@pytest.mark.slow
def test_formulas_say_where_they_are_no_bounds():
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return x + self.second(x.relu())

    rows = weight_sensitivity(*seeded(Skip, 1, 4))
    assert not rows["first"].printed_h.holds
    assert "not a chain" in rows["first"].printed_h.reason
    conv = nn.Conv2d(1, 1, 3, padding=1)
    [row] = weight_sensitivity(conv, torch.ones(1, 1, 6, 6))
    assert not row.printed_h.holds
    assert "norm(H) is above" in row.printed_h.reason
    assert row.bracket_h.log10_lower > row.printed_h.log10_upper  # it is not one


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cross_entropy", F.cross_entropy),
        ("hinge", lambda h, y: losses.hinge().rows(h, y).mean()),
        ("probability", lambda h, y: losses.probability().rows(h, y).mean()),
    ],
)
def test_the_lower_side_of_a_loss_is_its_gradient_at_the_targets(name, call):
    model, batch = seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), 2, 4)
    targets = torch.tensor([2, 0])
    result = weight_sensitivity(model, batch, loss=name, labels=targets)
    assert result.log10_loss == pytest.approx(log10(named(name).constant(3)))
    for index in range(2):
        expected = gradients(model, call, batch[index : index + 1], targets[index : index + 1])
        for row in result:
            bracket = row.bracket_f.per_sample[index]
            assert bracket.lower == pytest.approx(expected[row.parameter], rel=2e-3)
            assert bracket.lower <= bracket.upper
    for row in result:
        assert row.bracket_f.log10_upper == pytest.approx(row.bracket_h.log10_upper + result.log10_loss, abs=1e-9)


def squared_error_of_the_probability(h: Tensor, y: Tensor) -> Tensor:
    return (1.0 - h.softmax(-1).gather(-1, y[:, None])).square().mean()


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (F.cross_entropy, torch.tensor([2, 0])),
        (nn.CrossEntropyLoss(torch.tensor([1.0, 0.5, 3.0]), label_smoothing=0.1), torch.tensor([2, 0])),
        (squared_error_of_the_probability, torch.tensor([2, 0])),
        (nn.HuberLoss(delta=0.5), torch.tensor([[0.5, -1.0, 2.0], [0.0, 1.0, 0.25]])),
    ],
)
def test_a_loss_may_be_a_function(loss, targets):
    """From below its gradients are attained; from above the bound of its graph holds at all outputs."""
    model, batch = seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), 2, 4)
    result = weight_sensitivity(model, batch, loss=loss, labels=targets)
    wide = copy.deepcopy(loss).double() if isinstance(loss, nn.Module) else loss
    goals = targets.double() if targets.is_floating_point() else targets
    for index in range(2):
        expected = gradients(model, wide, batch[index : index + 1], goals[index : index + 1])
        for row in result:
            bracket = row.bracket_f.per_sample[index]
            assert bracket.lower == pytest.approx(expected[row.parameter], rel=2e-3)
            assert expected[row.parameter] <= bracket.upper
    outputs = 30.0 * torch.randn(300, 1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for output in outputs.requires_grad_():
        for index in range(2):
            (slope,) = torch.autograd.grad(wide(output, goals[index : index + 1]), output)
            assert log10(float(slope.norm())) <= result.log10_loss


def test_a_function_that_is_a_known_loss_has_its_figures():
    model, batch = seeded(mlp, 2, 4)
    by_name, by_function = (
        weight_sensitivity(model, batch, loss=loss, labels=torch.tensor([2, 0]))
        for loss in ("cross_entropy", F.cross_entropy)
    )
    for one, other in zip(by_name, by_function, strict=True):
        assert one.bracket_f.upper == pytest.approx(other.bracket_f.upper)
        assert one.bracket_f.lower == pytest.approx(other.bracket_f.lower, rel=2e-3)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda h, y: torch.tensor(h.sum().item()), "no Lipschitz constant of the loss <lambda> can be had"),
        (lambda h, y: torch.cdist(h, h, p=3.0).sum(), "operators of torch that have a rule"),
        (lambda h, y: h, "must return a tensor with one entry"),
        (lambda h: h.sum(), "it is called with outputs and targets"),
    ],
)
def test_a_function_whose_constant_cannot_be_known_is_refused(loss, said):
    model, batch = seeded(mlp, 2, 4)
    with pytest.raises(InputError, match=re.escape(said)):
        weight_sensitivity(model, batch, loss=loss, labels=torch.tensor([2, 0]))


def test_without_targets_the_steepest_class_is_taken():
    model, batch = seeded(mlp, 1, 4)
    result = weight_sensitivity(model, batch, loss="cross_entropy")
    each = [gradients(model, F.cross_entropy, batch, torch.tensor([label])) for label in range(3)]
    last = result.rows[-1]
    assert last.bracket_f.lower == pytest.approx(max(found[last.parameter] for found in each), rel=2e-3)
    logits = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chosen = steepest_classes(cross_entropy(), logits)
    assert torch.equal(chosen, logits.argmin(-1))  # of the cross entropy: the least likely


def test_the_squared_error_has_no_constant():
    model, batch = seeded(mlp, 1, 4)
    row = weight_sensitivity(model, batch, loss="mse", labels=torch.zeros(1, 3)).rows[0]
    assert row.bracket_f.log10_upper == math.inf
    assert "bounded sets only" in row.bracket_f.reason
    assert row.bracket_f.log10_lower > -math.inf
    assert row.bracket_h.log10_upper < math.inf


def test_a_loss_of_many_rows_is_their_mean():
    model, batch = seeded(lambda: nn.Linear(3, 4), 1, 5, 3)
    [row] = weight_sensitivity(model, batch, loss="cross_entropy", labels=torch.zeros(1, 5, dtype=torch.long))
    assert row.bracket_f.log10_upper == pytest.approx(row.bracket_h.log10_upper + log10(math.sqrt(2 / 5)), abs=1e-9)
    assert (LossRows((1, 5, 4)).classes, LossRows((1, 5, 4)).count) == (4, 5)
    assert (LossRows((2, 7, 3, 3)).classes, LossRows((2, 7, 3, 3)).count) == (7, 18)


class Kink(nn.Module):
    """x - (relu(x) - relu(-x)) of a layer: zero, with a Jacobian of one where autograd looks at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y - (y.relu() - (-y).relu())


def test_a_jacobian_at_a_kink_is_no_lower_side():
    model = Kink().eval()
    nn.init.zeros_(model.layer.weight)
    [row] = weight_sensitivity(model, torch.ones(1, 2))
    assert row.bracket_h.log10_lower == -math.inf
    assert row.bracket_h.log10_upper < math.inf


class Restless(nn.Module):
    """Buffers that move, dropout, a hook's worth of state, and trouble on request."""

    def __init__(self, trouble: str | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.5))
        self.register_buffer("calls", torch.zeros(()))
        self.trouble = trouble

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        x = self.body(x)
        if self.trouble == "branch" and x.sum() > 0:
            return 2 * x
        return x.median(1).values if self.trouble == "rule" else x


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    ("trouble", "error"), [(None, None), ("branch", CaptureError), ("rule", MissingRuleError), ("loss", InputError)]
)
def test_the_model_is_left_as_found(mode, trouble, error):
    torch.manual_seed(0)
    model = Restless(trouble).train()
    model.body[0].eval()
    model(torch.randn(8, 4)).square().sum().backward()
    batch = torch.randn(8, 4)

    def state():
        return {
            "tensors": {k: v.clone() for k, v in model.state_dict().items()},
            "grads": {k: None if p.grad is None else p.grad.clone() for k, p in model.named_parameters()},
            "flags": [m.training for m in model.modules()],
            "random": (torch.get_rng_state(), torch.tensor(random.getstate()[1]), torch.tensor(np.random.rand())),
            "batch": batch.clone(),
        }

    np.random.seed(0)
    before = state()
    np.random.seed(0)
    options = {"loss": "cross_entropy", "labels": torch.full((8,), 99 if trouble == "loss" else 0)}
    if error is None:
        assert len(weight_sensitivity(model, batch, mode=mode, **options)) == 1
    else:
        with pytest.raises(error):
            weight_sensitivity(model, batch, mode=mode, **options)
    torch.testing.assert_close(state(), before, rtol=0, atol=0)


def test_without_time_the_bounds_still_hold():
    model, batch = seeded(lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)), 1, 2, 8, 8)
    hurried, calm = weight_sensitivity(model, batch, max_seconds=0.0), weight_sensitivity(model, batch)
    for quick, row in zip(hurried, calm, strict=True):
        assert not quick.bracket_h.converged
        assert "max_seconds" in quick.bracket_h.advice
        assert quick.bracket_h.log10_upper >= row.bracket_h.log10_lower
