"""Samples are independent if no operator lets two of them meet; nothing is drawn for it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.bounds.graph import capturing
from normscope.bounds.graph.samples import joined
from normscope.bounds.operators.registry import operators
from normscope.calls import call
from normscope.core.errors import InputError

from ..real_models.families import FAMILIES
from ..soundness.networks import Function


def tiny(x: Tensor) -> Tensor:
    """Any share of the other samples that no draw at a tolerance sees."""
    return 1e-12 * x


def branching(x: Tensor) -> Tensor:
    return x - tiny(x.mean(0)) if len(x) > 3 else x


MIXING = {
    "a sine of the distance to the mean": lambda x: x + 1e-5 * torch.sin(1e9 * (x - x.mean(0))),
    "sum": lambda x: x + tiny(x.sum(0, keepdim=True)),
    "compare": lambda x: torch.where(x > x.roll(1, 0) + 1e6, 0.0, x),
    "sort": lambda x: x + tiny(x.sort(0).values),
    "running sum": lambda x: x + tiny(x.cumsum(0)),
    "gram": lambda x: x + tiny(x @ x.T @ x),
    "einsum": lambda x: x + tiny(torch.einsum("ij,kj->ij", x, x)),
    "neighbour": lambda x: torch.cat([x[:1], x[1:] + tiny(x[:-1])]),
    "flat": lambda x: x + tiny(x.flatten().flip(0).reshape(x.shape)),
    "batch norm": lambda x: x + tiny(F.batch_norm(x[..., None].expand(-1, -1, 2), None, None, training=True)[..., 0]),
    "not in the table": lambda x: x + tiny(x.renorm(2, 1, 1.0)),
    "index_add": lambda x: x.index_add(0, torch.tensor([1, 2]), tiny(x[:2])),
    "index_add of the one before": lambda x: x.index_add(
        0, torch.arange(len(x)), tiny(x[(torch.arange(len(x)) - 1).clamp(min=0)])
    ),
    "scatter_add": lambda x: x.scatter_add(0, torch.tensor([[0, 1, 0, 0]]), tiny(x)),
    "scatter_reduce": lambda x: x.scatter_reduce(0, torch.tensor([[0, 0, 0, 1]]), x, "amax"),
    "places of another sample": lambda x: x.scatter_add(1, x.roll(1, 0).argsort(1), x),
    "large batches alone": branching,
    "attention over samples": lambda x: x + tiny(F.scaled_dot_product_attention(x[None], x[None], x[None])[0]),
}


@pytest.mark.parametrize("name", MIXING)
def test_samples_that_meet_are_one_input(name):
    model = Function(MIXING[name]).eval()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call, "_alike", lambda *_: True)  # what runs show is not asked
        graph = ns.capture(model, torch.randn(5, 4))
    assert not graph.per_sample
    assert graph.input_shape == (5, 4)
    assert graph.batched == ()


COUNT = 6
ROWS = torch.ones(COUNT, dtype=torch.float64)
ROWS[4] += 1e-12
STACK = torch.eye(4).repeat(COUNT, 1, 1).double()
STACK[3, 0, 0] += 1e-12
PLACES = torch.arange(4).repeat(COUNT, 1)
SWAPPED = PLACES.clone()
SWAPPED[2, :2] = torch.tensor([1, 0])
LAYERS = [nn.Linear(4, 4).double() for _ in range(COUNT)]


def rows(x: Tensor) -> Tensor:
    return ROWS[: len(x), None]


def spike(x: Tensor) -> Tensor:
    """What no run at ordinary values tells from the identity."""
    return x + F.relu(x - 1e6)


def by_row(function) -> Function:
    return Function(lambda x: torch.stack([function(i, x[i]) for i in range(len(x))]))


def one_row_assigned(x: Tensor) -> Tensor:
    y = x.clone()
    y[2] = spike(y[2])
    return y


UNLIKE = {
    "scaled by a buffer": Function(lambda x: x * rows(x)),
    "a bias by row": Function(lambda x: x + rows(x)),
    "a slice scaled": Function(lambda x: torch.cat([x[:3], spike(x[3:4]), x[4:]])),
    "a row assigned": Function(one_row_assigned),
    "select_scatter": Function(lambda x: torch.select_scatter(x, spike(x[1]), 0, 1)),
    "index_add of a constant": Function(lambda x: x.index_add(0, torch.tensor([2]), tiny(torch.ones(1, 4).double()))),
    "a number by row": by_row(lambda i, row: row * (1 + 1e-12 * i)),
    "a layer by row": by_row(lambda i, row: LAYERS[i](row)),
    "another option by row": by_row(lambda i, row: row.topk(2, largest=i != 2).values),
    "one row reversed": by_row(lambda i, row: row.flip(0) if i == 1 else row),
    "one row transposed": by_row(lambda i, row: row.reshape(2, 2).T if i == 1 else row.reshape(2, 2)),
    "bmm from the left": Function(lambda x: torch.bmm(STACK[: len(x)], x[:, :, None])[:, :, 0]),
    "einsum": Function(lambda x: torch.einsum("bij,bj->bi", STACK[: len(x)], x)),
    "a slope by channel": Function(lambda x: F.prelu(x.T, ROWS[: len(x)]).T),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", UNLIKE)
def test_samples_that_are_treated_differently_are_one_input(name):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call, "_alike", lambda *_: True)  # what runs show is not asked
        graph = ns.capture(UNLIKE[name].eval(), torch.randn(COUNT, 4).double())
    assert not graph.per_sample
    assert "treats the samples of the batch differently" in graph.notes[-1]


class Weighted(nn.Module):
    """Row 5 of a batch counts 50 times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("w", torch.ones(8))
        self.w[5] = 50.0

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layer(x) * self.w[: len(x), None])


