"""Branches: which rows follow which, which have a way around them, and how they are drawn."""

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.auditing.branches import branch_lines, main_line, standings
from normscope.core.finding import Severity

from .audits import weight
from .seen import randn


class Residual(nn.Module):
    def __init__(self, wide=False):
        super().__init__()
        self.norm, self.one, self.two = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.skip = nn.Linear(4, 4) if wide else nn.Identity()

    def forward(self, x):
        return self.skip(x) + self.two(torch.relu(self.one(self.norm(x))))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        return self.out(torch.tanh(self.q(x)) * torch.tanh(self.k(x)) + self.v(x))


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(4, 4), nn.Linear(8, 4), nn.Linear(12, 2)

    def forward(self, x):
        a = torch.relu(self.one(x))
        b = torch.relu(self.two(torch.cat([x, a], 1)))
        return self.three(torch.cat([x, a, b], 1))


MODELS = {
    "a chain": (
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.LayerNorm(4)),
        [(), (0,), (1,)],
        (0, 1, 2),
        (),
    ),
    "an identity skip": (
        nn.Sequential(nn.Linear(4, 4), Residual(), Residual(), nn.Linear(4, 2)),
        [(), (0,), (1,), (2,), (3,), (4,), (5,), (6,)],
        (0, 1, 4, 7),
        ((1, 2, 3), (4, 5, 6)),
    ),
    "three in parallel": (
        nn.Sequential(nn.Linear(4, 4), Attention(), nn.Linear(4, 2)),
        [(), (0,), (0,), (0,), (1, 2, 3), (4,)],
        (0, 1, 2, 3, 4, 5),
        ((1,), (2,), (3,)),
    ),
    "skips over everything": (Dense(), [(), (0,), (1,)], (0, 1, 2), ((0,), (1,))),
}


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("name", MODELS)
def test_rows_know_what_they_follow_and_how_they_are_drawn(name):
    model, follows, main, branches = MODELS[name]
    rows = ns.audit(model.eval(), randn(4, 4)).layers
    assert [row.follows for row in rows] == follows
    assert main_line(rows) == main
    assert branch_lines(rows) == branches


def test_a_branch_with_a_layer_of_its_own_runs_beside_the_other():
    model = nn.Sequential(nn.Linear(4, 4), Residual(wide=True), nn.Linear(4, 2))
    rows = ns.audit(model.eval(), randn(4, 4)).layers
    at = {row.path: index for index, row in enumerate(rows)}
    assert rows[at["2"]].follows == tuple(sorted((at["1.two"], at["1.skip"])))
    assert {row.path for row in rows if row.bypassed} == {"1.norm", "1.one", "1.two", "1.skip"}
    assert set(branch_lines(rows)) == {(at["1.norm"], at["1.one"], at["1.two"]), (at["1.skip"],)}
    first = rows[at["0"]]
    for name in ("1.norm", "1.skip"):  # both begin where the first layer ends
        assert rows[at[name]].log10_trunk_observed == pytest.approx(first.log10_observed)
        assert rows[at[name]].log10_trunk_cumulative == pytest.approx(first.log10_cumulative)


def test_the_stream_of_a_residual_network_is_measured_where_branches_leave_it():
    model = nn.Sequential(Residual(), Residual()).eval()
    with torch.no_grad():
        for block in model:
            block.two.weight.zero_()
    rows = ns.audit(model, randn(4, 4)).layers
    begins = [row for row in rows if row.log10_trunk_observed is not None]
    assert [row.path for row in begins] == ["0.norm", "1.norm"]
    assert [row.log10_trunk_observed for row in begins] == pytest.approx([0.0, 0.0], abs=1e-6)  # the identity


def test_a_model_that_is_not_traced_knows_no_branches():
    rows = (weight("a"), weight("b"))
    assert main_line(rows) == (0, 1)
    assert branch_lines(rows) == ()


def test_branches_survive_json():
    rows = ns.audit(MODELS["an identity skip"][0].eval(), randn(4, 4))
    again = ns.Audit.from_json(rows.to_json())
    assert again.layers == rows.layers
    old = rows.to_json()
    for row in old["layers"]:
        for name in ("follows", "bypassed", "log10_trunk_cumulative", "log10_trunk_observed"):
            del row[name]
    assert main_line(ns.Audit.from_json(old).layers) == tuple(range(8))


@pytest.mark.slow
def test_standings_of_a_deep_network_stay_cheap_and_right():
    model = nn.Sequential(*(Residual() for _ in range(40))).eval()
    graph = ns.capture(model, randn(2, 4))
    chosen = [node for node in graph if node.operator in ("linear", "layer_norm")]
    found = standings(graph, chosen)
    assert len(found) == 120
    assert all(stand.follows == ((index - 1,) if index else ()) for index, stand in enumerate(found))
    assert [index for index, stand in enumerate(found) if stand.begins] == list(range(0, 120, 3))


class ScaledBlock(nn.Module):
    """What a block adds is multiplied by a millionth: by a vector that is trained, or by a number."""

    def __init__(self, *, is_learned: bool, has_skip: bool) -> None:
        super().__init__()
        self.norm, self.wide, self.act, self.narrow = nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)
        self.scale = nn.Parameter(1e-6 * torch.ones(16)) if is_learned else 1e-6
        self.drop_path, self.has_skip = nn.Identity(), has_skip

    def forward(self, x: Tensor) -> Tensor:
        added = self.drop_path(self.scale * self.narrow(self.act(self.wide(self.norm(x)))))
        return x + added if self.has_skip else added


@pytest.mark.parametrize(
    ("is_learned", "has_skip", "told"), [(True, True, False), (False, True, True), (True, False, True)]
)
def test_blocks_may_begin_small_by_a_vector_that_is_trained(is_learned: bool, has_skip: bool, told: bool) -> None:
    blocks = [ScaledBlock(is_learned=is_learned, has_skip=has_skip) for _ in range(3)]
    model = nn.Sequential(nn.Linear(8, 16), *blocks, nn.Linear(16, 5))
    codes = {
        finding.code for finding in ns.check(model, torch.randn(32, 8)).findings if finding.severity > Severity.INFO
    }
    assert bool(codes) == told
