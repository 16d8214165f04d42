"""Files of version 1, written before there was one codec: they load, and are written again byte for byte."""

import json
from pathlib import Path
from typing import Any

import pytest

import normscope as ns
from normscope.bounds.data.quantile import DataBracket
from normscope.core.finding import Finding

DATA = Path(__file__).parent / "data"
SAVED: dict[str, Any] = {
    "audit": ns.Audit,
    "check": ns.Check,
    "data_bracket": DataBracket,
    "radii": ns.Radii,
    "share_curve": ns.ShareCurve,
}
"""What writes and reads a file of its own, by the name of its file."""


@pytest.mark.parametrize("name", SAVED)
def test_a_file_of_version_1_loads_and_is_written_again_byte_for_byte(name: str, tmp_path: Path) -> None:
    old = DATA / f"{name}.json"
    found = SAVED[name].from_json(old)
    assert type(found) is SAVED[name]
    found.to_json(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == old.read_bytes()
    assert SAVED[name].from_json(found.to_json()) == found


@pytest.mark.parametrize("name", ["bracket", "infinite_bracket"])
def test_a_bracket_of_version_1_loads_and_is_written_again(name: str) -> None:
    text = (DATA / f"{name}.json").read_text()
    assert json.dumps(ns.Bracket.from_json(json.loads(text)).to_json(), indent=1, allow_nan=False) + "\n" == text


@pytest.mark.parametrize("kind", ["finding"])
def test_lines_of_a_log_of_version_1_load_and_are_written_again(kind: str) -> None:
    lines = [line for line in (DATA / "run.jsonl").read_text().splitlines() if json.loads(line)["type"] == kind]
    assert len(lines) == 2
    for line in lines:
        assert json.dumps({"type": kind, **Finding.from_json(json.loads(line)).to_json()}) == line
