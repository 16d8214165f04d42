"""The lab uses the public names of Normscope alone, and these are documented."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import normscope
import normscope_lab
from normscope import cli
from normscope.cli import saved

ROOT = Path(__file__).parents[2]
LAB = Path(normscope_lab.__file__).parent
NAMESPACES = (
    "normscope", "normscope.commands", "normscope.data", "normscope.networks", "normscope.optim", "normscope.report",
    "normscope.theory", "normscope.toolkit",
)  # fmt: skip
"""Where public names stand: each of them is in `__all__` there."""


def imported(text: str) -> Iterator[tuple[str, str]]:
    """Yield each module of Normscope that some code imports from, and the name that it takes."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module.split(".")[0] == "normscope":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "normscope")


def is_public(module: str, name: str) -> bool:
    """Return whether a name may be imported from a module."""
    return module in NAMESPACES and name in importlib.import_module(module).__all__


@pytest.mark.parametrize("file", sorted(LAB.rglob("*.py")), ids=lambda file: str(file.relative_to(LAB)))
def test_the_lab_imports_public_names_alone(file: Path) -> None:
    assert [pair for pair in imported(file.read_text()) if not is_public(*pair)] == []


def test_the_lab_imports_something() -> None:
    every = {pair for file in LAB.rglob("*.py") for pair in imported(file.read_text())}
    assert len(every) > 60
    assert {module for module, _ in every} == set(NAMESPACES) - {"normscope.optim"}


@pytest.mark.parametrize(
    "text",
    [
        "from normscope.core.errors import InputError",
        "from normscope.core import errors",
        "def f():\n    from normscope.bounds import lower",
        "import normscope.bounds.graph",
        "from normscope.toolkit import math",
        "from normscope import bounds",
    ],
)
def test_what_is_not_public_is_found(text: str) -> None:
    assert [pair for pair in imported(text) if not is_public(*pair)]


@pytest.mark.parametrize("name", NAMESPACES)
def test_a_namespace_has_what_it_names_and_is_documented(name: str) -> None:
    namespace = importlib.import_module(name)
    assert namespace.__doc__
    assert [one for one in namespace.__all__ if not hasattr(namespace, one)] == []
    functions = [getattr(namespace, one) for one in namespace.__all__]
    assert [one for one in functions if inspect.isroutine(one) and not one.__doc__] == []
    assert re.search(rf"`{name}`|currentmodule:: {name}\n", (ROOT / "docs" / "api.md").read_text())


def test_without_the_lab_the_front_door_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "normscope_lab"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "normscope_lab", None)
    monkeypatch.delitem(vars(normscope), "generalization", raising=False)
    monkeypatch.delitem(sys.modules, "normscope.cli.generalization", raising=False)
    (tmp_path / "saved.json").write_text('{"type": "generalization"}')
    assert {name for name in normscope.__all__ if not hasattr(normscope, name)} == set()
    model, data = nn.Linear(2, 2), (torch.eye(2), torch.arange(2))
    assert normscope.measures(model, data, only=["norms"]).samples == 2
    for call in (
        lambda: normscope.generalization(model, data),
        lambda: cli.load_verb("generalization"),
        lambda: saved.open_saved(tmp_path / "saved.json"),
    ):
        with pytest.raises(normscope.NormscopeError, match=r"pip install 'normscope\[lab\]'"):
            call()
