"""A step along the gradient, and one of the user's optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.core.errors import InputError
from normscope.doctor.facts.layers import fetch_numbers
from normscope.doctor.facts.steps import StepFacts, compute_products

from ..net import Net


def classifier() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return a small network with a BatchNorm, and data that it can learn."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 5))
    x = torch.randn(64, 20)
    return model, (x, x[:, :5].argmax(1))


def steps_of(check: Any) -> StepFacts:
    assert check.signal.steps is not None
    return check.signal.steps


def codes(check: Any) -> set[str]:
    return {finding.code for finding in check.findings if finding.severity != "info"}


def test_a_quadratic_has_its_curvature_and_its_fall() -> None:
    """For the loss w'Aw/2 + b the second derivative along the gradient is known."""
    torch.manual_seed(1)
    model, x = nn.Linear(6, 1, bias=False).double(), torch.randn(40, 6, dtype=torch.float64)
    y = torch.randn(40, 1, dtype=torch.float64)
    facts = steps_of(ns.check(model, (x, y), loss="mse"))
    matrix = 2 * x.T @ x / 40
    gradient = (2 * (model(x) - y).T @ x / 40).flatten().detach()
    along = float(gradient @ matrix @ gradient / gradient.square().sum())
    assert facts.curvature == pytest.approx(along, rel=1e-6)
    length = 0.01 * facts.loss / float(gradient.square().sum())
    assert facts.fall == pytest.approx(1 - length * along / 2, rel=1e-9)
    assert facts.stable_rate == pytest.approx(2 / along, rel=1e-6)


def test_halves_that_agree_and_halves_that_do_not() -> None:
    torch.manual_seed(2)
    model, x = nn.Linear(6, 1), torch.randn(8, 6)
    y = torch.randn(8, 1)
    same = steps_of(ns.check(model, (torch.cat([x, x]), torch.cat([y, y])), loss="mse"))
    assert same.agreement == pytest.approx(1.0, abs=1e-6)
    with torch.no_grad():
        mirrored = 2 * model(x) - y
    opposed = steps_of(ns.check(model, (torch.cat([x, x]), torch.cat([y, mirrored])), loss="mse"))
    assert opposed.agreement == pytest.approx(-1.0, abs=1e-4)


@pytest.mark.parametrize(
    "build",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-4),
        lambda p: torch.optim.Adam(p, lr=1e-3),
        lambda p: torch.optim.AdamW(p, lr=1e-3),
        lambda p: torch.optim.RMSprop(p, lr=1e-3),
    ],
)
def test_the_next_loss_is_that_of_a_real_step(build: Callable[..., torch.optim.Optimizer]) -> None:
    """Also in the middle of training, when the optimizer has a state; model and optimizer stay as they are."""
    model, (x, y) = classifier()
    optimizer = build(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()]))
    check = ns.check(model, (x, y), loss="cross_entropy", optimizer=optimizer)
    after = (model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()])
    for one, other in zip(torch.utils._pytree.tree_leaves(before), torch.utils._pytree.tree_leaves(after), strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert steps_of(check).next_loss == pytest.approx(nn.functional.cross_entropy(model(x), y).item(), rel=1e-4)
    assert not codes(check)


@pytest.mark.parametrize(
    ("build", "code"),
    [
        (lambda m: torch.optim.SGD(m.parameters(), lr=1e-8), "step-too-short"),
        (lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=100), "decay-too-strong"),
        (lambda m: torch.optim.AdamW(m.parameters(), lr=3.0, weight_decay=100), "decay-too-strong"),
        (lambda m: torch.optim.SGD(m.parameters(), lr=1e3, weight_decay=5e-4), "step-too-long"),
    ],
)
def test_a_wrong_optimizer_is_named(build: Callable[[nn.Module], torch.optim.Optimizer], code: str) -> None:
    model, batch = classifier()
    optimizer = build(model)
    check = ns.check(model, batch, loss="cross_entropy", optimizer=optimizer)
    assert codes(check) == {code}
    if code == "decay-too-strong":
        assert codes(ns.audit(model, batch, loss="cross_entropy", optimizer=optimizer)) == {code}


def test_a_rate_of_zero_is_a_note_and_lbfgs_is_not_refused() -> None:
    model, batch = classifier()
    check = ns.check(model, batch, loss="cross_entropy", optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    assert [finding.code for finding in check.findings if "rate is 0" in finding.seen] == ["step-too-short"]
    assert not codes(check)
    lbfgs = ns.check(model, batch, loss="cross_entropy", optimizer=torch.optim.LBFGS(model.parameters()))
    assert steps_of(lbfgs).next_loss is None
    assert not codes(lbfgs)


class Backwards(torch.autograd.Function):
    """The identity with a derivative of the wrong sign."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return -gradient


def test_a_gradient_that_climbs_is_named() -> None:
    _, batch = classifier()
    model = Net(
        lambda net, x: Backwards.apply(net.last(torch.relu(net.inner(x)))),
        inner=nn.Linear(20, 64),
        last=nn.Linear(64, 5),
    )
    assert "gradient-does-not-descend" in codes(ns.check(model, batch, loss="cross_entropy"))


def test_an_optimizer_without_a_loss_is_refused() -> None:
    model, (x, _) = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for function in (ns.check, ns.audit):
        with pytest.raises(InputError, match="optimizer= needs loss="):
            function(model, x, optimizer=optimizer)


def test_the_report_speaks_of_the_loss_and_a_file_keeps_it(tmp_path: Any) -> None:
    model, batch = classifier()
    check = ns.check(model, batch, loss="cross_entropy", optimizer=torch.optim.Adam(model.parameters()))
    shown, page = " ".join(str(check).split()), check.to_html()
    for words in ("always gives the same output can reach", "The next step of Adam at a learning rate of 0.001"):
        assert words in shown
        assert words in page
    assert "(cosine " in page
    assert "(cosine " not in shown
    check.to_json(tmp_path / "check.json")
    assert steps_of(ns.Check.from_json(tmp_path / "check.json")) == steps_of(check)


def test_a_group_at_rest_is_noted_beside_one_that_learns() -> None:
    """By name, as a note; not where all rates are 0 (another note says that), nor of weights that are frozen anyway."""
    model, batch = classifier()
    told = []
    for rates, frozen in (((0.0, 0.1), False), ((0.0, 0.0), False), ((0.1, 0.1), False), ((0.0, 0.1), True)):
        model[0].requires_grad_(not frozen)
        groups = [{"params": model[0].parameters(), "lr": rates[0]}, {"params": model[3].parameters(), "lr": rates[1]}]
        optimizer = torch.optim.SGD([*groups, {"params": model[1].parameters(), "lr": rates[1]}], lr=0.1)
        check = ns.check(model, batch, loss="cross_entropy", optimizer=optimizer)
        told.append([(f.severity, f.where) for f in check.findings if "elsewhere" in f.seen])
    assert told == [[("info", "0")], [], [], []]


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_inner_products_of_single_precision_are_those_of_double(scale):
    one, other = torch.linspace(-1.0, 2.0, 300) * scale, torch.linspace(1.0, 3.0, 300) * scale
    (product,) = compute_products([(one, other)])
    assert product == pytest.approx(float((one.double() * other.double()).sum()), rel=1e-5)


def test_numbers_of_several_types_are_fetched_in_their_order():
    numbers = [torch.tensor(3), torch.tensor(0.5), torch.tensor(True), torch.tensor(2.0, dtype=torch.float64)]
    assert fetch_numbers(numbers) == [3, 0.5, 1, 2.0]
