"""One word for one thing: a class name means one class in the whole package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import normscope

PACKAGE = Path(normscope.__file__).parent
EVERYWHERE = {"NormscopeCallback"}
"""What users import from `callbacks.lightning` and from `callbacks.huggingface`: one name for one purpose."""


def test_class_names_are_unique():
    found = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    assert not {name: where for name, where in found.items() if len(where) > 1 and name not in EVERYWHERE}
