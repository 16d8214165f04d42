"""Networks side by side are the networks one by one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope_lab.experiments.ensembles import Ensemble, Normalizer, chain, norms

KINDS: tuple[Normalizer, ...] = ("none", "batch", "layer")


def data(networks: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(networks, 12, 3, generator=generator, dtype=torch.float64)
    return x, torch.randn(networks, 12, 1, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_trained_as_if_it_were_alone(kind: Normalizer) -> None:
    x, y = data(3)
    together = Ensemble.drawn(chain((3, 5, 1), kind), range(3))
    alone = together.member(1)
    stepper = torch.optim.SGD(alone.parameters(), lr=0.1, weight_decay=0.01)
    rates = torch.tensor([0.3, 0.1, 0.2], dtype=torch.float64)
    for _ in range(4):
        losses, gradients = together.gradients(F.mse_loss, x, y)
        stepper.zero_grad()
        loss = F.mse_loss(alone(x[1]), y[1])
        loss.backward()  # type: ignore[no-untyped-call]
        assert float(losses[1]) == pytest.approx(loss.item(), rel=1e-12)
        whole = torch.cat([p.grad.flatten() for p in alone.parameters() if p.grad is not None]).norm()
        assert float(norms(gradients)[1]) == pytest.approx(float(whole), rel=1e-12)
        together.step(gradients, rates, decay=0.01)
        stepper.step()
    for ours, theirs in zip(together.member(1).parameters(), alone.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_one_that_breaks_leaves_the_others_alone() -> None:
    x, y = data(2)
    together = Ensemble.drawn(chain((3, 5, 1), "none"), range(2))
    together.parameters["0.weight"][0] = float("nan")
    losses, gradients = together.gradients(F.mse_loss, x, y)
    assert losses.isnan().tolist() == [True, False]
    assert gradients["0.weight"][1].isfinite().all()


def test_statistics_are_those_of_all_inputs() -> None:
    x, _ = data(2)
    together = Ensemble.drawn(chain((3, 5, 1), "batch"), range(2))
    together.calibrate(x)
    member = together.member(0).eval()
    assert isinstance(member, nn.Sequential)
    assert isinstance(member[1], nn.BatchNorm1d)
    total = member[0](x[0])
    torch.testing.assert_close(member[1].running_mean, total.mean(0).detach())
    torch.testing.assert_close(member[1].running_var, total.var(0).detach())
