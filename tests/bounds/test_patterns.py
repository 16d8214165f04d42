"""Branch and bound against brute force: the exact constant of tiny networks, and patterns that can and cannot occur."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.bounds import lower, patterns
from normscope.bounds import rungs as upper
from normscope.bounds.patterns import PatternSearch, two_slopes
from normscope.core.budget import Budget
from normscope.graph.ir import Graph

from . import enumeration
from .graphs import DOUBLE, PIECEWISE, Sheet, activated, aten, chain, planned, random_graph


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer steps on a node: the tree has to do the work."""
    monkeypatch.setattr(patterns, "ROUNDS", 4)


def prepared(graph: Graph, *bounds: float) -> PatternSearch:
    segments, plan, _ = planned(graph)
    assert plan is not None
    slopes = two_slopes(segments, plan)
    assert slopes is not None
    return PatternSearch(segments, plan, slopes, *bounds)


def searched(graph: Graph, *, steps: int = 400_000) -> PatternSearch:
    search = prepared(graph)
    search.run(1e-6, Budget(steps))
    return search


def assert_exact(graph: Graph, truth: float | None = None) -> PatternSearch:
    """Both sides are the constant that brute force finds."""
    truth = enumeration.constant(graph) if truth is None else truth
    found = searched(graph)
    assert 10**found.log10_upper == pytest.approx(truth, rel=1.1e-6)
    assert 10**found.log10_lower == pytest.approx(truth, rel=1.1e-6)
    return found


def assert_sound(graph: Graph, truth: float | None = None) -> PatternSearch:
    """The upper side is at least the constant."""
    truth = enumeration.constant(graph) if truth is None else truth
    found = searched(graph)
    assert truth == 0.0 or found.log10_upper >= math.log10(truth) - 1e-9
    return found


def residual(seed: int) -> Graph:
    sheet = Sheet((1, 2), seed=seed)
    x = sheet.refs[0]
    for name in ("relu", "abs"):
        inner = sheet.linear(x, sheet.normal(3, 2), sheet.normal(3))
        x = sheet.add(x, sheet.linear(activated(sheet, inner, name), sheet.normal(2, 3)))
    return sheet.graph(x)


def convolution(seed: int) -> Graph:
    sheet = Sheet((1, 1, 4), seed=seed)
    x = sheet.call(aten.conv1d.default, sheet.refs[0], sheet.normal(2, 1, 3), sheet.normal(2), [2], [1])
    return sheet.graph(sheet.call(aten.conv1d.default, sheet.relu(x), sheet.normal(1, 2, 2), sheet.normal(1)))


def two_inputs(seed: int) -> Graph:
    sheet = Sheet((1, 1), (1, 2), seed=seed)
    first, second = sheet.linear(sheet.refs[0], 4), sheet.linear(sheet.refs[1], sheet.normal(4, 2), sheet.normal(4))
    return sheet.graph(sheet.linear(sheet.leaky(sheet.add(first, second), 0.1), 2))


WEDGES = [
    (
        [
            *([-1.0, 0.0, 0.0], [1.0, 1e-07, 0.0], [0.0, -1.0, 1e-07]),
            [1.0139395015668072e-07, 8.988318214060098e-08, -0.21106588708551483],
            [1.569121526577926e-07, 6.71575055716344e-08, 0.8384221376929384],
            [-2.0112838606918094e-07, 0.1051037836936798, -1.9126352844366013e-07],
        ],
        [-1.0, 0.0, -1.0, -1.5326085090637207, -0.8295958638191223, 0.5214198231697083],
        [-1.0, 1.0, -1.0, 0.35819460153579713, 0.1421332061290741, -0.14794279932975768],
        [-1.250000025, 15000000.5, 200000020000000.03],
    ),
    (
        [
            *([-1.0, 0.0, 0.0, 0.0], [1.0, 1e-07, 0.0, 0.0], [0.0, -1.0, 1e-07, 0.0], [0.0, 0.0, -1.0, 1e-07]),
            [1.540996126252274e-07, -2.9342890918998516e-08, -2.1787894075361025e-07, 0.5684312772806678],
            [-0.7192575784693592, -4.033435296456863e-08, -5.966353695874662e-08, 1.8203648718860166e-08],
            [-0.5663174751548546, 3.731146385427535e-08, -0.8919953148065625, -1.5091077622677822e-07],
            [1.9186942972122948e-08, 1.2637947253235853, -1.29043510317847, -7.911026995211909e-08],
        ],
        [-1.0, 0.0, -1.0, -1.0, 0.40334683656692505, -1.0711873769760132, 0.9398099184036255, 0.5186367630958557],
        [-1.0, 1.0, -1.0, -1.0, 0.2514079034328461, 0.03681037276983261, 0.2324546456336975, -0.3937565803527832],
        [-5.7212116609469685, 63770307.2779009, 9.249366022396766, 0.0],
    ),
]
"""Networks with cells that lie behind thin wedges, very far away: weights, biases, last layer, an input in the cell."""


