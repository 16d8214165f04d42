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
from normscope.diagnosis.descent_pass import StepFacts
from normscope.diagnosis.examined import DataSeen, Examined
from normscope.diagnosis.findings.steps import _is_too_long, next_step
from normscope.diagnosis.loss_facts import LossFacts, is_fresh
from normscope.diagnosis.signal import Signal


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


class Pooling(nn.Module):
    """Attention of one query over tokens, of which zeros are padding."""

    def __init__(self, fill: float, size: float = 0.2) -> None:
        super().__init__()
        self.fill, self.words, self.query = fill, nn.Embedding(20, 16), nn.Parameter(size * torch.randn(16))
        self.key, self.value, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        weights = torch.einsum("nld,d->nl", self.key(x), self.query).masked_fill(ids == 0, self.fill).softmax(1)
        return self.head((weights[..., None] * self.value(x)).sum(1))


@pytest.mark.parametrize(("fill", "told"), [(1e-9, True), (-1.0, True), (-1e9, False), (-torch.inf, False)])
def test_a_mask_hides_only_with_a_large_negative_number(fill: float, told: bool) -> None:
    torch.manual_seed(0)
    ids = F.pad(torch.randint(1, 20, (32, 5)), (0, 15))
    assert ("mask-leaks" in warned(Pooling(fill), (ids, torch.arange(32) % 2), loss="cross_entropy")) == told


@pytest.mark.parametrize(("size", "told"), [(50.0, True), (0.2, False)])
def test_a_fresh_softmax_that_looks_at_one_entry_is_named_by_the_layer_before_it(size: float, told: bool) -> None:
    torch.manual_seed(1)
    found = warned(
        Pooling(-torch.inf, size), (torch.randint(1, 20, (48, 12)), torch.arange(48) % 2), loss="cross_entropy"
    )
    assert ("attention-saturated" in found) == told
    assert not told or found["attention-saturated"].where == "key"


class Thrown(nn.Module):
    """Normalizes its input, and may go on without the result."""

    def __init__(self, thrown: bool) -> None:
        super().__init__()
        self.thrown, self.norm, self.net = thrown, nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        normalized = self.norm(x)
        return self.net(x if self.thrown else normalized)


def test_a_result_that_nothing_reads_is_unused_and_the_raw_input_is_seen() -> None:
    torch.manual_seed(0)
    batch = (500 + 200 * torch.randn(64, 8), torch.arange(64) % 3)
    found = warned(Thrown(True), batch, loss="cross_entropy")
    assert found["unused-parameter"].where == "norm"
    assert "input-scale" in found
    assert "gradient-cut" not in found
    assert not {"unused-parameter", "input-scale"} & warned(Thrown(False), batch, loss="cross_entropy").keys()


class Loop(nn.Module):
    """A cell in a loop, whose state may be detached at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 16)
        for step in x.unbind(1):
            state = self.cell(step, state.detach())
        return self.head(state)


def test_a_state_that_is_detached_is_named_by_its_layer() -> None:
    assert warned(Loop(), series(), loss="cross_entropy")["gradient-cut"].where == "cell"


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
    torch.manual_seed(0)
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


def test_samples_that_were_exchanged_with_features_are_found_though_fewer_are_refused() -> None:
    class Exchanged(nn.Module):
        def __init__(self, axis: int) -> None:
            super().__init__()
            self.axis, self.enter, self.mix, self.head = axis, nn.Linear(4, 6), nn.Linear(16, 16), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.enter(x)
            return self.head((x + self.mix(x.transpose(self.axis, 2)).transpose(self.axis, 2)).mean(1))

    torch.manual_seed(0)
    batch = (torch.randn(16, 16, 4), torch.arange(16) % 3)
    assert warned(Exchanged(0), batch, loss="cross_entropy")["samples-mixed"].where == "mix"
    assert "samples-mixed" not in warned(Exchanged(1), batch, loss="cross_entropy")


class Tagger(nn.Module):
    """Labels for all tokens; torch's attention takes the first axis for time unless it is told otherwise."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30, 16), nn.Parameter(torch.randn(10, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=batch_first)
        self.head = nn.Linear(16, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layer(self.words(ids) + self.places)).mT


@pytest.mark.parametrize("batch_first", [False, True])
def test_attention_over_the_batch_is_told_from_time_first_by_order(batch_first: bool) -> None:
    """Rows that come out in the order in which they go in are no steps of time."""
    torch.manual_seed(0)
    ids = torch.randint(30, (12, 10))
    assert ("samples-mixed" in warned(Tagger(batch_first), (ids, ids % 5), loss="cross_entropy")) != batch_first


