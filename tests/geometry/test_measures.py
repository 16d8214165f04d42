"""Measures of generalization against plain formulas in float64, and what rescaling two layers does to each."""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import normscope as ns
from normscope.bounds.geometry.measures import MEASURES
from normscope.core.errors import InputError

LOSSES = [(1, 2.0), (5, 0.09), (9, 0.05), (30, 0.01)]
QUICK = ("size", "outputs", "norms", "distances", "path", "capacity over margin", "training")


def network() -> nn.Sequential:
    """Return a ReLU network in float64."""
    layers = (nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    return nn.Sequential(*layers).double()


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Sequential, nn.Sequential, Tensor, Tensor]:
    """Return a network after a short training, before it, and its samples; all of them are classified correctly."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model, x = network(), torch.randn(40, 4).double()
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    start, optimizer = deepcopy(model), torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, start, x, y


def matrices(model: nn.Module) -> list[Tensor]:
    return [parameter.detach() for parameter in model.parameters() if parameter.ndim > 1]


def squares(tensors: list[Tensor]) -> float:
    return float(sum(tensor.square().sum() for tensor in tensors))


def norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2))


def plain(model: nn.Sequential, start: nn.Sequential, x: Tensor, y: Tensor) -> dict[str, float]:
    """Return the measures of a ReLU network of linear layers that need no search, as the papers write them."""
    now, moved = matrices(model), [a - b for a, b in zip(matrices(model), matrices(start))]
    s, f, depth = [norm(w) for w in now], [float(w.norm()) for w in now], len(now)
    logits = model(x).detach()
    others = logits.masked_fill(nn.functional.one_hot(y, 3).bool(), -math.inf).amax(1)
    margin = float((logits[range(len(y)), y] - others).sort().values[math.ceil(0.1 * len(y)) - 1])
    p = logits.softmax(1)
    paths = torch.ones(x.shape[1]).double()
    for layer in model:
        paths = layer.weight.square() @ paths + layer.bias.square() if isinstance(layer, nn.Linear) else paths
    rows = [float(d.norm(dim=1).sum()) for d in moved]
    gradients, weights = [], torch.cat([q.detach().reshape(-1) for q in model.parameters()])
    for index in range(len(y)):
        loss = nn.functional.cross_entropy(model(x[index : index + 1]), y[index : index + 1])
        gradients.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))]))
    by_sample = torch.stack(gradients)
    path, product, frobenius = math.sqrt(float(paths.detach().sum())), math.prod(s), math.prod(f)
    complexity = sum((r / o) ** (2 / 3) for r, o in zip(rows, s)) ** 1.5
    over_spectral = sum((a / b) ** 2 for a, b in zip(f, s))
    distance_over_spectral = sum((float(d.norm()) / o) ** 2 for d, o in zip(moved, s))
    logs = {
        "inverse-margin": 1 / margin,
        "frobenius-product": frobenius,
        "spectral-product": product,
        "frobenius-mean": depth * frobenius ** (2 / depth),
        "spectral-mean": depth * product ** (2 / depth),
        "path-norm": path,
        "path-norm/margin": path / margin,
        "frobenius-product/margin": frobenius / margin,
        "spectral-product/margin": product / margin,
        "frobenius-mean/margin": depth * (frobenius / margin) ** (2 / depth),
        "spectral-mean/margin": depth * (product / margin) ** (2 / depth),
        "spectral-complexity/margin": product * complexity / margin,
        "pac-bayes-complexity/margin": product * math.sqrt(over_spectral) / margin,
        "spectral-init/margin": product * math.sqrt(distance_over_spectral) / margin,
    }
    return {name: math.log10(value) for name, value in logs.items()} | {
        "parameters": float(sum(q.numel() for q in model.parameters())),
        "negative-entropy": float((p * p.log()).sum(1).mean()),
        "frobenius-sum": squares(now),
        "frobenius-over-spectral": over_spectral,
        "distance": squares(moved),
        "spectral-distance": sum(norm(d) ** 2 for d in moved),
        "distance-over-spectral": distance_over_spectral,
        "fisher-rao": float((by_sample @ weights).square().mean().sqrt()),
        "gradient-noise": float(by_sample.var(0).sum()),
        "steps-to-loss": 5.0,
        "steps-between-losses": 25.0,
    }


def test_measures_are_the_formulas_of_the_papers(trained) -> None:
    model, start, x, y = trained
    expected = plain(model, start, x, y)
    one_by_one = list(zip(x.split(1), y.split(1)))  # the gradients of single samples
    result = ns.measures(model, one_by_one, start=start, losses=LOSSES, only=[*QUICK, "fisher-rao"])
    assert {row.name for row in result.rows} == set(expected)
    for name, value in expected.items():
        # Operator norms are certified upper bounds within 0.1 % each.
        assert result[name] == pytest.approx(value, rel=3e-3, abs=3e-3 if MEASURES[name].is_log10 else 0), name
    exact = ("frobenius-sum", "frobenius-product", "distance", "path-norm", "inverse-margin", "fisher-rao")
    for name in (*exact, "negative-entropy", "gradient-noise"):
        assert result[name] == pytest.approx(expected[name], rel=1e-9), name


def test_the_start_can_be_weights_by_name_and_one_batch_gives_the_same(trained) -> None:
    model, start, x, y = trained
    chosen = ["distance", "fisher-rao", "inverse-margin"]
    result = ns.measures(model, (x, y), start=start.state_dict(), only=chosen)
    expected = plain(model, start, x, y)
    assert [row.name for row in result.rows] == ["inverse-margin", "distance", "fisher-rao"]
    assert all(result[name] == pytest.approx(expected[name], rel=1e-9) for name in chosen)


def test_relative_flatness_is_the_sum_over_blocks_of_the_hessian(trained) -> None:
    model, _, x, y = trained
    weight = model[-1].weight.detach()

    def loss(matrix: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, {"4.weight": matrix}, (x,)), y)

    hessian = torch.func.hessian(loss)(weight)  # [rows, columns, rows, columns]
    expected = float(torch.einsum("sjtj,si,ti->", hessian, weight, weight).detach())
    assert ns.measures(model, (x, y), only=["relative-flatness"])["relative-flatness"] == pytest.approx(expected)


def test_searched_sizes_raise_the_error_by_a_tenth(trained) -> None:
    model, start, x, y = trained
    result = ns.measures(model, (x, y), start=start, only=["noise", "boxes"])
    sigma = result["pac-bayes-flatness"] ** -0.5
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    before = torch.cat([p.detach().reshape(-1) for p in start.parameters()])
    draws = torch.Generator().manual_seed(0)
    moves = [torch.randn(len(weights), generator=draws).double() for _ in range(10)]

    def error(vector: Tensor) -> float:
        sizes = [p.numel() for p in model.parameters()]
        parts = {n: v.reshape(p.shape) for (n, p), v in zip(model.named_parameters(), vector.split(sizes))}
        return float((functional_call(model, parts, (x,)).argmax(1) != y).double().mean())

    rise = {size: sum(error(weights + size * sigma * u) for u in moves) / 10 - error(weights) for size in (0.98, 1.02)}
    assert rise[0.98] <= 0.1 < rise[1.02]
    m, n = len(y), len(weights)
    for name, reference in (("init", weights - before), ("orig", weights)):
        bound = float(reference.square().sum()) / (4 * sigma**2) + math.log(m / sigma) + 10
        assert result[f"pac-bayes-{name}"] == pytest.approx(bound)
        s = result["pac-bayes-magnitude-flatness"] ** -0.5
        ratio = (1e-6 + (s**2 + 1) * reference.square().sum() / n) / (1e-6 + s**2 * (weights - before).square())
        assert result[f"pac-bayes-magnitude-{name}"] == pytest.approx(
            float(ratio.log().sum()) / 4 + math.log(m / s) + 10
        )
        alpha = result["sharpness-flatness"] ** -0.5
        box = float(reference.square().sum()) * math.log(2 * n) / (4 * alpha**2) + math.log(m / alpha) + 10
        assert result[f"sharpness-{name}"] == pytest.approx(box)
    # Gaussian noise of one deviation leaves a box of that size, and the worst point of a box is no better than noise.
    assert result["sharpness-flatness"] > result["pac-bayes-flatness"]


def test_sharpness_in_boxes_of_a_linear_loss_is_its_closed_form() -> None:
    model = nn.Linear(3, 1, bias=False).double()
    model.weight.data = torch.tensor([[2.0, -1.0, 0.5]]).double()
    x, w = torch.tensor([[1.0, 2.0, -4.0]]).double(), torch.tensor([2.0, 1.0, 0.5]).double()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).mean() + 10.0

    slope = x[0].abs()
    result = ns.flatness(model, (x, torch.zeros(1, 1).double()), loss=loss, levels=(0.1,), draws=1, adaptive=True)
    assert {one.name: one.value for one in result.others} == pytest.approx(
        {
            "elementwise adaptive": 0.05 * float((slope * w).norm()),
            "l-infinity adaptive": 0.05 * float(slope @ w),
            "Keskar's box": 100 * 1e-3 * float(slope @ (w + 1)) / (1 + result.loss),
            "m-sharpness": 0.05 * float(slope.norm()),
        },
        rel=1e-6,
    )
    assert ns.Flatness.from_json(result.to_json()) == result


def rescaled(model: nn.Sequential, factor: float) -> nn.Sequential:
    """Return the same function with the first layer times a factor and the second layer over it."""
    other = deepcopy(model)
    with torch.no_grad():
        other[0].weight *= factor
        other[0].bias *= factor
        other[2].weight /= factor
    return other


def difference(one: float, other: float, is_log10: bool) -> float:
    """Return by how many powers of ten two values differ."""
    return abs(one - other) if is_log10 else abs(math.log10(one / other)) if one != other else 0.0


def test_rescaling_two_layers_does_what_the_table_says(trained) -> None:
    model, start, x, y = trained
    assert torch.allclose(rescaled(model, 4.0)(x), model(x))
    before, after, both = (
        ns.measures(one, (x, y), start=begin, losses=LOSSES)
        for one, begin in ((model, start), (rescaled(model, 4.0), start), (rescaled(model, 4.0), rescaled(start, 4.0)))
    )
    for row in before.rows:
        shift = difference(row.value, after[row.name], row.is_log10)
        if row.invariant == "yes":  # Operator norms are certified upper bounds within 0.1 % each.
            assert shift < 2e-3, row.name
        elif row.invariant == "up to eps":
            assert shift < 0.05, row.name
        else:
            assert shift > 5e-3, row.name
        if row.invariant == "with the start":
            assert difference(row.value, both[row.name], row.is_log10) < 2e-3, row.name


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("need", "otherwise"), [("start", {"start": None}), ("losses", {"losses": None}), ("loss", {"loss": "hinge"})]
)
def test_a_measure_rests_on_what_it_says(trained, need: str, otherwise: dict) -> None:
    """What is taken away, or made another, changes the measures that name it, and no other."""
    model, start, x, y = trained
    given = {"start": start, "losses": LOSSES, "loss": "cross_entropy"}
    before, after = (ns.measures(model, (x, y), **options) for options in (given, given | otherwise))
    changed = {row.name for row in before.rows if row.value != after[row.name]}
    assert changed == {row.name for row in before.rows if need in row.rests_on}


def test_a_convolution_counts_with_its_operator_and_its_kernel() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2)).double()
    x = torch.eye(16).double().reshape(16, 1, 4, 4)
    operator = model[0](x).detach().flatten(1) - model[0](torch.zeros_like(x)).detach().flatten(1)
    data = x, torch.arange(16) % 2
    result = ns.measures(model, data, only=["norms", "path"])
    expected = math.log10(norm(operator) * norm(model[3].weight.detach()))
    assert result["spectral-product"] == pytest.approx(expected, abs=1e-3)
    assert result["frobenius-product"] == pytest.approx(
        math.log10(float(model[0].weight.detach().norm() * model[3].weight.detach().norm()))
    )
    squared = deepcopy(model)
    for parameter in squared.parameters():
        parameter.data.square_()
    path = 0.5 * math.log10(float(squared(torch.ones(1, 1, 4, 4).double()).detach().sum()))
    assert result["path-norm"] == pytest.approx(path)


def test_paths_go_through_folded_batch_norms_and_skips() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x + self.norm(self.first(x)).relu())

    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, x = Skip().double(), torch.randn(8, 3).double()
        model.norm.running_var.uniform_(0.5, 2.0)
        model.norm.running_mean.uniform_(-1.0, 1.0)
    model.eval()
    scale = model.norm.weight / (model.norm.running_var + model.norm.eps).sqrt()
    weight, bias = scale[:, None] * model.first.weight, scale * (model.first.bias - model.norm.running_mean)
    ones = torch.ones(3).double()
    hidden = ones + weight.square() @ ones + (bias + model.norm.bias).square()
    paths = float((model.last.weight.square() @ hidden + model.last.bias.square()).detach().sum())
    result = ns.measures(model, (x, torch.zeros(8).long()), only=["path-norm"])
    assert result["path-norm"] == pytest.approx(0.5 * math.log10(paths))


@pytest.mark.parametrize(
    ("model", "name", "reason"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 3)), "path-norm", "`1` normalizes"),
        (nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 3)), "path-norm/margin", "`1` runs `gelu`"),
        (nn.Linear(4, 3), "distance", "start="),
        (nn.Linear(4, 3), "pac-bayes-init", "start="),
        (nn.Linear(4, 3), "steps-to-loss", "losses="),
        (nn.LayerNorm(4), "spectral-product", "no weight layer"),
    ],
)
def test_a_measure_that_makes_no_sense_says_why(model: nn.Module, name: str, reason: str) -> None:
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    result = ns.measures(model, (x, torch.arange(12) % 3), only=[name])
    assert result[name] is None
    assert reason in result.rows[0].reason
    assert reason.split("=")[0].split("`")[-1] in str(result).replace("\n", " ")


def test_weights_that_are_in_no_layer_are_named() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.cell, self.last = nn.Embedding(7, 4), nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 3)
            self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

        def forward(self, ids: Tensor) -> Tensor:
            return self.last(self.normed(self.cell(self.words(ids))[0][:, -1]))

    result = ns.measures(Recurrent(), (torch.arange(12).reshape(4, 3) % 7, torch.arange(4) % 3), only=["norms"])
    assert result.layers == 2
    (note,) = result.notes
    assert "`words.weight`, `cell.weight_ih_l0` and `cell.weight_hh_l0`" in note


def test_a_regression_has_norms_and_noise_of_gradients_but_no_margin() -> None:
    model, x = nn.Linear(4, 1), torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    result = ns.measures(model, (x, x[:, :1]), loss="mse", only=[*QUICK, "pac-bayes-flatness"])
    assert result["spectral-product"] is not None
    assert result["gradient-noise"] > 0
    assert result["inverse-margin"] is None
    assert result["pac-bayes-flatness"] is None


def test_it_is_written_read_shown_and_drawn(trained, tmp_path: Path) -> None:
    model, _, x, y = trained
    result = ns.measures(model, (x, y), only=["norms", "distances"])
    result.to_json(tmp_path / "measures.json")
    assert ns.Measures.from_json(tmp_path / "measures.json") == result
    assert "pass start=" in result.to_html()
    assert list(result.to_pandas()["name"])[:2] == ["frobenius-sum", "frobenius-product"]
    pytest.importorskip("matplotlib")
    assert result.plot().get_xlabel() == "log10 of the measure"


def test_wrong_arguments_are_refused(trained) -> None:
    model, _, x, y = trained
    for options in ({"only": ["nothing"]}, {"only": "norms"}, {"start": {"a": x}}, {"rho": 0.0}, {"max_seconds": -1.0}):
        with pytest.raises(InputError):
            ns.measures(model, (x, y), **options)
    with pytest.raises(InputError, match="the model raises"):
        ns.measures(model, (x[:, :2], y))
    late = ns.measures(model, (x, y), only=["pac-bayes-flatness", "m-sharpness"], max_seconds=0.0)
    assert all("max_seconds" in row.reason for row in late.rows)
