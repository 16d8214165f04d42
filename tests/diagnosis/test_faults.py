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

from ..net import Net

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


def test_a_layer_that_changes_the_resolution_needs_no_activation():
    image = torch.randn(8, 4, 6, 6)
    assert warned(nn.Sequential(nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Conv2d(4, 4, 3)), image) == []
    assert warned(nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)), image) == [("missing-activation", "1")]


def test_a_loss_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="there is no loss 'entropy': pass one of cross_entropy"):
        ns.check(mlp(), (X, CLASSES), loss="entropy")


class Function(nn.Module):
    """Layers, and a function of what they make."""

    def __init__(self, function: Callable[[Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function, self.head = nn.Sequential(*layers), function, nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self.layers(x)))


def test_samples_that_may_meet_are_a_note():
    model = Function(lambda h: torch.relu(h - h.mean(0)), nn.Linear(X.shape[1], 16))
    assert "samples-mixed" in {finding.code for finding in ns.check(model, X).findings}
    assert warned(model, X) == []  # without labels nobody knows what the first dimension counts


@pytest.mark.parametrize(("rate", "expected"), [(0.5, []), (0.8, []), (0.95, [("strong-dropout", "2")])])
def test_dropout(rate, expected):
    model = nn.Sequential(nn.Linear(X.shape[1], 32), nn.ReLU(), nn.Dropout(rate), nn.Linear(32, 3))
    assert warned(model.train(), X) == expected


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
    body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))

    model = Net(lambda net, x: change(net.body(x.mul_(1.0))), body=body)
    codes = {finding.code for finding in ns.check(model, (X, CLASSES)).findings}
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

    assert warned(Forced().train(), X, CLASSES) == []
    assert "input-ignored" in {code for code, _ in warned(Forced().eval(), X, CLASSES)}
    assert "input-ignored" not in {code for code, _ in warned(WithLoss(), X, CLASSES)}


def test_what_is_computed_at_each_reading_is_left_as_found():
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


def test_a_model_that_writes_to_its_input_is_compared_all_the_same():

    model = Net(lambda net, x: net.body(x.mul_(2.0) - x.mean(0)), body=nn.Linear(8, 5))
    assert "samples-mixed" in {code for code, _ in warned(model, X.clone(), CLASSES, loss="cross_entropy")}


class OnGraph(nn.Module):
    """A layer of a graph network that takes its neighbours as a sparse matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        return self.head(torch.sparse.mm(neighbours, torch.relu(self.body(x))))


def test_a_sparse_input_is_checked_and_has_no_bounds():
    batch = (torch.randn(20, 8), (torch.rand(20, 20) < 0.2).float().to_sparse())
    assert ns.check(OnGraph(), batch).verdict == "No problems found."
    assert "sparse" in dict(ns.audit(OnGraph(), batch).skipped).popitem()[1]


def test_a_generator_that_a_model_holds_is_put_back():

    model = Net(
        lambda net, x: net.body(x) + torch.randn(len(x), 5, generator=net.generator),
        body=nn.Linear(8, 5),
        generator=torch.Generator().manual_seed(1),
    )
    before = model.generator.get_state()
    ns.check(model, X)
    assert torch.equal(model.generator.get_state(), before)
