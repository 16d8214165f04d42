"""The largest curvature along a run: right, cheap after the first look, silent unless asked for."""

import copy
import itertools

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.core.errors import InputError

LOSS = nn.functional.mse_loss


def bowl(curvature: float) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a model whose loss is a bowl of that curvature along its first weight, and its batch."""
    model = nn.Linear(2, 1, bias=False)
    x = torch.diag(torch.tensor([curvature**0.5, 0.1]))
    return model, x, torch.zeros(2, 1)


def trained(model, x, y, *, lr: float, steps: int = 7, every: int = 2, sharpness=True, momentum: float = 0.0):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    probe = (LOSS, (x, y)) if sharpness is True else sharpness or None
    with ns.watch(model, optimizer, every={"full": every}, sharpness=probe) as run:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = LOSS(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    return run


def test_records_have_the_sharpness_and_what_the_learning_rate_makes_of_it():
    run = trained(*bowl(3.0), lr=0.1)
    assert [record.step for record in run.records] == [0, 2, 4, 6]
    for record in run.records:
        assert record.metrics["sharpness"] == pytest.approx(3.0, rel=1e-2)
        assert record.metrics["effective_sharpness"] == pytest.approx(0.3, rel=1e-2)
    assert not [finding for finding in run.findings if finding.code == "edge-of-stability"]


def test_an_edge_that_is_passed_is_told_once_with_its_meaning():
    run = trained(*bowl(25.0), lr=0.1)
    [found] = [finding for finding in run.findings if finding.code == "edge-of-stability"]
    assert found.numbers["effective_sharpness"] == pytest.approx(2.5, rel=1e-2)
    assert found.severity is ns.Severity.INFO
    assert "Momentum" in found.why
    far = trained(*bowl(100.0), lr=0.1)
    assert [f.severity for f in far.findings if f.code == "edge-of-stability"] == [ns.Severity.WARNING]


def test_later_looks_take_a_few_products():
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 1))
    x, y = torch.randn(30, 6), torch.randn(30, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    taken = []
    with ns.watch(model, optimizer, every={"full": 1}, sharpness=(LOSS, (x, y))) as run:
        for _ in range(6):
            optimizer.zero_grad()
            LOSS(model(x), y).backward()
            optimizer.step()
            taken.append(run._hooks.sharpness.products)
    assert taken[0] > 3
    assert max(after - before for before, after in itertools.pairwise(taken)) <= 4


def test_training_is_the_same_to_the_last_bit_and_nothing_is_left_behind():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 1))
    x, y = torch.randn(20, 4), torch.randn(20, 1)
    other, state = copy.deepcopy(model), torch.get_rng_state()
    trained(model, x, y, lr=0.05, momentum=0.9)
    torch.set_rng_state(state)
    trained(other, x, y, lr=0.05, momentum=0.9, sharpness=False)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.parametrize("given", [LOSS, (LOSS,), "ab"])
def test_what_is_no_loss_with_a_batch_is_refused(given):
    model, *_ = bowl(1.0)
    with pytest.raises(InputError, match="sharpness"):
        ns.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), every={"full": 5}, sharpness=given)


def test_without_the_full_tier_it_is_refused():
    model, x, y = bowl(1.0)
    with pytest.raises(InputError, match="full tier"):
        ns.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), every=5, sharpness=(LOSS, (x, y)))


def test_a_loss_that_cannot_be_measured_is_said_once_and_training_goes_on():
    model, x, y = bowl(1.0)
    with pytest.warns(UserWarning, match="must be a scalar"):
        run = trained(model, x, y, lr=0.1, steps=3, every=1, sharpness=(lambda out, y: out, (x, y)))
    assert len(run.records) == 3
    assert all("sharpness" not in record.metrics for record in run.records)
