"""Write the page of the documentation that has its source in the package: the glossary.

    python tools/written_pages.py [--docs docs]

Run it after a term has been added or its words changed; a test compares the page with the source.
"""

from __future__ import annotations

import argparse
from pathlib import Path

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


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    folder: Path = parser.parse_args().docs
    (folder / "glossary.md").write_text(glossary_page(), encoding="utf-8")
    print(f"wrote {folder / 'glossary.md'} ({len(WORDS)} terms)")


if __name__ == "__main__":
    main()
