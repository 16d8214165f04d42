"""Results of curvature as files: what is read back is what was written, and what is damaged is refused."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.core.errors import InputError
from normscope.geometry.curvature import KINDS, Curvature

LOSS = "cross_entropy"


def small() -> tuple[nn.Sequential, Tensor, Tensor]:
    """Return a network with a BatchNorm, whose last layer takes the same inputs, and a batch."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model, torch.randn(8, 3, generator=generator), torch.arange(8) % 2


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    model, *batch = small()
    return {
        "spectrum": ns.hessian(model, LOSS, batch, k=2, bottom=1, probes=2, blocks=True, mode="train"),
        "smoothness": ns.smoothness(model, LOSS, batch, steps=1, trial_steps=1, mode="train"),
        "flatness": ns.flatness(model[2], LOSS, batch, levels=(0.1, 1.0), draws=2, mode="train"),
        "margins": ns.margins(model[2], batch),
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_is_what_was_written(results: dict[str, Any], kind: str, tmp_path: Path) -> None:
    found, path = results[kind], tmp_path / "found.json"
    written = found.to_json(path)
    assert written["type"] == kind
    for source in (path, written):
        again = type(found).from_json(source)
        assert again == found
        assert again.document() == found.document()
        assert again.to_json() == written
    if kind == "spectrum":
        assert found.vectors is not None
        assert again.vectors is None
        assert again.safe_effective_rates == found.safe_effective_rates


def test_everything_together_is_one_file(results: dict[str, Any], tmp_path: Path) -> None:
    whole = Curvature(results=tuple(results.values()))
    whole.to_json(tmp_path / "c.json")
    again = Curvature.from_json(tmp_path / "c.json")
    assert again == whole
    assert again.to_html() == whole.to_html()


REFUSED = {
    "schema_version": "the data has schema_version 2, this version reads 1: update Normscope",
    "type": r"the data holds no result of normscope\.hessian: write one with to_json",
}
DAMAGED: list[tuple[str, tuple[str | int, ...], object]] = [
    ("spectrum", ("schema_version",), 2),
    ("spectrum", ("type",), "flow"),
    ("spectrum", ("blocks", 0), {"name": "w"}),
    ("spectrum", ("matrix",), "jacobian"),
    ("smoothness", ("trials", 0), [1.0]),
    ("flatness", ("noise", 0, "loss"), None),
    ("margins", ("margin",), []),
]


@pytest.mark.parametrize(("kind", "place", "value"), DAMAGED)
def test_what_is_damaged_is_refused(
    results: dict[str, Any], kind: str, place: tuple[str | int, ...], value: object
) -> None:
    data: Any = copy.deepcopy(results[kind].to_json())
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(
        InputError, match=REFUSED.get(place[0], r"is a damaged result of normscope\.\w+ \(.+\): write one")
    ):
        KINDS[kind].from_json(data)


@pytest.mark.parametrize(
    "data", [{}, {"type": "curvature", "schema_version": 1}, {"type": "curvature", "schema_version": 1, "spectrum": 3}]
)
def test_a_file_without_a_spectrum_is_refused(data: Mapping[str, Any]) -> None:
    with pytest.raises(InputError, match="the data"):
        Curvature.from_json(data)
