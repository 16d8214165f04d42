"""What a forward changes and reads is part of the function, or the model is refused."""

from __future__ import annotations

import copy
import math
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.errors import CaptureError, NormscopeError

from ..soundness.networks import Function
from .attacked import bounded


def normalized(norm: nn.Module, function) -> nn.Module:
    """A normalizer, and what a function makes of its output, its input and itself."""
    return Function(lambda net, x: function(net.norm(x), x, net.norm), norm=norm)


def functional(which: int):
    """Statistics that a functional batch norm moves, and that are read."""

    def forward(x: Tensor) -> Tensor:
        statistics = torch.zeros(x.shape[1]), torch.ones(x.shape[1])
        F.batch_norm(x, *statistics, training=True, momentum=1.0)
        return x + 500.0 * statistics[which]

    return Function(forward)


BATCH, IMAGES = (4, 3), (3, 2, 2, 2)
MOVED = {
    "moved mean times 1e4": (normalized(nn.BatchNorm1d(3), lambda y, x, n: y + 1e4 * n.running_mean), BATCH),
    "variance": (functional(1).eval(), BATCH),
    "twice": (normalized(nn.BatchNorm1d(3), lambda y, x, n: n(2 * y) + 1e4 * n.running_mean), BATCH),
    "alone": (normalized(nn.BatchNorm1d(3, affine=False), lambda y, x, n: n.running_mean), BATCH),
    "cumulative": (normalized(nn.BatchNorm1d(3, momentum=None), lambda y, x, n: x + n.running_mean), BATCH),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", MOVED)
def test_moved_statistics_that_are_read_are_refused(name):
    model, shape = MOVED[name]
    with pytest.raises(CaptureError, match="moves in the same run"):
        ns.lipschitz(model, 1 + torch.randn(shape), max_seconds=0.2)


def test_moved_statistics_that_normalize_are_refused():
    def forward(x: Tensor) -> Tensor:
        mean, variance = torch.zeros(3), torch.ones(3)
        F.batch_norm(x, mean, variance, training=True, momentum=0.5)
        return F.batch_norm(x, mean, variance, training=False)

    with pytest.raises(CaptureError, match="moves in the same run"):
        ns.lipschitz(Function(forward).eval(), torch.randn(4, 3))


@pytest.mark.slow
def test_what_nobody_reads_changes_nothing():
    norms = [nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False)]
    batch = torch.randn(4, 3)
    moved, still = (bounded(normalized(norm, lambda y, x, n: n(y.relu())), batch) for norm in norms)
    assert (moved.log10_upper, moved.evidence) == (still.log10_upper, still.evidence)


def test_a_batch_norm_of_constants_is_a_constant():
    model = Function(lambda module, x: x + module.norm(module.b), b=torch.randn(4, 3))
    model.norm = nn.BatchNorm1d(3)
    assert bounded(model.train(), torch.randn(4, 3)).upper == pytest.approx(1.0)


def tracked(function) -> nn.Module:
    return normalized(nn.InstanceNorm1d(3, track_running_stats=True), function).train()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("scale", [0.0, 1.0], ids=["zeros", "random"])
@pytest.mark.parametrize(
    "function",
    [
        lambda y, x, n: y + n.running_mean[:, None],
        lambda y, x, n: x + 1e4 * n.running_mean[:, None],
        lambda y, x, n: x * n.running_var[:, None],
        lambda y, x, n: n(y) + n.running_mean.sum(),
        lambda y, x, n: F.instance_norm(x, n.running_mean, n.running_var, use_input_stats=False),
    ],
    ids=["beside", "alone", "variance", "second run", "normalizes"],
)
def test_statistics_of_an_instance_norm_that_are_read_are_refused(function, scale):
    with pytest.raises(CaptureError, match=r"moves in the same run|export does not see"):
        ns.lipschitz(tracked(function), scale * torch.randn(2, 3, 4), max_seconds=0.2)


def assigns(module: nn.Module, x: Tensor) -> Tensor:
    module.b.copy_(x.mean(0))
    return x + 100 * module.b


def one_row(module: nn.Module, x: Tensor) -> Tensor:
    module.c[1] = 50 * x[0]
    module.c[0, :2].add_(x[1, :2])
    return x + module.c.sum(0)


def data(module: nn.Module, x: Tensor) -> Tensor:
    module.b.data.copy_(100 * x.mean(0))
    return x + module.b


def rebound(module: nn.Module, x: Tensor) -> Tensor:
    module.b = 100 * x.mean(0)
    return x + module.b


def moving_average(module: nn.Module, x: Tensor) -> Tensor:
    module.b.lerp_(x.mean(0), 0.5)
    return x + 100 * module.b


