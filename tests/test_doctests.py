"""Every example in a docstring gives what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import normscope
import normscope_lab

SOURCES = [Path(package.__file__).parent for package in (normscope, normscope_lab)]
FILES = sorted(
    path.relative_to(home.parent) for home in SOURCES for path in home.rglob("*.py") if ">>>" in path.read_text()
)


@pytest.mark.one_in(27)
@pytest.mark.parametrize("file", FILES, ids=str)
def test_examples_of_docstrings(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    module = importlib.import_module(name)
    found = doctest.testmod(module)
    assert found.attempted > 0 or "+SKIP" in Path(module.__file__).read_text()
    assert found.failed == 0
