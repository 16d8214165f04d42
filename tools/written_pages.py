"""Write what has its source in the package: glossary, rooms, contracts, findings, and what the README's code prints.

    python tools/written_pages.py [--docs docs]

Run it after a term, a room, a public function or a result has been added or changed; tests compare the pages with the
source.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import normscope
from normscope.auditing.findings import STAND_BEFORE
from normscope.core.shown import Shown
from normscope.doctor.monitor.quantities import DECLARED
from normscope.doctor.symptoms import unseen_training, validation
from normscope.doctor.symptoms.registry import RULES
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


MADE_BY = {"DataBracket": '`lipschitz(..., scope="data")`', "Run": "`watch(..., log=folder)`, `Run(folder)`"}
"""Where results come from that no function returns by their name."""
REMARKS = {
    "Bracket": "`save` writes a proof, which `normscope bound verify` reads",
    "Graph": "no file: it holds the model itself and is captured in a moment; it is a list, with nothing to draw",
    "Initialisation": "from a file without its model",
    "Ladder": "from a file without its graph",
    "Run": "its log is a file too, which `Run(folder)` reads",
    "Symmetries": "from a file without its model",
    "Twin": "from a file without its model; it is a list of changes, with nothing to draw",
}
"""What a row of the table of results must say."""
NOTHING_TO_PLOT = ("Graph", "Twin")
"""Results that are lists: their pages have no chart."""
METHODS = ("to_json", "from_json", "to_html", "to_pandas", "plot", "save", "load")
SHARED = ("labels", "loss", "mode", "output", "known", "on_missing", "effort", "rtol", "max_seconds", "seed")
"""Arguments that mean the same wherever they are."""


def contracts_page(page: str) -> str:
    """Return the page of the contracts with its tables: the arguments of functions, and the methods of results."""
    public = {name: getattr(normscope, name) for name in normscope.__all__}
    functions = {name: inspect.signature(one) for name, one in public.items() if inspect.isfunction(one)}
    results = {name: one for name, one in public.items() if inspect.isclass(one) and issubclass(one, Shown)}
    arguments = [f"| function | {' | '.join(f'`{name}`' for name in SHARED)} |", "|---" * (len(SHARED) + 1) + "|"]
    for name, signature in functions.items():
        if "labels" in signature.parameters:
            cells = (signature.parameters[one].default if one in signature.parameters else "" for one in SHARED)
            arguments.append(f"| `{name}` | {' | '.join(f'`{cell!r}`' if cell != '' else '' for cell in cells)} |")
    titles = " | ".join(f"`{name}`" for name in METHODS)
    rows = [f"| result | comes from | {titles} | |", "|---" * (len(METHODS) + 3) + "|"]
    for name, kind in results.items():
        made = [f"`{one}`" for one, signature in functions.items() if signature.return_annotation == name]
        made = made or [MADE_BY[name]]
        has = (
            "x" if hasattr(kind, method) and not (method == "plot" and name in NOTHING_TO_PLOT) else ""
            for method in METHODS
        )
        rows.append(f"| `{name}` | {', '.join(made)} | {' | '.join(has)} | {REMARKS.get(name, '')} |")
    for title, lines in (("arguments", arguments), ("results", rows)):
        table = "\n".join((f"<!-- table: {title} -->", *lines, "<!-- end of table -->"))
        page = re.sub(rf"<!-- table: {title} -->.*?<!-- end of table -->", lambda _, t=table: t, page, flags=re.S)
    return page


WHEN_RAISED = re.compile(r"^`([a-z-]+)` \((.*?)\): (.*?)(?=\n`[a-z-]+` \(|\n\n|\Z)", flags=re.DOTALL | re.MULTILINE)
"""How a rule's docstring says when a code is raised, and how severe it is."""


def findings_page(page: str) -> str:
    """Return the page of findings with its tables, of a check and of a run, as the docstrings of rules say them."""
    watched = (*(rule.watch for rule in RULES), validation.watch_validation, unseen_training)
    checked = [one for rule in RULES if rule.check for one in (*STAND_BEFORE.get(rule.check, ()), rule.check)]
    for title, sources in (("a check", checked), ("a run", watched)):
        rows = ["| code | severity | what was seen |", "|---|---|---|"]
        for source in filter(None, sources):
            raised = WHEN_RAISED.findall(inspect.getdoc(source) or "")
            rows += [f"| `{code}` | {severity} | {' '.join(when.split())} |" for code, severity, when in raised]
        table = "\n".join((f"<!-- table: findings of {title} -->", *rows, "<!-- end of table -->"))
        place = rf"<!-- table: findings of {title} -->.*?<!-- end of table -->"
        page = re.sub(place, lambda _, t=table: t, page, flags=re.S)
    return page


def watching_page(page: str) -> str:
    """Return the page of watched runs with its table of quantities, as they are declared."""
    quantities = sorted(DECLARED.values(), key=lambda one: one.of)
    rows = [f"| {one.of} | `{one.name}` | {one.meaning} |" for one in quantities if one.derive is None]
    table = "\n".join(("<!-- table: quantities -->", "| of | quantity | what it is |", "|---|---|---|", *rows))
    return re.sub(r"<!-- table: quantities -->.*?(?=\n<!-- end of table -->)", lambda _: table, page, flags=re.S)


CODE_AND_OUTPUT = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", flags=re.DOTALL)
"""A block of code and, behind it, the block with what it prints."""


def printed_by(code: str) -> str:
    """Return what code prints, run in an empty folder by a process of its own; an error is shown as it is."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env=os.environ | {"COLUMNS": "120"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines()) + "\n"


def page_with_output(page: str) -> str:
    """Return a page with what its code prints."""
    return CODE_AND_OUTPUT.sub(lambda m: f"```python\n{m[1]}```\n\n```text\n{printed_by(m[1])}```", page)


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    folder: Path = parser.parse_args().docs
    (folder / "glossary.md").write_text(glossary_page(), encoding="utf-8")
    architecture = folder / "architecture.md"
    architecture.write_text(architecture_page(architecture.read_text(encoding="utf-8")), encoding="utf-8")
    contracts = folder / "contracts.md"
    contracts.write_text(contracts_page(contracts.read_text(encoding="utf-8")), encoding="utf-8")
    findings = folder / "findings.md"
    findings.write_text(findings_page(findings.read_text(encoding="utf-8")), encoding="utf-8")
    watching = folder / "watching.md"
    watching.write_text(watching_page(watching.read_text(encoding="utf-8")), encoding="utf-8")
    readme = folder.parent / "README.md"
    readme.write_text(page_with_output(readme.read_text(encoding="utf-8")), encoding="utf-8")
    written = ", ".join(map(str, (readme, architecture, contracts, findings, watching)))
    print(f"wrote {written} and {folder / 'glossary.md'} ({len(WORDS)} terms)")


if __name__ == "__main__":
    main()
