"""Faults that one look at a model must show: each a small network, what is found and where; and its healthy twin."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.core.errors import InputError

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
CLASSES = torch.arange(64) % 5


def mlp(change: Callable[[nn.Sequential], Any] = lambda model: None, *tail: nn.Module, outputs: int = 5) -> nn.Module:
    torch.manual_seed(0)
    hidden = [nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU()]
    model = nn.Sequential(*hidden, nn.Linear(16, outputs), *tail)
    with torch.no_grad():
        change(model)
    return model


def warned(model: nn.Module, *data: Tensor, loss: Any = None) -> list[tuple[str, str]]:
    result = ns.check(model, data if len(data) > 1 else data[0], loss=loss)
    assert ns.Check.from_json(result.to_json()).findings == result.findings
    return [(finding.code, finding.where) for finding in result.findings if finding.severity > ns.Severity.INFO]


def rank_one(model: nn.Sequential) -> None:
    model[2].weight.copy_(torch.outer(torch.randn(16), torch.randn(32)))


@pytest.mark.parametrize(
    ("change", "code", "where"),
    [
        (lambda model: model[2].weight.mul_(1000.0), "layer-scale", "2"),
        (lambda model: model[2].weight.mul_(1e-4), "layer-scale", "2"),
        (lambda model: model[2].weight.fill_(0.1), "equal-units", "2"),
        (lambda model: model[2].weight.zero_(), "zero-weights", "2"),
        (rank_one, "rank-one-weights", "2"),
        (lambda model: model[2].bias.fill_(-50.0), "dead-relu", "2"),
    ],
    ids=["large", "small", "equal", "zero", "rank one", "dead"],
)
def test_weights(change, code, where):
    assert warned(mlp(change), X) == [(code, where)]
    assert warned(mlp(), X) == []


class Branching(nn.Module):
    """A network that cuts the gradient, leaves a layer out, or leaves an activation out, as it is told."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.spare, self.head = (nn.Linear(8, 8) for _ in range(4))
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        x = x.detach() if self.fault == "cut" else x
        x = self.second(x)
        x = x if self.fault == "linear" else x.relu()
        return self.head(x if self.fault == "forgotten" else self.spare(x).relu())


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("", []),
        ("cut", [("gradient-cut", "first")]),
        ("linear", [("missing-activation", "spare")]),
        ("forgotten", [("unused-parameter", "spare")]),
    ],
)
def test_structure(fault, expected):
    assert warned(Branching(fault), X) == expected


def test_a_layer_that_changes_the_resolution_needs_no_activation():
    torch.manual_seed(0)
    image = torch.randn(8, 4, 6, 6)
    assert warned(nn.Sequential(nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Conv2d(4, 4, 3)), image) == []
    assert warned(nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)), image) == [("missing-activation", "1")]


