"""Write the pages of the documentation that have their source in the package: the glossary and the list of findings.

    python tools/written_pages.py [--docs docs]

Run it after a term or a kind of finding has been added or its words changed; tests compare the pages with the source.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from normscope.core.finding_kinds import KINDS
from normscope.report.glossary import USED, WORDS

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


def findings_page(page: str) -> str:
    """Return the page of findings with its two tables, each between two comments, as the list of kinds has them."""
    for by in ("audit", "watch"):
        rows = ["| code | severity | what was seen |", "|---|---|---|"]
        for code, kind in KINDS.items():
            raised = getattr(kind, by)
            if raised is not None:
                rows.append(f"| `{code}` | {raised.severity} | {raised.seen} |")
        table = "\n".join((f"<!-- table: {by} -->", *rows, "<!-- end of table -->"))
        page = re.sub(rf"<!-- table: {by} -->.*?<!-- end of table -->", lambda _, text=table: text, page, flags=re.S)
    return page


def main() -> None:
    """Write both pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    folder: Path = parser.parse_args().docs
    (folder / "glossary.md").write_text(glossary_page(), encoding="utf-8")
    findings = folder / "findings.md"
    findings.write_text(findings_page(findings.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {folder / 'glossary.md'} ({len(WORDS)} terms) and {findings} ({len(KINDS)} kinds)")


if __name__ == "__main__":
    main()
