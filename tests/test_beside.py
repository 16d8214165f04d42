"""The page of Normscope beside its peers: how it is measured, and that it shows what was measured."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from benchmarks.beside.turns import by_turns, quartiles, record
from normscope_faults import Case, Fault

ROOT = Path(__file__).parents[1]
pytest.importorskip("matplotlib")
pytest.importorskip("sphinx")
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
import beside_page  # noqa: E402


def areas_of_the_command() -> list[str]:
    """Read the names off the command's code: it is a script."""
    tree = ast.parse((ROOT / "benchmarks" / "page.py").read_text(encoding="utf-8"))
    known = next(n.value for n in tree.body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "AREAS")
    assert isinstance(known, ast.Dict)
    return [ast.literal_eval(key) for key in known.keys if key is not None]


def test_ways_take_turns_and_their_order_moves_on() -> None:
    called: list[tuple[str, int]] = []
    times = iter(range(100))

    def way(name: str, takes: int) -> Any:
        def run(turn: int) -> dict[str, Any]:
            called.append((name, turn))
            for _ in range(takes - 1):
                next(times)
            return {"quality": turn, "says": name}

        return run

    rows = list(by_turns("c", {"a": way("a", 2), "b": way("b", 6), "c": "not here"}, 3, clock=lambda: next(times)))
    assert called == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert [row["way"] for row in rows] == ["a", "b", "c"]
    assert rows[1]["ratio"] == [3.0, 3.0, 3.0]
    assert rows[1]["seconds"] == [6.0, 6.0, 6.0]
    assert rows[0]["quality"] == [0.5, 1.0, 1.5]
    assert rows[2] == {"case": "c", "way": "c", "why_not": "not here"}


def test_a_way_that_fails_is_told_and_not_called_again() -> None:
    count = []

    def fails(turn: int) -> dict[str, Any]:
        count.append(turn)
        raise ValueError('no\n  luck in "/home/me/venv/file.py" 3/4')

    first, second = by_turns("c", {"a": lambda turn: {}, "b": fails}, 3)
    assert second == {"case": "c", "way": "b", "why_not": 'ValueError: no luck in "file.py" 3/4'}
    assert count == [0]
    assert "quality" not in first


def test_quartiles_of_one_value_are_that_value() -> None:
    assert quartiles([2.0]) == [2.0, 2.0, 2.0]
    assert quartiles([5.0, 1.0, 3.0, 2.0, 4.0]) == [2.0, 3.0, 4.0]


def test_a_record_says_what_is_not_installed() -> None:
    made = record("hessian", [], ("numpy", "no-such-package"))
    assert made["versions"]["no-such-package"] == "not installed"
    assert made["command"] == "python benchmarks/page.py hessian"
    assert json.loads(json.dumps(made)) == made


def test_what_a_tool_says_of_the_mended_twin_too_points_at_nothing() -> None:
    from benchmarks.beside.faults_found import points_at

    case = Case(model=nn.Linear(4, 3), data=None)
    fault = Fault(
        name="n", family="f", build=lambda: case, mend=lambda: case,
        causes=frozenset(), layers=("hidden",), remedies=frozenset(), source="",
    )  # fmt: skip
    assert not points_at(fault, set())
    assert not points_at(fault, {("dead", "other")})
    assert points_at(fault, {("dead", "hidden.weight")})


@pytest.mark.parametrize("name", areas_of_the_command())
def test_every_area_is_shown_and_its_record_has_every_row(name: str) -> None:
    area = beside_page.AREAS[name]
    assert f"## {area.title}" in beside_page.section(name, area)
    path = ROOT / "docs" / "results" / "beside" / f"{name}.json"
    assert path.exists(), f"python benchmarks/page.py {name}"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert any(beside_page.is_ours(row) for row in rows)
    assert any(not beside_page.is_ours(row) for row in rows)
    assert all(("seconds" in row) != ("why_not" in row) for row in rows)


def test_no_area_is_shown_that_cannot_be_measured() -> None:
    assert list(beside_page.AREAS) == areas_of_the_command()


def test_a_peer_that_is_better_is_named() -> None:
    def row(way: str, seconds: float, quality: float) -> dict[str, Any]:
        return {"case": "c", "way": way, "seconds": [0.9 * seconds, seconds, 1.1 * seconds], "quality": [quality] * 3}

    area = beside_page.Area("t", "a", "error")
    rows = [row("normscope", 1.0, 1e-3), row("quick", 0.5, 1e-2), row("near", 2.0, 1e-4), row("worse", 2.0, 1e-2)]
    assert beside_page.better(area, rows) == [
        "c, quick: 2 times as fast as the quickest way of Normscope",
        "c, near: error 1e-04 for 0.001",
    ]
    more = beside_page.Area("t", "a", "radius", less=False)
    assert [line.split(":")[0] for line in beside_page.better(more, rows)] == ["c, quick", "c, worse"]
