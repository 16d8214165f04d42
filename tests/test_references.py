"""Files that comments, docstrings and pages name are there: a reference that has gone stale fails here."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"(?<![\w/.*{<-])((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)\b")
OF_USERS = {"net.py", "file.py", "train.py", "path/to/file.py"}
"""What examples call a file of the user."""
FOLDERS = ("src", "tests", "benchmarks", "tools", "docs")


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
