"""Every architecture of the list, checked: no warning, few passes, and the model left as it was found."""

import itertools

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.core.errors import InputError
from normscope.diagnosis.signal_pass import watch_signal

from .families import FAMILIES
from .observe import assert_same, snapshot

SIGNAL = {"gradient-vanishing", "gradient-explosion", "no-gradient", "saturated-units", "half-precision", "input-scale"}


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_healthy_family_is_silent(name: str) -> None:
    model, batch, output = FAMILIES[name]()
    forwards = itertools.count()  # what Python can put back is put back, an iterator not
    hook = model.register_forward_hook(lambda *_: (next(forwards), None)[1])
    before = snapshot(model)
    check = ns.check(model, batch, output=output)
    assert_same(before, snapshot(model))
    hook.remove()
    assert next(forwards) == check.cost.forwards == 2
    assert check.cost.backwards == 1
    assert not check.skipped
    assert not SIGNAL & {finding.code for finding in check.findings}
    assert all(row.finite and row.deviation is not None for row in check.signal)
    assert sum(row.log10_gradient is not None for row in check.signal) > 0.7 * len(check.signal)
    serious = {finding.code for finding in check.findings if finding.severity is not ns.Severity.INFO}
    assert serious <= {"stale-statistics"}  # the running statistics of these models were drawn at random
    assert serious or "No problems found" in check.verdict


class TestLeftAsFound:
    def test_buffers_that_hold_activations(self) -> None:
        class Remembers(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 4)
                self.register_buffer("last", torch.zeros(3, 4))

            def forward(self, x: Tensor) -> Tensor:
                self.kept = self.layer(x)
                self.last.copy_(self.kept)
                return self.kept + self.last

        model = Remembers()
        before = snapshot(model)
        watch_signal(model, randn(3, 4))
        assert_same(before, snapshot(model))
        assert model.last.grad_fn is None

    def test_after_an_exception(self) -> None:
        class Falls(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                raise RuntimeError("falls")

        model = nn.Sequential(nn.BatchNorm1d(6), Falls()).train()
        before = snapshot(model)
        with pytest.raises(InputError):
            watch_signal(model, randn(3, 6))
        assert_same(before, snapshot(model))
        assert not nn.modules.module._global_forward_hooks
        assert not nn.modules.module._global_forward_pre_hooks
