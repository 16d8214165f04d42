"""Faults that users plant without noticing, and the healthy models that look like them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.errors import InputError

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
CLASSES = torch.arange(64) % 4


def mlp(*tail: nn.Module, outputs: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, outputs), *tail)


def found(model: nn.Module, data, **given) -> list[tuple[str, str]]:
    result = ns.check(model, data, **given)
    assert ns.Check.from_json(result.to_json()).findings == result.findings
    return [(finding.code, finding.where) for finding in result.findings if finding.severity > ns.Severity.INFO]


class Held(nn.Module):
    """Keeps its hidden layers in a container."""

    def __init__(self, container) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        self.hidden = container([nn.Linear(16, 16), nn.Linear(16, 16)])

    def forward(self, x: Tensor) -> Tensor:
        """Run all layers."""
        x = self.first(x).relu()
        for layer in self.hidden.values() if isinstance(self.hidden, dict) else self.hidden:
            x = layer(x).relu()
        return self.head(x)


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        (list, [("frozen-layer", "hidden")]),
        (lambda layers: dict(enumerate(layers)), [("frozen-layer", "hidden")]),
        (nn.ModuleList, []),
    ],
)
def test_layers_that_are_no_parameters_of_the_model(container, expected):
    assert found(Held(container), (X, CLASSES), loss="cross_entropy") == expected


def test_an_optimizer_that_holds_such_layers_trains_them():
    model = Held(list)
    parameters = [*model.parameters(), *(p for layer in model.hidden for p in layer.parameters())]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    assert found(model, (X, CLASSES), loss="cross_entropy", optimizer=optimizer) == []


class Autoencoder(nn.Module):
    """A variational autoencoder that draws its code in one way or another."""

    def __init__(self, draw) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.mean, self.spread = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
        self.draw = draw

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the reconstruction, the mean and the logarithm of the variance."""
        hidden = self.first(x).relu()
        mean, spread = self.mean(hidden), self.spread(hidden)
        return self.decoder(self.draw(mean, (0.5 * spread).exp())), mean, spread


def evidence(output: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
    made, mean, spread = output
    return F.mse_loss(made, target) - 0.05 * (1 + spread - mean.square() - spread.exp()).mean()


@pytest.mark.parametrize(
    ("draw", "cut"),
    [
        (lambda mean, deviation: torch.distributions.Normal(mean, deviation).sample(), True),
        (lambda mean, deviation: mean.data + deviation.data * torch.randn_like(deviation), True),
        (torch.normal, True),
        (lambda mean, deviation: torch.distributions.Normal(mean, deviation).rsample(), False),
        (lambda mean, deviation: mean + deviation * torch.randn_like(deviation), False),
    ],
    ids=["sample", "data", "normal", "rsample", "by hand"],
)
def test_a_code_that_is_drawn_outside_of_the_graph(draw, cut):
    assert found(Autoencoder(draw), (X, X), loss=evidence) == ([("gradient-cut", "mean")] if cut else [])


class Logged(nn.Module):
    """Hands its values to numpy, which takes none that ask for a gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Run both layers."""
        hidden = self.first(x)
        self.mean = float(hidden.data.numpy().mean())
        return self.head(hidden.relu())


def test_values_that_are_logged_keep_their_gradients():
    check = ns.check(Logged(), (X, CLASSES), loss="cross_entropy")
    assert check.skipped == ()
    assert [finding for finding in check.findings if finding.severity > ns.Severity.INFO] == []


class Returned(Logged):
    """Returns values without their graph beside its output."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Run both layers."""
        hidden = self.first(x)
        return self.head(hidden.relu()), hidden.data


def test_a_loss_that_hands_values_to_numpy():
    def loss(output: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return F.cross_entropy(output[0], y) + float(output[1].numpy().mean())

    assert found(Returned(), (X, CLASSES), loss=loss) == []


def test_dropout_of_the_outputs():
    assert found(mlp(nn.Dropout(0.3)), (X, CLASSES), loss="cross_entropy") == [("strong-dropout", "3")]
    hidden = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))
    assert found(hidden, (X, CLASSES), loss="cross_entropy") == []
    assert found(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3)), X) == []


