"""What the loop observes on a GPU is not waited for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.doctor.monitor.watching import watch

pytestmark = pytest.mark.gpu


def test_observing_does_not_wait_and_every_loss_arrives() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    given = []
    with watch(model, optimizer, every=100, overhead=None) as run:  # the first record, which loads kernels, takes long
        for step in range(301):
            optimizer.zero_grad()
            loss = model(torch.randn(64, 8, device="cuda")).square().mean()
            loss = loss * (50.0 if step == 233 else 1.0)
            torch.cuda.set_sync_debug_mode("error")
            try:
                run.observe(loss=loss, twice=2 * loss)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            loss.backward()
            optimizer.step()
            given.append(loss.detach())
    losses = torch.stack(given).tolist()
    assert [record.metrics["loss_count"] for record in run.records] == [1, 100, 100, 100]
    for record, part in zip(run.records, (losses[:1], losses[1:101], losses[101:201], losses[201:]), strict=True):
        assert record.metrics["loss_mean"] == pytest.approx(sum(part) / len(part), rel=1e-5)
        assert record.metrics["loss_largest"] == pytest.approx(max(part), rel=1e-6)
        assert record.metrics["twice"] == pytest.approx(2 * sum(part) / len(part), rel=1e-5)
    [told] = [finding for finding in run.findings if finding.code == "loss-spike"]
    assert told.numbers["at"] == 233


@pytest.mark.parametrize("number", [False, True])
def test_a_broken_loss_names_its_layer_only_where_it_was_given_as_a_number(number: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, every=10) as run:
        for step in range(31):
            if step == 17:
                model[3].register_forward_hook(lambda module, given, made: made * torch.inf)
            optimizer.zero_grad()
            loss = model(torch.randn(16, 8, device="cuda")).square().mean()
            run.observe(loss=loss.item() if number else loss)
            loss.backward()
            optimizer.step()
    [told] = [finding for finding in run.findings if finding.code == "loss-not-finite"]
    assert told.where == ("3" if number else "")
    assert told.numbers["at"] == 17
    assert number or "not known" in told.seen