@pytest.mark.slow
@pytest.mark.parametrize("unseen", [False, True])
def test_no_bound_is_below_the_slope_of_the_row_that_counts_most(unseen, monkeypatch):
    if unseen:  # the graph alone decides
        monkeypatch.setattr(call, "_alike", lambda *_: True)
    model, x = Weighted().eval(), torch.randn(8, 4)
    x[5] = 10 * model.layer.weight.detach()[0]  # there its first output is not flat
    attained = ns.lipschitz(model, x, scope="point").lower
    assert attained > 10
    everywhere = ns.lipschitz(model, x, effort="tight")
    ball = ns.lipschitz(model, x, scope="ball", radius=0.1)
    assert min(bracket.upper for bracket in (everywhere, ball)) >= attained
    assert len(ball.per_sample) == 1
    for refusing in (ns.certified_radius, partial(ns.lipschitz, scope="data")):
        with pytest.raises(InputError, match="treats them differently"):
            refusing(model, x)
    assert ns.audit(model, x).lipschitz.upper >= attained
    assert ns.capture(model, x[:5]).per_sample  # without that row all are alike


class Windows(nn.Module):
    """Attention in windows, as Swin does it: the batch is folded into the windows and unfolded again."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        windows = self.norm(torch.roll(x, 1, 1)).reshape(batch * length // 2, 2, width)
        return x + self.attention(windows, windows, windows, need_weights=False)[0].reshape(batch, length, width)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], batch_first: bool) -> None:
        super().__init__()
        self.run, self.batch_first = kind(4, 3, num_layers=2, batch_first=batch_first), batch_first

    def forward(self, x: Tensor) -> Tensor:
        values, states = self.run(x if self.batch_first else x.transpose(0, 1))
        states = states[0] if isinstance(states, tuple) else states
        return (values if self.batch_first else values.transpose(0, 1)).mean(1) + states[-1]


def _assigned(x: Tensor, places, values: Tensor) -> Tensor:
    x = x.clone()
    x[places] = values
    return x


def row_by_row() -> nn.Module:
    """One layer, called once for every row."""
    return Function(lambda net, x: torch.stack([net.layer(row).relu() for row in x]), layer=nn.Linear(4, 3))


APART = {
    "mlp": (nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.GELU(), nn.Linear(5, 2)), (5, 4)),
    "convolutions": (
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(3, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)),
        (3, 2, 6, 6),
    ),
    "windows": (Windows(), (3, 4, 4)),
    "lstm": (Recurrent(nn.LSTM, True), (3, 5, 4)),
    "encoder": (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (3, 5, 4)),
    "choices": (Function(lambda x: torch.where(x > x.mean(1, keepdim=True), x.sort(1).values, x.cumsum(1))), (5, 4)),
    "assigned": (Function(lambda x: _assigned(x, (slice(None), torch.tensor([1, 3])), x[:, :2])), (5, 4)),
    "einsum": (Function(lambda x: torch.einsum("bij,jk,bk->bi", x, torch.ones(4, 4), x[:, 0])), (3, 2, 4)),
    "one layer for all rows": (row_by_row(), (5, 4)),
}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", APART)
def test_samples_that_never_meet_are_measured_one_by_one(name):
    model, shape = APART[name]
    batch = torch.randn(shape)
    graph = ns.capture(model.eval(), batch)
    assert graph.per_sample
    assert graph.input_shape == (1, *shape[1:])
    assert graph.batched
    with torch.no_grad():
        assert torch.allclose(graph.batched[0].run(batch), model(batch), atol=1e-5)


def chosen() -> nn.Module:
    """Weights that each sample chooses by its kind."""
    return Function(
        lambda net, x, kind: torch.bmm(net.w[kind], x[:, :, None])[:, :, 0] + net.w.index_select(0, kind)[:, 0],
        w=nn.Parameter(torch.randn(3, 4, 4)),
    )


KINDS = torch.tensor([2, 0, 1, 1, 0])


def test_masks_that_mix_or_differ_in_use_join_the_samples():
    by_kind = torch.ones(5, 3)
    by_kind[4, 0] = 1 + 1e-5  # a table by row, which only kinds that the first sample does not have tell apart
    functions = [
        lambda x, kind: x * (1 + tiny(kind.sum())),
        lambda x, kind: x + tiny(kind.roll(1))[:, None],
        lambda x, kind: x * by_kind[torch.arange(len(x)), kind][:, None],
    ]
    for function in functions:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(call, "_alike", lambda *_: True)
            assert not ns.capture(Function(function).eval(), (torch.randn(5, 4), KINDS)).per_sample


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_real_models_are_measured_one_sample_at_a_time(name):
    model, batch, output = FAMILIES[name]()
    graph = ns.capture(model, batch, output=output)
    assert graph.per_sample
    assert graph.rounded == ()


def test_the_order_of_the_samples_matters():
    graph = ns.capture(Function(lambda x: x.flip(0)).train(), torch.randn(4, 3))
    assert "another order" in joined(graph, 4)
    assert joined(ns.capture(Function(lambda x: x.flip(1)).train(), torch.randn(4, 3)), 4) is None


EXAMPLES = [
    (function if isinstance(function, nn.Module) else Function(function), shapes[0])
    for rule in operators()
    for function, *shapes in rule.examples
    if len(shapes) == 1 and shapes[0][0] > 1
]


def meet(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether some output of a sample is seen to move with another sample."""
    x = torch.randn(shape)
    first = model(x)
    if first.ndim == 0 or len(first) != len(x):
        return True
    for sample in range(len(x)):
        for scale in (0.1, 3.0):
            other = x.clone()
            other[sample] = scale * torch.randn(shape[1:])
            moved = (first != model(other)).reshape(len(x), -1).any(1)
            if set(moved.nonzero().flatten().tolist()) - {sample}:
                return True
    return False


