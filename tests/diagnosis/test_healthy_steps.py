"""Healthy models that a look at the loss, its gradient or the optimizer's step must not take for ill."""

from __future__ import annotations

import inspect
import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.errors import InputError

from ..net import Net


def codes(check: Any) -> set[str]:
    return {finding.code for finding in check.findings if finding.severity != "info"}


def test_the_attention_of_torch_drops_nothing_while_steps_are_tried() -> None:
    layers = [nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2)]
    model, x = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 3)), torch.randn(32, 8, 16)
    steps = ns.check(model, (x, torch.arange(32) % 3), loss="cross_entropy").signal.steps
    assert steps.fall == pytest.approx(1.0, abs=0.1)


class Drawing(nn.Module):
    """Draws from the generators of torch, Python and NumPy, and counts in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 3)
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1.0
        drawn = torch.randn(len(x), 3) + 3.0 * random.random() * x[:, :3] + np.random.rand() * x[:, 3:6]
        return self.last(x) * self.runs + drawn


def test_every_try_draws_the_same_numbers_and_finds_the_same_buffers() -> None:
    batch = torch.randn(32, 8), torch.arange(32) % 3
    assert ns.check(Drawing(), batch, loss="cross_entropy").signal.steps.fall == pytest.approx(1.0, abs=0.1)


def best_line() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    x, y = torch.randn(64, 8), torch.randn(64, 1)
    model = nn.Linear(8, 1)
    best = torch.linalg.lstsq(torch.cat([x, torch.ones(64, 1)], 1).double(), y.double()).solution.float()
    with torch.no_grad():
        model.weight.copy_(best[:8].T)
        model.bias.copy_(best[8])
    return model, (x, y)


def test_a_loss_at_its_least_is_no_fault_of_the_gradient_or_of_the_rate() -> None:
    model, batch = best_line()
    found = ns.check(model, batch, loss="mse", optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    assert not codes(found) & {"gradient-does-not-descend", "no-loss-gradient", "step-too-short"}


def test_a_loss_below_zero_may_fall() -> None:
    model, x = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)), torch.randn(32, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    assert "step-too-long" not in codes(ns.check(model, x, loss=lambda out: out.mean() - 5.0, optimizer=optimizer))


def test_a_rate_that_is_still_warmed_up_is_a_note() -> None:
    model, batch = nn.Linear(8, 3), (torch.randn(32, 8), torch.arange(32) % 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    assert "step-too-short" not in codes(ns.check(model, batch, loss="cross_entropy", optimizer=optimizer))
    torch.optim.lr_scheduler.LinearLR(optimizer, 1e-3, total_iters=1000)
    found = ns.check(model, batch, loss="cross_entropy", optimizer=optimizer)
    assert "step-too-short" not in codes(found)
    note = next(finding for finding in found.findings if finding.code == "step-too-short")
    assert "0.0001" in note.advice


def test_sparse_gradients() -> None:
    model = nn.Sequential(nn.EmbeddingBag(50, 8, sparse=True), nn.Linear(8, 3))
    words = torch.randint(50, (32, 5))
    steps = ns.check(model, (words, words[:, 0] % 3), loss="cross_entropy").signal.steps
    assert steps.fall == pytest.approx(1.0, abs=0.1)


def test_targets_that_do_not_count_are_no_class() -> None:
    out, target = torch.randn(64, 4), torch.arange(64) % 4
    target[8:] = 99
    loss = lambda out, target: F.cross_entropy(out, target, ignore_index=99)  # noqa: E731
    found = ns.check(nn.Linear(4, 4), (out, target), loss=loss)
    assert found.signal.loss.blind == pytest.approx(torch.tensor(4.0).log().item())
    assert found.signal.loss.largest_class == 0.25


def test_the_best_constant_of_a_sum_is_a_sum() -> None:
    x, y = torch.randn(40, 4), torch.randn(40, 2)
    facts = ns.check(nn.Linear(4, 2), (x, y), loss=nn.MSELoss(reduction="sum")).signal.loss
    assert facts.blind == pytest.approx(float((y - y.mean(0)).square().sum()), rel=1e-5)


def test_targets_that_the_loss_makes_are_no_labels() -> None:
    def fool(out: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(out, torch.ones_like(out))

    model, x = nn.Linear(8, 1), torch.randn(32, 8)
    assert "one-class" not in codes(ns.check(model, x, loss=fool))
    assert "one-class" in codes(ns.check(model, (x, torch.ones(32, 1)), loss="bce_with_logits"))


def test_points_that_a_maximum_passes_over_are_not_ignored() -> None:
    batch = torch.randn(8, 256, 3), torch.arange(8) % 3
    model = Net(lambda net, x: net.last(net.each(x).relu().amax(1)), each=nn.Linear(3, 16), last=nn.Linear(16, 3))
    assert codes(ns.check(model, batch, loss="cross_entropy")) == set()


def test_words_without_a_label_are_not_ignored() -> None:
    words = torch.randint(50, (4, 40))
    labels = torch.where(torch.rand(4, 40) < 0.9, -100, words % 5)
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))
    found = ns.check(model, (words, labels), loss=lambda out, y: F.cross_entropy(out.mT, y))
    assert "input-ignored" not in codes(found)


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.GRUCell(4, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 16)
        for step in x.unbind(1):
            state = self.cell(step, state.detach())
        return self.last(state)


def test_steps_before_a_detach_are_said_to_get_no_gradient_and_not_to_be_ignored() -> None:
    found = ns.check(Detached(), (torch.randn(16, 10, 4), torch.arange(16) % 3), loss="cross_entropy")
    assert codes(found) == {"gradient-cut"}


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.randn_like(x)
        return noise, self.last(x + noise)


def test_noise_that_is_handed_out_beside_the_output_is_no_output() -> None:
    assert codes(ns.check(Denoiser(), torch.randn(32, 8), loss=lambda out: F.mse_loss(out[1], out[0]))) == set()


class Modulated(nn.Module):
    """A modulation and a last layer that both start at zero: the last layer opens first, and then the other."""

    def __init__(self) -> None:
        super().__init__()
        self.modulation, self.inner, self.last = nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        for layer in (self.modulation, self.last):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        return self.last(torch.tanh(self.inner(x * (1 + self.modulation(c)))))


def test_zeros_that_open_one_after_the_other_are_a_start() -> None:
    inputs = {"x": torch.randn(32, 16), "c": torch.randn(32, 4)}
    assert codes(ns.check(Modulated(), (inputs, torch.randn(32, 16)), loss="mse")) == set()


class Slope(nn.Module):
    """A network that differentiates itself in its forward, as those of physics do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x if x.requires_grad else x.requires_grad_(True)
        value = self.inner(x)
        return value, torch.autograd.grad(value.sum(), x, create_graph=True)[0]