SMOOTHED, SUMMED = nn.CrossEntropyLoss(label_smoothing=0.9), nn.MSELoss(reduction="sum")
OWN_FAULT = (SMOOTHED, SUMMED)
SEVERAL = (torch.rand(64, 5, generator=torch.Generator().manual_seed(2)) > 0.5).float()
NUMBERS = torch.randn(64, 1, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("model", "target", "loss", "expected"),
    [
        (mlp(), CLASSES, "cross_entropy", None),
        (mlp(lambda model: None, nn.Softmax(1)), CLASSES, nn.CrossEntropyLoss(), "activation-before-loss"),
        (mlp(lambda model: None, nn.ReLU()), CLASSES, "cross_entropy", "activation-before-loss"),
        (mlp(lambda model: None, nn.LogSoftmax(1)), CLASSES, "nll", None),
        (mlp(), CLASSES, "nll", "loss-does-not-fit"),
        (mlp(outputs=1), CLASSES[:, None].float(), "mse", "loss-does-not-fit"),
        (mlp(outputs=1), NUMBERS, "mse", None),
        (mlp(outputs=1), NUMBERS[:, 0], "mse", "shapes-broadcast"),
        (mlp(outputs=1), 300.0 + NUMBERS, lambda output, y: nn.functional.mse_loss(output, y), "targets-scale"),
        (mlp(lambda model: None, nn.Tanh(), outputs=1), 5.0 * NUMBERS, "mse", "targets-out-of-range"),
        (mlp(), 0 * CLASSES, "cross_entropy", "one-class"),
        (mlp(outputs=1), 1e-5 * NUMBERS, "mse", "targets-scale"),
        (mlp(), CLASSES, SMOOTHED, "loss-does-not-fit"),
        (mlp(), CLASSES, nn.CrossEntropyLoss(label_smoothing=0.1), None),
        (mlp(), CLASSES, lambda output, y: (output.argmax(1) != y).float().mean(), "no-loss-gradient"),
        (mlp(), CLASSES, lambda output, y: nn.functional.cross_entropy(output.clamp(9.0, 9.5), y), "no-loss-gradient"),
        (mlp(outputs=1), NUMBERS[:, 0], lambda output, y: (output - y).square().mean(), "shapes-broadcast"),
        (mlp(outputs=1), NUMBERS[:, 0], lambda output, y: (output[:, 0] - y).square().mean(), None),
        (mlp(), SEVERAL, nn.BCEWithLogitsLoss(), None),
        (mlp(), SEVERAL, "cross_entropy", "loss-does-not-fit"),
        (mlp(lambda model: None, nn.Softmax(1)), SEVERAL, "bce", "activation-before-loss"),
        (mlp(outputs=1), NUMBERS.repeat(4, 1), SUMMED, "loss-does-not-fit"),
        (mlp(outputs=1), NUMBERS, lambda output, y: nn.MSELoss(reduction="sum")(output, y) / 64, None),
        (
            mlp(outputs=1),
            NUMBERS.abs(),
            lambda output, y: nn.PoissonNLLLoss(log_input=False)(output - 9.0, y),
            "loss-not-finite",
        ),
        (mlp(lambda model: None, nn.Hardtanh(0.0, 1.0), outputs=1), NUMBERS, "mse", "targets-out-of-range"),
        (mlp(lambda model: None, nn.BatchNorm1d(1), outputs=1), 6.0 + NUMBERS, "mse", "activation-before-loss"),
        (mlp(lambda model: None, nn.BatchNorm1d(1), outputs=1), NUMBERS, "mse", None),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_losses(model, target, loss, expected):
    """What is wrong with the outputs stands at the module that made them, what is wrong with the loss at the loss."""
    of_the_loss = expected in ("no-loss-gradient", "one-class", "loss-not-finite") or loss in OWN_FAULT
    place = "the loss" if of_the_loss or (target is SEVERAL and loss == "cross_entropy") else str(len(model) - 1)
    inputs = X.repeat(len(target) // len(X), 1)
    found = [pair for pair in warned(model, inputs, target, loss=loss) if pair[0] != "gradient-not-finite"]
    assert found == ([] if expected is None else [(expected, place)])


def test_a_loss_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="there is no loss 'entropy': pass one of cross_entropy"):
        ns.check(mlp(), (X, CLASSES), loss="entropy")


def test_one_large_column():
    table = X.clone()
    table[:, 3] *= 1e5
    assert warned(mlp(), table) == [("input-columns", "input")]
    assert warned(nn.Sequential(nn.BatchNorm1d(8), *mlp()), table) == []


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], scale: float, bias: float | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head = kind(8, 32, batch_first=True), nn.Linear(32, 5)
        with torch.no_grad():
            self.rnn.weight_hh_l0.mul_(scale)
            if bias is not None:
                self.rnn.bias_hh_l0.fill_(bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize(("scale", "expected"), [(10.0, True), (1.0, False), (0.01, True)])
def test_recurrent_weights(kind, scale, expected):
    x = torch.randn(16, 20, 8, generator=torch.Generator().manual_seed(0))
    assert warned(Recurrent(kind, scale), x) == ([("recurrent-scale", "rnn")] if expected else [])


def test_gates_that_are_shut():
    x = torch.randn(16, 20, 8, generator=torch.Generator().manual_seed(0))
    assert ("saturated-units", "rnn") in warned(Recurrent(nn.LSTM, 1.0, bias=-12.0), x)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("scale", "expected"), [(1.0, False), (60.0, True)])
def test_attention(fused, scale, expected):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    with torch.no_grad():
        layer.self_attn.in_proj_weight[:32].mul_(scale)

    class Written(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = nn.functional.linear(x, layer.self_attn.in_proj_weight).chunk(3, -1)
            return nn.functional.scaled_dot_product_attention(*(t.unflatten(-1, (2, 8)).mT.mT for t in (q, k, v)))

    found = warned(
        layer if fused else nn.Sequential(nn.Linear(16, 16), Written(), nn.Linear(8, 8)), torch.randn(4, 7, 16)
    )
    assert any(code == "attention-saturated" for code, _ in found) == expected


class Function(nn.Module):
    """Layers, and a function of what they make."""

    def __init__(self, function: Callable[[Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function, self.head = nn.Sequential(*layers), function, nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self.layers(x)))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (torch.relu, []),
        (lambda h: torch.relu(h - h.mean(0)), [("samples-mixed", "head")]),
        (lambda h: torch.relu(h) * h.softmax(0), [("samples-mixed", "head")]),
        (lambda h: torch.relu(h.reshape(16, -1).T), [("samples-mixed", "head")]),
        (lambda h: torch.softmax(h, 1), [("hidden-softmax", "")]),
    ],
)
def test_functions_between_layers(function, expected):
    torch.manual_seed(0)
    model = Function(function, nn.Linear(X.shape[1], 16))
    assert warned(model, X, CLASSES, loss="cross_entropy") == expected


def test_samples_that_may_meet_are_a_note():
    torch.manual_seed(0)
    model = Function(lambda h: torch.relu(h - h.mean(0)), nn.Linear(X.shape[1], 16))
    assert "samples-mixed" in {finding.code for finding in ns.check(model, X).findings}
    assert warned(model, X) == []  # without labels nobody knows what the first dimension counts


def test_samples_that_are_all_the_same():
    assert warned(mlp(), X[:1].repeat(8, 1)) == [("constant-input", "input")]


class Conditioned(nn.Module):
    """A network that is told the time."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.body, self.time, self.head = factor, nn.Linear(8, 16), nn.Linear(1, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x) + self.factor * self.time(t)))


@pytest.mark.parametrize(("factor", "expected"), [(1.0, []), (1e-7, [("input-ignored", "time")])])
def test_an_argument_without_influence(factor, expected):
    torch.manual_seed(0)
    assert warned(Conditioned(factor), {"x": torch.randn(32, 8), "t": torch.rand(32, 1)}) == expected


def test_an_argument_that_waits_behind_a_zero_is_a_note():
    torch.manual_seed(0)
    model = Conditioned(1.0)
    nn.init.zeros_(model.time.weight)
    nn.init.zeros_(model.time.bias)
    batch = {"x": torch.randn(32, 8), "t": torch.rand(32, 1)}
    codes = {finding.code: finding.severity for finding in ns.check(model, batch).findings}
    assert codes.get("input-ignored", ns.Severity.INFO) is ns.Severity.INFO


@pytest.mark.parametrize(("rate", "expected"), [(0.5, []), (0.8, []), (0.95, [("strong-dropout", "2")])])
def test_dropout(rate, expected):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(X.shape[1], 32), nn.ReLU(), nn.Dropout(rate), nn.Linear(32, 3))
    assert warned(model.train(), X) == expected


def test_a_layer_that_is_frozen_at_its_random_start():
    model = mlp()
    model[0].requires_grad_(False)
    assert ("frozen-layer", "0") in warned(model, X)
    with torch.no_grad():  # as training moves it
        model[0].weight.mul_(1.7).add_(0.3 * torch.randn_like(model[0].weight))
        model[0].bias.add_(0.2)
    assert "frozen-layer" not in {code for code, _ in warned(model, X)}


def test_a_gradient_that_is_no_number():
    torch.manual_seed(0)
    safe, broken = (
        Function(
            lambda h, eps=eps: (h - h).square().sum(1, keepdim=True).add(eps).sqrt() + h, nn.Linear(X.shape[1], 16)
        )
        for eps in (1e-6, 0.0)
    )
    assert warned(safe, X) == []
    assert warned(broken, X) == [("gradient-not-finite", "layers.0")]


class Embedded(nn.Module):
    """Tokens and places, added; a block with a branch."""

    def __init__(self, places: float = 1.0, branch: float = 1.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 16), nn.Embedding(7, 16)
        self.norm, self.up, self.last, self.head = (
            nn.LayerNorm(16),
            nn.Linear(16, 16),
            nn.LayerNorm(16),
            nn.Linear(16, 5),
        )
        self.branch = branch
        with torch.no_grad():
            self.places.weight *= places

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(7, device=ids.device))
        return self.head(self.last(x + self.branch * self.up(self.norm(x))))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"places": 100.0}, [("layer-scale", "places")]),
        ({"places": 0.02}, [("layer-scale", "tokens")]),
        ({"branch": 300.0}, [("branch-dominates", "last")]),
    ],
)
def test_summands_that_drown_each_other(change, expected):
    torch.manual_seed(0)
    assert warned(Embedded(**change), torch.randint(0, 20, (12, 7))) == expected


def test_a_normalizer_is_no_activation():
    torch.manual_seed(0)
    layers = [nn.Linear(X.shape[1], 32), nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)]
    assert warned(nn.Sequential(*layers), X) == [("missing-activation", "2")]
    assert warned(nn.Sequential(*layers[:2], nn.ReLU(), *layers[2:]), X) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h + 0 * h.shape[0],
        lambda h: (h, torch.zeros(2, len(h), 3)),  # states of layers, whose first dimension counts no samples
        lambda h: (h.unsqueeze(1) @ h.unsqueeze(2)).squeeze(1) + h @ h.T,  # a table of all pairs
        lambda h: h + next(CALLS),  # a state
        lambda h: h.reshape(-1, 1),
    ],
)
def test_outputs_that_are_no_rows_of_samples_say_nothing(change):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Tensor) -> Any:
            return change(self.body(x.mul_(1.0)))

    codes = {finding.code for finding in ns.check(Net(), (X, CLASSES)).findings}
    assert not codes & {"samples-mixed", "input-ignored"}


CALLS = itertools.count()


def test_arguments_read_in_training_alone_and_labels_of_a_loss_inside():
    class Forced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.words = nn.Linear(8, 16), nn.Embedding(5, 16)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.body(x) + (self.words(y) if self.training else 0.0)

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(8, 500)

        def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            made = 100.0 * self.body(x)
            return made, nn.functional.cross_entropy(made, labels)

    torch.manual_seed(0)
    assert warned(Forced().train(), X, CLASSES) == []
    assert "input-ignored" in {code for code, _ in warned(Forced().eval(), X, CLASSES)}
    assert "input-ignored" not in {code for code, _ in warned(WithLoss(), X, CLASSES)}


def test_what_is_computed_at_each_reading_is_left_as_found():
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 3)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ns.check(model, (X, CLASSES), loss=lambda output, y: output.square().mean())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_loss_at_its_minimum_and_complex_weights_have_a_gradient_that_is_no_fault():
    model = mlp(lambda model: model[4].bias.add_(100.0))
    codes = {code for code, _ in warned(model, X, CLASSES, loss=lambda output, y: torch.relu(1.0 - output).mean())}
    assert "no-loss-gradient" not in codes

    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.weight = nn.Linear(8, 8), nn.Parameter(torch.randn(5, dtype=torch.cfloat))

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.irfft(torch.fft.rfft(self.body(x)) * self.weight)

    assert warned(Spectral(), X, X, loss="mse") == []


def test_healthy_networks_that_look_odd():
    torch.manual_seed(0)
    sets = nn.Sequential(nn.Linear(8, 32), nn.Flatten(0, 0), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 3))
    assert warned(sets, X) == []
    separable = nn.Sequential(nn.Conv2d(3, 8, (1, 5)), nn.Conv2d(8, 8, (5, 1)), nn.ReLU(), nn.Conv2d(8, 4, 3))
    assert warned(separable, torch.randn(8, 3, 12, 12)) == []
    features = nn.Sequential(nn.Linear(8, 64, bias=False).requires_grad_(False), nn.Tanh(), nn.Linear(64, 3))
    assert warned(features, X) == []
    single = nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).eval()
    assert "dead-layer" not in {code for code, _ in warned(single, X[:1])}
    recurrent = nn.GRU(8, 8, batch_first=True)
    recurrent.dropout = 0.9  # of one layer it drops nothing
    assert "strong-dropout" not in {finding.code for finding in ns.check(recurrent, torch.randn(8, 5, 8)).findings}


class Masked(nn.Module):
    """Attention over positions of which the last two are padding, with a mask that may be inverted."""

    def __init__(self, inverted: bool) -> None:
        super().__init__()
        self.inverted, self.words, self.head = inverted, nn.Embedding(12, 16), nn.Linear(16, 3)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        x, hidden = self.words(ids), ids == 0
        return self.head(self.attention(x[:, :1], x, x, key_padding_mask=hidden ^ self.inverted)[0][:, 0])


@pytest.mark.parametrize("inverted", [False, True])
def test_places_of_the_input_that_are_not_read(inverted):
    torch.manual_seed(0)
    ids = nn.functional.pad(torch.randint(1, 12, (64, 6)), (0, 2))
    found = warned(Masked(inverted), ids, torch.randint(0, 3, (64,)), loss="cross_entropy")
    assert (("input-ignored", "attention") in found) == inverted
    assert inverted or found == []


@pytest.mark.parametrize("blind", [False, True])
def test_an_output_that_is_drawn_at_random(blind):
    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(4, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            mean = self.encoder(x)
            noise = torch.randn_like(mean)
            return self.decoder(noise if blind else mean + noise), mean

    torch.manual_seed(0)
    assert (("input-ignored", "encoder") in warned(Drawing(), X)) == blind


@pytest.mark.parametrize(("factor", "expected"), [(1.0, []), (1.5, [("recurrent-scale", "rnn")])])
def test_a_recurrent_layer_of_relus_that_grows(factor, expected):
    torch.manual_seed(0)
    rnn = nn.RNN(4, 24, nonlinearity="relu", batch_first=True)
    rnn.weight_hh_l0.data.copy_(factor * torch.eye(24))
    found = warned(nn.ModuleDict({"rnn": rnn})["rnn"], torch.randn(16, 40, 4))
    assert [code for code, _ in found] == [code for code, _ in expected]


def test_a_relu_that_lets_nearly_nothing_pass_and_an_output_that_starts_saturated():
    def shut(model: nn.Sequential) -> None:
        model[2].bias.fill_(-2.5)

    torch.manual_seed(0)
    assert "dead-relu" in {code for code, _ in warned(mlp(shut), torch.randn(256, 8))}
    saturated = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4), nn.Tanh())
    assert "saturated-units" not in {code for code, _ in warned(saturated, X)}
    saturated[2].weight.data.mul_(100.0)
    saturated[2].bias.data.zero_()
    assert "saturated-units" in {code for code, _ in warned(saturated, X)}


def test_images_that_meet_are_samples_also_without_labels():
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Conv2d(1, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.normalize(self.body(x).flatten(1), dim=0)

    torch.manual_seed(0)
    assert "samples-mixed" in {code for code, _ in warned(Pooled(), torch.randn(16, 1, 8, 8))}


def test_a_model_that_writes_to_its_input_is_compared_all_the_same():
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x.mul_(2.0) - x.mean(0))

    torch.manual_seed(0)
    assert "samples-mixed" in {code for code, _ in warned(Writing(), X.clone(), CLASSES, loss="cross_entropy")}


class Scored(nn.Module):
    """Classes by cosines to their centres, or by scores that are divided."""

    def __init__(self, cosines: bool, factor: float) -> None:
        super().__init__()
        self.body, self.centres = nn.Linear(8, 16), nn.Linear(16, 5, bias=False)
        self.cosines, self.factor = cosines, factor

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.body(x))
        if self.cosines:
            x, centres = (nn.functional.normalize(values, dim=1) for values in (x, self.centres.weight))
            return x @ centres.T if self.factor == 1.0 else self.factor * (x @ centres.T)
        return self.factor * self.centres(x)


@pytest.mark.parametrize(("cosines", "factor", "told"), [
    (True, 1.0, True), (True, 20.0, False), (False, 0.01, True), (False, 1.0, False),
])  # fmt: skip
def test_scores_that_cannot_become_certain(cosines, factor, told):
    torch.manual_seed(0)
    found = warned(Scored(cosines, factor), X, CLASSES, loss="cross_entropy")
    assert ("activation-before-loss" in {code for code, _ in found}) == told


class Attending(nn.Module):
    """A weighted mean over positions, whose softmax may run over an axis of one entry."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim, self.words, self.score, self.head = dim, nn.Linear(8, 16), nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.words(x))
        return self.head((self.score(x).softmax(self.dim) * x).sum(1))


@pytest.mark.parametrize(("dim", "expected"), [(1, []), (2, [("no-gradient", "score")])])
def test_a_layer_without_gradient_beside_the_main_path(dim, expected):
    torch.manual_seed(0)
    assert warned(Attending(dim), torch.randn(64, 6, 8), CLASSES % 3, loss="cross_entropy") == expected


@pytest.mark.parametrize(("both", "expected"), [(False, set()), (True, {"zero-weights"})])
def test_zeros_that_cannot_open(both, expected):
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.a, self.b, self.head = (nn.Linear(8, 8, bias=False) for _ in range(4))
            nn.init.zeros_(self.b.weight)
            if both:
                nn.init.zeros_(self.a.weight)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.body(x))
            return self.head(x + self.a(x) * self.b(x))

    torch.manual_seed(0)
    assert {code for code, _ in warned(Product(), X, CLASSES, loss="cross_entropy")} == expected