PARTS = 48
"""The examples of all rules are tried in so many parts."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_of_the_rules_are_never_wrongly_called_independent(part):
    """Every example of every rule as the graph of a batch, against runs in which one sample moves."""
    apart = 0
    for model, shape in EXAMPLES[part::PARTS]:
        model.eval()
        _, graph = capturing._traced(model, call.prepare(model, torch.rand(shape), None), None, "eval", True)
        found = joined(graph, shape[0]) is None
        with torch.no_grad():
            assert not (found and meet(model, shape)), str(graph)
        apart += found
    assert apart > len(EXAMPLES) / (4 * PARTS)


@pytest.mark.parametrize(
    ("model", "gain"),
    [
        (Function(lambda x: torch.tensor([1.0, 0.0]) + x * len(x)), 4.0),
        (Function(lambda x: x.sin() / x.shape[0]), 0.25),
    ],
    ids=str,
)
def test_a_factor_that_depends_on_the_batch_size_is_seen_where_the_batch_is_zero(model: nn.Module, gain: float) -> None:
    bracket = ns.lipschitz(model.eval(), torch.zeros(4, 2))
    assert bracket.upper >= gain * (1 - 1e-9)
    assert bracket.input_shape == (4, 2)


class Pooled(nn.Module):
    """Token ids and lengths: what each sample reads depends on its own lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        h = self.embed(ids)
        inside = (torch.arange(h.shape[1]) < lengths[:, None]).to(h.dtype)[..., None]
        ends = h[torch.arange(len(h)), lengths - 1] + h.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, 4))[:, 0]
        kind = F.one_hot(lengths, 8).to(h.dtype)
        return self.last((h * inside).sum(1) / inside.sum(1) + ends) + kind[:, :2]


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (Pooled(), (torch.arange(35).reshape(5, 7) % 9, torch.tensor([5, 7, 3, 7, 1]))),
        (chosen(), (torch.ones(5, 4), KINDS)),
    ],
    ids=["lengths", "kinds"],
)
def test_masks_and_ids_of_their_own_keep_samples_apart(model, batch):
    assert ns.capture(model.eval(), batch).per_sample


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_a_size_of_the_batch_that_a_normalizer_hides_joins_the_samples(size: float) -> None:
    """No value of a batch tells its size here, and yet a sample alone has four times the slope."""
    model, batch = Function(lambda x: F.layer_norm(x / x.shape[0], (4,))), torch.randn(4, 4)
    bracket = ns.lipschitz(model.eval(), batch)
    assert any("the whole batch is measured as one input" in note for note in bracket.notes)
    x = size * torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    jacobian = torch.autograd.functional.jacobian(model, x).reshape(16, 16)
    assert bracket.upper >= float(torch.linalg.matrix_norm(jacobian, 2))
