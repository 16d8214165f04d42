"""The benchmarks, which are run by hand, import names that are there: read off their code, without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "benchmarks").rglob("*.py"))
OURS = ("normscope", "normscope_lab")


def missing_names(path: Path) -> Iterator[str]:
    """Yield what a file imports of this repository, or reads from `ns`, and does not find there."""
    modules: dict[str, str] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            ours = [one for one in node.names if one.name.split(".")[0] in OURS]
            modules |= {one.asname: one.name for one in ours if one.asname}
            yield from (one.name for one in ours if not is_there(one.name))
        elif isinstance(node, ast.ImportFrom):
            of, names = node.module or "", [one.name for one in node.names]
            if node.level or of.split(".")[0] == "benchmarks":
                package = path.parents[node.level - 1] if node.level else ROOT
                yield from missing_in_file(package.joinpath(*of.split(".")) if of else package, names)
            elif of.split(".")[0] in OURS:
                yield from (f"{of}.{name}" for name in names if not is_there(f"{of}.{name}"))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            name = f"{modules[node.value.id]}.{node.attr}"
            yield from () if is_there(name) else (name,)


def is_there(name: str) -> bool:
    """Return whether a module, or a name of one, is there."""
    module, _, last = name.rpartition(".")
    try:
        if module and hasattr(import_module(module), last):
            return True
        import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def missing_in_file(place: Path, names: list[str]) -> Iterator[str]:
    """Yield the names that neither a file nor a folder of the benchmarks has."""
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not file.is_file() and not place.is_dir():
        yield str(place.relative_to(ROOT))
        return
    there, code = set[str](), file.read_text(encoding="utf-8") if file.is_file() else ""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            there.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            there.add(node.id)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            there.update(one.asname or one.name for one in node.names)
    parts = {path.stem for path in place.glob("*.py")} if place.is_dir() else set[str]()
    yield from (f"{place.relative_to(ROOT)}: {name}" for name in names if name not in there | parts)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_benchmark_imports_is_there(path: Path) -> None:
    assert list(missing_names(path)) == []


def test_a_name_that_is_gone_is_found(tmp_path: Path) -> None:
    code = (
        "import normscope as ns, normscope.gone\nfrom normscope import check, nothing\n"
        "from benchmarks.faults import diagnose, none\nns.check, ns.former\n"
    )
    (tmp_path / "stale.py").write_text(code)
    expected = {"normscope.gone", "normscope.nothing", "benchmarks/faults: none", "normscope.former"}
    assert set(missing_names(tmp_path / "stale.py")) == expected
