"""Every result names its page, and the page is there: a function of such a result and `brief`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import normscope
import normscope_lab
from normscope.core.shown import Shown

PACKAGES = [Path(package.__file__).parent for package in (normscope, normscope_lab)]
FAMILIES = {"Shown", "FigureResult"}
"""What results are made of."""


def results() -> dict[str, ast.ClassDef]:
    """Return the class of every result."""
    paths = [path for package in PACKAGES for path in package.rglob("*.py")]
    texts = [text for path in paths if re.search("|".join(FAMILIES), text := path.read_text())]
    classes = [node for text in texts for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    known = [node for node in classes if FAMILIES & {ast.unparse(base) for base in node.bases}]
    return {node.name: node for node in known if node.name not in FAMILIES}


RESULTS = results()


def test_there_are_results() -> None:
    assert {"Audit", "Run", "Radii", "DataBracket", "Spectrum", "Choice", "Twin", "Claims", "Flow"} <= RESULTS.keys()


@pytest.mark.parametrize("name", sorted(RESULTS))
def test_the_page_of_a_result_takes_it_and_whether_it_is_brief(name: str) -> None:
    body = RESULTS[name].body
    (page,) = (one.value for one in body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "page")
    file, function = ast.literal_eval(page).split(":")
    module = file if "." in file else f"normscope.pages.{file}"
    tree = ast.parse((PACKAGES[0].parent / f"{module.replace('.', '/')}.py").read_text())
    (made,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    (given,) = made.args.args
    assert ast.unparse(given.annotation) == name
    assert "brief" in [option.arg for option in made.args.kwonlyargs]
    assert all(value is not None for value in made.args.kw_defaults)
    assert ast.unparse(made.returns) == "Document"


@pytest.mark.parametrize("name", sorted(RESULTS))
def test_no_result_makes_its_own_document(name: str) -> None:
    assert "document" not in [one.name for one in RESULTS[name].body if isinstance(one, ast.FunctionDef)]


def test_a_page_is_called_with_the_result() -> None:
    class Toy(Shown):
        page = "curvature:curvature_document"
        results = ()

    with pytest.raises(ValueError, match="unpack"):  # the page of a curvature joins at least one result
        Toy().document()