def test_a_fixed_graph_that_refuses_fewer_nodes_is_left_alone() -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("edges", torch.randint(40, (2, 160)))
            self.enter, self.leave = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.enter(x))
            return self.leave(x + torch.zeros_like(x).index_add(0, self.edges[1], x[self.edges[0]]))

    torch.manual_seed(0)
    assert "samples-mixed" not in warned(Graph(), (torch.randn(40, 8), torch.arange(40) % 3), loss="cross_entropy")


@pytest.mark.parametrize(("factor", "told"), [(1.0, True), (4.0, False)])
def test_limits_of_outputs_are_seen_behind_a_factor(factor: float, told: bool) -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.net(x)) * factor

    torch.manual_seed(0)
    batch = (torch.randn(64, 8), torch.linspace(-4, 4, 64)[:, None])
    assert ("targets-out-of-range" in warned(Policy(), batch, loss="mse")) == told


@pytest.mark.parametrize(("factor", "told"), [(1.0, True), (10.0, False)])
def test_a_cosine_as_a_logit(factor: float, told: bool) -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.shift = nn.Linear(8, 16), nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return factor * F.cosine_similarity(self.net(x[:, 0]), self.net(x[:, 1])) + self.shift

    torch.manual_seed(0)
    batch = (torch.randn(64, 2, 8), (torch.arange(64) % 2).float())
    assert ("activation-before-loss" in warned(Pairs(), batch, loss="bce_with_logits")) == told


def test_padding_that_the_loss_counts() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 16), nn.ReLU(), nn.Linear(16, 20))
    ids = F.pad(torch.randint(1, 20, (16, 4)), (0, 16))

    def counting(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), target.flatten())

    def ignoring(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=0)

    assert "ignore_index" in warned(model, (ids, ids), loss=counting)["one-class"].advice
    assert "one-class" not in warned(model, (ids, ids), loss=ignoring)


def test_a_mask_that_leaves_nothing_of_the_loss() -> None:
    torch.manual_seed(0)
    batch = (torch.randn(32, 8), torch.arange(32) % 3)

    def empty(output: Tensor, target: Tensor) -> Tensor:
        return (F.cross_entropy(output, target, reduction="none") * (target < 0)).sum()

    assert "mask" in warned(nn.Linear(8, 3), batch, loss=empty)["no-loss-gradient"].advice


def test_a_log_softmax_over_time_and_numbers_of_tags_as_numbers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 4, 1), nn.LogSoftmax(-1))
    batch = (torch.randn(16, 3, 10), torch.randint(4, (16, 10)))
    finding = warned(model, batch, loss="nll")["loss-does-not-fit"]
    assert finding.where == "3"
    assert "dim=1" in finding.advice
    tagger = nn.Sequential(nn.Embedding(30, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(1))
    ids = torch.randint(30, (16, 10))
    found = warned(tagger, (ids, ids % 5), loss=lambda output, target: F.mse_loss(output, target.float()))
    assert "one output per class" in found["loss-does-not-fit"].advice
    assert not warned(tagger, (ids, (ids % 5).float()), loss="mse")


@pytest.mark.parametrize(("low", "told"), [(0.0, True), (-1.0, False)])
def test_a_hinge_with_zeros(low: float, told: bool) -> None:
    torch.manual_seed(0)
    target = torch.where(torch.arange(64) % 2 == 0, low, 1.0)[:, None]
    found = warned(nn.Linear(8, 1), (torch.randn(64, 8), target), loss=lambda o, t: F.relu(1 - o * t).mean())
    assert ("no-loss-gradient" in found) == told


def test_pairs_beyond_a_margin_need_no_gradient() -> None:
    """They have none, as a hinge with zeros has; but their loss is zero."""
    torch.manual_seed(0)
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
    torch.manual_seed(0)
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
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 100), nn.ReLU(), nn.Linear(100, 3))
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight.abs() * torch.where(torch.arange(100) < off, -1.0, 1.0)[:, None])
        model[0].bias.zero_()
    batch = (torch.rand(128, 8) + 0.5, torch.arange(128) % 3)
    result = ns.check(model, batch, loss="cross_entropy")
    severities = [finding.severity for finding in result.findings if finding.code == "dead-relu"]
    assert severities == [ns.Severity.WARNING if told else ns.Severity.INFO]


def test_statistics_that_do_no_harm_are_a_note() -> None:
    torch.manual_seed(0)
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


