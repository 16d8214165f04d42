"""`ns.compare`: what changed most between models, audits and measures, layer by layer."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.core.errors import InputError


@pytest.fixture(scope="module")
def checkpoints() -> tuple[list[nn.Module], torch.Tensor]:
    """Return three states of one network, in which the last layer grew 30 times and then the first one 3 times."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
        x = torch.randn(8, 4)
    second = copy.deepcopy(first)
    second[4].weight.data *= 30
    third = copy.deepcopy(second)
    third[0].weight.data *= 3
    return [first, second, third], x


def test_the_layer_that_changed_most_comes_first(checkpoints) -> None:
    models, x = checkpoints
    result = ns.compare(*models, data=x, names=["a", "b", "c"])
    norms = [change for change in result.changes if change.quantity == "operator norm"]
    assert [change.path for change in norms] == ["4", "0"]  # `2` is the same in all of them
    assert [change.spread for change in norms] == pytest.approx([math.log10(30), math.log10(3)], abs=1e-3)
    assert norms[1].values[0] == pytest.approx(norms[1].values[1])
    assert [change.spread for change in result.changes] == sorted((c.spread for c in result.changes), reverse=True)
    assert "What changed most, layer by layer" in str(result)


def test_models_and_audits_mix_and_names_are_made_different(checkpoints) -> None:
    models, x = checkpoints
    result = ns.compare(ns.audit(models[0], x, name="start"), models[1], models[2], data=x)
    assert list(result.audits) == ["start", "Sequential 2", "Sequential 3"]


def test_it_is_written_read_shown_and_drawn(checkpoints, tmp_path: Path) -> None:
    models, x = checkpoints
    result = ns.compare(*models[:2], data=x)
    result.to_json(tmp_path / "comparison.json")
    again = ns.Comparison.from_json(tmp_path / "comparison.json")
    assert again.changes == result.changes
    assert again.to_html() == result.to_html()
    assert "<svg" in result.to_html()
    assert result.to_pandas().columns[0] == "audit"
    pytest.importorskip("matplotlib")
    assert "layer by layer" in result.plot().get_title()


def test_measures_are_compared_with_measures(checkpoints) -> None:
    models, x = checkpoints
    taken = [ns.measures(model, (x, torch.arange(8) % 3), only=["norms"]) for model in models]
    result = ns.compare(*taken, names=["a", "b", "c"])
    row = next(line for line in str(result).splitlines() if line.split()[:1] == ["spectral-product"])
    values = [float(cell) for cell in row.split()[2:]]
    assert values[1] - values[0] == pytest.approx(math.log10(30), abs=2e-3)
    assert ns.Comparison.from_json(result.to_json()) == result
    with pytest.raises(InputError, match="compared with their like"):
        ns.compare(taken[0], models[1], data=x)


def test_what_cannot_be_compared_is_refused(checkpoints) -> None:
    models, x = checkpoints
    for subjects, options in (
        (models[:1], {"data": x}),
        (models, {}),
        (models, {"data": x, "names": ["a", "a", "b"]}),
        (models, {"data": x, "names": ["a"]}),
        (["a", "b"], {}),
    ):
        with pytest.raises(InputError):
            ns.compare(*subjects, **options)
