"""Faults that no value shows: settings of optimizers, padding, masks, copied targets, signs; and what looks so."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

import normscope as ns

TABLE = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))
NUMBERS = TABLE[:, :1] * TABLE[:, 1:2] + TABLE[:, 2:3]
CLASSES = (TABLE[:, :4] + TABLE[:, 4:].abs()).argmax(1)


def mlp(*widths: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [part for inner, outer in pairwise(widths) for part in (nn.Linear(inner, outer), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def warned(model: nn.Module, data: Any, **options: Any) -> list[tuple[str, str]]:
    result = ns.check(model, data, **options)
    assert ns.Check.from_json(result.to_json()).signal == result.signal
    return [(finding.code, finding.where) for finding in result.findings if finding.severity > ns.Severity.INFO]


Build = Callable[[Any], Optimizer]


@pytest.mark.parametrize(
    ("build", "code"),
    [
        (lambda p: Adam(p, lr=1e-3, betas=(0.99, 0.9)), "step-too-long"),
        (lambda p: Adam(p, lr=1e-6), "step-too-short"),
        (lambda p: SGD(p, lr=1e-3, weight_decay=5.0), "decay-too-strong"),
        (lambda p: SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4), None),
        (lambda p: Adam(p, lr=1e-3, betas=(0.0, 0.9)), None),
        (lambda p: Adam(p, lr=1e-2, weight_decay=1e-4), None),
        (lambda p: AdamW(p, lr=1e-3, weight_decay=0.1), None),
        (lambda p: RMSprop(p, lr=1e-3), None),
    ],
)
def test_settings_that_no_value_of_the_loss_shows(build: Build, code: str | None) -> None:
    model = mlp(8, 64, 64, 4)
    found = warned(model, (TABLE, CLASSES), loss="cross_entropy", optimizer=build(model.parameters()))
    assert found == ([] if code is None else [(code, "the optimizer")])


@pytest.mark.parametrize(("rate", "told"), [(0.5, True), (3e-3, False)])
def test_a_step_that_is_longer_than_the_weights_and_raises_the_loss_by_less_than_twice(rate: float, told: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(30, 16), layer, nn.Linear(16, 30))
    ids = torch.randint(30, (32, 13))
    optimizer = Adam(model.parameters(), lr=rate)
    result = ns.check(model, (ids, ids % 7), loss=lambda o, y: F.cross_entropy(o.mT, y), optimizer=optimizer)
    steps = result.signal.steps
    assert steps.next_loss < 2.5 * steps.loss
    assert (steps.moved_share > 1.0) == told
    assert ("step-too-long" in {finding.code for finding in result.findings}) == told


def test_a_reward_may_be_maximised() -> None:
    model = mlp(8, 32, 4)
    reward = lambda o, y: o.log_softmax(1).gather(1, y[:, None]).mean()  # noqa: E731
    optimizer = Adam(model.parameters(), lr=1e-3, maximize=True)
    assert not warned(model, (TABLE, CLASSES), loss=reward, optimizer=optimizer)


def test_a_loss_of_means() -> None:
    of_means = lambda o, y: (o.mean() - y.mean()).square()  # noqa: E731
    assert warned(mlp(8, 32, 1), (TABLE, NUMBERS), loss=of_means) == [("loss-does-not-fit", "the loss")]
    far = (TABLE, NUMBERS + 9.0)  # every error has the same sign, and the same gradient
    assert not warned(mlp(8, 32, 1), far, loss=lambda o, y: (o - y).abs().mean())
    assert not warned(mlp(8, 32, 1), TABLE, loss=lambda o: -o.mean())  # a critic that is to be convinced


def test_a_loss_by_hand_with_the_wrong_sign() -> None:
    away = lambda o, y: -(o - y).square().mean()  # noqa: E731
    assert ("loss-does-not-fit", "the loss") in warned(mlp(8, 32, 1), (TABLE, NUMBERS), loss=away)
    likelihood = lambda o, y: o.log_softmax(1).gather(1, y[:, None]).mean()  # noqa: E731
    assert ("loss-does-not-fit", "the loss") in warned(mlp(8, 32, 4), (TABLE, CLASSES), loss=likelihood)
    assert not warned(mlp(8, 32, 4), (TABLE, CLASSES), loss=lambda o, y: -likelihood(o, y))


def test_class_numbers_squared_over_an_output_for_each_class() -> None:
    """Also in a batch that lacks some classes, and where labels of -100 count in no loss of torch."""
    some = torch.where(CLASSES == 1, 3, CLASSES)
    for labels in (some, torch.where(CLASSES == 1, -100, CLASSES)):
        squares = lambda o, y: (o - y[:, None].float()).square().mean()  # noqa: E731
        assert ("loss-does-not-fit", "the loss") in warned(mlp(8, 32, 4), (TABLE, labels), loss=squares)
    numbers = torch.where(CLASSES == 1, -3, CLASSES)
    assert not warned(mlp(8, 32, 4), (TABLE, numbers), loss=squares)


def test_a_step_that_replaces_the_weights_is_too_long_whatever_the_loss_does() -> None:
    """The loss of an output that a normalizer keeps at its size hardly rises."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4), nn.BatchNorm1d(4, affine=False))
    optimizer = AdamW([model[0].weight, model[2].weight], lr=3.0)
    (step,) = [x for x in ns.check(model, (TABLE, NUMBERS.sign()), loss="mse", optimizer=optimizer).findings
               if x.code == "step-too-long"]  # fmt: skip
    assert "times their size: AdamW moves each by about the rate" in step.seen


