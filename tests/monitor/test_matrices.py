"""Every trained matrix is a row: recurrent layers, embeddings, packed attention; and their norms can be read."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from normscope.doctor.monitor.quantities.operator_norms import AFRESH_TURNS, READABLE_DECADES, NormReading, NormTracker
from normscope.doctor.monitor.schedule import Tier, TimeBudget
from normscope.doctor.monitor.watching import Watch, watch
from normscope.listening.calls import LayerGeometry
from normscope.products import followed_norms
from normscope.products.followed_norms import LayerStack, NormEstimates, eigenvectors_by_powers

from .training import take_step


class Reader(nn.Module):
    """Tokens through an embedding and a recurrent layer of some kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.table = nn.EmbeddingBag(11, 6) if kind == "bag" else nn.Embedding(11, 6)
        made: dict[str, Any] = {
            "lstm": lambda: nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True),
            "projected": lambda: nn.LSTM(6, 5, proj_size=3, batch_first=True),
            "packed": lambda: nn.GRU(6, 5, batch_first=True),
            "plain": lambda: nn.RNN(6, 5, bias=False, nonlinearity="relu", batch_first=True),
            "lstm cell": lambda: nn.LSTMCell(6, 5),
            "gru cell": lambda: nn.GRUCell(6, 5),
            "rnn cell": lambda: nn.RNNCell(6, 5),
            "bag": nn.Identity,
            "attention": lambda: nn.MultiheadAttention(6, 2, batch_first=True),
        }
        self.inner = made[kind]()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        if self.kind.endswith("cell"):
            state = None
            for column in x.unbind(1):
                state = self.inner(column, state)
            return state[0] if isinstance(state, tuple) else state
        if self.kind == "packed":
            return self.inner(pack_padded_sequence(x, torch.full((len(x),), x.shape[1]), batch_first=True))[1]
        if self.kind == "attention":
            return self.inner(x, x, x)[0]
        return x if self.kind == "bag" else self.inner(x)[0]


KINDS = ["lstm", "projected", "packed", "plain", "lstm cell", "gru cell", "rnn cell", "bag", "attention"]


def trained(model: nn.Module, x: Tensor, steps: int = 4, **options: Any) -> tuple[Watch, list[Tensor]]:
    """Train for a few steps; return the run, and the weights as they were when last measured."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with watch(model, optimizer, **{"every": 1, **options}) as run:
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            held = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
    return run, held


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_trained_matrix_is_a_row_with_its_figures(kind: str) -> None:
    model = Reader(kind)
    run, held = trained(model, torch.arange(40).reshape(8, 5) % 11)
    rows = run.history.of("weight")
    names = [name for name, p in model.named_parameters() if p.ndim > 1]
    assert sorted(row.parameters[0] for row in rows) == sorted(names)
    last = run.records[-1]
    known = dict(zip([name for name, _ in model.named_parameters()], held, strict=True))
    for quantity in ("log10_norm", "log10_size", "log10_gradient"):
        assert None not in last.of("weight", quantity)
    for row, norm in zip(rows, last.of("weight", "log10_norm"), strict=True):
        exact = math.log10(float(torch.linalg.matrix_norm(known[row.parameters[0]], 2)))
        assert exact - READABLE_DECADES <= norm <= exact + 1e-5
    for row, size in zip(rows, last.of("weight", "log10_size"), strict=True):
        together = torch.cat([known[name].flatten() for name in row.parameters])
        assert 10**size == pytest.approx(float(together.norm()), rel=1e-4)


def test_rows_are_named_by_their_parameters_with_their_biases() -> None:
    run, _ = trained(Reader("lstm cell"), torch.arange(40).reshape(8, 5) % 11)
    assert [(row.name, row.family) for row in run.history.of("weight")] == [
        ("table", "embedding"), ("inner.ih", "recurrent"), ("inner.hh", "recurrent"),
    ]  # fmt: skip
    assert run.history.of("weight")[1].parameters == ("inner.weight_ih", "inner.bias_ih")


def test_recurrent_layers_and_embeddings_are_no_factors_of_the_product() -> None:
    model = nn.Sequential(Reader("lstm"), nn.Linear(10, 3))
    run, _ = trained(model, torch.arange(40).reshape(8, 5) % 11)
    last = run.records[-1]
    assert last.total["log10_printed"] == pytest.approx(last.of("weight", "log10_norm")[-1])


# ---- norms that can be read


class Residual(nn.Module):
    """Two convolutions with BatchNorm and a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def convolutions() -> nn.Module:
    depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), Residual(6), depthwise, nn.LayerNorm((6, 6, 6)), nn.Conv2d(6, 4, 3, stride=2),
        nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip


