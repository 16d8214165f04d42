"""No module of the packages leads back to itself through imports, those inside functions and of types alone counted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import normscope
import normscope_lab


def modules(package: Path) -> dict[str, Path]:
    """Return every module of a package by its name."""
    paths = {path: path.relative_to(package.parent).with_suffix("").parts for path in package.rglob("*.py")}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in paths.items()}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every statement inside a statement, however deep; expressions hold no imports and are not walked."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, field, [])
        for child in inner if isinstance(inner, list) else []:
            yield child
            yield from statements(child)


def imported(name: str, path: Path) -> Iterator[str]:
    """Yield what a module imports, wherever in its text, as dotted names of modules or of things in them."""
    above = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = above[: len(above) - node.level + 1] if node.level else []
            for alias in node.names:
                yield ".".join([*base, *([node.module] if node.module else []), alias.name])


def graph(package: Path) -> dict[str, set[str]]:
    """Return which modules of a package each of them imports; a thing in a module stands for the module."""
    found = modules(package)
    arrows = {
        name: {one if one in found else one.rpartition(".")[0] for one in imported(name, path)}
        for name, path in found.items()
    }
    return {name: (targets & found.keys()) - {name} for name, targets in arrows.items()}


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """Return one circle, from a module round to itself; nothing where there is none."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_the_package_has_no_circle() -> None:
    arrows = graph(Path(normscope.__file__).parent)
    assert len(arrows) > 250
    assert sum(map(len, arrows.values())) > 1800
    assert circle(arrows) == []


def test_the_lab_has_no_circle() -> None:
    arrows = graph(Path(normscope_lab.__file__).parent)
    assert len(arrows) > 50
    assert sum(map(len, arrows.values())) > 150
    assert circle(arrows) == []
