"""Files and names that comments, docstrings and pages name are there: a reference that has gone stale fails here."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"(?<![\w/.*{<-])((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)\b")
OF_USERS = {"net.py", "file.py", "train.py", "path/to/file.py"}
"""What examples call a file of the user."""
FOLDERS = ("src", "tests", "benchmarks", "tools", "docs")
QUOTED = re.compile(r"`(_?[A-Z][A-Za-z0-9_]+|_[a-z][a-z0-9_]+)`")
COMMENT = re.compile(r"(?:^|  )#.*$", re.MULTILINE)
OF_TORCH = {"AddmmBackward0"}


def stale_references(text: str, places: set[str], names: set[str]) -> set[str]:
    """Return the files that a text names and that are in none of the places."""
    named = set(NAMED.findall(text)) - OF_USERS
    return {one for one in named if one not in (places if "/" in one else names)}


def test_every_file_that_is_named_is_there():
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if "_build" not in path.parts]
    names = {path.name for path in files}
    places = {"/".join(path.parts[-count:]) for path in files for count in range(1, len(path.parts))}
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "SECURITY.md"]
    stale = {
        str(file.relative_to(ROOT)): found
        for file in (*(ROOT / "src").rglob("*.py"), *(ROOT / "tools").glob("*.py"), *pages)
        if (found := stale_references(file.read_text(encoding="utf-8"), places, names))
    }
    assert stale == {}


def test_a_stale_reference_is_seen():
    text = "See `kept.py` and `core/gone.py`, and `there.py`; `normscope check net.py:build`."
    assert stale_references(text, {"core/there.py"}, {"there.py"}) == {"kept.py", "core/gone.py"}


def names_of(text: str) -> tuple[set[str], set[str]]:
    """Return the names in the code of a file, its strings included, and the constants, classes and private names in
    backticks in its comments and docstrings.
    """
    parts = text.split('"""')
    code, prose = "\n".join(parts[::2]), "\n".join([*parts[1::2], *COMMENT.findall("\n".join(parts[::2]))])
    used, quoted = set(re.findall(r"\w+", COMMENT.sub("", code))), set(QUOTED.findall(prose))
    return used, quoted


def test_every_constant_class_and_private_name_in_backticks_is_there():
    files = {path: names_of(path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py")}
    there = OF_TORCH.union(*(used for used, _ in files.values()))
    stale = {str(path.relative_to(ROOT)): gone for path, (_, quoted) in files.items() if (gone := quoted - there)}
    assert stale == {}


def test_a_stale_name_is_seen():
    used, quoted = names_of('MAX_PICTURES = 3\n"""Up to `MOST` of `MAX_PICTURES`."""\n# see `_Gone`\nshow = "`Kept`"\n')
    assert quoted - used == {"MOST", "_Gone"}
