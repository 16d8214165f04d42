"""What an audit costs is counted, and the counts are small: passes, norms, products."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.auditing import rows
from normscope.bounds import lower as working
from normscope.bounds.bounds_by_method import upper_sides
from normscope.bounds.linalg import operator_norms
from normscope.bounds.linalg.linear_map import Centering, Identity
from normscope.bounds.operators.invariance import feeds
from normscope.bounds.traced_network import BoundSettings, TracedNetwork
from normscope.core import budget as clocks
from normscope.core.budget import Budget, Cost
from normscope.core.errors import InputError
from normscope.doctor.facts.data import run_over_data


class Stream(nn.Module):
    """A residual stream with a LayerNorm and two layers in every block."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)) for _ in range(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add what every block makes of the stream."""
        for block in self.blocks:
            x = x + block(x)
        return x


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()


@pytest.fixture(scope="module")
def audits() -> dict[str, ns.Audit]:
    torch.manual_seed(1)
    batch = torch.randn(8, 6)
    return {effort: ns.audit(mlp(), batch, effort=effort) for effort in ("fast", "thorough")}


@pytest.mark.slow
def test_passes_through_the_model_are_counted_by_part(audits):
    """Two passes of the batch, one of two samples and two of one to settle it; then model and graph are compared.

    That is at a sample and at random inputs of three sizes, in the model's precision and in float64.
    """
    cost = audits["fast"].cost
    assert cost.passes["capture"] == 2 * 8 + 2 + 2 * 1 + (1 + 3) * 2 * 2
    assert cost.passes["data"] == 8
    assert (cost.passes["signal"], cost.backwards["signal"]) == (8 + 3 * 7, 8)  # with three runs of seven samples
    assert cost.passes["rows"] == 2
    assert cost.passes["Jacobians"] == 7 * 8
    assert cost.backwards["Jacobians"] <= 8 * (3 + 4)
    assert cost.total("passes") <= 23 * 8  # the last 4 of them at the two ends of the witness, in model and graph


def test_every_sample_of_the_loader_counts_once():
    model, batch = mlp(), torch.randn(8, 6)
    assert ns.audit(model, batch, loader=[batch, batch, batch[:5]]).cost.passes["data"] == 21


@pytest.mark.slow
def test_a_fast_audit_leaves_out_what_takes_long_and_says_so(audits):
    fast, thorough = audits["fast"], audits["thorough"]
    assert fast.radii is None
    assert "tight" not in fast.ladder
    assert all(row.sensitivity is None for row in fast.layers)
    assert any("a fast audit" in note for note in fast.notes)
    assert thorough.radii is not None
    assert "tight" in thorough.ladder
    assert all(row.sensitivity is not None for row in thorough.layers if row.role == "weight")
    assert not any("a fast audit" in note for note in thorough.notes)
    assert {"radii", "sensitivity"} <= thorough.cost.seconds.keys() - fast.cost.seconds.keys()
    assert thorough.lipschitz.log10_lower >= fast.lipschitz.log10_lower
    assert thorough.lipschitz.log10_upper <= fast.lipschitz.log10_upper + 1e-12


def test_the_lower_side_of_a_fast_audit_is_the_jacobian_it_saw(audits):
    fast = audits["fast"]
    assert fast.lipschitz.log10_lower == pytest.approx(fast.observed.log10_lower, abs=1e-6)
    assert any("without a search" in note for note in fast.lipschitz.notes)


def test_a_large_network_tries_pairs_at_its_steepest_sample_alone(monkeypatch, audits):
    """Five pairs at each of three samples; then five at one sample."""
    assert audits["fast"].cost.passes["bounds"] == 2 * 3 * 5 + 2 * 2  # and the model and its graph at the best pair
    monkeypatch.setattr(working, "PAIRS_FEWER", 0.0)
    torch.manual_seed(1)
    batch = torch.randn(8, 6)
    large = ns.audit(mlp(), batch)
    assert large.cost.passes["bounds"] == 2 * 5 + 2 * 2
    assert large.lipschitz.log10_lower == pytest.approx(audits["fast"].lipschitz.log10_lower, abs=1e-6)


