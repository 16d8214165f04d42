"""Faults of rarer kinds and healthy models beside them that look alike: each finding names the right place and mend."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

import normscope as ns
from normscope.doctor.facts.data import DataSeen
from normscope.doctor.facts.examined import Examined
from normscope.doctor.facts.freshness import is_fresh
from normscope.doctor.facts.loss import LossFacts
from normscope.doctor.facts.objective import ObjectiveFacts
from normscope.doctor.facts.pass_facts import PassFacts
from normscope.doctor.facts.steps import StepFacts
from normscope.doctor.symptoms.optimizer_steps import _is_too_long, check_next_step


def warned(model: nn.Module, batch: Any, **options: Any) -> dict[str, Any]:
    """Return the warnings and errors of a check by their code."""
    result = ns.check(model, batch, **options)
    return {finding.code: finding for finding in result.findings if finding.severity > ns.Severity.INFO}


def series(count: int = 32, steps: int = 20, features: int = 4) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(count, steps, features), torch.arange(count) % 3


class Recurrence(nn.Module):
    """A diagonal linear recurrence, written as a loop."""

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 16), nn.Linear(16, 3)
        self.decay = nn.Parameter(torch.full((16,), decay))

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 16)
        for step in x.unbind(1):
            state = self.decay * state + self.enter(step)
        return self.leave(state)


@pytest.mark.parametrize(("decay", "told"), [(0.1, True), (0.95, False), (0.6, False), (1.9, True)])
def test_the_gradients_of_the_steps_show_a_recurrence_that_forgets_or_grows(decay: float, told: bool) -> None:
    x, y = series()
    found = warned(Recurrence(decay), (x, y), loss="cross_entropy")
    assert ("recurrent-scale" in found) == told
    if told:
        assert found["recurrent-scale"].where == "decay"
        assert found["recurrent-scale"].numbers["gain"] == pytest.approx(decay, rel=0.2)


class Skipping(nn.Module):
    """Blocks that are left out at random by Python's generator, in training."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(nn.Linear(8, 8) for _ in range(12)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            if not self.training or random.random() > 0.5:
                x = x + torch.relu(block(x))
        return self.head(x)


def test_blocks_that_chance_leaves_out_are_not_unused_and_generators_stay_as_they_were() -> None:
    random.seed(5)
    before = random.getstate()
    batch = (torch.randn(32, 8), torch.arange(32) % 3)
    assert "unused-parameter" not in warned(Skipping(), batch, loss="cross_entropy")
    assert random.getstate() == before

    class Forgetting(Skipping):
        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks[:-1]:
                x = x + torch.relu(block(x))
            return self.head(x)

    assert warned(Forgetting(), batch, loss="cross_entropy")["unused-parameter"].where == "blocks.11"


class Settings(dict[str, float]):
    """Settings that are read as attributes; one that is missing is an error of a dict."""

    __getattr__ = dict.__getitem__

    def __call__(self) -> None:
        """Do nothing."""


class Listing(type):
    """Names a member that its classes do not have."""

    def __dir__(cls) -> list[str]:
        return ["missing", *super().__dir__()]


class Optional(nn.Module, metaclass=Listing):
    """A layer that a comprehension runs if it is asked for, in a class with members that raise."""

    settings = Settings(rate=1.0)

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.first, self.more, self.steps = nn.Linear(8, 3), nn.Linear(8, 3), steps

    @property
    def padding_idx(self) -> int:
        """Raise what is no AttributeError."""
        raise RuntimeError("no tokens")

    def forward(self, x: Tensor) -> Tensor:
        return sum([self.more(x) for _ in range(self.steps)], start=self.first(x))


def test_a_layer_that_a_comprehension_names_is_used_for_other_options() -> None:
    assert warned(Optional(0), (torch.randn(32, 8), torch.arange(32) % 3), loss="cross_entropy") == {}


def test_a_fixed_graph_that_refuses_fewer_nodes_is_left_alone() -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("edges", torch.randint(40, (2, 160)))
            self.enter, self.leave = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.enter(x))
            return self.leave(x + torch.zeros_like(x).index_add(0, self.edges[1], x[self.edges[0]]))

    assert "samples-mixed" not in warned(Graph(), (torch.randn(40, 8), torch.arange(40) % 3), loss="cross_entropy")


def test_pairs_beyond_a_margin_need_no_gradient() -> None:
    """They have none, as a hinge with zeros has; but their loss is zero."""
    alike = (torch.arange(64) % 2).float()

    def contrastive(distance: Tensor, alike: Tensor) -> Tensor:
        return (alike * distance.square() + (1 - alike) * F.relu(0.1 - distance).square()).mean()

    model = nn.Sequential(nn.Linear(8, 1), nn.Softplus(), nn.Flatten(0))
    assert "no-loss-gradient" not in warned(model, (torch.randn(64, 8), alike), loss=contrastive)