def drawn_convolutions() -> nn.Sequential:
    """Convolutions without biases, drawn from a normal distribution, with a BatchNorm behind each."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(inner, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
              for inner in (3, 16, 16, 16)]  # fmt: skip
    for block in blocks:
        nn.init.normal_(block[0].weight, std=0.1)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))


def test_a_frozen_part_of_a_new_network() -> None:
    """Whatever the weights were drawn from, and one layer between others too; not of a trained one, nor of filters."""
    images = (torch.randn(16, 3, 12, 12, generator=torch.Generator().manual_seed(1)), CLASSES[:16])
    for frozen in ((0, 1, 2), (2,)):
        model = drawn_convolutions()
        for number in frozen:
            model[number][0].requires_grad_(False)
        assert warned(model, images, loss="cross_entropy") == [("frozen-layer", f"{frozen[0]}.0")]
        model[frozen[0]][1].weight.data += 0.1 * torch.rand(16)
        assert not warned(model, images, loss="cross_entropy")
    model = drawn_convolutions()
    model[2][0].requires_grad_(False).weight.copy_(torch.tensor([1.0, -2.0, 1.0]).expand(16, 16, 3, 3))
    model[2][0].weight[::2] *= torch.linspace(-1.0, 1.0, 8)[:, None, None, None]
    assert ("frozen-layer", "2.0") not in warned(model, images, loss="cross_entropy")


def test_a_layer_of_zeros_that_another_reads_alone() -> None:
    """With a normalizer and an activation between; a branch begins at zero in its last layer, which a gate may read."""
    images = (torch.randn(16, 3, 12, 12, generator=torch.Generator().manual_seed(1)), CLASSES[:16])

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.inner, self.outer = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1)
            self.norm, self.gate, self.head = nn.BatchNorm2d(16), nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x).relu()
            branch = self.outer(self.norm(self.inner(x)).relu())
            gate = self.gate(branch.mean((2, 3))).sigmoid()[:, :, None, None]
            return self.head((x + gate * branch).mean((2, 3)))

    for name in ("inner", "outer"):
        torch.manual_seed(0)
        model = Residual()
        nn.init.zeros_(model.get_submodule(name).weight)
        nn.init.zeros_(model.get_submodule(name).bias)
        told = warned(model, images, loss="cross_entropy")
        assert told[:1] == ([("zero-weights", "inner")] if name == "inner" else []), told


def test_two_units_before_many_classes_and_one_before_a_number_are_no_bottleneck() -> None:
    numbers = torch.arange(128) % 8
    assert not warned(mlp(8, 16, 2, 16, 8), (TABLE, numbers), loss="cross_entropy")
    assert not warned(mlp(8, 16, 1), (TABLE, NUMBERS), loss="mse")


def test_a_model_of_which_nothing_trains() -> None:
    model = mlp(8, 16, 4).requires_grad_(False)
    assert warned(model, (TABLE, CLASSES), loss="cross_entropy") == [("frozen-layer", "2")]
    assert not warned(model.eval(), (TABLE, CLASSES), loss="cross_entropy")
    assert not warned(model.train(), TABLE)


def test_one_unit_at_a_scale_of_its_own() -> None:
    model = mlp(8, 64, 64, 1)
    model[4].weight.data *= 100
    assert warned(model, (TABLE, NUMBERS), loss="mse") == [("layer-scale", "4")]
    model[4].weight.data /= 1e4
    assert not warned(model, (TABLE, NUMBERS), loss="mse")  # a last layer may start small


def test_a_whole_layer_that_is_off_needs_few_samples() -> None:
    model = mlp(8, 16, 16, 4)
    nn.init.constant_(model[2].bias, -20.0)
    assert ("dead-relu", "2") in warned(model, (TABLE[:16], CLASSES[:16]), loss="cross_entropy")


def test_a_mean_over_nothing_is_a_loss_that_is_no_number() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        counted = target > 9
        return (F.cross_entropy(output, target, reduction="none") * counted).sum() / counted.sum()

    result = ns.check(mlp(8, 16, 4), (TABLE, CLASSES), loss=loss)  # NaN is nothing in JSON
    assert [finding.code for finding in result.findings if finding.severity > ns.Severity.INFO] == ["loss-not-finite"]


@pytest.mark.parametrize(("dtype", "code"), [(torch.bfloat16, "half-precision"), (torch.float32, None)])
def test_steps_that_are_rounded_away(dtype: torch.dtype, code: str | None) -> None:
    model = mlp(8, 64, 4).to(dtype)
    optimizer = Adam(model.parameters(), lr=3e-5)
    found = warned(model, (TABLE.to(dtype), CLASSES), loss="cross_entropy", optimizer=optimizer)
    assert found == ([] if code is None else [(code, "the optimizer")])


class ReadEarly(nn.Module):
    """A block that returns first what its own layers have read before."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        kept = 2.0 * x + 1.0
        return kept, torch.relu(self.second(torch.relu(self.first(kept))))