def wedges(number: int) -> tuple[Graph, torch.Tensor, float]:
    """Return the network, the pattern of its far cell, and the slope there."""
    weight, bias, last, place = (torch.tensor(part, dtype=DOUBLE) for part in WEDGES[number])
    sheet = Sheet((1, len(place)))
    units = sheet.relu(sheet.linear(sheet.refs[0], weight, bias))
    signs = (weight @ place + bias).sign()
    return sheet.graph(sheet.linear(units, last[None])), signs, float(((last * (signs > 0)) @ weight).norm())


class TestBruteForce:
    @pytest.mark.one_in(2)
    @pytest.mark.parametrize(
        "graph",
        [
            pytest.param(chain(1, (2, 5, 1), ["relu"]), id="2-5-1"),
            pytest.param(chain(2, (2, 3, 2, 2), ["bent leaky", "abs"]), id="bent leaky and abs"),
            pytest.param(convolution(0), id="convolution"),
            pytest.param(two_inputs(0), id="two inputs"),
        ],
    )
    def test_small_networks(self, graph: Graph) -> None:
        assert_exact(graph)

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("name", PIECEWISE)
    def test_every_activation(self, name: str, seed: int) -> None:
        assert_exact(chain(seed, (2, 4, 3, 2), [name]))

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("build", [residual, convolution, two_inputs, lambda s: chain(s, (3, 4, 4, 2), ["relu"])])
    def test_every_shape(self, build, seed: int) -> None:
        assert_exact(build(seed))

    @pytest.mark.slow
    @pytest.mark.parametrize("first", range(0, 200, 50))
    def test_random_graphs(self, first: int) -> None:
        """Activations on activations, paths that meet: sound, whatever is degenerate."""
        for seed in range(first, first + 50):
            kinds = ("linear", "linear", "act", "act", "add", "cat")
            graph = random_graph(seed, steps=9, widest=3, activations=PIECEWISE, kinds=kinds)
            units = sum(math.prod(node.shape) for node in graph if enumeration.slopes(node) is not None)
            if 1 <= units <= 9:
                assert_sound(graph)

    def test_slices_share_their_patterns(self) -> None:
        """Tokens that are treated alike have the constant of one."""
        tokens = Sheet((1, 4, 2), seed=1)
        first, bias, last = tokens.normal(4, 2), tokens.normal(4), tokens.normal(1, 4)
        graph = tokens.graph(tokens.linear(tokens.relu(tokens.linear(tokens.refs[0], first, bias)), last))
        one = Sheet((1, 2))
        alone = one.graph(one.linear(one.relu(one.linear(one.refs[0], first, bias)), last))
        assert_exact(graph, enumeration.constant(alone))

    def test_slices_that_differ_are_refused(self) -> None:
        tokens = Sheet((1, 3, 2), seed=1)
        shifted = tokens.call(aten.add.Tensor, tokens.linear(tokens.refs[0], 4), tokens.normal(1, 3, 4))
        segments, plan, _ = planned(tokens.graph(tokens.relu(shifted)))
        assert plan.leading == (1, 3)
        assert two_slopes(segments, plan) is None


