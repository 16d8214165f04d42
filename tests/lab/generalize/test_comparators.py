"""VC, norms and margins: against hand-computed cases, independent evaluations, and what they must bound."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from normscope.bounds.graph.capturing import capture
from normscope_lab.generalize.description import Fixed
from normscope_lab.generalize.stream import SamplesSeen, independent_draws
from normscope_lab.generalize.weight_layers import Units, growth_bound, log_growth, read_network
from normscope_lab.generalize.weight_rows import (
    MarginFacts,
    bartlett2017,
    golowich2020,
    growth_row,
    margin_rows,
    neyshabur2018,
    power_of_two,
    weight_norm_row,
)

from ...soundness.networks import Function


def seen(m=1000, error=0.1, margin=2.0):
    spread = torch.linspace(-0.1 * margin, 2 * margin, m, dtype=torch.float64)
    return SamplesSeen(
        samples=m, loss=0.1, error=error, worst_loss=0.1, worst_error=error, margins=spread, square_norms=4.0 * m,
        largest_norm=3.0, entries=(-1.0, 1.0), fingerprints=torch.arange(m),
        independent=independent_draws(torch.arange(m), 0), classes=3, difference=0.0,
    )  # fmt: skip


class TestGrowth:
    @pytest.mark.parametrize("m", [3, 5, 8, 20])
    @pytest.mark.parametrize("n", [1, 2, 4])
    def test_linear_classifiers_have_at_most_so_many_dichotomies(self, m, n):
        """Cover 1965: 2 sum over k <= n of C(m-1, k) for affine functions of n entries in general position."""
        exact = 2 * sum(math.comb(m - 1, k) for k in range(n + 1))
        assert math.log(exact) <= log_growth([Units(count=1, bends=1, weights=n + 1, degree=1)], m) + 1e-12

    @pytest.mark.parametrize("m", [2, 3, 4, 6])
    def test_a_small_network_shows_fewer_patterns(self, m):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(m, 2, generator=generator)
        w, b = torch.randn(20_000, 2, 2, generator=generator), torch.randn(20_000, 2, 1, generator=generator)
        v, c = torch.randn(20_000, 1, 2, generator=generator), torch.randn(20_000, 1, 1, generator=generator)
        signs = (v @ (w @ x.T + b).relu() + c > 0)[:, 0]
        patterns = len(torch.unique(signs, dim=0))
        layers = [Units(count=2, bends=1, weights=6, degree=1), Units(count=1, bends=1, weights=9, degree=2)]
        assert math.log(patterns) <= log_growth(layers, m)

    def test_a_hand_computed_case(self):
        """100 samples, 3 units behind 5 weights, 1 output of degree 2 behind 9: Warren twice."""
        layers = [Units(count=3, bends=1, weights=5, degree=1), Units(count=1, bends=1, weights=9, degree=2)]
        first = math.log(2) + 5 * math.log(2 * math.e * 300 / 5)
        second = math.log(2) + 9 * math.log(2 * math.e * 100 * 2 / 9)
        assert log_growth(layers, 100) == pytest.approx(first + second)
        assert growth_bound(first + second, 100, 0.05)[0] == pytest.approx(math.sqrt(2 * (first + second) / 100))


class TestNetworks:
    def test_a_bias_is_a_column_more(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
        found = read_network(model, torch.randn(2, 3), 2, None, None)
        first = torch.zeros(5, 4, dtype=torch.float64)
        first[:4, :3], first[:4, 3], first[4, 3] = model[0].weight.detach(), model[0].bias.detach(), 1.0
        last = torch.cat([model[2].weight, model[2].bias[:, None]], 1).detach().double()
        for layer, matrix in zip(found.layers, (first, last), strict=True):
            assert 10**layer.log10_spectral >= float(torch.linalg.matrix_norm(matrix, 2)) * (1 - 1e-9)
            assert 10**layer.log10_frobenius == pytest.approx(float(matrix.norm()))
            assert 10**layer.log10_rows == pytest.approx(float(matrix.norm(dim=1).sum()))
        assert found.biased
        assert found.width == 5
        assert [found.chain.status, found.homogeneous.status, found.piecewise.status] == ["met"] * 3
        assert [unit.weights for unit in found.units] == [16, 26]
        assert [unit.degree for unit in found.units] == [1, 2]
        assert found.units[-1].count == 2

    @pytest.mark.slow
    def test_a_convolution_is_bounded_from_above_and_batch_norm_is_folded(self):
        torch.manual_seed(0)
        conv, norm = nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        norm.running_var.copy_(torch.tensor([0.5, 2.0, 4.0]))
        norm.running_mean.copy_(torch.tensor([0.1, -0.2, 0.3]))
        model = nn.Sequential(conv, norm, nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)).eval()
        found = read_network(model, torch.randn(2, 2, 4, 4), 2, None, None)
        with torch.no_grad():
            shift = norm(conv(torch.zeros(1, 2, 4, 4))).flatten().double()
            matrix = (norm(conv(torch.eye(32).view(32, 2, 4, 4))).flatten(1).double() - shift).T
        whole = torch.zeros(49, 33, dtype=torch.float64)
        whole[:48, :32], whole[:48, 32], whole[48, 32] = matrix, shift, 1.0
        layer = found.layers[0]
        assert 10**layer.log10_spectral >= float(torch.linalg.matrix_norm(whole, 2)) * (1 - 1e-6)
        assert 10**layer.log10_frobenius >= float(whole.norm()) * (1 - 1e-6)
        assert 10**layer.log10_rows >= float(whole.norm(dim=1).sum()) * (1 - 1e-6)
        assert 10**layer.log10_rows <= float(whole.norm(dim=1).sum()) * 1.5
        assert found.chain.status == "met"

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize(
        ("model", "missing"),
        [
            (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2)), {"chain", "piecewise"}),
            (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), {"homogeneous", "piecewise"}),
            (nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)), {"chain", "homogeneous", "piecewise"}),
        ],
        ids=["layer norm", "tanh", "gelu"],
    )
    def test_what_a_bound_asks_for_is_read_off_the_graph(self, model, missing):
        found = read_network(model.eval(), torch.randn(2, 3), 2, None, None)
        names = ("chain", "homogeneous", "matrices", "piecewise")
        assert {name for name in names if getattr(found, name).status != "met"} == missing
        rows = margin_rows(found, seen(), 0.01, None)
        asked = missing - {"piecewise"}
        assert {row.evidence for row in rows} == ({"estimated"} if asked else {"certified"})
        assert growth_row(found, seen(), 0.01).evidence == "estimated"
        assert growth_row(found, seen(), 0.01).log10_value == math.inf

    def test_skips_are_no_chain_and_still_piecewise_linear(self):
        found = read_network(
            Function(lambda net, x: net.b(x + net.a(x).relu()), a=nn.Linear(3, 3), b=nn.Linear(3, 2)).eval(),
            torch.randn(2, 3),
            2,
            None,
            None,
        )
        assert (found.chain.status, found.piecewise.status) == ("not met", "met")
        assert growth_row(found, seen(), 0.01).evidence == "certified"


def facts(**changes):
    spectral, frobenius, rows = ([math.log10(x) for x in norms] for norms in ((2.0, 3.0), (4.0, 3.5), (4.0, 3.5)))
    base = MarginFacts(
        log10_spectral=spectral, log10_frobenius=frobenius, log10_rows=rows, width=8, classes=5, samples=5000,
        square_norms=35000.0, radius=3.0, delta=0.01,
    )  # fmt: skip
    return replace(base, **changes)


class TestMargins:
    def test_bartlett_spelled_out(self):
        m, gamma, width, step = 5000, 1.5, 8, 2**0.5
        k = math.ceil(math.log2(6.0 / gamma))
        ratios = [step ** math.ceil(math.log(r / s, step)) for r, s in zip((4.0, 3.5), (2.0, 3.0))]
        root = math.sqrt(35000.0 * math.log(2 * width**2)) * 2.0**k * sum(r ** (2 / 3) for r in ratios) ** 1.5
        cost = math.log(1.5 * (abs(k) + 1) * (abs(k) + 2)) + 2 * math.log(math.ceil(2 * math.log(width, step)) + 2)
        complexity, confidence = (term.value for term in bartlett2017(facts(), gamma))
        assert complexity == pytest.approx(72 * root * math.log(m) / m + 8 / m**1.5)
        assert confidence == pytest.approx(3 * math.sqrt((math.log(2 / 0.01) + cost) / (2 * m)))

    def test_neyshabur_spelled_out(self):
        s, f, m, d, h, b, gamma = [2.0, 3.0], [4.0, 3.5], 5000, 2, 8, 3.0, 1.5
        kl = 42**2 * d**2 * b**2 * h * math.log(4 * d * h) * math.e**2 / (2 * gamma**2)
        kl *= (s[0] * s[1]) ** 2 * sum((x / y) ** 2 for x, y in zip(f, s))
        term = 4 * math.sqrt((kl + math.log(6 * m * d * m ** (1 / (2 * d)) / 0.01)) / (m - 1))
        assert [one.value for one in neyshabur2018(facts(), gamma)] == pytest.approx([term])

    def test_golowich_spelled_out(self):
        k = math.ceil(math.log2(14.0 / 2.0))
        rad = 2.0**k * (math.sqrt(2 * math.log(2) * 2) + 1) * math.sqrt(35000.0) / 5000
        complexity, confidence = (term.value for term in golowich2020(facts(), 2.0))
        assert complexity == pytest.approx(4 * 5 * rad)
        share = 0.01 / (1.5 * (k + 1) * (k + 2))
        assert confidence == pytest.approx(3 * math.sqrt(math.log(2 / share) / 10000))

    def test_the_rademacher_complexity_of_linear_functions_is_below_golowich(self):
        """sup over norm(w) <= 1 of the mean of eps <w, x> is norm(X^T eps)/m."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(50, 4, generator=generator)
        signs = torch.randint(2, (4000, 50), generator=generator) * 2.0 - 1.0
        average = float((signs @ x).norm(dim=1).mean() / 50)
        linear = facts(log10_frobenius=[0.0], classes=1, samples=50, square_norms=float(x.square().sum()))
        assert average <= golowich2020(linear, 1.0)[0].value / 4

    @pytest.mark.parametrize("value", [1e-3, 0.4, 1.0, 1.0001, 3.0, 1e9])
    def test_strata_cover_from_above_and_their_shares_add_up_to_one(self, value):
        exponent, _ = power_of_two(math.log10(value))
        assert value * (1 - 1e-9) <= 10**exponent <= 2.001 * value
        total = sum(1 / power_of_two(k * math.log10(2.0))[1] for k in range(-3000, 3001))
        assert total <= 1.0 + 1e-9
        assert total > 0.999


