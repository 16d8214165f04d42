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
        (lambda p: Adam(p, lr=3e-3, maximize=True), "step-too-long"),
        (lambda p: SGD(p, lr=0.01, momentum=1.0), "step-too-long"),
        (lambda p: Adam(p, lr=1e-3, betas=(0.999, 0.9)), "step-too-long"),
        (lambda p: SGD(p, 0.9, 0.01), "step-too-long"),
        (lambda p: Adam(p, lr=1e-3, eps=1.0), "step-too-short"),
        (lambda p: Adam(p, lr=1e-3, weight_decay=10.0), "decay-too-strong"),
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
    torch.manual_seed(0)
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


class Reader(nn.Module):
    """Reads padded rows of words by a recurrent layer, a mean or a sum, with or without the padding."""

    def __init__(self, how: str, *, masked: bool, padding_idx: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(40, 16, padding_idx=padding_idx), nn.Linear(16, 2)
        self.recurrent = nn.GRU(16, 16, batch_first=True) if how == "state" else None
        self.how, self.masked = how, masked

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores."""
        x, keep = self.words(ids), (ids != 0).float()[..., None]
        if self.recurrent is not None:
            last = (ids != 0).sum(1) - 1 if self.masked else torch.full((len(ids),), ids.shape[1] - 1)
            return self.head(self.recurrent(x)[0][torch.arange(len(ids)), last])
        if self.how == "sum":
            return self.head(x.sum(1))
        return self.head((x * keep).sum(1) / keep.sum(1) if self.masked else x.mean(1))


def padded(length: int, most: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(1, 40, (64, length))
    return ids * (torch.arange(length) < torch.randint(most // 2, most, (64, 1))), torch.arange(64) % 2


@pytest.mark.parametrize("how", ["mean", "state"])
def test_padding_that_is_read_like_words(how: str) -> None:
    assert warned(Reader(how, masked=False), padded(60, 9), loss="cross_entropy") == [("mask-leaks", "words")]
    assert not warned(Reader(how, masked=True), padded(60, 9), loss="cross_entropy")
    assert not warned(Reader(how, masked=False), padded(20, 18), loss="cross_entropy")  # a little does no harm


def test_a_sum_of_vectors_of_zero_is_none_of_the_words() -> None:
    assert not warned(Reader("sum", masked=False, padding_idx=0), padded(60, 9), loss="cross_entropy")


def test_padding_of_vectors() -> None:
    class Series(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.recurrent, self.head = nn.GRU(5, 16, batch_first=True), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.recurrent(x)[0][:, -1])

    torch.manual_seed(1)
    used = torch.arange(40)[None, :, None] < torch.randint(4, 9, (64, 1, 1))
    series = torch.randn(64, 40, 5)
    assert warned(Series(), (series * used, torch.arange(64) % 2), loss="cross_entropy") == [("mask-leaks", "input")]
    assert not warned(Series(), (series, torch.arange(64) % 2), loss="cross_entropy")


@pytest.mark.parametrize("inverted", [True, False])
def test_a_mask_that_hides_the_words(inverted: bool) -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words, self.head = nn.Embedding(40, 16), nn.Linear(16, 2)
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

        def forward(self, ids: Tensor) -> Tensor:
            hidden = (ids == 0) != inverted
            return self.head(self.layer(self.words(ids), src_key_padding_mask=hidden)[:, 0])

    expected = [("mask-leaks", "layer.self_attn")] if inverted else []
    assert warned(Encoder(), padded(24, 12), loss="cross_entropy") == expected


@pytest.mark.parametrize("inverted", [True, False])
def test_an_attention_mask_against_the_labels(inverted: bool) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words, self.head = nn.Embedding(40, 16), nn.Linear(16, 5)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return self.head(self.words(input_ids) + attention_mask[..., None])

    ids, used = torch.randint(40, (32, 12)), torch.arange(12) < torch.randint(6, 12, (32, 1))
    batch = {"input_ids": ids, "attention_mask": (used != inverted).long()}
    found = warned(Tagger(), (batch, (ids % 5).where(used, -100)), loss=lambda o, y: F.cross_entropy(o.mT, y))
    assert (("mask-leaks", "attention_mask") in found) == inverted


class Language(nn.Module):
    """Predicts from the words up to each."""

    def __init__(self, both: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(40, 16), nn.Linear(32 if both else 16, 40)
        self.recurrent = nn.GRU(16, 16, batch_first=True, bidirectional=both)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of each step."""
        return self.head(self.recurrent(self.words(ids))[0])


def test_targets_that_are_the_inputs() -> None:
    ids = torch.randint(40, (32, 13), generator=torch.Generator().manual_seed(0))
    by_step = lambda o, y: F.cross_entropy(o.mT, y)  # noqa: E731
    shifting = lambda o, y: F.cross_entropy(o[:, :-1].mT, y[:, 1:])  # noqa: E731
    assert warned(Language(), (ids, ids), loss=by_step) == [("labels-are-inputs", "the targets")]
    assert not warned(Language(), (ids, ids), loss=shifting)
    assert not warned(Language(), (ids[:, :-1], ids[:, 1:]), loss=by_step)
    assert not warned(Language(both=True), (ids, ids), loss=by_step)  # an autoencoder may look so


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


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_divergence_with_the_wrong_sign(sign: float) -> None:
    class Variational(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = mlp(8, 32, 8), mlp(4, 32, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            mean, logvar = self.encoder(x).chunk(2, 1)
            return self.decoder(mean + torch.randn_like(mean) * (0.5 * logvar).exp()), mean, logvar

    def loss(made: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        again, mean, logvar = made
        divergence = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(1).mean()
        return F.mse_loss(again, x) + sign * 0.1 * divergence

    assert (("loss-does-not-fit", "the loss") in warned(Variational(), (TABLE, TABLE), loss=loss)) == (sign < 0)


def test_one_unit_before_many_classes() -> None:
    numbers = torch.arange(128) % 8
    assert warned(mlp(8, 16, 1, 16, 8), (TABLE, numbers), loss="cross_entropy") == [("bottleneck", "2")]
    assert not warned(mlp(8, 16, 2, 16, 8), (TABLE, numbers), loss="cross_entropy")
    assert not warned(mlp(8, 16, 1), (TABLE, NUMBERS), loss="mse")


def test_a_network_of_weights_and_poolings() -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(32, 1, 8, 8), torch.arange(32) % 4
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, stride=2), nn.AdaptiveAvgPool2d(1)]
    head = [nn.Flatten(), nn.Linear(8, 4)]
    expected = [("missing-activation", "2"), ("missing-activation", "5")]
    assert warned(nn.Sequential(*layers, *head), (images, labels), loss="cross_entropy") == expected
    bent = nn.Sequential(layers[0], nn.ReLU(), *layers[1:3], nn.ReLU(), layers[3], *head)
    assert not warned(bent, (images, labels), loss="cross_entropy")


def test_a_model_of_which_nothing_trains() -> None:
    model = mlp(8, 16, 4).requires_grad_(False)
    assert warned(model, (TABLE, CLASSES), loss="cross_entropy") == [("frozen-layer", "2")]
    assert not warned(model.eval(), (TABLE, CLASSES), loss="cross_entropy")
    assert not warned(model.train(), TABLE)


class Painter(nn.Module):
    """A generator and the fresh discriminator that judges it."""

    def __init__(self, *, detached: bool = False) -> None:
        super().__init__()
        self.generator, self.critic = mlp(8, 32, 32), mlp(32, 32, 1).requires_grad_(False)
        self.detached = detached

    def forward(self, noise: Tensor) -> Tensor:
        """Return what the discriminator says."""
        fakes = self.generator(noise)
        return self.critic(fakes.detach() if self.detached else fakes)


def test_a_discriminator_that_does_not_train_in_the_step_of_the_generator() -> None:
    for data, loss in ((TABLE, lambda o: -o.mean()), ((TABLE, torch.ones(128, 1)), "bce_with_logits")):
        assert not warned(Painter(), data, loss=loss)
        assert warned(Painter(detached=True), data, loss=loss) == [("no-loss-gradient", "generator.2")]


def test_the_right_side_of_an_equation_may_be_zero() -> None:
    class Equation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, t: Tensor) -> Tensor:
            t = t if t.requires_grad else t.requires_grad_()
            u = self.net(t)
            return torch.autograd.grad(u.sum(), t, create_graph=True)[0] + u

    assert not warned(Equation(), (torch.linspace(-1, 1, 64)[:, None], torch.zeros(64, 1)), loss="mse")


def test_a_cell_that_is_not_given_its_state() -> None:
    class Loop(nn.Module):
        def __init__(self, carried: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.cell, self.head, self.carried = nn.GRUCell(4, 16), nn.Linear(16, 4), carried

        def forward(self, x: Tensor) -> Tensor:
            state, sums = None, 0.0
            for step in x.unbind(1):
                state = self.cell(step, state if self.carried else None)
                sums = sums + state
            return self.head(sums / x.shape[1])

    series = torch.randn(64, 6, 4, generator=torch.Generator().manual_seed(0))
    assert warned(Loop(False), (series, torch.arange(64) % 4), loss="cross_entropy") == [("recurrent-scale", "cell")]
    assert not warned(Loop(True), (series, torch.arange(64) % 4), loss="cross_entropy")


def test_scales_that_decayed_where_nothing_undoes_it() -> None:
    def network(scale: float, place: int) -> nn.Sequential:
        torch.manual_seed(0)
        blocks = [nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU()]
        model = nn.Sequential(*blocks, nn.Linear(16, 4))
        nn.init.constant_(model[place].weight, scale)
        return model

    assert ("dead-layer", "4") in warned(network(1e-3, 4), (TABLE, CLASSES), loss="cross_entropy")
    assert not warned(network(0.1, 4), (TABLE, CLASSES), loss="cross_entropy")


def test_one_unit_at_a_scale_of_its_own() -> None:
    model = mlp(8, 64, 64, 1)
    model[4].weight.data *= 100
    assert warned(model, (TABLE, NUMBERS), loss="mse") == [("layer-scale", "4")]
    model[4].weight.data /= 1e4
    assert not warned(model, (TABLE, NUMBERS), loss="mse")  # a last layer may start small


def test_statistics_that_are_no_numbers_are_named() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).eval()
    model[1].running_var[3] = torch.nan
    assert ("non-finite-weights", "1.running_var") in warned(model, (TABLE, CLASSES), loss="cross_entropy")


def test_a_whole_layer_that_is_off_needs_few_samples() -> None:
    model = mlp(8, 16, 16, 4)
    nn.init.constant_(model[2].bias, -20.0)
    assert ("dead-relu", "2") in warned(model, (TABLE[:16], CLASSES[:16]), loss="cross_entropy")


def test_samples_that_fade_into_one_another() -> None:
    class Means(nn.Module):
        def __init__(self, depth: int) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(8 if k == 0 else 64, 64) for k in range(depth))
            for layer in self.layers:  # each keeps the size of values, and of gradients
                nn.init.kaiming_normal_(layer.weight)
                nn.init.zeros_(layer.bias)
            self.head = nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(0.5 * x + 0.5 * x.mean(0)).relu()  # what meets all others
            return self.head(x)

    fading = ns.check(Means(12), (TABLE, CLASSES), loss="cross_entropy").findings
    assert ("gradient-vanishing", "layers.11") in {(f.code, f.where) for f in fading}
    few = ns.check(Means(2), (TABLE, CLASSES), loss="cross_entropy").findings
    assert "gradient-vanishing" not in {finding.code for finding in few}
    plain = mlp(8, *[32] * 16, 4)
    for layer in plain:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    assert not warned(plain, (TABLE, CLASSES), loss="cross_entropy")