@pytest.mark.one_in(4)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("function", [assigns, one_row, data, rebound, moving_average])
def test_buffers_that_are_written_and_read(function, training):
    model = Function(function, b=torch.ones(3), c=torch.zeros(2, 3)).train(training)
    before = copy.deepcopy(model.state_dict())
    with suppress(NormscopeError):
        assert bounded(model, torch.randn(4, 3)).upper > 40
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Remembers(nn.Module):
    """Reads what the run before it left behind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.calls, self.past = kind, 0, []
        self.last = torch.full((3,), 3.0)
        self.register_buffer("held", torch.full((3,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.past.append(self.calls)
        factor = {
            "attribute": self.last,
            "buffer": self.held.clone(),
            "list": 3.0 * len(self.past),
            "count": 3.0 * self.calls,
        }
        y = x * factor[self.kind]
        self.last = x.mean(0).detach() + 100
        self.held.fill_(100)
        return y


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("kind", ["attribute", "buffer", "list", "count"])
def test_a_figure_in_train_mode_is_that_of_the_state_as_found(kind):
    model = Remembers(kind).train()
    bracket = bounded(model, torch.randn(4, 3))
    assert bracket.upper == pytest.approx(3, rel=1e-6)
    assert (model.calls, model.past) == (0, [])
    assert torch.equal(model.last, torch.full((3,), 3.0))
    assert torch.equal(model.held, torch.full((3,), 3.0))
    again = ns.lipschitz(model, torch.randn(4, 3), max_seconds=0.2)
    assert again.upper == pytest.approx(bracket.upper)


@pytest.mark.parametrize("kind", ["attribute", "buffer", "list", "count"])
def test_a_model_whose_runs_differ_is_refused_in_eval_mode_or_measured_as_found(kind):
    model = Remembers(kind).eval()
    with pytest.raises(NormscopeError, match="two different outputs"):
        ns.lipschitz(model, torch.randn(4, 3), max_seconds=0.2)
    assert model.calls == 0


def test_a_buffer_that_is_read_before_it_is_written_is_named():
    bracket = bounded(Remembers("buffer").train(), torch.randn(4, 3))
    assert any("'held'" in note and "as found" in note for note in bracket.notes)


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("momentum", [0.1, None], ids=["moving", "cumulative"])
def test_a_batch_norm_in_two_places(momentum):
    norm = nn.BatchNorm1d(3, momentum=momentum)
    still = nn.BatchNorm1d(3, track_running_stats=False)
    layer, batch = nn.Linear(3, 3), torch.randn(5, 3)
    seen, plain = (bounded(nn.Sequential(n, layer, nn.ReLU(), n).train(), batch) for n in (norm, still))
    assert (seen.log10_upper, seen.evidence) == (plain.log10_upper, plain.evidence)
    assert (norm.momentum, int(norm.num_batches_tracked)) == (momentum, 0)
    assert torch.equal(norm.running_mean, torch.zeros(3))


class Renormed(nn.Module):
    """Changes its own weight in every run."""

    def __init__(self, write) -> None:
        super().__init__()
        self.layer, self.write = nn.Linear(3, 3, bias=False), write
        with torch.no_grad():
            self.layer.weight.copy_(100 * torch.eye(3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.write(self.layer, x)
        return self.layer(x)


def binds_data(layer: nn.Linear, x: Tensor) -> None:
    layer.weight.data = layer.weight.data / 50


WRITES = {
    "renorm": (lambda layer, x: layer.weight.renorm_(2, 0, 2.0), 2.0),
    "a row": (lambda layer, x: layer.weight[0].mul_(7), 700.0),
    "through data": (lambda layer, x: layer.weight.data.div_(50), 2.0),
    "data bound anew": (binds_data, 2.0),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", WRITES)
def test_a_weight_that_a_run_changes_is_part_of_the_function_or_refused(name):
    write, norm = WRITES[name]
    model = Renormed(write).train()
    weight, memory = model.layer.weight, model.layer.weight.data_ptr()
    with suppress(CaptureError):
        bracket = ns.lipschitz(model, torch.randn(4, 3), max_seconds=0.2)
        assert bracket.upper == pytest.approx(norm, rel=1e-6)
        assert name != "data bound anew"
    assert model.layer.weight is weight
    assert weight.data_ptr() == memory
    assert torch.equal(weight, 100 * torch.eye(3))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_weight_that_holds_the_batch_is_no_constant(training):
    model = Renormed(lambda layer, x: layer.weight.copy_(x[:3].T @ x[:3])).train(training)
    bracket = bounded(model, torch.randn(4, 3))
    assert bracket.upper == math.inf
    assert torch.equal(model.layer.weight, 100 * torch.eye(3))


class Tokens(nn.Module):
    """Embeddings that are renormed where they are read."""

    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.functional, self.table = functional, nn.Embedding(6, 3, max_norm=None if functional else 0.5)
        self.layer = nn.Linear(3, 6)

    def forward(self, ids: Tensor) -> Tensor:
        found = F.embedding(ids, self.table.weight, max_norm=0.5) if self.functional else self.table(ids)
        return self.layer(found) + found @ self.table.weight.T


@pytest.mark.one_in(3)
@pytest.mark.parametrize("functional", [True, False])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_embeddings_that_are_renormed(functional, training):
    model = Tokens(functional).train(training)
    with torch.no_grad():
        model.table.weight.mul_(100)
    before = copy.deepcopy(model.state_dict())
    bracket = ns.lipschitz(model, torch.tensor([[0, 1, 2, 3, 4, 5]]), max_seconds=0.2)
    renormed = before["table.weight"] * 0.5 / (before["table.weight"].norm(dim=1, keepdim=True) + 1e-7)
    truth = float(torch.linalg.matrix_norm(before["layer.weight"] + renormed, ord=2))
    assert bracket.upper == pytest.approx(truth, rel=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
