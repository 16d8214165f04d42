"""A change of the structure moves no public figure: all of `tools/golden.py` against the committed file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools" / "golden.py"
FIGURES = ROOT / "tests" / "golden" / "figures.json.gz"


def golden(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the tool in a process of its own, where no test has shortened a search."""
    command = [sys.executable, str(TOOL), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ""})


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tool as a module, for tests of the comparison alone."""
    monkeypatch.syspath_prepend(str(TOOL.parent))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # restored afterwards: the tool sets them when it is imported
    monkeypatch.setattr(sys, "path", list(sys.path))
    import golden as module

    yield module
    del sys.modules["golden"]


@pytest.mark.slow
def test_no_public_figure_has_moved(tool: Any) -> None:
    made, here = tool.read(FIGURES)["made_with"], tool.made_with()
    if made != here:
        pytest.skip(f"figures are equal to 1e-12 only with {made}; this is {here}")
    done = golden("compare", str(FIGURES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_committed_file_is_small_and_whole(tool: Any) -> None:
    assert FIGURES.stat().st_size < 1_000_000
    stored = tool.read(FIGURES)
    assert stored["skipped"] == {}
    assert not [name for name, case in stored["cases"].items() if "refused" in case]
    raised = {finding["code"] for case in stored["cases"].values() for finding in case.get("findings", ())}
    assert {"no-zero-grad", "dead-relu", "not-trained", "constant-input", "small-batch", "eval-mode"} <= raised


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ({"a": 1.0}, {"a": 1.0 + 1e-13}, 0),
        ({"a": 1.0}, {"a": 1.0 + 1e-11}, 1),
        ({"a": 1e-20}, {"a": 2e-20}, 1),
        ({"log10_a": 1e-14}, {"log10_a": 2e-14}, 0),
        ({"log10_a": [300.0]}, {"log10_a": [300.0 + 1e-11]}, 1),
        ({"a": "PROVEN"}, {"a": "NUMERICAL"}, 1),
        ({"a": True}, {"a": 1}, 1),
        ({"a": 0}, {"a": None}, 1),
        ({"a": [1, 2]}, {"a": [1]}, 1),
        ({"a": []}, {"a": [1]}, 1),
        ({"a": {}}, {"a": {}}, 0),
    ],
)
def test_comparison(tool: Any, old: Any, new: Any, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    made = {"made_with": {}, "skipped": {}}
    assert tool.report({**made, "cases": {"case": old}}, {**made, "cases": {"case": new}}) == code
    assert ("case / " in capsys.readouterr().out) == bool(code)


def test_nothing_compared_is_no_success(tool: Any) -> None:
    empty = {"made_with": {}, "skipped": {}, "cases": {}}
    assert tool.report(empty, empty) == 1


def test_a_case_that_cannot_run_here_is_named_and_left_out(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    whole = {"made_with": {}, "skipped": {}, "cases": {"a": {"x": 1}, "b": {"x": 2}}}
    part = {"made_with": {}, "skipped": {"b": "no such folder"}, "cases": {"a": {"x": 1}}}
    assert tool.report(whole, part) == 0
    assert "skipped: b (no such folder)" in capsys.readouterr().out


def test_files_are_the_same_bytes_for_the_same_figures(tool: Any, tmp_path: Path) -> None:
    data = {"made_with": {}, "skipped": {}, "cases": {"a": {"x": 0.1, "y": "inf"}}}
    for name in ("one.json.gz", "two.json.gz"):
        tool.write(tmp_path / name, data)
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()
    assert tool.read(tmp_path / "one.json.gz") == data
    tool.write(tmp_path / "plain.json", data)
    assert json.loads((tmp_path / "plain.json").read_text()) == data