class TestWeightNorm:
    def test_the_rate_and_its_condition(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)).eval()
        found = weight_norm_row(read_network(model, torch.randn(2, 3), 2, None, None), seen())
        assert found.evidence == "rate without constants"
        assert found.value == pytest.approx(float(model[2].weight.detach().norm()) ** 2 / math.sqrt(1000), rel=1e-5)
        assert found.missing
        with torch.no_grad():
            model[0].weight.div_(model[0].weight.norm())
        assert not weight_norm_row(read_network(model, torch.randn(2, 3), 2, None, None), seen()).missing


def test_all_pairs_of_classes_are_counted():
    """The winner among K outputs is decided by the signs of all ordered differences."""
    model = nn.Linear(3, 4).eval()
    found = read_network(model, torch.randn(2, 3), 4, None, None)
    assert found.units[-1].count == len(list(itertools.permutations(range(4), 2)))


def test_pooling_is_nothing_that_golowich_speaks_of():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 2)).eval()
    found = read_network(model, torch.randn(2, 1, 6, 6), 2, None, None)
    rows = {one.name: one.evidence for one in margin_rows(found, seen(), 0.01, 1.0)}
    assert rows == {"Bartlett 2017": "certified", "Neyshabur 2018": "certified", "Golowich 2020": "estimated"}


