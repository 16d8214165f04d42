"""The sensitivity to every weight in an audit: as by itself, saved, shown, and left out with a word."""

import json
import math

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.auditing import auditing
from normscope.bounds.weights.weight_constants import weight_sensitivity
from normscope.choosing.comparison_page import compare_document
from normscope.core.errors import InputError
from normscope.report.document import Table

from .seen import Untraced


class Net(nn.Module):
    """A convolution, a layer that runs twice in parallel, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.shared, self.head = nn.Linear(16, 5), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu()
        sides = [self.shared(x[:, i].flatten(1)).tanh() for i in (0, 1)]
        return self.head(torch.cat(sides, 1))


@pytest.fixture(scope="module")
def made():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, batch = Net().eval(), torch.randn(6, 1, 4, 4)
    return model, batch, ns.audit(model, batch, effort="thorough")


@pytest.mark.slow
def test_every_weight_layer_has_its_bracket(made):
    model, batch, audit = made
    rows = [row for row in audit.layers if row.role == "weight"]
    assert [row.path for row in rows] == ["conv", "shared", "shared", "head"]
    assert all(row.sensitivity is None for row in audit.layers if row.role == "normalizer")
    apart = weight_sensitivity(model, batch[:2])
    for row in rows:
        found, expected = row.sensitivity, apart[row.path].bracket_h
        assert found.log10_lower == pytest.approx(expected.log10_lower, abs=0.005)
        assert found.log10_lower <= found.log10_upper
        assert expected.log10_upper - 1e-3 <= found.log10_upper <= expected.log10_upper + 0.5
        assert found.per_sample is None
    assert rows[1].sensitivity == rows[2].sensitivity
    assert "moved in all of them together" in rows[1].sensitivity.notes[0]


@pytest.mark.slow
def test_it_is_saved_and_older_audits_are_still_read(made):
    data = json.loads(json.dumps(made[2].to_json()))
    assert ns.Audit.from_json(data) == made[2]
    for row in data["layers"]:
        del row["sensitivity"]
    older = ns.Audit.from_json(data)
    assert {row.sensitivity for row in older.layers} == {None}
    assert [row.norm for row in older.layers] == [row.norm for row in made[2].layers]
    assert "sensitivity" not in str(older)


@pytest.mark.parametrize("damage", [3, [], {"log10_lower": 0}, "x"])
def test_a_damaged_one_is_refused(made, damage):
    data = json.loads(json.dumps(made[2].to_json()))
    data["layers"][0]["sensitivity"] = damage
    with pytest.raises(InputError, match="damaged audit"):
        ns.Audit.from_json(data)


def test_it_is_shown_and_compared(made):
    audit = made[2]
    assert "sensitivity" in str(audit)
    assert "How far the output moves with each weight" in audit.to_html()
    frame = audit.to_pandas()
    assert frame["log10_sensitivity_upper"].notna().sum() == 4
    tables = [block for block in compare_document({"a": audit, "b": audit}).blocks if isinstance(block, Table)]
    assert sum("Sensitivity of the output" in table.title for table in tables) == 2


@pytest.mark.slow
def test_large_models_have_upper_sides_alone(made, monkeypatch):
    model, batch, audit = made
    monkeypatch.setattr(auditing, "MAX_SEARCH_MULTIPLICATIONS", 0.0)
    large = ns.audit(model, batch, effort="thorough")
    assert any("lower sides" in what and "large" in why for what, why in large.skipped)
    for row, other in zip(large.layers, audit.layers, strict=True):
        if row.sensitivity is not None:
            assert row.sensitivity.log10_lower == -math.inf
            assert row.sensitivity.log10_upper <= other.sensitivity.log10_upper + 0.1
    assert "sensitivity, lower" not in large.to_html()
    assert "sensitivity, upper" in large.to_html()


def test_what_cannot_be_traced_has_none():
    audit = ns.audit(Untraced(nn.Linear(3, 3)).eval(), torch.ones(4, 3), effort="thorough")
    assert [row.sensitivity for row in audit.layers] == [None]
    assert any("sensitivity to the weights" in what for what, _ in audit.skipped)


@pytest.mark.slow
def test_a_failure_is_listed_and_the_audit_goes_on(made, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(auditing, "measure_sensitivity", fail)
    audit = ns.audit(*made[:2], effort="thorough")
    assert ("sensitivity to the weights", "RuntimeError: no memory") in audit.skipped
    assert {row.sensitivity for row in audit.layers} == {None}
    assert audit.lipschitz is not None