def dense(layer: nn.Module, weight: Tensor, shape: tuple[int, ...]) -> float:
    """Return log10 of the largest singular value of a layer at its input size."""
    if isinstance(layer, nn.Linear):
        return math.log10(float(torch.linalg.matrix_norm(weight, 2)))
    made = nn.functional.conv2d
    x = torch.eye(math.prod(shape)).reshape(-1, *shape)
    matrix = made(x, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups).flatten(1)
    return math.log10(float(torch.linalg.matrix_norm(matrix, 2)))


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("tier", "every", "lr", "seed"),
    [("full", 9, 0.3, 0), ("economy", 2, 0.3, 1), ("economy", 9, 0.3, 3), ("standard", 4, 0.1, 2)],
)
def test_norms_of_a_short_run_are_those_of_dense_decompositions(tier: str, every: int, lr: float, seed: int) -> None:
    torch.manual_seed(seed)
    model = convolutions()
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    shapes = [(3, 6, 6), *[(6, 6, 6)] * 4, (16,)]
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-2)
    x, y = torch.randn(16, 3, 6, 6), torch.randint(4, (16,))
    exact: dict[int, list[float]] = {}
    with watch(model, optimizer, every=every, tier=tier) as run:
        for step in range(19):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            if step % every == 0:
                exact[step] = [dense(a, a.weight.detach(), s) for a, s in zip(layers, shapes, strict=True)]
            optimizer.step()
    worst = 0.0
    for record in run.records:
        norms, errors = (record.of("weight", quantity) for quantity in ("log10_norm", "norm_error"))
        assert None not in norms
        for norm, error, true in zip(norms, errors, exact[record.step], strict=True):
            worst = max(worst, true - norm)
            assert norm <= true + 1e-5
            assert error <= READABLE_DECADES
    assert worst <= READABLE_DECADES