class TestOccurrence:
    """Patterns that no input has are ruled out, others never."""

    def test_an_impossible_pattern_does_not_count(self) -> None:
        """relu(x) - relu(-x - 1): both on would have slope 2, but no x has both."""
        sheet = Sheet((1, 1))
        weight, bias = torch.tensor([[1.0], [-1.0]]), torch.tensor([0.0, -1.0])
        units = sheet.relu(sheet.linear(sheet.refs[0], weight, bias))
        graph = sheet.graph(sheet.linear(units, torch.tensor([[1.0, -1.0]])))
        assert enumeration.unrestricted(graph) == pytest.approx(2.0)
        found = assert_exact(graph, 1.0)
        assert found.ruled_out >= 1

    @pytest.mark.slow
    def test_what_is_ruled_out_does_not_occur(self) -> None:
        """Every pattern of a small network is asked for: those that occur are never ruled out, most others are."""
        graph = chain(4, (2, 3, 2, 1), ["relu"])
        occurring = {tuple(np.concatenate([*cell.signs.values()])) for cell in enumeration.cells(graph)}
        cells = prepared(graph).cells
        ruled_out = 0
        for signs in itertools.product((-1.0, 1.0), repeat=5):
            possible = not cells.ask(torch.tensor(signs, dtype=DOUBLE), Budget())[0]
            assert possible or signs not in occurring
            ruled_out += not possible
        assert 32 - len(occurring) >= ruled_out >= 0.8 * (32 - len(occurring))

    @pytest.mark.slow
    def test_parallel_duplicate_and_zero_rows(self) -> None:
        sheet = Sheet((1, 2), seed=3)
        row, other = sheet.normal(2), sheet.normal(2)
        weight = torch.stack([row, row, -row, 2 * row, torch.zeros(2, dtype=DOUBLE), other])
        for bias in (torch.tensor([0.3, 0.3, -0.3, 0.6, 0.0, -0.2]), torch.tensor([0.3, 0.1, 0.4, 0.2, -0.5, 0.0])):
            page = Sheet((1, 2))
            units = page.relu(page.linear(page.refs[0], weight, bias))
            assert_sound(page.graph(page.linear(units, torch.tensor([[1.0, -1.0, 0.7, -0.4, 2.0, 0.5]]))))

    @pytest.mark.parametrize("angle", [pytest.param(1e-3, marks=pytest.mark.slow), 1e-7, 1e-10])
    def test_a_cell_that_is_far_away(self, angle: float) -> None:
        """Two units on nearly opposite sides are both on beyond 1/angle, and only there: slope 2."""
        for turn in (0.0, 1.1) if angle > 1e-9 else (0.0,):  # turned, 1e-10 is lost in the rounding of the weights
            along = torch.tensor([math.cos(turn), math.sin(turn)], dtype=DOUBLE)
            across = torch.tensor([-math.sin(turn), math.cos(turn)], dtype=DOUBLE)
            weight = torch.stack(
                [along, angle * across - along, 0.3 * along + 0.4 * across, 0.1 * across - 0.2 * along]
            )
            sheet = Sheet((1, 2))
            units = sheet.relu(sheet.linear(sheet.refs[0], weight, torch.tensor([0.0, -1.0, 0.2, 0.3])))
            graph = sheet.graph(sheet.linear(units, torch.tensor([[1.0, -1.0, 1e-3, 1e-3]])))
            point = along + 4 / angle * across
            slope = torch.autograd.functional.jacobian(lambda x, graph=graph: graph.run(x[None]).reshape(-1), point)
            assert float(slope.norm()) > 1.99
            assert_sound(graph, float(slope.norm()))

    @pytest.mark.parametrize("number", [0, 1])
    def test_a_cell_behind_several_thin_wedges(self, number: int) -> None:
        """Where the solver sees no cell, one may be all the same."""
        graph, signs, slope = wedges(number)
        assert not prepared(graph).cells.ask(signs, Budget())[0]
        assert_sound(graph, slope)

    def test_a_cell_behind_a_small_slope(self) -> None:
        """leaky(x + y/1e5), slope 1e-5, is below -1e-4 where x > 0: for y < -1e6."""
        sheet = Sheet((1, 2))
        x = sheet.refs[0]
        slow = sheet.leaky(sheet.linear(x, torch.tensor([[1.0, 1e-5]])), 1e-5)
        fast = sheet.relu(sheet.linear(x, torch.tensor([[1.0, 0.0], [0.3, 0.4]]), torch.tensor([0.0, 0.3])))
        last = sheet.relu(sheet.linear(slow, torch.tensor([[-1.0]]), torch.tensor([-1e-4])))
        graph = sheet.graph(sheet.call(aten.cat.default, [fast, last], -1))
        segments, plan, _ = planned(graph)
        values = graph.values(torch.tensor([[0.1, -3e6]], dtype=DOUBLE))
        signs = [values[graph.node(step.name).refs[0]].reshape(-1).sign() for step in plan.steps]
        cells = PatternSearch(segments, plan, two_slopes(segments, plan)).cells
        assert not cells.ask(torch.cat(signs), Budget())[0]


@pytest.mark.one_in(1000)
@pytest.mark.parametrize(("inputs", "units"), [(1e-3, 1e-6), (1e-9, 1.0), (1e12, 1e6)])
def test_units_of_measurement(inputs: float, units: float) -> None:
    """The same network with inputs and hidden units measured otherwise: the constant changes with the inputs alone."""

    def measured(inputs: float, units: float) -> Graph:
        sheet = Sheet((1, 2), seed=4)
        first, bias, last = sheet.normal(5, 2), sheet.normal(5), sheet.normal(1, 5)
        x = sheet.relu(sheet.linear(sheet.refs[0], first * inputs * units, bias * units))
        return sheet.graph(sheet.linear(x, last / units))

    assert_sound(measured(inputs, units), inputs * enumeration.constant(measured(1.0, 1.0)))