def test_an_activation_that_is_none_and_a_dropout_that_ignores_the_mode():
    torch.manual_seed(0)
    leaky = [nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(slope), nn.Linear(16, 5)) for slope in (0.2, 1.0)]
    assert [warned(model, X) for model in leaky] == [[], [("missing-activation", "1")]]

    class Dropping(nn.Module):
        def __init__(self, told: bool) -> None:
            super().__init__()
            self.told, self.body, self.head = told, nn.Linear(8, 64), nn.Linear(64, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.body(x))
            return self.head(nn.functional.dropout(x, 0.3, training=self.training or not self.told))

    assert [warned(Dropping(told).eval(), X) for told in (True, False)] == [[], [("strong-dropout", "")]]
    assert warned(Dropping(False).train(), X) == []


def test_rows_that_do_not_become_fewer_with_fewer_samples_are_no_samples():
    class Clouds(nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.dim, self.point, self.head = dim, nn.Linear(3, 16), nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.point(x)).amax(self.dim))

    torch.manual_seed(0)
    clouds = torch.randn(32, 32, 3)
    assert warned(Clouds(1), clouds, CLASSES[:32], loss="cross_entropy") == []
    assert warned(Clouds(0), clouds, CLASSES[:32], loss="cross_entropy") == [("samples-mixed", "")]