def test_labels_that_count_from_one():
    check = ns.check(mlp(), (X, CLASSES + 1), loss="cross_entropy")
    (finding,) = (finding for finding in check.findings if finding.severity is ns.Severity.ERROR)
    assert (finding.code, finding.where) == ("targets-out-of-range", "2")
    assert "Subtract 1" in finding.advice
    ignored = torch.where(CLASSES > 2, -100, CLASSES)
    assert found(mlp(), (X, ignored), loss="cross_entropy") == []


def test_other_errors_of_a_loss_are_raised():
    with pytest.raises(InputError, match="the loss raises"):
        ns.check(mlp(), (X, CLASSES[:5]), loss="cross_entropy")
    with pytest.raises(InputError, match=r'it returned NoneType.*loss="cross_entropy"'):
        ns.check(mlp(), (X, CLASSES), loss=lambda output, labels: None)


class Language(nn.Module):
    """Predicts the next token."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(20, 16), nn.Embedding(12, 16)
        self.attention, self.head = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 20)
        self.causal = causal

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores of all tokens at each step."""
        x = self.words(ids) + self.places.weight
        mask = torch.ones(12, 12, dtype=torch.bool).triu(1) if self.causal else None
        return self.head(x + self.attention(x, x, x, attn_mask=mask)[0])