def test_no_folded_gain_is_begun_once_time_is_over(monkeypatch):
    model, batch = mlp(), torch.randn(8, 6)
    captured = TracedNetwork.of(model, batch)
    values = upper_sides(captured).nodes
    data = run_over_data(model, [batch], mode=None, written={}, budget=Budget())
    begun = []
    monkeypatch.setattr(rows, "folded_gain", lambda *given: begun.append(given))
    for seconds, count in ((None, 1), (0.0, 0)):
        begun.clear()
        bounding, fed = BoundSettings(budget=Budget(max_seconds=seconds)), feeds(captured.graph)
        places = rows.from_graph(captured, bounding, data, fed, None, norms={}, values=values, sensitivity={})
        (norm,) = [place.row for place in places if place.row.role == "normalizer"]
        assert len(begun) == count
        assert any("max_seconds left no time" in note for note in norm.notes) is (seconds == 0.0)
    assert norm.log10_folded is None


@pytest.mark.slow
def test_one_search_gives_one_figure(audits):
    torch.manual_seed(1)
    batch = torch.randn(8, 6)
    lower = ns.lipschitz(mlp(), batch, effort="tight").log10_lower
    assert ns.ladder(mlp(), batch, effort="tight")["best"].log10_lower == lower
    assert audits["thorough"].lipschitz.log10_lower == lower


@pytest.mark.slow
def test_no_norm_is_taken_twice(monkeypatch):
    taken: list[object] = []
    real = operator_norms._bound

    def watched(linear, *rest):
        if not isinstance(linear, Identity | Centering):  # known without any work
            taken.append(linear)
        return real(linear, *rest)

    monkeypatch.setattr(operator_norms, "_bound", watched)
    torch.manual_seed(0)
    audit = ns.audit(Stream(3).eval(), torch.randn(4, 6))
    assert len(taken) == audit.cost.total("norms") > 0
    assert len({id(linear) for linear in taken}) == len(taken)


@pytest.mark.slow
def test_norms_grow_with_the_depth_and_not_with_its_square():
    def counted(blocks: int) -> int:
        torch.manual_seed(0)
        return ns.audit(Stream(blocks).eval(), torch.randn(4, 6)).cost.total("norms")

    two, four, eight = map(counted, (2, 4, 8))
    assert eight - four == 2 * (four - two)


def test_counts_are_stored_and_seconds_are_not(audits):
    cost = audits["fast"].cost
    stored = audits["fast"].to_json()["cost"]
    assert "seconds" not in stored
    again = ns.Audit.from_json(audits["fast"].to_json()).cost
    assert again == cost == Cost.from_json(stored)
    assert again.seconds == {}


def test_an_audit_of_an_earlier_version_has_no_cost(audits):
    data = audits["fast"].to_json()
    del data["cost"]
    assert ns.Audit.from_json(data).cost is None


@pytest.mark.parametrize("effort", ["tight", "slow"])
def test_other_efforts_are_refused_with_what_there_is(effort):
    with pytest.raises(InputError, match='"fast" or "thorough"'):
        ns.audit(mlp(), torch.randn(2, 6), effort=effort)


def test_a_time_limit_is_kept_by_all_but_the_trace(monkeypatch):
    """The closed forms of this network take several seconds; what does not fit is named."""
    layers = [nn.Conv2d(3, 256, 3, padding=1), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(256, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 64, 10)).eval()
    # Seconds that this thread computes: other processes on the machine do not count.
    monkeypatch.setattr(clocks, "time", SimpleNamespace(monotonic=time.thread_time))
    cut = ns.audit(model, torch.randn(2, 3, 8, 8), max_seconds=1.0)
    assert sum(cut.cost.seconds.values()) - cut.cost.seconds["capture"] < 1.5
    assert "the search for the norm of a layer was cut short by max_seconds" in cut.notes
    assert cut.lipschitz is not None