def test_a_layer_that_runs_again_near_the_output_learns_there() -> None:
    class Tanh(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.turn, self.leave = nn.Linear(4, 32), nn.Linear(32, 32), nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Tensor:
            state = x.new_zeros(len(x), 32)
            for step in x.unbind(1):
                state = torch.tanh(self.enter(step) + self.turn(state))
            return self.leave(state)

    assert "gradient-vanishing" not in warned(Tanh(), series(steps=40), loss="cross_entropy")


def test_a_loss_of_soft_targets_is_compared_above_its_least_value() -> None:
    x = torch.randn(64, 4)
    target = torch.sigmoid(0.3 * x)
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight.copy_(0.3 * torch.eye(4) + 2.0 * torch.eye(4).roll(1, 0) * 1e-3)
        model.bias.fill_(1e-3)
    facts = ns.check(model, (x, target), loss="bce_with_logits").signal.loss
    assert facts.value / facts.blind > 0.97
    assert facts.share_of_blind < 0.01


@pytest.mark.parametrize(("off", "told"), [(70, False), (95, True)])
def test_a_lively_relu_may_have_more_than_half_of_its_units_off(off: int, told: bool) -> None:
    """On pixels all units with negative weights are off; what is on hands on most of the size, or little of it."""
    model = nn.Sequential(nn.Linear(8, 100), nn.ReLU(), nn.Linear(100, 3))
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight.abs() * torch.where(torch.arange(100) < off, -1.0, 1.0)[:, None])
        model[0].bias.zero_()
    batch = (torch.rand(128, 8) + 0.5, torch.arange(128) % 3)
    result = ns.check(model, batch, loss="cross_entropy")
    severities = [finding.severity for finding in result.findings if finding.code == "dead-relu"]
    assert severities == [ns.Severity.WARNING if told else ns.Severity.INFO]


def test_statistics_that_do_no_harm_are_a_note() -> None:
    x = torch.randn(96, 6)
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2, bias=False)).eval()
    y = (x[:, 0] > 0).long()
    with torch.no_grad():
        model[0].running_mean += 0.9 * torch.tensor([0.0, 1, 1, 1, 1, 1])
        model[1].weight.zero_()
        model[1].weight[:, 0] = torch.tensor([-20.0, 20.0])
    found = ns.check(model, (x, y), loss="cross_entropy").findings
    assert [finding.severity for finding in found if finding.code == "stale-statistics"] == [ns.Severity.INFO]
    assert "stale-statistics" in warned(model, (x, 1 - y), loss="cross_entropy")


def test_normalizers_as_they_were_born_make_a_model_fresh() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    nn.init.normal_(model[3].weight, std=5.0)
    assert is_fresh(model)
    with torch.no_grad():
        model[1].weight[0] += 1e-3
    assert not is_fresh(model)


def test_hooks_on_all_optimizers_do_not_hear_the_step_of_a_copy() -> None:
    model, heard = nn.Linear(8, 3), []
    handle = register_optimizer_step_post_hook(lambda *_: heard.append(1))
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        result = ns.check(model, (torch.randn(32, 8), torch.arange(32) % 3), loss="cross_entropy", optimizer=optimizer)
        assert not heard
        assert result.signal.steps.next_loss is not None
        optimizer.step()
        assert heard == [1]
    finally:
        handle.remove()


def test_what_was_not_tried_is_said_with_the_reason() -> None:
    model = nn.Linear(8, 3)
    optimizer = torch.optim.LBFGS(model.parameters())
    result = ns.check(model, (torch.randn(32, 8), torch.arange(32) % 3), loss="cross_entropy", optimizer=optimizer)
    assert any(what == "a step of the optimizer" and "closure" in reason for what, reason in result.skipped)


def test_a_small_loss_that_grows_by_less_than_a_blind_guess_has_not_risen_far() -> None:
    facts = LossFacts(
        name="mse", value=0.01, blind=1.0, last="", output_shape=(8, 1), target_shape=(8, 1), output_least=-1.0,
        output_greatest=1.0, output_size=1.0, target_least=-1.0, target_greatest=1.0, target_size=1.0,
        probabilities=False, log_probabilities=False, whole_targets=0,
    )  # fmt: skip
    assert not _is_too_long(StepFacts(loss=0.01, next_loss=0.5), facts)
    assert _is_too_long(StepFacts(loss=0.01, next_loss=1.5), facts)
    assert _is_too_long(StepFacts(loss=0.01, next_loss=0.5), replace(facts, blind=None))
    steps = StepFacts(loss=0.01, next_loss=0.5, optimizer="SGD", rate=0.1)
    signal = PassFacts(
        rows=(),
        objective=ObjectiveFacts(gradient_of="the loss"),
        samples=8,
        forwards=1,
        backwards=1,
        loss=facts,
        steps=steps,
    )
    examined = Examined(
        model=nn.Identity(), mode="train", places=(), data=DataSeen(samples=8, batches=1), signal=signal
    )
    assert not list(check_next_step(examined))


@pytest.mark.parametrize("loss", [lambda o, y: nn.functional.cross_entropy(o["logits"], y), nn.CrossEntropyLoss()])
def test_a_loss_gets_the_one_output_or_what_the_model_returns(loss):
    class Dictionary(nn.Linear):
        def forward(self, x):
            return {"logits": super().forward(x)}

    x = torch.linspace(-1, 1, 160).reshape(32, 5)
    check = ns.check(Dictionary(5, 3), (x, torch.arange(32) % 3), loss=loss)
    assert "loss-not-finite" not in [finding.code for finding in check.findings]
    assert check.signal.loss.value == pytest.approx(1.1, abs=0.3)