def test_a_normalizer_by_hand_over_the_batch_is_named_and_not_what_only_stands_before_it() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words, self.positions, self.norm = nn.Embedding(40, 16), nn.Embedding(9, 16), OverBatch()
            self.head = nn.Linear(16, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.norm(self.words(ids) + self.positions(torch.arange(9))).relu().mean(1))

    class OverBatch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x - x.mean(0)) / (x.std(0) + 1e-5)

    ids = torch.randint(40, (64, 9), generator=torch.Generator().manual_seed(0))
    assert warned(Words(), (ids, torch.arange(64) % 2), loss="cross_entropy") == [("samples-mixed", "norm")]


def test_the_losses_of_all_tasks_are_looked_at() -> None:
    class Tasks(nn.Module):
        def __init__(self, *, softmax: bool) -> None:
            super().__init__()
            self.trunk, self.number, self.kind = mlp(8, 32, 32), nn.Linear(32, 1), nn.Linear(32, 4)
            self.softmax = softmax

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.trunk(x).relu()
            kinds = self.kind(x)
            return self.number(x), kinds.softmax(1) if self.softmax else kinds

    def loss(made: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        return F.cross_entropy(made[1], labels[:, 1].long()) + F.mse_loss(made[0][:, 0], labels[:, 0])

    labels = torch.cat([NUMBERS, CLASSES[:, None]], 1)
    assert warned(Tasks(softmax=True), (TABLE, labels), loss=loss) == [("activation-before-loss", "kind")]
    assert not warned(Tasks(softmax=False), (TABLE, labels), loss=loss)


def test_a_mean_over_nothing_is_a_loss_that_is_no_number() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        counted = target > 9
        return (F.cross_entropy(output, target, reduction="none") * counted).sum() / counted.sum()

    result = ns.check(mlp(8, 16, 4), (TABLE, CLASSES), loss=loss)  # NaN is nothing in JSON
    assert [finding.code for finding in result.findings if finding.severity > ns.Severity.INFO] == ["loss-not-finite"]


@pytest.mark.parametrize(("dtype", "code"), [(torch.bfloat16, "half-precision"), (torch.float32, None)])
def test_steps_that_are_rounded_away(dtype: torch.dtype, code: str | None) -> None:
    model = mlp(8, 64, 4).to(dtype)
    optimizer = Adam(model.parameters(), lr=1e-6)
    found = warned(model, (TABLE.to(dtype), CLASSES), loss="cross_entropy", optimizer=optimizer)
    assert found == ([] if code is None else [(code, "the optimizer")])


def test_whole_numbers_that_a_layer_reads_as_they_are() -> None:
    class Timed(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.net, self.scale = mlp(9, 32, 8), scale

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return self.net(torch.cat([x, self.scale * t.float()[:, None]], 1))

    times = torch.randint(1000, (128,), generator=torch.Generator().manual_seed(0))
    assert ("input-scale", "net.0") in warned(Timed(1.0), ((TABLE, times), TABLE.flip(0)), loss="mse")
    assert not warned(Timed(1e-3), ((TABLE, times), TABLE.flip(0)), loss="mse")


def test_a_start_with_weights_between_zero_and_one_is_named_by_its_layer() -> None:
    model = mlp(8, 64, 64, 4)
    for parameter in model.parameters():
        nn.init.uniform_(parameter)
    ((code, where),) = warned(model, (TABLE, CLASSES), loss="cross_entropy")
    assert (code, where in "024") == ("first-loss", True)  # all three multiply values by about 30


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
    torch.manual_seed(0)
    checked = ns.check(AroundReadEarly(), torch.randn(64, 8))
    assert not [finding for finding in checked.findings if finding.severity != "info"]
    assert [row.path for row in checked.signal.rows][-2:] == ["block", "head"]
    assert all(feed < number for number, feeds in enumerate(checked.signal.feeds) for feed in feeds)


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
    torch.manual_seed(0)
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
    torch.manual_seed(0)
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
    torch.manual_seed(0)
    model = Pair()
    checked = ns.check(model, TABLE, loss=lambda o: o[0].square().sum())
    assert checked.signal.loss_value == pytest.approx(float(model(TABLE)[0].square().sum()))
    named = ns.check(model, TABLE, loss=lambda o: o[0].square().sum(), output=0)
    assert named.signal.loss_value == pytest.approx(float(model(TABLE)[0][0].square().sum()))
    by_torch = ns.check(model, (TABLE, CLASSES % 3), loss=nn.CrossEntropyLoss())
    assert by_torch.signal.loss_value == pytest.approx(float(F.cross_entropy(model(TABLE)[0], CLASSES % 3)))


def test_a_parameter_that_the_model_returns_keeps_no_hook():
    model = Pair(beside=True)
    ns.check(model, TABLE)
    assert not model.temperature._backward_hooks