def test_a_pretrained_network_that_is_adapted_and_a_path_around_the_layers():
    torch.manual_seed(0)
    words, body, head = nn.Embedding(20, 16), nn.Linear(16, 16), nn.Linear(16, 5)
    model = nn.Sequential(words, nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), body, nn.ReLU(), head)
    for layer in (words, model[2], body):
        layer.requires_grad_(False)
    ids = torch.randint(0, 20, (64, 4))
    assert "frozen-layer" in {code for code, _ in warned(model, ids, CLASSES, loss="cross_entropy")}
    with torch.no_grad():
        model[2].weight.mul_(3.0)
        body.weight.mul_(3.0)
        body.bias.add_(0.5)
        model[2].bias.add_(0.5)
    assert "frozen-layer" not in {code for code, _ in warned(model, ids, CLASSES, loss="cross_entropy")}


class OnGraph(nn.Module):
    """A layer of a graph network that takes its neighbours as a sparse matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        return self.head(torch.sparse.mm(neighbours, torch.relu(self.body(x))))


def test_a_sparse_input_is_checked_and_has_no_bounds():
    torch.manual_seed(0)
    batch = (torch.randn(20, 8), (torch.rand(20, 20) < 0.2).float().to_sparse())
    assert ns.check(OnGraph(), batch).verdict == "No problems found."
    assert "sparse" in dict(ns.audit(OnGraph(), batch).skipped).popitem()[1]


def test_a_generator_that_a_model_holds_is_put_back():
    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.generator = nn.Linear(8, 5), torch.Generator().manual_seed(1)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x) + torch.randn(len(x), 5, generator=self.generator)

    model = Drawing()
    before = model.generator.get_state()
    ns.check(model, X)
    assert torch.equal(model.generator.get_state(), before)


def test_cosines_with_their_temperature_inside_and_experts_that_no_sample_chose():
    class Tempered(Scored):
        def forward(self, x: Tensor) -> Tensor:
            x, centres = (nn.functional.normalize(values, dim=1) for values in (self.body(x), self.centres.weight))
            return (x / 0.05) @ centres.T

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts, self.head = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            made = torch.stack([expert(x) for expert in self.experts])
            return self.head(torch.relu(made * torch.tensor([1.0, 0.0, 1.0])[:, None, None]).sum(0))

    torch.manual_seed(0)
    assert "activation-before-loss" not in {c for c, _ in warned(Tempered(True, 1.0), X, CLASSES, loss="cross_entropy")}
    assert "no-gradient" not in {code for code, _ in warned(Experts(), X, CLASSES, loss="cross_entropy")}