def test_a_branch_that_dwindles_and_comes_back() -> None:
    """Squares that would underflow are not taken for nothing: such networks are not searched."""
    sheet = Sheet((1, 3))
    branch, other = sheet.linear(sheet.refs[0], torch.ones(1, 3)), sheet.relu(sheet.linear(sheet.refs[0], 8))
    for step, scale in enumerate((1e-60, 1e-60, 1e-60, 1e60, 1e60, 1e60)):
        branch = sheet.linear(branch, torch.tensor([[scale]], dtype=DOUBLE))
        other = sheet.relu(sheet.linear(other, sheet.normal(7 - step, 8 - step), sheet.normal(7 - step)))
    segments, plan, _ = planned(sheet.graph(sheet.add(branch, sheet.linear(other, 1, scale=1e-3))))
    assert two_slopes(segments, plan) is None


class TestAnyTime:
    @pytest.mark.slow
    def test_cut_short_it_is_still_a_bound(self) -> None:
        graph = chain(3, (2, 4, 3, 2), ["leaky"])
        truth = math.log10(enumeration.constant(graph))
        bounds = []
        for steps in (0, 400_000):
            found = searched(graph, steps=steps)
            assert found.log10_lower <= truth + 1e-9
            assert found.log10_upper >= truth - 1e-9
            bounds.append(found.log10_upper)
        assert bounds[0] > bounds[-1] + 1e-3
        assert bounds[-1] == pytest.approx(truth, abs=1e-6)


class TestFrontDoor:
    @pytest.mark.slow
    def test_a_bracket_closes_on_the_truth(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lower, "ATTACK_STEPS", 60)
        monkeypatch.setattr(upper, "optimise", partial(upper.optimise, steps=20))
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(2, 5), nn.LeakyReLU(0.1), nn.Linear(5, 2)).double().eval()
        batch = torch.randn(3, 2, dtype=DOUBLE)
        rungs = ns.ladder(model, batch, effort="exact")
        truth = enumeration.constant(rungs.graph.double())
        assert rungs["exact"].lower <= truth * (1 + 1e-9) <= rungs["exact"].upper * (1 + 2e-9)
        assert rungs["exact"].upper == pytest.approx(truth, rel=2e-6)
        assert rungs["exact"].converged
        assert rungs["best"].upper == rungs["exact"].upper < rungs["tight"].upper
        assert any("patterns" in note for note in rungs["exact"].notes)

    @pytest.mark.slow
    def test_other_networks_are_told_why_not(self) -> None:
        model = nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 2)).eval()
        bracket = ns.lipschitz(model, torch.randn(2, 2), effort="exact", max_seconds=0.2)
        assert any("no branch and bound" in note for note in bracket.notes)
        assert bracket.method != "exact"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("activation", [nn.PReLU(), nn.Hardtanh(), nn.GELU()], ids=lambda one: type(one).__name__)
def test_where_no_tree_applies_the_sides_have_not_met(activation):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), activation, nn.Linear(3, 2)).eval()
    bracket = ns.lipschitz(model, torch.randn(1, 2), effort="exact")
    assert bracket.converged == (bracket.upper <= bracket.lower * (1 + 2e-6))
    assert bracket.converged or "no branch and bound" in bracket.advice


def test_partly_decided_patterns() -> None:
    """A pattern with open units is possible if any of those below it occurs."""
    graph = chain(9, (2, 3, 2, 1), ["bent leaky"])
    occurring = [np.concatenate([*cell.signs.values()]) for cell in enumeration.cells(graph)]
    cells = prepared(graph).cells
    ruled_out = 0
    for number, signs in enumerate(itertools.product((-1.0, 0.0, 1.0), repeat=5)):
        if number % 7:
            continue
        part = np.array(signs)
        possible = not cells.ask(torch.from_numpy(part), Budget())[0]
        assert possible or not any((cell[part != 0] == part[part != 0]).all() for cell in occurring)
        ruled_out += not possible
    assert ruled_out > 0  # nothing is known of open units


def test_points_inside_a_cell_have_its_pattern() -> None:
    graph = chain(4, (2, 4, 2, 1), ["relu"])
    cells = prepared(graph).cells
    for cell in itertools.islice(enumeration.cells(graph), 0, None, 4):
        point = cells.ask(torch.from_numpy(np.concatenate([*cell.signs.values()])), Budget())[1]
        assert point is not None
        values = graph.values(*graph.split(point))
        for name, signs in cell.signs.items():
            before = values[graph.node(name).refs[0]].reshape(-1).numpy()
            assert (np.sign(before) == signs).all()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_bias_free_networks_are_never_undercut(seed: int) -> None:
    assert_sound(chain(seed, (2, 4, 2, 1), ["relu"], biases=False))
