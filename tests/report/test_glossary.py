"""One glossary: what reports explain is what `docs/glossary.md` says, and every link of it leads somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from normscope.cli import app
from normscope.report.document import Document, Glossary, Text
from normscope.report.glossary import MORE, USED, WORDS, glossary
from normscope.report.html import to_html

ROOT = Path(__file__).parents[2]
ASKED = ("bracket", "printed", "folded", "closed form", "tight", "rung", "scope", "gauge", "evidence", "DATA")


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and Sphinx make them."""
    heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_the_page_of_the_documentation_is_written_from_the_words_of_reports():
    written = runpy.run_path(str(ROOT / "tools" / "written_pages.py"))["glossary_page"]()
    assert (ROOT / "docs" / "glossary.md").read_text() == written, "run: python tools/written_pages.py"


def test_the_table_of_rooms_is_written_from_their_docstrings():
    page = (ROOT / "docs" / "architecture.md").read_text()
    written = runpy.run_path(str(ROOT / "tools" / "written_pages.py"))["architecture_page"](page)
    assert page == written, "run: python tools/written_pages.py"


def test_every_file_that_the_architecture_names_is_there():
    named = re.findall(r"`((?:\w+/)+\w+\.py|\w+/)`", (ROOT / "docs" / "architecture.md").read_text())
    places = (ROOT, ROOT / "src" / "normscope", ROOT / "src" / "normscope_lab", ROOT / "src")
    assert len(named) > 60
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_every_term_is_explained_in_whole_sentences_and_used_somewhere():
    assert WORDS.keys() == USED.keys()
    assert set(ASKED) <= WORDS.keys()
    for term, meaning in WORDS.items():
        assert meaning[0].isupper(), term
        assert meaning.endswith("."), term


@pytest.mark.parametrize("term", USED)
def test_links_lead_to_headings(term):
    name, _, anchor = USED[term].partition("#")
    assert anchor in anchors(ROOT / "docs" / name)


def test_the_glossary_is_linked_from_the_readme_the_help_and_reports():
    assert "(docs/glossary.md)" in (ROOT / "README.md").read_text()
    assert "glossary" in (ROOT / "docs" / "index.md").read_text()
    assert "docs/glossary.md" in CliRunner().invoke(app, ["--help"], env={"COLUMNS": "500"}).output
    blocks = [Text(heading="Growth", term="rung"), *glossary([Text(heading="Growth", term="rung")])]
    assert Glossary(items=(("rung", WORDS["rung"]),)) in blocks
    html = to_html(Document(title="a page", blocks=tuple(blocks)))
    assert MORE.replace("`docs/glossary.md`", "<code>docs/glossary.md</code>") in html


def test_a_page_without_terms_has_no_glossary():
    assert glossary([Text(body="nothing to explain")]) == []


def test_the_tables_of_arguments_and_results_are_those_of_the_package() -> None:
    page = (ROOT / "docs" / "contracts.md").read_text()
    written = runpy.run_path(str(ROOT / "tools" / "written_pages.py"))["contracts_page"](page)
    assert "| `lipschitz` |" in written
    assert page == written, "run: python tools/written_pages.py"
