"""Write docs/glossary.md from the words that reports explain (`normscope.report.glossary`).

    python tools/glossary_page.py [--docs docs]

Run it after a term has been added or its meaning changed; `tests/report/test_glossary.py` compares the two.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from normscope.report.glossary import USED, WORDS

INTRO = """# Glossary

What the words of reports, of the documentation and of the command line mean, and where each is used. Reports explain
the terms that they use at their end, under *Words*. This page is written by `tools/glossary_page.py` from the same
source, `src/normscope/report/glossary.py`.
"""


def page() -> str:
    """Return the page as Markdown: the terms in the order of the alphabet, each under a heading of its own."""
    terms = sorted(WORDS, key=lambda term: (term.lower(), term))
    entries = (f"## {term}\n\n{WORDS[term]} [Where it is used]({USED[term]}).\n" for term in terms)
    return "\n".join([INTRO, *entries])


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    path: Path = parser.parse_args().docs / "glossary.md"
    path.write_text(page(), encoding="utf-8")
    print(f"wrote {path}: {len(WORDS)} terms")


if __name__ == "__main__":
    main()