def test_a_forward_that_differentiates() -> None:
    loss = lambda out: (out[0] + out[1]).square().mean()  # noqa: E731
    assert codes(ns.check(Slope(), torch.linspace(-1, 1, 32)[:, None], loss=loss)) == set()


class Centred(nn.Module):
    """A loss that keeps a running centre and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))
        self.calls: list[int] = []

    def forward(self, out: Tensor, target: Tensor) -> Tensor:
        self.centre.mul_(0.9).add_(out.detach().mean(0))
        self.calls.append(len(out))
        return F.cross_entropy(out - self.centre, target)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_loss_is_left_as_found(wrapped: bool) -> None:
    inner = Centred()
    loss = (lambda out, target: inner(out, target)) if wrapped else inner
    ns.check(nn.Linear(8, 3), (torch.randn(32, 8), torch.arange(32) % 3), loss=loss)
    assert inner.calls == []
    assert not inner.centre.any()


@pytest.mark.parametrize("function", [ns.check, ns.audit])
def test_what_is_no_optimizer_is_refused(function: Any) -> None:
    model, batch = nn.Linear(8, 3), (torch.randn(32, 8), torch.arange(32) % 3)
    several = [torch.optim.SGD(model.parameters(), lr=0.1), model.parameters()]
    with pytest.raises(InputError, match="optimizer is a generator"):
        function(model, batch, loss="cross_entropy", optimizer=several)


def test_several_arguments_may_stand_in_a_tuple_or_a_dict_beside_the_labels() -> None:
    model, one, other, labels = Modulated(), torch.randn(32, 16), torch.randn(32, 4), torch.randn(32, 16)
    names = [*inspect.signature(model.forward).parameters]
    batches = ((one, other), labels), (dict(zip(names, (one, other))), labels), (one, other, labels)
    first, *others = (ns.check(model, batch, loss="mse").signal.loss.value for batch in batches)
    assert others == [first, first]


def test_a_loss_that_does_not_repeat_has_no_steps() -> None:
    calls = itertools.count()  # what an iterator has given cannot be put back

    batch = torch.randn(32, 8), torch.arange(32) % 3
    model = Net(lambda net, x: net.last(x) * (1.0 + 0.01 * (next(calls) % 7)), last=nn.Linear(8, 3))
    assert ns.check(model, batch, loss="cross_entropy").signal.steps.fall is None