@pytest.mark.parametrize("factor", [1e-35, 1e-20, 1e20, 1e35])
def test_norms_of_extreme_weights(factor: float) -> None:
    model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Tanh(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight.mul_(factor)
        model[2].weight.zero_()
    model[0].weight.requires_grad_(False)
    exact = math.log10(float(torch.linalg.matrix_norm(model[0].weight.double(), 2)))
    run, _ = trained(model, torch.randn(16, 5), steps=2)
    first = run.records[0].of("weight", "log10_norm")
    assert first[0] == pytest.approx(exact, abs=READABLE_DECADES)
    assert first[1] == -math.inf


def test_a_weight_that_was_zero_is_followed_once_it_is_not() -> None:
    model = nn.Sequential(nn.Linear(1, 3, bias=False), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, every=1) as run:
        for step in range(5):
            with torch.no_grad():
                model[0].weight.fill_(0.0 if step < 3 else 2.0)
            take_step(model, optimizer, torch.ones(4, 1))
    norms = [record.of("weight", "log10_norm")[0] for record in run.records]
    assert norms[:3] == [-math.inf] * 3
    assert norms[3:] == pytest.approx([math.log10(math.sqrt(12.0))] * 2, abs=1e-3)


def read(layers: LayerStack, estimates: NormEstimates) -> tuple[Any, Any]:
    """Return log10 of the norms and their errors, as the host reads them."""
    numbers = estimates.numbers.double().numpy()
    return followed_norms.read_norms(
        numbers, layers=layers.count, norms=layers.norms, steps=estimates.steps, size=layers.size
    )


def search(geometry: LayerGeometry, weight: Tensor, draw: torch.Generator) -> tuple[float, float]:
    """Return log10 of the norm of a layer, and its error."""
    layers = LayerStack(geometry, [weight], None)
    norms, errors = read(layers, followed_norms.NormSearch(layers, draw).finish())
    return float(norms[0, 0]), float(errors[0, 0])


def test_a_search_is_not_taken_in_by_values_that_lie_close_together() -> None:
    """All singular values but one lie close together: residuals are small long before the largest is met."""
    geometry = LayerGeometry(kind="linear", shape=(1, 400), channels=400)
    for seed in range(5):
        draw = torch.Generator().manual_seed(seed)
        turn = torch.linalg.qr(torch.randn(400, 400, generator=draw))[0]
        weight = turn * torch.tensor([1.06, *(1.0 - 0.1 * i / 399 for i in range(399))])
        norm, error = search(geometry, weight.mT.contiguous(), draw)
        assert -1e-5 <= math.log10(1.06) - norm <= error + 1e-5
        assert error <= READABLE_DECADES


def test_a_search_begins_where_no_weight_can_hide() -> None:
    """The largest direction is orthogonal to what all entries have alike, and to every unit vector but two."""
    across = torch.tensor([1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]) / math.sqrt(2.0)
    weight = torch.eye(8) + 2.0 * across[:, None] * across
    geometry = LayerGeometry(kind="linear", shape=(1, 8), channels=8)
    for seed in range(3):
        norm, _ = search(geometry, weight, torch.Generator().manual_seed(seed))
        assert 10**norm == pytest.approx(3.0, rel=1e-3)


CONVOLUTION = LayerGeometry(
    kind="convolution", shape=(1, 6, 5, 5), channels=6, settings=([1, 1], [1, 1], [1, 1], False, [0, 0], 3)
)
ALIKE = {
    "linear": (LayerGeometry(kind="linear", shape=(1, 40), channels=30), (30, 40)),
    "matrix": (LayerGeometry(kind="matrix", shape=(1, 40), channels=30), (40, 30)),
    "grouped convolution": (CONVOLUTION, (6, 2, 3, 3)),
}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("case", ALIKE)
def test_layers_of_one_shape_have_the_same_norms_together_as_each_alone(case: str, scaled: bool) -> None:
    geometry, shape = ALIKE[case]
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=draw) * 10.0 ** (5 * power) for power in (-1, 0, 2)]
    scales = torch.rand(3, geometry.channels, generator=draw) + 0.1 if scaled else None
    together = LayerStack(geometry, weights, scales)
    first = followed_norms.NormSearch(together, draw).finish()
    norms, errors = read(together, first)
    assert norms.shape == errors.shape == (3, 2 if scaled else 1)
    again, again_errors = read(together, followed_norms.follow_norms(together, first.vectors, draw))
    for index, weight in enumerate(weights):
        alone = LayerStack(geometry, [weight], None if scales is None else scales[index : index + 1])
        single, _ = read(alone, followed_norms.NormSearch(alone, draw).finish())
        assert norms[index] == pytest.approx(single[0], abs=0.01)
        eye = torch.eye(math.prod(geometry.shape[1:])).reshape(-1, *geometry.shape[1:])
        images = geometry.image(eye, weight).double()
        factors = [torch.ones(1)] if scales is None else [torch.ones(1), scales[index]]
        for norm, column in enumerate(factors):
            dense_images = images * column.reshape(1, -1, *(1,) * (images.ndim - 2))
            exact = math.log10(float(torch.linalg.matrix_norm(dense_images.flatten(1), 2)))
            for values, off in ((norms, errors), (again, again_errors)):
                assert -1e-5 <= exact - values[index, norm] <= off[index, norm] + 1e-5


def make_tracker_measure(norms: NormTracker, layers: dict[Any, Any], **options: Any) -> list[NormReading]:
    settings = {"step": 0, "tier": Tier.ECONOMY, "budget": TimeBudget(None), **options}
    return [reading for reading, _ in norms.measure(layers, lambda _: None, **settings)]


@pytest.mark.parametrize(("doubted", "searches"), [(False, [0, AFRESH_TURNS]), (True, [0, 2, AFRESH_TURNS + 2])])
def test_a_search_is_made_again_after_some_turns_or_where_there_is_doubt(doubted: bool, searches: list[int]) -> None:
    norms, site = NormTracker(), ("a", "linear", 0)
    layers = {site: (LayerGeometry(kind="linear", shape=(1, 90), channels=50), torch.randn(50, 90))}
    readings: list[NormReading] = []
    for turn in range(AFRESH_TURNS + 3):
        if doubted and turn == 2:
            norms.doubt(readings[-1])
        readings += make_tracker_measure(norms, layers)
    assert [turn for turn, reading in enumerate(readings) if reading.steps] == searches
    norms.doubt(readings[0])  # a search that was not enough
    assert make_tracker_measure(norms, layers)[0].steps == 2 * readings[0].steps
    assert [make_tracker_measure(norms, layers, tier=Tier.FULL)[0].steps > 0 for _ in range(3)] == [True] * 3