class Decoder(nn.Module):
    """Reads a sequence and a translation, which it moves by a step itself or not."""

    def __init__(self, *, moves: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.encoder = nn.Embedding(21, 16), nn.GRU(16, 16, batch_first=True)
        self.decoder, self.head = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 20)
        self.moves = moves

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return scores of all tokens at each step."""
        start = torch.full_like(target[:, :1], 20)
        target = torch.cat([start, target[:, :-1]], 1) if self.moves else target
        return self.head(self.decoder(self.words(target), self.encoder(self.words(source))[1])[0])


IDS = torch.randint(0, 20, (32, 13), generator=torch.Generator().manual_seed(0))


def by_token(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def test_a_model_that_reads_what_it_is_to_predict():
    data = IDS[:, :-1], IDS[:, 1:]
    assert found(Language(causal=False), data, loss=by_token) == [("mask-leaks", "attention")]
    assert found(Language(causal=True), data, loss=by_token) == []
    pair = {"source": IDS.flip(1), "target": IDS}, IDS
    assert found(Decoder(moves=False), pair, loss=by_token) == [("mask-leaks", "words")]
    assert found(Decoder(moves=True), pair, loss=by_token) == []


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda output, y: -F.cross_entropy(output, y), [("loss-does-not-fit", "the loss")]),
        (lambda output, y: 1.0 / F.cross_entropy(output, y), [("loss-does-not-fit", "the loss")]),
        (lambda output, y: 2.0 * F.cross_entropy(output, y) - 1.0, []),
        (lambda output, y: F.cross_entropy(output, y) - 0.1 * F.cross_entropy(output, (y + 1) % 4), []),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.0, 1.0, 1.0])), [("loss-does-not-fit", "the loss")]),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.1, 1.0, 1.0])), []),
        (lambda output, y: (output.sum(1) - 1e3).relu().mean(), [("no-loss-gradient", "the loss")]),
    ],
    ids=["negated", "inverse", "scaled", "difference", "no weight", "weights", "zero"],
)
def test_losses_that_teach_the_wrong_thing_or_nothing(loss, expected):
    assert found(mlp(), (X, CLASSES), loss=loss) == expected


class Attention(nn.Module):
    """One head of attention, with its softmax over one axis or another."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value, self.head = (nn.Linear(8, 8) for _ in range(4))
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Attend, and take the mean."""
        scores = self.query(x) @ self.key(x).mT / 8**0.5
        return self.head((scores.softmax(self.axis) @ self.value(x)).mean(1))


def test_a_softmax_over_the_axis_of_the_queries():
    series = torch.randn(16, 6, 8, generator=torch.Generator().manual_seed(0))
    assert [code for code, _ in found(Attention(1), series)] == ["softmax-axis"]
    assert found(Attention(-1), series) == []


def test_a_part_in_train_mode():
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    for _ in range(100):
        model(X)
    model.eval()
    assert found(model, X) == []
    model[1].train()
    assert found(model, X) == [("wrong-mode", "1")]
    assert found(model, X, mode="eval") == []


def test_zeros_that_do_not_train_and_networks_of_zeros():
    torch.manual_seed(0)
    model = mlp()
    nn.init.zeros_(model[0].weight)
    assert ("zero-weights", "0") not in found(model, X)
    model[0].weight.requires_grad_(False)
    assert found(model, X)[0] == ("zero-weights", "0")
    for parameter in model.requires_grad_(True).parameters():
        nn.init.zeros_(parameter)
    first = ns.check(model, (X, CLASSES), loss="cross_entropy").findings[0]
    assert (first.code, first.severity) == ("zero-weights", ns.Severity.ERROR)


@pytest.mark.parametrize(
    "change", [lambda x: x * 5e-3, lambda x: x + 25.0, lambda x: x * 20.0], ids=["small", "off centre", "large"]
)
def test_inputs_that_are_small_or_large_or_off_centre(change):
    assert found(mlp(), (change(X), CLASSES), loss="cross_entropy") == [("input-scale", "input")]


def test_units_that_are_off_by_chance_are_no_fault():
    """In a fresh network the biases of deep layers, as torch draws them, outweigh what varies."""
    torch.manual_seed(0)
    deep = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.ReLU())], nn.Linear(32, 4))
    assert found(deep, torch.randn(64, 32)) == []
    assert found(mlp(), 0.05 * X.abs()) == []


def test_pixels_that_were_divided_twice():
    pixels = torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(0)) / 255
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    check = ns.check(model, (pixels, CLASSES[:16]), loss="cross_entropy")
    assert "divided by 255 twice" in next(f.seen for f in check.findings if f.code == "input-scale")


class Timed(nn.Module):
    """Reads a number beside its input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.time, self.head = nn.Linear(8, 16), nn.Linear(1, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Add what both layers make."""
        return self.head((self.first(x) + self.time(t)).relu())


def test_each_of_several_inputs_has_a_scale():
    steps = torch.arange(0.0, 640.0, 10.0)[:, None]
    assert found(Timed(), {"x": X, "t": steps}) == [("input-scale", "time")]
    assert found(Timed(), {"x": X, "t": steps / 640}) == []


def test_faint_gradients_in_half_precision():
    model, data = mlp(outputs=1).half(), (X.half(), X[:, :1].half())
    faint = found(model, data, loss=lambda o, y: ((o - y) * 1e-3).square().mean())
    fainter = found(model, data, loss=lambda o, y: ((o - y) * 1e-3).square().mean() * 1e-2)
    assert [code for code, _ in faint] == [code for code, _ in fainter] == ["half-precision"]
    assert found(model, data, loss="mse") == []


def test_columns_that_are_standardised_over_the_batch():
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            """Standardise."""
            return (x - x.mean(0)) / (x.std(0) + 1e-5)

    model = nn.Sequential(nn.Linear(8, 16), Centred(), nn.ReLU(), nn.Linear(16, 4)).eval()
    assert found(model, X) == [("samples-mixed", "1")]


class Ending(nn.Module):
    """Ends in a function."""

    def __init__(self, end, outputs: int) -> None:
        super().__init__()
        self.net, self.end = mlp(outputs=outputs), end

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to the last layer."""
        return self.end(self.net(x))


@pytest.mark.parametrize("end", [F.softplus, torch.exp, torch.abs])
def test_outputs_that_cannot_be_negative(end):
    assert found(Ending(end, 1), (X, X[:, :1]), loss="mse") == [("targets-out-of-range", "net.2")]
    assert found(Ending(end, 1), (X, X[:, :1].abs()), loss="mse") == []


def test_scores_that_are_clamped():
    data = X, CLASSES
    narrow, wide = (Ending(lambda scores, limit=limit: scores.clamp(-limit, limit), 4) for limit in (1.0, 30.0))
    assert found(narrow, data, loss="cross_entropy") == [("activation-before-loss", "net.2")]
    assert found(wide, data, loss="cross_entropy") == []


def test_channels_that_are_not_read():
    class Grey(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.head, self.channels = nn.Conv2d(channels, 8, 3), nn.Linear(8, 4), channels

        def forward(self, x: Tensor) -> Tensor:
            """Read some of the channels."""
            return self.head(self.first(x[:, : self.channels]).relu().mean((2, 3)))

    images = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert found(Grey(1), images) == [("input-ignored", "input")]
    assert found(Grey(3), images) == []


def test_several_optimizers():
    model = mlp()
    first, last = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters())
    given = {"loss": "cross_entropy"}
    assert found(model, (X, CLASSES), optimizer=[first, last], **given) == []
    assert found(model, (X, CLASSES), optimizer=[first], **given) == [("not-in-optimizer", "2.weight")]
    with pytest.raises(InputError, match="several as a list"):
        ns.check(model, (X, CLASSES), optimizer=[first, 3], **given)


def test_large_targets_have_one_advice():
    targets = 3e5 + 1e4 * X[:, :1]
    assert found(mlp(outputs=1), (X, targets), loss="mse") == [("targets-scale", "2")]


def test_rare_labels_among_many_are_no_fault():
    rare = (torch.rand(64, 50, generator=torch.Generator().manual_seed(0)) > 0.99).float()
    assert found(mlp(outputs=50), (X, rare), loss="bce_with_logits") == []


class Score(nn.Module):
    """Differentiates an energy in its forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.energy = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the score."""
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            return -torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]


