"""Products of several vectors with a Hessian, computed together: as each alone, within bounds, and with a way out."""

import copy
import math

import pytest
import torch
from torch import nn

from normscope.products import objective as room
from normscope.products.objective import Objective

from .hessians import CROSS_ENTROPY, NETWORKS, Squared, made, written_out


def state(model: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in model.state_dict().values()]


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_rows_have_the_products_of_each_and_the_model_stays(
    name: str, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = made(name)
    data = [(part, classes) for part, classes in zip(x.chunk(batches), y.chunk(batches), strict=True)]
    before, random = state(model), torch.get_rng_state()
    objective = Objective(model, iter(data), loss=CROSS_ENTROPY, mode="train")
    rows = torch.randn(7, objective.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with objective.measuring():
        together = objective.hessian(rows)
        assert objective.products == 7
        assert not objective._one_by_one
        monkeypatch.setattr(room, "MAX_ENTRIES_TOGETHER", 1)
        objective._kept = None
        alone = torch.stack([objective.hessian(row) for row in rows])
        assert torch.equal(objective.hessian(rows), alone)  # one at a time, where more would take too much memory
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(together, rows @ written_out(model, data, "train"), rtol=1e-7, atol=1e-9)
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(map(torch.equal, before, state(model)))


def test_what_cannot_take_several_vectors_gets_them_one_by_one() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), Squared(5, 3)).double()
    x, y = torch.randn(20, 4).double(), torch.randint(3, (20,))
    plain = copy.deepcopy(model)
    objective = Objective(model, (x, y), loss=CROSS_ENTROPY)
    rows = torch.randn(4, objective.size).double()
    with objective.measuring():
        products = objective.hessian(rows)
        assert objective._one_by_one
    torch.testing.assert_close(products, rows @ written_out(plain, [(x, y)], "train"))


def test_fewer_products_are_computed_together_the_larger_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = made("plain")
    monkeypatch.setattr(room, "MAX_ENTRIES_TOGETHER", 20_000)
    at_once = []
    for samples in (1, 20, 400):
        objective = Objective(model, (x[:1].repeat(samples, 1), y[:1].repeat(samples)), loss=CROSS_ENTROPY)
        with objective.measuring():
            objective.trace()
            at_once.append(objective._kept.at_once)
            largest = max(math.prod(gradient.shape) for gradient in objective._kept.gradients)
    assert at_once[0] > at_once[1] > at_once[2] == 1
    assert at_once[0] * largest < 20_000