def test_layers_of_one_shape_are_measured_together_while_their_weights_are_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    geometry = LayerGeometry(kind="linear", shape=(1, 9), channels=5)
    layers = {(name, "linear", 0): (geometry, torch.randn(5, 9)) for name in "abc"}
    layers[("d", "linear", 0)] = (LayerGeometry(kind="linear", shape=(1, 5), channels=9), torch.randn(9, 5))
    stacks = [tuple(site[0] for site in one.sites) for one in make_tracker_measure(NormTracker(), layers)]
    assert stacks == [("a", "b", "c"), ("d",)]
    monkeypatch.setitem(followed_norms.MAX_STACKED_BYTES, "cpu", 2 * 5 * 9 * 4)
    stacks = [tuple(site[0] for site in one.sites) for one in make_tracker_measure(NormTracker(), layers)]
    assert stacks == [("a", "b"), ("c",), ("d",)]


@pytest.mark.parametrize("seed", range(4))
def test_powers_of_small_matrices_find_the_best_two(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(5, 7, 30, generator=draw) * torch.logspace(0, -2 * seed, 7)[:, None]
    small = rows @ rows.mT
    best = eigenvectors_by_powers(small, 2)
    values = torch.linalg.eigvalsh(small)
    levels = torch.diagonal(best.mT @ small @ best, dim1=1, dim2=2)
    assert torch.allclose(levels[:, 0], values[:, -1], rtol=2e-3)
    assert torch.allclose(levels[:, 1], values[:, -2], rtol=2e-2)
    assert torch.allclose(best.mT @ best, torch.eye(2).expand(5, 2, 2), atol=2e-2)
    assert torch.equal(
        eigenvectors_by_powers(torch.zeros(1, 3, 3), 1).isfinite(), torch.ones(1, 3, 1, dtype=torch.bool)
    )


@pytest.mark.parametrize(("case", "seed"), [("linear", 0), ("folded", 1), ("grouped", 2), ("folded", 3)])
def test_what_is_followed_is_the_norm_while_the_weight_turns(case: str, seed: int) -> None:
    """A direction that was not the largest grows until it is."""
    draw = torch.Generator().manual_seed(seed)
    groups = 3 if case == "grouped" else 1
    geometry = LayerGeometry(kind="linear", shape=(1, 40), channels=30)
    weight, other = (
        torch.randn(30, 40, generator=draw),
        torch.randn(30, 1, generator=draw) @ torch.randn(1, 40, generator=draw),
    )
    if case == "grouped":
        geometry = LayerGeometry(
            kind="convolution", shape=(1, 6, 5, 5), channels=6, settings=([1, 1], [1, 1], [1, 1], False, [0, 0], groups)
        )
        weight, other = torch.randn(6, 2, 3, 3, generator=draw), torch.zeros(6, 2, 3, 3)
        other[4:] = torch.randn(2, 2, 3, 3, generator=draw)
    scale = torch.rand(30, generator=draw) + 0.1 if case == "folded" else None
    scales = None if scale is None else scale[None]
    known = followed_norms.NormSearch(LayerStack(geometry, [weight], scales), draw).finish().vectors
    for step in range(1, 16):
        now = weight + 0.05 * step * other
        layers = LayerStack(geometry, [now], scales)
        estimates = followed_norms.follow_norms(layers, known, draw)
        known = estimates.vectors.bfloat16().float()
        eye = torch.eye(math.prod(geometry.shape[1:])).reshape(-1, *geometry.shape[1:])
        images = geometry.image(eye, now)
        exact = [images] if scale is None else [images, images * scale]
        norms, errors = read(layers, estimates)
        for norm, error, dense_images in zip(norms[0], errors[0], exact, strict=True):
            below = math.log10(float(torch.linalg.matrix_norm(dense_images.flatten(1), 2))) - norm
            assert -1e-5 <= below <= max(error, 1e-5)
        assert estimates.vectors.shape == layers.followed_shape


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_have_no_norm_however_old_the_last_is(value: float) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, every=1) as run:
        for step in range(4):
            if step == 2:
                with torch.no_grad():
                    model[0].weight[0, 0] = value
            take_step(model, optimizer, torch.ones(4, 3))
    norms = [record.of("weight", "log10_norm")[0] for record in run.records]
    assert math.isfinite(norms[1])
    assert [norm is None or not math.isfinite(norm) for norm in norms[2:]] == [True, True]
