"""Faults that one look at a model must show: each a small network, what is found and where; and its healthy twin."""

from __future__ import annotations

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
        (lambda model: model[2].bias.fill_(-50.0), "dead-relu", "3"),
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
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_losses(model, target, loss, expected):
    assert warned(model, X, target, loss=loss) == ([] if expected is None else [(expected, "the loss")])


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
    assert any(code == "saturated-units" for code, _ in found) == expected