class Siamese(nn.Module):
    """Predicts the representation of another view."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
        self.predictor = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 16))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return a guess and the aim."""
        code = self.encoder(x)
        return self.predictor(code), code.detach()


class Policy(nn.Module):
    """Returns the likelihood of the action that it draws."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mean = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        """Draw, and return the logarithm of the likelihood."""
        actions = torch.distributions.Normal(self.mean(x), 1.0)
        return actions.log_prob(actions.sample()).sum(1)


class Chosen(nn.Module):
    """Passes a code of one entry that a hard Gumbel softmax chooses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10)), nn.Linear(10, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Encode, choose, decode."""
        return self.decoder(F.gumbel_softmax(self.encoder(x), hard=True))


@pytest.mark.parametrize(
    ("model", "data", "loss"),
    [
        (Score(), (X, -X), "mse"),
        (Siamese(), X, lambda output: -F.cosine_similarity(*output).mean()),
        (Policy(), (X, X[:, 0]), lambda likelihood, reward: -(likelihood * reward).mean()),
        (Chosen(), (X, X), "mse"),
    ],
    ids=["score", "siamese", "policy", "chosen"],
)
def test_healthy_models_that_look_broken(model, data, loss):
    assert found(model, data, loss=loss) == []


def test_a_pointer_network_whose_masks_are_far_below_zero():
    class Pointer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.encoder, self.query = nn.LSTM(2, 16, batch_first=True), nn.Linear(2, 16)

        def forward(self, points: Tensor, chosen: Tensor) -> Tensor:
            """Return scores of the points, without those that were chosen."""
            codes, last = self.encoder(points)[0], torch.zeros(len(points), 2)
            hidden, scores = torch.zeros(points.shape[:2], dtype=torch.bool), []
            for step in range(points.shape[1]):
                scores.append((codes @ self.query(last)[:, :, None])[..., 0].masked_fill(hidden, -1e9))
                hidden = hidden.scatter(1, chosen[:, step : step + 1], True)
                last = points[torch.arange(len(points)), chosen[:, step]]
            return torch.stack(scores, 1)

    points = torch.rand(32, 6, 2, generator=torch.Generator().manual_seed(0))
    order = points[..., 0].argsort(1)
    assert found(Pointer(), ({"points": points, "chosen": order}, order), loss=by_token) == []
