"""Every example in a docstring gives what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import normscope

HOME = Path(normscope.__file__).parent
FILES = sorted(path.relative_to(HOME.parent) for path in HOME.rglob("*.py") if ">>>" in path.read_text())


@pytest.mark.parametrize("file", FILES, ids=str)
def test_examples_of_docstrings(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0 or "+SKIP" in (HOME.parent / file).read_text()
    assert found.failed == 0
