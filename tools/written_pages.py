"""Write the pages of the documentation that have their source in the package: the glossary and the table of rooms.

    python tools/written_pages.py [--docs docs]

Run it after a term or a room has been added or its words changed; a test compares the pages with the source.
"""

from __future__ import annotations

import argparse
import ast
import re
import tomllib
from pathlib import Path

from normscope.report.glossary import USED, WORDS

ROOT = Path(__file__).parents[1]
INTRO = """# Glossary

What the words of reports, of the documentation and of the command line mean, and where each is used. Reports explain
the terms that they use at their end, under *Words*. This page is written by `tools/written_pages.py` from the same
source, `src/normscope/report/glossary.py`.
"""


def glossary_page() -> str:
    """Return the glossary as Markdown: the terms in the order of the alphabet, each under a heading of its own."""
    terms = sorted(WORDS, key=lambda term: (term.lower(), term))
    entries = (f"## {term}\n\n{WORDS[term]} [Where it is used]({USED[term]}).\n" for term in terms)
    return "\n".join([INTRO, *entries])


def architecture_page(page: str) -> str:
    """Return the page of the architecture with its table of rooms: each folder with the first line of its docstring."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    package, rows = ROOT / "src" / "normscope", ["| room | what lives there |", "|---|---|"]
    for room in reversed(next(one["layers"] for one in contracts if one["type"] == "layers")):
        for file in sorted((package / room).rglob("__init__.py")) or [package / f"{room}.py"]:
            words = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0]
            place = file.parent if file.name == "__init__.py" else file
            rows.append(f"| `{place.relative_to(package).as_posix()}{'/' * place.is_dir()}` | {words} |")
    table = "\n".join(("<!-- table: rooms -->", *rows, "<!-- end of table -->"))
    return re.sub(r"<!-- table: rooms -->.*?<!-- end of table -->", lambda _: table, page, flags=re.S)


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    folder: Path = parser.parse_args().docs
    (folder / "glossary.md").write_text(glossary_page(), encoding="utf-8")
    architecture = folder / "architecture.md"
    architecture.write_text(architecture_page(architecture.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {architecture} and {folder / 'glossary.md'} ({len(WORDS)} terms)")


if __name__ == "__main__":
    main()