class AroundReadEarly(nn.Module):
    """A network around such a block."""

    def __init__(self):
        super().__init__()
        self.start, self.block, self.head = nn.Linear(8, 8), ReadEarly(), nn.Linear(8, 3)

    def forward(self, x):
        kept, made = self.block(torch.relu(self.start(x)))
        return self.head(kept + made)


def test_a_module_may_return_what_layers_before_its_end_have_read():
    checked = ns.check(AroundReadEarly(), torch.randn(64, 8))
    assert not [finding for finding in checked.findings if finding.severity != "info"]
    assert [row.path for row in checked.signal.rows][-2:] == ["block", "head"]
    assert all(feed < number for number, feeds in enumerate(checked.signal.flow.feeds) for feed in feeds)


class WithoutGraph(nn.Module):
    """A network whose forward runs without gradients, as a decorator makes it do."""

    def __init__(self, guard):
        super().__init__()
        self.words, self.head, self.guard = nn.Embedding(10, 8), nn.Linear(8, 3), guard

    def forward(self, x):
        with self.guard():
            return self.head(self.words(x).mean(1))


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_a_forward_without_gradients_is_named_while_it_trains(guard):
    model, x = WithoutGraph(guard), torch.randint(10, (32, 5))
    [finding] = ns.check(model.train(), x).findings
    assert (finding.code, finding.severity, finding.where) == ("gradient-cut", "warning", "head")
    assert not ns.check(model.eval(), x).findings


class NextWord(nn.Module):
    """A causal model of words that takes their labels too, as those of transformers do."""

    def __init__(self):
        super().__init__()
        self.words, self.recurrent, self.head = (
            nn.Embedding(50, 16),
            nn.GRU(16, 16, batch_first=True),
            nn.Linear(16, 50),
        )

    def forward(self, input_ids, attention_mask=None, labels=None):
        return {"logits": self.head(self.recurrent(self.words(input_ids))[0])}