def test_one_head_several_times() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, head = nn.Linear(8, 16), nn.Linear(16, 1)
            self.heads = nn.ModuleList([head] * 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([head(torch.relu(self.trunk(x))) for head in self.heads], 1)

    torch.manual_seed(0)
    found = warned(Heads(), (torch.randn(32, 8), torch.arange(32) % 4), loss="cross_entropy")
    assert found["equal-units"].where == "heads.0"
    assert "no-loss-gradient" not in found


def test_hard_limits_saturate() -> None:
    torch.manual_seed(0)
    tight = nn.Sequential(nn.Linear(8, 32), nn.Hardtanh(-0.01, 0.01), nn.Linear(32, 1))
    usual = nn.Sequential(nn.Linear(8, 32), nn.Hardtanh(), nn.Linear(32, 1))
    batch = (torch.randn(64, 8), torch.randn(64, 1))
    assert warned(tight, batch, loss="mse")["saturated-units"].where == "1"
    assert "saturated-units" not in warned(usual, batch, loss="mse")


def test_the_mean_of_what_a_normalizer_centred_is_named_by_the_normalizer() -> None:
    torch.manual_seed(0)
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)]
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.InstanceNorm2d(8, affine=True), *pooled)
    finding = warned(model, (torch.randn(32, 1, 8, 8), torch.arange(32) % 3), loss="cross_entropy")["output-constant"]
    assert finding.where == "1"
    assert "activation between" in finding.advice


def test_both_factors_at_zero_cannot_open() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(8, 8).requires_grad_(False)
            nn.init.normal_(self.base.weight)
            self.a, self.b = nn.Parameter(torch.zeros(4, 8)), nn.Parameter(torch.zeros(8, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + x @ self.a.T @ self.b.T

    torch.manual_seed(0)
    model = nn.Sequential(Adapted())
    found = warned(model, (torch.randn(32, 8), torch.arange(32) % 8), loss="cross_entropy")
    assert found["zero-weights"].where == "0"
    nn.init.normal_(model[0].a)
    assert "zero-weights" not in warned(model, (torch.randn(32, 8), torch.arange(32) % 8), loss="cross_entropy")


def test_weights_that_have_decayed_are_named_and_small_fresh_ones_are_not() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    batch = (torch.randn(64, 8), torch.arange(64) % 3)
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.mul_(1e-5)
            layer.bias.mul_(1e-5)
    assert "weight decay" in warned(model, batch, loss="cross_entropy")["zero-weights"].advice


def test_normalizers_as_they_were_born_make_a_model_fresh() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    nn.init.normal_(model[3].weight, std=5.0)
    assert is_fresh(model)
    with torch.no_grad():
        model[1].weight[0] += 1e-3
    assert not is_fresh(model)


def test_a_loud_column_is_not_scaled_by_a_batch_norm_over_steps_but_inside_of_the_model() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 6, 4)
    x[..., 2] += 3000
    steps = nn.Sequential(nn.BatchNorm1d(6), nn.Flatten(), nn.Linear(24, 3))
    y = torch.arange(32) % 3
    assert warned(steps, (x, y), loss="cross_entropy")["input-columns"].where == "0"

    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.net((x - x.mean((0, 1))) / x.std((0, 1))).mean(1)

    assert "input-columns" not in warned(Inside(), (x, y), loss="cross_entropy")


def test_hooks_on_all_optimizers_do_not_hear_the_step_of_a_copy() -> None:
    torch.manual_seed(0)
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
    torch.manual_seed(0)
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
    signal = Signal(rows=(), gradient_of="the loss", samples=8, forwards=1, backwards=1, loss=facts, steps=steps)
    examined = Examined(
        model=nn.Identity(), mode="train", places=(), data=DataSeen(samples=8, batches=1), signal=signal
    )
    assert not list(next_step(examined))


def test_nan_in_the_input_is_the_inputs():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.linspace(-1, 1, 160).reshape(32, 5)
    x[3, 2] = torch.nan
    finding = ns.check(model, (x, torch.arange(32) % 3), loss="cross_entropy").findings[0]
    assert (finding.code, finding.where) == ("non-finite-activations", "input")
    assert finding.advice.startswith("Look at the data")


@pytest.mark.parametrize("loss", [lambda o, y: nn.functional.cross_entropy(o["logits"], y), nn.CrossEntropyLoss()])
def test_a_loss_gets_the_one_output_or_what_the_model_returns(loss):
    class Dictionary(nn.Linear):
        def forward(self, x):
            return {"logits": super().forward(x)}

    x = torch.linspace(-1, 1, 160).reshape(32, 5)
    check = ns.check(Dictionary(5, 3), (x, torch.arange(32) % 3), loss=loss)
    assert "loss-not-finite" not in [finding.code for finding in check.findings]
    assert check.signal.loss.value == pytest.approx(1.1, abs=0.3)