class _Indexed(nn.Module):
    """A table that is added between its layers, and an index."""

    def __init__(self, **buffers):
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value)
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(2, 64), nn.Linear(64, 2)

    def forward(self, x):
        held, inner = dict(self.named_buffers()), self.first(x)
        inner = torch.relu(inner + held["table"] if "table" in held else inner)
        return self.last(inner[:, held["order"]] if "order" in held else inner)


@pytest.mark.slow
def test_an_added_table_that_is_declared_is_no_parameter():
    model, x = _Indexed(table=torch.linspace(0, 1, 64)).eval(), torch.rand(8, 2)
    fixed = Fixed.of("table", capture(model, x, mode="eval"))
    weights = sum(one.numel() for one in model.parameters())
    assert read_network(model, x, 2, None, None).parameters == weights + 64
    assert read_network(model, x, 2, None, None, fixed=fixed).parameters == weights


@pytest.mark.slow
def test_an_index_between_the_layers_of_a_chain_is_paid_for():
    model, x = _Indexed(order=torch.randperm(64, generator=torch.Generator().manual_seed(0))).eval(), torch.rand(8, 2)
    fixed = Fixed.of("all", capture(model, x, mode="eval"))
    paid, free = (
        {row.name: row for row in margin_rows(read_network(model, x, 2, None, None, fixed=one), seen(), 0.01, 1.0)}
        for one in (None, fixed)
    )
    nats = math.log(2) * 64 * 6  # a code for a permutation of 64 takes nearly that
    for name in ("Bartlett 2017", "Golowich 2020"):
        terms = [rows[name].term("confidence") for rows in (paid, free)]
        assert (terms[0] / 3) ** 2 - (terms[1] / 3) ** 2 > nats / (2 * 1000)
        assert paid[name].evidence == "certified"
    assert paid["Neyshabur 2018"].value > free["Neyshabur 2018"].value


def shifted() -> nn.Module:
    """Adds a constant between its layers, which no weight layer shows."""
    return Function(lambda net, x: net.b((net.a(x).relu() + 5.0).relu()), a=nn.Linear(3, 3), b=nn.Linear(3, 2))


def test_an_undeclared_radius_is_not_certified():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    network = read_network(model, torch.randn(2, 3), 2, None, None)
    for radius, evidence in ((None, "estimated"), (5.0, "certified")):
        rows = {row.name: row.evidence for row in margin_rows(network, seen(), 0.01, radius)}
        assert rows == {"Bartlett 2017": "certified", "Neyshabur 2018": evidence, "Golowich 2020": "certified"}


def test_a_constant_that_is_added_is_seen():
    found = read_network(shifted().eval(), torch.randn(2, 3), 2, None, None)
    assert (found.homogeneous.status, found.piecewise.status) == ("not met", "met")
    assert {one.evidence for one in margin_rows(found, seen(), 0.01, 1.0)} == {"estimated"}