@pytest.mark.parametrize("masked", [False, True])
def test_a_loss_that_shifts_labels_which_are_the_inputs_is_no_leak(masked):
    words = torch.randint(50, (8, 16))
    batch = {"input_ids": words, "labels": words} | ({"attention_mask": torch.ones_like(words)} if masked else {})

    def shifted(made, labels):
        return F.cross_entropy(made["logits"][:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    checked = ns.check(NextWord(), batch, loss=shifted)
    assert not [finding.code for finding in checked.findings if finding.severity != "info"]


class Pair(nn.Module):
    """A network that returns one tensor of scores in a dict, or with a parameter beside it."""

    def __init__(self, *, beside=False):
        super().__init__()
        self.layer, self.temperature, self.beside = nn.Linear(8, 3), nn.Parameter(torch.ones(3)), beside

    def forward(self, x):
        made = self.layer(x) * self.temperature
        return (made, self.temperature) if self.beside else {0: made}


def test_a_loss_of_the_users_gets_what_the_model_returns():
    """`o[0]` of the dict is the tensor, and of the tensor the first sample: both run."""
    model = Pair()
    checked = ns.check(model, TABLE, loss=lambda o: o[0].square().sum())
    assert checked.signal.objective.loss_value == pytest.approx(float(model(TABLE)[0].square().sum()))
    named = ns.check(model, TABLE, loss=lambda o: o[0].square().sum(), output=0)
    assert named.signal.objective.loss_value == pytest.approx(float(model(TABLE)[0][0].square().sum()))
    by_torch = ns.check(model, (TABLE, CLASSES % 3), loss=nn.CrossEntropyLoss())
    assert by_torch.signal.objective.loss_value == pytest.approx(float(F.cross_entropy(model(TABLE)[0], CLASSES % 3)))


def test_a_parameter_that_the_model_returns_keeps_no_hook():
    model = Pair(beside=True)
    ns.check(model, TABLE)
    assert not model.temperature._backward_hooks


class Rescaled(torch.autograd.Function):
    """The identity, whose backward multiplies by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class Backward(nn.Module):
    """Multiplies the gradient alone."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return Rescaled.apply(x, self.factor)


@pytest.mark.parametrize(("factor", "found"), [(1e-7, True), (1e7, True), (1e-3, False), (1e3, False)])
def test_a_gradient_that_is_decades_from_the_others(factor: float, found: bool) -> None:
    first, *others = mlp(8, 32, 32, 4)
    model = nn.Sequential(first, Backward(factor), *others)
    data = TABLE, CLASSES
    assert warned(model, data, loss="cross_entropy") == [("gradient-jump", "0")] * found


def noted(model: nn.Module, data: Any, **options: Any) -> list[tuple[str, str]]:
    result = ns.check(model, data, **options)
    assert not warned(model, data, **options)
    return [(finding.code, finding.where) for finding in result.findings]


def test_a_log_softmax_that_is_applied_twice_does_no_harm_and_is_said() -> None:
    model = nn.Sequential(*mlp(8, 16, 4), nn.LogSoftmax(1))
    assert noted(model, (TABLE, CLASSES), loss="cross_entropy") == [("activation-before-loss", "3")]
    assert noted(model, (TABLE, CLASSES), loss="nll") == []


def test_eval_mode_beside_an_optimizer() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
    options = {"loss": "cross_entropy", "optimizer": Adam(model.parameters())}
    assert noted(model, (TABLE, CLASSES), **options) == []
    assert noted(model, (TABLE, CLASSES), mode="eval", **options) == []
    assert noted(model.eval(), (TABLE, CLASSES), **options) == [("wrong-mode", "2")]
    assert noted(model, (TABLE, CLASSES), loss="cross_entropy") == []


class Several(nn.Module):
    """Scores beside what they are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.body(x).relu()
        return {"logits": self.head(hidden), "hidden": hidden}


@pytest.mark.parametrize("function", [ns.check, ns.audit])
def test_what_was_taken_of_several_outputs_is_said(function: Any) -> None:
    said = "of the tensors that the model returns `logits` is measured; choose another with output="
    assert said in function(Several(), TABLE).notes
    assert said not in function(Several(), TABLE, output="hidden").notes


def test_other_data_at_another_scale_are_no_loss_of_values() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8, eps=1.0), nn.ReLU(), nn.Linear(8, 4))
    assert "gradient-vanishing" not in {code for code, _ in warned(model, TABLE, loader=[1e-4 * TABLE])}
