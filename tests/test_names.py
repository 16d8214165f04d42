"""One word for one thing: a class name means one class in the whole package."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import normscope

PACKAGE = Path(normscope.__file__).parent
EVERYWHERE = {"NormscopeCallback"}
"""What users import from `callbacks.lightning` and from `callbacks.huggingface`: one name for one purpose."""


def test_class_names_are_unique():
    found = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
            found[name].append(str(path.relative_to(PACKAGE)))
    assert len(found) > 300
    assert not {name: where for name, where in found.items() if len(where) > 1 and name not in EVERYWHERE}
